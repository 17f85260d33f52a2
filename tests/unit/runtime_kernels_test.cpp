// The CPU's kernels against plain loops in double precision, and the memory pool.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>
#include <map>
#include <memory>
#include <stdexcept>
#include <vector>

#include "runtime/cpu/cpu_device.hpp"
#include "runtime/memory_pool.hpp"
#include "runtime/parameters.hpp"
#include "stream_operations.hpp"

namespace sailor::runtime::runtime_kernels_test {
namespace {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

Floats noise(std::size_t count, std::uint64_t seed, float deviation = 1.0f) {
  return initial_values({.name = "noise",
                         .shape = {static_cast<std::int64_t>(count)},
                         .initial = InitialValue::normal,
                         .deviation = deviation},
                        seed);
}

void expect_close(const Floats& values, const Doubles& expected, double tolerance) {
  ASSERT_EQ(values.size(), expected.size());
  double worst = 0.0;
  for (std::size_t i = 0; i < values.size(); ++i) worst = std::max(worst, std::abs(values[i] - expected[i]));
  EXPECT_LE(worst, tolerance);
}

class CpuKernels : public ::testing::Test {
 protected:
  std::unique_ptr<Device> device = make_cpu_device();
};

TEST_F(CpuKernels, MatrixProductsWithTransposesAndAccumulationEqualPlainLoops) {
  const std::size_t m = 5;
  const std::size_t n = 7;
  const std::size_t k = 11;
  const Floats a = noise(m * k, 1);
  const Floats b = noise(k * n, 2);
  for (const bool transpose_a : {false, true}) {
    for (const bool transpose_b : {false, true}) {
      for (const bool accumulate : {false, true}) {
        Floats c = noise(m * n, 3);
        Doubles expected(c.begin(), c.end());
        for (std::size_t i = 0; i < m; ++i)
          for (std::size_t j = 0; j < n; ++j) {
            double sum = accumulate ? expected[i * n + j] : 0.0;
            for (std::size_t l = 0; l < k; ++l)
              sum += double{a[transpose_a ? l * m + i : i * k + l]} * b[transpose_b ? j * k + l : l * n + j];
            expected[i * n + j] = sum;
          }
        device->main().matmul({transpose_a, transpose_b, m, n, k, accumulate}, a.data(), b.data(), c.data());
        expect_close(c, expected, 1e-5);
      }
    }
  }
}

TEST_F(CpuKernels, GeluEqualsItsFormulaAndSlope) {
  const std::size_t count = 1003;
  Floats x = noise(count, 4, 3.0f);
  x[0] = -60.0f;  // both ends, where exp would leave its range
  x[1] = 60.0f;
  x[2] = 0.0f;
  Floats gradient(count, 2.0f);
  Floats output(count);
  const auto gelu = [](double v) {
    return 0.5 * v * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (v + 0.044715 * v * v * v)));
  };
  Doubles expected;
  Doubles slopes;
  for (const float v : x) {
    expected.push_back(gelu(v));
    slopes.push_back(2.0 * (gelu(v + 1e-5) - gelu(v - 1e-5)) / 2e-5);
  }
  test::gelu_forward(*device, x.data(), output.data(), static_cast<std::int64_t>(count));
  expect_close(output, expected, 2e-6);
  test::gelu_backward(*device, x.data(), gradient.data(), static_cast<std::int64_t>(count));
  expect_close(x, expected, 2e-6);
  expect_close(gradient, slopes, 5e-6);
}

TEST_F(CpuKernels, ReluPassesGradientsOnlyWhereItsOutputIsPositive) {
  Floats values{-1.0f, 0.0f, 2.0f, -0.0f, 3.5f};
  Floats gradient(5, 1.0f);
  test::relu_forward(*device, values.data(), 5);
  EXPECT_EQ(values, (Floats{0.0f, 0.0f, 2.0f, 0.0f, 3.5f}));
  test::relu_backward(*device, values.data(), gradient.data(), 5);
  EXPECT_EQ(gradient, (Floats{0.0f, 0.0f, 1.0f, 0.0f, 1.0f}));
}

