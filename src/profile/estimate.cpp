// FLOP, bytes and rates of a layer that was not measured.
//
// The constants were fitted to the block times that the Sailor authors published (eth-easl/sailor, commit 16eebd4: four
// models on seven GPU types, fp32 and tf32, Megatron-DeepSpeed without fused attention) at tensor parallel 1 and
// micro-batches from 2 on. Heads and embeddings are from OPT-350 alone. Nothing was fitted for bf16, fp16 and fp8:
// their efficiencies are those of kernels that others measured.
#include "profile/estimate.hpp"
#include "profile/advice.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace sailor {

namespace {

// Passes over an array in memory, in the forward and the backward pass.
struct Passes {
  double forward;
  double backward;
};
constexpr Passes score_passes{7.0, 20.0};      // attention scores: product, scale, mask, softmax, product
constexpr Passes activation_passes{2.0, 4.0};  // what a block keeps is written once and read once; twice as often in
                                               // backward
constexpr Passes logit_passes{8.0, 5.0};       // product, maximum, exponentials, sum, loss
// Losses compute in fp32. Bytes of a logit of 16 bits: the product writes it, a copy reads it and writes fp32, and the
// other seven passes are over that; backward three are, a copy makes 16 bits of it, and two products read those. In one
// kernel for each pass: forward it is read twice, backward it is read and its gradient written.
constexpr Passes logit_bytes_from_16_bits{2.0 + 6.0 + 7.0 * 4.0, 3.0 * 4.0 + 6.0 + 2.0 * 2.0};
constexpr Passes logit_bytes_in_one_kernel{2.0 + 2.0 * 2.0, 2.0 * 2.0 + 2.0 * 2.0};
constexpr Passes hidden_passes{10.0, 10.0};  // embedding: gather, position, sum, dropout; norms

/// Number of operations that each kind of layer launches.
struct Launches {
  int forward;
  int backward;
};
Launches launches_of(LayerKind kind) {
  switch (kind) {
    case LayerKind::embedding:
      return {6, 6};
    case LayerKind::block:
      return {30, 40};
    case LayerKind::final_norm:
      return {4, 5};
    case LayerKind::head:
      return {8, 12};
  }
  return {0, 0};
}

/// Additional launches of a block with experts: router, choice, numbers and order of copies, messages between ranks,
/// weighted sums. The products of all experts are counted as one.
constexpr Launches launches_of_routing{20, 30};
constexpr int launches_of_all_reduce = 2;  // its own, and that of what waits for it

/// Index of the block (0, 1, ...); a key that names no block means the last one.
int block_of(const Model& model, const LayerKey& key) {
  return key.first_layer >= 1 && key.first_layer <= model.blocks ? key.first_layer - 1 : model.blocks - 1;
}

/// Bytes of one hidden state, one set of attention scores and one set of logits on this rank.
struct Arrays {
  double hidden;
  double own_hidden;  // a rank's part between blocks: its part of the sequence under sequence parallelism
  double kept_whole;  // kept by a block on every tensor-parallel rank
  double kept_share;  // kept by a block, divided among the ranks
  double attended;    // the output of attention, part of kept_share
  double widest;      // what a block's backward pass needs at once besides hidden states
  double dispatched;  // for a block with experts: copies of tokens that are sent to the experts and returned
  double scores;
  double logits;
};
/// Number of tokens of a micro-batch on a rank.
double tokens_of(const LayerKey& key) {
  return static_cast<double>(key.micro_batch) * key.sequence_length / key.context_parallel;
}

Arrays arrays_of(const Model& model, const LayerKey& key, const LayerKernels& kernels) {
  const double tokens = tokens_of(key);
  const double value = value_bytes(key.precision);
  const double t = key.tensor_parallel;
  const double divided_along_sequence = kernels.sequence_parallel ? t : 1.0;
  Arrays arrays{};
  arrays.hidden = value * tokens * model.hidden;
  arrays.own_hidden = arrays.hidden / divided_along_sequence;
  // In units of hidden states. Kept on every rank: both norms' outputs and the residual sum between them; GeLU models
  // were measured to keep 1.5 more (dropout masks, a copy), RMS norms 5 more (their intermediate values). Norms of one
  // kernel keep their inputs instead: the residual sum and the block's own input.
  const bool rms_norm = model.norm == NormKind::rms_norm;
  const double more = rms_norm ? (kernels.fused_norms ? 1.0 : 5.0) : model.activation == Activation::gelu ? 1.5 : 0.0;
  arrays.kept_whole = arrays.hidden * (3.0 + more);
  // Divided among the ranks: query and attention output, key and value, and the inner width: once for ReLU, which works
  // in place, before and after the function for GeLU, four times for SwiGLU.
  const int block = block_of(model, key);
  double inner = model.activation == Activation::relu ? 1.0 : model.activation == Activation::gelu ? 2.0 : 4.0;
  if (model.has_gate() && model.activation != Activation::swiglu) inner += 2.0;  // the gate, and the product with it
  if (kernels.recomputes_elementwise) {
    // The block's input and the residual sum after attention; with post-norm, the input of each norm. The input of the
    // activation function once, for SwiGLU its two (src/runtime/layers/block.cpp).
    arrays.kept_whole = arrays.hidden * (model.norm_placement == NormPlacement::post ? 3.0 : 2.0);
    inner = model.has_gate() ? 2.0 : 1.0;
  }
  arrays.kept_whole /= divided_along_sequence;
  // Inputs of the divided linear layers after both norms, all-gathered from the ranks' parts of the sequence.
  if (kernels.keeps_gathered_inputs && key.tensor_parallel > 1) arrays.kept_whole += 2.0 * arrays.hidden;
  const double imbalance = key.expert_parallel > 1 && model.has_experts(block) ? kernels.expert_imbalance : 1.0;
  const double shared = model.has_experts(block) ? model.experts.shared_feed_forward : 0.0;
  const double feed_forward = (model.active_feed_forward(block) - shared) * imbalance + shared;
  const double attention = model.query_width() + model.key_width() + model.value_width();
  const double latent = model.latent.query_rank + model.latent.key_value_rank + model.latent.position;
  arrays.kept_share = value * tokens * (attention + model.attended_width() + inner * feed_forward) / t;
  arrays.kept_whole += value * tokens * latent / divided_along_sequence;
  arrays.attended = value * tokens * model.attended_width() / t;
  arrays.widest = value * tokens * std::max(feed_forward, attention) / t;
  arrays.dispatched = 0.0;
  if (model.has_experts(block)) {  // input and output of the experts; the router weights the outputs
    arrays.dispatched = 2.0 * model.experts.per_token * arrays.own_hidden * imbalance;
    if (!kernels.recomputes_elementwise)
      arrays.kept_whole += arrays.dispatched + value * tokens * model.experts.count / divided_along_sequence;
  }
  arrays.scores = value * tokens * key.sequence_length * model.attention_heads / t;
  arrays.logits = value * tokens * model.vocabulary / t;
  return arrays;
}

/// Parameters that every tensor-parallel rank has in full: norms, positions, biases after an all-reduce, routers.
std::int64_t whole_parameters(const Model& model, const LayerKey& key) {
  switch (key.kind) {
    case LayerKind::embedding: {
      const std::int64_t rows = model.learned_positions > 0 ? model.learned_positions : model.max_sequence_length;
      return model.position == PositionKind::learned ? rows * model.hidden : 0;
    }
    case LayerKind::block:
      return model.whole_parameters(block_of(model, key));
    case LayerKind::final_norm:
      return model.parameters(key.kind);
    case LayerKind::head:
      return model.has_norm_in_head() ? std::int64_t{model.hidden} * (model.norm == NormKind::layer_norm ? 2 : 1) : 0;
  }
  return 0;
}

std::int64_t all_parameters(const Model& model, const LayerKey& key) {
  return key.kind == LayerKind::block ? model.layer_parameters(block_of(model, key) + 1) : model.parameters(key.kind);
}

/// Parameters of the experts that other expert-parallel ranks hold.
std::int64_t experts_elsewhere(const Model& model, const LayerKey& key) {
  if (key.kind != LayerKind::block) return 0;
  const std::int64_t all = model.expert_parameters(block_of(model, key) + 1);
  return all - all / key.expert_parallel;
}

/// FLOP of all scores and their products with all values, ignoring the causal mask.
Flop unfused_attention(const Model& model, double tokens, int sequence_length) {
  return Flop(2.0 * sequence_length * (model.query_width() + model.attended_width()) * tokens);
}

/// FLOP of the experts for `tokens` tokens that go through equal shares of them.
Flop experts_flop(const Model& model, double tokens) {
  const Experts& experts = model.experts;
  const double share = experts.capacity_factor > 0.0 ? experts.capacity_factor : 1.0;
  return Flop(2.0 * tokens * (model.has_gate() ? 3.0 : 2.0) * model.hidden * share * experts.per_token *
              experts.feed_forward);
}

/// Values of a block on this rank that its linear layers multiply, for one micro-batch.
struct LinearValues {
  double inputs = 0.0;
  double outputs = 0.0;
  double kept = 0.0;  // inputs that nothing else needs again: the outputs of norms and of the activation function
  double kept_in_both = 0.0;  // inputs that are also kept in 16 bits: the outputs of attention and of ReLU
};
LinearValues linear_values(const Model& model, const LayerKey& key, const LayerKernels& kernels) {
  const double tokens = tokens_of(key);
  const double t = key.tensor_parallel;
  const int block = block_of(model, key);
  const double copies = model.has_experts(block) ? model.experts.per_token : 1.0;  // of a token, for its experts
  const double feed_forward = model.active_feed_forward(block) / t;
  const double attended = model.attended_width() / t;
  const double projected = (model.query_width() + model.key_width() + model.value_width()) / t;
  LinearValues values;
  values.kept_in_both = tokens * attended;
  const double normed = tokens * model.hidden * (1.0 + copies);  // every rank multiplies all of it
  const double gathered = kernels.sequence_parallel && !kernels.keeps_gathered_inputs ? t : 1.0;
  values.kept = normed / gathered;
  (model.activation == Activation::relu && !model.has_gate() ? values.kept_in_both : values.kept) +=
      tokens * feed_forward;
  values.inputs = normed + tokens * (attended + feed_forward);
  values.outputs = tokens * (projected + model.hidden * (1.0 + copies) + (model.has_gate() ? 2.0 : 1.0) * feed_forward);
  return values;
}
// Rounding to 8 bits reads two bytes and writes one, and another one transposed: products of 8-bit numbers of Hopper
// take only matrices whose rows are summed over, and the backward pass sums over the others (Transformer Engine).
constexpr double rounding_bytes = 4.0;

/// Tokens that a query meets at most. The diagonals of all context-parallel ranks are that of the whole sequence.
int attention_length(const Model& model, const LayerKey& key) {
  const int window = model.window(block_of(model, key));
  return window > 0 ? std::min(key.sequence_length, window) : key.sequence_length;
}

/// Bytes that pass between processor and memory.
struct Traffic {
  double forward = 0.0;
  double backward = 0.0;
};

/// Traffic of a block of Sailor's runtime besides that of its products and its attention (src/runtime/layers/block.cpp,
/// src/runtime/cuda): a norm reads its input and writes its output, and backward reads the input and two gradients, one
/// of them of the residual path, and writes one; rotary positions are applied in place. ReLU and the biases are
/// applied within the products, and so is GELU, which then writes its input, too; SwiGLU is a kernel.
Traffic fused_traffic(const Model& model, const LayerKey& key, const Arrays& arrays) {
  const double values = value_bytes(key.precision) * tokens_of(key);
  const double t = key.tensor_parallel;
  const double inner = values * model.active_feed_forward(block_of(model, key)) / t;
  Traffic traffic{.forward = 2 * 2 * arrays.own_hidden, .backward = 2 * 4 * arrays.own_hidden};
  if (model.norm_placement == NormPlacement::post)
    traffic.backward += 2 * 3 * arrays.own_hidden;  // gradients are added
  if (model.position == PositionKind::rotary) {
    const double turned = 2 * values * (model.query_width() + model.key_width()) / t;
    traffic.forward += turned;
    traffic.backward += turned;
  }
  if (model.has_gate()) {
    traffic.forward += 3 * inner;
    traffic.backward += 6 * inner;
  } else {
    if (model.activation == Activation::gelu) traffic.forward += inner;
    traffic.backward += 3 * inner;
  }
  if (model.linear_bias)  // their gradients are sums over what the products read
    traffic.backward += 2 * arrays.hidden + inner + values * (model.query_width() + 2 * model.key_width()) / t;
  return traffic;
}

}  // namespace

