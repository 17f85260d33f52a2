// Advice on what pays: plans that need much less than the best one at a small loss.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "planner/planner.hpp"

namespace sailor::planner {

struct Advice {
  std::string text;  ///< one line
  Candidate plan;    ///< the plan that the text is about
};

/// Two kinds of advice:
/// - A plan at most 5% slower than the best takes at most 60% of its devices, where throughput was asked for.
/// - A GPU type of the best plan adds less throughput than USD per hour, in per cent, compared with a plan without it.
/// The searches are brief (Effort::brief), so advice may be missed. `time`: limit for all of them together.
std::vector<Advice> what_pays(const Candidate& best, const Request& request, const simulator::Environment& environment,
                              std::optional<Seconds> time);

}  // namespace sailor::planner
