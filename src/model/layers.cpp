// Parameters and FLOP of a model's layers.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "core/text.hpp"
#include "model/model.hpp"

namespace sailor {

namespace {

std::int64_t norm_parameters(const Model& model) {
  return std::int64_t{model.hidden} * (model.norm == NormKind::layer_norm ? 2 : 1);
}

bool has_projections(const Model& model) { return model.embedding_width != model.hidden; }

bool is_latent(const Model& model) { return model.latent.key_value_rank > 0; }

/// Products around attention: those that tensor parallelism divides by heads, and those of latent states.
struct AttentionProducts {
  std::int64_t divided = 0;
  std::int64_t whole = 0;
};
AttentionProducts attention_products(const Model& model) {
  const std::int64_t h = model.hidden;
  const std::int64_t out = h * model.attended_width();
  if (!is_latent(model)) return {h * (model.query_width() + model.key_width() + model.value_width()) + out, 0};
  const LatentAttention& latent = model.latent;
  const std::int64_t from_states =
      std::int64_t{latent.key_value_rank} * model.attention_heads * (latent.content + latent.value);
  const std::int64_t states = h * (latent.key_value_rank + latent.position);
  if (latent.query_rank == 0) return {h * model.query_width() + from_states + out, states};
  return {std::int64_t{latent.query_rank} * model.query_width() + from_states + out, states + h * latent.query_rank};
}

/// Parameters of one feed-forward part of inner width `inner`.
std::int64_t feed_forward_products(const Model& model, std::int64_t inner) {
  return (model.has_gate() ? 3 : 2) * std::int64_t{model.hidden} * inner;
}
std::int64_t feed_forward_biases(const Model& model, std::int64_t inner) {
  return (model.has_gate() ? 2 : 1) * inner + model.hidden;
}

std::int64_t all_experts(const Model& model) {
  const Experts& experts = model.experts;
  return experts.count * (feed_forward_products(model, experts.feed_forward) +
                          (experts.bias ? feed_forward_biases(model, experts.feed_forward) : 0));
}

std::int64_t block_parameters(const Model& model, int block) {
  const AttentionProducts products = attention_products(model);
  std::int64_t parameters = products.divided + products.whole;
  if (model.attention_input_bias && !is_latent(model))
    parameters += model.query_width() + model.key_width() + model.value_width();
  if (model.attention_output_bias) parameters += model.hidden;
  if (is_latent(model)) parameters += model.latent.query_rank + model.latent.key_value_rank;  // their norms
  if (model.query_key_norm) parameters += std::int64_t{2} * model.head_width();
  if (model.attention_sinks) parameters += model.attention_heads;
  parameters += model.norms_per_block * norm_parameters(model);
  if (!model.has_experts(block))
    return parameters + feed_forward_products(model, model.feed_forward) +
           (model.linear_bias ? feed_forward_biases(model, model.feed_forward) : 0);
  const Experts& experts = model.experts;
  parameters += std::int64_t{model.hidden} * experts.count + (experts.router_bias ? experts.count : 0);
  parameters += all_experts(model);
  if (experts.shared_feed_forward > 0)
    parameters += feed_forward_products(model, experts.shared_feed_forward) + (experts.shared_gate ? model.hidden : 0);
  return parameters;
}

}  // namespace

int Model::query_width() const {
  return attention_heads * (is_latent(*this) ? latent.content + latent.position : head_width());
}
int Model::key_width() const { return is_latent(*this) ? query_width() : key_value_heads * head_width(); }
int Model::value_width() const {
  return is_latent(*this) ? attention_heads * latent.value : key_value_heads * head_width();
}
int Model::attended_width() const { return attention_heads * (is_latent(*this) ? latent.value : head_width()); }

bool Model::has_experts(int block) const {
  return experts.count > 0 && block >= experts.first_dense && (block + 1) % experts.period == 0;
}

int Model::window(int block) const {
  const bool sees_all = full_attention_period > 0 && (block + 1) % full_attention_period == 0;
  return sees_all ? 0 : sliding_window;
}

std::string Model::unplanned_text(bool of_training) const {
  std::vector<std::string> texts;
  for (const UnplannedSetting& setting : unplanned)
    if (of_training || !setting.of_training) texts.push_back(fmt::format("{} = {}", setting.key, setting.value));
  return join(texts, ", ");
}

std::vector<std::pair<std::string_view, int>> Model::feed_forward_widths() const {
  std::vector<std::pair<std::string_view, int>> widths{{"feed_forward", feed_forward}};
  if (experts.count > 0) widths.emplace_back("experts.feed_forward", experts.feed_forward);
  if (experts.shared_feed_forward > 0) widths.emplace_back("experts.shared_feed_forward", experts.shared_feed_forward);
  return widths;
}

std::optional<std::pair<std::string_view, int>> Model::part_that_is_no_multiple(int tensor_parallel,
                                                                                int multiple) const {
  std::vector<std::pair<std::string_view, int>> parts{
      {"hidden", hidden},
      {"queries, keys and values", (query_width() + key_width() + value_width()) / tensor_parallel},
      {"attention", attended_width() / tensor_parallel}};
  for (const auto& [key, width] : feed_forward_widths()) parts.emplace_back(key, width / tensor_parallel);
  for (const auto& part : parts)
    if (part.second % multiple != 0) return part;
  return std::nullopt;
}

double Model::active_feed_forward(int block) const {
  if (!has_experts(block)) return feed_forward;
  const double share = experts.capacity_factor > 0.0 ? experts.capacity_factor : 1.0;
  return share * experts.per_token * experts.feed_forward + experts.shared_feed_forward;
}

int Model::alike_until(int layer) const {
  int end = layer + 1;
  if (layer_kind(layer) != LayerKind::block) return end;
  while (end <= blocks && has_experts(end - 1) == has_experts(layer - 1) && window(end - 1) == window(layer - 1)) ++end;
  return end;
}

std::int64_t Model::parameters(LayerKind kind) const {
  const std::int64_t h = hidden;
  const std::int64_t projection = has_projections(*this) ? std::int64_t{embedding_width} * h : 0;
  switch (kind) {
    case LayerKind::embedding: {
      const std::int64_t positions = learned_positions > 0 ? learned_positions : max_sequence_length;
      return std::int64_t{vocabulary} * embedding_width + (position == PositionKind::learned ? positions * h : 0) +
             projection;
    }
    case LayerKind::block:
      return block_parameters(*this, blocks - 1);
    case LayerKind::final_norm:
      return has_separate_norm() ? norm_parameters(*this) : 0;
    case LayerKind::head:
      return (has_norm_in_head() ? norm_parameters(*this) : 0) + projection +
             (tied_embedding ? 0 : std::int64_t{vocabulary} * embedding_width);
  }
  return 0;
}

std::int64_t Model::layer_parameters(int layer) const {
  const LayerKind kind = layer_kind(layer);
  return kind == LayerKind::block ? block_parameters(*this, layer - 1) : parameters(kind);
}

std::int64_t Model::whole_parameters(int block) const {
  std::int64_t whole = norms_per_block * norm_parameters(*this) + attention_products(*this).whole;
  if (attention_output_bias) whole += hidden;
  if (is_latent(*this)) whole += latent.query_rank + latent.key_value_rank;
  if (query_key_norm) whole += std::int64_t{2} * head_width();
  if (!has_experts(block)) return whole + (linear_bias ? hidden : 0);
  whole += std::int64_t{hidden} * experts.count + (experts.router_bias ? experts.count : 0);
  return whole + (experts.shared_gate ? hidden : 0);
}

std::int64_t Model::total_parameters() const {
  std::int64_t sum = 0;
  for (int layer = 0; layer < layers(); ++layer) sum += layer_parameters(layer);
  return sum;
}

std::int64_t Model::expert_parameters(int layer) const {
  if (layer_kind(layer) != LayerKind::block || !has_experts(layer - 1)) return 0;
  return all_experts(*this);
}

std::int64_t Model::active_parameters() const {
  std::int64_t sum = total_parameters();
  for (int block = 0; block < blocks; ++block)
    if (has_experts(block)) sum -= all_experts(*this) / experts.count * (experts.count - experts.per_token);
  return sum;
}

Flop Model::attention_flop(int block, double tokens, int sequence_length) const {
  // A token's query meets as many keys as there are tokens up to it, half of the sequence on average; with a window w <
  // s, it meets w except for the first w tokens: w - w^2 / 2s. Two products, with keys and with values.
  const double s = sequence_length;
  const double w = window(block);
  const double keys = w > 0.0 && w < s ? w - w * w / (2.0 * s) : s / 2.0;
  return Flop(tokens * 2.0 * keys * (query_width() + attended_width()));
}

Flop Model::layer_forward_flop(int layer, double tokens, int sequence_length) const {
  const double h = hidden;
  const double projection = has_projections(*this) ? 2.0 * embedding_width * h : 0.0;
  switch (layer_kind(layer)) {
    case LayerKind::embedding:
      return Flop(tokens * projection);
    case LayerKind::final_norm:
      return Flop(0.0);
    case LayerKind::head:
      return Flop(tokens * (projection + 2.0 * embedding_width * vocabulary));
    case LayerKind::block:
      break;
  }
  const int block = layer - 1;
  const AttentionProducts attention = attention_products(*this);
  double products = static_cast<double>(attention.divided + attention.whole);
  products += (has_gate() ? 3.0 : 2.0) * h * active_feed_forward(block);
  if (has_experts(block)) products += h * (experts.count + (experts.shared_gate ? 1.0 : 0.0));
  return Flop(2.0 * tokens * products) + attention_flop(block, tokens, sequence_length);
}

Flop Model::forward_flop(LayerKind kind, double tokens, int sequence_length) const {
  const int layer = kind == LayerKind::embedding ? 0
                    : kind == LayerKind::block   ? blocks
                    : kind == LayerKind::head    ? layers() - 1
                    : has_separate_norm()        ? blocks + 1
                                                 : -1;
  return layer < 0 ? Flop(0.0) : layer_forward_flop(layer, tokens, sequence_length);
}

Result<void> check_trainable(const Model& model) {
  std::vector<std::string> beyond;
  const auto note = [&](bool there, std::string what) {
    if (there) beyond.push_back(std::move(what));
  };
  if (const Experts& experts = model.experts; experts.count > 0) {
    note(model.activation != Activation::swiglu, "experts with another activation than swiglu");
    note(experts.bias || experts.router_bias, "experts with biases");
    note(experts.shared_feed_forward > 0 && experts.shared_gate, "a shared expert behind a gate");
    note(experts.shared_feed_forward > 0 && model.linear_bias, "a shared expert with biases");
    note(experts.capacity_factor > 0.0, "experts of a limited capacity");
  }
  note(model.latent.key_value_rank > 0, "latent attention");
  note(model.head_size > 0 && model.head_size * model.attention_heads != model.hidden,
       fmt::format("heads of width {} (hidden / attention_heads is {})", model.head_size,
                   model.hidden / model.attention_heads));
  note(model.gated && model.activation != Activation::swiglu, "a gated GeLU or ReLU");
  note(model.norms_per_block != 2, fmt::format("{} norms in a block", model.norms_per_block));
  note(model.query_key_norm, "norms of queries and keys");
  note(model.attention_sinks, "attention sinks");
  note(model.sliding_window > 0 && model.sliding_window < model.max_sequence_length,
       fmt::format("sliding windows of {} tokens", model.sliding_window));
  note(model.learned_positions > 0 && model.learned_positions != model.max_sequence_length,
       fmt::format("a position table of {} rows for sequences of {}", model.learned_positions,
                   model.max_sequence_length));
  for (const UnplannedSetting& setting : model.unplanned)
    note(!setting.of_training, fmt::format("{} = {}", setting.key, setting.value));
  if (beyond.empty()) return {};
  return fail(ErrorCode::unavailable,
              fmt::format("model '{}' has {}, which sailor-train does not compute", model.name, join(beyond, ", ")),
              "plan and simulate it, and train it with another framework");
}

}  // namespace sailor
