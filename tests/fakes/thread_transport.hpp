// Ranks that are threads of one test, with a transport and a control plane among them.
//
// Stricter than MPI where that finds mistakes: a send is done only when it has been received, a group or channel runs
// one operation at a time, and ranks that make different collectives, or with different counts, fail with both named.
// Reductions add in the order of the ranks, once for all ranks: every rank gets the same bits, and the same ones in
// every run. A failing rank aborts the others.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/bits16.hpp"
#include "runtime/host_transport.hpp"
#include "runtime/world.hpp"

namespace sailor::runtime::test {

/// The threads share this; `mutex` guards all members but `aborted` and `done`.
struct ThreadWorld {
  explicit ThreadWorld(int ranks) : aborted(static_cast<std::size_t>(ranks)) {}

  enum class Call { sum, max, min, all_gather, reduce_scatter, all_to_all, barrier };

  /// One collective; the last rank to arrive does it for all.
  struct Collective {
    Call call{};
    std::int64_t count = 0;
    DataType type = DataType::float32;
    std::vector<void*> data;          ///< by rank of the group
    std::vector<const void*> source;  ///< the same, of an all-to-all
    std::vector<SliceSizes> sizes;    ///< the same
    int arrived = 0;
    std::atomic<bool> done = false;
    bool broken = false;  ///< a rank has gone away while it was under way
  };
  struct Transfer {
    std::size_t bytes = 0;
    const void* source = nullptr;  ///< null: a receive that waits for its send
    void* target = nullptr;        ///< null: a send that waits for its receive
  };
  struct Message : Transfer {
    explicit Message(const Transfer& transfer) : Transfer(transfer) {}
    std::atomic<bool> done = false;
  };
  struct Group {
    std::vector<int> ranks;                                         ///< of the world
    std::map<std::int64_t, std::shared_ptr<Collective>> under_way;  ///< by its number on the group
    std::vector<std::string> texts;                                 ///< of a gathering, by rank
  };

  std::mutex mutex;
  std::vector<std::atomic<bool>> aborted;  ///< by rank
  Patience patience{.timeout = Seconds(60.0), .idle = true};
  int communicators = 0;                                                            ///< groups made so far by all ranks
  std::map<std::pair<std::vector<int>, int>, std::shared_ptr<Group>> groups;        ///< by ranks, and how many before
  std::map<std::tuple<int, int, int>, std::deque<std::shared_ptr<Message>>> mails;  ///< by from, to, id
};

/// Operations of a communicator run one at a time, in the order in which they were made, as NCCL's do.
struct Turns {
  std::int64_t made = 0;
  std::atomic<std::int64_t> done = 0;
};

class ThreadOperation final : public HostOperation {
 public:
  /// `begin` is called once, `done` until it is true; `withdraw` in the end, if it was begun and is not done. The
  /// world's mutex is held meanwhile, but not for `done`: streams that wait call it all the time.
  struct Steps {
    std::function<void()> begin;
    std::function<bool()> done;
    std::function<void()> withdraw;
  };
  ThreadOperation(std::shared_ptr<ThreadWorld> world, std::shared_ptr<Turns> turns, int rank, std::string what,
                  Steps steps)
      : world_(std::move(world)),
        turns_(std::move(turns)),
        turn_(turns_->made++),
        rank_(rank),
        what_(std::move(what)),
        steps_(std::move(steps)) {}
  ~ThreadOperation() override {
    if (!begun_ || ended_) return;
    const std::scoped_lock lock(world_->mutex);
    steps_.withdraw();
  }
  ThreadOperation(const ThreadOperation&) = delete;
  ThreadOperation& operator=(const ThreadOperation&) = delete;

  bool advance() override {
    if (world_->aborted[static_cast<std::size_t>(rank_)])
      throw TransportError(TransportError::Cause::aborted, what_ + " was broken off");
    if (turns_->done < turn_) return false;
    if (!begun_) {
      const std::scoped_lock lock(world_->mutex);
      begun_ = true;
      steps_.begin();
    }
    if (!steps_.done()) return false;
    ended_ = true;
    turns_->done = turn_ + 1;
    return true;
  }
  std::string what() const override { return fmt::format("rank {}: {}", rank_, what_); }
  Patience patience() const override { return world_->patience; }

