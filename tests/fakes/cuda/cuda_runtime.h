// Stands in for CUDA's header where kernels are compiled for the CPU (emulator.hpp).
#pragma once
#include "tests/fakes/cuda/emulator.hpp"
