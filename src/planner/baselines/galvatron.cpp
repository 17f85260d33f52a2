// Galvatron (Miao et al., VLDB 2023) as the Sailor artifact adapts it (baselines/Galvatron):
// tensor, data and pipeline parallelism per block by dynamic programming under a memory limit, without sharded states
// and recomputation, for numbers of chunks with micro-batches of 1, 2 or 4.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>

#include "planner/baselines/galvatron_costs.hpp"
#include "planner/baselines/homogeneous.hpp"

namespace sailor::planner::baselines {
namespace galvatron_detail {

constexpr double bytes_per_mib = 1024.0 * 1024.0;
constexpr int largest_micro_batch = 4;
constexpr int batch_multiple = 8;
constexpr int published_max_tensor_parallel = 4;
constexpr double cache_share = 0.2;  // of large devices, left to PyTorch's allocator
constexpr int cache_from_gib = 20;

/// Strategies of one pipeline degree, in Galvatron's order.
using Group = std::vector<Strategy>;

std::map<int, Group> strategies_of(int gpus, int max_tensor_parallel, int blocks) {
  std::map<int, Group> groups;
  for (int stages = 1; stages <= std::min(gpus, blocks); stages *= 2)
    for (int tensor = 1; tensor <= std::min(max_tensor_parallel, gpus / stages); tensor *= 2) {
      const int data = gpus / (stages * tensor);
      if (tensor == 1 || tensor == gpus / stages) {
        groups[stages].push_back({stages, tensor, data, true});
      } else {
        groups[stages].push_back({stages, tensor, data, false});
        groups[stages].push_back({stages, tensor, data, true});
      }
    }
  return groups;
}

int divide_up(int number, int divisor) { return (number + divisor - 1) / divisor; }

/// The strategies of a stage's blocks with the min time within `budget` MiB. Empty if none fits. `change` is indexed by
/// [from * group.size() + to]; it does not count before the first block of the model.
std::vector<Strategy> fill_stage(const Group& group, const std::vector<double>& time, const std::vector<double>& memory,
                                 const std::vector<double>& change, int layers, double budget, bool is_first) {
  const auto count = group.size();
  if (budget < 0.0) return {};
  // A layout change costs time, so the fastest strategy in all blocks is optimal if it fits.
  const auto fastest = static_cast<std::size_t>(std::min_element(time.begin(), time.end()) - time.begin());
  if (std::ceil(memory[fastest]) * layers <= budget)
    return std::vector<Strategy>(static_cast<std::size_t>(layers), group[fastest]);
  if (count == 1) return {};

  constexpr double infinity = std::numeric_limits<double>::infinity();
  const auto states = static_cast<std::size_t>(budget) + 1;
  std::vector<double> best(states * count, 0.0);
  std::vector<std::vector<std::uint8_t>> previous;  // by layer: [state * count + strategy]
  for (int layer = 0; layer < layers; ++layer) {
    previous.emplace_back(states * count, std::uint8_t{0});
    for (std::size_t state = states; state-- > 0;) {
      std::vector<double> here(count, infinity);
      for (std::size_t to = 0; to < count; ++to) {
        const double needed = std::ceil(memory[to]);
        if (needed > static_cast<double>(state)) continue;
        const std::size_t left = state - static_cast<std::size_t>(needed);
        for (std::size_t from = 0; from < count; ++from) {
          const double changed = layer == 0 && is_first ? 0.0 : change[from * count + to];
          const double total = best[left * count + from] + changed + time[to];
          if (total < here[to]) {
            here[to] = total;
            previous[layer][state * count + to] = static_cast<std::uint8_t>(from);
          }
        }
      }
      std::copy(here.begin(), here.end(), best.begin() + static_cast<std::ptrdiff_t>(state * count));
    }
  }
  std::size_t state = states - 1;
  std::size_t strategy = 0;
  for (std::size_t other = 1; other < count; ++other)
    if (best[state * count + other] < best[state * count + strategy]) strategy = other;
  if (best[state * count + strategy] == infinity) return {};
  std::vector<Strategy> chosen;
  for (int layer = layers - 1; layer >= 0; --layer) {
    chosen.push_back(group[strategy]);
    const std::size_t from = previous[layer][state * count + strategy];
    state -= static_cast<std::size_t>(std::ceil(memory[strategy]));
    strategy = from;
  }
  std::reverse(chosen.begin(), chosen.end());
  return chosen;
}

/// Inputs common to all searches over chunks.
struct Setting {
  const Profile& profile;
  const Inputs& inputs;
  const Offer& offer;
  Faults faults;
  int batch;
  int gpus;
  double memory_mib;
};

/// The strategies of all blocks by stage; empty if they do not fit. `first` is the first strategy of the pipeline
/// degree, which determines the other memory.
std::vector<std::vector<Strategy>> fill_pipeline(const Setting& setting, const Group& group, const Strategy& first,
                                                 int micro_batch) {
  const int stages = first.pipeline_parallel;
  const std::vector<double> other = other_memory(setting.profile, first, setting.batch, micro_batch);
  const int chunks = divide_up(setting.batch / (setting.gpus / stages), micro_batch);
  std::vector<double> time;
  std::vector<double> change;
  for (const Strategy& strategy : group) {
    time.push_back(layer_time(setting.profile, strategy, static_cast<double>(setting.batch) / chunks, true));
    for (const Strategy& to : group) change.push_back(layout_change(setting.profile, strategy, to, setting.batch));
  }
  const std::vector<int> blocks = blocks_of_stages(setting.profile.blocks, stages);
  std::vector<std::vector<Strategy>> filled;
  for (int stage = 0; stage < stages; ++stage) {
    std::vector<double> memory;
    for (const Strategy& strategy : group)
      memory.push_back(layer_memory(setting.profile, strategy, setting.batch, micro_batch, stage));
    auto strategies = fill_stage(group, time, memory, change, blocks[stage],
                                 setting.memory_mib - std::ceil(other[stage]), stage == 0);
    if (strategies.empty()) return {};
    filled.push_back(std::move(strategies));
  }
  return filled;
}

struct Found {
  double seconds = 0.0;
  Strategy strategy;  ///< of the first block: the plan takes it for all
  int chunks = 0;
};

/// The best plan with a number of chunks.
std::optional<Found> plan_of_chunks(const Setting& setting, const std::map<int, Group>& groups, int chunks) {
  // One pipeline degree whose micro-batch is too large ends the search for all (search_engine.py:175).
  std::vector<std::pair<int, const Group*>> kept;  // micro-batch
  for (const auto& [stages, group] : groups) {
    const int samples = setting.batch / (setting.gpus / stages);
    if (chunks > samples) continue;
    const int micro_batch = divide_up(samples, chunks);
    const bool is_searched = micro_batch == 1 || micro_batch == 2 || micro_batch == largest_micro_batch;
    if (!is_searched && setting.faults == Faults::kept) return std::nullopt;
    if (is_searched && chunks == divide_up(samples, micro_batch)) kept.emplace_back(micro_batch, &group);
  }
  std::optional<Found> best;
  const auto consider = [&](const Group& choices, const Strategy& first, int micro_batch) {
    const auto stages = fill_pipeline(setting, choices, first, micro_batch);
    if (stages.empty()) return;
    const double seconds = pipeline_time(setting.profile, stages, setting.batch, chunks);
    if (!best || seconds < best->seconds) best = Found{seconds, stages.front().front(), chunks};
  };
  for (const auto& [micro_batch, group] : kept) {
    // The plan has the strategy of the first block in all blocks, whatever was chosen for the others. Repaired: only
    // plans that can be written, with one strategy, are searched.
    if (setting.faults == Faults::kept)
      consider(*group, group->front(), micro_batch);
    else
      for (const Strategy& strategy : *group) consider({strategy}, group->front(), micro_batch);
  }
  return best;
}

PlanList plan_list_of(const Setting& setting, const Strategy& strategy, int micro_batch) {
  const int tensor = strategy.tensor_parallel;
  if (setting.faults == Faults::kept)
    return grid_plan(setting.inputs.layers(), strategy.pipeline_parallel, strategy.data_parallel, tensor, micro_batch,
                     {setting.offer.gpu, std::min(tensor, published_max_tensor_parallel), setting.offer.zone});
  // Galvatron's own division of the blocks, not the evaluator's of all layers.
  PlanList plan;
  plan.micro_batch = micro_batch;
  ListPipeline pipeline;
  int first = 0;
  const std::vector<int> blocks = blocks_of_stages(setting.profile.blocks, strategy.pipeline_parallel);
  for (std::size_t stage = 0; stage < blocks.size(); ++stage) {
    const int last =
        stage + 1 == blocks.size() ? setting.inputs.layers() : first + blocks[stage] + (stage == 0 ? 1 : 0);
    const Replica replica{{{setting.offer.gpu, setting.offer.gpus_per_node, setting.offer.zone}}, tensor};
    pipeline.stages.push_back(
        {{first, last}, std::vector<Replica>(static_cast<std::size_t>(strategy.data_parallel), replica)});
    first = last;
  }
  plan.pipelines.push_back(std::move(pipeline));
  return plan;
}

class Galvatron final : public HomogeneousBaseline {
 public:
  [[nodiscard]] std::string_view name() const override { return "galvatron"; }
  [[nodiscard]] std::string_view title() const override { return "Galvatron"; }
  [[nodiscard]] std::string_view citation() const override { return "Miao et al., VLDB 2023"; }
  [[nodiscard]] std::string_view summary() const override {
    return "tensor, data and pipeline parallelism per block by dynamic programming under a memory limit, powers of two "
           "of one GPU type; ignores zones, prices and the time of embedding and head";
  }

