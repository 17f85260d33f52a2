// Kinds of pipelines of the paper's space (search_space.hpp), with the least that they can take.
//
// A plan's numbers depend on which groups share nodes. Here every message and reduction goes at the quickest way that
// any placement allows, every layer at the quickest of any number of busy neighbours, and memory is that of a stage
// that sums its gradients in place: times of plans are never below those of their chains.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "planner/stage_prices.hpp"

namespace sailor::planner {

/// Where a replica of a stage may run. A tensor-parallel group stays in a node (the paper's H1): plans have no other.
struct PaperOption {
  std::size_t place = 0;
  int tensor_parallel = 1;
  double price = 0.0;  ///< USD per second
};

/// Chains of so many stages at one micro-batch size, of which a pipeline has at least `micro_batches`.
struct PaperKind {
  int stages = 1;
  int micro_batch = 1;
  int in_flight = 1;  ///< micro-batches on the first stage, at most `stages`
  bool operator<(const PaperKind& o) const {
    return std::tie(stages, micro_batch, in_flight) < std::tie(o.stages, o.micro_batch, o.in_flight);
  }
};

/// A plan takes at least through + round x (micro-batches - 1) of each of its chains, then the largest of their tails.
struct PaperChain {
  std::vector<std::uint16_t> options;  ///< by stage, indices into PaperStages::options
  std::vector<int> devices;            ///< by place, then their sum
  double through = 0.0;
  double round = 0.0;
  double tail = 0.0;   ///< the largest PaperStages::tail() of its stages
  double price = 0.0;  ///< USD per second
};

/// What chains must keep to be of use.
struct PaperLimits {
  int pipelines = 1;        ///< least number
  int micro_batches = 1;    ///< least number
  double time = never;      ///< of the iteration, at most
  double money = never;     ///< USD per iteration, at most
  double score = never;     ///< below this
  double price_rest = 0.0;  ///< USD per second of the other pipelines, at least
  double tail = 0.0;        ///< seconds after the passes, at least
};

/// Score of a plan of so many seconds and USD per second, egress aside.
double paper_score(Objective objective, double time, double price);

/// The least that sums over `replicas` of `amount` bytes of a rank can take, wherever the groups of their places are.
/// Holds where a longer message never takes less time.
class PaperSums {
 public:
  explicit PaperSums(StagePrices& prices);

  /// All groups are in one place and of one degree; `alone`: nothing else is on their nodes.
  double alike(std::size_t place, int tensor_parallel, int replicas, double amount, bool alone);
  /// There are groups in both places, the smallest of this degree.
  double mixed(std::size_t a, std::size_t b, int tensor_parallel, int replicas, double amount);
  /// A group of this place and degree takes part, others anywhere, unless all are alike.
  double with(std::size_t place, int tensor_parallel, int replicas, double amount, bool may_be_alike, bool alone);
  /// Devices of the largest node of a place's type, those left out included: the simulator counts them.
  [[nodiscard]] int largest_node(std::size_t place) const { return largest_[place]; }

 private:
  double over(std::size_t a, std::size_t b, int tensor_parallel, int replicas, double amount, bool alone);

  StagePrices& prices_;
  std::vector<int> largest_;
};

/// The options, times and boundaries of the stages of one kind.
class PaperStages {
 public:
  PaperStages(StagePrices& prices, PaperSums& sums, const PaperKind& kind);

  [[nodiscard]] bool possible() const { return least_through_ < never; }
  [[nodiscard]] const PaperKind& kind() const { return kind_; }
  [[nodiscard]] double least_through() const { return least_through_; }
  [[nodiscard]] double least_round() const { return least_round_; }
  [[nodiscard]] double least_price() const { return least_price_; }
  [[nodiscard]] int least_devices() const { return least_devices_; }
  [[nodiscard]] const std::vector<PaperOption>& options() const { return options_; }
  /// Layers [first, last) of a stage: evenly by number, the last ones take one more.
  [[nodiscard]] std::pair<int, int> layers_of(int stage) const;
  // Seconds from the end of the last pipeline's passes to the end of the iteration, at least, when there are so many
  // pipelines: reductions and the optimizer's step of one stage, less what its passes can end earlier.
  /// A replica of the stage is of this option.
  double tail(std::size_t stage, std::size_t option, int pipelines);
  /// All are in the option's place.
  double alike_tail(std::size_t stage, std::size_t option, int pipelines);
  /// There are replicas of these two options in different places.
  double mixed_tail(std::size_t stage, std::size_t one, std::size_t other, int pipelines);
  /// The same of the first and last stage, when a pipeline's are of these.
  double tied_tail(std::size_t first, std::size_t last, int pipelines);
  double least_tail(int pipelines);

  /// Chains within the limits, quickest first. With `dominance` without those that take no less time and devices of
  /// every place than another one of the same last option. `complete` is false when there were more than `most` at a
  /// stage, or more than `work` fronts of chains to look at (which are taken off it), and some were left out.
  std::vector<PaperChain> chains(const PaperLimits& limits, bool dominance, std::size_t most, std::uint64_t& work,
                                 bool& complete);

  /// Devices by place, then their sum, that the pipelines of a plan take at least at given prices of devices, when a
  /// round may take so long at most: the cheapest option of every stage. Empty when there is none.
  [[nodiscard]] std::vector<double> cheapest(std::span<const double> prices, double most_round) const;

 private:
  struct Label;
  void add_options();
  void add_boundaries();
  void add_rests();
  void add_gradients();
  double sum_with(std::size_t stage, std::size_t option, int pipelines);
  double update(std::size_t stage, std::size_t option) const { return update_[cell(stage, option)]; }
  /// Bytes of gradients of a rank.
  [[nodiscard]] double gradients(std::size_t stage, int tensor_parallel) const {
    return gradients_[stage] / tensor_parallel;
  }
  [[nodiscard]] std::size_t cell(std::size_t stage, std::size_t option) const {
    return stage * options_.size() + option;
  }

  StagePrices& prices_;
  PaperSums& sums_;
  const SearchSpace& space_;
  PaperKind kind_;
  bool blocks_ = true;
  std::vector<PaperOption> options_;
  std::vector<double> time_;              // by stage and option; infinite where it does not fit
  std::vector<double> update_;            // by stage and option
  std::vector<double> gradients_;         // by stage, of all ranks together; 0 where reductions hide in the passes
  double tied_ = 0.0;                     // the same of an embedding that first and last stage share
  std::vector<double> early_;             // by stage: how much earlier than the first its passes end, at most
  std::vector<BoundaryCost> boundaries_;  // by option and option
  std::vector<double> links_;             // by stage and option: least time in messages, where they block
  std::vector<double> rest_;        // by stage and option: least through of the stages behind, the boundary included
  std::vector<double> rest_round_;  // by stage: largest least round of the stages from here on
  std::vector<double> rest_price_;  // by stage: of the stages from here on
  double least_through_ = never;
  double least_round_ = 0.0;
  double least_price_ = never;
  int least_devices_ = 0;
  std::map<std::tuple<std::size_t, std::size_t, int>, double> tails_;
};

}  // namespace sailor::planner
