// Rotary positions, and causal attention in tiles, so that the matrix of scores never exists; the backward pass
// recomputes the scores (Dao et al. 2022). Float32 arithmetic without tensor cores.
//
// A block has 32 rows and works through tiles of 32 others; four adjacent lanes share a row. In the forward pass and
// for the gradients of queries, rows are queries and the others keys; for the gradients of keys and values it is the
// reverse.
#include "runtime/cuda/device_code.cuh"

namespace sailor::runtime::cuda {

namespace {

constexpr int tile = 32;
constexpr int lanes_per_row = 4;
constexpr int attention_threads = tile * lanes_per_row;
constexpr int columns_each = tile / lanes_per_row;  // columns of a row of scores per thread
constexpr int score_stride = tile + 1;

__global__ void __launch_bounds__(256)
    fill_rotary_table(std::int64_t count, std::int64_t half, double base, float* cosines, float* sines) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const std::int64_t position = i / half;
    // In double precision: the angles of late positions are thousands of radians.
    const double angle =
        static_cast<double>(position) * pow(base, -static_cast<double>(i % half) / static_cast<double>(half));
    cosines[i] = static_cast<float>(cos(angle));
    sines[i] = static_cast<float>(sin(angle));
  }
}

// Rotates pairs (i, i + half) of N adjacent i at once.
template <class T, int N>
__global__ void __launch_bounds__(256)
    turn(std::int64_t packs, AttentionShape shape, const float* cosines, const float* sines, float sign, T* projected) {
  const std::int64_t half = shape.head_width / 2;
  const std::int64_t packs_per_token = (shape.heads + shape.key_value_heads) * half / N;  // keys follow the queries
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < packs; i += step) {
    const std::int64_t token = i / packs_per_token;
    const std::int64_t pair = i % packs_per_token * N;
    const std::int64_t column = pair / half * shape.head_width + pair % half;
    T* const values = projected + token * shape.projected_width() + column;
    const std::int64_t angle = token % shape.sequence_length * half + pair % half;
    float x[N];
    float y[N];
    load(values, x);
    load(values + half, y);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float cosine = cosines[angle + k];
      const float sine = sign * sines[angle + k];
      const float turned = x[k] * cosine - y[k] * sine;
      y[k] = y[k] * cosine + x[k] * sine;
      x[k] = turned;
    }
    store(x, values);
    store(y, values + half);
  }
}

/// Whether a query sees a key, by their positions in the sequence.
__device__ __forceinline__ bool sees(const AttentionShape& shape, std::int64_t query, std::int64_t key) {
  return key <= query && query < shape.sequence_length && (shape.window == 0 || key > query - shape.window);
}

/// Loads rows [first, first + 32) of a matrix, `stride` apart, into shared memory (32, width + 1) as floats; rows from
/// `rows` on are zeros.
template <class T>
__device__ __forceinline__ void load_tile(const T* from, std::int64_t stride, std::int64_t first, std::int64_t rows,
                                          int width, float* to) {
  for (int i = static_cast<int>(threadIdx.x); i < tile * width; i += attention_threads) {
    const int row = i / width;
    const int column = i % width;
    to[row * (width + 1) + column] = first + row < rows ? to_float(from[(first + row) * stride + column]) : 0.0f;
  }
}

/// Sum over the four lanes that share a row.
__device__ __forceinline__ float row_sum(float value) {
  value += __shfl_xor_sync(all_lanes, value, 1);
  return value + __shfl_xor_sync(all_lanes, value, 2);
}
__device__ __forceinline__ float row_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(all_lanes, value, 1));
  return fmaxf(value, __shfl_xor_sync(all_lanes, value, 2));
}

/// products[i] = row `row` of a · row (column + 4 i) of b, both (32, width + 1) in shared memory.
__device__ __forceinline__ void multiply_rows(const float* a, const float* b, int row, int column, int width,
                                              float (&products)[columns_each]) {
#pragma unroll
  for (int i = 0; i < columns_each; ++i) products[i] = 0.0f;
  for (int k = 0; k < width; ++k) {
    const float value = a[row * (width + 1) + k];
#pragma unroll
    for (int i = 0; i < columns_each; ++i) products[i] += value * b[(column + lanes_per_row * i) * (width + 1) + k];
  }
}

