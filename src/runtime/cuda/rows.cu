// Embedding rows, and softmax with cross-entropy. A block works on a row of logits, which it reads twice: once for
// maximum and sum together, once to write the gradient.
#include "runtime/cuda/device_code.cuh"

namespace sailor::runtime::cuda {

namespace {

constexpr int row_threads = 512;

// ---- Embedding

template <class T, int N>
__global__ void __launch_bounds__(256)
    gather(const T* table, Range rows, const std::int32_t* tokens, std::int64_t packs, std::int64_t width, T* output) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < packs; i += step) {
    const std::int64_t token = tokens[i * N / width];
    float values[N] = {};
    if (rows.first <= token && token < rows.last) load(table + (token - rows.first) * width + i * N % width, values);
    store(values, output + i * N);
  }
}

// One block per position whose token has not occurred before: it adds the gradients of all positions with that token,
// in order.
template <class T, int N>
__global__ void __launch_bounds__(128) scatter(float* table, Range rows, const std::int32_t* tokens, std::int64_t count,
                                               std::int64_t width, const T* gradient) {
  std::int32_t* const shared = reinterpret_cast<std::int32_t*>(shared_bytes);  // the next 128 tokens
  const std::int64_t position = blockIdx.x;
  const std::int32_t token = tokens[position];
  if (token < rows.first || token >= rows.last) return;
  int before = 0;
  for (std::int64_t i = threadIdx.x; i < position; i += blockDim.x) before |= tokens[i] == token;
  if (__syncthreads_or(before)) return;
  float* const line = table + (token - rows.first) * width;
  for (std::int64_t first = position; first < count; first += blockDim.x) {
    const std::int64_t last = first + blockDim.x < count ? first + blockDim.x : count;
    const bool is_token = first + threadIdx.x < last;
    __syncthreads();  // all have read the previous tokens
    if (is_token) shared[threadIdx.x] = tokens[first + threadIdx.x];
    if (!__syncthreads_or(is_token && shared[threadIdx.x] == token)) continue;
    for (std::int64_t i = first; i < last; ++i) {
      if (shared[i - first] != token) continue;
      for (std::int64_t column = threadIdx.x * N; column < width; column += std::int64_t{blockDim.x} * N) {
        float sums[N];
        float more[N];
        load(line + column, sums);
        load(gradient + i * width + column, more);
#pragma unroll
        for (int k = 0; k < N; ++k) sums[k] += more[k];
        store(sums, line + column);
      }
    }
  }
}

// ---- Rows of logits

/// Calls use(values, column) for all of a row's values, N at a time if they are aligned to 16 bytes, else one at a
/// time; `use` returns the new values, which are stored if `stores` is set.
template <bool stores, class T, class Use>
__device__ __forceinline__ void for_row(T* row, std::int64_t width, const Use& use) {
  constexpr int N = 16 / sizeof(T);
  const auto address = reinterpret_cast<std::uintptr_t>(row);
  std::int64_t head = static_cast<std::int64_t>((16 - address % 16) % 16 / sizeof(T));
  if (head > width) head = width;
  const std::int64_t packed = (width - head) / N * N;
  const auto one = [&](std::int64_t column) {
    float value[1];
    load(row + column, value);
    use(value, column);
    if constexpr (stores) store(value, row + column);
  };
  if (threadIdx.x < head) one(threadIdx.x);
  for (std::int64_t column = head + threadIdx.x * std::int64_t{N}; column < head + packed;
       column += blockDim.x * std::int64_t{N}) {
    float values[N];
    load(row + column, values);
    use(values, column);
    if constexpr (stores) store(values, row + column);
  }
  if (head + packed + threadIdx.x < width) one(head + packed + threadIdx.x);
}

/// Maximum of the block's threads' values, on all of them. `scratch` as in block_sums.
__device__ __forceinline__ float block_max(float value, float* scratch) {
  value = warp_max(value);
  if (lane_index() == 0) scratch[warp_index()] = value;
  __syncthreads();
  return warp_max(lane_index() < warp_count() ? scratch[lane_index()] : -INFINITY);
}

