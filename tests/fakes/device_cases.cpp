#include "tests/fakes/device_cases.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <span>

namespace sailor::runtime::test {

namespace {

struct Size {
  std::int64_t rows;
  std::int64_t width;
};
// One that all loads of 16 bytes fit; odd ones; more than one slice; rows that need several packs a thread, and that
// its registers do not keep.
constexpr std::array sizes{Size{3, 64},   Size{5, 7},    Size{1, 1},   Size{2, 33},
                           Size{70, 264}, Size{2, 4104}, Size{2, 8208}};

void add_norms(std::vector<DeviceCase>& cases, const Size& size) {
  const std::int64_t rows = size.rows;
  const std::int64_t width = size.width;
  const std::int64_t count = rows * width;
  const auto name = [&](const std::string& what) { return fmt::format("{} {} x {}", what, rows, width); };
  cases.push_back({name("layer norm"), [=](Bench& bench) {
                     const NormShape shape{rows, width};
                     const Tensor input = bench.noise(count, 3.0f);
                     const Tensor weight = bench.noise(width);
                     Tensor output = bench.poisoned(count);
                     Tensor mean = bench.poisoned(rows, DataType::float32);
                     Tensor reciprocal = bench.poisoned(rows, DataType::float32);
                     bench.stream().layer_norm_forward(shape, input.values(), weight.values(),
                                                       bench.noise(width).values(), output.values(), mean.floats(),
                                                       reciprocal.floats());
                     if (width == 1) return;  // deviations of nothing but rounding
                     bench.keep(output);
                     bench.keep(mean);
                     bench.keep(reciprocal);
                     for (const bool adds : {false, true}) {
                       Tensor gradient = bench.noise(count);
                       Tensor sum = bench.noise(count);
                       Tensor weight_gradient = bench.floats(width);
                       Tensor bias_gradient = bench.floats(width);
                       bench.stream().layer_norm_backward(shape, input.values(), mean.floats(), reciprocal.floats(),
                                                          weight.values(), gradient.values(),
                                                          adds ? sum.values() : Values(nullptr, sum.type()),
                                                          weight_gradient.floats(), bias_gradient.floats());
                       bench.keep(adds ? sum : gradient);
                       bench.keep(weight_gradient);
                       bench.keep(bias_gradient);
                     }
                   }});
  cases.push_back({name("RMSNorm"), [=](Bench& bench) {
                     const NormShape shape{rows, width};
                     const Tensor input = bench.noise(count, 3.0f);
                     const Tensor weight = bench.noise(width);
                     Tensor output = bench.poisoned(count);
                     Tensor reciprocal = bench.poisoned(rows, DataType::float32);
                     bench.stream().rms_norm_forward(shape, input.values(), weight.values(), output.values(),
                                                     reciprocal.floats());
                     bench.keep(output);
                     bench.keep(reciprocal);
                     for (const bool adds : {false, true}) {
                       Tensor gradient = bench.noise(count);
                       Tensor sum = bench.noise(count);
                       Tensor weight_gradient = bench.floats(width);
                       bench.stream().rms_norm_backward(
                           shape, input.values(), reciprocal.floats(), weight.values(), gradient.values(),
                           adds ? sum.values() : Values(nullptr, sum.type()), weight_gradient.floats());
                       if (width > 1 || adds) bench.keep(adds ? sum : gradient);  // else nothing but rounding
                       bench.keep(weight_gradient);
                     }
                   }});
}

void add_experts(std::vector<DeviceCase>& cases) {
  for (const auto shape :
       {RoutingShape{70, 8, 2}, RoutingShape{1, 1, 1}, RoutingShape{300, 5, 5}, RoutingShape{9, 64, 3}})
    for (const std::int64_t width : {std::int64_t{7}, std::int64_t{264}})
      cases.push_back(
          {fmt::format("{} of {} experts, {} x {}", shape.per_token, shape.experts, shape.tokens, width),
           [=](Bench& bench) {
             const Tensor logits = bench.noise(shape.tokens * shape.experts);
             Tensor tokens = bench.poisoned(shape.pairs(), DataType::int32);
             Tensor places = bench.poisoned(shape.pairs(), DataType::int32);
             Tensor offsets = bench.poisoned(shape.experts + 1, DataType::int32);
             Tensor weights = bench.poisoned(shape.pairs(), DataType::float32);
             const Routing routing{tokens.integers(), places.integers(), offsets.integers(), weights.floats()};
             bench.stream().route(shape, logits.values(), routing);
             bench.keep_integers(tokens);
             bench.keep_integers(places);
             bench.keep_integers(offsets);
             bench.keep(weights);
             const Tensor weight_gradients = bench.floats(shape.pairs());
             Tensor logits_gradient = bench.poisoned(shape.tokens * shape.experts);
             bench.stream().route_backward(shape, routing, weight_gradients.values().floats(), nullptr,
                                           logits_gradient.values());
             bench.keep(logits_gradient);
             for (const std::int64_t length : {std::int64_t{1}, shape.tokens / 2, shape.tokens}) {
               if (length == 0 || shape.tokens % length != 0) continue;
               Tensor counts = bench.poisoned(shape.tokens / length * shape.experts, DataType::float32);
               bench.stream().count_choices(shape, routing, length, counts.floats());
               bench.keep(counts);
               const RoutingBalance balance{logits.values(), counts.floats(), length, 0.3f};
               bench.stream().route_backward(shape, routing, weight_gradients.values().floats(), &balance,
                                             logits_gradient.values());
               bench.keep(logits_gradient);
             }
             Tensor sums = bench.noise(shape.tokens * width);
             bench.stream().add_pairs(shape, routing.places, bench.noise(shape.pairs() * width).values(), width,
                                      sums.values());
             bench.keep(sums);
           }});
}

void add_elementwise(std::vector<DeviceCase>& cases) {
  for (const auto [rows, width] : sizes) {
    const auto name = [&](const std::string& what) { return fmt::format("{} {} x {}", what, rows, width); };
    const std::int64_t count = rows * width;
    cases.push_back({name("convert"), [=](Bench& bench) {
                       const Tensor from = bench.noise(count);
                       for (const DataType type : {DataType::float32, DataType::bfloat16, DataType::float16}) {
                         Tensor to = bench.poisoned(count, type);
                         bench.stream().convert(to.values(), from.values(), count);
                         bench.keep(to);
                       }
                     }});
    cases.push_back({name("copy rows"), [=](Bench& bench) {
                       const Tensor from = bench.noise(2 * count);
                       Tensor to = bench.noise(3 * count);
                       const auto bytes = [&](std::int64_t values) { return bytes_of(to.type(), values); };
                       bench.stream().copy_rows((to.values() + width).data, bytes(3 * width),
                                                (from.values() + width).data, bytes(2 * width), bytes(width),
                                                static_cast<std::size_t>(rows));
                       bench.keep(to);
                     }});
    cases.push_back({name("add and scale"), [=](Bench& bench) {
                       Tensor to = bench.noise(count);
                       bench.stream().add(to.values(), bench.noise(count).values(), count);
                       bench.keep(to);
                       Tensor floats = bench.floats(count);
                       bench.stream().scale(floats.floats(), 0.3f, count);
                       bench.keep(floats);
                     }});
    cases.push_back({name("bias"), [=](Bench& bench) {
                       Tensor values = bench.noise(count);
                       bench.stream().add_bias(values.values(), bench.noise(width).values(), rows, width);
                       bench.keep(values);
                       Tensor repeated = bench.noise(count);
                       bench.stream().add_repeated(repeated.values(), bench.noise(width).values(), rows, width);
                       bench.keep(repeated);
                       Tensor gradient = bench.floats(width);
                       bench.stream().add_repeated_gradient(gradient.floats(), bench.noise(count).values(), rows,
                                                            width);
                       bench.keep(gradient);
                     }});
    for (const bool weighted : {false, true})
      cases.push_back({name(weighted ? "weighted swiglu" : "swiglu"), [=](Bench& bench) {
                         Tensor input = bench.noise(2 * count, 2.0f);
                         Tensor output = bench.poisoned(count);
                         const Tensor all_factors = bench.floats(rows);
                         const float* const factors = weighted ? all_factors.values().floats() : nullptr;
                         bench.stream().swiglu_forward(input.values(), factors, output.values(), rows, width);
                         bench.keep(output);
                         Tensor gradient = bench.noise(count);
                         Tensor factor_gradients = bench.poisoned(rows, DataType::float32);
                         bench.stream().swiglu_backward(input.values(), factors, gradient.values(),
                                                        weighted ? factor_gradients.floats() : nullptr, rows, width);
                         bench.keep(input);
                         bench.keep(gradient);
                         if (weighted) bench.keep(factor_gradients);
                       }});
    for (const std::int64_t gap : {0, 5}) {
      const std::string with_gap = gap == 0 ? "" : fmt::format(", rows {} apart", width + gap);
      cases.push_back({name("cross-entropy" + with_gap), [=](Bench& bench) {
                         const LogitsShape shape{rows, {0, width}, width + gap};
                         const Tensor targets = bench.integers(rows, static_cast<std::int32_t>(width));
                         Tensor logits = bench.noise(rows * shape.stride, 4.0f);
                         Tensor loss = bench.zeros(1, DataType::float64);
                         bench.stream().softmax_cross_entropy(shape, logits.values(), targets.integers(), 0.7f,
                                                              loss.doubles());
                         bench.keep(logits);
                         bench.keep(loss);
                       }});
      cases.push_back({name("cross-entropy in parts" + with_gap), [=](Bench& bench) {
                         const LogitsShape shape{rows, {11, 11 + width}, width + gap};
                         const Tensor targets = bench.integers(rows, static_cast<std::int32_t>(width + 22));
                         Tensor logits = bench.noise(rows * shape.stride, 4.0f);
                         Tensor loss = bench.zeros(1, DataType::float64);
                         Tensor maxima = bench.poisoned(rows, DataType::float32);
                         Tensor sums = bench.poisoned(rows, DataType::float32);
                         Tensor target_logits = bench.poisoned(rows, DataType::float32);
                         bench.stream().row_maxima(shape, logits.values(), maxima.floats());
                         bench.keep(maxima);
                         bench.stream().softmax_sums(shape, logits.values(), maxima.floats(), targets.integers(),
                                                     sums.floats(), target_logits.floats());
                         bench.keep(logits);
                         bench.keep(sums);
                         bench.keep(target_logits);
                         bench.stream().softmax_gradient(shape, logits.values(), sums.floats(), target_logits.floats(),
                                                         targets.integers(), 0.7f, loss.doubles());
                         bench.keep(logits);
                         bench.keep(loss);
                       }});
    }
    cases.push_back({name("embedding"), [=](Bench& bench) {
                       const Range part{4, 40};
                       const std::int64_t tokens = 3 * rows;
                       const Tensor indices = bench.integers(tokens, 45);
                       const Tensor table = bench.noise(part.size() * width);
                       Tensor output = bench.poisoned(tokens * width);
                       bench.stream().gather_rows(table.values(), part, indices.integers(), tokens, width,
                                                  output.values());
                       bench.keep(output);
                       Tensor gradient = bench.floats(part.size() * width);
                       bench.stream().scatter_add_rows(gradient.floats(), part, indices.integers(), tokens, width,
                                                       bench.noise(tokens * width).values());
                       bench.keep(gradient);
                     }});
  }
}

void add_linear(std::vector<DeviceCase>& cases) {
  for (const bool rows_are_inputs : {false, true})
    for (const PointwiseActivation activation :
         {PointwiseActivation::none, PointwiseActivation::relu, PointwiseActivation::gelu})
      for (const bool extras : {false, true})
        for (const auto& [rows, in, out] : {std::array<std::int64_t, 3>{5, 7, 9}, {16, 32, 24}}) {
          const LinearShape shape{rows, in, out, rows_are_inputs};
          cases.push_back(
              {fmt::format("linear {} x {} x {}, activation {}{}{}", rows, in, out, static_cast<int>(activation),
                           extras ? ", bias and residual" : "", rows_are_inputs ? ", weight (in, out)" : ""),
               [=](Bench& bench) {
                 const ConstValues nothing(nullptr, bench.type());
                 const Tensor input = bench.noise(shape.rows * shape.in);
                 const Tensor weight = bench.noise(shape.in * shape.out, 0.3f);
                 const Tensor bias = bench.noise(shape.out);
                 const Tensor residual = bench.noise(shape.rows * shape.out);
                 Tensor before = bench.poisoned(shape.rows * shape.out);
                 Tensor output = bench.poisoned(shape.rows * shape.out);
                 const bool gelu = activation == PointwiseActivation::gelu;
                 bench.stream().linear_forward(shape, input.values(), weight.values(), extras ? bias.values() : nothing,
                                               extras ? residual.values() : nothing, activation,
                                               gelu ? before.values() : Values(nullptr, bench.type()), output.values());
                 bench.keep(output);
                 if (gelu) bench.keep(before);
                 const Tensor gradient = bench.noise(shape.rows * shape.out);
                 Tensor weight_gradient = bench.floats(shape.in * shape.out);
                 Tensor bias_gradient = bench.floats(shape.out);
                 bench.stream().linear_backward_parameters(shape, input.values(), gradient.values(),
                                                           weight_gradient.floats(),
                                                           extras ? bias_gradient.floats() : nullptr);
                 bench.keep(weight_gradient);
                 bench.keep(bias_gradient);
                 Tensor kept = bench.noise(shape.rows * shape.in);
                 Tensor input_gradient = bench.poisoned(shape.rows * shape.in);
                 bench.stream().linear_backward_input(shape, gradient.values(), weight.values(), activation,
                                                      kept.values(), input_gradient.values());
                 bench.keep(input_gradient);
                 bench.keep(kept);
               }});
        }
}

/// Logits: rows are further apart than they are long. Long odd lengths are multiplied in two parts.
void add_linear_with_gaps(std::vector<DeviceCase>& cases) {
  for (const bool rows_are_inputs : {false, true})
    for (const LinearShape& shape :
         {LinearShape{6, 10, 17, rows_are_inputs, 24}, LinearShape{6, 10, 1031, rows_are_inputs, 1088},
          LinearShape{5, 1031, 9, rows_are_inputs, 16}, LinearShape{1031, 6, 9, rows_are_inputs, 16}})
      cases.push_back(
          {fmt::format("linear {} x {} x {} with rows apart{}", shape.rows, shape.in, shape.out,
                       rows_are_inputs ? ", weight (in, out)" : ""),
           [=](Bench& bench) {
             const ConstValues nothing(nullptr, bench.type());
             const Tensor input = bench.noise(shape.rows * shape.in);
             const Tensor weight = bench.noise(shape.in * shape.out, 0.3f);
             Tensor output = bench.noise(shape.rows * shape.out_stride);  // between rows it stays
             bench.stream().linear_forward(shape, input.values(), weight.values(), nothing, nothing,
                                           PointwiseActivation::none, {nullptr, bench.type()}, output.values());
             bench.keep(output);
             Tensor weight_gradient = bench.floats(shape.in * shape.out);
             bench.stream().linear_backward_parameters(shape, input.values(), output.values(), weight_gradient.floats(),
                                                       nullptr);
             bench.keep(weight_gradient);
             Tensor input_gradient = bench.poisoned(shape.rows * shape.in);
             bench.stream().linear_backward_input(shape, output.values(), weight.values(), input_gradient.values());
             bench.keep(input_gradient);
           }});
}

void add_attention(std::vector<DeviceCase>& cases) {
  const std::vector<AttentionShape> shapes{
      {.sequences = 1, .sequence_length = 1, .heads = 1, .key_value_heads = 1, .head_width = 2},
      {.sequences = 2, .sequence_length = 45, .heads = 2, .key_value_heads = 2, .head_width = 16, .score_scale = 0.25f},
      {.sequences = 1, .sequence_length = 70, .heads = 4, .key_value_heads = 2, .head_width = 6, .score_scale = 0.4f},
      {.sequences = 1, .sequence_length = 100, .heads = 1, .key_value_heads = 1, .head_width = 8, .window = 40},
      {.sequences = 1, .sequence_length = 96, .heads = 2, .key_value_heads = 1, .head_width = 4, .window = 1},
      {.sequences = 1, .sequence_length = 33, .heads = 1, .key_value_heads = 1, .head_width = 80, .score_scale = 0.1f},
      {.sequences = 1,
       .sequence_length = 20,
       .heads = 1,
       .key_value_heads = 1,
       .head_width = 200,
       .score_scale = 0.1f}};
  for (const AttentionShape& shape : shapes) {
    const std::string name =
        fmt::format("{} x {} tokens, {} heads of {}, {} of keys, window {}", shape.sequences, shape.sequence_length,
                    shape.heads, shape.head_width, shape.key_value_heads, shape.window);
    cases.push_back({"attention " + name, [=](Bench& bench) {
                       const Tensor projected = bench.noise(shape.tokens() * shape.projected_width());
                       Tensor output = bench.poisoned(shape.tokens() * shape.width());
                       Tensor log_sum = bench.poisoned(shape.tokens() * shape.heads, DataType::float32);
                       bench.stream().attention_forward(shape, projected.values(), output.values(), log_sum.floats());
                       bench.keep(output);
                       Tensor gradient = bench.poisoned(shape.tokens() * shape.projected_width());
                       bench.stream().attention_backward(shape, projected.values(), output.values(), log_sum.floats(),
                                                         bench.noise(shape.tokens() * shape.width()).values(),
                                                         gradient.values());
                       bench.keep(gradient);
                     }});
    cases.push_back({"rotary " + name, [=](Bench& bench) {
                       Tensor projected = bench.noise(shape.tokens() * shape.projected_width());
                       for (const bool inverse : {false, true}) {
                         bench.stream().rotary(shape, 1000.0, inverse, projected.values());
                         bench.keep(projected);
                         bench.stream().rotary(shape, 10.0, false, projected.values());
                       }
                     }});
  }
}

void add_optimizer(std::vector<DeviceCase>& cases) {
  cases.push_back({"squares and clipping", [](Bench& bench) {
                     std::vector<Tensor> tensors;
                     std::vector<std::span<const float>> parts;
                     for (const std::int64_t count : {1, 1000, 0, 40000, 7})
                       if (count > 0) {
                         tensors.push_back(bench.floats(count + 1));
                         // The second half begins anywhere.
                         parts.emplace_back(tensors.back().floats() + count % 2, static_cast<std::size_t>(count));
                       } else {
                         parts.emplace_back();
                       }
                     for (int i = 0; i < 200; ++i) parts.emplace_back(tensors.front().floats(), 2);
                     Tensor sum = bench.zeros(1, DataType::float64);
                     bench.stream().add_squares(parts, sum.doubles());
                     bench.keep(sum);
                     Tensor factor = bench.poisoned(1, DataType::float32);
                     for (const double limit : {0.0, 1.0, 1e9}) {
                       bench.stream().clip_factor(sum.doubles(), 8.0, limit, factor.floats());
                       bench.keep(factor);
                     }
                     Tensor bad = bench.poisoned(1, DataType::float64);
                     bench.stream().clip_factor(bad.doubles(), 8.0, 1.0, factor.floats());
                     bench.keep(factor);
                   }});
  cases.push_back(
      {"AdamW", [](Bench& bench) {
         std::vector<Tensor> tensors;
         std::vector<OptimizerSegment> segments;
         const auto keep = [&](Tensor tensor) -> Tensor& { return tensors.emplace_back(std::move(tensor)); };
         tensors.reserve(1000);
         for (int i = 0; i < 70; ++i) {
           const std::int64_t count = i == 3 ? 20000 : i % 5 == 4 ? 0 : 1 + i * 3;
           if (count == 0) {
             segments.push_back({});
             continue;
           }
           segments.push_back(
               {.value = keep(bench.floats(count)).floats(),
                .gradient = keep(bench.floats(count)).floats(),
                .first_moment = keep(bench.floats(count, 0.1f)).floats(),
                .second_moment = keep(bench.zeros(count)).floats(),
                .count = count,
                .decays = i % 2 == 0,
                .rounded = bench.type() == DataType::float32 ? Values(nullptr) : keep(bench.poisoned(count)).values()});
         }
         Tensor factor = bench.floats(1);
         bench.stream().adamw({.learning_rate = 0.1f, .step = 2}, segments, factor.floats());
         bench.stream().adamw({.learning_rate = 0.1f, .step = 3}, segments, nullptr);
         Tensor nan = bench.poisoned(1, DataType::float32);
         bench.stream().adamw({.learning_rate = 0.1f, .step = 4}, segments, nan.floats());
         for (const Tensor& tensor : tensors) bench.keep(tensor);
       }});
}

}  // namespace

std::vector<DeviceCase> large_device_cases() {
  std::vector<DeviceCase> cases;
  for (const Size& size : {Size{2000, 64}, Size{2000, 264}, Size{700, 2048}, Size{700, 4096}}) add_norms(cases, size);
  return cases;
}

std::vector<DeviceCase> device_cases() {
  std::vector<DeviceCase> cases;
  add_elementwise(cases);
  for (const Size& size : sizes) add_norms(cases, size);
  // More rows than an emulated GPU has blocks for.
  for (const Size& size : {Size{40, 64}, Size{9, 4096}}) add_norms(cases, size);
  add_experts(cases);
  add_linear(cases);
  add_linear_with_gaps(cases);
  add_attention(cases);
  add_optimizer(cases);
  return cases;
}

double difference(const std::vector<std::vector<double>>& results, const std::vector<std::vector<double>>& expected) {
  constexpr double infinite = std::numeric_limits<double>::infinity();
  if (results.size() != expected.size()) return infinite;
  double worst = 0.0;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (results[i].size() != expected[i].size()) return infinite;
    double squares = 0.0;
    for (const double value : expected[i])
      if (std::isfinite(value)) squares += value * value;
    const double size = std::sqrt(squares / static_cast<double>(std::max<std::size_t>(1, expected[i].size())));
    for (std::size_t k = 0; k < results[i].size(); ++k) {
      if (std::isnan(expected[i][k]) && std::isnan(results[i][k])) continue;
      const double off = std::abs(results[i][k] - expected[i][k]) / (std::abs(expected[i][k]) + size + 1e-30);
      worst = std::max(worst, std::isnan(off) ? infinite : off);
    }
  }
  return worst;
}

}  // namespace sailor::runtime::test