/// sums[i] += row `row` of scores (32, 33) · column (column + 4 i) of b (32, width + 1), for columns that b has.
/// `unrolled` is the number of terms unrolled; with other numbers some architectures spill registers.
template <int unrolled, int columns>
__device__ __forceinline__ void add_products(const float* scores, const float* b, int row, int column, int width,
                                             float (&sums)[columns]) {
#pragma unroll unrolled
  for (int k = 0; k < tile; ++k) {
    const float value = scores[row * score_stride + k];
#pragma unroll
    for (int i = 0; i < columns; ++i)
      if (column + lanes_per_row * i < width) sums[i] += value * b[k * (width + 1) + column + lanes_per_row * i];
  }
}

/// Offsets of the parts of a query head of one sequence, in rows of projected_width() and, in the output, width().
struct Slices {
  std::int64_t query;
  std::int64_t key;
  std::int64_t value;
  std::int64_t output;
};
__device__ __forceinline__ Slices slices_of(const AttentionShape& shape, std::int64_t sequence, std::int64_t head) {
  const std::int64_t token = sequence * shape.sequence_length;
  const std::int64_t row = token * shape.projected_width();
  const std::int64_t shared = head / (shape.heads / shape.key_value_heads) * shape.head_width;
  return {row + head * shape.head_width, row + shape.width() + shared,
          row + shape.width() + shape.key_value_width() + shared, token * shape.width() + head * shape.head_width};
}

/// First position of the tiles of keys that queries from `first_query` on may see.
__device__ __forceinline__ std::int64_t first_key_tile(const AttentionShape& shape, std::int64_t first_query) {
  if (shape.window == 0 || first_query < shape.window) return 0;
  return (first_query - shape.window + 1) / tile * tile;
}

// One block per (tile of queries, head, sequence).
template <class T, int columns>
__global__ void __launch_bounds__(attention_threads)
    forward(AttentionShape shape, const T* projected, T* output, float* log_sum) {
  const int width = static_cast<int>(shape.head_width);
  float* const queries = reinterpret_cast<float*>(shared_bytes);
  float* const keys = queries + tile * (width + 1);
  float* const values = keys + tile * (width + 1);
  float* const scores = values + tile * (width + 1);  // (32, 33)
  const Slices slices = slices_of(shape, blockIdx.z, blockIdx.y);
  const std::int64_t stride = shape.projected_width();
  const std::int64_t length = shape.sequence_length;
  const std::int64_t first = std::int64_t{blockIdx.x} * tile;
  const int row = static_cast<int>(threadIdx.x) / lanes_per_row;
  const int column = static_cast<int>(threadIdx.x) % lanes_per_row;
  load_tile(projected + slices.query, stride, first, length, width, queries);
  float largest = -INFINITY;
  float sum = 0.0f;
  float outputs[columns] = {};
  for (std::int64_t key = first_key_tile(shape, first); key < first + tile && key < length; key += tile) {
    __syncthreads();  // all have read the previous tile
    load_tile(projected + slices.key, stride, key, length, width, keys);
    load_tile(projected + slices.value, stride, key, length, width, values);
    __syncthreads();
    float products[columns_each];
    multiply_rows(queries, keys, row, column, width, products);
    float tile_largest = -INFINITY;
#pragma unroll
    for (int i = 0; i < columns_each; ++i) {
      const bool seen = sees(shape, first + row, key + column + lanes_per_row * i);
      products[i] = seen ? products[i] * shape.score_scale : -INFINITY;
      tile_largest = fmaxf(tile_largest, products[i]);
    }
    const float now_largest = fmaxf(largest, row_max(tile_largest));
    const float correction = now_largest == -INFINITY ? 1.0f : __expf(largest - now_largest);
    float tile_sum = 0.0f;
#pragma unroll
    for (int i = 0; i < columns_each; ++i) {
      products[i] = products[i] == -INFINITY ? 0.0f : __expf(products[i] - now_largest);
      tile_sum += products[i];
    }
    sum = sum * correction + row_sum(tile_sum);
    largest = now_largest;
#pragma unroll
    for (int i = 0; i < columns; ++i) outputs[i] *= correction;
#pragma unroll
    for (int i = 0; i < columns_each; ++i) scores[row * score_stride + column + lanes_per_row * i] = products[i];
    __syncwarp();  // a row's scores are used by one warp only
    add_products<4>(scores, values, row, column, width, outputs);
  }
  if (first + row >= length) return;
  const float reciprocal = 1.0f / sum;
  T* const line = output + slices.output + (first + row) * shape.width();
#pragma unroll
  for (int i = 0; i < columns; ++i)
    if (column + lanes_per_row * i < width) from_float(outputs[i] * reciprocal, line[column + lanes_per_row * i]);
  if (column == 0) {
    const std::int64_t token = blockIdx.z * length + first + row;
    log_sum[token * shape.heads + blockIdx.y] = largest + logf(sum);
  }
}