TEST_F(CpuKernels, BiasesAndRepeatedTablesAddByRows) {
  Floats values{1, 2, 3, 4};
  const Floats bias{10, 20};
  device->main().add_bias(values.data(), bias.data(), 2, 2);
  EXPECT_EQ(values, (Floats{11, 22, 13, 24}));
  Floats bias_gradient{100, 200};
  test::add_bias_gradient(*device, bias_gradient.data(), values.data(), 2, 2);
  EXPECT_EQ(bias_gradient, (Floats{124, 246}));
}

TEST_F(CpuKernels, GatheringAndScatteringRowsAreInverse) {
  const Floats table{1, 2, 3, 4, 5, 6};
  const std::vector<std::int32_t> tokens{2, 0, 2};
  Floats rows(6);
  device->main().gather_rows(table.data(), {0, 3}, tokens.data(), 3, 2, rows.data());
  EXPECT_EQ(rows, (Floats{5, 6, 1, 2, 5, 6}));
  Floats gradient(6, 0.0f);
  device->main().scatter_add_rows(gradient.data(), {0, 3}, tokens.data(), 3, 2, rows.data());
  EXPECT_EQ(gradient, (Floats{1, 2, 0, 0, 10, 12}));  // row 2 twice
  // The same table as rows 5 to 7 of a larger one.
  const std::vector<std::int32_t> others{7, 4, 5, 8};
  Floats some(8);
  device->main().gather_rows(table.data(), {5, 8}, others.data(), 4, 2, some.data());
  EXPECT_EQ(some, (Floats{5, 6, 0, 0, 1, 2, 0, 0}));
  const Floats ones(8, 1.0f);
  device->main().scatter_add_rows(gradient.data(), {5, 8}, others.data(), 4, 2, ones.data());
  EXPECT_EQ(gradient, (Floats{2, 3, 0, 0, 11, 13}));
}

TEST_F(CpuKernels, LayerNormEqualsPlainLoopsAlsoFarFromZero) {
  const std::size_t rows = 3;
  const std::size_t width = 37;
  const double epsilon = 1e-5;
  Floats x = noise(rows * width, 5);
  for (std::size_t i = 0; i < width; ++i) x[i] += 1000.0f;  // variance by squares minus square would cancel here
  const Floats weight = noise(width, 6);
  const Floats bias = noise(width, 7);
  const Floats output_gradient = noise(rows * width, 8);
  Doubles expected(rows * width);
  Doubles input_gradient(rows * width);
  Doubles weight_gradient(width, 1.0);
  Doubles bias_gradient(width, 2.0);
  for (std::size_t r = 0; r < rows; ++r) {
    double mean = 0.0;
    double variance = 0.0;
    for (std::size_t i = 0; i < width; ++i) mean += x[r * width + i] / static_cast<double>(width);
    for (std::size_t i = 0; i < width; ++i)
      variance += std::pow(x[r * width + i] - mean, 2) / static_cast<double>(width);
    const double reciprocal = 1.0 / std::sqrt(variance + epsilon);
    double sum = 0.0;
    double product = 0.0;
    for (std::size_t i = 0; i < width; ++i) {
      const double n = (x[r * width + i] - mean) * reciprocal;
      const double dy = output_gradient[r * width + i];
      expected[r * width + i] = n * weight[i] + bias[i];
      weight_gradient[i] += dy * n;
      bias_gradient[i] += dy;
      sum += dy * weight[i] / static_cast<double>(width);
      product += dy * weight[i] * n / static_cast<double>(width);
    }
    for (std::size_t i = 0; i < width; ++i)
      input_gradient[r * width + i] = reciprocal * (double{output_gradient[r * width + i]} * weight[i] - sum -
                                                    (x[r * width + i] - mean) * reciprocal * product);
  }
  const NormShape shape{static_cast<std::int64_t>(rows), static_cast<std::int64_t>(width), 1e-5f};
  Floats output(rows * width);
  Floats mean(rows);
  Floats reciprocal(rows);
  device->main().layer_norm_forward(shape, x.data(), weight.data(), bias.data(), output.data(), mean.data(),
                                    reciprocal.data());
  expect_close(output, expected, 2e-3);  // 1000 has a float spacing of 6e-5
  Floats gradient = output_gradient;
  Floats got_weight(width, 1.0f);
  Floats got_bias(width, 2.0f);
  device->main().layer_norm_backward(shape, x.data(), mean.data(), reciprocal.data(), weight.data(), gradient.data(),
                                     nullptr, got_weight.data(), got_bias.data());
  expect_close(gradient, input_gradient, 2e-3);
  expect_close(got_weight, weight_gradient, 2e-3);
  expect_close(got_bias, bias_gradient, 1e-5);
}

