// Measures the cost of one layer of a model on this device, as the trainer runs it: a chain of embedding, a few
// distinct blocks and the head, forward, backward and update, on all ranks at once. Runs on every rank of a job. Device
// failures other than running out of memory throw.
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
  int blocks = 0;                       ///< distinct blocks in the chain, at most; 0: 4 on CPUs, up to 16 on GPUs
  std::vector<int> tensor_parallel{1};  ///< degrees: this many neighbouring ranks of a host run the layers together
  std::vector<Recompute> recompute{Recompute::none};
  Precision precision = Precision::fp32;
  int samples = 8;                ///< measured rounds of one batch, at most
  int warm_up = 2;                ///< unmeasured rounds of one batch before them
  bool cold = true;               ///< measure with cold caches too
  double interval = 0.05;         ///< target: maximum TimeStatistics::relative_interval() of forward and backward
  Seconds time_budget{120.0};     ///< no batch begins after this, once `fewest_batches` are done
  std::vector<int> busy_ranks{};  ///< this many first ranks of each host compute, the others sleep; empty: all
  Bytes memory_limit{};           ///< of a rank; 0: its share of the host's available memory
};

inline constexpr int fewest_batches = 3;
/// Minimum number of measured rounds of links, however short the time.
inline constexpr int fewest_samples = 3;

struct LayerProgress {
  double share = 0.0;  ///< share done of the expected time
  Seconds left{};
  std::string what{};
};

/// A number of ranks that work at once on a host, in tensor-parallel groups, and the recomputation of their blocks.
struct Combination {
  int busy_ranks = 1;  ///< per host: a multiple of tensor_parallel
  int tensor_parallel = 1;
  Recompute recompute = Recompute::none;
  auto operator<=>(const Combination&) const = default;
};

/// Collective. All combinations of the settings, in order, except numbers of busy ranks that are not a multiple of the
/// tensor-parallel degree: those, with Recompute::none, are in `left_out`.
std::vector<Combination> combinations(const LayerSettings& settings, runtime::Control& control,
                                      std::vector<Combination>& left_out);

/// Collective. Checks that the model can be run here (kinds of layers, sequence length, options). Same result on all
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

/// Measurements on rank 0, with statistics pooled over the ranks that have the same `gpu`; empty on other ranks. The
/// combinations are measured one after the other and share the time. Each is measured in batches, with a new chain per
/// batch, until every interval is as narrow as requested or the time is spent. Times of a tensor-parallel group include
/// its all-reduces. A micro-batch that does not fit on some rank is left out with all larger ones, and is a row of
/// out_of_memory. Errors, on rank 0: nothing fitted; `stop_asked` was true on some rank (the same on all ranks then).
Result<MeasuredLayers> measure_layers(const Model& model, const LayerSettings& settings, runtime::Device& device,
                                      const runtime::World& world,
                                      const std::function<void(const LayerProgress&)>& show,
                                      const std::function<bool()>& stop_asked);

/// Whether forward and backward with warm caches are as precise as requested.
bool meets(const LayerTime& row, double interval);

/// Memory that a process uses after it has computed and communicated, while it holds no tensors, in the memory that
/// tensors are in: the largest over ranks for each `gpu`, on rank 0.
std::vector<ProcessMeasurement> measure_process(const std::string& gpu, const runtime::World& world,
                                                runtime::Device& device);

}  // namespace sailor::profiler
