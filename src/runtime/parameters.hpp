// The trained parameters of some layers on one rank: named tensors whose values and gradients lie in two contiguous
// arrays, in the order of the layers. Contiguity lets gradients of neighbouring layers be reduced by one call and
// without copies.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/device.hpp"
#include "runtime/sharding.hpp"
#include "runtime/tensor.hpp"

namespace sailor::runtime {

enum class InitialValue { normal, zero, one };

/// One named tensor of a layer, or the part of it that this rank holds (sharding.hpp). The pointers are set by
/// ParameterStorage.
struct Parameter {
  std::string name;  ///< unique in its layer: "attention.input.weight"
  Shape shape;       ///< of what this rank holds
  /// Rows of the whole parameter, by segment. Empty: every rank of the tensor-parallel group holds all of it.
  std::vector<std::int64_t> segments{};
  Shard shard{};                 ///< the part that this rank holds; {0, 1} when it holds all
  bool rows_are_inputs = false;  ///< a matrix stored (in, out)
  int layer = 0;                 ///< index in the model of the layer that owns it; a copy names the original's
  InitialValue initial = InitialValue::zero;
  float deviation = 0.0f;  ///< of `normal`
  bool decays = false;     ///< weight decay applies: matrices only, not biases and norms

  /// What the layers compute with, in their type. Null before a ParameterStorage was made.
  Values value = nullptr;
  float* gradient = nullptr;

  [[nodiscard]] std::int64_t elements() const { return element_count(shape); }
  /// Of a row.
  [[nodiscard]] std::int64_t width() const { return shape.front() == 0 ? 0 : elements() / shape.front(); }
  [[nodiscard]] bool is_divided() const { return !segments.empty(); }
  /// Of the parameter that all shards make together.
  [[nodiscard]] std::int64_t whole_elements() const;
  /// Where what this rank holds lies in the whole.
  [[nodiscard]] std::vector<Piece> pieces() const;
};

/// Host values of what this rank holds of a parameter at the start of training: a pure function of (seed, layer, name)
/// and the position in the whole parameter, so that every plan starts from the same model. Uses integer arithmetic and
/// one multiplication only: the same bits on all machines, which replicas on different CPUs rely on.
std::vector<float> initial_values(const Parameter& parameter, std::uint64_t seed);

/// Elements that so many take in a ParameterStorage.
constexpr std::int64_t padded(std::int64_t elements) { return (elements + 15) / 16 * 16; }

class Layer;

/// Memory of the parameters of `layers`, which must outlive it: values in the type that the parameters name (one for
/// all), gradients in float32. A part of 16 elements is padded, and the padding stays zero, so that copies of a layer
/// have the same layout on every rank.
class ParameterStorage {
 public:
  ParameterStorage(Device& device, const std::vector<Layer*>& layers);
  ParameterStorage(Device& device, std::vector<Parameter*> parameters);

  /// Layers that declare the same parameters use this memory, too.
  void lend_to(const std::vector<Layer*>& layers) const;

  /// To initial_values(), rounded to the type.
  void initialize(std::uint64_t seed);
  /// Elements [first, first + count) of a parameter of this storage become those of the host, rounded to the type.
  void set_values(const Parameter& parameter, std::int64_t first, const float* host, std::int64_t count);
  void zero_gradients();

  [[nodiscard]] const std::vector<Parameter*>& parameters() const { return parameters_; }
  /// Without padding.
  [[nodiscard]] std::int64_t elements() const;
  /// Offset of the first element of parameter `index` in the contiguous arrays; index = size() gives the end.
  [[nodiscard]] std::int64_t offset(std::size_t index) const { return offsets_[index]; }
  [[nodiscard]] std::int64_t size() const { return offsets_.back(); }  ///< with padding
  [[nodiscard]] DataType type() const { return values_.type(); }       ///< of values
  [[nodiscard]] Values values() { return values_.values(); }
  [[nodiscard]] float* gradients() { return gradients_.floats(); }

 private:
  Device& device_;
  std::vector<Parameter*> parameters_;
  std::vector<std::int64_t> offsets_;  // one more than parameters
  Tensor values_;
  Tensor gradients_;
};

}  // namespace sailor::runtime
