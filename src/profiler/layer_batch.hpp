// One batch of layer measurements: a new chain, warm-up, measured rounds, passes with cold caches. Runs on all ranks
// that work at once, and keeps them in step also when one of them runs out of memory. Internal to the profiler.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "core/units.hpp"
#include "model/model.hpp"
#include "profiler/layer_chain.hpp"
#include "runtime/control.hpp"
#include "runtime/device.hpp"

namespace sailor::profiler {

enum Phase : std::size_t { forward, backward, update, cold_forward, cold_backward, phases };

struct BatchSettings {
  int sequence_length = 0;  ///< tokens
  std::set<LayerKind> kinds{};
  int blocks = 4;
  runtime::TensorParallel tensor_parallel{};  ///< this rank's part, and the group among the ranks that work at once
  Recompute recompute = Recompute::none;
  runtime::DataType type = runtime::DataType::float32;  ///< data type that the layers compute with
  int warm_up = 2;                                      ///< rounds that are not measured
  int samples = 8;                                      ///< measured rounds, at most
  bool cold = true;                                     ///< one pass with cold caches per size at the end
  Seconds time_limit{20.0};  ///< no further round begins after this, once `fewest_rounds` are done
};

inline constexpr int fewest_rounds = 2;

/// What one rank measured of one micro-batch size; the number of samples is the same on all ranks.
struct SizeSamples {
  std::array<std::array<std::vector<double>, layer_kinds>, phases> seconds{};
  std::array<KindBytes, layer_kinds> bytes{};
};

/// An allocation that failed on this rank.
struct FailedAllocation {
  LayerKind kind = LayerKind::embedding;
  Bytes needed{};
  Bytes available{};
};

struct Batch {
  std::map<int, SizeSamples> sizes{};  ///< by micro-batch
  std::array<std::int64_t, layer_kinds> parameters{};
  double clock_hz = 0.0;                      ///< while measuring; 0: unknown
  double reference = 0.0;                     ///< median seconds of a fixed computation between the rounds
  bool out_of_memory = false;                 ///< whether some rank ran out of memory
  std::optional<int> too_large{};             ///< the micro-batch that did not fit; std::nullopt: the parameters did
                                              ///< not
  std::optional<FailedAllocation> failure{};  ///< that of this rank, if any
  bool interrupted = false;                   ///< whether some rank was interrupted
};

/// `passes`: number of passes per sample, by micro-batch; missing sizes are added. `micro_batches` must be ascending.
Batch measure_batch(const Model& model, const std::vector<int>& micro_batches, const BatchSettings& settings,
                    std::map<int, int>& passes, runtime::Device& device, runtime::Control& workers,
                    const std::function<bool()>& stop_asked);

}  // namespace sailor::profiler
