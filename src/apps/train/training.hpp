// What sailor-train does on a rank, whether its ranks are there for good or come and go: it reads the inputs, runs the
// iterations and writes what was asked for.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "apps/options.hpp"
#include "apps/train/checkpoints.hpp"
#include "apps/train/device_choice.hpp"
#include "apps/train/recording.hpp"
#include "apps/train/run_record.hpp"
#include "cluster/gpu_catalogue.hpp"
#include "core/error.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "runtime/control.hpp"
#include "runtime/data/samples.hpp"
#include "runtime/trainer.hpp"
#include "runtime/trainer_settings.hpp"

namespace sailor::apps {

/// What every rank reads by itself, so that each finds out what it cannot read.
struct TrainingInputs {
  Plan plan;
  Model model;
  GpuCatalogue catalogue;
  DeviceChoice choice;
};

/// PLAN and what it names. `started_ranks`: the plan must have as many; nothing: any number.
Result<TrainingInputs> read_training_inputs(const Options& options, const Environment& environment,
                                            std::optional<int> started_ranks);

runtime::TrainerSettings trainer_settings(const Options& options);

/// Warnings about what was asked for, on the rank that speaks.
void warn_of_training_options(const Options& options, const Plan& plan, const runtime::Samples& samples,
                              const runtime::TrainerSettings& settings);

/// The files that a run reads, which must not be overwritten.
std::vector<std::string> files_of_run(const Options& options);

/// Collective: "# plan.toml: ..." on rank 0.
void print_training_header(const Options& options, const Plan& plan, const std::string& devices,
                           const runtime::Trainer& trainer, runtime::Control& control);

/// What a rank trains with.
struct TrainingRun {
  const Options& options;
  runtime::Control& control;  ///< of the ranks of the plan
  runtime::Trainer& trainer;
  Checkpoints& checkpoints;
  Recording& recording;
  RunFile& run_file;
  /// Whether all ranks should end after the running iteration, for another reason than a signal. Null: never.
  std::function<bool()> wants_end{};
  /// After each iteration; `next` is to run next. Null: nobody wants to know.
  std::function<void(std::int64_t next, const runtime::IterationResult& result)> after{};
};

/// How iterations ended.
struct IterationsEnd {
  std::int64_t next = 0;   ///< iteration to run next
  bool by_signal = false;  ///< some rank got one
  bool by_wish = false;    ///< TrainingRun::wants_end of some rank
  std::string diverged;    ///< why; empty: it did not
};

/// Collective: runs the iterations that are left. Errors are agreed on.
Result<IterationsEnd> run_iterations(const TrainingRun& run);

/// Collective, after the last iteration or a signal: the last checkpoint, the run file, the trace. Returns the exit
/// status. Errors are agreed on (failure: it diverged).
Result<int> finish_training(const TrainingRun& run, const IterationsEnd& end);

}  // namespace sailor::apps
