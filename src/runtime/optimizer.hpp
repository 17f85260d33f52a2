// AdamW over the parameters of a rank, or over the part of them that this rank updates (ZeRO stage 1, Rajbhandari et
// al. 2020), with moments for just that part. Where layers compute in 16 bits, AdamW updates float32 master values of
// that part, which are rounded to the layers' values: updates are mostly smaller than their resolution.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/device.hpp"
#include "runtime/parameters.hpp"
#include "runtime/sharding.hpp"

namespace sailor::runtime {

class AdamW {
 public:
  /// Updates all parameters. The storage must outlive it; master values start as the current values of the storage.
  AdamW(Device& device, ParameterStorage& parameters);
  /// Updates elements `owned` of the storage: ascending, not overlapping.
  AdamW(Device& device, ParameterStorage& parameters, const std::vector<Range>& owned);

  /// Sets the master values to the float32 initial_values(); until then they are the values that 16 bits hold. Does
  /// nothing if there are no master values.
  void initialize(std::uint64_t seed);

  /// One step on the device's main stream; `step.weight_decay` is applied where a parameter decays, `gradient_factor`
  /// as in Stream::adamw.
  void step(const AdamWStep& step, const float* gradient_factor = nullptr);

  /// Part of one parameter that is updated.
  struct Part {
    std::size_t parameter = 0;  ///< index in the storage
    std::int64_t first = 0;     ///< first element, counted in the parameter on this rank
    std::int64_t count = 0;
    std::int64_t moment = 0;  ///< its first element in the arrays of moments and master values
  };
  /// Updated parts without padding, ascending.
  [[nodiscard]] const std::vector<Part>& parts() const { return parts_; }
  // Device memory, for checkpoints.
  /// Null where the storage's values are float32, and so their own master values.
  [[nodiscard]] float* master_values() { return master_values_.floats(); }
  [[nodiscard]] float* first_moments() { return first_moments_.floats(); }
  [[nodiscard]] float* second_moments() { return second_moments_.floats(); }

 private:
  Device& device_;
  ParameterStorage& parameters_;
  std::vector<Part> parts_;
  Tensor master_values_;
  Tensor first_moments_;
  Tensor second_moments_;
  std::vector<OptimizerSegment> segments_;  // one per part
};

}  // namespace sailor::runtime
