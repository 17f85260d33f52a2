#include "planner/planner.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <tuple>

#include "core/terminal.hpp"
#include "planner/bound/bound.hpp"
#include "planner/each_recompute.hpp"
#include "planner/exhaustive.hpp"
#include "planner/full_search.hpp"
#include "planner/linked.hpp"
#include "planner/paper/search.hpp"
#include "planner/search_space.hpp"
#include "planner/solution_pool.hpp"
#include "planner/stage_prices.hpp"

namespace sailor::planner {

namespace {

// The number of best plans by the closed form that the search goes on from: for each plan that is wanted, and some
// more.
constexpr std::size_t kept_each = 2;
constexpr std::size_t min_kept = 10;

/// "12.3% more than", or "50 times" where a percentage says little; `ratio`: needed over allowed.
std::string excess(double ratio) {
  if (!std::isfinite(ratio)) return "more than";
  return ratio < 10.0 ? fmt::format("{:.1f}% more than", 100.0 * (ratio - 1.0)) : fmt::format("{:.3g} times", ratio);
}

/// The same for a value that is `ratio` times too small.
std::string shortfall(double ratio) {
  if (!std::isfinite(ratio)) return "less than";
  return ratio < 10.0 ? fmt::format("{:.1f}% less than", 100.0 * (1.0 - 1.0 / ratio))
                      : fmt::format("{:.3g} times less than", ratio);
}

Result<void> check_request(const Request& request, const simulator::Environment& env) {
  if (env.cluster == nullptr) return fail(ErrorCode::invalid_input, "planning needs a cluster");
  const Limits& limits = request.limits;
  if ((limits.wall_time || limits.node_hours) && !request.iterations)
    return fail(ErrorCode::invalid_input, "a limit on the whole training needs the number of its iterations",
                "give --tokens or --iterations");
  if (request.max_plans < 1) return fail(ErrorCode::invalid_input, "no plan is asked for", "ask for at least one");
  if ((limits.gpus && *limits.gpus < 1) || (limits.nodes && *limits.nodes < 1))
    return fail(ErrorCode::infeasible, "the limit leaves no device to plan for", "raise --max-gpus or --max-nodes");
  return {};
}

class Search {
 public:
  Search(const Request& request, const simulator::Environment& env,
         const std::function<void(const SearchProgress&)>& progress)
      : request_(request), env_(env), progress_(progress) {
    if (request.effort.time)
      end_ = std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                                    std::chrono::duration<double>(request.effort.time->value()));
  }

  Result<SearchResult> run() {
    auto space = make_search_space(request_, env_);
    if (!space) return fail(space.error());
    space_ = std::move(*space);
    result_.nodes = space_.nodes;
    StagePrices prices(request_, space_, env_);
    result_.not_linked = not_linked(prices);
    SolutionPool solutions(request_, space_, env_, request_.max_plans * kept_each + min_kept);
    const StopCheck stop = stop_check(solutions);
    const bool in_paper = request_.space == Space::paper;
    if ((request_.effort.time || request_.effort.brief) && !in_paper) search_coarsely(prices, solutions, stop);
    const double min_in_paper = in_paper ? search_paper(prices, solutions, stop, PaperEffort::thorough) : 0.0;
    if (!in_paper) {
      // Limits that the best plan of all keeps anyway change nothing.
      if (!limits_time(request_) || request_.pareto || !keeps_limits_anyway(solutions)) {
        search_full(prices, solutions, stop);
        if (solutions.best().empty() && solutions.fastest() && !stop()) search_at_limits(prices, solutions, stop);
      }
      if (!request_.effort.brief && !stop()) add_plans_of_the_papers_space(solutions);
    }
    // Proofs take replicas of all layers as alike, which those of experts are not.
    const bool proves = !in_paper && !request_.effort.brief && !space_.is_divided();
    // Going through all plans skips those that another is better than, which the framework may not be able to run.
    const bool complete = proves && !env_.framework.uniformity.any() && search_exhaustively(prices, solutions, stop);
    result_.left_out = space_.left_out;
    if (solutions.best().empty()) {
      if (!solutions.fastest()) try_any(prices, solutions);
      return fail(nothing_found(solutions));
    }
    double least = complete ? solutions.best_score() : min_in_paper;
    if (!complete && proves && space_.layers() <= SearchSpace::max_layers) {  // its memory grows with their square
      const Relaxed relaxed = relax(
          prices, solutions.best_score(), [&] { return is_late(); },
          [&](double proved) {
            if (!progress_) return;
            SearchProgress progress = progress_of(solutions);
            progress.gap = gap_of(solutions.best_score(), proved);
            progress_(progress);
          });
      least = relaxed.min_score;
      if (!stop() && !relaxed.hints.empty() && request_.effort.uses(Heuristic::hints))
        search_with(prices, solutions, relaxed.hints, stop);
    }
    result_.considered += solutions.considered();
    result_.did_not_fit += solutions.did_not_fit();
    result_.not_priced = solutions.errors();
    result_.why_not_priced = solutions.first_error();
    SAILOR_CHECK(rank(solutions));
    set_bound(least, solutions);
    return std::move(result_);
  }

