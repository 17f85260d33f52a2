// Stands in for NCCL between emulated GPUs, whose ranks are threads or processes of one machine: what is asked for runs
// on the streams. Who mints a communicator's id begins a thread, the hub, which gets every rank's part of an operation
// over a socket, computes, and sends each rank what is its own. An aborted communicator ends its own operations only,
// as NCCL's does; where the hub has died, the others' state says so.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
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

class Connection {
 public:
  explicit Connection(int descriptor = -1) : descriptor_(descriptor) {}
  Connection(Connection&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Connection& operator=(Connection&& other) noexcept { return std::swap(descriptor_, other.descriptor_), *this; }
  ~Connection() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  [[nodiscard]] int descriptor() const { return descriptor_; }
  /// False: the other end is gone.
  [[nodiscard]] bool send(const void* data, std::size_t bytes) const {
    for (const char* at = static_cast<const char*>(data); bytes > 0;) {
      const ssize_t sent = ::send(descriptor_, at, bytes, MSG_NOSIGNAL);
      if (sent <= 0 && errno != EINTR) return false;
      at += std::max<ssize_t>(sent, 0), bytes -= static_cast<std::size_t>(std::max<ssize_t>(sent, 0));
    }
    return true;
  }
  [[nodiscard]] bool receive(void* data, std::size_t bytes) const {
    for (char* at = static_cast<char*>(data); bytes > 0;) {
      const ssize_t received = ::recv(descriptor_, at, bytes, 0);
      if (received == 0 || (received < 0 && errno != EINTR)) return false;
      at += std::max<ssize_t>(received, 0), bytes -= static_cast<std::size_t>(std::max<ssize_t>(received, 0));
    }
    return true;
  }
  /// Ends what another thread sends or receives.
  void shut() const { ::shutdown(descriptor_, SHUT_RDWR); }

 private:
  int descriptor_;
};

inline sockaddr_un address_of(const char* name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name, std::min(std::strlen(name), sizeof(address.sun_path) - 2));  // in no folder
  return address;
}

enum class Collective : int { all_reduce, reduce, reduce_scatter, all_gather, broadcast, message, all_to_all };

/// What a rank asks for. Its part of the data follows.
struct Request {
  Collective collective;
  ncclDataType_t type;
  ncclRedOp_t reduction;
  int root;
  std::size_t count;
  std::size_t brings;  ///< bytes
  std::size_t takes;   ///< bytes of the answer

  [[nodiscard]] bool is_the_same(const Request& other) const {
    return collective == other.collective && type == other.type && reduction == other.reduction && root == other.root &&
           count == other.count;
  }
};

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

using Data = std::vector<char>;

/// Of the values that all ranks brought.
inline Data reduced(const std::vector<Data>& brought, const Request& request) {
  Data result(brought[0].size());
  for (std::size_t i = 0; i < result.size() / size_of(request.type); ++i) {
    double value = value_at(request.type, brought[0].data(), i);
    for (std::size_t rank = 1; rank < brought.size(); ++rank) {
      const double more = value_at(request.type, brought[rank].data(), i);
      value = request.reduction == ncclSum ? value + more : std::max(value, more);
    }
    set_value(request.type, result.data(), i, value);
  }
  return result;
}

/// What the ranks take among them: all of it each, or a slice each.
inline Data result_of(const std::vector<Data>& brought, const Request& request) {
  switch (request.collective) {
    case Collective::all_reduce:
    case Collective::reduce:
    case Collective::reduce_scatter:
      return reduced(brought, request);
    case Collective::all_gather:
    case Collective::broadcast:
    case Collective::message:
    case Collective::all_to_all:
      break;
  }
  Data all;
  for (const Data& part : brought) all.insert(all.end(), part.begin(), part.end());
  return all;
}

