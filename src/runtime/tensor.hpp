// A block of device memory with a shape, freed with its owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/units.hpp"
#include "runtime/device.hpp"
#include "runtime/values.hpp"

namespace sailor::runtime {

using Shape = std::vector<std::int64_t>;

/// The number of elements of a shape.
inline std::int64_t element_count(const Shape& shape) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  return count;
}

/// Movable, not copyable. An empty tensor has no memory. The memory source must outlive it.
class Tensor {
 public:
  Tensor() = default;
  /// Contents are undefined.
  Tensor(MemorySource& source, Shape shape, DataType type = DataType::float32)
      : source_(&source), shape_(std::move(shape)), type_(type), data_(source.allocate(bytes())) {}
  /// Takes over memory that `source` allocated.
  Tensor(MemorySource& source, void* memory, Shape shape, DataType type)
      : source_(&source), shape_(std::move(shape)), type_(type), data_(memory) {}
  ~Tensor() { reset(); }
  Tensor(Tensor&& other) noexcept { swap(other); }
  Tensor& operator=(Tensor&& other) noexcept {
    Tensor(std::move(other)).swap(*this);
    return *this;
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  /// Frees the memory now.
  void reset() {
    if (data_ != nullptr) source_->release(std::exchange(data_, nullptr));
    source_ = nullptr;
    shape_.clear();
  }

  [[nodiscard]] bool empty() const { return data_ == nullptr; }
  [[nodiscard]] const Shape& shape() const { return shape_; }
  [[nodiscard]] DataType type() const { return type_; }
  [[nodiscard]] std::int64_t elements() const { return source_ == nullptr ? 0 : element_count(shape_); }
  [[nodiscard]] std::size_t bytes() const { return bytes_of(type_, elements()); }

  [[nodiscard]] void* data() { return data_; }
  [[nodiscard]] const void* data() const { return data_; }
  /// Values of a float32, bfloat16 or float16 tensor.
  [[nodiscard]] Values values() { return {data_, type_}; }
  [[nodiscard]] ConstValues values() const { return {data_, type_}; }
  // The caller must know the type; nothing is converted.
  [[nodiscard]] float* floats() { return static_cast<float*>(data_); }
  [[nodiscard]] const float* floats() const { return static_cast<const float*>(data_); }
  [[nodiscard]] double* doubles() { return static_cast<double*>(data_); }
  [[nodiscard]] std::int32_t* integers() { return static_cast<std::int32_t*>(data_); }
  [[nodiscard]] const std::int32_t* integers() const { return static_cast<const std::int32_t*>(data_); }

 private:
  void swap(Tensor& other) noexcept {
    std::swap(source_, other.source_);
    std::swap(shape_, other.shape_);
    std::swap(type_, other.type_);
    std::swap(data_, other.data_);
  }

  MemorySource* source_ = nullptr;
  Shape shape_;
  DataType type_ = DataType::float32;
  void* data_ = nullptr;
};

}  // namespace sailor::runtime
