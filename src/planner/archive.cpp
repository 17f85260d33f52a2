#include "planner/archive.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string>

namespace sailor::planner {

namespace {

/// Of the devices, stages, degrees and micro-batch of its pipelines.
std::size_t kind_of(const Plan& plan) {
  std::set<std::string> kinds;
  for (const Pipeline& pipeline : plan.pipelines) {
    std::string kind = fmt::format("b{}", plan.micro_batch_of(pipeline));
    for (const Stage& stage : pipeline.stages)
      kind += fmt::format("|{}:{}:{}", stage.gpu, stage.zone, stage.tensor_parallel);
    kinds.insert(kind);
  }
  return std::hash<std::string>()(fmt::format("{};{}", fmt::join(kinds, ";"), to_string(plan.schedule)));
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
    : request_(request), space_(space), simulator_(env), most_(most) {}

double Archive::add(const Fleet& fleet) {
  std::vector<GroupTime> times;
  for (const Group& group : fleet.groups)
    times.push_back({.fixed = group.chain.through,
                     .round = group.chain.round,
                     .micro_batch = group.chain.micro_batch,
                     .most_micro_batches = group.chain.most_micro_batches,
                     .count = group.count});
  auto shares = share_batch(times, request_.job.global_batch);
  if (!shares) return never;
  auto found = price(fleet, *shares);
  if (!found) return never;
  // Pipelines whose gradients are ready earlier may compute longer.
  for (std::size_t i = 0; i < shares->size(); ++i) {
    const simulator::EntryTimes& entry = simulator_.entries()[i];
    GroupTime& time = times[(*shares)[i].group];
    time.fixed = (entry.fixed + entry.per_micro_batch + entry.tail).value();
    time.round = entry.per_micro_batch.value();
  }
  auto again = share_batch(times, request_.job.global_batch);
  if (again && fleet.groups.size() > 1) {
    auto other = price(fleet, *again);
    if (other && other->score < found->score) found = std::move(other);
  }
  return keep(std::move(*found));
}

double Archive::add(const Fleet& fleet, const std::vector<Share>& shares) {
  auto found = price(fleet, shares);
  return found ? keep(std::move(*found)) : never;
}

std::optional<Found> Archive::price(const Fleet& fleet, const std::vector<Share>& shares) {
  Plan plan = make_plan(request_, space_, fleet, shares);
  const auto quick = simulator_.predict(plan);
  ++considered_;
  if (!quick) {
    if (first_error_.empty()) first_error_ = quick.error().message();
    return std::nullopt;
  }
  if (quick->memory_headroom < request_.memory_margin) {
    ++did_not_fit_;
    if (quick->memory_headroom > nearest_headroom_) {
      nearest_headroom_ = quick->memory_headroom;
      nearest_ = std::move(plan);
    }
    return std::nullopt;
  }
  Found found{.fleet = fleet,
              .plan = std::move(plan),
              .time = quick->iteration_time,
              .cost = quick->cost_per_iteration,
              .memory_headroom = quick->memory_headroom};
  found.gpus = found.plan.ranks();
  found.score = score_of(request_.objective, found.time, found.cost);
  return found;
}

bool Archive::keeps_limits(const Found& found) const {
  const Limits& limits = request_.limits;
  const auto stages = request_.pins.pipeline_parallel;
  if (stages && std::any_of(found.plan.pipelines.begin(), found.plan.pipelines.end(),
                            [&](const Pipeline& pipeline) { return std::ssize(pipeline.stages) != *stages; }))
    return false;
  if (request_.pins.data_parallel && found.plan.data_parallel() != *request_.pins.data_parallel) return false;
  if (limits.throughput && found.time.value() * *limits.throughput > 1.0) return false;
  if (limits.cost && found.cost > *limits.cost) return false;
  if (space_.most_gpus && found.gpus > *space_.most_gpus) return false;
  if (limits.wall_time && found.time * *request_.iterations > *limits.wall_time) return false;
  return true;
}

bool Archive::better(const Found& a, const Found& b) const {
  if (a.score != b.score) return a.score < b.score;
  if (a.cost != b.cost) return a.cost < b.cost;
  return a.gpus < b.gpus;
}

double Archive::keep(Found found) {
  const bool whole = keeps_limits(found);
  // Packing the nodes is the dearest check: only for what would be kept.
  const bool wanted = best_.size() < most_ || better(found, best_.back()) || request_.pareto;
  const double score = found.score;
  if (wanted || !fastest_ || found.time < *fastest_ || !cheapest_ || found.cost < *cheapest_) {
    const auto nodes = nodes_needed(found.plan, space_);
    if (!nodes || (space_.most_nodes && *nodes > *space_.most_nodes)) return never;
    fastest_ = std::min(fastest_.value_or(found.time), found.time);
    cheapest_ = std::min(cheapest_.value_or(found.cost), found.cost);
    const double node_seconds = *nodes * found.time.value();
    least_node_seconds_ = std::min(least_node_seconds_.value_or(node_seconds), node_seconds);
    if (request_.limits.node_hours && node_seconds / 3600.0 * *request_.iterations > *request_.limits.node_hours)
      return never;
  }
  if (!whole) return never;
  if (request_.pareto) {
    const auto beats = [](const Found& a, const Found& b) {
      return a.time <= b.time && a.cost <= b.cost && a.gpus <= b.gpus;
    };
    if (std::none_of(front_.begin(), front_.end(), [&](const Found& other) { return beats(other, found); })) {
      std::erase_if(front_, [&](const Found& other) { return beats(found, other); });
      front_.push_back(found);
    }
  }
  if (!wanted) return score;
  found.kind = kind_of(found.plan);
  const auto same =
      std::find_if(best_.begin(), best_.end(), [&](const Found& other) { return other.kind == found.kind; });
  if (same != best_.end()) {
    if (!better(found, *same)) return score;
    best_.erase(same);
  }
  best_.insert(std::lower_bound(best_.begin(), best_.end(), found,
                                [&](const Found& one, const Found& other) { return better(one, other); }),
               std::move(found));
  if (best_.size() > most_) best_.pop_back();
  return score;
}

}  // namespace sailor::planner
