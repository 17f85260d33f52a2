// Stands in for CUDA's header where kernels are compiled for the CPU.
#pragma once
#include "tests/fakes/cuda/fake_runtime.hpp"
