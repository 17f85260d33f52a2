#include "planner/advice.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <map>
#include <set>

#include "core/terminal.hpp"
#include "planner/considered_nodes.hpp"
#include "planner/outline.hpp"

namespace sailor::planner {

namespace {

constexpr double little_slower = 1.05;
constexpr double share_of_devices = 0.6;

class Adviser {
 public:
  Adviser(const Candidate& best, const Request& request, const simulator::Environment& environment,
          std::optional<Seconds> time)
      : best_(best), request_(request), env_(environment), time_(time) {}

  std::vector<Advice> run() {
    if (request_.objective == Objective::throughput) fewer_devices();
    std::set<std::string> used;
    for (const Pipeline& pipeline : best_.plan.pipelines)
      for (const Stage& stage : pipeline.stages) used.insert(stage.gpu);
    if (used.size() > 1)
      for (const std::string& gpu : used) without(gpu);
    return std::move(advice_);
  }

 private:
  std::optional<Candidate> find(Request request) const {
    const std::chrono::duration<double> gone = std::chrono::steady_clock::now() - start_;
    if (time_ && gone.count() >= time_->value()) return std::nullopt;
    request.max_plans = 1;
    request.pareto = false;
    request.effort =
        request_.effort.for_comparison(time_ ? std::optional(*time_ - Seconds(gone.count())) : std::nullopt);
    auto found = find_plans(request, env_);
    return found ? std::optional(std::move(found->plans.front())) : std::nullopt;
  }

  void fewer_devices() {
    const int devices = best_.plan.ranks();
    Request request = request_;
    const int most = static_cast<int>(std::floor(devices * share_of_devices));
    if (most < 1) return;
    request.limits.gpus = std::min(most, request_.limits.gpus.value_or(most));
    auto found = find(request);
    if (!found) return;
    const double slower = found->prediction.iteration_time / best_.prediction.iteration_time;
    if (slower > little_slower) return;
    std::string text =
        fmt::format("{} of the {} devices are enough for {:.1f}% less throughput: {} ({}, {} per iteration).",
                    found->plan.ranks(), devices, 100.0 * std::max(0.0, 1.0 - 1.0 / slower), outline(found->plan),
                    format_time(found->prediction.iteration_time), format_usd(found->prediction.cost_per_iteration));
    advice_.push_back({.text = std::move(text), .plan = *std::move(found)});
  }

  void without(const std::string& gpu) {
    Request request = request_;
    request.pins.gpus.clear();
    for (const NodeGroup& group : considered_nodes(request_, *env_.cluster, env_.gpus).groups)
      if (group.gpu != gpu) request.pins.gpus.push_back(group.gpu);
    if (request.pins.gpus.empty()) return;
    auto found = find(request);
    if (!found) return;
    const auto rate = [](const Candidate& candidate) {
      return candidate.prediction.cost_per_iteration.value() / candidate.prediction.iteration_time.value();
    };
    const double throughput = found->prediction.iteration_time / best_.prediction.iteration_time - 1.0;
    const double cost = rate(best_) / rate(*found) - 1.0;
    if (!std::isfinite(cost) || cost <= 0.0 || throughput >= cost) return;
    std::string text = fmt::format(
        "{} adds {:.1f}% of throughput for {:.1f}% more USD per hour: without it {} ({}, {} per iteration).", gpu,
        100.0 * std::max(0.0, throughput), 100.0 * cost, outline(found->plan),
        format_time(found->prediction.iteration_time), format_usd(found->prediction.cost_per_iteration));
    advice_.push_back({.text = std::move(text), .plan = *std::move(found)});
  }

  const Candidate& best_;
  const Request& request_;
  const simulator::Environment& env_;
  std::optional<Seconds> time_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::vector<Advice> advice_;
};

}  // namespace

std::vector<Advice> what_pays(const Candidate& best, const Request& request, const simulator::Environment& environment,
                              std::optional<Seconds> time) {
  return Adviser(best, request, environment, time).run();
}

}  // namespace sailor::planner
