// What `sailor-train --metrics` and `--trace` record. All ranks hold one: they gather on rank 0, which writes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/options.hpp"
#include "apps/train/metrics.hpp"
#include "cluster/gpu_catalogue.hpp"
#include "core/error.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "profile/run_file.hpp"
#include "runtime/trainer.hpp"

namespace sailor::apps {

/// --metrics, --trace, --trace-iteration.
std::vector<Option> recording_options();

class Recording {
 public:
  Recording(const Options& options, const Plan& plan, const Model& model, const GpuCatalogue& gpus);

  /// Before anything is computed, on rank 0: the files can be written and are no inputs of the run. Opens --metrics.
  Result<void> open(const std::vector<std::string>& inputs);

  /// Of an elastic training: what follows is of this epoch.
  void set_epoch(int epoch) { epoch_ = epoch; }
  /// Before Trainer::run().
  void before(std::int64_t iteration, runtime::Trainer& trainer) const;
  /// Collective, after it: nothing when nobody wants to know (`wanted`: somebody else does).
  std::optional<runtime::IterationSummary> after(std::int64_t iteration, const runtime::IterationResult& result,
                                                 runtime::Trainer& trainer, bool wanted);
  /// Of an elastic training, on rank 0: adds an iteration of which the metrics do not tell, since the rank that knew
  /// what it took is gone.
  void add_missed(std::int64_t iteration, const runtime::IterationResult& result);
  /// Collective, after the last iteration: writes the trace, if it is of that one.
  Result<void> finish(runtime::Trainer& trainer);

 private:
  Result<void> write_trace(runtime::Trainer& trainer);
  void add_metrics(const IterationMetrics& metrics);
  [[nodiscard]] double tokens() const;

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

/// For the run file.
PartsRecord parts_record(std::int64_t iteration, const runtime::IterationSummary& summary);

}  // namespace sailor::apps
