// The last layer: final norm where the model folds it in here, projection to the embedding's width where that is
// narrower, logits, and the cross-entropy loss.
//
// The forward pass turns the logits into their gradient at once, in place: in 1F1B the backward pass follows
// immediately, and a second matrix of (tokens, vocabulary) would often be the largest tensor of all. For the same
// reason bfloat16 logits stay bfloat16; their softmax and the loss are computed in float32.
//
// In a tensor-parallel group each rank has its rows of the matrix, and their logits; the ranks exchange three numbers
// per token for the loss, and all-reduce the gradient of the matrix's input.
#include "runtime/layers/make_layers.hpp"
#include "runtime/layers/norm.hpp"

namespace sailor::runtime {

namespace {

class Head final : public Layer {
  enum Kept : std::size_t {
    kept_input,           // (tokens, hidden)
    kept_statistics,      // of the final norm
    kept_projected,       // (tokens, embedding_width), with a projection only
    kept_logit_gradient,  // (tokens, vocabulary) of this rank, rows stride() apart
  };

 public:
  Head(const Model& model, int index, const LayerContext& context)
      : Layer(context, index),
        hidden_(model.hidden),
        embedding_width_(model.embedding_width),
        classes_(cut(model.vocabulary, shard())),
        has_norm_(model.has_norm_in_head()),
        norm_has_bias_(model.norm == NormKind::layer_norm),
        norm_epsilon_(static_cast<float>(model.norm_epsilon)) {
    if (has_norm_) {
      norm_ = declare("final_norm.weight", {hidden_}, InitialValue::one);
      if (norm_has_bias_) declare("final_norm.bias", {hidden_}, InitialValue::zero);  // at norm_ + 1
    }
    if (has_projection())
      projection_ = declare("projection.weight", {embedding_width_, hidden_}, InitialValue::normal, initial_deviation);
    if (model.tied_embedding && context.token_embedding != nullptr) {
      shared_table_ = context.token_embedding;
    } else {
      table_ = declare_divided(model.tied_embedding ? token_embedding_name : "output.weight", {model.vocabulary},
                               embedding_width_, initial_deviation);
      if (model.tied_embedding) parameter(table_).layer = 0;  // copy of the embedding's, with the same initial values
    }
  }

  Tensor forward(const MicroBatch& micro_batch, Tensor input, Slot& slot) override {
    const std::int64_t tokens = micro_batch.token_count();
    if (has_norm_) slot.keep(kept_statistics, norm(tokens).make_statistics(device()));
    Tensor logits = make_activation({tokens, stride()});
    {
      Tensor norm_output;
      const Tensor& normalized = normalize(input, slot, norm_output);
      if (has_projection()) {
        Tensor projected = make_activation({tokens, embedding_width_});
        linear_forward(normalized.values(), parameter(projection_), nullptr, tokens, projected.values());
        make_logits(projected, logits);
        slot.keep(kept_projected, std::move(projected));
      } else {
        make_logits(normalized, logits);
      }
    }
    cross_entropy(micro_batch, logits);
    slot.keep(kept_input, std::move(input));
    slot.keep(kept_logit_gradient, std::move(logits));
    return {};
  }

  Tensor backward(const MicroBatch& micro_batch, Tensor, Slot& slot) override {
    const std::int64_t tokens = micro_batch.token_count();
    const Tensor input = slot.take(kept_input);
    Tensor norm_output;
    const Tensor& normalized = normalize(input, slot, norm_output);
    Tensor gradient = make_activation({tokens, embedding_width_});
    {
      const Tensor logit_gradient = slot.take(kept_logit_gradient);
      const Tensor& table_input = has_projection() ? slot.at(kept_projected) : normalized;
      stream().linear_backward_parameters(map(tokens), table_input.values(), logit_gradient.values(), table().gradient,
                                          nullptr);
      stream().linear_backward_input(map(tokens), logit_gradient.values(), table().value, gradient.values());
      sum_over_group(gradient);
    }
    if (has_projection()) {
      slot.at(kept_projected).reset();
      linear_backward_parameters(normalized.values(), gradient.values(), parameter(projection_), nullptr, tokens);
      Tensor hidden_gradient = make_activation({tokens, hidden_});
      linear_backward_input(gradient.values(), parameter(projection_), tokens, hidden_gradient.values());
      gradient = std::move(hidden_gradient);
    }
    if (has_norm_) norm_backward(stream(), norm(tokens), input, slot.take(kept_statistics), gradient);
    return gradient;
  }

 private:
  [[nodiscard]] bool has_projection() const { return embedding_width_ != hidden_; }
  Norm norm(std::int64_t tokens) {
    return {.shape = {tokens, hidden_, norm_epsilon_},
            .weight = &parameter(norm_),
            .bias = norm_has_bias_ ? &parameter(norm_ + 1) : nullptr};
  }
  /// Distance between rows of logits, in values.
  [[nodiscard]] std::int64_t stride() { return device().row_stride(classes_.size()); }
  /// Shape of the map from the table's width to logits.
  LinearShape map(std::int64_t tokens) {
    LinearShape shape = linear_shape(table(), tokens);
    shape.out_stride = stride();
    return shape;
  }
  void make_logits(const Tensor& from, Tensor& logits) {
    stream().linear_forward(map(logits.shape()[0]), from.values(), table().value, nullptr, nullptr,
                            PointwiseActivation::none, nullptr, logits.values());
  }
  Parameter& table() { return shared_table_ != nullptr ? *shared_table_ : parameter(table_); }

  /// The input itself without a final norm; else its norm, which `output` holds.
  const Tensor& normalize(const Tensor& input, Slot& slot, Tensor& output) {
    if (!has_norm_) return input;
    output = make_activation(input.shape());
    norm_forward(stream(), norm(input.shape()[0]), input, slot.at(kept_statistics), output);
    return output;
  }

  /// Turns logits into their gradient; adds to the loss.
  void cross_entropy(const MicroBatch& micro_batch, Tensor& logits) {
    const std::int64_t tokens = micro_batch.token_count();
    const LogitsShape shape{tokens, classes_, stride()};
    if (!is_divided()) {
      stream().softmax_cross_entropy(shape, logits.values(), micro_batch.targets, micro_batch.loss_weight,
                                     micro_batch.loss_sum);
      return;
    }
    Tensor maxima(device(), {tokens});
    stream().row_maxima(shape, logits.values(), maxima.floats());
    group().all_reduce_max(stream(), maxima.floats(), tokens);
    Tensor sums(device(), {2, tokens});
    float* target_logits = sums.floats() + tokens;
    stream().softmax_sums(shape, logits.values(), maxima.floats(), micro_batch.targets, sums.floats(), target_logits);
    sum_over_group(sums);
    stream().softmax_gradient(shape, logits.values(), sums.floats(), target_logits, micro_batch.targets,
                              micro_batch.loss_weight, micro_batch.loss_sum);
  }

  std::int64_t hidden_;
  std::int64_t embedding_width_;
  Range classes_;  // of the vocabulary, on this rank
  bool has_norm_;
  bool norm_has_bias_;
  float norm_epsilon_;
  // Indices in parameters().
  std::size_t norm_ = 0;
  std::size_t projection_ = 0;
  std::size_t table_ = 0;
  Parameter* shared_table_ = nullptr;  // the embedding's, if it is on the same rank
};

}  // namespace

std::unique_ptr<Layer> make_head(const Model& model, int index, const LayerContext& context) {
  return std::make_unique<Head>(model, index, context);
}

}  // namespace sailor::runtime