/// Serves the ranks of a communicator until all have gone. One that has gone leaves the others waiting.
inline void serve(const Connection& listener) {
  std::vector<Connection> ranks;
  const auto gone = [&] {
    char byte = 0;
    for (const Connection& rank : ranks)
      while (rank.descriptor() >= 0 && ::recv(rank.descriptor(), &byte, 1, 0) > 0) continue;
  };
  for (std::size_t joined = 0; joined == 0 || joined < ranks.size(); ++joined) {
    Connection one(::accept(listener.descriptor(), nullptr, nullptr));
    int rank_and_size[2];
    if (!one.receive(rank_and_size, sizeof(rank_and_size))) return gone();
    ranks.resize(static_cast<std::size_t>(rank_and_size[1]));
    ranks[static_cast<std::size_t>(rank_and_size[0])] = std::move(one);
  }
  for (const Connection& rank : ranks)
    if (!rank.send("+", 1)) return gone();
  for (;;) {
    std::vector<Request> requests(ranks.size());
    std::vector<Data> brought(ranks.size());
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      if (!ranks[rank].receive(&requests[rank], sizeof(Request))) return gone();
      brought[rank].resize(requests[rank].brings);
      if (!ranks[rank].receive(brought[rank].data(), brought[rank].size())) return gone();
    }
    for (const Request& request : requests)
      if (!request.is_the_same(requests[0])) {
        std::fprintf(stderr, "the ranks of a communicator ask for different operations\n");
        std::abort();
      }
    const Data result = result_of(brought, requests[0]);
    const bool in_slices = requests[0].collective == Collective::reduce_scatter;
    if (requests[0].collective == Collective::all_to_all) {
      const std::size_t each = requests[0].brings / ranks.size();
      for (std::size_t rank = 0; rank < ranks.size(); ++rank)
        for (const Data& part : brought)
          if (!ranks[rank].send(part.data() + rank * each, each)) return gone();
      continue;
    }
    for (std::size_t rank = 0; rank < ranks.size(); ++rank)
      if (!ranks[rank].send(result.data() + (in_slices ? rank * requests[rank].takes : 0), requests[rank].takes))
        return gone();
  }
}

/// A rank of a communicator.
struct Member {
  Connection connection;
  int rank = 0;
  int size = 0;
  std::atomic<bool> joined = false;
  std::atomic<bool> aborted = false;
  std::atomic<bool> lost = false;  ///< the hub
  bool connected = false;          ///< or on its way
  std::atomic<bool> connecting = false;
  std::int64_t asked = 0;          ///< operations, by the thread of the host
  std::int64_t done = 0;
  std::mutex mutex;
  std::condition_variable changed;

  /// One operation after the other, in the order in which they were asked for. Runs on a stream. Where the others have
  /// gone, it lasts until it is aborted.
  void exchange(std::int64_t number, const Request& request, const void* from, void* to) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return aborted || number == done; });
    lock.unlock();
    const bool answered = connection.send(&request, sizeof(request)) && connection.send(from, request.brings) &&
                          connection.receive(to, request.takes);
    lock.lock();
    if (!answered && !aborted) lost = true;
    changed.wait(lock, [&] { return aborted || answered; });
    ++done;
    changed.notify_all();
  }
  void abort() {
    {
      const std::scoped_lock lock(mutex);
      aborted = true;
    }
    connection.shut();
    changed.notify_all();
  }
};

}  // namespace emulator

struct ncclComm {
  std::shared_ptr<emulator::Member> member;
};
using ncclComm_t = ncclComm*;

