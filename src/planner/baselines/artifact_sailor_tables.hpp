// Look-ups of the artifact's own planner (sailor_planner/cpp_src/planner_utils.cpp): devices by zone and region,
// tensor-parallel degrees, times of stages and of links. Everything is computed on demand; the original first fills
// tables of 1300 ranks for every stage and pair of zones.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "planner/baselines/baseline.hpp"

namespace sailor::planner::baselines::artifact_sailor_detail {

inline constexpr double float_bytes = 4.0;

/// Offered devices; GPU types are sorted by name.
struct Supply {
  std::vector<std::string> gpus;
  std::vector<int> gpus_per_node;  ///< by GPU type
  std::vector<std::string> zones;
  std::vector<std::vector<int>> regions;  ///< zones of each region, most devices first
  std::vector<int> free;                  ///< devices, at zone * types() + GPU type
  std::vector<std::string> left_out;      ///< GPU types that are offered and cannot be used, and why

  [[nodiscard]] int types() const { return static_cast<int>(gpus.size()); }
};

/// Zones and regions are in the reverse order of the offers, as in the hash tables of the original. Errors: infeasible
/// if no device has times.
Result<Supply> read_supply(const Problem& problem);

/// Equal replicas of a stage: the k-th tensor-parallel group of a stage communicates with the k-th of the next one.
struct Run {
  int gpu = 0;
  int zone = 0;
  int degree = 1;  ///< tensor parallel
  int count = 0;
};

/// Times of a stage and all later ones, in seconds.
struct StageTimes {
  double straggler = 0.0;
  double first_compute = 0.0;  ///< of the first stage, including its sends
  double compute = 0.0;
  double communication = 0.0;
  double all_reduce = 0.0;
  double iteration = 0.0;
};

class Tables {
 public:
  Tables(const Problem& problem, const Supply& supply);

  [[nodiscard]] const Supply& supply() const { return supply_; }
  [[nodiscard]] bool keeps_faults() const { return keep_; }
  [[nodiscard]] int layers() const { return inputs_.layers(); }
  [[nodiscard]] std::vector<int> micro_batches() const;  ///< of any GPU type, ascending
  /// Data-parallel degrees: the smallest for each number of micro-batches, ascending.
  [[nodiscard]] std::vector<int> data_parallel_degrees(int micro_batch) const;
  [[nodiscard]] double micro_batch_count(int micro_batch, int replicas) const;
  /// Degrees by GPU type and stage; empty for a type that cannot be used.
  [[nodiscard]] std::vector<std::vector<int>> tensor_parallel(const std::vector<LayerRange>& stages,
                                                              int micro_batch) const;

  /// Seconds of a micro-batch; 0 where it was not measured.
  [[nodiscard]] double compute(int gpu, int micro_batch, int degree, LayerRange layers) const;
  /// Times of one stage alone. `zones` are those that the original considers; `first_zone` is by GPU type, -1: not
  /// used.
  [[nodiscard]] StageTimes stage_times(LayerRange layers, int micro_batch, int replicas,
                                       const std::vector<int>& degrees, const std::vector<int>& first_zone,
                                       const std::vector<int>& zones) const;
  /// Times of `first` and the later stages `rest`; `message` is bytes to the next stage.
  [[nodiscard]] StageTimes joined(const StageTimes& first, const std::vector<Run>& runs, const StageTimes& rest,
                                  const std::vector<Run>& next, double message, double micro_batches) const;
  /// Bytes that the first stage sends per micro-batch, which the planner assumes for every boundary.
  [[nodiscard]] double message_bytes(LayerRange first_stage, int micro_batch) const;

  [[nodiscard]] double price(int gpu) const { return prices_[static_cast<std::size_t>(gpu)]; }  ///< USD/s
  /// USD of activations and gradients between two stages, per iteration.
  [[nodiscard]] double message_cost(const std::vector<Run>& runs, const std::vector<Run>& next, double message,
                                    double micro_batches) const;
  /// USD of one all-reduce of the gradients of a stage.
  [[nodiscard]] double all_reduce_cost(LayerRange layers, int replicas, const std::vector<Run>& runs,
                                       const std::vector<int>& zones) const;
  /// Largest published bandwidth between any devices of two zones, bytes/s; 0 without a link.
  [[nodiscard]] double widest_link(int zone, int other_zone) const;

 private:
  [[nodiscard]] const LinkCoefficients* link(const Run& from, const Run& to) const;
  [[nodiscard]] double transfer(const LinkCoefficients& link, double bytes) const;
  [[nodiscard]] double all_reduce(LayerRange layers, int replicas, const LinkCoefficients& link) const;
  [[nodiscard]] int least_degree(int gpu, int micro_batch, LayerRange layers, int stages_left) const;
  [[nodiscard]] int greatest_degree(int gpu, int micro_batch, LayerRange layers) const;

  const Inputs& inputs_;
  const Supply& supply_;
  int batch_;
  bool keep_;
  std::vector<double> memory_;             // bytes, by GPU type
  std::vector<double> prices_;             // USD/s, by GPU type
  std::vector<std::vector<int>> degrees_;  // by GPU type, ascending
  int kinds_ = 0;                          // number of different degrees over all types
  std::vector<int> kind_;                  // by degree
  mutable std::vector<std::optional<const LinkCoefficients*>> links_;
};

}  // namespace sailor::planner::baselines::artifact_sailor_detail
