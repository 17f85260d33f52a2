#include "planner/baselines/list_bound.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace sailor::planner::baselines {

namespace list_bound_detail {

constexpr double seconds_per_hour = 3600.0;

bool fits(const simulator::StagePrediction& stage, Bytes memory, double margin) {
  return !stage.capacity || memory <= *stage.capacity * (1.0 - margin);
}

/// A stage of a pipeline of the list.
struct StagePace {
  double forward = std::numeric_limits<double>::infinity();  ///< seconds of one micro-batch on the quickest replica
  double backward = std::numeric_limits<double>::infinity();
  double rate = 0.0;                                       ///< micro-batches per second of all replicas
  double after = std::numeric_limits<double>::infinity();  ///< seconds between its last backward pass and its end
};

/// A plan that the simulator can predict: every stage of the pipeline has `replicas` replicas. A group over several
/// nodes is replaced by the part of it that is on one node.
Plan with_equal_replicas(const ListPipeline& pipeline, const TrainingJob& job, int micro_batch, int micro_batches,
                         std::size_t replicas) {
  Plan plan;
  plan.job = job;
  plan.job.global_batch = static_cast<int>(replicas) * micro_batch * micro_batches;
  plan.micro_batch = micro_batch;
  for (std::size_t j = 0; j < replicas; ++j) {
    Pipeline chain{.count = 1, .micro_batches = micro_batches, .stages = {}};
    for (const ListStage& stage : pipeline.stages) {
      const Replica& replica = stage.replicas[j % stage.replicas.size()];
      chain.stages.push_back({.layers = stage.layers,
                              .gpu = replica.machines.front().gpu,
                              .tensor_parallel = devices_per_machine(replica),
                              .zone = replica.machines.front().zone});
    }
    plan.pipelines.push_back(std::move(chain));
  }
  return plan;
}

Result<void> check(const PlanList& list, const TrainingJob& job) {
  if (list.micro_batch < 1 || list.micro_batch > job.global_batch)
    return fail(ErrorCode::invalid_input,
                fmt::format("the list's micro-batch is {}, the batch {}", list.micro_batch, job.global_batch));
  if (list.pipelines.empty()) return fail(ErrorCode::invalid_input, "the list has no pipeline");
  for (const ListPipeline& pipeline : list.pipelines) {
    if (pipeline.stages.empty()) return fail(ErrorCode::invalid_input, "a pipeline of the list has no stages");
    for (const ListStage& stage : pipeline.stages) {
      if (stage.layers.size() <= 0 || stage.replicas.empty())
        return fail(ErrorCode::invalid_input, "a stage of the list has no layers or no replicas");
      if (stage.replicas.size() > static_cast<std::size_t>(job.global_batch / list.micro_batch))
        return fail(ErrorCode::invalid_input, fmt::format("a stage of the list has {} replicas for {} micro-batches",
                                                          stage.replicas.size(), job.global_batch / list.micro_batch));
      for (const Replica& replica : stage.replicas)
        for (const Machine& machine : replica.machines)
          if (machine.gpu != replica.machines.front().gpu)
            return fail(ErrorCode::unavailable,
                        fmt::format("a tensor-parallel group of the list is on {} and {}", replica.machines.front().gpu,
                                    machine.gpu),
                        "the simulator has groups of one GPU type; judge it with the artifact's evaluator");
    }
  }
  return {};
}

class Bounder {
 public:
  Bounder(const PlanList& list, const TrainingJob& job, const simulator::Environment& environment, double margin)
      : list_(list), job_(job), environment_(environment), margin_(margin) {}

  Result<SimulatorVerdict> run() {
    SAILOR_CHECK(check(list_, job_));
    verdict_.is_bound = true;
    const double batches = static_cast<double>(job_.global_batch) / list_.micro_batch;
    std::vector<std::vector<StagePace>> pipelines;
    for (const ListPipeline& pipeline : list_.pipelines) {
      const auto same = std::find_if(list_.pipelines.begin(), list_.pipelines.end(),
                                     [&](const ListPipeline& other) { return are_alike(other, pipeline); });
      if (const auto known = static_cast<std::size_t>(same - list_.pipelines.begin()); known < pipelines.size()) {
        pipelines.push_back(pipelines[known]);
        continue;
      }
      auto paces = paces_of(pipeline, batches);
      if (!paces) return fail(paces.error());
      pipelines.push_back(*std::move(paces));
    }
    verdict_.iteration_time = Seconds(shortest_time(pipelines, batches));
    double usd_per_hour = 0.0;
    for (const ListPipeline& pipeline : list_.pipelines)
      for (const ListStage& stage : pipeline.stages)
        for (const Replica& replica : stage.replicas)
          for (const auto& [gpu, devices] : devices_of(replica))
            usd_per_hour += prices_[{gpu, replica.machines.front().zone}] * devices;
    verdict_.cost = Usd(usd_per_hour / seconds_per_hour * verdict_.iteration_time.value());
    return verdict_;
  }

