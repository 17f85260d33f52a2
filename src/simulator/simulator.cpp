#include "simulator/simulator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "profile/utilization.hpp"
#include "simulator/costs.hpp"
#include "simulator/iteration.hpp"

namespace sailor::simulator {

namespace {

constexpr double most_passes = 2e7;  // some seconds, and 300 MB

/// Uncertainty of the iteration time. The error of the measurements of one kind of layer on one GPU type moves all
/// times based on them together; other kinds, GPU types and directions are independent. Each is changed alone, by the
/// closed form, and the squares of the differences are added. Estimates use the same formula, and their errors all move
/// together.
class Uncertainty {
 public:
  explicit Uncertainty(const PlanCosts& costs)
      : costs_(costs), changed_(costs), base_(closed_iteration(costs, scratch_).end) {}

  /// Standard deviation as a share of the iteration time.
  double share() {
    std::set<std::pair<std::string, LayerKind>> measurements;
    for (const StageCosts& stage : costs_.stages)
      for (const LayerTable::Kind& kind : stage.table->kinds) measurements.emplace(stage.table->gpu, kind.kind);
    for (const auto& [gpu, kind] : measurements) {
      change_passes(gpu, kind, &PassTimes::forward, &LayerTable::Kind::forward_error);
      add_passes();
      change_passes(gpu, kind, &PassTimes::backward, &LayerTable::Kind::backward_error);
      add_passes();
    }
    for (const auto& [gpu, kind] : measurements) {
      change_passes(gpu, kind, &PassTimes::forward, &LayerTable::Kind::estimate_error);
      change_passes(gpu, kind, &PassTimes::backward, &LayerTable::Kind::estimate_error);
    }
    add_passes();
    if (costs_.links.error > 0.0) add_links();
    return base_.value() > 0.0 ? std::sqrt(squares_) / base_.value() : 0.0;
  }

 private:
  void change_passes(const std::string& gpu, LayerKind kind, Seconds PassTimes::*pass,
                     double LayerTable::Kind::*error) {
    for (const PipelineCosts& pipeline : costs_.pipelines) {
      const auto stages = static_cast<std::size_t>(pipeline.stages);
      for (std::size_t v = 0; v < stages * static_cast<std::size_t>(pipeline.chunks); ++v) {
        const LayerTable& table = *costs_.stages[pipeline.first_stage + v % stages].table;
        if (table.gpu != gpu) continue;
        const LayerRange& layers = costs_.layers[pipeline.first_pass + v];
        for (const LayerTable::Kind& row : table.kinds) {
          const LayerRange common{std::max(layers.first, row.first), std::min(layers.last, row.last)};
          if (row.kind == kind && common.size() > 0)
            changed_.passes[pipeline.first_pass + v].*pass += table.passes(common).*pass * (row.*error);
        }
      }
    }
  }

  void add_passes() {
    add_difference();
    changed_.passes = costs_.passes;
  }

  void add_links() {
    const double factor = 1.0 + costs_.links.error;
    for (BoundaryTimes& boundary : changed_.boundaries) {
      boundary.forward *= factor;
      boundary.backward *= factor;
    }
    for (Reduction& reduction : changed_.reductions) {
      reduction.time *= factor;
      reduction.gather *= factor;
    }
    add_difference();
    changed_.boundaries = costs_.boundaries;
    changed_.reductions = costs_.reductions;
  }

  void add_difference() {
    const double difference = (closed_iteration(changed_, scratch_).end - base_).value();
    squares_ += difference * difference;
  }

