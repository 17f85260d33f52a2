#include "apps/train/training.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "apps/stop_requests.hpp"
#include "core/log.hpp"
#include "core/shell.hpp"
#include "core/stop_status.hpp"
#include "core/terminal.hpp"
#include "plan/plan_origin.hpp"

namespace sailor::apps {

namespace {

constexpr std::int64_t run_file_interval = 20;  // iterations between two writes of the run file

void print_summary(const RunRecord& run, bool is_on_host) {
  const TimeStatistics time = run.iteration_time();
  Bytes tensors;
  for (const RankRecord& rank : run.ranks) tensors = std::max(tensors, rank.peak_tensor_memory);
  fmt::print("# iteration time: median {}, p10 {}, p90 {} over {} after {} of warm-up\n", format_time(time.median),
             format_time(time.p10), format_time(time.p90), plural(static_cast<std::size_t>(time.samples), "iteration"),
             run.warm_up_iterations);
  fmt::print("# peak memory of a rank: {} in tensors, {} {}\n", format_bytes(tensors),
             format_bytes(run.peak_resident_memory()), is_on_host ? "resident" : "of the GPU taken");
}

std::string describe_divergence(std::int64_t iteration, const runtime::IterationResult& result, bool in_fp16) {
  if (!std::isfinite(result.loss)) return fmt::format("the loss of iteration {} is {}", iteration, result.loss);
  return fmt::format("the gradient norm of iteration {} is {} (its loss is {:.6g}){}; the weights were not changed",
                     iteration, result.gradient_norm, result.loss,
                     in_fp16 ? ", and the loss scale cannot become smaller" : "");
}

void warn_of_learning_rate(const runtime::LearningRate& schedule) {
  if (schedule.decay_iterations <= 0) return;
  if (schedule.least > schedule.peak)
    log_warning("--min-learning-rate {:g} is over --learning-rate {:g}: it rises where it should fall", schedule.least,
                schedule.peak);
  if (schedule.decay_iterations <= schedule.warm_up_iterations)
    log_warning("--decay-iterations {} ends with the warm-up ({}): the learning rate falls at once",
                schedule.decay_iterations, schedule.warm_up_iterations);
}

/// Warns of too little data: repeated samples teach less.
void warn_of_little_data(const Plan& plan, const runtime::Samples& samples, const TrainOptions& options) {
  const std::int64_t iterations = *options.iterations;
  const double times = static_cast<double>(iterations) * plan.job.global_batch / static_cast<double>(samples.size());
  if (times <= 1.0) return;
  log_warning("--data {} has {} samples of {} tokens: in {} of {} each is seen {:.1f} times", *options.data,
              samples.size(), plan.job.sequence_length, plural(static_cast<std::size_t>(iterations), "iteration"),
              plan.job.global_batch, times);
}

}  // namespace

Result<TrainingInputs> read_training_inputs(const TrainOptions& options, const Environment& environment,
                                            std::optional<int> started_ranks) {
  TrainingInputs inputs;
  auto read_plan = load_plan(*options.plan);
  if (!read_plan) return fail(read_plan.error());
  inputs.plan = std::move(*read_plan);
  if (const auto placed = environment.find("SAILOR_PLAN_FINGERPRINT"); placed != environment.end() &&
                                                                       environment.contains("SAILOR_RANK") &&
                                                                       placed->second != plan_fingerprint(inputs.plan))
    return fail(ErrorCode::invalid_input, fmt::format("{}: the ranks have been placed for another plan", *options.plan),
                "give sailor-launch (or --sailor-plan) the same plan");
  auto found = find_model(inputs.plan, models_folder(options.models, environment));
  if (!found) return fail(found.error(), *options.plan);
  inputs.model = std::move(*found);
  if (auto checked = runtime::check_trainable(inputs.plan, inputs.model, started_ranks.value_or(inputs.plan.ranks()));
      !checked)
    return fail(checked.error(), *options.plan);
  auto gpus = GpuCatalogue::load(gpus_file(options.gpus, environment));
  if (!gpus) return fail(gpus.error());
  inputs.catalogue = std::move(*gpus);
  auto chosen = choose_devices(options, inputs.plan, inputs.catalogue);
  if (!chosen) return fail(chosen.error(), *options.plan);
  inputs.choice = *chosen;
  return inputs;
}

runtime::TrainerSettings trainer_settings(const TrainOptions& options) {
  return {.seed = static_cast<std::uint64_t>(*options.seed),
          .optimizer = {.weight_decay = static_cast<float>(*options.weight_decay)},
          .learning_rate = {.peak = static_cast<float>(*options.learning_rate),
                            .least = static_cast<float>(*options.min_learning_rate),
                            .warm_up_iterations = *options.warm_up_iterations,
                            .decay_iterations = *options.decay_iterations},
          .clip_norm = *options.clip_norm,
          .router_aux_loss = static_cast<float>(*options.router_aux_loss),
          .loss_scale = {.initial = *options.loss_scale, .window = *options.loss_scale_window}};
}

void warn_of_training_options(const TrainOptions& options, const Plan& plan, const Model& model,
                              const runtime::Samples& samples, const runtime::TrainerSettings& settings) {
  warn_of_little_data(plan, samples, options);
  warn_of_learning_rate(settings.learning_rate);
  if (settings.router_aux_loss > 0.0f && model.experts.count == 0)
    log_warning("--router-aux-loss does nothing: {} has no experts", model.name);
}

std::vector<std::string> files_of_run(const TrainOptions& options) {
  const std::string& prefix = *options.data;
  return {*options.plan, prefix + ".bin", prefix + ".idx"};
}

void print_training_header(const TrainOptions& options, const Plan& plan, const std::string& devices,
                           const runtime::Trainer& trainer, runtime::Control& control) {
  // Max number of communicators of a rank, plus the world.
  const auto communicators = static_cast<std::int64_t>(control.max(static_cast<double>(trainer.communicators()))) + 1;
  if (control.rank() != 0) return;
  fmt::print("# {}: {} in {}, {}; {}, {} x {} tokens per iteration; up to {} per rank\n", *options.plan, plan.job.model,
             to_string(plan.job.precision), describe(plan), plural(static_cast<std::size_t>(plan.ranks()), "rank"),
             plan.job.global_batch, plan.job.sequence_length,
             plural(static_cast<std::size_t>(communicators), "communicator"));
  fmt::print("# on {}\n", devices);
  if (communicators > *options.max_communicators)
    log_warning("a rank is in {} communicators, more than {} (--max-communicators)", communicators,
                *options.max_communicators);
  fmt::print("# {:>9} {:>10} {:>10} {:>10}\n", "iteration", "loss", "time_ms", "tokens/s");
}

void print_iteration(std::int64_t iteration, const runtime::IterationResult& result, const TrainingJob& job) {
  const double seconds = result.time.value();
  const bool known = std::isfinite(seconds);
  fmt::print("{:>11} {:>10.5f} {:>10} {:>10}\n", iteration, result.loss,
             known ? fmt::format("{:.1f}", seconds * 1e3) : "-",
             known ? fmt::format("{:.0f}", job.tokens() / seconds) : "-");
  std::fflush(stdout);
}

Result<IterationsEnd> run_iterations(const TrainingRun& run) {
  const TrainOptions& options = run.options;
  runtime::Trainer& trainer = run.trainer;
  const runtime::TrainingState& state = trainer.state();
  const Plan& plan = state.plan();
  const bool speaks = run.control.rank() == 0;
  const std::int64_t iterations = *options.iterations;
  IterationsEnd end{.next = state.iteration(), .diverged = {}};
  std::int64_t& iteration = end.next;
  bool stopped = false;
  bool diverged = false;
  for (; iteration < iterations && !stopped && !diverged; ++iteration) {
    run.recording.before(iteration, trainer);
    const bool wishes_end = run.wants_end && run.wants_end();
    const runtime::IterationResult result =
        trainer.run(stop_request() != 0 || run.checkpoints.are_taken_over() || wishes_end);
    stopped = result.stop;
    diverged = result.diverged;
    if (stopped && run.wants_end) {
      end.by_signal = run.control.max(stop_request() != 0 || run.checkpoints.are_taken_over() ? 1.0 : 0.0) > 0.0;
      end.by_wish = !end.by_signal;
    } else {
      end.by_signal = stopped;
    }
    if (diverged) end.diverged = describe_divergence(iteration, result, plan.job.precision == Precision::fp16);
    if (!result.updated && !diverged && speaks)
      log_info("iteration {}: gradients overflow in fp16; the step is skipped, the loss scale is now {:.0f}", iteration,
               state.loss_scale().factor);
    run.run_file.add(iteration, result, run.recording.after(iteration, result, trainer, run.run_file.is_wanted()));
    if (speaks && (iteration % *options.log_every == 0 || iteration + 1 == iterations || stopped || diverged)) {
      print_iteration(iteration, result, plan.job);
    }
    if (run.after) run.after(iteration + 1, result);
    if (!diverged && !stopped && iteration + 1 < iterations) SAILOR_CHECK(run.checkpoints.after(iteration));
    if (end.by_signal && speaks && !run.checkpoints.are_taken_over())
      log_info("stopped after iteration {} on a signal ({} of {} iterations done){}", iteration, iteration + 1,
               iterations,
               run.checkpoints.are_kept()    ? "; a checkpoint is written now"
               : iteration + 1 == iterations ? ""
                                             : "; without --checkpoints the trained weights are lost");
    if ((iteration + 1) % run_file_interval == 0 && iteration + 1 < iterations && !stopped && !diverged)
      if (const auto written = run.run_file.write(trainer); !written)  // training goes on; the last write counts
        log_warning("{}", written.error().message());
  }
  return end;
}

/// Rank 0 names what comes after a training: its prediction beside the run file, and its checkpoints.
void suggest_after_training(const TrainOptions& options, const Plan& plan) {
  std::vector<std::string> commands;
  if (options.run_file.has())
    commands.push_back(fmt::format("sailor-simulate {} --against {}{}", shell_quote(*options.plan),
                                   shell_quote(*options.run_file),
                                   plan.origin.profile_store.empty() ? " --profile STORE" : ""));
  if (options.checkpoints.has())
    commands.push_back(fmt::format("sailor-checkpoint list {}", shell_quote(*options.checkpoints)));
  suggest_next(commands);
}

Result<int> finish_training(const TrainingRun& run, const IterationsEnd& end) {
  const TrainOptions& options = run.options;
  const bool speaks = run.control.rank() == 0;
  const bool stopped = end.by_signal;
  const bool diverged = !end.diverged.empty();
  const bool all_done = end.next >= *options.iterations;
  // Weights that are NaN must not replace good ones; a checkpoint begun earlier is good.
  if (diverged)
    run.checkpoints.complete();
  else
    SAILOR_CHECK(run.checkpoints.finish(end.next));
  if (stopped && speaks && !diverged && run.checkpoints.are_kept())
    log_info("the checkpoint of iteration {} is in {}{}", end.next, *options.checkpoints,
             all_done ? "" : ": the same command goes on from there");
  // Written twice in a short run: HDF5 stays in memory from its first file on, and the recorded peaks include what was
  // allocated before. Ranks that joined late have recorded less.
  const auto recorded = static_cast<double>(run.run_file.record().iterations.size());
  if (run.control.max(recorded) < static_cast<double>(run_file_interval))
    SAILOR_CHECK(agree(run.control, run.run_file.write(run.trainer)));
  SAILOR_CHECK(agree(run.control, run.run_file.write(run.trainer)));
  SAILOR_CHECK(agree(run.control, run.recording.finish(run.trainer)));
  if (speaks) print_summary(run.run_file.record(), run.trainer.state().device().computes_on_host());
  if (diverged)
    SAILOR_CHECK(agree(run.control, fail(ErrorCode::failure, "training diverged: " + end.diverged,
                                         "use a smaller --learning-rate, or --warm-up-iterations")));
  if (speaks) suggest_after_training(options, run.trainer.state().plan());
  if (!stopped || all_done) return 0;
  return run.checkpoints.are_kept() ? stopped_with_checkpoint : stopped_without_checkpoint;
}

}  // namespace sailor::apps
