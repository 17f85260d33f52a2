#include "runtime/checkpoint/hugging_face.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <set>

#include "core/files.hpp"
#include "core/text.hpp"
#include "runtime/checkpoint/json.hpp"
#include "runtime/checkpoint/safetensors.hpp"
#include "runtime/layer.hpp"

namespace sailor::runtime {

namespace fs = std::filesystem;

namespace {

using Json = nlohmann::ordered_json;

enum class Family { opt, gpt_neo, gpt2, llama };

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
  demands.want(model.experts.count == 0, "no experts");
  if (family == Family::llama) {
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
      break;
  }
  return demands;
}

Result<Family> family_of(const Model& model) {
  struct Candidate {
    Family family;
    std::string_view name;
  };
  constexpr std::array<Candidate, 4> candidates{
      {{Family::opt, "OPT"}, {Family::gpt_neo, "GPT-Neo"}, {Family::gpt2, "GPT-2"}, {Family::llama, "LLaMA"}}};
  std::optional<std::pair<std::string_view, std::vector<std::string>>> nearest;
  for (const Candidate& candidate : candidates) {
    const Demands demands = demands_of(candidate.family, model);
    if (demands.broken().empty()) return candidate.family;
    if (!nearest || demands.broken().size() < nearest->second.size()) nearest = {candidate.name, demands.broken()};
  }
  return fail(ErrorCode::infeasible,
              fmt::format("model '{}' is none that transformers has: for {}, which is nearest, it would need {}",
                          model.name, nearest->first, fmt::join(nearest->second, ", ")),
              "OPT, GPT-Neo, GPT-2 and LLaMA can be imported and exported");
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

  [[nodiscard]] std::vector<ForeignTensor>&& take() { return std::move(tensors_); }

 private:
  std::map<std::pair<int, std::string>, WholeTensor> own_;
  std::vector<ForeignTensor> tensors_;
};

/// Whether a name is a buffer, not a parameter: a checkpoint may lack it, or an older transformers wrote it.
bool is_buffer(std::string_view name) {
  return name.ends_with(".attn.attention.bias") || name.ends_with(".attn.attention.masked_bias") ||
         name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") || name.ends_with(".rotary_emb.inv_freq");
}

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
      add("hidden_size", model.hidden, 4096);
      add("num_hidden_layers", model.blocks, 32);
      add("num_attention_heads", model.attention_heads, 32);
      add("num_key_value_heads", model.key_value_heads, model.attention_heads);
      add("head_dim", model.head_width(), model.head_width());
      add("intermediate_size", model.feed_forward, 11008);
      add("vocab_size", model.vocabulary, 32000);
      add("max_position_embeddings", model.max_sequence_length, 2048);
      add("hidden_act", "silu", "silu");
      add("rms_norm_eps", model.norm_epsilon, 1e-6);
      add("rope_theta", model.rotary_base, 10000.0);
      add("attention_bias", model.attention_input_bias, false);
      add("mlp_bias", model.linear_bias, false);
      break;
  }
  add("tie_word_embeddings", model.tied_embedding, family != Family::llama);
  return keys;
}

std::string_view model_type(Family family) {
  constexpr std::array<std::string_view, 4> types{"opt", "gpt_neo", "gpt2", "llama"};
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

/// Transposes rows of ours from theirs, or vice versa.
void transpose(const std::vector<float>& from, std::int64_t rows, std::int64_t columns, float* to) {
  constexpr std::int64_t tile = 32;  // source and destination stay in the cache
  for (std::int64_t row0 = 0; row0 < rows; row0 += tile)
    for (std::int64_t column0 = 0; column0 < columns; column0 += tile)
      for (std::int64_t row = row0; row < std::min(rows, row0 + tile); ++row)
        for (std::int64_t column = column0; column < std::min(columns, column0 + tile); ++column)
          to[column * rows + row] = from[static_cast<std::size_t>(row * columns + column)];
}

/// The safetensors files of a folder.
class ForeignFiles {
 public:
  static Result<ForeignFiles> open(const fs::path& folder) {
    ForeignFiles files;
    std::error_code code;
    const fs::path single = folder / "model.safetensors";
    const fs::path index = folder / "model.safetensors.index.json";
    std::set<std::string> names;
    if (fs::exists(single, code)) {
      names.insert(single.filename().string());
    } else if (fs::exists(index, code)) {
      const auto text = read_text_file(index);
      if (!text) return fail(text.error());
      const auto map = parse_weight_map(*text, index.string());
      if (!map) return fail(map.error());
      for (const auto& [tensor, file] : *map) names.insert(file);
    } else {
      return fail(ErrorCode::not_found,
                  fmt::format("'{}' has neither model.safetensors nor model.safetensors.index.json", folder.string()),
                  "name a folder as save_pretrained() writes it (pytorch_model.bin must be converted to safetensors)");
    }
    for (const std::string& name : names) {
      auto file = SafetensorsFile::open(folder / name);
      if (!file) return fail(file.error());
      files.files_.push_back(std::move(*file));
      for (const auto& [tensor, entry] : files.files_.back().tensors())
        if (!files.places_.emplace(tensor, std::pair(files.files_.size() - 1, &entry)).second)
          return fail(ErrorCode::invalid_input,
                      fmt::format("tensor '{}' is in two files of '{}'", valid_utf8(tensor), folder.string()));
    }
    return files;
  }

  /// All names.
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& [name, place] : places_) all.push_back(name);
    return all;
  }
  [[nodiscard]] bool has(const std::string& name) const { return places_.contains(name); }
  [[nodiscard]] const SafetensorsEntry& entry(const std::string& name) const { return *places_.at(name).second; }
  [[nodiscard]] Result<std::vector<float>> read(const std::string& name) const {
    const auto& [file, entry] = places_.at(name);
    return files_[file].read(*entry);
  }

 private:
  std::vector<SafetensorsFile> files_;
  std::map<std::string, std::pair<std::size_t, const SafetensorsEntry*>> places_;
};

