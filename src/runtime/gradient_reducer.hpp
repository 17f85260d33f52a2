// Sums gradients over the ranks that hold the same parameters, in place, on a stream of its own: bucket by bucket while
// the backward pass still runs, or, under ZeRO-1, each rank its slice after it. What a rank sums it steps; afterwards
// ranks gather the stepped values from each other, while the next iteration begins.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "core/units.hpp"
#include "plan/plan.hpp"
#include "runtime/device.hpp"
#include "runtime/gradient_groups.hpp"
#include "runtime/parameters.hpp"
#include "runtime/timeline.hpp"
#include "runtime/transport.hpp"
#include "runtime/world.hpp"

namespace sailor::runtime {

struct ReducerSettings {
  OptimizerSharding sharding = OptimizerSharding::none;
  /// Start sums in the last backward pass; else after it.
  bool overlap = true;
  float share = 1.0f;  ///< of this rank in gradients that its tensor-parallel group holds in common
};

class GradientReducer {
 public:
  /// Makes this rank's groups; all ranks of `world` must do so at the same time.
  GradientReducer(const RankSums& sums, const ReducerSettings& settings, const World& world, Device& device,
                  ParameterStorage& parameters, TimelineRecorder& timeline);

  /// The gradients of a layer are complete for this iteration, on the main stream; sums that only waited for it are
  /// asked for. All ranks finish their layers in descending order.
  void finished(int layer);
  /// Asks for the rest. All ranks take groups and buckets in the same order, so they cannot wait for each other in a
  /// circle. On the main stream the gradients of owned() are sums afterwards.
  void finish();
  /// Under ZeRO-1: the values that other ranks stepped come here, behind what the main stream was asked so far.
  void gather_values();
  /// The main stream waits for the values of a layer that gather_values() has asked for.
  void wait_for_values(int layer);
  /// For those of all layers.
  void wait_for_values();

  /// On the main stream: *sum (fp64, on the device) += the squares of the gradients in RankSums::counted.
  void add_squares(double* sum);

  /// Sums that this rank makes with others, per iteration.
  [[nodiscard]] std::size_t buckets() const { return buckets_.size(); }
  /// Groups that this rank is in.
  [[nodiscard]] std::size_t groups() const { return groups_.size(); }

 private:
  struct Bucket {
    GradientBucket what;
    std::unique_ptr<Event> gathered;  // with ZeRO-1: all its values are here
    bool is_awaited = false;          // by the main stream, since they were gathered
  };
  [[nodiscard]] bool is_ready(const Bucket& bucket) const;
  void start(const Bucket& bucket);
  [[nodiscard]] Group& group_of(const Bucket& bucket) { return *groups_[bucket.what.group]; }

  Device& device_;
  ParameterStorage& parameters_;
  ReducerSettings settings_;
  TimelineRecorder& timeline_;  // is told when sums begin and end
  std::vector<Range> counted_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::unique_ptr<Stream> stream_;  // of the sums
  std::unique_ptr<Event> ready_;    // on the main stream: what a sum waits for
  std::unique_ptr<Event> summed_;
  std::vector<Bucket> buckets_;
  std::set<int> finished_;
  std::size_t started_ = 0;  // buckets
};

}  // namespace sailor::runtime
