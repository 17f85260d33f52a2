#include "runtime/cuda/column_sums.cuh"

namespace sailor::runtime::cuda {

namespace {

// A block sums some rows of 32 packs of columns: warp w takes every eighth row from the w-th on, lane l takes pack l.
constexpr int warps = 8;
constexpr int column_sum_threads = warps * warp_size;
constexpr std::int64_t most_slices = 64;

template <class T, int N>
__global__ void __launch_bounds__(column_sum_threads)
    sum_slices(const T* values, std::int64_t rows, std::int64_t width, std::int64_t rows_per_slice, float* slices) {
  float* const shared = reinterpret_cast<float*>(shared_bytes);  // (warps, 32 · N)
  const std::int64_t column = (std::int64_t{blockIdx.x} * warp_size + lane_index()) * N;
  const std::int64_t first = blockIdx.y * rows_per_slice;
  const std::int64_t last = first + rows_per_slice < rows ? first + rows_per_slice : rows;
  float sums[N] = {};
  if (column < width)
    for (std::int64_t row = first + warp_index(); row < last; row += warps) {
      float more[N];
      load(values + row * width + column, more);
#pragma unroll
      for (int k = 0; k < N; ++k) sums[k] += more[k];
    }
#pragma unroll
  for (int k = 0; k < N; ++k) shared[(warp_index() * N + k) * warp_size + lane_index()] = sums[k];
  __syncthreads();
  for (int k = warp_index(); k < N; k += warps) {
    float sum = 0.0f;
#pragma unroll
    for (int warp = 0; warp < warps; ++warp) sum += shared[(warp * N + k) * warp_size + lane_index()];
    if (column < width) slices[blockIdx.y * width + column + k] = sum;
  }
}

// Each warp takes every eighth slice, several at a time: one block alone waits for memory, not for its bandwidth.
template <int N>
__global__ void __launch_bounds__(column_sum_threads)
    sum_of_slices(float* first, float* second, const float* slices, std::int64_t slice_count, std::int64_t count) {
  float* const sums = blockIdx.y == 0 ? first : second;
  slices += blockIdx.y * slice_count * count;
  float* const shared = reinterpret_cast<float*>(shared_bytes);  // (warps, 32 · N)
  const std::int64_t column = (std::int64_t{blockIdx.x} * warp_size + lane_index()) * N;
  float own[N] = {};
  if (column < count) {
#pragma unroll 8
    for (std::int64_t slice = warp_index(); slice < slice_count; slice += warps) {
      float more[N];
      load(slices + slice * count + column, more);
#pragma unroll
      for (int k = 0; k < N; ++k) own[k] += more[k];
    }
  }
#pragma unroll
  for (int k = 0; k < N; ++k) shared[(warp_index() * N + k) * warp_size + lane_index()] = own[k];
  __syncthreads();
  for (int k = warp_index(); k < N; k += warps) {
    if (column >= count) continue;
    float sum = sums[column + k];
#pragma unroll
    for (int warp = 0; warp < warps; ++warp) sum += shared[(warp * N + k) * warp_size + lane_index()];
    sums[column + k] = sum;
  }
}

/// Number of slices that keeps the device busy, with at least 16 rows each.
std::int64_t slices_of(const Queue& queue, std::int64_t rows, std::int64_t width) {
  const std::int64_t columns = rounds_up(width, std::int64_t{8} * warp_size);
  const std::int64_t wanted = rounds_up(std::int64_t{queue.multiprocessors} * 4, columns);
  return std::max<std::int64_t>(1, std::min({wanted, most_slices, rows / 16}));
}

}  // namespace

void add_slices(const Queue& queue, const std::array<float*, 2>& sums, const float* slices, std::int64_t slice_count,
                std::int64_t count) {
  // One value at a time where there are few columns, so that more blocks share them.
  const auto add = [&]<int N>(Packed<N>) {
    launch(queue,
           {.grid = dim3(static_cast<unsigned>(rounds_up(count, std::int64_t{N} * warp_size)),
                         sums[1] != nullptr ? 2U : 1U),
            .block = column_sum_threads,
            .shared = sizeof(float) * column_sum_threads * N},
           sum_of_slices<N>, sums[0], sums[1], slices, slice_count, count);
  };
  if (count < std::int64_t{4} * warp_size * queue.multiprocessors) return add(Packed<1>{});
  with_packs<float>(count, {sums[0], sums[1], slices}, add);
}

std::int64_t column_sums_workspace(const Queue& queue, std::int64_t rows, std::int64_t width) {
  return slices_of(queue, rows, width) * width;
}

void add_column_sums(const Queue& queue, float* sums, ConstValues values, std::int64_t rows, std::int64_t width,
                     float* workspace) {
  const std::int64_t slices = slices_of(queue, rows, width);
  const std::int64_t rows_per_slice = rounds_up(rows, slices);
  with_type(values.type, [&]<class T>(T) {
    with_packs<T>(width, {values.data}, [&]<int N>(Packed<N>) {
      const Launch shape{.grid = dim3(static_cast<unsigned>(rounds_up(width, std::int64_t{N} * warp_size)),
                                      static_cast<unsigned>(slices)),
                         .block = column_sum_threads,
                         .shared = sizeof(float) * column_sum_threads * N};
      launch(queue, shape, sum_slices<T, N>, pointer<T>(values), rows, width, rows_per_slice, workspace);
    });
  });
  add_slices(queue, {sums, nullptr}, workspace, slices, width);
}

}  // namespace sailor::runtime::cuda