 private:
  std::shared_ptr<ThreadWorld> world_;
  std::shared_ptr<Turns> turns_;
  std::int64_t turn_;
  int rank_;
  std::string what_;
  Steps steps_;
  bool begun_ = false;
  bool ended_ = false;
};

class ThreadGroup final : public HostGroup {
 public:
  using Call = ThreadWorld::Call;

  ThreadGroup(std::shared_ptr<ThreadWorld> world, std::shared_ptr<ThreadWorld::Group> group, int rank)
      : world_(std::move(world)), group_(std::move(group)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(group_->ranks.size()); }
  ThreadWorld::Group& shared() { return *group_; }

  std::unique_ptr<HostOperation> make_all_reduce_sum(Values data, std::int64_t count) override {
    return make(Call::sum, data.data, count, data.type);
  }
  std::unique_ptr<HostOperation> make_all_reduce_max(float* data, std::int64_t count) override {
    return make(Call::max, data, count);
  }
  std::unique_ptr<HostOperation> make_all_gather(Values data, std::int64_t count) override {
    return make(Call::all_gather, data.data, count, data.type);
  }
  std::unique_ptr<HostOperation> make_reduce_scatter_sum(Values data, std::int64_t count) override {
    return make(Call::reduce_scatter, data.data, count, data.type);
  }
  std::unique_ptr<HostOperation> make_all_to_all(ConstValues from, Values to, const SliceSizes& sizes) override {
    return make(Call::all_to_all, to.data, 0, to.type, from.data, sizes);
  }
  std::unique_ptr<HostOperation> make(Call call, void* data, std::int64_t count, DataType type = DataType::float32,
                                      const void* source = nullptr, const SliceSizes& sizes = {}) {
    auto collective = std::make_shared<std::shared_ptr<ThreadWorld::Collective>>();
    return std::make_unique<ThreadOperation>(
        world_, turns_, world_rank(), fmt::format("collective (kind {}, {} values)", static_cast<int>(call), count),
        ThreadOperation::Steps{.begin = [=, this] { *collective = arrive(call, data, count, type, source, sizes); },
                               .done = [collective] { return (*collective)->done.load(); },
                               .withdraw =
                                   [collective] {
                                     if (*collective != nullptr && !(*collective)->done) (*collective)->broken = true;
                                   }});
  }

 private:
  [[nodiscard]] int world_rank() const { return group_->ranks[static_cast<std::size_t>(rank_)]; }

  std::shared_ptr<ThreadWorld::Collective> arrive(Call call, void* data, std::int64_t count, DataType type,
                                                  const void* source, const SliceSizes& sizes) {
    const std::int64_t number = calls_++;
    std::shared_ptr<ThreadWorld::Collective>& slot = group_->under_way[number];
    if (slot == nullptr) {
      slot = std::make_shared<ThreadWorld::Collective>();
      slot->call = call;
      slot->count = count;
      slot->type = type;
      slot->data.resize(group_->ranks.size());
      slot->source.resize(group_->ranks.size());
      slot->sizes.resize(group_->ranks.size());
    }
    const std::shared_ptr<ThreadWorld::Collective> collective = slot;
    if (collective->call != call || collective->count != count || collective->type != type)
      throw std::logic_error(fmt::format(
          "collective {} of ranks {}: rank {} calls {} of {} (type {}), another has called {} of {} (type {})", number,
          fmt::join(group_->ranks, ","), world_rank(), static_cast<int>(call), count, static_cast<int>(type),
          static_cast<int>(collective->call), collective->count, static_cast<int>(collective->type)));
    collective->data[static_cast<std::size_t>(rank_)] = data;
    collective->source[static_cast<std::size_t>(rank_)] = source;
    collective->sizes[static_cast<std::size_t>(rank_)] = sizes;
    if (++collective->arrived == size()) {
      if (!collective->broken) {
        perform(*collective);
        collective->done = true;
      }
      group_->under_way.erase(number);
    }
    return collective;
  }

