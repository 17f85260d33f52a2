#include "planner/side_by_side.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/worker_threads.hpp"

namespace sailor::planner {

std::vector<Result<SearchResult>> search_side_by_side(std::vector<Request> requests, const SearchOne& search) {
  if (requests.empty()) return {};
  WorkerThreads threads(requests.front().effort.threads);
  const std::size_t at_once = std::min(threads.size(), requests.size());
  const std::size_t rounds = (requests.size() + at_once - 1) / at_once;
  for (Request& request : requests) {
    request.effort.threads = static_cast<int>(threads.size() / at_once);
    if (request.effort.time)
      request.effort.time = *request.effort.time * (static_cast<double>(requests.size()) / static_cast<double>(rounds));
  }
  std::vector<std::optional<Result<SearchResult>>> found(requests.size());
  threads.for_each(requests.size(), [&](std::size_t i, std::size_t) { found[i] = search(requests[i]); });
  std::vector<Result<SearchResult>> results;
  for (auto& one : found) results.push_back(std::move(*one));
  return results;
}

std::function<void(const SearchProgress&)> JoinedProgress::of_search() {
  if (!shown_) return {};
  const std::scoped_lock lock(mutex_);
  const std::size_t search = considered_.size();
  considered_.push_back(0);
  return [this, search](const SearchProgress& progress) { report(search, progress); };
}

void JoinedProgress::report(std::size_t search, const SearchProgress& progress) {
  const std::scoped_lock lock(mutex_);
  considered_[search] = progress.considered;
  if (progress.best) {
    const double best = best_.value_or(*progress.best);
    best_ = objective_ == Objective::cost ? std::min(best, *progress.best) : std::max(best, *progress.best);
  }
  SearchProgress all{.considered = std::reduce(considered_.begin(), considered_.end()), .best = best_, .gap = {}};
  if (considered_.size() == 1) all.gap = progress.gap;
  shown_(all);
}

}  // namespace sailor::planner
