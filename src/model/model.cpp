#include "model/model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <system_error>

#include "core/files.hpp"
#include "core/text.hpp"
#include "core/toml_reader.hpp"
#include "model/hugging_face_config.hpp"

namespace sailor {

namespace fs = std::filesystem;

namespace {

constexpr std::array<std::string_view, 4> layer_kind_names{"embedding", "block", "final_norm", "head"};

}  // namespace

std::string_view to_string(LayerKind kind) { return layer_kind_names[static_cast<std::size_t>(kind)]; }

Result<LayerKind> parse_layer_kind(std::string_view text) {
  for (std::size_t i = 0; i < layer_kind_names.size(); ++i)
    if (layer_kind_names[i] == text) return static_cast<LayerKind>(i);
  return fail(ErrorCode::invalid_input, fmt::format("'{}' is no kind of layer", text),
              fmt::format("use one of: {}", join(layer_kind_names, ", ")));
}

LayerKind Model::layer_kind(int index) const {
  if (index == 0) return LayerKind::embedding;
  if (index <= blocks) return LayerKind::block;
  return index == layers() - 1 ? LayerKind::head : LayerKind::final_norm;
}

namespace {

constexpr IntegerRange model_size{.minimum = 1, .maximum = 1 << 24};
constexpr IntegerRange model_size_or_none{.minimum = 0, .maximum = 1 << 24};

Experts read_experts(const TomlTable& table) {
  const auto size = [&](std::string_view key) { return static_cast<int>(table.integer(key, model_size)); };
  const auto size_or = [&](std::string_view key, int fallback) {
    return static_cast<int>(table.integer_or(key, fallback, model_size_or_none));
  };
  Experts experts{.count = size("count"),
                  .per_token = size("per_token"),
                  .feed_forward = size("feed_forward"),
                  .shared_feed_forward = size_or("shared_feed_forward", 0),
                  .shared_gate = table.boolean_or("shared_gate", false),
                  .bias = table.boolean_or("bias", false),
                  .router_bias = table.boolean_or("router_bias", false),
                  .capacity_factor = table.number_or("capacity_factor", 0.0, {.minimum = 0.0, .maximum = 1e3}),
                  .first_dense = size_or("first_dense", 0),
                  .period = static_cast<int>(table.integer_or("period", 1, model_size))};
  if (experts.per_token > experts.count)
    table.reject("per_token",
                 fmt::format("'experts.per_token' is {}, but there are {} experts", experts.per_token, experts.count));
  return experts;
}

LatentAttention read_latent_attention(const TomlTable& table) {
  const auto size = [&](std::string_view key) { return static_cast<int>(table.integer(key, model_size)); };
  return {.query_rank = static_cast<int>(table.integer_or("query_rank", 0, model_size_or_none)),
          .key_value_rank = size("key_value_rank"),
          .content = size("content_width"),
          .position = size("position_width"),
          .value = size("value_width")};
}

/// Features beyond the plain transformer; all of them are optional.
void read_extensions(const TomlTable& root, Model& model) {
  const auto size_or = [&](std::string_view key, int fallback) {
    return static_cast<int>(root.integer_or(key, fallback, model_size_or_none));
  };
  model.head_size = size_or("head_width", 0);
  model.gated = root.boolean_or("gated", false);
  model.norms_per_block = static_cast<int>(root.integer_or("norms_per_block", 2, {.minimum = 2, .maximum = 4}));
  model.query_key_norm = root.boolean_or("query_key_norm", false);
  model.attention_sinks = root.boolean_or("attention_sinks", false);
  model.learned_positions = size_or("learned_positions", 0);
  model.sliding_window = size_or("sliding_window", 0);
  model.full_attention_period = size_or("full_attention_period", 0);
  if (model.full_attention_period > 0 && model.sliding_window == 0)
    root.reject("full_attention_period", "'full_attention_period' is there without sliding_window",
                "add sliding_window, or remove it");
  if (root.has("experts")) {
    const TomlTable table = root.table("experts");
    model.experts = read_experts(table);
    if (model.experts.first_dense >= model.blocks)
      table.reject("first_dense", fmt::format("'experts.first_dense' is {}, but there are {} blocks: none has experts",
                                              model.experts.first_dense, model.blocks));
  }
  if (root.has("latent_attention")) model.latent = read_latent_attention(root.table("latent_attention"));
}

}  // namespace

Result<Model> parse_model(std::string_view text, std::string_view source_name) {
  auto document = TomlDocument::parse(text, source_name);
  if (!document) return fail(document.error());
  document->require_schema_version(1, TomlKind::model);
  const TomlTable root = document->root();
  constexpr IntegerRange size{.minimum = 1, .maximum = 1 << 24};
  auto integer = [&](std::string_view key) { return static_cast<int>(root.integer(key, size)); };

  Model model;
  model.name = root.text("name");
  model.aliases = root.texts_or("aliases", {});
  model.source = root.text("source");
  model.blocks = integer("blocks");
  model.hidden = integer("hidden");
  model.embedding_width = static_cast<int>(root.integer_or("embedding_width", model.hidden, size));
  model.attention_heads = integer("attention_heads");
  model.key_value_heads = static_cast<int>(root.integer_or("key_value_heads", model.attention_heads, size));
  model.feed_forward = integer("feed_forward");
  model.vocabulary = integer("vocabulary");
  model.max_sequence_length = integer("max_sequence_length");
  model.norm = static_cast<NormKind>(root.choice("norm", {"layer_norm", "rms_norm"}));
  model.norm_placement = static_cast<NormPlacement>(root.choice("norm_placement", {"pre", "post"}));
  model.final_norm =
      static_cast<FinalNorm>(root.choice("final_norm", {"none", "in_head", "separate", "separate_and_in_head"}));
  model.activation = static_cast<Activation>(root.choice("activation", {"relu", "gelu", "swiglu"}));
  model.position = static_cast<PositionKind>(root.choice("position", {"learned", "rotary"}));
  model.norm_epsilon = root.number_or("norm_epsilon", 1e-5, {.minimum = 1e-12, .maximum = 1.0});
  if (model.position == PositionKind::rotary)
    model.rotary_base = root.number_or("rotary_base", 10000.0, {.minimum = 1.0, .maximum = 1e12});
  model.linear_bias = root.boolean("linear_bias");
  model.attention_input_bias = root.boolean_or("attention_input_bias", model.linear_bias);
  model.attention_output_bias = root.boolean_or("attention_output_bias", model.linear_bias);
  model.tied_embedding = root.boolean("tied_embedding");
  model.scale_attention = root.boolean_or("scale_attention", true);
  model.local_attention_window =
      static_cast<int>(root.integer_or("local_attention_window", 0, {.minimum = 0, .maximum = 1 << 24}));
  read_extensions(root, model);

  if (model.head_size == 0 && model.latent.key_value_rank == 0 && model.hidden % model.attention_heads != 0)
    root.reject("attention_heads", fmt::format("hidden ({}) is not divisible by attention_heads ({})", model.hidden,
                                               model.attention_heads));
  if (model.attention_heads % model.key_value_heads != 0)
    root.reject("key_value_heads", fmt::format("attention_heads ({}) is not divisible by key_value_heads ({})",
                                               model.attention_heads, model.key_value_heads));
  if (model.embedding_width > model.hidden)
    root.reject("embedding_width",
                fmt::format("embedding_width ({}) is larger than hidden ({})", model.embedding_width, model.hidden));
  SAILOR_CHECK(document->finish());
  return model;
}

Result<Model> load_model(const fs::path& path) {
  auto text = read_text_file(path);
  if (!text) return fail(text.error());
  // A plan refers to its model by path: it must be usable from other folders, too.
  if (path.extension() == ".json")
    return parse_hugging_face_config(*text, fs::absolute(path).lexically_normal().string());
  return parse_model(*text, path.string());
}

namespace {

/// The *.toml files of a folder, sorted. Errors: not_found.
Result<std::vector<fs::path>> files_of(const fs::path& folder) {
  std::error_code code;
  std::vector<fs::path> files;
  for (fs::directory_iterator entry(folder, code), end; !code && entry != end; entry.increment(code))
    if (entry->path().extension() == ".toml") files.push_back(entry->path());
  if (code)
    return fail(ErrorCode::not_found,
                fmt::format("cannot list the models in '{}': {}", folder.string(), code.message()));
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

Result<std::vector<Model>> load_models(const fs::path& folder) {
  const auto files = files_of(folder);
  if (!files) return fail(files.error());
  std::vector<Model> models;
  for (const fs::path& file : *files) {
    auto model = load_model(file);
    if (!model) return fail(model.error());
    models.push_back(std::move(*model));
  }
  return models;
}

Result<Model> find_model(const std::string& name_or_path, const fs::path& folder) {
  if (name_or_path.ends_with(".toml") || name_or_path.ends_with(".json")) return load_model(name_or_path);
  const auto files = files_of(folder);
  if (!files) return fail(files.error());
  std::vector<std::string> names;
  std::optional<Error> no_model;  // of a file, which may be a plan: a folder may have others, too
  for (const fs::path& file : *files) {
    auto model = load_model(file);
    if (!model) {
      if (!no_model) no_model = model.error();
      continue;
    }
    const bool alias = std::any_of(model->aliases.begin(), model->aliases.end(),
                                   [&](const std::string& other) { return equal_ignoring_case(other, name_or_path); });
    if (alias || equal_ignoring_case(model->name, name_or_path)) return model;
    names.push_back(model->name);
  }
  // A folder of Hugging Face's.
  const fs::path config = fs::path(name_or_path) / "config.json";
  if (std::error_code code; fs::is_regular_file(config, code)) return load_model(config);
  if (no_model) return fail(*no_model);
  return fail(ErrorCode::not_found,
              fmt::format("model '{}' is not known (known: {}; from {}, --models names another folder)", name_or_path,
                          join(names, ", "), folder.string()),
              did_you_mean(name_or_path, names,
                           "use one of these, or a path that ends in .toml (a model file) or .json (Hugging Face's "
                           "config.json)"));
}

}  // namespace sailor
