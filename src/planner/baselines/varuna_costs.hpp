// Look-ups of Varuna (Athlur et al., EuroSys 2022): layer times, messages and memory of one GPU type at one
// tensor-parallel degree. Varuna measures the peak memory of each layer trained alone (`mem_required`), which the
// common profile does not have.
#pragma once

#include <string>

#include "core/error.hpp"
#include "planner/baselines/baseline.hpp"

namespace sailor::planner::baselines::varuna_detail {

struct Costs {
  const Inputs& inputs;
  std::string gpu;
  int tensor_parallel = 1;
  const LayerSizes* sizes = nullptr;
  const LinkCoefficients* link = nullptr;  ///< between nodes
  int sequence_length = 0;
  bool is_measured = false;  ///< peaks are those of the artifact; else a substitute

  [[nodiscard]] int layers() const { return inputs.layers(); }
  /// The largest micro-batch of the artifact's profile_4.json.
  [[nodiscard]] int most_measured() const { return gpu == "V100-16" ? 4 : 8; }
  /// Null if not measured.
  [[nodiscard]] const LayerTimes* times(int micro_batch) const {
    return inputs.times(gpu, micro_batch, tensor_parallel);
  }
  /// Bytes that one rank sends to the next stage.
  [[nodiscard]] double output(int layer, int micro_batch) const;
  /// Bytes that replicas of layers [first, last) all-reduce.
  [[nodiscard]] double gradient_bytes(int first, int last) const;
  /// Bytes besides states and kept activations while the backward pass of a layer runs: for a block the attention
  /// scores, their gradient and that of the softmax, and the gradient of the output; for other layers two outputs. With
  /// it the sum over OPT-350 is within 2 % of what the artifact measured.
  [[nodiscard]] double workspace(int layer, int micro_batch) const;
  /// Peak bytes of a layer that is trained alone.
  [[nodiscard]] double peak(int layer, int micro_batch) const;
  /// Bytes of a stage by Varuna's formula: peaks without outputs, except for the last one's.
  [[nodiscard]] double published_memory(const LayerRange& range, int micro_batch) const;
  /// Bytes of the states, the activations of micro-batches in flight, and the largest workspace of a layer.
  [[nodiscard]] double true_memory(const LayerRange& range, int micro_batch, int in_flight) const;
};

/// With Faults::kept the peaks are the artifact's where it has them. Errors: not_found (sizes, links).
Result<Costs> varuna_costs(const Problem& problem, const Offer& offer, int tensor_parallel);

}  // namespace sailor::planner::baselines::varuna_detail
