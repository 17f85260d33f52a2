#include "plan/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "core/names.hpp"
#include "core/terminal.hpp"
#include "core/text.hpp"
#include "plan/plan_names.hpp"

namespace sailor {

std::string_view to_string(Precision precision) { return plan_names::precisions[static_cast<std::size_t>(precision)]; }
std::string_view to_string(Optimizer optimizer) { return plan_names::optimizers[static_cast<std::size_t>(optimizer)]; }
std::string_view to_string(Schedule schedule) { return plan_names::schedules[static_cast<std::size_t>(schedule)]; }
std::string_view to_string(Recompute recompute) {
  return plan_names::recomputations[static_cast<std::size_t>(recompute)];
}
std::string_view to_string(OptimizerSharding sharding) {
  return plan_names::shardings[static_cast<std::size_t>(sharding)];
}
std::string_view to_string(KeepTogether what) { return plan_names::kept_together[static_cast<std::size_t>(what)]; }

Result<Precision> parse_precision(std::string_view text) {
  return parse_name<Precision>("precision", text, plan_names::precisions);
}

std::vector<std::string> precision_choices() { return {plan_names::precisions.begin(), plan_names::precisions.end()}; }

Result<void> check_precision(Precision precision, bool on_gpus) {
  if (precision == Precision::fp8 && !on_gpus)
    return fail(ErrorCode::unavailable, "precision fp8 is a mode of GPUs' matrix products, which CPUs do not have",
                "use precision fp32 or bf16");
  if (precision != Precision::tf32 || on_gpus) return {};
  return fail(ErrorCode::unavailable, "precision tf32 is a mode of GPUs' matrix products, which CPUs do not have",
              "use precision fp32 or bf16");
}

Result<Schedule> parse_schedule(std::string_view text) {
  return parse_name<Schedule>("schedule", text, plan_names::schedules);
}

Result<OptimizerSharding> parse_optimizer_sharding(std::string_view text) {
  return parse_name<OptimizerSharding>("optimizer_sharding", text, plan_names::shardings);
}

bool Stage::holds(int layer) const {
  const auto in = [layer](const LayerRange& range) { return range.first <= layer && layer < range.last; };
  return in(layers) || std::any_of(later_chunks.begin(), later_chunks.end(), in);
}

int Stage::layer_count() const {
  return std::accumulate(later_chunks.begin(), later_chunks.end(), layers.size(),
                         [](int sum, const LayerRange& chunk) { return sum + chunk.size(); });
}

int Pipeline::ranks() const {
  int total = 0;
  for (const Stage& stage : stages) total += stage.tensor_parallel;
  return total;
}

int Plan::data_parallel() const {
  int total = 0;
  for (const Pipeline& pipeline : pipelines) total += pipeline.count;
  return total;
}

int Plan::ranks() const {
  int total = 0;
  for (const Pipeline& pipeline : pipelines) total += pipeline.count * ranks_of(pipeline);
  return total;
}

std::vector<RankRole> rank_roles(const Plan& plan) {
  std::vector<RankRole> roles;
  roles.reserve(static_cast<std::size_t>(plan.ranks()));
  int pipeline_index = 0;
  for (std::size_t entry = 0; entry < plan.pipelines.size(); ++entry) {
    const Pipeline& pipeline = plan.pipelines[entry];
    for (int copy = 0; copy < pipeline.count; ++copy, ++pipeline_index)
      for (std::size_t stage = 0; stage < pipeline.stages.size(); ++stage)
        for (int index = 0; index < plan.ranks_of(pipeline.stages[stage]); ++index) {
          const int degree = pipeline.stages[stage].tensor_parallel;
          const int context = index / degree;
          roles.push_back({.rank = static_cast<int>(roles.size()),
                           .pipeline = pipeline_index,
                           .stage = static_cast<int>(stage),
                           .tensor_parallel_index = index % degree,
                           .pipeline_entry = static_cast<int>(entry),
                           .context_parallel_index = context,
                           .expert_parallel_index = (copy * plan.context_parallel + context) % plan.expert_parallel});
        }
  }
  return roles;
}

const Stage& stage_of(const Plan& plan, const RankRole& role) {
  return plan.pipelines[static_cast<std::size_t>(role.pipeline_entry)].stages[static_cast<std::size_t>(role.stage)];
}

std::vector<int> expert_group(const Plan& plan, const RankRole& role) {
  const Pipeline& pipeline = plan.pipelines[static_cast<std::size_t>(role.pipeline_entry)];
  const int context = plan.context_parallel;
  const int first = role.rank - role.context_parallel_index * stage_of(plan, role).tensor_parallel;
  std::vector<int> ranks;
  for (int index = 0; index < plan.expert_parallel; ++index) {
    // Relative to the copy of the role's pipeline; copies before it have negative numbers.
    const int sharer = role.context_parallel_index + index - role.expert_parallel_index;
    const int copy = sharer >= 0 ? sharer / context : -((context - 1 - sharer) / context);
    ranks.push_back(first + copy * plan.ranks_of(pipeline) +
                    (sharer - copy * context) * stage_of(plan, role).tensor_parallel);
  }
  return ranks;
}

std::string sharding_text(const Plan& plan) {
  const std::string_view name = to_string(plan.optimizer_sharding);
  return plan.sharding_degree > 0 ? fmt::format("{} over {}", name, plan.sharding_degree) : std::string(name);
}

std::string micro_batch_text(const Plan& plan) {
  if (plan.pipelines.empty()) return fmt::to_string(plan.micro_batch);
  const auto [least, most] = std::minmax_element(
      plan.pipelines.begin(), plan.pipelines.end(),
      [&](const Pipeline& a, const Pipeline& b) { return plan.micro_batch_of(a) < plan.micro_batch_of(b); });
  const int smallest = plan.micro_batch_of(*least);
  const int largest = plan.micro_batch_of(*most);
  return smallest == largest ? fmt::to_string(smallest) : fmt::format("{} to {}", smallest, largest);
}

std::string describe(const Plan& plan) {
  const bool one_micro_batch = std::all_of(plan.pipelines.begin(), plan.pipelines.end(), [&](const Pipeline& pipeline) {
    return plan.micro_batch_of(pipeline) == plan.micro_batch_of(plan.pipelines.front());
  });
  std::map<std::string_view, std::set<std::string_view>> zones;  // by GPU type
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages) zones[stage.gpu].insert(stage.zone);
  std::vector<std::string> parts;
  for (const Pipeline& pipeline : plan.pipelines) {
    std::vector<std::string> kinds;
    for (const Stage& stage : pipeline.stages) {
      std::string kind =
          stage.tensor_parallel > 1 ? fmt::format("{} x{}", stage.gpu, stage.tensor_parallel) : stage.gpu;
      if (zones.at(stage.gpu).size() > 1 && !stage.zone.empty()) kind += " in " + stage.zone;
      if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) kinds.push_back(std::move(kind));
    }
    const std::string chunks = pipeline.chunks() > 1 ? fmt::format(" of {} chunks", pipeline.chunks()) : "";
    const std::string own = one_micro_batch ? "" : fmt::format(" with micro-batch {}", plan.micro_batch_of(pipeline));
    parts.push_back(fmt::format("{} of {}{} on {}{}", plural(static_cast<std::size_t>(pipeline.count), "pipeline"),
                                plural(pipeline.stages.size(), "stage"), chunks, join(kinds, ", "), own));
  }
  const std::string sharding = plan.optimizer_sharding == OptimizerSharding::none ? "" : ", " + sharding_text(plan);
  std::string degrees;
  if (plan.context_parallel > 1) degrees += fmt::format(", context parallel {}", plan.context_parallel);
  if (plan.expert_parallel > 1) degrees += fmt::format(", expert parallel {}", plan.expert_parallel);
  const std::string common = one_micro_batch ? ", micro-batch " + micro_batch_text(plan) : "";
  return fmt::format("{}{}{}{}", join(parts, " + "), common, degrees, sharding);
}

}  // namespace sailor