// Measurements of sailor-check on an allocation: FLOP/s and bytes/s of ranks and links, taken within a few seconds. The
// measure_*() functions are collective.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/units.hpp"
#include "preflight/node_check.hpp"
#include "preflight/rank_facts.hpp"
#include "runtime/device.hpp"
#include "runtime/world.hpp"

namespace sailor::apps {

/// Number of busy cores of this rank's node, measured while all ranks sleep for half a second. std::nullopt if the
/// system does not report it.
std::optional<double> measure_load(runtime::Control& control);

/// Matrix products and copies of all ranks at once, for half of `time` each: on `threads` threads of the CPU in
/// float32, or on GPUs (threads = 0) in float16.
preflight::RankSpeed measure_rank(runtime::Control& control, runtime::Device& device, int threads, Seconds time);

/// Measures sends around the ring of nodes (disjoint pairs at once) and all-reduces. The result is on rank 0, empty
/// elsewhere. `nodes` are those of all ranks, by rank.
preflight::JobSpeed measure_links(const runtime::World& world, runtime::Device& device, bool on_gpus,
                                  const std::vector<std::string>& nodes, Bytes message, Seconds time);

/// Writes a file of `amount` to the folder, from one rank of each node at once, and removes it. `nodes` are those of
/// all ranks, by rank. std::nullopt on the other ranks.
std::optional<preflight::WriteSpeed> measure_writing(runtime::Control& control, const std::vector<std::string>& nodes,
                                                     const std::string& folder, Bytes amount);

/// The better of two measurements.
preflight::WriteSpeed better(const preflight::WriteSpeed& one, const preflight::WriteSpeed& other);
preflight::RankSpeed better(const preflight::RankSpeed& one, const preflight::RankSpeed& other);
preflight::JobSpeed better(preflight::JobSpeed one, const preflight::JobSpeed& other);

}  // namespace sailor::apps