// products (tokens, heads) = output · output_gradient, per head: softmax's gradient needs them. One warp each.
template <class T>
__global__ void __launch_bounds__(256)
    output_products(AttentionShape shape, const T* output, const T* output_gradient, float* products) {
  const std::int64_t item = std::int64_t{blockIdx.x} * 8 + warp_index();
  if (item >= shape.tokens() * shape.heads) return;
  const std::int64_t first = item * shape.head_width;  // heads are adjacent
  float sum = 0.0f;
  for (std::int64_t i = lane_index(); i < shape.head_width; i += warp_size)
    sum += to_float(output[first + i]) * to_float(output_gradient[first + i]);
  sum = warp_sum(sum);
  if (lane_index() == 0) products[item] = sum;
}

// One block per (tile of queries, head, sequence).
template <class T, int columns>
__global__ void __launch_bounds__(attention_threads)
    query_gradients(AttentionShape shape, const T* projected, const float* log_sum, const float* output_products,
                    const T* output_gradient, T* projected_gradient) {
  const int width = static_cast<int>(shape.head_width);
  float* const queries = reinterpret_cast<float*>(shared_bytes);
  float* const gradients = queries + tile * (width + 1);
  float* const keys = gradients + tile * (width + 1);
  float* const values = keys + tile * (width + 1);
  float* const scores = values + tile * (width + 1);
  const Slices slices = slices_of(shape, blockIdx.z, blockIdx.y);
  const std::int64_t stride = shape.projected_width();
  const std::int64_t length = shape.sequence_length;
  const std::int64_t first = std::int64_t{blockIdx.x} * tile;
  const int row = static_cast<int>(threadIdx.x) / lanes_per_row;
  const int column = static_cast<int>(threadIdx.x) % lanes_per_row;
  load_tile(projected + slices.query, stride, first, length, width, queries);
  load_tile(output_gradient + slices.output, shape.width(), first, length, width, gradients);
  const bool is_token = first + row < length;
  const std::int64_t item = ((blockIdx.z * length + first + row) * shape.heads) + blockIdx.y;
  const float logarithm = is_token ? log_sum[item] : 0.0f;
  const float product = is_token ? output_products[item] : 0.0f;
  float sums[columns] = {};
  for (std::int64_t key = first_key_tile(shape, first); key < first + tile && key < length; key += tile) {
    __syncthreads();
    load_tile(projected + slices.key, stride, key, length, width, keys);
    load_tile(projected + slices.value, stride, key, length, width, values);
    __syncthreads();
    float products[columns_each];
    float slopes[columns_each];
    multiply_rows(queries, keys, row, column, width, products);
    multiply_rows(gradients, values, row, column, width, slopes);
#pragma unroll
    for (int i = 0; i < columns_each; ++i) {
      const bool seen = sees(shape, first + row, key + column + lanes_per_row * i);
      const float probability = seen ? __expf(products[i] * shape.score_scale - logarithm) : 0.0f;
      scores[row * score_stride + column + lanes_per_row * i] = probability * (slopes[i] - product) * shape.score_scale;
    }
    __syncwarp();
    add_products<1>(scores, keys, row, column, width, sums);
  }
  if (!is_token) return;
  T* const line = projected_gradient + slices.query + (first + row) * stride;
#pragma unroll
  for (int i = 0; i < columns; ++i)
    if (column + lanes_per_row * i < width) from_float(sums[i], line[column + lanes_per_row * i]);
}