 private:
  StopCheck stop_check(const SolutionPool& solutions) {
    return {.is_over = [&] { return should_stop(solutions); },
            .plans_left =
                [&] {
                  const std::uint64_t most = request_.effort.work.value_or(std::numeric_limits<std::uint64_t>::max());
                  return most - std::min(most, result_.considered + solutions.considered());
                }};
  }

  bool should_stop(const SolutionPool& solutions) {
    const std::uint64_t considered = result_.considered + solutions.considered();
    if (progress_) progress_(progress_of(solutions));
    if (result_.stop != Stop::done || out_of_time()) return true;
    if (solutions.best().empty() && considered < 1000) return false;  // finds something in any case
    if (request_.effort.work && considered >= *request_.effort.work) result_.stop = Stop::work_limit;
    return result_.stop != Stop::done;
  }

  [[nodiscard]] bool is_interrupted() const {
    return request_.effort.is_interrupted && request_.effort.is_interrupted();
  }
  [[nodiscard]] bool is_late() const { return is_interrupted() || (end_ && std::chrono::steady_clock::now() >= *end_); }

  bool out_of_time() {
    if (!is_late()) return false;
    result_.stop = is_interrupted() ? Stop::interrupted : Stop::time_limit;
    return true;
  }

  [[nodiscard]] SearchProgress progress_of(const SolutionPool& solutions) const {
    SearchProgress progress{.considered = result_.considered + solutions.considered(), .best = {}, .gap = {}};
    if (!solutions.best().empty()) progress.best = value_of(solutions.best_score());
    return progress;
  }
  /// Objective value of a score: greater is better, except for the cost.
  [[nodiscard]] double value_of(double score) const {
    return request_.objective == Objective::cost ? score : 1.0 / score;
  }

  /// Adds the plans of a search for another request. Returns its best printed score, infinite if there is none.
  double add_plans_of(Request other, SolutionPool& solutions) {
    other.pareto = false;
    StagePrices prices(other, space_, env_);
    SolutionPool found(other, space_, env_, other.max_plans * kept_each + min_kept);
    search_full(prices, found, stop_check(found));
    add(found, solutions);
    return found.printed().empty() ? infinity : found.printed().front().printed_score;
  }

  void add(const SolutionPool& found, SolutionPool& solutions) {
    result_.considered += found.considered();
    result_.did_not_fit += found.did_not_fit();
    for (const auto* plans : {&found.printed(), &found.best(), &found.front()})
      for (const Solution& plan : *plans) solutions.add(plan.mix, plan.shares);
  }

  /// Adds what is found in the paper's space, which is part of the full one, so that no request gets a worse plan in
  /// the full space. It is found as if only that space was searched, since the best plan by the event-driven time need
  /// not be the best by the closed form; but on few devices without trying all of its plans, which takes longer than
  /// the full search. On one pool of devices no plan was ever better (Heuristic::one_kind).
  void add_plans_of_the_papers_space(SolutionPool& solutions) {
    if (space_.pools.size() < 2 || space_.is_divided()) return;
    Request other = request_;
    other.space = Space::paper;
    const auto space = make_search_space(other, env_);
    // An error: the pins are not of the paper's space. Different cuts: several blocks are one layer of the search.
    const auto same = [](const DevicePool& a, const DevicePool& b) { return a.gpu == b.gpu && a.zone == b.zone; };
    if (!space || space->cuts != space_.cuts || !std::ranges::equal(space->pools, space_.pools, same)) return;
    StagePrices prices(other, *space, env_);
    SolutionPool found(other, *space, env_, other.max_plans * kept_each + min_kept);
    search_paper(prices, found, stop_check(found), PaperEffort::quick);
    add(found, solutions);
  }

