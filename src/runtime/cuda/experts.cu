// Mixtures of experts: where tokens go. What an expert computes are matrix products and SwiGLU, as elsewhere.
#include "runtime/cuda/device_code.cuh"

namespace sailor::runtime::cuda {

namespace {

constexpr int expert_threads = 256;

// One thread per token. `experts` and `weights` (tokens, per_token).
template <class T>
__global__ void __launch_bounds__(expert_threads)
    choose_experts(const T* logits, RoutingShape shape, std::int32_t* experts, float* weights) {
  const std::int64_t token = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (token >= shape.tokens) return;
  const T* const row = logits + token * shape.experts;
  std::int32_t* const chosen = experts + token * shape.per_token;
  float* const of_token = weights + token * shape.per_token;
  float largest = 0.0f;
  float sum = 0.0f;
  for (int i = 0; i < shape.per_token; ++i) {
    std::int32_t best = -1;
    float best_logit = 0.0f;
    for (std::int32_t expert = 0; expert < shape.experts; ++expert) {
      const float logit = to_float(row[expert]);
      if (best >= 0 && !(logit > best_logit)) continue;
      bool is_new = true;
      for (int k = 0; k < i; ++k) is_new = is_new && chosen[k] != expert;
      if (!is_new) continue;
      best = expert;
      best_logit = logit;
    }
    chosen[i] = best;
    if (i == 0) largest = best_logit;
    of_token[i] = expf(best_logit - largest);
    sum += of_token[i];
  }
  for (int i = 0; i < shape.per_token; ++i) of_token[i] /= sum;
}

// One block per expert. Each thread looks at some pairs in a row, twice: first it counts those of the expert, and those
// of experts before it; then it knows where its own begin.
__global__ void __launch_bounds__(expert_threads)
    order_pairs(RoutingShape shape, const std::int32_t* experts, const float* weights, Routing routing) {
  int* const counts = reinterpret_cast<int*>(shared_bytes);  // (2, expert_threads): of the expert, and before it
  const int expert = static_cast<int>(blockIdx.x);
  const std::int64_t share = (shape.pairs() + blockDim.x - 1) / blockDim.x;
  const std::int64_t first = threadIdx.x * share;
  const std::int64_t last = first + share < shape.pairs() ? first + share : shape.pairs();
  int own = 0;
  int before = 0;
  for (std::int64_t pair = first; pair < last; ++pair) {
    own += experts[pair] == expert ? 1 : 0;
    before += experts[pair] < expert ? 1 : 0;
  }
  counts[threadIdx.x] = own;
  counts[expert_threads + threadIdx.x] = before;
  __syncthreads();
  std::int32_t begin = 0;  // of the expert
  for (unsigned thread = 0; thread < blockDim.x; ++thread) begin += counts[expert_threads + thread];
  std::int32_t place = begin;
  for (unsigned thread = 0; thread < threadIdx.x; ++thread) place += counts[thread];
  if (threadIdx.x == 0) routing.offsets[expert] = begin;
  if (threadIdx.x == 0 && expert == shape.experts - 1)
    routing.offsets[shape.experts] = static_cast<std::int32_t>(shape.pairs());
  for (std::int64_t pair = first; pair < last; ++pair) {
    if (experts[pair] != expert) continue;
    SAILOR_KERNEL_CHECK(place >= 0 && place < shape.pairs());
    routing.places[pair] = place;
    routing.tokens[place] = static_cast<std::int32_t>(pair / shape.per_token);
    routing.weights[place] = weights[pair];
    ++place;
  }
}

/// RoutingBalance's gradient with respect to the logits of a token: p_j (c_j - sum p_i c_i) times its factor.
template <class T>
struct Balance {
  const T* logits = nullptr;  // null: there is none
  const float* counts = nullptr;
  std::int64_t sequence_length = 1;
  float factor = 0.0f;
};

// One thread per token.
template <class T>
__global__ void __launch_bounds__(expert_threads)
    route_gradient(RoutingShape shape, Routing routing, const float* weight_gradients, Balance<T> balance,
                   T* logits_gradient) {
  const std::int64_t token = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (token >= shape.tokens) return;
  T* const row = logits_gradient + token * shape.experts;
  const std::int32_t* const places = routing.places + token * shape.per_token;
  float mean = 0.0f;
  for (int i = 0; i < shape.per_token; ++i) mean += routing.weights[places[i]] * weight_gradients[places[i]];

  const bool balanced = balance.logits != nullptr;
  const T* const logits = balanced ? balance.logits + token * shape.experts : nullptr;
  const float* const counts = balanced ? balance.counts + token / balance.sequence_length * shape.experts : nullptr;
  float largest = 0.0f;
  float sum = 0.0f;
  float mean_count = 0.0f;
  if (balanced) {
    largest = to_float(logits[0]);
    for (std::int64_t expert = 1; expert < shape.experts; ++expert) largest = fmaxf(largest, to_float(logits[expert]));
    for (std::int64_t expert = 0; expert < shape.experts; ++expert) {
      const float share = expf(to_float(logits[expert]) - largest);
      sum += share;
      mean_count += share * counts[expert];
    }
    mean_count /= sum;
  }
  const auto of_balance = [&](std::int64_t expert) {
    if (!balanced) return 0.0f;
    return balance.factor * expf(to_float(logits[expert]) - largest) / sum * (counts[expert] - mean_count);
  };

  for (std::int64_t expert = 0; expert < shape.experts; ++expert) from_float(of_balance(expert), row[expert]);
  for (int i = 0; i < shape.per_token; ++i) {
    std::int64_t expert = 0;  // the last whose pairs begin at this place or before it
    for (std::int64_t beyond = shape.experts; beyond - expert > 1;) {
      const std::int64_t middle = (expert + beyond) / 2;
      (routing.offsets[middle] <= places[i] ? expert : beyond) = middle;
    }
    from_float(routing.weights[places[i]] * (weight_gradients[places[i]] - mean) + of_balance(expert), row[expert]);
  }
}

// One thread per sequence and expert: its pairs are in a row, ordered by token.
__global__ void __launch_bounds__(expert_threads)
    count_pairs(RoutingShape shape, Routing routing, std::int64_t sequence_length, float* counts) {
  const std::int64_t index = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (index >= shape.tokens / sequence_length * shape.experts) return;
  const std::int64_t expert = index % shape.experts;
  const std::int64_t token = index / shape.experts * sequence_length;
  // The first place of the expert with this token or a later one.
  const auto place_of = [&](std::int64_t wanted) {
    std::int32_t first = routing.offsets[expert];
    for (std::int32_t beyond = routing.offsets[expert + 1]; first < beyond;) {
      const std::int32_t middle = first + (beyond - first) / 2;
      if (routing.tokens[middle] < wanted)
        first = middle + 1;
      else
        beyond = middle;
    }
    return first;
  };
  counts[index] = static_cast<float>(place_of(token + sequence_length) - place_of(token));
}

template <class T, int N>
__global__ void __launch_bounds__(expert_threads)
    sum_pairs(RoutingShape shape, const std::int32_t* places, const T* pairs, std::int64_t width, T* sums) {
  const std::int64_t packs = shape.tokens * width / N;
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < packs; i += step) {
    const std::int64_t token = i * N / width;
    const std::int64_t column = i * N % width;
    float sum[N];
    load(sums + i * N, sum);
    for (int k = 0; k < shape.per_token; ++k) {
      float more[N];
      load(pairs + places[token * shape.per_token + k] * width + column, more);
#pragma unroll
      for (int n = 0; n < N; ++n) sum[n] += more[n];
    }
    store(sum, sums + i * N);
  }
}

unsigned blocks_of_tokens(const RoutingShape& shape) {
  return static_cast<unsigned>(rounds_up(shape.tokens, expert_threads));
}

}  // namespace

