// Kernels that reduce over rows: norms, and softmax with cross-entropy.
#include <cmath>

#include "runtime/cpu/kernels.hpp"
#include "runtime/cpu/vector_math.hpp"

namespace sailor::runtime::cpu {

SAILOR_CPU_VERSIONS
void layer_norm_forward(const NormShape& shape, const float* input, const float* weight, const float* bias,
                        float* output, float* mean, float* reciprocal_deviation) {
  const std::int64_t width = shape.width;
  const float reciprocal_width = 1.0f / static_cast<float>(width);
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    const float* x = input + row * width;
    float* y = output + row * width;
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t i = 0; i < width; ++i) sum += x[i];
    const float average = sum * reciprocal_width;
    float squares = 0.0f;  // about the mean: in one pass the difference of squares would cancel
#pragma omp simd reduction(+ : squares)
    for (std::int64_t i = 0; i < width; ++i) squares += (x[i] - average) * (x[i] - average);
    const float reciprocal = 1.0f / std::sqrt(squares * reciprocal_width + shape.epsilon);
#pragma omp simd
    for (std::int64_t i = 0; i < width; ++i) y[i] = (x[i] - average) * reciprocal * weight[i] + bias[i];
    mean[row] = average;
    reciprocal_deviation[row] = reciprocal;
  }
}

SAILOR_CPU_VERSIONS
void layer_norm_backward(const NormShape& shape, const float* input, const float* mean,
                         const float* reciprocal_deviation, const float* weight, float* gradient,
                         float* weight_gradient, float* bias_gradient) {
  // With n = (x - mean) r, y = n w + b and g = dy w:  dx = r (g - average(g) - n average(g n)).
  const std::int64_t width = shape.width;
  const float reciprocal_width = 1.0f / static_cast<float>(width);
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    const float* x = input + row * width;
    float* d = gradient + row * width;
    const float average = mean[row];
    const float reciprocal = reciprocal_deviation[row];
    float sum = 0.0f;
    float product_sum = 0.0f;
#pragma omp simd reduction(+ : sum, product_sum)
    for (std::int64_t i = 0; i < width; ++i) {
      const float normalized = (x[i] - average) * reciprocal;
      const float g = d[i] * weight[i];
      sum += g;
      product_sum += g * normalized;
      weight_gradient[i] += d[i] * normalized;
      bias_gradient[i] += d[i];
    }
    const float average_gradient = sum * reciprocal_width;
    const float average_product = product_sum * reciprocal_width;
#pragma omp simd
    for (std::int64_t i = 0; i < width; ++i) {
      const float normalized = (x[i] - average) * reciprocal;
      d[i] = reciprocal * (d[i] * weight[i] - average_gradient - normalized * average_product);
    }
  }
}

SAILOR_CPU_VERSIONS
void rms_norm_forward(const NormShape& shape, const float* input, const float* weight, float* output,
                      float* reciprocal_rms) {
  const std::int64_t width = shape.width;
  const float reciprocal_width = 1.0f / static_cast<float>(width);
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    const float* x = input + row * width;
    float* y = output + row * width;
    float squares = 0.0f;
#pragma omp simd reduction(+ : squares)
    for (std::int64_t i = 0; i < width; ++i) squares += x[i] * x[i];
    const float reciprocal = 1.0f / std::sqrt(squares * reciprocal_width + shape.epsilon);
#pragma omp simd
    for (std::int64_t i = 0; i < width; ++i) y[i] = x[i] * reciprocal * weight[i];
    reciprocal_rms[row] = reciprocal;
  }
}

SAILOR_CPU_VERSIONS
void rms_norm_backward(const NormShape& shape, const float* input, const float* reciprocal_rms, const float* weight,
                       float* gradient, float* weight_gradient) {
  // With n = x r, y = n w and g = dy w:  dx = r (g - n average(g n)).
  const std::int64_t width = shape.width;
  const float reciprocal_width = 1.0f / static_cast<float>(width);
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    const float* x = input + row * width;
    float* d = gradient + row * width;
    const float reciprocal = reciprocal_rms[row];
    float product_sum = 0.0f;
#pragma omp simd reduction(+ : product_sum)
    for (std::int64_t i = 0; i < width; ++i) {
      const float normalized = x[i] * reciprocal;
      product_sum += d[i] * weight[i] * normalized;
      weight_gradient[i] += d[i] * normalized;
    }
    const float average_product = product_sum * reciprocal_width;
#pragma omp simd
    for (std::int64_t i = 0; i < width; ++i)
      d[i] = reciprocal * (d[i] * weight[i] - x[i] * reciprocal * average_product);
  }
}

SAILOR_CPU_VERSIONS
void softmax_cross_entropy(const LogitsShape& shape, float* logits_to_gradient, const std::int32_t* targets,
                           float gradient_scale, double* loss_sum) {
  const std::int64_t classes = shape.classes.size();
  double losses = 0.0;
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    float* line = logits_to_gradient + row * shape.stride;
    const float target_logit = line[targets[row]];
    float largest = line[0];
#pragma omp simd reduction(max : largest)
    for (std::int64_t i = 0; i < classes; ++i) largest = line[i] > largest ? line[i] : largest;
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t i = 0; i < classes; ++i) {
      const float e = fast_exp(line[i] - largest);
      line[i] = e;
      sum += e;
    }
    const float scale = gradient_scale / sum;
#pragma omp simd
    for (std::int64_t i = 0; i < classes; ++i) line[i] *= scale;
    line[targets[row]] -= gradient_scale;
    losses += std::log(double{sum}) + double{largest} - double{target_logit};
  }
  *loss_sum += losses;
}

SAILOR_CPU_VERSIONS
void row_maxima(const LogitsShape& shape, const float* logits, float* maxima) {
  const std::int64_t width = shape.classes.size();
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    const float* line = logits + row * shape.stride;
    float largest = line[0];
#pragma omp simd reduction(max : largest)
    for (std::int64_t i = 0; i < width; ++i) largest = line[i] > largest ? line[i] : largest;
    maxima[row] = largest;
  }
}

SAILOR_CPU_VERSIONS
void softmax_sums(const LogitsShape& shape, float* logits_to_exponentials, const float* maxima,
                  const std::int32_t* targets, float* sums, float* target_logits) {
  const Range& classes = shape.classes;
  const std::int64_t width = classes.size();
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    float* line = logits_to_exponentials + row * shape.stride;
    const float largest = maxima[row];
    const bool is_here = classes.first <= targets[row] && targets[row] < classes.last;
    target_logits[row] = is_here ? line[targets[row] - classes.first] - largest : 0.0f;
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t i = 0; i < width; ++i) {
      const float e = fast_exp(line[i] - largest);
      line[i] = e;
      sum += e;
    }
    sums[row] = sum;
  }
}

SAILOR_CPU_VERSIONS
void softmax_gradient(const LogitsShape& shape, float* exponentials_to_gradient, const float* sums,
                      const float* target_logits, const std::int32_t* targets, float gradient_scale, double* loss_sum) {
  const Range& classes = shape.classes;
  const std::int64_t width = classes.size();
  double losses = 0.0;
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    float* line = exponentials_to_gradient + row * shape.stride;
    const float scale = gradient_scale / sums[row];
#pragma omp simd
    for (std::int64_t i = 0; i < width; ++i) line[i] *= scale;
    if (classes.first <= targets[row] && targets[row] < classes.last)
      line[targets[row] - classes.first] -= gradient_scale;
    losses += std::log(double{sums[row]}) - double{target_logits[row]};
  }
  *loss_sum += losses;
}

}  // namespace sailor::runtime::cpu