TEST_F(CpuKernels, RmsNormEqualsPlainLoops) {
  const std::size_t rows = 3;
  const std::size_t width = 37;
  const Floats x = noise(rows * width, 5, 4.0f);
  const Floats weight = noise(width, 6);
  const Floats output_gradient = noise(rows * width, 8);
  Doubles expected(rows * width);
  Doubles input_gradient(rows * width);
  Doubles weight_gradient(width, 1.0);
  for (std::size_t r = 0; r < rows; ++r) {
    const auto at = [&](std::size_t i) { return r * width + i; };
    double squares = 0.0;
    for (std::size_t i = 0; i < width; ++i) squares += double{x[at(i)]} * x[at(i)] / static_cast<double>(width);
    const double root = std::sqrt(squares + 0.5);
    double product = 0.0;  // of the output's gradient and the input
    for (std::size_t i = 0; i < width; ++i) {
      expected[at(i)] = x[at(i)] / root * weight[i];
      weight_gradient[i] += double{output_gradient[at(i)]} * x[at(i)] / root;
      product += double{output_gradient[at(i)]} * weight[i] * x[at(i)];
    }
    // y_j = w_j x_j / root, d root / d x_i = x_i / (width root).
    for (std::size_t i = 0; i < width; ++i)
      input_gradient[at(i)] = double{output_gradient[at(i)]} * weight[i] / root -
                              x[at(i)] * product / (static_cast<double>(width) * root * root * root);
  }
  const NormShape shape{static_cast<std::int64_t>(rows), static_cast<std::int64_t>(width), 0.5f};
  Floats output(rows * width);
  Floats reciprocal(rows);
  device->main().rms_norm_forward(shape, x.data(), weight.data(), output.data(), reciprocal.data());
  expect_close(output, expected, 3e-6);
  Floats gradient = output_gradient;
  Floats got_weight(width, 1.0f);
  device->main().rms_norm_backward(shape, x.data(), reciprocal.data(), weight.data(), gradient.data(), nullptr,
                                   got_weight.data());
  expect_close(gradient, input_gradient, 3e-6);
  expect_close(got_weight, weight_gradient, 1e-5);
}

TEST_F(CpuKernels, SwigluEqualsItsFormulaAndSlopes) {
  const std::size_t rows = 3;
  const std::size_t width = 21;
  Floats input = noise(rows * 2 * width, 4, 3.0f);
  input[0] = -100.0f;  // both ends, where exp would leave its range
  input[1] = 100.0f;
  const Floats output_gradient = noise(rows * width, 5);
  const auto silu = [](double x) { return x / (1.0 + std::exp(-x)); };
  Doubles expected(rows * width);
  Doubles gradient(rows * 2 * width);
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t i = 0; i < width; ++i) {
      const double gate = input[r * 2 * width + i];
      const double up = input[r * 2 * width + width + i];
      const double dy = output_gradient[r * width + i];
      expected[r * width + i] = silu(gate) * up;
      gradient[r * 2 * width + i] = dy * up * (silu(gate + 1e-5) - silu(gate - 1e-5)) / 2e-5;
      gradient[r * 2 * width + width + i] = dy * silu(gate);
    }
  Floats output(rows * width);
  device->main().swiglu_forward(input.data(), nullptr, output.data(), rows, width);
  expect_close(output, expected, 1e-5);
  output = output_gradient;
  device->main().swiglu_backward(input.data(), nullptr, output.data(), nullptr, rows, width);
  expect_close(output, expected, 1e-5);
  expect_close(input, gradient, 1e-5);
}

