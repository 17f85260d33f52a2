#include "profiler/layer_profiler.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <system_error>

#include "core/terminal.hpp"
#include "profiler/layer_chain.hpp"
#include "profiler/pooling.hpp"
#include "runtime/layer.hpp"
#include "runtime/process_memory.hpp"
#include "runtime/tensor.hpp"

namespace sailor::profiler {

namespace {

// Micro-batches between two updates. A sample is their mean, not one pass: an iteration sums many passes, so what
// preemption and cache misses add now and then counts with its share; a median over single passes would lose it.
constexpr int passes_per_round = 4;

enum Phase : std::size_t { forward, backward, update, phases };

/// Samples of one micro-batch size on this rank.
struct Samples {
  std::array<std::array<std::vector<double>, layer_kinds>, phases> seconds;
  void add(Phase phase, const KindTimes& times) {
    for (std::size_t kind = 0; kind < layer_kinds; ++kind) seconds[phase][kind].push_back(times[kind]);
  }
};

/// Bytes that the system could give to new processes; 0 when it does not say.
double available_memory() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("MemAvailable:"))
      return 1024.0 * std::strtod(line.c_str() + line.find(':') + 1, nullptr);  // "kB" there is 1024 bytes
  return 0.0;
}

int ranks_on_busiest_host(runtime::Communicator& world) {
  std::map<std::string, int> ranks;
  int most = 1;
  for (const std::string& host : all_texts(world, world.host())) most = std::max(most, ++ranks[host]);
  return most;
}

}  // namespace

Result<void> check_layers(const Model& model, const LayerSettings& settings, runtime::Communicator& world) {
  SAILOR_CHECK(runtime::check_supported(model));
  if (settings.sequence_length > model.max_sequence_length)
    return fail(ErrorCode::usage, fmt::format("--sequence-length: {} is over the {} tokens that model {} allows",
                                              settings.sequence_length, model.max_sequence_length, model.name));
  // Value, gradient and two moments, 4 bytes each, on every rank of this host; activations come on top.
  const int ranks = ranks_on_busiest_host(world);
  const double needed = 16.0 * static_cast<double>(LayerChain::parameters_of(model)) * ranks;
  const double available = available_memory();
  if (available > 0.0 && needed > available)
    return fail(ErrorCode::unavailable,
                fmt::format("{} with {} needs {} for {} of model {} but {} is free",
                            plural(static_cast<std::size_t>(ranks), "rank"),
                            plural(static_cast<std::size_t>(LayerChain::blocks_of(model)), "block"),
                            format_bytes(Bytes(needed)), "parameters", model.name, format_bytes(Bytes(available))),
                "use fewer ranks per node");
  return {};
}

