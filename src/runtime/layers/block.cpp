// A transformer block: causal multi-head attention and a feed-forward part, each added to the residual stream.
//
//   pre-norm (GPT):    middle = x + attention(norm1(x));    y = middle + feed_forward(norm2(middle))
//   post-norm (OPT-350M): middle = norm1(x + attention(x)); y = norm2(middle + feed_forward(middle))
//
// Kept per token until backward, in floats: pre-norm 6·hidden + feed_forward, post-norm 7·hidden + feed_forward, and
// a few statistics. Outputs of norms and of gelu are computed again instead.
#include <cmath>

#include "runtime/layers/make_layers.hpp"
#include "runtime/layers/norm.hpp"

namespace sailor::runtime {

namespace {

enum Kept : std::size_t {
  kept_input,      // x (tokens, hidden)
  kept_projected,  // queries, keys, values (tokens, 3 * hidden)
  kept_log_sum,    // softmax denominators (tokens, heads)
  kept_attended,   // (tokens, hidden), before the output projection
  kept_middle,     // pre: middle; post: x + attention(x), before norm1 (tokens, hidden)
  kept_inner,      // (tokens, feed_forward): gelu's input, or relu's output
  kept_sum,        // post only: before norm2 (tokens, hidden)
  kept_norm1_statistics,
  kept_norm2_statistics,
};

class Block final : public Layer {
 public:
  Block(const Model& model, int index, Device& device)
      : Layer(device, index),
        hidden_(model.hidden),
        feed_forward_(model.feed_forward),
        heads_(model.attention_heads),
        post_norm_(model.norm_placement == NormPlacement::post),
        gelu_(model.activation == Activation::gelu),
        norm_epsilon_(static_cast<float>(model.norm_epsilon)),
        score_scale_(model.scale_attention ? 1.0f / std::sqrt(static_cast<float>(model.head_width())) : 1.0f),
        // The first block (layer 1) is global, the second local, and so on.
        window_(index % 2 == 0 ? model.local_attention_window : 0) {
    // Projections back into the residual stream start smaller, so that its variance does not grow with depth (GPT-2).
    const float residual_deviation = initial_deviation / std::sqrt(2.0f * static_cast<float>(model.blocks));
    norm1_ = declare_norm("norm1");
    attention_input_ =
        declare_linear("attention.input", 3 * hidden_, hidden_, model.attention_input_bias, initial_deviation);
    attention_output_ =
        declare_linear("attention.output", hidden_, hidden_, model.attention_output_bias, residual_deviation);
    norm2_ = declare_norm("norm2");
    inner_ = declare_linear("feed_forward.input", feed_forward_, hidden_, model.linear_bias, initial_deviation);
    outer_ = declare_linear("feed_forward.output", hidden_, feed_forward_, model.linear_bias, residual_deviation);
  }

  Tensor forward(const MicroBatch& micro_batch, Tensor input, Slot& slot) override {
    const std::int64_t tokens = micro_batch.token_count();
    slot.keep(kept_norm1_statistics, Tensor(device(), {2, tokens}));
    slot.keep(kept_norm2_statistics, Tensor(device(), {2, tokens}));
    Tensor output;
    if (post_norm_) {
      Tensor sum = copy_of(input);
      attention_forward(micro_batch, input, slot, sum);
      Tensor middle = normalized(norm1_, sum, slot.at(kept_norm1_statistics));
      slot.keep(kept_middle, std::move(sum));
      Tensor second_sum = copy_of(middle);
      feed_forward_forward(middle, slot, second_sum);
      output = normalized(norm2_, second_sum, slot.at(kept_norm2_statistics));
      slot.keep(kept_sum, std::move(second_sum));
    } else {
      Tensor middle = copy_of(input);
      attention_forward(micro_batch, normalized(norm1_, input, slot.at(kept_norm1_statistics)), slot, middle);
      output = copy_of(middle);
      feed_forward_forward(normalized(norm2_, middle, slot.at(kept_norm2_statistics)), slot, output);
      slot.keep(kept_middle, std::move(middle));
    }
    slot.keep(kept_input, std::move(input));
    return output;
  }

