// The closed form of a whole plan, for planners: what simulate() says, hundreds of thousands of times per second and
// without its details. Winners are to be ranked again by simulate().
#pragma once

#include "core/error.hpp"
#include "core/units.hpp"
#include "plan/plan.hpp"
#include "simulator/costs.hpp"
#include "simulator/iteration.hpp"

namespace sailor::simulator {

struct QuickPrediction {
  Seconds iteration_time{};
  Usd cost_per_iteration{};
  Bytes peak_memory{};           ///< largest over ranks
  double memory_headroom = 1.0;  ///< smallest share of a device's memory that stays free, negative when it does not fit;
                                 ///< 1 when no device's memory is known
};

/// Remembers what it looked up, so one for many plans, and one thread at a time. The environment must outlive it.
class QuickSimulator {
 public:
  explicit QuickSimulator(const Environment& environment) : model_(environment) {}

  /// Errors as simulate().
  Result<QuickPrediction> predict(const Plan& plan);

 private:
  CostModel model_;
  PlanCosts costs_;
  IterationScratch scratch_;
};

}  // namespace sailor::simulator