  /// Whether the best plan by the objective keeps the limits on time and money. If so, it is in the solution pool.
  bool keeps_limits_anyway(SolutionPool& solutions) {
    Request free = request_;
    free.limits.cost.reset();
    free.limits.throughput.reset();
    free.limits.wall_time.reset();
    free.limits.node_hours.reset();
    const double best = add_plans_of(std::move(free), solutions);
    return best < infinity && !solutions.printed().empty() && solutions.printed().front().printed_score <= best;
  }

  /// If no plan within the limits was found: adds the fastest and the cheapest plans regardless of the limits that they
  /// break; the search goes on from them if they are within.
  void search_at_limits(StagePrices& prices, SolutionPool& solutions, const StopCheck& stop) {
    const Limits& limits = request_.limits;
    for (const Objective objective : {Objective::throughput, Objective::cost}) {
      Request free = request_;
      free.objective = objective;
      if (objective == Objective::throughput) {
        if (!limits.throughput && !limits.wall_time && !limits.node_hours) continue;
        free.limits.throughput.reset();
        free.limits.wall_time.reset();
        free.limits.node_hours.reset();
      } else {
        if (!limits.cost) continue;
        free.limits.cost.reset();
      }
      add_plans_of(std::move(free), solutions);
    }
    if (!solutions.best().empty()) search_full(prices, solutions, stop);
  }

  /// Prices plans of evenly divided layers, fitting or not, to be able to say by how much they do not fit.
  void try_any(StagePrices& prices, SolutionPool& solutions) const {
    for (std::size_t p = 0; p < space_.pools.size(); ++p) {
      const DevicePool& pool = space_.pools[p];
      for (const auto& [degree, sizes] : space_.micro_batches_of[pool.type]) {
        if (sizes.empty()) continue;
        const int most = std::min(pool.groups(degree), prices.layers());
        const Pins& pins = request_.pins;
        for (int stages = pins.pipeline_parallel.value_or(most);
             stages == pins.pipeline_parallel.value_or(most) && stages <= most; --stages) {
          if (prices.table(pool.type, degree, sizes.front(), space_.recompute.back()) == nullptr) break;
          PipelineTemplate column{.stages = {}, .micro_batch = sizes.front(), .devices = stages * degree};
          for (int i = 0; i < stages; ++i)
            column.stages.push_back({.pool = p,
                                     .tensor_parallel = degree,
                                     .recompute = space_.recompute.back(),
                                     .first = prices.layers() * i / stages,
                                     .last = prices.layers() * (i + 1) / stages});
          const int count = pins.data_parallel.value_or(1);
          const int all = request_.job.global_batch / column.micro_batch;
          if (all < count) break;
          std::vector<Share> shares{{0, count - all % count, all / count}};
          if (all % count > 0) shares.push_back({0, all % count, all / count + 1});
          solutions.add({.schedule = space_.schedules.front(),
                         .sharding = count > 1 ? space_.sharding.back() : OptimizerSharding::none,
                         .groups = {{.column = column, .count = count}}},
                        shares);
        }
      }
    }
  }

