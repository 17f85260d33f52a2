// bfloat16 and float16: rounding, the CPU's operations on them against the same in float32, layers, and AdamW with
// master values.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>

#include "core/toml_reader.hpp"
#include "runtime/optimizer.hpp"
#include "runtime_models.hpp"
#include "stream_operations.hpp"
#include "tests/fakes/thread_transport.hpp"

namespace sailor::runtime::test::runtime_reduced_test {
namespace {

using Floats = std::vector<float>;
using Bfloats = std::vector<std::uint16_t>;

constexpr float infinity = std::numeric_limits<float>::infinity();

// ---- Rounding

/// By distance: the two neighbours that bfloat16 has of a finite value, in double precision, and the nearer one's bits;
/// of two as near, those of the even fraction.
std::uint16_t nearest_by_distance(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto towards_zero = static_cast<std::uint16_t>(bits >> 16);
  const auto away = static_cast<std::uint16_t>(towards_zero + 1);
  const auto magnitude = [](std::uint16_t of) {
    const float widened = std::bit_cast<float>(static_cast<std::uint32_t>(of & 0x7fffu) << 16);
    return std::isinf(widened) ? 0x1p128 : static_cast<double>(widened);
  };
  const double below = std::abs(double{value}) - magnitude(towards_zero);
  const double above = magnitude(away) - std::abs(double{value});
  if (below != above) return below < above ? towards_zero : away;
  return towards_zero % 2 == 0 ? towards_zero : away;
}

TEST(Bfloat16, RoundsToTheNearestAndTiesToEven) {
  // Every upper half with lower halves around both ends and the middle: denormals, the largest finite values and all.
  std::size_t wrong = 0;
  Floats values;
  Bfloats expected;
  for (std::uint32_t upper = 0; upper < 0x10000u; ++upper)
    for (const std::uint32_t lower : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const auto value = std::bit_cast<float>(upper << 16 | lower);
      if (!std::isfinite(value)) continue;
      values.push_back(value);
      expected.push_back(nearest_by_distance(value));
      if (to_bfloat16(value) != expected.back()) ++wrong;
    }
  EXPECT_EQ(wrong, 0u);
  Bfloats converted(values.size());
  make_cpu_device()->main().convert({converted.data(), DataType::bfloat16}, values.data(), std::ssize(values));
  EXPECT_EQ(converted, expected);
}

TEST(Bfloat16, KeepsInfinitiesNansAndSigns) {
  EXPECT_EQ(from_bfloat16(to_bfloat16(infinity)), infinity);
  EXPECT_EQ(from_bfloat16(to_bfloat16(-infinity)), -infinity);
  EXPECT_EQ(from_bfloat16(to_bfloat16(3.39e38f)), 0x1.fep127f);
  EXPECT_EQ(from_bfloat16(to_bfloat16(3.40e38f)), infinity);
  EXPECT_EQ(to_bfloat16(-0.0f), 0x8000u);
  for (const std::uint32_t bits : {0x7f800001u, 0x7fffffffu, 0xff80ffffu, 0xffffffffu, 0x7fc00000u}) {
    const std::uint16_t rounded = to_bfloat16(std::bit_cast<float>(bits));
    EXPECT_TRUE(std::isnan(from_bfloat16(rounded))) << bits;
    EXPECT_EQ(rounded >> 15, bits >> 31) << bits;
  }
}

TEST(Bfloat16, WidensExactlyThereAndBack) {
  Bfloats all(0x10000u);
  std::iota(all.begin(), all.end(), std::uint16_t{0});
  Floats wide(all.size());
  Bfloats back(all.size());
  const auto device = make_cpu_device();
  device->main().convert(wide.data(), {all.data(), DataType::bfloat16}, std::ssize(all));
  device->main().convert({back.data(), DataType::bfloat16}, wide.data(), std::ssize(all));
  for (std::size_t i = 0; i < all.size(); ++i) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(wide[i]), static_cast<std::uint32_t>(i) << 16);
    ASSERT_TRUE(std::isnan(wide[i]) || back[i] == all[i]) << i;
  }
}

