// AdamW over the parameters of a rank, or over the part of them that this rank steps (ZeRO stage 1, Rajbhandari et al.
// 2020), with moments for just that part. Where the values to compute with are bfloat16, AdamW steps float32 master
// values of that part, and the others follow by rounding: updates are mostly smaller than bfloat16's resolution.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/device.hpp"
#include "runtime/parameters.hpp"
#include "runtime/sharding.hpp"

namespace sailor::runtime {

class AdamW {
 public:
  /// Steps all parameters. The storage must outlive it; master values start as its values are now.
  AdamW(Device& device, ParameterStorage& parameters);
  /// Steps elements `owned` of the storage: ascending, not overlapping.
  AdamW(Device& device, ParameterStorage& parameters, const std::vector<Range>& owned);

  /// Master values become initial_values(), to the last bit: until then they are the rounded ones. Nothing without.
  void initialize(std::uint64_t seed);

  /// One step on the device's main stream; `step.weight_decay` is applied where a parameter decays, `gradient_factor`
  /// as in Stream::adamw.
  void step(const AdamWStep& step, const float* gradient_factor = nullptr);

  /// Part of one parameter that is stepped.
  struct Part {
    std::size_t parameter = 0;  ///< index in the storage
    std::int64_t first = 0;     ///< element of the parameter on this rank
    std::int64_t count = 0;
    std::int64_t moment = 0;  ///< its first element in the arrays of moments and master values
  };
  /// Without padding, ascending.
  [[nodiscard]] const std::vector<Part>& parts() const { return parts_; }
  // For checkpoints: device memory.
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
  std::vector<OptimizerSegment> segments_;  // of the parts
};

}  // namespace sailor::runtime
