#include "core/worker_threads.hpp"

#include <algorithm>
#include <system_error>

#include "core/affinity.hpp"

namespace sailor {

WorkerThreads::WorkerThreads(int threads)
    : size_(threads > 0 ? static_cast<std::size_t>(threads) : std::max<std::size_t>(1, allowed_cores().size())) {}

WorkerThreads::~WorkerThreads() {
  {
    const std::scoped_lock lock(mutex_);
    ends_ = true;
  }
  wake_.notify_all();
}

/// Starts threads until there is one for each piece that is not done, the caller's included, up to size(). Where the
/// system gives no more, those that there are do the work.
void WorkerThreads::start() {
  std::size_t pieces = running_;
  for (const Loop* loop : loops_) pieces += loop->count - loop->next;
  try {
    while (threads_.size() + 1 < std::min(size_, pieces)) {
      const std::size_t thread = threads_.size() + 1;
      threads_.emplace_back([this, thread] { serve(thread); });
    }
  } catch (const std::system_error&) {
  }
}

std::size_t WorkerThreads::this_thread() const {
  const auto found = std::find_if(threads_.begin(), threads_.end(), [](const std::jthread& thread) {
    return thread.get_id() == std::this_thread::get_id();
  });
  return found == threads_.end() ? 0 : static_cast<std::size_t>(found - threads_.begin()) + 1;
}

void WorkerThreads::for_each(std::size_t count, const Work& work) {
  if (size_ == 1) {
    for (std::size_t i = 0; i < count; ++i) work(i, 0);
    return;
  }
  if (count == 0) return;
  Loop loop{.work = &work, .count = count};
  loop.failures.resize(count);
  std::unique_lock lock(mutex_);
  threads_.reserve(size_);
  loops_.push_back(&loop);
  if (count > 1) start();
  wake_.notify_all();
  take_all(loop, this_thread(), lock);
  done_.wait(lock, [&] { return loop.running == 0; });
  for (const std::exception_ptr& failure : loop.failures)
    if (failure) std::rethrow_exception(failure);
}

void WorkerThreads::serve(std::size_t thread) {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return ends_ || !loops_.empty(); });
    if (ends_) return;
    take_all(*loops_.front(), thread, lock);
  }
}

void WorkerThreads::take_all(Loop& loop, std::size_t thread, std::unique_lock<std::mutex>& lock) {
  while (loop.next < loop.count) {
    const std::size_t index = loop.next++;
    if (loop.next == loop.count) std::erase(loops_, &loop);
    ++loop.running;
    ++running_;
    lock.unlock();
    std::exception_ptr failure;
    try {
      (*loop.work)(index, thread);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    --running_;
    loop.failures[index] = failure;
    if (--loop.running == 0 && loop.next == loop.count) {
      done_.notify_all();
      return;
    }
  }
}

}  // namespace sailor
