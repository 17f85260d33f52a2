// Copies of state in peers' memory: their cost, and training that continues from them bit for bit.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include <fmt/ranges.h>

#include "recovery_runs.hpp"
#include "runtime/recovery.hpp"
#include "tests/fakes/counted_transport.hpp"
#include "tests/fakes/delayed_device.hpp"

namespace sailor::runtime::test::state_copies_test {
namespace {

// ---- What goes over the transport

CopyLayout layout_of(const Plan& plan, const Model& model, const std::vector<std::string>& hosts) {
  return {ParameterMap(plan, model), hosts};
}

struct Counted {
  std::map<std::string, std::pair<std::int64_t, std::int64_t>> traffic;
  std::vector<double> losses;
  double host_waits = 0.0;
};

/// Of `iterations` iterations; `exchange`: with a CopyExchange.
Counted count_traffic(const Plan& plan, const Model& model, int iterations, bool exchange) {
  Traffic traffic;
  Counted counted;
  run_ranks(plan.ranks(), [&](const World& threads) {
    CountedTransport transport(threads.transport, traffic);
    const World world{threads.control, transport};
    Survivor mine;
    mine.state = std::make_unique<TrainingState>(plan, model, world.rank(), *mine.device);
    const TrainerSettings settings = settings_of({});
    mine.state->initialize(settings);
    StateCopies copies(*mine.device);
    const std::int64_t waits = mine.device->host_waits();
    train_until(iterations, *mine.state, settings, world, counted.losses, true, exchange ? &copies : nullptr);
    if (world.rank() == 0) counted.host_waits = static_cast<double>(mine.device->host_waits() - waits);
  });
  counted.traffic = std::move(traffic.of);
  return counted;
}

TEST(StateCopies, WhereReplicasHaveTheStateNoMessageAndNoByteIsAdded) {
  const Model model = deep(opt_model());
  for (const auto& [name, plan] : divisions(model.layers())) {
    std::vector<std::string> hosts;
    for (int rank = 0; rank < plan.ranks(); ++rank) hosts.push_back(fmt::format("thread{}", rank));
    if (!layout_of(plan, model, hosts).copies().empty()) continue;
    SCOPED_TRACE(name);
    const Counted without = count_traffic(plan, model, 3, false);
    const Counted with = count_traffic(plan, model, 3, true);
    EXPECT_EQ(with.traffic, without.traffic);
    EXPECT_EQ(with.host_waits, without.host_waits);
    EXPECT_EQ(with.losses, without.losses);
  }
}

TEST(StateCopies, AddWhatTheirCostSaysAndNothingElse) {
  const Model model = deep(opt_model());
  const std::vector<Named> plans = divisions(model.layers());
  for (const std::size_t index : {5UL, 8UL, 12UL, 20UL, 22UL}) {
    const auto& [name, plan] = plans[index];
    SCOPED_TRACE(name);
    std::vector<std::string> hosts;
    for (int rank = 0; rank < plan.ranks(); ++rank) hosts.push_back(fmt::format("thread{}", rank));
    const CopyLayout layout = layout_of(plan, model, hosts);
    ASSERT_FALSE(layout.copies().empty());
    const Counted without = count_traffic(plan, model, 3, false);
    Counted with = count_traffic(plan, model, 3, true);
    double received = 0.0;
    for (int rank = 0; rank < plan.ranks(); ++rank) received += layout.cost(rank).received.value();
    double sent = 0.0;
    for (const CopyLayout::Copy& copy : layout.copies()) {
      const auto channel =
          with.traffic.extract(fmt::format("from {} to {}, {}", copy.owner, copy.keeper, (1 << 20) + 1));
      ASSERT_FALSE(channel.empty());
      EXPECT_EQ(static_cast<double>(channel.mapped().second), 3 * layout.cost(copy.owner).sent.value());
      std::int64_t elements = 0;
      for (const StatePart& part : copy.parts) elements += part.whole.size();
      EXPECT_EQ(layout.cost(copy.owner).sent.value(), 12.0 * static_cast<double>(elements) + 8.0);
      sent += layout.cost(copy.owner).sent.value();
    }
    EXPECT_EQ(sent, received);
    EXPECT_EQ(with.traffic, without.traffic);
    EXPECT_EQ(with.host_waits, without.host_waits);
    EXPECT_EQ(with.losses, without.losses);
  }
}

/// Counts what is taken of the host's memory.
class HostCountingDevice final : public DelayedDevice {
 public:
  HostCountingDevice() : DelayedDevice(3) {}
  void* allocate_host(std::size_t bytes) override {
    host_bytes += static_cast<double>(bytes);
    return DelayedDevice::allocate_host(bytes);
  }
  double host_bytes = 0.0;
};

TEST(StateCopies, TakeTheMemoryThatTheirCostSays) {
  const Model model = deep(gpt_model());
  const std::vector<Named> plans = divisions(model.layers());
  for (const std::size_t index : {1UL, 5UL, 13UL, 20UL}) {
    const Plan& plan = plans[index].second;
    SCOPED_TRACE(plans[index].first);
    run_ranks(plan.ranks(), [&](const World& world) {
      HostCountingDevice device;
      const TrainerSettings settings = settings_of({});
      std::vector<double> losses;
      StateCopies copies(device);
      std::array<double, 2> bytes{};  // without and with copies
      for (const bool exchange : {false, true}) {
        const double before = device.host_bytes;
        TrainingState state(plan, model, world.rank(), device);
        state.initialize(settings);
        train_until(3, state, settings, world, losses, true, exchange ? &copies : nullptr);
        bytes[exchange ? 1 : 0] = device.host_bytes - before;
      }
      const CopyCost cost = copies.current()->layout.cost(world.rank());
      const bool is_copied = !copies.current()->layout.copies().empty();
      EXPECT_EQ(is_copied, index != 1);
      EXPECT_EQ(bytes[1] - bytes[0], cost.kept.value() + (is_copied ? 8.0 : 0.0));  // the version's mark
    });
  }
}

TEST(StateCopies, AreOfOneVersionOnADeviceThatRunsLate) {
  const Model model = deep(gpt_model());
  const std::vector<Named> plans = divisions(model.layers());
  for (const std::size_t index : {5UL, 14UL, 20UL, 23UL})
    for (const Precision precision : {Precision::fp32, Precision::bf16}) {
      auto [name, plan] = plans[index];
      SCOPED_TRACE(name);
      plan.job.precision = precision;
      EXPECT_TRUE(late_copies_are_right(plan, model, states_until(2, plan, model), 7));
    }
}

// ---- Recoveries

/// A rank with what it keeps for others.
struct KeepingRank : Survivor {
  KeepingRank() = default;
  explicit KeepingRank(std::unique_ptr<Device> other) { device = std::move(other); }
  std::unique_ptr<StateCopies> copies = std::make_unique<StateCopies>(*device);
};
using Ranks = std::vector<std::unique_ptr<KeepingRank>>;

/// Trains all ranks of a plan from the start until `last`.
Ranks trained(std::int64_t last, const Plan& plan, const Model& model, bool late_devices, std::vector<double>& losses) {
  Ranks ranks(static_cast<std::size_t>(plan.ranks()));
  run_ranks(plan.ranks(), [&](const World& world) {
    auto& mine = ranks[static_cast<std::size_t>(world.rank())];
    mine = late_devices
               ? std::make_unique<KeepingRank>(std::make_unique<DelayedDevice>(static_cast<unsigned>(world.rank())))
               : std::make_unique<KeepingRank>();
    mine->state = std::make_unique<TrainingState>(plan, model, world.rank(), *mine->device);
    const TrainerSettings settings = settings_of({});
    mine->state->initialize(settings);
    train_until(last, *mine->state, settings, world, losses, true, mine->copies.get());
  });
  return ranks;
}

/// All ranks go on under a plan. Returns false where they need a checkpoint; else all of them have the state, and the
/// copies, of `states` at the iteration that is returned.
std::optional<std::int64_t> recovered(Ranks& ranks, const Plan& plan, const Model& model,
                                      const std::vector<WholeState>& states) {
  std::optional<std::int64_t> iteration;
  WholeState moved;
  std::mutex mutex;
  run_ranks(static_cast<int>(ranks.size()), [&](const World& world) {
    KeepingRank& mine = *ranks[static_cast<std::size_t>(world.rank())];
    auto recovery = recover(
        mine.state.get(), model, settings_of({}), *mine.device, world,
        [&](const Plan*) -> Result<Plan> { return plan; }, mine.copies.get());
    if (!recovery) throw std::runtime_error(recovery.error().message());
    mine.state = std::move(recovery->state);
    if (recovery->needs_checkpoint || mine.state == nullptr) return;
    const std::scoped_lock lock(mutex);
    iteration = mine.state->iteration();
    EXPECT_TRUE(add_state(*mine.state, moved));
    EXPECT_TRUE(keeps_for_others(*mine.copies, *iteration, states[static_cast<std::size_t>(*iteration)]));
  });
  if (iteration) {
    EXPECT_EQ(moved, states[static_cast<std::size_t>(*iteration)]);
  }
  return iteration;
}

/// One of these plans that so many ranks can train.
Plan plan_for(std::size_t ranks, const std::vector<Named>& plans, std::mt19937& random) {
  std::vector<Plan> possible;
  for (const auto& [name, plan] : plans)
    if (plan.ranks() <= static_cast<int>(ranks)) possible.push_back(plan);
  return possible[random() % possible.size()];
}

TEST(StateCopies, BringBackBitByBitWhatOneRankAloneHad) {
  const std::vector<Model> models{deep(gpt_model()), deep(opt_model()), deep(llama_model())};
  const std::vector<Precision> precisions{Precision::fp32, Precision::bf16, Precision::fp16};
  std::map<std::int64_t, int> went_on_at;
  for (unsigned turn = 0; turn < 12; ++turn) {
    std::mt19937 random(turn);
    const Model& model = models[turn % models.size()];
    std::vector<Named> plans = divisions(model.layers());
    for (Named& named : plans) named.second.job.precision = precisions[turn / 3 % precisions.size()];
    auto [name, plan] = plans[(5 + turn) % plans.size()];
    if (plan.ranks() == 1) continue;
    SCOPED_TRACE(fmt::format("{}, {}, turn {}", model.name, name, turn));
    const std::vector<WholeState> states = states_until(3, plan, model);
    std::vector<double> losses;
    Ranks ranks = trained(3, plan, model, turn % 6 == 5, losses);
    // One rank is lost; then another one, before any iteration. Each time the numbers of the ranks change.
    std::optional<std::int64_t> iteration;
    Plan after;
    for (int loss = 0; loss < 2 && ranks.size() > 1; ++loss) {
      ranks.erase(ranks.begin() + static_cast<std::ptrdiff_t>(random() % ranks.size()));
      std::shuffle(ranks.begin(), ranks.end(), random);
      after = plan_for(ranks.size(), plans, random);
      iteration = recovered(ranks, after, model, states);
      ASSERT_TRUE(iteration) << "loss " << loss;
      if (after.ranks() == 1) break;  // nobody to copy to
    }
    ++went_on_at[*iteration];
    const TrainerSettings settings = settings_of({});
    losses.resize(static_cast<std::size_t>(*iteration));
    run_ranks(after.ranks(), [&](const World& world) {
      KeepingRank& mine = *ranks[static_cast<std::size_t>(world.rank())];
      train_until(6, *mine.state, settings, world, losses, true, mine.copies.get());
    });
    const Outcome undisturbed = train(plan, model, {.iterations = 6});
    ASSERT_EQ(losses.size(), 6u);
    const double rounding = plan.job.precision == Precision::fp32 ? 1e-4 : 5e-3;
    for (std::size_t i = 0; i < 6; ++i) EXPECT_NEAR(losses[i] / undisturbed.losses[i], 1.0, rounding) << i;
  }
  // One iteration is done again where nobody else had the newest state.
  EXPECT_GE(went_on_at[2], 4);
  EXPECT_GE(went_on_at[3], 2);
  EXPECT_EQ(went_on_at.size(), 2u);
}

TEST(StateCopies, AreOfNoHelpOnlyWhereBothHoldersAreLost) {
  const Model model = deep(gpt_model());
  const Plan plan = plan_of({{6, 2, {{{{0, 1}}}, {{{1, 2}}}, {{{2, 3}}}, {{{3, 4}}}, {{{4, 5}}}, {{{5, 6}}}}}});
  const std::vector<WholeState> states = states_until(3, plan, model);
  const Plan after = plan_of({{12, 1, {{{{0, 6}}}}}});
  for (const auto& [lost, is_lost] : std::vector<std::pair<std::vector<std::size_t>, bool>>{
           {{1, 3, 5}, false}, {{0, 2, 4}, false}, {{1, 4}, false}, {{1, 2}, true}, {{0, 3, 4}, true}}) {
    SCOPED_TRACE(fmt::format("without ranks {}", fmt::join(lost, " ")));
    std::vector<double> losses;
    Ranks ranks = trained(3, plan, model, false, losses);
    for (auto rank = lost.rbegin(); rank != lost.rend(); ++rank)
      ranks.erase(ranks.begin() + static_cast<std::ptrdiff_t>(*rank));
    const std::optional<std::int64_t> iteration = recovered(ranks, after, model, states);
    EXPECT_EQ(iteration, is_lost ? std::nullopt : std::optional<std::int64_t>(2));
  }
}

/// A control plane whose rank hears of a failure instead of the end of a barrier, though all others get past it.
class DeafControl final : public Control {
 public:
  explicit DeafControl(Control& inner) : inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::string host() const override { return inner_.host(); }
  void barrier() override {
    inner_.barrier();
    throw TransportError(TransportError::Cause::lost, "a rank has gone away");
  }
  void idle_barrier() override { inner_.idle_barrier(); }
  double sum(double value) override { return inner_.sum(value); }
  double max(double value) override { return inner_.max(value); }
  double min(double value) override { return inner_.min(value); }
  std::vector<std::string> gather(const std::string& text) override { return inner_.gather(text); }
  std::string broadcast(std::string text) override { return inner_.broadcast(std::move(text)); }
  std::unique_ptr<Control> subgroup(const std::vector<int>& ranks) override { return inner_.subgroup(ranks); }
  std::vector<int> roll_call(Seconds patience) override { return inner_.roll_call(patience); }
  [[noreturn]] void abort(const std::string& message) override {
    inner_.abort(message);
    std::terminate();
  }

