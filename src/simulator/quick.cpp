#include "simulator/quick.hpp"

#include <algorithm>

#include "simulator/closed_form.hpp"

namespace sailor::simulator {

Result<QuickPrediction> QuickSimulator::predict(const Plan& plan) {
  has_entries_ = false;
  SAILOR_CHECK(model_.price(plan, costs_));
  QuickPrediction prediction;
  const IterationTimes times = closed_iteration(costs_, scratch_);
  prediction.iteration_time = times.end;
  prediction.pipeline_time = times.pipelines;
  for (const DeviceCost& device : costs_.devices)
    prediction.cost_per_iteration += device.price * static_cast<double>(device.devices) * prediction.iteration_time;
  for (const EgressCost& egress : costs_.egress) prediction.cost_per_iteration += egress.cost;
  for (const StageCosts& stage : costs_.stages) {
    const Bytes total = stage.memory.total();
    prediction.peak_memory = std::max(prediction.peak_memory, total);
    if (stage.capacity)
      prediction.memory_headroom = std::min(prediction.memory_headroom, 1.0 - total / *stage.capacity);
  }
  return prediction;
}

const std::vector<EntryTimes>& QuickSimulator::entries() const {
  if (has_entries_) return entries_;
  // Backwards through what follows the passes (iteration.hpp): how long before the end of all a stage has to be there.
  tails_.assign(costs_.stages.size(), Seconds{});
  const auto reduce = [&](double share) {
    for (auto reduction = costs_.reductions.rbegin(); reduction != costs_.reductions.rend(); ++reduction) {
      Seconds latest{};
      for (const std::size_t holder : costs_.holders_of(*reduction)) latest = std::max(latest, tails_[holder]);
      for (const std::size_t holder : costs_.holders_of(*reduction)) tails_[holder] = latest + reduction->time * share;
    }
  };
  if (costs_.shards_optimizer) reduce(0.5);
  for (std::size_t i = 0; i < tails_.size(); ++i) tails_[i] += costs_.stages[i].update;
  if (costs_.shards_optimizer && !tails_.empty())
    tails_.assign(tails_.size(), *std::max_element(tails_.begin(), tails_.end()));
  reduce(costs_.shards_optimizer ? 0.5 : 1.0);

  entries_.clear();
  for (std::size_t entry = 0; entry < costs_.pipelines.size(); ++entry) {
    const PipelineTimes times = costs_.times_of(entry);
    const LinearTime line = linear_form(times);
    EntryTimes row{.fixed = line.first - line.per_micro_batch, .per_micro_batch = line.per_micro_batch, .tail = {}};
    Seconds earlier{};  // than the pipeline a stage behind the first is done
    for (std::size_t i = 0; i < static_cast<std::size_t>(times.stages); ++i) {
      row.tail = std::max(row.tail, tails_[costs_.pipelines[entry].first_stage + i] - earlier);
      earlier += times.passes[i].backward;
      if (i < times.boundaries.size()) earlier += times.boundaries[i].backward;
    }
    entries_.push_back(row);
  }
  has_entries_ = true;
  return entries_;
}

}  // namespace sailor::simulator
