#include "apps/plan/precision_choice.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "core/terminal.hpp"
#include "planner/considered_nodes.hpp"
#include "planner/outline.hpp"
#include "profile/estimate.hpp"

namespace sailor::apps {

using nlohmann::ordered_json;

namespace {

constexpr double share_of_comparison = 0.15;  // share of a time limit for precisions that are only compared

bool has(const std::string& gpu, Precision precision, const GpuCatalogue& catalogue) {
  const auto type = catalogue.find(gpu);
  return type && peak_rate(*type, precision);
}

bool every_has(const std::vector<std::string>& gpus, Precision precision, const GpuCatalogue& catalogue) {
  return std::all_of(gpus.begin(), gpus.end(), [&](const auto& gpu) { return has(gpu, precision, catalogue); });
}

bool any_has(const std::vector<std::string>& gpus, Precision precision, const GpuCatalogue& catalogue) {
  return std::any_of(gpus.begin(), gpus.end(), [&](const auto& gpu) { return has(gpu, precision, catalogue); });
}

std::vector<std::string> gpus_of(const planner::Request& request, const simulator::Environment& environment) {
  std::vector<std::string> gpus;
  for (const NodeGroup& group : planner::considered_nodes(request, *environment.cluster, environment.gpus).groups)
    if (std::find(gpus.begin(), gpus.end(), group.gpu) == gpus.end()) gpus.push_back(group.gpu);
  return gpus;
}

/// Score of a plan; smaller is better.
double score_of(const planner::Request& request, const planner::Candidate& best) {
  const auto objective = request.pareto ? planner::Objective::throughput : request.objective;
  const double value = planner::objective_value(objective, best.prediction);
  return objective == planner::Objective::cost ? value : 1.0 / value;
}

/// Precisions worth comparing with: those that no other of them beats on all devices.
std::vector<Precision> others(Precision chosen, const simulator::Environment& environment,
                              const std::vector<std::string>& gpus) {
  const GpuCatalogue& catalogue = environment.gpus;
  const auto possible = [&](Precision precision) {
    const auto measured = environment.profile.precisions(environment.model.name);
    return precision != chosen && environment.framework.state.contains(precision) &&
           (any_has(gpus, precision, catalogue) ||
            std::find(measured.begin(), measured.end(), precision) != measured.end());
  };
  std::vector<Precision> found;
  if (possible(Precision::fp8)) found.push_back(Precision::fp8);
  if (possible(Precision::bf16)) found.push_back(Precision::bf16);
  // On devices with bf16, fp16 is as fast and needs as much memory.
  if (possible(Precision::fp16) && !every_has(gpus, Precision::bf16, catalogue)) found.push_back(Precision::fp16);
  // On devices without TF32, tf32 is fp32.
  const bool has_tf32 = std::any_of(gpus.begin(), gpus.end(), [&](const auto& gpu) {
    const auto type = catalogue.find(gpu);
    return type && type->peak_tf32.value() > 0.0;
  });
  if (has_tf32 && possible(Precision::tf32))
    found.push_back(Precision::tf32);
  else if (possible(Precision::fp32) && chosen != Precision::tf32)
    found.push_back(Precision::fp32);
  return found;
}

/// The remaining time of a time limit.
class Clock {
 public:
  explicit Clock(std::optional<Seconds> limit) : limit_(limit) {}
  /// Share of the whole limit, at most the remaining time.
  [[nodiscard]] std::optional<Seconds> part(double share) const {
    if (!limit_) return std::nullopt;
    return std::max(Seconds(0.0), std::min(*limit_ * share, left()));
  }
  [[nodiscard]] Seconds left() const {
    const std::chrono::duration<double> gone = std::chrono::steady_clock::now() - start_;
    return *limit_ - Seconds(gone.count());
  }
  [[nodiscard]] bool is_over() const { return limit_ && left() <= *limit_ * 0.01; }

