// What pipelines are worth at most by a deadline, for the price of their devices, in a part of all plans.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "planner/bound/bound.hpp"
#include "planner/bound/stages.hpp"

namespace sailor::planner {

/// Plans with so many pipelines. Of two or more places of `pure` each has whole pipelines, so that every layer is held
/// in all of them; of fewer nothing is known about where layers are held.
struct PlanPart {
  std::vector<std::size_t> pure;
  int least_pipelines = 1;
  int most_pipelines = 1;
  /// The longest that the reductions of a first stage take, of all pipelines, lies between these.
  double reduction_over = 0.0;
  double reduction_up_to = never;
};

class PipelineWorth {
 public:
  explicit PipelineWorth(StagePrices& prices);

  /// The least price of a device of `place` for which no pipeline of one stage there is worth more than its devices and
  /// `each`.
  double single(std::size_t place, double deadline, const PlanPart& part, double each);
  /// The same for pipelines of more stages inside the place, where it is more than `needed`; else `needed`.
  double inside(std::size_t place, double deadline, const PlanPart& part, double each, double needed);
  /// The factor by which the prices of devices must rise so that no pipeline across places is worth more; `needed` when
  /// it is not more than that. `uses`: devices by place of the pipeline that made it so.
  double across(const std::vector<double>& device_price, double deadline, const PlanPart& part, double each,
                double needed, std::vector<double>& uses);
  /// Whatever the schedule is and without reductions: sequences per second and device.
  [[nodiscard]] double fluid_rate(std::size_t place) const { return fluid_rate_[place]; }
  /// The same for pipelines that may have every layer in another place.
  [[nodiscard]] double mixed_rate() const { return mixed_rate_; }
  /// The largest value of PlanPart::reduction_up_to that makes a difference.
  double longest_reduction(const PlanPart& part);

  [[nodiscard]] bool any_across() const { return !across_.empty(); }
  /// Under which a stage may hold several ranges of layers: only fluid_rate() holds.
  [[nodiscard]] bool interleaves() const { return interleaves_; }
  [[nodiscard]] std::uint64_t work() const;
  /// The best pipelines are noted here from now on; null: no longer.
  void note_hints(std::vector<Hint>* hints) { hints_ = hints; }

 private:
  struct Single {
    int micro_batch = 1;
    int devices = 1;
    double time = 0.0;
    double update = 0.0;
  };
  /// Pipelines whose slowest stage takes between two levels and that have between two numbers of micro-batches.
  struct Box {
    double worth = 0.0;
    int from = 0;
    int to = 0;
    int fewest = 1;
    int most = 1;
    std::size_t option = 0;
    int last = 0;
    bool operator<(const Box& other) const { return worth < other.worth; }
  };

  double longer(StageProgram& program, double deadline, const PlanPart& part, double each, double needed,
                std::vector<double>* uses);
  void find_worth(StageProgram& program, Box& box, double deadline, const PlanPart& part, double each, double needed);
  double reduction(const StageOption& option, int layers, std::size_t way, const PlanPart& part);
  double reduction_of(std::size_t place, int tensor_parallel, int rings, double amount, const PlanPart& part);
  double over_link(std::size_t a, std::size_t b, int node, int degree, int rings, int replicas, double amount);

  StagePrices& prices_;
  const SearchSpace& space_;
  const Request& request_;
  bool zero1_ = false;
  bool interleaves_ = false;
  std::vector<double> amounts_;                    // bytes of the gradients of layers [0, i), of all ranks together
  std::vector<int> degrees_;                       // of all places
  std::vector<std::vector<Single>> singles_;       // by place
  std::vector<std::vector<StageProgram>> inside_;  // by place, prices in devices
  std::vector<StageProgram> across_;
  std::vector<double> fluid_rate_;
  double mixed_rate_ = 0.0;
  std::vector<Hint>* hints_ = nullptr;
  std::map<std::tuple<int, std::vector<std::size_t>>, std::map<std::tuple<std::size_t, int, int, int>, double>>
      reductions_;
  std::map<std::tuple<std::size_t, int, int, int>, double>* reductions_here_ = nullptr;
  std::tuple<int, std::vector<std::size_t>> reductions_of_;
  std::uint64_t work_ = 0;
};

}  // namespace sailor::planner
