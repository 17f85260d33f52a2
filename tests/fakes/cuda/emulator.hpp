// Runs CUDA kernels on the CPU, to test their own code where no GPU is. Every thread of a block is a fiber; between two
// points where threads wait for one another they run in an order shuffled by a seed, so that a missing barrier or a
// wrong mask shows. Asynchronous copies are done at once or as late as they may be. Blocks run one after the
// other. Dynamic shared memory begins as NaNs, and what a kernel writes behind what it asked for is noticed.
//
// Not there: inline assembly, tensor cores, atomics, static shared memory, cooperative grids, and what the memory model
// allows between blocks.
#pragma once

#include <boost/context/fiber.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <source_location>
#include <stdexcept>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

// ---- What nvcc knows
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__ thread_local

struct dim3 {
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}  // NOLINT
  unsigned x, y, z;
};

/// Of the thread that runs.
inline thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace sailor::runtime::cuda {
/// The kernels' `extern __shared__` array: as much as a block of an H100 can ask for, and guards behind.
inline constexpr std::size_t most_shared_bytes = 227 * 1024;
extern thread_local __attribute__((aligned(16))) unsigned char shared_bytes[];
}  // namespace sailor::runtime::cuda

namespace emulator {

#ifdef __cpp_lib_source_location
using SourceLocation = std::source_location;
#else  // clang-tidy of LLVM 14, which only has to read this
struct SourceLocation {
  static SourceLocation current() { return {}; }
  [[nodiscard]] const char* file_name() const { return ""; }
  [[nodiscard]] unsigned line() const { return 0; }
};
#endif

namespace fibers = boost::context;

enum class Waits { no, block, warp, done };

/// A copy into shared memory that a thread asked for with __pipeline_memcpy_async().
struct AsyncCopy {
  void* to;
  const void* from;
  std::size_t bytes;
  unsigned batch;  ///< which the next commit ends
};

struct Block;

struct Thread {
  Block* block = nullptr;  ///< that it belongs to
  dim3 index{0, 0, 0};
  unsigned linear = 0;
  Waits waits = Waits::no;
  bool started = false;
  unsigned mask = 0;              ///< with which it waits in a warp
  std::uint64_t slot = 0;         ///< what it will show to other lanes when they have all arrived
  std::uint64_t shown = 0;        ///< what it shows to them
  bool predicate = false;         ///< the same for the block
  std::vector<AsyncCopy> copies;  ///< asynchronous ones that are not done
  unsigned batches = 0;           ///< of copies, committed so far
  std::exception_ptr error{};     ///< that its code threw
  fibers::fiber fiber;            ///< to go on with
  fibers::fiber caller;           ///< to go back to
};

/// A barrier, by its line in the source.
using Site = std::pair<std::string_view, unsigned>;

/// Of all streams; set by tests while none runs anything.
struct Settings {
  std::uint64_t seed = 0;  ///< of the orders of threads
  Site left_out;           ///< the barrier that no thread waits for: tests look whether that shows
  std::mutex mutex;
  std::set<Site> sites;  ///< all barriers that were waited for so far
};
inline Settings settings;

/// Stacks that finished threads have left.
struct FreeStacks {
  std::vector<fibers::stack_context> stacks;
  ~FreeStacks() {
    for (fibers::stack_context& stack : stacks) fibers::fixedsize_stack(stack_bytes).deallocate(stack);
  }
  static constexpr std::size_t stack_bytes = 64 * 1024 + 512;  // no power of two: their ends share no set of a cache
};

/// The block that a thread of the host runs.
struct Block {
  FreeStacks free;  // outlives the threads, which leave theirs there
  std::vector<Thread> threads;
  bool any = false;  ///< whether a thread showed a predicate that holds
  std::set<Site> sites;
  // The barrier that a thread reached last.
  const char* last_file = nullptr;
  unsigned last_line = 0;
  bool last_is_kept = false;
};
inline thread_local Block this_block;
inline constinit thread_local Thread* current = nullptr;  ///< the thread that runs

[[noreturn]] inline void fail(const char* what) { throw std::runtime_error(what); }

/// Suspends the running thread.
inline void pause(Waits why, unsigned mask = 0) {
  Thread& me = *current;
  me.waits = why;
  me.mask = mask;
  me.caller = std::move(me.caller).resume();
}

/// Lets threads go on whose partners have all arrived. False: there are none.
inline bool release(Block& block) {
  std::vector<Thread>& threads = block.threads;
  bool all = true;
  for (const Thread& thread : threads) all = all && (thread.waits == Waits::block || thread.waits == Waits::done);
  if (all) {
    block.any = false;
    for (Thread& thread : threads) {
      if (thread.waits == Waits::done) fail("a thread left the kernel while others wait at a barrier");
      thread.waits = Waits::no;
      block.any |= std::exchange(thread.predicate, false);
    }
    return true;
  }
  bool freed = false;
  for (std::size_t warp = 0; warp < threads.size(); warp += 32) {
    const std::size_t lanes = std::min<std::size_t>(32, threads.size() - warp);
    for (std::size_t i = 0; i < lanes; ++i) {
      const Thread& thread = threads[warp + i];
      if (thread.waits != Waits::warp) continue;
      const unsigned mask = thread.mask;
      if ((mask >> i & 1u) == 0) fail("a lane waits with a mask that it is not in");
      bool ready = true;
      for (std::size_t k = 0; k < lanes; ++k)
        if (mask >> k & 1u) {
          const Thread& other = threads[warp + k];
          if (other.waits == Waits::done) fail("a lane of the mask has left the kernel");
          ready = ready && other.waits == Waits::warp && other.mask == mask;
        }
      if (!ready) continue;
      for (std::size_t k = 0; k < lanes; ++k)
        if (mask >> k & 1u) {
          threads[warp + k].waits = Waits::no;
          threads[warp + k].shown = threads[warp + k].slot;
        }
      freed = true;
    }
  }
  return freed;
}

/// Where fibers get their stacks from.
struct Stacks {
  using traits_type = fibers::stack_traits;
  fibers::stack_context allocate() {
    std::vector<fibers::stack_context>& free = this_block.free.stacks;
    if (free.empty()) return fibers::fixedsize_stack(FreeStacks::stack_bytes).allocate();
    const fibers::stack_context stack = free.back();
    free.pop_back();
    return stack;
  }
  void deallocate(fibers::stack_context& stack) noexcept { this_block.free.stacks.push_back(stack); }
};

/// Runs the threads of one block to their end.
template <class Body>
void run_block(Block& block, const Body& body, std::mt19937_64& random) {
  std::vector<Thread*> ready;
  for (;;) {
    ready.clear();
    bool finished = true;
    for (Thread& thread : block.threads) {
      if (thread.waits == Waits::no) ready.push_back(&thread);
      finished = finished && thread.waits == Waits::done;
    }
    if (finished) return;
    if (ready.empty()) {
      if (!release(block)) fail("threads of a block wait for one another");
      continue;
    }
    std::shuffle(ready.begin(), ready.end(), random);
    for (Thread* const thread : ready) {
      current = thread;
      threadIdx = thread->index;
      if (!thread->started) {
        thread->started = true;
        thread->fiber = fibers::fiber(std::allocator_arg, Stacks(), [&body, thread](fibers::fiber&& caller) {
          thread->caller = std::move(caller);
          try {
            body();
          } catch (const std::runtime_error&) {  // not what unwinds a fiber that is given up
            thread->error = std::current_exception();
          }
          thread->waits = Waits::done;
          return std::move(thread->caller);
        });
      }
      thread->fiber = std::move(thread->fiber).resume();
      if (thread->error != nullptr) std::rethrow_exception(thread->error);
    }
  }
}

inline constexpr std::size_t guard_bytes = 1024;
inline constexpr unsigned char guard = 0xa5;

template <class Body>
void run_grid(dim3 grid, dim3 block_size, std::size_t shared_size, const Body& body) {
  using runtime_shared = unsigned char;
  runtime_shared* const shared = sailor::runtime::cuda::shared_bytes;
  const std::size_t count = std::size_t{block_size.x} * block_size.y * block_size.z;
  std::mt19937_64 random(settings.seed);
  Block& block = this_block;
  block.last_file = nullptr;
  gridDim = grid;
  blockDim = block_size;
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        blockIdx = dim3(x, y, z);
        std::memset(shared, 0xff, shared_size);  // NaNs
        std::memset(shared + shared_size, guard, guard_bytes);
        block.threads.clear();
        block.threads.resize(count);
        for (unsigned i = 0; i < count; ++i) {
          Thread& thread = block.threads[i];
          thread.block = &block;
          thread.linear = i;
          thread.index = dim3(i % block_size.x, i / block_size.x % block_size.y, i / block_size.x / block_size.y);
        }
        try {
          run_block(block, body, random);
        } catch (...) {
          block.threads.clear();
          throw;
        }
        for (std::size_t i = 0; i < guard_bytes; ++i)
          if (shared[shared_size + i] != guard) fail("a kernel wrote behind its shared memory");
      }
  const std::scoped_lock lock(settings.mutex);
  settings.sites.insert(block.sites.begin(), block.sites.end());
}

