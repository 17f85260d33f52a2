// How long a transformer block of OPT-350M takes forward and backward, as one rank with OMP_NUM_THREADS cores trains
// it. experiments/training_speed.py compares it with PyTorch's.
//
//   $ build/tests/bench_block --benchmark_filter=sequence:512
#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "model/model.hpp"
#include "runtime/cpu/cpu_device.hpp"
#include "runtime/cpu/host_cpu.hpp"
#include "runtime/stage.hpp"

namespace {

using namespace sailor;

int threads() {
  const char* const wanted = std::getenv("OMP_NUM_THREADS");
  return runtime::cpu::compute_threads({{"OMP_NUM_THREADS", wanted == nullptr ? "" : wanted}});
}

const Model& model() {
  static const Model model = [] {
    Result<Model> found = find_model("opt-350m", SAILOR_SOURCE_DIR "/profiles/models");
    if (!found) {
      std::fprintf(stderr, "bench_block: %s\n", found.error().message().c_str());
      std::abort();
    }
    return std::move(*found);
  }();
  return model;
}

/// Sequences of a micro-batch; their length.
void forward_and_backward(benchmark::State& state) {
  const std::unique_ptr<runtime::Device> device = runtime::make_cpu_device(threads());
  runtime::StageLayers block(model(), LayerRange{1, 2}, *device);
  block.parameters().initialize(0);
  block.parameters().zero_gradients();
  const runtime::MicroBatch micro_batch{.sequences = state.range(0), .sequence_length = state.range(1)};
  std::vector<float> values(static_cast<std::size_t>(micro_batch.token_count() * model().hidden));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(i * 2654435761u % 2001) / 1000.0f - 1.0f;
  const auto hidden_state = [&] {
    runtime::Tensor tensor(*device, {micro_batch.token_count(), model().hidden});
    device->main().copy_from_host(tensor.data(), values.data(), tensor.bytes());
    return tensor;
  };
  for (auto _ : state) {
    runtime::Tensor output = block.forward(0, micro_batch, hidden_state());
    benchmark::DoNotOptimize(block.backward(0, micro_batch, std::move(output)).data());
  }
  state.counters["tokens_per_s"] = benchmark::Counter(
      static_cast<double>(micro_batch.token_count() * state.iterations()), benchmark::Counter::kIsRate);
}
BENCHMARK(forward_and_backward)
    ->ArgNames({"sequences", "sequence"})
    ->Args({1, 512})
    ->Args({2, 512})
    ->Args({1, 2048})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace

BENCHMARK_MAIN();
