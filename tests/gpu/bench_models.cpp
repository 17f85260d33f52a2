// Iterations of whole models on one GPU: tokens/s, model FLOP utilisation, memory, loss; and each operation's share of
// an iteration beside the rates that this GPU reaches with a large matrix product and a large copy.
//
// Usage: bench_models MODEL SEQUENCES LENGTH MICRO_BATCHES [none|selective|full] [ITERATIONS] [BLOCKS]
// Exit status 3: no usable GPU.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "runtime/cuda/cuda_device.hpp"
#include "runtime/data/token_file_writer.hpp"
#include "runtime/trainer.hpp"
#include "tests/fakes/thread_transport.hpp"
#include "tests/fakes/timed_device.hpp"
#include "tests/gpu/bench.hpp"

using namespace sailor;
using namespace sailor::runtime;
namespace fs = std::filesystem;

namespace {

template <class T>
T value_of(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message());
  return std::move(*result);
}

/// Tokens that a model can learn something of: each follows from the one before, but for some noise.
void write_tokens(const std::string& prefix, int vocabulary, std::int64_t count) {
  std::mt19937_64 random(1);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
  std::int64_t last = 1;
  for (std::int32_t& token : tokens) {
    last =
        random() % 4 == 0 ? static_cast<std::int64_t>(random() % 1000) : (last * 31 + 7) % std::min(vocabulary, 5000);
    token = static_cast<std::int32_t>(last);
  }
  const auto written = write_token_file(prefix, TokenType::int32, {}, [&](TokenSink& sink) -> Result<void> {
    auto added = sink.add(tokens);
    sink.end_document();
    return added;
  });
  if (!written) throw std::runtime_error(written.error().message());
}

/// FLOP/s of a product of two matrices as large as fill the GPU.
double measure_flops(Device& device) {
  Bench bench(device);
  constexpr std::int64_t n = 8192;
  const Tensor a = bench.make(n * n);
  const Tensor b = bench.make(n * n);
  Tensor c = bench.make(n * n);
  return 2.0 * n * n * n / bench.time([&](Stream& stream) {
    stream.matmul({.m = n, .n = n, .k = n}, a.values(), b.values(), c.values());
  });
}

/// Bytes/s, read and written, of a copy of a GiB.
double measure_bandwidth(Device& device) {
  constexpr std::size_t bytes = std::size_t{1} << 30;
  const Tensor from(device, {std::int64_t{bytes} / 4});
  Tensor to(device, {std::int64_t{bytes} / 4});
  return 2.0 * bytes / Bench(device).time([&](Stream& stream) { stream.copy(to.data(), from.data(), bytes); });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    fmt::print(
        "usage: bench_models MODEL SEQUENCES LENGTH MICRO_BATCHES [none|selective|full] [ITERATIONS] [BLOCKS]\n");
    return 2;
  }
  std::unique_ptr<Device> gpu;
  try {
    gpu = make_cuda_device();
  } catch (const std::exception& error) {
    fmt::print("no usable GPU: {}\n", error.what());
    return 3;
  }
  try {
    Model model = value_of(find_model(argv[1], fs::path(SAILOR_SOURCE_DIR) / "profiles/models"));
    const int sequences = std::atoi(argv[2]);
    const int length = std::atoi(argv[3]);
    const int micro_batches = std::atoi(argv[4]);
    const std::string recompute = argc > 5 ? argv[5] : "none";
    const int iterations = argc > 6 ? std::atoi(argv[6]) : 12;
    if (argc > 7) model.blocks = std::atoi(argv[7]);
    const double peak_flops = measure_flops(*gpu);
    const double peak_bandwidth = measure_bandwidth(*gpu);
    gpu->release_unused_memory();
    test::TimedDevice device(*gpu);
    const fs::path folder = fs::temp_directory_path() / fmt::format("sailor-bench-{}", ::getpid());
    fs::create_directories(folder);
    const std::string prefix = (folder / "tokens").string();
    write_tokens(prefix, model.vocabulary,
                 std::int64_t{sequences} * micro_batches * length * std::min(iterations, 8) + length + 1);
    const auto samples = value_of(Samples::open(prefix, length, model.vocabulary, 5));

    Plan plan;
    plan.job = {.model = model.name,
                .global_batch = sequences * micro_batches,
                .sequence_length = length,
                .precision = Precision::bf16,
                .optimizer = {}};
    Stage stage;
    stage.layers = {0, model.layers()};
    stage.gpu = "gpu";
    stage.recompute = recompute == "full"        ? Recompute::full
                      : recompute == "selective" ? Recompute::selective
                                                 : Recompute::none;
    plan.pipelines.push_back({.count = 1, .micro_batches = micro_batches, .micro_batch = sequences, .stages = {stage}});
    test::run_ranks(1, [&](const World& world) {
      const TrainerSettings settings{
          .seed = 1, .optimizer = {}, .learning_rate = {.peak = 2e-4f, .warm_up_iterations = 2}, .clip_norm = 1.0};
      TrainingState state(plan, model, 0, device);
      state.initialize(settings);
      Trainer trainer(state, settings, world, &samples);
      std::vector<double> times;
      double first_loss = 0.0;
      double last_loss = 0.0;
      for (int i = 0; i < iterations; ++i) {
        if (i == 2) device.reset_peak_memory();
        const IterationResult result = trainer.run();
        if (i == 0) first_loss = result.loss;
        last_loss = result.loss;
        if (i >= 2) times.push_back(result.time.value());
      }
      std::sort(times.begin(), times.end());
      const double time = times[times.size() / 2];
      const double tokens = static_cast<double>(plan.job.global_batch) * length;
      const double flop_per_token = 6.0 * static_cast<double>(model.active_parameters()) +
                                    12.0 * model.blocks * static_cast<double>(model.hidden) * length;
      const MemoryUse memory = device.memory_use();
      const double flops = tokens / time * flop_per_token;
      fmt::print(
          "{}, {} blocks: {} x {} x {} tokens, recompute {}: {:.1f} ms, {:.0f} tokens/s, {:.1f} % of 989 TFLOP/s (6N + "
          "12LhT), {:.1f} % of {:.0f} measured, {:.2f} GiB in tensors, {:.2f} reserved, loss {:.3f} -> {:.3f}\n",
          model.name, model.blocks, micro_batches, sequences, length, recompute, time * 1e3, tokens / time,
          flops / 989e12 * 100.0, flops / peak_flops * 100.0, peak_flops * 1e-12, memory.peak.value() / 1073741824.0,
          memory.reserved.value() / 1073741824.0, first_loss, last_loss);
      device.start_recording();
      const IterationResult last = trainer.run();
      fmt::print("{}\n", test::operation_table(device.stop_recording(), last.time, peak_flops, peak_bandwidth));
    });
    fs::remove_all(folder);
  } catch (const std::exception& error) {
    fmt::print("{}: {}\n", argv[1], error.what());
    return 1;
  }
}
