// The plans that a search has found so far, priced and compared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "planner/steps.hpp"
#include "planner/template_mix.hpp"
#include "simulator/quick.hpp"

namespace sailor::planner {

/// A plan priced by the closed form, and by the event-driven time where that may matter.
struct Solution {
  TemplateMix mix;
  std::vector<Share> shares;
  Plan plan;
  Seconds time{};
  Usd cost{};
  Seconds printed_time{};  ///< event-driven if `judged`, else the least that it may be (closed form / 1.45, measured)
  Usd printed_cost{};
  double printed_score = 0.0;
  bool judged = false;
  std::optional<int> nodes{};  ///< once counted: the nodes that it takes; 0: more than there are
  int gpus = 0;
  double memory_headroom = 1.0;
  double score = 0.0;    ///< under the objective, smaller is better: seconds, USD, or their product
  std::size_t kind = 0;  ///< equal for plans that differ in numbers only
  Steps found_by{};
};

/// The scores of a plan that was added; infinite if it is not allowed.
struct Scores {
  double closed_form = infinity;
  double event_driven = infinity;  ///< also infinite where the event-driven time was not asked for
};

/// Where a local search starts.
struct Start {
  TemplateMix mix;
  double score = infinity;  ///< by the closed form
  Steps found_by{};
};

/// The plans that are kept, and what is known of the others.
struct Findings {
  std::vector<Solution> best;                ///< by the closed form, best first
  std::vector<Solution> printed;             ///< by the event-driven time, best first
  std::vector<Solution> front;               ///< plans that no other beats in time, money and devices
  std::map<std::vector<int>, Start> varied;  ///< by sharding, largest and smallest degree, and pools
  std::uint64_t considered = 0;
  std::uint64_t did_not_fit = 0;
  std::optional<Seconds> fastest;
  std::optional<Usd> cheapest;
  std::optional<double> min_node_seconds;
  std::optional<int> fewest_gpus;
  std::optional<Plan> nearest;  ///< nearest to fitting, of the plans that do not fit
  double nearest_headroom = -infinity;
  std::uint64_t errors = 0;
  std::string first_error;
};

/// The closed form is seldom further above the event-driven time (simulator/closed_form.hpp: nine of ten plans).
inline constexpr double usual_above_events = 1.1;

/// Smaller is better, for every objective.
double score_of(Objective objective, Seconds time, Usd cost);

/// The search uses the closed form (best()); limits and printed plans (printed(), front()) use the event-driven time.
/// A plan's is computed only where the least that it may be (the closed form over most_above_event_driven, the largest
/// factor that any plan has shown) could put it among the best.
class SolutionPool {
 public:
  /// Keeps the best plan of each of the best `most` kinds by the closed form and, by the event-driven time, of each of
  /// the best kinds that the request wants to see (when Request::pareto is set, those that no other beats in time,
  /// money and devices at once).
  SolutionPool(const Request& request, const SearchSpace& space, const simulator::Environment& env, std::size_t most);

  /// Plans that are added from now on were found by these steps.
  void begin(Steps steps) { steps_ = std::move(steps); }

  /// Divides the batch among the pipelines of a template mix, prices the plan, divides again by the time when each
  /// pipeline's gradients can be reduced, and keeps the plan if it fits, keeps the limits and is good enough. Returns
  /// its scores; infinite if it does not fit or breaks the limits.
  Scores add(const TemplateMix& mix);
  /// The same with the micro-batches given.
  Scores add(const TemplateMix& mix, const std::vector<Share>& shares);

  /// Max number of kinds in best().
  [[nodiscard]] std::size_t most() const { return max_; }
  /// Starts from the findings of another solution pool of the same request, with zero plans considered.
  void begin_from(const Findings& found);
  /// Adds what another solution pool of the same request has found and considered since it began.
  void merge(const Findings& found);
  [[nodiscard]] const Findings& findings() const { return found_; }

  [[nodiscard]] const std::vector<Solution>& best() const { return found_.best; }        ///< best first
  [[nodiscard]] const std::vector<Solution>& printed() const { return found_.printed; }  ///< best first
  [[nodiscard]] const std::vector<Solution>& front() const { return found_.front; }
  /// The best plan of each set of pools with each largest and smallest tensor-parallel degree and each sharding:
  /// plans that differ, best first.
  [[nodiscard]] std::vector<Start> varied() const;
  [[nodiscard]] double best_score() const { return best().empty() ? infinity : best().front().score; }
  /// The score of the last kind that the request wants to see: a plan that is no better is not needed.
  [[nodiscard]] double bar() const {
    return best().size() < request_.max_plans ? infinity : best()[request_.max_plans - 1].score;
  }
  [[nodiscard]] std::uint64_t considered() const { return found_.considered; }
  [[nodiscard]] std::uint64_t did_not_fit() const { return found_.did_not_fit; }
  /// Extremes over all plans that fit into memory, whatever the limits; event-driven if there are limits.
  [[nodiscard]] std::optional<Seconds> fastest() const { return found_.fastest; }
  [[nodiscard]] std::optional<Usd> cheapest() const { return found_.cheapest; }
  [[nodiscard]] std::optional<double> min_node_seconds() const { return found_.min_node_seconds; }  ///< per iteration
  [[nodiscard]] std::optional<int> fewest_gpus() const { return found_.fewest_gpus; }
  [[nodiscard]] const std::optional<Plan>& nearest_misfit() const { return found_.nearest; }
  [[nodiscard]] double nearest_headroom() const { return found_.nearest_headroom; }
  /// Plans that could not be priced, and why the first of them could not.
  [[nodiscard]] std::uint64_t errors() const { return found_.errors; }
  [[nodiscard]] const std::string& first_error() const { return found_.first_error; }

 private:
  std::optional<Solution> price(const TemplateMix& mix, const std::vector<Share>& shares);
  /// Where links across switches count: chooses the messages that should not cross them, so that the plan is fastest.
  void choose_together(Plan& plan, simulator::QuickPrediction& quick);
  /// Counts the nodes of a plan, once. False: it takes more than there are, or than it may.
  bool has_room(Solution& found) const;
  /// Computes the event-driven time of the plan that was just priced if it may be printed, or a limit may depend on it.
  void judge(Solution& found);
  /// Checks what the search itself does not apply: pinned numbers of stages and of pipelines, and what the framework
  /// needs to be equal.
  [[nodiscard]] bool keeps_pins(const Plan& plan) const;
  /// Whether a plan keeps pins and limits, by its printed time and cost, which may be bounds.
  [[nodiscard]] bool allowed(const Solution& found) const;
  /// Decided by its printed_score, which may be a bound.
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
  const Uniformity uniformity_;
  simulator::QuickSimulator simulator_;
  const std::size_t max_;
  const std::size_t max_printed_;  ///< even if fewer are shown: a search starts from them (refine.hpp)
  Findings found_;
  Steps steps_;
};

}  // namespace sailor::planner