  static void perform(const ThreadWorld::Collective& collective) {
    const auto count = static_cast<std::size_t>(collective.count);
    const int ranks = static_cast<int>(collective.data.size());
    const auto values = [&](int rank) {
      return Values(collective.data[static_cast<std::size_t>(rank)], collective.type);
    };
    const auto copy_to_all = [&](int root, std::size_t first, std::size_t bytes) {
      for (int rank = 0; rank < ranks; ++rank)
        if (rank != root && bytes > 0) {
          const auto at = [&](int of) { return static_cast<char*>(collective.data[static_cast<std::size_t>(of)]); };
          std::memcpy(at(rank) + first, at(root) + first, bytes);
        }
    };
    const auto bytes = [&](std::int64_t elements) { return bytes_of(collective.type, elements); };
    const auto fold = [&](auto* all, const auto* more) {
      for (std::size_t i = 0; i < count; ++i) {
        if (collective.call == Call::max)
          all[i] = std::max(all[i], more[i]);
        else if (collective.call == Call::min)
          all[i] = std::min(all[i], more[i]);
        else
          all[i] += more[i];
      }
    };
    switch (collective.call) {
      case Call::sum:
      case Call::max:
      case Call::min:
      case Call::reduce_scatter:
        for (int rank = 1; rank < ranks; ++rank) {
          if (size_of(collective.type) == 2)
            add_bits16(collective.type, values(0).bits16(), values(rank).bits16(), collective.count);
          else if (collective.type == DataType::float64)
            fold(static_cast<double*>(values(0).data), static_cast<const double*>(values(rank).data));
          else
            fold(values(0).floats(), static_cast<const float*>(values(rank).floats()));
        }
        if (collective.call != Call::reduce_scatter) {
          copy_to_all(0, 0, bytes(collective.count));
          break;
        }
        for (int rank = ranks; rank-- > 0;) {  // rank 0's array, which has the sums, is spoilt last
          const Range slice = cut(collective.count, {rank, ranks});
          if (rank > 0)
            std::memcpy((values(rank) + slice.first).data, (values(0) + slice.first).data, bytes(slice.size()));
          // Undefined: must not be used. These bytes are -1e30 or so in either type.
          std::memset(values(rank).data, 0xf1, bytes(slice.first));
          std::memset((values(rank) + slice.last).data, 0xf1, bytes(collective.count - slice.last));
        }
        break;
      case Call::all_gather:
        for (int root = 0; root < ranks; ++root) {
          const Range slice = cut(collective.count, {root, ranks});
          copy_to_all(root, bytes(slice.first), bytes(slice.size()));
        }
        break;
      case Call::all_to_all:
        for (int from = 0; from < ranks; ++from)
          for (int to = 0; to < ranks; ++to) {
            const auto sender = static_cast<std::size_t>(from);
            const auto receiver = static_cast<std::size_t>(to);
            const std::vector<std::int64_t>& sent = collective.sizes[sender].sent;
            const std::vector<std::int64_t>& received = collective.sizes[receiver].received;
            if (sent[receiver] != received[sender])
              throw std::logic_error(fmt::format("all-to-all: rank {} sends {} values to rank {}, which awaits {}",
                                                 from, sent[receiver], to, received[sender]));
            if (sent[receiver] == 0) continue;
            std::memcpy(static_cast<char*>(collective.data[receiver]) +
                            bytes(std::accumulate(received.begin(), received.begin() + from, std::int64_t{0})),
                        static_cast<const char*>(collective.source[sender]) +
                            bytes(std::accumulate(sent.begin(), sent.begin() + to, std::int64_t{0})),
                        bytes(sent[receiver]));
          }
        break;
      case Call::barrier:
        break;
    }
  }

  std::shared_ptr<ThreadWorld> world_;
  std::shared_ptr<ThreadWorld::Group> group_;
  int rank_;
  std::shared_ptr<Turns> turns_ = std::make_shared<Turns>();
  std::int64_t calls_ = 0;  // so far
};

class ThreadChannel final : public HostChannel {
 public:
  ThreadChannel(std::shared_ptr<ThreadWorld> world, int rank, int from, int to, int id)
      : world_(std::move(world)), rank_(rank), from_(from), to_(to), id_(id) {}

  std::unique_ptr<HostOperation> make_send(const void* data, std::size_t bytes) override {
    return make({.bytes = bytes, .source = data == nullptr ? &nothing : data},
                fmt::format("send of {} bytes to rank {}", bytes, to_));
  }
  std::unique_ptr<HostOperation> make_receive(void* data, std::size_t bytes) override {
    return make({.bytes = bytes, .target = data == nullptr ? &nothing : data},
                fmt::format("receive of {} bytes from rank {}", bytes, from_));
  }

