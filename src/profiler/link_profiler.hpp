// Measures messages between ranks and sums over ranks, with the communicators of the training runtime. Runs on every
// rank of a job.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/units.hpp"
#include "profile/profile.hpp"
#include "runtime/communicator.hpp"
#include "runtime/device.hpp"

namespace sailor::profiler {

struct LinkSettings {
  std::string gpu;                 ///< of this rank
  std::string node;                ///< where this rank runs; ranks with the same text share a node
  std::optional<LinkScope> scope;  ///< overrides what the nodes say
  Bytes largest_message = 64.0 * mib;
  int samples = 20;           ///< rounds that count
  int warm_up = 3;            ///< rounds before them
  Seconds time_budget{60.0};  ///< no new round is begun after that, once 3 samples are done
};

/// Ranks that are measured together: two for messages and sums, more for sums only.
struct LinkGroup {
  LinkScope scope = LinkScope::intra_node;
  std::vector<int> ranks;  ///< ascending, first 0
  bool operator==(const LinkGroup&) const = default;
};

/// Which ranks to measure, given the node of each: rank 0 with a neighbour on its node and with one on another node;
/// all ranks of its node; all ranks. With `scope`: ranks 0 and 1, and all, as that.
std::vector<LinkGroup> link_groups(const std::vector<std::string>& nodes, std::optional<LinkScope> scope);

/// 1 KiB, 4 KiB, 16 KiB, ... up to `largest`.
std::vector<std::size_t> message_sizes(Bytes largest);

/// Measurements on rank 0; empty on other ranks. Errors (usage): fewer than two ranks.
Result<std::vector<LinkMeasurement>> measure_links(
    const LinkSettings& settings, runtime::Device& device, runtime::Communicator& world,
    const std::function<void(std::size_t done, std::size_t of)>& round_done);

}  // namespace sailor::profiler
