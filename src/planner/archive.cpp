#include "planner/archive.hpp"

#include <algorithm>
#include <string>

#include "simulator/closed_form.hpp"

namespace sailor::planner {

namespace {

using simulator::most_above_event_driven;
using simulator::most_below_event_driven;

constexpr std::size_t least_printed = 4;

/// Of the devices, stages, degrees and micro-batches of its pipelines.
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

Archive::Archive(const Request& request, const SearchSpace& space, const simulator::Environment& env, std::size_t most)
    : request_(request),
      space_(space),
      simulator_(env),
      most_(most),
      most_printed_(std::max<std::size_t>(request.most_plans, least_printed)) {}

Scores Archive::add(const Fleet& fleet) {
  std::vector<GroupTime> times;
  for (const Group& group : fleet.groups)
    times.push_back({.fixed = group.chain.through,
                     .round = group.chain.round,
                     .micro_batch = group.chain.micro_batch,
                     .most_micro_batches = group.chain.most_micro_batches,
                     .count = group.count});
  auto shares = share_batch(times, request_.job.global_batch);
  if (!shares) return {};
  auto found = price(fleet, *shares);
  if (!found) return {};
  // Pipelines whose gradients are ready earlier may compute longer.
  for (std::size_t i = 0; i < shares->size(); ++i) {
    const simulator::EntryTimes& entry = simulator_.entries()[i];
    GroupTime& time = times[(*shares)[i].group];
    time.fixed = (entry.fixed + entry.per_micro_batch + entry.tail).value();
    time.round = entry.per_micro_batch.value();
  }
  auto again = share_batch(times, request_.job.global_batch);
  std::optional<Found> other;
  if (again && fleet.groups.size() > 1 && request_.effort.uses(Heuristic::divide_again)) other = price(fleet, *again);
  Scores scores = keep(std::move(*found));
  if (other) {
    const Scores others = keep(std::move(*other));
    scores = {std::min(scores.closed_form, others.closed_form), std::min(scores.event_driven, others.event_driven)};
  }
  return scores;
}

Scores Archive::add(const Fleet& fleet, const std::vector<Share>& shares) {
  auto found = price(fleet, shares);
  return found ? keep(std::move(*found)) : Scores{};
}

std::optional<Found> Archive::price(const Fleet& fleet, const std::vector<Share>& shares) {
  Plan plan = make_plan(request_, space_, fleet, shares);
  auto quick = simulator_.predict(plan);
  if (quick && quick->crosses_switches && plan.data_parallel() > 1) choose_together(plan, *quick);
  ++considered_;
  if (!quick) {
    ++errors_;
    if (first_error_.empty()) first_error_ = quick.error().message();
    return std::nullopt;
  }
  if (quick->memory_headroom < request_.memory_margin) {
    ++did_not_fit_;
    if (quick->memory_headroom > nearest_headroom_ && keeps_pins(plan)) {
      nearest_headroom_ = quick->memory_headroom;
      nearest_ = std::move(plan);
    }
    return std::nullopt;
  }
  Found found{.fleet = fleet,
              .shares = shares,
              .plan = std::move(plan),
              .time = quick->iteration_time,
              .cost = quick->cost_per_iteration,
              .memory_headroom = quick->memory_headroom};
  found.gpus = found.plan.ranks();
  found.score = score_of(request_.objective, found.time, found.cost);
  judge(found);
  return found;
}

void Archive::choose_together(Plan& plan, simulator::QuickPrediction& quick) {
  plan.keep_together = KeepTogether::replicas;
  const auto other = simulator_.predict(plan);
  if (other && other->iteration_time < quick.iteration_time) {
    quick = *other;
    return;
  }
  plan.keep_together = KeepTogether::pipelines;
  (void)simulator_.predict(plan);  // what it says later is of the plan that is kept
}

bool Archive::has_room(Found& found) const {
  if (!found.nodes) found.nodes = nodes_needed(found.plan, space_).value_or(0);
  return *found.nodes > 0 && (!space_.most_nodes || *found.nodes <= *space_.most_nodes);
}

bool Archive::keeps_pins(const Plan& plan) const {
  const auto stages = request_.pins.pipeline_parallel;
  if (stages && std::any_of(plan.pipelines.begin(), plan.pipelines.end(),
                            [&](const Pipeline& pipeline) { return std::ssize(pipeline.stages) != *stages; }))
    return false;
  return !request_.pins.data_parallel || plan.data_parallel() == *request_.pins.data_parallel;
}

bool Archive::allowed(const Found& found) const {
  if (space_.most_gpus && found.gpus > *space_.most_gpus) return false;
  return keeps_pins(found.plan) && keeps_limits(request_, found.printed_time, found.printed_cost, found.nodes);
}

bool Archive::better(const Found& a, const Found& b) {
  if (a.score != b.score) return a.score < b.score;
  if (a.cost != b.cost) return a.cost < b.cost;
  return a.gpus < b.gpus;
}

bool Archive::may_be_printed(Found& found) const {
  if (request_.pareto)
    return std::none_of(front_.begin(), front_.end(), [&](const Found& other) {
      return other.printed_time <= found.printed_time && other.printed_cost <= found.printed_cost &&
             other.gpus <= found.gpus;
    });
  if (printed_.size() >= most_printed_ && found.printed_score >= printed_.back().printed_score) return false;
  if (found.kind == 0) found.kind = kind_of(found.plan);
  const auto same =
      std::find_if(printed_.begin(), printed_.end(), [&](const Found& other) { return other.kind == found.kind; });
  return same == printed_.end() || found.printed_score < same->printed_score;
}

void Archive::judge(Found& found) {
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
    const bool may_be_kept = best_.size() < most_ || better(found, best_.back());
    const bool sure =
        keeps_limits(request_, found.time * most_below_event_driven, found.cost * most_below_event_driven, found.nodes);
    wanted = may_be_kept && allowed(found) && !sure;
    // What could be reached at most, for the message that says that nothing keeps the limits.
    if (best_.empty())
      wanted = wanted || !fastest_ || found.printed_time < *fastest_ || !cheapest_ || found.printed_cost < *cheapest_;
  }
  if (!wanted) return;
  set_times(simulator_.event_driven_time());
  found.judged = true;
  if (limited) note_extremes(found);
  if (request_.pareto)
    offer_to_front(found);
  else
    offer(found);
}

void Archive::note_extremes(Found& found) {
  if (!has_room(found)) return;
  fastest_ = std::min(fastest_.value_or(found.printed_time), found.printed_time);
  cheapest_ = std::min(cheapest_.value_or(found.printed_cost), found.printed_cost);
  const double node_seconds = *found.nodes * found.printed_time.value();
  least_node_seconds_ = std::min(least_node_seconds_.value_or(node_seconds), node_seconds);
}

void Archive::offer_to_front(Found& found) {
  const auto beats = [](const Found& a, const Found& b) {
    return a.printed_time <= b.printed_time && a.printed_cost <= b.printed_cost && a.gpus <= b.gpus;
  };
  if (std::any_of(front_.begin(), front_.end(), [&](const Found& other) { return beats(other, found); })) return;
  if (!has_room(found) || !allowed(found)) return;
  std::erase_if(front_, [&](const Found& other) { return beats(found, other); });
  front_.push_back(found);
}

void Archive::offer(Found& found) {
  const auto before = [](const Found& a, const Found& b) {
    if (a.printed_score != b.printed_score) return a.printed_score < b.printed_score;
    if (a.printed_cost != b.printed_cost) return a.printed_cost < b.printed_cost;
    return a.gpus < b.gpus;
  };
  if (printed_.size() >= most_printed_ && !before(found, printed_.back())) return;
  if (!has_room(found) || !allowed(found)) return;
  if (found.kind == 0) found.kind = kind_of(found.plan);
  const auto same =
      std::find_if(printed_.begin(), printed_.end(), [&](const Found& other) { return other.kind == found.kind; });
  if (same != printed_.end()) {
    if (!before(found, *same)) return;
    printed_.erase(same);
  }
  printed_.insert(std::lower_bound(printed_.begin(), printed_.end(), found, before), found);
  if (printed_.size() > most_printed_) printed_.pop_back();
}

Scores Archive::keep(Found found) {
  // Packing the nodes is the dearest check: only for what would be kept.
  const bool wanted = best_.size() < most_ || better(found, best_.back());
  if (wanted && !has_room(found)) return {};
  if (wanted && !limits_time(request_)) note_extremes(found);
  if (!allowed(found)) return {};
  const Scores scores{.closed_form = found.score,
                      .event_driven = found.judged && has_room(found) ? found.printed_score : never};
  if (!wanted) return scores;
  if (found.kind == 0) found.kind = kind_of(found.plan);
  const auto same =
      std::find_if(best_.begin(), best_.end(), [&](const Found& other) { return other.kind == found.kind; });
  if (same != best_.end()) {
    if (!better(found, *same)) return scores;
    best_.erase(same);
  }
  best_.insert(std::lower_bound(best_.begin(), best_.end(), found,
                                [&](const Found& one, const Found& other) { return better(one, other); }),
               std::move(found));
  if (best_.size() > most_) best_.pop_back();
  return scores;
}

}  // namespace sailor::planner
