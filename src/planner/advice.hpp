// What pays: plans beside the best that take much less for little.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "planner/planner.hpp"

namespace sailor::planner {

struct Advice {
  std::string text;  ///< a line
  Candidate plan;    ///< that it is about
};

/// - That a plan at most 5% slower than the best takes at most 60% of its devices, where throughput was asked for.
/// - Of each GPU type of the best plan that it adds less throughput than USD per hour, in per cent, against a plan
///   without it.
/// By brief searches (Effort::brief), so not all that is true is said. `time`: for all of them together.
std::vector<Advice> what_pays(const Candidate& best, const Request& request, const simulator::Environment& environment,
                              std::optional<Seconds> time);

}  // namespace sailor::planner
