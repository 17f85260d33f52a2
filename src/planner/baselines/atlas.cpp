// Atlas (arXiv 2411.14458) as the authors of Sailor adapt it (baselines/Atlas/atlas_planner.py): pipelines across
// regions, replicas of a stage inside one; devices of one type, every node a tensor-parallel group. Each plan is scored
// by the authors' evaluator at once.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "core/text.hpp"
#include "planner/baselines/baseline.hpp"

namespace sailor::planner::baselines {

namespace atlas_detail {

constexpr double bytes_per_float = 4.0;
constexpr double bytes_per_parameter = 24.0;
constexpr double base_bytes = 5.06e9;  // of a process, as in figure 5a; other planners assume 2e9 or 3e9

/// A zone with the tensor-parallel groups that it can hold.
struct Zone {
  std::string name;
  int groups = 0;
};

struct Region {
  std::string name;
  std::vector<Zone> zones;  ///< in the order of the offers
  int gpus = 0;
  /// Kept: groups of all its devices together, although the zones may have fewer whole groups.
  int groups = 0;
};

class Atlas final : public Baseline {
 public:
  [[nodiscard]] std::string_view name() const override { return "atlas"; }
  [[nodiscard]] std::string_view title() const override { return "Atlas"; }
  [[nodiscard]] std::string_view citation() const override { return "arXiv 2411.14458"; }
  [[nodiscard]] std::string_view summary() const override {
    return "stages over regions, largest first, replicas inside one; one GPU type, whole nodes as tensor-parallel "
           "groups";
  }
  [[nodiscard]] Result<Proposals> plan(const Problem& problem) const override;
  [[nodiscard]] Result<Estimate> estimate(const PlanList& plan, const Problem& problem) const override {
    const auto score = evaluate(plan, problem.inputs, problem.job, problem.faults);
    if (!score) return fail(score.error());
    return Estimate{.iteration_time = score->iteration_time, .peak_memory = score->validation_memory};
  }
};

/// Regions with devices of this type, those with most devices first.
std::vector<Region> regions_of(const Problem& problem, const std::string& gpu, int degree) {
  std::vector<Region> regions;
  for (const Offer& offer : problem.offers) {
    if (offer.gpus <= 0 || offer.gpu != gpu) continue;
    const std::string_view name = region_of(offer.zone);
    auto region = std::find_if(regions.begin(), regions.end(), [&](const Region& known) { return known.name == name; });
    if (region == regions.end()) region = regions.insert(regions.end(), Region{.name = std::string(name), .zones = {}});
    region->zones.push_back({.name = offer.zone, .groups = offer.gpus / degree});
    region->gpus += offer.gpus;
  }
  for (Region& region : regions) {
    if (problem.faults == Faults::kept)
      region.groups = region.gpus / degree;
    else
      for (const Zone& zone : region.zones) region.groups += zone.groups;
  }
  std::stable_sort(regions.begin(), regions.end(), [](const Region& a, const Region& b) { return a.gpus > b.gpus; });
  return regions;
}

bool fits(const std::vector<LayerRange>& stages, int micro_batch, const LayerSizes& sizes, double memory) {
  const auto count = static_cast<double>(stages.size());
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const auto [first, last] = std::pair(stages[i].first, stages[i].last);
    const double needed =
        bytes_per_parameter * sizes.parameters_of(first, last) +
        bytes_per_float * micro_batch * sizes.activation_of(first, last) * (count - static_cast<double>(i)) +
        base_bytes;
    if (needed > memory) return false;
  }
  return true;
}

/// std::nullopt if the regions have too few devices, or (kept: an index out of range in the original) if zones have too
/// few whole groups.
std::optional<PlanList> laid_out(const std::vector<LayerRange>& stages, int replicas, int micro_batch,
                                 const std::string& gpu, int degree, std::vector<Region> regions) {
  ListPipeline pipeline;
  for (Region& region : regions) {
    std::size_t zone = 0;
    for (int room = region.groups / replicas; room > 0 && pipeline.stages.size() < stages.size(); --room) {
      ListStage& stage = pipeline.stages.emplace_back();
      stage.layers = stages[pipeline.stages.size() - 1];
      for (int replica = 0; replica < replicas; ++replica) {
        while (zone < region.zones.size() && region.zones[zone].groups == 0) ++zone;
        if (zone == region.zones.size()) return std::nullopt;
        --region.zones[zone].groups;
        stage.replicas.push_back({.machines = {{.gpu = gpu, .gpus_per_node = degree, .zone = region.zones[zone].name}},
                                  .tensor_parallel = degree});
      }
    }
  }
  if (pipeline.stages.size() < stages.size()) return std::nullopt;
  PlanList list;
  list.pipelines.push_back(std::move(pipeline));
  list.micro_batch = micro_batch;
  return list;
}

Result<Proposals> Atlas::plan(const Problem& problem) const {
  const Inputs& inputs = problem.inputs;
  const auto offer =
      std::find_if(problem.offers.begin(), problem.offers.end(), [](const Offer& entry) { return entry.gpus > 0; });
  if (offer == problem.offers.end()) return fail(ErrorCode::infeasible, "atlas is offered no devices");
  if (problem.objective == Objective::throughput_per_usd)
    return fail(ErrorCode::invalid_input, "atlas has no objective throughput_per_usd", "use throughput or cost");
  const std::string& gpu = offer->gpu;
  const int degree = offer->gpus_per_node;
  const LayerSizes* sizes = inputs.sizes(degree);
  std::vector<int> micro_batches;
  for (const int size : inputs.micro_batches(gpu))
    if (const auto known = inputs.degrees(gpu, size); std::find(known.begin(), known.end(), degree) != known.end())
      micro_batches.push_back(size);
  // The original tries only these.
  if (problem.faults == Faults::kept) std::erase_if(micro_batches, [](int size) { return size > 8; });
  if (sizes == nullptr || micro_batches.empty())
    return fail(
        ErrorCode::not_found,
        fmt::format("atlas makes every node one tensor-parallel group, and the profile has no times or sizes of "
                    "{} with tensor parallel {}",
                    gpu, degree),
        fmt::format("measure them with sailor-profile layers --tensor-parallel {}", degree));
  const std::vector<Region> regions = regions_of(problem, gpu, degree);
  int groups = 0;
  for (const Region& region : regions) groups += region.groups;

  Proposals proposals;
  for (int count = 1; count < inputs.layers() && !proposals.out_of_time; ++count) {
    const std::vector<LayerRange> stages = partition_sailor(inputs.layers(), count);
    for (const int micro_batch : micro_batches) {
      if (!fits(stages, micro_batch, *sizes, inputs.memory(gpu))) break;
      const int most = std::min(problem.job.global_batch / micro_batch - 1, groups / count);
      for (int replicas = 1; replicas <= most && !proposals.out_of_time; ++replicas) {
        proposals.out_of_time = problem.is_over();
        auto list = laid_out(stages, replicas, micro_batch, gpu, degree, regions);
        if (!list) continue;
        const auto score = evaluate(*list, inputs, problem.job, problem.faults);
        if (!score) return fail(score.error(), "atlas");
        // Kept: cost of traffic only, by which the original also sorts for the cost objective.
        const Usd cost = problem.faults == Faults::kept ? score->egress_cost : score->cost;
        proposals.plans.push_back(
            {.plan = std::move(*list), .throughput = 1.0 / score->iteration_time.value(), .cost = cost});
      }
    }
  }
  if (proposals.plans.empty())
    return fail(ErrorCode::infeasible, fmt::format("atlas finds no plan for {} on {}", problem.job.model, gpu),
                "offer more devices of this type");
  std::stable_sort(proposals.plans.begin(), proposals.plans.end(), [&](const Proposal& a, const Proposal& b) {
    return problem.objective == Objective::cost ? *a.cost < *b.cost : *a.throughput > *b.throughput;
  });
  std::set<std::string> others;
  for (const Offer& entry : problem.offers)
    if (entry.gpus > 0 && entry.gpu != gpu) others.insert(entry.gpu);
  if (!others.empty())
    proposals.notes.push_back(
        fmt::format("atlas plans for one GPU type, that of the first offer: {} not used", join(others, ", ")));
  return proposals;
}

}  // namespace atlas_detail

const Baseline& atlas() {
  static const atlas_detail::Atlas planner;
  return planner;
}

}  // namespace sailor::planner::baselines
