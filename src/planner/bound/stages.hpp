// Pipelines of two stages or more, relaxed: a dynamic program over the layers finds the min price of stages none of
// which takes longer than a limit.
#pragma once

#include <algorithm>
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
  /// Time of the quickest way of recomputation that fits, by micro-batches in flight (element 0: one), at first x
  /// (layers + 1) + last; infinite if none fits.
  std::vector<std::vector<double>> time;
  std::vector<double> layer;     ///< min time of each alone, even if it does not fit: in a longer stage it may
  std::vector<double> forward;   ///< min time forward of layers [0, i)
  double near = infinity;        ///< min of a message forward and its gradient back, inside a node
  double far = infinity;         ///< the same, between nodes
  double far_inside = infinity;  ///< the same, between nodes, to a stage of the same pool
  std::vector<std::pair<double, std::size_t>> far_to;  ///< the same to each pool, ascending
};

/// The degrees of a pool at one micro-batch size, with the min times of their stages.
std::vector<StageCandidate> stage_candidates(StagePrices& prices, std::size_t pool, int micro_batch);
/// Visits the tables of a candidate's stages, those where all ranks of the node compute and those where only its own
/// do.
template <class Visit>
void for_each_table(StagePrices& prices, const StageCandidate& candidate, int micro_batch, Visit visit) {
  const SearchSpace& space = prices.space();
  for (const StageChoice& choice : space.choices)
    for (const int busy_ranks : {0, candidate.tensor_parallel})
      if (const StageTable* table = prices.table(space.pools[candidate.pool].type, candidate.tensor_parallel,
                                                 micro_batch, choice, busy_ranks))
        visit(*table);
}
void find_boundaries(StagePrices& prices, std::vector<StageCandidate>& candidates, int micro_batch);

/// Stages that a pipeline may have: element candidate x layers + first is the largest `last` of
/// stages [first, last), and `first` itself if there is none.
using StageLimits = std::vector<int>;

/// The furthest stages that are `possible(candidate, first, last)`. Required: if possible(c, first, last), then also
/// possible(c, later, last) for every first < later < last.
template <class Possible>
StageLimits furthest_stages(std::size_t candidates, int layers, Possible possible) {
  StageLimits found(candidates * static_cast<std::size_t>(layers));
  for (std::size_t o = 0; o < candidates; ++o) {
    int furthest = layers;  // does not rise for stages that begin earlier
    for (int first = layers - 1; first >= 0; --first) {
      while (furthest > first && !possible(o, first, furthest)) --furthest;
      found[o * static_cast<std::size_t>(layers) + static_cast<std::size_t>(first)] = std::max(furthest, first);
    }
  }
  return found;
}

/// When a stage's reductions may begin and end, beside its pipeline's passes.
struct ReductionOrder {
  bool overlaps = false;  ///< a reduction begins with the stage's last backward pass, not after it
  double after = 0.0;     ///< share of all reductions that follows the passes of all pipelines

  /// Layers that are passed back, at least, before the reductions of a stage of layers [first, last) begin: from the
  /// returned one on.
  [[nodiscard]] int passed_from(int first, int last) const { return overlaps ? last : first; }
  /// Seconds after the passes of a stage until its reductions, of `taken` seconds, are done. `backward`: max seconds of
  /// the stage's last backward pass.
  [[nodiscard]] double after_passes(double taken, double backward) const {
    return overlaps && taken < infinity ? std::max(taken - backward, after * taken) : taken;
  }
};

/// The min price of a pipeline, by candidate and last layer of its first stage, and by way. Way 0: the next stage is on
/// another node; way c: the first stage and the next ones take at least c devices of its node together.
struct MinPrices {
  double weight = 0.0;    ///< of a second from end to end and back, besides the devices
  double min = infinity;  ///< of `price`
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
  /// A copy for another thread, with empty caches.
  [[nodiscard]] StageProgram another() const;

