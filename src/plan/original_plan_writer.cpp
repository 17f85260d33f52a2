#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "plan/original_plan.hpp"

namespace sailor {

namespace {

using Json = nlohmann::ordered_json;

tl::unexpected<Error> cannot_say(const std::string& what) {
  return fail(ErrorCode::invalid_input, fmt::format("the original Sailor's JSON cannot express this plan: {}", what),
              "use plan.toml, or look for plans that it can express with --space paper");
}

/// Checks the limits of the format: one micro-batch size, one division of the layers, 1F1B.
Result<void> check_expressible(const Plan& plan) {
  if (plan.pipelines.empty()) return cannot_say("it has no pipelines");
  if (plan.schedule != Schedule::one_f_one_b)
    return cannot_say(fmt::format("its schedule is {}, the format's always 1f1b", to_string(plan.schedule)));
  if (plan.optimizer_sharding != OptimizerSharding::none)
    return cannot_say(fmt::format("optimizer_sharding is {}", to_string(plan.optimizer_sharding)));
  if (plan.context_parallel > 1) return cannot_say(fmt::format("context_parallel is {}", plan.context_parallel));
  if (plan.expert_parallel > 1) return cannot_say(fmt::format("expert_parallel is {}", plan.expert_parallel));
  const Pipeline& first = plan.pipelines.front();
  const auto [fewest, most] =
      std::minmax_element(plan.pipelines.begin(), plan.pipelines.end(),
                          [](const Pipeline& a, const Pipeline& b) { return a.micro_batches < b.micro_batches; });
  for (std::size_t i = 0; i < plan.pipelines.size(); ++i) {
    const Pipeline& pipeline = plan.pipelines[i];
    if (pipeline.stages.size() != first.stages.size())
      return cannot_say(fmt::format("pipeline 0 has {} stages and pipeline {} has {}", first.stages.size(), i,
                                    pipeline.stages.size()));
    if (plan.micro_batch_of(pipeline) != plan.micro_batch_of(first))
      return cannot_say(fmt::format("pipeline 0 has micro-batches of {} and pipeline {} of {}",
                                    plan.micro_batch_of(first), i, plan.micro_batch_of(pipeline)));
    for (std::size_t s = 0; s < pipeline.stages.size(); ++s) {
      const Stage& stage = pipeline.stages[s];
      if (!stage.later_chunks.empty()) return cannot_say(fmt::format("stage {} holds several chunks of layers", s));
      if (stage.recompute != Recompute::none)
        return cannot_say(
            fmt::format("stage {} of pipeline {} recomputes activations ({})", s, i, to_string(stage.recompute)));
      if (stage.layers != first.stages[s].layers)
        return cannot_say(fmt::format("stage {} holds layers [{}, {}) in pipeline 0 and [{}, {}) in pipeline {}", s,
                                      first.stages[s].layers.first, first.stages[s].layers.last, stage.layers.first,
                                      stage.layers.last, i));
    }
  }
  if (most->micro_batches - fewest->micro_batches > 1)
    return cannot_say(fmt::format("its pipelines have {} to {} micro-batches, the format's differ by one at most",
                                  fewest->micro_batches, most->micro_batches));
  return {};
}

}  // namespace

std::string original_gpu_name(const std::string& gpu) { return gpu == "GH200-96" ? "GH-96" : gpu; }

Result<std::string> original_plan_to_json(const Plan& plan, const std::map<std::string, int>& devices_per_node) {
  SAILOR_CHECK(check_expressible(plan));
  std::vector<const Pipeline*> pipelines;
  std::map<std::string, int> node_size = devices_per_node;
  for (const Pipeline& pipeline : plan.pipelines) {
    pipelines.push_back(&pipeline);
    for (const Stage& stage : pipeline.stages) {
      int& devices = node_size[stage.gpu];
      devices = std::max(devices, stage.tensor_parallel);
    }
  }
  // Readers give the remaining micro-batches to the first pipelines.
  std::stable_sort(pipelines.begin(), pipelines.end(),
                   [](const Pipeline* a, const Pipeline* b) { return a->micro_batches > b->micro_batches; });

  const std::vector<Stage>& stages = plan.pipelines.front().stages;
  Json layers = Json::array();
  Json groups = Json::array();
  for (std::size_t s = 0; s < stages.size(); ++s) {
    Json held = Json::array();
    for (int layer = stages[s].layers.first; layer < stages[s].layers.last; ++layer) held.push_back(layer);
    layers.push_back(std::move(held));
    Json replicas = Json::array();
    for (const Pipeline* pipeline : pipelines) {
      const Stage& stage = pipeline->stages[s];
      const Json machine = Json::array({original_gpu_name(stage.gpu), node_size[stage.gpu], stage.zone});
      const Json replica = Json::array({Json::array({machine}), stage.tensor_parallel});
      for (int copy = 0; copy < pipeline->count; ++copy) replicas.push_back(replica);
    }
    groups.push_back(std::move(replicas));
  }
  const Json pipeline{{"num_stages", stages.size()},
                      {"layers_per_stage", std::move(layers)},
                      {"tmp_per_stage", std::move(groups)},
                      {"dp", std::vector<int>(stages.size(), plan.data_parallel())}};
  Json root{{"pipeline_list", Json::array({pipeline})},
            {"mbs", plan.micro_batch_of(plan.pipelines.front())},
            {"gbs", plan.job.global_batch}};
  return root.dump() + "\n";
}

}  // namespace sailor
