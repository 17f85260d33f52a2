// Checks measurements for likely errors: noise, throttled clocks, holes, impossible times. Does no file I/O.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "profile/measurements.hpp"

namespace sailor {

enum class Severity { note, warn, fail };
std::string_view to_string(Severity severity);

enum class Problem {
  zero_time,                    ///< a time of zero
  inconsistent_statistics,      ///< a median outside its own percentiles or interval
  missing_layer_kind,           ///< a combination of sizes without one of the model's kinds of layer
  missing_memory,               ///< times without memory
  missing_micro_batch,          ///< a hole between measured micro-batches
  slower_with_tensor_parallel,  ///< more devices take longer
  rising_time_per_sequence,     ///< a larger micro-batch costs more per sequence
  backward_faster,              ///< backward takes less time than forward
  wide_spread,                  ///< a large p90 - p10
  wide_interval,                ///< a wide interval of the median
  same_update,                  ///< one update time for all layers
  device_slowed,                ///< reference computations took longer for a while
  clocks_throttled,             ///< the clock fell
  old_session,                  ///< measured long ago
  falling_bandwidth,            ///< a link's bandwidth falls with the size of the message
  falling_time,                 ///< a longer message takes less time
  poor_fit,                     ///< a curve far from its points
};
std::string_view to_string(Problem problem);
/// Why the problem matters, and what to do about it.
std::string_view why_it_matters(Problem problem);
std::string_view remedy(Problem problem);

struct Finding {
  Problem problem = Problem::zero_time;
  Severity severity = Severity::warn;
  std::string where;    ///< "tiny-gpt on cpu, fp32, sequence 128", a link, a session
  std::string what;     ///< the numbers
  double excess = 0.0;  ///< how bad it is, to compare findings of one problem
  int count = 1;        ///< number of findings that fold_findings() merged into this one
};

/// Limits beyond which a value is suspicious. Shares: 0.1 = 10%.
struct CheckLimits {
  double spread = 0.10;                  ///< (p90 - p10) / median
  double interval = 0.10;                ///< (high - low) / median
  double time_per_sequence_rise = 0.20;  ///< against the next smaller micro-batch
  double tensor_parallel_rise = 0.02;    ///< over the next lower degree; the intervals must not overlap either
  double slowdown = 1.1;
  double clock = 0.9;  ///< lowest clock over highest
  double bandwidth_fall = 0.30;
  double fit_error = 0.15;
  int session_days = 365;
};

/// All findings, the worst severity first. `today`: ISO 8601, for the age of sessions; empty: the age is not checked.
std::vector<Finding> check_profile(const ProfileData& data, std::string_view today, const CheckLimits& limits = {});

/// Merges the findings of one problem and place into the worst of them, with their count.
std::vector<Finding> fold_findings(std::vector<Finding> findings);

}  // namespace sailor
