#include <fmt/format.h>

#include <array>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/text.hpp"
#include "runtime/checkpoint/hugging_face.hpp"
#include "runtime/checkpoint/hugging_face_family.hpp"
#include "runtime/layer.hpp"

namespace sailor::runtime {

namespace {

/// Requirements of a family that a model does not meet, if any.
class Demands {
 public:
  void want(bool good, std::string_view what) {
    if (!good) broken_.emplace_back(what);
  }
  [[nodiscard]] const std::vector<std::string>& broken() const { return broken_; }

 private:
  std::vector<std::string> broken_;
};

Demands demands_of(Family family, const Model& model) {
  Demands demands;
  const bool final_norm = model.final_norm == FinalNorm::in_head || model.final_norm == FinalNorm::separate;
  const bool all_biases = model.linear_bias && model.attention_input_bias && model.attention_output_bias;
  const bool no_biases = !model.linear_bias && !model.attention_input_bias && !model.attention_output_bias;
  const bool full_heads = model.key_value_heads == model.attention_heads;
  const bool pre = model.norm_placement == NormPlacement::pre;
  demands.want(model.final_norm != FinalNorm::separate_and_in_head, "one final norm");
  if (family == Family::mixtral) {
    const Experts& experts = model.experts;
    demands.want(experts.count > 0, "experts");
    demands.want(experts.shared_feed_forward == 0, "no shared expert");
    demands.want(experts.first_dense == 0 && experts.period == 1, "experts in all blocks");
    demands.want(no_biases, "no biases");
  } else {
    demands.want(model.experts.count == 0, "no experts");
  }
  if (is_like_llama(family)) {
    demands.want(model.norm == NormKind::rms_norm, "norm = \"rms_norm\"");
    demands.want(model.position == PositionKind::rotary, "position = \"rotary\"");
    demands.want(model.activation == Activation::swiglu, "activation = \"swiglu\"");
    demands.want(pre && final_norm, "pre-norm with a final norm");
    demands.want(model.attention_input_bias == model.attention_output_bias, "attention biases all or none");
  } else {
    demands.want(model.norm == NormKind::layer_norm, "norm = \"layer_norm\"");
    demands.want(model.position == PositionKind::learned, "position = \"learned\"");
    demands.want(full_heads, "as many key_value_heads as attention_heads");
  }
  if (family != Family::opt) demands.want(model.embedding_width == model.hidden, "an embedding as wide as the model");
  if (family != Family::gpt_neo) {
    demands.want(model.scale_attention, "scale_attention");
    demands.want(model.local_attention_window == 0, "no local_attention_window");
  }
  switch (family) {
    case Family::opt:
      demands.want(model.activation == Activation::relu, "activation = \"relu\"");
      demands.want(all_biases || no_biases, "biases all or none");
      demands.want(model.norm_epsilon == 1e-5, "norm_epsilon = 1e-5");
      demands.want(pre || model.final_norm == FinalNorm::none, "no final norm with post-norm");
      break;
    case Family::gpt_neo:
    case Family::gpt2:
      demands.want(model.activation == Activation::gelu, "activation = \"gelu\"");
      demands.want(pre && final_norm, "pre-norm with a final norm");
      demands.want(family == Family::gpt2
                       ? all_biases
                       : model.linear_bias && !model.attention_input_bias && model.attention_output_bias,
                   family == Family::gpt2 ? "all biases" : "all biases but those of queries, keys and values");
      demands.want(family == Family::gpt2 || !model.scale_attention, "scale_attention = false");
      break;
    case Family::llama:
    case Family::mixtral:
      break;
  }
  return demands;
}

/// Collects the tensors of one model.
class Names {
 public:
  explicit Names(const Model& model) {
    for (WholeTensor& tensor : whole_tensors(model)) {
      const auto key = std::pair(tensor.layer, tensor.name);
      own_.emplace(key, std::move(tensor));
    }
  }

