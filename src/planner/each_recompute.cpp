#include "planner/each_recompute.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "planner/solution_pool.hpp"

namespace sailor::planner {

namespace {

constexpr std::array kinds{Recompute::none, Recompute::selective, Recompute::full};  // the last needs least memory

bool beats(const Candidate& a, const Candidate& b) {
  return a.prediction.iteration_time <= b.prediction.iteration_time &&
         a.prediction.cost_per_iteration <= b.prediction.cost_per_iteration && a.plan.ranks() <= b.plan.ranks();
}

/// Leaves out plans that differ from a better one in their layers and recomputation alone.
void keep_one_of_each_kind(std::vector<Candidate>& plans) {
  std::set<std::string> kinds;
  std::erase_if(plans, [&](const Candidate& candidate) {
    return !kinds.insert(fmt::format("{}, {}", describe(candidate.plan), to_string(candidate.plan.schedule))).second;
  });
}

/// Orders the plans of several searches as one search does.
void order(const Request& request, std::vector<Candidate>& plans) {
  const Objective objective = request.pareto ? Objective::throughput : request.objective;
  const auto key = [&](const Candidate& candidate) {
    const simulator::Prediction& prediction = candidate.prediction;
    return std::tuple(static_cast<float>(score_of(objective, prediction.iteration_time, prediction.cost_per_iteration)),
                      static_cast<float>(prediction.cost_per_iteration.value()), candidate.plan.ranks());
  };
  std::stable_sort(plans.begin(), plans.end(), [&](const Candidate& a, const Candidate& b) { return key(a) < key(b); });
  if (!request.pareto) return keep_one_of_each_kind(plans);
  std::vector<Candidate> front;
  for (Candidate& plan : plans)
    if (std::none_of(front.begin(), front.end(), [&](const Candidate& other) { return beats(other, plan); }))
      front.push_back(std::move(plan));
  plans = std::move(front);
}

void merge_bound(const Request& request, Bound& bound, const Bound& other) {
  const bool by_cost = request.objective == Objective::cost;
  const auto better = [&](double a, double b) { return by_cost ? std::min(a, b) : std::max(a, b); };
  bound.found = better(bound.found, other.found);
  bound.bound = better(bound.bound, other.bound);
  bound.gap = by_cost ? 1.0 - bound.bound / bound.found : bound.bound / bound.found - 1.0;
}

void merge(const Request& request, SearchResult& result, SearchResult other) {
  std::move(other.plans.begin(), other.plans.end(), std::back_inserter(result.plans));
  merge_bound(request, result.bound, other.bound);
  result.stop = std::max(result.stop, other.stop);  // the later ones say more
  result.considered += other.considered;
  result.did_not_fit += other.did_not_fit;
  if (result.not_priced == 0) result.why_not_priced = std::move(other.why_not_priced);
  result.not_priced += other.not_priced;
  for (std::string& left_out : other.left_out)
    if (std::find(result.left_out.begin(), result.left_out.end(), left_out) == result.left_out.end())
      result.left_out.push_back(std::move(left_out));
}

}  // namespace

bool needs_each_recompute(const Request& request, const simulator::Framework& framework) {
  return framework.uniformity.one_recompute && framework.supports_recompute && request.space == Space::full &&
         !request.pins.recompute;
}

Result<SearchResult> search_each_recompute(const Request& request, const SearchOne& search) {
  std::vector<Request> pinned(kinds.size(), request);
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    pinned[i].pins.recompute = kinds[i];
    if (request.effort.time) pinned[i].effort.time = *request.effort.time / static_cast<double>(kinds.size());
  }
  std::optional<SearchResult> result;
  std::optional<Error> error;
  for (auto& found : search_side_by_side(std::move(pinned), search)) {
    if (!found)
      error = found.error();
    else if (!result)
      result = std::move(*found);
    else
      merge(request, *result, std::move(*found));
  }
  if (!result) return fail(*error);
  order(request, result->plans);
  if (result->plans.size() > request.max_plans) result->plans.resize(request.max_plans);
  return *std::move(result);
}

}  // namespace sailor::planner
