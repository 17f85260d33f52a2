// Fields that cluster descriptions and site files have in common. Errors go to the table's document.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "cluster/cluster.hpp"
#include "cluster/gpu_catalogue.hpp"
#include "core/toml_reader.hpp"

namespace sailor {

/// Reads `gpu` and returns its name in the catalogue. An unknown GPU is an error; with `unknown` it is kept as it is,
/// and added there: files that come with Sailor name more GPUs than a user's own catalogue.
std::string read_gpu(const TomlTable& row, const GpuCatalogue& catalogue, std::set<std::string>* unknown = nullptr);
/// Reads a GPU, and `usd_per_hour` of one.
std::pair<std::string, UsdPerHour> read_price(const TomlTable& row, const GpuCatalogue& catalogue,
                                              std::set<std::string>* unknown = nullptr);
/// Reads `name`, `region` and the [[zones.prices]] of a [[zones]].
Zone read_zone(const TomlTable& row, const GpuCatalogue& catalogue, std::set<std::string>* unknown = nullptr);
/// Reads the fields of a [[links]]; the caller checks whether they suffice.
ZoneLink read_link(const TomlTable& row);
/// Reads the link of a [switches]: `bandwidth_bytes_per_s` and `latency_s`; std::nullopt without the former.
std::optional<SwitchLink> read_switch_link(const TomlTable& table);
/// Requires that `zone`, the value of the key, is among the `known` ones or empty.
void require_zone(const TomlTable& row, std::string_view key, const std::string& zone,
                  const std::set<std::string>& known);

}  // namespace sailor
