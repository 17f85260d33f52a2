// Varuna's event-driven simulator of one pipeline (Athlur et al., EuroSys 2022) with the rules of the Sailor artifact
// (baselines/Varuna/simulator): synchronous 1F1B, at most four sends at once, and, as published, random delays from
// generators with fixed seeds. No global state: the same input gives the same time.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "planner/baselines/plan_list.hpp"

namespace sailor::planner::baselines::varuna_detail {

/// random() of the GNU C library before any srandom(): additive feedback over 31 words, seed 1.
class GlibcRandom {
 public:
  GlibcRandom();
  std::uint32_t operator()();

 private:
  std::array<std::uint32_t, 31> state_{};
  std::size_t next_ = 3;
};

/// std::default_random_engine and std::normal_distribution<double> of the GNU C++ library. Other libraries draw other
/// numbers from the same seed.
class Minstd {
 public:
  std::uint32_t operator()();
  /// In [0, 1), from two draws.
  double canonical();

 private:
  std::uint32_t state_ = 1;
};
class Normal {
 public:
  explicit Normal(double deviation) : deviation_(deviation) {}
  double operator()(Minstd& engine);

 private:
  double deviation_;
  bool has_saved_ = false;
  double saved_ = 0.0;
};

struct PipelineTimes {
  std::vector<int> forward;   ///< microseconds of a micro-batch, by stage
  std::vector<int> backward;  ///< the same
  int send = 0;               ///< microseconds between nodes; inside a node 0
  int workers_per_node = 1;   ///< consecutive stages on a node
  int micro_batches = 0;
};

/// Microseconds until the last event. 0: a stage waits forever, which happens as published because waiting gradients
/// are taken latest first. Fixed: they are taken in order, there are no random delays, and a stage with fewer
/// micro-batches than its warm-up also runs their backward passes.
double simulate_varuna(const PipelineTimes& times, Faults faults);

}  // namespace sailor::planner::baselines::varuna_detail
