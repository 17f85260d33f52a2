#include "core/worker_threads.hpp"

#include <algorithm>

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

void WorkerThreads::start(std::size_t count) {
  for (std::size_t thread = threads_.size() + 1; thread < std::min(size_, count); ++thread)
    threads_.emplace_back([this, thread] { serve(thread); });
}

void WorkerThreads::for_each(std::size_t count, const Work& work) {
  if (size_ == 1 || count < 2) {
    for (std::size_t i = 0; i < count; ++i) work(i, 0);
    return;
  }
  start(count);
  std::unique_lock lock(mutex_);
  work_ = &work;
  count_ = count;
  next_ = 0;
  failures_.assign(count, nullptr);
  wake_.notify_all();
  take_all(0, lock);
  done_.wait(lock, [&] { return running_ == 0; });
  work_ = nullptr;
  for (const std::exception_ptr& failure : failures_)
    if (failure) std::rethrow_exception(failure);
}

void WorkerThreads::serve(std::size_t thread) {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return ends_ || (work_ != nullptr && next_ < count_); });
    if (ends_) return;
    take_all(thread, lock);
  }
}

void WorkerThreads::take_all(std::size_t thread, std::unique_lock<std::mutex>& lock) {
  while (next_ < count_) {
    const std::size_t index = next_++;
    ++running_;
    lock.unlock();
    std::exception_ptr failure;
    try {
      (*work_)(index, thread);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    failures_[index] = failure;
    --running_;
  }
  if (running_ == 0) done_.notify_all();
}

}  // namespace sailor
