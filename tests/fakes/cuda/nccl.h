// Stands in for NCCL between emulated GPUs, whose ranks are threads of one process: what is asked for runs on the
// streams, one operation of a communicator after the other, when all its ranks have got there. An aborted communicator
// ends its own operations only, as NCCL's does.
#pragma once

#include <map>
#include <utility>

#include "runtime/bits16.hpp"
#include "tests/fakes/cuda/fake_runtime.hpp"

enum ncclResult_t {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7
};
enum ncclDataType_t { ncclInt8, ncclInt32, ncclFloat16, ncclFloat32, ncclFloat64, ncclBfloat16 };
enum ncclRedOp_t { ncclSum, ncclMax };
struct ncclUniqueId {
  char internal[128];
};
struct ncclConfig_t {
  int blocking = 1;
};
#define NCCL_CONFIG_INITIALIZER \
  {}

namespace emulator {

/// What one rank brings to an operation.
struct Part {
  const char* what;
  std::size_t count;
  ncclDataType_t type;
  const void* from;
  void* to;
};
using Parts = std::vector<Part>;

/// The ranks of a communicator.
struct Ring {
  struct Slot {
    Parts parts;
    int arrived = 0;
    int left = 0;
    bool done = false;
  };
  std::mutex mutex;
  std::condition_variable changed;
  int size = 0;
  int joined = 0;
  std::map<std::int64_t, Slot> slots;
};

inline std::mutex rings_mutex;
inline std::map<std::string, std::shared_ptr<Ring>> rings;

struct Member {
  std::shared_ptr<Ring> ring;
  int rank = 0;
  std::atomic<std::int64_t> next = 0;
  std::atomic<bool> aborted = false;
};

/// Brings a part; the last rank computes for all. Runs on a stream.
template <class Compute>
void arrive(Member& member, std::int64_t number, const Part& part, const Compute& compute) {
  Ring& ring = *member.ring;
  std::unique_lock lock(ring.mutex);
  Ring::Slot& slot = ring.slots[number];
  slot.parts.resize(static_cast<std::size_t>(ring.size));
  slot.parts[static_cast<std::size_t>(member.rank)] = part;
  if (++slot.arrived == ring.size) {
    for (const Part& other : slot.parts)
      if (std::string_view(other.what) != part.what || other.count != part.count || other.type != part.type)
        fail("the ranks of a communicator ask for different operations");
    compute(slot.parts);
    slot.done = true;
    ring.changed.notify_all();
  }
  ring.changed.wait(lock, [&] { return slot.done || member.aborted; });
  if (slot.done && ++slot.left == ring.size) ring.slots.erase(number);
}

inline std::size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclFloat64:
      return 8;
    case ncclInt32:
    case ncclFloat32:
      break;
  }
  return 4;
}

inline double value_at(ncclDataType_t type, const void* from, std::size_t i) {
  using sailor::runtime::from_bfloat16;
  using sailor::runtime::from_float16;
  switch (type) {
    case ncclFloat16:
      return from_float16(static_cast<const std::uint16_t*>(from)[i]);
    case ncclBfloat16:
      return from_bfloat16(static_cast<const std::uint16_t*>(from)[i]);
    case ncclFloat64:
      return static_cast<const double*>(from)[i];
    case ncclFloat32:
      return static_cast<const float*>(from)[i];
    case ncclInt8:
    case ncclInt32:
      break;
  }
  fail("a reduction of integers");
}
inline void set_value(ncclDataType_t type, void* to, std::size_t i, double value) {
  const auto single = static_cast<float>(value);
  if (type == ncclFloat16) static_cast<std::uint16_t*>(to)[i] = sailor::runtime::to_float16(single);
  if (type == ncclBfloat16) static_cast<std::uint16_t*>(to)[i] = sailor::runtime::to_bfloat16(single);
  if (type == ncclFloat64) static_cast<double*>(to)[i] = value;
  if (type == ncclFloat32) static_cast<float*>(to)[i] = single;
}

/// Values [first, first + count) of all ranks' `from`, into each of `to`, which begin at `first`.
inline void reduce(const Parts& parts, ncclRedOp_t operation, std::size_t first, std::size_t count,
                   const std::vector<void*>& to) {
  for (std::size_t i = 0; i < count; ++i) {
    double result = value_at(parts[0].type, parts[0].from, first + i);
    for (std::size_t rank = 1; rank < parts.size(); ++rank) {
      const double more = value_at(parts[rank].type, parts[rank].from, first + i);
      result = operation == ncclSum ? result + more : std::max(result, more);
    }
    for (void* const one : to) set_value(parts[0].type, one, i, result);
  }
}

}  // namespace emulator

struct ncclComm {
  std::shared_ptr<emulator::Member> member;
};
using ncclComm_t = ncclComm*;

namespace emulator {

template <class Compute>
ncclResult_t put(ncclComm_t communicator, cudaStream_t stream, const Part& part, const Compute& compute) {
  const std::int64_t number = communicator->member->next++;
  stream->queue.put([member = communicator->member, number, part, compute] { arrive(*member, number, part, compute); });
  return ncclSuccess;
}

}  // namespace emulator

