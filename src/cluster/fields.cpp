#include "cluster/fields.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace sailor {

std::string read_gpu(const TomlTable& row, const GpuCatalogue& catalogue) {
  std::string gpu = row.text("gpu");
  if (gpu.empty()) return gpu;
  const auto type = catalogue.find(gpu);
  if (type) return type->name;
  row.reject("gpu", type.error().what, type.error().hint);
  return gpu;
}

std::pair<std::string, UsdPerHour> read_price(const TomlTable& row, const GpuCatalogue& catalogue) {
  std::string gpu = read_gpu(row, catalogue);
  return {std::move(gpu), UsdPerHour(row.number("usd_per_hour", {.minimum = 0.0}))};
}

Zone read_zone(const TomlTable& row, const GpuCatalogue& catalogue) {
  Zone zone;
  zone.name = row.text("name");
  zone.region = row.text_or("region", zone.name);
  for (const TomlTable& price : row.tables("prices")) zone.prices.push_back(read_price(price, catalogue));
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

void require_zone(const TomlTable& row, std::string_view key, const std::string& zone,
                  const std::set<std::string>& known) {
  if (!zone.empty() && !known.contains(zone))
    row.reject(key, fmt::format("zone '{}' is not described", zone),
               fmt::format("add a [[zones]] with this name; known: {}", fmt::join(known, ", ")));
}

}  // namespace sailor