/// The nearest of all values that float16 has, by distance; of two as near, the one whose last bit is 0. Beyond the
/// largest one it is as if there were a next one, which is infinity.
std::uint16_t nearest_float16(float value) {
  const auto magnitude = [](std::uint32_t bits) {
    const std::uint32_t exponent = bits >> 10;
    const std::uint32_t fraction = bits & 0x3ffu;
    return exponent == 0 ? fraction * 0x1p-24 : std::ldexp(1024.0 + fraction, static_cast<int>(exponent) - 25);
  };
  const double size = std::abs(double{value});
  std::uint32_t low = 0;
  std::uint32_t high = 0x7c00u;
  while (high - low > 1) {
    const std::uint32_t middle = (low + high) / 2;
    (magnitude(middle) <= size ? low : high) = middle;
  }
  const double below = size - magnitude(low);
  const double above = magnitude(high) - size;
  std::uint32_t nearest = below < above ? low : high;
  if (below == above) nearest = low % 2 == 0 ? low : high;
  return static_cast<std::uint16_t>(nearest | (std::signbit(value) ? 0x8000u : 0u));
}

TEST(Float16, RoundsToTheNearestAndTiesToEven) {
  // The upper half of a float32 with lower halves around ends and middles: subnormal and huge values and all.
  std::size_t wrong = 0;
  Floats values;
  Bfloats expected;
  for (std::uint32_t upper = 0; upper < 0x10000u; ++upper)
    for (const std::uint32_t lower :
         {0x0000u, 0x0001u, 0x0fffu, 0x1000u, 0x1001u, 0x3000u, 0x7fffu, 0x8000u, 0xf000u}) {
      const auto value = std::bit_cast<float>(upper << 16 | lower);
      if (!std::isfinite(value)) continue;
      values.push_back(value);
      expected.push_back(nearest_float16(value));
      if (to_float16(value) != expected.back()) ++wrong;
    }
  EXPECT_EQ(wrong, 0u);
  Bfloats converted(values.size());
  make_cpu_device()->main().convert({converted.data(), DataType::float16}, values.data(), std::ssize(values));
  EXPECT_EQ(converted, expected);
}

TEST(Float16, WidensExactlyThereAndBack) {
  EXPECT_EQ(from_float16(0x0001u), 0x1p-24f);
  EXPECT_EQ(from_float16(0x83ffu), -0x1.ff8p-15f);
  EXPECT_EQ(from_float16(0x3c00u), 1.0f);
  EXPECT_EQ(from_float16(0x7bffu), 65504.0f);
  EXPECT_EQ(from_float16(0xfc00u), -infinity);
  EXPECT_TRUE(std::isnan(from_float16(0x7c01u)));
  EXPECT_EQ(to_float16(infinity), 0x7c00u);
  EXPECT_EQ(to_float16(65519.9f), 0x7bffu);
  EXPECT_EQ(to_float16(-65520.0f), 0xfc00u);
  EXPECT_TRUE(std::isnan(from_float16(to_float16(std::bit_cast<float>(0xff800001u)))));
  Bfloats all(0x10000u);
  std::iota(all.begin(), all.end(), std::uint16_t{0});
  Floats wide(all.size());
  Bfloats back(all.size());
  const auto device = make_cpu_device();
  device->main().convert(wide.data(), {all.data(), DataType::float16}, std::ssize(all));
  device->main().convert({back.data(), DataType::float16}, wide.data(), std::ssize(all));
  for (std::size_t i = 0; i < all.size(); ++i) ASSERT_TRUE(std::isnan(wide[i]) || back[i] == all[i]) << i;
}

// ---- Operations: what they give in 16 bits is what they give in float32 on the same values, rounded once.

/// The same numbers in float32 and in a type of 16 bits.
struct Both {
  Both(DataType type_of_bits, std::size_t count, std::uint64_t seed, float deviation = 1.0f)
      : type(type_of_bits),
        floats(initial_values({.name = "noise",
                               .shape = {static_cast<std::int64_t>(count)},
                               .initial = InitialValue::normal,
                               .deviation = deviation},
                              seed)) {
    for (float& value : floats) {
      bits.push_back(to_bits16(type, value));
      value = of_bits(bits.size() - 1);
    }
  }
  Values narrow() { return {bits.data(), type}; }
  Values wide() { return floats.data(); }
  [[nodiscard]] float of_bits(std::size_t i) const { return from_bits16(type, bits[i]); }
  /// Half a unit in the last place, which rounding makes, relative to the value at most.
  [[nodiscard]] double unit() const { return type == DataType::float16 ? 0x1p-11 : 0x1p-8; }

  DataType type;
  Floats floats;
  Bfloats bits;
};