std::string_view to_string(ContextExchange exchange) {
  return exchange == ContextExchange::ring ? "ring" : "all-to-all";
}
std::string_view to_string(Attention attention) { return attention == Attention::fused ? "fused" : "unfused"; }

LayerSizes layer_sizes(const Model& model, const LayerKey& key, const LayerKernels& kernels) {
  const Arrays arrays = arrays_of(model, key, kernels);
  const bool fused = kernels.attention == Attention::fused;
  const bool again = kernels.recomputes_elementwise;
  LayerSizes sizes;
  const std::int64_t whole = whole_parameters(model, key);
  const std::int64_t elsewhere = experts_elsewhere(model, key);
  const std::int64_t divided = all_parameters(model, key) - whole - elsewhere;
  sizes.parameters = whole + (divided + key.tensor_parallel - 1) / key.tensor_parallel;
  sizes.output = Bytes(arrays.own_hidden);
  switch (key.kind) {
    case LayerKind::embedding:
      sizes.activation = Bytes(again ? 0.0 : arrays.own_hidden);  // the first block keeps its input
      sizes.workspace = Bytes(again ? arrays.hidden : 0.0);
      break;
    case LayerKind::block: {
      const double scores = fused ? 0.0 : arrays.scores;
      const double all = arrays.kept_whole + arrays.kept_share + scores;
      double kept = all;
      if (key.recompute == Recompute::selective) kept = all - scores - (again ? arrays.attended : 0.0);
      if (key.recompute == Recompute::full) kept = arrays.own_hidden;
      sizes.activation = Bytes(kept);
      if (key.precision == Precision::fp8 && key.recompute != Recompute::full && kernels.keeps_rounded_inputs) {
        const LinearValues values = linear_values(model, key, kernels);
        // Frameworks that make the outputs of norms and activation functions again keep neither.
        sizes.activation += Bytes(values.kept_in_both - (again ? 0.0 : values.kept));
      }
      // Gradients of the scores and of the widest array; everything that is recomputed.
      sizes.workspace = Bytes(scores + (again ? 3.0 * arrays.hidden + arrays.widest : arrays.hidden) + all - kept);
      // A ring holds keys and values that arrive while others are in use, and the same for their gradients; an
      // all-to-all queries, keys and values that leave, and those that arrive.
      const ExchangeWork exchange = exchange_work(model, key, kernels);
      sizes.workspace += exchange.ring_step * 4.0 + exchange.forward_heads * 2.0;
      if (again && model.has_experts(block_of(model, key))) {
        // Copies of tokens for the experts; those that leave and those that arrive, before the widest array is needed.
        const double copies = arrays.dispatched / 2.0;
        sizes.workspace += Bytes(copies);
        if (key.expert_parallel > 1) sizes.workspace += Bytes(std::max(0.0, copies - arrays.widest));
      }
      break;
    }
    case LayerKind::final_norm:
      sizes.activation = Bytes((again ? 1.0 : 3.0) * arrays.own_hidden);
      if (again) sizes.workspace = Bytes(arrays.hidden);
      break;
    case LayerKind::head:
      sizes.output = Bytes(0.0);
      // Logits and their exponentials; or only the logits, which become their gradient in place.
      sizes.activation = Bytes(again ? arrays.logits + arrays.hidden : 2.0 * arrays.logits + 1.5 * arrays.hidden);
      sizes.workspace = Bytes(again ? 2.0 * arrays.hidden : arrays.logits);
      break;
  }
  return sizes;
}