TEST_F(CpuKernels, RotaryTurnsQueriesAndKeysByTheirPositionAndBack) {
  const AttentionShape shape{
      .sequences = 2, .sequence_length = 5, .heads = 4, .key_value_heads = 2, .head_width = 6, .score_scale = 1.0f};
  ASSERT_EQ(shape.projected_width(), 48);
  const Floats before = noise(10 * 48, 12);
  Doubles expected(before.begin(), before.end());
  for (std::size_t token = 0; token < 10; ++token)
    for (std::size_t head = 0; head < 6; ++head)  // 4 of queries, 2 of keys; values stay
      for (std::size_t i = 0; i < 3; ++i) {
        const std::size_t at = token * 48 + head * 6 + i;
        const std::complex<double> pair(before[at], before[at + 3]);
        const double angle = static_cast<double>(token % 5) * std::pow(10.0, -2.0 * static_cast<double>(i) / 6.0);
        const std::complex<double> turned = pair * std::polar(1.0, angle);
        expected[at] = turned.real();
        expected[at + 3] = turned.imag();
      }
  Floats values = before;
  device->main().rotary(shape, 10.0, false, values.data());
  expect_close(values, expected, 1e-6);
  device->main().rotary(shape, 10.0, true, values.data());
  expect_close(values, Doubles(before.begin(), before.end()), 1e-6);
}

TEST_F(CpuKernels, CrossEntropyOverADividedVocabularyEqualsThatOfTheWhole) {
  const std::size_t rows = 4;
  const std::size_t classes = 45;
  Floats logits = noise(rows * classes, 9, 5.0f);
  for (std::size_t i = 0; i < classes; ++i) logits[i] += 500.0f;
  const std::vector<std::int32_t> targets{3, 44, 0, 17};
  // Parts [0, 1), [1, 17), [17, 45), as three devices would have them.
  const std::vector<Range> parts{{0, 1}, {1, 17}, {17, 45}};
  std::vector<Floats> divided;
  Floats maxima(rows, -std::numeric_limits<float>::infinity());
  for (const Range& part : parts) {
    Floats& mine = divided.emplace_back();
    for (std::size_t r = 0; r < rows; ++r)
      mine.insert(mine.end(), &logits[r * classes] + part.first, &logits[r * classes] + part.last);
    Floats of_part(rows);
    device->main().row_maxima({rows, part, part.size()}, mine.data(), of_part.data());
    for (std::size_t r = 0; r < rows; ++r) maxima[r] = std::max(maxima[r], of_part[r]);
  }
  Floats sums(rows, 0.0f);
  Floats target_logits(rows, 0.0f);
  for (std::size_t p = 0; p < parts.size(); ++p) {
    Floats sums_of_part(rows);
    Floats targets_of_part(rows);
    device->main().softmax_sums({rows, parts[p], parts[p].size()}, divided[p].data(), maxima.data(), targets.data(),
                                sums_of_part.data(), targets_of_part.data());
    device->main().add(sums.data(), sums_of_part.data(), rows);
    device->main().add(target_logits.data(), targets_of_part.data(), rows);
  }
  double expected_loss = 0.0;
  device->main().softmax_cross_entropy({rows, {0, classes}, classes}, logits.data(), targets.data(), 0.5f,
                                       &expected_loss);
  for (std::size_t p = 0; p < parts.size(); ++p) {
    double loss = 1.0;
    device->main().softmax_gradient({rows, parts[p], parts[p].size()}, divided[p].data(), sums.data(),
                                    target_logits.data(), targets.data(), 0.5f, &loss);
    EXPECT_NEAR(loss, 1.0 + expected_loss, 1e-5);  // whole on each
    for (std::size_t r = 0; r < rows; ++r)
      for (std::int64_t c = parts[p].first; c < parts[p].last; ++c)
        EXPECT_NEAR(
            divided[p][r * static_cast<std::size_t>(parts[p].size()) + static_cast<std::size_t>(c - parts[p].first)],
            logits[r * classes + static_cast<std::size_t>(c)], 1e-6);
  }
}

