#include "planner/explain.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <string_view>

#include "core/terminal.hpp"
#include "core/text.hpp"
#include "plan/cluster_nodes.hpp"
#include "plan/placement.hpp"
#include "planner/outline.hpp"

namespace sailor::planner {

namespace {

constexpr double smallest_part = 0.005;  // of the winner's time: less is not mentioned

const simulator::StagePrediction* slowest_stage(const simulator::Prediction& prediction) {
  const simulator::StagePrediction* slowest = nullptr;
  for (const simulator::StagePrediction& stage : prediction.stages)
    if (stage.pipeline_entry == prediction.slowest_entry &&
        (slowest == nullptr || stage.forward + stage.backward > slowest->forward + slowest->backward))
      slowest = &stage;
  return slowest;
}

const Pipeline& slowest_pipeline(const Plan& plan, const simulator::Prediction& prediction) {
  return plan.pipelines[static_cast<std::size_t>(prediction.slowest_entry)];
}

std::string percent(double share) {
  const double value = std::abs(share) * 100.0;
  return value < 9.95 ? fmt::format("{:.1f}%", value) : fmt::format("{:.0f}%", value);
}

/// "12% dearer", "as dear", "1.3% cheaper".
std::string compared(double ratio, std::string_view worse, std::string_view better, std::string_view same) {
  if (std::abs(ratio - 1.0) < 0.0005) return std::string(same);
  return fmt::format("{} {}", percent(ratio - 1.0), ratio > 1.0 ? worse : better);
}

/// "12% slower": takes 12% longer; "as fast"; "1.3% faster": does 1.3% more iterations, as in bounds.
std::string speed_of(double time_ratio) {
  return time_ratio < 1.0 ? compared(1.0 / time_ratio, "faster", "slower", "as fast")
                          : compared(time_ratio, "slower", "faster", "as fast");
}

/// The text before a limit: "0.7% over", "28 times", and "over" for a limit of zero.
std::string over(double value, double limit) {
  const double ratio = value / limit;
  if (!std::isfinite(ratio)) return "over";
  return ratio < 10.0 ? percent(ratio - 1.0) + " over" : fmt::format("{:.3g} times", ratio);
}

/// Four digits, to tell a cost from a limit that it just exceeds.
std::string limit_usd(Usd amount) {
  return amount < Usd(1000.0) ? fmt::format("${:.4g}", amount.value()) : format_usd(amount);
}

std::string figures(const Candidate& candidate) {
  const simulator::Prediction& prediction = candidate.prediction;
  return fmt::format("{} an iteration ({:#.3g} iterations/s), {}, {}", format_time(prediction.iteration_time),
                     1.0 / prediction.iteration_time.value(), format_usd(prediction.cost_per_iteration),
                     plural(static_cast<std::size_t>(candidate.plan.ranks()), "device"));
}

/// USD per second, messages between zones included.
double rate(const simulator::Prediction& prediction) {
  return prediction.cost_per_iteration.value() / prediction.iteration_time.value();
}

struct TimePart {
  std::string_view name;
  Seconds TimeParts::*time;
};
constexpr std::array<TimePart, 5> all_parts{{{"computation", &TimeParts::compute},
                                             {"fill and drain", &TimeParts::bubble},
                                             {"messages between stages", &TimeParts::transfers},
                                             {"reduction of gradients", &TimeParts::synchronization},
                                             {"optimizer step", &TimeParts::update}}};

/// The cause of a part of a plan's time; "" if there is nothing to say.
std::string reason(Seconds TimeParts::*part, const Candidate& candidate) {
  const Pipeline& pipeline = slowest_pipeline(candidate.plan, candidate.prediction);
  const auto stages = pipeline.stages.size();
  if (part == &TimeParts::bubble)
    return fmt::format("{} micro-batch{} for {}", pipeline.micro_batches, pipeline.micro_batches == 1 ? "" : "es",
                       plural(stages, "stage"));
  if (part == &TimeParts::compute) {
    const simulator::StagePrediction* slowest = slowest_stage(candidate.prediction);
    if (slowest == nullptr) return "";
    const Stage& stage = pipeline.stages[static_cast<std::size_t>(slowest->stage)];
    const bool exchanges = shards_weights(candidate.plan.optimizer_sharding) && candidate.plan.data_parallel() > 1;
    return fmt::format("{} on {} tp{}, {} x {}{}", plural(static_cast<std::size_t>(stage.layer_count()), "layer"),
                       stage.gpu, stage.tensor_parallel, pipeline.micro_batches,
                       plural(static_cast<std::size_t>(candidate.plan.micro_batch_of(pipeline)), "sequence"),
                       exchanges ? ", including waits for the weights and gradients of zero3" : "");
  }
  if (part == &TimeParts::synchronization) {
    std::set<std::string> zones;
    for (const Pipeline& other : candidate.plan.pipelines)
      for (const Stage& stage : other.stages) zones.insert(stage.zone);
    return fmt::format("{}{}", plural(static_cast<std::size_t>(candidate.plan.data_parallel()), "pipeline"),
                       zones.size() > 1 ? fmt::format(" in {} zones", zones.size()) : std::string());
  }
  return "";
}

/// "fill and drain +8.0% (...), reduction of gradients +5.0% (...)": shares of the winner's time, largest first.
std::string differences(const Candidate& candidate, const Candidate& winner) {
  const TimeParts own = time_parts(candidate.plan, candidate.prediction);
  const TimeParts best = time_parts(winner.plan, winner.prediction);
  std::vector<std::pair<double, const TimePart*>> found;
  for (const TimePart& part : all_parts)
    if (const double share = (own.*part.time - best.*part.time) / winner.prediction.iteration_time;
        std::abs(share) >= smallest_part)
      found.emplace_back(share, &part);
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return std::abs(a.first) > std::abs(b.first); });
  std::vector<std::string> texts;
  for (const auto& [share, part] : found) {
    const std::string why = reason(part->time, candidate);
    texts.push_back(fmt::format("{} {}{}{}", part->name, share < 0.0 ? "-" : "+", percent(share),
                                why.empty() ? "" : fmt::format(" ({})", why)));
  }
  return texts.empty() ? "no part of the time differs by 0.5%" : join(texts, ", ");
}

