// Architectures from transformers' config.json. Every key is read, or is known to change neither parameters nor
// products, or is named in an error: a part that is not understood is never ignored silently.
#include "model/hugging_face_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/text.hpp"

namespace sailor {

namespace {

using nlohmann::json;

// Training, generation, tokens and housekeeping. Keys that begin with an underscore are transformers' own notes.
constexpr std::array ignored_keys{"architectures",
                                  "attention_dropout",
                                  "attn_implementation",
                                  "attn_pdrop",
                                  "auto_map",
                                  "bos_token_id",
                                  "cache_implementation",
                                  "chunk_size_feed_forward",
                                  "classifier_dropout",
                                  "dropout",
                                  "dtype",
                                  "embd_pdrop",
                                  "embedding_initializer_range",
                                  "eos_token_id",
                                  "experts_per_token",
                                  "hidden_dropout",
                                  "hidden_dropout_prob",
                                  "id2label",
                                  "init_std",
                                  "initial_context_length",
                                  "initializer_range",
                                  "is_decoder",
                                  "is_encoder_decoder",
                                  "label2id",
                                  "layer_norm_elementwise_affine",
                                  "layerdrop",
                                  "model_type",
                                  "n_ctx",
                                  "output_attentions",
                                  "output_hidden_states",
                                  "output_router_logits",
                                  "pad_token_id",
                                  "prefix",
                                  "pretraining_tp",
                                  "problem_type",
                                  "reorder_and_upcast_attn",
                                  "resid_pdrop",
                                  "return_dict",
                                  "rope_interleave",
                                  "router_jitter_noise",
                                  "seq_aux",
                                  "summary_activation",
                                  "summary_first_dropout",
                                  "summary_proj_to_labels",
                                  "summary_type",
                                  "summary_use_proj",
                                  "task_specific_params",
                                  "torch_dtype",
                                  "transformers_version",
                                  "use_bidirectional_attention",
                                  "use_cache",
                                  "ep_size"};

/// Keys that change what is computed and nothing that plans count, with the value that changes nothing.
struct UnplannedKey {
  std::string_view key;
  std::string_view neutral{};  ///< as JSON; empty: only null
  bool of_training = false;
};
constexpr std::array unplanned_keys{
    UnplannedKey{.key = "rope_scaling"},
    UnplannedKey{.key = "attn_logit_softcapping"},
    UnplannedKey{.key = "final_logit_softcapping"},
    UnplannedKey{.key = "query_pre_attn_scalar"},
    UnplannedKey{.key = "rotary_pct", .neutral = "1.0"},
    UnplannedKey{.key = "rope_local_base_freq"},
    UnplannedKey{.key = "use_parallel_residual", .neutral = "false"},
    UnplannedKey{.key = "scale_attn_by_inverse_layer_idx", .neutral = "false"},
    UnplannedKey{.key = "swiglu_alpha"},
    UnplannedKey{.key = "swiglu_limit"},
    UnplannedKey{.key = "scoring_func", .neutral = "\"softmax\""},
    UnplannedKey{.key = "topk_method", .neutral = "\"greedy\""},
    UnplannedKey{.key = "n_group", .neutral = "1"},
    UnplannedKey{.key = "topk_group", .neutral = "1"},
    UnplannedKey{.key = "norm_topk_prob", .neutral = "true"},
    UnplannedKey{.key = "routed_scaling_factor", .neutral = "1.0"},
    UnplannedKey{.key = "num_nextn_predict_layers", .neutral = "0"},
    UnplannedKey{.key = "router_aux_loss_coef", .neutral = "0.0", .of_training = true},
    UnplannedKey{.key = "aux_loss_alpha", .neutral = "0.0", .of_training = true},
    UnplannedKey{.key = "quantization_config", .of_training = true},
};

/// What transformers computes where a file has no such key, if that is not neutral.
struct FamilyDefault {
  std::string_view family;
  std::string_view key;
  std::string_view value;  ///< as JSON
};
constexpr std::array family_defaults{
    FamilyDefault{"gpt_neox", "use_parallel_residual", "true"},
    FamilyDefault{"gpt_neox", "rotary_pct", "0.25"},
    FamilyDefault{"qwen2_moe", "norm_topk_prob", "false"},
    FamilyDefault{"qwen3_moe", "norm_topk_prob", "false"},
    FamilyDefault{"deepseek_v3", "scoring_func", "\"sigmoid\""},
    FamilyDefault{"deepseek_v3", "topk_method", "\"noaux_tc\""},
    FamilyDefault{"deepseek_v3", "n_group", "8"},
    FamilyDefault{"deepseek_v3", "topk_group", "4"},
    FamilyDefault{"deepseek_v3", "routed_scaling_factor", "2.5"},
};

/// A family of models: what its files leave out, and how its blocks are built.
struct Family {
  std::string_view name;
  bool rms_norms = true;
  bool gate = true;
  bool tied = false;
  bool input_bias = false;  ///< biases of queries, keys and values
  bool query_key_norm = false;
  int norms_per_block = 2;
  bool experts = false;
};
constexpr std::array families{
    Family{.name = "deepseek_v3", .experts = true},
    Family{.name = "gemma", .tied = true},
    Family{.name = "gemma2", .tied = true, .norms_per_block = 4},
    Family{.name = "gemma3_text", .tied = true, .query_key_norm = true, .norms_per_block = 4},
    Family{.name = "gpt2", .rms_norms = false, .gate = false, .tied = true, .input_bias = true},
    Family{.name = "gpt_neox", .rms_norms = false, .gate = false, .input_bias = true},
    Family{.name = "gpt_oss", .input_bias = true, .experts = true},
    Family{.name = "llama"},
    Family{.name = "mistral"},
    Family{.name = "mixtral", .experts = true},
    Family{.name = "opt", .rms_norms = false, .gate = false, .tied = true, .input_bias = true},
    Family{.name = "qwen2", .input_bias = true},
    Family{.name = "qwen2_moe", .input_bias = true, .experts = true},
    Family{.name = "qwen3", .query_key_norm = true},
    Family{.name = "qwen3_moe", .query_key_norm = true, .experts = true},
};

/// The keys of a file. Keeps the first error, and notes the keys that are read.
class Config {
 public:
  Config(const json& object, std::string_view file) : object_(object), file_(file) {}

