// Measures messages between ranks and collectives over ranks, with the transport of the training runtime and memory of
// the device. Runs on every rank of a job; ranks that are not measured sleep meanwhile.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/units.hpp"
#include "profile/measurements.hpp"
#include "profiler/link_plan.hpp"
#include "runtime/device.hpp"
#include "runtime/world.hpp"

namespace sailor::profiler {

struct LinkSettings {
  LinkRank rank{};                         ///< of this rank
  std::optional<LinkScope> scope{};        ///< overrides what the nodes say
  std::optional<Bytes> largest_message{};  ///< std::nullopt: what memory allows, up to 1 GiB
  int samples = 20;                        ///< measured rounds, at most
  int warm_up = 3;                         ///< unmeasured rounds before them
  /// No new round begins after this, once `fewest_samples` are done; sizes that cannot be measured that often within
  /// their curve's share of it are left out.
  Seconds time_budget{60.0};
  double narrow_enough = 0.03;  ///< a size is done when its median is known to this (95%, relative)
  /// Groups that follow one another in the plan and have no rank in common are measured at the same time.
  bool groups_at_once = false;
};

/// What will be measured; the same on all ranks.
struct LinkPlan {
  std::vector<LinkGroup> groups;
  std::vector<std::size_t> sizes;  ///< bytes
  [[nodiscard]] std::size_t series() const;
};

/// 1 KiB, 4 KiB, 16 KiB, ... up to `largest`.
std::vector<std::size_t> message_sizes(Bytes largest);

/// Collective; messages will lie on `device`. Errors (usage): fewer than two ranks.
Result<LinkPlan> plan_links(const LinkSettings& settings, const runtime::Device& device, runtime::Control& control);

/// Messages of a curve that would have taken too long.
struct LeftOut {
  LinkKey key{};
  Bytes smallest{};    ///< this and all larger ones
  Seconds expected{};  ///< expected time of one message of `smallest`
};

struct MeasuredLinks {
  std::vector<LinkMeasurement> links;
  std::vector<LinkFit> fits;
  std::vector<LeftOut> left_out;
};

/// Collective. Measurements on rank 0; empty on other ranks. `round_done` is called on rank 0.
MeasuredLinks measure_links(const LinkPlan& plan, const LinkSettings& settings, runtime::Device& device,
                            const runtime::World& world,
                            const std::function<void(std::size_t done, std::size_t of)>& round_done);

/// A curve for every key with at least three sizes.
std::vector<LinkFit> fit_links(const std::vector<LinkMeasurement>& links);

}  // namespace sailor::profiler
