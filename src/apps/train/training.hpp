// The work of sailor-train on a rank, with fixed or elastic ranks: it reads the inputs, runs the iterations and writes
// the outputs.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "apps/train/checkpoints.hpp"
#include "apps/train/device_choice.hpp"
#include "apps/train/recording.hpp"
#include "apps/train/run_record.hpp"
#include "apps/train/train_options.hpp"
#include "cluster/gpu_catalogue.hpp"
#include "core/error.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "runtime/control.hpp"
#include "runtime/data/samples.hpp"
#include "runtime/trainer.hpp"
#include "runtime/trainer_settings.hpp"

namespace sailor::apps {

/// The inputs, which every rank reads by itself so that each rank finds out what it cannot read.
struct TrainingInputs {
  Plan plan;
  Model model;
  GpuCatalogue catalogue;
  DeviceChoice choice;
};

/// Reads PLAN and the files it names. `started_ranks`: number of ranks that the plan must have; std::nullopt: any.
Result<TrainingInputs> read_training_inputs(const TrainOptions& options, const Environment& environment,
                                            std::optional<int> started_ranks);

runtime::TrainerSettings trainer_settings(const TrainOptions& options);

/// Warnings about what was asked for, on the rank that speaks.
void warn_of_training_options(const TrainOptions& options, const Plan& plan, const Model& model,
                              const runtime::Samples& samples, const runtime::TrainerSettings& settings);

/// The files that a run reads, which must not be overwritten.
std::vector<std::string> files_of_run(const TrainOptions& options);

/// Collective: prints the header, "# plan.toml: ...", on rank 0.
void print_training_header(const TrainOptions& options, const Plan& plan, const std::string& devices,
                           const runtime::Trainer& trainer, runtime::Control& control);

/// The objects that a rank trains with.
struct TrainingRun {
  const TrainOptions& options;
  runtime::Control& control;  ///< control plane of the ranks of the plan
  runtime::Trainer& trainer;
  Checkpoints& checkpoints;
  Recording& recording;
  RunFile& run_file;
  /// Whether all ranks should end after the current iteration, for another reason than a signal. May be null.
  std::function<bool()> wants_end{};
  /// Called after each iteration; `next` is the iteration to run next. May be null.
  std::function<void(std::int64_t next, const runtime::IterationResult& result)> after{};
};

/// How run_iterations() ended.
struct IterationsEnd {
  std::int64_t next = 0;   ///< next iteration to run
  bool by_signal = false;  ///< some rank received a signal
  bool by_wish = false;    ///< TrainingRun::wants_end of some rank
  std::string diverged;    ///< reason of the divergence; empty: none
};

/// Prints the line of an iteration below the header. Where `result.time` is not finite, time and tokens/s are "-".
void print_iteration(std::int64_t iteration, const runtime::IterationResult& result, const TrainingJob& job);

/// Collective: runs the remaining iterations. Errors are agreed on.
Result<IterationsEnd> run_iterations(const TrainingRun& run);

/// Collective, after the last iteration or a signal: writes the last checkpoint, the run file and the trace. Returns
/// the exit status. Errors are agreed on (failure: training diverged).
Result<int> finish_training(const TrainingRun& run, const IterationsEnd& end);

}  // namespace sailor::apps
