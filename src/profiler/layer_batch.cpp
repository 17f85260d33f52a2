#include "profiler/layer_batch.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>

#include "core/statistics.hpp"
#include "core/stopwatch.hpp"
#include "runtime/tensor.hpp"

namespace sailor::profiler {
namespace {

using Clock = std::chrono::steady_clock;

// A sample is the mean of this many passes in a row, not one pass: an iteration sums many passes, so occasional
// preemption and cache misses count with their share; a median over single passes would lose it. Long passes contain
// their share each.
constexpr int most_passes = 4;
// A GPU at its power limit takes tens of milliseconds to reach the clock at which it runs a size for long: short passes
// are more, and come after some that do not count. Without, on an H200, micro-batches of 4 measured between others of
// 16 were 4 % too slow.
constexpr int most_passes_of_gpu = 16;
constexpr double long_sample = 0.1;  // seconds

/// Constant work in small caches: if it takes longer, the device has slowed down.
class Reference {
 public:
  explicit Reference(runtime::Device& device) : device_(device), a_(device, {side, side}), c_(device, {side, side}) {
    device.main().zero(a_.data(), a_.bytes());
    (void)seconds();
  }
  double seconds() {
    device_.main().record(*begin_);
    for (int i = 0; i < products; ++i)
      device_.main().matmul({.m = side, .n = side, .k = side}, a_.floats(), a_.floats(), c_.floats());
    device_.main().record(*end_);
    device_.wait(*end_);
    return device_.elapsed(*begin_, *end_).value();
  }

 private:
  static constexpr std::int64_t side = 192;
  static constexpr int products = 12;
  runtime::Device& device_;
  runtime::Tensor a_;
  runtime::Tensor c_;
  std::unique_ptr<runtime::Event> begin_ = device_.make_event();
  std::unique_ptr<runtime::Event> end_ = device_.make_event();
};

class BatchRun {
 public:
  BatchRun(runtime::Control& workers, const std::function<bool()>& stop_asked)
      : workers_(workers), stop_asked_(stop_asked) {}

  /// True if no rank ran out of memory in `work`. All ranks return together.
  bool attempt(std::optional<int> micro_batch, const std::function<void()>& work) {
    bool failed = false;
    try {
      work();
    } catch (const runtime::OutOfMemoryError& error) {
      failed = true;
      batch.failure = {.kind = chain ? chain->working_on() : LayerKind::embedding,
                       .needed = error.reserved + error.requested,
                       .available = error.available};
      if (chain) chain->forget();
    }
    // One reduction for both: a rank failed (2), a rank was asked to stop (1).
    const double worst = workers_.max(failed ? 2.0 : stop_asked_() ? 1.0 : 0.0);
    batch.interrupted = batch.interrupted || worst == 1.0;
    if (worst < 2.0) return true;
    batch.out_of_memory = true;
    batch.too_large = micro_batch;
    return false;
  }

  /// One sample of a size: the means of `passes` passes, and an update, after `uncounted` passes.
  void sample(const runtime::MicroBatch& input, int passes, int uncounted, SizeSamples* samples) {
    KindTimes forward_mean{};
    KindTimes backward_mean{};
    for (int pass = -uncounted; pass < passes; ++pass) {
      KindTimes forward_times;
      KindTimes backward_times;
      chain->forward_and_backward(input, Caches::warm, forward_times, backward_times);
      if (pass < 0) continue;
      for (std::size_t kind = 0; kind < layer_kinds; ++kind) {
        forward_mean[kind] += forward_times[kind] / passes;
        backward_mean[kind] += backward_times[kind] / passes;
      }
    }
    const KindTimes update_times = chain->update();
    if (samples == nullptr) return;
    add(*samples, forward, forward_mean);
    add(*samples, backward, backward_mean);
    add(*samples, update, update_times);
  }

  void cold_sample(const runtime::MicroBatch& input, SizeSamples& samples) {
    KindTimes forward_times;
    KindTimes backward_times;
    chain->forward_and_backward(input, Caches::cold, forward_times, backward_times);
    add(samples, cold_forward, forward_times);
    add(samples, cold_backward, backward_times);
  }

  Batch batch;
  std::unique_ptr<LayerChain> chain;

 private:
  void add(SizeSamples& samples, Phase phase, const KindTimes& times) const {
    for (const LayerKind kind : {LayerKind::embedding, LayerKind::block, LayerKind::final_norm, LayerKind::head})
      if (chain->has(kind)) samples.seconds[phase][index_of(kind)].push_back(times[index_of(kind)]);
  }