TEST_F(CpuKernels, CrossEntropyEqualsPlainLoopsAlsoForLargeLogits) {
  const std::size_t rows = 4;
  const std::size_t classes = 45;
  Floats logits = noise(rows * classes, 9, 5.0f);
  for (std::size_t i = 0; i < classes; ++i) logits[i] += 500.0f;
  const std::vector<std::int32_t> targets{3, 44, 0, 17};
  Doubles gradient(rows * classes);
  double loss = 0.25;
  for (std::size_t r = 0; r < rows; ++r) {
    double sum = 0.0;
    const double largest = *std::max_element(&logits[r * classes], &logits[r * classes] + classes);
    for (std::size_t i = 0; i < classes; ++i) sum += std::exp(logits[r * classes + i] - largest);
    const auto target = static_cast<std::size_t>(targets[r]);
    loss += std::log(sum) + largest - logits[r * classes + target];
    for (std::size_t i = 0; i < classes; ++i)
      gradient[r * classes + i] = 0.5 * (std::exp(logits[r * classes + i] - largest) / sum - (i == target ? 1.0 : 0.0));
  }
  double got = 0.25;  // is added to
  device->main().softmax_cross_entropy({rows, {0, classes}, classes}, logits.data(), targets.data(), 0.5f, &got);
  EXPECT_NEAR(got, loss, 1e-5);
  expect_close(logits, gradient, 1e-6);
}

TEST_F(CpuKernels, AdamWEqualsItsDefinition) {
  const AdamWStep step{
      .learning_rate = 0.1f, .beta1 = 0.9f, .beta2 = 0.99f, .epsilon = 1e-8f, .weight_decay = 0.5f, .step = 3};
  Floats value{2.0f, -1.0f};
  const Floats gradient{0.5f, 0.0f};
  Floats first{0.2f, 0.0f};
  Floats second{0.3f, 0.0f};
  test::adamw(*device, step, value.data(), gradient.data(), first.data(), second.data(), 2);
  // m = 0.9*0.2 + 0.1*0.5 = 0.23, v = 0.99*0.3 + 0.01*0.25 = 0.2995; corrected by 1 - 0.9^3 = 0.271, 1 - 0.99^3 =
  // 0.029701
  EXPECT_NEAR(first[0], 0.23, 1e-6);
  EXPECT_NEAR(second[0], 0.2995, 1e-6);
  EXPECT_NEAR(value[0], 2.0 * (1.0 - 0.05) - 0.1 * (0.23 / 0.271) / std::sqrt(0.2995 / 0.029701), 1e-5);
  EXPECT_NEAR(value[1], -0.95, 1e-6);  // decay alone
}

// Attention of one head the long way: all scores, a mask, softmax; gradients by the chain rule.
struct NaiveAttention {
  Doubles output;
  Doubles gradient;
};

