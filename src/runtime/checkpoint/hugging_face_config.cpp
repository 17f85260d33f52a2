#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/text.hpp"
#include "runtime/checkpoint/hugging_face.hpp"
#include "runtime/checkpoint/hugging_face_family.hpp"
#include "runtime/checkpoint/json.hpp"

namespace sailor::runtime {

namespace {

using Json = nlohmann::ordered_json;

/// A key of config.json: its value for the model, and the default of transformers if it is missing.
struct ConfigKey {
  std::string name;
  Json value;
  Json usual = nullptr;  ///< null: it must be there
};

std::vector<ConfigKey> config_keys(Family family, const Model& model) {
  std::vector<ConfigKey> keys;
  const auto add = [&](std::string name, Json value, Json usual = nullptr) {
    keys.push_back({std::move(name), std::move(value), std::move(usual)});
  };
  switch (family) {
    case Family::opt:
      add("hidden_size", model.hidden, 768);
      add("word_embed_proj_dim", model.embedding_width, model.hidden);
      add("num_hidden_layers", model.blocks, 12);
      add("num_attention_heads", model.attention_heads, 12);
      add("ffn_dim", model.feed_forward, 3072);
      add("vocab_size", model.vocabulary, 50272);
      add("max_position_embeddings", model.max_sequence_length, 2048);
      add("activation_function", "relu", "relu");
      add("do_layer_norm_before", model.norm_placement == NormPlacement::pre, true);
      add("_remove_final_layer_norm", model.norm_placement == NormPlacement::pre && model.final_norm == FinalNorm::none,
          false);
      add("enable_bias", model.linear_bias, true);
      add("layer_norm_elementwise_affine", true, true);
      break;
    case Family::gpt_neo:
      add("hidden_size", model.hidden, 2048);
      add("num_layers", model.blocks, 24);
      add("num_heads", model.attention_heads, 16);
      add("intermediate_size", model.feed_forward, 4 * model.hidden);
      add("vocab_size", model.vocabulary, 50257);
      add("max_position_embeddings", model.max_sequence_length, 2048);
      add("activation_function", "gelu_new", "gelu_new");
      add("layer_norm_epsilon", model.norm_epsilon, 1e-5);
      break;
    case Family::gpt2:
      add("n_embd", model.hidden, 768);
      add("n_layer", model.blocks, 12);
      add("n_head", model.attention_heads, 12);
      add("n_inner", model.feed_forward, 4 * model.hidden);
      add("vocab_size", model.vocabulary, 50257);
      add("n_positions", model.max_sequence_length, 1024);
      add("activation_function", "gelu_new", "gelu_new");
      add("layer_norm_epsilon", model.norm_epsilon, 1e-5);
      add("scale_attn_weights", true, true);
      add("scale_attn_by_inverse_layer_idx", false, false);
      break;
    case Family::llama:
    case Family::mixtral: {
      const bool mixtral = family == Family::mixtral;
      add("hidden_size", model.hidden, 4096);
      add("num_hidden_layers", model.blocks, 32);
      add("num_attention_heads", model.attention_heads, 32);
      add("num_key_value_heads", model.key_value_heads, mixtral ? 8 : model.attention_heads);
      add("head_dim", model.head_width(), model.head_width());
      add("intermediate_size", mixtral ? model.experts.feed_forward : model.feed_forward, mixtral ? 14336 : 11008);
      add("vocab_size", model.vocabulary, 32000);
      add("max_position_embeddings", model.max_sequence_length, mixtral ? 131072 : 2048);
      add("hidden_act", "silu", "silu");
      add("rms_norm_eps", model.norm_epsilon, mixtral ? 1e-5 : 1e-6);
      add("rope_theta", model.rotary_base, mixtral ? 1e6 : 1e4);
      if (mixtral) {
        add("num_local_experts", model.experts.count, 8);
        add("num_experts_per_tok", model.experts.per_token, 2);
      } else {
        add("attention_bias", model.attention_input_bias, false);
        add("mlp_bias", model.linear_bias, false);
      }
      break;
    }
  }
  add("tie_word_embeddings", model.tied_embedding, !is_like_llama(family));
  return keys;
}

std::string_view model_type(Family family) {
  constexpr std::array<std::string_view, 5> types{"opt", "gpt_neo", "gpt2", "llama", "mixtral"};
  return types[static_cast<std::size_t>(family)];
}

bool is_local(const Model& model, int block) { return model.local_attention_window > 0 && block % 2 == 1; }

/// "global" or "local" by block, of GPT-Neo's attention_types or attention_layers; std::nullopt if they are invalid.
std::optional<std::vector<std::string>> attention_kinds(const Json& config) {
  constexpr std::size_t most = 1 << 20;
  std::vector<std::string> kinds;
  const auto add = [&](const Json& names) {
    if (!names.is_array()) return false;
    for (const Json& name : names) {
      if (!name.is_string() || kinds.size() == most) return false;
      kinds.push_back(name.get<std::string>());
    }
    return true;
  };
  if (const auto layers = config.find("attention_layers"); layers != config.end())
    return add(*layers) ? std::optional(kinds) : std::nullopt;
  const Json usual = Json::array({Json::array({Json::array({"global", "local"}), 12})});
  const auto given = config.find("attention_types");
  const Json& types = given == config.end() ? usual : *given;
  if (!types.is_array()) return std::nullopt;
  for (const Json& entry : types) {
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_array() || entry[0].empty() ||
        !entry[1].is_number_unsigned())
      return std::nullopt;
    for (std::uint64_t i = 0; i < entry[1].get<std::uint64_t>(); ++i)
      if (!add(entry[0])) return std::nullopt;
  }
  return kinds;
}

/// nullptr if the key is missing.
const Json* member(const Json& object, const std::string& key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

bool same(const Json& a, const Json& b) {
  if (a.is_number() && b.is_number()) {  // 1e-05 equals 0.00001, 500000 equals 500000.0
    const auto one = a.get<double>();
    const auto other = b.get<double>();
    return std::abs(one - other) <= 1e-9 * std::abs(one);
  }
  return a == b;
}

}  // namespace

Result<std::string> config_text(const Model& model) {
  const auto family = family_of(model);
  if (!family) return fail(family.error());
  constexpr std::array<std::string_view, 5> classes{"OPTForCausalLM", "GPTNeoForCausalLM", "GPT2LMHeadModel",
                                                    "LlamaForCausalLM", "MixtralForCausalLM"};
  Json config;
  config["architectures"] = {classes[static_cast<std::size_t>(*family)]};
  config["model_type"] = model_type(*family);
  for (const ConfigKey& key : config_keys(*family, model)) config[key.name] = key.value;
  switch (*family) {
    case Family::opt:
      for (const char* key : {"dropout", "attention_dropout", "layerdrop"}) config[key] = 0.0;
      break;
    case Family::gpt_neo: {
      Json types = Json::array();
      if (model.local_attention_window > 0) {
        if (model.blocks > 1) types.push_back({{"global", "local"}, model.blocks / 2});
        if (model.blocks % 2 == 1) types.push_back({Json::array({"global"}), 1});
        config["window_size"] = model.local_attention_window;
      } else {
        types.push_back({Json::array({"global"}), model.blocks});
      }
      config["attention_types"] = std::move(types);
      for (const char* key : {"embed_dropout", "attention_dropout", "resid_dropout"}) config[key] = 0.0;
      break;
    }
    case Family::gpt2:
      for (const char* key : {"embd_pdrop", "attn_pdrop", "resid_pdrop"}) config[key] = 0.0;
      break;
    case Family::llama:
    case Family::mixtral:
      config["attention_dropout"] = 0.0;
      break;
  }
  // Special tokens of the vocabulary belong to the tokenizer, and transformers' defaults may lie outside the
  // vocabulary.
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) config[key] = nullptr;
  config["torch_dtype"] = "float32";
  return config.dump(2) + "\n";
}

