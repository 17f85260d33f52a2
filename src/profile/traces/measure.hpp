// Makes the times of layers of what a profiler recorded: every kernel (on a CPU: every operation) belongs to the layer
// whose forward pass launched it, or whose autograd node did. Does no I/O.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "profile/traces/recording.hpp"

namespace sailor::traces {

/// Times of one micro-batch through the layers, in seconds: [0] is what comes before the first block (the embedding),
/// [i + 1] is block i, and the last one what comes after the last block (final norm, head and loss).
struct PassTimes {
  std::vector<double> forward{};
  std::vector<double> backward{};
  /// Time between the kernels of a layer in which the device does nothing: what launching costs with the profiler.
  std::vector<double> forward_idle{};
  std::vector<double> backward_idle{};
};

struct RecordedTimes {
  std::vector<PassTimes> passes{};  ///< one per micro-batch
  std::vector<double> updates{};    ///< optimizer's time of each iteration, seconds; empty: not recorded
  int left_out = 0;                 ///< passes of which a part is missing
  bool recomputes = false;          ///< blocks run their forward pass again in the backward pass
  bool on_cpu = false;
  std::string found_by{};      ///< how the blocks were found
  double communication = 0.0;  ///< seconds of communication kernels that were kept out
};

/// `blocks`: number of blocks that the recording is of. `tensor_parallel`: with more than one rank, the collectives of
/// the tensor-parallel group belong to the layers, as in all our profiles; all others are kept out. `file` stands for
/// the recording in messages. Errors: invalid_input, saying what the recording lacks and how to record it.
Result<RecordedTimes> measure(const Recording& recording, int blocks, int tensor_parallel, std::string_view file);

}  // namespace sailor::traces
