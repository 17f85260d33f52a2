// Fields that cluster descriptions and site files have in common. Errors go to the table's document.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "cluster/cluster.hpp"
#include "cluster/gpu_catalogue.hpp"
#include "core/toml_reader.hpp"

namespace sailor {

/// `gpu`, as the catalogue names it.
std::string read_gpu(const TomlTable& row, const GpuCatalogue& catalogue);
/// A GPU, and `usd_per_hour` of one.
std::pair<std::string, UsdPerHour> read_price(const TomlTable& row, const GpuCatalogue& catalogue);
/// `name`, `region` and the [[zones.prices]] of a [[zones]].
Zone read_zone(const TomlTable& row, const GpuCatalogue& catalogue);
/// The fields of a [[links]]; whether they are enough is for the caller to say.
ZoneLink read_link(const TomlTable& row);
/// `zone`, which the key names, has to be among the `known` ones; an empty one need not.
void require_zone(const TomlTable& row, std::string_view key, const std::string& zone,
                  const std::set<std::string>& known);

}  // namespace sailor
