// Plans as the artifact of the Sailor paper (SOSP'25) writes and scores them: a list of pipelines; each of their stages
// has its own number of replicas, and each replica is a tensor-parallel group over one or more virtual machines.
//
// They can express more than a Plan (stages of one pipeline with unequal numbers of replicas, groups over several
// machines) and less (one micro-batch size, batches divided evenly).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/units.hpp"
#include "planner/baselines/inputs.hpp"

namespace sailor::planner::baselines {

/// GPUs of one virtual machine.
struct Machine {
  std::string gpu;
  int gpus_per_node = 1;  ///< as the planner writes it: GPUs of the machine, or those that the group uses
  std::string zone;
  bool operator==(const Machine&) const = default;
};

/// One tensor-parallel group.
struct Replica {
  std::vector<Machine> machines;  ///< at least one; more than one: the group spans them
  int tensor_parallel = 1;
  bool operator==(const Replica&) const = default;
};

/// Number of the group's devices on each of its machines. Metis and FlashFlex write one machine for each device even if
/// several are on one node; for their lists this is the number of devices per node.
int devices_per_machine(const Replica& replica);
/// Number of nodes of the group.
int nodes_of(const Replica& replica);
/// Devices of the group by GPU type; every machine contributes the same number.
std::map<std::string, int> devices_of(const Replica& replica);

struct ListStage {
  LayerRange layers;  ///< may be empty
  std::vector<Replica> replicas;
};

struct ListPipeline {
  std::vector<ListStage> stages;
  /// Micro-batches of each replica per iteration. 0: the batch is divided evenly. The evaluator always divides it
  /// evenly.
  int micro_batches = 0;
};

struct PlanList {
  std::vector<ListPipeline> pipelines;
  int micro_batch = 1;  ///< sequences
  bool grid = false;    ///< given as (P, D, T) of one GPU type: the memory test then looks at one replica of each stage

  /// Number of GPUs by type.
  [[nodiscard]] std::map<std::string, int> gpus() const;
  /// Number of replicas of the first stage of the last pipeline, by which the evaluator divides the batch.
  [[nodiscard]] int data_parallel() const;
};

/// `stages` stages of partition_uniform(), each with `replicas` groups of `machine`.
PlanList grid_plan(int layers, int stages, int replicas, int tensor_parallel, int micro_batch, const Machine& machine);

/// "P2 D32 T1 b1" if all stages are alike, else the differences in full: for tables.
std::string describe(const PlanList& plan);

/// Result of the authors' evaluator (simulations/runtime_simulator.py).
struct EvaluatorScore {
  Seconds iteration_time{};
  Seconds pipeline_time{};         ///< of the slowest pipeline
  Seconds synchronization_time{};  ///< gradients, not overlapped
  Usd egress_cost{};               ///< per iteration
  Usd cost{};                      ///< per iteration, devices and egress
  bool fits = true;                ///< by the rule of the harness and the planner: 2e9 or 3e9 bytes in addition
  Bytes peak_memory{};             ///< by that rule, the maximum over all devices
  Bytes validation_memory{};       ///< by the rule of figure 5a: 5.06e9 bytes in addition
  double micro_batches = 0.0;
};

/// Whether the evaluator's faults are kept: stages over several machines without compute time, times of zero for
/// degrees that were not measured.
enum class Faults { kept, fixed };

/// Errors: not_found (times, sizes or links that the profile does not have); invalid_input (no pipeline, no stage).
Result<EvaluatorScore> evaluate(const PlanList& plan, const Inputs& inputs, const TrainingJob& job, Faults faults);

/// The plan as this project's runtime would run it: replica i of every stage is a pipeline, and the batch is divided as
/// evenly as possible. Errors: invalid_input naming what a Plan cannot express (unequal replicas, groups over several
/// types, zones or nodes).
Result<Plan> to_plan(const PlanList& list, const TrainingJob& job);
/// The reverse: pipelines with the same division of the layers become one pipeline of the list. `devices_per_node` by
/// GPU type, as in original_plan_to_json(). Errors: invalid_input naming what a list cannot express (other schedules,
/// recomputation, several micro-batch sizes, pipelines whose numbers of micro-batches differ by more than one).
Result<PlanList> from_plan(const Plan& plan, const std::map<std::string, int>& devices_per_node);

/// Division of layers by the Sailor planner and Atlas: n / stages each, the last n mod stages of them one more.
std::vector<LayerRange> partition_sailor(int layers, int stages);
/// Division of layers by DeepSpeed and by the evaluator for grids: the first n mod stages take one more; trailing
/// stages may be empty.
std::vector<LayerRange> partition_uniform(int layers, int stages);

}  // namespace sailor::planner::baselines
