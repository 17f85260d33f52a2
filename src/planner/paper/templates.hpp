// Kinds of pipelines of the paper's space (search_space.hpp), with lower bounds of their times.
//
// The times of a plan depend on which groups share nodes. Here every message and reduction takes the quickest way that
// any placement allows, every layer the quickest time over any number of busy neighbours, and memory is that of a stage
// that all-reduces its gradients in place: times of plans are never below those of their templates.
#pragma once

#include <cstdint>
#include <span>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "planner/stage_prices.hpp"

namespace sailor::planner {

/// Pool and degree of a replica of a stage. A tensor-parallel group stays in a node (the paper's H1): plans have no
/// other.
struct PaperCandidate {
  std::size_t pool = 0;
  int tensor_parallel = 1;
  double price = 0.0;  ///< USD per second
};

/// Templates of so many stages at one micro-batch size, which need at least `in_flight` micro-batches per pipeline.
struct PaperKind {
  int stages = 1;
  int micro_batch = 1;
  int in_flight = 1;  ///< micro-batches on the first stage, at most `stages`
  bool operator<(const PaperKind& o) const {
    return std::tie(stages, micro_batch, in_flight) < std::tie(o.stages, o.micro_batch, o.in_flight);
  }
};

/// A plan takes at least through + round x (micro-batches - 1) of each of its templates, then the largest of their
/// tails.
struct PaperTemplate {
  std::vector<std::uint16_t> candidates;  ///< by stage, indices into PaperStages::candidates
  std::vector<int> devices;               ///< by pool, then their sum
  double through = 0.0;
  double round = 0.0;
  double tail = 0.0;   ///< the largest PaperStages::tail() of its stages
  double price = 0.0;  ///< USD per second
};

/// Limits that a template must keep to be of use.
struct PaperLimits {
  int pipelines = 1;        ///< min number
  int micro_batches = 1;    ///< min number
  double time = infinity;   ///< max seconds of the iteration
  double money = infinity;  ///< max USD per iteration
  double score = infinity;  ///< below this
  double price_rest = 0.0;  ///< min USD per second of the other pipelines
  double tail = 0.0;        ///< min seconds after the passes
};

/// Score of a plan that takes `time` seconds at `price` USD per second, without egress.
double paper_score(Objective objective, double time, double price);

/// Min time of all-reduces of `amount` bytes per rank over `replicas`, wherever the groups are in their pools. Holds
/// where a longer message never takes less time.
class PaperReductions {
 public:
  explicit PaperReductions(StagePrices& prices);

  /// All groups are in one pool and of one degree; `alone`: nothing else is on their nodes.
  double alike(std::size_t pool, int tensor_parallel, int replicas, double amount, bool alone);
  /// There are groups in both pools, the smallest of this degree.
  double mixed(std::size_t a, std::size_t b, int tensor_parallel, int replicas, double amount);
  /// A group of this pool and degree takes part, the others may be anywhere; all may be alike only if `may_be_alike`.
  double with(std::size_t pool, int tensor_parallel, int replicas, double amount, bool may_be_alike, bool alone);
  /// Devices of the largest node of a pool's type, including nodes that are left out: the simulator counts them.
  [[nodiscard]] int largest_node(std::size_t pool) const { return largest_[pool]; }

 private:
  double over(std::size_t a, std::size_t b, int tensor_parallel, int replicas, double amount, bool alone);

  StagePrices& prices_;
  std::vector<int> largest_;
  std::unordered_map<ReductionKey, double, ReductionKeyHash> known_;  ///< results of with()
};

/// The candidates, times and boundaries of the stages of one kind.
class PaperStages {
 public:
  PaperStages(StagePrices& prices, PaperReductions& sums, const PaperKind& kind);

  [[nodiscard]] bool possible() const { return min_through_ < infinity; }
  [[nodiscard]] const PaperKind& kind() const { return kind_; }
  [[nodiscard]] double min_through() const { return min_through_; }
  [[nodiscard]] double min_round() const { return min_round_; }
  [[nodiscard]] double min_price() const { return min_price_; }
  [[nodiscard]] int min_devices() const { return min_devices_; }
  [[nodiscard]] const std::vector<PaperCandidate>& candidates() const { return candidates_; }
  /// Layers [first, last) of a stage: evenly by number, the last ones take one more.
  [[nodiscard]] std::pair<int, int> layers_of(int stage) const;
  // Lower bounds of the seconds from the end of the last pipeline's passes to the end of the iteration, by number of
  // pipelines: reductions and the optimizer step of one stage, less the time by which its passes can end earlier.
  /// For a stage with a replica of this candidate.
  double tail(std::size_t stage, std::size_t candidate, int pipelines);
  /// For a stage whose replicas are all in the candidate's pool.
  double alike_tail(std::size_t stage, std::size_t candidate, int pipelines);
  /// For a stage with replicas of these two candidates, in different pools.
  double mixed_tail(std::size_t stage, std::size_t one, std::size_t other, int pipelines);
  /// For the first and last stage of a pipeline with these candidates (tied embedding).
  double tied_tail(std::size_t first, std::size_t last, int pipelines);
  double min_tail(int pipelines);

  /// Templates within the limits, quickest first. With `dominance`, without those that take no less time and no fewer
  /// devices of every pool than another one with the same last candidate. `complete` is false if some were left out
  /// because there were more than `most` at a stage, or more than `work` fronts of templates to examine (which are
  /// subtracted from it).
  std::vector<PaperTemplate> columns(const PaperLimits& limits, bool dominance, std::size_t most, std::uint64_t& work,
                                     bool& complete);

  /// Devices by pool, then their sum, of the cheapest candidate of every stage at given prices of devices, when a round
  /// takes at most `max_round`: the pipelines of a plan take no less. Empty if there is none.
  [[nodiscard]] std::vector<double> cheapest(std::span<const double> prices, double max_round) const;

 private:
  struct Label;
  void add_candidates();
  void add_boundaries();
  void add_rests();
  void add_gradients();
  double sum_with(std::size_t stage, std::size_t candidate, int pipelines);
  double update(std::size_t stage, std::size_t candidate) const { return update_[cell(stage, candidate)]; }
  /// Bytes of gradients of a rank.
  [[nodiscard]] double gradients(std::size_t stage, int tensor_parallel) const {
    return gradients_[stage] / tensor_parallel;
  }
  [[nodiscard]] std::size_t cell(std::size_t stage, std::size_t candidate) const {
    return stage * candidates_.size() + candidate;
  }

  StagePrices& prices_;
  PaperReductions& reductions_of_;
  const SearchSpace& space_;
  PaperKind kind_;
  bool blocks_ = true;
  std::vector<PaperCandidate> candidates_;
  std::vector<double> time_;              // by stage and candidate; infinite where it does not fit
  std::vector<double> update_;            // by stage and candidate
  std::vector<double> gradients_;         // by stage, of all ranks together; 0 where reductions hide in the passes
  double tied_ = 0.0;                     // the gradients of an embedding that first and last stage share
  std::vector<double> early_;             // by stage: max time by which its passes end before the first stage's
  std::vector<BoundaryCost> boundaries_;  // by candidate and candidate
  std::vector<double> links_;             // by stage and candidate: min time in messages, where they block
  std::vector<double> rest_;              // by stage and candidate: min through of the next stages, with the boundary
  std::vector<double> rest_round_;        // by stage: max of the min rounds of the stages from here on
  std::vector<double> rest_price_;        // by stage: min price of the stages from here on
  double min_through_ = infinity;
  double min_round_ = 0.0;
  double min_price_ = infinity;
  int min_devices_ = 0;
};

}  // namespace sailor::planner
