// The transformer to be trained: its architecture, its layers, and what they cost.
//
// A model is a list of layers: embedding, transformer blocks, perhaps a final norm, and the head
// (the projection to the vocabulary with the loss; the final norm may be folded into it).
// Ranges of layers are half-open [first, last).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
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

/// The feed-forward part as a mixture of experts: a router sends each token to `per_token` of them. Costs assume that
/// they get equal shares of the tokens.
struct Experts {
  int count = 0;                ///< 0: no experts
  int per_token = 0;            ///< experts that a token goes through
  int feed_forward = 0;         ///< inner width of one expert
  int shared_feed_forward = 0;  ///< inner width of all shared experts (those that every token goes through) together;
                                ///< 0: none
  bool shared_gate = false;     ///< the shared experts' output is weighted by a gate: a separate product with the token
  bool bias = false;            ///< biases in the experts' products
  bool router_bias = false;
  /// 0: dropless. Otherwise an expert computes this many times its equal share, padded, and drops tokens beyond it.
  double capacity_factor = 0.0;
  int first_dense = 0;  ///< number of leading blocks with the plain feed-forward part
  int period = 1;       ///< of blocks 0, 1, ... after them, those with (block + 1) % period = 0 have experts
};

/// Multi-head latent attention (DeepSeek-AI 2024, DeepSeek-V2, section 2.1): queries, and keys and values together, are
/// up-projections of a low-rank latent state. Widths of a head and ranks of these states.
struct LatentAttention {
  int query_rank = 0;      ///< 0: queries come from the hidden state itself
  int key_value_rank = 0;  ///< 0: no latent attention
  int content = 0;         ///< width of a head's query and key without position
  int position = 0;        ///< width of the part with position, which the keys of all heads share
  int value = 0;
};

/// A setting of a model's file that plans do not depend on: it changes what is computed, but no size or time.
struct UnplannedSetting {
  std::string key{};         ///< "rope_scaling"
  std::string value{};       ///< as JSON
  bool of_training = false;  ///< true: a choice of the training; false: a part of the architecture
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
  int local_attention_window = 0;  ///< every second block (1, 3, ...) attends to this many tokens only; 0: to all

  int head_size = 0;   ///< width of a head if it is not hidden / attention_heads; 0: it is
  bool gated = false;  ///< the activation function's output is multiplied by a second product, as SwiGLU's always is
  int norms_per_block = 2;        ///< 4: the outputs of attention and of the feed-forward part are normalized, too
  bool query_key_norm = false;    ///< RMS norms over each head's query and key
  bool attention_sinks = false;   ///< a learned score for each head beside those of the keys
  int learned_positions = 0;      ///< rows of the position table if they are not max_sequence_length; 0: they are
  int sliding_window = 0;         ///< tokens that a block attends to; its attention skips all others; 0: all
  int full_attention_period = 0;  ///< of blocks 0, 1, ... those with (block + 1) % this = 0 attend to all tokens; 0:
                                  ///< none
  Experts experts;
  LatentAttention latent;
  std::vector<UnplannedSetting> unplanned;  ///< only of Hugging Face's config.json

