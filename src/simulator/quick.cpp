#include "simulator/quick.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "simulator/closed_form.hpp"

namespace sailor::simulator {

namespace {

constexpr std::size_t most_remembered = 200'000;  // stages, of about 150 bytes each

}  // namespace

Result<QuickPrediction> QuickSimulator::predict(const Plan& plan) {
  has_entries_ = false;
  SAILOR_CHECK(model_.price(plan, costs_));
  QuickPrediction prediction;
  const IterationTimes times = closed_iteration(costs_, scratch_);
  prediction.iteration_time = times.end;
  prediction.pipeline_time = times.pipelines;
  prediction.crosses_switches = costs_.crosses_switches;
  prediction.cost_per_iteration = cost_of(prediction.iteration_time);
  for (const StageCosts& stage : costs_.stages) {
    const Bytes total = stage.memory.total();
    prediction.peak_memory = std::max(prediction.peak_memory, total);
    if (stage.capacity)
      prediction.memory_headroom = std::min(prediction.memory_headroom, 1.0 - total / *stage.capacity);
  }
  return prediction;
}

Usd QuickSimulator::cost_of(Seconds time) const {
  Usd cost{};
  for (const DeviceCost& device : costs_.devices) cost += device.price * static_cast<double>(device.devices) * time;
  for (const EgressCost& egress : costs_.egress) cost += egress.cost;
  return cost;
}

Seconds QuickSimulator::least_time() { return least_iteration(costs_, scratch_).end; }

Seconds QuickSimulator::event_driven_time() {
  return event_driven_iteration(costs_, [this](const PipelineTimes& pipeline) { return ends_of(pipeline); }).end;
}

std::size_t QuickSimulator::PipelineKeyHash::operator()(const PipelineKey& key) const {
  std::size_t hash = key.values.size();
  for (const double value : key.values) {
    hash = (hash ^ std::bit_cast<std::uint64_t>(value)) * 0xff51afd7ed558ccdULL;
    hash ^= hash >> 32;
  }
  return hash;
}

std::span<const StageEnd> QuickSimulator::ends_of(const PipelineTimes& pipeline) {
  std::vector<double>& values = key_.values;
  values.assign({static_cast<double>(pipeline.schedule), pipeline.overlaps_transfers ? 1.0 : 0.0,
                 static_cast<double>(pipeline.stages), static_cast<double>(pipeline.chunks),
                 static_cast<double>(pipeline.micro_batches)});
  for (const PassTimes& pass : pipeline.passes)
    values.insert(values.end(), {pass.forward.value(), pass.backward.value()});
  for (const BoundaryTimes& boundary : pipeline.boundaries)
    values.insert(values.end(), {boundary.forward.value(), boundary.backward.value()});
  const auto known = ends_.find(key_);
  if (known != ends_.end()) return known->second;
  if (remembered_ > most_remembered) {
    ends_.clear();
    remembered_ = 0;
  }
  remembered_ += static_cast<std::size_t>(pipeline.stages * pipeline.chunks);
  return ends_.emplace(key_, run_pipeline(pipeline)).first->second;
}

const std::vector<EntryTimes>& QuickSimulator::entries() const {
  if (has_entries_) return entries_;
  // Backwards through what follows the passes (iteration.hpp): how long before the end of the iteration a stage's
  // passes have to be done.
  tails_.assign(costs_.stages.size(), Seconds{});
  const auto reduce = [&](bool gathers) {
    for (auto reduction = costs_.reductions.rbegin(); reduction != costs_.reductions.rend(); ++reduction) {
      Seconds latest{};
      for (const std::size_t holder : costs_.holders_of(*reduction)) latest = std::max(latest, tails_[holder]);
      for (const std::size_t holder : costs_.holders_of(*reduction))
        tails_[holder] = latest + (gathers ? reduction->gather : reduction->time - reduction->gather);
    }
  };
  if (costs_.shards_optimizer) reduce(true);
  for (std::size_t i = 0; i < tails_.size(); ++i) tails_[i] += costs_.stages[i].update;
  if (costs_.shards_optimizer && !tails_.empty())
    tails_.assign(tails_.size(), *std::max_element(tails_.begin(), tails_.end()));
  reduce(false);

  entries_.clear();
  for (std::size_t entry = 0; entry < costs_.pipelines.size(); ++entry) {
    const PipelineTimes times = costs_.times_of(entry);
    const LinearTime line = linear_form(times);
    EntryTimes row{.fixed = line.first - line.per_micro_batch, .per_micro_batch = line.per_micro_batch, .tail = {}};
    Seconds earlier{};  // time by which the stage ends before the pipeline
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
