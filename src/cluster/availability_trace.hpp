// A trace of the number of GPUs that are there: how a cluster changes.
//
// The file (CSV, in the format that the authors of Sailor published) has a column Timestamp in seconds and, for each
// pair of GPU type and zone, a column GPU_ZONE with the number of GPUs. Other columns without a title, such as a row
// number, are skipped.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/cluster.hpp"
#include "cluster/gpu_catalogue.hpp"
#include "core/error.hpp"
#include "core/units.hpp"

namespace sailor {

struct AvailableGpus {
  std::string gpu;  ///< name in the catalogue
  std::string zone;
  int count = 0;
  bool operator==(const AvailableGpus&) const = default;
};

struct AvailabilityStep {
  Seconds start{};  ///< since the start of the first step
  Seconds duration{};
  std::vector<AvailableGpus> gpus;  ///< in the order of the columns; zero where there are none
};

/// Consecutive steps differ. `last_step`: duration of the last step, which the file does not contain. Errors:
/// invalid_input with the line (also unknown GPU types, times that do not increase); load_availability_trace() also
/// not_found, io.
Result<std::vector<AvailabilityStep>> parse_availability_trace(std::string_view text, std::string_view source_name,
                                                               const GpuCatalogue& gpus, Seconds last_step);
Result<std::vector<AvailabilityStep>> load_availability_trace(const std::filesystem::path& path,
                                                              const GpuCatalogue& gpus, Seconds last_step);

/// The cluster of a step. Its nodes have as many GPUs as those of this type and zone in `like` (else those of this type
/// in any zone, else 4); a smaller node holds the remainder. Prices and links are those of `like`. The region of a zone
/// that `like` does not have is the zone's name without its last letter: us-central1 for us-central1-a.
Cluster cluster_at(const AvailabilityStep& step, const Cluster* like, const GpuCatalogue& gpus);

}  // namespace sailor
