// The last layer: final norm where the model folds it in here, projection to the embedding's width where that is
// narrower, logits, and the cross-entropy loss.
//
// Forward turns the logits into their gradient at once, in place: in 1F1B the backward pass follows immediately, and
// a second matrix of (tokens, vocabulary) would often be the largest tensor of all.
#include <stdexcept>

#include "runtime/layers/make_layers.hpp"
#include "runtime/layers/norm.hpp"

namespace sailor::runtime {

namespace {

enum Kept : std::size_t {
  kept_input,           // (tokens, hidden)
  kept_statistics,      // of the final norm
  kept_projected,       // (tokens, embedding_width), with a projection only
  kept_logit_gradient,  // (tokens, vocabulary)
};

class Head final : public Layer {
 public:
  Head(const Model& model, int index, const LayerContext& context)
      : Layer(context.device, index),
        hidden_(model.hidden),
        embedding_width_(model.embedding_width),
        vocabulary_(model.vocabulary),
        has_norm_(model.final_norm == FinalNorm::in_head),
        norm_epsilon_(static_cast<float>(model.norm_epsilon)) {
    if (has_norm_) {
      norm_ = declare("final_norm.weight", {hidden_}, InitialValue::one);
      declare("final_norm.bias", {hidden_}, InitialValue::zero);  // at norm_ + 1
    }
    if (has_projection())
      projection_ = declare("projection.weight", {embedding_width_, hidden_}, InitialValue::normal, initial_deviation);
    if (model.tied_embedding && context.token_embedding != nullptr) {
      shared_table_ = context.token_embedding;
    } else {
      table_ = declare(model.tied_embedding ? token_embedding_name : "output.weight", {vocabulary_, embedding_width_},
                       InitialValue::normal, initial_deviation);
      if (model.tied_embedding) parameter(table_).layer = 0;  // a copy of the embedding's: the same initial values
    }
  }

  Tensor forward(const MicroBatch& micro_batch, Tensor input, Slot& slot) override {
    const std::int64_t tokens = micro_batch.token_count();
    if (has_norm_) slot.keep(kept_statistics, Tensor(device(), {2, tokens}));
    Tensor logits(device(), {tokens, vocabulary_});
    {
      Tensor norm_output;
      const Tensor& normalized = normalize(input, slot, norm_output);
      if (has_projection()) {
        Tensor projected(device(), {tokens, embedding_width_});
        linear_forward(normalized.floats(), parameter(projection_), nullptr, tokens, projected.floats());
        linear_forward(projected.floats(), table(), nullptr, tokens, logits.floats());
        slot.keep(kept_projected, std::move(projected));
      } else {
        linear_forward(normalized.floats(), table(), nullptr, tokens, logits.floats());
      }
    }
    device().softmax_cross_entropy(logits.floats(), micro_batch.targets, tokens, vocabulary_, micro_batch.loss_weight,
                                   micro_batch.loss_sum);
    slot.keep(kept_input, std::move(input));
    slot.keep(kept_logit_gradient, std::move(logits));
    return {};
  }

  Tensor backward(const MicroBatch& micro_batch, Tensor, Slot& slot) override {
    const std::int64_t tokens = micro_batch.token_count();
    const Tensor input = slot.take(kept_input);
    Tensor norm_output;
    const Tensor& normalized = normalize(input, slot, norm_output);
    Tensor gradient(device(), {tokens, embedding_width_});
    {
      const Tensor logit_gradient = slot.take(kept_logit_gradient);
      const Tensor& table_input = has_projection() ? slot.at(kept_projected) : normalized;
      linear_backward_parameters(table_input.floats(), logit_gradient.floats(), table(), nullptr, tokens);
      linear_backward_input(logit_gradient.floats(), table(), tokens, gradient.floats());
    }
    if (has_projection()) {
      slot.at(kept_projected).reset();
      linear_backward_parameters(normalized.floats(), gradient.floats(), parameter(projection_), nullptr, tokens);
      Tensor hidden_gradient(device(), {tokens, hidden_});
      linear_backward_input(gradient.floats(), parameter(projection_), tokens, hidden_gradient.floats());
      gradient = std::move(hidden_gradient);
    }
    if (has_norm_)
      norm_backward(device(), norm_shape(tokens), parameter(norm_), parameter(norm_ + 1), input,
                    slot.take(kept_statistics), gradient);
    return gradient;
  }

 private:
  [[nodiscard]] bool has_projection() const { return embedding_width_ != hidden_; }
  [[nodiscard]] NormShape norm_shape(std::int64_t tokens) const { return {tokens, hidden_, norm_epsilon_}; }
  Parameter& table() { return shared_table_ != nullptr ? *shared_table_ : parameter(table_); }

  /// The input itself without a final norm; else its norm, held by `output`.
  const Tensor& normalize(const Tensor& input, Slot& slot, Tensor& output) {
    if (!has_norm_) return input;
    output = Tensor(device(), input.shape());
    norm_forward(device(), norm_shape(input.shape()[0]), parameter(norm_), parameter(norm_ + 1), input,
                 slot.at(kept_statistics), output);
    return output;
  }

  std::int64_t hidden_;
  std::int64_t embedding_width_;
  std::int64_t vocabulary_;
  bool has_norm_;
  float norm_epsilon_;
  // Positions in parameters().
  std::size_t norm_ = 0;
  std::size_t projection_ = 0;
  std::size_t table_ = 0;
  Parameter* shared_table_ = nullptr;  // the embedding's, when that is on the same rank
};

}  // namespace

std::unique_ptr<Layer> make_head(const Model& model, int index, const LayerContext& context) {
  return std::make_unique<Head>(model, index, context);
}

}  // namespace sailor::runtime