 private:
  inline static char nothing = 0;  // for transfers of 0 bytes from nowhere

  std::unique_ptr<HostOperation> make(ThreadWorld::Transfer mine, const std::string& what) {
    auto message = std::make_shared<std::shared_ptr<ThreadWorld::Message>>();
    auto& queue = [this]() -> std::deque<std::shared_ptr<ThreadWorld::Message>>& {
      const std::scoped_lock lock(world_->mutex);
      return world_->mails[{from_, to_, id_}];
    }();
    return std::make_unique<ThreadOperation>(
        world_, turns_, rank_, what,
        ThreadOperation::Steps{.begin = [=, this, &queue] { *message = meet(queue, mine, what); },
                               .done = [message] { return (*message)->done.load(); },
                               .withdraw =
                                   [message, &queue] {
                                     if (*message != nullptr && !(*message)->done) std::erase(queue, *message);
                                   }});
  }

  std::shared_ptr<ThreadWorld::Message> meet(std::deque<std::shared_ptr<ThreadWorld::Message>>& queue,
                                             const ThreadWorld::Transfer& mine, const std::string& what) {
    const bool sends = mine.source != nullptr;
    const auto other = std::find_if(queue.begin(), queue.end(), [&](const auto& message) {
      return (sends ? message->source : message->target) == nullptr;
    });
    if (other == queue.end()) {
      queue.push_back(std::make_shared<ThreadWorld::Message>(mine));
      return queue.back();
    }
    const std::shared_ptr<ThreadWorld::Message> message = *other;
    queue.erase(other);
    if (message->bytes != mine.bytes)
      throw std::logic_error(fmt::format("rank {}: {}, but the other rank has {}", rank_, what, message->bytes));
    std::memcpy(sends ? message->target : mine.target, sends ? mine.source : message->source, mine.bytes);
    message->done = true;
    return message;
  }

  std::shared_ptr<ThreadWorld> world_;
  int rank_;
  int from_;
  int to_;
  int id_;
  std::shared_ptr<Turns> turns_ = std::make_shared<Turns>();
};

class ThreadTransport final : public Transport {
 public:
  ThreadTransport(std::shared_ptr<ThreadWorld> world, int rank) : world_(std::move(world)), rank_(rank) {}

  std::string name() const override { return "threads"; }
  std::unique_ptr<Group> make_group(const std::vector<int>& ranks) override { return make(ranks); }
  std::unique_ptr<ThreadGroup> make(const std::vector<int>& ranks, bool counts = true) {
    const auto place = std::find(ranks.begin(), ranks.end(), rank_);
    if (place == ranks.end() || !std::is_sorted(ranks.begin(), ranks.end()))
      throw std::logic_error(
          fmt::format("rank {} makes a group of {}: not ascending or without it", rank_, fmt::join(ranks, ",")));
    const std::scoped_lock lock(world_->mutex);
    if (counts) ++world_->communicators;
    std::shared_ptr<ThreadWorld::Group>& made = world_->groups[{ranks, made_[ranks]++}];
    if (made == nullptr) {
      made = std::make_shared<ThreadWorld::Group>();
      made->ranks = ranks;
      made->texts.resize(ranks.size());
    }
    return std::make_unique<ThreadGroup>(world_, made, static_cast<int>(place - ranks.begin()));
  }
  std::unique_ptr<Channel> make_channel(int from, int to, const ChannelName& name) override {
    if (rank_ != from && rank_ != to)
      throw std::logic_error(fmt::format("rank {} makes a channel from {} to {}", rank_, from, to));
    return std::make_unique<ThreadChannel>(world_, rank_, from, to, name.id);
  }
  void abort() noexcept override { world_->aborted[static_cast<std::size_t>(rank_)] = true; }

 private:
  std::shared_ptr<ThreadWorld> world_;
  int rank_;
  std::map<std::vector<int>, int> made_;  // groups so far
};

class ThreadControl final : public Control {
 public:
  using Call = ThreadWorld::Call;

