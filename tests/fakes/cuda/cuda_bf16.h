// Stands in for CUDA's header where kernels are compiled for the CPU (emulator.hpp).
#pragma once

#include "runtime/bfloat16.hpp"

struct __nv_bfloat16 {
  std::uint16_t bits;
};
inline float __bfloat162float(__nv_bfloat16 value) { return sailor::runtime::from_bfloat16(value.bits); }
inline __nv_bfloat16 __float2bfloat16_rn(float value) { return {sailor::runtime::to_bfloat16(value)}; }
