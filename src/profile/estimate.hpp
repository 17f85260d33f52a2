// What a layer should cost on a device that nobody measured: work and bytes from the architecture, rates from the GPU
// catalogue. These are estimates; how far they are off is what `sailor-profile estimate --leave-one-out` prints.
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
  unfused,  ///< product, softmax and product one by one: the scores, sequence_length^2 for each head, go through memory
  fused,    ///< in blocks that fit into a cache (Dao et al. 2022): no scores are kept; backward computes them again
};
std::string_view to_string(Attention attention);

/// Share of the catalogue's rates that a training framework reaches.
struct Efficiency {
  double compute = 0.0;            ///< of the peak rate, by matrix products
  double attention_forward = 0.0;  ///< of the peak rate, by fused attention
  double attention_backward = 0.0;
  double memory = 0.0;      ///< of the memory bandwidth, by everything else
  Seconds launch{};         ///< to start one operation; nothing is faster than its starts
  double link_share = 0.0;  ///< bandwidth between devices of a node as share of their memory bandwidth
};
Efficiency generic_efficiency(DeviceKind kind, Precision precision);

/// How a training framework computes layers, as far as an estimate depends on it.
struct LayerKernels {
  Attention attention = Attention::unfused;
  /// Outputs of norms and activation functions are computed again in the backward pass instead of kept, and logits
  /// become their gradient in place: as Sailor's own runtime does.
  bool recomputes_elementwise = false;
  /// Where a tensor-parallel group divides the linear layers, it divides the norms and residual sums between them along
  /// the sequence, too (Korthikanti et al. 2022, section 4.2.2): all-gathers and reduce-scatters take the place of the
  /// all-reduces.
  bool sequence_parallel = false;
  /// With sequence_parallel: what the ranks gather before linear layers is kept for the backward pass, not gathered
  /// again.
  bool keeps_gathered_inputs = false;
  bool fused_norms = false;                ///< an RMS norm is one kernel, which keeps its input and its output only
  std::optional<Efficiency> efficiency{};  ///< of its kernels on GPUs; without it generic_efficiency()
};

/// What one rank computes and moves for one micro-batch through one layer.
struct LayerWork {
  Flop forward_flop{};       ///< of matrix products, those of unfused attention included
  Flop backward_flop{};      ///< with what is computed again (LayerKey::recompute)
  Flop forward_attention{};  ///< of fused attention
  Flop backward_attention{};
  Bytes forward_traffic{};  ///< between processor and memory
  Bytes backward_traffic{};
  Bytes update_traffic{};    ///< of the optimizer step
  int forward_launches = 0;  ///< operations that a framework starts one by one
  int backward_launches = 0;
  Bytes all_reduce{};  ///< array of one sum over the tensor-parallel ranks
  int forward_all_reduces = 0;
  int backward_all_reduces = 0;
};
/// Kind and sizes are those of the key; its GPU, model name and busy_ranks do not matter.
LayerWork layer_work(const Model& model, const LayerKey& key, const LayerKernels& kernels = {});

/// What one rank holds of one layer, for one micro-batch. As LayerMemory.
struct LayerSizes {
  std::int64_t parameters = 0;
  Bytes activation{};
  Bytes output{};
  Bytes workspace{};
};
/// Activations after Korthikanti et al. 2022, equations 1 and 2, for values of one size, attention scores that are kept
/// once (unfused) or not at all, and no dropout masks; see estimate.cpp.
LayerSizes layer_sizes(const Model& model, const LayerKey& key, const LayerKernels& kernels = {});

/// Peak rate in a number format: tf32 falls back to fp32 where the device has none. Errors: not_found (no bf16 or
/// fp16).
Result<FlopPerSecond> peak_rate(const GpuType& gpu, Precision precision);

struct LayerTimes {
  Seconds forward{};
  Seconds backward{};
  Seconds update{};
};
/// Time of computing plus time of moving, at least the launches, plus the sums over tensor-parallel ranks:
///   max(flop / (compute·peak) + attention / (attention_...·peak) + traffic / (memory·bandwidth), launches·launch) +
///   all_reduces·all_reduce.
/// The sum, not the larger of the two: products and element-wise operations follow each other. `all_reduce`: of one
/// sum; without it a ring over a link of `link_share`. `kernels`: for their efficiency. Errors as peak_rate().
Result<LayerTimes> roofline(const LayerWork& work, const GpuType& gpu, Precision precision, int tensor_parallel,
                            std::optional<Seconds> all_reduce = std::nullopt, const LayerKernels& kernels = {});

}  // namespace sailor
