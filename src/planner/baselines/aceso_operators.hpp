// The operators that Aceso divides a model into, with times, sizes and memory.
//
// Aceso measures every operator; those measurements are not published. Here they are derived from the layer data of the
// common profile instead: the operators of a layer share its time by FLOP and bytes, and its parameters and activations
// by their sizes (aceso_operators.cpp has the rule). Sums over a layer equal the measured values.
#pragma once

#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "planner/baselines/baseline.hpp"

namespace sailor::planner::baselines::aceso_detail {

/// Costs of one replica with b sequences on t devices, per device. The `_sum` fields are prefix sums: entry i is the
/// sum over operators [0, i).
struct OperatorCosts {
  std::vector<double> time_sum;        ///< seconds, forward and backward
  std::vector<double> parameter_sum;   ///< bytes
  std::vector<double> activation_sum;  ///< bytes, kept for the backward pass
  std::vector<double> input;           ///< bytes
  std::vector<double> output;          ///< bytes
  bool measured = true;                ///< false: the profile has no such times; an operator then takes one second

  [[nodiscard]] double time(LayerRange operators) const { return between(time_sum, operators); }
  [[nodiscard]] double parameters(LayerRange operators) const { return between(parameter_sum, operators); }
  [[nodiscard]] double activations(LayerRange operators) const { return between(activation_sum, operators); }

 private:
  static double between(const std::vector<double>& sums, LayerRange range) {
    return sums[static_cast<std::size_t>(range.last)] - sums[static_cast<std::size_t>(range.first)];
  }
};

inline constexpr std::array<int, 4> micro_batches{1, 2, 4, 8};
inline constexpr int largest_degree = 8;

/// Where the model is to be trained: one GPU type in one zone.
struct Site {
  std::string gpu;
  std::string zone;
  int gpus = 0;
  int gpus_per_node = 1;

  [[nodiscard]] int largest_group() const { return gpus_per_node < largest_degree ? gpus_per_node : largest_degree; }
};

class Operators {
 public:
  /// Errors: not_found (sizes, times or links that the profile does not have).
  static Result<Operators> build(const Inputs& inputs, const TrainingJob& job, const Site& site);

  [[nodiscard]] int count() const { return static_cast<int>(layer_.size()); }
  [[nodiscard]] int layers() const { return static_cast<int>(first_of_layer_.size()) - 1; }
  /// Operators of a range of layers.
  [[nodiscard]] LayerRange of_layers(LayerRange layers) const;
  /// The layer boundary nearest to the start of `operator_index`, by the time of the operators for one sequence on one
  /// device; the later one if two are equally near.
  [[nodiscard]] int nearest_layer(int operator_index) const;

  /// `micro_batch` is one of micro_batches, `tensor_parallel` a power of two up to Site::largest_group().
  [[nodiscard]] const OperatorCosts& costs(int micro_batch, int tensor_parallel) const {
    return costs_.at({micro_batch, tensor_parallel});
  }
  [[nodiscard]] const Site& site() const { return site_; }
  /// Seconds to send `bytes` to the next stage, with Aceso's look-up of bandwidths.
  [[nodiscard]] double send(double bytes, bool between_nodes) const;

 private:
  Site site_;
  std::vector<int> layer_;           // by operator
  std::vector<int> first_of_layer_;  // and, last, the number of operators
  std::map<std::pair<int, int>, OperatorCosts> costs_;
  std::vector<double> inside_;   // bytes/s at 1, 2, 4, ... 1024 MB
  std::vector<double> between_;  // bytes/s
};

}  // namespace sailor::planner::baselines::aceso_detail
