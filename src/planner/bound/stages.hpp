// Pipelines of two stages or more, relaxed: a dynamic program over the layers finds the least price of stages none of
// which takes longer than a limit.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "planner/stage_prices.hpp"
#include "planner/templates.hpp"

namespace sailor::planner {

/// A pool and degree for a stage at one micro-batch size.
struct StageCandidate {
  std::size_t pool = 0;
  int tensor_parallel = 1;
  int node = 1;  ///< devices
  /// By micro-batches in flight (element 0: one), at first x (layers + 1) + last: quickest way that fits; infinite when
  /// none does.
  std::vector<std::vector<double>> time;
  std::vector<double> layer;     ///< least time of each alone, whether that fits or not: of a longer stage it may
  double near = infinity;        ///< cheapest message out and gradient back inside a node
  double far = infinity;         ///< and between nodes
  double far_inside = infinity;  ///< the same, to a stage of the same pool
  std::vector<std::pair<double, std::size_t>> far_to;  ///< and to each pool, ascending
};

/// The degrees of a pool at one micro-batch size, and what their stages take at least.
std::vector<StageCandidate> stage_candidates(StagePrices& prices, std::size_t pool, int micro_batch);
void find_boundaries(StagePrices& prices, std::vector<StageCandidate>& candidates, int micro_batch);

/// Which stages a pipeline may have: element candidate x layers + first is the furthest last layer of those that begin
/// at `first`, `first` itself when there is none.
using StageLimits = std::vector<int>;

/// The least price of a pipeline, by candidate and last layer of its first stage, and by how that stage goes on:
/// element 0: the next one is on another node; c: it and the next ones take c devices of its node together, at least.
struct LeastPrices {
  double weight = 0.0;  ///< of a second from end to end and back, beside the devices
  double least = infinity;
  std::vector<double> price;
  std::size_t ways = 1;
  std::size_t width = 1;

  [[nodiscard]] double at(std::size_t candidate, int last, std::size_t way) const {
    return price[(candidate * width + static_cast<std::size_t>(last)) * ways + way];
  }
};

/// Pipelines of two stages or more at one micro-batch size, of some candidates.
class StageProgram {
 public:
  /// With `inside`, all candidates are of one pool and boundaries stay inside it.
  StageProgram(StagePrices& prices, std::vector<StageCandidate> candidates, int micro_batch, bool inside);
  /// The same for another thread: with nothing remembered.
  [[nodiscard]] StageProgram another() const;

  [[nodiscard]] bool possible() const { return possible_; }
  [[nodiscard]] int micro_batch() const { return micro_batch_; }
  [[nodiscard]] const std::vector<StageCandidate>& candidates() const { return *candidates_; }
  [[nodiscard]] int levels() const { return levels_; }  ///< of the limit on the slowest stage
  [[nodiscard]] double level(int index) const;
  [[nodiscard]] int level_below(double time) const;          ///< the last that is no longer; 0 when there is none
  [[nodiscard]] double through() const { return through_; }  ///< no pipeline is quicker from end to end and back
  /// No pipeline gets a micro-batch to its end and back to layer `first` in less.
  [[nodiscard]] double through_to(int first) const { return through_to_[static_cast<std::size_t>(first)]; }
  /// Of S seconds from end to end and back no more than S x backward() + backward_more() are backward passes and
  /// gradients sent back.
  [[nodiscard]] double backward() const { return backward_; }
  [[nodiscard]] double backward_more() const { return backward_more_; }
  [[nodiscard]] bool inside() const { return inside_; }
  /// Micro-batches in flight that are told apart at most.
  [[nodiscard]] int max_in_flight() const { return max_in_flight_; }

  /// Prices of devices by pool; those of an earlier call are found again.
  void set_prices(const std::vector<double>& device_price);
  /// No pipeline costs less: all time of its devices is work.
  [[nodiscard]] double fluid_price(double level) const { return work_ / level; }
  /// A number for these limits, until the next call of set_prices().
  std::size_t remember(const StageLimits& limits);
  static constexpr std::size_t unlimited = 0;  ///< the number of no limits at all
  /// `weight`: index of one, 0: none. `in_flight`: a pipeline has so many micro-batches or more. `limits`: of
  /// remember(). Valid until the next call.
  std::shared_ptr<const LeastPrices> solve(int level, std::size_t weight, int in_flight, std::size_t limits);
  /// No more than that without a weight, in a fraction of the time: one way for all, as if every boundary were the
  /// quickest there is and memory held no more than one micro-batch. Valid until the next call.
  const LeastPrices& estimate(int level, const StageLimits& limits);
  static constexpr std::size_t weights = 4;

  /// The stages of the cheapest pipeline across pools that begins so.
  std::vector<TemplateStage> stages_of(int level, std::size_t weight, int in_flight, std::size_t limits,
                                       std::size_t candidate, int last);
  [[nodiscard]] std::uint64_t work() const { return work_done_; }
  [[nodiscard]] double device_price(std::size_t pool) const { return inside_ ? 1.0 : device_price_[pool]; }

 private:
  struct Tables;
  LeastPrices estimate_;
  std::vector<double> estimates_;
  std::vector<double>
      behind_;  // fill_across(): by candidate, last layer and how many of its far_to may be next, the least
  void fill(Tables& tables, double level, double weight, int cap, const StageLimits& limits);
  void fill_inside(Tables& tables, double limit, double weight, int cap, const StageLimits& limits);
  void fill_across(Tables& tables, double limit, double weight, const StageLimits& limits);
  [[nodiscard]] int in_flight_at(int index, int in_flight) const;
  void choose_candidates(std::vector<StageCandidate> candidates);
  void find_work();
  void find_backward();
  void find_through_to();

  StagePrices& prices_;
  std::shared_ptr<const std::vector<StageCandidate>> candidates_;
  int micro_batch_;
  bool inside_;
  bool possible_ = false;
  bool blocks_ = true;
  int layers_ = 0;
  std::size_t pools_ = 1;
  int largest_node_ = 1;
  double through_ = 0.0;
  double backward_ = 1.0;
  double backward_more_ = 0.0;  // of the first and last layer
  double first_level_ = 0.0;
  int levels_ = 0;
  int max_in_flight_ = 1;
  std::vector<double> matters_from_;  // by depth: quickest stage that takes longer with one more in flight
  double work_ = 0.0;
  std::vector<double> device_price_;
  std::vector<double> through_to_;
  /// What was solved for some prices, by level, weight, micro-batches in flight and number of limits.
  struct Cache {
    std::map<StageLimits, std::size_t> numbers;
    std::vector<const StageLimits*> limits;
    std::unordered_map<std::uint64_t, std::shared_ptr<const LeastPrices>> solved;
  };
  std::map<std::vector<double>, Cache> caches_;
  Cache* cache_ = nullptr;
  std::size_t cached_ = 0;  // solutions in all caches
  std::uint64_t work_done_ = 0;
};

}  // namespace sailor::planner