/// `noise`: of sums that float32 makes in another order.
void expect_rounded(const Both& result, double noise = 0.0) {
  double worst = 0.0;
  for (std::size_t i = 0; i < result.floats.size(); ++i) {
    const double expected = result.floats[i];
    const double error = std::abs(result.of_bits(i) - expected);
    const double smallest = result.type == DataType::float16 ? 0x1p-25 : 0.0;  // half the spacing of subnormal values
    worst = std::max(worst, error - std::max(std::abs(expected) * result.unit() * 1.001, smallest));
  }
  EXPECT_LE(worst, noise);
}

void expect_near(const Floats& values, const Floats& expected, double tolerance) {
  for (std::size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(values[i], expected[i], tolerance) << i;
}

class ReducedOperations : public ::testing::TestWithParam<DataType> {
 protected:
  std::unique_ptr<Device> device = make_cpu_device();
  DataType type = GetParam();
};
INSTANTIATE_TEST_SUITE_P(Types, ReducedOperations, ::testing::Values(DataType::bfloat16, DataType::float16),
                         [](const auto& test) { return test.param == DataType::bfloat16 ? "Bfloat16" : "Float16"; });

TEST_P(ReducedOperations, MatrixProductsAddUpInFloat32InAllOrientations) {
  struct Size {
    std::int64_t m, n, k;
  };
  // The second is larger than the parts that matrices are widened in, in every direction.
  for (const auto& [m, n, k] : {Size{5, 7, 11}, Size{520, 1030, 1100}})
    for (const bool transpose_a : {false, true})
      for (const bool transpose_b : {false, true})
        for (const bool accumulate : {false, true}) {
          SCOPED_TRACE(fmt::format("{} {} {}, {} {} {}", m, n, k, transpose_a, transpose_b, accumulate));
          const MatrixProduct product{transpose_a, transpose_b, m, n, k, accumulate};
          Both a(type, static_cast<std::size_t>(m * k), 1);
          Both b(type, static_cast<std::size_t>(k * n), 2);
          Both c(type, static_cast<std::size_t>(m * n), 3);
          Floats sums = c.floats;  // gradients of weights: float32
          device->main().matmul(product, a.wide(), b.wide(), c.wide());
          device->main().matmul(product, a.narrow(), b.narrow(), c.narrow());
          device->main().matmul(product, a.narrow(), b.narrow(), sums.data());
          expect_rounded(c, 3e-4);
          expect_near(sums, c.floats, 3e-4);
        }
  EXPECT_EQ(device->memory_use().alive.value(), 0.0);
  // 512 x 1024 and 1024 x 1024 of the factors and 512 x 1024 of the product, in floats.
  EXPECT_LE(device->memory_use().peak.value(), 8.0 * (1 << 20));
}

TEST_P(ReducedOperations, MatrixProductsRefuseFactorsOfTwoTypes) {
  Both a(type, 4, 1);
  EXPECT_THROW(device->main().matmul({.m = 2, .n = 2, .k = 2}, a.narrow(), a.wide(), a.wide()), std::logic_error);
}

TEST_P(ReducedOperations, NormsAndTheirGradientsAreRoundedOnce) {
  constexpr std::int64_t rows = 301;  // more than are widened at once
  constexpr std::int64_t width = 129;
  const NormShape shape{rows, width, 1e-5f};
  for (const bool rms : {false, true}) {
    SCOPED_TRACE(rms);
    Both input(type, rows * width, 1);
    Both weight(type, width, 2);
    Both bias(type, width, 3);
    Both output(type, rows * width, 4);
    Both gradient(type, rows * width, 5);
    std::array<Floats, 2> mean{Floats(rows), Floats(rows)};
    std::array<Floats, 2> reciprocal{Floats(rows), Floats(rows)};
    std::array<Floats, 2> weight_gradient{Floats(width), Floats(width)};
    std::array<Floats, 2> bias_gradient{Floats(width), Floats(width)};
    for (const std::size_t i : {0u, 1u}) {
      const auto of = [i](Both& both) { return i == 0 ? both.wide() : both.narrow(); };
      if (rms) {
        device->main().rms_norm_forward(shape, of(input), of(weight), of(output), reciprocal[i].data());
        device->main().rms_norm_backward(shape, of(input), reciprocal[i].data(), of(weight), of(gradient), nullptr,
                                         weight_gradient[i].data());
      } else {
        device->main().layer_norm_forward(shape, of(input), of(weight), of(bias), of(output), mean[i].data(),
                                          reciprocal[i].data());
        device->main().layer_norm_backward(shape, of(input), mean[i].data(), reciprocal[i].data(), of(weight),
                                           of(gradient), nullptr, weight_gradient[i].data(), bias_gradient[i].data());
      }
    }
    expect_rounded(output);
    expect_rounded(gradient);
    EXPECT_EQ(mean[0], mean[1]);
    EXPECT_EQ(reciprocal[0], reciprocal[1]);
    EXPECT_EQ(weight_gradient[0], weight_gradient[1]);
    EXPECT_EQ(bias_gradient[0], bias_gradient[1]);
  }
}

TEST_P(ReducedOperations, ActivationFunctionsAndSumsAreRoundedOnce) {
  constexpr std::int64_t rows = 331;
  constexpr std::int64_t width = 120;
  constexpr std::int64_t count = rows * width;
  const auto apply = [&](const char* name, std::int64_t first_width, auto&& operation) {
    SCOPED_TRACE(name);
    Both x(type, static_cast<std::size_t>(rows * first_width), 1, 2.0f);
    Both y(type, count, 2);
    operation(x.wide(), y.wide());
    operation(x.narrow(), y.narrow());
    expect_rounded(x);
    expect_rounded(y);
  };
  apply("relu_forward", width, [&](Values x, Values) { test::relu_forward(*device, x, count); });
  apply("relu_backward", width, [&](Values x, Values y) { test::relu_backward(*device, x, y, count); });
  apply("gelu_forward", width, [&](Values x, Values y) { test::gelu_forward(*device, x, y, count); });
  apply("gelu_backward", width, [&](Values x, Values y) { test::gelu_backward(*device, x, y, count); });
  apply("swiglu_forward", 2 * width,
        [&](Values x, Values y) { device->main().swiglu_forward(x, nullptr, y, rows, width); });
  apply("swiglu_backward", 2 * width,
        [&](Values x, Values y) { device->main().swiglu_backward(x, nullptr, y, nullptr, rows, width); });
  apply("add", width, [&](Values x, Values y) { device->main().add(x, y, count); });
  apply("add_bias", width, [&](Values x, Values y) { device->main().add_bias(x, y, rows, width); });
  apply("add_repeated", width, [&](Values x, Values y) { device->main().add_repeated(x, y, rows, width); });
}

TEST_P(ReducedOperations, GradientsOfParametersAreAddedUpInFloat32) {
  constexpr std::int64_t rows = 400;
  constexpr std::int64_t width = 100;
  std::vector<std::int32_t> tokens;
  for (std::int32_t i = 0; i < rows; ++i) tokens.push_back(i * 7 % 13);
  Both gradient(type, rows * width, 1);
  const auto apply = [&](auto&& operation) {
    Floats wide(13 * width, 0.5f);
    Floats narrow = wide;
    operation(wide.data(), gradient.wide());
    operation(narrow.data(), gradient.narrow());
    EXPECT_EQ(wide, narrow);
  };
  apply([&](float* sums, ConstValues values) { test::add_bias_gradient(*device, sums, values, rows, width); });
  apply([&](float* sums, ConstValues values) {
    device->main().add_repeated_gradient(sums, values, rows / 10, 10 * width);
  });
  apply([&](float* sums, ConstValues values) {
    device->main().scatter_add_rows(sums, {2, 11}, tokens.data(), rows, width, values);
  });
  Both table(type, 13 * width, 2);
  Both picked(type, rows * width, 3);
  device->main().gather_rows(table.wide(), {2, 11}, tokens.data(), rows, width, picked.wide());
  device->main().gather_rows(table.narrow(), {2, 11}, tokens.data(), rows, width, picked.narrow());
  expect_rounded(picked);
}

TEST_P(ReducedOperations, AttentionOfEachGroupOfHeadsIsThatOfAll) {
  for (const std::int64_t window : {0, 37}) {
    SCOPED_TRACE(window);
    const AttentionShape shape{.sequences = 3,
                               .sequence_length = 150,  // more than a block of query rows
                               .heads = 6,
                               .key_value_heads = 2,
                               .head_width = 10,
                               .score_scale = 0.4f,
                               .window = window};
    const auto tokens = static_cast<std::size_t>(shape.tokens());
    Both projected(type, tokens * static_cast<std::size_t>(shape.projected_width()), 1);
    device->main().rotary(shape, 50.0, false, projected.wide());
    device->main().rotary(shape, 50.0, false, projected.narrow());
    expect_rounded(projected);
    for (std::size_t i = 0; i < projected.floats.size(); ++i) projected.floats[i] = projected.of_bits(i);
    Both output(type, tokens * static_cast<std::size_t>(shape.width()), 2);
    std::array<Floats, 2> log_sum{Floats(tokens * 6), Floats(tokens * 6)};
    device->main().attention_forward(shape, projected.wide(), output.wide(), log_sum[0].data());
    device->main().attention_forward(shape, projected.narrow(), output.narrow(), log_sum[1].data());
    expect_rounded(output, 1e-6);
    expect_near(log_sum[1], log_sum[0], 1e-5);
    for (std::size_t i = 0; i < output.floats.size(); ++i) output.floats[i] = output.of_bits(i);
    Both output_gradient(type, output.floats.size(), 3);
    Both gradient(type, projected.floats.size(), 4);
    device->main().attention_backward(shape, projected.wide(), output.wide(), log_sum[0].data(), output_gradient.wide(),
                                      gradient.wide());
    device->main().attention_backward(shape, projected.narrow(), output.narrow(), log_sum[1].data(),
                                      output_gradient.narrow(), gradient.narrow());
    expect_rounded(gradient, 1e-5);
  }
}

TEST_P(ReducedOperations, TheLossIsThatOfFloat32AndItsGradientIsRounded) {
  constexpr std::int64_t rows = 70;
  constexpr std::int64_t classes = 700;
  std::vector<std::int32_t> targets;
  for (std::int32_t i = 0; i < rows; ++i) targets.push_back(static_cast<std::int32_t>(i * 31 % classes));
  Both logits(type, rows * classes, 1, 4.0f);
  Both divided = logits;
  double loss = 0.0;
  double narrow_loss = 0.0;
  device->main().softmax_cross_entropy({rows, {0, classes}, classes}, logits.wide(), targets.data(), 0.25f, &loss);
  device->main().softmax_cross_entropy({rows, {0, classes}, classes}, logits.narrow(), targets.data(), 0.25f,
                                       &narrow_loss);
  EXPECT_NEAR(narrow_loss, loss, 1e-9 * loss);
  expect_rounded(logits);
  // In three steps, as where logits are divided. Exponentials are rounded on the way: twice half a unit.
  Floats maxima(rows);
  Floats sums(rows);
  Floats target_logits(rows);
  double divided_loss = 0.0;
  device->main().row_maxima({rows, {0, classes}, classes}, divided.narrow(), maxima.data());
  device->main().softmax_sums({rows, {0, classes}, classes}, divided.narrow(), maxima.data(), targets.data(),
                              sums.data(), target_logits.data());
  device->main().softmax_gradient({rows, {0, classes}, classes}, divided.narrow(), sums.data(), target_logits.data(),
                                  targets.data(), 0.25f, &divided_loss);
  EXPECT_NEAR(divided_loss, loss, 1e-6 * loss);
  for (std::size_t i = 0; i < logits.floats.size(); ++i)
    ASSERT_NEAR(divided.of_bits(i), logits.floats[i], 2.02 * logits.unit() * 0.25);
}

TEST_P(ReducedOperations, AdamWStepsTheMasterValuesAndRoundsThem) {
  constexpr std::size_t count = 70'000;  // more than a part
  const Floats gradient = Both(type, count, 1).floats;
  Floats value = Both(type, count, 2).floats;
  Floats first(count);
  Floats second(count);
  Floats expected = value;
  Floats expected_first(count);
  Floats expected_second(count);
  Bfloats rounded(count);
  test::adamw(*device, {}, expected.data(), gradient.data(), expected_first.data(), expected_second.data(), count);
  test::adamw(*device, {}, value.data(), gradient.data(), first.data(), second.data(), count, {rounded.data(), type});
  EXPECT_EQ(value, expected);
  EXPECT_EQ(first, expected_first);
  EXPECT_EQ(second, expected_second);
  for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(rounded[i], to_bits16(type, expected[i]));
}

// ---- Optimizer

TEST(Bfloat16Optimizer, UpdatesBelowTheResolutionOfWeightsAddUp) {
  const auto device = make_cpu_device();
  Parameter parameter{.name = "a", .shape = {3}, .initial = InitialValue::one, .value = {nullptr, DataType::bfloat16}};
  ParameterStorage storage(*device, std::vector<Parameter*>{&parameter});
  storage.initialize(1);
  AdamW optimizer(*device, storage);
  std::fill_n(parameter.gradient, 3, 1.0f);
  // Of a constant gradient every step of AdamW is the learning rate. 1 - 1e-5 is 1 in bfloat16, whose neighbour is
  // 1 - 2^-8; a thousand steps make 0.99, whose neighbours there are 0.98828 and 0.99219.
  for (int step = 1; step <= 1000; ++step) {
    optimizer.step({.learning_rate = 1e-5f, .weight_decay = 0.0f, .step = step});
    EXPECT_TRUE(step > 1 || load(parameter.value) == 1.0f);
  }
  EXPECT_NEAR(optimizer.master_values()[0], 0.99, 2e-5);
  EXPECT_EQ(load(parameter.value), 0.98828125f);
}

TEST(Bfloat16Optimizer, MasterValuesStartUnrounded) {
  const auto device = make_cpu_device();
  Parameter parameter{.name = "a",
                      .shape = {100},
                      .initial = InitialValue::normal,
                      .deviation = 1.0f,
                      .value = {nullptr, DataType::bfloat16}};
  ParameterStorage storage(*device, std::vector<Parameter*>{&parameter});
  storage.initialize(1);
  AdamW optimizer(*device, storage, {{20, 50}, {90, 95}});
  const Floats exact = initial_values(parameter, 1);
  for (std::int64_t i = 0; i < 100; ++i)
    EXPECT_EQ(*(parameter.value + i).bits16(), to_bfloat16(exact[static_cast<std::size_t>(i)]));
  EXPECT_EQ(optimizer.master_values()[3], load(parameter.value + 23));  // as the storage has them
  optimizer.initialize(1);
  EXPECT_EQ(Floats(optimizer.master_values(), optimizer.master_values() + 30), Floats(&exact[20], &exact[50]));
  EXPECT_EQ(Floats(optimizer.master_values() + 30, optimizer.master_values() + 35), Floats(&exact[90], &exact[95]));
}

// ---- Layers

TEST(Bfloat16Layers, TakeHalfTheMemory) {
  for (const Model& model : all_models()) {
    SCOPED_TRACE(model.name);
    WholeModel wide(model);
    WholeModel narrow(model, {}, Recompute::none, DataType::bfloat16);
    static_cast<void>(wide.loss());
    static_cast<void>(narrow.loss());
    // Float32 in both: statistics of norms, two (layer norm) or one per token; logarithms of sums, one per head.
    const int norms = 2 * model.blocks + (model.final_norm == FinalNorm::none ? 0 : 1) +
                      (model.final_norm == FinalNorm::separate_and_in_head ? 1 : 0);
    const double numbers = norms * (model.norm == NormKind::layer_norm ? 2 : 1) + model.blocks * model.attention_heads;
    const double statistics = numbers * TestBatch::tokens * 4;
    EXPECT_EQ(narrow.kept_bytes() - statistics, (wide.kept_bytes() - statistics) / 2);
  }
}

TEST(Bfloat16Layers, AreAsExactAsPyTorchsBfloat16) {
  auto document = TomlDocument::load(SAILOR_SOURCE_DIR "/tests/data/bfloat16_pytorch.toml");
  ASSERT_TRUE(document) << document.error().message();
  document->require_schema_version(1);
  std::map<std::string, Model> models;
  for (const Model& model : all_models()) models.emplace(model.name, model);
  std::size_t compared = 0;
  for (const TomlTable& entry : document->root().tables("models")) {
    SCOPED_TRACE(entry.text("name"));
    const Model& model = models.at(entry.text("name"));
    WholeModel wide(model);
    WholeModel narrow(model, {}, Recompute::none, DataType::bfloat16);
    // Weights are alike, and float32 as good as exact: what differs is the computation.
    for (std::size_t i = 0; i < wide.parameters().size(); ++i)
      for (std::int64_t e = 0; e < wide.parameters()[i]->elements(); ++e)
        store(load(narrow.parameters()[i]->value + e), wide.parameters()[i]->value + e);
    const double loss = wide.loss(true);
    EXPECT_NEAR(loss, entry.number("loss"), 2e-6);
    // Of single losses the errors are chance: all of PyTorch's are below 2e-3.
    EXPECT_NEAR(narrow.loss(true), loss, 4e-3);
    EXPECT_LT(entry.number("loss_error"), 2e-3);
    double error = 0.0;
    double norm = 0.0;
    for (std::int64_t i = 0; i < wide.storage().size(); ++i) {
      error += std::pow(narrow.storage().gradients()[i] - wide.storage().gradients()[i], 2);
      norm += std::pow(wide.storage().gradients()[i], 2);
    }
    EXPECT_LE(std::sqrt(error / norm), entry.number("gradient_error"));
    RecordProperty(model.name, fmt::format("{:.2e}", std::sqrt(error / norm)));
    ++compared;
  }
  ASSERT_TRUE(document->finish()) << document->finish().error().message();
  EXPECT_EQ(compared, all_models().size());
}

TEST(Bfloat16Layers, RunAttentionAgainWithTheSameBits) {
  for (const Model& model : all_models()) {
    SCOPED_TRACE(model.name);
    WholeModel kept(model, {}, Recompute::none, DataType::bfloat16);
    WholeModel again(model, {}, Recompute::selective, DataType::bfloat16);
    EXPECT_EQ(kept.loss(true), again.loss(true));
    EXPECT_EQ(std::memcmp(kept.storage().gradients(), again.storage().gradients(),
                          bytes_of(DataType::float32, kept.storage().size())),
              0);
    EXPECT_EQ(kept.kept_bytes() - again.kept_bytes(),
              2.0 * TestBatch::tokens * (model.hidden * 2 + model.attention_heads * 4));
  }
}

TEST(Bfloat16Layers, DividedOverRanksGiveTheLossOfOne) {
  for (const Model& model : {gpt_model(), opt_model(), llama_model()}) {
    SCOPED_TRACE(model.name);
    WholeModel whole(model, {}, Recompute::none, DataType::bfloat16);
    const double loss = whole.loss();
    run_ranks(2, [&](const World& world) {
      const auto group = world.transport.make_group({0, 1});
      WholeModel part(model, {{group->rank(), group->size()}, group.get()}, Recompute::none, DataType::bfloat16);
      EXPECT_NEAR(part.loss(true), loss, 1e-2);
    });
  }
}

TEST(Float16Layers, DividedOverRanksGiveTheLossOfOne) {
  for (const Model& model : all_models()) {
    SCOPED_TRACE(model.name);
    WholeModel wide(model);
    WholeModel whole(model, {}, Recompute::none, DataType::float16);
    const double loss = whole.loss();
    EXPECT_NEAR(loss, wide.loss(), 1e-3);  // eight times closer than bfloat16
    run_ranks(2, [&](const World& world) {
      const auto group = world.transport.make_group({0, 1});
      WholeModel part(model, {{group->rank(), group->size()}, group.get()}, Recompute::none, DataType::float16);
      EXPECT_NEAR(part.loss(true), loss, 2e-3);
    });
  }
}

TEST(Float16Sums, AreRoundedTwoByTwo) {
  run_ranks(3, [](const World& world) {
    const auto device = make_cpu_device();
    const auto all = world.transport.make_group({0, 1, 2});
    // 2048 + 1 is half-way between 2048 and 2050 and goes to the even 2048, twice; 1 + 1 + 1 is exact.
    Bfloats values{to_float16(all->rank() == 0 ? 2048.0f : 1.0f), to_float16(1.0f)};
    all->all_reduce_sum(device->main(), {values.data(), DataType::float16}, 2);
    device->synchronize();
    EXPECT_EQ(from_float16(values[0]), 2048.0f);
    EXPECT_EQ(from_float16(values[1]), 3.0f);
  });
}

TEST(Bfloat16Sums, AreRoundedTwoByTwo) {
  run_ranks(3, [](const World& world) {
    const auto device = make_cpu_device();
    const auto all = world.transport.make_group({0, 1, 2});
    // 256 + 1 is half-way between 256 and 258 and goes to the even 256, twice; 1 + 1 + 1 is exact.
    Bfloats values{to_bfloat16(all->rank() == 0 ? 256.0f : 1.0f), to_bfloat16(1.0f)};
    all->all_reduce_sum(device->main(), {values.data(), DataType::bfloat16}, 2);
    device->synchronize();
    EXPECT_EQ(from_bfloat16(values[0]), 256.0f);
    EXPECT_EQ(from_bfloat16(values[1]), 3.0f);
  });
}

}  // namespace
}  // namespace sailor::runtime::test::runtime_reduced_test
