// The search of DT-FM (Yuan et al., NeurIPS 2022): devices are divided into stages of equal size and ordered so that
// communication costs least, by a genetic algorithm with a local search.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "planner/baselines/baseline.hpp"

namespace sailor::planner::baselines::dtfm_detail {

/// The offered devices, in the order of the offers, and the links between them.
class Devices {
 public:
  /// Errors: not_found (a link), invalid_input (no devices).
  static Result<Devices> build(const Problem& problem);

  [[nodiscard]] int count() const { return static_cast<int>(offer_of_.size()); }
  /// Index of the device's offer.
  [[nodiscard]] int offer(int device) const { return offer_of_[static_cast<std::size_t>(device)]; }
  /// Inverse of the largest measured bandwidth; DT-FM's latencies are zero here, as in the artifact.
  [[nodiscard]] double seconds_per_byte(int from, int to) const {
    const int offer_from = offer(from);
    const int offer_to = offer(to);
    const bool one_node =
        offer_from == offer_to && node_of_[static_cast<std::size_t>(from)] == node_of_[static_cast<std::size_t>(to)];
    return one_node
               ? inside_[static_cast<std::size_t>(offer_from)]
               : between_[static_cast<std::size_t>(offer_from) * inside_.size() + static_cast<std::size_t>(offer_to)];
  }

 private:
  std::vector<int> offer_of_;
  std::vector<int> node_of_;
  std::vector<double> inside_;   // by offer: two devices of one node
  std::vector<double> between_;  // by pair of offers
};

/// Sizes of the messages.
struct Messages {
  double gradients = 0.0;   ///< bytes of the largest stage
  double activation = 0.0;  ///< bytes between two stages, one way
};

using Stages = std::vector<std::vector<int>>;  ///< devices of each stage

struct Arrangement {
  Stages stages;      ///< in the order of the pipeline; device i of every stage belongs to replica i
  double cost = 0.0;  ///< seconds of communication: gradients, and activations in both directions
};

/// Random numbers that are the same with every standard library.
class Random {
 public:
  explicit Random(std::uint64_t seed) : generator_(seed) {}
  /// Uniform in [0, limit).
  int below(int limit);
  void shuffle(std::vector<int>& values);

 private:
  std::mt19937_64 generator_;
};

/// Min over all pairings of two stages' devices of the time of the slowest pair, in seconds. Costs are those from the
/// first to the second stage.
double bottleneck(const Devices& devices, const std::vector<int>& from, const std::vector<int>& to, double bytes);
/// A pairing with that time: device i of `from` with device answer[i] of `to`. Among these, the one with the minimum
/// sum; Faults::kept: the artifact's answer after the last step of its search, with as few slower pairs as necessary.
std::vector<int> pair_stages(const Devices& devices, const std::vector<int>& from, const std::vector<int>& to,
                             Faults faults);

/// The order of stages with the minimum sum of costs between neighbours, and that sum. `costs`: count x count, by rows.
std::pair<std::vector<int>, double> shortest_path(int count, const std::vector<double>& costs);

/// One step of the local search: devices change places in cycles through the stages. The stages keep their sizes.
Stages improve_by_cycles(const Devices& devices, const Stages& stages, double activation, Faults faults);

/// Never fails. Stops early if `is_over`.
Arrangement arrange(const Devices& devices, int stages, const Messages& messages, Faults faults, Random& random,
                    const std::function<bool()>& is_over);

}  // namespace sailor::planner::baselines::dtfm_detail