NaiveAttention naive_attention(const AttentionShape& shape, const Floats& projected, const Floats& output_gradient) {
  const auto length = static_cast<std::size_t>(shape.sequence_length);
  const auto width = static_cast<std::size_t>(shape.width());
  const auto key_value_width = static_cast<std::size_t>(shape.key_value_width());
  const auto group = static_cast<std::size_t>(shape.heads / shape.key_value_heads);
  const auto d = static_cast<std::size_t>(shape.head_width);
  NaiveAttention result{Doubles(output_gradient.size(), 0.0), Doubles(projected.size(), 0.0)};
  for (std::size_t s = 0; s < static_cast<std::size_t>(shape.sequences); ++s)
    for (std::size_t h = 0; h < static_cast<std::size_t>(shape.heads); ++h) {
      const auto at = [&](std::size_t token, std::size_t part) {
        const std::size_t row = (s * length + token) * (width + 2 * key_value_width);
        return part == 0 ? row + h * d : row + width + (part - 1) * key_value_width + h / group * d;
      };
      for (std::size_t i = 0; i < length; ++i) {
        const std::size_t first = shape.window == 0 || i + 1 < static_cast<std::size_t>(shape.window)
                                      ? 0
                                      : i + 1 - static_cast<std::size_t>(shape.window);
        Doubles p(length, 0.0);
        double sum = 0.0;
        for (std::size_t j = first; j <= i; ++j) {
          double score = 0.0;
          for (std::size_t c = 0; c < d; ++c) score += double{projected[at(i, 0) + c]} * projected[at(j, 1) + c];
          sum += p[j] = std::exp(score * double{shape.score_scale});
        }
        const std::size_t out = (s * length + i) * width + h * d;
        Doubles dp(length, 0.0);
        double product = 0.0;
        for (std::size_t j = first; j <= i; ++j) {
          p[j] /= sum;
          for (std::size_t c = 0; c < d; ++c) {
            result.output[out + c] += p[j] * projected[at(j, 2) + c];
            dp[j] += double{output_gradient[out + c]} * projected[at(j, 2) + c];
            result.gradient[at(j, 2) + c] += p[j] * output_gradient[out + c];
          }
          product += p[j] * dp[j];
        }
        for (std::size_t j = first; j <= i; ++j) {
          const double ds = p[j] * (dp[j] - product) * double{shape.score_scale};
          for (std::size_t c = 0; c < d; ++c) {
            result.gradient[at(i, 0) + c] += ds * projected[at(j, 1) + c];
            result.gradient[at(j, 1) + c] += ds * projected[at(i, 0) + c];
          }
        }
      }
    }
  return result;
}

void expect_attention(Device& device, const AttentionShape& shape) {
  SCOPED_TRACE(testing::Message() << "length " << shape.sequence_length << ", window " << shape.window << ", "
                                  << shape.heads << " heads, " << shape.key_value_heads << " of keys and values");
  const auto tokens = static_cast<std::size_t>(shape.tokens());
  const std::size_t projected_size = tokens * static_cast<std::size_t>(shape.projected_width());
  const std::size_t output_size = tokens * static_cast<std::size_t>(shape.width());
  const Floats projected = noise(projected_size, 10);
  const Floats output_gradient = noise(output_size, 11);
  const NaiveAttention expected = naive_attention(shape, projected, output_gradient);
  Floats output(output_size);
  Floats log_sum(tokens * static_cast<std::size_t>(shape.heads));
  device.main().attention_forward(shape, projected.data(), output.data(), log_sum.data());
  expect_close(output, expected.output, 5e-6);
  Floats gradient(projected_size, 123.0f);  // must be overwritten
  device.main().attention_backward(shape, projected.data(), output.data(), log_sum.data(), output_gradient.data(),
                                   gradient.data());
  expect_close(gradient, expected.gradient, 3e-5);
}

TEST_F(CpuKernels, AttentionEqualsTheFullMatrixForWholeAndPartialBlocksAndWindows) {
  for (const std::int64_t length : {1, 7, 64, 150})
    for (const std::int64_t window : {0, 1, 5, 70, 1000})
      expect_attention(*device, {.sequences = 2,
                                 .sequence_length = length,
                                 .heads = 3,
                                 .key_value_heads = 3,
                                 .head_width = 8,
                                 .score_scale = 0.35f,
                                 .window = window});
}

