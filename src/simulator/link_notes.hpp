// What the prices of links stand on. Kept as numbers: a search prices millions of plans and words of none.
#pragma once

#include <cstdint>
#include <vector>

#include "profile/profile.hpp"

namespace sailor::simulator {

/// A link that was not measured: two places, indices of the CostModel, and whether inside of a node.
struct EstimatedLink {
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  bool one_node = false;
  bool operator==(const EstimatedLink&) const = default;
};

struct LinkNotes {
  Origin origin = Origin::measured;  ///< the worst
  double error = 0.0;                ///< LinkTime::error, the largest
  std::vector<EstimatedLink> estimated;

  /// `link` is noted if `time` was not measured.
  void add(const LinkTime& time, const EstimatedLink& link);
  void add(const LinkNotes& other);
  void clear();
};

}  // namespace sailor::simulator
