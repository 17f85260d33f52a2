// The layers of one pipeline stage on one rank, with their parameters and the activations of the micro-batches in
// flight.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "core/units.hpp"
#include "model/model.hpp"
#include "runtime/layer.hpp"

namespace sailor::runtime {

class StageLayers {
 public:
  /// `after_layer` is called after each layer of a pass, to let communication progress; it may be empty.
  StageLayers(const Model& model, LayerRange range, Device& device, std::function<void()> after_layer = {});

  /// Runs micro-batch `index` forward. `input` is empty on the first stage; returns an empty tensor on the last.
  Tensor forward(int index, const MicroBatch& micro_batch, Tensor input);
  /// `output_gradient` is empty on the last stage; returns an empty tensor on the first.
  Tensor backward(int index, const MicroBatch& micro_batch, Tensor output_gradient);

  [[nodiscard]] ParameterStorage& parameters() { return *parameters_; }
  /// Kept now for all micro-batches in flight.
  [[nodiscard]] Bytes activation() const;

 private:
  std::function<void()> after_layer_;
  std::vector<std::unique_ptr<Layer>> layers_;
  std::unique_ptr<ParameterStorage> parameters_;
  std::map<int, std::vector<Slot>> in_flight_;  // micro-batch -> one slot per layer
};

}  // namespace sailor::runtime
