// A transformer block: causal attention and a feed-forward part, each added to the residual stream.
//
//   pre-norm (GPT, LLaMA): middle = x + attention(norm1(x));    y = middle + feed_forward(norm2(middle))
//   post-norm (OPT-350M):  middle = norm1(x + attention(x));    y = norm2(middle + feed_forward(middle))
//
// In a tensor-parallel group each rank has its heads and its part of the feed-forward's inner values. Its two outputs
// are partial sums; rank 0's include the residual stream, so that the all-reduce gives the new residual stream.
//
// Where the model has experts, they are the feed-forward part, beside a shared expert if there is one. In an
// expert-parallel group each rank has its part of the experts (expert_exchange.hpp).
//
// Kept per token until backward, in values of the layer's type, with one rank: pre-norm 3·hidden + attention's input
// (3·hidden, fewer with grouped queries) + feed_forward (swiglu: twice; experts: that of all a token goes through),
// post-norm hidden more, and a few float32 statistics. Outputs of norms and activation functions are recomputed
// instead; with selective recomputation attention's output (hidden) too.
#include <cmath>
#include <optional>
#include <tuple>
#include <utility>

#include "runtime/layers/experts.hpp"
#include "runtime/layers/make_layers.hpp"
#include "runtime/layers/norm.hpp"
#include "runtime/layers/sequence_exchange.hpp"

namespace sailor::runtime {

namespace {

// Widths are those of this rank.
enum Kept : std::size_t {
  kept_input,      // x (tokens, hidden)
  kept_projected,  // queries, keys, values (tokens, AttentionShape::projected_width); rotated, with rotary positions
  kept_log_sum,    // softmax denominators (tokens, heads); not with selective recomputation
  kept_attended,   // (tokens, AttentionShape::width), before the output projection; not with selective recomputation
  kept_middle,     // pre: middle; post: x + attention(x), before norm1 (tokens, hidden)
  kept_fc1,        // (tokens, feed_forward): gelu's input, or relu's output; swiglu's input (tokens, 2 * feed_forward)
  kept_sum,        // post only: before norm2 (tokens, hidden)
  kept_norm1_statistics,
  kept_norm2_statistics,
  kept_experts_inner,
  kept_routing,
  kept_routing_weights,
  kept_expert_weights,
};

class Block final : public Layer {
 public:
  Block(const Model& model, int index, const LayerContext& context)
      : Layer(context, index),
        hidden_(model.hidden),
        feed_forward_(dense_width(model, index) / shard().count),
        attention_{
            .heads = model.attention_heads / shard().count / context_parallel().shard.count,
            .key_value_heads = model.key_value_heads / shard().count / context_parallel().shard.count,
            .head_width = model.head_width(),
            .score_scale = model.scale_attention ? 1.0f / std::sqrt(static_cast<float>(model.head_width())) : 1.0f},
        norm_(model.norm),
        post_norm_(model.norm_placement == NormPlacement::post),
        activation_(model.activation),
        norm_epsilon_(static_cast<float>(model.norm_epsilon)),
        rotary_base_(model.position == PositionKind::rotary ? model.rotary_base : 0.0),
        // The first block (layer 1) is global, the second local, and so on.
        window_(index % 2 == 0 ? model.local_attention_window : 0),
        attention_again_(context.recompute == Recompute::selective) {
    if (context_parallel().group != nullptr) exchange_.emplace(context);
    // Projections back into the residual stream start smaller, so that its variance does not grow with depth (GPT-2).
    const float residual_deviation = initial_deviation / std::sqrt(2.0f * static_cast<float>(model.blocks));
    const std::int64_t key_value_width = std::int64_t{model.key_value_heads} * model.head_width();
    norm1_ = declare_norm("norm1");
    attention_input_ = declare_outputs_divided("attention.input", {hidden_, key_value_width, key_value_width},
                                               model.attention_input_bias);
    attention_output_ =
        declare_inputs_divided("attention.output", hidden_, model.attention_output_bias, residual_deviation);
    norm2_ = declare_norm("norm2");
    if (model.has_experts(index - 1)) declare_experts(model.experts, context, residual_deviation);
    if (const int width = dense_width(model, index); width > 0) {
      const std::string name = mixture_ ? "shared_expert" : "feed_forward";
      fc1_ = declare_outputs_divided(name + ".input", std::vector<std::int64_t>(is_gated() ? 2 : 1, width),
                                     model.linear_bias);
      fc2_ = declare_inputs_divided(name + ".output", width, model.linear_bias, residual_deviation);
    }
  }

