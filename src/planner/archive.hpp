// The plans that a search has found so far, priced and compared.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/fleet.hpp"
#include "simulator/quick.hpp"

namespace sailor::planner {

/// A plan by the closed form, and event by event where that may matter.
struct Found {
  Fleet fleet;
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
  double closed_form = never;
  double event_driven = never;  ///< also infinite where the event-driven time was not asked for
};

/// Smaller is better, for every objective.
double score_of(Objective objective, Seconds time, Usd cost);

/// The search goes by the closed form (best()); limits are kept, and plans printed (printed(), front()), by the
/// event-driven time. It is asked for only where a lower bound of it leaves hope, so none of the plans that were priced
/// is better than what is printed.
class Archive {
 public:
  /// Keeps the best plan of each of the best `most` kinds by the closed form, and event by event of each of the best
  /// kinds that the request wants to see (when Request::pareto is set, those that no other beats in time, money and
  /// devices at once).
  Archive(const Request& request, const SearchSpace& space, const simulator::Environment& env, std::size_t most);

  /// Divides the batch among a fleet's pipelines, prices the plan, divides again by when every pipeline's gradients can
  /// be reduced, and keeps it when it fits, keeps the limits and is good enough. Returns its scores; infinite when it
  /// was not kept for one of the first two reasons.
  Scores add(const Fleet& fleet);
  /// The same with the micro-batches given.
  Scores add(const Fleet& fleet, const std::vector<Share>& shares);

  [[nodiscard]] const std::vector<Found>& best() const { return best_; }        ///< best first
  [[nodiscard]] const std::vector<Found>& printed() const { return printed_; }  ///< best first
  [[nodiscard]] const std::vector<Found>& front() const { return front_; }
  [[nodiscard]] double best_score() const { return best_.empty() ? never : best_.front().score; }
  /// A plan whose score is no better is not asked for: that of the last kind that the request wants to see.
  [[nodiscard]] double bar() const {
    return best_.size() < request_.most_plans ? never : best_[request_.most_plans - 1].score;
  }
  [[nodiscard]] std::uint64_t considered() const { return considered_; }
  [[nodiscard]] std::uint64_t did_not_fit() const { return did_not_fit_; }
  /// Of all that fit into memory, whatever the limits: what a plan can reach at most. Event by event where there are
  /// limits.
  [[nodiscard]] std::optional<Seconds> fastest() const { return fastest_; }
  [[nodiscard]] std::optional<Usd> cheapest() const { return cheapest_; }
  [[nodiscard]] std::optional<double> least_node_seconds() const { return least_node_seconds_; }  ///< per iteration
  [[nodiscard]] const std::optional<Plan>& nearest_misfit() const { return nearest_; }
  [[nodiscard]] double nearest_headroom() const { return nearest_headroom_; }
  /// Plans that could not be priced, and why the first of them could not.
  [[nodiscard]] std::uint64_t errors() const { return errors_; }
  [[nodiscard]] const std::string& first_error() const { return first_error_; }

 private:
  std::optional<Found> price(const Fleet& fleet, const std::vector<Share>& shares);
  /// Where links across switches count: which of a plan's messages should not cross them, so that it is fastest.
  void choose_together(Plan& plan, simulator::QuickPrediction& quick);
  /// Counts the nodes of a plan, once. False: it takes more than there are, or than it may.
  bool has_room(Found& found) const;
  /// Judges the plan that was just priced event by event where it may be printed, or a limit may depend on it.
  void judge(Found& found);
  /// Those that the search does not keep by itself: numbers of stages and of pipelines.
  [[nodiscard]] bool keeps_pins(const Plan& plan) const;
  /// Of a plan that was judged, or whose bounds say it: whether it keeps pins and limits.
  [[nodiscard]] bool allowed(const Found& found) const;
  /// By its printed_score, which may be a bound.
  bool may_be_printed(Found& found) const;
  void note_extremes(Found& found);
  void offer(Found& found);
  void offer_to_front(Found& found);
  Scores keep(Found found);
  [[nodiscard]] static bool better(const Found& a, const Found& b);

  const Request& request_;
  const SearchSpace& space_;
  simulator::QuickSimulator simulator_;
  const std::size_t most_;
  const std::size_t most_printed_;  ///< also where fewer are shown: a search goes on from them (refine.hpp)
  std::vector<Found> best_;
  std::vector<Found> printed_;
  std::vector<Found> front_;
  std::uint64_t considered_ = 0;
  std::uint64_t did_not_fit_ = 0;
  std::optional<Seconds> fastest_;
  std::optional<Usd> cheapest_;
  std::optional<double> least_node_seconds_;
  std::optional<Plan> nearest_;
  double nearest_headroom_ = -never;
  std::uint64_t errors_ = 0;
  std::string first_error_;
};

}  // namespace sailor::planner
