// What copies of state in peers' memory (runtime/state_copies.hpp) cost an iteration: ranks in processes of their own,
// over TCP on this machine, train one state by turns with and without copies. Every pair gives a ratio of times; the
// order in a pair alternates. On one machine the copies take the cores that compute; between nodes they take the links.
//
//   $ build/tests/bench_state_copies --benchmark_filter=pairs:30
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/state_copies.hpp"
#include "tests/unit/socket_ranks.hpp"
#include "tests/unit/trainer_runs.hpp"

namespace {

using namespace sailor;
using namespace sailor::runtime;
using namespace sailor::runtime::test;

constexpr int tokens_of_a_sequence = 64;

/// 4.3 million parameters: 51 MB of values and moments.
Model small_model() {
  Model model = gpt_model();
  model.blocks = 4;
  model.hidden = model.embedding_width = 256;
  model.attention_heads = model.key_value_heads = 8;
  model.feed_forward = 1024;
  model.vocabulary = 4096;
  model.max_sequence_length = tokens_of_a_sequence;
  return model;
}

enum Kind { two_stages, zero1, replicas };

/// Of two ranks.
Plan plan_for(Kind kind, int sequences) {
  Plan plan;
  if (kind == two_stages)
    plan = plan_of({{sequences, 1, {{{{0, 3}}}, {{{3, 6}}}}}});
  else
    plan = plan_of({{sequences / 2, 1, {{{{0, 6}}}}, 2}}, Schedule::one_f_one_b,
                   kind == zero1 ? OptimizerSharding::zero1 : OptimizerSharding::none);
  plan.job.sequence_length = tokens_of_a_sequence;
  return plan;
}

/// Rank 0 sends the seconds of each pair's iterations without and with copies, then what copies cost.
void train_in_turns(const Plan& plan, int pairs, const Addresses& coordinator, int rank, const Pipe& results) {
  const auto member = member_of(coordinator, {.rank = rank});
  begin(*member);
  const World world = member->world();
  const auto device = make_cpu_device();
  const Model model = small_model();
  const auto samples = Samples::open(corpus().prefix(), tokens_of_a_sequence, model.vocabulary, 5);
  if (!samples) throw std::runtime_error(samples.error().message());
  const TrainerSettings settings = settings_of({});
  TrainingState state(plan, model, rank, *device);
  state.initialize(settings);
  StateCopies copies(*device);
  CopyExchange exchange(state, copies, world);
  Trainer with(state, settings, world, &*samples, &exchange);
  Trainer without(state, settings, world, &*samples);
  const auto seconds = [&](Trainer& trainer) {
    world.control.barrier();
    const auto start = Clock::now();
    (void)trainer.run();
    trainer.settle();
    device->synchronize();
    return seconds_since(start);
  };
  (void)seconds(without);  // first touches
  (void)seconds(with);
  (void)seconds(with);
  for (int pair = 0; pair < pairs; ++pair) {
    std::array<double, 2> times{};
    for (const std::size_t turn : {0UL, 1UL}) {
      const std::size_t which = (turn + static_cast<std::size_t>(pair)) % 2;
      times[which] = seconds(which == 0 ? without : with);
    }
    if (rank == 0) results.send(fmt::format("{} {}", times[0], times[1]));
  }
  if (rank == 0) results.send(fmt::format("{} {}", exchange.cost().sent.value(), exchange.cost().kept.value()));
  world.control.barrier();
}

double quantile(std::vector<double> values, double share) {
  const auto place = static_cast<std::size_t>(share * static_cast<double>(values.size() - 1) + 0.5);
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(place), values.end());
  return values[place];
}

/// Plan; sequences of the global batch; pairs.
void iterations(benchmark::State& state) {
  const Plan plan = plan_for(static_cast<Kind>(state.range(0)), static_cast<int>(state.range(1)));
  const int pairs = static_cast<int>(state.range(2));
  (void)corpus();  // before ranks are forked, all of which use it
  for (auto _ : state) {
    const Pipe results;
    ForkedRanks ranks(plan.ranks(), {.members = plan.ranks()},
                      [&](int rank, const Addresses& address) { train_in_turns(plan, pairs, address, rank, results); });
    const auto next = [&] {
      if (!results.is_readable(Seconds(60.0))) throw std::runtime_error("no answer from rank 0");
      std::istringstream words(results.receive());
      std::array<double, 2> numbers{};
      words >> numbers[0] >> numbers[1];
      return numbers;
    };
    std::vector<double> without;
    std::vector<double> with;
    std::vector<double> ratios;
    for (int pair = 0; pair < pairs; ++pair) {
      const auto [a, b] = next();
      without.push_back(a);
      with.push_back(b);
      ratios.push_back(b / a);
    }
    const auto [sent, kept] = next();
    for (int rank = 0; rank < plan.ranks(); ++rank)
      if (ranks[rank].status() != 0) state.SkipWithError("a rank has failed");
    state.counters["without_s"] = quantile(without, 0.5);
    state.counters["with_s"] = quantile(with, 0.5);
    state.counters["ratio"] = quantile(ratios, 0.5);
    state.counters["ratio_p25"] = quantile(ratios, 0.25);
    state.counters["ratio_p75"] = quantile(ratios, 0.75);
    state.counters["sent_bytes"] = sent;
    state.counters["kept_bytes"] = kept;
  }
}
BENCHMARK(iterations)
    ->ArgNames({"plan", "sequences", "pairs"})
    ->ArgsProduct({{two_stages, zero1, replicas}, {4, 16}, {2, 30}})
    ->Iterations(1)
    ->Unit(benchmark::kSecond);

}  // namespace

BENCHMARK_MAIN();
