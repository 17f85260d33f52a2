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

/// Searches as many of the requests at a time as the first of them may use threads, and divides the threads among
/// them. Returns the results in the order of the requests, which do not depend on the number of threads. The limit on
/// time of each, if any, is that for searching one after the other: here it is as much longer as fits.
std::vector<Result<SearchResult>> search_side_by_side(std::vector<Request> requests, const SearchOne& search);

/// One progress of several searches, which may report from several threads.
class JoinedProgress {
 public:
  /// `shown`, which may be empty, must outlive this, and this the searches.
  JoinedProgress(Objective objective, const std::function<void(const SearchProgress&)>& shown)
      : objective_(objective), shown_(shown) {}

  /// Progress for one more search: reports the plans considered by all of them and the best that any has found. A gap
  /// is reported as long as there is only one search, since a later one may find plans that its bound is not for.
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