LayerWork layer_work(const Model& model, const LayerKey& key, const LayerKernels& kernels) {
  const bool fused = kernels.attention == Attention::fused;
  LayerKernels as_computed = kernels;
  as_computed.recomputes_elementwise = false;  // what is recomputed was also written and read
  const Arrays arrays = arrays_of(model, key, as_computed);
  const double tokens = tokens_of(key);
  const double value = value_bytes(key.precision);
  const double t = key.tensor_parallel;
  const int block = block_of(model, key);
  Flop flop = (key.kind == LayerKind::block ? model.layer_forward_flop(block + 1, tokens, key.sequence_length)
                                            : model.forward_flop(key.kind, tokens, key.sequence_length)) /
              t;
  // Each rank computes as many tokens as it would with all experts, with fewer weights to read, but the busiest one
  // more.
  const bool divides_experts = key.expert_parallel > 1 && key.kind == LayerKind::block && model.has_experts(block);
  if (divides_experts) flop += experts_flop(model, tokens) * (kernels.expert_imbalance - 1.0) / t;
  const auto parameters = static_cast<double>(layer_sizes(model, key).parameters);
  const double matrix = key.kind == LayerKind::head && model.tied_embedding
                            ? static_cast<double>(model.tied_parameters()) / t
                            : 0.0;  // shared, but read nevertheless
  LayerWork work;
  Passes traffic{};
  auto add = [&](const Passes& passes, double bytes) {
    traffic.forward += passes.forward * bytes;
    traffic.backward += passes.backward * bytes;
  };
  const bool gathers = key.kind == LayerKind::embedding;  // it touches only the rows of its tokens
  if (!gathers) add({1.0, 2.0}, value * (parameters + matrix));
  work.all_reduce = Bytes(arrays.hidden);
  switch (key.kind) {
    case LayerKind::embedding:
      add(hidden_passes, arrays.own_hidden);
      work.forward_all_reduces = 1;
      break;
    case LayerKind::block: {
      // The half of both products that remains under a causal mask, or the part within a window.
      const Flop causal = model.attention_flop(block, tokens, key.sequence_length) / t;
      if (fused) {
        flop -= causal;
        work.attention_length = attention_length(model, key);
        work.forward_attention = causal;
        work.backward_attention = causal * 2.5;  // two products forward, five backward: the scores are recomputed
      } else {
        flop += unfused_attention(model, tokens, key.sequence_length) / t - causal;  // masked scores are computed, too
        add(score_passes, arrays.scores);
      }
      if (kernels.recomputes_elementwise) {
        const Traffic fused = fused_traffic(model, key, arrays);
        traffic.forward += fused.forward + arrays.dispatched;
        traffic.backward += fused.backward + 2 * arrays.dispatched;
      } else {
        add(activation_passes, arrays.kept_whole + arrays.kept_share);
        // Copies that arrive from other ranks are put in the order of the rank's experts, and back, in both passes.
        if (divides_experts && model.experts.count > key.expert_parallel) add({2.0, 2.0}, arrays.dispatched);
      }
      work.forward_all_reduces = 2;  // after attention and after the feed-forward part (Shoeybi et al. 2019)
      work.backward_all_reduces = 2;
      break;
    }
    case LayerKind::final_norm:
      add(kernels.recomputes_elementwise ? Passes{2.0, 4.0} : hidden_passes, arrays.own_hidden);
      break;
    case LayerKind::head:
      if (kernels.recomputes_elementwise)
        add({3.0, 0.0}, arrays.logits);
      else if (value < 4.0)
        add(kernels.fused_loss ? logit_bytes_in_one_kernel : logit_bytes_from_16_bits, arrays.logits / value);
      else
        add(logit_passes, arrays.logits);
      work.backward_all_reduces = 1;
      break;
  }
  Launches launches = launches_of(key.kind);
  if (key.kind == LayerKind::block && model.has_experts(block)) {
    launches.forward += launches_of_routing.forward;
    launches.backward += launches_of_routing.backward;
  }
  work.forward_flop = flop;
  work.backward_flop = flop * 2.0;
  const bool in_fp8 = key.precision == Precision::fp8 && key.kind == LayerKind::block;
  if (in_fp8) {
    work.forward_fp8 = fused ? flop : flop - unfused_attention(model, tokens, key.sequence_length) / t;
    work.backward_fp8 = work.forward_fp8 * 2.0;
    const LinearValues values = linear_values(model, key, kernels);
    traffic.forward += rounding_bytes * values.inputs;
    traffic.backward += rounding_bytes * (values.outputs + (kernels.keeps_rounded_inputs ? 0.0 : values.inputs));
    if (kernels.rounds_weights_each_pass) add({1.0, 1.0}, rounding_bytes * parameters);
  }
  work.forward_traffic = Bytes(traffic.forward);
  work.backward_traffic = Bytes(traffic.backward);
  work.forward_launches = launches.forward;
  work.backward_launches = launches.backward;
  if (key.kind == LayerKind::block && key.recompute == Recompute::selective) {
    if (fused) {
      work.backward_attention += work.forward_attention;
    } else {
      work.backward_flop += unfused_attention(model, tokens, key.sequence_length) / t;
      work.backward_traffic += Bytes(score_passes.forward * arrays.scores);
    }
  } else if (key.kind == LayerKind::block && key.recompute == Recompute::full) {
    work.backward_flop += work.forward_flop;
    work.backward_fp8 += work.forward_fp8;
    work.backward_attention += work.forward_attention;
    work.backward_traffic += work.forward_traffic;
    work.backward_launches += work.forward_launches;
    work.backward_all_reduces += work.forward_all_reduces;
  }
  if (key.tensor_parallel == 1) work.forward_all_reduces = work.backward_all_reduces = 0;
  work.forward_launches += launches_of_all_reduce * work.forward_all_reduces;
  work.backward_launches += launches_of_all_reduce * work.backward_all_reduces;
  // AdamW in fp32: four arrays read, three written, the gradient zeroed.
  work.update_traffic = Bytes(8.0 * 4.0 * parameters);
  if (in_fp8 && !kernels.rounds_weights_each_pass) work.update_traffic += Bytes(rounding_bytes * parameters);
  return work;
}

