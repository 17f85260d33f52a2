// Causal attention in blocks of query rows. A block's scores against all keys that it may see fit in the cache, so the
// (sequence, sequence) matrix never exists, and blocks of keys after the diagonal are never multiplied. The backward
// pass recomputes the scores (Dao et al. 2022).
#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "runtime/cpu/kernels.hpp"
#include "runtime/cpu/vector_math.hpp"

namespace sailor::runtime::cpu {

namespace {

constexpr std::int64_t block_rows = 64;

// Query rows [first, last) and the keys [first_key, last) that any of them sees; row r sees keys up to r.
struct QueryBlock {
  std::int64_t first;
  std::int64_t last;
  std::int64_t first_key;
  [[nodiscard]] std::int64_t rows() const { return last - first; }
  [[nodiscard]] std::int64_t keys() const { return last - first_key; }
  /// Columns of the scores that row `row` of the block sees: [begin, end).
  [[nodiscard]] std::int64_t begin(std::int64_t row, std::int64_t window) const {
    return window == 0 ? 0 : std::max<std::int64_t>(0, first + row - window + 1 - first_key);
  }
  [[nodiscard]] std::int64_t end(std::int64_t row) const { return first + row + 1 - first_key; }
};

QueryBlock query_block(const AttentionShape& shape, std::int64_t first) {
  const std::int64_t last = std::min(first + block_rows, shape.sequence_length);
  return {first, last, shape.window == 0 ? 0 : std::max<std::int64_t>(0, first - shape.window + 1)};
}

// Offsets of a query head's parts of one sequence. Rows are projected_width() or, in the output, width() apart.
struct Slices {
  std::int64_t query;
  std::int64_t key;
  std::int64_t value;
  std::int64_t output;
};

Slices slices(const AttentionShape& shape, std::int64_t sequence, std::int64_t head) {
  const std::int64_t token = sequence * shape.sequence_length;
  const std::int64_t row = token * shape.projected_width();
  const std::int64_t column = head * shape.head_width;
  const std::int64_t shared = head / (shape.heads / shape.key_value_heads) * shape.head_width;
  return {row + column, row + shape.width() + shared, row + shape.width() + shape.key_value_width() + shared,
          token * shape.width() + column};
}

/// Query heads of group `group`, counted over all sequences.
Range query_heads(const AttentionShape& shape, std::int64_t group) {
  const std::int64_t shared = shape.heads / shape.key_value_heads;
  const std::int64_t first = group % shape.key_value_heads * shared;
  return {first, first + shared};
}

void multiply(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
              const float* a, std::int64_t a_stride, const float* b, std::int64_t b_stride, float beta, float* c,
              std::int64_t c_stride) {
  const auto narrow = [](std::int64_t value) { return static_cast<int>(value); };
  cblas_sgemm(CblasRowMajor, transpose_a ? CblasTrans : CblasNoTrans, transpose_b ? CblasTrans : CblasNoTrans,
              narrow(m), narrow(n), narrow(k), alpha, a, narrow(a_stride), b, narrow(b_stride), beta, c,
              narrow(c_stride));
}

// Softmax of scores[begin, end) in place, zeros elsewhere in [0, keys); returns log(sum(exp(scores))).
SAILOR_CPU_VERSIONS
float softmax_row(float* scores, std::int64_t begin, std::int64_t end, std::int64_t keys) {
  float largest = scores[begin];
#pragma omp simd reduction(max : largest)
  for (std::int64_t i = begin; i < end; ++i) largest = scores[i] > largest ? scores[i] : largest;
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = begin; i < end; ++i) {
    const float e = fast_exp(scores[i] - largest);
    scores[i] = e;
    sum += e;
  }
  const float reciprocal = 1.0f / sum;
#pragma omp simd
  for (std::int64_t i = begin; i < end; ++i) scores[i] *= reciprocal;
  std::fill(scores, scores + begin, 0.0f);
  std::fill(scores + end, scores + keys, 0.0f);
  return largest + std::log(sum);
}

// scores become probabilities, and gradient (of the probabilities) becomes that of the scores before scaling.
SAILOR_CPU_VERSIONS
void softmax_row_backward(float* scores, float* gradient, float log_sum, float product, float scale, std::int64_t begin,
                          std::int64_t end, std::int64_t keys) {
#pragma omp simd
  for (std::int64_t i = begin; i < end; ++i) {
    const float probability = fast_exp(scores[i] - log_sum);
    scores[i] = probability;
    gradient[i] = probability * (gradient[i] - product) * scale;
  }
  for (float* row : {scores, gradient}) {
    std::fill(row, row + begin, 0.0f);
    std::fill(row + end, row + keys, 0.0f);
  }
}

SAILOR_CPU_VERSIONS
float dot(const float* a, const float* b, std::int64_t count) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

// Rotates pairs (head[i], head[i + half]).
SAILOR_CPU_VERSIONS
void turn(float* head, const float* cosines, const float* sines, std::int64_t half) {
#pragma omp simd
  for (std::int64_t i = 0; i < half; ++i) {
    const float x = head[i];
    const float y = head[i + half];
    head[i] = x * cosines[i] - y * sines[i];
    head[i + half] = y * cosines[i] + x * sines[i];
  }
}

}  // namespace

