#include "apps/train/elastic.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>

#include "apps/devices.hpp"
#include "apps/stop_requests.hpp"
#include "apps/train/training.hpp"
#include "core/log.hpp"
#include "core/parse.hpp"
#include "core/process.hpp"
#include "elastic/folder.hpp"
#include "runtime/process_memory.hpp"
#include "runtime/recovery.hpp"
#include "runtime/sockets/member.hpp"

namespace sailor::apps {

namespace {

using runtime::Dismissal;
using runtime::Member;
using runtime::World;

constexpr double heartbeat_s = 1.0;             // the controller is content with one in five seconds
constexpr double controller_silence_s = 15.0;   // its supervisor replaces one that hangs earlier
constexpr std::int64_t busy_every = 10;         // iterations between two looks at a rank's own times
constexpr double end_after_dismissal_s = 30.0;  // of a process whose main thread hangs

std::optional<int> number_in(const Environment& environment, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (const auto found = environment.find(name); found != environment.end())
      if (const auto number = parse_count(found->second)) return static_cast<int>(*number);
  return std::nullopt;
}

/// What the last iteration's passes took on this rank's device, the time for others' messages not counted.
Seconds busy_time(runtime::Trainer& trainer) {
  const runtime::PartTimes& parts = trainer.timeline().parts();
  return parts[static_cast<std::size_t>(runtime::Part::forward)] +
         parts[static_cast<std::size_t>(runtime::Part::backward)];
}

/// What Slurm calls this node, else what it calls itself.
std::string node_name(const Environment& environment) {
  const auto node = environment.find("SLURMD_NODENAME");
  return node != environment.end() ? node->second : host_name();
}

/// This process through all epochs.
class ElasticRank {
 public:
  ElasticRank(const TrainOptions& options, const Environment& environment, const std::string& command,
              TrainingInputs inputs, runtime::Samples samples, RankDevice device)
      : options_(options),
        environment_(environment),
        inputs_(std::move(inputs)),
        samples_(std::move(samples)),
        settings_(trainer_settings(options)),
        folder_(*options.elastic),
        timeout_(*options.timeout),
        device_(std::move(device)),
        copies_(std::in_place, *device_.device),
        run_file_(options, command, inputs_.plan, *device_.device, "sockets") {}

  Result<int> run() {
    while (true) {
      auto joined = join();
      if (!joined) return fail(joined.error());
      if (*joined == nullptr) return 0;
      member_ = *std::move(joined);
      const auto ended = take_part();
      if (!ended) return fail(ended.error());
      if (*ended) return **ended;
      // It was given up, since it was silent for a while: what it knows is of no use any more.
      log_warning("this process on {} was given up ({}); it joins anew", node_name(environment_),
                  member_->why_broken());
      member_.reset();
      state_.reset();
      copies_.emplace(*device_.device);
    }
  }

