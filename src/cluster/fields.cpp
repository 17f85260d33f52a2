#include "cluster/fields.hpp"

#include <fmt/format.h>

#include "core/text.hpp"

namespace sailor {

std::string read_gpu(const TomlTable& row, const GpuCatalogue& catalogue, std::set<std::string>* unknown) {
  std::string gpu = row.text("gpu");
  if (gpu.empty()) return gpu;
  const auto type = catalogue.find(gpu);
  if (type) return type->name;
  if (unknown != nullptr)
    unknown->insert(gpu);
  else
    row.reject("gpu", type.error().what, type.error().hint);
  return gpu;
}

std::pair<std::string, UsdPerHour> read_price(const TomlTable& row, const GpuCatalogue& catalogue,
                                              std::set<std::string>* unknown) {
  std::string gpu = read_gpu(row, catalogue, unknown);
  return {std::move(gpu), UsdPerHour(row.number("usd_per_hour", {.minimum = 0.0}))};
}

Zone read_zone(const TomlTable& row, const GpuCatalogue& catalogue, std::set<std::string>* unknown) {
  Zone zone;
  zone.name = row.text("name");
  zone.region = row.text_or("region", zone.name);
  for (const TomlTable& price : row.tables("prices")) zone.prices.push_back(read_price(price, catalogue, unknown));
  return zone;
}

ZoneLink read_link(const TomlTable& row) {
  ZoneLink link{.from = row.text("from"),
                .to = row.text("to"),
                .bandwidth = {},
                .latency = Seconds(row.number_or("latency_s", 0.0, {.minimum = 0.0})),
                .egress_usd_per_byte = row.number_or("egress_usd_per_byte", 0.0, {.minimum = 0.0})};
  if (row.has("bandwidth_bytes_per_s"))
    link.bandwidth = BytesPerSecond(row.number("bandwidth_bytes_per_s", {.minimum = 1.0}));
  return link;
}

std::optional<SwitchLink> read_switch_link(const TomlTable& table) {
  const Seconds latency(table.number_or("latency_s", 0.0, {.minimum = 0.0}));
  if (table.has("bandwidth_bytes_per_s"))
    return SwitchLink{.bandwidth = BytesPerSecond(table.number("bandwidth_bytes_per_s", {.minimum = 1.0})),
                      .latency = latency};
  if (table.has("latency_s"))
    table.reject("latency_s", "'latency_s' is there without bandwidth_bytes_per_s", "add the bandwidth");
  return std::nullopt;
}

void require_zone(const TomlTable& row, std::string_view key, const std::string& zone,
                  const std::set<std::string>& known) {
  if (!zone.empty() && !known.contains(zone))
    row.reject(key, fmt::format("zone '{}' is not described", zone),
               fmt::format("add a [[zones]] with this name; known: {}", join(known, ", ")));
}

}  // namespace sailor
