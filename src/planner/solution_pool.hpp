// The plans that a search has found so far, priced and compared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "planner/template_mix.hpp"
#include "simulator/quick.hpp"

namespace sailor::planner {

/// A plan by the closed form, and event by event where that may matter.
struct Solution {
  TemplateMix mix;
  std::vector<Share> shares;
  Plan plan;
  Seconds time{};
  Usd cost{};
  Seconds printed_time{};  ///< event-driven; where `judged`, else what it is not below
  Usd printed_cost{};
  double printed_score = 0.0;
  bool judged = false;
  std::optional<int> nodes{};  ///< once they are counted: what it takes; 0: more than there are
  int gpus = 0;
  double memory_headroom = 1.0;
  double score = 0.0;    ///< under the objective, smaller is better: seconds, USD, or their product
  std::size_t kind = 0;  ///< equal for plans that differ in numbers only
};

/// The scores of a plan that was added; infinite where it is not a plan that one may have.
struct Scores {
  double closed_form = infinity;
  double event_driven = infinity;  ///< also infinite where the event-driven time was not asked for
};

/// Where a local search may begin.
struct Start {
  TemplateMix mix;
  double score = infinity;  ///< by the closed form
};

/// All plans that matter, and what is known of the others.
struct Findings {
  std::vector<Solution> best;                ///< by the closed form, best first
  std::vector<Solution> printed;             ///< event by event, best first
  std::vector<Solution> front;               ///< that no other beats in time, money and devices
  std::map<std::vector<int>, Start> varied;  ///< by sharding, largest degree and pools
  std::uint64_t considered = 0;
  std::uint64_t did_not_fit = 0;
  std::optional<Seconds> fastest;
  std::optional<Usd> cheapest;
  std::optional<double> min_node_seconds;
  std::optional<Plan> nearest;  ///< of those that do not fit
  double nearest_headroom = -infinity;
  std::uint64_t errors = 0;
  std::string first_error;
};

/// Smaller is better, for every objective.
double score_of(Objective objective, Seconds time, Usd cost);

/// The search goes by the closed form (best()); limits are kept, and plans printed (printed(), front()), by the
/// event-driven time. It is asked for only where a lower bound of it leaves hope, so none of the plans that were priced
/// is better than what is printed.
class SolutionPool {
 public:
  /// Keeps the best plan of each of the best `most` kinds by the closed form, and event by event of each of the best
  /// kinds that the request wants to see (when Request::pareto is set, those that no other beats in time, money and
  /// devices at once).
  SolutionPool(const Request& request, const SearchSpace& space, const simulator::Environment& env, std::size_t most);

  /// Divides the batch among a template mix's pipelines, prices the plan, divides again by when every pipeline's
  /// gradients can be reduced, and keeps it when it fits, keeps the limits and is good enough. Returns its scores;
  /// infinite when it was not kept for one of the first two reasons.
  Scores add(const TemplateMix& mix);
  /// The same with the micro-batches given.
  Scores add(const TemplateMix& mix, const std::vector<Share>& shares);

  /// Kinds that best() keeps.
  [[nodiscard]] std::size_t most() const { return max_; }
  /// Goes on from what another solution pool of the same request holds, with nothing considered yet.
  void begin_from(const Findings& found);
  /// Adds what another solution pool of the same request has found and considered since it began.
  void merge(const Findings& found);
  [[nodiscard]] const Findings& findings() const { return found_; }

  [[nodiscard]] const std::vector<Solution>& best() const { return found_.best; }        ///< best first
  [[nodiscard]] const std::vector<Solution>& printed() const { return found_.printed; }  ///< best first
  [[nodiscard]] const std::vector<Solution>& front() const { return found_.front; }
  /// The best plan of each set of pools with each largest tensor-parallel degree, with and without sharding of the
  /// optimizer: plans that differ, best first.
  [[nodiscard]] std::vector<Start> varied() const;
  [[nodiscard]] double best_score() const { return best().empty() ? infinity : best().front().score; }
  /// A plan whose score is no better is not asked for: that of the last kind that the request wants to see.
  [[nodiscard]] double bar() const {
    return best().size() < request_.max_plans ? infinity : best()[request_.max_plans - 1].score;
  }
  [[nodiscard]] std::uint64_t considered() const { return found_.considered; }
  [[nodiscard]] std::uint64_t did_not_fit() const { return found_.did_not_fit; }
  /// Of all that fit into memory, whatever the limits: what a plan can reach at most. Event by event where there are
  /// limits.
  [[nodiscard]] std::optional<Seconds> fastest() const { return found_.fastest; }
  [[nodiscard]] std::optional<Usd> cheapest() const { return found_.cheapest; }
  [[nodiscard]] std::optional<double> min_node_seconds() const { return found_.min_node_seconds; }  ///< per iteration
  [[nodiscard]] const std::optional<Plan>& nearest_misfit() const { return found_.nearest; }
  [[nodiscard]] double nearest_headroom() const { return found_.nearest_headroom; }
  /// Plans that could not be priced, and why the first of them could not.
  [[nodiscard]] std::uint64_t errors() const { return found_.errors; }
  [[nodiscard]] const std::string& first_error() const { return found_.first_error; }

 private:
  std::optional<Solution> price(const TemplateMix& mix, const std::vector<Share>& shares);
  /// Where links across switches count: which of a plan's messages should not cross them, so that it is fastest.
  void choose_together(Plan& plan, simulator::QuickPrediction& quick);
  /// Counts the nodes of a plan, once. False: it takes more than there are, or than it may.
  bool has_room(Solution& found) const;
  /// Judges the plan that was just priced event by event where it may be printed, or a limit may depend on it.
  void judge(Solution& found);
  /// Those that the search does not keep by itself: numbers of stages and of pipelines.
  [[nodiscard]] bool keeps_pins(const Plan& plan) const;
  /// Of a plan that was judged, or whose bounds say it: whether it keeps pins and limits.
  [[nodiscard]] bool allowed(const Solution& found) const;
  /// By its printed_score, which may be a bound.
  bool may_be_printed(Solution& found) const;
  void note_extremes(Solution& found);
  void offer(Solution& found);
  Scores keep(Solution found);
  void note_varied(Solution& found);
  void add_to_front(Solution found);
  void note_extremes(Seconds time, Usd cost, double node_seconds);
  [[nodiscard]] bool is_beaten(const Solution& found) const;

  const Request& request_;
  const SearchSpace& space_;
  simulator::QuickSimulator simulator_;
  const std::size_t max_;
  const std::size_t max_printed_;  ///< also where fewer are shown: a search goes on from them (refine.hpp)
  Findings found_;
};

}  // namespace sailor::planner