/// Whether the threads wait there.
inline bool is_kept(const SourceLocation& where) {
  Block& block = *current->block;
  // Mostly the threads of a block come to a barrier one after the other.
  if (block.last_file == where.file_name() && block.last_line == where.line()) return block.last_is_kept;
  const Site site(where.file_name(), where.line());
  block.sites.insert(site);
  block.last_file = where.file_name();
  block.last_line = where.line();
  return block.last_is_kept = site != settings.left_out;
}

/// What lane `from` of this warp shows.
template <class T>
T exchange(unsigned mask, T value, unsigned from) {
  static_assert(sizeof(T) <= 8);
  Thread& me = *current;
  std::memcpy(&me.slot, &value, sizeof(T));
  pause(Waits::warp, mask);
  const unsigned lane = me.linear / 32 * 32 + from % 32;
  if ((mask >> from % 32 & 1u) == 0) fail("a shuffle reads a lane that is not in its mask");
  // It shows this until all threads that may go on have come to their next wait.
  std::memcpy(&value, &me.block->threads.at(lane).shown, sizeof(T));
  return value;
}

}  // namespace emulator

/// Fails the kernel unless the condition holds.
#define SAILOR_KERNEL_CHECK(condition)                             \
  do {                                                             \
    if (!(condition)) emulator::fail("a kernel: not " #condition); \
  } while (false)

inline void __syncthreads(const emulator::SourceLocation& where = emulator::SourceLocation::current()) {
  if (emulator::is_kept(where)) emulator::pause(emulator::Waits::block);
}
inline int __syncthreads_or(int predicate,
                            const emulator::SourceLocation& where = emulator::SourceLocation::current()) {
  if (!emulator::is_kept(where)) return predicate;
  emulator::current->predicate = predicate != 0;
  emulator::pause(emulator::Waits::block);
  return emulator::current->block->any ? 1 : 0;
}
inline void __syncwarp(unsigned mask = 0xffffffffu,
                       const emulator::SourceLocation& where = emulator::SourceLocation::current()) {
  if (emulator::is_kept(where)) emulator::pause(emulator::Waits::warp, mask);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes) {
  return emulator::exchange(mask, value, emulator::current->linear % 32 ^ static_cast<unsigned>(lanes));
}

inline float __expf(float x) { return std::exp(x); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
using std::isfinite;
using std::isnan;
