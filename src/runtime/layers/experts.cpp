#include "runtime/layers/experts.hpp"

#include <utility>
#include <vector>

namespace sailor::runtime {

ExpertMixture::ExpertMixture(const Experts& experts, std::int64_t hidden, std::int64_t inner,
                             const LayerContext& context, const Places& places)
    : device_(context.device),
      shard_(context.tensor_parallel.shard),
      group_(context.tensor_parallel.group),
      context_parallel_(context.context_parallel),
      router_aux_loss_(context.router_aux_loss),
      loads_(context.loads),
      type_(context.type),
      experts_(experts.count),
      per_token_(experts.per_token),
      hidden_(hidden),
      inner_(inner),
      places_(places) {
  if (context.expert_parallel.group != nullptr) exchange_.emplace(context, experts_);
}

ExpertLoad ExpertMixture::load_of(const RoutingShape& shape, const Routing& routing) const {
  if (exchange_) return exchange_->agree(shape, routing, loads_);
  ExpertLoad load;
  load.offsets.resize(static_cast<std::size_t>(experts_ + 1));
  device_->read(load.offsets.data(), routing.offsets, bytes_of(DataType::int32, experts_ + 1));
  share_if_not_routed(load.offsets, shape.pairs());
  if (loads_ != nullptr) {
    std::vector<std::int64_t> pairs;
    for (std::size_t expert = 0; expert + 1 < load.offsets.size(); ++expert)
      pairs.push_back(load.offsets[expert + 1] - load.offsets[expert]);
    add_loads(pairs, {load.pairs()}, *loads_);
  }
  return load;
}

Routing ExpertMixture::routing(const RoutingShape& shape, Tensor& indices, Tensor& weights) const {
  return {.tokens = indices.integers(),
          .places = indices.integers() + shape.pairs(),
          .offsets = indices.integers() + 2 * shape.pairs(),
          .weights = weights.floats()};
}

Tensor ExpertMixture::of_pairs(const RoutingShape& shape, const Tensor& tokens, const Routing& routing) {
  Tensor pairs(*device_, {shape.pairs(), hidden_}, type_);
  stream().gather_rows(tokens.values(), {0, shape.tokens}, routing.tokens, shape.pairs(), hidden_, pairs.values());
  return pairs;
}

void ExpertMixture::linear(const LinearShape& map, ConstValues input, ConstValues weight, Values output) {
  stream().linear_forward(map, input, weight, nullptr, nullptr, PointwiseActivation::none, nullptr, output);
}

void ExpertMixture::forward(const Maps& maps, const Tensor& input, Tensor& sum, Slot& slot) {
  const RoutingShape shape = this->shape(input.shape()[0]);
  Tensor indices(*device_, {2 * shape.pairs() + experts_ + 1}, DataType::int32);
  Tensor weights(*device_, {shape.pairs()}, DataType::float32);
  const Routing routing = this->routing(shape, indices, weights);
  {
    Tensor logits(*device_, {shape.tokens, experts_}, type_);
    linear(router_map(shape), input.values(), maps.router->value, logits.values());
    stream().route(shape, logits.values(), routing);
  }
  ExpertLoad load = load_of(shape, routing);
  const std::int64_t rows_here = load.pairs();
  Tensor arrived_weights;
  if (exchange_) arrived_weights = exchange_->to_experts(load, weights);
  Tensor inner(*device_, {rows_here, 2 * inner_}, type_);
  {
    const Tensor pairs = to_experts(load, of_pairs(shape, input, routing));
    each_expert(load, [&](std::int64_t expert, std::int64_t first, std::int64_t rows) {
      linear(input_map(rows), pairs.values() + first * hidden_, maps.input->value + input_weight(expert),
             inner.values() + first * 2 * inner_);
    });
  }
  Tensor outputs(*device_, {rows_here, hidden_}, type_);
  {
    Tensor activated(*device_, {rows_here, inner_}, type_);
    if (rows_here > 0)
      stream().swiglu_forward(inner.values(), exchange_ ? arrived_weights.floats() : routing.weights,
                              activated.values(), rows_here, inner_);
    each_expert(load, [&](std::int64_t expert, std::int64_t first, std::int64_t rows) {
      linear(output_map(rows), activated.values() + first * inner_, maps.output->value + output_weight(expert),
             outputs.values() + first * hidden_);
    });
  }
  outputs = to_tokens(load, std::move(outputs));
  stream().add_pairs(shape, routing.places, outputs.values(), hidden_, sum.values());
  slot.keep(places_.inner, std::move(inner));
  slot.keep(places_.routing, std::move(indices));
  slot.keep(places_.weights, std::move(weights));
  slot.keep(places_.arrived_weights, std::move(arrived_weights));
  slot.experts = std::move(load);
}

ExpertMixture::Balance ExpertMixture::balance(const MicroBatch& micro_batch, const Maps& maps, const Tensor& input,
                                              const Routing& routing) {
  const RoutingShape shape = this->shape(input.shape()[0]);
  const std::int64_t length = micro_batch.sequence_length;  // of this rank's parts of the sequences
  const std::int64_t whole = length * context_parallel_.shard.count;
  Balance balance{.logits = Tensor(*device_, {shape.tokens, experts_}, type_),
                  .counts = Tensor(*device_, {micro_batch.sequences, experts_}, DataType::float32)};
  linear(router_map(shape), input.values(), maps.router->value, balance.logits.values());
  stream().count_choices(shape, routing, length, balance.counts.floats());
  if (context_parallel_.group != nullptr)
    context_parallel_.group->all_reduce_sum(stream(), balance.counts.values(), balance.counts.elements());
  // Over the mean number of tokens that an expert gets; P_i is a mean over the sequence's tokens, which the weight of a
  // token's loss accounts for, as it does for the mean over sequences.
  const float over_mean = static_cast<float>(experts_) / static_cast<float>(whole * per_token_);
  balance.added = {.logits = balance.logits.values(),
                   .counts = balance.counts.floats(),
                   .sequence_length = length,
                   .factor = router_aux_loss_ * micro_batch.loss_weight * over_mean};
  return balance;
}

Tensor ExpertMixture::backward(const MicroBatch& micro_batch, const Maps& maps, const Tensor& input,
                               const Tensor& sum_gradient, Slot& slot) {
  const RoutingShape shape = this->shape(input.shape()[0]);
  Tensor inner = slot.take(places_.inner);  // becomes its gradient
  Tensor indices = slot.take(places_.routing);
  Tensor weights = slot.take(places_.weights);
  const Tensor arrived_weights = slot.take(places_.arrived_weights);
  const ExpertLoad load = std::exchange(slot.experts, {});
  const Routing routing = this->routing(shape, indices, weights);
  const std::int64_t rows_here = inner.shape()[0];
  Tensor weight_gradients(*device_, {rows_here}, DataType::float32);
  {
    const Tensor output_gradients = to_experts(load, of_pairs(shape, sum_gradient, routing));
    Tensor activated(*device_, {rows_here, inner_}, type_);  // its gradient at first
    each_expert(load, [&](std::int64_t expert, std::int64_t first, std::int64_t rows) {
      stream().linear_backward_input(output_map(rows), output_gradients.values() + first * hidden_,
                                     maps.output->value + output_weight(expert), activated.values() + first * inner_);
    });
    if (rows_here > 0)
      stream().swiglu_backward(inner.values(), exchange_ ? arrived_weights.floats() : routing.weights,
                               activated.values(), weight_gradients.floats(), rows_here, inner_);
    each_expert(load, [&](std::int64_t expert, std::int64_t first, std::int64_t rows) {
      stream().linear_backward_parameters(output_map(rows), activated.values() + first * inner_,
                                          output_gradients.values() + first * hidden_,
                                          maps.output->gradient + output_weight(expert), nullptr);
    });
  }
  weight_gradients = to_tokens(load, std::move(weight_gradients));
  Tensor gradient(*device_, {shape.tokens, hidden_}, type_);
  {
    // The router is whole on every rank: one of them adds its part of the input's gradient.
    if (shard_.count > 1) group_->all_reduce_sum(stream(), weight_gradients.values(), weight_gradients.elements());
    const LinearShape router = router_map(shape);
    Tensor logits_gradient(*device_, {shape.tokens, experts_}, type_);
    const bool is_balanced = router_aux_loss_ > 0.0f;
    const Balance balance = is_balanced ? this->balance(micro_batch, maps, input, routing) : Balance();
    stream().route_backward(shape, routing, weight_gradients.floats(), is_balanced ? &balance.added : nullptr,
                            logits_gradient.values());
    stream().linear_backward_parameters(router, input.values(), logits_gradient.values(), maps.router->gradient,
                                        nullptr);
    if (shard_.index == 0)
      stream().linear_backward_input(router, logits_gradient.values(), maps.router->value, gradient.values());
    else
      stream().zero(gradient.data(), gradient.bytes());
  }
  Tensor pairs = to_experts(load, of_pairs(shape, input, routing));
  each_expert(load, [&](std::int64_t expert, std::int64_t first, std::int64_t rows) {
    const std::int64_t weight = input_weight(expert);
    const Values inputs = pairs.values() + first * hidden_;
    const Values outputs = inner.values() + first * 2 * inner_;
    stream().linear_backward_parameters(input_map(rows), inputs, outputs, maps.input->gradient + weight, nullptr);
    stream().linear_backward_input(input_map(rows), outputs, maps.input->value + weight, inputs);
  });
  pairs = to_tokens(load, std::move(pairs));
  stream().add_pairs(shape, routing.places, pairs.values(), hidden_, gradient.values());
  return gradient;
}

}  // namespace sailor::runtime