TEST_F(CpuKernels, QueryHeadsThatShareKeysAndValuesSumTheirGradients) {
  for (const std::int64_t key_value_heads : {1, 2, 3})
    for (const std::int64_t window : {0, 9})
      expect_attention(*device, {.sequences = 2,
                                 .sequence_length = 70,
                                 .heads = 6,
                                 .key_value_heads = key_value_heads,
                                 .head_width = 8,
                                 .score_scale = 0.35f,
                                 .window = window});
}

TEST_F(CpuKernels, WorkspaceOfAttentionCountsAsTensorMemory) {
  const AttentionShape shape{.sequences = 1, .sequence_length = 64, .heads = 1, .key_value_heads = 1, .head_width = 8};
  const Floats projected = noise(64 * 24, 1);
  Floats output(64 * 8);
  Floats log_sum(64);
  device->main().attention_forward(shape, projected.data(), output.data(), log_sum.data());
  EXPECT_EQ(device->memory_use().alive.value(), 0.0);
  EXPECT_EQ(device->memory_use().peak.value(), 64.0 * 64 * 4);
}

// ---- The pool, on segments from malloc with a limit.
class MemoryPoolTest : public ::testing::Test {
 protected:
  std::size_t limit = std::numeric_limits<std::size_t>::max();
  std::size_t reserved = 0;
  std::map<void*, std::size_t> sizes;
  MemoryPool pool{"the test device",
                  [this](std::size_t bytes) -> void* {
                    if (reserved + bytes > limit) return nullptr;
                    reserved += bytes;
                    void* memory = std::aligned_alloc(64, bytes);
                    sizes[memory] = bytes;
                    return memory;
                  },
                  [this](void* memory) {
                    reserved -= sizes.at(memory);
                    sizes.erase(memory);
                    std::free(memory);
                  }};
};

TEST_F(MemoryPoolTest, CountsWhatIsAliveAndItsPeak) {
  void* a = pool.allocate(1000);
  void* b = pool.allocate(500);
  EXPECT_EQ(pool.use().alive.value(), 1500.0);
  pool.release(a);
  EXPECT_EQ(pool.use().alive.value(), 500.0);
  EXPECT_EQ(pool.use().peak.value(), 1500.0);
  pool.reset_peak();
  EXPECT_EQ(pool.use().peak.value(), 500.0);
  pool.release(b);
}

TEST_F(MemoryPoolTest, ReusesMemoryAndJoinsNeighbours) {
  const std::size_t mib = std::size_t{1} << 20;
  void* whole = pool.allocate(8 * mib);
  pool.release(whole);
  std::vector<void*> parts;
  for (int i = 0; i < 8; ++i) parts.push_back(pool.allocate(mib));  // pieces of the segment
  for (const int order : {1, 3, 2, 0, 7, 5, 6, 4}) pool.release(parts[static_cast<std::size_t>(order)]);
  EXPECT_EQ(pool.allocate(8 * mib), whole);  // the pieces are one again
  EXPECT_EQ(pool.use().reserved.value(), static_cast<double>(8 * mib));
  pool.release(whole);
}

TEST_F(MemoryPoolTest, GivesUnusedSegmentsBackBeforeItFails) {
  const std::size_t mib = std::size_t{1} << 20;
  limit = 10 * mib;
  pool.release(pool.allocate(6 * mib));
  void* larger = pool.allocate(8 * mib);  // only fits without the first segment
  EXPECT_EQ(reserved, 8 * mib);
  try {
    pool.allocate(3 * mib);
    FAIL() << "3 MiB beside 8 of 10";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(),
                 "the test device has no memory for 3.00 MiB more: 8.00 MiB in tensors, 8.00 MiB reserved; use more "
                 "stages or a smaller micro-batch");
  }
  pool.release(larger);
}

}  // namespace
}  // namespace sailor::runtime::runtime_kernels_test
