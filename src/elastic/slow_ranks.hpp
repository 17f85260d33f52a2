// Which ranks of an elastic training compute longer than others that hold the same layers on devices of the same type.
#pragma once

#include <map>
#include <set>
#include <vector>

#include "core/units.hpp"
#include "plan/plan.hpp"

namespace sailor::elastic {

struct SlowRank {
  int rank = 0;
  double times_its_peers = 1.0;  ///< its time per sequence over the median of its peers'
};

/// Each rank is named once, after several looks in a row, about a second apart, at which it was slow.
class SlowRanks {
 public:
  /// `busy`: how long each rank computed in its last iteration, by rank; ranks without a time have no peers and are
  /// none. Returns those that are named now.
  std::vector<SlowRank> look(const Plan& plan, const std::map<int, Seconds>& busy);
  /// Forgets everything: ranks are others now.
  void begin_epoch();

 private:
  std::map<int, int> looks_;  // in a row at which it was slow, by rank
  std::set<int> named_;
};

}  // namespace sailor::elastic
