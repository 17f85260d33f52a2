// Results of every operation of a device's streams, for a comparison of two devices: random inputs, poisoned outputs.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/bits16.hpp"
#include "runtime/device.hpp"
#include "runtime/parameters.hpp"
#include "runtime/tensor.hpp"

namespace sailor::runtime::test {

/// A device with what a case leaves there.
class Bench {
 public:
  /// Tensors are made in `memory`, which is the device itself where that is left out.
  Bench(Device& device, DataType type, MemorySource* memory = nullptr)
      : device_(device), memory_(memory != nullptr ? *memory : device), type_(type) {}

  [[nodiscard]] Stream& stream() { return device_.main(); }
  [[nodiscard]] DataType type() const { return type_; }

  /// Normally distributed, of the bench's type or float32; the same on every device.
  Tensor noise(std::int64_t count, float deviation = 1.0f) { return noise(count, type_, deviation); }
  Tensor floats(std::int64_t count, float deviation = 1.0f) { return noise(count, DataType::float32, deviation); }
  Tensor poisoned(std::int64_t count) { return poisoned(count, type_); }
  Tensor poisoned(std::int64_t count, DataType type) {
    const std::vector<char> bytes(bytes_of(type, count), static_cast<char>(0xff));  // NaNs
    return upload(count, type, bytes.data());
  }
  Tensor zeros(std::int64_t count, DataType type = DataType::float32) {
    const std::vector<char> bytes(bytes_of(type, count), 0);
    return upload(count, type, bytes.data());
  }
  /// Of 0 to limit - 1, with repetitions.
  Tensor integers(std::int64_t count, std::int32_t limit) {
    const std::vector<float> random = random_values(count, 1.0f);
    std::vector<std::int32_t> values(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<std::int32_t>(std::abs(random[i]) * 1e4f) % limit;
    return upload(count, DataType::int32, values.data());
  }
  /// A result, up to the tolerance of the bench's type, or of float32.
  void keep(const Tensor& tensor) {
    std::vector<char> bytes(tensor.bytes());
    device_.read(bytes.data(), tensor.data(), bytes.size());
    std::vector<double> values;
    for (std::int64_t i = 0; i < tensor.elements(); ++i) {
      const auto at = [&]<class T>(T) { return reinterpret_cast<const T*>(bytes.data())[i]; };
      if (tensor.type() == DataType::float64)
        values.push_back(at(double{}));
      else if (tensor.type() == DataType::float32)
        values.push_back(at(float{}));
      else
        values.push_back(from_bits16(tensor.type(), at(std::uint16_t{})));
    }
    results.push_back(std::move(values));
  }
  void keep_integers(const Tensor& tensor) {
    std::vector<std::int32_t> integers(static_cast<std::size_t>(tensor.elements()));
    device_.read(integers.data(), tensor.data(), tensor.bytes());
    results.emplace_back(integers.begin(), integers.end());
  }
  std::vector<std::vector<double>> results;

 private:
  std::vector<float> random_values(std::int64_t count, float deviation) {
    return initial_values({.name = "noise", .shape = {count}, .initial = InitialValue::normal, .deviation = deviation},
                          ++seed_);
  }
  Tensor noise(std::int64_t count, DataType type, float deviation) {
    const std::vector<float> values = random_values(count, deviation);
    if (type == DataType::float32) return upload(count, type, values.data());
    std::vector<std::uint16_t> bits;
    bits.reserve(values.size());
    for (const float value : values) bits.push_back(to_bits16(type, value));
    return upload(count, type, bits.data());
  }
  Tensor upload(std::int64_t count, DataType type, const void* values) {
    Tensor tensor(memory_, {count}, type);
    device_.write(tensor.data(), values, tensor.bytes());
    return tensor;
  }

  Device& device_;
  MemorySource& memory_;
  DataType type_;
  std::uint64_t seed_ = 0;
};

struct DeviceCase {
  std::string name;
  std::function<void(Bench&)> run;
};

/// All operations, at shapes that are no multiples of anything among them.
std::vector<DeviceCase> device_cases();

/// What only a GPU with over a hundred multiprocessors needs: more rows than it has blocks for.
std::vector<DeviceCase> large_device_cases();

/// How far the results of one device are from those of another: the largest difference of a value, in parts of the
/// root mean square of its array and of itself. Infinite where one is NaN and the other is not.
double difference(const std::vector<std::vector<double>>& results, const std::vector<std::vector<double>>& expected);

}  // namespace sailor::runtime::test
