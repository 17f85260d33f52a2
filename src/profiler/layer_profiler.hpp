// Measures what one layer of a model costs on this device, the way the trainer runs it: a chain of embedding, a few
// distinct blocks and the head, forward, backward and update, on all ranks at once. Runs on every rank of a job; a
// failing device throws.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "core/units.hpp"
#include "model/model.hpp"
#include "profile/profile.hpp"
#include "runtime/communicator.hpp"
#include "runtime/device.hpp"

namespace sailor::profiler {

struct LayerSettings {
  std::string gpu;                 ///< name under which this rank's results are stored; ranks may differ
  std::vector<int> micro_batches;  ///< sequences
  int sequence_length = 0;         ///< tokens
  int samples = 20;                ///< rounds that count; each runs every micro-batch size
  int warm_up = 3;                 ///< rounds before them
  Seconds time_budget{120.0};      ///< no new round is begun after that, once `fewest_samples` are done
  int busy_ranks = 0;              ///< ranks that compute on a node; 0: as many as share the busiest host
};

inline constexpr int fewest_samples = 3;

/// Called on rank 0 after each round: rounds done, of how many.
using RoundDone = std::function<void(std::size_t done, std::size_t of)>;

/// Checks that the model can be run here (kinds of layers, sequence length, memory). The same on all ranks.
Result<void> check_layers(const Model& model, const LayerSettings& settings, runtime::Communicator& world);

/// Measurements on rank 0, statistics pooled over the ranks that have the same `gpu`; empty on other ranks.
std::vector<LayerMeasurement> measure_layers(const Model& model, const LayerSettings& settings, runtime::Device& device,
                                             runtime::Communicator& world, const RoundDone& round_done);

/// Resident bytes of a process that has computed and communicated but holds no tensors: the largest over ranks, for
/// each `gpu`, on rank 0. `make_device` makes a device that is given up again.
std::vector<ProcessMeasurement> measure_process(const std::string& gpu, runtime::Communicator& world,
                                                const std::function<std::unique_ptr<runtime::Device>()>& make_device);

}  // namespace sailor::profiler
