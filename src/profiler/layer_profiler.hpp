// Measures what one layer of a model costs on this device, the way the trainer runs it: a chain of embedding, a few
// distinct blocks and the head, forward, backward and update, on all ranks at once. Runs on every rank of a job. A
// device that fails otherwise than for want of memory throws.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/units.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "profile/measurements.hpp"
#include "runtime/device.hpp"
#include "runtime/world.hpp"

namespace sailor::profiler {

struct LayerSettings {
  std::string gpu{};                 ///< name under which this rank's results are stored; ranks may differ
  std::vector<int> micro_batches{};  ///< sequences
  int sequence_length = 0;           ///< tokens
  std::set<LayerKind> kinds{LayerKind::embedding, LayerKind::block, LayerKind::final_norm, LayerKind::head};
  int blocks = 4;                       ///< distinct blocks in the chain, at most
  std::vector<int> tensor_parallel{1};  ///< degrees: so many neighbouring ranks of a host run the layers together
  std::vector<Recompute> recompute{Recompute::none};
  Precision precision = Precision::fp32;
  int samples = 8;         ///< of one batch, at most
  int warm_up = 2;         ///< rounds of one batch before them
  bool cold = true;        ///< measure with cold caches too
  double interval = 0.05;  ///< aim: every TimeStatistics::relative_interval() of forward and backward is at most that
  Seconds time_budget{120.0};     ///< begin no further batch after that, once `fewest_batches` are done
  std::vector<int> busy_ranks{};  ///< the first so many ranks of each host compute, the others sleep; empty: all
  Bytes memory_limit{};           ///< of a rank; 0: its share of what the host has available
};

inline constexpr int fewest_batches = 3;
/// Rounds that count in any case, however short the time (of links).
inline constexpr int fewest_samples = 3;

struct LayerProgress {
  double share = 0.0;  ///< of the time that it is expected to take
  Seconds left{};
  std::string what{};
};

/// Ranks that work at once on a host, in tensor-parallel groups, and what their blocks compute again.
struct Combination {
  int busy_ranks = 1;  ///< of a host: a multiple of tensor_parallel
  int tensor_parallel = 1;
  Recompute recompute = Recompute::none;
  auto operator<=>(const Combination&) const = default;
};

/// Collective. All combinations of the settings, in order, but for numbers of busy ranks that groups of a degree do not
/// fill: those, with Recompute::none, are in `left_out`.
std::vector<Combination> combinations(const LayerSettings& settings, runtime::Control& control,
                                      std::vector<Combination>& left_out);

/// Collective. Checks that the model can be run here (kinds of layers, sequence length, options). The same on all
/// ranks.
Result<void> check_layers(const Model& model, const LayerSettings& settings, runtime::Control& control);

struct MeasuredLayers {
  std::vector<LayerTime> times{};
  std::vector<LayerMemory> memory{};
  std::vector<OutOfMemory> out_of_memory{};
  double lowest_clock_hz = 0.0;  ///< as in Session
  double highest_clock_hz = 0.0;
  double slowdown = 0.0;
};

/// Measurements on rank 0, statistics pooled over the ranks that have the same `gpu`; empty on other ranks. The
/// combinations are measured one after the other and share the time. Of each, batches, each with a new chain, until
/// every interval is as narrow as asked for or the time is spent. The times of a tensor-parallel group contain its
/// sums. A micro-batch that does not fit on some rank is left out with all larger ones, and is a row of out_of_memory.
/// Errors, on rank 0: nothing fitted; `stop_asked` was true on some rank (the same on all ranks then).
Result<MeasuredLayers> measure_layers(const Model& model, const LayerSettings& settings, runtime::Device& device,
                                      const runtime::World& world,
                                      const std::function<void(const LayerProgress&)>& show,
                                      const std::function<bool()>& stop_asked);

/// Whether a row is as precise as was asked for: both passes with warm caches.
bool meets(const LayerTime& row, double interval);

/// Bytes, of the memory that tensors are in, of a process that has computed and communicated but holds no tensors: the
/// largest over ranks, for each `gpu`, on rank 0.
std::vector<ProcessMeasurement> measure_process(const std::string& gpu, const runtime::World& world,
                                                runtime::Device& device);

}  // namespace sailor::profiler
