// What the layers of a model cost on one rank under one set of options, as tables to sum from.
#pragma once

#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/units.hpp"
#include "simulator/simulator.hpp"

namespace sailor::simulator {

/// Forward and backward of one micro-batch.
struct PassTimes {
  Seconds forward{};
  Seconds backward{};
};

/// Sums over a range of layers are differences of prefix sums: element i of those is of layers [0, i).
struct LayerTable {
  struct Kind {  // layers [first, last)
    LayerKind kind = LayerKind::block;
    int first = 0;
    int last = 0;
    double forward_error = 0.0;  ///< standard deviation of the times as a share of them
    double backward_error = 0.0;
    /// The same of an estimate, which is off in the same direction for all layers and passes.
    double estimate_error = 0.0;
  };
  std::string gpu;
  std::vector<PassTimes> times;
  std::vector<Seconds> update;
  std::vector<double> parameters;
  std::vector<Bytes> activations;  ///< of one micro-batch, of all layers but the head
  std::vector<Bytes> workspace;    ///< no sum: of layer i alone
  Bytes logits{};                  ///< activations of the head
  Bytes extra_logits{};            ///< on the last stage, however many micro-batches are in flight
  Bytes stage_input{};  ///< of one micro-batch, of stages that receive one; with Framework::keeps_stage_inputs
  std::vector<Kind> kinds;
  Seconds tied_update{};  ///< of the second copy of a tied embedding
  Origin origin = Origin::measured;
  std::vector<EstimatedInput> estimated_inputs;

  [[nodiscard]] PassTimes passes(const LayerRange& layers) const;
};

/// What all layers cost under `key` (kind and first_layer aside). Recomputation that was not measured is derived from
/// layers without it:
/// - full: the forward pass once more; of a layer only its input stays;
/// - selective: the attention's scores and their product with the values once more, by their share of the FLOP; their
///   bytes (Framework::attention_score) do not stay, the block's other arrays do (Korthikanti et al. 2022,
///   section 4.2).
/// Where a layer takes less time per sequence at a larger micro-batch, the host that launches it is the limit, and
/// Framework::profiling_overhead of that excess is left out. Errors: not_found, with what to profile.
Result<LayerTable> make_layer_table(const Environment& environment, const LayerCosts& costs, const LayerKey& key);

}  // namespace sailor::simulator
