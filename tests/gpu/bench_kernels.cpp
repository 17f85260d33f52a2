// Rates of the GPU's operations at the shapes of the models: TFLOP/s of matrix products and attention, TB/s of what is
// bound by memory. Best of five rounds. Exit status 3: no usable GPU.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "runtime/cuda/cuda_device.hpp"
#include "runtime/tensor.hpp"
#include "tests/gpu/bench.hpp"

using namespace sailor;
using namespace sailor::runtime;

namespace {

class KernelBench : public Bench {
 public:
  using Bench::Bench;

  void flops(const std::string& name, double flop, const std::function<void(Stream&)>& operation) {
    const double seconds = time(operation);
    fmt::print("{:<52} {:>10.1f} us {:>8.1f} TFLOP/s\n", name, seconds * 1e6, flop / seconds * 1e-12);
  }
  void bytes(const std::string& name, double moved, const std::function<void(Stream&)>& operation) {
    const double seconds = time(operation);
    fmt::print("{:<52} {:>10.1f} us {:>8.2f} TB/s\n", name, seconds * 1e6, moved / seconds * 1e-12);
  }
};

void matrix_products(KernelBench& bench, std::int64_t rows, std::int64_t in, std::int64_t out) {
  LinearShape shape{rows, in, out};
  shape.out_stride = bench.device().row_stride(out);
  Tensor input = bench.make(rows * in);
  Tensor weight = bench.make(in * out);
  Tensor output = bench.make(rows * shape.out_stride);
  Tensor gradient = bench.make(in * out, DataType::float32);
  const double flop = 2.0 * static_cast<double>(rows) * static_cast<double>(in) * static_cast<double>(out);
  const std::string name = fmt::format("linear {} x {} -> {}", rows, in, out);
  bench.flops(name + ", forward", flop, [&](Stream& stream) {
    stream.linear_forward(shape, input.values(), weight.values(), {nullptr, bf16}, {nullptr, bf16},
                          PointwiseActivation::none, {nullptr, bf16}, output.values());
  });
  bench.flops(name + ", input gradient", flop, [&](Stream& stream) {
    stream.linear_backward_input(shape, output.values(), weight.values(), input.values());
  });
  bench.flops(name + ", weight gradient", flop, [&](Stream& stream) {
    stream.linear_backward_parameters(shape, input.values(), output.values(), gradient.floats(), nullptr);
  });
}

void attention(KernelBench& bench, const AttentionShape& shape) {
  Tensor projected = bench.make(shape.tokens() * shape.projected_width());
  Tensor projected_gradient = bench.make(shape.tokens() * shape.projected_width());
  Tensor output = bench.make(shape.tokens() * shape.width());
  Tensor gradient = bench.make(shape.tokens() * shape.width());
  Tensor log_sum = bench.make(shape.tokens() * shape.heads, DataType::float32);
  // The causal half of two products.
  const double flop = 2.0 * static_cast<double>(shape.tokens()) * static_cast<double>(shape.sequence_length) *
                      static_cast<double>(shape.width());
  const std::string name = fmt::format("attention {} x {}, {} heads of {}", shape.sequences, shape.sequence_length,
                                       shape.heads, shape.head_width);
  bench.flops(name + ", forward", flop, [&](Stream& stream) {
    stream.attention_forward(shape, projected.values(), output.values(), log_sum.floats());
  });
  bench.flops(name + ", backward", 2.5 * flop, [&](Stream& stream) {
    stream.attention_backward(shape, projected.values(), output.values(), log_sum.floats(), gradient.values(),
                              projected_gradient.values());
  });
}

void memory_bound(KernelBench& bench, std::int64_t rows, std::int64_t width) {
  const NormShape shape{rows, width};
  Tensor input = bench.make(rows * width);
  Tensor output = bench.make(rows * width);
  Tensor sum = bench.make(rows * width);
  Tensor weight = bench.make(width);
  Tensor bias = bench.make(width);
  Tensor statistics = bench.make(2 * rows, DataType::float32);
  Tensor weight_gradient = bench.make(width, DataType::float32);
  Tensor bias_gradient = bench.make(width, DataType::float32);
  float* const second = statistics.floats() + rows;
  const double all = 2.0 * static_cast<double>(rows) * static_cast<double>(width);
  const std::string at = fmt::format(" {} x {}", rows, width);
  bench.bytes("layer norm" + at + ", forward", 2.0 * all, [&](Stream& stream) {
    stream.layer_norm_forward(shape, input.values(), weight.values(), bias.values(), output.values(),
                              statistics.floats(), second);
  });
  bench.bytes("layer norm" + at + ", backward + residual", 4.0 * all, [&](Stream& stream) {
    stream.layer_norm_backward(shape, input.values(), statistics.floats(), second, weight.values(), output.values(),
                               sum.values(), weight_gradient.floats(), bias_gradient.floats());
  });
  bench.bytes("RMSNorm" + at + ", forward", 2.0 * all, [&](Stream& stream) {
    stream.rms_norm_forward(shape, input.values(), weight.values(), output.values(), statistics.floats());
  });
  bench.bytes("RMSNorm" + at + ", backward + residual", 4.0 * all, [&](Stream& stream) {
    stream.rms_norm_backward(shape, input.values(), statistics.floats(), weight.values(), output.values(), sum.values(),
                             weight_gradient.floats());
  });
  bench.bytes("add" + at, 3.0 * all,
              [&](Stream& stream) { stream.add(output.values(), input.values(), rows * width); });
}

void loss_and_optimizer(KernelBench& bench, std::int64_t rows, std::int64_t classes) {
  {
    const LogitsShape shape{rows, {0, classes}, bench.device().row_stride(classes)};
    Tensor logits = bench.make(rows * shape.stride);
    Tensor targets = bench.make(rows, DataType::int32);
    Tensor loss = bench.make(1, DataType::float64);
    bench.bytes(fmt::format("cross-entropy {} x {}", rows, classes),
                6.0 * static_cast<double>(rows) * static_cast<double>(classes), [&](Stream& stream) {
                  stream.softmax_cross_entropy(shape, logits.values(), targets.integers(), 1.0f, loss.doubles());
                });
  }
  constexpr std::int64_t count = std::int64_t{1} << 28;
  std::array<Tensor, 4> floats;
  for (Tensor& tensor : floats) tensor = bench.make(count, DataType::float32);
  Tensor rounded = bench.make(count);
  const OptimizerSegment segment{.value = floats[0].floats(),
                                 .gradient = floats[1].floats(),
                                 .first_moment = floats[2].floats(),
                                 .second_moment = floats[3].floats(),
                                 .count = count,
                                 .rounded = rounded.values()};
  bench.bytes("AdamW of 268 million parameters", 30.0 * static_cast<double>(count), [&](Stream& stream) {
    stream.adamw({}, {&segment, 1}, nullptr);
  });
  Tensor sum = bench.make(1, DataType::float64);
  const std::span<const float> values(floats[1].floats(), static_cast<std::size_t>(count));
  bench.bytes("squares of 268 million gradients", 4.0 * static_cast<double>(count), [&](Stream& stream) {
    stream.add_squares({&values, 1}, sum.doubles());
  });
}

/// How long the host takes to ask for an operation. Where the GPU needs longer for it, CUDA graphs would gain nothing.
void host_times(KernelBench& bench) {
  Device& device = bench.device();
  constexpr std::int64_t n = 64;
  Tensor a = bench.make(n * n);
  Tensor b = bench.make(n * n);
  Tensor c = bench.make(n * n);
  const auto report = [&](const char* name, const std::function<void(Stream&)>& operation) {
    constexpr int calls = 500;  // fewer than a stream holds
    double best = 1e9;
    for (int round = 0; round < 6; ++round) {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < calls; ++i) operation(device.main());
      const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
      device.synchronize();
      if (round > 0) best = std::min(best, time.count() / calls);
    }
    fmt::print("{:<52} {:>10.1f} us of the host\n", name, best * 1e6);
  };
  report("add 64 x 64", [&](Stream& stream) { stream.add(c.values(), a.values(), n * n); });
  report("linear 64 x 64 -> 64, forward", [&](Stream& stream) {
    stream.linear_forward({n, n, n}, a.values(), b.values(), {nullptr, bf16}, {nullptr, bf16},
                          PointwiseActivation::none, {nullptr, bf16}, c.values());
  });
}

}  // namespace

