// The HDF5 file in which sailor-train keeps what a run measured: time and loss of every iteration, the peak memory of
// every rank, and what happened to an elastic training. Written whole and renamed into place, so a killed run leaves
// the last whole one.
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
  Seconds time{};              ///< wall time of the iteration, slowest rank; NaN: no remaining rank knows it
};

/// Period of an elastic training with one set of ranks under one plan.
struct EpochRecord {
  std::int64_t epoch = 0;
  std::int64_t first_iteration = 0;
  std::string plan_toml{};
};

/// Breakdown of the time of an iteration: for each part the mean over ranks, and the slowest rank.
struct PartsRecord {
  std::int64_t iteration = 0;
  struct Part {
    Seconds mean{};
    Seconds slowest{};
  };
  Part forward{};
  Part backward{};
  Part wait_activation{};  ///< waiting for messages of the previous stage
  Part wait_gradient{};    ///< waiting for messages of the next stage
  Part reduction{};        ///< gradient synchronisation, as far as it does not overlap with the backward passes
  Part update{};
};

struct RankRecord {
  int rank = 0;
  int pipeline = 0;
  int stage = 0;
  int tensor_parallel_index = 0;
  std::string host{};
  Bytes peak_tensor_memory{};  ///< largest sum of tensors alive at once, from the allocator
  Bytes
      peak_resident_memory{};  ///< largest resident set of the process (VmHWM); of a rank on a GPU, what is taken there
};

struct RunRecord {
  Provenance provenance{};
  std::string plan_toml{};     ///< the plan as it was run; of an elastic training, the last one
  int warm_up_iterations = 0;  ///< first iterations, of every epoch, that statistics ignore
  std::vector<IterationRecord> iterations{};
  std::vector<RankRecord> ranks{};
  std::vector<PartsRecord> parts{};   ///< by iteration; empty in files of earlier versions
  std::vector<EpochRecord> epochs{};  ///< of an elastic training, by first iteration
  std::string events{};               ///< of an elastic training: the lines of its events.jsonl so far

  /// Adds an iteration. Iterations that are run again replace those of the first time, parts included.
  void add(const IterationRecord& iteration);
  /// Begins an epoch of an elastic training. Those that began at the same iteration or later are void.
  void add(EpochRecord epoch);
  /// Iterations under plan_toml after the warm-up, whose time is known: statistics are over these.
  [[nodiscard]] std::vector<IterationRecord> counted_iterations() const;
  [[nodiscard]] TimeStatistics iteration_time() const;
  [[nodiscard]] Bytes peak_resident_memory() const;  ///< largest over ranks
};

/// Writes the file atomically. An empty provenance.date is set to the current time. Errors: io, invalid_input.
Result<void> save_run(const RunRecord& run, const std::filesystem::path& path);
/// Errors: not_found, invalid_input (no HDF5, not a run file, other schema version), naming the file.
Result<RunRecord> load_run(const std::filesystem::path& path);

}  // namespace sailor
