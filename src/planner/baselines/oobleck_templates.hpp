// Pipeline templates of Oobleck (Jang et al., SOSP 2023, section 4.1): for every number of nodes the pipeline that is
// expected to be the fastest, found by dividing layers, stages and devices into a first part and the rest.
#pragma once

#include <string>
#include <vector>

#include "planner/baselines/inputs.hpp"

namespace sailor::planner::baselines::oobleck_detail {

inline constexpr double float_bytes = 4.0;

struct TemplateStage {
  LayerRange layers;
  int gpus = 1;  ///< tensor parallel
  int node = 0;  ///< of the template
};

/// What iteration time is made of (section 4.1.2): one micro-batch through all stages, the others in the slowest one,
/// and the stages behind that one at the end.
struct ChainTime {
  int stages = 0;
  int slowest_stage = 0;
  double slowest = 0.0;  ///< seconds of a micro-batch, forward and backward
  double total = 0.0;    ///< of all stages
  double after = 0.0;    ///< of those behind the slowest

  /// Seconds of an iteration. For stages that are all alike (micro_batches + stages - 1) times that of one.
  [[nodiscard]] double iteration(int micro_batches) const;
  /// How many micro-batches are done in `seconds`; 0: none.
  [[nodiscard]] int micro_batches_within(double seconds) const;

 private:
  /// Seconds by which the stages behind the slowest are faster than it.
  [[nodiscard]] double slack() const { return (stages - 1 - slowest_stage) * slowest - after; }
};

ChainTime chain_of_one(double seconds);
ChainTime joined(const ChainTime& first, const ChainTime& rest);

struct Template {
  int nodes = 1;
  std::vector<TemplateStage> stages;
  ChainTime time;
};

/// What is profiled of a model on nodes of one type.
class StageCosts {
 public:
  StageCosts(const Inputs& inputs, const std::string& gpu, int micro_batch, int gpus_per_node);

  [[nodiscard]] int layers() const { return inputs_.layers(); }
  [[nodiscard]] int gpus_per_node() const { return gpus_per_node_; }
  /// Seconds of a micro-batch; infinity where it was not measured, or does not fit by Oobleck's own measure: six copies
  /// of the parameters and the activations of one micro-batch.
  [[nodiscard]] double seconds(LayerRange layers, int gpus) const;
  /// Of one device.
  [[nodiscard]] double memory_bytes(LayerRange layers, int gpus) const;

 private:
  const Inputs& inputs_;
  std::string gpu_;
  int micro_batch_;
  int gpus_per_node_;
  double memory_;
};

/// Templates for 1 to `most_nodes` nodes; those that cannot be are left out. `micro_batches_per_node`: of an iteration,
/// to choose among numbers of stages.
std::vector<Template> make_templates(const StageCosts& costs, int most_nodes, double micro_batches_per_node);

}  // namespace sailor::planner::baselines::oobleck_detail
