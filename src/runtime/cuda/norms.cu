// Layer norm and RMSNorm. A block holds a row in its threads' registers: `parts` packs of N values each. Backward
// passes loop over rows, so that a block's sums for the weights' gradients stay in registers, too, until its last row;
// these partial sums are added in a fixed order (column_sums.cuh). If registers cannot hold both, the backward pass
// reads the row twice.
#include <algorithm>

#include "runtime/cuda/column_sums.cuh"

namespace sailor::runtime::cuda {

namespace {

enum class Kind { layer, rms };

constexpr int most_threads = 512;
constexpr int most_parts = 8;
constexpr int most_values = 32;       // of a row, per thread
constexpr int most_kept_values = 16;  // the same, beside the sums of a backward pass

/// Packs of the row that thread threadIdx.x holds: threadIdx.x, threadIdx.x + blockDim.x, ...
template <int N>
__device__ __forceinline__ std::int64_t column_of(int part) {
  return (std::int64_t{part} * blockDim.x + threadIdx.x) * N;
}

template <class T, int N, int parts, Kind kind>
__global__ void __launch_bounds__(most_threads)
    norm_forward(const T* input, const T* weight, const T* bias, T* output, float* mean, float* reciprocal,
                 std::int64_t width, float epsilon) {
  float* const scratch = reinterpret_cast<float*>(shared_bytes);  // (2, 32)
  const std::int64_t row = blockIdx.x;
  float x[parts][N];
  float average = 0.0f;
  if constexpr (kind == Kind::layer) {
    float sum[1] = {};
#pragma unroll
    for (int part = 0; part < parts; ++part) {
      const std::int64_t column = column_of<N>(part);
      if (column >= width) break;
      load(input + row * width + column, x[part]);
#pragma unroll
      for (int k = 0; k < N; ++k) sum[0] += x[part][k];
    }
    block_sums(sum, scratch);
    average = sum[0] / static_cast<float>(width);
  }
  float squares[1] = {};  // about the mean: in one pass the difference of squares would cancel
#pragma unroll
  for (int part = 0; part < parts; ++part) {
    const std::int64_t column = column_of<N>(part);
    if (column >= width) break;
    if constexpr (kind == Kind::rms) load(input + row * width + column, x[part]);
#pragma unroll
    for (int k = 0; k < N; ++k) squares[0] += (x[part][k] - average) * (x[part][k] - average);
  }
  block_sums(squares, scratch + warp_size);
  const float factor = rsqrtf(squares[0] / static_cast<float>(width) + epsilon);
#pragma unroll
  for (int part = 0; part < parts; ++part) {
    const std::int64_t column = column_of<N>(part);
    if (column >= width) break;
    float w[N];
    load(weight + column, w);
    if constexpr (kind == Kind::layer) {
      float b[N];
      load(bias + column, b);
#pragma unroll
      for (int k = 0; k < N; ++k) x[part][k] = (x[part][k] - average) * factor * w[k] + b[k];
    } else {
#pragma unroll
      for (int k = 0; k < N; ++k) x[part][k] = x[part][k] * factor * w[k];
    }
    store(x[part], output + row * width + column);
  }
  if (threadIdx.x == 0) {
    if constexpr (kind == Kind::layer) mean[row] = average;
    reciprocal[row] = factor;
  }
}

// With n = (x - mean) r, y = n w + b and g = dy w:  dx = r (g - average(g) - n average(g n)); RMSNorm has neither mean
// nor average(g).
template <class T, int N, int parts, Kind kind>
__global__ void __launch_bounds__(most_threads)
    norm_backward(const T* input, const float* mean, const float* reciprocal, const T* weight, T* gradient, T* sum,
                  float* weight_slices, float* bias_slices, std::int64_t rows, std::int64_t width) {
  float* const scratch = reinterpret_cast<float*>(shared_bytes);  // (2, 2, 32)
  float weight_sums[parts][N] = {};
  float bias_sums[kind == Kind::layer ? parts : 1][N] = {};
  int turn = 0;  // rows alternate between two scratches, so that one barrier per row is enough
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x, turn = 1 - turn) {
    const float average = kind == Kind::layer ? mean[row] : 0.0f;
    const float factor = reciprocal[row];
    constexpr bool kept = parts * N <= most_kept_values;
    float x[kept ? parts : 1][N];  // normalised
    float g[kept ? parts : 1][N];
    float sums[2] = {};  // of g, and of g times x
    const auto load_normalised = [&](std::int64_t column, float(&n)[N], float(&weighted)[N], auto&& each) {
      float w[N];
      load(weight + column, w);
      load(input + row * width + column, n);
      load(gradient + row * width + column, weighted);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        n[k] = (n[k] - average) * factor;
        each(k, weighted[k]);
        weighted[k] *= w[k];
      }
    };
#pragma unroll
    for (int part = 0; part < parts; ++part) {
      const std::int64_t column = column_of<N>(part);
      if (column >= width) break;
      const int i = kept ? part : 0;
      load_normalised(column, x[i], g[i], [&](int k, float gradient_of_output) {
        weight_sums[part][k] += gradient_of_output * x[i][k];
        if constexpr (kind == Kind::layer) bias_sums[part][k] += gradient_of_output;
      });
#pragma unroll
      for (int k = 0; k < N; ++k) {
        sums[0] += g[i][k];
        sums[1] += g[i][k] * x[i][k];
      }
    }
    block_sums(sums, scratch + turn * 2 * warp_size);
    const float average_gradient = kind == Kind::layer ? sums[0] / static_cast<float>(width) : 0.0f;
    const float average_product = sums[1] / static_cast<float>(width);
#pragma unroll
    for (int part = 0; part < parts; ++part) {
      const std::int64_t column = column_of<N>(part);
      if (column >= width) break;
      const int i = kept ? part : 0;
      if constexpr (!kept) load_normalised(column, x[i], g[i], [](int, float) {});
      float d[N] = {};
      if (sum != nullptr) load(sum + row * width + column, d);
#pragma unroll
      for (int k = 0; k < N; ++k) d[k] += factor * (g[i][k] - average_gradient - x[i][k] * average_product);
      store(d, (sum != nullptr ? sum : gradient) + row * width + column);
    }
  }
#pragma unroll
  for (int part = 0; part < parts; ++part) {
    const std::int64_t column = column_of<N>(part);
    if (column >= width) break;
    store(weight_sums[part], weight_slices + blockIdx.x * width + column);
    if constexpr (kind == Kind::layer) store(bias_sums[part], bias_slices + blockIdx.x * width + column);
  }
}