namespace emulator {

/// As NCCL connects ranks: with their first operation, which is in progress until all have asked for it.
inline void connect(const std::shared_ptr<Member>& member) {
  member->connected = member->connecting = true;
  std::thread([member, number = member->asked++] {
    char byte = 0;  // from rank 0 to all
    const std::size_t brings = member->rank == 0 ? 1 : 0;
    member->exchange(number, {Collective::message, ncclInt8, ncclSum, 0, 0, brings, 1}, &byte, &byte);
    member->connecting = false;
  }).detach();
}

/// `from` and `to` are null where this rank brings or takes nothing; `brought` and `taken` count values.
inline ncclResult_t put(ncclComm_t communicator, cudaStream_t stream, Request request, const void* from,
                        std::size_t brought, void* to, std::size_t taken) {
  request.brings = from == nullptr ? 0 : brought * size_of(request.type);
  request.takes = to == nullptr ? 0 : taken * size_of(request.type);
  const std::shared_ptr<Member> member = communicator->member;
  const bool first = !member->connected;
  if (first) connect(member);
  stream->queue.put(
      [member, number = member->asked++, request, from, to] { member->exchange(number, request, from, to); });
  return first ? ncclInProgress : ncclSuccess;
}

/// What was asked for since ncclGroupStart(), by the rank at the other end.
struct GroupOfMessages {
  std::map<int, const void*> sends;
  std::map<int, void*> receives;
  ncclComm_t communicator = nullptr;
  cudaStream_t stream = nullptr;
  ncclDataType_t type = ncclInt8;
  std::size_t count = 0;

  void describe(ncclComm_t of, cudaStream_t on, ncclDataType_t values, std::size_t each) {
    communicator = of, stream = on, type = values, count = each;
  }
};
inline thread_local std::optional<GroupOfMessages> group_of_messages;

}  // namespace emulator