  /// `transport` of all ranks must outlive it. Its group counts apart from those that others make of the same ranks.
  ThreadControl(std::shared_ptr<ThreadWorld> world, ThreadTransport& transport, std::vector<int> ranks)
      : world_(std::move(world)),
        transport_(transport),
        ranks_(std::move(ranks)),
        group_(transport.make(ranks_, false)) {}

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  std::string host() const override { return fmt::format("thread{}", world_rank()); }
  void barrier() override { finish(*group_->make(Call::barrier, nullptr, 0)); }
  void idle_barrier() override { barrier(); }
  double sum(double value) override { return agree(Call::sum, value); }
  double max(double value) override { return agree(Call::max, value); }
  double min(double value) override { return agree(Call::min, value); }

  std::vector<std::string> gather(const std::string& text) override {
    set(rank(), text);
    barrier();
    std::vector<std::string> texts;
    if (rank() == 0) texts = get();
    barrier();
    return texts;
  }
  std::string broadcast(std::string text) override {
    if (rank() == 0) set(0, text);
    barrier();
    text = get().front();
    barrier();
    return text;
  }
  std::unique_ptr<Control> subgroup(const std::vector<int>& ranks) override {
    std::vector<int> in_world;
    for (const int one : ranks) in_world.push_back(ranks_.at(static_cast<std::size_t>(one)));
    return std::make_unique<ThreadControl>(world_, transport_, in_world);
  }
  std::vector<int> roll_call(Seconds) override { return {}; }
  [[noreturn]] void abort(const std::string& message) override {
    throw std::runtime_error(fmt::format("rank {} aborts: {}", world_rank(), message));
  }

 private:
  [[nodiscard]] int world_rank() const { return ranks_[static_cast<std::size_t>(rank())]; }
  double agree(Call call, double value) {
    finish(*group_->make(call, &value, 1, DataType::float64));
    return value;
  }
  void set(int rank, const std::string& text) {
    const std::scoped_lock lock(world_->mutex);
    group_->shared().texts[static_cast<std::size_t>(rank)] = text;
  }
  std::vector<std::string> get() {
    const std::scoped_lock lock(world_->mutex);
    return group_->shared().texts;
  }

  std::shared_ptr<ThreadWorld> world_;
  ThreadTransport& transport_;
  std::vector<int> ranks_;
  std::unique_ptr<ThreadGroup> group_;
};

/// One rank of a ThreadWorld.
class ThreadRank {
 public:
  ThreadRank(const std::shared_ptr<ThreadWorld>& world, int rank, int ranks)
      : transport_(world, rank), control_(world, transport_, [ranks] {
          std::vector<int> all(static_cast<std::size_t>(ranks));
          std::iota(all.begin(), all.end(), 0);
          return all;
        }()) {}
  [[nodiscard]] World world() { return {control_, transport_}; }

 private:
  ThreadTransport transport_;
  ThreadControl control_;
};

/// The only rank of a job.
inline std::unique_ptr<ThreadRank> lone_rank() {
  return std::make_unique<ThreadRank>(std::make_shared<ThreadWorld>(1), 0, 1);
}

/// Runs `body` as so many ranks, each with its world. When one throws, the others are broken off, and the first
/// exception that is not of that is thrown to the caller. Returns the world that was used.
inline std::shared_ptr<ThreadWorld> run_ranks(int ranks, const std::function<void(const World&)>& body) {
  const auto shared = std::make_shared<ThreadWorld>(ranks);
  std::exception_ptr failure;
  bool is_consequence = true;  // of another's failure
  const auto fails = [&](bool consequence) {
    const std::scoped_lock lock(shared->mutex);
    if (failure == nullptr || (is_consequence && !consequence)) {
      failure = std::current_exception();
      is_consequence = consequence;
    }
    for (std::atomic<bool>& aborted : shared->aborted) aborted = true;
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        ThreadRank own(shared, rank, ranks);
        body(own.world());
      } catch (const TransportError& error) {
        fails(error.cause() == TransportError::Cause::aborted);
      } catch (...) {
        fails(false);
      }
    });
  for (std::thread& thread : threads) thread.join();
  if (failure != nullptr) std::rethrow_exception(failure);
  return shared;
}

}  // namespace sailor::runtime::test
