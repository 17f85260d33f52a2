// DT-FM as the artifact adapts it: one GPU per replica of a stage, all devices used, plans sorted by the cost of their
// messages. It models neither compute time nor memory.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "core/text.hpp"
#include "planner/baselines/baseline.hpp"
#include "planner/baselines/dtfm_search.hpp"

namespace sailor::planner::baselines {

namespace dtfm_detail {

namespace {

constexpr double bytes_per_float = 4.0;
constexpr std::array<int, 4> micro_batches{1, 2, 4, 8};
/// Max number of stages: the path through s stages takes 2^s s^2 steps.
constexpr int max_path = 17;

/// Numbers of stages that the artifact tries: divisors of the number of layers (or of devices, if fewer), but neither 1
/// nor that number.
std::vector<int> stage_counts(int layers, int devices) {
  const int limit = std::min(layers, devices);
  std::vector<int> counts;
  for (int stages = 2; stages < limit; ++stages)
    if (limit % stages == 0) counts.push_back(stages);
  return counts;
}

double largest_stage_bytes(const LayerSizes& sizes, int layers, int stages) {
  double largest = 0.0;
  for (const LayerRange& range : partition_sailor(layers, stages))
    largest = std::max(largest, bytes_per_float * sizes.parameters_of(range.first, range.last));
  return largest;
}

PlanList plan_of(const Arrangement& arrangement, const Problem& problem, const Devices& devices, int micro_batch) {
  ListPipeline pipeline;
  const auto ranges = partition_sailor(problem.inputs.layers(), static_cast<int>(arrangement.stages.size()));
  for (std::size_t stage = 0; stage < ranges.size(); ++stage) {
    ListStage entry{.layers = ranges[stage], .replicas = {}};
    for (const int device : arrangement.stages[stage]) {
      const Offer& offer = problem.offers[static_cast<std::size_t>(devices.offer(device))];
      entry.replicas.push_back({.machines = {{offer.gpu, offer.gpus_per_node, offer.zone}}, .tensor_parallel = 1});
    }
    pipeline.stages.push_back(std::move(entry));
  }
  return {.pipelines = {std::move(pipeline)}, .micro_batch = micro_batch};
}

}  // namespace

class Dtfm final : public Baseline {
 public:
  [[nodiscard]] std::string_view name() const override { return "dtfm"; }
  [[nodiscard]] std::string_view title() const override { return "DTFM"; }
  [[nodiscard]] std::string_view citation() const override { return "Yuan et al., NeurIPS 2022"; }
  [[nodiscard]] std::string_view summary() const override {
    return "places one-GPU replicas on any devices and zones by a genetic algorithm so that messages cost least; "
           "ignores compute time, memory, prices and tensor parallelism";
  }

  [[nodiscard]] Result<Proposals> plan(const Problem& problem) const override {
    auto devices = Devices::build(problem);
    SAILOR_CHECK(devices);
    const int layers = problem.inputs.layers();
    const LayerSizes* sizes = problem.inputs.sizes(1);
    if (sizes == nullptr || problem.inputs.blocks() < 1)
      return fail(ErrorCode::not_found,
                  fmt::format("the profile has no layer sizes of {} with tensor parallel 1", problem.job.model),
                  "DTFM needs them; import the published profiles or profile the model");

    // The artifact sends the activations that a block keeps for its backward pass, 43 times its output.
    const double activation =
        bytes_per_float * (problem.faults == Faults::kept ? sizes->activation[1] : sizes->output[1]);
    struct Found {
      Arrangement arrangement;
      int micro_batch = 1;
    };
    std::vector<Found> found;
    Proposals proposals;
    Random random(problem.seed);
    for (const int stages : stage_counts(layers, devices->count())) {
      if (devices->count() % stages != 0) continue;
      if (stages > max_path) {
        proposals.notes.push_back(
            fmt::format("plans of {} stages were left out: the path through them takes 2^{} steps", stages, stages));
        continue;
      }
      for (const int micro_batch : micro_batches) {
        if (problem.job.global_batch % micro_batch != 0 ||
            devices->count() / stages > problem.job.global_batch / micro_batch)
          continue;
        if (problem.is_over()) {
          proposals.out_of_time = true;
          break;
        }
        const Messages messages{.gradients = largest_stage_bytes(*sizes, layers, stages),
                                .activation = activation * micro_batch};
        found.push_back({arrange(*devices, stages, messages, problem.faults, random, problem.is_over), micro_batch});
        proposals.out_of_time = proposals.out_of_time || problem.is_over();
      }
    }
    if (found.empty() && !proposals.out_of_time)
      return fail(
          ErrorCode::infeasible,
          fmt::format("DTFM has no plan for {} devices and global batch {}: it uses all devices in {} stages of "
                      "equal size with at least one micro-batch for each replica",
                      devices->count(), problem.job.global_batch, join(stage_counts(layers, devices->count()), " or ")),
          "offer a multiple of that number of devices");
    std::stable_sort(found.begin(), found.end(),
                     [](const Found& a, const Found& b) { return a.arrangement.cost < b.arrangement.cost; });
    for (const Found& entry : found)
      proposals.plans.push_back({.plan = plan_of(entry.arrangement, problem, *devices, entry.micro_batch),
                                 .throughput = std::nullopt,
                                 .cost = std::nullopt});
    return proposals;
  }

  [[nodiscard]] Result<Estimate> estimate(const PlanList& plan, const Problem& problem) const override {
    static_cast<void>(plan);
    static_cast<void>(problem);
    return fail(ErrorCode::unavailable, "DTFM estimates neither time nor memory: it compares messages only",
                "ask a planner that models them");
  }
};

}  // namespace dtfm_detail

const Baseline& dtfm() {
  static const dtfm_detail::Dtfm planner;
  return planner;
}

}  // namespace sailor::planner::baselines