  /// Rows [first, last) of ours under the name `theirs`; last = 0: to the end.
  ForeignTensor& rows(int layer, const std::string& own, const std::string& theirs, Range rows, bool transposed) {
    const WholeTensor& tensor = own_.at({layer, own});
    if (rows.last == 0) rows.last = tensor.shape.front();
    const std::int64_t width = tensor.shape.size() > 1 ? tensor.shape[1] : 1;
    ForeignTensor foreign{.name = theirs,
                          .layer = layer,
                          .own_name = own,
                          .rows = rows,
                          .width = width,
                          .transposed = transposed && tensor.shape.size() > 1};
    foreign.shape = {rows.size()};
    if (tensor.shape.size() > 1) foreign.shape = {rows.size(), width};
    if (foreign.transposed) std::swap(foreign.shape[0], foreign.shape[1]);
    return tensors_.emplace_back(std::move(foreign));
  }
  ForeignTensor& whole(int layer, const std::string& own, const std::string& theirs) {
    return rows(layer, own, theirs, {0, 0}, false);
  }
  /// Adds a weight and its bias, if it has one.
  void pair(int layer, const std::string& own, const std::string& theirs, Range rows_of_own = {0, 0},
            bool transposed = false) {
    rows(layer, own + ".weight", theirs + ".weight", rows_of_own, transposed);
    if (own_.contains({layer, own + ".bias"})) rows(layer, own + ".bias", theirs + ".bias", rows_of_own, false);
  }

  /// Adds the router and the experts of a block.
  void experts(int layer, const std::string& theirs, const Experts& experts) {
    whole(layer, "router.weight", theirs + "gate.weight");
    const std::int64_t inner = experts.feed_forward;
    for (int expert = 0; expert < experts.count; ++expert) {
      const std::string at = fmt::format("{}experts.{}.", theirs, expert);
      const std::int64_t gate = std::int64_t{2} * expert * inner;  // its first row; those of `up` follow
      rows(layer, "experts.input.weight", at + "w1.weight", {gate, gate + inner}, false);
      rows(layer, "experts.input.weight", at + "w3.weight", {gate + inner, gate + 2 * inner}, false);
      rows(layer, "experts.output.weight", at + "w2.weight", {expert * inner, (expert + 1) * inner}, true);
    }
  }

  [[nodiscard]] std::vector<ForeignTensor>&& take() { return std::move(tensors_); }

