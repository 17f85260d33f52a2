#include "apps/plan/watch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "apps/inputs.hpp"
#include "apps/plan/command_line.hpp"
#include "apps/plan/precision_choice.hpp"
#include "apps/plan/questions.hpp"
#include "apps/plan/watched_training.hpp"
#include "apps/simulate/plan_input.hpp"
#include "apps/stop_requests.hpp"
#include "core/log.hpp"
#include "core/terminal.hpp"
#include "elastic/folder.hpp"
#include "planner/availability.hpp"
#include "planner/considered_nodes.hpp"
#include "profile/store.hpp"
#include "reports/plans.hpp"
#include "reports/watch.hpp"
#include "slurm/cluster_reader.hpp"
#include "slurm/words.hpp"

namespace sailor::apps {

namespace {

using WatchClock = std::chrono::steady_clock;
using planner::Decision;

constexpr Seconds planned_change{
    5.0};  // the most that sailor-train --elastic may take for one, from request to training
constexpr Seconds usual_horizon{3600.0};

/// Options about watching: --switch-cost, --horizon and others.
struct WatchSettings {
  Seconds interval{};
  std::optional<std::int64_t> looks;   ///< none: until a signal
  std::optional<Seconds> switch_cost;  ///< none: planned_change and moving the state
  std::optional<Seconds> horizon;      ///< none: what is left of the training, else usual_horizon
  std::string against;                 ///< file of the running plan; empty: the plan found first
  std::filesystem::path elastic;       ///< empty: no plans are requested
  std::string output;                  ///< file of the best plan; empty: none
  bool json = false;
};

Result<WatchSettings> read_settings(const PlanOptions& options) {
  WatchSettings settings{.interval = Seconds(*options.interval),
                         .looks = {},
                         .switch_cost = {},
                         .horizon = {},
                         .against = *options.against,
                         .elastic = *options.elastic,
                         .output = *options.output,
                         .json = *options.format == "json"};
  if (options.watch_count.has()) settings.looks = *options.watch_count;
  if (options.switch_cost.has()) settings.switch_cost = Seconds(*options.switch_cost);
  if (options.horizon.has()) {
    const auto time = slurm::parse_time_limit(*options.horizon);
    if (!time) return fail(ErrorCode::usage, "--horizon: " + time.error().what, time.error().hint);
    settings.horizon = *time;
  }
  if (!settings.elastic.empty()) SAILOR_CHECK(elastic::check_folder(settings.elastic));
  return settings;
}

Seconds since(WatchClock::time_point start) {
  return Seconds(std::chrono::duration<double>(WatchClock::now() - start).count());
}

/// Waits until the next look; false if a signal asks the program to end.
bool wait_for_next_look(Seconds time) {
  constexpr Seconds slice{0.1};
  for (const auto start = WatchClock::now(); since(start) < time;) {
    if (stop_request() != 0) return false;
    const Seconds left = std::min(slice, time - since(start));
    std::this_thread::sleep_for(std::chrono::duration<double>(std::max(left, Seconds(0.0)).value()));
  }
  return stop_request() == 0;
}

planner::PricedPlan priced(const planner::Candidate& found) {
  return {.plan = found.plan,
          .iteration_time = found.prediction.iteration_time,
          .cost_per_iteration = found.prediction.cost_per_iteration};
}

class Watcher {
 public:
  Watcher(const PlanOptions& options, const Environment& environment, const WatchInputs& inputs,
          const planner::Request& request, WatchSettings settings)
      : options_(options),
        environment_(environment),
        inputs_(inputs),
        request_(request),
        settings_(std::move(settings)),
        training_(settings_.elastic) {
    request_.max_plans = 1;
    // Nodes in use by others are useless to a training that is running now.
    if (training_.is_there() && !options_.availability.given()) request_.availability = Availability::idle;
    request_.effort.is_interrupted = [] { return stop_request() != 0; };
  }