/// How a plan compares with the winner under the objective: "12% dearer".
std::string verdict(const Candidate& candidate, const Candidate& winner, Objective objective) {
  const double time = candidate.prediction.iteration_time / winner.prediction.iteration_time;
  const double cost = winner.prediction.cost_per_iteration > Usd(0.0)
                          ? candidate.prediction.cost_per_iteration / winner.prediction.cost_per_iteration
                          : 1.0;
  if (objective == Objective::throughput) return speed_of(time);
  const std::string devices = compared(rate(candidate.prediction) / std::max(rate(winner.prediction), 1e-300),
                                       "more USD per second", "fewer USD per second", "as many USD per second");
  const std::string speed = speed_of(time);
  if (objective == Objective::cost)
    return fmt::format("{} ({}, {})", compared(cost, "dearer", "cheaper", "as dear"), speed, devices);
  return fmt::format(
      "{} ({}, {})",
      compared(1.0 / (time * cost), "better in throughput per USD", "worse in throughput per USD", "as good"), speed,
      devices);
}

std::string bound_line(const SearchResult& result, Objective objective) {
  const std::string_view better = objective == Objective::throughput ? "faster"
                                  : objective == Objective::cost     ? "cheaper"
                                                                     : "better in throughput per USD";
  const std::string proved = proved_text(result.bound, better);
  return proved.empty() ? "How much better a plan could be is not known."
                        : proved + " by the planner's formula of the time.";
}

