// Training that goes on in the same processes when ranks have gone: state moves to a new plan bit by bit, updates that
// some ranks missed are made up for, and with ranks killed at random moments the losses are those of an undisturbed
// training.
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <latch>
#include <random>
#include <sstream>
#include <thread>

#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/recovery.hpp"
#include "socket_ranks.hpp"
#include "tests/fakes/delayed_device.hpp"
#include "trainer_runs.hpp"

namespace sailor::runtime::test {
namespace {

/// Bits of a float32 by layer, name, array and element of the whole parameter.
using WholeState = std::map<std::tuple<int, std::string, StoredArray>, std::map<std::int64_t, float>>;

/// Adds what a rank steps. Returns false where it is there already with other bits.
bool add_state(TrainingState& state, WholeState& whole) {
  bool same = true;
  state.device().synchronize();
  for (const OwnPiece& own : own_pieces(declarations_of(state.parameters()), state.sums().owned)) {
    const Parameter& parameter = *state.parameters().parameters()[own.parameter];
    for (const StoredArray array : stored_arrays) {
      const float* const memory = stepped_memory(state.parameters(), state.optimizer(), array, own.parameter,
                                                 {own.piece.local, own.piece.local + own.piece.count});
      if (memory == nullptr) throw std::runtime_error("a rank does not have what it steps");
      auto& values = whole[{parameter.layer, parameter.name, array}];
      for (std::int64_t i = 0; i < own.piece.count; ++i)
        same = values.try_emplace(own.piece.whole + i, memory[i]).first->second == memory[i] && same;
    }
  }
  return same;
}

std::int64_t elements_of(const WholeState& state) {
  std::int64_t count = 0;
  for (const auto& [key, values] : state) count += std::ssize(values);
  return count;
}

/// One rank of a training: its device and its state.
struct Survivor {
  std::unique_ptr<Device> device = make_cpu_device();
  std::unique_ptr<TrainingState> state;
};

Samples samples_for(const Model& model) {
  auto samples = Samples::open(corpus().prefix(), sequence_length, model.vocabulary, 5);
  if (!samples) throw std::runtime_error(samples.error().message());
  return *std::move(samples);
}

/// Runs iterations until the state has reached `until`; adds their losses on rank 0.
void train_until(std::int64_t until, TrainingState& state, const TrainerSettings& settings, const World& world,
                 std::vector<double>& losses, bool settles = true) {
  const Samples samples = samples_for(state.model());
  Trainer trainer(state, settings, world, &samples);
  while (state.iteration() < until) {
    const IterationResult result = trainer.run();
    if (world.rank() == 0) losses.push_back(result.loss);
  }
  if (!settles) return;
  trainer.settle();
  state.device().synchronize();
}

TEST(Recovery, EveryPlanGoesOnBitByBitFromTheStateOfAnother) {
  const TrainerSettings settings = settings_of({});
  const std::vector<Model> models{deep(gpt_model()), deep(opt_model()), deep(llama_model())};
  const std::vector<Precision> precisions{Precision::fp32, Precision::bf16, Precision::fp16};
  int from_memory = 0;
  int lost = 0;
  std::atomic<int> spares_gave = 0;
  for (std::size_t turn = 0; turn < 30; ++turn) {
    const Model& model = models[turn % models.size()];
    const std::vector<Named> plans = divisions(model.layers());
    auto [name_before, before] = plans[turn % plans.size()];
    auto [name_after, after] = plans[(7 * turn + 11) % plans.size()];
    SCOPED_TRACE(fmt::format("{}, {} -> {}", model.name, name_before, name_after));
    before.job.precision = after.job.precision = precisions[turn / 3 % precisions.size()];
    std::vector<Survivor> ranks(static_cast<std::size_t>(before.ranks()));
    std::vector<double> losses;
    run_ranks(before.ranks(), [&](const World& world) {
      Survivor& mine = ranks[static_cast<std::size_t>(world.rank())];
      mine.state = std::make_unique<TrainingState>(before, model, world.rank(), *mine.device);
      mine.state->initialize(settings);
      train_until(3, *mine.state, settings, world, losses);
    });
    // Ranks that are not in the plan after, from the middle on, are lost, or spare: those give what they have. New ones
    // know nothing.
    const int spare = static_cast<int>(turn % 3);
    const int present = after.ranks() + spare;
    std::rotate(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(turn % ranks.size()), ranks.end());
    ranks.resize(static_cast<std::size_t>(present));
    WholeState all;
    for (Survivor& rank : ranks) EXPECT_TRUE(rank.state == nullptr || add_state(*rank.state, all));
    const bool is_whole = elements_of(all) == 3 * model.total_parameters();
    WholeState moved;
    std::mutex mutex;
    run_ranks(present, [&](const World& world) {
      Survivor& mine = ranks[static_cast<std::size_t>(world.rank())];
      if (mine.device == nullptr) mine.device = make_cpu_device();
      const bool is_spare = world.rank() >= after.ranks();
      auto recovery = recover(mine.state.get(), model, settings, *mine.device, world,
                              [&](const Plan*) -> Result<Plan> { return after; });
      if (!recovery) throw std::runtime_error(recovery.error().message());
      EXPECT_EQ(recovery->needs_checkpoint, !is_whole);
      EXPECT_EQ(recovery->state == nullptr, is_spare);
      if (is_spare && mine.state != nullptr && recovery->sent_bytes > 0) ++spares_gave;
      mine.state = std::move(recovery->state);
      if (recovery->needs_checkpoint || is_spare) return;
      EXPECT_EQ(mine.state->iteration(), 3);
      const std::scoped_lock lock(mutex);
      EXPECT_TRUE(add_state(*mine.state, moved));
      // What is computed with are the values, rounded.
      for (const Parameter* parameter : mine.state->parameters().parameters())
        for (const Piece& piece : parameter->pieces())
          for (std::int64_t i = 0; i < piece.count; ++i) {
            float value = all.at({parameter->layer, parameter->name, StoredArray::value}).at(piece.whole + i);
            if (parameter->value.type != DataType::float32)
              value = from_bits16(parameter->value.type, to_bits16(parameter->value.type, value));
            ASSERT_EQ(load(parameter->value + (piece.local + i)), value);
          }
    });
    ++(is_whole ? from_memory : lost);
    if (!is_whole) continue;
    run_ranks(after.ranks(), [&](const World& world) {
      train_until(6, *ranks[static_cast<std::size_t>(world.rank())].state, settings, world, losses);
    });
    EXPECT_EQ(moved, all);
    const Outcome undisturbed = train(before, model, {.iterations = 6});
    ASSERT_EQ(losses.size(), 6u);
    const double rounding = before.job.precision == Precision::fp32 ? 1e-4 : 5e-3;
    for (std::size_t i = 0; i < 6; ++i) EXPECT_NEAR(losses[i] / undisturbed.losses[i], 1.0, rounding) << i;
  }
  EXPECT_GE(from_memory, 10);
  EXPECT_GE(lost, 3);
  EXPECT_GE(spares_gave, 3);
}

TEST(Recovery, RefusesAPlanOfMoreRanksThanThereAre) {
  run_ranks(2, [](const World& world) {
    const auto device = make_cpu_device();
    const auto recovery =
        recover(nullptr, deep(gpt_model()), settings_of({}), *device, world, [](const Plan*) -> Result<Plan> {
          return plan_of({{4, 1, {{{{0, 6}}}}, 3}});
        });
    ASSERT_FALSE(recovery);
    EXPECT_EQ(recovery.error().message(),
              "the new plan has 3 ranks but 2 are there; plan again for the ranks that are left");
  });
}

/// A device whose host hears of a failure instead of the totals of an iteration, though all ranks have summed.
class DeafDevice final : public DelayedDevice {
 public:
  /// It fails at its host's wait number `deaf_wait`, once the others are through.
  DeafDevice(std::int64_t deaf_wait, std::latch& others) : DelayedDevice(7), deaf_wait_(deaf_wait), others_(others) {}