  Result<void> run(const ClusterInput& first) {
    auto hash = profile_hash(find_store(*options_.profile, environment_));
    if (!hash) return fail(hash.error());
    profile_hash_ = *std::move(hash);
    catch_stop_requests("sailor-plan", {SIGINT, SIGTERM});
    SAILOR_CHECK(see(first));
    for (std::int64_t looks = 1; !settings_.looks || looks < *settings_.looks; ++looks) {
      if (!wait_for_next_look(settings_.interval)) break;
      const auto over = is_over();
      if (!over) return fail(over.error());
      if (*over) break;
      const auto input = read_cluster_input(options_, environment_, inputs_.gpus);
      if (stop_request() != 0) break;
      if (!input) {
        no_answer(input.error());
        continue;
      }
      answers();
      SAILOR_CHECK(see(**input));
    }
    if (stop_request() != 0)
      log_info("no longer watching{}; the same command watches on",
               settings_.elastic.empty()
                   ? ""
                   : fmt::format(": the training of '{}' goes on with its plan", settings_.elastic.string()));
    return {};
  }

 private:
  // Writes an event in either format.
  template <class... Arguments>
  void say_event(const Arguments&... event) const {
    if (settings_.json)
      fmt::print("{}\n", reports::watch_to_json(event...).dump());
    else
      fmt::print("{}\n", reports::watch_line(event...));
    std::fflush(stdout);
  }

  /// Whether the watched elastic training has ended.
  Result<bool> is_over() {
    SAILOR_CHECK(training_.look());
    if (training_.state().ended) log_info("the training of '{}' has ended", training_.folder().string());
    return training_.state().ended;
  }

  void no_answer(const Error& error) {
    if (!silent_since_) silent_since_ = WatchClock::now();
    if (said_ == error.what) return;
    said_ = error.what;
    say_event(std::time(nullptr), fmt::format("{}; asked again every {:g} s", error.what, settings_.interval.value()),
              since(*silent_since_));
  }
  void answers() {
    if (silent_since_) say_event(std::time(nullptr), std::string(), since(*silent_since_));
    silent_since_.reset();
    said_.clear();
  }

  /// The request with the partitions that start jobs; unchanged if plans may use everything that exists.
  planner::Request request_on(const ClusterInput& input, std::vector<std::string>& closed) const {
    planner::Request request = request_;
    if (request.availability == Availability::all || !input.live) return request;
    std::erase_if(request.partitions, [&](const std::string& name) {
      const auto partition = slurm::require_partition(input.cluster, name);
      if (!partition) closed.push_back(partition.error().what);
      return !partition.has_value();
    });
    return request;
  }

  Result<void> see(ClusterInput input) {
    SAILOR_CHECK(training_.look());
    training_.free_own_nodes(input.cluster);
    // A slurmctld that has just started knows the state of a node only after it has answered or has been silent for too
    // long.
    if (seen_ && std::any_of(input.cluster.groups.begin(), input.cluster.groups.end(),
                             [](const NodeGroup& group) { return group.state_reason == slurm::state_not_known; }))
      return {};
    std::vector<std::string> closed;
    planner::Request request = request_on(input, closed);
    const bool none_open = request.partitions.empty() && !request_.partitions.empty();
    const Cluster allowed = without_excluded(input.cluster, request);
    reports::WatchEvent event{.time = std::time(nullptr), .first = !seen_};
    if (!none_open) event.nodes = node_offers(allowed, request.partitions, request.availability);
    if (seen_) event.changes = node_changes(*seen_, event.nodes, input.cluster);
    if (!closed.empty()) {  // nodes that are up but whose partition is closed
      const NodeOffers up = node_offers(allowed, request_.partitions, request.availability);
      for (NodeChange& change : event.changes)
        if (!change.now && up.contains(change.node)) change.reason = closed.front();
    }
    if (training_.is_there()) {
      auto left = training_.leave_nodes(
          event.nodes, none_open ? NodeOffers{} : node_offers(allowed, request.partitions, Availability::up));
      if (!left) return fail(left.error());
      event.left = std::move(left->nodes);
      event.taken_back = std::move(left->taken_back);
    }
    if (seen_ && event.changes.empty() && event.left.empty() && event.taken_back.empty()) return {};
    seen_ = event.nodes;
    const Cluster part = event.nodes.empty() ? allowed : searched_part(input.cluster, request);
    keep_excluded_nodes_of(part, request);
    SAILOR_CHECK(decide(event, request, part));
    if (stop_request() != 0) return {};
    SAILOR_CHECK(act(event, input));
    say_event(event, request.objective);
    return {};
  }