void rotary(const AttentionShape& shape, double base, bool inverse, float* projected) {
  const std::int64_t half = shape.head_width / 2;
  const auto pairs = static_cast<std::size_t>(half);
  std::vector<double> frequencies(pairs);
  for (std::size_t i = 0; i < pairs; ++i)
    frequencies[i] = std::pow(base, -static_cast<double>(i) / static_cast<double>(half));
  std::vector<float> cosines(pairs);
  std::vector<float> sines(pairs);
  for (std::int64_t position = 0; position < shape.sequence_length; ++position) {
    for (std::size_t i = 0; i < pairs; ++i) {
      // In double precision: the angles of late positions are thousands of radians.
      const double angle = static_cast<double>(position) * frequencies[i];
      cosines[i] = static_cast<float>(std::cos(angle));
      sines[i] = static_cast<float>(inverse ? -std::sin(angle) : std::sin(angle));
    }
    for (std::int64_t sequence = 0; sequence < shape.sequences; ++sequence) {
      float* row = projected + (sequence * shape.sequence_length + position) * shape.projected_width();
      for (std::int64_t head = 0; head < shape.heads + shape.key_value_heads; ++head)  // keys follow the queries
        turn(row + head * shape.head_width, cosines.data(), sines.data(), half);
    }
  }
}

std::int64_t attention_workspace(const AttentionShape& shape, bool backward) {
  const std::int64_t keys =
      shape.window == 0 ? shape.sequence_length : std::min(shape.sequence_length, shape.window + block_rows);
  return std::min(block_rows, shape.sequence_length) * keys * (backward ? 2 : 1);
}

void attention_forward(const AttentionShape& shape, const Range& groups, const float* projected, float* output,
                       float* log_sum, float* workspace) {
  const std::int64_t width = shape.width();
  const std::int64_t stride = shape.projected_width();
  for (std::int64_t group = groups.first; group < groups.last; ++group) {
    const std::int64_t sequence = group / shape.key_value_heads;
    const Range heads = query_heads(shape, group);
    for (std::int64_t head = heads.first; head < heads.last; ++head) {
      const Slices slice = slices(shape, sequence, head);
      const float* query = projected + slice.query;
      const float* key = projected + slice.key;
      const float* value = projected + slice.value;
      for (std::int64_t first = 0; first < shape.sequence_length; first += block_rows) {
        const QueryBlock block = query_block(shape, first);
        const std::int64_t keys = block.keys();
        multiply(false, true, block.rows(), keys, shape.head_width, shape.score_scale, query + first * stride, stride,
                 key + block.first_key * stride, stride, 0.0f, workspace, keys);
        for (std::int64_t row = 0; row < block.rows(); ++row) {
          const std::int64_t token = sequence * shape.sequence_length + first + row;
          log_sum[token * shape.heads + head] =
              softmax_row(workspace + row * keys, block.begin(row, shape.window), block.end(row), keys);
        }
        multiply(false, false, block.rows(), shape.head_width, keys, 1.0f, workspace, keys,
                 value + block.first_key * stride, stride, 0.0f, output + slice.output + first * width, width);
      }
    }
  }
}

void attention_backward(const AttentionShape& shape, const Range& groups, const float* projected, const float* output,
                        const float* log_sum, const float* output_gradient, float* projected_gradient,
                        float* workspace) {
  const std::int64_t width = shape.width();
  const std::int64_t stride = shape.projected_width();
  for (std::int64_t group = groups.first; group < groups.last; ++group) {
    const std::int64_t sequence = group / shape.key_value_heads;
    const Range heads = query_heads(shape, group);
    // Gradients of keys and values are sums over query blocks, and over the heads that share them.
    const Slices first_slice = slices(shape, sequence, heads.first);
    for (std::int64_t token = 0; token < shape.sequence_length; ++token)
      for (const std::int64_t column : {first_slice.key, first_slice.value})
        std::fill_n(projected_gradient + column + token * stride, shape.head_width, 0.0f);
    for (std::int64_t head = heads.first; head < heads.last; ++head) {
      const Slices slice = slices(shape, sequence, head);
      const float* query = projected + slice.query;
      const float* key = projected + slice.key;
      const float* value = projected + slice.value;
      float* query_gradient = projected_gradient + slice.query;
      float* key_gradient = projected_gradient + slice.key;
      float* value_gradient = projected_gradient + slice.value;
      for (std::int64_t first = 0; first < shape.sequence_length; first += block_rows) {
        const QueryBlock block = query_block(shape, first);
        const std::int64_t rows = block.rows();
        const std::int64_t keys = block.keys();
        const std::int64_t key_offset = block.first_key * stride;
        float* scores = workspace;                  // then probabilities
        float* gradient = workspace + rows * keys;  // of the probabilities, then of the scores
        const float* block_query = query + first * stride;
        const float* block_output = output + slice.output + first * width;
        const float* block_output_gradient = output_gradient + slice.output + first * width;
        multiply(false, true, rows, keys, shape.head_width, shape.score_scale, block_query, stride, key + key_offset,
                 stride, 0.0f, scores, keys);
        multiply(false, true, rows, keys, shape.head_width, 1.0f, block_output_gradient, width, value + key_offset,
                 stride, 0.0f, gradient, keys);
        for (std::int64_t row = 0; row < rows; ++row) {
          const std::int64_t token = sequence * shape.sequence_length + first + row;
          const float product = dot(block_output + row * width, block_output_gradient + row * width, shape.head_width);
          softmax_row_backward(scores + row * keys, gradient + row * keys, log_sum[token * shape.heads + head], product,
                               shape.score_scale, block.begin(row, shape.window), block.end(row), keys);
        }
        multiply(true, false, keys, shape.head_width, rows, 1.0f, scores, keys, block_output_gradient, width, 1.0f,
                 value_gradient + key_offset, stride);
        multiply(false, false, rows, shape.head_width, keys, 1.0f, gradient, keys, key + key_offset, stride, 0.0f,
                 query_gradient + first * stride, stride);
        multiply(true, false, keys, shape.head_width, rows, 1.0f, gradient, keys, block_query, stride, 1.0f,
                 key_gradient + key_offset, stride);
      }
    }
  }
}

}  // namespace sailor::runtime::cpu
