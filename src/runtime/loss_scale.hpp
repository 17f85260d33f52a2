// The factor by which the loss is multiplied in float16 so that small gradients do not vanish (Micikevicius et al.
// 2018, section 3.2): halved when gradients overflow, doubled after many iterations in which they did not.
#pragma once

#include <cstdint>

namespace sailor::runtime {

struct LossScaleSettings {
  double initial = 65536.0;
  double least = 1.0;
  std::int64_t window = 1000;  ///< iterations without overflow after which the scale is doubled
};

/// Current loss scale: the same on all ranks, and part of the training state.
struct LossScale {
  double factor = 1.0;
  std::int64_t good = 0;     ///< iterations without overflow since the factor changed
  std::int64_t skipped = 0;  ///< iterations without an optimizer step, in total

  /// To be called after an iteration. False if the gradients overflowed at the minimum factor, so that no smaller one
  /// helps.
  bool update(const LossScaleSettings& settings, bool overflowed) {
    constexpr double largest = 16777216.0;  // 2^24: a larger factor gains nothing
    if (!overflowed) {
      if (++good < settings.window) return true;
      good = 0;
      if (factor <= largest / 2.0) factor *= 2.0;
      return true;
    }
    good = 0;
    ++skipped;
    const bool can_shrink = factor > settings.least;
    factor = factor / 2.0 > settings.least ? factor / 2.0 : settings.least;
    return can_shrink;
  }
};

}  // namespace sailor::runtime