/// Calls `call` with the number of packs per thread, and the number of threads.
template <int N, class Call>
void with_parts(std::int64_t width, int wanted_threads, const Call& call) {
  const std::int64_t packs = width / N;
  const auto threads = [&](int parts) { return static_cast<unsigned>(rounds_up(rounds_up(packs, parts), 32) * 32); };
  if (packs <= wanted_threads) return call.template operator()<1>(threads(1));
  if (packs <= std::int64_t{2} * wanted_threads) return call.template operator()<2>(threads(2));
  if (packs <= std::int64_t{4} * most_threads) return call.template operator()<4>(threads(4));
  if constexpr (most_parts * N <= most_values)
    if (packs <= std::int64_t{most_parts} * most_threads)
      return call.template operator()<most_parts>(threads(most_parts));
  throw std::runtime_error("CUDA: norms of rows of " + std::to_string(width) + " values (at most " +
                           std::to_string(std::min(most_parts * N, most_values) * most_threads) +
                           " of this type and alignment)");
}

/// Number of blocks of a backward pass, and of the rows of partial sums. Narrow rows need more blocks to have as many
/// loads under way: about 1,024 threads of a multiprocessor, whose registers suffice for that.
unsigned backward_blocks(const Queue& queue, const NormShape& shape) {
  const std::int64_t threads = std::clamp<std::int64_t>(shape.width / 8, 1, most_threads);
  return looping_grid(queue, shape.rows, static_cast<int>(std::clamp<std::int64_t>(1024 / threads, 2, 8)));
}

