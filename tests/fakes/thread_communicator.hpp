// Ranks that are threads of one test, with communicators among them.
//
// Stricter than MPI where that finds mistakes: a send is done only when it has been received, and ranks that call
// different collectives, or with different counts, fail with both named. Sums are made in the order of the ranks, once
// for all: every rank gets the same bits, and the same ones every time. A failing rank breaks off the others.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/bfloat16.hpp"
#include "runtime/communicator.hpp"

namespace sailor::runtime::test {

/// What the threads share. All members but `interrupted` are guarded by `mutex`.
struct ThreadWorld {
  explicit ThreadWorld(int ranks) : interrupted(static_cast<std::size_t>(ranks)) {}

  enum class Call { sum, max, all_gather, reduce_scatter, broadcast, barrier, add_double, max_double, min_double };

  /// One collective; the last rank to arrive does it for all.
  struct Collective {
    Call call{};
    std::int64_t count = 0;  ///< values, of a broadcast bytes
    int root = 0;
    DataType type = DataType::float32;
    std::vector<void*> data;  ///< by rank of the group
    int arrived = 0;
    bool done = false;
    bool broken = false;  ///< a rank has gone away while it was under way
  };
  struct Message {
    std::size_t bytes = 0;
    const void* source = nullptr;  ///< null: a receive that waits for its send
    void* target = nullptr;        ///< null: a send that waits for its receive
    bool done = false;
  };
  struct Group {
    std::vector<int> ranks;                                         ///< of the world
    std::map<std::int64_t, std::shared_ptr<Collective>> under_way;  ///< by its number on the group
    std::map<std::tuple<int, int, MessageKind>, std::deque<std::shared_ptr<Message>>> messages;  ///< by from, to, kind
    std::map<std::pair<std::vector<int>, int>, std::shared_ptr<Group>> subgroups;  ///< by ranks, and how many before
  };

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::atomic<bool>> interrupted;  ///< by rank
  std::chrono::seconds timeout{60};
  int communicators = 0;  ///< made so far by all ranks, the world's not counted
};

class ThreadRequest final : public Request {
 public:
  /// `done` and `withdraw` are called with the world's mutex held.
  ThreadRequest(std::shared_ptr<ThreadWorld> world, int rank, std::string what, std::function<bool()> done,
                std::function<void()> withdraw)
      : world_(std::move(world)),
        rank_(rank),
        what_(std::move(what)),
        done_(std::move(done)),
        withdraw_(std::move(withdraw)) {}
  ~ThreadRequest() override {
    const std::scoped_lock lock(world_->mutex);
    withdraw_();
  }
  ThreadRequest(const ThreadRequest&) = delete;
  ThreadRequest& operator=(const ThreadRequest&) = delete;

  bool test() override {
    const std::scoped_lock lock(world_->mutex);
    return is_done();
  }
  void wait() override {
    std::unique_lock lock(world_->mutex);
    const auto end = std::chrono::steady_clock::now() + world_->timeout;
    while (!is_done()) {
      world_->changed.wait_for(lock, std::chrono::milliseconds(2));  // interrupt() may not notify: signal handlers
      if (std::chrono::steady_clock::now() > end)
        throw std::runtime_error(fmt::format("rank {}: no answer for {} s: {}", rank_, world_->timeout.count(), what_));
    }
  }

 private:
  bool is_done() {
    if (world_->interrupted[static_cast<std::size_t>(rank_)]) throw Interrupted();
    return done_();
  }

  std::shared_ptr<ThreadWorld> world_;
  int rank_;
  std::string what_;
  std::function<bool()> done_;
  std::function<void()> withdraw_;
};

class ThreadCommunicator final : public Communicator {
 public:
  using Call = ThreadWorld::Call;

  ThreadCommunicator(std::shared_ptr<ThreadWorld> world, std::shared_ptr<ThreadWorld::Group> group, int rank)
      : world_(std::move(world)), group_(std::move(group)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(group_->ranks.size()); }

  std::unique_ptr<Request> send_later(const void* data, std::size_t bytes, int to, MessageKind kind) override {
    return transfer(rank_, to, kind, {.bytes = bytes, .source = data == nullptr ? &nothing : data},
                    fmt::format("send of {} bytes to rank {}", bytes, to));
  }
  std::unique_ptr<Request> receive_later(void* data, std::size_t bytes, int from, MessageKind kind) override {
    return transfer(from, rank_, kind, {.bytes = bytes, .target = data == nullptr ? &nothing : data},
                    fmt::format("receive of {} bytes from rank {}", bytes, from));
  }

  void all_reduce_sum(Values data, std::int64_t count) override { all_reduce_sum_later(data, count)->wait(); }
  std::unique_ptr<Request> all_reduce_sum_later(Values data, std::int64_t count) override {
    return start(Call::sum, data.data, count, 0, data.type);
  }
  void all_reduce_max(float* data, std::int64_t count) override { start(Call::max, data, count)->wait(); }
  void all_gather(Values data, std::int64_t count) override {
    start(Call::all_gather, data.data, count, 0, data.type)->wait();
  }
  void reduce_scatter_sum(Values data, std::int64_t count) override {
    start(Call::reduce_scatter, data.data, count, 0, data.type)->wait();
  }
  void broadcast(void* data, std::size_t bytes, int root) override {
    start(Call::broadcast, data, static_cast<std::int64_t>(bytes), root)->wait();
  }
  void barrier() override { start(Call::barrier, nullptr, 0)->wait(); }
  void idle_barrier() override { barrier(); }

