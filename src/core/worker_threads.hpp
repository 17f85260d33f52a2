// Threads that share independent pieces of work.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace sailor {

class WorkerThreads {
 public:
  /// Number of threads, including the caller's; 0: as many as this process may run on. They start on first use.
  explicit WorkerThreads(int threads);
  ~WorkerThreads();
  WorkerThreads(const WorkerThreads&) = delete;
  WorkerThreads& operator=(const WorkerThreads&) = delete;

  [[nodiscard]] std::size_t size() const { return size_; }
  /// Calls work(index, thread) for every index below `count`, once each, on any thread (below size()) and in any order.
  /// Returns when all are done. Of several exceptions, that of the lowest index is rethrown. One caller from outside at
  /// a time. A piece of work may call it, too: threads that have nothing else to do help with the pieces of that call.
  /// Such a nested piece may run with the same `thread` as the piece that waits for it: the two must not share state of
  /// that thread across the call.
  using Work = std::function<void(std::size_t index, std::size_t thread)>;
  void for_each(std::size_t count, const Work& work);

 private:
  struct Loop {
    const Work* work = nullptr;
    std::size_t count = 0;
    std::size_t next = 0;
    std::size_t running = 0;
    std::vector<std::exception_ptr> failures{};  ///< by index
  };
  void start();
  void serve(std::size_t thread);
  void take_all(Loop& loop, std::size_t thread, std::unique_lock<std::mutex>& lock);
  [[nodiscard]] std::size_t this_thread() const;

  std::size_t size_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  std::vector<Loop*> loops_;  // those with pieces that nobody has begun, the oldest first
  std::size_t running_ = 0;   // pieces, of all loops
  bool ends_ = false;
  std::vector<std::jthread> threads_;
};

}  // namespace sailor