  [[nodiscard]] Result<Estimate> estimate(const PlanList& plan, const Problem& problem) const override {
    const auto uniform = uniform_plan(plan, problem.inputs, title());
    SAILOR_CHECK(uniform);
    const Offer offer{uniform->gpu, uniform->zone, uniform->gpus_per_node, uniform->gpus_per_node};
    const auto profile = galvatron_profile(problem, offer);
    SAILOR_CHECK(profile);
    const int batch = problem.job.global_batch;
    const Strategy strategy{uniform->pipeline_parallel(), uniform->tensor_parallel, uniform->replicas, true};
    if (!profile->activation.contains(strategy.tensor_parallel))
      return fail(ErrorCode::not_found,
                  fmt::format("Galvatron has no memory of {} with tensor parallel {}", problem.inputs.model().name,
                              strategy.tensor_parallel),
                  "profile the model at this degree");
    std::vector<std::vector<Strategy>> stages;
    for (const int blocks : blocks_of_stages(profile->blocks, strategy.pipeline_parallel))
      stages.emplace_back(static_cast<std::size_t>(blocks), strategy);
    // The published validation forgets that replicas share the batch, then has no more chunks than a rank has samples.
    const int chunks = problem.faults == Faults::kept ? batch / uniform->micro_batch
                                                      : divide_up(batch, uniform->micro_batch * uniform->replicas);
    const double seconds = pipeline_time(*profile, stages, batch, std::max(1, chunks));

    // Micro-batches of the memory model are those of a rank as if there were no tensor parallelism.
    const int of_rank = problem.faults == Faults::kept ? uniform->micro_batch
                                                       : std::max(1, uniform->micro_batch / strategy.tensor_parallel);
    const int blocks_of_stage = profile->blocks / strategy.pipeline_parallel;
    const double layers = layer_memory(*profile, strategy, batch, of_rank, 0) * blocks_of_stage;
    const std::vector<double> other = other_memory(*profile, strategy, batch, of_rank);
    return Estimate{Seconds(seconds), Bytes((layers + *std::max_element(other.begin(), other.end())) * bytes_per_mib)};
  }

