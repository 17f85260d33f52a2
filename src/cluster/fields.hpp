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

/// `gpu`, as the catalogue names it. One that it does not have is an error; with `unknown` it is kept as it is, and
/// added there: files that come with Sailor speak of more GPUs than a catalogue of one's own.
std::string read_gpu(const TomlTable& row, const GpuCatalogue& catalogue, std::set<std::string>* unknown = nullptr);
/// A GPU, and `usd_per_hour` of one.
std::pair<std::string, UsdPerHour> read_price(const TomlTable& row, const GpuCatalogue& catalogue,
                                              std::set<std::string>* unknown = nullptr);
/// `name`, `region` and the [[zones.prices]] of a [[zones]].
Zone read_zone(const TomlTable& row, const GpuCatalogue& catalogue, std::set<std::string>* unknown = nullptr);
/// The fields of a [[links]]; whether they are enough is for the caller to say.
ZoneLink read_link(const TomlTable& row);
/// The link of a [switches]: `bandwidth_bytes_per_s` and `latency_s`; nothing without the former.
std::optional<SwitchLink> read_switch_link(const TomlTable& table);
/// `zone`, which the key names, has to be among the `known` ones; an empty one need not.
void require_zone(const TomlTable& row, std::string_view key, const std::string& zone,
                  const std::set<std::string>& known);

}  // namespace sailor