 private:
  void wait_for(const Event& event) override {
    DelayedDevice::wait_for(event);
    if (host_waits() != deaf_wait_) return;
    others_.wait();
    throw TransportError(TransportError::Cause::lost, "a rank has gone away");
  }
  std::int64_t deaf_wait_;
  std::latch& others_;
};

TEST(Recovery, RanksThatHaveNotHeardOfTheTotalsMakeUpForTheUpdate) {
  const Model model = deep(gpt_model());
  const TrainerSettings settings = settings_of({});
  for (const Precision precision : {Precision::fp32, Precision::fp16})
    for (const auto sharding : {OptimizerSharding::none, OptimizerSharding::zero1}) {
      // Nobody else has what rank 1 holds.
      Plan plan = plan_of({{3, 2, {{{{0, 3}}}, {{{3, 6}}}}}, {3, 2, {{{{0, 6}}, 2}}}}, {}, sharding);
      if (sharding == OptimizerSharding::none) plan = plan_of({{6, 2, {{{{0, 3}}}, {{{3, 6}}}}}});
      plan.job.precision = precision;
      const Outcome undisturbed = train(plan, model, {.iterations = 6});
      std::vector<double> losses;
      std::latch others(plan.ranks() - 1);
      run_ranks(plan.ranks(), [&](const World& world) {
        auto device = make_cpu_device();
        std::int64_t initial_waits = 0;
        {  // of the state's initialization
          TrainingState counted(plan, model, world.rank(), *device);
          counted.initialize(settings);
          initial_waits = device->host_waits();
        }
        if (world.rank() == 1) device = std::make_unique<DeafDevice>(initial_waits + 3, others);
        auto state = std::make_unique<TrainingState>(plan, model, world.rank(), *device);
        state->initialize(settings);
        bool failed = false;
        try {
          // Under ZeRO-1 rank 1 gathers no values any more.
          train_until(3, *state, settings, world, losses, false);
        } catch (const TransportError&) {
          failed = true;
        }
        if (world.rank() != 1) others.count_down();
        EXPECT_EQ(failed, world.rank() == 1) << world.rank();
        EXPECT_EQ(state->iteration(), failed ? 2 : 3);
        auto recovery = recover(state.get(), model, settings, *device, world,
                                [&](const Plan* before) -> Result<Plan> { return *before; });
        ASSERT_TRUE(recovery) << recovery.error().message();
        ASSERT_FALSE(recovery->needs_checkpoint);
        EXPECT_EQ(recovery->sent_bytes == 0, sharding == OptimizerSharding::none);  // else values that others step
        state = std::move(recovery->state);
        EXPECT_EQ(state->iteration(), 3);
        train_until(6, *state, settings, world, losses);
      });
      EXPECT_EQ(losses, undisturbed.losses);
    }
}

// ---- Ranks that are killed

constexpr int iterations = 40;

/// A plan for each number of ranks that may be left.
using Plans = std::map<int, Plan>;

/// Mostly those of several pipelines that hold the same: what one loses another has.
Plans random_plans(const Model& model, std::mt19937& random) {
  std::vector<Named> all = divisions(model.layers());
  std::shuffle(all.begin(), all.end(), random);
  if (random() % 4 != 0)
    std::stable_partition(all.begin(), all.end(), [](const Named& named) {
      const Plan& plan = named.second;
      return plan.optimizer_sharding == OptimizerSharding::none &&
             (plan.pipelines.size() > 1 || plan.pipelines.front().count > 1);
    });
  Plans plans;
  for (const auto& [name, plan] : all) plans.emplace(plan.ranks(), plan);
  return plans;
}

/// What a process says of itself, a line per event, in a file that survives it.
class Diary {
 public:
  explicit Diary(const fs::path& path) : file_(path, std::ios::app) {}
  template <class... Values>
  void note(fmt::format_string<Values...> format, Values&&... values) {
    file_ << fmt::format(format, std::forward<Values>(values)...) << std::endl;
  }