  double sum(double value) override { return agree(Call::add_double, value); }
  double max(double value) override { return agree(Call::max_double, value); }
  double min(double value) override { return agree(Call::min_double, value); }

  std::vector<std::string> gather(const std::string& text) override {
    if (rank_ != 0) {
      const std::size_t length = text.size();
      send(&length, sizeof(length), 0, MessageKind::control);
      send(text.data(), length, 0, MessageKind::control);
      return {};
    }
    std::vector<std::string> texts{text};
    for (int from = 1; from < size(); ++from) {
      std::size_t length = 0;
      receive(&length, sizeof(length), from, MessageKind::control);
      texts.emplace_back(length, '\0');
      receive(texts.back().data(), length, from, MessageKind::control);
    }
    return texts;
  }

  std::unique_ptr<Communicator> subgroup(const std::vector<int>& ranks) override {
    const auto place = std::find(ranks.begin(), ranks.end(), rank_);
    if (place == ranks.end() || !std::is_sorted(ranks.begin(), ranks.end()))
      throw std::logic_error(
          fmt::format("rank {} makes a subgroup of {}: not ascending or without it", rank_, fmt::join(ranks, ",")));
    const std::scoped_lock lock(world_->mutex);
    ++world_->communicators;
    std::shared_ptr<ThreadWorld::Group>& made = group_->subgroups[{ranks, made_[ranks]++}];
    if (made == nullptr) {
      made = std::make_shared<ThreadWorld::Group>();
      for (const int rank : ranks) made->ranks.push_back(group_->ranks.at(static_cast<std::size_t>(rank)));
    }
    return std::make_unique<ThreadCommunicator>(world_, made, static_cast<int>(place - ranks.begin()));
  }

  void interrupt() noexcept override { world_->interrupted[static_cast<std::size_t>(world_rank())] = true; }
  void resume() noexcept override { world_->interrupted[static_cast<std::size_t>(world_rank())] = false; }
  std::string host() const override { return fmt::format("thread{}", world_rank()); }
  [[noreturn]] void abort(const std::string& message) override {
    throw std::runtime_error(fmt::format("rank {} aborts: {}", world_rank(), message));
  }

 private:
  inline static char nothing = 0;  // for transfers of 0 bytes from nowhere

  [[nodiscard]] int world_rank() const { return group_->ranks[static_cast<std::size_t>(rank_)]; }

  std::unique_ptr<Request> transfer(int from, int to, MessageKind kind, ThreadWorld::Message mine, std::string what) {
    if (std::min(from, to) < 0 || std::max(from, to) >= size())
      throw std::logic_error(fmt::format("{}: the group has ranks 0 to {}", what, size() - 1));
    const std::scoped_lock lock(world_->mutex);
    std::deque<std::shared_ptr<ThreadWorld::Message>>& queue = group_->messages[{from, to, kind}];
    const bool sends = mine.source != nullptr;
    const auto other = std::find_if(queue.begin(), queue.end(), [&](const auto& message) {
      return (sends ? message->source : message->target) == nullptr;
    });
    std::shared_ptr<ThreadWorld::Message> message;
    if (other == queue.end()) {
      message = std::make_shared<ThreadWorld::Message>(mine);
      queue.push_back(message);
    } else {
      message = *other;
      queue.erase(other);
      if (message->bytes != mine.bytes)
        throw std::logic_error(
            fmt::format("rank {}: {}, but the other rank has {}", world_rank(), what, message->bytes));
      (sends ? message->source : mine.source) = mine.source;
      std::memcpy(sends ? message->target : mine.target, sends ? mine.source : message->source, mine.bytes);
      message->done = true;
      world_->changed.notify_all();
    }
    return std::make_unique<ThreadRequest>(
        world_, world_rank(), std::move(what), [message] { return message->done; },
        [message, group = group_, from, to, kind] {
          if (!message->done) std::erase(group->messages[{from, to, kind}], message);
        });
  }

