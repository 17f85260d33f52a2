// Building blocks of kernels: 16-byte loads and stores of values of any type as floats, sums over a warp and a block,
// and launches. Kernels use only dynamic shared memory (shared_bytes) and warp shuffles, so that the tests can run them
// on a CPU (tests/fakes/cuda).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>

#include "runtime/cuda/kernels.hpp"

namespace sailor::runtime::cuda {

using Bfloat16 = __nv_bfloat16;
using Float16 = __half;

constexpr unsigned all_lanes = 0xffffffffu;
constexpr int warp_size = 32;

/// Checked only where kernels run on a CPU.
#ifndef SAILOR_KERNEL_CHECK
#define SAILOR_KERNEL_CHECK(condition) static_cast<void>(0)
#endif

// ---- Values

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(Bfloat16 value) { return __bfloat162float(value); }
__device__ __forceinline__ float to_float(Float16 value) { return __half2float(value); }
__device__ __forceinline__ void from_float(float value, float& to) { to = value; }
__device__ __forceinline__ void from_float(float value, Bfloat16& to) { to = __float2bfloat16_rn(value); }
__device__ __forceinline__ void from_float(float value, Float16& to) { to = __float2half_rn(value); }

/// N values that are loaded and stored at once.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T values[N];
};

/// `from` must be aligned to N values.
template <int N, class T>
__device__ __forceinline__ void load(const T* from, float (&to)[N]) {
  const Pack<T, N> pack = *reinterpret_cast<const Pack<T, N>*>(from);
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = to_float(pack.values[i]);
}
template <int N, class T>
__device__ __forceinline__ void store(const float (&from)[N], T* to) {
  Pack<T, N> pack;
#pragma unroll
  for (int i = 0; i < N; ++i) from_float(from[i], pack.values[i]);
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}
/// N float32 values may take several 16-byte loads.
template <int N>
__device__ __forceinline__ void load(const float* from, float (&to)[N]) {
  if constexpr (N <= 4) {
    const Pack<float, N> pack = *reinterpret_cast<const Pack<float, N>*>(from);
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = pack.values[i];
  } else {
#pragma unroll
    for (int part = 0; part < N; part += 4) {
      const Pack<float, 4> pack = *reinterpret_cast<const Pack<float, 4>*>(from + part);
#pragma unroll
      for (int i = 0; i < 4; ++i) to[part + i] = pack.values[i];
    }
  }
}
template <int N>
__device__ __forceinline__ void store(const float (&from)[N], float* to) {
  constexpr int part_size = N <= 4 ? N : 4;
#pragma unroll
  for (int part = 0; part < N; part += part_size) {
    Pack<float, part_size> pack;
#pragma unroll
    for (int i = 0; i < part_size; ++i) pack.values[i] = from[part + i];
    *reinterpret_cast<Pack<float, part_size>*>(to + part) = pack;
  }
}

// ---- Sums

__device__ __forceinline__ int lane_index() { return static_cast<int>(threadIdx.x) % warp_size; }
__device__ __forceinline__ int warp_index() { return static_cast<int>(threadIdx.x) / warp_size; }
__device__ __forceinline__ int warp_count() { return (static_cast<int>(blockDim.x) + warp_size - 1) / warp_size; }

template <class T>
__device__ __forceinline__ T warp_sum(T value) {
#pragma unroll
  for (int distance = warp_size / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(all_lanes, value, distance);
  return value;
}
__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int distance = warp_size / 2; distance > 0; distance /= 2)
    value = fmaxf(value, __shfl_xor_sync(all_lanes, value, distance));
  return value;
}

/// Replaces each of the `count` values by its sum over the block's threads (whole warps), on every thread. `scratch`
/// holds count · 32 values in shared memory and may be used again after the next barrier.
template <int count, class T>
__device__ __forceinline__ void block_sums(T (&values)[count], T* scratch) {
#pragma unroll
  for (int i = 0; i < count; ++i) values[i] = warp_sum(values[i]);
  if (lane_index() == 0)
#pragma unroll
    for (int i = 0; i < count; ++i) scratch[i * warp_size + warp_index()] = values[i];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < count; ++i)
    values[i] = warp_sum(lane_index() < warp_count() ? scratch[i * warp_size + lane_index()] : T(0));
}

/// Dynamic shared memory, of one kernel at a time.
extern __shared__ __align__(16) unsigned char shared_bytes[];

// ---- Launches (host)

struct Launch {
  dim3 grid{1, 1, 1};
  dim3 block{1, 1, 1};
  std::size_t shared = 0;  ///< bytes of dynamic shared memory
};

/// Enqueues a kernel on the queue's stream, with an explicit request for more than 48 KiB of shared memory.
template <class... Parameters, class... Arguments>
void launch(const Queue& queue, const Launch& shape, void (*kernel)(Parameters...), const Arguments&... arguments) {
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return;
  if (shape.shared > 48 * 1024)
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shape.shared)),
          "shared memory of a kernel");
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared;
  config.stream = queue.stream;
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), "launch of a kernel");
}

/// ceil(count / part): how many rounds of `part` cover `count`.
constexpr std::int64_t rounds_up(std::int64_t count, std::int64_t part) { return (count + part - 1) / part; }

/// Grid size for a loop over the work of `blocks` blocks: all of them, but at most `each` per multiprocessor.
inline unsigned looping_grid(const Queue& queue, std::int64_t blocks, int each) {
  return static_cast<unsigned>(std::min<std::int64_t>(blocks, std::int64_t{queue.multiprocessors} * each));
}

/// Calls `call` with a value of the C++ type that `type` stands for.
template <class Call>
void with_type(DataType type, const Call& call) {
  switch (type) {
    case DataType::float32:
      return call(float{});
    case DataType::bfloat16:
      return call(Bfloat16{});
    case DataType::float16:
      return call(Float16{});
    case DataType::float64:
    case DataType::int32:
      break;
  }
  throw std::runtime_error("CUDA: values that are no float32, bfloat16 or float16");
}

/// Whether values of T can be loaded 16 bytes at once: all pointers and the width of a row are multiples of that.
template <class T>
bool are_aligned(std::int64_t width, std::initializer_list<const void*> pointers) {
  if (width % static_cast<std::int64_t>(16 / sizeof(T)) != 0) return false;
  return std::all_of(pointers.begin(), pointers.end(),
                     [](const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0; });
}
/// Number of values that are loaded at once.
template <int N>
struct Packed {
  static constexpr int size = N;
};
/// Calls `call` with Packed<16 / sizeof(T)> if all pointers and the row width allow 16-byte accesses, else with
/// Packed<1>.
template <class T, class Call>
void with_packs(std::int64_t width, std::initializer_list<const void*> pointers, const Call& call) {
  if (are_aligned<T>(width, pointers))
    call(Packed<static_cast<int>(16 / sizeof(T))>{});
  else
    call(Packed<1>{});
}

template <class T>
T* pointer(Values values) {
  return static_cast<T*>(values.data);
}
template <class T>
const T* pointer(ConstValues values) {
  return static_cast<const T*>(values.data);
}

}  // namespace sailor::runtime::cuda
