#include "planner/planner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <tuple>

#include "core/terminal.hpp"
#include "core/text.hpp"
#include "planner/bound/bound.hpp"
#include "planner/each_degree.hpp"
#include "planner/each_recompute.hpp"
#include "planner/exhaustive.hpp"
#include "planner/full_search.hpp"
#include "planner/limits.hpp"
#include "planner/linked.hpp"
#include "planner/paper/search.hpp"
#include "planner/parts.hpp"
#include "planner/search_space.hpp"
#include "planner/side_by_side.hpp"
#include "planner/solution_pool.hpp"
#include "planner/stage_prices.hpp"

namespace sailor::planner {

namespace {

// The number of best plans by the closed form that the search goes on from: for each plan that is wanted, and some
// more.
constexpr std::size_t kept_each = 2;
constexpr std::size_t min_kept = 10;
// Parts of the cluster (some of its zones with some of its GPU types) that are searched on their own: how many devices
// the cluster may have, how much a thorough search may gain over a quick one, and after how many priced plans of
// either kind no further search begins.
constexpr int max_devices_of_parts = 64;
constexpr double most_gained = 1.3;
constexpr std::uint64_t work_on_parts = 50'000;

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

bool is_same(const DevicePool& a, const DevicePool& b) { return a.gpu == b.gpu && a.zone == b.zone; }

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
    SAILOR_CHECK(make_space());
    result_.nodes = space_.nodes;
    Prices prices = prices_for(request_);
    result_.not_linked = not_linked(*prices.front());
    SolutionPool solutions(request_, space_, env_, most_kept());
    const StopCheck stop = stop_check(solutions);
    find(prices, solutions, stop);
    if (!complete_ && looks_at_parts() && !stop()) add_plans_of_parts(solutions);
    result_.left_out = space_.left_out;
    if (solutions.best().empty()) {
      if (!solutions.fastest()) try_any(*prices.front(), solutions);
      return fail(nothing_found(solutions));
    }
    double least = complete_ ? solutions.best_score() : min_in_paper_;
    if (!complete_ && proves() && request_.effort.proof != Proof::none &&
        space_.layers() <= SearchSpace::max_layers)  // its memory grows with their square
      least = bound_of_all(prices, solutions, stop);
    result_.considered += solutions.considered();
    result_.did_not_fit += solutions.did_not_fit();
    result_.not_priced = solutions.errors();
    result_.why_not_priced = solutions.first_error();
    SAILOR_CHECK(rank(solutions));
    set_bound(least, solutions);
    return std::move(result_);
  }

 private:
  using Prices = std::vector<std::unique_ptr<StagePrices>>;  // by part of the space

  Prices prices_for(const Request& request) const {
    Prices prices;
    for (const SearchSpace& part : spaces_) prices.push_back(std::make_unique<StagePrices>(request, part, env_));
    return prices;
  }

  Result<void> make_space() {
    auto space = make_search_space(request_, env_);
    if (!space) return fail(space.error());
    space_ = std::move(*space);
    spaces_ = split_by_exchange(space_);
    return {};
  }
  [[nodiscard]] std::size_t most_kept() const { return request_.max_plans * kept_each + min_kept; }
  [[nodiscard]] bool in_paper() const { return request_.space == Space::paper; }
  /// Proofs take replicas of all layers as alike, which those of experts are not, and reductions over all of them.
  [[nodiscard]] bool proves() const { return !in_paper() && !request_.effort.brief && !space_.is_grouped(); }

  /// Searches; what the proof of the bound hints at comes later.
  void find(Prices& prices, SolutionPool& solutions, const StopCheck& stop) {
    if (in_paper()) {
      min_in_paper_ = search_paper(*prices.front(), solutions, stop, PaperEffort::thorough);
      return;
    }
    if (request_.effort.time || request_.effort.brief)
      for (const auto& part : prices) search_coarsely(*part, solutions, stop);
    // Limits that the best plan of all keeps anyway change nothing.
    if (!limits_time(request_) || request_.pareto || !keeps_limits_anyway(solutions)) {
      search_all(prices, solutions);
      if (solutions.best().empty() && solutions.fastest() && !stop()) search_at_limits(prices, solutions);
    }
    if (!request_.effort.brief && !stop()) add_plans_of_the_papers_space(solutions);
    // Going through all plans skips those that another is better than, which the framework may not be able to run.
    complete_ = proves() && !env_.framework.uniformity.any() &&
                std::all_of(prices.begin(), prices.end(),
                            [&](const auto& part) { return search_exhaustively(*part, solutions, stop); });
  }