template <class T>
__global__ void __launch_bounds__(row_threads)
    cross_entropy(LogitsShape shape, T* logits, const std::int32_t* targets, float gradient_scale, double* row_losses) {
  float* const scratch = reinterpret_cast<float*>(shared_bytes);  // (2, 32)
  const std::int64_t row = blockIdx.x;
  T* const line = logits + row * shape.stride;
  const std::int64_t classes = shape.classes.last - shape.classes.first;
  const std::int64_t target = targets[row];
  const float target_logit = to_float(line[target]);
  float largest = -INFINITY;
  float sum[1] = {};  // of exp(logit - largest)
  for_row<false>(line, classes, [&]<int N>(const float(&values)[N], std::int64_t) {
    float now_largest = largest;
#pragma unroll
    for (int k = 0; k < N; ++k) now_largest = fmaxf(now_largest, values[k]);
    if (now_largest == -INFINITY) return;
    sum[0] *= __expf(largest - now_largest);
    largest = now_largest;
#pragma unroll
    for (int k = 0; k < N; ++k) sum[0] += __expf(values[k] - largest);
  });
  const float row_largest = block_max(largest, scratch);
  if (largest != -INFINITY) sum[0] *= __expf(largest - row_largest);
  block_sums(sum, scratch + warp_size);  // its barrier follows all reads of the target's logit, too
  const float scale = gradient_scale / sum[0];
  for_row<true>(line, classes, [&]<int N>(float(&values)[N], std::int64_t column) {
#pragma unroll
    for (int k = 0; k < N; ++k)
      values[k] = __expf(values[k] - row_largest) * scale - (column + k == target ? gradient_scale : 0.0f);
  });
  if (threadIdx.x == 0)
    row_losses[row] =
        log(static_cast<double>(sum[0])) + static_cast<double>(row_largest) - static_cast<double>(target_logit);
}

template <class T>
__global__ void __launch_bounds__(row_threads) maxima_of_rows(LogitsShape shape, const T* logits, float* maxima) {
  const std::int64_t width = shape.classes.last - shape.classes.first;
  float largest = -INFINITY;
  for_row<false>(logits + blockIdx.x * shape.stride, width, [&]<int N>(const float(&more)[N], std::int64_t) {
#pragma unroll
    for (int k = 0; k < N; ++k) largest = fmaxf(largest, more[k]);
  });
  largest = block_max(largest, reinterpret_cast<float*>(shared_bytes));
  if (threadIdx.x == 0) maxima[blockIdx.x] = largest;
}

template <class T>
__global__ void __launch_bounds__(row_threads)
    exponentials(LogitsShape shape, T* logits, const float* maxima, const std::int32_t* targets, float* sums,
                 float* target_logits) {
  const std::int64_t row = blockIdx.x;
  const Range classes = shape.classes;
  const std::int64_t width = classes.last - classes.first;
  T* const line = logits + row * shape.stride;
  const float largest = maxima[row];
  const std::int64_t target = targets[row];
  if (threadIdx.x == 0)
    target_logits[row] =
        classes.first <= target && target < classes.last ? to_float(line[target - classes.first]) - largest : 0.0f;
  __syncthreads();
  float sum[1] = {};
  for_row<true>(line, width, [&]<int N>(float(&values)[N], std::int64_t) {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      values[k] = __expf(values[k] - largest);
      sum[0] += values[k];
    }
  });
  block_sums(sum, reinterpret_cast<float*>(shared_bytes));
  if (threadIdx.x == 0) sums[row] = sum[0];
}

template <class T>
__global__ void __launch_bounds__(row_threads)
    gradient_of_exponentials(LogitsShape shape, T* values, const float* sums, const float* target_logits,
                             const std::int32_t* targets, float gradient_scale, double* row_losses) {
  const std::int64_t row = blockIdx.x;
  const Range classes = shape.classes;
  const std::int64_t width = classes.last - classes.first;
  const float scale = gradient_scale / sums[row];
  const std::int64_t target = targets[row] - classes.first;
  for_row<true>(values + row * shape.stride, width, [&]<int N>(float(&exponentials)[N], std::int64_t column) {
#pragma unroll
    for (int k = 0; k < N; ++k)
      exponentials[k] = exponentials[k] * scale - (column + k == target ? gradient_scale : 0.0f);
  });
  if (threadIdx.x == 0) row_losses[row] = log(static_cast<double>(sums[row])) - static_cast<double>(target_logits[row]);
}

