// Stands in for NCCL between emulated GPUs, whose ranks are threads or processes of one machine: what is asked for runs
// on the streams. Who mints a communicator's id begins a thread, the hub, which gets every rank's part of an operation
// over a socket, computes, and sends each rank what is its own. An aborted communicator ends its own operations only,
// as NCCL's does; where the hub has died, the others' state says so.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
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

enum class Collective : int { all_reduce, reduce, reduce_scatter, all_gather, broadcast, message, messages };

/// Bytes of the messages of a group to and from a peer.
struct Sizes {
  std::size_t sent = 0;
  std::size_t received = 0;
};

/// What a rank asks for. Its part of the data follows; for a group of messages, Sizes by peer and what is sent.
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
    case Collective::messages:
      break;
  }
  Data all;
  for (const Data& part : brought) all.insert(all.end(), part.begin(), part.end());
  return all;
}

/// The ranks of a communicator, as its hub sees them. One that has gone leaves the others waiting.
class Hub {
 public:
  /// Until all ranks have gone.
  void serve(const Connection& listener) {
    if (join(listener))
      while (hear() && answer()) continue;
    char byte = 0;
    for (const Rank& rank : ranks_)
      while (rank.connection.descriptor() >= 0 && ::recv(rank.connection.descriptor(), &byte, 1, 0) > 0) continue;
  }

 private:
  struct Rank {
    Connection connection;
    std::optional<Request> request;  ///< waits for its answer
    Data brought;
    std::map<std::size_t, Data> arrived;  ///< of messages from other ranks, what it has not taken yet
  };

  bool join(const Connection& listener) {
    for (std::size_t joined = 0; joined == 0 || joined < ranks_.size(); ++joined) {
      Connection one(::accept(listener.descriptor(), nullptr, nullptr));
      int rank_and_size[2];
      if (!one.receive(rank_and_size, sizeof(rank_and_size))) return false;
      ranks_.resize(static_cast<std::size_t>(rank_and_size[1]));
      ranks_[static_cast<std::size_t>(rank_and_size[0])].connection = std::move(one);
    }
    return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.connection.send("+", 1); });
  }

  /// Waits until some rank asks for something. False: it has gone instead.
  bool hear() {
    std::vector<pollfd> looks;
    for (const Rank& rank : ranks_)  // poll() passes over negative descriptors
      looks.push_back({rank.request ? -1 : rank.connection.descriptor(), POLLIN, 0});
    if (std::all_of(looks.begin(), looks.end(), [](const pollfd& look) { return look.fd < 0; })) different();
    while (::poll(looks.data(), looks.size(), -1) < 0) continue;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (looks[i].revents == 0) continue;
      Rank& rank = ranks_[i];
      Request request;
      if (!rank.connection.receive(&request, sizeof(request))) return false;
      rank.brought.resize(request.brings);
      if (!rank.connection.receive(rank.brought.data(), rank.brought.size())) return false;
      rank.request = request;
      if (request.collective == Collective::messages) hand_out(i);
    }
    return true;
  }

  /// Sizes of what a rank sends and receives.
  [[nodiscard]] std::vector<Sizes> sizes_of(const Rank& rank) const {
    std::vector<Sizes> sizes(ranks_.size());
    std::memcpy(sizes.data(), rank.brought.data(), sizes.size() * sizeof(Sizes));
    return sizes;
  }
  void hand_out(std::size_t sender) {
    const Data& brought = ranks_[sender].brought;
    const std::vector<Sizes> sizes = sizes_of(ranks_[sender]);
    auto next = brought.begin() + static_cast<std::ptrdiff_t>(sizes.size() * sizeof(Sizes));
    for (std::size_t peer = 0; peer < sizes.size(); ++peer) {
      const auto end = next + static_cast<std::ptrdiff_t>(sizes[peer].sent);
      Data& arrived = ranks_[peer].arrived[sender];
      arrived.insert(arrived.end(), next, end);
      next = end;
    }
  }

  bool answer() {
    for (Rank& rank : ranks_)
      if (rank.request && rank.request->collective == Collective::messages && !answer_messages(rank)) return false;
    return !std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.request.has_value(); }) ||
           answer_all();
  }
  /// A group of messages ends when all that it receives is there, as far as its peers are concerned.
  bool answer_messages(Rank& rank) {
    const std::vector<Sizes> sizes = sizes_of(rank);
    for (std::size_t peer = 0; peer < sizes.size(); ++peer)
      if (rank.arrived[peer].size() < sizes[peer].received) return true;
    rank.request.reset();
    for (std::size_t peer = 0; peer < sizes.size(); ++peer) {
      Data& arrived = rank.arrived[peer];
      if (!rank.connection.send(arrived.data(), sizes[peer].received)) return false;
      arrived.erase(arrived.begin(), arrived.begin() + static_cast<std::ptrdiff_t>(sizes[peer].received));
    }
    return true;
  }
  bool answer_all() {
    const Request request = *ranks_[0].request;
    std::vector<Data> brought;
    for (Rank& rank : ranks_) {
      if (!rank.request->is_the_same(request) || request.collective == Collective::messages) different();
      brought.push_back(std::move(rank.brought));
    }
    const Data result = result_of(brought, request);
    const bool in_slices = request.collective == Collective::reduce_scatter;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      const std::size_t takes = ranks_[i].request->takes;
      ranks_[i].request.reset();
      if (!ranks_[i].connection.send(result.data() + (in_slices ? i * takes : 0), takes)) return false;
    }
    return true;
  }
  [[noreturn]] static void different() {
    std::fprintf(stderr, "the ranks of a communicator ask for different operations\n");
    std::abort();
  }

  std::vector<Rank> ranks_;
};

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
  std::int64_t asked = 0;  ///< operations, by the thread of the host
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
  struct Sent {
    const void* from = nullptr;
    std::size_t bytes = 0;
  };
  struct Received {
    void* to = nullptr;
    std::size_t bytes = 0;
  };
  std::map<int, Sent> sends;
  std::map<int, Received> receives;
  ncclComm_t communicator = nullptr;
  cudaStream_t stream = nullptr;
};

