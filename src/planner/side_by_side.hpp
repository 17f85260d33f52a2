// Searches that do not depend on each other, several at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "planner/planner.hpp"

namespace sailor::planner {

/// The search of one of several requests: it may be called by several threads at once.
using SearchOne = std::function<Result<SearchResult>(const Request&)>;

/// Runs up to Effort::threads (of the first request) searches at a time and divides the threads among them. Returns the
/// results in the order of the requests; they do not depend on the number of threads. Effort::time of each request is
/// meant for searches one after the other: it is lengthened by as much as searching side by side saves, so that the
/// total time stays the same.
std::vector<Result<SearchResult>> search_side_by_side(std::vector<Request> requests, const SearchOne& search);

/// One progress of several searches, which may report from several threads.
class JoinedProgress {
 public:
  /// `shown`, which may be empty, must outlive this, and this the searches.
  JoinedProgress(Objective objective, const std::function<void(const SearchProgress&)>& shown)
      : objective_(objective), shown_(shown) {}

  /// Callback for one more search; it reports the plans considered by all searches and the best value of any. The gap
  /// is reported only while there is one search: its bound does not hold for the plans of other searches.
  std::function<void(const SearchProgress&)> of_search();

 private:
  void report(std::size_t search, const SearchProgress& progress);

  Objective objective_;
  const std::function<void(const SearchProgress&)>& shown_;
  std::mutex mutex_;
  std::vector<std::uint64_t> considered_;  // by search
  std::optional<double> best_;
};

}  // namespace sailor::planner