int main() {
  try {
    const auto device = make_cuda_device();
    KernelBench bench(*device);
    fmt::print("# {} ({}), bfloat16\n", device->name(), device->versions());
    host_times(bench);
    for (const auto& [hidden, feed_forward, classes] :
         {std::array<std::int64_t, 3>{1024, 4096, 50272}, {2560, 10240, 50257}, {4096, 14336, 128256}}) {
      matrix_products(bench, 8192, hidden, 3 * hidden);
      matrix_products(bench, 8192, hidden, hidden);
      matrix_products(bench, 8192, hidden, feed_forward);
      matrix_products(bench, 8192, feed_forward, hidden);
      matrix_products(bench, 8192, hidden, classes);
      memory_bound(bench, 16384, hidden);
    }
    loss_and_optimizer(bench, 8192, 50272);
    attention(bench, {.sequences = 4, .sequence_length = 2048, .heads = 16, .key_value_heads = 16, .head_width = 64});
    attention(bench, {.sequences = 4, .sequence_length = 2048, .heads = 20, .key_value_heads = 20, .head_width = 128});
    attention(bench, {.sequences = 4, .sequence_length = 4096, .heads = 16, .key_value_heads = 16, .head_width = 128});
    attention(bench, {.sequences = 1, .sequence_length = 8192, .heads = 32, .key_value_heads = 8, .head_width = 128});
  } catch (const std::exception& error) {
    fmt::print("no usable GPU: {}\n", error.what());
    return 3;
  }
}