 private:
  std::optional<Seconds> limit_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

void keep_better(std::optional<NextPrecision>& best, NextPrecision other, const planner::Request& request) {
  if (!best || score_of(request, other.best) < score_of(request, best->best)) best = std::move(other);
}

}  // namespace

PrecisionCandidates precision_candidates(std::optional<Precision> given, const Profile& profile,
                                         const std::string& model, const simulator::Framework* framework,
                                         const GpuCatalogue& catalogue, const std::vector<std::string>& gpus) {
  if (given) return {.precisions = {*given}, .why = "as --precision says"};
  const auto trains = [&](Precision precision) { return framework == nullptr || framework->state.contains(precision); };
  std::vector<Precision> measured = profile.precisions(model);
  const bool any_measured = !measured.empty();
  std::erase_if(measured, [&](Precision precision) { return !trains(precision); });
  if (!measured.empty()) {
    const bool has_tf32 = std::find(measured.begin(), measured.end(), Precision::tf32) != measured.end();
    return {.precisions = {has_tf32 ? Precision::tf32 : measured.front()}, .why = "as the profile has the model"};
  }
  const std::string in_profile =
      any_measured ? fmt::format("the profile has the model only as {} does not train", framework->name)
                   : "the profile has nothing of the model";
  if (!gpus.empty() && trains(Precision::bf16) && every_has(gpus, Precision::bf16, catalogue))
    return {.precisions = {Precision::bf16}, .why = "every device has it, and " + in_profile};
  PrecisionCandidates candidates{.precisions = {}, .why = "the best, as " + in_profile};
  for (const Precision precision : {Precision::bf16, Precision::fp16})
    if (trains(precision) && any_has(gpus, precision, catalogue)) candidates.precisions.push_back(precision);
  if (candidates.precisions.empty()) candidates.why = "no device has another, and " + in_profile;
  candidates.precisions.push_back(Precision::fp32);
  return candidates;
}

Precision usual_precision(const PrecisionCandidates& candidates, const GpuCatalogue& catalogue,
                          const std::vector<std::string>& gpus) {
  if (candidates.precisions.size() == 1) return candidates.precisions.front();
  for (const Precision precision : candidates.precisions)
    if (every_has(gpus, precision, catalogue)) return precision;
  return Precision::fp32;
}

Result<PrecisionAnswer> plan_in_best_precision(const PrecisionCandidates& candidates, const planner::Request& request,
                                               const simulator::Environment& environment, bool compare,
                                               const std::function<void(const planner::SearchProgress&)>& progress) {
  const Clock clock(request.effort.time);
  std::optional<PrecisionAnswer> answer;
  std::optional<Error> failure;
  const auto& precisions = candidates.precisions;
  compare = compare && precisions.size() == 1;
  for (std::size_t i = 0; i < precisions.size(); ++i) {
    planner::Request one = request;
    one.job.precision = precisions[i];
    one.effort.explains_limits = request.effort.explains_limits && i == 0;  // whose error is the answer
    // The remaining time is divided equally among the remaining precisions.
    if (request.effort.time) {
      const Seconds left = clock.left() - *request.effort.time * (compare ? share_of_comparison : 0.0);
      one.effort.time = std::max(Seconds(0.0), left / static_cast<double>(precisions.size() - i));
    }
    auto found = planner::find_plans(one, environment, progress);
    if (!found) {
      if (!failure) failure = found.error();
      continue;
    }
    PrecisionAnswer other{.found = *std::move(found),
                          .precision = precisions[i],
                          .why = candidates.why,
                          .next = {},
                          .objective = request.objective};
    if (answer && score_of(request, answer->found.plans.front()) <= score_of(request, other.found.plans.front())) {
      keep_better(answer->next, {.precision = other.precision, .best = other.found.plans.front()}, request);
      continue;
    }
    if (answer) {
      other.next = std::move(answer->next);
      keep_better(other.next, {.precision = answer->precision, .best = answer->found.plans.front()}, request);
    }
    answer = std::move(other);
  }
  if (!answer) return fail(*failure);
  if (!compare) return std::move(*answer);
  for (const Precision precision : others(answer->precision, environment, gpus_of(request, environment))) {
    if (clock.is_over() || answer->found.stop == planner::Stop::interrupted) break;
    planner::Request brief = request;
    brief.job.precision = precision;
    brief.max_plans = 1;
    brief.pareto = false;
    brief.effort = request.effort.for_comparison(clock.part(1.0));
    if (auto found = planner::find_plans(brief, environment))
      keep_better(answer->next,
                  {.precision = precision, .best = std::move(found->plans.front()), .searched_briefly = true}, request);
  }
  return std::move(*answer);
}

std::string next_precision_text(const PrecisionAnswer& answer) {
  if (!answer.next) return "";
  const simulator::Prediction& best = answer.found.plans.front().prediction;
  const simulator::Prediction& other = answer.next->best.prediction;
  const double ratio = other.iteration_time / best.iteration_time;
  const double value = planner::objective_value(answer.objective, best);
  const double other_value = planner::objective_value(answer.objective, other);
  const bool better = answer.objective == planner::Objective::cost ? other_value < value : other_value > value;
  const std::string most = answer.next->searched_briefly ? "at most " : "";
  const std::string speed = ratio < 1.0      ? fmt::format("{:.3g} times as fast", 1.0 / ratio)
                            : ratio < 1.0005 ? "an iteration takes " + most + "the same time"
                                             : fmt::format("an iteration takes {}{:.3g} times as long", most, ratio);
  const double saved = 1.0 - other.cost_per_iteration / best.cost_per_iteration;
  const std::string cheaper = better && answer.objective != planner::Objective::throughput && saved >= 0.001
                                  ? fmt::format(" ({:.1f}% cheaper)", 100.0 * saved)
                                  : "";
  return fmt::format("{} precision{}: {}, {} ({}), {}{}, on {} ({}).\n", better ? "Better" : "Next best",
                     answer.next->searched_briefly ? " (after a brief search)" : "", to_string(answer.next->precision),
                     speed, format_time(other.iteration_time), format_usd(other.cost_per_iteration), cheaper,
                     plural(static_cast<std::size_t>(answer.next->best.plan.ranks()), "device"),
                     to_string(other.origin));
}

ordered_json next_precision_to_json(const PrecisionAnswer& answer) {
  if (!answer.next) return nullptr;
  const planner::Candidate& best = answer.next->best;
  return {{"precision", to_string(answer.next->precision)},
          {"iteration_time_s", best.prediction.iteration_time.value()},
          {"throughput_iterations_per_s", 1.0 / best.prediction.iteration_time.value()},
          {"cost_usd_per_iteration", best.prediction.cost_per_iteration.value()},
          {"devices", best.plan.ranks()},
          {"origin", to_string(best.prediction.origin)},
          {"description", planner::outline(best.plan)},
          {"searched_briefly", answer.next->searched_briefly}};
}

}  // namespace sailor::apps
