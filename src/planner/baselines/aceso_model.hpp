// Aceso's configurations and the cost model that its search uses. A second model, the Sailor artifact's evaluator of
// operator-level plans, judges the plans found.
//
// Every stage has one tensor-parallel and one data-parallel degree for all its operators: Aceso's primitives change
// them for a whole stage, and operators that move take those of their new stage. So nothing is resharded inside a
// stage.
#pragma once

#include <compare>
#include <optional>
#include <vector>

#include "planner/baselines/aceso_operators.hpp"

namespace sailor::planner::baselines::aceso_detail {

struct AcesoStage {
  LayerRange operators;
  int tensor_parallel = 1;
  int data_parallel = 1;
  [[nodiscard]] int gpus() const { return tensor_parallel * data_parallel; }
  bool operator==(const AcesoStage&) const = default;
};

struct Config {
  std::vector<AcesoStage> stages;
  int micro_batch = 1;  ///< sequences of all replicas of a stage together
  bool operator==(const Config&) const = default;

  [[nodiscard]] int gpus() const;
  /// Key for sets of configurations.
  [[nodiscard]] std::vector<int> key() const;
};

/// What Aceso expects of a configuration.
struct Predicted {
  std::vector<double> stage_seconds;  ///< of one micro-batch: compute and messages
  std::vector<double> compute_seconds;
  std::vector<double> stage_time;    ///< seconds of an iteration if this stage were the slowest
  std::vector<double> stage_memory;  ///< bytes per device
  double time = 0.0;                 ///< seconds of an iteration
  double memory = 0.0;               ///< bytes per device, the maximum over the stages
};

class CostModel {
 public:
  CostModel(const Operators& operators, int global_batch, double memory_limit)
      : operators_(&operators), global_batch_(global_batch), memory_limit_(memory_limit) {}

  [[nodiscard]] const Operators& operators() const { return *operators_; }
  [[nodiscard]] double memory_limit() const { return memory_limit_; }  ///< bytes per device
  /// Whether a stage can run a micro-batch: each replica gets a number of sequences that was measured.
  [[nodiscard]] static bool is_allowed(int micro_batch, int data_parallel);

  [[nodiscard]] Predicted predict(const Config& config) const;
  [[nodiscard]] bool fits(const Predicted& predicted) const { return predicted.memory <= memory_limit_; }
  /// Seconds of one micro-batch in a stage, with messages inside the node; for comparing changes of a stage.
  [[nodiscard]] double stage_seconds(const AcesoStage& stage, int micro_batch) const;
  /// Bytes per device of stage `index` of `count`.
  [[nodiscard]] double stage_memory(const AcesoStage& stage, int index, int count, int micro_batch) const;
  /// Device-seconds of a micro-batch if all its sequences ran on one device.
  [[nodiscard]] double ideal_seconds(const AcesoStage& stage, int micro_batch) const;

 private:
  [[nodiscard]] const OperatorCosts& costs(const AcesoStage& stage, int micro_batch) const {
    return operators_->costs(micro_batch / stage.data_parallel, stage.tensor_parallel);
  }

  const Operators* operators_;
  int global_batch_;
  double memory_limit_;
};

/// The artifact's evaluator of operator-level plans (SimulatorOP).
struct OperatorScore {
  double iteration_time = 0.0;        ///< seconds
  double synchronization_time = 0.0;  ///< seconds of it: gradients
  double memory = 0.0;                ///< bytes, the maximum
  bool fits = true;
};
/// Errors: not_found (links between nodes of the type with all GPUs sending).
Result<OperatorScore> evaluate_operators(const Config& config, const Operators& operators, const Inputs& inputs,
                                         int global_batch);

}  // namespace sailor::planner::baselines::aceso_detail