  Tensor backward(const MicroBatch& micro_batch, Tensor gradient, Slot& slot) override {
    // `gradient` is that of the residual stream, from the output backwards to the input.
    const Tensor input = slot.take(kept_input);
    const Tensor middle = slot.take(kept_middle);
    Tensor statistics1 = slot.take(kept_norm1_statistics);
    Tensor statistics2 = slot.take(kept_norm2_statistics);
    if (post_norm_) {
      normalize_backward(norm2_, slot.take(kept_sum), statistics2, gradient);
      add(gradient, feed_forward_backward(normalized(norm1_, middle, statistics1), gradient, slot));
      normalize_backward(norm1_, middle, statistics1, gradient);
      add(gradient, attention_backward(micro_batch, input, gradient, slot));
    } else {
      Tensor branch = feed_forward_backward(normalized(norm2_, middle, statistics2), gradient, slot);
      normalize_backward(norm2_, middle, statistics2, branch);
      add(gradient, branch);
      branch = attention_backward(micro_batch, normalized(norm1_, input, statistics1), gradient, slot);
      normalize_backward(norm1_, input, statistics1, branch);
      add(gradient, branch);
    }
    return gradient;
  }

 private:
  /// Positions of a weight and its bias in parameters().
  struct Pair {
    std::size_t weight = 0;
    std::size_t bias = 0;
    bool has_bias = true;
  };

  Pair declare_norm(const std::string& name) {
    const std::size_t weight = declare(name + ".weight", {hidden_}, InitialValue::one);
    return {weight, declare(name + ".bias", {hidden_}, InitialValue::zero)};
  }

  Pair declare_linear(const std::string& name, std::int64_t out, std::int64_t in, bool has_bias, float deviation) {
    Pair pair{.weight = declare(name + ".weight", {out, in}, InitialValue::normal, deviation), .has_bias = has_bias};
    if (has_bias) pair.bias = declare(name + ".bias", {out}, InitialValue::zero);
    return pair;
  }

  Parameter& weight(const Pair& pair) { return parameter(pair.weight); }
  Parameter* bias(const Pair& pair) { return pair.has_bias ? &parameter(pair.bias) : nullptr; }

  [[nodiscard]] NormShape norm_shape(const Tensor& input) const { return {input.shape()[0], hidden_, norm_epsilon_}; }

  Tensor copy_of(const Tensor& source) {
    Tensor copy(device(), source.shape());
    device().copy(copy.data(), source.data(), source.bytes());
    return copy;
  }

  void add(Tensor& to, const Tensor& from) { device().add(to.floats(), from.floats(), to.elements()); }

  Tensor normalized(const Pair& norm, const Tensor& input, Tensor& statistics) {
    Tensor output(device(), input.shape());
    norm_forward(device(), norm_shape(input), weight(norm), *bias(norm), input, statistics, output);
    return output;
  }

  void normalize_backward(const Pair& norm, const Tensor& input, const Tensor& statistics, Tensor& gradient) {
    norm_backward(device(), norm_shape(input), weight(norm), *bias(norm), input, statistics, gradient);
  }

  [[nodiscard]] AttentionShape attention_shape(const MicroBatch& micro_batch) const {
    return {.sequences = micro_batch.sequences,
            .sequence_length = micro_batch.sequence_length,
            .heads = heads_,
            .head_width = hidden_ / heads_,
            .score_scale = score_scale_,
            .window = window_ < micro_batch.sequence_length ? window_ : 0};
  }

  /// sum += attention(input)
  void attention_forward(const MicroBatch& micro_batch, const Tensor& input, Slot& slot, Tensor& sum) {
    const std::int64_t tokens = micro_batch.token_count();
    Tensor projected(device(), {tokens, 3 * hidden_});
    linear_forward(input.floats(), weight(attention_input_), bias(attention_input_), tokens, projected.floats());
    Tensor attended(device(), {tokens, hidden_});
    Tensor log_sum(device(), {tokens, heads_});
    device().attention_forward(attention_shape(micro_batch), projected.floats(), attended.floats(), log_sum.floats());
    linear_forward(attended.floats(), weight(attention_output_), bias(attention_output_), tokens, sum.floats(), true);
    slot.keep(kept_projected, std::move(projected));
    slot.keep(kept_attended, std::move(attended));
    slot.keep(kept_log_sum, std::move(log_sum));
  }