  Result<void> rank(const SolutionPool& solutions) {
    std::vector<Solution> found = request_.pareto ? solutions.front() : solutions.printed();
    // The optimum of the paper's space is that of the closed form: it has to be among what is shown.
    if (request_.space == Space::paper && !request_.pareto && request_.max_plans > 1) {
      const Solution& optimum = solutions.best().front();
      const std::string fingerprint = plan_fingerprint(optimum.plan);
      if (std::none_of(found.begin(), found.end(),
                       [&](const Solution& other) { return plan_fingerprint(other.plan) == fingerprint; })) {
        if (found.size() >= request_.max_plans) found.resize(request_.max_plans - 1);
        found.push_back(optimum);
      }
    }
    for (Solution& entry : found) {
      auto prediction = simulator::simulate(entry.plan, env_);
      if (!prediction) return fail(prediction.error());
      entry.plan.prediction = simulator::summary(*prediction);
      result_.plans.push_back({.plan = std::move(entry.plan),
                               .prediction = std::move(*prediction),
                               .memory_headroom = entry.memory_headroom});
    }
    const auto score = [&](const Candidate& candidate) {
      const Objective objective = request_.pareto ? Objective::throughput : request_.objective;
      return score_of(objective, candidate.prediction.iteration_time, candidate.prediction.cost_per_iteration);
    };
    // Compared to seven digits: what differs less is equal, and then the simpler plan wins.
    const auto key = [&](const Candidate& candidate) {
      return std::tuple(static_cast<float>(score(candidate)),
                        static_cast<float>(candidate.prediction.cost_per_iteration.value()), candidate.plan.ranks(),
                        candidate.plan.pipelines.size(), candidate.plan.pipelines.front().stages.size());
    };
    std::stable_sort(result_.plans.begin(), result_.plans.end(),
                     [&](const Candidate& a, const Candidate& b) { return key(a) < key(b); });
    if (request_.pareto) thin_out();
    if (!request_.pareto && result_.plans.size() > request_.max_plans) result_.plans.resize(request_.max_plans);
    return {};
  }

  /// Thins out a front that is longer than wanted to the plans that stand apart most; the fastest and the last stay (of
  /// one, the fastest).
  void thin_out() {
    std::vector<Candidate>& plans = result_.plans;
    const auto distance = [](const Candidate& a, const Candidate& b) {
      const auto ratio = [](double x, double y) { return x > 0.0 && y > 0.0 ? std::abs(std::log(x / y)) : 0.0; };
      return ratio(a.prediction.iteration_time.value(), b.prediction.iteration_time.value()) +
             ratio(a.prediction.cost_per_iteration.value(), b.prediction.cost_per_iteration.value());
    };
    if (request_.max_plans == 1 && !plans.empty()) plans.resize(1);
    while (plans.size() > std::max<std::size_t>(request_.max_plans, 2)) {
      std::size_t closest = 1;
      for (std::size_t i = 1; i + 1 < plans.size(); ++i)
        if (distance(plans[i - 1], plans[i + 1]) < distance(plans[closest - 1], plans[closest + 1])) closest = i;
      plans.erase(plans.begin() + static_cast<std::ptrdiff_t>(closest));
    }
  }

  void set_bound(double least, const SolutionPool& solutions) {
    const double found = solutions.best_score();
    least = std::min(least, found);
    result_.bound.found = value_of(found);
    result_.bound.bound = value_of(least);
    result_.bound.gap = gap_of(found, least);
  }

  /// Gap between two scores.
  [[nodiscard]] double gap_of(double found, double least) const {
    if (least >= found) return 0.0;
    return request_.objective == Objective::cost ? 1.0 - least / found : found / least - 1.0;
  }

