// Pictures of a profile: which curves, in which units, and what is left out.
#pragma once

#include <cstddef>

#include "core/error.hpp"
#include "profile/measurements.hpp"
#include "reports/plot.hpp"

namespace sailor::reports {

/// Max number of curves: more cannot be told apart.
inline constexpr std::size_t most_curves = 8;

/// Bandwidth of a message against its size: medians with bars from p10 to p90, and the fit as a line. Errors:
/// not_found when the data have no links.
Result<Plot> link_plot(const ProfileData& data);
/// Forward and backward time of a block against the micro-batch, a curve per GPU and tensor-parallel degree. Errors:
/// not_found when the data have no times of blocks.
Result<Plot> layer_plot(const ProfileData& data);

}  // namespace sailor::reports
