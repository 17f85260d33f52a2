// What the prices of links are based on. Kept as numbers, not words, since a search prices millions of plans.
#pragma once

#include <cstdint>
#include <vector>

#include "profile/profile.hpp"

namespace sailor::simulator {

/// A link that was not measured: two indices into PriceList::places, and whether both are one node.
struct EstimatedLink {
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  bool one_node = false;
  bool operator==(const EstimatedLink&) const = default;
};

struct LinkNotes {
  Origin origin = Origin::measured;  ///< the worst of all links
  double error = 0.0;                ///< LinkTime::error, the maximum
  std::vector<EstimatedLink> estimated;

  /// Adds `link` to `estimated` if `time` was not measured.
  void add(const LinkTime& time, const EstimatedLink& link);
  void add(const LinkNotes& other);
  void clear();
};

}  // namespace sailor::simulator