std::string memory_line(const Candidate& winner, const Request& request) {
  const simulator::StagePrediction* tightest = nullptr;
  double least = 2.0;
  for (const simulator::StagePrediction& stage : winner.prediction.stages)
    if (stage.capacity && 1.0 - stage.memory.total() / *stage.capacity < least) {
      least = 1.0 - stage.memory.total() / *stage.capacity;
      tightest = &stage;
    }
  if (tightest == nullptr) return "How much memory its devices have is not known.";
  const Stage& stage = winner.plan.pipelines[static_cast<std::size_t>(tightest->pipeline_entry)]
                           .stages[static_cast<std::size_t>(tightest->stage)];
  return fmt::format("Memory is tightest on {} (stage {}): {} of {}, {:.0f}% free; {:.0f}% was asked for.", stage.gpu,
                     tightest->stage, format_bytes(tightest->memory.total()), format_bytes(*tightest->capacity),
                     least * 100.0, request.memory_margin * 100.0);
}

std::map<std::string, int> devices_of(const Plan& plan) {
  std::map<std::string, int> devices;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages) devices[stage.gpu] += pipeline.count * plan.ranks_of(stage);
  return devices;
}

/// Devices that the winner leaves idle, and what the best plan that takes more of them would do.
std::vector<std::string> idle_lines(const SearchResult& result, const Request& request) {
  std::map<std::string, int> present;
  for (const NodeGroup& group : result.nodes) present[group.gpu] += group.count * group.gpus_per_node;
  const std::map<std::string, int> used = devices_of(result.plans.front().plan);
  std::vector<std::string> lines;
  for (const auto& [gpu, devices] : present) {
    const auto found = used.find(gpu);
    const int taken = found == used.end() ? 0 : found->second;
    if (taken >= devices) continue;
    std::string line = fmt::format("{} of {} {} stay idle", devices - taken, devices, gpu);
    for (std::size_t i = 1; i < result.plans.size(); ++i) {
      const auto more = devices_of(result.plans[i].plan);
      if (const auto other = more.find(gpu); other != more.end() && other->second > taken) {
        line += fmt::format(": plan {} takes {} and is {}", i + 1, other->second,
                            verdict(result.plans[i], result.plans.front(), request.objective));
        break;
      }
    }
    lines.push_back(line + ".");
  }
  return lines;
}

std::string own_parts(const Candidate& candidate) {
  const TimeParts parts = time_parts(candidate.plan, candidate.prediction);
  std::vector<std::string> texts;
  for (const TimePart& part : all_parts) {
    const Seconds time = parts.*part.time;
    const double share = time / candidate.prediction.iteration_time;
    if (share < 0.0005) continue;
    const std::string why = share >= 0.02 ? reason(part.time, candidate) : "";
    texts.push_back(
        fmt::format("{} {} ({}{}{})", part.name, format_time(time), percent(share), why.empty() ? "" : ": ", why));
  }
  return join(texts, ", ");
}

std::optional<int> nodes_of(const Plan& plan, const Cluster& cluster) {
  NodeUse use;
  if (!use.place(plan, node_sizes(cluster.groups))) return std::nullopt;
  std::int64_t nodes = 0;
  for (const NodeUse::Node& node : use.nodes()) nodes += node.count;
  return static_cast<int>(nodes);
}

}  // namespace

std::string proved_text(const Bound& bound, std::string_view better) {
  if (!std::isfinite(bound.gap) || bound.bound <= 0.0) return "";
  if (bound.gap <= 0.0) return fmt::format("Proved: no other plan is {}", better);
  return fmt::format("Proved: no other plan is more than {} {}", at_most(bound.gap), better);
}

std::string at_most(double share) {
  const double percent = share * 100.0;
  return percent < 10.0 ? fmt::format("{:.1f}%", std::ceil(percent * 10.0 - 1e-6) / 10.0)
                        : fmt::format("{:.0f}%", std::ceil(percent - 1e-6));
}

TimeParts time_parts(const Plan& plan, const simulator::Prediction& prediction) {
  TimeParts parts;
  parts.synchronization = prediction.synchronization_time;
  parts.update = prediction.update_time;
  if (const simulator::StagePrediction* slowest = slowest_stage(prediction))
    parts.compute = std::min(
        (slowest->forward + slowest->backward) * static_cast<double>(slowest_pipeline(plan, prediction).micro_batches),
        prediction.pipeline_time);
  parts.transfers = std::min(prediction.transfer_time, prediction.pipeline_time - parts.compute);
  parts.bubble = prediction.iteration_time - parts.compute - parts.transfers - parts.synchronization - parts.update;
  if (std::abs(parts.bubble / prediction.iteration_time) < 1e-9) parts.bubble = Seconds(0.0);  // rounding
  return parts;
}

