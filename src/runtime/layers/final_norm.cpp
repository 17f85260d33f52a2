// The final norm as a layer of its own, between the last block and the head.
#include "runtime/layers/make_layers.hpp"
#include "runtime/layers/norm.hpp"

namespace sailor::runtime {

namespace {

class FinalNormLayer final : public Layer {
  enum Kept : std::size_t {
    kept_input,  // (tokens, hidden)
    kept_statistics,
  };

 public:
  FinalNormLayer(const Model& model, int index, const LayerContext& context)
      : Layer(context, index),
        hidden_(model.hidden),
        has_bias_(model.norm == NormKind::layer_norm),
        epsilon_(static_cast<float>(model.norm_epsilon)) {
    declare("final_norm.weight", {hidden_}, InitialValue::one);
    if (has_bias_) declare("final_norm.bias", {hidden_}, InitialValue::zero);
  }

  Tensor forward(const MicroBatch& micro_batch, Tensor input, Slot& slot) override {
    const Norm norm = norm_of(micro_batch);
    slot.keep(kept_statistics, norm.make_statistics(device()));
    Tensor output = make_activation(input.shape());
    norm_forward(stream(), norm, input, slot.at(kept_statistics), output);
    slot.keep(kept_input, std::move(input));
    return output;
  }

  Tensor backward(const MicroBatch& micro_batch, Tensor gradient, Slot& slot) override {
    const Tensor input = slot.take(kept_input);
    norm_backward(stream(), norm_of(micro_batch), input, slot.take(kept_statistics), gradient);
    return gradient;
  }

 private:
  Norm norm_of(const MicroBatch& micro_batch) {
    return {.shape = {micro_batch.token_count(), hidden_, epsilon_},
            .weight = &parameter(0),
            .bias = has_bias_ ? &parameter(1) : nullptr};
  }

  std::int64_t hidden_;
  bool has_bias_;
  float epsilon_;
};

}  // namespace

std::unique_ptr<Layer> make_final_norm(const Model& model, int index, const LayerContext& context) {
  return std::make_unique<FinalNormLayer>(model, index, context);
}

}  // namespace sailor::runtime