inline ncclResult_t put(const GroupOfMessages& all) {
  const std::shared_ptr<Member> member = all.communicator->member;
  const bool first = !member->connected;
  if (first) connect(member);
  all.stream->queue.put([member, number = member->asked++, all] {
    std::vector<Sizes> sizes(static_cast<std::size_t>(member->size));
    std::size_t takes = 0;
    for (const auto& [peer, sent] : all.sends) sizes[static_cast<std::size_t>(peer)].sent = sent.bytes;
    for (const auto& [peer, received] : all.receives) {
      sizes[static_cast<std::size_t>(peer)].received = received.bytes;
      takes += received.bytes;
    }
    Data brings(sizes.size() * sizeof(Sizes));
    std::memcpy(brings.data(), sizes.data(), brings.size());
    for (const auto& [peer, sent] : all.sends)
      brings.insert(brings.end(), static_cast<const char*>(sent.from),
                    static_cast<const char*>(sent.from) + sent.bytes);
    Data answer(takes);
    member->exchange(number, {Collective::messages, ncclInt8, ncclSum, 0, 0, brings.size(), takes}, brings.data(),
                     answer.data());
    if (member->aborted) return;
    const char* next = answer.data();
    for (const auto& [peer, received] : all.receives) {
      std::memcpy(received.to, next, received.bytes);
      next += received.bytes;
    }
  });
  return first ? ncclInProgress : ncclSuccess;
}
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
  std::thread([listener = std::move(listener)] { emulator::Hub().serve(listener); }).detach();
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
/// Other operations than messages were put on their streams already.
inline ncclResult_t ncclGroupEnd() {
  const emulator::GroupOfMessages all = *std::exchange(emulator::group_of_messages, std::nullopt);
  if (all.sends.empty() && all.receives.empty()) return ncclSuccess;
  return emulator::put(all);
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
    emulator::group_of_messages->communicator = communicator;
    emulator::group_of_messages->stream = stream;
    emulator::group_of_messages->sends[peer] = {from, count * emulator::size_of(type)};
    return ncclSuccess;
  }
  return emulator::put(communicator, stream, {emulator::Collective::message, type, ncclSum, 0, count}, from, count,
                       nullptr, 0);
}
inline ncclResult_t ncclRecv(void* to, std::size_t count, ncclDataType_t type, int peer, ncclComm_t communicator,
                             cudaStream_t stream) {
  if (emulator::group_of_messages) {
    emulator::group_of_messages->communicator = communicator;
    emulator::group_of_messages->stream = stream;
    emulator::group_of_messages->receives[peer] = {to, count * emulator::size_of(type)};
    return ncclSuccess;
  }
  return emulator::put(communicator, stream, {emulator::Collective::message, type, ncclSum, 0, count}, nullptr, 0, to,
                       count);
}