  Tensor forward(const MicroBatch& micro_batch, Tensor input, Slot& slot) override {
    const std::int64_t tokens = micro_batch.token_count();
    slot.keep(kept_norm1_statistics, norm(norm1_, tokens).make_statistics(device()));
    slot.keep(kept_norm2_statistics, norm(norm2_, tokens).make_statistics(device()));
    Tensor output;
    if (post_norm_) {
      Tensor sum = attention_forward(micro_batch, input, input, slot);
      Tensor middle = normalized(norm1_, sum, slot.at(kept_norm1_statistics));
      slot.keep(kept_middle, std::move(sum));
      Tensor second_sum = feed_forward_forward(middle, middle, slot);
      output = normalized(norm2_, second_sum, slot.at(kept_norm2_statistics));
      slot.keep(kept_sum, std::move(second_sum));
    } else {
      Tensor middle =
          attention_forward(micro_batch, normalized(norm1_, input, slot.at(kept_norm1_statistics)), input, slot);
      output = feed_forward_forward(normalized(norm2_, middle, slot.at(kept_norm2_statistics)), middle, slot);
      slot.keep(kept_middle, std::move(middle));
    }
    slot.keep(kept_input, std::move(input));
    return output;
  }

  Tensor backward(const MicroBatch& micro_batch, Tensor gradient, Slot& slot) override {
    // `gradient` is that of the residual stream, from the output back to the input.
    const Tensor input = slot.take(kept_input);
    const Tensor middle = slot.take(kept_middle);
    Tensor statistics1 = slot.take(kept_norm1_statistics);
    Tensor statistics2 = slot.take(kept_norm2_statistics);
    if (post_norm_) {
      normalize_backward(norm2_, slot.take(kept_sum), statistics2, gradient);
      add(gradient, feed_forward_backward(micro_batch, normalized(norm1_, middle, statistics1), gradient, slot));
      normalize_backward(norm1_, middle, statistics1, gradient);
      add(gradient, attention_backward(micro_batch, input, gradient, slot));
    } else {
      Tensor branch = feed_forward_backward(micro_batch, normalized(norm2_, middle, statistics2), gradient, slot);
      normalize_backward(norm2_, middle, statistics2, branch, gradient.values());
      branch = attention_backward(micro_batch, normalized(norm1_, input, statistics1), gradient, slot);
      normalize_backward(norm1_, input, statistics1, branch, gradient.values());
    }
    return gradient;
  }

 private:
  /// Indices of a weight and its bias in parameters().
  struct Pair {
    std::size_t weight = 0;
    std::size_t bias = 0;
    bool has_bias = true;
  };

  /// Inner width, over all ranks, of the feed-forward part that every token goes through; 0: there is none.
  static int dense_width(const Model& model, int index) {
    return model.has_experts(index - 1) ? model.experts.shared_feed_forward : model.feed_forward;
  }

  void declare_experts(const Experts& experts, const LayerContext& context, float residual_deviation) {
    const auto count = static_cast<std::size_t>(experts.count);
    router_ = declare("router.weight", {experts.count, hidden_}, InitialValue::normal, initial_deviation);
    const Shard& of_experts = context.expert_parallel.shard;
    experts_input_ = declare_divided("experts.input.weight", std::vector<std::int64_t>(2 * count, experts.feed_forward),
                                     hidden_, initial_deviation, of_experts);
    experts_output_ = declare_divided("experts.output.weight", std::vector<std::int64_t>(count, experts.feed_forward),
                                      hidden_, residual_deviation, of_experts);
    parameter(experts_output_).rows_are_inputs = true;
    mixture_.emplace(experts, hidden_, experts.feed_forward / shard().count, context,
                     ExpertMixture::Places{.inner = kept_experts_inner,
                                           .routing = kept_routing,
                                           .weights = kept_routing_weights,
                                           .arrived_weights = kept_expert_weights});
  }

  Pair declare_norm(const std::string& name) {
    Pair pair{.weight = declare(name + ".weight", {hidden_}, InitialValue::one),
              .has_bias = norm_ == NormKind::layer_norm};
    if (pair.has_bias) pair.bias = declare(name + ".bias", {hidden_}, InitialValue::zero);
    return pair;
  }