 private:
  /// Null: the training is done.
  Result<std::unique_ptr<Member>> join() {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout_.value());
    Error last{ErrorCode::unavailable,
               fmt::format("no controller has written '{}'", (folder_ / "controller.json").string()),
               "start sailor-controller with the same folder"};
    while (std::chrono::steady_clock::now() < deadline) {
      if (stop_request() != 0) return fail(ErrorCode::unavailable, "stopped on a signal before it took part");
      if (elastic::is_training_done(folder_)) return nullptr;
      if (const runtime::Addresses addresses = elastic::find_controller(folder_); !addresses.empty()) {
        auto member = Member::join(
            addresses,
            {.program = "sailor-train",
             .rank = number_in(environment_, {"SAILOR_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"}).value_or(-1),
             .timeout = timeout_,
             .connecting = Seconds(1.0),
             .heartbeat = Seconds(heartbeat_s),
             .host = node_name(environment_),
             .gpu = *options_.gpu_type,
             .zone = *options_.zone,
             .memory = memory_,
             .find_coordinator = [this] { return elastic::find_controller(folder_); },
             .search = timeout_,
             .is_job_over = [this] { return elastic::is_training_done(folder_); },
             .end_after_dismissal = Seconds(end_after_dismissal_s),
             .silence = Seconds(controller_silence_s)});
        if (member) return member;
        last = member.error();
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    return fail(last);
  }

  /// Through the epochs of a membership. Nothing: it was dismissed and may join again.
  Result<std::optional<int>> take_part() {
    std::string why;
    while (true) {
      const auto begun = member_->begin_epoch(why);
      if (!begun) switch (member_->dismissal()) {
          case Dismissal::none:
            return fail(begun.error());
          case Dismissal::over:
            return 0;
          case Dismissal::given_up:
            return std::nullopt;
          case Dismissal::refused:
            return fail(ErrorCode::unavailable, member_->why_broken());
        }
      Result<std::optional<int>> status = std::nullopt;
      try {
        status = live_through_epoch();
        why.clear();
      } catch (const runtime::TransportError& error) {
        // Where the controller has not told it already, it hears of it, and the others through it.
        why = member_->why_broken().empty() ? error.what() : "";
        log_debug("epoch {} is over: {}", member_->epoch(), error.what());
      }
      member_->abort_with_epoch(nullptr);
      transport_.reset();
      part_transport_.reset();
      part_control_.reset();
      if (!status) {
        const std::string text = runtime::is_reported_elsewhere(status.error()) ? "" : status.error().message();
        member_->leave(exit_status(status.error().code), text);
        return fail(status.error());
      }
      if (!*status) continue;
      member_->leave(**status, "");
      return **status;
    }
  }

  /// The exit status; nothing: another epoch is to begin. Throws TransportError.
  Result<std::optional<int>> live_through_epoch() {
    const auto told = elastic::parse_payload(member_->payload());
    if (!told) return fail(told.error());
    auto plan = parse_plan(told->plan, "the controller's plan");
    if (!plan) return fail(plan.error());
    const World all = member_->world();
    auto transport = make_device_transport(device_, timeout_, all.control);
    if (!transport) return fail(transport.error());
    transport_ = *std::move(transport);
    member_->abort_with_epoch(transport_.get());
    const World world{all.control, transport_ != nullptr ? *transport_ : all.transport};
    const std::int64_t before = state_ == nullptr ? 0 : state_->iteration();
    auto recovery = runtime::recover(
        state_.get(), inputs_.model, settings_, *device_.device, world,
        [&](const Plan* /*before*/) -> Result<Plan> { return *plan; }, told->copies ? &*copies_ : nullptr);
    if (!recovery) return fail(recovery.error());
    if (!recovery->needs_checkpoint) state_ = std::move(recovery->state);
    // A rank that has printed and recorded so far may be a spare now.
    run_file_.take_over(world.control);
    last_told_ = static_cast<std::int64_t>(world.control.max(static_cast<double>(last_told_)));
    if (world.rank() >= plan->ranks()) return wait_as_spare();
    return train(*plan, *recovery, *told, world, before);
  }

  /// Ranks may end an epoch with an update that nobody has told of: it was made up for, or the one that speaks died.
  void tell_last_iteration(Recording& recording, const runtime::TrainingState& state, bool speaks) {
    const std::int64_t last = state.iteration() - 1;
    if (!state.last_totals() || last < 0) return;
    const runtime::IterationTotals& totals = *state.last_totals();
    constexpr double unknown = std::numeric_limits<double>::quiet_NaN();
    const TrainingJob& job = state.plan().job;
    const runtime::IterationResult result{
        .loss = totals.loss / job.tokens(),
        // In fp16 the scale may be another one by now.
        .gradient_norm = job.precision == Precision::fp16 ? unknown : std::sqrt(totals.squared_norm),
        .learning_rate = settings_.learning_rate.at(last),
        .time = Seconds(unknown)};
    if (speaks) recording.add_missed(last, result);
    run_file_.add_missed(last, result);
    if (!speaks || last_told_ >= last || last % *options_.log_every != 0) return;
    print_iteration(last, result, job);
  }

  Result<std::optional<int>> wait_as_spare() {
    while (member_->why_broken().empty() && !member_->is_change_wanted() && member_->dismissal() == Dismissal::none)
      member_->wait_for_news(Seconds(1.0));
    return std::nullopt;
  }

  Result<std::optional<int>> train(const Plan& plan, runtime::Recovery& recovery, const elastic::EpochPayload& told,
                                   const World& all, std::int64_t before) {
    const auto part = part_of(all, plan.ranks());
    if (!part) return fail(part.error());
    const World world = *part;
    std::unique_ptr<runtime::TrainingState>& state = recovery.needs_checkpoint ? recovery.state : state_;
    if (recovery.needs_checkpoint) state->initialize(settings_);
    std::optional<runtime::CopyExchange> exchange;
    if (told.copies) exchange.emplace(*state, *copies_, world);
    runtime::Trainer trainer(*state, settings_, world, &samples_, exchange ? &*exchange : nullptr);
    Checkpoints checkpoints(options_, environment_, world.control, trainer);
    std::error_code code;
    checkpoints.claim_as("elastic " + std::filesystem::weakly_canonical(folder_, code).string(), told.begun_unix_ms);
    if (recovery.needs_checkpoint) {
      SAILOR_CHECK(checkpoints.resume());
      // Only now it counts: a state that is read half is none.
      world.control.barrier();
      state_ = std::move(recovery.state);
    } else {
      SAILOR_CHECK(checkpoints.keep());
    }
    const std::int64_t iterations = *options_.iterations;
    Recording recording(options_, plan, inputs_.model, inputs_.catalogue);
    recording.set_epoch(member_->epoch());
    const bool speaks = world.rank() == 0;
    SAILOR_CHECK(agree(world.control, speaks ? recording.open(files_of_run(options_)) : Result<void>()));
    run_file_.begin_epoch({.epoch = static_cast<std::int64_t>(member_->epoch()),
                           .first_iteration = state_->iteration(),
                           .plan_toml = told.plan},
                          folder_ / "events.jsonl");
    print_training_header(options_, plan,
                          fmt::format("{}, epoch {}", describe(device_, world.control), member_->epoch()), trainer,
                          world.control);
    tell_last_iteration(recording, *state_, speaks);
    runtime::MemberProgress progress{.iteration = state_->iteration(),
                                     .of = iterations,
                                     .redone = std::max<std::int64_t>(0, before - state_->iteration()),
                                     .from = !recovery.needs_checkpoint ? "memory"
                                             : state_->iteration() > 0  ? "checkpoint"
                                                                        : "start"};
    member_->report_progress(progress);
    const TrainingRun run{.options = options_,
                          .control = world.control,
                          .trainer = trainer,
                          .checkpoints = checkpoints,
                          .recording = recording,
                          .run_file = run_file_,
                          .wants_end = [this] { return member_->is_change_wanted(); },
                          .after =
                              [&](std::int64_t next, const runtime::IterationResult& result) {
                                if (speaks) last_told_ = next - 1;
                                progress.iteration = next;
                                progress.time = result.time;
                                if (next % busy_every == 0) progress.busy = busy_time(trainer);
                                member_->report_progress(progress);
                              }};
    try {
      const auto end = run_iterations(run);
      if (!end) return fail(end.error());
      if (end->by_wish && end->diverged.empty() && end->next < iterations) {
        trainer.settle();
        device_.device->synchronize();
        checkpoints.complete();
        return std::nullopt;
      }
      const auto status = finish_training(run, *end);
      if (!status) return fail(status.error());
      world.control.barrier();
      return *status;
    } catch (const runtime::TransportError&) {
      checkpoints.abandon();
      throw;
    }
  }

  /// The first `ranks` of all.
  Result<World> part_of(const World& all, int ranks) {
    if (ranks == all.size()) return all;
    std::vector<int> first(static_cast<std::size_t>(ranks));
    std::iota(first.begin(), first.end(), 0);
    part_control_ = all.control.subgroup(first);
    if (transport_ == nullptr) return World{*part_control_, all.transport};
    member_->abort_with_epoch(nullptr);
    auto transport = make_device_transport(device_, timeout_, *part_control_);
    if (!transport) return fail(transport.error());
    part_transport_ = *std::move(transport);
    if (part_transport_ == nullptr) return World{*part_control_, all.transport};
    member_->abort_with_epoch(part_transport_.get());
    return World{*part_control_, *part_transport_};
  }

  const TrainOptions& options_;
  const Environment& environment_;
  TrainingInputs inputs_;
  runtime::Samples samples_;
  runtime::TrainerSettings settings_;
  std::filesystem::path folder_;
  Seconds timeout_;
  // The node's memory as this process starts, or the part of it that the job may use.
  Bytes memory_ = runtime::available_memory() + runtime::resident_memory().now;
  RankDevice device_;
  std::optional<runtime::StateCopies> copies_;
  RunFile run_file_;
  std::int64_t last_told_ = -1;                    // the last printed iteration, by any rank in the epochs before
  std::unique_ptr<runtime::TrainingState> state_;  // before the member: its transports are gone earlier
  std::unique_ptr<Member> member_;
  std::unique_ptr<runtime::Transport> transport_;       // between GPUs
  std::unique_ptr<runtime::Control> part_control_;      // of the plan's ranks, where there are spares
  std::unique_ptr<runtime::Transport> part_transport_;  // the same
};

}  // namespace

std::vector<Option> elastic_options(TrainOptions& options) {
  return {option(options.elastic, {.name = "elastic",
                                   .value_name = "FOLDER",
                                   .help = "join the elastic training of the controller in this folder (see "
                                           "sailor-controller), which may lose ranks and get more; no MPI",
                                   .group = "Elastic training"}),
          option(options.gpu_type, {.name = "gpu-type",
                                    .value_name = "NAME",
                                    .help = "with --elastic: the type of this process's device in the plans of the "
                                            "controller [default: that of the plan, where it has one]",
                                    .group = "Elastic training"}),
          option(options.zone, {.name = "zone",
                                .value_name = "NAME",
                                .help = "with --elastic: the zone or partition of its node [default: that of the plan]",
                                .group = "Elastic training"})};
}

Result<int> train_elastically(const TrainOptions& options, const Environment& environment, const std::string& command) {
  if (*options.rehearse) return fail(ErrorCode::usage, "--elastic and --rehearse exclude each other", "leave one out");
  if (options.data->empty()) return fail(ErrorCode::usage, "--data is missing", "make a token file with sailor-data");
  auto inputs = read_training_inputs(options, environment, std::nullopt);
  if (!inputs) return fail(inputs.error());
  auto samples = runtime::Samples::open(*options.data, inputs->plan.job.sequence_length, inputs->model.vocabulary,
                                        static_cast<std::uint64_t>(*options.seed));
  if (!samples) return fail(samples.error());
  auto device =
      open_own_device({.on_gpus = inputs->choice.on_gpus,
                       .precision = inputs->plan.job.precision,
                       .deterministic = *options.deterministic,
                       .timeout = Seconds(*options.timeout)},
                      environment, number_in(environment, {"SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"}).value_or(0),
                      node_name(environment));
  if (!device) return fail(device.error());
  ElasticRank rank(options, environment, command, *std::move(inputs), *std::move(samples), *std::move(device));
  return rank.run();
}

}  // namespace sailor::apps