 private:
  std::map<std::pair<int, std::string>, WholeTensor> own_;
  std::vector<ForeignTensor> tensors_;
};

}  // namespace

Result<Family> family_of(const Model& model) {
  struct Candidate {
    Family family;
    std::string_view name;
  };
  constexpr std::array<Candidate, 5> candidates{{{Family::opt, "OPT"},
                                                 {Family::gpt_neo, "GPT-Neo"},
                                                 {Family::gpt2, "GPT-2"},
                                                 {Family::mixtral, "Mixtral"},
                                                 {Family::llama, "LLaMA"}}};
  std::optional<std::pair<std::string_view, std::vector<std::string>>> nearest;
  for (const Candidate& candidate : candidates) {
    const Demands demands = demands_of(candidate.family, model);
    if (demands.broken().empty()) return candidate.family;
    if (!nearest || demands.broken().size() < nearest->second.size()) nearest = {candidate.name, demands.broken()};
  }
  return fail(
      ErrorCode::infeasible,
      fmt::format("model '{}' matches no architecture that transformers has: for {}, the nearest, it would need {}",
                  model.name, nearest->first, join(nearest->second, ", ")),
      "OPT, GPT-Neo, GPT-2, LLaMA and Mixtral can be imported and exported");
}

std::vector<WholeTensor> whole_tensors(const Model& model) {
  Parameter table;  // for a tied head, which has no table of its own
  std::vector<WholeTensor> tensors;
  for (int index = 0; index < model.layers(); ++index) {
    const auto layer = make_layer(model, index, {.token_embedding = &table});
    for (const Parameter& parameter : layer->parameters())
      tensors.push_back({parameter.layer, parameter.name, parameter.shape});
  }
  return tensors;
}

Result<std::vector<ForeignTensor>> foreign_tensors(const Model& model) {
  const auto family = family_of(model);
  if (!family) return fail(family.error());
  Names names(model);
  const int head = model.layers() - 1;
  const int norm = model.has_separate_norm() ? head - 1 : head;
  const std::int64_t hidden = model.hidden;
  const std::int64_t key_value = std::int64_t{model.key_value_heads} * model.head_width();
  const std::int64_t inner = model.feed_forward;
  const Range queries{0, hidden};
  const Range keys{hidden, hidden + key_value};
  const Range values{hidden + key_value, hidden + 2 * key_value};
  const bool has_projection = model.embedding_width != model.hidden;
  const bool is_opt = *family == Family::opt;
  const bool is_llama = is_like_llama(*family);

  const std::string root = is_opt ? "model.decoder." : is_llama ? "model." : "transformer.";
  names.whole(0, token_embedding_name, root + (is_opt || is_llama ? "embed_tokens.weight" : "wte.weight"));
  if (is_opt) {
    ForeignTensor& positions = names.whole(0, "position_embedding.weight", root + "embed_positions.weight");
    positions.rows_before = 2;  // for a former padding token
    positions.shape[0] += positions.rows_before;
    if (has_projection) {
      names.whole(0, "projection.weight", root + "project_in.weight");
      names.whole(head, "projection.weight", root + "project_out.weight");
    }
  } else if (!is_llama) {
    names.whole(0, "position_embedding.weight", root + "wpe.weight");
  }
  for (int block = 0; block < model.blocks; ++block) {
    const int layer = block + 1;
    const std::string at = fmt::format("{}{}.{}.", root, is_opt || is_llama ? "layers" : "h", block);
    switch (*family) {
      case Family::opt:
      case Family::llama:
      case Family::mixtral:
        for (const auto& [name, rows] : {std::pair("q_proj", queries), {"k_proj", keys}, {"v_proj", values}})
          names.pair(layer, "attention.input", at + "self_attn." + name, rows);
        names.pair(layer, "attention.output", at + "self_attn." + (is_opt ? "out_proj" : "o_proj"), {}, true);
        break;
      case Family::gpt_neo:
        for (const auto& [name, rows] : {std::pair("q_proj", queries), {"k_proj", keys}, {"v_proj", values}})
          names.pair(layer, "attention.input", at + "attn.attention." + name, rows);
        names.pair(layer, "attention.output", at + "attn.attention.out_proj", {}, true);
        break;
      case Family::gpt2:  // stores linear maps as (in, out)
        names.pair(layer, "attention.input", at + "attn.c_attn", {}, true);
        names.pair(layer, "attention.output", at + "attn.c_proj");
        break;
    }
    switch (*family) {
      case Family::opt:
        names.pair(layer, "norm1", at + "self_attn_layer_norm");
        names.pair(layer, "norm2", at + "final_layer_norm");
        names.pair(layer, "feed_forward.input", at + "fc1");
        names.pair(layer, "feed_forward.output", at + "fc2", {}, true);
        break;
      case Family::llama:
      case Family::mixtral:
        names.pair(layer, "norm1", at + "input_layernorm");
        names.pair(layer, "norm2", at + "post_attention_layernorm");
        if (*family == Family::mixtral) {
          names.experts(layer, at + "block_sparse_moe.", model.experts);
          break;
        }
        names.pair(layer, "feed_forward.input", at + "mlp.gate_proj", {0, inner});
        names.pair(layer, "feed_forward.input", at + "mlp.up_proj", {inner, 2 * inner});
        names.pair(layer, "feed_forward.output", at + "mlp.down_proj", {}, true);
        break;
      case Family::gpt_neo:
      case Family::gpt2:
        names.pair(layer, "norm1", at + "ln_1");
        names.pair(layer, "norm2", at + "ln_2");
        names.pair(layer, "feed_forward.input", at + "mlp.c_fc", {}, *family == Family::gpt2);
        names.pair(layer, "feed_forward.output", at + "mlp.c_proj", {}, *family == Family::gpt_neo);
        break;
    }
  }
  if (model.final_norm != FinalNorm::none)
    names.pair(norm, "final_norm", root + (is_opt ? "final_layer_norm" : is_llama ? "norm" : "ln_f"));
  if (!model.tied_embedding) names.whole(head, "output.weight", "lm_head.weight");
  return names.take();
}

}  // namespace sailor::runtime
