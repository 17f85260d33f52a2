// Costs of a model's layers on one rank under one set of options, as prefix sums.
#pragma once

#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/units.hpp"
#include "simulator/simulator.hpp"

namespace sailor::simulator {

/// Forward and backward time of one micro-batch.
struct PassTimes {
  Seconds forward{};
  Seconds backward{};
};

/// Prefix sums over the layers: element i is of layers [0, i), and a range of layers is the difference of two elements.
struct LayerTable {
  struct Kind {  // layers [first, last)
    LayerKind kind = LayerKind::block;
    int first = 0;
    int last = 0;
    double forward_error = 0.0;  ///< standard deviation of the times as a share of them
    double backward_error = 0.0;
    /// The same for an estimate, whose error has the same direction for all layers and passes.
    double estimate_error = 0.0;
  };
  LayerKey key{};  ///< its kind and first_layer mean nothing
  std::string gpu;
  std::vector<PassTimes> times;
  /// Time in which hosts launch the passes where Framework::launch_delay_across_nodes counts. Empty: without a delay.
  std::vector<PassTimes> launches_across_nodes;
  std::vector<Seconds> update;
  std::vector<double> parameters;
  std::vector<double> experts;       ///< part of the parameters: experts, of which expert-parallel ranks hold others
  std::vector<PassTimes> attention;  ///< part of the times: attention; only under context parallelism
  std::vector<Bytes> activations;    ///< of one micro-batch, of all layers but the head
  std::vector<Bytes> workspace;      ///< not a prefix sum: of layer i alone
  Bytes logits{};                    ///< activations of the head
  Bytes extra_logits{};              ///< on the last stage, however many micro-batches are in flight
  Bytes stage_input{};  ///< of one micro-batch, for stages that receive one; only with Framework::keeps_stage_inputs
  std::vector<Kind> kinds;
  Seconds tied_update{};  ///< of the second copy of a tied embedding
  Origin origin = Origin::measured;
  std::vector<EstimatedInput> estimated_inputs;

  [[nodiscard]] PassTimes passes(const LayerRange& layers, bool across_nodes = false) const;
};

/// Costs of all layers under `key` (its kind and first_layer are ignored). Recomputation that was not measured is
/// derived from layers without it:
/// - full: the forward pass is computed again; of a layer only its input is kept;
/// - selective: the attention scores and their product with the values are computed again, by their share of the FLOP;
///   their bytes (Framework::attention_score) are not kept, the block's other arrays are (Korthikanti et al. 2022,
///   section 4.2).
/// Where a layer takes less time per sequence at a larger micro-batch, it is bound by the host that launches it, and
/// Framework::profiling_overhead of that excess is left out. Errors: not_found, with what to profile.
Result<LayerTable> make_layer_table(const Environment& environment, const LayerCosts& costs, const LayerKey& key);

}  // namespace sailor::simulator