  const PlanCosts& costs_;
  IterationScratch scratch_;
  PlanCosts changed_;
  Seconds base_;
  double squares_ = 0.0;
};

/// Divides the iteration of the slowest pipeline into parts, the largest of which bounds it.
void find_bound(const PlanCosts& costs, const IterationTimes& times, Prediction& prediction) {
  const PipelineTimes pipeline = costs.times_of(times.slowest_pipeline);
  const PipelineCosts& row = costs.pipelines[times.slowest_pipeline];
  const auto stages = static_cast<std::size_t>(pipeline.stages);
  Seconds computing{};
  Seconds slowest{};
  std::size_t slowest_stage = 0;
  for (std::size_t i = 0; i < stages; ++i) {
    const StageCosts& stage = costs.stages[row.first_stage + i];
    const Seconds time = (stage.forward + stage.backward) * pipeline.micro_batches;
    computing += time;
    if (time > slowest) {
      slowest = time;
      slowest_stage = i;
    }
  }
  Seconds transfers{};
  for (std::size_t b = 0; b < pipeline.boundaries.size(); ++b) {
    const Seconds both = pipeline.boundaries[b].forward + pipeline.boundaries[b].backward;
    const bool beside = b % stages == slowest_stage || (b + 1) % stages == slowest_stage;
    if (pipeline.overlaps_transfers)
      transfers = std::max({transfers, pipeline.boundaries[b].forward * pipeline.micro_batches,
                            pipeline.boundaries[b].backward * pipeline.micro_batches});
    else if (beside)
      transfers += both * pipeline.micro_batches;
  }
  prediction.slowest_entry = static_cast<int>(times.slowest_pipeline);
  prediction.transfer_time =
      std::min(pipeline.overlaps_transfers ? std::max(Seconds{}, transfers - slowest) : transfers,
               std::max(Seconds{}, times.pipelines - slowest));
  const Seconds reduction = (times.reduced - times.pipelines) + (times.end - times.updated);
  const Seconds bubble = times.pipelines - slowest - (pipeline.overlaps_transfers ? Seconds{} : transfers);
  if (times.pipelines > Seconds(0))
    prediction.bubble_fraction =
        std::max(0.0, 1.0 - computing / (times.pipelines * static_cast<double>(stages)));  // rounding
  const std::array<std::pair<Seconds, Bound>, 4> parts{{{slowest, Bound::compute},
                                                        {transfers, Bound::transfers},
                                                        {reduction, Bound::reduction},
                                                        {bubble, Bound::bubble}}};
  prediction.bound = std::max_element(parts.begin(), parts.end(), [](const auto& a, const auto& b) {
                       return a.first < b.first;
                     })->second;
}

void add_stages(const PlanCosts& costs, Prediction& prediction) {
  for (std::size_t i = 0; i < costs.stages.size(); ++i) {
    const StageCosts& stage = costs.stages[i];
    const PipelineCosts& pipeline = costs.pipelines[static_cast<std::size_t>(stage.entry)];
    StagePrediction row;
    row.pipeline_entry = stage.entry;
    row.stage = stage.stage;
    row.forward = stage.forward;
    row.backward = stage.backward;
    const PipelineTimes times = costs.times_of(static_cast<std::size_t>(stage.entry));
    for (std::size_t b = static_cast<std::size_t>(stage.stage); b < times.boundaries.size();
         b += static_cast<std::size_t>(times.stages))
      row.link += times.boundaries[b].forward + times.boundaries[b].backward;
    for (const Reduction& reduction : costs.reductions)
      if (costs.takes_part(i, reduction)) row.synchronization += reduction.time;
    row.update = stage.update;
    row.busy = ((stage.forward + stage.backward) * pipeline.micro_batches + stage.update) / prediction.iteration_time;
    row.memory = stage.memory;
    row.capacity = stage.capacity;
    prediction.peak_memory = std::max(prediction.peak_memory, row.memory.total());
    prediction.fits = prediction.fits && row.fits();
    prediction.stages.push_back(row);
  }
}

void add_money(const PlanCosts& costs, Prediction& prediction) {
  prediction.device_costs = costs.devices;
  for (DeviceCost& device : prediction.device_costs) {
    device.cost = device.price * static_cast<double>(device.devices) * prediction.iteration_time;
    prediction.gpu_cost_per_iteration += device.cost;
  }
  prediction.egress_costs = costs.egress;
  for (const EgressCost& egress : costs.egress) prediction.egress_cost_per_iteration += egress.cost;
  prediction.cost_per_iteration = prediction.gpu_cost_per_iteration + prediction.egress_cost_per_iteration;
}

void add_origin(const PlanCosts& costs, const std::vector<EstimatedInput>& links, Prediction& prediction) {
  std::set<EstimatedInput> inputs(links.begin(), links.end());
  inputs.insert(costs.processes.begin(), costs.processes.end());
  inputs.insert(costs.assumptions.begin(), costs.assumptions.end());
  prediction.origin = costs.links.origin;
  for (const StageCosts& stage : costs.stages) {
    prediction.origin = std::max(prediction.origin, stage.table->origin);
    inputs.insert(stage.table->estimated_inputs.begin(), stage.table->estimated_inputs.end());
  }
  prediction.estimated_inputs.assign(inputs.begin(), inputs.end());
}

}  // namespace

std::string_view to_string(Bound bound) {
  switch (bound) {
    case Bound::compute:
      return "compute";
    case Bound::transfers:
      return "transfers";
    case Bound::reduction:
      return "reduction";
    case Bound::bubble:
      return "bubble";
  }
  return "?";
}

Result<Prediction> simulate(const Plan& plan, const Environment& environment, Timeline* timeline) {
  CostModel model(environment);
  PlanCosts costs;
  SAILOR_CHECK(model.price(plan, costs));
  double passes = 0.0;
  for (const PipelineCosts& pipeline : costs.pipelines)
    passes += 2.0 * pipeline.stages * pipeline.chunks * pipeline.micro_batches;
  if (passes > most_passes)
    return fail(
        ErrorCode::invalid_input,
        fmt::format("the plan has {:.0f} passes of micro-batches, but no more than {:.0f} are followed one by one",
                    passes, most_passes),
        "use larger or fewer micro-batches");
  IterationScratch scratch;
  const IterationTimes times = event_driven_iteration(costs, timeline);

  if (!std::isfinite(times.end.value()) || times.end <= Seconds(0))
    return fail(ErrorCode::invalid_input, fmt::format("the iteration would take {} s", times.end.value()),
                "look for a time or bandwidth in profile, cluster or framework that cannot be");

  Prediction prediction;
  prediction.iteration_time = times.end;
  prediction.closed_form_time = closed_iteration(costs, scratch).end;
  prediction.pipeline_time = times.pipelines;
  prediction.synchronization_time = (times.reduced - times.pipelines) + (times.end - times.updated);
  prediction.update_time = times.updated - times.reduced;
  prediction.straggler_entry = costs.stages[times.last_stage].entry;
  prediction.straggler_stage = costs.stages[times.last_stage].stage;
  const double error = std::hypot(Uncertainty(costs).share(), environment.framework.time_error) * percentile_95;
  prediction.iteration_time_p5 = times.end / (1.0 + error);  // as a factor: never below zero
  prediction.iteration_time_p95 = times.end * (1.0 + error);
  prediction.utilization = model_flop_utilization(plan, environment.model, environment.gpus, times.end);
  prediction.crosses_switches = costs.crosses_switches;
  find_bound(costs, times, prediction);
  add_stages(costs, prediction);
  add_money(costs, prediction);
  if (environment.cluster != nullptr) prediction.nodes = costs.nodes;
  add_origin(costs, model.link_inputs(costs), prediction);
  return prediction;
}

PlanPrediction summary(const Prediction& prediction) {
  return {.iteration_time = prediction.iteration_time,
          .pipeline_time = prediction.pipeline_time,
          .synchronization_time = prediction.synchronization_time,
          .update_time = prediction.update_time,
          .peak_memory = prediction.peak_memory,
          .cost_per_iteration = prediction.cost_per_iteration,
          .origin = std::string(to_string(prediction.origin))};
}

}  // namespace sailor::simulator
