// FlashFlex's (HexiScale's) figures of devices and its analytical cost model, as the artifact of the Sailor paper
// adapts them (sailor/Planner/baselines/FlashFlex/src/cost_modeling.py). It uses no profile.
#pragma once

#include <string>
#include <vector>

#include "core/error.hpp"
#include "planner/baselines/inputs.hpp"
#include "planner/baselines/offered_nodes.hpp"

namespace sailor::planner::baselines::flashflex_detail {

struct Device {
  std::string gpu;
  std::string zone;
  int node = 0;
  int gpus_per_node = 1;
  double flop_per_s = 0.0;
  double memory_gib = 0.0;
  double node_bandwidth = 0.0;  ///< bytes/s, to GPUs of the same node
};

struct Devices {
  std::vector<Device> list;  ///< by GPU type in FlashFlex's own order, node by node
  double bandwidth = 0.0;    ///< bytes/s, between any two nodes

  [[nodiscard]] int size() const { return static_cast<int>(list.size()); }
  /// Bytes/s between two devices.
  [[nodiscard]] double between(int from, int to) const {
    return list[from].node == list[to].node ? list[from].node_bandwidth : bandwidth;
  }
};

/// Errors: not_found for a GPU type without figures or a link that was not measured.
Result<Devices> list_devices(const std::vector<OfferedNodes>& nodes, const Inputs& inputs, Faults faults);

/// Job parameters of the formulas.
struct Shape {
  double hidden = 0.0;
  double sequence = 0.0;
  double vocabulary = 0.0;
  int layers = 0;  ///< transformer layers
  double micro_batch = 1.0;
  int micro_batches = 1;  ///< of a pipeline
};

struct Pipeline {
  std::vector<std::vector<int>> stages;  ///< devices, one tensor-parallel group each
  std::vector<int> layers;               ///< number of layers of each stage
};

/// Seconds of one pipeline: sum of its slowest active stage over micro-batches + stages - 1 slots.
double pipeline_time(const Pipeline& pipeline, const Shape& shape, const Devices& devices);
/// Seconds of an iteration: the slowest pipeline and the all-reduce of every layer.
double iteration_time(const std::vector<Pipeline>& pipelines, const Shape& shape, const Devices& devices);
/// GiB per device of a stage of `layers` layers; `degree`: divisor of its parameters.
double stage_memory(int layers, int degree, bool is_first, bool is_last, const Shape& shape);

}  // namespace sailor::planner::baselines::flashflex_detail