  std::unique_ptr<Request> start(Call call, void* data, std::int64_t count, int root = 0,
                                 DataType type = DataType::float32) {
    const std::scoped_lock lock(world_->mutex);
    const std::int64_t number = calls_++;
    std::shared_ptr<ThreadWorld::Collective>& slot = group_->under_way[number];
    if (slot == nullptr) {
      slot = std::make_shared<ThreadWorld::Collective>();
      slot->call = call;
      slot->count = count;
      slot->root = root;
      slot->type = type;
      slot->data.resize(group_->ranks.size());
    }
    const std::shared_ptr<ThreadWorld::Collective> collective = slot;
    if (collective->call != call || collective->count != count || collective->root != root || collective->type != type)
      throw std::logic_error(
          fmt::format("collective {} of ranks {}: rank {} calls {} of {} (root {}, type {}), another has called {} of "
                      "{} (root {}, type {})",
                      number, fmt::join(group_->ranks, ","), world_rank(), static_cast<int>(call), count, root,
                      static_cast<int>(type), static_cast<int>(collective->call), collective->count, collective->root,
                      static_cast<int>(collective->type)));
    collective->data[static_cast<std::size_t>(rank_)] = data;
    if (++collective->arrived == size()) {
      if (!collective->broken) {
        perform(*collective);
        collective->done = true;
      }
      group_->under_way.erase(number);
      world_->changed.notify_all();
    }
    return std::make_unique<ThreadRequest>(
        world_, world_rank(), fmt::format("collective {} (kind {}, {} values)", number, static_cast<int>(call), count),
        [collective] { return collective->done; },
        [collective] {
          if (!collective->done) collective->broken = true;
        });
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
    const auto fold_doubles = [&](auto operation) {
      const auto at = [&](int rank) -> double& {
        return *static_cast<double*>(collective.data[static_cast<std::size_t>(rank)]);
      };
      for (int rank = 1; rank < ranks; ++rank) at(0) = operation(at(0), at(rank));
      copy_to_all(0, 0, sizeof(double));
    };
    switch (collective.call) {
      case Call::sum:
      case Call::max:
      case Call::reduce_scatter:
        for (int rank = 1; rank < ranks; ++rank)
          for (std::size_t i = 0; i < count; ++i) {
            if (collective.type == DataType::bfloat16) {
              std::uint16_t& sum = values(0).bfloats()[i];
              sum = to_bfloat16(from_bfloat16(sum) + from_bfloat16(values(rank).bfloats()[i]));
              continue;
            }
            float& to = values(0).floats()[i];
            const float from = values(rank).floats()[i];
            to = collective.call == Call::max ? std::max(to, from) : to + from;
          }
        if (collective.call != Call::reduce_scatter) {
          copy_to_all(0, 0, bytes_of(collective.type, collective.count));
          break;
        }
        for (int rank = ranks; rank-- > 0;) {  // rank 0's array, which has the sums, is spoilt last
          const Range slice = cut(collective.count, {rank, ranks});
          const auto bytes = [&](std::int64_t elements) { return bytes_of(collective.type, elements); };
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
          copy_to_all(root, bytes_of(collective.type, slice.first), bytes_of(collective.type, slice.size()));
        }
        break;
      case Call::broadcast:
        copy_to_all(collective.root, 0, count);
        break;
      case Call::barrier:
        break;
      case Call::add_double:
        fold_doubles([](double a, double b) { return a + b; });
        break;
      case Call::max_double:
        fold_doubles([](double a, double b) { return std::max(a, b); });
        break;
      case Call::min_double:
        fold_doubles([](double a, double b) { return std::min(a, b); });
        break;
    }
  }

  double agree(Call call, double value) {
    start(call, &value, 1)->wait();
    return value;
  }

  std::shared_ptr<ThreadWorld> world_;
  std::shared_ptr<ThreadWorld::Group> group_;
  int rank_;
  std::int64_t calls_ = 0;                // collectives on this communicator so far
  std::map<std::vector<int>, int> made_;  // subgroups so far
};

/// Of the only rank of a job.
inline std::unique_ptr<Communicator> lone_communicator() {
  const auto group = std::make_shared<ThreadWorld::Group>();
  group->ranks = {0};
  return std::make_unique<ThreadCommunicator>(std::make_shared<ThreadWorld>(1), group, 0);
}

/// Runs `body` as so many ranks, each with its communicator of all. When one throws, the others are interrupted, and
/// the first exception that is not an interruption is thrown to the caller. Returns the world that was used.
inline std::shared_ptr<ThreadWorld> run_ranks(int ranks, const std::function<void(Communicator&)>& body) {
  const auto world = std::make_shared<ThreadWorld>(ranks);
  const auto group = std::make_shared<ThreadWorld::Group>();
  for (int rank = 0; rank < ranks; ++rank) group->ranks.push_back(rank);
  std::exception_ptr failure;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        ThreadCommunicator communicator(world, group, rank);
        body(communicator);
      } catch (const Interrupted&) {
        const std::scoped_lock lock(world->mutex);
        if (failure == nullptr) failure = std::current_exception();
        for (std::atomic<bool>& interrupted : world->interrupted) interrupted = true;
      } catch (...) {
        const std::scoped_lock lock(world->mutex);
        const bool only_interrupted = [&] {
          try {
            if (failure != nullptr) std::rethrow_exception(failure);
          } catch (const Interrupted&) {
            return true;
          } catch (...) {
            return false;
          }
          return true;
        }();
        if (only_interrupted) failure = std::current_exception();
        for (std::atomic<bool>& interrupted : world->interrupted) interrupted = true;
      }
    });
  for (std::thread& thread : threads) thread.join();
  if (failure != nullptr) std::rethrow_exception(failure);
  return world;
}

}  // namespace sailor::runtime::test
