// Elementwise kernels. Each loop body is independent of the others, so the compiler vectorises it.
#include <cmath>

#include "runtime/cpu/kernels.hpp"
#include "runtime/cpu/vector_math.hpp"

namespace sailor::runtime::cpu {

namespace {

// gelu(x) = x/2 (1 + tanh(u)) = x / (1 + exp(-2u)) with u = sqrt(2/pi) (x + 0.044715 x^3).
constexpr float root_2_over_pi = 0.7978845608028654f;
constexpr float cubic = 0.044715f;

}  // namespace

SAILOR_CPU_VERSIONS
void add(float* to, const float* from, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) to[i] += from[i];
}

SAILOR_CPU_VERSIONS
void scale(float* values, float factor, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) values[i] *= factor;
}

SAILOR_CPU_VERSIONS
double squared_sum(const float* values, std::int64_t count) {
  double sum = 0.0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < count; ++i) sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  return sum;
}

SAILOR_CPU_VERSIONS
void add_bias(float* values, const float* bias, std::int64_t rows, std::int64_t width) {
  for (std::int64_t row = 0; row < rows; ++row) {
    float* line = values + row * width;
#pragma omp simd
    for (std::int64_t i = 0; i < width; ++i) line[i] += bias[i];
  }
}

SAILOR_CPU_VERSIONS
void add_bias_gradient(float* bias_gradient, const float* gradient, std::int64_t rows, std::int64_t width) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* line = gradient + row * width;
#pragma omp simd
    for (std::int64_t i = 0; i < width; ++i) bias_gradient[i] += line[i];
  }
}

SAILOR_CPU_VERSIONS
void relu_forward(float* values, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) values[i] = values[i] > 0.0f ? values[i] : 0.0f;
}

SAILOR_CPU_VERSIONS
void relu_backward(const float* output, float* gradient, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) gradient[i] = output[i] > 0.0f ? gradient[i] : 0.0f;
}

SAILOR_CPU_VERSIONS
void gelu_forward(const float* input, float* output, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    const float x = input[i];
    const float u = root_2_over_pi * (x + cubic * x * x * x);
    output[i] = x / (1.0f + fast_exp(-2.0f * u));
  }
}

SAILOR_CPU_VERSIONS
void gelu_backward(float* input_to_output, float* gradient, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    const float x = input_to_output[i];
    const float u = root_2_over_pi * (x + cubic * x * x * x);
    const float u_slope = root_2_over_pi * (1.0f + 3.0f * cubic * x * x);
    const float sigmoid = 1.0f / (1.0f + fast_exp(-2.0f * u));
    gradient[i] *= sigmoid + 2.0f * x * sigmoid * (1.0f - sigmoid) * u_slope;
    input_to_output[i] = x * sigmoid;
  }
}

// silu(x) = x sigmoid(x), with slope sigmoid(x) (1 + x (1 - sigmoid(x))).
SAILOR_CPU_VERSIONS
void swiglu_forward(const float* input, const float* factors, float* output, std::int64_t rows, std::int64_t width) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const float factor = factors != nullptr ? factors[row] : 1.0f;
    const float* gate = input + row * 2 * width;
    const float* up = gate + width;
    float* line = output + row * width;
#pragma omp simd
    for (std::int64_t i = 0; i < width; ++i) line[i] = gate[i] / (1.0f + fast_exp(-gate[i])) * up[i] * factor;
  }
}

SAILOR_CPU_VERSIONS
void swiglu_backward(float* input_to_gradient, const float* factors, float* gradient_to_output, float* factor_gradients,
                     std::int64_t rows, std::int64_t width) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const float factor = factors != nullptr ? factors[row] : 1.0f;
    float* gate = input_to_gradient + row * 2 * width;
    float* up = gate + width;
    float* line = gradient_to_output + row * width;
    float factor_gradient = 0.0f;
#pragma omp simd reduction(+ : factor_gradient)
    for (std::int64_t i = 0; i < width; ++i) {
      const float x = gate[i];
      const float u = up[i];
      const float sigmoid = 1.0f / (1.0f + fast_exp(-x));
      const float silu = x * sigmoid;
      factor_gradient += line[i] * silu * u;
      const float gradient = line[i] * factor;
      line[i] = silu * u * factor;
      up[i] = gradient * silu;
      gate[i] = gradient * u * sigmoid * (1.0f + x - silu);
    }
    if (factor_gradients != nullptr) factor_gradients[row] = factor_gradient;
  }
}

SAILOR_CPU_VERSIONS
void adamw(const AdamWStep& step, bool decays, float gradient_factor, float* value, const float* gradient,
           float* first_moment, float* second_moment, std::int64_t count) {
  const double steps = static_cast<double>(step.step);
  const float first_correction = static_cast<float>(1.0 / (1.0 - std::pow(double{step.beta1}, steps)));
  const float second_correction = static_cast<float>(1.0 / (1.0 - std::pow(double{step.beta2}, steps)));
  const float keep = 1.0f - step.learning_rate * (decays ? step.weight_decay : 0.0f);
  const float rate = step.learning_rate;
  const float beta1 = step.beta1;
  const float beta2 = step.beta2;
  const float epsilon = step.epsilon;
  const float scale = gradient_factor;
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    const float g = scale * gradient[i];
    const float m = beta1 * first_moment[i] + (1.0f - beta1) * g;
    const float v = beta2 * second_moment[i] + (1.0f - beta2) * g * g;
    first_moment[i] = m;
    second_moment[i] = v;
    value[i] = keep * value[i] - rate * (m * first_correction) / (std::sqrt(v * second_correction) + epsilon);
  }
}

}  // namespace sailor::runtime::cpu