 private:
  std::ofstream file_;
};

double now() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

/// Trains to the end, however often ranks go away.
void train_through_failures(const Addresses& coordinator, int rank, const Plans& plans, const Model& model,
                            const fs::path& folder) {
  const auto member = member_of(coordinator, {.rank = rank});
  const auto device = make_cpu_device();
  const Samples samples = samples_for(model);
  const TrainerSettings settings = settings_of({});
  std::unique_ptr<TrainingState> state;
  Diary diary(folder / fmt::format("diary-{}", rank));
  std::int64_t noted = 0;  // iterations
  while (true) {
    begin(*member);
    CheckpointWriter writer(*device, folder / "checkpoints", 2);
    try {
      const World world = member->world();
      auto recovery = recover(state.get(), model, settings, *device, world,
                              [&](const Plan*) -> Result<Plan> { return plans.at(world.size()); });
      if (!recovery) throw std::runtime_error(recovery.error().message());
      // An iteration counts from its update on, though run() may have thrown afterwards, or recover() made up for it.
      if (state != nullptr && state->iteration() > noted)
        diary.note("loss {} {:.17g}", state->iteration() - 1, state->last_totals()->loss / (12.0 * sequence_length));
      state = std::move(recovery->state);
      if (recovery->needs_checkpoint) {
        std::string path;
        if (world.rank() == 0)
          if (const auto found = find_latest(folder / "checkpoints"); found && *found) path = (*found)->path;
        path = world.control.broadcast(path);
        if (path.empty()) {
          state->initialize(settings);
        } else {
          const auto loaded = load(path, model, *device, state->parameters(), state->optimizer());
          if (!loaded) throw std::runtime_error(loaded.error().message());
          state->restore(loaded->iteration, state->loss_scale());
        }
      }
      noted = state->iteration();
      diary.note("goes on {} {} {} {}", now(), state->iteration(), world.size(),
                 recovery->needs_checkpoint ? "disk" : "memory");
      Trainer trainer(*state, settings, world, &samples);
      while (state->iteration() < iterations) {
        const std::int64_t iteration = state->iteration();
        const IterationResult result = trainer.run();
        diary.note("loss {} {:.17g}", iteration, result.loss);
        noted = iteration + 1;
        if ((iteration + 1) % 8 == 0) {
          trainer.settle();
          const auto outcome =
              writer.begin(world.control, iteration + 1, state->parameters(), state->optimizer(), state->sums().counted,
                           {.model = model, .training = {}, .plan = plan_to_toml(state->plan())});
          if (outcome && !outcome->written) throw std::runtime_error(outcome->written.error().message());
        } else {
          (void)writer.progress(world.control);
        }
      }
      if (const auto outcome = writer.finish(world.control); outcome && !outcome->written)
        throw std::runtime_error(outcome->written.error().message());
      world.control.barrier();
      diary.note("done");
      return;
    } catch (const TransportError& error) {
      diary.note("stopped {} {}", now(), error.what());
      writer.abandon();
    }
  }
}

/// What became of a trial.
struct Trial {
  double until_stopped = 0.0;  // from a kill until the last survivor had stopped; s
  double until_on = 0.0;       // until all had a new plan and their state; s
  int killed = 0;              // before the end
  int from_memory = 0;
  int from_disk = 0;
  int done_again = 0;  // iterations, at most, after one kill
};

/// Kills one or two of the ranks of a training at random moments.
void run_trial(unsigned seed, Trial& trial) {
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937 random(seed);
  const std::vector<Model> models{gpt_model(), opt_model(), llama_model()};
  const Model model = deep(models[random() % models.size()]);
  const Plans plans = random_plans(model, random);
  const int count = 3 + static_cast<int>(random() % 3);
  std::string pattern = (fs::temp_directory_path() / "sailor-recovery-test-XXXXXX").string();
  ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
  const fs::path folder = pattern;
  static_cast<void>(corpus());  // before ranks are forked, all of which use it
  ForkedRanks ranks(count, {.members = count}, [&](int rank, const Addresses& address) {
    train_through_failures(address, rank, plans, model, folder);
  });
  for (int rank = 0; rank < count; ++rank)
    while (!fs::exists(folder / fmt::format("diary-{}", rank)) || fs::is_empty(folder / fmt::format("diary-{}", rank)))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::vector<int> alive(static_cast<std::size_t>(count));
  std::iota(alive.begin(), alive.end(), 0);
  std::vector<double> kills;
  const int victims = 1 + static_cast<int>(random() % 2);
  for (int i = 0; i < victims; ++i) {
    std::this_thread::sleep_for(std::chrono::microseconds(random() % (i == 0 ? 400'000 : 100'000)));
    const std::size_t victim = random() % alive.size();
    kills.push_back(now());
    ranks[alive[victim]].signal(SIGKILL);
    alive.erase(alive.begin() + static_cast<std::ptrdiff_t>(victim));
  }
  for (const int rank : alive) EXPECT_EQ(ranks[rank].status(), 0) << "rank " << rank;

  std::map<std::int64_t, std::vector<double>> losses;
  for (int rank = 0; rank < count; ++rank) {
    std::ifstream diary(folder / fmt::format("diary-{}", rank));
    std::int64_t reached = 0;
    for (std::string line; std::getline(diary, line);) {
      std::istringstream words(line);
      std::string what;
      words >> what;
      if (what == "loss") {
        std::int64_t iteration = 0;
        double loss = 0.0;
        words >> iteration >> loss;
        losses[iteration].push_back(loss);
        reached = iteration + 1;
      } else if (what == "stopped" || what == "goes") {
        std::string source;
        double when = 0.0;
        std::int64_t iteration = 0;
        int size = 0;
        if (what == "goes")
          words >> source >> when >> iteration >> size >> source;
        else
          words >> when;
        // Of the last kill before.
        const auto next = std::upper_bound(kills.begin(), kills.end(), when);
        if (next == kills.begin()) continue;
        double& longest = what == "goes" ? trial.until_on : trial.until_stopped;
        longest = std::max(longest, when - *std::prev(next));
        if (what != "goes" || rank != alive.front()) continue;
        ++(source == "memory" ? trial.from_memory : trial.from_disk);
        if (source == "memory") trial.done_again = std::max(trial.done_again, static_cast<int>(reached - iteration));
        reached = iteration;
      }
    }
  }
  trial.killed += static_cast<int>(kills.size());
  const Outcome undisturbed = train(plans.at(count), model, {.iterations = iterations});
  for (int i = 0; i < iterations; ++i) {
    EXPECT_FALSE(losses[i].empty()) << "iteration " << i;
    for (const double loss : losses[i])
      EXPECT_NEAR(loss / undisturbed.losses[static_cast<std::size_t>(i)], 1.0, 2e-4) << "iteration " << i;
  }
  fs::remove_all(folder);
}

/// SAILOR_SURVIVALS=200 makes as many trials (tests/long.sh).
TEST(Recovery, RanksKilledAtRandomMomentsLeaveTheLossesOfAnUndisturbedTraining) {
  const char* const wanted = std::getenv("SAILOR_SURVIVALS");
  const int trials = wanted == nullptr ? 6 : std::atoi(wanted);
  Trial all;
  for (int i = 0; i < trials; ++i) run_trial(static_cast<unsigned>(i) + 1, all);
  EXPECT_LE(all.done_again, 1);
  std::printf(
      "%d trials, %d ranks killed: recovered %d times from memory, %d times from disk or from the start; until the "
      "last "
      "survivor had stopped %.3f s at most, until all were on %.3f s\n",
      trials, all.killed, all.from_memory, all.from_disk, all.until_stopped, all.until_on);
}

}  // namespace
}  // namespace sailor::runtime::test