  /// Whether to look at parts of the cluster on their own, so that no cluster has a worse plan than a part of it.
  [[nodiscard]] bool looks_at_parts() const {
    const Effort& effort = request_.effort;
    return !in_paper() && space_.pools.size() > 1 && space_.devices() <= max_devices_of_parts && !space_.is_grouped() &&
           !effort.brief && !effort.time && !effort.work && !request_.pareto && effort.uses(Heuristic::parts);
  }

  /// Adds what is found for parts of the cluster as if there were nothing else: quickly for all of them, then, the most
  /// promising first, as thoroughly as if the part was the whole cluster.
  void add_plans_of_parts(SolutionPool& solutions) {
    std::vector<PoolPlace> places;
    for (const DevicePool& pool : space_.pools) {
      const auto same = [&](const DevicePool& other) { return other.zone == pool.zone; };
      const auto zone = std::find_if(space_.pools.begin(), space_.pools.end(), same) - space_.pools.begin();
      places.push_back({.zone = static_cast<std::size_t>(zone), .gpu = pool.type});
    }
    std::vector<std::pair<double, Request>> parts;  // with the score of the quick search
    const std::uint64_t quick_end = result_.considered + work_on_parts;
    for (const Part& part : parts_of(places)) {
      if (part.size() == space_.pools.size()) continue;
      if (result_.considered >= quick_end) break;
      Request request = request_of(part);
      request.effort.brief = true;
      const double score = add_plans_of_part(request, solutions);
      request.effort.brief = false;
      parts.emplace_back(score, std::move(request));
    }
    std::stable_sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    const std::uint64_t end = result_.considered + work_on_parts;
    for (const auto& [score, request] : parts) {
      const double best = solutions.printed().empty() ? infinity : solutions.printed().front().printed_score;
      if (score <= most_gained * best && result_.considered < end) add_plans_of_part(request, solutions);
    }
  }

  [[nodiscard]] Request request_of(const Part& part) const {
    Request request = request_;
    request.pins.zones.clear();
    request.pins.gpus.clear();
    for (const std::size_t p : part) {
      request.pins.zones.push_back(space_.pools[p].zone);
      request.pins.gpus.push_back(space_.pools[p].gpu);
    }
    return request;
  }

  /// Returns the best printed score, infinite if there is none.
  double add_plans_of_part(const Request& request, SolutionPool& solutions) {
    static const std::function<void(const SearchProgress&)> silent;
    Search part(request, env_, silent);
    if (!part.make_space()) return infinity;
    Prices prices = part.prices_for(request);
    SolutionPool found(request, part.space_, env_, part.most_kept());
    part.find(prices, found, part.stop_check(found));
    result_.considered += part.result_.considered;
    result_.did_not_fit += part.result_.did_not_fit;
    std::vector<std::size_t> pools;
    for (const DevicePool& pool : part.space_.pools) {
      const auto same = [&](const DevicePool& other) { return is_same(pool, other); };
      pools.push_back(static_cast<std::size_t>(std::find_if(space_.pools.begin(), space_.pools.end(), same) -
                                               space_.pools.begin()));
    }
    return add(found, Step::part_of_cluster, solutions, pools);
  }

  /// Every part gets an equal share of the time that is left.
  void search_all(Prices& prices, SolutionPool& solutions) {
    const auto end = end_;
    bool is_over = false;
    for (std::size_t i = 0; i < prices.size(); ++i) {
      const auto now = std::chrono::steady_clock::now();
      if (end && *end > now) end_ = now + (*end - now) / static_cast<std::int64_t>(prices.size() - i);
      search_full(*prices[i], solutions, stop_check(solutions));
      end_ = end;
      if (result_.stop != Stop::time_limit || is_late()) continue;
      is_over = true;
      result_.stop = Stop::done;
    }
    if (is_over && result_.stop == Stop::done) result_.stop = Stop::time_limit;
  }

