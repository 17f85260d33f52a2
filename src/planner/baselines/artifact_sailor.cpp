// The planner of the Sailor artifact (sailor_planner/cpp_src/planner.cpp): it tries numbers of stages and micro-batch
// sizes in turn, tensor-parallel degrees by rule, data-parallel degrees until more or fewer do not help, and places
// each combination with the recursion of artifact_sailor_search.hpp.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/text.hpp"
#include "planner/baselines/artifact_sailor_search.hpp"
#include "planner/baselines/baseline.hpp"

namespace sailor::planner::baselines {

namespace artifact_sailor_detail {

namespace {

constexpr int most_regions = 7;              // all permutations of all subsets are tried: 13,699
constexpr double score_of_one_region = 1e4;  // among bandwidths in MB/s (planner_utils.cpp:631)
constexpr double bytes_per_mb_of_score = 1e6;

struct Route {
  std::vector<int> regions;
  double score = 0.0;
};

/// Sets of regions, each in the order that maximizes the narrowest link; sets with the best links first.
std::vector<Route> routes_of(const Tables& tables) {
  const Supply& supply = tables.supply();
  const int count = static_cast<int>(supply.regions.size());
  const auto bandwidth = [&](int from, int to) {
    return tables.widest_link(supply.regions[static_cast<std::size_t>(from)].front(),
                              supply.regions[static_cast<std::size_t>(to)].front()) /
           bytes_per_mb_of_score;
  };
  std::vector<Route> routes;
  for (int size = 1; size <= count; ++size) {
    // Sets in the lexicographic order of their members.
    std::vector<int> members(static_cast<std::size_t>(size));
    const auto choose = [&](const auto& self, std::size_t at, int from) -> void {
      if (at < members.size()) {
        for (int region = from; region < count; ++region) {
          members[at] = region;
          self(self, at + 1, region + 1);
        }
        return;
      }
      Route best{.regions = members, .score = size == 1 ? score_of_one_region : -1.0};
      std::vector<int> order = members;
      do {
        double narrowest = std::numeric_limits<double>::infinity();
        for (std::size_t i = 0; i + 1 < order.size(); ++i)
          narrowest = std::min(narrowest, bandwidth(order[i], order[i + 1]));
        if (size > 1 && narrowest > best.score) best = {.regions = order, .score = narrowest};
      } while (std::next_permutation(order.begin(), order.end()));
      routes.push_back(std::move(best));
    };
    choose(choose, 0, 0);
  }
  std::stable_sort(routes.begin(), routes.end(), [](const Route& a, const Route& b) { return a.score > b.score; });
  return routes;
}

/// Whether some GPU type has enough devices for a replica of every stage; an unusable type counts as having enough.
bool has_devices(const Route& route, const std::vector<std::vector<int>>& degrees, const Supply& supply) {
  for (int gpu = 0; gpu < supply.types(); ++gpu) {
    const auto& of_gpu = degrees[static_cast<std::size_t>(gpu)];
    int devices = 0;
    for (const int region : route.regions)
      for (const int zone : supply.regions[static_cast<std::size_t>(region)])
        devices += supply.free[zone * supply.types() + gpu];
    if (devices >= std::accumulate(of_gpu.begin(), of_gpu.end(), 0)) return true;
  }
  return false;
}

struct Found {
  int micro_batch = 1;
  std::vector<LayerRange> stages;
  std::vector<std::vector<Run>> runs;  ///< by stage
  double time = 0.0;
  double cost = 0.0;
};

Found taken(const Solution& solution, const Shape& shape, double cost) {
  Found found{.micro_batch = shape.micro_batch, .stages = shape.stages, .time = solution.times.iteration, .cost = cost};
  for (const Solution* stage = &solution; stage != nullptr; stage = stage->rest) found.runs.push_back(stage->runs);
  return found;
}

/// State of the loop over data-parallel degrees, to end it when they no longer help.
class Progress {
 public:
  Progress(const Problem& problem, bool keep) : problem_(problem) {
    constexpr double no_plan = std::numeric_limits<double>::infinity();
    // Kept: plans that are slower or more expensive than this are not seen (planner.cpp:1150).
    time_ = keep ? 1e6 : no_plan;
    cost_ = keep ? 1000.0 : no_plan;
    if (keep || problem.objective == Objective::throughput)
      is_limited_ = problem.objective == Objective::throughput ? problem.max_cost.has_value()
                                                               : problem.min_throughput.has_value();
    else
      is_limited_ = problem.max_cost || problem.min_throughput;
  }

