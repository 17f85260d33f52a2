// The memory of the ranks of every stage as stacked bars against what their devices have.
#pragma once

#include <cstddef>
#include <string>

#include "plan/plan.hpp"
#include "profile/run_file.hpp"
#include "simulator/simulator.hpp"

namespace sailor::reports {

/// At most this many bars are drawn; of more, those of the fullest devices.
inline constexpr std::size_t most_memory_bars = 40;

/// HTML: a bar for each stage, for consecutive stages with the same memory one bar. `run` (may be null) adds a mark at
/// the largest measured memory of the stage's ranks.
std::string memory_bars(const Plan& plan, const simulator::Prediction& prediction, const RunRecord* run);

}  // namespace sailor::reports