LayerWork attention_work(const Model& model, const LayerKey& key, const LayerKernels& kernels) {
  LayerWork work;
  if (key.kind != LayerKind::block) return work;
  const double tokens = tokens_of(key);
  const double t = key.tensor_parallel;
  const double again = key.recompute == Recompute::none ? 0.0 : 1.0;
  if (kernels.attention == Attention::fused) {
    work.attention_length = attention_length(model, key);
    work.forward_attention = model.attention_flop(block_of(model, key), tokens, key.sequence_length) / t;
    work.backward_attention = work.forward_attention * (2.5 + again);
    return work;
  }
  const double scores = arrays_of(model, key, kernels).scores;
  work.forward_flop = unfused_attention(model, tokens, key.sequence_length) / t;
  work.backward_flop = work.forward_flop * (2.0 + again);
  work.forward_traffic = Bytes(score_passes.forward * scores);
  work.backward_traffic = Bytes((score_passes.backward + again * score_passes.forward) * scores);
  return work;
}

ExchangeWork exchange_work(const Model& model, const LayerKey& key, const LayerKernels& kernels) {
  ExchangeWork work;
  if (key.kind != LayerKind::block) return work;
  const int block = block_of(model, key);
  const double value = value_bytes(key.precision);
  if (key.context_parallel > 1) {
    const auto bytes = [&](int width) { return Bytes(value * tokens_of(key) * width / key.tensor_parallel); };
    const Bytes keys_and_values = bytes(model.key_width() + model.value_width());
    if (kernels.context_exchange == ContextExchange::ring) {
      work.ring_step = keys_and_values;
      work.forward_rings = 1.0;
      work.backward_rings = key.recompute == Recompute::none ? 2.0 : 3.0;
    } else {
      const Bytes projected = keys_and_values + bytes(model.query_width());
      const Bytes attended = bytes(model.attended_width());
      work.forward_heads = projected + attended;
      work.backward_heads = projected + attended * 2.0;
      if (key.recompute == Recompute::full) work.backward_heads += work.forward_heads;
    }
  }
  if (key.expert_parallel > 1 && model.has_experts(block)) {
    const int again = key.recompute == Recompute::full ? 2 : 0;
    work.all_to_all =
        Bytes(kernels.expert_imbalance * model.experts.per_token * arrays_of(model, key, kernels).own_hidden);
    work.forward_all_to_alls = 2;
    // Frameworks that keep no copies of tokens hand them out again for the gradients of the experts' weights.
    work.backward_all_to_alls = 2 + again + (kernels.recomputes_elementwise ? 1 : 0);
  }
  return work;
}