 private:
  static bool are_alike(const ListPipeline& a, const ListPipeline& b) {
    return std::equal(
        a.stages.begin(), a.stages.end(), b.stages.begin(), b.stages.end(),
        [](const ListStage& x, const ListStage& y) { return x.layers == y.layers && x.replicas == y.replicas; });
  }

  Result<std::vector<StagePace>> paces_of(const ListPipeline& pipeline, double batches) {
    std::vector<StagePace> paces(pipeline.stages.size());
    std::set<std::size_t> numbers;
    for (const ListStage& stage : pipeline.stages) numbers.insert(stage.replicas.size());
    for (const std::size_t replicas : numbers) {
      const double each = batches / static_cast<double>(list_.pipelines.size()) / static_cast<double>(replicas);
      const Plan plan =
          with_equal_replicas(pipeline, job_, list_.micro_batch, std::max(1, static_cast<int>(each)), replicas);
      const auto prediction = simulator::simulate(plan, environment_);
      if (!prediction) return fail(prediction.error());
      for (const simulator::DeviceCost& cost : prediction->device_costs)
        prices_[{cost.gpu, cost.zone}] = cost.price.value();
      for (const simulator::StagePrediction& stage : prediction->stages)
        if (pipeline.stages[stage.stage].replicas.size() == replicas)
          add(pipeline.stages[stage.stage].replicas[stage.pipeline_entry], stage, paces[stage.stage]);
    }
    return paces;
  }

  void add(const Replica& replica, const simulator::StagePrediction& stage, StagePace& pace) {
    const double share = static_cast<double>(devices_per_machine(replica)) / replica.tensor_parallel;
    const double forward = stage.forward.value() * share;
    const double backward = stage.backward.value() * share;
    pace.forward = std::min(pace.forward, forward);
    pace.backward = std::min(pace.backward, backward);
    pace.rate += 1.0 / std::max(forward + backward, std::numeric_limits<double>::min());
    const double hidden = environment_.framework.overlaps_reduction ? 0.0 : stage.synchronization.value() * share;
    pace.after = std::min(pace.after, stage.update.value() * share + hidden);
    const Bytes memory = (stage.memory.total() - stage.memory.base) * share + stage.memory.base;
    verdict_.peak_memory = std::max(verdict_.peak_memory, memory);
    verdict_.fits = verdict_.fits && fits(stage, memory, margin_);
  }

  /// The shortest time in which the pipelines together do `batches` micro-batches. Before a stage gets its first one,
  /// the stages before it have done its forward passes; after its last backward pass they do theirs.
  static double shortest_time(const std::vector<std::vector<StagePace>>& pipelines, double batches) {
    struct Line {
      double offset = 0.0;
      double rate = 0.0;
    };
    std::vector<std::vector<Line>> lines;
    double most = 0.0;
    for (const auto& paces : pipelines) {
      std::vector<Line>& of_pipeline = lines.emplace_back();
      double filling = 0.0;
      double draining = 0.0;  // from the last backward pass of the previous stage to the end of all previous stages
      for (const StagePace& pace : paces) {
        draining = std::max(draining, pace.after);
        of_pipeline.push_back({filling + draining, pace.rate});
        most = std::max(most, filling + draining + batches / pace.rate);
        filling += pace.forward;
        draining += pace.backward;
      }
    }
    // The number of micro-batches that fit into a time grows with it.
    double low = 0.0;
    double high = most;
    for (int step = 0; step < 100; ++step) {
      const double middle = 0.5 * (low + high);
      double done = 0.0;
      for (const auto& of_pipeline : lines) {
        double least = std::numeric_limits<double>::infinity();
        for (const Line& line : of_pipeline) least = std::min(least, std::max(0.0, middle - line.offset) * line.rate);
        done += least;
      }
      (done >= batches ? high : low) = middle;
    }
    return high;
  }

  const PlanList& list_;
  const TrainingJob& job_;
  const simulator::Environment& environment_;
  const double margin_;
  std::map<std::pair<std::string, std::string>, double> prices_;  // USD per device-hour, by GPU type and zone
  SimulatorVerdict verdict_;
};

}  // namespace list_bound_detail

Result<SimulatorVerdict> predict_list(const PlanList& list, const TrainingJob& job,
                                      const simulator::Environment& environment, double memory_margin) {
  const auto plan = to_plan(list, job);
  if (!plan) return bound_of_list(list, job, environment, memory_margin);
  const auto prediction = simulator::simulate(*plan, environment);
  if (!prediction) return fail(prediction.error());
  SimulatorVerdict verdict{.iteration_time = prediction->iteration_time,
                           .cost = prediction->cost_per_iteration,
                           .peak_memory = prediction->peak_memory};
  for (const simulator::StagePrediction& stage : prediction->stages)
    verdict.fits = verdict.fits && list_bound_detail::fits(stage, stage.memory.total(), memory_margin);
  return verdict;
}

Result<SimulatorVerdict> bound_of_list(const PlanList& list, const TrainingJob& job,
                                       const simulator::Environment& environment, double memory_margin) {
  return list_bound_detail::Bounder(list, job, environment, memory_margin).run();
}

}  // namespace sailor::planner::baselines
