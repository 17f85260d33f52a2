#include "runtime/cuda/nccl_transport.hpp"

#include <fmt/format.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "core/text.hpp"
#include "runtime/sharding.hpp"
#include "runtime/tensor.hpp"

namespace sailor::runtime {

namespace {

using Clock = std::chrono::steady_clock;
using Cause = TransportError::Cause;

ncclDataType_t nccl_type(DataType type) {
  switch (type) {
    case DataType::float32:
      return ncclFloat32;
    case DataType::bfloat16:
      return ncclBfloat16;
    case DataType::float16:
      return ncclFloat16;
    case DataType::float64:
      return ncclFloat64;
    case DataType::int32:
      return ncclInt32;
  }
  throw std::logic_error("NCCL: unknown type of values");
}

std::string words_of(ncclResult_t result, ncclComm_t communicator) {
  std::string text = ncclGetErrorString(result);
  const char* const last = ncclGetLastError(communicator);
  if (last != nullptr && *last != '\0') text += fmt::format(" ({})", last);
  return text;
}

/// The communicators of one process, and a thread that checks whether they have failed. A failure, or abort(), aborts
/// all of them: their kernels end, and every later call throws.
class Communicators final : public TransferWatch {
 public:
  Communicators(CudaDevice& device, Seconds timeout) : device_(device), timeout_(timeout) {
    device_.set_watch(this);
    looking_ = std::thread([this] { look_after(); });
  }
  ~Communicators() override {
    device_.set_watch(nullptr);
    {
      const std::scoped_lock lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    looking_.join();
  }

  /// A new id for a communicator, as text. Throws TransportError.
  std::string mint(const std::string& what) {
    ncclUniqueId id{};
    if (const ncclResult_t result = ncclGetUniqueId(&id); result != ncclSuccess)
      throw TransportError(Cause::broken, fmt::format("NCCL gives no id for {}: {}", what, words_of(result, nullptr)));
    return {id.internal, sizeof(id.internal)};
  }
  /// Creates the communicator of rank `rank` of `size` ranks, which all must call this with the same id.
  ncclComm_t make(const std::string& minted, int rank, int size, const std::string& what) {
    check();
    ncclUniqueId id{};
    if (minted.size() != sizeof(id.internal))
      throw TransportError(Cause::broken, fmt::format("no id came for {}", what));
    std::memcpy(id.internal, minted.data(), sizeof(id.internal));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t communicator = nullptr;
    const ncclResult_t begun = ncclCommInitRankConfig(&communicator, size, id, rank, &config);
    if (begun != ncclSuccess && begun != ncclInProgress)
      throw TransportError(Cause::broken, fmt::format("NCCL makes no {}: {}", what, words_of(begun, communicator)));
    const auto start = Clock::now();
    for (;;) {
      ncclResult_t state = ncclInProgress;
      if (const ncclResult_t asked = ncclCommGetAsyncError(communicator, &state); asked != ncclSuccess) state = asked;
      if (state == ncclSuccess) break;
      const bool late = is_late(start);
      if (state == ncclInProgress && !late && !wants_abort_) {
        std::this_thread::sleep_for(std::chrono::microseconds(200));
        continue;
      }
      const std::string words = words_of(state, communicator);
      ncclCommAbort(communicator);
      if (wants_abort_) throw TransportError(Cause::aborted, "communication was aborted");
      if (late)
        throw TransportError(Cause::timeout, fmt::format("{} was not made within {:.0f} s: some rank does not answer",
                                                         what, timeout_.value()));
      throw TransportError(Cause::broken, fmt::format("NCCL makes no {}: {}", what, words));
    }
    const std::scoped_lock lock(mutex_);
    alive_.insert(communicator);
    return communicator;
  }
  void destroy(ncclComm_t communicator) {
    const std::scoped_lock lock(mutex_);
    if (alive_.erase(communicator) > 0) ncclCommDestroy(communicator);
  }

  /// Puts one or more operations on a stream.
  template <class Put>
  void put(ncclComm_t communicator, const char* what, const Put& operation) {
    const std::scoped_lock lock(mutex_);
    throw_failure();
    ncclResult_t result = operation();
    // A non-blocking communicator returns early: wait until everything is on the stream.
    const auto start = Clock::now();
    while (result == ncclInProgress) {
      std::this_thread::yield();
      ncclCommGetAsyncError(communicator, &result);
      if (wants_abort_) fail(Cause::aborted, "communication was aborted");
      if (is_late(start)) fail(Cause::timeout, fmt::format("{} did not begin within {:.0f} s", what, timeout_.value()));
      throw_failure();
    }
    if (result == ncclSuccess) return;
    fail(Cause::broken, fmt::format("NCCL: {}: {}", what, words_of(result, communicator)));
    throw_failure();
  }

  void abort() noexcept { wants_abort_ = true; }

  void begin() override { waiting_since_ = Clock::now(); }
  void look() override {
    const bool late = is_late(waiting_since_);
    const std::scoped_lock lock(mutex_);
    if (late) fail(Cause::timeout, fmt::format("no transfer ended within {:.0f} s", timeout_.value()));
    throw_failure();
  }
  void check() override {
    const std::scoped_lock lock(mutex_);
    throw_failure();
  }

 private:
  [[nodiscard]] bool is_late(Clock::time_point start) const {
    return Clock::now() - start > std::chrono::duration<double>(timeout_.value());
  }
  // Requires the lock.
  void throw_failure() const {
    if (!failure_.empty()) throw TransportError(cause_, failure_);
  }
  void fail(Cause cause, std::string message) {
    if (!failure_.empty()) return;
    cause_ = cause;
    failure_ = std::move(message);
    // All at once: one is not given up before kernels of the others have ended.
    std::vector<std::jthread> aborting;
    for (ncclComm_t communicator : std::exchange(alive_, {}))
      aborting.emplace_back([communicator] { ncclCommAbort(communicator); });
  }

  void look_after() {
    std::unique_lock lock(mutex_);
    while (!ends_) {
      if (wants_abort_) fail(Cause::aborted, "communication was aborted");
      for (ncclComm_t communicator : alive_) {
        ncclResult_t state = ncclSuccess;
        const ncclResult_t asked = ncclCommGetAsyncError(communicator, &state);
        if (asked != ncclSuccess) state = asked;
        if (state == ncclSuccess || state == ncclInProgress) continue;
        fail(state == ncclRemoteError ? Cause::lost : Cause::broken,
             fmt::format("NCCL: {}", words_of(state, communicator)));
        break;
      }
      changed_.wait_for(lock, std::chrono::milliseconds(20));
    }
  }

  CudaDevice& device_;
  Seconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<ncclComm_t> alive_;
  std::atomic<bool> wants_abort_ = false;
  bool ends_ = false;
  Cause cause_ = Cause::broken;
  std::string failure_;  // empty: none
  Clock::time_point waiting_since_{};
  std::thread looking_;
};

/// One communicator of NCCL.
class Communicator {
 public:
  Communicator(std::shared_ptr<Communicators> all, std::string what) : all_(std::move(all)), what_(std::move(what)) {}
  ~Communicator() {
    if (handle_ != nullptr) all_->destroy(handle_);
  }
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  [[nodiscard]] std::string mint() { return all_->mint(what_); }
  /// Must be called before the communicator is used.
  void connect(const std::string& id, int rank, int size) { handle_ = all_->make(id, rank, size, what_); }
  /// Puts operation(handle, stream), a call of NCCL, on the stream.
  template <class Operation>
  void put(Stream& stream, const char* what, const Operation& operation) {
    if (handle_ == nullptr) throw std::logic_error(what_ + " is used before Transport::connect()");
    const cudaStream_t on = static_cast<CudaStream&>(stream).handle();
    all_->put(handle_, what, [&] { return operation(handle_, on); });
  }