  [[nodiscard]] bool has(const std::string& key) const {
    const auto found = object_.find(key);
    return found != object_.end() && !found->is_null();
  }
  void note(const std::string& key) { read_.insert(key); }

  int size(const std::string& key) {
    note(key);
    if (!has(key)) {
      reject(ErrorCode::invalid_input, fmt::format("key '{}' is missing", key),
             "write it down: a config.json may leave out what is the default of its family");
      return 1;
    }
    return size_or(key, 1);
  }
  /// An integer from `smallest` to 2^24.
  int size_or(const std::string& key, int fallback, int smallest = 1) {
    note(key);
    if (!has(key)) return fallback;
    const json& value = object_.at(key);
    const double number = value.is_number() ? value.get<double>() : -1.0;
    if (number >= smallest && number <= (1 << 24) && number == std::floor(number)) return static_cast<int>(number);
    reject(ErrorCode::invalid_input, fmt::format("key '{}' is {} but must be a whole number from {} to {}", key,
                                                 value.dump(), smallest, 1 << 24));
    return fallback;
  }
  double number_or(const std::string& key, double fallback) {
    note(key);
    if (!has(key)) return fallback;
    if (object_.at(key).is_number()) return object_.at(key).get<double>();
    reject(ErrorCode::invalid_input, fmt::format("key '{}' is {} but must be a number", key, object_.at(key).dump()));
    return fallback;
  }
  bool flag_or(const std::string& key, bool fallback) {
    note(key);
    if (!has(key)) return fallback;
    if (object_.at(key).is_boolean()) return object_.at(key).get<bool>();
    reject(ErrorCode::invalid_input,
           fmt::format("key '{}' is {} but must be true or false", key, object_.at(key).dump()));
    return fallback;
  }
  std::string text_or(const std::string& key, std::string fallback) {
    note(key);
    if (!has(key)) return fallback;
    if (object_.at(key).is_string()) return object_.at(key).get<std::string>();
    reject(ErrorCode::invalid_input, fmt::format("key '{}' is {} but must be text", key, object_.at(key).dump()));
    return fallback;
  }
  std::vector<std::string> texts(const std::string& key) {
    note(key);
    std::vector<std::string> list;
    if (!has(key)) return list;
    const json& value = object_.at(key);
    if (!value.is_array() ||
        !std::all_of(value.begin(), value.end(), [](const json& each) { return each.is_string(); }))
      reject(ErrorCode::invalid_input, fmt::format("key '{}' must be a list of texts", key));
    else
      for (const json& each : value) list.push_back(each.get<std::string>());
    return list;
  }
  /// Requires that a key is empty or missing.
  void expect_nothing(const std::string& key, std::string_view why) {
    note(key);
    if (!has(key)) return;
    const json& value = object_.at(key);
    const bool nothing = value.empty() || (value.is_boolean() && !value.get<bool>()) ||
                         (value.is_number() && value.get<double>() == 0.0);
    if (!nothing) not_understood(fmt::format("key '{}' is {}: {}", key, value.dump(), why));
  }
  void not_understood(const std::string& what) {
    reject(ErrorCode::unavailable, what,
           "describe the model as TOML (profiles/models has examples), or leave that out");
  }
  void reject(ErrorCode code, const std::string& what, std::string hint = {}) {
    if (!error_) error_ = Error{code, fmt::format("{}: {}", file_, what), std::move(hint)};
  }