  /// Declares a map from hidden_ to segments of outputs; this rank has its part of each segment.
  Pair declare_outputs_divided(const std::string& name, const std::vector<std::int64_t>& segments, bool has_bias) {
    Pair pair{.weight = declare_divided(name + ".weight", segments, hidden_, initial_deviation), .has_bias = has_bias};
    if (has_bias) pair.bias = declare_divided_bias(name + ".bias", segments);
    return pair;
  }

  /// Declares a map from `in` values, of which this rank has its part, to hidden_.
  Pair declare_inputs_divided(const std::string& name, std::int64_t in, bool has_bias, float deviation) {
    Pair pair{.weight = declare_divided(name + ".weight", {in}, hidden_, deviation), .has_bias = has_bias};
    parameter(pair.weight).rows_are_inputs = true;
    if (has_bias) pair.bias = declare(name + ".bias", {hidden_}, InitialValue::zero);
    return pair;
  }

  [[nodiscard]] bool is_gated() const { return activation_ == Activation::swiglu; }
  Parameter& weight(const Pair& pair) { return parameter(pair.weight); }
  Parameter* bias(const Pair& pair) { return pair.has_bias ? &parameter(pair.bias) : nullptr; }

  Norm norm(const Pair& pair, std::int64_t rows) {
    return {.shape = {rows, hidden_, norm_epsilon_}, .weight = &weight(pair), .bias = bias(pair)};
  }

  /// residual + the linear map, still to be all-reduced over the group: rank 0's part includes the residual stream, and
  /// the bias is missing if there are other parts.
  Tensor partial_sum(const Tensor& residual, const Tensor& input, const Pair& linear) {
    Tensor sum = make_activation(residual.shape());
    LinearExtras extras;
    if (shard().index == 0) extras.residual = residual.values();
    linear_forward(input.values(), weight(linear), is_divided() ? nullptr : bias(linear), sum.shape()[0], sum.values(),
                   extras);
    return sum;
  }

  /// residual + the linear map.
  Tensor residual_sum(const Tensor& residual, const Tensor& input, const Pair& linear) {
    Tensor sum = partial_sum(residual, input, linear);
    if (!is_divided()) return sum;
    sum_over_group(sum);
    if (linear.has_bias) stream().add_bias(sum.values(), bias(linear)->value, sum.shape()[0], hidden_);
    return sum;
  }

  void add(Tensor& to, const Tensor& from) { stream().add(to.values(), from.values(), to.elements()); }

  Tensor normalized(const Pair& pair, const Tensor& input, Tensor& statistics) {
    Tensor output = make_activation(input.shape());
    norm_forward(stream(), norm(pair, input.shape()[0]), input, statistics, output);
    return output;
  }

  void normalize_backward(const Pair& pair, const Tensor& input, const Tensor& statistics, Tensor& gradient,
                          Values sum = nullptr) {
    norm_backward(stream(), norm(pair, input.shape()[0]), input, statistics, gradient, sum);
  }

  [[nodiscard]] AttentionShape attention_shape(const MicroBatch& micro_batch) const {
    AttentionShape shape = attention_;
    shape.sequences = micro_batch.sequences;
    shape.sequence_length = micro_batch.sequence_length * context_parallel().shard.count;
    shape.window = window_ < shape.sequence_length ? window_ : 0;
    return shape;
  }

  /// The output of attention, and the logarithms of its softmax denominators, from queries, keys and values.
  std::pair<Tensor, Tensor> attend(const AttentionShape& shape, const Tensor& projected) {
    Tensor attended = make_activation({shape.tokens(), shape.width()});
    Tensor log_sum(device(), {shape.tokens(), shape.heads});
    stream().attention_forward(shape, projected.values(), attended.values(), log_sum.floats());
    return {std::move(attended), std::move(log_sum)};
  }

  // Under context parallelism attention runs on whole sequences of a part of the heads; before and after it a rank has
  // all heads of its part of each sequence.

  [[nodiscard]] std::vector<std::int64_t> query_widths() const { return {attention_.width()}; }
  [[nodiscard]] std::vector<std::int64_t> projected_widths() const {
    return {attention_.width(), attention_.key_value_width(), attention_.key_value_width()};
  }
  [[nodiscard]] Tensor to_heads(Tensor tokens, std::int64_t sequences, const std::vector<std::int64_t>& widths) const {
    return exchange_ ? exchange_->to_heads(tokens, sequences, widths) : std::move(tokens);
  }
  [[nodiscard]] Tensor to_tokens(Tensor heads, std::int64_t sequences, const std::vector<std::int64_t>& widths) const {
    return exchange_ ? exchange_->to_tokens(heads, sequences, widths) : std::move(heads);
  }

