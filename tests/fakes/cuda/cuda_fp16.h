// Stands in for CUDA's header where kernels are compiled for the CPU (emulator.hpp).
#pragma once

#include "runtime/float16.hpp"

struct __half {
  std::uint16_t bits;
};
inline float __half2float(__half value) { return sailor::runtime::from_float16(value.bits); }
inline __half __float2half_rn(float value) { return {sailor::runtime::to_float16(value)}; }
