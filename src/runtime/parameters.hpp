// The trained parameters of some layers on one rank: named tensors whose values and gradients lie in two contiguous
// arrays, in the order of the layers. Contiguity lets gradients of neighbouring layers be reduced by one call and
// without copies.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
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
  Shape shape;       ///< of the part that this rank holds
  /// Rows of the whole parameter, by segment. Empty: every rank of the tensor-parallel group holds all of it.
  std::vector<std::int64_t> segments{};
  Shard shard{};                 ///< the part of every segment that this rank holds; {0, 1} when it holds all
  Shard of_segments{};           ///< the part of the segments that it holds: other ranks have other experts
  bool rows_are_inputs = false;  ///< a matrix stored (in, out)
  int layer = 0;                 ///< index in the model of the layer that owns it; a copy names the original's
  InitialValue initial = InitialValue::zero;
  float deviation = 0.0f;  ///< standard deviation of `normal`
  bool decays = false;     ///< weight decay applies: matrices only, not biases and norms

  /// Values that the layers compute with, in their type. Null until a ParameterStorage is made.
  Values value = nullptr;
  float* gradient = nullptr;

  [[nodiscard]] std::int64_t elements() const { return element_count(shape); }
  /// Number of elements of a row.
  [[nodiscard]] std::int64_t width() const { return shape.front() == 0 ? 0 : elements() / shape.front(); }
  [[nodiscard]] bool is_divided() const { return !segments.empty(); }
  /// Indices of the segments of which this rank holds its part.
  [[nodiscard]] Range held_segments() const { return cut(std::ssize(segments), of_segments); }
  /// Number of elements of the whole parameter, over all shards.
  [[nodiscard]] std::int64_t whole_elements() const;
  /// Positions of this rank's elements in the whole parameter.
  [[nodiscard]] std::vector<Piece> pieces() const;
};

/// Initial values, in host memory, of the part of a parameter that this rank holds: a pure function of (seed, layer,
/// name) and the position in the whole parameter, so that every plan starts from the same model. Uses integer
/// arithmetic and exactly rounded operations in double only: the same bits on all machines, which replicas on different
/// CPUs rely on.
std::vector<float> initial_values(const Parameter& parameter, std::uint64_t seed);

/// initial_values() in parts, in one buffer of pinned host memory: a model of billions of parameters takes no more.
class InitialValues {
 public:
  /// `largest`: max number of elements in a call of each().
  InitialValues(Device& device, std::uint64_t seed, std::int64_t largest);
  ~InitialValues();
  InitialValues(const InitialValues&) = delete;
  InitialValues& operator=(const InitialValues&) = delete;
  /// Calls use(first, values) for consecutive parts of `elements`, which are positions in this rank's part of the
  /// parameter. The device must have read the values when `use` returns.
  void each(const Parameter& parameter, const Range& elements,
            const std::function<void(std::int64_t first, std::span<const float> values)>& use) const;

 private:
  static constexpr std::int64_t most = std::int64_t{1} << 24;

  Device& device_;
  std::uint64_t seed_;
  std::int64_t part_;  // elements that the buffer holds
  float* buffer_;
};

/// Number of elements, with padding, that `elements` elements take in a ParameterStorage.
constexpr std::int64_t padded(std::int64_t elements) { return (elements + 15) / 16 * 16; }

class Layer;

/// Memory of the parameters of `layers`, which must outlive it: values in the type that the parameters name (one for
/// all), gradients in float32. Each parameter is padded to a multiple of 16 elements, and the padding stays zero, so
/// that copies of a layer have the same layout on every rank.
class ParameterStorage {
 public:
  ParameterStorage(Device& device, const std::vector<Layer*>& layers);
  ParameterStorage(Device& device, std::vector<Parameter*> parameters);

  /// Makes layers that declare the same parameters use this memory, too.
  void lend_to(const std::vector<Layer*>& layers) const;

  /// Sets values to initial_values(), rounded to the type.
  void initialize(std::uint64_t seed);
  /// Sets elements [first, first + count) of a parameter of this storage from host values, rounded to the type.
  void set_values(const Parameter& parameter, std::int64_t first, const float* host, std::int64_t count);
  void zero_gradients();

  [[nodiscard]] const std::vector<Parameter*>& parameters() const { return parameters_; }
  /// Number of elements without padding.
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