  /// residual + attention(input)
  Tensor attention_forward(const MicroBatch& micro_batch, const Tensor& input, const Tensor& residual, Slot& slot) {
    const AttentionShape shape = attention_shape(micro_batch);
    const std::int64_t tokens = micro_batch.token_count();
    Tensor projected = make_activation({tokens, shape.projected_width() * context_parallel().shard.count});
    linear_forward(input.values(), weight(attention_input_), bias(attention_input_), tokens, projected.values());
    projected = to_heads(std::move(projected), shape.sequences, projected_widths());
    if (rotary_base_ > 0.0) stream().rotary(shape, rotary_base_, false, projected.values());
    auto [attended, log_sum] = attend(shape, projected);
    attended = to_tokens(std::move(attended), shape.sequences, query_widths());
    Tensor sum = residual_sum(residual, attended, attention_output_);
    slot.keep(kept_projected, std::move(projected));
    if (attention_again_) return sum;
    slot.keep(kept_attended, std::move(attended));
    slot.keep(kept_log_sum, std::move(log_sum));
    return sum;
  }

  /// The gradient of `input`, given that of the sum that the output was added to.
  Tensor attention_backward(const MicroBatch& micro_batch, const Tensor& input, const Tensor& sum_gradient,
                            Slot& slot) {
    const AttentionShape shape = attention_shape(micro_batch);
    const std::int64_t tokens = micro_batch.token_count();
    Tensor projected_gradient = make_activation({shape.tokens(), shape.projected_width()});
    {
      const Tensor projected = slot.take(kept_projected);
      Tensor attended = slot.take(kept_attended);
      Tensor log_sum = slot.take(kept_log_sum);
      Tensor by_heads;  // `attended`, under context parallelism
      if (attention_again_) {
        std::tie(attended, log_sum) = attend(shape, projected);
        if (exchange_) {
          by_heads = std::move(attended);
          attended = exchange_->to_tokens(by_heads, shape.sequences, query_widths());
        }
      } else if (exchange_) {
        by_heads = exchange_->to_heads(attended, shape.sequences, query_widths());
      }
      linear_backward_parameters(attended.values(), sum_gradient.values(), weight(attention_output_),
                                 bias(attention_output_), tokens);
      Tensor attended_gradient = make_activation({tokens, shape.width() * context_parallel().shard.count});
      linear_backward_input(sum_gradient.values(), weight(attention_output_), tokens, attended_gradient.values());
      attended_gradient = to_heads(std::move(attended_gradient), shape.sequences, query_widths());
      stream().attention_backward(shape, projected.values(), (exchange_ ? by_heads : attended).values(),
                                  log_sum.floats(), attended_gradient.values(), projected_gradient.values());
    }
    if (rotary_base_ > 0.0) stream().rotary(shape, rotary_base_, true, projected_gradient.values());
    projected_gradient = to_tokens(std::move(projected_gradient), shape.sequences, projected_widths());
    Tensor gradient = outputs_divided_backward(attention_input_, input, projected_gradient);
    sum_over_group(gradient);
    return gradient;
  }

  /// residual + feed_forward(input)
  Tensor feed_forward_forward(const Tensor& input, const Tensor& residual, Slot& slot) {
    if (mixture_) return experts_forward(input, residual, slot);
    const Tensor activated = activated_inner(input, slot);
    return residual_sum(residual, activated.empty() ? slot.at(kept_fc1) : activated, fc2_);
  }

  Tensor experts_forward(const Tensor& input, const Tensor& residual, Slot& slot) {
    Tensor sum;
    if (feed_forward_ > 0) {
      sum = partial_sum(residual, activated_inner(input, slot), fc2_);
    } else {
      sum = make_activation(residual.shape());
      if (shard().index == 0)
        stream().copy(sum.data(), residual.data(), sum.bytes());
      else
        stream().zero(sum.data(), sum.bytes());
    }
    mixture_->forward(expert_maps(), input, sum, slot);
    sum_over_group(sum);
    return sum;
  }

  ExpertMixture::Maps expert_maps() {
    return {&parameter(router_), &parameter(experts_input_), &parameter(experts_output_)};
  }

