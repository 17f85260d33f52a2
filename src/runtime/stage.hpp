// The layers of one pipeline stage on one rank, with their parameters and the activations of the micro-batches in
// flight.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "core/units.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "plan/schedule.hpp"
#include "runtime/layer.hpp"

namespace sailor::runtime {

/// Called before and after each layer of a pass, with its index in the model. What a hook enqueues on a stream comes
/// before or after the operations of the layer. (Forward passes that are recomputed in a backward pass are not
/// reported.)
struct StageHooks {
  std::function<void(int layer, Pass pass)> before_layer{};
  std::function<void(int layer, Pass pass)> after_layer{};
};

class StageLayers {
 public:
  /// All chunks of `stage`, which says what is recomputed: under full recomputation a block keeps its input only and
  /// runs forward again before it runs backward. Parameters are in `parameters`, which must outlive it; null: in memory
  /// of its own.
  StageLayers(const Model& model, const Stage& stage, LayerContext context, StageHooks hooks = {},
              ParameterStorage* parameters = nullptr);
  /// One chunk of layers that are not divided.
  StageLayers(const Model& model, LayerRange range, Device& device, DataType type = DataType::float32,
              StageHooks hooks = {});

  /// Runs micro-batch `index` forward through a chunk. `input` is empty for the model's first chunk; returns an empty
  /// tensor for its last.
  Tensor forward(int index, const MicroBatch& micro_batch, Tensor input, int chunk = 0);
  /// `output_gradient` is empty for the model's last chunk; returns an empty tensor for its first.
  Tensor backward(int index, const MicroBatch& micro_batch, Tensor output_gradient, int chunk = 0);

  [[nodiscard]] ParameterStorage& parameters() { return *parameters_; }
  /// Memory of the activations that are kept now, for all micro-batches in flight.
  [[nodiscard]] Bytes activation() const;

 private:
  [[nodiscard]] bool recomputes(const Layer& layer) const;

  const Model model_;
  Recompute recompute_;
  StageHooks hooks_;
  std::vector<std::vector<std::unique_ptr<Layer>>> chunks_;
  std::unique_ptr<ParameterStorage> own_;
  ParameterStorage* parameters_;
  std::map<std::pair<int, int>, std::vector<Slot>> in_flight_;  // chunk and micro-batch -> one slot per layer
};

}  // namespace sailor::runtime
