// Indices of containers from stages, layers and counts, which are int.
#pragma once

#include <cstddef>

namespace sailor::planner {

/// `index` must not be negative.
inline std::size_t at(int index) { return static_cast<std::size_t>(index); }

}  // namespace sailor::planner