// One block: *sum += all of `values`, in a fixed order.
__global__ void __launch_bounds__(row_threads) add_all(const double* values, std::int64_t count, double* sum) {
  double sums[1] = {};
  for (std::int64_t i = threadIdx.x; i < count; i += blockDim.x) sums[0] += values[i];
  block_sums(sums, reinterpret_cast<double*>(shared_bytes));
  if (threadIdx.x == 0) *sum += sums[0];
}

void add_losses(const Queue& queue, const double* row_losses, std::int64_t rows, double* loss_sum) {
  launch(queue, {.block = row_threads, .shared = warp_size * sizeof(double)}, add_all, row_losses, rows, loss_sum);
}

Launch row_blocks(std::int64_t rows) {
  return {.grid = static_cast<unsigned>(rows), .block = row_threads, .shared = 2 * warp_size * sizeof(float)};
}

}  // namespace

void gather_rows(const Queue& queue, ConstValues table, const Range& rows, const std::int32_t* tokens,
                 std::int64_t count, std::int64_t width, Values output) {
  with_type(output.type, [&]<class T>(T) {
    with_packs<T>(width, {table.data, output.data}, [&]<int N>(Packed<N>) {
      const std::int64_t packs = count * width / N;
      launch(queue, {.grid = looping_grid(queue, rounds_up(packs, 256), 16), .block = 256}, gather<T, N>,
             pointer<T>(table), rows, tokens, packs, width, pointer<T>(output));
    });
  });
}

void scatter_add_rows(const Queue& queue, float* table_gradient, const Range& rows, const std::int32_t* tokens,
                      std::int64_t count, std::int64_t width, ConstValues gradient) {
  with_type(gradient.type, [&]<class T>(T) {
    with_packs<T>(width, {table_gradient, gradient.data}, [&]<int N>(Packed<N>) {
      launch(queue, {.grid = static_cast<unsigned>(count), .block = 128, .shared = 128 * sizeof(std::int32_t)},
             scatter<T, N>, table_gradient, rows, tokens, count, width, pointer<T>(gradient));
    });
  });
}

void softmax_cross_entropy(const Queue& queue, const LogitsShape& shape, Values logits_to_gradient,
                           const std::int32_t* targets, float gradient_scale, double* loss_sum, double* row_losses) {
  with_type(logits_to_gradient.type, [&]<class T>(T) {
    launch(queue, row_blocks(shape.rows), cross_entropy<T>, shape, pointer<T>(logits_to_gradient), targets,
           gradient_scale, row_losses);
  });
  add_losses(queue, row_losses, shape.rows, loss_sum);
}

void row_maxima(const Queue& queue, const LogitsShape& shape, ConstValues logits, float* maxima) {
  with_type(logits.type, [&]<class T>(T) {
    launch(queue, row_blocks(shape.rows), maxima_of_rows<T>, shape, pointer<T>(logits), maxima);
  });
}

void softmax_sums(const Queue& queue, const LogitsShape& shape, Values logits_to_exponentials, const float* maxima,
                  const std::int32_t* targets, float* sums, float* target_logits) {
  with_type(logits_to_exponentials.type, [&]<class T>(T) {
    launch(queue, row_blocks(shape.rows), exponentials<T>, shape, pointer<T>(logits_to_exponentials), maxima, targets,
           sums, target_logits);
  });
}

void softmax_gradient(const Queue& queue, const LogitsShape& shape, Values exponentials_to_gradient, const float* sums,
                      const float* target_logits, const std::int32_t* targets, float gradient_scale, double* loss_sum,
                      double* row_losses) {
  with_type(exponentials_to_gradient.type, [&]<class T>(T) {
    launch(queue, row_blocks(shape.rows), gradient_of_exponentials<T>, shape, pointer<T>(exponentials_to_gradient),
           sums, target_logits, targets, gradient_scale, row_losses);
  });
  add_losses(queue, row_losses, shape.rows, loss_sum);
}

}  // namespace sailor::runtime::cuda