inline const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclSuccess ? "no error" : result == ncclInProgress ? "in progress" : "some error";
}
inline const char* ncclGetLastError(ncclComm_t) { return ""; }
inline ncclResult_t ncclGetVersion(int* version) { return *version = 22809, ncclSuccess; }
inline ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<int> made = 0;
  const std::string name = std::to_string(++made);
  std::memset(id->internal, 0, sizeof(id->internal));
  std::memcpy(id->internal, name.data(), name.size());
  return ncclSuccess;
}
inline ncclResult_t ncclCommInitRankConfig(ncclComm_t* communicator, int size, ncclUniqueId id, int rank,
                                           ncclConfig_t*) {
  auto member = std::make_shared<emulator::Member>();
  member->rank = rank;
  {
    const std::scoped_lock lock(emulator::rings_mutex);
    std::shared_ptr<emulator::Ring>& ring = emulator::rings[id.internal];
    if (ring == nullptr) ring = std::make_shared<emulator::Ring>();
    member->ring = ring;
  }
  const std::scoped_lock lock(member->ring->mutex);
  member->ring->size = size;
  ++member->ring->joined;
  *communicator = new ncclComm{std::move(member)};
  return ncclInProgress;
}
inline ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* state) {
  emulator::Ring& ring = *communicator->member->ring;
  const std::scoped_lock lock(ring.mutex);
  *state = ring.joined < ring.size ? ncclInProgress : ncclSuccess;
  return ncclSuccess;
}
inline ncclResult_t ncclCommAbort(ncclComm_t communicator) {
  emulator::Ring& ring = *communicator->member->ring;
  {
    const std::scoped_lock lock(ring.mutex);
    communicator->member->aborted = true;
  }
  ring.changed.notify_all();
  delete communicator;
  return ncclSuccess;
}
inline ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
  delete communicator;
  return ncclSuccess;
}
inline ncclResult_t ncclGroupStart() { return ncclSuccess; }
inline ncclResult_t ncclGroupEnd() { return ncclSuccess; }

inline ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t count, ncclDataType_t type,
                                  ncclRedOp_t operation, ncclComm_t communicator, cudaStream_t stream) {
  return emulator::put(communicator, stream, {"all-reduce", count, type, from, to},
                       [operation](const emulator::Parts& parts) {
                         std::vector<void*> all;
                         for (const emulator::Part& part : parts) all.push_back(part.to);
                         emulator::reduce(parts, operation, 0, parts[0].count, all);
                       });
}
inline ncclResult_t ncclReduce(const void* from, void* to, std::size_t count, ncclDataType_t type,
                               ncclRedOp_t operation, int root, ncclComm_t communicator, cudaStream_t stream) {
  return emulator::put(
      communicator, stream, {"reduce", count, type, from, to}, [operation, root](const emulator::Parts& parts) {
        emulator::reduce(parts, operation, 0, parts[0].count, {parts[static_cast<std::size_t>(root)].to});
      });
}
inline ncclResult_t ncclReduceScatter(const void* from, void* to, std::size_t count, ncclDataType_t type,
                                      ncclRedOp_t operation, ncclComm_t communicator, cudaStream_t stream) {
  return emulator::put(communicator, stream, {"reduce-scatter", count, type, from, to},
                       [operation](const emulator::Parts& parts) {
                         // In place: what a rank gets lies where it brought its own part of the sum.
                         for (std::size_t rank = 0; rank < parts.size(); ++rank)
                           emulator::reduce(parts, operation, rank * parts[0].count, parts[0].count, {parts[rank].to});
                       });
}
inline ncclResult_t ncclAllGather(const void* from, void* to, std::size_t count, ncclDataType_t type,
                                  ncclComm_t communicator, cudaStream_t stream) {
  return emulator::put(communicator, stream, {"all-gather", count, type, from, to}, [](const emulator::Parts& parts) {
    const std::size_t bytes = parts[0].count * emulator::size_of(parts[0].type);
    for (const emulator::Part& part : parts)
      for (std::size_t rank = 0; rank < parts.size(); ++rank)
        std::memmove(static_cast<char*>(part.to) + rank * bytes, parts[rank].from, bytes);
  });
}
inline ncclResult_t ncclBroadcast(const void* from, void* to, std::size_t count, ncclDataType_t type, int root,
                                  ncclComm_t communicator, cudaStream_t stream) {
  return emulator::put(communicator, stream, {"broadcast", count, type, from, to},
                       [root](const emulator::Parts& parts) {
                         const emulator::Part& source = parts[static_cast<std::size_t>(root)];
                         for (const emulator::Part& part : parts)
                           std::memmove(part.to, source.from, source.count * emulator::size_of(source.type));
                       });
}

namespace emulator {
inline void copy_message(const Parts& parts) {
  const bool first_sends = parts[0].from != nullptr;
  const Part& sender = parts[first_sends ? 0 : 1];
  std::memcpy(parts[first_sends ? 1 : 0].to, sender.from, sender.count * size_of(sender.type));
}
}  // namespace emulator
/// Between two ranks.
inline ncclResult_t ncclSend(const void* from, std::size_t count, ncclDataType_t type, int, ncclComm_t communicator,
                             cudaStream_t stream) {
  return emulator::put(communicator, stream, {"message", count, type, from, nullptr}, emulator::copy_message);
}
inline ncclResult_t ncclRecv(void* to, std::size_t count, ncclDataType_t type, int, ncclComm_t communicator,
                             cudaStream_t stream) {
  return emulator::put(communicator, stream, {"message", count, type, nullptr, to}, emulator::copy_message);
}