void route(const Queue& queue, const RoutingShape& shape, ConstValues logits, const Routing& routing,
           std::int32_t* experts, float* weights) {
  with_type(logits.type, [&]<class T>(T) {
    launch(queue, {.grid = blocks_of_tokens(shape), .block = expert_threads}, choose_experts<T>, pointer<T>(logits),
           shape, experts, weights);
  });
  launch(queue,
         {.grid = static_cast<unsigned>(shape.experts),
          .block = expert_threads,
          .shared = 2 * expert_threads * sizeof(int)},
         order_pairs, shape, experts, weights, routing);
}

void route_backward(const Queue& queue, const RoutingShape& shape, const Routing& routing,
                    const float* weight_gradients, const RoutingBalance* balance, Values logits_gradient) {
  with_type(logits_gradient.type, [&]<class T>(T) {
    Balance<T> added;
    if (balance != nullptr)
      added = {pointer<T>(balance->logits), balance->counts, balance->sequence_length, balance->factor};
    launch(queue, {.grid = blocks_of_tokens(shape), .block = expert_threads}, route_gradient<T>, shape, routing,
           weight_gradients, added, pointer<T>(logits_gradient));
  });
}

void count_choices(const Queue& queue, const RoutingShape& shape, const Routing& routing, std::int64_t sequence_length,
                   float* counts) {
  const std::int64_t all = shape.tokens / sequence_length * shape.experts;
  launch(queue, {.grid = static_cast<unsigned>(rounds_up(all, expert_threads)), .block = expert_threads}, count_pairs,
         shape, routing, sequence_length, counts);
}

void add_pairs(const Queue& queue, const RoutingShape& shape, const std::int32_t* places, ConstValues pairs,
               std::int64_t width, Values sums) {
  with_type(sums.type, [&]<class T>(T) {
    with_packs<T>(width, {pairs.data, sums.data}, [&]<int N>(Packed<N>) {
      launch(queue,
             {.grid = looping_grid(queue, rounds_up(shape.tokens * width / N, expert_threads), 16),
              .block = expert_threads},
             sum_pairs<T, N>, shape, places, pointer<T>(pairs), width, pointer<T>(sums));
    });
  });
}

}  // namespace sailor::runtime::cuda