bool can_exchange(const Model& model, const LayerKernels& kernels, int tensor_parallel, int context_parallel) {
  return context_parallel == 1 || kernels.context_exchange == ContextExchange::ring ||
         model.key_value_heads % (tensor_parallel * context_parallel) == 0;
}

Efficiency generic_efficiency(DeviceKind kind, Precision precision) {
  // CPU cores run Sailor's own runtime, which launches an operation with a function call.
  if (kind == DeviceKind::cpu)
    return {.compute = 0.5,
            .compute_fp8 = 0.5,
            .attention_forward = 0.5,
            .attention_backward = 0.5,
            .memory = 0.5,
            .launch = Seconds(2e-6),
            .link_share = 0.2};
  // Launches: a framework in Python. Links: NVLink of V100, A100 and H100 has 0.11 to 0.19 of the memory's bandwidth;
  // all-reduces over PCIe take ten times longer.
  Efficiency efficiency{.compute = 0.85,
                        .compute_fp8 = 0.0,
                        .attention_forward = 0.5,
                        .attention_backward = 0.4,
                        .memory = 0.8,
                        .launch = Seconds(40e-6),
                        .link_share = 0.1};
  if (value_bytes(precision) < 4.0) {
    // Four fifths of the best published kernels on H100 and H200: matrix products 794 of 989 TFLOP/s
    // (stas00/ml-engineering); fused attention, sequences of 8,192, 644 forward and 541 backward (cuDNN 9.19,
    // NVIDIA/cudnn-frontend @3929da2), which short sequences do not reach: of 512 to 16,384 tokens, cuDNN's and
    // FlashAttention-2's rates on an H100 follow length / (length + half) with halves of 400 and 950 tokens
    // (experiments/results/2026-11-27-h100.md). RMSNorm moves 3.7 of 4.8 TB/s (ibid.). Products in fp8: 1,474 of 1,979
    // TFLOP/s by cuBLASLt on an H100 (experiments/results/2026-11-26-h100.md).
    efficiency.compute = 0.65;
    efficiency.compute_fp8 = 0.6;
    efficiency.attention_forward_half = 400.0;
    efficiency.attention_backward_half = 950.0;
    efficiency.attention_forward = 0.52 * (8192.0 + efficiency.attention_forward_half) / 8192.0;
    efficiency.attention_backward = 0.44 * (8192.0 + efficiency.attention_backward_half) / 8192.0;
    efficiency.memory = 0.75;
  }
  return efficiency;
}

