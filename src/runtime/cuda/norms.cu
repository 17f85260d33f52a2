// Layer norm and RMSNorm. A block holds a row in its threads' registers: `parts` packs of N values each. Backward
// passes loop over rows, so that a block's sums for the weights' gradients stay in registers, too, until its last row;
// these partial sums are added in a fixed order (column_sums.cuh). All that a row needs is loaded at once, and kept as
// it is in memory; if registers cannot hold all that, the backward pass reads the row twice. Where the next row fits
// into shared memory, it is copied there meanwhile: each thread its own packs, so that this needs no barrier. Both
// passes are limited by how many instructions a value takes as much as by memory: what the arithmetic looks like was
// measured.
#include <cuda_pipeline_primitives.h>

#include <algorithm>

#include "runtime/cuda/column_sums.cuh"

namespace sailor::runtime::cuda {

namespace {

enum class Kind { layer, rms };

constexpr int most_threads = 512;
constexpr int most_warps = most_threads / warp_size;
constexpr int most_parts = 8;
constexpr int most_values = 32;       // of a row, per thread
constexpr int most_kept_values = 16;  // the same, beside the sums of a backward pass
// Rows of at most so many packs are copied ahead: shared memory suffices for them on every architecture. A thread takes
// one pack of rows that a single warp holds, else two, which is faster.
constexpr int most_packs_ahead = 512;
constexpr int most_packs_in_one_part = 32;

/// Packs of the row that thread threadIdx.x holds: threadIdx.x, threadIdx.x + blockDim.x, ...
template <int N>
__device__ __forceinline__ std::int64_t column_of(int part) {
  return (std::int64_t{part} * blockDim.x + threadIdx.x) * N;
}

/// block_sums(), but every thread adds the sums of the warps, at most 16, by itself: for a row per block and a few
/// warps that is faster than five more shuffles. `scratch`: (count, 16) values.
template <int count>
__device__ __forceinline__ void row_sums(float (&values)[count], float* scratch) {
#pragma unroll
  for (int i = 0; i < count; ++i) values[i] = warp_sum(values[i]);
  if (lane_index() == 0)
#pragma unroll
    for (int i = 0; i < count; ++i) scratch[i * most_warps + warp_index()] = values[i];
  __syncthreads();
  const int warps = warp_count();
#pragma unroll
  for (int i = 0; i < count; ++i) {
    float sum = 0.0f;
#pragma unroll
    for (int first = 0; first < most_warps; first += 4) {
      if (first >= warps) break;
      float four[4];
      load(scratch + i * most_warps + first, four);
#pragma unroll
      for (int k = 0; k < 4; ++k)
        if (first + k < warps) sum += four[k];
    }
    values[i] = sum;
  }
}

template <class T, int N, int parts, Kind kind>
__global__ void __launch_bounds__(parts <= 2 ? most_threads / 2 : most_threads)
    norm_forward(const T* input, const T* weight, const T* bias, T* output, float* mean, float* reciprocal,
                 std::int64_t width, float epsilon) {
  float* const scratch = reinterpret_cast<float*>(shared_bytes);  // (2, 16)
  const std::int64_t row = blockIdx.x;
  float x[parts][N];
#pragma unroll
  for (int part = 0; part < parts; ++part) {
    const std::int64_t column = column_of<N>(part);
    if (column >= width) break;
    load(input + row * width + column, x[part]);
  }
  float average = 0.0f;
  if constexpr (kind == Kind::layer) {
    float sum[1] = {};
#pragma unroll
    for (int part = 0; part < parts; ++part) {
      if (column_of<N>(part) >= width) break;
#pragma unroll
      for (int k = 0; k < N; ++k) sum[0] += x[part][k];
    }
    row_sums(sum, scratch);
    average = sum[0] / static_cast<float>(width);
  }
  float squares[1] = {};  // about the mean: in one pass the difference of squares would cancel
#pragma unroll
  for (int part = 0; part < parts; ++part) {
    if (column_of<N>(part) >= width) break;
#pragma unroll
    for (int k = 0; k < N; ++k) squares[0] += (x[part][k] - average) * (x[part][k] - average);
  }
  row_sums(squares, scratch + most_warps);
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

/// How a backward pass gets the packs of a row.
enum class Rows {
  ahead,  ///< copied into shared memory while the row before is computed
  kept,   ///< loaded at once, and kept in registers
  twice,  ///< loaded where they are needed, twice
};
constexpr std::size_t sums_bytes = 4 * most_warps * sizeof(float);  // (2, 2, 16)

// With n = (x - mean) r, y = n w + b and g = dy w:  dx = r (g - average(g) - n average(g n)); RMSNorm has neither mean
// nor average(g).
template <class T, int N, int parts, Kind kind, Rows order>
__global__ void __launch_bounds__(order != Rows::ahead ? most_threads
                                  : parts == 1         ? most_packs_in_one_part
                                                       : most_packs_ahead / 2,
                                  parts == 1 || order == Rows::ahead ? 2 : 1)
    norm_backward(const T* input, const float* mean, const float* reciprocal, const T* weight, T* gradient, T* sum,
                  float* weight_slices, float* bias_slices, std::int64_t rows, std::int64_t width) {
  constexpr bool kept = order != Rows::twice;
  constexpr int kept_parts = kept ? parts : 1;
  constexpr int sum_count = kind == Kind::layer ? 2 : 1;
  float* const scratch = reinterpret_cast<float*>(shared_bytes);
  float weight_sums[parts][N] = {};
  float bias_sums[kind == Kind::layer ? parts : 1][N] = {};
  int turn = 0;  // rows alternate between two scratches, so that one barrier per row is enough, and two places ahead
  // Places of this thread's packs of `input`, `gradient` and `sum`: (2, 3, parts, threads).
  const auto place = [&](int which, int tensor, int part) {
    return reinterpret_cast<Pack<T, N>*>(shared_bytes + sums_bytes) +
           ((which * 3 + tensor) * parts + part) * blockDim.x + threadIdx.x;
  };
  const auto copy_ahead = [&](std::int64_t row, int which) {
    if (row < rows) {
#pragma unroll
      for (int part = 0; part < parts; ++part) {
        const std::int64_t column = column_of<N>(part);
        if (column >= width) break;
        const std::int64_t at = row * width + column;
        __pipeline_memcpy_async(place(which, 0, part), input + at, sizeof(Pack<T, N>));
        __pipeline_memcpy_async(place(which, 1, part), gradient + at, sizeof(Pack<T, N>));
        if (sum != nullptr) __pipeline_memcpy_async(place(which, 2, part), sum + at, sizeof(Pack<T, N>));
      }
    }
    __pipeline_commit();
  };
  // Layer norm's sums of two packs leave no registers for the weights.
  constexpr bool keeps_weights = order == Rows::ahead && (parts == 1 || kind == Kind::rms);
  Pack<T, N> weights[keeps_weights ? parts : 1];
  if constexpr (keeps_weights)
#pragma unroll
    for (int part = 0; part < parts; ++part)
      if (column_of<N>(part) < width) weights[part] = *reinterpret_cast<const Pack<T, N>*>(weight + column_of<N>(part));
  if constexpr (order == Rows::ahead) copy_ahead(blockIdx.x, 0);
  const auto load_weights = [&](int part, float(&w)[N]) {
    if constexpr (keeps_weights) {
#pragma unroll
      for (int k = 0; k < N; ++k) w[k] = to_float(weights[part].values[k]);
    } else {
      load(weight + column_of<N>(part), w);
    }
  };
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x, turn = 1 - turn) {
    const float factor = reciprocal[row];
    const float shift = kind == Kind::layer ? -mean[row] * factor : 0.0f;
    Pack<T, N> x[kept_parts], gradients[kept_parts], residual[kept_parts];
    const auto fetch = [&](int part, std::int64_t column) {
      const int i = kept ? part : 0;
      const std::int64_t at = row * width + column;
      if constexpr (order == Rows::ahead) {
        x[i] = *place(turn, 0, part);
        gradients[i] = *place(turn, 1, part);
      } else {
        x[i] = *reinterpret_cast<const Pack<T, N>*>(input + at);
        gradients[i] = *reinterpret_cast<const Pack<T, N>*>(gradient + at);
        if (sum != nullptr) residual[i] = *reinterpret_cast<const Pack<T, N>*>(sum + at);
      }
    };
    const auto normalised = [&](int i, int k) {
      const float value = to_float(x[i].values[k]);
      return kind == Kind::layer ? value * factor + shift : value * factor;
    };
    if constexpr (order == Rows::ahead) {
      copy_ahead(row + gridDim.x, 1 - turn);
      __pipeline_wait_prior(1);
    }
    if constexpr (kept) {
#pragma unroll
      for (int part = 0; part < parts; ++part) {
        const std::int64_t column = column_of<N>(part);
        if (column >= width) break;
        fetch(part, column);
      }
    }
    float sums[sum_count] = {};  // of g n, and of g
    float w[N];
#pragma unroll
    for (int part = 0; part < parts; ++part) {
      const std::int64_t column = column_of<N>(part);
      if (column >= width) break;
      if constexpr (!kept) fetch(part, column);
      const int i = kept ? part : 0;
      load_weights(part, w);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const float dy = to_float(gradients[i].values[k]);
        const float product = dy * normalised(i, k);
        weight_sums[part][k] += product;
        sums[0] += product * w[k];
        if constexpr (kind == Kind::layer) {
          bias_sums[part][k] += dy;
          sums[1] += dy * w[k];
        }
      }
    }
    row_sums(sums, scratch + turn * 2 * most_warps);
    const float product_share = factor * sums[0] / static_cast<float>(width);
    const float gradient_share = kind == Kind::layer ? factor * sums[sum_count - 1] / static_cast<float>(width) : 0.0f;
    // n = factor x + shift: two constants of the row instead of n for each value.
    const float input_share = factor * product_share;
    const float constant_share = kind == Kind::layer ? gradient_share + shift * product_share : 0.0f;
#pragma unroll
    for (int part = 0; part < parts; ++part) {
      const std::int64_t column = column_of<N>(part);
      if (column >= width) break;
      if constexpr (!kept) fetch(part, column);
      const int i = kept ? part : 0;
      if constexpr (order == Rows::ahead)
        if (sum != nullptr) residual[i] = *place(turn, 2, part);
      load_weights(part, w);
      float d[N];
#pragma unroll
      for (int k = 0; k < N; ++k) {
        d[k] = sum != nullptr ? to_float(residual[i].values[k]) : 0.0f;
        if constexpr (kind == Kind::layer) d[k] -= constant_share;
        d[k] -= to_float(x[i].values[k]) * input_share;
        d[k] += to_float(gradients[i].values[k]) * w[k] * factor;
      }
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

unsigned threads_of(std::int64_t packs, int parts) {
  return static_cast<unsigned>(rounds_up(rounds_up(packs, parts), warp_size) * warp_size);
}

/// Calls `call` with the number of packs per thread, and the number of threads: with one pack where a row has at most
/// `narrow` of them, with two up to twice `two_at_most`.
template <int N, class Call>
void with_parts(std::int64_t width, std::int64_t narrow, std::int64_t two_at_most, const Call& call) {
  const std::int64_t packs = width / N;
  const auto threads = [&](int parts) { return threads_of(packs, parts); };
  if (packs <= narrow) return call.template operator()<1>(threads(1));
  if (packs <= 2 * two_at_most) return call.template operator()<2>(threads(2));
  if (packs <= std::int64_t{4} * most_threads) return call.template operator()<4>(threads(4));
  if constexpr (most_parts * N <= most_values)
    if (packs <= std::int64_t{most_parts} * most_threads)
      return call.template operator()<most_parts>(threads(most_parts));
  throw std::runtime_error("CUDA: norms of rows of " + std::to_string(width) + " values (at most " +
                           std::to_string(std::min(most_parts * N, most_values) * most_threads) +
                           " of this type and alignment)");
}

/// Number of blocks of a backward pass, and of the rows of partial sums. Narrow rows need more blocks to have as many
/// loads under way: of 16-bit values, two packs a thread, about 512 threads of a multiprocessor have enough.
unsigned backward_blocks(const Queue& queue, const NormShape& shape) {
  const std::int64_t threads = std::clamp<std::int64_t>(shape.width / 16, 1, most_threads);
  return looping_grid(queue, shape.rows, static_cast<int>(std::clamp<std::int64_t>(512 / threads, 2, 6)));
}

template <Kind kind>
void forward(const Queue& queue, const NormShape& shape, ConstValues input, ConstValues weight, ConstValues bias,
             Values output, float* mean, float* reciprocal) {
  with_type(output.type, [&]<class T>(T) {
    with_packs<T>(shape.width, {input.data, weight.data, bias.data, output.data}, [&]<int N>(Packed<N>) {
      with_parts<N>(shape.width, warp_size, most_threads / 2, [&]<int parts>(unsigned threads) {
        launch(queue,
               {.grid = static_cast<unsigned>(shape.rows), .block = threads, .shared = 2 * most_warps * sizeof(float)},
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
    const auto with = [&]<int N, int parts, Rows order>(unsigned threads) {
      constexpr bool ahead = order == Rows::ahead;
      launch(queue,
             {.grid = blocks,
              .block = threads,
              .shared = sums_bytes + (ahead ? std::size_t{2} * 3 * parts * threads * sizeof(Pack<T, N>) : 0)},
             norm_backward<T, N, parts, kind, order>, pointer<T>(input), mean, reciprocal, pointer<T>(weight),
             pointer<T>(gradient), pointer<T>(sum), workspace, bias_slices, shape.rows, shape.width);
    };
    with_packs<T>(shape.width, {input.data, weight.data, gradient.data, sum.data, workspace, bias_slices},
                  [&]<int N>(Packed<N>) {
                    const std::int64_t packs = shape.width / N;
                    if constexpr (N > 1)
                      if (packs <= most_packs_ahead) {
                        if (packs <= most_packs_in_one_part)
                          return with.template operator()<N, 1, Rows::ahead>(threads_of(packs, 1));
                        return with.template operator()<N, 2, Rows::ahead>(threads_of(packs, 2));
                      }
                    with_parts<N>(shape.width, most_threads, most_threads, [&]<int parts>(unsigned threads) {
                      constexpr Rows order = parts * N <= most_kept_values ? Rows::kept : Rows::twice;
                      with.template operator()<N, parts, order>(threads);
                    });
                  });
  });
  add_slices(queue, {weight_gradient, bias_gradient}, workspace, blocks, shape.width);
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
