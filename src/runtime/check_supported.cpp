// What this runtime cannot train yet, said before anything is allocated.
#include <fmt/format.h>

#include "runtime/layer.hpp"

namespace sailor::runtime {

namespace {

tl::unexpected<Error> missing(const std::string& what, const std::string& hint) {
  return fail(ErrorCode::unavailable, what + ": not there yet in sailor-train", hint);
}

}  // namespace

Result<void> check_supported(const Model& model) {
  const auto lacks = [&](std::string_view feature, const std::string& use) {
    return missing(fmt::format("model '{}' needs {}", model.name, feature), use);
  };
  if (model.norm != NormKind::layer_norm) return lacks("rms_norm", "use a model with norm = \"layer_norm\"");
  if (model.activation == Activation::swiglu) return lacks("swiglu", "use a model with activation relu or gelu");
  if (model.position != PositionKind::learned)
    return lacks("rotary positions", "use a model with position = \"learned\"");
  if (model.key_value_heads != model.attention_heads)
    return lacks(fmt::format("grouped-query attention ({} key-value heads for {} heads)", model.key_value_heads,
                             model.attention_heads),
                 "use a model with key_value_heads = attention_heads");
  if (model.has_separate_norm())
    return lacks("a final norm as a layer of its own", "use final_norm = \"in_head\" or \"none\"");
  return {};
}

Result<void> check_supported(const Plan& plan, const Model& model) {
  SAILOR_CHECK(check_supported(model));
  if (plan.job.precision != Precision::fp32)
    return missing(fmt::format("precision {}", to_string(plan.job.precision)), "use precision = \"fp32\"");
  if (plan.schedule != Schedule::one_f_one_b)
    return missing(fmt::format("schedule {}", to_string(plan.schedule)),
                   fmt::format("use schedule = \"{}\"", to_string(Schedule::one_f_one_b)));
  if (plan.optimizer_sharding != OptimizerSharding::none)
    return missing(fmt::format("optimizer_sharding = \"{}\"", to_string(plan.optimizer_sharding)),
                   "use optimizer_sharding = \"none\" and a smaller micro-batch or more stages");
  for (std::size_t p = 0; p < plan.pipelines.size(); ++p) {
    for (std::size_t s = 0; s < plan.pipelines[p].stages.size(); ++s) {
      const sailor::Stage& stage = plan.pipelines[p].stages[s];
      if (stage.tensor_parallel != 1)
        return missing(fmt::format("pipeline {}, stage {}: tensor_parallel = {}", p, s, stage.tensor_parallel),
                       "use tensor_parallel = 1 and more stages or pipelines");
      if (stage.recompute != Recompute::none)
        return missing(fmt::format("pipeline {}, stage {}: recompute = \"{}\"", p, s, to_string(stage.recompute)),
                       "use recompute = \"none\" and a smaller micro-batch or more stages");
    }
  }
  return {};
}

}  // namespace sailor::runtime
