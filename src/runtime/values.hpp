// Types of values in device memory, and pointers that carry their type.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sailor::runtime {

enum class DataType { float32, bfloat16, float16, float64, int32 };

constexpr std::size_t size_of(DataType type) {
  switch (type) {
    case DataType::bfloat16:
    case DataType::float16:
      return 2;
    case DataType::float64:
      return 8;
    case DataType::float32:
    case DataType::int32:
      break;
  }
  return 4;
}

/// Size of `count` values.
constexpr std::size_t bytes_of(DataType type, std::int64_t count) {
  return static_cast<std::size_t>(count) * size_of(type);
}

// Pointers to float32, bfloat16 or float16 values. Functions that take them read any of these types, compute in float32
// and round what they write to the nearest (ties to even). A pointer to floats converts to them.

struct ConstValues {
  ConstValues(const float* floats) : data(floats) {}  // NOLINT(google-explicit-constructor)
  ConstValues(const void* memory, DataType data_type) : data(memory), type(data_type) {}

  [[nodiscard]] bool is_float32() const { return type == DataType::float32; }
  // The caller must know the type; nothing is converted.
  [[nodiscard]] const float* floats() const { return static_cast<const float*>(data); }
  [[nodiscard]] const std::uint16_t* bits16() const { return static_cast<const std::uint16_t*>(data); }

  const void* data;
  DataType type = DataType::float32;
};

struct Values {
  Values(float* floats) : data(floats) {}  // NOLINT(google-explicit-constructor)
  Values(void* memory, DataType data_type) : data(memory), type(data_type) {}
  operator ConstValues() const { return {data, type}; }  // NOLINT(google-explicit-constructor)

  [[nodiscard]] bool is_float32() const { return type == DataType::float32; }
  [[nodiscard]] float* floats() const { return static_cast<float*>(data); }
  [[nodiscard]] std::uint16_t* bits16() const { return static_cast<std::uint16_t*>(data); }

  void* data;
  DataType type = DataType::float32;
};

/// Pointer advanced by `count` values.
inline ConstValues operator+(ConstValues values, std::int64_t count) {
  return {static_cast<const char*>(values.data) + count * static_cast<std::int64_t>(size_of(values.type)), values.type};
}
inline Values operator+(Values values, std::int64_t count) {
  return {static_cast<char*>(values.data) + count * static_cast<std::int64_t>(size_of(values.type)), values.type};
}

}  // namespace sailor::runtime
