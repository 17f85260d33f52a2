#include "apps/train/checkpoints.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include "core/log.hpp"
#include "core/parse.hpp"
#include "core/terminal.hpp"
#include "runtime/mpi/mpi_session.hpp"

namespace sailor::apps {

std::vector<Option> checkpoint_options(TrainOptions& options) {
  return {option(options.checkpoints, {.name = "checkpoints",
                                       .value_name = "FOLDER",
                                       .help = "keep checkpoints here, and go on from the newest one that is there, "
                                               "whatever plan wrote it; one training at a time"}),
          option(options.checkpoint_every,
                 {.name = "checkpoint-every",
                  .value_name = "N",
                  .help = "write a checkpoint every N iterations; 0: only at the end and on a signal",
                  .default_value = "100",
                  .minimum = 0}),
          option(options.keep_checkpoints, {.name = "keep-checkpoints",
                                            .value_name = "N",
                                            .help = "number of newest checkpoints to keep; 0: all",
                                            .default_value = "2",
                                            .minimum = 0,
                                            .maximum = 1e6}),
          option(options.start_from, {.name = "start-from",
                                      .value_name = "CHECKPOINT",
                                      .help = "go on from this checkpoint when --checkpoints has none (one of "
                                              "sailor-checkpoint import: its weights)"})};
}

namespace {

/// Facts about this training from Slurm and the environment.
runtime::OwnerFacts facts_of_this_training(const Environment& environment, const std::string& host) {
  runtime::OwnerFacts facts = runtime::facts_of_this_process(host);
  const auto value = [&](const char* name) {
    const auto found = environment.find(name);
    return found == environment.end() ? std::string() : found->second;
  };
  facts.user = value("USER");
  if (const std::string job = value("SLURM_JOB_ID"); !job.empty()) {
    const std::string cluster = value("SLURM_CLUSTER_NAME");
    facts.job = cluster.empty() ? job : cluster + "/" + job;
    facts.restart = parse_count(value("SLURM_RESTART_COUNT")).value_or(0);
  }
  return facts;
}

/// The absolute path with links resolved as far as the path exists: for a prefix of files, as in --data, in its folder.
std::string whole_path(const std::string& path) {
  std::error_code code;
  const std::filesystem::path whole = std::filesystem::weakly_canonical(std::filesystem::absolute(path, code), code);
  return code ? path : whole.string();
}

}  // namespace

bool is_same_data(const std::string& then, const std::string& now) {
  if (then == now || whole_path(then) == whole_path(now)) return true;
  // Sailor 0.1 stored the path as typed, without the folder it was relative to.
  const std::filesystem::path typed = std::filesystem::path(then).lexically_normal();
  return typed.is_relative() && !typed.empty() && *typed.begin() != ".." &&
         whole_path(now).ends_with("/" + typed.string());
}

Checkpoints::Checkpoints(const TrainOptions& options, const Environment& environment, runtime::Control& world,
                         runtime::Trainer& trainer)
    : state_(trainer.state()),
      world_(world),
      trainer_(trainer),
      start_from_(*options.start_from),
      folder_(*options.checkpoints),
      every_(*options.checkpoint_every),
      keep_(*options.keep_checkpoints),
      claimant_(facts_of_this_training(environment, world.host())) {
  const Plan& plan = state_.plan();
  facts_.model = state_.model();
  facts_.plan = plan_to_toml(plan);
  facts_.training = {.seed = static_cast<std::uint64_t>(*options.seed),
                     .sequence_length = plan.job.sequence_length,
                     .global_batch = plan.job.global_batch,
                     .data = whole_path(*options.data),
                     .settings = {}};
  for (const auto* setting :
       OptionList{&options.learning_rate, &options.min_learning_rate, &options.warm_up_iterations,
                  &options.decay_iterations, &options.weight_decay, &options.clip_norm, &options.router_aux_loss})
    facts_.training.settings[setting->name()] = setting->text();
}

Result<void> Checkpoints::claim() {
  std::optional<runtime::FolderClaim> claim;
  if (world_.rank() == 0) claim.emplace(folder_, claimant_);
  // Rank 0 may have to watch for a while an owner that seems to be dead. The other ranks must not block for long in one
  // call.
  std::string told;
  while (world_.min(!claim || claim->look() ? 1.0 : 0.0) < 1.0) {
    if (claim && told.empty() && !claim->waits_for().empty()) log_info("waits for {}", told = claim->waits_for());
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  Result<void> done;
  if (claim) {
    auto owner = claim->result();
    if (owner)
      owner_ = *std::move(owner);
    else
      done = fail(owner.error(), "--checkpoints");
  }
  SAILOR_CHECK(runtime::agree(world_, done));
  writer_ = std::make_unique<runtime::CheckpointWriter>(state_.device(), folder_, keep_, owner_.get());
  return {};
}

Result<void> Checkpoints::keep() { return folder_.empty() ? Result<void>() : claim(); }

void Checkpoints::claim_as(std::string job, std::int64_t start) {
  claimant_.job = std::move(job);
  claimant_.restart = start;
}

void Checkpoints::abandon() {
  if (writer_ != nullptr) writer_->abandon();
}

/// Path of the checkpoint that rank 0 finds, on all ranks, so that all resume from the same; empty: none.
Result<std::string> Checkpoints::find() {
  std::string path;
  const auto look = [&]() -> Result<void> {
    if (!folder_.empty()) {
      const auto entries = runtime::list_checkpoints(folder_);
      if (!entries) return fail(entries.error(), "--checkpoints");
      if (const runtime::CheckpointEntry* const newest = runtime::newest_valid(*entries)) {
        path = newest->path.string();
        runtime::warn_of_damaged(*entries);
      } else if (const auto damaged = std::find_if(entries->begin(), entries->end(),
                                                   [](const auto& entry) { return entry.is_damaged(); });
                 damaged != entries->end()) {
        // The user must decide whether to start anew: the progress of the damaged checkpoint is unknown.
        return fail(ErrorCode::invalid_input,
                    fmt::format("--checkpoints: '{}' is damaged, and there is no other checkpoint: {}",
                                damaged->path.string(), damaged->problem),
                    "bring its files back; or move it away, and the training begins anew");
      }
    }
    if (path.empty() && !start_from_.empty()) {
      auto found = runtime::resolve_checkpoint(start_from_);
      if (!found) return fail(found.error(), "--start-from");
      path = found->string();
    }
    return {};
  };
  SAILOR_CHECK(runtime::agree(world_, world_.rank() == 0 ? look() : Result<void>()));
  return world_.broadcast(std::move(path));
}

Result<void> Checkpoints::resume() {
  if (!folder_.empty()) SAILOR_CHECK(claim());
  std::string before;
  while (true) {
    const auto path = find();
    if (!path) return fail(path.error());
    if (path->empty()) return {};
    const Result<void> loaded = load(*path);
    // The previous owner of the folder may have removed it a moment ago, since there is a newer one.
    std::error_code code;
    const bool gone = !loaded && *path != before && !std::filesystem::exists(*path, code);
    if (world_.max(gone ? 1.0 : 0.0) > 0.0) {
      before = *path;
      continue;
    }
    SAILOR_CHECK(runtime::agree(world_, loaded));
    if (world_.rank() == 0) log_info("goes on at iteration {} from {}", state_.iteration(), *path);
    return {};
  }
}

Result<void> Checkpoints::load(const std::string& path) {
  auto loaded = runtime::load(path, state_.model(), state_.device(), state_.parameters(), state_.optimizer());
  if (!loaded) return fail(loaded.error());
  newest_ = loaded->iteration;
  state_.restore(loaded->iteration, loaded->training && loaded->training->loss_scale ? *loaded->training->loss_scale
                                                                                     : state_.loss_scale());
  if (world_.rank() == 0) warn_of_changes(loaded->training, path);
  return {};
}

void Checkpoints::warn_of_changes(const std::optional<runtime::TrainingFacts>& before, const std::string& path) const {
  if (!before) return;
  const auto compare = [&](std::string_view what, const auto& then, const auto& now, std::string_view effect) {
    if (then != now) log_warning("{} was trained with {} {}, now {}{}", path, what, then, now, effect);
  };
  const runtime::TrainingFacts& now = facts_.training;
  constexpr std::string_view order = ": samples come in another order than they would have";
  compare("--seed", before->seed, now.seed, order);
  compare("sequence_length", before->sequence_length, now.sequence_length, order);
  compare("global_batch", before->global_batch, now.global_batch, order);
  if (!is_same_data(before->data, now.data)) compare("--data", before->data, now.data, "");
  for (const auto& [name, value] : now.settings)
    if (const auto then = before->settings.find(name); then != before->settings.end())
      compare("--" + name, then->second, value, "");
    else if (name == "router-aux-loss")  // of checkpoints from before there was one
      compare("--" + name, std::string("0"), value, "");
}

void Checkpoints::begin(std::int64_t next_iteration) {
  trainer_.settle();
  if (const runtime::LossScale& scale = state_.loss_scale(); scale.factor != 1.0 || scale.skipped > 0)
    facts_.training.loss_scale = scale;
  report(
      writer_->begin(world_, next_iteration, state_.parameters(), state_.optimizer(), state_.sums().counted, facts_));
}

void Checkpoints::report(const std::optional<runtime::CheckpointOutcome>& outcome) {
  if (!outcome) return;
  last_outcome_ = outcome->written;
  if (outcome->not_finite)
    must_end_ = Error{ErrorCode::failure, "training diverged: " + outcome->written.error().what,
                      "use a smaller --learning-rate, or --warm-up-iterations"};
  else if (outcome->taken_over)
    must_end_ = outcome->written ? Error{ErrorCode::unavailable, outcome->warning, {}} : outcome->written.error();
  if (outcome->written) newest_ = outcome->iteration;
  if (world_.rank() != 0) return;
  if (outcome->written)
    log_debug("checkpoint {} ({})", outcome->folder.string(), format_bytes(outcome->bytes));
  else if (!must_end_)
    log_warning("no checkpoint after {}: {}", plural(static_cast<std::size_t>(outcome->iteration), "iteration"),
                outcome->written.error().message());
  if (!outcome->warning.empty() && !must_end_) log_warning("{}", outcome->warning);
}

Result<void> Checkpoints::after(std::int64_t iteration) {
  if (!are_kept()) return {};
  if (every_ > 0 && (iteration + 1) % every_ == 0)
    begin(iteration + 1);
  else
    report(writer_->progress(world_));
  return must_end_ ? runtime::agree(world_, fail(*must_end_)) : Result<void>();
}

void Checkpoints::complete() {
  if (are_kept()) report(writer_->finish(world_));
}

Result<void> Checkpoints::finish(std::int64_t next_iteration) {
  if (!are_kept()) return {};
  complete();
  if (!must_end_ && newest_ != next_iteration) {
    begin(next_iteration);
    complete();
  }
  if (must_end_) return runtime::agree(world_, fail(*must_end_));
  if (newest_ == next_iteration) return {};
  // last_outcome_ is the same on all ranks, and reported already.
  return runtime::agree(world_, last_outcome_ ? fail(ErrorCode::failure, "the last checkpoint was not written")
                                              : fail(last_outcome_.error(), "the last checkpoint"));
}

}  // namespace sailor::apps