 private:
  std::shared_ptr<Communicators> all_;
  std::string what_;
  ncclComm_t handle_ = nullptr;
};

class NcclGroup final : public Group {
 public:
  /// Created at once by all ranks of `control`.
  NcclGroup(std::shared_ptr<Communicators> all, Control& control, const std::string& what)
      : communicator_(std::move(all), what), rank_(control.rank()), size_(control.size()) {
    // Rank 0 sends an id, or its error, so that no rank waits for one that has failed.
    std::string id;
    std::string failure;
    if (rank_ == 0) try {
        id = "+" + communicator_.mint();
      } catch (const TransportError& error) {
        failure = error.what();
      }
    id = control.broadcast(failure.empty() ? id : "-" + failure);
    if (id.empty() || id.front() != '+')
      throw TransportError(Cause::broken, id.substr(std::min<std::size_t>(1, id.size())));
    communicator_.connect(id.substr(1), rank_, size_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void all_reduce_sum(Stream& stream, Values data, std::int64_t count) override {
    all_reduce(stream, data, count, ncclSum);
  }
  void all_reduce_max(Stream& stream, float* data, std::int64_t count) override {
    all_reduce(stream, data, count, ncclMax);
  }
  void all_gather(Stream& stream, Values data, std::int64_t count) override {
    communicator_.put(stream, "all-gather", [&](ncclComm_t handle, cudaStream_t on) {
      const ncclDataType_t type = nccl_type(data.type);
      if (count % size() == 0) {
        const auto each = static_cast<std::size_t>(count / size());
        return ncclAllGather((data + slice(count, rank()).first).data, data.data, each, type, handle, on);
      }
      return for_slices(count, [&](int root, const Range& part) {
        void* const here = (data + part.first).data;
        return ncclBroadcast(here, here, static_cast<std::size_t>(part.size()), type, root, handle, on);
      });
    });
  }
  void reduce_scatter_sum(Stream& stream, Values data, std::int64_t count) override {
    communicator_.put(stream, "reduce-scatter", [&](ncclComm_t handle, cudaStream_t on) {
      const ncclDataType_t type = nccl_type(data.type);
      if (count % size() == 0) {
        const auto each = static_cast<std::size_t>(count / size());
        return ncclReduceScatter(data.data, (data + slice(count, rank()).first).data, each, type, ncclSum, handle, on);
      }
      return for_slices(count, [&](int root, const Range& part) {
        void* const here = (data + part.first).data;
        return ncclReduce(here, here, static_cast<std::size_t>(part.size()), type, ncclSum, root, handle, on);
      });
    });
  }
  using Group::all_to_all;
  void all_to_all(Stream& stream, ConstValues from, Values to, const SliceSizes& sizes) override {
    communicator_.put(stream, "all-to-all", [&](ncclComm_t handle, cudaStream_t on) {
      const ncclDataType_t type = nccl_type(to.type);
      std::int64_t first_sent = 0;
      std::int64_t first_received = 0;
      return for_peers([&](int peer) {
        const std::int64_t sent = sizes.sent[static_cast<std::size_t>(peer)];
        const std::int64_t received = sizes.received[static_cast<std::size_t>(peer)];
        const ConstValues out = from + std::exchange(first_sent, first_sent + sent);
        const Values in = to + std::exchange(first_received, first_received + received);
        ncclResult_t result = ncclSuccess;
        if (sent > 0) result = ncclSend(out.data, static_cast<std::size_t>(sent), type, peer, handle, on);
        if (received == 0 || (result != ncclSuccess && result != ncclInProgress)) return result;
        return ncclRecv(in.data, static_cast<std::size_t>(received), type, peer, handle, on);
      });
    });
  }

 private:
  [[nodiscard]] Range slice(std::int64_t count, int index) const { return cut(count, {index, size()}); }

  void all_reduce(Stream& stream, Values data, std::int64_t count, ncclRedOp_t operation) {
    communicator_.put(stream, "all-reduce", [&](ncclComm_t handle, cudaStream_t on) {
      return ncclAllReduce(data.data, data.data, static_cast<std::size_t>(count), nccl_type(data.type), operation,
                           handle, on);
    });
  }
  /// Calls call(rank, slice) for all slices that are not empty, as one operation of NCCL.
  template <class Call>
  ncclResult_t for_slices(std::int64_t count, const Call& call) const {
    return for_peers([&](int root) {
      const Range part = slice(count, root);
      return part.size() == 0 ? ncclSuccess : call(root, part);
    });
  }
  /// Calls call(rank) for all ranks, as one operation of NCCL.
  template <class Call>
  ncclResult_t for_peers(const Call& call) const {
    if (const ncclResult_t begun = ncclGroupStart(); begun != ncclSuccess) return begun;
    ncclResult_t worst = ncclSuccess;
    for (int peer = 0; peer < size(); ++peer) {
      const ncclResult_t result = call(peer);
      if (result != ncclSuccess && result != ncclInProgress) worst = result;
    }
    const ncclResult_t ended = ncclGroupEnd();
    return worst != ncclSuccess ? worst : ended;
  }

  Communicator communicator_;
  int rank_;
  int size_;
};

/// Two ranks of the transport: sender, then receiver.
struct Ends {
  int from = 0;
  int to = 0;
  int id = 0;
  MessageKind kind = MessageKind::other;
  auto operator<=>(const Ends&) const = default;
};

class NcclChannel final : public Channel {
 public:
  NcclChannel(std::shared_ptr<Communicators> all, const Ends& ends, bool sends)
      : communicator_(std::move(all),
                      fmt::format("communicator of ranks {} and {} for {}", ends.from, ends.to, describe(ends.kind))),
        sends_(sends) {}

  [[nodiscard]] std::string mint() { return communicator_.mint(); }
  void connect(const std::string& id) { communicator_.connect(id, sends_ ? 0 : 1, 2); }
  /// Sends the byte that `byte` points to, or receives it, by which NCCL connects the two ranks.
  void greet(Stream& stream, void* byte) {
    if (sends_)
      send(stream, byte, 1);
    else
      receive(stream, byte, 1);
  }
  void send(Stream& stream, const void* data, std::size_t bytes) override {
    communicator_.put(stream, "send", [&](ncclComm_t handle, cudaStream_t on) {
      return ncclSend(data, bytes, ncclInt8, 1, handle, on);
    });
  }
  void receive(Stream& stream, void* data, std::size_t bytes) override {
    communicator_.put(stream, "receive", [&](ncclComm_t handle, cudaStream_t on) {
      return ncclRecv(data, bytes, ncclInt8, 0, handle, on);
    });
  }

 private:
  Communicator communicator_;
  bool sends_;
};

class NcclTransport final : public Transport {
 public:
  NcclTransport(Control& control, CudaDevice& device, const NcclSettings& settings)
      : control_(control), device_(device), all_(std::make_shared<Communicators>(device, settings.timeout)) {}

  std::string name() const override {
    int version = 0;
    ncclGetVersion(&version);
    return fmt::format("NCCL {}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
  }
  std::unique_ptr<Group> make_group(const std::vector<int>& ranks) override {
    const auto control = control_.subgroup(ranks);
    return std::make_unique<NcclGroup>(all_, *control, fmt::format("communicator of ranks {}", join(ranks, ", ")));
  }
  std::unique_ptr<Channel> make_channel(int from, int to, const ChannelName& name) override {
    const Ends ends{from, to, name.id, name.kind};
    auto channel = std::make_unique<NcclChannel>(all_, ends, from == control_.rank());
    unconnected_.emplace_back(ends, channel.get());
    return channel;
  }
  /// Senders create the ids, all ranks receive them, and each creates its own communicators in the order of their ends:
  /// so ranks never wait for each other in a cycle. In the same order the first messages pass: in them the host waits
  /// for the other rank, and later ones come in any order (two ranks may each send first, then receive).
  void connect() override {
    auto channels = std::exchange(unconnected_, {});
    std::sort(channels.begin(), channels.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    std::string mine;
    std::string failure;
    try {
      for (const auto& [ends, channel] : channels)
        if (ends.from == control_.rank()) mine += name_of(ends) + channel->mint();
    } catch (const TransportError& error) {
      failure = error.what();
    }
    std::string all;
    for (const std::string& texts : control_.gather(failure.empty() ? mine : "")) all += texts;
    all = control_.broadcast(std::move(all));
    if (!failure.empty()) throw TransportError(Cause::broken, failure);
    std::map<std::string, std::string> ids;
    constexpr std::size_t entry = name_bytes + sizeof(ncclUniqueId);
    for (std::size_t i = 0; i + entry <= all.size(); i += entry)
      ids[all.substr(i, name_bytes)] = all.substr(i + name_bytes, sizeof(ncclUniqueId));
    if (channels.empty()) return;
    Tensor byte(device_, {1});
    for (const auto& [ends, channel] : channels) {
      channel->connect(ids[name_of(ends)]);
      channel->greet(device_.main(), byte.data());
    }
    device_.synchronize();
  }
  void abort() noexcept override { all_->abort(); }

 private:
  static constexpr std::size_t name_bytes = 32;
  static std::string name_of(const Ends& ends) {
    return fmt::format("{:>10}{:>10}{:>10}{:>2}", ends.from, ends.to, ends.id, static_cast<int>(ends.kind));
  }

  Control& control_;
  CudaDevice& device_;
  std::shared_ptr<Communicators> all_;
  std::vector<std::pair<Ends, NcclChannel*>> unconnected_;
};

}  // namespace

std::unique_ptr<Transport> make_nccl_transport(Control& control, CudaDevice& device, const NcclSettings& settings) {
  return std::make_unique<NcclTransport>(control, device, settings);
}

}  // namespace sailor::runtime
