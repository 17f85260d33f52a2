#include "simulator/quick.hpp"

#include <algorithm>

namespace sailor::simulator {

Result<QuickPrediction> QuickSimulator::predict(const Plan& plan) {
  SAILOR_CHECK(model_.price(plan, costs_));
  QuickPrediction prediction;
  prediction.iteration_time = closed_iteration(costs_, scratch_).end;
  for (const DeviceCost& device : costs_.devices)
    prediction.cost_per_iteration +=
        device.price * static_cast<double>(device.devices) * prediction.iteration_time;
  for (const EgressCost& egress : costs_.egress) prediction.cost_per_iteration += egress.cost;
  for (const StageCosts& stage : costs_.stages) {
    const Bytes total = stage.memory.total();
    prediction.peak_memory = std::max(prediction.peak_memory, total);
    if (stage.capacity)
      prediction.memory_headroom = std::min(prediction.memory_headroom, 1.0 - total / *stage.capacity);
  }
  return prediction;
}

}  // namespace sailor::simulator
