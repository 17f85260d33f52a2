// A relaxation of StageSearch that is solved exactly: devices are limited only by a weighted sum over the GPU types,
// messages go over the fastest link of the sender, gradients take no time. Mixed stages need not be considered then:
// one GPU type alone is no slower and takes no more of the sum. Bounds from it hold for every plan.
#pragma once

#include <limits>
#include <vector>

namespace sailor::planner::artifact {

inline constexpr double unlimited = std::numeric_limits<double>::infinity();

/// A tensor-parallel group that a stage may consist of.
struct RelaxedCandidate {
  int gpu = 0;
  double devices = 0.0;                ///< devices of a stage
  double send = 0.0;                   ///< fastest message to any neighbour
  const std::vector<double>* compute;  ///< prefix sums over the layers
  std::vector<int> lowest;             ///< by last layer of a stage: min first layer that fits into memory
};

class Relaxation {
 public:
  /// `devices` by GPU type; `speed` by GPU type: rough, the weights are made of it. Stages take at most
  /// `max_straggler`. `price` by GPU type: USD per device-second.
  Relaxation(std::vector<RelaxedCandidate> candidates, std::vector<double> devices, const std::vector<double>& speed,
             std::vector<double> price, int layers, double max_straggler);

  /// Lower bound of the time of the slowest stage of layers [0, last). `left` by GPU type.
  [[nodiscard]] double straggler(int last, const std::vector<double>& left) const;
  /// Lower bound of the time of all stages together for layers [0, last), under `max_straggler`.
  [[nodiscard]] double sum(int last, const std::vector<double>& left) const;
  /// Min USD of the whole when the devices of layers [last, L) cost `price` USD per second, their slowest stage takes
  /// `straggler`, and an iteration takes `others` besides `rounds` times the slowest stage of all.
  [[nodiscard]] double cost(int last, double price, double straggler, double rounds, double others) const;

 private:
  /// Min weighted devices for layers [0, l), by l, when no stage takes longer than `straggler`.
  [[nodiscard]] std::vector<double> min_devices(double straggler, const std::vector<double>& weights) const;
  /// Min sum of times, plus `price` for each weighted device.
  [[nodiscard]] std::vector<double> min_sum(double price, const std::vector<double>& weights) const;
  [[nodiscard]] double stage_time(const RelaxedCandidate& candidate, int first, int last) const;

  struct Priced {
    std::vector<double> weights;
    double price = 0.0;
    std::vector<double> least;
  };
  std::vector<RelaxedCandidate> candidates_;
  int layers_;
  double max_straggler_;
  std::vector<double> stragglers_;            // ascending; the first is a bound of the whole
  std::vector<std::vector<double>> weights_;  // each makes a relaxation of its own
  // By straggler, weights, last layer; empty until needed.
  mutable std::vector<std::vector<std::vector<double>>> min_;
  std::vector<Priced> priced_;
  std::vector<double> price_;
  mutable std::vector<std::vector<double>> min_price_;  // by straggler, last layer: USD per second; as min_
};

}  // namespace sailor::planner::artifact