  /// The input of fc2; empty with relu, where the slot keeps it.
  Tensor activated_inner(const Tensor& input, Slot& slot) {
    const std::int64_t tokens = input.shape()[0];
    Tensor fc1_output = make_activation({tokens, (is_gated() ? 2 : 1) * feed_forward_});
    Tensor activated;  // with relu `fc1_output` itself
    if (activation_ != Activation::relu) activated = make_activation({tokens, feed_forward_});
    switch (activation_) {
      case Activation::relu:
        linear_forward(input.values(), weight(fc1_), bias(fc1_), tokens, fc1_output.values(),
                       {.activation = PointwiseActivation::relu});
        break;
      case Activation::gelu:
        linear_forward(input.values(), weight(fc1_), bias(fc1_), tokens, activated.values(),
                       {.activation = PointwiseActivation::gelu, .pre_activation = fc1_output.values()});
        break;
      case Activation::swiglu:
        linear_forward(input.values(), weight(fc1_), bias(fc1_), tokens, fc1_output.values());
        stream().swiglu_forward(fc1_output.values(), nullptr, activated.values(), tokens, feed_forward_);
        break;
    }
    slot.keep(kept_fc1, std::move(fc1_output));
    return activated;
  }

  Tensor feed_forward_backward(const MicroBatch& micro_batch, const Tensor& input, const Tensor& sum_gradient,
                               Slot& slot) {
    Tensor gradient;
    if (mixture_) gradient = mixture_->backward(micro_batch, expert_maps(), input, sum_gradient, slot);
    if (feed_forward_ > 0) {
      Tensor dense = dense_backward(input, sum_gradient, slot);
      if (gradient.empty())
        gradient = std::move(dense);
      else
        add(gradient, dense);
    }
    sum_over_group(gradient);
    return gradient;
  }

  /// This rank's part of the gradient of the input.
  Tensor dense_backward(const Tensor& input, const Tensor& sum_gradient, Slot& slot) {
    const std::int64_t tokens = input.shape()[0];
    Tensor activated = slot.take(kept_fc1);
    Tensor fc1_gradient = make_activation({tokens, feed_forward_});
    switch (activation_) {  // afterwards both tensors match their names
      case Activation::relu:
      case Activation::gelu:
        linear_backward_input(sum_gradient.values(), weight(fc2_), tokens,
                              activation_ == Activation::relu ? PointwiseActivation::relu : PointwiseActivation::gelu,
                              activated.values(), fc1_gradient.values());
        break;
      case Activation::swiglu:
        linear_backward_input(sum_gradient.values(), weight(fc2_), tokens, fc1_gradient.values());
        stream().swiglu_backward(activated.values(), nullptr, fc1_gradient.values(), nullptr, tokens, feed_forward_);
        std::swap(activated, fc1_gradient);
        break;
    }
    linear_backward_parameters(activated.values(), sum_gradient.values(), weight(fc2_), bias(fc2_), tokens);
    activated.reset();
    return outputs_divided_backward(fc1_, input, fc1_gradient);
  }

  /// Backward pass of a map whose outputs are divided: adds its parameters' gradients, returns this rank's part of that
  /// of its input, to be all-reduced.
  Tensor outputs_divided_backward(const Pair& linear, const Tensor& input, const Tensor& output_gradient) {
    const std::int64_t tokens = input.shape()[0];
    linear_backward_parameters(input.values(), output_gradient.values(), weight(linear), bias(linear), tokens);
    Tensor gradient = make_activation({tokens, hidden_});
    linear_backward_input(output_gradient.values(), weight(linear), tokens, gradient.values());
    return gradient;
  }

  std::int64_t hidden_;
  std::int64_t feed_forward_;                 // this rank's part of dense_width()
  AttentionShape attention_;                  // of this rank; sequences and window depend on the micro-batch
  std::optional<SequenceExchange> exchange_;  // under context parallelism
  NormKind norm_;
  bool post_norm_;
  Activation activation_;
  float norm_epsilon_;
  double rotary_base_;  // 0: learned positions
  std::int64_t window_;
  bool attention_again_;  // in the backward pass
  Pair norm1_;
  Pair attention_input_;  // (queries, then keys, then values; hidden)
  Pair attention_output_;
  Pair norm2_;
  Pair fc1_;  // feed_forward.input: (feed_forward; hidden), with swiglu (gate, then up; hidden)
  Pair fc2_;  // feed_forward.output
  std::optional<ExpertMixture> mixture_;
  // Only with experts:
  std::size_t router_ = 0;
  std::size_t experts_input_ = 0;
  std::size_t experts_output_ = 0;
};

}  // namespace

std::unique_ptr<Layer> make_block(const Model& model, int index, const LayerContext& context) {
  return std::make_unique<Block>(model, index, context);
}

}  // namespace sailor::runtime