// One block per (tile of keys, key-value head, sequence). Sums over the query heads that share the key-value head.
template <class T, int columns>
__global__ void __launch_bounds__(attention_threads)
    key_value_gradients(AttentionShape shape, const T* projected, const float* log_sum, const float* output_products,
                        const T* output_gradient, T* projected_gradient) {
  const int width = static_cast<int>(shape.head_width);
  float* const keys = reinterpret_cast<float*>(shared_bytes);
  float* const values = keys + tile * (width + 1);
  float* const queries = values + tile * (width + 1);
  float* const gradients = queries + tile * (width + 1);
  float* const probabilities = gradients + tile * (width + 1);  // (32, 33): a row of them for each key
  float* const scores = probabilities + tile * score_stride;
  const std::int64_t group = shape.heads / shape.key_value_heads;
  const Slices shared = slices_of(shape, blockIdx.z, blockIdx.y * group);
  const std::int64_t stride = shape.projected_width();
  const std::int64_t length = shape.sequence_length;
  const std::int64_t first = std::int64_t{blockIdx.x} * tile;
  const int row = static_cast<int>(threadIdx.x) / lanes_per_row;
  const int column = static_cast<int>(threadIdx.x) % lanes_per_row;
  load_tile(projected + shared.key, stride, first, length, width, keys);
  load_tile(projected + shared.value, stride, first, length, width, values);
  // End of the queries that see any of these keys.
  std::int64_t end = length;
  if (shape.window != 0 && first + tile - 1 + shape.window < length) end = first + tile - 1 + shape.window;
  float key_sums[columns] = {};
  float value_sums[columns] = {};
  for (std::int64_t head = blockIdx.y * group; head < (blockIdx.y + 1) * group; ++head) {
    const Slices slices = slices_of(shape, blockIdx.z, head);
    for (std::int64_t query = first; query < end; query += tile) {
      __syncthreads();
      load_tile(projected + slices.query, stride, query, length, width, queries);
      load_tile(output_gradient + slices.output, shape.width(), query, length, width, gradients);
      __syncthreads();
      float products[columns_each];
      float slopes[columns_each];
      multiply_rows(keys, queries, row, column, width, products);
      multiply_rows(values, gradients, row, column, width, slopes);
#pragma unroll
      for (int i = 0; i < columns_each; ++i) {
        const std::int64_t position = query + column + lanes_per_row * i;
        const bool seen = sees(shape, position, first + row);
        const std::int64_t item = (blockIdx.z * length + position) * shape.heads + head;
        const float probability = seen ? __expf(products[i] * shape.score_scale - log_sum[item]) : 0.0f;
        const float slope = seen ? slopes[i] - output_products[item] : 0.0f;
        probabilities[row * score_stride + column + lanes_per_row * i] = probability;
        scores[row * score_stride + column + lanes_per_row * i] = probability * slope * shape.score_scale;
      }
      __syncwarp();
      add_products<1>(probabilities, gradients, row, column, width, value_sums);
      add_products<1>(scores, queries, row, column, width, key_sums);
    }
  }
  if (first + row >= length) return;
  T* const key_line = projected_gradient + shared.key + (first + row) * stride;
  T* const value_line = projected_gradient + shared.value + (first + row) * stride;
#pragma unroll
  for (int i = 0; i < columns; ++i)
    if (column + lanes_per_row * i < width) {
      from_float(key_sums[i], key_line[column + lanes_per_row * i]);
      from_float(value_sums[i], value_line[column + lanes_per_row * i]);
    }
}