/// The name under which a file has a tensor: models are also saved without the head, and then without the first part of
/// each name.
std::optional<std::string> name_in(const ForeignFiles& files, const std::string& name) {
  if (files.has(name)) return name;
  const std::string shorter = name.substr(name.find('.') + 1);
  if (files.has(shorter)) return shorter;
  return std::nullopt;
}

}  // namespace

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
  const bool is_llama = *family == Family::llama;

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
        names.pair(layer, "norm1", at + "input_layernorm");
        names.pair(layer, "norm2", at + "post_attention_layernorm");
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

Result<std::string> config_text(const Model& model) {
  const auto family = family_of(model);
  if (!family) return fail(family.error());
  constexpr std::array<std::string_view, 4> classes{"OPTForCausalLM", "GPTNeoForCausalLM", "GPT2LMHeadModel",
                                                    "LlamaForCausalLM"};
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
    if (*family != Family::llama || rope == config.end() || rope->is_null()) continue;
    for (const char* kind : {"rope_type", "type"})
      if (rope->is_object() && rope->contains(kind) && (*rope)[kind] != "default")
        return refuse(fmt::format("it scales its rotary positions ({}: {}), which Sailor does not", key, shown(*rope)));
  }
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

Result<std::map<std::string, std::string>> parse_weight_map(std::string_view text, std::string_view source_name) {
  const auto refuse = [&](const std::string& what) {
    return fail(ErrorCode::invalid_input, fmt::format("'{}' {}", source_name, what),
                "it must be the index that transformers writes beside several .safetensors files");
  };
  const auto root = parse_foreign_json(text);
  if (!root || !root->is_object() || !root->contains("weight_map") || !(*root)["weight_map"].is_object())
    return refuse("has no weight_map");
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : (*root)["weight_map"].items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : std::string();
    if (name.empty() || name.front() == '.' || name.find('/') != std::string::npos ||
        name.find('\0') != std::string::npos || !name.ends_with(".safetensors"))
      return refuse(fmt::format("says that tensor '{}' is in '{}', which is no .safetensors file of the folder",
                                valid_utf8(tensor), valid_utf8(name)));
    files[tensor] = name;
  }
  return files;
}