Result<void> check_config(std::string_view text, std::string_view source_name, const Model& model) {
  const auto family = family_of(model);
  if (!family) return fail(family.error());
  const auto refuse = [&](const std::string& what) {
    return fail(ErrorCode::invalid_input,
                fmt::format("'{}' does not describe model '{}': {}", source_name, model.name, what),
                "name the model that it describes with --model; a description of one's own is a .toml file as in "
                "profiles/models");
  };
  const auto parsed = parse_foreign_json(text);
  if (!parsed || !parsed->is_object())
    return fail(ErrorCode::invalid_input, fmt::format("'{}' is no JSON object", source_name),
                "it must be the config.json of a transformers model");
  const Json& config = *parsed;
  const auto shown = [](const Json& value) {
    return valid_utf8(value.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 80));
  };
  const auto type = config.find("model_type");
  if (type == config.end() || *type != model_type(*family))
    return refuse(fmt::format("model_type is {} instead of \"{}\"", type == config.end() ? "missing" : shown(*type),
                              model_type(*family)));
  for (const ConfigKey& key : config_keys(*family, model)) {
    const Json* found = member(config, key.name);
    // Newer versions of transformers store it here.
    if (const Json* rope = member(config, "rope_parameters");
        found == nullptr && rope != nullptr && key.name == "rope_theta")
      found = member(*rope, key.name);
    const bool given = found != nullptr && !found->is_null();
    const Json& value = given ? *found : key.usual;
    if (!same(value, key.value))
      return refuse(fmt::format("{} is {}{} instead of {}", key.name, shown(value), given ? "" : " (the default)",
                                shown(key.value)));
  }
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const auto rope = config.find(key);
    if (!is_like_llama(*family) || rope == config.end() || rope->is_null()) continue;
    for (const char* kind : {"rope_type", "type"})
      if (rope->is_object() && rope->contains(kind) && (*rope)[kind] != "default")
        return refuse(fmt::format("it scales its rotary positions ({}: {}), which Sailor does not", key, shown(*rope)));
  }
  if (const Json* window = member(config, "sliding_window");
      *family == Family::mixtral && window != nullptr && !window->is_null())
    return refuse(
        fmt::format("its attention has a sliding window (sliding_window: {}), which Sailor does not compute "
                    "in this form",
                    shown(*window)));
  if (*family == Family::gpt_neo) {
    const auto kinds = attention_kinds(config);
    bool good = kinds && std::ssize(*kinds) == model.blocks;
    for (int block = 0; good && block < model.blocks; ++block)
      good = (*kinds)[static_cast<std::size_t>(block)] == (is_local(model, block) ? "local" : "global");
    if (!good)
      return refuse(model.local_attention_window > 0 ? "its attention is not global and local in turn"
                                                     : "its attention is not global in all blocks");
    const auto window = config.find("window_size");
    const Json size = window == config.end() ? Json(256) : *window;
    if (model.local_attention_window > 0 && !same(size, model.local_attention_window))
      return refuse(fmt::format("window_size is {} instead of {}", shown(size), model.local_attention_window));
  }
  return {};
}

}  // namespace sailor::runtime