Efficiency efficiency_of(const LayerKernels& kernels, DeviceKind kind, Precision precision) {
  return kernels.efficiency && kind == DeviceKind::gpu ? *kernels.efficiency : generic_efficiency(kind, precision);
}

Result<FlopPerSecond> peak_rate(const GpuType& gpu, Precision precision) {
  if (precision == Precision::fp8) SAILOR_CHECK(check_precision(precision, gpu.kind == DeviceKind::gpu));
  FlopPerSecond peak = gpu.peak_fp32;
  if (precision == Precision::tf32 && gpu.peak_tf32.value() > 0.0) peak = gpu.peak_tf32;
  if (precision == Precision::bf16) peak = gpu.peak_bf16;
  if (precision == Precision::fp16) peak = gpu.peak_fp16;
  if (precision == Precision::fp8) peak = gpu.peak_fp8;
  if (peak.value() > 0.0 && gpu.memory_bandwidth.value() > 0.0) return peak;
  // CPUs compute in every precision, even if slowly.
  return fail(ErrorCode::not_found,
              gpu.kind == DeviceKind::gpu && gpu.memory_bandwidth.value() > 0.0
                  ? fmt::format("{} cannot compute in {}", gpu.name, to_string(precision))
                  : fmt::format("the GPU catalogue has no {} rate of {}", to_string(precision), gpu.name),
              is_trainable(precision) ? "choose another precision, or " + layers_advice(gpu.kind)
                                      : layers_advice(precision, gpu.kind));
}