std::vector<std::string> broken_pins(const Plan& plan, const Pins& pins) {
  std::vector<std::string> broken;
  const auto differs = [&](std::string_view key, const auto& pinned, const auto& has) {
    std::string text = fmt::format("its {} is {}, --pin {}={}", key, has, key, pinned);
    if (std::find(broken.begin(), broken.end(), text) == broken.end()) broken.push_back(std::move(text));
  };
  const auto check = [&](std::string_view key, const auto& pinned, const auto& has) {
    if (pinned && *pinned != has) differs(key, *pinned, has);
  };
  const auto check_named = [&](std::string_view key, const auto& pinned, const auto& has) {
    if (pinned && *pinned != has) differs(key, to_string(*pinned), to_string(has));
  };
  const auto check_among = [&](std::string_view key, const std::vector<std::string>& pinned, const std::string& has) {
    if (!pinned.empty() && std::find(pinned.begin(), pinned.end(), has) == pinned.end())
      differs(key, join(pinned, fmt::format(",{}=", key)), has);
  };
  check("data_parallel", pins.data_parallel, plan.data_parallel());
  check_named("schedule", pins.schedule, plan.schedule);
  check_named("optimizer_sharding", pins.optimizer_sharding, plan.optimizer_sharding);
  check("context_parallel", pins.context_parallel, plan.context_parallel);
  check("expert_parallel", pins.expert_parallel, plan.expert_parallel);
  check("sharding_degree", pins.sharding_degree, plan.sharding_degree);
  int largest = 0;
  for (const Pipeline& pipeline : plan.pipelines) {
    check("pipeline_parallel", pins.pipeline_parallel, static_cast<int>(pipeline.stages.size()));
    check("micro_batch", pins.micro_batch, plan.micro_batch_of(pipeline));
    for (const Stage& stage : pipeline.stages) {
      check("tensor_parallel", pins.tensor_parallel, stage.tensor_parallel);
      check_named("recompute", pins.recompute, stage.recompute);
      check_among("gpu", pins.gpus, stage.gpu);
      check_among("zone", pins.zones, stage.zone);
      largest = std::max(largest, stage.tensor_parallel);
    }
  }
  if (pins.max_tensor_parallel && largest > *pins.max_tensor_parallel)
    broken.push_back(
        fmt::format("its tensor_parallel is {}, --max-tensor-parallel allows {}", largest, *pins.max_tensor_parallel));
  return broken;
}

std::vector<std::string> broken_limits(const Candidate& candidate, const Request& request, const Cluster* cluster) {
  std::vector<std::string> broken;
  const simulator::Prediction& prediction = candidate.prediction;
  const Limits& limits = request.limits;
  // Judged as by keeps_limits(), one limit at a time.
  const auto breaks = [&](auto member, std::optional<int> nodes = {}) {
    Request one;
    one.iterations = request.iterations;
    one.limits.*member = limits.*member;
    return !keeps_limits(one, prediction.iteration_time, prediction.cost_per_iteration, nodes);
  };
  if (breaks(&Limits::cost))
    broken.push_back(fmt::format("an iteration costs {}, {} --max-cost {}", limit_usd(prediction.cost_per_iteration),
                                 over(prediction.cost_per_iteration.value(), limits.cost->value()),
                                 limit_usd(*limits.cost)));
  const double throughput = 1.0 / prediction.iteration_time.value();
  if (breaks(&Limits::throughput))
    broken.push_back(fmt::format("it does {:#.3g} iterations/s, {} under --min-throughput {:#.3g}", throughput,
                                 percent(1.0 - throughput / *limits.throughput), *limits.throughput));
  const int ranks = candidate.plan.ranks();
  if (limits.gpus && ranks > *limits.gpus)
    broken.push_back(fmt::format("it takes {} devices, --max-gpus allows {}", ranks, *limits.gpus));
  const std::optional<int> nodes = cluster != nullptr ? nodes_of(candidate.plan, *cluster) : std::nullopt;
  if (limits.nodes && nodes && *nodes > *limits.nodes)
    broken.push_back(fmt::format("it takes {} nodes, --max-nodes allows {}", *nodes, *limits.nodes));
  if (!request.iterations) return broken;
  const double hours = prediction.iteration_time.value() * *request.iterations / 3600.0;
  if (breaks(&Limits::wall_time))
    broken.push_back(fmt::format("the training takes {:#.3g} h, {} --within {:#.3g} h", hours,
                                 over(hours * 3600.0, limits.wall_time->value()), limits.wall_time->value() / 3600.0));
  if (breaks(&Limits::node_hours, nodes))
    broken.push_back(fmt::format("the training takes {:#.3g} node-hours, {} --max-node-hours {:.4g}", hours * *nodes,
                                 over(hours * *nodes, *limits.node_hours), *limits.node_hours));
  return broken;
}