  /// Plans on the current nodes, and compares the best plan with the running one.
  Result<void> decide(reports::WatchEvent& event, const planner::Request& request, const Cluster& part) {
    simulator::Environment simulated{.model = inputs_.model,
                                     .profile = inputs_.profile,
                                     .gpus = inputs_.gpus,
                                     .framework = inputs_.framework,
                                     .cluster = &part,
                                     .measured_only = *options_.measured_only};
    const LayerCosts costs = simulator::layer_costs_for(simulated);
    simulated.costs = &costs;
    SAILOR_CHECK(read_running(event));
    if (event.nodes.empty()) {
      event.problem = "no node can be used";
    } else {
      auto answer = search(request, simulated);
      if (answer)
        event.found = std::move(answer->found.plans.front());
      else if (answer.error().code == ErrorCode::usage && event.first)
        return fail(answer.error());
      else
        event.problem = answer.error().message();
    }
    if (running_) SAILOR_CHECK(price_running(event, request, simulated));
    event.decision = decision(event, request.objective, part);
    if (!running_ && event.found) running_ = event.found->plan;
    return {};
  }

  Result<PrecisionAnswer> search(const planner::Request& request, const simulator::Environment& simulated) const {
    std::optional<Precision> given;
    if (running_) given = running_->job.precision;
    if (!given) {
      const auto asked = read_precision(options_.precision);
      if (!asked) return fail(asked.error());
      given = *asked;
    }
    std::vector<std::string> gpus;
    for (const NodeGroup& group : planner::considered_nodes(request, *simulated.cluster, simulated.gpus).groups)
      if (std::find(gpus.begin(), gpus.end(), group.gpu) == gpus.end()) gpus.push_back(group.gpu);
    const PrecisionCandidates candidates =
        precision_candidates(given, inputs_.profile, inputs_.model.name, &inputs_.framework, inputs_.gpus, gpus);
    return plan_in_best_precision(candidates, request, simulated, false, {});
  }

  /// Reads the running plan again at each change: the user may write the new plan to the file of --against after a
  /// switch, and the controller of an elastic training reports what runs.
  Result<void> read_running(const reports::WatchEvent& event) {
    if (settings_.against.empty() && !settings_.elastic.empty()) return use_plan_of_training();
    if (settings_.against.empty()) return {};
    auto input = read_plan_input(settings_.against, options_, environment_, inputs_.gpus, inputs_.profile);
    if (!input && !event.first) {
      log_warning("the running plan is taken to be as before: {}", input.error().message());
      return {};
    }
    if (!input) return fail(input.error());
    TrainingJob asked = request_.job;
    asked.precision = input->plan.job.precision;
    SAILOR_CHECK(check_same_job(input->plan.job, asked, "against", settings_.against));
    running_ = std::move(input->plan);
    return {};
  }

  Result<void> use_plan_of_training() {
    if (!training_.state().plan) return {};
    TrainingJob asked = request_.job;
    asked.precision = training_.state().plan->job.precision;
    SAILOR_CHECK(check_same_job(training_.state().plan->job, asked, "elastic", settings_.elastic.string()));
    running_ = *training_.state().plan;
    use_catalogue_names(*running_, inputs_.gpus);
    return {};
  }

  Result<void> price_running(reports::WatchEvent& event, const planner::Request& request,
                             const simulator::Environment& simulated) const {
    if (event.nodes.empty()) {
      event.running_problem = event.problem;
      return {};
    }
    if (auto missing = what_is_missing(*running_, without_excluded(*simulated.cluster, request), request.partitions)) {
      event.running_problem = *std::move(missing);
      return {};
    }
    const auto prediction = simulator::simulate(*running_, simulated);
    if (!prediction) return fail(prediction.error(), "the running plan");
    event.running = {.plan = *running_,
                     .iteration_time = prediction->iteration_time,
                     .cost_per_iteration = prediction->cost_per_iteration};
    return {};
  }