  /// The min score of any plan, and hints from the proof are followed.
  double bound_of_all(Prices& prices, SolutionPool& solutions, const StopCheck& stop) {
    double least = infinity;
    for (const auto& part : prices) {
      const Relaxed relaxed = relax(
          *part, solutions.best_score(), [&] { return is_late(); },
          [&](double proved) {
            if (!progress_) return;
            SearchProgress progress = progress_of(solutions);
            progress.gap = gap_of(solutions.best_score(), std::min(least, proved));
            progress_(progress);
          });
      least = std::min(least, relaxed.min_score);
      if (!stop() && !relaxed.hints.empty() && request_.effort.uses(Heuristic::hints))
        search_with(*part, solutions, relaxed.hints, stop);
    }
    return least;
  }

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
    Prices prices = prices_for(other);
    SolutionPool found(other, space_, env_, most_kept());
    search_all(prices, found);
    return add(found, Step::other_limits, solutions);
  }

  /// Adds the plans of another solution pool, the findings of `step`, whose device pools have other indices if `pools`
  /// says so. Returns its best printed score, infinite if there is none.
  double add(const SolutionPool& found, Step step, SolutionPool& solutions,
             const std::vector<std::size_t>& pools = {}) {
    result_.considered += found.considered();
    result_.did_not_fit += found.did_not_fit();
    for (const auto* plans : {&found.printed(), &found.best(), &found.front()})
      for (const Solution& plan : *plans) {
        TemplateMix mix = plan.mix;
        if (!pools.empty())
          for (Group& group : mix.groups)
            for (TemplateStage& stage : group.column.stages) stage.pool = pools[stage.pool];
        Steps steps = plan.found_by;
        if (steps.empty() || steps.front() != step) steps.insert(steps.begin(), step);
        solutions.begin(std::move(steps));
        solutions.add(mix, plan.shares);
      }
    return found.printed().empty() ? infinity : found.printed().front().printed_score;
  }

  /// Adds what is found in the paper's space, which is part of the full one, so that no request gets a worse plan in
  /// the full space. It is found as if only that space was searched, since the best plan by the event-driven time need
  /// not be the best by the closed form; but on few devices without trying all of its plans, which takes longer than
  /// the full search. On one pool of devices no plan was ever better (Heuristic::one_kind).
  void add_plans_of_the_papers_space(SolutionPool& solutions) {
    if (space_.pools.size() < 2 || space_.is_grouped()) return;
    Request other = request_;
    other.space = Space::paper;
    const auto space = make_search_space(other, env_);
    // An error: the pins are not of the paper's space. Different cuts: several blocks are one layer of the search.
    if (!space || space->cuts != space_.cuts || !std::ranges::equal(space->pools, space_.pools, is_same)) return;
    StagePrices prices(other, *space, env_);
    SolutionPool found(other, *space, env_, most_kept());
    search_paper(prices, found, stop_check(found), PaperEffort::quick);
    add(found, Step::paper_space, solutions);
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
  void search_at_limits(Prices& prices, SolutionPool& solutions) {
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
    if (!solutions.best().empty()) search_all(prices, solutions);
  }

  /// Prices plans of evenly divided layers, fitting or not, to be able to say by how much they do not fit.
  void try_any(StagePrices& prices, SolutionPool& solutions) const {
    for (std::size_t p = 0; p < space_.pools.size(); ++p) {
      const DevicePool& pool = space_.pools[p];
      for (const auto& [degree, sizes] : space_.micro_batches_of[pool.type]) {
        const int groups = pool.groups(degree);
        if (sizes.empty() || groups == 0) continue;
        const int max_stages = std::min(groups, prices.layers());
        const Pins& pins = request_.pins;
        for (int stages = pins.pipeline_parallel.value_or(max_stages);
             stages == pins.pipeline_parallel.value_or(max_stages) && stages <= max_stages; --stages) {
          if (prices.table(pool.type, degree, sizes.front(), space_.choices.back()) == nullptr) break;
          PipelineTemplate column{.stages = {}, .micro_batch = sizes.front(), .devices = stages * degree};
          for (int i = 0; i < stages; ++i)
            column.stages.push_back({.pool = p,
                                     .tensor_parallel = degree,
                                     .choice = space_.choices.back(),
                                     .first = prices.layers() * i / stages,
                                     .last = prices.layers() * (i + 1) / stages});
          const int all = request_.job.global_batch / column.micro_batch;
          // Under ZeRO-2 and ZeRO-3 more replicas need less memory.
          const int allowed = std::min(groups, space_.max_gpus.value_or(space_.devices()) / degree);
          const int most = shards_gradients(space_.sharding.back()) ? std::min(all, allowed / stages) : 1;
          const int count = pins.data_parallel.value_or(std::max(most, 1));
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
                               .memory_headroom = entry.memory_headroom,
                               .found_by = std::move(entry.found_by)});
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
    if (result_.stop == Stop::time_limit)
      return {ErrorCode::infeasible,
              fmt::format("no plan was found within --time-limit {} s, of {} looked at", request_.effort.time->value(),
                          plural(static_cast<std::size_t>(result_.considered + solutions.considered()), "plan")),
              "give more time, or pin parts of the plan"};
    if (result_.stop == Stop::interrupted)
      return {ErrorCode::infeasible, "no plan was found before the interruption", "let it search longer"};
    if (solutions.fastest()) {
      std::vector<std::string> reasons = missed_limits(request_, {.fastest = *solutions.fastest(),
                                                                  .cheapest = *solutions.cheapest(),
                                                                  .min_node_seconds = solutions.min_node_seconds()});
      const auto fewest = solutions.fewest_gpus();
      if (const auto allowed = request_.limits.gpus; allowed && fewest && *fewest > *allowed)
        reasons.push_back(fmt::format("none of the plans that fit into memory takes as few as {} (--max-gpus)",
                                      plural(static_cast<std::size_t>(*allowed), "device")));
      if (reasons.empty()) reasons.push_back("plans were found, but none keeps all limits and pins together");
      return {ErrorCode::infeasible, join(reasons, "; "), "relax that limit, or give more devices"};
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
              "give more or larger devices, or fewer pins"};
    }
    if (!solutions.first_error().empty()) return {ErrorCode::not_found, solutions.first_error(), ""};
    if (const int experts = space_.expert_parallel; experts > 1)
      return {
          ErrorCode::infeasible,
          fmt::format("no plan with expert_parallel {0} fits these devices: it takes {0} ranks with the same "
                      "layers (copies of a pipeline, or parts of its sequences), each with a micro-batch of its own",
                      experts),
          "pin a smaller expert_parallel or fewer other degrees, or give more devices"};
    return {ErrorCode::infeasible, "no pipeline fits into the memory of these devices",
            "use more or larger devices, or fewer pins"};
  }

  const Request& request_;
  const simulator::Environment& env_;
  const std::function<void(const SearchProgress&)>& progress_;
  std::optional<std::chrono::steady_clock::time_point> end_;
  SearchSpace space_;
  std::vector<SearchSpace> spaces_;  // space_, by what shardings exchange
  SearchResult result_;
  bool complete_ = false;      // no plan is better than the best by the closed form
  double min_in_paper_ = 0.0;  // of the paper's space, if that is searched: no plan has a smaller score
};

}  // namespace

