// Checks for what this runtime cannot train, before anything is allocated.
#include <fmt/format.h>

#include "runtime/layer.hpp"

namespace sailor::runtime {

Result<void> check_supported(const Model& model) {
  SAILOR_CHECK(check_trainable(model));
  if (model.position == PositionKind::rotary && model.head_width() % 2 != 0)
    return fail(ErrorCode::invalid_input,
                fmt::format("model '{}': rotary positions turn pairs of values, but a head has {} (hidden {} / {} "
                            "attention heads)",
                            model.name, model.head_width(), model.hidden, model.attention_heads),
                "choose hidden and attention_heads with an even quotient, or position = \"learned\"");
  return {};
}

Result<void> check_divisible(const Model& model, int tensor_parallel, int context_parallel) {
  const auto check = [&](std::string_view what, int count, int context) -> Result<void> {
    if (count % (tensor_parallel * context) == 0) return {};
    if (count % tensor_parallel == 0)
      return fail(ErrorCode::infeasible,
                  fmt::format("model '{}': {} = {} cannot be divided by tensor_parallel x context_parallel = {} x {}: "
                              "for attention each rank takes whole sequences of a part of the heads",
                              model.name, what, count, tensor_parallel, context),
                  fmt::format("use degrees whose product divides {} and {} (attention_heads, key_value_heads)",
                              model.attention_heads, model.key_value_heads));
    return fail(
        ErrorCode::infeasible,
        fmt::format("model '{}': {} = {} cannot be divided by tensor_parallel = {}", model.name, what, count,
                    tensor_parallel),
        model.experts.count > 0
            ? std::string("use a tensor_parallel that divides attention_heads, key_value_heads and the widths of "
                          "all feed-forward parts")
            : fmt::format("use a tensor_parallel that divides {}, {} and {} (attention_heads, key_value_heads, "
                          "feed_forward)",
                          model.attention_heads, model.key_value_heads, model.feed_forward));
  };
  SAILOR_CHECK(check("attention_heads", model.attention_heads, context_parallel));
  SAILOR_CHECK(check("key_value_heads", model.key_value_heads, context_parallel));
  for (const auto& [key, width] : model.feed_forward_widths()) SAILOR_CHECK(check(key, width, 1));
  if (model.vocabulary < tensor_parallel)
    return fail(ErrorCode::infeasible,
                fmt::format("model '{}': a vocabulary of {} leaves ranks of tensor_parallel = {} without a row",
                            model.name, model.vocabulary, tensor_parallel),
                "use a smaller tensor_parallel");
  return {};
}

Result<void> check_supported(const Plan& plan, const Model& model) {
  SAILOR_CHECK(check_supported(model));
  SAILOR_CHECK(sailor::check_trainable(plan));
  if (shards_gradients(plan.optimizer_sharding))
    return fail(ErrorCode::unavailable,
                fmt::format("the plan has optimizer_sharding = \"{}\", which sailor-train does not run",
                            to_string(plan.optimizer_sharding)),
                "use \"zero1\" or \"none\", or train with another framework");
  for (std::size_t p = 0; p < plan.pipelines.size(); ++p)
    for (std::size_t s = 0; s < plan.pipelines[p].stages.size(); ++s)
      if (auto divisible = check_divisible(model, plan.pipelines[p].stages[s].tensor_parallel, plan.context_parallel);
          !divisible)
        return fail(divisible.error(), fmt::format("pipeline {}, stage {}", p, s));
  return {};
}

}  // namespace sailor::runtime
