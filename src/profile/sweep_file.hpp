// The tables of a sweep of planners (sailor-sweep): one row for each point, in HDF5 for programs and in CSV for
// people. Written whole and renamed into place.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "core/units.hpp"
#include "profile/measurements.hpp"

namespace sailor {

/// Evaluation of a plan by one judge. Empty: not reported.
struct SweepScore {
  std::optional<Seconds> iteration_time{};
  std::optional<double> throughput{};  ///< iterations/s
  std::optional<Usd> cost{};           ///< per iteration, egress included
  std::optional<Usd> egress_cost{};    ///< per iteration
  std::optional<Bytes> peak_memory{};  ///< of the device with the highest use
  std::optional<bool> fits{};
};

enum class SweepStatus {
  plan,     ///< the planner found a plan that its judge accepts
  no_plan,  ///< the planner says that there is none
  failed,   ///< the planner gave no answer
};
std::string_view to_string(SweepStatus status);

/// A point of a sweep, and its result.
struct SweepRow {
  std::string experiment{};
  std::string planner{};
  std::string model{};
  std::string cluster{};
  std::string constraint{};
  std::int64_t repetition = 0;
  SweepStatus status = SweepStatus::failed;
  std::string why{};  ///< why there is no plan; empty where there is one

  SweepScore judged{};                               ///< by the judge that chose the plan
  SweepScore artifact{};                             ///< by the evaluator of the Sailor artifact
  SweepScore simulator{};                            ///< by Sailor's simulator
  std::optional<bool> simulator_is_bound{};          ///< the simulator's time is a lower bound only
  std::optional<double> expected_throughput{};       ///< as the planner itself expects
  std::optional<Usd> expected_cost{};                ///< likewise
  std::optional<std::int64_t> gpus{};                ///< number of GPUs that the plan uses
  std::string gpu_types{};                           ///< "27 A100-40 + 24 V100-16"
  std::string description{};                         ///< the plan in a line
  std::optional<std::int64_t> proposed{};            ///< plans that the planner proposed
  std::optional<std::int64_t> did_not_fit{};         ///< plans before the accepted one that do not fit into memory
  std::optional<std::int64_t> rejected_by_limits{};  ///< plans before it that miss the budget or the throughput
  std::optional<bool> out_of_time{};                 ///< the search was ended by its time limit
  std::string notes{};

  // Measured: these differ from run to run.
  std::optional<Seconds> search_time{};  ///< as the planner reports it
  std::optional<Seconds> wall_time{};    ///< of the process, including reading its inputs
  std::optional<Seconds> processor_time{};
  std::optional<Bytes> peak_resident_memory{};  ///< of the process
};

struct SweepRecord {
  Provenance provenance{};        ///< an empty date is set to the current one
  std::string experiment_toml{};  ///< as it was run
  std::vector<SweepRow> rows{};
};

/// Writes the file atomically. Unknown numbers are NaN in it (-1 where they are counts). Errors: io, invalid_input.
Result<void> save_sweep(const SweepRecord& sweep, const std::filesystem::path& path);
/// Errors: not_found, invalid_input (no HDF5, no sweep, other schema version), naming the file.
Result<SweepRecord> load_sweep(const std::filesystem::path& path);

/// A header line, then one line for each row; unknown values are empty. Only the columns whose names begin with
/// "measured_" differ from run to run.
std::string sweep_csv(const std::vector<SweepRow>& rows);

}  // namespace sailor