Result<LayerTimes> roofline(const LayerWork& work, const GpuType& gpu, Precision precision, int tensor_parallel,
                            std::optional<Seconds> all_reduce, const LayerKernels& kernels) {
  const bool in_fp8 = precision == Precision::fp8;
  const auto peak_of_products = peak_rate(gpu, precision);
  if (!peak_of_products) return fail(peak_of_products.error());
  const auto peak = in_fp8 ? peak_rate(gpu, Precision::bf16) : peak_of_products;
  if (!peak) return fail(peak.error());
  const Efficiency efficiency = efficiency_of(kernels, gpu.kind, precision);
  const BytesPerSecond memory = gpu.memory_bandwidth * efficiency.memory;
  if (!all_reduce && tensor_parallel > 1)
    all_reduce = work.all_reduce * (2.0 * (tensor_parallel - 1) / tensor_parallel) /
                 (gpu.memory_bandwidth * efficiency.link_share);
  auto pass = [&](Flop flop, Flop fp8, Seconds attention, Bytes traffic, int launches, int all_reduces) {
    Seconds busy = (flop - fp8) / (*peak * efficiency.compute) + attention + traffic / memory;
    if (fp8.value() > 0.0) busy += fp8 / (*peak_of_products * efficiency.compute_fp8);
    busy += all_reduce.value_or(Seconds(0.0)) * all_reduces;
    return std::max(busy, efficiency.launch * launches);
  };
  const auto share = [&](double of_long, double half) {
    return of_long * work.attention_length / (work.attention_length + half);
  };
  const auto attention = [&](Flop flop, double of_long, double half) {
    return flop.value() > 0.0 ? flop / (*peak * share(of_long, half)) : Seconds(0.0);
  };
  return LayerTimes{
      .forward =
          pass(work.forward_flop, work.forward_fp8,
               attention(work.forward_attention, efficiency.attention_forward, efficiency.attention_forward_half),
               work.forward_traffic, work.forward_launches, work.forward_all_reduces),
      .backward =
          pass(work.backward_flop, work.backward_fp8,
               attention(work.backward_attention, efficiency.attention_backward, efficiency.attention_backward_half),
               work.backward_traffic, work.backward_launches, work.backward_all_reduces),
      .update = pass(Flop(0.0), Flop(0.0), Seconds(0.0), work.update_traffic, 1, 0)};
}

}  // namespace sailor
