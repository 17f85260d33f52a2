// Trainings over sockets with ranks killed at random moments, with and without copies of their state in peers' memory:
// the losses are those of an undisturbed training.
#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <sstream>
#include <thread>

#include "recovery_runs.hpp"
#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/recovery.hpp"
#include "socket_ranks.hpp"

namespace sailor::runtime::test::survival_test {
namespace {

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

/// Those in which each rank steps something that no other steps.
Plans random_plans_without_replicas(const Model& model, std::mt19937& random) {
  std::vector<Named> all = divisions(model.layers());
  std::shuffle(all.begin(), all.end(), random);
  Plans plans;
  for (const auto& [name, plan] : all)
    if (plan.optimizer_sharding == OptimizerSharding::zero1 ||
        (plan.pipelines.size() == 1 && plan.pipelines.front().count == 1))
      plans.emplace(plan.ranks(), plan);
  plans.emplace(3, plan_of({{3, 4, {{{{0, 1}}}, {{{1, 4}}}, {{{4, 6}}}}}}));
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
                            const fs::path& folder, bool with_copies) {
  const auto member = member_of(coordinator, {.rank = rank});
  const auto device = make_cpu_device();
  const Samples samples = samples_for(model);
  const TrainerSettings settings = settings_of({});
  std::unique_ptr<TrainingState> state;
  StateCopies copies(*device);
  StateCopies* const kept = with_copies ? &copies : nullptr;
  Diary diary(folder / fmt::format("diary-{}", rank));
  std::int64_t noted = 0;  // iterations
  while (true) {
    begin(*member);
    CheckpointWriter writer(*device, folder / "checkpoints", 2);
    try {
      const World world = member->world();
      auto recovery = recover(
          state.get(), model, settings, *device, world,
          [&](const Plan*) -> Result<Plan> { return plans.at(world.size()); }, kept);
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
      const auto exchange = with_copies ? std::make_unique<CopyExchange>(*state, copies, world) : nullptr;
      Trainer trainer(*state, settings, world, &samples, exchange.get());
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
  int lost = 0;        // of those from disk or from the start, those that had done an iteration before
  int done_again = 0;  // iterations, at most, after one kill, where it went on from memory
};

/// Whom to kill, and what is kept.
enum class Kind {
  replicas,  ///< one or two ranks; mostly, others have the same state; nothing is kept
  copies,    ///< one or two ranks; nobody has the same state, but peers keep copies
  holders,   ///< with copies, a rank and its keeper at once
};

/// Whether a rank had a new plan and its state between two moments.
bool went_on_between(const fs::path& diary, double first, double last) {
  std::ifstream file(diary);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string what;
    double when = 0.0;
    if (words >> what && what == "goes" && words >> what >> when && first < when && when < last) return true;
  }
  return false;
}

/// Kills one or two of the ranks of a training at random moments.
void run_trial(unsigned seed, Kind kind, Trial& trial) {
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937 random(seed);
  const std::vector<Model> models{gpt_model(), opt_model(), llama_model()};
  const Model model = deep(models[random() % models.size()]);
  const Plans plans =
      kind == Kind::replicas ? random_plans(model, random) : random_plans_without_replicas(model, random);
  const int count = 3 + static_cast<int>(random() % 3);
  std::string pattern = (fs::temp_directory_path() / "sailor-recovery-test-XXXXXX").string();
  ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
  const fs::path folder = pattern;
  static_cast<void>(corpus());  // before ranks are forked, all of which use it
  ForkedRanks ranks(count, {.members = count}, [&](int rank, const Addresses& address) {
    train_through_failures(address, rank, plans, model, folder, kind != Kind::replicas);
  });
  for (int rank = 0; rank < count; ++rank)
    while (!fs::exists(folder / fmt::format("diary-{}", rank)) || fs::is_empty(folder / fmt::format("diary-{}", rank)))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::vector<int> alive(static_cast<std::size_t>(count));
  std::iota(alive.begin(), alive.end(), 0);
  std::vector<double> kills;
  std::vector<int> killed;
  const int victims = kind == Kind::holders ? 2 : 1 + static_cast<int>(random() % 2);
  std::size_t victim = 0;
  for (int i = 0; i < victims; ++i) {
    const bool at_once = kind == Kind::holders && i == 1;
    if (!at_once) std::this_thread::sleep_for(std::chrono::microseconds(random() % (i == 0 ? 400'000 : 100'000)));
    // All are on one host, where the next rank keeps what a rank alone has; it has taken the victim's place in the
    // list.
    victim = at_once ? victim % alive.size() : random() % alive.size();
    kills.push_back(now());
    killed.push_back(alive[victim]);
    ranks[alive[victim]].signal(SIGKILL);
    alive.erase(alive.begin() + static_cast<std::ptrdiff_t>(victim));
  }
  for (const int rank : alive) EXPECT_EQ(ranks[rank].status(), 0) << "rank " << rank;

  // With copies only the loss of both holders needs the disk: of neighbours, the second one before all had recovered
  // from the loss of the first.
  bool has_copies = kind == Kind::copies;
  if (kills.size() == 2 && ((killed[0] + 1) % count == killed[1] || (killed[1] + 1) % count == killed[0])) {
    std::vector<int> others = alive;
    others.push_back(killed[1]);
    has_copies = has_copies && std::all_of(others.begin(), others.end(), [&](int rank) {
                   return went_on_between(folder / fmt::format("diary-{}", rank), kills[0], kills[1]);
                 });
  }

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
        if (source != "memory" && reached > 0) ++trial.lost;
        if (has_copies) {
          EXPECT_TRUE(source == "memory" || reached == 0) << "from " << source;
        }
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
Trial run_trials(Kind kind, int usual) {
  const char* const wanted = std::getenv("SAILOR_SURVIVALS");
  const int trials = wanted == nullptr ? usual : std::atoi(wanted);
  Trial all;
  for (int i = 0; i < trials; ++i) run_trial(static_cast<unsigned>(i) + 1, kind, all);
  EXPECT_LE(all.done_again, 1);
  std::printf(
      "%d trials, %d ranks killed: recovered %d times from memory, %d times from disk or from the start (%d times "
      "after "
      "the first iteration); until the last survivor had stopped %.3f s at most, until all were on %.3f s\n",
      trials, all.killed, all.from_memory, all.from_disk, all.lost, all.until_stopped, all.until_on);
  return all;
}

TEST(Recovery, RanksKilledAtRandomMomentsLeaveTheLossesOfAnUndisturbedTraining) { run_trials(Kind::replicas, 6); }

TEST(Recovery, RanksKilledAtRandomMomentsAreReplacedFromTheirPeersMemory) {
  const Trial all = run_trials(Kind::copies, 5);
  EXPECT_GT(all.from_memory, 0);
}

TEST(Recovery, TrainingGoesOnFromDiskWhenBothHoldersAreKilled) {
  const Trial all = run_trials(Kind::holders, 3);
  EXPECT_GT(all.from_disk, 0);
}

}  // namespace
}  // namespace sailor::runtime::test::survival_test