template <Kind kind>
void forward(const Queue& queue, const NormShape& shape, ConstValues input, ConstValues weight, ConstValues bias,
             Values output, float* mean, float* reciprocal) {
  with_type(output.type, [&]<class T>(T) {
    with_packs<T>(shape.width, {input.data, weight.data, bias.data, output.data}, [&]<int N>(Packed<N>) {
      with_parts<N>(shape.width, 256, [&]<int parts>(unsigned threads) {
        launch(queue,
               {.grid = static_cast<unsigned>(shape.rows), .block = threads, .shared = 2 * warp_size * sizeof(float)},
               norm_forward<T, N, parts, kind>, pointer<T>(input), pointer<T>(weight), pointer<T>(bias),
               pointer<T>(output), mean, reciprocal, shape.width, shape.epsilon);
      });
    });
  });
}

template <Kind kind>
void backward(const Queue& queue, const NormShape& shape, ConstValues input, const float* mean, const float* reciprocal,
              ConstValues weight, Values gradient, Values sum, float* weight_gradient, float* bias_gradient,
              float* workspace) {
  const unsigned blocks = backward_blocks(queue, shape);
  float* const bias_slices = workspace + blocks * shape.width;
  with_type(gradient.type, [&]<class T>(T) {
    with_packs<T>(shape.width, {input.data, weight.data, gradient.data, sum.data, workspace, bias_slices},
                  [&]<int N>(Packed<N>) {
                    with_parts<N>(shape.width, 512, [&]<int parts>(unsigned threads) {
                      launch(queue, {.grid = blocks, .block = threads, .shared = 4 * warp_size * sizeof(float)},
                             norm_backward<T, N, parts, kind>, pointer<T>(input), mean, reciprocal, pointer<T>(weight),
                             pointer<T>(gradient), pointer<T>(sum), workspace, bias_slices, shape.rows, shape.width);
                    });
                  });
  });
  add_slices(queue, weight_gradient, workspace, blocks, shape.width);
  if (kind == Kind::layer) add_slices(queue, bias_gradient, bias_slices, blocks, shape.width);
}

}  // namespace

void layer_norm_forward(const Queue& queue, const NormShape& shape, ConstValues input, ConstValues weight,
                        ConstValues bias, Values output, float* mean, float* reciprocal_deviation) {
  forward<Kind::layer>(queue, shape, input, weight, bias, output, mean, reciprocal_deviation);
}
void rms_norm_forward(const Queue& queue, const NormShape& shape, ConstValues input, ConstValues weight, Values output,
                      float* reciprocal_rms) {
  forward<Kind::rms>(queue, shape, input, weight, {nullptr, weight.type}, output, nullptr, reciprocal_rms);
}

std::int64_t norm_workspace(const Queue& queue, const NormShape& shape) {
  return std::int64_t{2} * backward_blocks(queue, shape) * shape.width;
}

void layer_norm_backward(const Queue& queue, const NormShape& shape, ConstValues input, const float* mean,
                         const float* reciprocal_deviation, ConstValues weight, Values gradient, Values sum,
                         float* weight_gradient, float* bias_gradient, float* workspace) {
  backward<Kind::layer>(queue, shape, input, mean, reciprocal_deviation, weight, gradient, sum, weight_gradient,
                        bias_gradient, workspace);
}
void rms_norm_backward(const Queue& queue, const NormShape& shape, ConstValues input, const float* reciprocal_rms,
                       ConstValues weight, Values gradient, Values sum, float* weight_gradient, float* workspace) {
  backward<Kind::rms>(queue, shape, input, nullptr, reciprocal_rms, weight, gradient, sum, weight_gradient, nullptr,
                      workspace);
}

}  // namespace sailor::runtime::cuda