  /// The gradient of `input`, given that of the sum that the output was added to.
  Tensor attention_backward(const MicroBatch& micro_batch, const Tensor& input, const Tensor& sum_gradient,
                            Slot& slot) {
    const std::int64_t tokens = micro_batch.token_count();
    Tensor projected_gradient(device(), {tokens, 3 * hidden_});
    {
      const Tensor projected = slot.take(kept_projected);
      const Tensor attended = slot.take(kept_attended);
      const Tensor log_sum = slot.take(kept_log_sum);
      linear_backward_parameters(attended.floats(), sum_gradient.floats(), weight(attention_output_),
                                 bias(attention_output_), tokens);
      Tensor attended_gradient(device(), {tokens, hidden_});
      linear_backward_input(sum_gradient.floats(), weight(attention_output_), tokens, attended_gradient.floats());
      device().attention_backward(attention_shape(micro_batch), projected.floats(), attended.floats(), log_sum.floats(),
                                  attended_gradient.floats(), projected_gradient.floats());
    }
    linear_backward_parameters(input.floats(), projected_gradient.floats(), weight(attention_input_),
                               bias(attention_input_), tokens);
    Tensor gradient(device(), {tokens, hidden_});
    linear_backward_input(projected_gradient.floats(), weight(attention_input_), tokens, gradient.floats());
    return gradient;
  }

  /// sum += feed_forward(input)
  void feed_forward_forward(const Tensor& input, Slot& slot, Tensor& sum) {
    const std::int64_t tokens = input.shape()[0];
    Tensor inner(device(), {tokens, feed_forward_});
    linear_forward(input.floats(), weight(inner_), bias(inner_), tokens, inner.floats());
    if (gelu_) {
      Tensor activated(device(), {tokens, feed_forward_});
      device().gelu_forward(inner.floats(), activated.floats(), inner.elements());
      linear_forward(activated.floats(), weight(outer_), bias(outer_), tokens, sum.floats(), true);
    } else {
      device().relu_forward(inner.floats(), inner.elements());
      linear_forward(inner.floats(), weight(outer_), bias(outer_), tokens, sum.floats(), true);
    }
    slot.keep(kept_inner, std::move(inner));
  }

  Tensor feed_forward_backward(const Tensor& input, const Tensor& sum_gradient, Slot& slot) {
    const std::int64_t tokens = input.shape()[0];
    Tensor inner = slot.take(kept_inner);
    Tensor inner_gradient(device(), {tokens, feed_forward_});
    linear_backward_input(sum_gradient.floats(), weight(outer_), tokens, inner_gradient.floats());
    if (gelu_)
      device().gelu_backward(inner.floats(), inner_gradient.floats(), inner.elements());  // inner is now the output
    else
      device().relu_backward(inner.floats(), inner_gradient.floats(), inner.elements());
    linear_backward_parameters(inner.floats(), sum_gradient.floats(), weight(outer_), bias(outer_), tokens);
    inner.reset();
    linear_backward_parameters(input.floats(), inner_gradient.floats(), weight(inner_), bias(inner_), tokens);
    Tensor gradient(device(), {tokens, hidden_});
    linear_backward_input(inner_gradient.floats(), weight(inner_), tokens, gradient.floats());
    return gradient;
  }

  std::int64_t hidden_;
  std::int64_t feed_forward_;
  std::int64_t heads_;
  bool post_norm_;
  bool gelu_;
  float norm_epsilon_;
  float score_scale_;
  std::int64_t window_;
  Pair norm1_;
  Pair attention_input_;  // (3 * hidden, hidden): rows of queries, then keys, then values
  Pair attention_output_;
  Pair norm2_;
  Pair inner_;
  Pair outer_;
};

}  // namespace

std::unique_ptr<Layer> make_block(const Model& model, int index, Device& device) {
  return std::make_unique<Block>(model, index, device);
}

}  // namespace sailor::runtime
