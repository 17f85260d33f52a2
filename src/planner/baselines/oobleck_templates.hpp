// Pipeline templates of Oobleck (Jang et al., SOSP 2023, section 4.1): for every number of nodes the pipeline with the
// shortest predicted time, found by dividing layers, stages and devices into a first part and the rest.
#pragma once

#include <string>
#include <vector>

#include "planner/baselines/inputs.hpp"

namespace sailor::planner::baselines::oobleck_detail {

inline constexpr double float_bytes = 4.0;

struct TemplateStage {
  LayerRange layers;
  int gpus = 1;  ///< tensor parallel
  int node = 0;  ///< node within the template
};

/// Parts of the iteration time (section 4.1.2): one micro-batch through all stages, the others in the slowest stage,
/// and at the end the stages after it. Micro-batches are counted so that equal stages take the time of 1F1B; the
/// published code counts S - 2 micro-batches less there.
struct ChainTime {
  int stages = 0;
  int slowest_stage = 0;
  double slowest = 0.0;  ///< seconds of a micro-batch, forward and backward
  double total = 0.0;    ///< seconds, of all stages
  double after = 0.0;    ///< seconds, of the stages after the slowest

  /// Seconds of an iteration. For equal stages this is (micro_batches + stages - 1) times the time of one.
  [[nodiscard]] double iteration(int micro_batches) const;
  /// Number of micro-batches that are done in `seconds`; 0: none.
  [[nodiscard]] int micro_batches_within(double seconds) const;

 private:
  /// Seconds by which the stages after the slowest are faster than it.
  [[nodiscard]] double slack() const { return (stages - 1 - slowest_stage) * slowest - after; }
};

ChainTime chain_of_one(double seconds);
ChainTime joined(const ChainTime& first, const ChainTime& rest);

struct Template {
  int nodes = 1;
  std::vector<TemplateStage> stages;
  ChainTime time;
};

/// Profile of a model on nodes of one type.
class StageCosts {
 public:
  StageCosts(const Inputs& inputs, const std::string& gpu, int micro_batch, int gpus_per_node);

  [[nodiscard]] int layers() const { return inputs_.layers(); }
  [[nodiscard]] int gpus_per_node() const { return gpus_per_node_; }
  /// Seconds of a micro-batch; infinity if it was not measured, or does not fit by Oobleck's own estimate: six copies
  /// of the parameters and the activations of one micro-batch.
  [[nodiscard]] double seconds(LayerRange layers, int gpus) const;
  /// Memory of one device.
  [[nodiscard]] double memory_bytes(LayerRange layers, int gpus) const;

 private:
  const Inputs& inputs_;
  std::string gpu_;
  int micro_batch_;
  int gpus_per_node_;
  double memory_;
};

/// Templates for 1 to `max_nodes` nodes; impossible ones are left out. `micro_batches_per_node`: of an iteration, to
/// choose among numbers of stages.
std::vector<Template> make_templates(const StageCosts& costs, int max_nodes, double micro_batches_per_node);

}  // namespace sailor::planner::baselines::oobleck_detail