inline const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclInProgress:
      return "in progress";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    default:
      return "some error";
  }
}
inline const char* ncclGetLastError(ncclComm_t) { return ""; }
inline ncclResult_t ncclGetVersion(int* version) { return *version = 22809, ncclSuccess; }
inline ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<int> made = 0;
  const std::string name = "sailor-emulated-nccl-" + std::to_string(::getpid()) + "-" + std::to_string(++made);
  std::memset(id->internal, 0, sizeof(id->internal));
  std::memcpy(id->internal, name.data(), name.size());
  emulator::Connection listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_un address = emulator::address_of(id->internal);
  if (::bind(listener.descriptor(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      ::listen(listener.descriptor(), 64) != 0)
    return ncclSystemError;
  std::thread([listener = std::move(listener)] { emulator::serve(listener); }).detach();
  return ncclSuccess;
}
inline ncclResult_t ncclCommInitRankConfig(ncclComm_t* communicator, int size, ncclUniqueId id, int rank,
                                           ncclConfig_t*) {
  auto member = std::make_shared<emulator::Member>();
  member->rank = rank;
  member->size = size;
  member->connection = emulator::Connection(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_un address = emulator::address_of(id.internal);
  const int rank_and_size[2] = {rank, size};
  if (::connect(member->connection.descriptor(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      !member->connection.send(rank_and_size, sizeof(rank_and_size)))
    return ncclRemoteError;
  *communicator = new ncclComm{std::move(member)};
  return ncclInProgress;
}
inline ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* state) {
  emulator::Member& member = *communicator->member;
  if (!member.joined) {
    pollfd look{member.connection.descriptor(), POLLIN, 0};
    char byte = 0;
    if (::poll(&look, 1, 0) == 1) {
      if (member.connection.receive(&byte, 1))
        member.joined = true;
      else
        member.lost = true;
    }
  }
  *state = member.lost ? ncclRemoteError : member.joined && !member.connecting ? ncclSuccess : ncclInProgress;
  return ncclSuccess;
}
inline ncclResult_t ncclCommAbort(ncclComm_t communicator) {
  communicator->member->abort();
  delete communicator;
  return ncclSuccess;
}
inline ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
  delete communicator;
  return ncclSuccess;
}
inline ncclResult_t ncclGroupStart() {
  emulator::group_of_messages.emplace();
  return ncclSuccess;
}
/// Messages within a group are an all-to-all; other operations were put on their streams already.
inline ncclResult_t ncclGroupEnd() {
  const emulator::GroupOfMessages all = *std::exchange(emulator::group_of_messages, std::nullopt);
  if (all.sends.empty() && all.receives.empty()) return ncclSuccess;
  const auto size = static_cast<std::size_t>(all.communicator->member->size);
  if (all.sends.size() != size || all.receives.size() != size) emulator::fail("a group of messages of some ranks only");
  for (std::size_t peer = 0; peer < size; ++peer) {
    const std::size_t offset = peer * all.count * emulator::size_of(all.type);
    if (all.sends.at(static_cast<int>(peer)) != static_cast<const char*>(all.sends.at(0)) + offset ||
        all.receives.at(static_cast<int>(peer)) != static_cast<char*>(all.receives.at(0)) + offset)
      emulator::fail("a group of messages that are not slices of two arrays");
  }
  return emulator::put(all.communicator, all.stream,
                       {emulator::Collective::all_to_all, all.type, ncclSum, 0, all.count}, all.sends.at(0),
                       all.count * size, all.receives.at(0), all.count * size);
}

inline ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t count, ncclDataType_t type,
                                  ncclRedOp_t reduction, ncclComm_t communicator, cudaStream_t stream) {
  return emulator::put(communicator, stream, {emulator::Collective::all_reduce, type, reduction, 0, count}, from, count,
                       to, count);
}
inline ncclResult_t ncclReduce(const void* from, void* to, std::size_t count, ncclDataType_t type,
                               ncclRedOp_t reduction, int root, ncclComm_t communicator, cudaStream_t stream) {
  return emulator::put(communicator, stream, {emulator::Collective::reduce, type, reduction, root, count}, from, count,
                       communicator->member->rank == root ? to : nullptr, count);
}
inline ncclResult_t ncclReduceScatter(const void* from, void* to, std::size_t count, ncclDataType_t type,
                                      ncclRedOp_t reduction, ncclComm_t communicator, cudaStream_t stream) {
  const auto size = static_cast<std::size_t>(communicator->member->size);
  return emulator::put(communicator, stream, {emulator::Collective::reduce_scatter, type, reduction, 0, count}, from,
                       count * size, to, count);
}
inline ncclResult_t ncclAllGather(const void* from, void* to, std::size_t count, ncclDataType_t type,
                                  ncclComm_t communicator, cudaStream_t stream) {
  const auto size = static_cast<std::size_t>(communicator->member->size);
  return emulator::put(communicator, stream, {emulator::Collective::all_gather, type, ncclSum, 0, count}, from, count,
                       to, count * size);
}
inline ncclResult_t ncclBroadcast(const void* from, void* to, std::size_t count, ncclDataType_t type, int root,
                                  ncclComm_t communicator, cudaStream_t stream) {
  return emulator::put(communicator, stream, {emulator::Collective::broadcast, type, ncclSum, root, count},
                       communicator->member->rank == root ? from : nullptr, count, to, count);
}
/// Between two ranks, or in a group.
inline ncclResult_t ncclSend(const void* from, std::size_t count, ncclDataType_t type, int peer,
                             ncclComm_t communicator, cudaStream_t stream) {
  if (emulator::group_of_messages) {
    emulator::group_of_messages->describe(communicator, stream, type, count);
    emulator::group_of_messages->sends[peer] = from;
    return ncclSuccess;
  }
  return emulator::put(communicator, stream, {emulator::Collective::message, type, ncclSum, 0, count}, from, count,
                       nullptr, 0);
}
inline ncclResult_t ncclRecv(void* to, std::size_t count, ncclDataType_t type, int peer, ncclComm_t communicator,
                             cudaStream_t stream) {
  if (emulator::group_of_messages) {
    emulator::group_of_messages->describe(communicator, stream, type, count);
    emulator::group_of_messages->receives[peer] = to;
    return ncclSuccess;
  }
  return emulator::put(communicator, stream, {emulator::Collective::message, type, ncclSum, 0, count}, nullptr, 0, to,
                       count);
}
