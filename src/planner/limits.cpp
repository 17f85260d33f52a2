#include "planner/limits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "core/terminal.hpp"
#include "core/text.hpp"

namespace sailor::planner {

namespace {

/// "29.3", "3140"
std::string times(double ratio) { return ratio < 1000.0 ? fmt::format("{:.3g}", ratio) : fmt::format("{:.0f}", ratio); }

/// "29.3% more than", for a value that is `ratio` times too large.
std::string excess(double ratio) {
  if (!std::isfinite(ratio)) return "more than";
  return ratio < 10.0 ? fmt::format("{:.1f}% more than", 100.0 * (ratio - 1.0)) : fmt::format("{} times", times(ratio));
}

/// The same for a value that is `ratio` times too small.
std::string shortfall(double ratio) {
  if (!std::isfinite(ratio)) return "less than";
  return ratio < 10.0 ? fmt::format("{:.1f}% less than", 100.0 * (1.0 - 1.0 / ratio))
                      : fmt::format("{} times less than", times(ratio));
}

std::string rate_text(const Candidate& plan) {
  return fmt::format("{:.4g} iterations/s for {} an iteration", 1.0 / plan.prediction.iteration_time.value(),
                     format_usd(plan.prediction.cost_per_iteration));
}

constexpr int max_times_the_nodes = 64;
constexpr std::int64_t max_devices = 8192;

/// Whether more devices alone may mend the error of a search.
bool may_need_more_nodes(const Request& request, const Error& error) {
  const Limits& limits = request.limits;
  return request.effort.explains_limits && error.code == ErrorCode::infeasible &&
         error.what.find("memory") != std::string::npos && !limits_time(request) && !limits.gpus && !limits.nodes &&
         !request.effort.time && request.space == Space::full && !request.pins.data_parallel;
}

}  // namespace

std::vector<std::string> missed_limits(const Request& request, const Extremes& best) {
  const Limits& limits = request.limits;
  const double fastest = best.fastest.value();
  std::vector<std::string> reasons;
  if (limits.throughput && fastest * *limits.throughput > 1.0)
    reasons.push_back(fmt::format("the fastest plan reaches {:.4g} iterations/s, {} the {:.4g} asked for",
                                  1.0 / fastest, shortfall(fastest * *limits.throughput), *limits.throughput));
  if (limits.wall_time && fastest * *request.iterations > limits.wall_time->value())
    reasons.push_back(fmt::format("the fastest plan takes {} for {:.6g} iterations, {} the {} allowed",
                                  format_time(Seconds(fastest * *request.iterations)), *request.iterations,
                                  excess(fastest * *request.iterations / limits.wall_time->value()),
                                  format_time(*limits.wall_time)));
  if (limits.cost && best.cheapest > *limits.cost)
    reasons.push_back(fmt::format("the cheapest plan costs {} per iteration, {} the {} allowed",
                                  format_usd(best.cheapest), excess(best.cheapest.value() / limits.cost->value()),
                                  format_usd(*limits.cost)));
  if (limits.node_hours && best.min_node_seconds) {
    const double least = *best.min_node_seconds / 3600.0 * *request.iterations;
    if (least > *limits.node_hours)
      reasons.push_back(fmt::format("the most frugal plan takes {:.4g} node-hours, {} the {:.4g} allowed", least,
                                    excess(least / *limits.node_hours), *limits.node_hours));
  }
  return reasons;
}

Result<SearchResult> search_beside_limits(const Request& request, const Error& error,
                                          const std::function<Result<SearchResult>(const Request&)>& search) {
  const Limits& limits = request.limits;
  const bool limits_money = limits.cost.has_value();
  const bool limits_time = limits.throughput || limits.wall_time;
  // How many nodes the best plans take is not counted here.
  if ((!limits_time && !limits_money) || limits.node_hours || !request.effort.explains_limits || request.effort.time ||
      request.effort.work)
    return fail(error);
  const auto interrupted = [&] { return request.effort.is_interrupted && request.effort.is_interrupted(); };
  if (interrupted()) return fail(error);
  Request free = request;
  free.limits.cost.reset();
  free.limits.throughput.reset();
  free.limits.wall_time.reset();
  free.pareto = false;
  free.max_plans = 1;
  free.effort.proof = std::min(request.effort.proof, Proof::usual);
  free.effort.explains_limits = false;
  free.objective = limits_time ? Objective::throughput : Objective::cost;
  auto fastest = search(free);
  if (interrupted()) return fail(error);
  if (!fastest) return fastest.error().code == ErrorCode::infeasible ? fail(fastest.error()) : fail(error);
  free.objective = Objective::cost;
  auto cheapest = limits_time && limits_money ? search(free) : fastest;
  if (!cheapest || interrupted()) return fail(error);
  for (auto* const found : {&*fastest, &*cheapest}) {
    const simulator::Prediction& prediction = found->plans.front().prediction;
    if (!keeps_limits(request, prediction.iteration_time, prediction.cost_per_iteration, std::nullopt)) continue;
    // The bound is of another question.
    const bool is_cost = request.objective == Objective::cost;
    found->bound = {.found = objective_value(request.objective, prediction),
                    .bound = is_cost ? 0.0 : std::numeric_limits<double>::infinity(),
                    .gap = std::numeric_limits<double>::infinity()};
    found->degrees.clear();
    return std::move(*found);
  }
  const Candidate& quick = fastest->plans.front();
  const Candidate& cheap = cheapest->plans.front();
  std::vector<std::string> reasons = missed_limits(
      request, {.fastest = std::min(quick.prediction.iteration_time, cheap.prediction.iteration_time),
                .cheapest = std::min(quick.prediction.cost_per_iteration, cheap.prediction.cost_per_iteration)});
  if (reasons.empty())
    reasons.push_back(fmt::format("no plan keeps all limits together: the fastest reaches {}, the cheapest {}",
                                  rate_text(quick), rate_text(cheap)));
  return fail(ErrorCode::infeasible, join(reasons, "; "), error.hint);
}

Error with_nodes_it_takes(const Request& request, const simulator::Environment& environment, Error error) {
  if (!may_need_more_nodes(request, error)) return error;
  Request quick = request;
  quick.max_plans = 1;
  quick.pareto = false;
  quick.effort = request.effort.for_comparison(std::nullopt);
  quick.effort.is_interrupted = request.effort.is_interrupted;
  std::int64_t devices = 0;
  for (const NodeGroup& group : environment.cluster->groups) devices += std::int64_t{group.count} * group.gpus_per_node;
  Cluster larger = *environment.cluster;
  simulator::Environment on_more = environment;
  on_more.cluster = &larger;
  on_more.costs = nullptr;  // of the given cluster
  for (int times = 2; times <= max_times_the_nodes; times *= 2) {
    if (devices > max_devices / times || (quick.effort.is_interrupted && quick.effort.is_interrupted())) break;
    for (NodeGroup& group : larger.groups) {
      group.nodes.clear();
      group.switches.clear();
      group.count *= 2;
    }
    const auto found = find_plans(quick, on_more);
    if (!found) continue;
    const std::string enough =
        fmt::format("on {} times as many nodes ({}) there is one: {}", times,
                    plural(static_cast<std::size_t>(devices * times), "device"), describe(found->plans.front().plan));
    error.hint = error.hint.empty() ? enough : error.hint + "; " + enough;
    break;
  }
  return error;
}

}  // namespace sailor::planner
