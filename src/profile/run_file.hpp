// The HDF5 file in which sailor-train keeps what a run measured: time and loss of every iteration, and the
// peak memory of every rank. Written whole and renamed into place, so a killed run leaves the last whole one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/statistics.hpp"
#include "core/units.hpp"
#include "profile/measurements.hpp"

namespace sailor {

struct IterationRecord {
  std::int64_t iteration = 0;  ///< counted from 0
  double loss = 0.0;           ///< mean cross-entropy per token, natural logarithm
  Seconds time{};              ///< wall time of the iteration, slowest rank
};

/// Where the time of an iteration went: of each part the mean over ranks, and the rank that it took longest.
struct PartsRecord {
  std::int64_t iteration = 0;
  struct Part {
    Seconds mean{};
    Seconds slowest{};
  };
  Part forward{};
  Part backward{};
  Part wait_activation{};  ///< for the messages of the stage before
  Part wait_gradient{};    ///< for those of the stage behind
  Part reduction{};        ///< sums of gradients, as far as they do not overlap with the backward passes
  Part update{};
};

struct RankRecord {
  int rank = 0;
  int pipeline = 0;
  int stage = 0;
  int tensor_parallel_index = 0;
  std::string host{};
  Bytes peak_tensor_memory{};    ///< largest sum of tensors alive at once, from the allocator
  Bytes peak_resident_memory{};  ///< largest resident set of the process (VmHWM)
};

struct RunRecord {
  Provenance provenance{};
  std::string plan_toml{};     ///< the plan as it was run
  int warm_up_iterations = 0;  ///< first iterations that statistics leave out
  std::vector<IterationRecord> iterations{};
  std::vector<RankRecord> ranks{};
  std::vector<PartsRecord> parts{};  ///< by iteration; empty in files of earlier versions

  /// Times of the iterations after the warm-up.
  [[nodiscard]] TimeStatistics iteration_time() const;
  [[nodiscard]] Bytes peak_resident_memory() const;  ///< largest over ranks
};

/// An empty provenance.date becomes the present one.
Result<void> save_run(const RunRecord& run, const std::filesystem::path& path);
/// Errors: not_found, invalid_input (no HDF5, not a run file, other schema version), naming the file.
Result<RunRecord> load_run(const std::filesystem::path& path);

}  // namespace sailor