  [[nodiscard]] bool possible() const { return possible_; }
  [[nodiscard]] int micro_batch() const { return micro_batch_; }
  [[nodiscard]] const std::vector<StageCandidate>& candidates() const { return *candidates_; }
  [[nodiscard]] int levels() const { return levels_; }  ///< number of limits on the slowest stage
  [[nodiscard]] double level(int index) const;
  [[nodiscard]] int level_below(double time) const;          ///< the last one that is not longer; 0 if none
  [[nodiscard]] double through() const { return through_; }  ///< min time from end to end and back
  /// Min time of a micro-batch to the end of a pipeline and back to layer `first`.
  [[nodiscard]] double through_to(int first) const {
    return forward_before(first) + (pass_before(layers_) - pass_before(first));
  }
  /// Min time of a pass of layers [0, first), and of its forward part.
  [[nodiscard]] double pass_before(int first) const { return pass_before_[static_cast<std::size_t>(first)]; }
  [[nodiscard]] double forward_before(int first) const { return forward_before_[static_cast<std::size_t>(first)]; }
  /// Of S seconds from end to end and back, at most S x backward() + backward_more() are backward passes and gradients
  /// sent back.
  [[nodiscard]] double backward() const { return backward_; }
  [[nodiscard]] double backward_more() const { return backward_more_; }
  [[nodiscard]] bool inside() const { return inside_; }
  [[nodiscard]] bool blocks() const { return blocks_; }  ///< a stage waits for its messages
  [[nodiscard]] int layers() const { return layers_; }
  /// Max number of micro-batches in flight that is told apart.
  [[nodiscard]] int max_in_flight() const { return max_in_flight_; }

  /// Sets the prices of devices by pool; results for the prices of an earlier call are reused.
  void set_prices(const std::vector<double>& device_price);
  /// Lower bound of a pipeline's price: all time of its devices is work.
  [[nodiscard]] double fluid_price(double level) const { return work_ / level; }
  /// A number for these limits, until the next call of set_prices().
  std::size_t remember(const StageLimits& limits);
  static constexpr std::size_t unlimited = 0;  ///< the number of no limits at all
  /// Min prices of pipelines whose stages take at most level(`level`). `weight`: index of a weight, 0: none.
  /// `in_flight`: min micro-batches of a pipeline. `limits`: from remember(). Remembered; the result stays valid as
  /// long as the caller holds it.
  std::shared_ptr<const MinPrices> solve(int level, std::size_t weight, int in_flight, std::size_t limits);
  /// Lower bound of solve() without a weight, in a fraction of the time: one way for all, as if every boundary were the
  /// quickest there is and memory held no more than one micro-batch. Valid until the next call.
  const MinPrices& estimate(int level, const StageLimits& limits);
  static constexpr std::size_t weights = 4;
  /// Max micro-batches in flight that make a difference to any stage of the level.
  [[nodiscard]] int in_flight_at(int level, int in_flight) const;

  /// The stages of the cheapest pipeline across pools that begins with a stage of `candidate` that ends at `last`.
  std::vector<TemplateStage> stages_of(int level, std::size_t weight, int in_flight, std::size_t limits,
                                       std::size_t candidate, int last);
  [[nodiscard]] std::uint64_t work() const { return work_done_; }
  [[nodiscard]] double device_price(std::size_t pool) const { return inside_ ? 1.0 : device_price_[pool]; }

 private:
  struct Tables;
  MinPrices estimate_;
  std::vector<double> estimates_;
  /// fill_across(): min price from the next stage on, by candidate, last layer and how many of its far_to may be next.
  std::vector<double> next_price_;
  void fill(Tables& tables, double level, double weight, int cap, const StageLimits& limits);
  void fill_inside(Tables& tables, double limit, double weight, int cap, const StageLimits& limits);
  void fill_across(Tables& tables, double limit, double weight, const StageLimits& limits);
  void choose_candidates(std::vector<StageCandidate> candidates);
  void find_work();
  void find_backward();
  void find_passes();

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
  std::vector<double> matters_from_;  // by depth: the quickest stage that takes longer with one more in flight
  double work_ = 0.0;
  std::vector<double> device_price_;
  std::vector<double> pass_before_;
  std::vector<double> forward_before_;
  /// Solutions for some prices, by level, weight, micro-batches in flight and number of limits.
  struct Cache {
    std::map<StageLimits, std::size_t> numbers;
    std::vector<const StageLimits*> limits;
    std::unordered_map<std::uint64_t, std::shared_ptr<const MinPrices>> solved;
  };
  std::map<std::vector<double>, Cache> caches_;
  Cache* cache_ = nullptr;
  std::size_t cached_ = 0;  // solutions in all caches
  std::uint64_t work_done_ = 0;
};

}  // namespace sailor::planner
