// Measured runs to compare predictions with: a TOML file of cases, and summary statistics of the errors.
//
//   schema_version = 1
//   title = "OPT-350M on GH200"
//   source = "who measured it, and where it is published"
//   framework = "megatron-deepspeed"
//
//   [[cases]]
//   name = "16 nodes, 4 pipelines of 4 stages"
//   iteration_time_s = 2.72578
//   peak_memory_bytes = 25140658176
//   plan = "plan.toml"               # or [cases.plan] with the keys of plan.toml
//
//   [[cases]]
//   name = "a run of sailor-train"
//   run = "run.h5"                   # plan, time and memory are in it
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "core/units.hpp"
#include "plan/plan.hpp"

namespace sailor::simulator {

/// One measured run.
struct Case {
  std::string name;
  std::string note;       ///< may be empty
  bool artefact = false;  ///< known not to measure what is predicted (see `note`); errors are given with and without it
  Plan plan;
  Seconds iteration_time{};
  /// 95% interval for the time of a repetition of the whole measurement; both ends or neither.
  std::optional<Seconds> iteration_time_low;
  std::optional<Seconds> iteration_time_high;
  std::optional<Bytes> peak_memory;  ///< largest over ranks
};

struct CaseFile {
  std::string title;
  std::string source;
  std::string framework;    ///< name of a framework description, see find_framework()
  std::vector<Case> cases;  ///< at least one; names differ
};

/// Paths of plans and runs in the file are relative to its folder. Errors: not_found, io, invalid_input with file, line
/// and column.
Result<CaseFile> load_cases(const std::filesystem::path& path);
/// The same from text; `source_name` stands for the file in messages, `folder` for its folder.
Result<CaseFile> parse_cases(std::string_view text, std::string_view source_name, const std::filesystem::path& folder);

/// Relative errors, predicted / measured - 1, of several cases.
struct ErrorSummary {
  std::size_t cases = 0;
  double mean = 0.0;    ///< of the absolute errors, as are the next three
  double median = 0.0;  ///< quantile() of 0.5
  double p95 = 0.0;     ///< quantile() of 0.95
  double largest = 0.0;
  double bias = 0.0;    ///< signed mean: below 0 when predictions are too low
  double lowest = 0.0;  ///< the smallest signed error
};
/// All fields are 0 if there are no errors.
ErrorSummary summarize_errors(std::span<const double> errors);

}  // namespace sailor::simulator