  Error nothing_found(const SolutionPool& solutions) const {
    const Limits& limits = request_.limits;
    if (result_.stop == Stop::time_limit)
      return {ErrorCode::infeasible,
              fmt::format("no plan was found within --time-limit {} s, of {} looked at", request_.effort.time->value(),
                          plural(static_cast<std::size_t>(result_.considered + solutions.considered()), "plan")),
              "give more time, or pin parts of the plan"};
    if (result_.stop == Stop::interrupted)
      return {ErrorCode::infeasible, "no plan was found before the interruption", "let it search longer"};
    if (solutions.fastest()) {
      std::vector<std::string> reasons;
      const double fastest = solutions.fastest()->value();
      if (limits.throughput && fastest * *limits.throughput > 1.0)
        reasons.push_back(fmt::format("the fastest plan reaches {:.4g} iterations/s, {} the {:.4g} asked for",
                                      1.0 / fastest, shortfall(fastest * *limits.throughput), *limits.throughput));
      if (limits.wall_time && fastest * *request_.iterations > limits.wall_time->value())
        reasons.push_back(fmt::format("the fastest plan takes {} for {:.6g} iterations, {} the {} allowed",
                                      format_time(Seconds(fastest * *request_.iterations)), *request_.iterations,
                                      excess(fastest * *request_.iterations / limits.wall_time->value()),
                                      format_time(*limits.wall_time)));
      if (limits.cost && *solutions.cheapest() > *limits.cost)
        reasons.push_back(fmt::format(
            "the cheapest plan costs {} per iteration, {} the {} allowed", format_usd(*solutions.cheapest()),
            excess(solutions.cheapest()->value() / limits.cost->value()), format_usd(*limits.cost)));
      if (limits.node_hours) {
        const double least = *solutions.min_node_seconds() / 3600.0 * *request_.iterations;
        if (least > *limits.node_hours)
          reasons.push_back(fmt::format("the most frugal plan takes {:.4g} node-hours, {} the {:.4g} allowed", least,
                                        excess(least / *limits.node_hours), *limits.node_hours));
      }
      if (reasons.empty()) reasons.push_back("plans were found, but none keeps all limits and pins together");
      return {ErrorCode::infeasible, fmt::format("{}", fmt::join(reasons, "; ")),
              "relax that limit, or give more devices"};
    }
    if (solutions.nearest_misfit()) {
      const Plan& nearest = *solutions.nearest_misfit();
      const auto prediction = simulator::simulate(nearest, env_);
      const auto problem = prediction ? simulator::memory_problem(nearest, *prediction, env_) : std::nullopt;
      return {ErrorCode::infeasible,
              fmt::format("none of {} fits into memory; the nearest is {}: {}",
                          plural(static_cast<std::size_t>(result_.considered + solutions.considered()), "plan"),
                          describe(nearest),
                          problem ? *problem
                                  : fmt::format("it would leave {:.1f}% free but the margin is {:.1f}%",
                                                solutions.nearest_headroom() * 100.0, request_.memory_margin * 100.0)),
              "use more or larger devices, a smaller micro-batch, or more pipeline stages"};
    }
    if (!solutions.first_error().empty()) return {ErrorCode::not_found, solutions.first_error(), ""};
    return {ErrorCode::infeasible, "no pipeline fits into the memory of these devices",
            "use more or larger devices, or fewer pins"};
  }

  const Request& request_;
  const simulator::Environment& env_;
  const std::function<void(const SearchProgress&)>& progress_;
  std::optional<std::chrono::steady_clock::time_point> end_;
  SearchSpace space_;
  SearchResult result_;
};

constexpr int long_sequence = 8192;  // tokens from which context parallelism is tried
constexpr int max_context_parallel = 16;

struct Degrees {
  int context = 1;
  int expert = 1;
};

Request with_degrees(Request request, const Degrees& degrees) {
  request.pins.context_parallel = degrees.context;
  request.pins.expert_parallel = degrees.expert;
  return request;
}

/// 1, 2, 4, ... up to `most`, as far as they divide `number`.
std::vector<int> degrees_that_divide(int number, int most) {
  std::vector<int> degrees{1};
  while (degrees.back() * 2 <= most && number % (degrees.back() * 2) == 0) degrees.push_back(degrees.back() * 2);
  return degrees;
}

/// Tries degrees of context and expert parallelism one after the other.
class DegreeSearch {
 public:
  DegreeSearch(const Request& request, const simulator::Environment& env,
               const std::function<void(const SearchProgress&)>& progress)
      : request_(request), env_(env), progress_(progress) {
    int devices = 0;
    for (const NodeGroup& group : considered_nodes(request, *env.cluster, env.gpus).groups)
      devices += std::min(group.count * group.gpus_per_node, 1024);
    const bool may_try = request.space == Space::full && !env.measured_only;
    const Pins& pins = request.pins;
    const int sequence = request.job.sequence_length;
    if (may_try && env.framework.supports_context_parallel && !pins.context_parallel)
      all_contexts_ = degrees_that_divide(sequence / 2, std::min(devices, max_context_parallel));
    contexts_ = sequence >= long_sequence ? all_contexts_ : std::vector{1};
    if (pins.context_parallel) contexts_ = {*pins.context_parallel};
    const int experts = env.model.experts.count;
    if (may_try && env.framework.supports_expert_parallel && experts > 0)
      experts_ = degrees_that_divide(experts, std::min(devices, experts));
    if (pins.expert_parallel) experts_ = {*pins.expert_parallel};
  }

  Result<SearchResult> run() {
    auto result = search();
    if (result || result.error().code != ErrorCode::infeasible || contexts_.size() >= all_contexts_.size())
      return result;
    contexts_ = all_contexts_;  // nothing fits without context parallelism
    auto again = search();
    return again ? std::move(again) : std::move(result);
  }

