#include "slurm/device_models.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>

#include "cluster/gpu_match.hpp"
#include "core/files.hpp"
#include "core/parse.hpp"
#include "core/text.hpp"

namespace sailor::slurm {

namespace fs = std::filesystem;

namespace {

/// The value of the line "Model:"; empty if there is none.
std::string model_of(std::string_view information) {
  constexpr std::string_view key = "Model:";
  for (const std::string& line : split(information, '\n')) {
    if (!std::string_view(line).starts_with(key)) continue;
    return std::string(trimmed(std::string_view(line).substr(key.size())));
  }
  return {};
}

}  // namespace

std::vector<std::string> device_models(const fs::path& folder) {
  constexpr std::size_t largest_file = 1 << 16;
  std::vector<std::string> models;
  std::error_code code;
  for (fs::directory_iterator device(folder, code), end; !code && device != end; device.increment(code)) {
    const auto information = read_kernel_file(device->path() / "information", largest_file);
    if (!information) continue;
    if (std::string model = model_of(*information); !model.empty()) models.push_back(std::move(model));
  }
  std::sort(models.begin(), models.end());
  return models;
}

Result<void> check_models(const std::vector<std::string>& models, const std::string& gpu,
                          const GpuCatalogue& catalogue) {
  const auto planned = catalogue.find(gpu);
  if (!planned || planned->kind == DeviceKind::cpu) return {};
  std::string others;
  for (const std::string& model : models) {
    const GpuType* type = match_device(catalogue, model, std::nullopt);
    // A model that the catalogue does not know may be any GPU.
    if (type == nullptr || type->name == planned->name) return {};
    if (others.find(model) == std::string::npos)
      others += fmt::format("{}{} ({})", others.empty() ? "" : ", ", model, type->name);
  }
  if (others.empty()) return {};
  return fail(ErrorCode::invalid_input,
              fmt::format("its driver reports {}, but the plan has {} here", others, planned->name),
              "exclude the node (--exclude), and tell its administrator if gres.conf says otherwise");
}

}  // namespace sailor::slurm
