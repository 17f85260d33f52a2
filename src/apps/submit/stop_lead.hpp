// How long before its time limit a job has to be told to stop: long enough to end the iteration and to store a
// checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "core/units.hpp"
#include "plan/plan.hpp"

namespace sailor::apps {

/// Known or estimated time of writing a checkpoint of a training.
struct CheckpointTime {
  Bytes bytes{};
  Seconds writing{};
  std::string source;  ///< "as the last one did"
};

/// Measured by the newest checkpoint in the folder; std::nullopt if none says how long it took.
std::optional<CheckpointTime> measured_checkpoint_time(const std::filesystem::path& folder);

/// Estimated from the model's size and the min write rate of each node (a site file's write_per_node_bytes_per_s).
CheckpointTime estimated_checkpoint_time(std::int64_t parameters, BytesPerSecond per_node, int nodes);

struct StopLead {
  Seconds time{};
  std::string reason;   ///< "a checkpoint of 12.3 GiB takes about 40 s, as the last one did"
  std::string problem;  ///< why the time may not be enough; empty: it is enough
};

/// Chooses the lead for a job with the time limit (std::nullopt: not known). `checkpoint`: std::nullopt if nothing is
/// known of its time.
StopLead choose_stop_lead(const std::optional<CheckpointTime>& checkpoint, const std::optional<Seconds>& iteration,
                          const std::optional<Seconds>& time_limit);

}  // namespace sailor::apps
