#include "model/model.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "core/files.hpp"
#include "core/text.hpp"
#include "core/toml_reader.hpp"

namespace sailor {

namespace fs = std::filesystem;

namespace {

constexpr std::array<std::string_view, 4> layer_kind_names{"embedding", "block", "final_norm", "head"};

std::int64_t norm_parameters(const Model& model) {
  return std::int64_t{model.hidden} * (model.norm == NormKind::layer_norm ? 2 : 1);
}

bool has_projections(const Model& model) { return model.embedding_width != model.hidden; }

std::int64_t key_value_width(const Model& model) { return std::int64_t{model.key_value_heads} * model.head_width(); }

std::int64_t block_parameters(const Model& model) {
  const std::int64_t h = model.hidden;
  const std::int64_t kv = key_value_width(model);
  const std::int64_t f = model.feed_forward;
  const std::int64_t attention = h * h + 2 * h * kv + h * h + (model.attention_input_bias ? h + 2 * kv : 0) +
                                 (model.attention_output_bias ? h : 0);
  const bool gated = model.activation == Activation::swiglu;
  const std::int64_t feed_forward = (gated ? 3 : 2) * h * f + (model.linear_bias ? (gated ? 2 : 1) * f + h : 0);
  return attention + feed_forward + 2 * norm_parameters(model);
}

}  // namespace

std::string_view to_string(LayerKind kind) { return layer_kind_names[static_cast<std::size_t>(kind)]; }

Result<LayerKind> parse_layer_kind(std::string_view text) {
  for (std::size_t i = 0; i < layer_kind_names.size(); ++i)
    if (layer_kind_names[i] == text) return static_cast<LayerKind>(i);
  return fail(ErrorCode::invalid_input, fmt::format("'{}' is no kind of layer", text),
              fmt::format("use one of: {}", fmt::join(layer_kind_names, ", ")));
}

LayerKind Model::layer_kind(int index) const {
  if (index == 0) return LayerKind::embedding;
  if (index <= blocks) return LayerKind::block;
  return index == layers() - 1 ? LayerKind::head : LayerKind::final_norm;
}

std::int64_t Model::parameters(LayerKind kind) const {
  const std::int64_t h = hidden;
  const std::int64_t projection = has_projections(*this) ? std::int64_t{embedding_width} * h : 0;
  switch (kind) {
    case LayerKind::embedding:
      return std::int64_t{vocabulary} * embedding_width +
             (position == PositionKind::learned ? std::int64_t{max_sequence_length} * h : 0) + projection;
    case LayerKind::block:
      return block_parameters(*this);
    case LayerKind::final_norm:
      return has_separate_norm() ? norm_parameters(*this) : 0;
    case LayerKind::head:
      return (has_norm_in_head() ? norm_parameters(*this) : 0) + projection +
             (tied_embedding ? 0 : std::int64_t{vocabulary} * embedding_width);
  }
  return 0;
}

std::int64_t Model::total_parameters() const {
  return parameters(LayerKind::embedding) + blocks * parameters(LayerKind::block) + parameters(LayerKind::final_norm) +
         parameters(LayerKind::head);
}

Flop Model::forward_flop(LayerKind kind, double tokens, int sequence_length) const {
  const double h = hidden;
  const double projection = has_projections(*this) ? 2.0 * embedding_width * h : 0.0;
  switch (kind) {
    case LayerKind::embedding:
      return Flop(tokens * projection);
    case LayerKind::final_norm:
      return Flop(0.0);
    case LayerKind::head:
      return Flop(tokens * (projection + 2.0 * embedding_width * vocabulary));
    case LayerKind::block:
      break;
  }
  const double kv = static_cast<double>(key_value_width(*this));
  const double gates = activation == Activation::swiglu ? 3.0 : 2.0;
  const double linear = 2.0 * (2.0 * h * h + 2.0 * h * kv + gates * h * feed_forward);
  // Two products (scores, values) of 2·s·h each per token, of which a causal mask keeps half.
  const double attention = 2.0 * sequence_length * h;
  return Flop(tokens * (linear + attention));
}

Result<Model> parse_model(std::string_view text, std::string_view source_name) {
  auto document = TomlDocument::parse(text, source_name);
  if (!document) return fail(document.error());
  document->require_schema_version(1);
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

  if (model.hidden % model.attention_heads != 0)
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
  return parse_model(*text, path.string());
}

Result<std::vector<Model>> load_models(const fs::path& folder) {
  std::error_code code;
  std::vector<fs::path> files;
  for (fs::directory_iterator entry(folder, code), end; !code && entry != end; entry.increment(code))
    if (entry->path().extension() == ".toml") files.push_back(entry->path());
  if (code)
    return fail(ErrorCode::not_found,
                fmt::format("cannot list the models in '{}': {}", folder.string(), code.message()));
  std::sort(files.begin(), files.end());
  std::vector<Model> models;
  for (const fs::path& file : files) {
    auto model = load_model(file);
    if (!model) return fail(model.error());
    models.push_back(std::move(*model));
  }
  return models;
}

Result<Model> find_model(const std::string& name_or_path, const fs::path& folder) {
  if (name_or_path.ends_with(".toml")) return load_model(name_or_path);
  auto models = load_models(folder);
  if (!models) return fail(models.error());
  std::vector<std::string> names;
  for (Model& model : *models) {
    const bool alias = std::any_of(model.aliases.begin(), model.aliases.end(),
                                   [&](const std::string& other) { return equal_ignoring_case(other, name_or_path); });
    if (alias || equal_ignoring_case(model.name, name_or_path)) return std::move(model);
    names.push_back(model.name);
  }
  return fail(
      ErrorCode::not_found, fmt::format("model '{}' is not known", name_or_path),
      fmt::format("use one of {} (from {}), or a path that ends in .toml", fmt::join(names, ", "), folder.string()));
}

}  // namespace sailor