/// Calls `call` with the max number of columns of a head's values per thread.
template <class Call>
void with_columns(const AttentionShape& shape, const Call& call) {
  if (shape.head_width <= 64) return call.template operator()<64 / lanes_per_row>();
  if (shape.head_width <= 128) return call.template operator()<128 / lanes_per_row>();
  if (shape.head_width <= widest_head) return call.template operator()<widest_head / lanes_per_row>();
  throw std::runtime_error("CUDA: attention with heads of " + std::to_string(shape.head_width) + " values (at most " +
                           std::to_string(widest_head) + ")");
}

Launch shape_of(const AttentionShape& shape, std::int64_t heads, int tiles, int score_tiles) {
  return {.grid = dim3(static_cast<unsigned>(rounds_up(shape.sequence_length, tile)), static_cast<unsigned>(heads),
                       static_cast<unsigned>(shape.sequences)),
          .block = attention_threads,
          .shared = sizeof(float) * (static_cast<std::size_t>(tiles * tile) * (shape.head_width + 1) +
                                     static_cast<std::size_t>(score_tiles * tile * score_stride))};
}

}  // namespace

void rotary_table(const Queue& queue, std::int64_t sequence_length, std::int64_t head_width, double base,
                  float* cosines, float* sines) {
  const std::int64_t half = head_width / 2;
  const std::int64_t count = sequence_length * half;
  launch(queue, {.grid = looping_grid(queue, rounds_up(count, 256), 8), .block = 256}, fill_rotary_table, count, half,
         base, cosines, sines);
}

void rotary(const Queue& queue, const AttentionShape& shape, const float* cosines, const float* sines, bool inverse,
            Values projected) {
  with_type(projected.type, [&]<class T>(T) {
    // Heads begin at multiples of head_width: an alignment that half a head allows, rows allow, too.
    with_packs<T>(shape.head_width / 2, {projected.data}, [&]<int N>(Packed<N>) {
      const std::int64_t packs = shape.tokens() * (shape.heads + shape.key_value_heads) * (shape.head_width / 2) / N;
      launch(queue, {.grid = looping_grid(queue, rounds_up(packs, 256), 16), .block = 256}, turn<T, N>, packs, shape,
             cosines, sines, inverse ? -1.0f : 1.0f, pointer<T>(projected));
    });
  });
}

void attention_forward(const Queue& queue, const AttentionShape& shape, ConstValues projected, Values output,
                       float* log_sum) {
  with_type(output.type, [&]<class T>(T) {
    with_columns(shape, [&]<int columns>() {
      launch(queue, shape_of(shape, shape.heads, 3, 1), forward<T, columns>, shape, pointer<T>(projected),
             pointer<T>(output), log_sum);
    });
  });
}

std::int64_t attention_backward_workspace(const AttentionShape& shape) { return shape.tokens() * shape.heads; }

void attention_backward(const Queue& queue, const AttentionShape& shape, ConstValues projected, ConstValues output,
                        const float* log_sum, ConstValues output_gradient, Values projected_gradient,
                        float* workspace) {
  with_type(output.type, [&]<class T>(T) {
    launch(queue, {.grid = static_cast<unsigned>(rounds_up(shape.tokens() * shape.heads, 8)), .block = 256},
           output_products<T>, shape, pointer<T>(output), pointer<T>(output_gradient), workspace);
    with_columns(shape, [&]<int columns>() {
      launch(queue, shape_of(shape, shape.heads, 4, 1), query_gradients<T, columns>, shape, pointer<T>(projected),
             log_sum, workspace, pointer<T>(output_gradient), pointer<T>(projected_gradient));
      launch(queue, shape_of(shape, shape.key_value_heads, 4, 2), key_value_gradients<T, columns>, shape,
             pointer<T>(projected), log_sum, workspace, pointer<T>(output_gradient), pointer<T>(projected_gradient));
    });
  });
}

}  // namespace sailor::runtime::cuda