 private:
  Result<void> plan_offer(const Problem& problem, const Offer& offer, Proposals& proposals) const override {
    const auto profile = galvatron_profile(problem, offer);
    SAILOR_CHECK(profile);
    const int offered = offer.gpus / offer.gpus_per_node * offer.gpus_per_node;
    int gpus = offered;
    int batch = problem.job.global_batch;
    if (problem.faults == Faults::kept) {  // another batch than the job's, if that is not a multiple
      batch = divide_up(batch, std::min(gpus, batch_multiple)) * std::min(gpus, batch_multiple);
      if (batch != problem.job.global_batch)
        note(proposals, fmt::format("Galvatron plans a global batch of {} instead of {}, as in the artifact", batch,
                                    problem.job.global_batch));
    }
    while (gpus > 0 && batch % gpus != 0) gpus -= offer.gpus_per_node;
    if (gpus == 0)
      return fail(ErrorCode::infeasible,
                  fmt::format("Galvatron needs a global batch that is a multiple of the GPUs it uses; {} is not a "
                              "multiple of the {} GPUs of a node",
                              batch, offer.gpus_per_node),
                  "use another global batch");
    if (gpus < offered)
      note(proposals,
           fmt::format("Galvatron uses {} of {} {}: those that divide the global batch", gpus, offered, offer.gpu));
    if (!profile->is_published)
      note(proposals,
           fmt::format("Galvatron's profile of {} is derived from layer times and sizes (20 bytes per parameter)",
                       offer.gpu));
    auto memory = std::floor(problem.inputs.configured_memory(offer.gpu) / bytes_per_mib);
    if (std::floor(memory / 1024.0) > cache_from_gib) memory -= std::floor(cache_share * memory);

    const Setting setting{*profile, problem.inputs, offer, problem.faults, batch, gpus, memory};
    const int max_tensor_parallel =
        problem.faults == Faults::kept ? published_max_tensor_parallel : offer.gpus_per_node;
    const std::map<int, Group> groups = strategies_of(gpus, max_tensor_parallel, profile->blocks);
    int not_measured = 0;
    for (int chunks = 1; chunks < std::max(batch, 2); ++chunks) {
      if (problem.is_over()) {
        proposals.out_of_time = true;
        break;
      }
      const auto found = plan_of_chunks(setting, groups, chunks);
      if (!found) continue;
      const int micro_batch = batch / (chunks * found->strategy.data_parallel);
      // Micro-batches are multiples of the tensor-parallel degree and may not have been measured: the evaluator of the
      // artifact ends with a key error there.
      if (problem.faults == Faults::fixed) {
        const std::vector<int> degrees = problem.inputs.degrees(offer.gpu, micro_batch);
        if (std::find(degrees.begin(), degrees.end(), found->strategy.tensor_parallel) == degrees.end()) {
          ++not_measured;
          continue;
        }
      }
      Proposal proposal;
      proposal.plan = plan_list_of(setting, found->strategy, micro_batch);
      proposal.throughput = 1.0 / found->seconds;
      const int used =
          found->strategy.pipeline_parallel * found->strategy.tensor_parallel * found->strategy.data_parallel;
      proposal.cost = devices_cost(problem.inputs, offer.gpu, used, found->seconds);
      proposals.plans.push_back(std::move(proposal));
    }
    if (not_measured > 0)
      note(proposals, fmt::format("{} plans of Galvatron on {} have micro-batches that were not measured", not_measured,
                                  offer.gpu));
    return {};
  }
};

}  // namespace galvatron_detail

const Baseline& galvatron() {
  static const galvatron_detail::Galvatron planner;
  return planner;
}

}  // namespace sailor::planner::baselines
