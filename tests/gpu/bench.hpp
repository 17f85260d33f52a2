// Times of a device's operations, on numbers as training has them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "runtime/device.hpp"
#include "runtime/tensor.hpp"

namespace sailor::runtime {

constexpr DataType bf16 = DataType::bfloat16;

class Bench {
 public:
  explicit Bench(Device& device) : device_(device) {}

  /// Seconds of one call, the best of five rounds of many.
  double time(const std::function<void(Stream&)>& operation) {
    const auto start = device_.make_event();
    const auto end = device_.make_event();
    operation(device_.main());
    device_.synchronize();
    double best = 1e9;
    int calls = 1;
    for (int round = 0; round < 6; ++round) {
      device_.main().record(*start);
      for (int i = 0; i < calls; ++i) operation(device_.main());
      device_.main().record(*end);
      device_.wait(*end);
      const double each = device_.elapsed(*start, *end).value() / calls;
      if (round > 0) best = std::min(best, each);
      calls = std::clamp(static_cast<int>(0.02 / each), 1, 1000);
    }
    return best;
  }
  /// Zeros; of bfloat16 numbers between -1 and 1, since a GPU multiplies zeros with less power, and so faster.
  Tensor make(std::int64_t count, DataType type = bf16) {
    Tensor tensor(device_, {count}, type);
    device_.main().zero(tensor.data(), tensor.bytes());
    if (type != bf16) return tensor;
    constexpr std::int64_t period = 1 << 20;
    if (noise_.empty()) {
      std::minstd_rand random;
      std::vector<float> numbers(period);
      for (float& number : numbers) number = std::uniform_real_distribution<float>(-1.0f, 1.0f)(random);
      noise_ = Tensor(device_, {period});
      device_.write(noise_.data(), numbers.data(), noise_.bytes());
    }
    auto* const elements = static_cast<std::uint16_t*>(tensor.data());
    for (std::int64_t first = 0; first < count; first += period)
      device_.main().convert({elements + first, bf16}, noise_.values(), std::min(period, count - first));
    return tensor;
  }
  Device& device() { return device_; }

 private:
  Device& device_;
  Tensor noise_;
};

}  // namespace sailor::runtime
