// The trained parameters of some layers on one rank: named tensors whose values, gradients and AdamW moments
// lie in four contiguous arrays, in the order of the layers. Contiguity lets gradients of neighbouring layers
// be reduced by one call and without copies.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/device.hpp"
#include "runtime/tensor.hpp"

namespace sailor::runtime {

enum class InitialValue { normal, zero, one };

/// One named tensor of a layer. The pointers are set by ParameterStorage.
struct Parameter {
  std::string name;  ///< unique in its layer: "attention.input.weight"
  Shape shape;
  int layer = 0;  ///< index in the model of the layer that owns it; a copy names the original's
  InitialValue initial = InitialValue::zero;
  float deviation = 0.0f;  ///< of `normal`
  bool decays = false;     ///< weight decay applies: matrices only, not biases and norms

  float* value = nullptr;
  float* gradient = nullptr;
  float* first_moment = nullptr;
  float* second_moment = nullptr;

  [[nodiscard]] std::int64_t elements() const { return element_count(shape); }
};

/// Host values of a parameter at the start of training: a pure function of (seed, layer, name), so that every
/// plan starts from the same model. Uses integer arithmetic and one multiplication only: the same bits on all
/// machines, which replicas on different CPUs rely on.
std::vector<float> initial_values(const Parameter& parameter, std::uint64_t seed);

class Layer;

/// Memory of the parameters of `layers`, which must outlive it. A part of 16 floats is padded, and the padding
/// stays zero, so that copies of a layer have the same layout on every rank.
class ParameterStorage {
 public:
  ParameterStorage(Device& device, const std::vector<Layer*>& layers);
  ParameterStorage(Device& device, std::vector<Parameter*> parameters);

  void initialize(std::uint64_t seed);
  void zero_gradients();
  /// One AdamW step over all parameters; `step.weight_decay` is applied where a parameter decays.
  void update(const AdamWStep& step);

  [[nodiscard]] const std::vector<Parameter*>& parameters() const { return parameters_; }
  /// Without padding.
  [[nodiscard]] std::int64_t elements() const;
  /// Offset of the first element of parameter `index` in the contiguous arrays; index = size() gives the end.
  [[nodiscard]] std::int64_t offset(std::size_t index) const { return offsets_[index]; }
  [[nodiscard]] float* gradients() { return gradients_.floats(); }

 private:
  Device& device_;
  std::vector<Parameter*> parameters_;
  std::vector<std::int64_t> offsets_;  // one more than parameters
  Tensor values_;
  Tensor gradients_;
  Tensor first_moments_;
  Tensor second_moments_;
};

}  // namespace sailor::runtime
