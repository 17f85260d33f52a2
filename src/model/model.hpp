// The transformer to be trained: its architecture, its layers, and what they cost.
//
// A model is a list of layers: embedding, transformer blocks, perhaps a final norm, and the head
// (the projection to the vocabulary with the loss; the final norm may be folded into it).
// Ranges of layers are half-open [first, last).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "core/units.hpp"

namespace sailor {

enum class LayerKind { embedding, block, final_norm, head };
enum class NormKind { layer_norm, rms_norm };
enum class NormPlacement { pre, post };  ///< before or after attention and feed-forward
enum class Activation { relu, gelu, swiglu };
enum class PositionKind { learned, rotary };
enum class FinalNorm { none, in_head, separate, separate_and_in_head };

std::string_view to_string(LayerKind kind);
Result<LayerKind> parse_layer_kind(std::string_view text);

/// Half-open range of layer indices [first, last).
struct LayerRange {
  int first = 0;
  int last = 0;
  [[nodiscard]] int size() const { return last - first; }
  bool operator==(const LayerRange&) const = default;
};

/// A decoder-only transformer, as a TOML file of `profiles/models/` describes it.
struct Model {
  std::string name;
  std::vector<std::string> aliases;
  std::string source;  ///< where the numbers come from

  int blocks = 0;
  int hidden = 0;
  int embedding_width = 0;  ///< width of the token embedding; projected to `hidden` when smaller
  int attention_heads = 0;
  int key_value_heads = 0;  ///< fewer than attention_heads: grouped-query attention
  int feed_forward = 0;     ///< inner width of the feed-forward part
  int vocabulary = 0;       ///< rows of the token embedding
  int max_sequence_length = 0;

  NormKind norm = NormKind::layer_norm;
  NormPlacement norm_placement = NormPlacement::pre;
  FinalNorm final_norm = FinalNorm::in_head;
  Activation activation = Activation::relu;
  PositionKind position = PositionKind::learned;
  double norm_epsilon = 1e-5;
  double rotary_base = 10000.0;      ///< only for rotary positions
  bool linear_bias = true;           ///< biases in the feed-forward part
  bool attention_input_bias = true;  ///< biases of the query, key and value projections (GPT-Neo has none)
  bool attention_output_bias = true;
  bool tied_embedding = true;      ///< the head uses the token embedding's matrix
  bool scale_attention = true;     ///< scores are divided by sqrt(head width) (GPT-Neo: not)
  int local_attention_window = 0;  ///< every second block (1, 3, ...) sees only that many tokens; 0 = all see all

  [[nodiscard]] int head_width() const { return hidden / attention_heads; }
  /// Number of layers: embedding + blocks + separate final norm + head.
  [[nodiscard]] int layers() const { return 1 + blocks + (has_separate_norm() ? 1 : 0) + 1; }
  [[nodiscard]] bool has_separate_norm() const {
    return final_norm == FinalNorm::separate || final_norm == FinalNorm::separate_and_in_head;
  }
  [[nodiscard]] bool has_norm_in_head() const {
    return final_norm == FinalNorm::in_head || final_norm == FinalNorm::separate_and_in_head;
  }
  /// What layer `index` is, 0 <= index < layers().
  [[nodiscard]] LayerKind layer_kind(int index) const;

  /// Parameters of one layer. A tied head counts its own parameters only (the final norm, projections);
  /// see tied_parameters() for the matrix it shares.
  [[nodiscard]] std::int64_t parameters(LayerKind kind) const;
  /// The token embedding matrix, which a tied head needs a second copy of when it is on another stage.
  [[nodiscard]] std::int64_t tied_parameters() const {
    return tied_embedding ? std::int64_t{vocabulary} * embedding_width : 0;
  }
  /// Parameters of the whole model, shared ones counted once.
  [[nodiscard]] std::int64_t total_parameters() const;

  /// FLOP of the forward pass of one layer for `tokens` tokens in sequences of `sequence_length`, matrix
  /// products only (2·m·n·k each); attention counts the causal half. The backward pass costs twice as much.
  [[nodiscard]] Flop forward_flop(LayerKind kind, double tokens, int sequence_length) const;
  /// Values per token that one layer hands to the next (the width of the hidden state).
  [[nodiscard]] int boundary_width() const { return hidden; }
};

/// Reads one model file. Errors: not_found, io, invalid_input with file, line and column.
Result<Model> load_model(const std::filesystem::path& path);
/// The same from text; `source_name` stands for the file in messages.
Result<Model> parse_model(std::string_view text, std::string_view source_name);

/// Finds a model by name or alias (case-insensitive) in a folder of *.toml files, or reads the file if
/// `name_or_path` ends in ".toml". Errors: not_found, with the known names.
Result<Model> find_model(const std::string& name_or_path, const std::filesystem::path& folder);

/// All models of a folder, by name. Errors: any file that cannot be read.
Result<std::vector<Model>> load_models(const std::filesystem::path& folder);

}  // namespace sailor
