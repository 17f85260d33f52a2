#include "tests/fakes/cuda/emulator.hpp"

namespace sailor::runtime::cuda {

thread_local __attribute__((aligned(16))) unsigned char shared_bytes[most_shared_bytes + emulator::guard_bytes];

}  // namespace sailor::runtime::cuda
