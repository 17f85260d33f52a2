// Sums gradients over the ranks that hold the same parameters, in place: bucket by bucket while the backward pass still
// runs, or, under ZeRO-1, each rank its slice after it. What a rank sums it steps; afterwards ranks gather the stepped
// values from each other.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <vector>

#include "core/units.hpp"
#include "plan/plan.hpp"
#include "runtime/communicator.hpp"
#include "runtime/device.hpp"
#include "runtime/gradient_groups.hpp"
#include "runtime/parameters.hpp"
#include "runtime/timeline.hpp"

namespace sailor::runtime {

struct ReducerSettings {
  OptimizerSharding sharding = OptimizerSharding::none;
  /// Start sums in the last backward pass; else after it.
  bool overlap = true;
  /// Gradients that are summed by one call, at least, as far as they lie one after the other.
  Bytes bucket{25.0 * (1 << 20)};
  /// Is told when sums begin and end, if there is one.
  TimelineRecorder* timeline = nullptr;
};

class GradientReducer {
 public:
  /// Makes the communicators of this rank's groups; all ranks of `world` must do so at the same time.
  GradientReducer(const ParameterMap& map, const ReducerSettings& settings, Communicator& world, Device& device,
                  ParameterStorage& parameters);

  /// The gradients of a layer are complete for this iteration; sums that only waited for it begin. All ranks finish
  /// their layers in descending order.
  void finished(int layer);
  /// Lets sums under way go on.
  void progress();
  /// Does the rest. All ranks take groups and buckets in the same order, so they cannot wait for each other in a
  /// circle. Afterwards the gradients of owned() are sums.
  void finish();
  /// Under ZeRO-1: the values that other ranks stepped come here.
  void gather_values();

  /// Elements of the storage that this rank steps.
  [[nodiscard]] const std::vector<Range>& owned() const { return owned_; }
  /// A part of owned(): of all ranks together every element of the model is in it once. Norms are taken of it and
  /// checkpoints written.
  [[nodiscard]] const std::vector<Range>& counted() const { return counted_; }
  /// Sum of squares of the gradients in counted(), in fp64.
  [[nodiscard]] double squared_norm();

  /// Bytes of gradients that this rank sums with others, per iteration.
  [[nodiscard]] Bytes volume() const;
  /// Sums that this rank makes with others, per iteration.
  [[nodiscard]] std::size_t buckets() const { return buckets_.size(); }
  /// That this rank is in.
  [[nodiscard]] std::size_t communicators() const { return communicators_.size(); }

 private:
  /// Contiguous gradients that one call sums.
  struct Bucket {
    Communicator* group = nullptr;
    Range range;                 // of the storage
    std::vector<int> waits_for;  // layers that are not finished
    bool shared = false;
  };
  [[nodiscard]] bool is_ready(const Bucket& bucket) const;
  void start(const Bucket& bucket);
  void drop_first();  // of what is under way: it is done

  Device& device_;
  ParameterStorage& parameters_;
  ReducerSettings settings_;
  float share_ = 1.0f;  // of this rank in gradients that its tensor-parallel group holds in common
  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::vector<Bucket> buckets_;  // in the order in which they are summed: from the end of the model
  std::vector<Range> owned_;
  std::vector<Range> counted_;
  std::set<int> finished_;
  std::size_t started_ = 0;  // buckets
  struct UnderWay {
    std::unique_ptr<Request> request;
    TimelineRecorder::Clock::time_point begin;
  };
  std::deque<UnderWay> under_way_;
};

}  // namespace sailor::runtime