Result<void> export_hugging_face(CheckpointReader& checkpoint, const Model& model, const fs::path& folder) {
  SAILOR_CHECK(checkpoint.check_model(model));
  const auto foreign = foreign_tensors(model);
  if (!foreign) return fail(foreign.error());
  const auto config = config_text(model);
  if (!config) return fail(config.error());
  std::error_code code;
  fs::create_directories(folder, code);
  if (code) return fail(ErrorCode::io, fmt::format("cannot make the folder '{}': {}", folder.string(), code.message()));
  for (const char* name : {"config.json", "model.safetensors", "model.safetensors.index.json"})
    if (fs::exists(fs::symlink_status(folder / name, code)))
      return fail(ErrorCode::io, fmt::format("'{}' is there already", (folder / name).string()),
                  "name a folder without a model");
  std::vector<NamedShape> shapes;
  for (const ForeignTensor& tensor : *foreign) shapes.push_back({tensor.name, tensor.shape});
  const auto values = [&](std::size_t index) -> Result<std::vector<float>> {
    const ForeignTensor& tensor = (*foreign)[index];
    const StoredTensor* stored = checkpoint.manifest().find(tensor.layer, tensor.own_name);
    const Range elements{tensor.rows.first * tensor.width, tensor.rows.last * tensor.width};
    if (stored == nullptr || stored->elements() < elements.last)
      return fail(ErrorCode::invalid_input,
                  fmt::format("the checkpoint has no layer {}, {}", tensor.layer, tensor.own_name));
    std::vector<float> data(static_cast<std::size_t>(tensor.rows_before * tensor.width + elements.size()));
    float* const start = data.data() + tensor.rows_before * tensor.width;
    if (!tensor.transposed) {
      SAILOR_CHECK(checkpoint.read(*stored, StoredArray::value, elements, start));
      return data;
    }
    std::vector<float> own(static_cast<std::size_t>(elements.size()));
    SAILOR_CHECK(checkpoint.read(*stored, StoredArray::value, elements, own.data()));
    transpose(own, tensor.rows.size(), tensor.width, start);
    return data;
  };
  SAILOR_CHECK(write_safetensors(folder / "model.safetensors", shapes, values));
  return write_file_atomically(folder / "config.json", *config);
}

Result<void> import_hugging_face(const fs::path& folder, const Model& model, const fs::path& checkpoint) {
  const auto foreign = foreign_tensors(model);
  if (!foreign) return fail(foreign.error());
  const auto config = read_text_file(folder / "config.json");
  if (!config) return fail(config.error());
  SAILOR_CHECK(check_config(*config, (folder / "config.json").string(), model));
  const auto files = ForeignFiles::open(folder);
  if (!files) return fail(files.error());

  std::set<std::string> used;
  std::multimap<std::pair<int, std::string>, std::pair<const ForeignTensor*, std::string>> parts;  // by tensor of ours
  std::string embedding;
  for (const ForeignTensor& tensor : *foreign) {
    const auto name = name_in(*files, tensor.name);
    if (!name)
      return fail(ErrorCode::invalid_input, fmt::format("'{}' has no tensor '{}', which model '{}' needs",
                                                        folder.string(), tensor.name, model.name));
    if (const Shape& shape = files->entry(*name).shape; shape != tensor.shape)
      return fail(ErrorCode::invalid_input,
                  fmt::format("'{}': tensor '{}' has shape ({}), but model '{}' needs ({})", folder.string(), *name,
                              fmt::join(shape, ", "), model.name, fmt::join(tensor.shape, ", ")));
    used.insert(*name);
    if (tensor.layer == 0 && tensor.own_name == token_embedding_name) embedding = *name;
    parts.emplace(std::pair(tensor.layer, tensor.own_name), std::pair(&tensor, *name));
  }
  for (const std::string& name : files->names()) {
    if (used.contains(name) || is_buffer(name)) continue;
    if (name == "lm_head.weight" && model.tied_embedding) {
      const auto head = files->read(name);
      if (!head) return fail(head.error());
      const auto table = files->read(embedding);
      if (!table) return fail(table.error());
      if (*head == *table) continue;
      return fail(ErrorCode::invalid_input,
                  fmt::format("'{}': lm_head.weight is not {}, but model '{}' ties the two", folder.string(), embedding,
                              model.name),
                  "use a model with tied_embedding = false");
    }
    return fail(
        ErrorCode::invalid_input,
        fmt::format("'{}' has tensor '{}', which model '{}' does not", folder.string(), valid_utf8(name), model.name),
        "without it the model would be another one");
  }

  const auto values = [&](const WholeTensor& own) -> Result<std::vector<float>> {
    std::vector<float> data(static_cast<std::size_t>(element_count(own.shape)));
    const auto [begin, end] = parts.equal_range({own.layer, own.name});
    std::int64_t rows = 0;
    for (auto part = begin; part != end; ++part) {
      const auto& [tensor, name] = part->second;
      auto read = files->read(name);
      if (!read) return fail(read.error());
      float* const to = data.data() + tensor->rows.first * tensor->width;
      if (tensor->transposed)
        transpose(*read, tensor->width, tensor->rows.size(), to);
      else
        std::copy(read->begin() + tensor->rows_before * tensor->width, read->end(), to);
      rows += tensor->rows.size();
    }
    if (rows != own.shape.front())
      return fail(ErrorCode::failure, fmt::format("layer {}, {}: no tensor has all of it", own.layer, own.name));
    return data;
  };
  return write_imported_checkpoint(checkpoint, model, fmt::format("imported from {}", folder.string()),
                                   whole_tensors(model), values);
}

}  // namespace sailor::runtime
