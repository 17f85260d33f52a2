// Stands in for CUDA's runtime where kernels are compiled for the CPU (emulator.hpp): every stream is a thread that
// runs its operations one after the other, late.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>

#include "tests/fakes/cuda/emulator.hpp"

namespace emulator {

/// Of the first kernel that broke a rule; all later calls fail until a test empties it.
inline std::mutex failure_mutex;
inline std::string failure;
inline bool has_failed() {
  const std::scoped_lock lock(failure_mutex);
  return !failure.empty();
}

/// A thread that runs what it is given, in order.
class Queue {
  struct Operation {
    std::function<void()> run;
    bool always = false;
  };

 public:
  Queue() : thread_([this] { run(); }) {}
  ~Queue() {
    put(nullptr);
    thread_.join();
  }
  /// Behind a failure only what is put `always` is run.
  void put(std::function<void()> operation, bool always = false) {
    {
      const std::scoped_lock lock(mutex_);
      operations_.push_back({std::move(operation), always});
      ++asked_;
    }
    changed_.notify_all();
  }
  void drain() {
    std::unique_lock lock(mutex_);
    const std::int64_t all = asked_;
    changed_.wait(lock, [&] { return done_ >= all; });
  }

 private:
  void run() {
    for (unsigned turn = 0;; ++turn) {
      Operation next;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return !operations_.empty(); });
        next = std::move(operations_.front());
        operations_.pop_front();
      }
      if (next.run == nullptr) return;
      if (turn % 16 == 7) std::this_thread::sleep_for(std::chrono::microseconds(50));
      try {
        if (next.always || !has_failed()) next.run();
      } catch (const std::exception& error) {
        const std::scoped_lock lock(failure_mutex);
        if (failure.empty()) failure = error.what();
      }
      {
        const std::scoped_lock lock(mutex_);
        ++done_;
      }
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Operation> operations_;
  std::int64_t asked_ = 0;
  std::int64_t done_ = 0;
  std::thread thread_;  // last: it uses all the others
};

/// A point in a stream.
struct Mark {
  std::mutex mutex;
  std::condition_variable changed;
  bool reached = false;
  std::chrono::steady_clock::time_point time{};

  void reach() {
    {
      const std::scoped_lock lock(mutex);
      time = std::chrono::steady_clock::now();
      reached = true;
    }
    changed.notify_all();
  }
  bool is_reached() {
    const std::scoped_lock lock(mutex);
    return reached;
  }
  void wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return reached; });
  }
};

}  // namespace emulator

struct CUstream_st {
  emulator::Queue queue;
};
using cudaStream_t = CUstream_st*;
struct CUevent_st {
  std::shared_ptr<emulator::Mark> mark;  ///< null: not recorded
};
using cudaEvent_t = CUevent_st*;

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorNoDevice = 100,
  cudaErrorNotReady = 600,
  cudaErrorLaunchFailure = 719
};
inline const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorLaunchFailure:
      return emulator::failure.empty() ? "unspecified launch failure" : emulator::failure.c_str();
    case cudaErrorNotReady:
      return "device not ready";
  }
  return "unrecognized error code";
}

inline cudaError_t state_of_device() { return emulator::has_failed() ? cudaErrorLaunchFailure : cudaSuccess; }

// ---- Kernels

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };

template <class... Parameters>
cudaError_t cudaFuncSetAttribute(void (*)(Parameters...), cudaFuncAttribute, int bytes) {
  return bytes <= static_cast<int>(sailor::runtime::cuda::most_shared_bytes) ? cudaSuccess : cudaErrorInvalidValue;
}

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  std::size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
};
template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  const dim3 size = config->blockDim;
  if (std::size_t{size.x} * size.y * size.z > 1024 || config->gridDim.y > 65535 || config->gridDim.z > 65535 ||
      config->dynamicSmemBytes > sailor::runtime::cuda::most_shared_bytes)
    return cudaErrorInvalidConfiguration;
  const std::tuple<Parameters...> kept(std::forward<Arguments>(arguments)...);
  config->stream->queue.put([kernel, kept, size, grid = config->gridDim, shared = config->dynamicSmemBytes] {
    emulator::run_grid(grid, size, shared, [&] { std::apply(kernel, kept); });
  });
  return state_of_device();
}

