// How many plans per second the closed form prices, and how long the event-driven form takes for a large pipeline. The
// measurements are the published ones of OPT-350M (profiles/).
//
//   $ build/tests/bench_simulator
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "profile/text.hpp"
#include "simulator/quick.hpp"
#include "simulator/simulator.hpp"

namespace {

using namespace sailor;

template <class T>
T value_of(Result<T> result) {
  if (result) return std::move(*result);
  std::fprintf(stderr, "bench_simulator: %s\n", result.error().message().c_str());
  std::abort();
}

struct World {
  World() {
    ProfileData links = value_of(load_profile_text(SAILOR_SOURCE_DIR "/profiles/networks/sailor.toml"));
    ProfileData data = value_of(load_profile_text(SAILOR_SOURCE_DIR "/profiles/layers/opt-350m-sailor.toml"));
    for (LinkFit& row : links.fits) row.session += static_cast<int>(data.sessions.size());
    data.sessions.insert(data.sessions.end(), links.sessions.begin(), links.sessions.end());
    data.fits.insert(data.fits.end(), links.fits.begin(), links.fits.end());
    profile.emplace(std::move(data));
    for (const char* gpu : {"A100-40", "V100-16"})
      cluster.groups.push_back({.nodes = {},
                                .count = 64,
                                .gpu = gpu,
                                .gpus_per_node = 4,
                                .cpus_per_node = 48,
                                .memory_per_node = 256.0 * gib,
                                .state = NodeState::idle,
                                .state_reason = {},
                                .zone = {},
                                .partitions = {}});
  }
  [[nodiscard]] simulator::Environment environment() const {
    return {.model = model, .profile = *profile, .gpus = gpus, .framework = framework, .cluster = &cluster};
  }