Result<SearchResult> find_plans(const Request& request, const simulator::Environment& given,
                                const std::function<void(const SearchProgress&)>& progress) {
  SAILOR_CHECK(check_request(request, given));
  std::optional<LayerCosts> own_costs;  // one for all plans: they ask for the same layers again and again
  simulator::Environment environment = given;
  if (environment.costs == nullptr) environment.costs = &own_costs.emplace(simulator::layer_costs_for(given));
  const auto find = [&](const Request& wanted, const std::function<void(const SearchProgress&)>& shown) {
    JoinedProgress joined(wanted.objective, shown);
    const auto search = [&](const Request& searched) {
      return search_each_degree(searched, environment, [&](const Request& one) {
        const auto progress_of_one = joined.of_search();
        return Search(one, environment, progress_of_one).run();
      });
    };
    return needs_each_recompute(wanted, environment.framework) ? search_each_recompute(wanted, search) : search(wanted);
  };
  auto found = find(request, progress);
  // Without progress, which would show plans that do not keep the limits.
  if (!found && found.error().code == ErrorCode::infeasible)
    found = search_beside_limits(request, found.error(), [&](const Request& free) { return find(free, {}); });
  if (!found) return fail(with_nodes_it_takes(request, given, found.error()));
  if (found->not_priced > 0)
    found->left_out.push_back(
        fmt::format("{}: {}", plural(static_cast<std::size_t>(found->not_priced), "plan"), found->why_not_priced));
  return found;
}

double objective_value(Objective objective, const simulator::Prediction& prediction) {
  const double score = score_of(objective, prediction.iteration_time, prediction.cost_per_iteration);
  return objective == Objective::cost ? score : 1.0 / score;
}

}  // namespace sailor::planner
