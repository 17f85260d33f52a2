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

/// Reports a rank at most once per epoch, when it was slow in several consecutive calls of look(), which are to be made
/// about once a second.
class SlowRanks {
 public:
  /// `busy`: how long each rank computed in its last iteration, by rank; ranks without a time are ignored, also as
  /// peers. Returns the ranks that this call reports.
  std::vector<SlowRank> look(const Plan& plan, const std::map<int, Seconds>& busy);
  /// Forgets everything: ranks are others now.
  void begin_epoch();

 private:
  std::map<int, int> looks_;  // in a row at which it was slow, by rank
  std::set<int> named_;
};

}  // namespace sailor::elastic
