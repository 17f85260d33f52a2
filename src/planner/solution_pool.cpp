#include "planner/solution_pool.hpp"

#include <algorithm>
#include <climits>
#include <string>
#include <tuple>

#include "core/assert.hpp"
#include "simulator/closed_form.hpp"

namespace sailor::planner {

namespace {

using simulator::most_above_event_driven;
using simulator::most_below_event_driven;

constexpr std::size_t min_printed = 4;

/// Hash of the devices, stages, degrees and micro-batches of a plan's pipelines.
std::size_t kind_of(const Plan& plan) {
  const auto mixed = [](std::size_t hash, std::size_t value) {
    return (hash ^ value) * 0x9e3779b97f4a7c15ULL + (hash >> 29);
  };
  std::vector<std::size_t> kinds;
  for (const Pipeline& pipeline : plan.pipelines) {
    std::size_t kind = mixed(pipeline.stages.size(), static_cast<std::size_t>(plan.micro_batch_of(pipeline)));
    for (const Stage& stage : pipeline.stages) {
      kind = mixed(kind, std::hash<std::string>()(stage.gpu));
      kind = mixed(kind, std::hash<std::string>()(stage.zone));
      kind = mixed(kind, static_cast<std::size_t>(stage.tensor_parallel));
    }
    kinds.push_back(kind);
  }
  std::sort(kinds.begin(), kinds.end());
  kinds.erase(std::unique(kinds.begin(), kinds.end()), kinds.end());
  std::size_t all = static_cast<std::size_t>(plan.schedule) + 1;
  for (const std::size_t kind : kinds) all = mixed(all, kind);
  return all;
}

/// For assertions: whether the pipelines take no more devices of any pool than it has.
bool are_available(const TemplateMix& mix, const SearchSpace& space) {
  for (std::size_t p = 0; p < space.pools.size(); ++p) {
    std::int64_t used = 0;
    for (const Group& group : mix.groups) used += std::int64_t{group.column.uses(p)} * group.count;
    if (used > space.pools[p].devices()) return false;
  }
  return true;
}

bool better(const Solution& a, const Solution& b) {
  return std::tuple(a.score, a.cost, a.gpus) < std::tuple(b.score, b.cost, b.gpus);
}

bool better_as_printed(const Solution& a, const Solution& b) {
  return std::tuple(a.printed_score, a.printed_cost, a.gpus) < std::tuple(b.printed_score, b.printed_cost, b.gpus);
}

/// Whether a is no worse than b in time, money and devices.
bool beats(const Solution& a, const Solution& b) {
  return a.printed_time <= b.printed_time && a.printed_cost <= b.printed_cost && a.gpus <= b.gpus;
}

/// Adds to an ordered list that keeps the best of each of the `most` best kinds.
void add_to(std::vector<Solution>& list, Solution found, std::size_t most,
            bool (*before)(const Solution&, const Solution&)) {
  if (list.size() >= most && !before(found, list.back())) return;
  const auto same =
      std::find_if(list.begin(), list.end(), [&](const Solution& other) { return other.kind == found.kind; });
  if (same != list.end()) {
    if (!before(found, *same)) return;
    list.erase(same);
  }
  const auto after = std::lower_bound(list.begin(), list.end(), found, before);
  list.insert(after, std::move(found));
  if (list.size() > most) list.pop_back();
  SAILOR_ASSERT(std::is_sorted(list.begin(), list.end(), before),
                "the plans kept are not in the order of their scores");
}

}  // namespace

double score_of(Objective objective, Seconds time, Usd cost) {
  switch (objective) {
    case Objective::throughput:
      return time.value();
    case Objective::cost:
      return cost.value();
    case Objective::throughput_per_usd:
      break;
  }
  return time.value() * cost.value();
}

SolutionPool::SolutionPool(const Request& request, const SearchSpace& space, const simulator::Environment& env,
                           std::size_t most)
    : request_(request),
      space_(space),
      uniformity_(env.framework.uniformity),
      simulator_(env),
      max_(most),
      max_printed_(std::max<std::size_t>(request.max_plans, min_printed)) {}

Scores SolutionPool::add(const TemplateMix& mix) {
  std::vector<GroupTime> times;
  for (const Group& group : mix.groups)
    times.push_back({.fixed = group.column.through,
                     .round = group.column.round,
                     .micro_batch = group.column.micro_batch,
                     .max_micro_batches = group.column.max_micro_batches,
                     .count = group.count});
  auto shares = share_batch(times, request_.job.global_batch);
  if (!shares) return {};
  auto found = price(mix, *shares);
  if (!found) return {};
  // Pipelines whose gradients are ready earlier may compute longer.
  for (std::size_t i = 0; i < shares->size(); ++i) {
    const simulator::EntryTimes& entry = simulator_.entries()[i];
    GroupTime& time = times[(*shares)[i].group];
    time.fixed = (entry.fixed + entry.per_micro_batch + entry.tail).value();
    time.round = entry.per_micro_batch.value();
  }
  auto again = share_batch(times, request_.job.global_batch);
  std::optional<Solution> other;
  if (again && mix.groups.size() > 1 && request_.effort.uses(Heuristic::divide_again)) other = price(mix, *again);
  Scores scores = keep(std::move(*found));
  if (other) {
    const Scores others = keep(std::move(*other));
    scores = {std::min(scores.closed_form, others.closed_form), std::min(scores.event_driven, others.event_driven)};
  }
  return scores;
}

Scores SolutionPool::add(const TemplateMix& mix, const std::vector<Share>& shares) {
  auto found = price(mix, shares);
  return found ? keep(std::move(*found)) : Scores{};
}

std::optional<Solution> SolutionPool::price(const TemplateMix& mix, const std::vector<Share>& shares) {
  Plan plan = make_plan(request_, space_, mix, shares);
  if (std::any_of(plan.pipelines.begin(), plan.pipelines.end(),
                  [&](const Pipeline& pipeline) { return pipeline.count % plan.copies_together() != 0; }))
    return std::nullopt;
  if (plan.sharding_degree > 0 && plan.replicas() % plan.sharding_degree != 0) return std::nullopt;
  auto quick = simulator_.predict(plan);
  if (quick && quick->crosses_switches && plan.data_parallel() > 1) choose_together(plan, *quick);
  ++found_.considered;
  if (!quick) {
    ++found_.errors;
    if (found_.first_error.empty()) found_.first_error = quick.error().message();
    return std::nullopt;
  }
  if (quick->memory_headroom < request_.memory_margin) {
    ++found_.did_not_fit;
    if (quick->memory_headroom > found_.nearest_headroom && keeps_pins(plan)) {
      found_.nearest_headroom = quick->memory_headroom;
      found_.nearest = std::move(plan);
    }
    return std::nullopt;
  }
  Solution found{.mix = mix,
                 .shares = shares,
                 .plan = std::move(plan),
                 .time = quick->iteration_time,
                 .cost = quick->cost_per_iteration,
                 .memory_headroom = quick->memory_headroom,
                 .found_by = steps_};
  found.gpus = found.plan.ranks();
  found.score = score_of(request_.objective, found.time, found.cost);
  judge(found);
  return found;
}

void SolutionPool::choose_together(Plan& plan, simulator::QuickPrediction& quick) {
  plan.keep_together = KeepTogether::replicas;
  const auto other = simulator_.predict(plan);
  if (other && other->iteration_time < quick.iteration_time) {
    quick = *other;
    return;
  }
  plan.keep_together = KeepTogether::pipelines;
  (void)simulator_.predict(plan);  // later queries are about the plan that is kept
}

bool SolutionPool::has_room(Solution& found) const {
  if (!found.nodes) found.nodes = nodes_needed(found.plan, space_).value_or(0);
  return *found.nodes > 0 && (!space_.max_nodes || *found.nodes <= *space_.max_nodes * space_.joined_nodes);
}

bool SolutionPool::keeps_pins(const Plan& plan) const {
  const auto stages = request_.pins.pipeline_parallel;
  if (stages && std::any_of(plan.pipelines.begin(), plan.pipelines.end(),
                            [&](const Pipeline& pipeline) { return std::ssize(pipeline.stages) != *stages; }))
    return false;
  if (!is_uniform(plan, uniformity_)) return false;
  return !request_.pins.data_parallel || plan.data_parallel() == *request_.pins.data_parallel;
}

bool SolutionPool::allowed(const Solution& found) const {
  if (space_.max_gpus && found.gpus > *space_.max_gpus * space_.context_parallel) return false;
  return keeps_pins(found.plan) && keeps_limits(request_, found.printed_time, found.printed_cost, found.nodes);
}

bool SolutionPool::may_be_printed(Solution& found) const {
  if (request_.pareto) return !is_beaten(found);
  if (found_.printed.size() >= max_printed_ && found.printed_score >= found_.printed.back().printed_score) return false;
  if (found.kind == 0) found.kind = kind_of(found.plan);
  const auto same = std::find_if(found_.printed.begin(), found_.printed.end(),
                                 [&](const Solution& other) { return other.kind == found.kind; });
  return same == found_.printed.end() || found.printed_score < same->printed_score;
}

void SolutionPool::judge(Solution& found) {
  const auto set_times = [&](Seconds time) {
    found.printed_time = time;
    found.printed_cost = simulator_.cost_of(time);
    found.printed_score = score_of(request_.objective, found.printed_time, found.printed_cost);
  };
  const bool limited = limits_time(request_);
  set_times(found.time / most_above_event_driven);
  if (!limited && !may_be_printed(found)) return;
  set_times(std::max(found.printed_time, simulator_.least_time()));
  if (request_.limits.node_hours && !has_room(found)) return;
  bool wanted = allowed(found) && may_be_printed(found);
  if (limited && !wanted) {
    const bool may_be_kept = found_.best.size() < max_ || better(found, found_.best.back());
    const bool sure =
        keeps_limits(request_, found.time * most_below_event_driven, found.cost * most_below_event_driven, found.nodes);
    wanted = may_be_kept && allowed(found) && !sure;
    // Extremes that could be reached, for the message that says that nothing keeps the limits.
    if (found_.best.empty())
      wanted = wanted || !found_.fastest || found.printed_time < *found_.fastest || !found_.cheapest ||
               found.printed_cost < *found_.cheapest;
  }
  if (!wanted) return;
  set_times(simulator_.event_driven_time());
  found.judged = true;
  if (limited) note_extremes(found);
  offer(found);
}

void SolutionPool::note_extremes(Solution& found) {
  if (!has_room(found)) return;
  note_extremes(found.printed_time, found.printed_cost, *found.nodes * found.printed_time.value());
  found_.fewest_gpus = std::min(found_.fewest_gpus.value_or(found.gpus), found.gpus);
}

void SolutionPool::note_extremes(Seconds time, Usd cost, double node_seconds) {
  found_.fastest = std::min(found_.fastest.value_or(time), time);
  found_.cheapest = std::min(found_.cheapest.value_or(cost), cost);
  found_.min_node_seconds = std::min(found_.min_node_seconds.value_or(node_seconds), node_seconds);
}

bool SolutionPool::is_beaten(const Solution& found) const {
  return std::any_of(found_.front.begin(), found_.front.end(),
                     [&](const Solution& other) { return beats(other, found); });
}

void SolutionPool::add_to_front(Solution found) {
  if (is_beaten(found)) return;
  std::erase_if(found_.front, [&](const Solution& other) { return beats(found, other); });
  found_.front.push_back(std::move(found));
}

void SolutionPool::offer(Solution& found) {
  const auto& printed = found_.printed;
  if (request_.pareto ? is_beaten(found) : printed.size() >= max_printed_ && !better_as_printed(found, printed.back()))
    return;
  if (!has_room(found) || !allowed(found)) return;
  if (found.kind == 0) found.kind = kind_of(found.plan);
  if (request_.pareto)
    add_to_front(found);
  else
    add_to(found_.printed, found, max_printed_, better_as_printed);
}

Scores SolutionPool::keep(Solution found) {
  // Packing the nodes is the dearest check: only for what would be kept.
  const bool wanted = found_.best.size() < max_ || better(found, found_.best.back());
  if (wanted && !has_room(found)) return {};
  if (wanted && !limits_time(request_)) note_extremes(found);
  if (!allowed(found)) return {};
  const Scores scores{.closed_form = found.score,
                      .event_driven = found.judged && has_room(found) ? found.printed_score : infinity};
  note_varied(found);
  if (!wanted) return scores;
  SAILOR_ASSERT(are_available(found.mix, space_), "a plan takes more devices of a pool than there are");
  if (found.kind == 0) found.kind = kind_of(found.plan);
  add_to(found_.best, std::move(found), max_, better);
  return scores;
}

void SolutionPool::note_varied(Solution& found) {
  std::vector<int> key{static_cast<int>(found.mix.sharding), 0, INT_MAX};  // and the pools in order
  for (const Group& group : found.mix.groups)
    for (const TemplateStage& stage : group.column.stages) {
      key[1] = std::max(key[1], stage.tensor_parallel);
      key[2] = std::min(key[2], stage.tensor_parallel);
      const auto pool = static_cast<int>(stage.pool);
      const auto at = std::lower_bound(key.begin() + 3, key.end(), pool);
      if (at == key.end() || *at != pool) key.insert(at, pool);
    }
  Start& best = found_.varied[std::move(key)];
  if (found.score < best.score && has_room(found))
    best = {.mix = found.mix, .score = found.score, .found_by = found.found_by};
}

std::vector<Start> SolutionPool::varied() const {
  std::vector<Start> all;
  for (const auto& [key, start] : found_.varied)
    if (start.score < infinity) all.push_back(start);
  std::stable_sort(all.begin(), all.end(), [](const Start& a, const Start& b) { return a.score < b.score; });
  return all;
}

void SolutionPool::begin_from(const Findings& found) {
  found_ = found;
  found_.considered = found_.did_not_fit = found_.errors = 0;
  found_.first_error.clear();
}

void SolutionPool::merge(const Findings& found) {
  for (const Solution& plan : found.best) add_to(found_.best, plan, max_, better);
  for (const Solution& plan : found.printed) add_to(found_.printed, plan, max_printed_, better_as_printed);
  for (const Solution& plan : found.front) add_to_front(plan);
  for (const auto& [key, start] : found.varied) {
    Start& best = found_.varied[key];
    if (start.score < best.score) best = start;
  }
  found_.considered += found.considered;
  found_.did_not_fit += found.did_not_fit;
  if (found.fastest) note_extremes(*found.fastest, *found.cheapest, *found.min_node_seconds);
  if (found.fewest_gpus)
    found_.fewest_gpus = std::min(found_.fewest_gpus.value_or(*found.fewest_gpus), *found.fewest_gpus);
  if (found.nearest_headroom > found_.nearest_headroom) {
    found_.nearest = found.nearest;
    found_.nearest_headroom = found.nearest_headroom;
  }
  if (found_.errors == 0) found_.first_error = found.first_error;
  found_.errors += found.errors;
}

}  // namespace sailor::planner
