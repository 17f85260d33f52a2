// The threads of a rank: an operation cuts its work into pieces and runs each on a thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

#include "runtime/sharding.hpp"

namespace sailor::runtime::cpu {

class Threads {
 public:
  /// Min floats of work that make a thread worth its start, which takes some microseconds.
  static constexpr std::int64_t worthwhile = std::int64_t{1} << 14;

  /// The count is 1 in builds without OpenMP.
  explicit Threads(int count);
  [[nodiscard]] int count() const { return count_; }
  /// Number of pieces that work on `items` items of `floats_per_item` floats each is cut into.
  [[nodiscard]] int pieces(std::int64_t items, std::int64_t floats_per_item = 1) const {
    if (count_ == 1) return 1;
    const std::int64_t worth = items * floats_per_item / worthwhile;
    return static_cast<int>(std::clamp<std::int64_t>(std::min(worth, items), 1, count_));
  }

  /// Calls work(part of [0, items), index of the piece) for all `pieces` pieces, concurrently. `work` must not throw.
  static void run(int pieces, std::int64_t items, const std::function<void(const Range& part, int piece)>& work);

 private:
  int count_;
};

}  // namespace sailor::runtime::cpu