  Model model = value_of(find_model("opt-350m-sailor", SAILOR_SOURCE_DIR "/profiles/models"));
  GpuCatalogue gpus = value_of(GpuCatalogue::load(SAILOR_SOURCE_DIR "/profiles/gpus.toml"));
  simulator::Framework framework =
      value_of(simulator::load_framework(SAILOR_SOURCE_DIR "/profiles/frameworks/megatron-deepspeed.toml"));
  std::optional<Profile> profile;
  Cluster cluster;
};

const World& world() {
  static const World world;
  return world;
}

constexpr int stages = 8;

/// Layers divided over the stages, of which the cut after stage `moved` is one layer further down.
Pipeline pipeline(int count, int micro_batches, const std::string& first_gpu, const std::string& second_gpu,
                  std::size_t moved) {
  Pipeline pipeline{.count = count, .micro_batches = micro_batches, .stages = {}};
  const int layers = world().model.layers();
  for (int i = 0; i < stages; ++i)
    pipeline.stages.push_back({.layers = {i * layers / stages, (i + 1) * layers / stages},
                               .gpu = i < stages / 2 ? first_gpu : second_gpu,
                               .zone = {}});
  if (moved + 1 < stages) {
    ++pipeline.stages[moved].layers.last;
    ++pipeline.stages[moved + 1].layers.first;
  }
  return pipeline;
}

/// 16 to 128 ranks: by `index` another number of pipelines, division of the layers, micro-batch, and one GPU type, two
/// in every pipeline, or two in different ones.
Plan plan(std::size_t index) {
  const int pipelines = 2 << (index % 4);  // 2, 4, 8, 16
  const std::size_t moved = index / 4 % 8;
  const int micro_batch = 1 << (index / 32 % 3);
  const std::size_t mix = index / 96 % 4;
  const auto moved_too = static_cast<std::size_t>(index / 384 % 11);
  const int micro_batches = 8 + static_cast<int>(moved_too);
  Plan plan;
  plan.job = {.model = world().model.name,
              .global_batch = pipelines * micro_batches * micro_batch,
              .sequence_length = 2048,
              .precision = Precision::tf32,
              .optimizer = Optimizer::adamw};
  plan.micro_batch = micro_batch;
  const std::string a = "A100-40";
  const std::string v = "V100-16";
  switch (mix) {
    case 0:
      plan.pipelines = {pipeline(pipelines, micro_batches, a, a, moved)};
      break;
    case 1:
      plan.pipelines = {pipeline(pipelines, micro_batches, v, v, moved)};
      break;
    case 2:
      plan.pipelines = {pipeline(pipelines, micro_batches, a, v, moved)};
      break;
    default:
      plan.pipelines = {pipeline(pipelines / 2, micro_batches, a, a, moved),
                        pipeline(pipelines / 2, micro_batches, v, v, (moved + moved_too) % 8)};
  }
  return plan;
}

void predict(benchmark::State& state, const std::vector<Plan>& plans) {
  simulator::QuickSimulator simulator(world().environment());
  for (const Plan& plan : plans)  // all look-ups are made before
    if (const auto prediction = simulator.predict(plan); !prediction) {
      state.SkipWithError(prediction.error().message().c_str());
      return;
    }
  std::size_t next = 0;
  for (auto _ : state) {
    auto prediction = simulator.predict(plans[next]);
    benchmark::DoNotOptimize(prediction);
    next = next + 1 == plans.size() ? 0 : next + 1;
  }
  state.counters["plans/s"] = benchmark::Counter(static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

/// One plan of 8 stages and 64 ranks, again and again.
void price_one_plan(benchmark::State& state) { predict(state, {plan(2)}); }
BENCHMARK(price_one_plan);

/// As many copies of one pipeline as the argument: the time should hardly depend on it.
void price_copies(benchmark::State& state) {
  Plan copies = plan(2);
  const auto count = static_cast<int>(state.range(0));
  copies.job.global_batch *= count;
  copies.job.global_batch /= copies.pipelines.front().count;
  copies.pipelines.front().count = count;
  predict(state, {copies});
}
BENCHMARK(price_copies)->Arg(4)->Arg(60)->Arg(1000);

/// 4,096 different ones in turn.
void price_many_plans(benchmark::State& state) {
  std::vector<Plan> plans;
  for (std::size_t i = 0; i < 4096; ++i) plans.push_back(plan(i));
  predict(state, plans);
}
BENCHMARK(price_many_plans);

/// The first question of a planner: nothing has been looked up.
void price_the_first_plan(benchmark::State& state) {
  const Plan first = plan(2);
  for (auto _ : state) {
    simulator::QuickSimulator simulator(world().environment());
    auto prediction = simulator.predict(first);
    benchmark::DoNotOptimize(prediction);
  }
}
BENCHMARK(price_the_first_plan)->Unit(benchmark::kMillisecond);

void simulate_plan(benchmark::State& state) {
  const Plan simulated = plan(2);
  for (auto _ : state) {
    auto prediction = simulator::simulate(simulated, world().environment());
    benchmark::DoNotOptimize(prediction);
  }
}
BENCHMARK(simulate_plan)->Unit(benchmark::kMillisecond);

/// 64 stages that differ by up to a tenth, 1,024 micro-batches: about 131,000 passes and as many messages.
void run_large_pipeline(benchmark::State& state, bool overlaps, bool with_timeline) {
  std::vector<simulator::PassTimes> passes;
  for (int i = 0; i < 64; ++i) {
    const double factor = 1.0 + 0.01 * (i * 7 % 11);
    passes.push_back({Seconds(1e-3 * factor), Seconds(2e-3 * factor)});
  }
  const std::vector<simulator::BoundaryTimes> boundaries(63, {Seconds(1e-4), Seconds(1e-4)});
  const simulator::PipelineTimes pipeline{.schedule = Schedule::one_f_one_b,
                                          .overlaps_transfers = overlaps,
                                          .stages = 64,
                                          .chunks = 1,
                                          .micro_batches = 1024,
                                          .passes = passes,
                                          .boundaries = boundaries};
  for (auto _ : state) {
    std::vector<TimelineEvent> events;
    auto ends = simulator::run_pipeline(pipeline, with_timeline ? &events : nullptr);
    benchmark::DoNotOptimize(ends);
  }
}
BENCHMARK_CAPTURE(run_large_pipeline, blocking, false, false)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(run_large_pipeline, overlapped, true, false)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(run_large_pipeline, blocking_with_timeline, false, true)->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
