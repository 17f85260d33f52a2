#include "apps/train/checkpoints.hpp"

#include <fmt/format.h>

#include "core/log.hpp"
#include "core/terminal.hpp"
#include "runtime/mpi/mpi_session.hpp"

namespace sailor::apps {

std::vector<Option> checkpoint_options() {
  return {{.name = "checkpoints",
           .value_name = "FOLDER",
           .help = "keep checkpoints here, and go on from the newest one that is there, whatever plan wrote it"},
          {.name = "checkpoint-every",
           .type = OptionType::integer,
           .value_name = "N",
           .help = "write one after every N iterations; 0: only at the end and on a signal",
           .default_value = "100",
           .minimum = 0},
          {.name = "keep-checkpoints",
           .type = OptionType::integer,
           .value_name = "N",
           .help = "newest checkpoints that stay; 0: all",
           .default_value = "2",
           .minimum = 0,
           .maximum = 1e6},
          {.name = "start-from",
           .value_name = "CHECKPOINT",
           .help = "go on from this checkpoint when --checkpoints has none (one of sailor-checkpoint import: its "
                   "weights)"}};
}

Checkpoints::Checkpoints(const Options& options, const Plan& plan, const Model& model, runtime::Device& device,
                         runtime::Communicator& world, runtime::Trainer& trainer)
    : device_(device),
      world_(world),
      trainer_(trainer),
      start_from_(options.text("start-from")),
      folder_(options.text("checkpoints")),
      every_(options.integer("checkpoint-every")) {
  facts_.model = model;
  facts_.plan = plan_to_toml(plan);
  facts_.training = {.seed = static_cast<std::uint64_t>(options.integer("seed")),
                     .sequence_length = plan.job.sequence_length,
                     .global_batch = plan.job.global_batch,
                     .data = options.text("data"),
                     .settings = {}};
  for (const char* name :
       {"learning-rate", "min-learning-rate", "warm-up-iterations", "decay-iterations", "weight-decay", "clip-norm"})
    facts_.training.settings[name] = options.text(name);
  if (!folder_.empty())
    writer_ = std::make_unique<runtime::CheckpointWriter>(device, folder_,
                                                          static_cast<int>(options.integer("keep-checkpoints")));
}

Result<std::int64_t> Checkpoints::resume() {
  // One rank looks, so that all go on from the same.
  std::string path;
  const auto look = [&]() -> Result<void> {
    if (!folder_.empty()) {
      auto newest = runtime::find_latest(folder_);
      if (!newest) return fail(newest.error(), "--checkpoints");
      if (*newest) path = (*newest)->path.string();
    }
    if (path.empty() && !start_from_.empty()) {
      auto found = runtime::resolve_checkpoint(start_from_);
      if (!found) return fail(found.error(), "--start-from");
      path = found->string();
    }
    return {};
  };
  SAILOR_CHECK(runtime::agree(world_, world_.rank() == 0 ? look() : Result<void>()));
  std::uint64_t length = path.size();
  world_.broadcast(&length, sizeof(length), 0);
  path.resize(length);
  if (length == 0) return 0;
  world_.broadcast(path.data(), path.size(), 0);
  SAILOR_CHECK(runtime::agree(world_, load(path)));
  if (world_.rank() == 0) spdlog::info("goes on at iteration {} from {}", first_, path);
  return first_;
}

Result<void> Checkpoints::load(const std::string& path) {
  auto loaded = runtime::load(path, facts_.model, device_, trainer_.parameters(), trainer_.optimizer());
  if (!loaded) return fail(loaded.error());
  first_ = newest_ = loaded->iteration;
  if (world_.rank() == 0) warn_of_changes(loaded->training, path);
  return {};
}

void Checkpoints::warn_of_changes(const std::optional<runtime::TrainingFacts>& before, const std::string& path) const {
  if (!before) return;
  const auto compare = [&](std::string_view what, const auto& then, const auto& now, std::string_view effect) {
    if (then != now) spdlog::warn("{} was trained with {} {}, now {}{}", path, what, then, now, effect);
  };
  const runtime::TrainingFacts& now = facts_.training;
  constexpr std::string_view order = ": samples come in another order than they would have";
  compare("--seed", before->seed, now.seed, order);
  compare("sequence_length", before->sequence_length, now.sequence_length, order);
  compare("global_batch", before->global_batch, now.global_batch, order);
  compare("--data", before->data, now.data, "");
  for (const auto& [name, value] : now.settings)
    if (const auto then = before->settings.find(name); then != before->settings.end())
      compare("--" + name, then->second, value, "");
}

void Checkpoints::begin(std::int64_t next_iteration) {
  report(writer_->begin(world_, next_iteration, trainer_.parameters(), trainer_.optimizer(),
                        trainer_.reducer().counted(), facts_));
}

void Checkpoints::report(const std::optional<runtime::CheckpointOutcome>& outcome) {
  if (!outcome) return;
  last_outcome_ = outcome->written;
  if (outcome->written) newest_ = outcome->iteration;
  if (world_.rank() != 0) return;
  if (!outcome->written)
    spdlog::warn("no checkpoint before iteration {}: {}", outcome->iteration, outcome->written.error().message());
  else
    spdlog::debug("checkpoint {} ({})", outcome->folder.string(), format_bytes(outcome->bytes));
  if (!outcome->warning.empty()) spdlog::warn("{}", outcome->warning);
}

void Checkpoints::after(std::int64_t iteration) {
  if (!are_kept()) return;
  if (every_ > 0 && (iteration + 1) % every_ == 0)
    begin(iteration + 1);
  else
    report(writer_->progress(world_));
}

Result<void> Checkpoints::finish(std::int64_t next_iteration) {
  if (!are_kept()) return {};
  report(writer_->finish(world_));
  if (newest_ == next_iteration) return {};
  begin(next_iteration);
  report(writer_->finish(world_));
  if (newest_ == next_iteration) return {};
  // The same on all ranks, and reported already.
  return runtime::agree(world_, last_outcome_ ? fail(ErrorCode::failure, "the last checkpoint was not written")
                                              : fail(last_outcome_.error(), "the last checkpoint"));
}

}  // namespace sailor::apps