 private:
  Result<SearchResult> search() {
    if (contexts_.size() * experts_.size() == 1) {
      auto only = Search(with_degrees(request_, {contexts_.front(), experts_.front()}), env_, progress_).run();
      if (only && env_.model.experts.count > 0 && !request_.pins.expert_parallel)
        only->degrees =
            fmt::format("Not tried: expert_parallel, which {}.",
                        env_.measured_only ? "nobody measured" : "framework " + env_.framework.name + " does not have");
      return only;
    }
    std::vector<Candidate> found;
    std::optional<Degrees> best;
    double best_score = infinity;
    std::optional<Error> failure;
    const double pairs = static_cast<double>(contexts_.size() * experts_.size());
    for (const int context : contexts_)
      for (const int expert : experts_) {
        Request brief = with_degrees(request_, {context, expert});
        brief.effort.brief = true;
        brief.pareto = false;
        brief.max_plans = 1;
        if (request_.effort.time) brief.effort.time = *request_.effort.time / (2.0 * pairs);
        auto one = Search(brief, env_, progress_).run();
        if (!one) {
          if (!failure) failure = one.error();
          continue;
        }
        const simulator::Prediction& prediction = one->plans.front().prediction;
        const double score = score_of(request_.objective, prediction.iteration_time, prediction.cost_per_iteration);
        if (score < best_score) {
          best_score = score;
          best = {context, expert};
        }
        found.push_back(std::move(one->plans.front()));
      }
    if (!best) return fail(*failure);
    Request full = with_degrees(request_, *best);
    if (request_.effort.time) full.effort.time = *request_.effort.time / 2.0;
    auto result = Search(full, env_, progress_).run();
    if (!result) return result;
    add(std::move(found), *best, *result);
    return result;
  }

  /// Adds the best plans of other degrees, and says what was tried.
  void add(std::vector<Candidate> found, const Degrees& best, SearchResult& result) const {
    result.bound.gap = infinity;
    result.bound.bound = request_.objective == Objective::cost ? 0.0 : infinity;
    result.degrees = fmt::format("Tried: context_parallel {} with expert_parallel {}; each briefly, {} and {} in full.",
                                 fmt::join(contexts_, ", "), fmt::join(experts_, ", "), best.context, best.expert);
    if (request_.pareto) return;
    for (Candidate& other : found)
      if (other.plan.context_parallel != best.context || other.plan.expert_parallel != best.expert)
        result.plans.push_back(std::move(other));
    const auto score = [&](const Candidate& candidate) {
      return score_of(request_.objective, candidate.prediction.iteration_time, candidate.prediction.cost_per_iteration);
    };
    std::stable_sort(result.plans.begin(), result.plans.end(),
                     [&](const Candidate& a, const Candidate& b) { return score(a) < score(b); });
    if (result.plans.size() > request_.max_plans) result.plans.resize(request_.max_plans);
  }

  const Request& request_;
  const simulator::Environment& env_;
  const std::function<void(const SearchProgress&)>& progress_;
  std::vector<int> all_contexts_{1};
  std::vector<int> contexts_{1};
  std::vector<int> experts_{1};
};

}  // namespace

Result<SearchResult> find_plans(const Request& request, const simulator::Environment& given,
                                const std::function<void(const SearchProgress&)>& progress) {
  SAILOR_CHECK(check_request(request, given));
  std::optional<LayerCosts> own_costs;  // one for all plans: they ask for the same layers again and again
  simulator::Environment environment = given;
  if (environment.costs == nullptr) environment.costs = &own_costs.emplace(simulator::layer_costs_for(given));
  const auto search = [&](const Request& searched) { return DegreeSearch(searched, environment, progress).run(); };
  auto found =
      needs_each_recompute(request, environment.framework) ? search_each_recompute(request, search) : search(request);
  if (found && found->not_priced > 0)
    found->left_out.push_back(
        fmt::format("{}: {}", plural(static_cast<std::size_t>(found->not_priced), "plan"), found->why_not_priced));
  return found;
}

double objective_value(Objective objective, const simulator::Prediction& prediction) {
  const double score = score_of(objective, prediction.iteration_time, prediction.cost_per_iteration);
  return objective == Objective::cost ? score : 1.0 / score;
}

}  // namespace sailor::planner
