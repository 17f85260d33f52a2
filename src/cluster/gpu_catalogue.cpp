#include "cluster/gpu_catalogue.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "cluster/gpu_match.hpp"
#include "core/files.hpp"
#include "core/text.hpp"
#include "core/toml_reader.hpp"

namespace sailor {

Result<GpuCatalogue> GpuCatalogue::parse(std::string_view text, std::string_view source_name) {
  auto document = TomlDocument::parse(text, source_name);
  if (!document) return fail(document.error());
  document->require_schema_version(1, TomlKind::gpu_catalogue);
  GpuCatalogue catalogue;
  std::map<std::string, std::string> names;       // lower-case name or alias -> type
  std::map<std::string, std::string> gres_names;  // lower-case GRES type -> type
  for (const TomlTable& row : document->root().tables("gpus")) {
    constexpr NumberRange positive{.minimum = 1e-12};
    constexpr NumberRange amount{.minimum = 0.0};
    GpuType type;
    type.name = row.text("name");
    type.aliases = row.texts_or("aliases", {});
    type.kind = static_cast<DeviceKind>(row.choice_or("kind", {"gpu", "cpu"}, 0));
    if (type.kind == DeviceKind::gpu) type.memory = Bytes(row.number("memory_bytes", positive));
    type.peak_fp32 = FlopPerSecond(row.number("peak_fp32_flop_per_s", positive));
    type.peak_tf32 = FlopPerSecond(row.number_or("peak_tf32_flop_per_s", 0.0, amount));
    type.peak_bf16 = FlopPerSecond(row.number_or("peak_bf16_flop_per_s", 0.0, amount));
    type.peak_fp16 = FlopPerSecond(row.number_or("peak_fp16_flop_per_s", 0.0, amount));
    type.peak_fp8 = FlopPerSecond(row.number_or("peak_fp8_flop_per_s", 0.0, amount));
    type.memory_bandwidth = BytesPerSecond(row.number("memory_bandwidth_bytes_per_s", positive));
    type.node_link = BytesPerSecond(row.number_or("node_link_bytes_per_s", 0.0, amount));
    type.price = UsdPerHour(row.number("price_usd_per_hour", amount));
    type.slurm_gres = row.texts_or("slurm_gres", {});
    type.source = row.text("source");
    type.driver_names = row.texts_or("driver_names", {});
    const std::vector<std::string_view> backends{"cuda", "hip"};
    type.backend = backends[row.choice_or("backend", backends, 0)];
    if (type.kind == DeviceKind::cpu) {
      if (row.has("backend")) row.reject("backend", fmt::format("{} is a CPU: its backend is no choice", type.name));
      type.backend = "cpu";
    }

    std::vector<std::string> claimed = type.aliases;
    claimed.push_back(type.name);
    for (const std::string& name : claimed)
      if (const auto [entry, added] = names.emplace(to_lower(name), type.name); !added)
        row.reject("aliases", fmt::format("the name '{}' of {} already means {}", name, type.name, entry->second));
    for (const std::string& gres : type.slurm_gres)
      if (const auto [entry, added] = gres_names.emplace(to_lower(gres), type.name); !added)
        row.reject("slurm_gres",
                   fmt::format("the GRES type '{}' of {} already means {}", gres, type.name, entry->second));
    catalogue.types_.push_back(std::move(type));
  }
  SAILOR_CHECK(document->finish());
  return catalogue;
}

Result<GpuCatalogue> GpuCatalogue::load(const std::filesystem::path& path) {
  auto text = read_text_file(path);
  if (!text) return fail(text.error());
  return parse(*text, path.string());
}

Result<GpuType> GpuCatalogue::find(std::string_view name) const {
  std::vector<std::string> names;
  for (const GpuType& type : types_) {
    const bool alias = std::any_of(type.aliases.begin(), type.aliases.end(),
                                   [&](const std::string& other) { return equal_ignoring_case(other, name); });
    if (alias || equal_ignoring_case(type.name, name)) return type;
    names.push_back(type.name);
  }
  return fail(ErrorCode::not_found, fmt::format("GPU type '{}' is not in the catalogue", name),
              fmt::format("known: {}; add it to gpus.toml", join(names, ", ")));
}

const GpuType* GpuCatalogue::find_gres(std::string_view gres_type) const {
  return gres_type.empty() ? nullptr : match_gres(*this, gres_type).type;
}

const GpuType* GpuCatalogue::cpu() const {
  for (const GpuType& type : types_)
    if (type.kind == DeviceKind::cpu) return &type;
  return nullptr;
}

}  // namespace sailor