  /// Whether to try another degree after a plan with this time and cost. `keeps_limit`: the plan keeps the limits.
  bool goes_on(double time, double cost, bool keeps_limit) {
    double& known = problem_.objective == Objective::throughput ? time_ : cost_;
    const double value = problem_.objective == Objective::throughput ? time : cost;
    if (value < known) {
      if (!is_limited_ || keeps_limit) {
        known = value;
        has_kept_ = has_kept_ || is_limited_;
      }
      return true;
    }
    return is_limited_ && !has_kept_;
  }

 private:
  const Problem& problem_;
  double time_ = 0.0;
  double cost_ = 0.0;
  bool is_limited_ = false;
  bool has_kept_ = false;
};

class ArtifactSailor final : public Baseline {
 public:
  [[nodiscard]] std::string_view name() const override { return "artifact-sailor"; }
  [[nodiscard]] std::string_view title() const override { return "Sailor (artifact)"; }
  [[nodiscard]] std::string_view citation() const override { return "Strati et al., SOSP 2025"; }
  [[nodiscard]] std::string_view summary() const override {
    return "the authors' own: GPU types, zones and degrees of every stage's replicas; stages of equal numbers of "
           "layers, "
           "one tensor-parallel degree for each stage and GPU type";
  }
  [[nodiscard]] Result<Proposals> plan(const Problem& problem) const override;
  [[nodiscard]] Result<Estimate> estimate(const PlanList& plan, const Problem& problem) const override;
};

/// All plans that the search meets, in its order.
std::vector<Found> search_all(const Problem& problem, const Tables& tables, bool& out_of_time) {
  const bool keep = tables.keeps_faults();
  const bool is_throughput = problem.objective == Objective::throughput;
  const double longest = problem.min_throughput && *problem.min_throughput > 0.0
                             ? 1.0 / *problem.min_throughput
                             : std::numeric_limits<double>::infinity();
  const std::vector<Route> routes = routes_of(tables);
  Search search(problem, tables);
  std::vector<Found> all;
  for (int stages = 1; stages <= tables.layers(); ++stages) {
    const std::vector<LayerRange> layers = partition_sailor(tables.layers(), stages);
    for (const int micro_batch : tables.micro_batches()) {
      const auto degrees = tables.tensor_parallel(layers, micro_batch);
      std::vector<int> replicas = tables.data_parallel_degrees(micro_batch);
      if (is_throughput) std::reverse(replicas.begin(), replicas.end());
      for (const Route& route : routes) {
        if (keep && !has_devices(route, degrees, tables.supply())) continue;
        Progress progress(problem, keep);
        for (const int number : replicas) {
          const Shape shape{.micro_batch = micro_batch,
                            .replicas = number,
                            .stages = layers,
                            .degrees = degrees,
                            .regions = route.regions};
          const Solution& solution = search.solve(shape);
          if (search.is_over() || problem.is_over()) {
            out_of_time = true;
            return all;
          }
          if (!solution.is_feasible) continue;
          const double cost = keep ? static_cast<float>(solution.cost()) : solution.cost();
          const double time = solution.times.iteration;
          const bool is_cheap = !problem.max_cost || (keep ? cost < static_cast<float>(problem.max_cost->value())
                                                           : cost <= problem.max_cost->value());
          const bool is_fast = time <= longest;
          if (!progress.goes_on(time, cost, keep ? (is_throughput ? is_cheap : is_fast) : is_cheap && is_fast)) break;
          // Kept: each objective has one limit, and it is strict in the end (planner.cpp:1286).
          if (keep ? (is_throughput ? is_cheap : time < longest) : is_cheap && is_fast)
            all.push_back(taken(solution, shape, cost));
        }
      }
    }
  }
  return all;
}

PlanList list_of(const Found& found, const Supply& supply) {
  PlanList list;
  list.micro_batch = found.micro_batch;
  ListPipeline pipeline;
  for (std::size_t stage = 0; stage < found.stages.size(); ++stage) {
    ListStage& entry = pipeline.stages.emplace_back();
    entry.layers = found.stages[stage];
    for (const Run& run : found.runs[stage])
      entry.replicas.insert(entry.replicas.end(), static_cast<std::size_t>(run.count),
                            Replica{.machines = {{.gpu = supply.gpus[static_cast<std::size_t>(run.gpu)],
                                                  .gpus_per_node = run.degree,
                                                  .zone = supply.zones[static_cast<std::size_t>(run.zone)]}},
                                    .tensor_parallel = run.degree});
  }
  list.pipelines.push_back(std::move(pipeline));
  return list;
}

Result<Proposals> ArtifactSailor::plan(const Problem& problem) const {
  if (problem.objective == Objective::throughput_per_usd)
    return fail(ErrorCode::invalid_input, "artifact-sailor has no objective throughput_per_usd",
                "use throughput or cost");
  if (problem.job.global_batch <= 0)
    return fail(ErrorCode::invalid_input, fmt::format("a batch of {} cannot be planned", problem.job.global_batch));
  if (problem.max_cost && problem.max_cost->value() <= 0.0)
    return fail(ErrorCode::invalid_input, fmt::format("a limit of {} USD allows no plan", problem.max_cost->value()),
                "leave the limit out or set it above 0");
  const auto supply = read_supply(problem);
  if (!supply) return fail(supply.error());
  if (static_cast<int>(supply->regions.size()) > most_regions)
    return fail(ErrorCode::invalid_input,
                fmt::format("artifact-sailor looks at every order of regions: {} are too many", supply->regions.size()),
                fmt::format("offer zones of at most {} regions", most_regions));
  const Tables tables(problem, *supply);
  Proposals proposals;
  std::vector<Found> all = search_all(problem, tables, proposals.out_of_time);
  if (all.empty())
    return fail(ErrorCode::infeasible,
                fmt::format("artifact-sailor finds no plan for {} {}", problem.job.model,
                            proposals.out_of_time ? "in the time that it has" : "on what is offered"),
                "offer more devices, or allow more cost or less throughput");
  std::stable_sort(all.begin(), all.end(), [&](const Found& a, const Found& b) {
    return problem.objective == Objective::throughput ? a.time < b.time : a.cost < b.cost;
  });
  for (const Found& found : all)
    proposals.plans.push_back(
        {.plan = list_of(found, *supply), .throughput = 1.0 / found.time, .cost = Usd(found.cost)});
  if (!supply->left_out.empty()) proposals.notes.push_back(fmt::format("not used: {}", join(supply->left_out, ", ")));
  return proposals;
}

Result<Estimate> ArtifactSailor::estimate(const PlanList& plan, const Problem& problem) const {
  // The artifact's validation uses the common evaluator for Sailor, not the search's own sums.
  const auto score = evaluate(plan, problem.inputs, problem.job, problem.faults);
  if (!score) return fail(score.error());
  return Estimate{.iteration_time = score->iteration_time, .peak_memory = score->validation_memory};
}

}  // namespace

}  // namespace artifact_sailor_detail

const Baseline& artifact_sailor() {
  static const artifact_sailor_detail::ArtifactSailor planner;
  return planner;
}

}  // namespace sailor::planner::baselines
