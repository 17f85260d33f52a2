// Imports what other programs recorded of a training: the files of `sailor-profile import` that are no stores.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/gpu_catalogue.hpp"
#include "core/error.hpp"
#include "model/model.hpp"
#include "profile/measurements.hpp"
#include "profile/traces/training_rows.hpp"

namespace sailor::traces {

enum class RecordingForm {
  torch_trace,      ///< torch.profiler's export_chrome_trace(): JSON, also compressed with gzip
  megatron_timers,  ///< log of Megatron-LM with --timing-log-level 2
  nsys_sqlite,      ///< nsys export --type sqlite
};
std::string_view to_string(RecordingForm form);

/// The form of a file by its first kilobytes; std::nullopt: none of these. Errors: io.
Result<std::optional<RecordingForm>> recognise_recording(const std::filesystem::path& file);

/// Settings that the files do not contain.
struct RecordingOptions {
  const Model& model;
  const GpuCatalogue& gpus;
  std::string gpu{};  ///< empty: the GPU type that the file names
  TrainingFacts given{};
  LayerKernels kernels{};  ///< of the framework that trained
  int busy_ranks = 1;
};

/// Imports files of one form and one training as repetitions: traces of several ranks, or of several runs. The session
/// says what was assumed (Session::notes); its id and date are left empty. Errors: io, invalid_input (damaged; lacks
/// something, and how to record it; says something else than the options), usage (an option is missing), unavailable
/// (built without zlib or SQLite).
Result<ProfileData> import_recordings(const std::vector<std::filesystem::path>& files, RecordingForm form,
                                      const RecordingOptions& options);

}  // namespace sailor::traces