  Decision decision(reports::WatchEvent& event, planner::Objective objective, const Cluster& part) {
    if (!running_) return event.found ? Decision::start : Decision::pause;
    if (event.running && !event.found) return Decision::keep;
    if (!event.found) return Decision::pause;
    event.switch_cost = switch_cost(*event.found, part);
    if (!event.running) return Decision::forced;
    event.horizon = horizon(event.running->iteration_time);
    const planner::PricedPlan found = priced(*event.found);
    event.gain = planner::gain_of_change(objective, *event.running, found, event.horizon, event.switch_cost);
    const bool same = plan_fingerprint(found.plan) == plan_fingerprint(event.running->plan);
    return !same && planner::change_pays(objective, *event.running, found, event.horizon, event.switch_cost)
               ? Decision::change
               : Decision::keep;
  }

  /// Duration of the last planned change of the training, if there was one; else an upper bound of it, and the time to
  /// move the state of the rank that has most of it.
  Seconds switch_cost(const planner::Candidate& found, const Cluster& part) {
    if (settings_.switch_cost) return *settings_.switch_cost;
    if (const auto measured = training_.is_there() ? elastic::last_planned_change(training_.folder()) : std::nullopt) {
      if (!std::exchange(measured_cost_said_, true))
        log_info("a switch is taken to cost {}, as the last planned change of this training (--switch-cost)",
                 format_time(*measured));
      return *measured;
    }
    Seconds cost = planned_change;
    Bytes state{};
    for (const simulator::StagePrediction& stage : found.prediction.stages)
      state = std::max(state, stage.memory.weights + stage.memory.optimizer);
    std::string moving = "; how fast state moves between nodes is not known";
    if (part.network.between_nodes) {
      const Seconds time = state / *part.network.between_nodes;
      cost += time;
      moving = fmt::format(" and {} for {} of state of a rank between nodes", format_time(time), format_bytes(state));
    }
    if (!cost_said_)
      log_info(
          "a switch is taken to cost {}: {} is the most that sailor-train --elastic may take for a planned "
          "change{} (--switch-cost)",
          format_time(cost), format_time(planned_change), moving);
    cost_said_ = true;
    return cost;
  }

  Seconds horizon(Seconds iteration) const {
    const Seconds gone = since(start_);
    if (settings_.horizon) return std::max(Seconds(0.0), *settings_.horizon - gone);
    if (request_.iterations) return std::max(Seconds(0.0), *request_.iterations * iteration - gone);
    return usual_horizon;
  }

  /// Writes the best plan, and requests it if that pays.
  Result<void> act(reports::WatchEvent& event, const ClusterInput& input) {
    if (!event.found) return {};
    event.found->plan.origin = origin_of(options_, input.cluster, profile_hash_);
    if (!settings_.output.empty()) SAILOR_CHECK(save_plan(event.found->plan, settings_.output));
    if (settings_.elastic.empty()) return {};
    if (event.decision != Decision::change && event.decision != Decision::forced) return {};
    if (!training_.can_run(event.found->plan, input.cluster)) return {};
    auto written = elastic::request_plan(settings_.elastic, event.found->plan, "watch", event.time);
    if (!written) return fail(written.error());
    event.requested = written->string();
    running_ = event.found->plan;
    return {};
  }

  const PlanOptions& options_;
  const Environment& environment_;
  const WatchInputs& inputs_;
  planner::Request request_;
  WatchSettings settings_;
  WatchClock::time_point start_ = WatchClock::now();
  std::optional<NodeOffers> seen_;
  WatchedTraining training_;
  std::optional<Plan> running_;
  std::optional<WatchClock::time_point> silent_since_;
  std::string profile_hash_;
  std::string said_;  ///< reason why the cluster did not answer
  bool cost_said_ = false;
  bool measured_cost_said_ = false;
};

}  // namespace

Result<void> watch(const PlanOptions& options, const Environment& environment, const WatchInputs& inputs,
                   const ClusterInput& first, const planner::Request& request) {
  auto settings = read_settings(options);
  if (!settings) return fail(settings.error());
  return Watcher(options, environment, inputs, request, *std::move(settings)).run(first);
}

}  // namespace sailor::apps
