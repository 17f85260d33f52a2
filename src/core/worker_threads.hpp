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
  /// No more threads than the largest `count` are started. Returns when all are done. Of several exceptions, that of
  /// the lowest index is rethrown. One caller at a time.
  using Work = std::function<void(std::size_t index, std::size_t thread)>;
  void for_each(std::size_t count, const Work& work);

 private:
  void start(std::size_t count);
  void serve(std::size_t thread);
  void take_all(std::size_t thread, std::unique_lock<std::mutex>& lock);

  std::size_t size_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  const Work* work_ = nullptr;
  std::size_t count_ = 0;
  std::size_t next_ = 0;
  std::size_t running_ = 0;
  bool ends_ = false;
  std::vector<std::exception_ptr> failures_;  // by index
  std::vector<std::jthread> threads_;
};

}  // namespace sailor