  /// "rope_scaling = {...}, n_group = 8"; "" where nothing is unplanned. Choices for the training may be left out.
  [[nodiscard]] std::string unplanned_text(bool of_training = true) const;
  [[nodiscard]] int head_width() const { return head_size > 0 ? head_size : hidden / attention_heads; }
  [[nodiscard]] bool has_gate() const { return gated || activation == Activation::swiglu; }
  /// Widths over all heads: queries, keys, values as attention gets them, and attention's output.
  [[nodiscard]] int query_width() const;
  [[nodiscard]] int key_width() const;
  [[nodiscard]] int value_width() const;
  [[nodiscard]] int attended_width() const;
  /// For blocks 0, 1, ...: block `block` is layer `block` + 1.
  [[nodiscard]] bool has_experts(int block) const;
  [[nodiscard]] int window(int block) const;  ///< tokens that it attends to; 0: all
  /// Inner width of the feed-forward part that a token goes through, padding of experts included.
  [[nodiscard]] double active_feed_forward(int block) const;
  /// Inner widths of all kinds of feed-forward parts, with their keys in a model file: what tensor parallelism divides.
  [[nodiscard]] std::vector<std::pair<std::string_view, int>> feed_forward_widths() const;
  /// A width of a block's linear layers whose part on each of `tensor_parallel` ranks is no multiple of `multiple`:
  /// what it is, and how wide the part is. std::nullopt: there is none.
  [[nodiscard]] std::optional<std::pair<std::string_view, int>> part_that_is_no_multiple(int tensor_parallel,
                                                                                         int multiple) const;
  /// The first layer after `layer` with another cost.
  [[nodiscard]] int alike_until(int layer) const;
  /// Number of layers: embedding + blocks + separate final norm + head.
  [[nodiscard]] int layers() const { return 1 + blocks + (has_separate_norm() ? 1 : 0) + 1; }
  [[nodiscard]] bool has_separate_norm() const {
    return final_norm == FinalNorm::separate || final_norm == FinalNorm::separate_and_in_head;
  }
  [[nodiscard]] bool has_norm_in_head() const {
    return final_norm == FinalNorm::in_head || final_norm == FinalNorm::separate_and_in_head;
  }
  /// Kind of layer `index`, 0 <= index < layers().
  [[nodiscard]] LayerKind layer_kind(int index) const;

  /// Parameters of one layer; for the kind `block` of the last one, where they differ. A tied head counts its own
  /// parameters only (the final norm, projections); see tied_parameters() for the matrix it shares.
  [[nodiscard]] std::int64_t parameters(LayerKind kind) const;
  [[nodiscard]] std::int64_t layer_parameters(int layer) const;
  /// Parameters of a block that are not part of a divided product: norms, biases after an all-reduce, routers, the
  /// products that make latent states.
  [[nodiscard]] std::int64_t whole_parameters(int block) const;
  /// Parameters of the experts of a layer, without its router and shared experts; 0: it has none.
  [[nodiscard]] std::int64_t expert_parameters(int layer) const;
  /// Parameters of all layers that a token is multiplied with: of the experts, only those that it goes through.
  [[nodiscard]] std::int64_t active_parameters() const;
  /// The token embedding matrix, of which a tied head on another stage needs a second copy.
  [[nodiscard]] std::int64_t tied_parameters() const {
    return tied_embedding ? std::int64_t{vocabulary} * embedding_width : 0;
  }
  /// Parameters of the whole model, shared ones counted once.
  [[nodiscard]] std::int64_t total_parameters() const;

  /// FLOP of the forward pass of one layer for `tokens` tokens in sequences of `sequence_length`, matrix
  /// products only (2·m·n·k each); attention counts the causal half. The backward pass costs twice as much.
  [[nodiscard]] Flop forward_flop(LayerKind kind, double tokens, int sequence_length) const;
  [[nodiscard]] Flop layer_forward_flop(int layer, double tokens, int sequence_length) const;
  /// Attention's part of a block: scores and their products with values, within causal mask and window.
  [[nodiscard]] Flop attention_flop(int block, double tokens, int sequence_length) const;
  /// Values per token that one layer hands to the next (the width of the hidden state).
  [[nodiscard]] int boundary_width() const { return hidden; }
};

/// Checks that sailor-train can compute the model; otherwise it can only be planned and simulated. Errors: unavailable,
/// naming everything that is not supported.
Result<void> check_trainable(const Model& model);

/// Reads one model file, TOML, or JSON as Hugging Face's config.json (hugging_face_config.hpp). Errors: not_found, io,
/// invalid_input with file, line and column.
Result<Model> load_model(const std::filesystem::path& path);
/// The same from text; `source_name` stands for the file in messages.
Result<Model> parse_model(std::string_view text, std::string_view source_name);

/// Finds a model by name or alias (case-insensitive) in a folder of *.toml files, or reads the file if
/// `name_or_path` ends in ".toml" or ".json". Errors: not_found, with the known names; that of a file that is no model.
Result<Model> find_model(const std::string& name_or_path, const std::filesystem::path& folder);

/// All models of a folder, ordered by name. Errors: any file that cannot be read.
Result<std::vector<Model>> load_models(const std::filesystem::path& folder);

}  // namespace sailor