std::vector<LayerMeasurement> measure_layers(const Model& model, const LayerSettings& settings, runtime::Device& device,
                                             runtime::Communicator& world, const RoundDone& round_done) {
  LayerChain chain(model, device);
  std::vector<ChainInput> inputs;
  std::vector<std::array<KindBytes, layer_kinds>> bytes;
  for (const int micro_batch : settings.micro_batches) {
    inputs.emplace_back(model, micro_batch, settings.sequence_length, device);
    bytes.push_back(chain.memory_of_a_pass(inputs.back().micro_batch()));
  }

  // Round by round over sizes and layers, so that noise of the machine spreads over all of them.
  std::vector<Samples> samples(inputs.size());
  const auto start = std::chrono::steady_clock::now();
  const std::size_t rounds = static_cast<std::size_t>(settings.warm_up) + static_cast<std::size_t>(settings.samples);
  for (std::size_t round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      world.barrier();  // all ranks are busy with the same size at the same time
      const bool counts = static_cast<int>(round) >= settings.warm_up;
      KindTimes forward_mean{};
      KindTimes backward_mean{};
      for (int pass = 0; pass < passes_per_round; ++pass) {
        KindTimes forward_times;
        KindTimes backward_times;
        chain.forward_and_backward(inputs[i].micro_batch(), forward_times, backward_times);
        for (std::size_t kind = 0; kind < layer_kinds; ++kind) {
          forward_mean[kind] += forward_times[kind] / passes_per_round;
          backward_mean[kind] += backward_times[kind] / passes_per_round;
        }
      }
      const KindTimes update_times = chain.update();
      if (!counts) continue;
      samples[i].add(forward, forward_mean);
      samples[i].add(backward, backward_mean);
      samples[i].add(update, update_times);
    }
    if (world.rank() == 0) round_done(round + 1, rounds);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    // All ranks must stop together: the slowest clock decides.
    if (world.max(elapsed.count()) > settings.time_budget.value() &&
        static_cast<int>(round) + 1 >= settings.warm_up + fewest_samples)
      break;
  }

  const int busy_ranks = settings.busy_ranks > 0 ? settings.busy_ranks : ranks_on_busiest_host(world);
  const std::vector<std::string> gpus = all_texts(world, settings.gpu);
  std::vector<LayerMeasurement> rows;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    for (const LayerKind kind : {LayerKind::embedding, LayerKind::block, LayerKind::final_norm, LayerKind::head}) {
      if (!chain.has(kind)) continue;
      const std::size_t k = index_of(kind);
      std::array<std::map<std::string, std::vector<double>>, phases> pooled;  // by GPU
      for (std::size_t phase = 0; phase < phases; ++phase) {
        const auto all = gather_numbers(world, samples[i].seconds[phase][k]);
        for (std::size_t rank = 0; rank < all.size(); ++rank) {
          auto& pool = pooled[phase][gpus[rank]];
          pool.insert(pool.end(), all[rank].begin(), all[rank].end());
        }
      }
      for (const auto& [gpu, forward_samples] : pooled[forward])  // empty but on rank 0
        rows.push_back({.key = {.model = model.name,
                                .gpu = gpu,
                                .precision = Precision::fp32,
                                .recompute = Recompute::none,
                                .tensor_parallel = 1,
                                .micro_batch = settings.micro_batches[i],
                                .sequence_length = settings.sequence_length,
                                .busy_ranks = busy_ranks,
                                .kind = kind},
                        .forward = summarize(forward_samples),
                        .backward = summarize(pooled[backward].at(gpu)),
                        .update = summarize(pooled[update].at(gpu)),
                        .parameters = chain.parameters(kind),
                        .activation = Bytes(bytes[i][k].activation),
                        .output = Bytes(bytes[i][k].output),
                        .workspace = Bytes(bytes[i][k].workspace)});
    }
  return rows;
}

std::vector<ProcessMeasurement> measure_process(const std::string& gpu, runtime::Communicator& world,
                                                const std::function<std::unique_ptr<runtime::Device>()>& make_device) {
  {
    // The BLAS allocates its buffers in the first product, and MPI its own with the first messages.
    constexpr std::int64_t rows = 1024;
    constexpr std::int64_t inner = 512;
    const std::unique_ptr<runtime::Device> device = make_device();
    runtime::Tensor a(*device, {rows, inner});
    runtime::Tensor b(*device, {inner, rows});
    runtime::Tensor c(*device, {rows, rows});
    device->zero(a.data(), a.bytes());
    device->zero(b.data(), b.bytes());
    device->matmul({.m = rows, .n = rows, .k = inner}, a.floats(), b.floats(), c.floats());
    device->synchronize();
    world.all_reduce_sum(c.floats(), c.elements());
  }
  // HDF5 stays in memory after the first file: rank 0 of a training writes one.
  std::error_code code;
  const auto scratch =
      std::filesystem::temp_directory_path(code) / fmt::format("sailor-{}-{}.h5", world.host(), ::getpid());
  if (save_profile(ProfileData{}, scratch)) std::filesystem::remove(scratch, code);
  world.barrier();
  const std::vector<std::string> gpus = all_texts(world, gpu);
  const auto memory = gather_numbers(world, {runtime::resident_memory().now.value()});
  std::map<std::string, double> largest;
  for (std::size_t rank = 0; rank < memory.size(); ++rank)
    largest[gpus[rank]] = std::max(largest[gpus[rank]], memory[rank].front());
  std::vector<ProcessMeasurement> rows;
  for (const auto& [name, resident] : largest)
    rows.push_back({.gpu = name, .framework = "sailor", .base_memory = Bytes(resident)});
  return rows;
}

}  // namespace sailor::profiler
