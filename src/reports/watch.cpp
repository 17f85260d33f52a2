#include "reports/watch.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "core/terminal.hpp"
#include "core/text.hpp"
#include "planner/outline.hpp"
#include "reports/prediction.hpp"

namespace sailor::reports {

using nlohmann::ordered_json;
using planner::Decision;
using planner::Objective;

namespace {

std::string utc(std::time_t time) { return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(time)); }

/// "01:30:00", to show people the horizon.
std::string clock_time(Seconds time) {
  const auto seconds = static_cast<std::int64_t>(std::llround(std::fmax(time.value(), 0.0)));
  return fmt::format("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
}

std::string found_in_words(const planner::Candidate& found, Objective objective) {
  std::string text = fmt::format("best plan {} on {}, {} per iteration", planner::outline(found.plan),
                                 plural(static_cast<std::size_t>(found.plan.ranks()), "device"),
                                 format_time(found.prediction.iteration_time));
  if (objective != Objective::throughput)
    text += fmt::format(" at {}", format_usd(found.prediction.cost_per_iteration));
  return text;
}

std::string gain_in_words(double gain, Objective objective) {
  switch (objective) {
    case Objective::throughput:
      return fmt::format("{:.1f}% more iterations", gain * 100.0);
    case Objective::cost:
      return fmt::format("{:.1f}% more iterations per USD", gain * 100.0);
    case Objective::throughput_per_usd:
      return fmt::format("{:.1f}% more throughput per USD", gain * 100.0);
  }
  return {};
}

/// The decision, and why.
std::string verdict(const WatchEvent& event, Objective objective) {
  switch (event.decision) {
    case Decision::start:
    case Decision::resume:
      return {};
    case Decision::pause:
      return event.running_problem.empty() ? ""
                                           : fmt::format("the running plan cannot go on ({})", event.running_problem);
    case Decision::forced:
      return fmt::format("the running plan cannot go on ({}): switch", event.running_problem);
    case Decision::change:
      return fmt::format("{} within {} than the running plan, {} for the switch included: switch",
                         gain_in_words(event.gain, objective), clock_time(event.horizon),
                         format_time(event.switch_cost));
    case Decision::keep:
      break;
  }
  if (!event.found) return "the running plan goes on";
  const double while_it_runs = planner::gain(
      objective, *event.running,
      {event.found->plan, event.found->prediction.iteration_time, event.found->prediction.cost_per_iteration});
  if (while_it_runs <= 0.0005) return "the running plan is as good: keep it";  // below 0.1% as printed
  return fmt::format("{} than the running plan, but not with {} for the switch within {}: keep it",
                     gain_in_words(while_it_runs, objective), format_time(event.switch_cost),
                     clock_time(event.horizon));
}

ordered_json offer_to_json(const std::string& node, const NodeOffer& offer) {
  return {{"node", node}, {"gpu", offer.gpu}, {"devices", offer.devices}, {"zone", offer.zone}};
}

}  // namespace

std::string watch_line(const WatchEvent& event, Objective objective) {
  std::string text = utc(event.time) + " " + (event.first ? describe(event.nodes) : describe(event.changes)) + ": ";
  text += event.found ? found_in_words(*event.found, objective) : "no plan (" + event.problem + ")";
  if (const std::string said = verdict(event, objective); !said.empty()) text += "; " + said;
  if (!event.left.empty()) text += "; the training is to leave " + name_some(event.left);
  if (!event.taken_back.empty()) text += "; the training may use " + name_some(event.taken_back) + " again";
  if (!event.requested.empty()) text += "; asked for by " + event.requested;
  return text;
}

ordered_json watch_to_json(const WatchEvent& event, Objective objective) {
  ordered_json came = ordered_json::array();
  ordered_json went = ordered_json::array();
  ordered_json changed = ordered_json::array();
  for (const NodeChange& change : event.changes) {
    if (!change.now) {
      went.push_back(offer_to_json(change.node, *change.before));
      went.back()["reason"] = change.reason;
    } else if (!change.before) {
      came.push_back(offer_to_json(change.node, *change.now));
    } else {
      changed.push_back(offer_to_json(change.node, *change.now));
      changed.back()["devices_before"] = change.before->devices;
    }
  }
  ordered_json available = ordered_json::array();
  for (const auto& [node, offer] : event.nodes) available.push_back(offer_to_json(node, offer));
  ordered_json json{{"time", utc(event.time)},
                    {"event", event.first ? "start" : "change"},
                    {"came", std::move(came)},
                    {"went", std::move(went)},
                    {"changed", std::move(changed)},
                    {"nodes", std::move(available)},
                    {"decision", to_string(event.decision)},
                    {"objective", to_string(objective)},
                    {"best", nullptr},
                    {"problem", event.problem},
                    {"running", nullptr},
                    {"running_problem", event.running_problem},
                    {"gain_after_switch", event.found && event.running ? ordered_json(event.gain) : ordered_json()},
                    {"horizon_s", event.horizon.value()},
                    {"switch_cost_s", event.switch_cost.value()},
                    {"left", event.left},
                    {"taken_back", event.taken_back},
                    {"requested", event.requested}};
  if (event.found)
    json["best"] = {{"description", planner::outline(event.found->plan)},
                    {"devices", event.found->plan.ranks()},
                    {"iteration_time_s", event.found->prediction.iteration_time.value()},
                    {"throughput_iterations_per_s", 1.0 / event.found->prediction.iteration_time.value()},
                    {"cost_usd_per_iteration", event.found->prediction.cost_per_iteration.value()},
                    {"peak_memory_bytes", event.found->prediction.peak_memory.value()},
                    {"plan", plan_to_json(event.found->plan)}};
  if (event.running)
    json["running"] = {{"description", planner::outline(event.running->plan)},
                       {"devices", event.running->plan.ranks()},
                       {"iteration_time_s", event.running->iteration_time.value()},
                       {"throughput_iterations_per_s", 1.0 / event.running->iteration_time.value()},
                       {"cost_usd_per_iteration", event.running->cost_per_iteration.value()}};
  return json;
}

std::string watch_line(std::time_t time, const std::string& problem, Seconds silent) {
  return utc(time) + " " +
         (problem.empty() ? fmt::format("the cluster answers again, after {}", clock_time(silent)) : problem);
}

ordered_json watch_to_json(std::time_t time, const std::string& problem, Seconds silent) {
  return {{"time", utc(time)},
          {"event", problem.empty() ? "answers" : "no_answer"},
          {"problem", problem},
          {"silent_s", silent.value()}};
}

}  // namespace sailor::reports