  runtime::Control& workers_;
  const std::function<bool()>& stop_asked_;
};

}  // namespace

Batch measure_batch(const Model& model, const std::vector<int>& micro_batches, const BatchSettings& settings,
                    std::map<int, int>& passes, runtime::Device& device, runtime::Control& workers,
                    const std::function<bool()>& stop_asked) {
  device.release_unused_memory();  // so that a batch lies elsewhere in memory than the previous one
  BatchRun run(workers, stop_asked);
  Batch& batch = run.batch;
  std::unique_ptr<Reference> reference;
  if (!run.attempt({}, [&] {
        reference = std::make_unique<Reference>(device);
        run.chain = std::make_unique<LayerChain>(model, settings.blocks, settings.kinds, device,
                                                 settings.tensor_parallel, settings.recompute, settings.type);
      }))
    return std::move(batch);
  for (std::size_t kind = 0; kind < layer_kinds; ++kind)
    batch.parameters[kind] = run.chain->parameters(static_cast<LayerKind>(kind));

  struct Size {
    int micro_batch = 0;
    std::unique_ptr<ChainInput> input;
    double pass_seconds = 0.0;
  };
  std::vector<Size> sizes;
  for (const int micro_batch : micro_batches) {
    device.release_unused_memory();
    Size size{.micro_batch = micro_batch, .input = nullptr};
    const auto start = Clock::now();
    if (!run.attempt(micro_batch, [&] {
          size.input = std::make_unique<ChainInput>(model, micro_batch, settings.sequence_length, device);
          batch.sizes[micro_batch].bytes = run.chain->memory_of_a_pass(size.input->micro_batch());
        })) {
      batch.sizes.erase(micro_batch);
      break;  // larger ones need more memory
    }
    size.pass_seconds = seconds_since(start);
    sizes.push_back(std::move(size));
  }
  const auto first_too_large = [&] {
    return std::find_if(sizes.begin(), sizes.end(),
                        [&](const Size& size) { return batch.too_large && size.micro_batch >= *batch.too_large; });
  };

  // Loops over the sizes in every round, so that noise of the machine is spread over all of them.
  std::vector<double> references;
  const int most = device.computes_on_host() ? most_passes : most_passes_of_gpu;
  const auto start = Clock::now();
  for (int round = 0; round < settings.warm_up + settings.samples && !sizes.empty(); ++round) {
    const bool counts = round >= settings.warm_up;
    for (Size& size : sizes) {
      // attempt() ends with a synchronisation of all ranks: they work on the same size at the same time.
      const auto sample_start = Clock::now();
      if (counts && !passes.contains(size.micro_batch)) {
        const double slowest = std::max(1e-9, workers.max(size.pass_seconds));
        passes[size.micro_batch] =
            static_cast<int>(std::clamp(std::ceil(long_sample / slowest), 1.0, static_cast<double>(most)));
      }
      if (!run.attempt(size.micro_batch, [&] {
            const int count = counts ? passes.at(size.micro_batch) : 1;
            run.sample(size.input->micro_batch(), count, device.computes_on_host() ? 0 : count / 2,
                       counts ? &batch.sizes.at(size.micro_batch) : nullptr);
          })) {
        batch.sizes.erase(batch.sizes.lower_bound(size.micro_batch), batch.sizes.end());  // ranks differ in samples
        break;
      }
      if (!counts) size.pass_seconds = seconds_since(sample_start);
      if (batch.interrupted) return std::move(batch);
    }
    sizes.erase(first_too_large(), sizes.end());
    references.push_back(reference->seconds());
    const bool late = workers.max(seconds_since(start)) > settings.time_limit.value();
    if (late && round + 1 >= settings.warm_up + fewest_rounds) break;
  }
  batch.clock_hz = device.clock_hz();
  batch.reference = quantile(references, 0.5);
  if (settings.cold)
    for (const Size& size : sizes) {
      SizeSamples& samples = batch.sizes.at(size.micro_batch);
      if (run.attempt(size.micro_batch, [&] { run.cold_sample(size.input->micro_batch(), samples); })) continue;
      for (const Phase phase : {cold_forward, cold_backward}) samples.seconds[phase] = {};
      break;
    }
  return std::move(batch);
}

}  // namespace sailor::profiler