 private:
  Control& inner_;
};

/// Three ranks recover to a plan, but one does not hear of the end; then another one is lost.
void lose_one_while_a_recovery_ends(Ranks ranks, const Plan& between, std::size_t deaf, std::size_t lost,
                                    const Model& model, const std::vector<WholeState>& states, std::int64_t expected) {
  const Plan after = plan_of({{6, 2, {{{{0, 4}}}, {{{4, 6}}}}}});
  run_ranks(3, [&](const World& threads) {
    KeepingRank& mine = *ranks[static_cast<std::size_t>(threads.rank())];
    const bool is_deaf = threads.rank() == static_cast<int>(deaf);
    DeafControl deaf_control(threads.control);
    const World world{is_deaf ? deaf_control : threads.control, threads.transport};
    const auto go_on = [&] {
      return recover(
          mine.state.get(), model, settings_of({}), *mine.device, world,
          [&](const Plan*) -> Result<Plan> { return between; }, mine.copies.get());
    };
    if (is_deaf) {
      EXPECT_THROW((void)go_on(), TransportError);
      return;
    }
    auto recovery = go_on();
    ASSERT_TRUE(recovery);
    mine.state = std::move(recovery->state);
  });
  ranks.erase(ranks.begin() + static_cast<std::ptrdiff_t>(lost));
  EXPECT_EQ(recovered(ranks, after, model, states), expected);
}

TEST(StateCopies, SurviveALossWhileARecoveryEnds) {
  const Model model = deep(gpt_model());
  const Plan three = plan_of({{6, 2, {{{{0, 2}}}, {{{2, 4}}}, {{{4, 6}}}}}});
  const Plan four = plan_of({{6, 2, {{{{0, 2}}}, {{{2, 3}}}, {{{3, 4}}}, {{{4, 6}}}}}});
  const Plan divided = plan_of({{6, 2, {{{{0, 3}}, 2}, {{{3, 6}}}}}});
  const Plan replicas = plan_of({{2, 2, {{{{0, 6}}}}, 3}});
  const std::vector<WholeState> states_of_three = states_until(3, three, model);
  const std::vector<WholeState> states_of_four = states_until(3, four, model);
  for (std::size_t deaf = 0; deaf < 3; ++deaf)
    for (std::size_t lost = 0; lost < 3; ++lost) {
      if (lost == deaf) continue;
      SCOPED_TRACE(fmt::format("rank {} keeps both, rank {} is lost", deaf, lost));
      std::vector<double> losses;
      lose_one_while_a_recovery_ends(trained(3, three, model, false, losses), divided, deaf, lost, model,
                                     states_of_three, 3);
      // A rank was lost before, so that all have gone back: what the deaf one still has of the newest version is of no
      // use, and nobody makes up for an update to it.
      Ranks ranks = trained(3, four, model, false, losses);
      ranks.erase(ranks.begin() + 1);
      lose_one_while_a_recovery_ends(std::move(ranks), replicas, deaf, lost, model, states_of_four, 2);
    }
}

}  // namespace
}  // namespace sailor::runtime::test::state_copies_test
