// Stands in for CUDA's header where kernels are compiled for the CPU: a copy is done when the thread asks for it, or
// when it waits for it, by the seed.
#pragma once

#include "tests/fakes/cuda/emulator.hpp"

inline void __pipeline_memcpy_async(void* to, const void* from, std::size_t bytes) {
  if (bytes != 4 && bytes != 8 && bytes != 16) emulator::fail("an asynchronous copy of neither 4, 8 nor 16 bytes");
  if (reinterpret_cast<std::uintptr_t>(to) % bytes != 0 || reinterpret_cast<std::uintptr_t>(from) % bytes != 0)
    emulator::fail("an asynchronous copy is not aligned");
  emulator::Thread& me = *emulator::current;
  if (emulator::settings.seed % 2 == 0)
    me.copies.push_back({to, from, bytes, me.batches});
  else
    std::memcpy(to, from, bytes);
}
inline void __pipeline_commit() { ++emulator::current->batches; }
/// All but the last `count` committed batches are done afterwards.
inline void __pipeline_wait_prior(unsigned count,
                                  const emulator::SourceLocation& where = emulator::SourceLocation::current()) {
  if (!emulator::is_kept(where)) return;
  emulator::Thread& me = *emulator::current;
  std::erase_if(me.copies, [&](const emulator::AsyncCopy& copy) {
    if (copy.batch + count >= me.batches) return false;
    std::memcpy(copy.to, copy.from, copy.bytes);
    return true;
  });
}