// ---- Devices and memory

enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3 };
inline constexpr unsigned cudaStreamNonBlocking = 1;
inline constexpr unsigned cudaEventDefault = 0;
struct cudaDeviceProp {
  char name[256];
  int multiProcessorCount;
  int l2CacheSize;
  int major;
  int minor;
  std::size_t totalGlobalMem;
};

namespace emulator {
/// Of the device of this thread of the host: each has one of its own.
inline thread_local std::set<cudaStream_t> streams;
}  // namespace emulator

/// SAILOR_EMULATED_GPUS of the environment.
inline int number_of_gpus() {
  const char* const said = std::getenv("SAILOR_EMULATED_GPUS");
  return said == nullptr ? 1 : std::atoi(said);
}
inline cudaError_t cudaGetDeviceCount(int* count) {
  *count = number_of_gpus();
  return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}
inline cudaError_t cudaSetDevice(int index) {
  return index >= 0 && index < number_of_gpus() ? cudaSuccess : cudaErrorInvalidValue;
}
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {"emulated GPU", 3, 1 << 16, 9, 0, std::size_t{140} << 30};
  if (const char* const said = std::getenv("SAILOR_EMULATED_NAME"); said != nullptr)
    std::strncpy(properties->name, said, sizeof(properties->name) - 1);
  return cudaSuccess;
}
inline cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int index) {
  std::snprintf(text, static_cast<std::size_t>(length), "0000:%02d:00.0", index);
  return cudaSuccess;
}
inline cudaError_t cudaRuntimeGetVersion(int* version) { return *version = 13000, cudaSuccess; }
inline cudaError_t cudaDriverGetVersion(int* version) { return *version = 13000, cudaSuccess; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaDeviceSynchronize() {
  for (const cudaStream_t stream : emulator::streams) stream->queue.drain();
  return state_of_device();
}

inline cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *total = std::size_t{1} << 30;
  *free = *total - (std::size_t{1} << 20);
  return cudaSuccess;
}
inline cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (*memory == nullptr) return cudaErrorMemoryAllocation;
  std::memset(*memory, 0xff, bytes);  // NaNs
  return cudaSuccess;
}
inline cudaError_t cudaFree(void* memory) {
  cudaDeviceSynchronize();
  std::free(memory);
  return cudaSuccess;
}
inline cudaError_t cudaMallocHost(void** memory, std::size_t bytes) { return cudaMalloc(memory, bytes); }
inline cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  stream->queue.put([=] { std::memmove(to, from, bytes); });
  return state_of_device();
}
inline cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                                     std::size_t width, std::size_t height, cudaMemcpyKind, cudaStream_t stream) {
  if (width > to_pitch || width > from_pitch) return cudaErrorInvalidValue;
  stream->queue.put([=] {
    for (std::size_t row = 0; row < height; ++row)
      std::memmove(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width);
  });
  return state_of_device();
}
inline cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  stream->queue.put([=] { std::memset(memory, value, bytes); });
  return state_of_device();
}
inline cudaError_t cudaMemset(void* memory, int value, std::size_t bytes) {
  std::memset(memory, value, bytes);
  return state_of_device();
}

// ---- Streams and events

inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st;
  emulator::streams.insert(*stream);
  return cudaSuccess;
}
inline cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  emulator::streams.erase(stream);
  delete stream;
  return cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  stream->queue.drain();
  return state_of_device();
}
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}
inline cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->mark = std::make_shared<emulator::Mark>();
  stream->queue.put([mark = event->mark] { mark->reach(); }, true);
  return state_of_device();
}
inline cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (event->mark != nullptr) stream->queue.put([mark = event->mark] { mark->wait(); });
  return state_of_device();
}
inline cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (event->mark != nullptr && !event->mark->is_reached()) return cudaErrorNotReady;
  return state_of_device();
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (event->mark != nullptr) event->mark->wait();
  return state_of_device();
}
inline cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  const std::chrono::duration<float, std::milli> time = to->mark->time - from->mark->time;
  return *milliseconds = time.count(), cudaSuccess;
}
