// Routing of tokens to experts.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "runtime/cpu/kernels.hpp"

namespace sailor::runtime::cpu {

void route(const RoutingShape& shape, const float* logits, const Routing& routing) {
  const std::int64_t chosen = shape.per_token;
  // Until the order is known, `places` holds experts.
  std::vector<float> weights(static_cast<std::size_t>(shape.pairs()));
  std::fill_n(routing.offsets, shape.experts + 1, 0);
  for (std::int64_t token = 0; token < shape.tokens; ++token) {
    const float* const row = logits + token * shape.experts;
    std::int32_t* const experts = routing.places + token * chosen;
    float* const of_token = weights.data() + token * chosen;
    float sum = 0.0f;
    for (std::int64_t i = 0; i < chosen; ++i) {
      std::int32_t best = -1;
      for (std::int32_t expert = 0; expert < shape.experts; ++expert)
        if (std::find(experts, experts + i, expert) == experts + i && (best < 0 || row[expert] > row[best]))
          best = expert;
      experts[i] = best;
      of_token[i] = std::exp(row[best] - row[experts[0]]);
      sum += of_token[i];
      ++routing.offsets[best + 1];
    }
    for (std::int64_t i = 0; i < chosen; ++i) of_token[i] /= sum;
  }
  for (std::int64_t expert = 0; expert < shape.experts; ++expert)
    routing.offsets[expert + 1] += routing.offsets[expert];
  std::vector<std::int32_t> next(routing.offsets, routing.offsets + shape.experts);
  for (std::int64_t pair = 0; pair < shape.pairs(); ++pair) {  // in the order of tokens
    const std::int32_t place = next[static_cast<std::size_t>(routing.places[pair])]++;
    routing.places[pair] = place;
    routing.tokens[place] = static_cast<std::int32_t>(pair / chosen);
    routing.weights[place] = weights[static_cast<std::size_t>(pair)];
  }
}

// With weights p, a softmax over the chosen, and their gradients g, the gradient of logit i is p_i (g_i - sum of p_j
// g_j).
void route_backward(const RoutingShape& shape, const Routing& routing, const float* weight_gradients,
                    float* logits_gradient) {
  std::fill_n(logits_gradient, shape.tokens * shape.experts, 0.0f);
  std::vector<float> mean(static_cast<std::size_t>(shape.tokens));
  for (std::int64_t pair = 0; pair < shape.pairs(); ++pair) {
    const std::int32_t place = routing.places[pair];
    mean[static_cast<std::size_t>(pair / shape.per_token)] += routing.weights[place] * weight_gradients[place];
  }
  for (std::int64_t expert = 0; expert < shape.experts; ++expert)
    for (std::int32_t place = routing.offsets[expert]; place < routing.offsets[expert + 1]; ++place) {
      const std::int32_t token = routing.tokens[place];
      logits_gradient[token * shape.experts + expert] =
          routing.weights[place] * (weight_gradients[place] - mean[static_cast<std::size_t>(token)]);
    }
}

void count_choices(const RoutingShape& shape, const Routing& routing, std::int64_t sequence_length, float* counts) {
  std::fill_n(counts, shape.tokens / sequence_length * shape.experts, 0.0f);
  for (std::int64_t expert = 0; expert < shape.experts; ++expert)
    for (std::int32_t place = routing.offsets[expert]; place < routing.offsets[expert + 1]; ++place)
      counts[routing.tokens[place] / sequence_length * shape.experts + expert] += 1.0f;
}

// The gradient of sum p_i c_i with respect to logit j is p_j (c_j - sum p_i c_i).
void add_balance_gradient(const RoutingShape& shape, const RoutingBalance& balance, const float* logits,
                          float* logits_gradient) {
  std::vector<float> shares(static_cast<std::size_t>(shape.experts));
  for (std::int64_t token = 0; token < shape.tokens; ++token) {
    const float* const row = logits + token * shape.experts;
    const float* const of_sequence = balance.counts + token / balance.sequence_length * shape.experts;
    float* const gradient = logits_gradient + token * shape.experts;
    const float largest = *std::max_element(row, row + shape.experts);
    float sum = 0.0f;
    float mean = 0.0f;
    for (std::int64_t expert = 0; expert < shape.experts; ++expert) {
      float& share = shares[static_cast<std::size_t>(expert)];
      share = std::exp(row[expert] - largest);
      sum += share;
      mean += share * of_sequence[expert];
    }
    mean /= sum;
    for (std::int64_t expert = 0; expert < shape.experts; ++expert)
      gradient[expert] +=
          balance.factor * shares[static_cast<std::size_t>(expert)] / sum * (of_sequence[expert] - mean);
  }
}

}  // namespace sailor::runtime::cpu