  /// Keys that were not read, except those that change nothing.
  [[nodiscard]] std::vector<std::string> unread() const {
    std::vector<std::string> keys;
    for (const auto& [key, value] : object_.items()) {
      const bool ignored =
          key.starts_with('_') || std::find(ignored_keys.begin(), ignored_keys.end(), key) != ignored_keys.end();
      if (!ignored && !read_.contains(key)) keys.push_back(key);
    }
    return keys;
  }
  [[nodiscard]] const std::optional<Error>& error() const { return error_; }
  [[nodiscard]] const json& object() const { return object_; }

 private:
  const json& object_;
  std::string_view file_;
  std::set<std::string> read_;
  std::optional<Error> error_;
};

/// rope_theta beside the other keys, or in rope_parameters (transformers 5).
double rotary_base_of(Config& config) {
  double base = config.number_or("rope_theta", config.number_or("rotary_emb_base", 10000.0));
  if (config.has("rope_parameters") && config.object().at("rope_parameters").is_object()) {
    const json* rope = &config.object().at("rope_parameters");
    if (rope->contains("full_attention")) rope = &rope->at("full_attention");  // of each kind of block
    if (rope->is_object() && rope->contains("rope_theta") && rope->at("rope_theta").is_number())
      base = rope->at("rope_theta").get<double>();
  }
  if (!(base > 0.0)) config.reject(ErrorCode::invalid_input, fmt::format("rope_theta is {} but must be above 0", base));
  return base;
}

/// Whether rotary positions are as usual, on whole heads: {"rope_type": "default"}, or without a type; or all kinds of
/// blocks have the same such.
bool is_unscaled(const json& rope) {
  if (!rope.is_object()) return false;
  if (std::any_of(rope.begin(), rope.end(), [](const json& value) { return value.is_object(); }))
    return std::all_of(rope.begin(), rope.end(), [&](const json& value) {
      return is_unscaled(value) && value.value("rope_theta", json()) == rope.front().value("rope_theta", json());
    });
  if (rope.contains("partial_rotary_factor") && rope.at("partial_rotary_factor") != 1.0) return false;
  for (const char* key : {"rope_type", "type"})
    if (rope.contains(key)) return rope.at(key) == "default";
  return !rope.contains("factor");
}

void read_unplanned(Config& config, const std::string& type, Model& model) {
  for (const UnplannedKey& known : unplanned_keys) {
    const std::string key(known.key);
    config.note(key);
    const auto usual = std::find_if(family_defaults.begin(), family_defaults.end(),
                                    [&](const FamilyDefault& each) { return each.family == type && each.key == key; });
    if (!config.has(key) && usual == family_defaults.end()) continue;
    const json value = config.has(key) ? config.object().at(key) : json::parse(usual->value);
    if (!known.neutral.empty() && value == json::parse(known.neutral)) continue;
    if (key == "rope_scaling" && !value.is_object())
      config.reject(ErrorCode::invalid_input, fmt::format("key '{}' is {} but must be an object", key, value.dump()));
    if (key == "rope_scaling" && is_unscaled(value)) continue;
    if (key == "query_pre_attn_scalar" && value == model.head_width()) continue;
    if (key == "rope_local_base_freq" && value == model.rotary_base) continue;
    model.unplanned.push_back({.key = key, .value = value.dump(), .of_training = known.of_training});
  }
  config.note("rope_parameters");
  if (config.has("rope_parameters") && !is_unscaled(config.object().at("rope_parameters")))
    model.unplanned.push_back({.key = "rope_parameters", .value = config.object().at("rope_parameters").dump()});
}

void read_activation(Config& config, const std::string& key, const Family& family, Model& model) {
  const std::string name = config.text_or(key, family.gate ? "silu" : "gelu");
  if (name == "silu" || name == "swish") {
    model.activation = Activation::swiglu;
    if (!family.gate) config.not_understood(fmt::format("{} = \"{}\" without a gate", key, name));
  } else if (name.starts_with("gelu")) {
    model.activation = Activation::gelu;
    model.gated = family.gate;
  } else if (name == "relu") {
    model.activation = Activation::relu;
    model.gated = family.gate;
  } else {
    config.not_understood(fmt::format("activation function \"{}\" ({})", name, key));
  }
}

/// Determines which blocks see only a window: by layer_types if the file has them, else by the family's convention.
void read_windows(Config& config, const std::string& type, Model& model) {
  const bool used = config.flag_or("use_sliding_window", type != "qwen2" && type != "qwen2_moe");
  const int window = config.size_or("sliding_window", 0, 0);
  const std::vector<std::string> kinds = config.texts("layer_types");
  config.note("max_window_layers");
  const int pattern = config.size_or("sliding_window_pattern", config.size_or("_sliding_window_pattern", 6));
  if (!kinds.empty()) {
    if (static_cast<int>(kinds.size()) != model.blocks)
      return config.reject(ErrorCode::invalid_input, fmt::format("layer_types has {} entries, but there are {} blocks",
                                                                 kinds.size(), model.blocks));
    for (const std::string& kind : kinds)
      if (kind != "full_attention" && kind != "sliding_attention")
        return config.not_understood(fmt::format("a layer of type \"{}\" (layer_types)", kind));
    const auto first_full = std::find(kinds.begin(), kinds.end(), "full_attention");
    const int period = static_cast<int>(first_full - kinds.begin()) + 1;
    if (period == 1 && std::count(kinds.begin(), kinds.end(), "full_attention") == model.blocks) return;
    for (int block = 0; block < model.blocks; ++block)
      if ((kinds[static_cast<std::size_t>(block)] == "full_attention") != ((block + 1) % period == 0))
        return config.not_understood("layer_types in which full attention does not come at regular intervals");
    model.sliding_window = window;
    model.full_attention_period = first_full == kinds.end() ? 0 : period;
  } else if (window > 0 && used) {
    if (type == "qwen2" || type == "qwen2_moe" || type == "qwen3" || type == "qwen3_moe") {
      if (config.flag_or("use_sliding_window", false))
        config.not_understood("use_sliding_window without layer_types, which say where");
      return;
    }
    model.sliding_window = window;
    if (type == "gemma2" || type == "gpt_oss") model.full_attention_period = 2;
    if (type == "gemma3_text") model.full_attention_period = pattern;
  }
}

void read_experts_of(Config& config, const std::string& type, Model& model) {
  Experts& experts = model.experts;
  experts.per_token = config.size("num_experts_per_tok");
  const char* const count = type == "deepseek_v3"                                  ? "n_routed_experts"
                            : config.has("num_local_experts") || type == "mixtral" ? "num_local_experts"
                                                                                   : "num_experts";
  experts.count = config.size(count);
  config.note("num_experts");
  const bool own_width = type == "deepseek_v3" || type.starts_with("qwen");
  experts.feed_forward = own_width ? config.size("moe_intermediate_size") : model.feed_forward;
  if (type == "deepseek_v3") {
    experts.shared_feed_forward = config.size_or("n_shared_experts", 0, 0) * experts.feed_forward;
    experts.first_dense = config.size_or("first_k_dense_replace", 0, 0);
    if (config.size_or("moe_layer_freq", 1) != 1) config.not_understood("moe_layer_freq other than 1");
  } else if (type.starts_with("qwen")) {
    experts.period = config.size_or("decoder_sparse_step", 1);
    config.expect_nothing("mlp_only_layers", "blocks without experts at places of their own");
    if (type == "qwen2_moe") {
      experts.shared_feed_forward = config.size("shared_expert_intermediate_size");
      experts.shared_gate = true;
    }
  } else if (type == "gpt_oss") {
    experts.bias = experts.router_bias = true;
    model.attention_sinks = true;
  }
  if (experts.per_token > experts.count)
    config.reject(ErrorCode::invalid_input,
                  fmt::format("num_experts_per_tok is {}, but there are {} experts", experts.per_token, experts.count));
}

void read_latent(Config& config, Model& model) {
  model.latent = {.query_rank = config.size_or("q_lora_rank", 0, 0),
                  .key_value_rank = config.size("kv_lora_rank"),
                  .content = config.size("qk_nope_head_dim"),
                  .position = config.size("qk_rope_head_dim"),
                  .value = config.size("v_head_dim")};
  config.note("qk_head_dim");
  config.note("head_dim");
  config.note("num_key_value_heads");
}

/// LLaMA and its descendants, GPT-NeoX among them.
void read_modern(Config& config, const Family& family, Model& model) {
  const std::string type(family.name);
  model.blocks = config.size("num_hidden_layers");
  model.hidden = config.size("hidden_size");
  model.attention_heads = config.size("num_attention_heads");
  model.feed_forward = config.size("intermediate_size");
  model.max_sequence_length = config.size("max_position_embeddings");
  model.position = PositionKind::rotary;
  model.rotary_base = rotary_base_of(config);
  model.norm_epsilon = config.number_or(family.rms_norms ? "rms_norm_eps" : "layer_norm_eps", 1e-6);
  read_activation(config, config.has("hidden_activation") ? "hidden_activation" : "hidden_act", family, model);
  config.expect_nothing("use_mrope", "positions of several dimensions");
  config.note("hidden_act");  // Gemma has both, and computes with the other
  model.key_value_heads = config.size_or("num_key_value_heads", model.attention_heads);
  if (type == "deepseek_v3") {
    read_latent(config, model);
  } else if (const int width = config.size_or("head_dim", 0, 0);
             width > 0 && width * model.attention_heads != model.hidden) {
    model.head_size = width;
  }
  const bool neox = type == "gpt_neox";
  const bool biases = config.flag_or("attention_bias", neox || type == "gpt_oss");
  model.attention_input_bias = config.flag_or("qkv_bias", biases || family.input_bias);
  model.attention_output_bias = biases;
  model.linear_bias = config.flag_or("mlp_bias", neox);
  read_windows(config, type, model);
  if (family.experts) read_experts_of(config, type, model);
}

void read_gpt2(Config& config, const Family& family, Model& model) {
  model.blocks = config.size("n_layer");
  model.hidden = config.size("n_embd");
  model.attention_heads = model.key_value_heads = config.size("n_head");
  model.feed_forward = config.size_or("n_inner", 4 * model.hidden);
  model.max_sequence_length = config.size("n_positions");
  model.norm_epsilon = config.number_or("layer_norm_epsilon", 1e-5);
  model.scale_attention = config.flag_or("scale_attn_weights", true);
  config.expect_nothing("add_cross_attention", "attention to an encoder");
  read_activation(config, "activation_function", family, model);
  model.linear_bias = model.attention_input_bias = model.attention_output_bias = true;
}

void read_opt(Config& config, const Family& family, Model& model) {
  model.blocks = config.size("num_hidden_layers");
  model.hidden = config.size("hidden_size");
  model.attention_heads = model.key_value_heads = config.size("num_attention_heads");
  model.feed_forward = config.size("ffn_dim");
  model.max_sequence_length = config.size("max_position_embeddings");
  model.learned_positions = model.max_sequence_length + 2;  // OPT's positions begin at 2
  model.embedding_width = config.size_or("word_embed_proj_dim", model.hidden);
  const bool pre = config.flag_or("do_layer_norm_before", true);
  model.norm_placement = pre ? NormPlacement::pre : NormPlacement::post;
  config.note("_remove_final_layer_norm");
  model.final_norm = pre && !config.flag_or("_remove_final_layer_norm", false) ? FinalNorm::in_head : FinalNorm::none;
  model.linear_bias = model.attention_input_bias = model.attention_output_bias = config.flag_or("enable_bias", true);
  read_activation(config, "activation_function", family, model);
}

}  // namespace

Result<Model> parse_hugging_face_config(std::string_view text, std::string_view source_name) {
  json object;
  try {
    object = json::parse(text.begin(), text.end());
  } catch (const std::exception& error) {
    return fail(ErrorCode::invalid_input, fmt::format("{}: is no JSON: {}", source_name, error.what()));
  }
  if (!object.is_object())
    return fail(ErrorCode::invalid_input, fmt::format("{}: must be a JSON object", source_name),
                "name the config.json of a model");
  Config config(object, source_name);
  const std::string type = config.text_or("model_type", "");
  const auto family =
      std::find_if(families.begin(), families.end(), [&](const Family& each) { return each.name == type; });
  if (family == families.end()) {
    std::vector<std::string_view> known;
    for (const Family& each : families) known.push_back(each.name);
    return fail(
        ErrorCode::unavailable, fmt::format("{}: model_type \"{}\" is not understood", source_name, type),
        fmt::format("known are {}; or describe the model as TOML (profiles/models has examples)", join(known, ", ")));
  }

  Model model;
  model.name = std::string(source_name);
  model.source = "Hugging Face's config.json";
  model.vocabulary = config.size("vocab_size");
  model.norm = family->rms_norms ? NormKind::rms_norm : NormKind::layer_norm;
  model.norms_per_block = family->norms_per_block;
  model.query_key_norm = family->query_key_norm;
  model.tied_embedding = config.flag_or("tie_word_embeddings", family->tied);
  if (type == "gpt2")
    read_gpt2(config, *family, model);
  else if (type == "opt")
    read_opt(config, *family, model);
  else
    read_modern(config, *family, model);
  if (model.embedding_width == 0) model.embedding_width = model.hidden;
  read_unplanned(config, type, model);

  if (model.head_size == 0 && model.latent.key_value_rank == 0 && model.hidden % model.attention_heads != 0)
    config.reject(ErrorCode::invalid_input, fmt::format("the hidden size ({}) is not divisible by the attention heads "
                                                        "({})",
                                                        model.hidden, model.attention_heads));
  if (model.attention_heads % model.key_value_heads != 0)
    config.reject(ErrorCode::invalid_input,
                  fmt::format("num_attention_heads ({}) is not divisible by num_key_value_heads ({})",
                              model.attention_heads, model.key_value_heads));
  if (config.error()) return fail(*config.error());
  if (const auto unread = config.unread(); !unread.empty())
    return fail(ErrorCode::unavailable,
                fmt::format("{}: not understood for model_type \"{}\": {}", source_name, type, join(unread, ", ")),
                "remove what changes neither weights nor products, or describe the model as TOML");
  return model;
}

}  // namespace sailor
