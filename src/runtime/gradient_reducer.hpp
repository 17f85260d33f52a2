// Gradient synchronisation among the ranks that hold the same parameters, in place, on a stream of its own: an
// all-reduce per bucket while the backward pass still runs, or, under ZeRO-1, a reduce-scatter per bucket after it. A
// rank updates what it has reduced; under ZeRO-1 the updated values are then all-gathered while the next iteration
// begins.
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
  /// Whether all-reduces start in the last backward pass; otherwise they start after it.
  bool overlap = true;
  float share = 1.0f;  ///< share of this rank in gradients that its whole tensor-parallel group holds
};

class GradientReducer {
 public:
  /// Creates this rank's groups; all ranks of `world` must do so at the same time.
  GradientReducer(const RankSums& sums, const ReducerSettings& settings, const World& world, Device& device,
                  ParameterStorage& parameters, TimelineRecorder& timeline);

  /// To be called when the gradients of a layer are complete for this iteration, on the main stream: enqueues the
  /// all-reduces that only waited for it. All ranks finish their layers in descending order.
  void finished(int layer);
  /// Enqueues the remaining reductions. All ranks take groups and buckets in the same order, so that they cannot
  /// deadlock. Afterwards the gradients of RankSums::owned are sums on the main stream.
  void finish();
  /// Under ZeRO-1: all-gathers the values that other ranks updated, after everything enqueued on the main stream so
  /// far.
  void gather_values();
  /// The main stream waits for a layer's values from gather_values().
  void wait_for_values(int layer);
  /// The same for the values of all layers.
  void wait_for_values();

  /// On the main stream: *sum (fp64, on the device) += the squares of the gradients in RankSums::counted.
  void add_squares(double* sum);

  /// Number of reductions of this rank with others, per iteration.
  [[nodiscard]] std::size_t buckets() const { return buckets_.size(); }
  /// Number of groups of this rank.
  [[nodiscard]] std::size_t groups() const { return groups_.size(); }

 private:
  struct Bucket {
    GradientBucket what;
    std::unique_ptr<Event> gathered;  // with ZeRO-1: all its values have arrived
    bool is_awaited = false;          // the main stream has waited for the last gather
  };
  [[nodiscard]] bool is_ready(const Bucket& bucket) const;
  void start(const Bucket& bucket);
  [[nodiscard]] Group& group_of(const Bucket& bucket) { return *groups_[bucket.what.group]; }

  Device& device_;
  ParameterStorage& parameters_;
  ReducerSettings settings_;
  TimelineRecorder& timeline_;  // records when reductions begin and end
  std::vector<Range> counted_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::unique_ptr<Stream> stream_;  // runs the reductions
  std::unique_ptr<Event> ready_;    // on the main stream: reductions wait for it
  std::unique_ptr<Event> summed_;
  std::vector<Bucket> buckets_;
  std::set<int> finished_;
  std::size_t started_ = 0;  // number of buckets
};

}  // namespace sailor::runtime
