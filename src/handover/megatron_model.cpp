// The architecture of a model as arguments of Megatron-Core.
#include <fmt/format.h>

#include "core/text.hpp"
#include "handover/megatron.hpp"

namespace sailor::handover {

namespace {

/// What Megatron-Core's arguments cannot express; each a reason.
std::vector<std::string> unsupported(const Model& model, const Grid& grid) {
  std::vector<std::string> reasons = missing_in_core(model);
  const auto refuse_if = [&](bool wrong, std::string_view what) {
    if (wrong) reasons.emplace_back(what);
  };
  refuse_if(model.norms_per_block != 2, "norms on the outputs of attention and feed-forward part");
  refuse_if(model.final_norm == FinalNorm::none, "no final norm");
  refuse_if(model.activation == Activation::relu, "ReLU (it has GELU, squared ReLU and SwiGLU)");
  refuse_if(model.gated && model.activation != Activation::swiglu, "a gate beside GELU (it has quick GELU's)");
  refuse_if(model.linear_bias && !(model.attention_input_bias && model.attention_output_bias),
            "biases in the feed-forward part, but not in attention");
  refuse_if(!model.linear_bias && model.attention_output_bias,
            "a bias on attention's output, but not in the feed-forward part");
  refuse_if(model.query_key_norm && model.norm != NormKind::rms_norm,
            "RMS norms of queries and keys beside layer norms");
  refuse_if(model.position == PositionKind::learned && model.learned_positions > 0 &&
                model.learned_positions < model.max_sequence_length,
            "fewer learned positions than the sequence is long");
  refuse_if(model.experts.shared_gate, "a gate on the shared experts");
  refuse_if(model.experts.router_bias, "a bias in the router's product");
  refuse_if(model.experts.count > 0 && model.experts.bias != model.linear_bias,
            "biases that differ between experts and other products");
  if (model.latent.key_value_rank == 0 && model.key_value_heads % grid.tensor_parallel != 0)
    reasons.push_back(fmt::format("{} key and value heads, which tensor parallelism of {} does not divide",
                                  model.key_value_heads, grid.tensor_parallel));
  return reasons;
}

/// "([0]*3+[1]*29)": 1 for blocks with experts.
std::string expert_pattern(const Model& model) {
  std::vector<std::string> runs;
  for (int block = 0; block < model.blocks;) {
    const bool experts = model.has_experts(block);
    int length = 1;
    while (block + length < model.blocks && model.has_experts(block + length) == experts) ++length;
    runs.push_back(fmt::format("[{}]*{}", experts ? 1 : 0, length));
    block += length;
  }
  return runs.size() == 1 ? "1" : fmt::format("({})", join(runs, "+"));
}

void add_attention(const Model& model, std::vector<Argument>& arguments) {
  const auto add = [&](std::string_view name, const auto& value) {
    arguments.push_back({std::string(name), fmt::to_string(value)});
  };
  const auto flag = [&](std::string_view name) { arguments.push_back({std::string(name)}); };
  add("--num-attention-heads", model.attention_heads);
  if (const LatentAttention& latent = model.latent; latent.key_value_rank > 0) {
    flag("--multi-latent-attention");
    if (latent.query_rank > 0) add("--q-lora-rank", latent.query_rank);
    add("--kv-lora-rank", latent.key_value_rank);
    add("--qk-head-dim", latent.content);
    add("--qk-pos-emb-head-dim", latent.position);
    add("--v-head-dim", latent.value);
    add("--rope-type", "rope");  // else yarn, which has further parameters
  } else {
    if (model.key_value_heads != model.attention_heads) {
      flag("--group-query-attention");
      add("--num-query-groups", model.key_value_heads);
    }
    if (model.head_width() * model.attention_heads != model.hidden) add("--kv-channels", model.head_width());
  }
  if (model.query_key_norm) flag("--qk-layernorm");
  if (model.attention_sinks) add("--softmax-type", "learnable");
  if (model.sliding_window > 0) {
    add("--window-size", fmt::format("({},0)", model.sliding_window - 1));  // tokens before the present one
    if (model.full_attention_period > 0) add("--window-attn-skip-freq", model.full_attention_period);
  }
}

void add_positions(const Model& model, std::vector<Argument>& arguments) {
  const bool learned = model.position == PositionKind::learned;
  arguments.push_back({"--position-embedding-type", learned ? "learned_absolute" : "rope"});
  if (!learned) arguments.push_back({"--rotary-base", fmt::format("{:.0f}", model.rotary_base)});
  arguments.push_back({"--max-position-embeddings", fmt::to_string(model.max_sequence_length)});
}

void add_experts(const Model& model, const Grid& grid, std::vector<Argument>& arguments) {
  const Experts& experts = model.experts;
  if (experts.count == 0) return;
  const auto add = [&](std::string_view name, const auto& value) {
    arguments.push_back({std::string(name), fmt::to_string(value)});
  };
  add("--num-experts", experts.count);
  add("--moe-router-topk", experts.per_token);
  add("--moe-ffn-hidden-size", experts.feed_forward);
  if (experts.shared_feed_forward > 0) add("--moe-shared-expert-intermediate-size", experts.shared_feed_forward);
  if (const std::string pattern = expert_pattern(model); pattern != "1") add("--moe-layer-freq", pattern);
  if (experts.capacity_factor > 0.0) {
    add("--moe-expert-capacity-factor", experts.capacity_factor);
    arguments.push_back({"--moe-pad-expert-input-to-capacity"});
  }
  arguments.push_back({"--moe-grouped-gemm"});
  add("--moe-token-dispatcher-type", "alltoall");
  // Every expert is divided by tensor parallelism, too, which is Megatron-Core's default.
  add("--expert-model-parallel-size", grid.expert_parallel);
}

}  // namespace

std::vector<std::string> missing_in_core(const Model& model) {
  std::vector<std::string> reasons;
  const auto refuse_if = [&](bool wrong, std::string_view what) {
    if (wrong) reasons.emplace_back(what);
  };
  refuse_if(model.embedding_width != model.hidden, "token embeddings narrower than the hidden state");
  refuse_if(model.norm_placement == NormPlacement::post, "norms behind attention and feed-forward part (post-norm)");
  refuse_if(model.final_norm == FinalNorm::separate_and_in_head, "two final norms");
  refuse_if(!model.scale_attention, "attention scores that are not scaled");
  refuse_if(model.local_attention_window > 0, "a local window in every second block");
  return reasons;
}

Result<std::vector<Argument>> architecture_arguments(const Model& model, const Grid& grid, Precision precision) {
  if (const auto reasons = unsupported(model, grid); !reasons.empty())
    return fail(
        ErrorCode::unavailable,
        fmt::format("Megatron-Core cannot run model {}: its arguments do not have {}", model.name, join(reasons, "; ")),
        is_trainable(precision) && check_trainable(model)
            ? "hand over another model, or train this one with sailor-train (sailor-submit PLAN)"
            : "hand over another model, or to another framework");
  std::vector<Argument> arguments{{"--num-layers", fmt::to_string(model.blocks)},
                                  {"--hidden-size", fmt::to_string(model.hidden)},
                                  {"--ffn-hidden-size", fmt::to_string(model.feed_forward)}};
  add_attention(model, arguments);
  add_positions(model, arguments);
  arguments.push_back({"--normalization", model.norm == NormKind::rms_norm ? "RMSNorm" : "LayerNorm"});
  arguments.push_back({"--norm-epsilon", fmt::format("{:g}", model.norm_epsilon)});
  if (model.activation == Activation::swiglu) arguments.push_back({"--swiglu"});
  if (!model.linear_bias) arguments.push_back({"--disable-bias-linear"});
  if (!model.linear_bias && model.attention_input_bias && model.latent.key_value_rank == 0)
    arguments.push_back({"--add-qkv-bias"});
  if (!model.tied_embedding) arguments.push_back({"--untie-embeddings-and-output-weights"});
  arguments.push_back({"--vocab-size", fmt::to_string(model.vocabulary)});
  arguments.push_back({"--attention-dropout", "0.0"});
  arguments.push_back({"--hidden-dropout", "0.0"});
  add_experts(model, grid, arguments);
  return arguments;
}

}  // namespace sailor::handover