std::string explain(const SearchResult& result, const Request& request) {
  if (result.plans.empty()) return "";
  const Candidate& winner = result.plans.front();
  std::string text = fmt::format("Plan 1 is {}: {}.\n", outline(winner.plan), figures(winner));
  text += fmt::format("Its time: {}.\n", own_parts(winner));
  if (!winner.found_by.empty()) text += fmt::format("It was found by {}.\n", describe(winner.found_by));
  text += bound_line(result, request.objective) + "\n";
  text += memory_line(winner, request) + "\n";
  for (const std::string& line : idle_lines(result, request)) text += line + "\n";
  for (std::size_t i = 1; i < result.plans.size(); ++i) {
    text += fmt::format("Plan {} is {}: {}.\n", i + 1, verdict(result.plans[i], winner, request.objective),
                        differences(result.plans[i], winner));
  }
  return text;
}

std::string why_not(const Candidate& own, const Candidate& winner, const Request& request,
                    const std::vector<std::string>& problems, const Cluster* cluster) {
  std::string text = fmt::format("Yours is {}: {}.\n", outline(own.plan), figures(own));
  text += fmt::format("Plan 1 is {}: {}.\n", outline(winner.plan), figures(winner));
  std::vector<std::string> against = problems;
  for (std::string& limit : broken_limits(own, request, cluster)) against.push_back(std::move(limit));
  for (const std::string& problem : against) text += fmt::format("Yours cannot be chosen: {}.\n", problem);
  if (plan_fingerprint(own.plan) == plan_fingerprint(winner.plan)) return text + "They are the same plan.\n";
  text += fmt::format("Yours is {}: {}.\n", verdict(own, winner, request.objective), differences(own, winner));

  Table table({{"", Align::left}, {"yours"}, {"plan 1"}, {"difference"}});
  const TimeParts mine = time_parts(own.plan, own.prediction);
  const TimeParts best = time_parts(winner.plan, winner.prediction);
  for (const TimePart& part : all_parts) {
    const Seconds a = mine.*part.time;
    const Seconds b = best.*part.time;
    table.add_row({std::string(part.name), format_time(a), format_time(b),
                   fmt::format("{:+.1f}%", (a - b) / winner.prediction.iteration_time * 100.0)});
  }
  table.add_row(
      {"iteration", format_time(own.prediction.iteration_time), format_time(winner.prediction.iteration_time),
       fmt::format("{:+.1f}%", (own.prediction.iteration_time / winner.prediction.iteration_time - 1.0) * 100.0)});
  table.add_row(
      {"USD per iteration", format_usd(own.prediction.cost_per_iteration),
       format_usd(winner.prediction.cost_per_iteration),
       winner.prediction.cost_per_iteration > Usd(0.0)
           ? fmt::format("{:+.1f}%",
                         (own.prediction.cost_per_iteration / winner.prediction.cost_per_iteration - 1.0) * 100.0)
           : ""});
  table.add_row(
      {"peak memory", format_bytes(own.prediction.peak_memory), format_bytes(winner.prediction.peak_memory), ""});
  return text + "\n" + table.to_string();
}

}  // namespace sailor::planner
