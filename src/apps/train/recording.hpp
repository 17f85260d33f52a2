// Records `sailor-train --metrics` and `--trace`. All ranks hold one; rank 0 gathers and writes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/train/metrics.hpp"
#include "apps/train/train_options.hpp"
#include "cluster/gpu_catalogue.hpp"
#include "core/error.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "profile/run_file.hpp"
#include "runtime/trainer.hpp"

namespace sailor::apps {

/// --metrics, --trace, --trace-iteration.
std::vector<Option> recording_options(TrainOptions& options);

class Recording {
 public:
  Recording(const TrainOptions& options, const Plan& plan, const Model& model, const GpuCatalogue& gpus);

  /// Must be called before anything is computed, on rank 0: checks that the files can be written and are no inputs of
  /// the run. Opens --metrics.
  Result<void> open(const std::vector<std::string>& inputs);

  /// For an elastic training: sets the epoch of the following iterations.
  void set_epoch(int epoch) { epoch_ = epoch; }
  /// Must be called before Trainer::run().
  void before(std::int64_t iteration, runtime::Trainer& trainer) const;
  /// Collective, after Trainer::run(): std::nullopt if the summary is not needed (`wanted`: the caller needs it).
  std::optional<runtime::IterationSummary> after(std::int64_t iteration, const runtime::IterationResult& result,
                                                 runtime::Trainer& trainer, bool wanted);
  /// For an elastic training, on rank 0: adds an iteration without its metrics, since the rank that knew them is gone.
  void add_missed(std::int64_t iteration, const runtime::IterationResult& result);
  /// Collective, after the last iteration: writes the trace, if it is of that iteration.
  Result<void> finish(runtime::Trainer& trainer);

 private:
  Result<void> write_trace(runtime::Trainer& trainer);
  void add_metrics(const IterationMetrics& metrics);

  const Plan& plan_;
  const Model& model_;
  const GpuCatalogue& gpus_;
  std::string metrics_path_;
  std::string trace_path_;
  std::int64_t trace_iteration_ = -1;  // -1: the last
  std::optional<int> epoch_;
  std::optional<MetricsFile> metrics_;
  bool traced_ = false;
  bool warned_ = false;
};

/// The summary for the run file.
PartsRecord parts_record(std::int64_t iteration, const runtime::IterationSummary& summary);

}  // namespace sailor::apps
