// Estimates the cost of a layer on a device without measurements: FLOP and bytes from the architecture, rates from the
// GPU catalogue. `sailor-profile estimate --leave-one-out` prints how far the estimates are off.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "cluster/gpu_catalogue.hpp"
#include "core/error.hpp"
#include "core/units.hpp"
#include "model/model.hpp"
#include "profile/measurements.hpp"

namespace sailor {

/// How attention is computed, which decides what it keeps and moves.
enum class Attention {
  unfused,  ///< product, softmax and product in separate steps: the scores, sequence_length^2 for each head, go through
            ///< memory
  fused,    ///< in blocks that fit into a cache (Dao et al. 2022): no scores are kept; backward recomputes them
};
std::string_view to_string(Attention attention);

/// How context-parallel ranks exchange what attention needs.
enum class ContextExchange {
  ring,       ///< keys and values go round among the ranks (Liu et al. 2023)
  all_to_all  ///< ranks exchange their tokens for whole sequences of a part of the heads, and back (Jacobs et al.
              ///< 2023): the degree times the tensor-parallel degree must divide the key-value heads
};
std::string_view to_string(ContextExchange exchange);

/// Share of the catalogue's rates that a training framework reaches.
struct Efficiency {
  double compute = 0.0;            ///< matrix products: share of the peak rate
  double compute_fp8 = 0.0;        ///< those of 8-bit numbers: share of their peak rate
  double attention_forward = 0.0;  ///< fused attention of long sequences: share of the peak rate
  double attention_backward = 0.0;
  /// Tokens of a sequence at which fused attention reaches half of these shares: blocks on the diagonal of the causal
  /// mask are computed whole, and few blocks fill a device badly. 0: the same of any length.
  double attention_forward_half = 0.0;
  double attention_backward_half = 0.0;
  double memory = 0.0;      ///< everything else: share of the memory bandwidth
  Seconds launch{};         ///< time to launch one operation; no time is below the sum of its launches
  double link_share = 0.0;  ///< bandwidth between devices of a node as share of their memory bandwidth
  /// Nine of ten times of layers by these rates are off by less than this, either way as a factor; 0: as
  /// expected_error() says.
  double error = 0.0;
};
Efficiency generic_efficiency(DeviceKind kind, Precision precision);
struct LayerKernels;
/// LayerKernels::efficiency on GPUs if there is one, else generic_efficiency().
Efficiency efficiency_of(const LayerKernels& kernels, DeviceKind kind, Precision precision);

/// How a training framework computes layers, as far as an estimate depends on it.
struct LayerKernels {
  Attention attention = Attention::unfused;
  ContextExchange context_exchange = ContextExchange::ring;
  /// Outputs of norms and activation functions are recomputed in the backward pass instead of kept, copies of tokens
  /// for experts are made again, and logits become their gradient in place, as in Sailor's own runtime.
  bool recomputes_elementwise = false;
  /// Sequence parallelism (Korthikanti et al. 2022, section 4.2.2): a tensor-parallel group that divides the linear
  /// layers also divides the norms and residual additions along the sequence; all-gathers and reduce-scatters replace
  /// the all-reduces.
  bool sequence_parallel = false;
  /// With sequence_parallel: the inputs that ranks all-gather before linear layers are kept for the backward pass, not
  /// gathered again.
  bool keeps_gathered_inputs = false;
  /// Tokens that the busiest expert-parallel rank gets, as a multiple of the mean. It scales the work of the experts
  /// and the messages to them, only where experts are divided among ranks.
  double expert_imbalance = 1.0;
  /// Precision::fp8: weights are rounded to 8 bits for each pass, not once an iteration.
  bool rounds_weights_each_pass = false;
  /// Precision::fp8: inputs of linear layers are kept for the backward pass in 8 bits; otherwise in 16, and rounded
  /// again there.
  bool keeps_rounded_inputs = true;
  bool fused_loss = false;                 ///< the loss is one kernel for each pass, which reads logits of 16 bits
  bool fused_norms = false;                ///< an RMS norm is one kernel, which keeps only its input and its output
  std::optional<Efficiency> efficiency{};  ///< of its kernels on GPUs; std::nullopt: generic_efficiency()
};

/// FLOP, memory traffic and all-reduces of one rank for one micro-batch through one layer.
struct LayerWork {
  Flop forward_flop{};       ///< matrix products, including those of unfused attention
  Flop backward_flop{};      ///< including recomputation (LayerKey::recompute)
  Flop forward_fp8{};        ///< the part of forward_flop that multiplies numbers of 8 bits (Precision::fp8)
  Flop backward_fp8{};       ///< likewise of backward_flop
  Flop forward_attention{};  ///< fused attention
  Flop backward_attention{};
  int attention_length = 0;  ///< max keys that a query attends to: Efficiency::attention_forward_half
  Bytes forward_traffic{};   ///< between processor and memory
  Bytes backward_traffic{};
  Bytes update_traffic{};    ///< of the optimizer step
  int forward_launches = 0;  ///< operations that a framework starts one by one, all-reduces among them
  int backward_launches = 0;
  Bytes all_reduce{};  ///< size of one all-reduce over the tensor-parallel ranks
  int forward_all_reduces = 0;
  int backward_all_reduces = 0;
};
/// Kind and sizes are taken from `key`; its GPU, model name and busy_ranks are ignored. Under context parallelism, a
/// rank's queries meet half of the sequence's keys on average, as without: its part of the sequence is one early and
/// one late piece. Messages between the ranks that divide sequences or experts are not included: see exchange_work().
LayerWork layer_work(const Model& model, const LayerKey& key, const LayerKernels& kernels = {});
/// The part of layer_work() that is attention: scores, softmax and the product with the values, without projections. 0
/// for other layers than blocks.
LayerWork attention_work(const Model& model, const LayerKey& key, const LayerKernels& kernels = {});

/// Messages of one rank for one micro-batch through one block, among the ranks that divide its sequence or experts.
struct ExchangeWork {
  /// ContextExchange::ring: keys and values of a rank's part of the sequence, which it passes on context_parallel - 1
  /// times. The backward pass also passes their gradients on.
  Bytes ring_step{};
  double forward_rings = 0.0;
  double backward_rings = 0.0;
  /// ContextExchange::all_to_all: what a rank hands out in each pass, (context_parallel - 1) / context_parallel of
  /// which goes to other ranks: queries, keys, values and the output of attention; backward their gradients, and the
  /// output again.
  Bytes forward_heads{};
  Bytes backward_heads{};
  /// Expert parallelism: the tokens that a rank hands out in one all-to-all, (expert_parallel - 1) / expert_parallel of
  /// which go to other ranks. Two in each pass, to the experts and back; three in the backward pass of frameworks that
  /// keep no copies of tokens (LayerKernels::recomputes_elementwise).
  Bytes all_to_all{};
  int forward_all_to_alls = 0;
  int backward_all_to_alls = 0;
};
ExchangeWork exchange_work(const Model& model, const LayerKey& key, const LayerKernels& kernels = {});
/// Whether ranks can exchange what attention needs under these degrees. See ContextExchange::all_to_all.
bool can_exchange(const Model& model, const LayerKernels& kernels, int tensor_parallel, int context_parallel);

/// Memory of one layer on one rank for one micro-batch, as in LayerMemory.
struct LayerSizes {
  std::int64_t parameters = 0;
  Bytes activation{};
  Bytes output{};
  Bytes workspace{};
};
/// Activations follow Korthikanti et al. 2022, equations 1 and 2, with values of one size, attention scores that are
/// kept once (unfused) or not at all, and no dropout masks; see estimate.cpp. Under Precision::fp8 the inputs of a
/// block's linear layers are kept in 8 bits (LayerKernels::keeps_rounded_inputs).
LayerSizes layer_sizes(const Model& model, const LayerKey& key, const LayerKernels& kernels = {});

/// Peak rate in a number format: tf32 falls back to fp32 where the device has none. Errors: not_found (no bf16, fp16 or
/// fp8).
Result<FlopPerSecond> peak_rate(const GpuType& gpu, Precision precision);

struct LayerTimes {
  Seconds forward{};
  Seconds backward{};
  Seconds update{};
};
/// Compute time, memory time and the all-reduces over tensor-parallel ranks, at least the launches, which a host makes
/// while the device is busy:
///   max(flop / (compute·peak) + attention / (share·peak) + traffic / (memory·bandwidth) + all_reduces·all_reduce,
///       launches·launch),  share = attention_...·length / (length + attention_..._half).
/// Times of compute and memory are added, instead of taking the larger: matrix products and element-wise operations
/// follow each other. Under Precision::fp8 the products of 8-bit numbers run at compute_fp8·peak, and all else at the
/// rates of bf16.
/// `all_reduce`: time of one all-reduce; without it, a ring over a link of `link_share`. `kernels`: only its efficiency
/// is used. Errors as peak_rate().
Result<LayerTimes> roofline(const LayerWork& work, const GpuType& gpu, Precision precision, int tensor_parallel,
                            std::optional<Seconds> all_reduce = std::nullopt, const LayerKernels& kernels = {});

}  // namespace sailor
