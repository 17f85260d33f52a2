// The optimizer over many arrays at once. A launch takes a table of segments by value, so that nothing is copied to the
// device first; a block finds its segment there.
#include <cmath>

#include "runtime/cuda/device_code.cuh"

namespace sailor::runtime::cuda {

namespace {

constexpr int optimizer_threads = 512;
constexpr std::int64_t block_elements = 16 * 1024;  // elements per block

/// Segments of one launch. A kernel's arguments are at most 4 KiB on every device and toolkit.
template <class Segment, int most>
struct Table {
  static constexpr int size = most;
  Segment segments[most];
  std::int32_t ends[most];  ///< blocks of all segments up to this one
  std::int32_t count = 0;
};

template <class Segment, int most>
__device__ __forceinline__ int segment_of(const Table<Segment, most>& table, int block) {
  int segment = 0;
  while (block >= table.ends[segment]) ++segment;
  return segment;
}

/// Elements [first, last) of the segment that this block works on.
template <class Segment, int most>
__device__ __forceinline__ Range elements_of(const Table<Segment, most>& table, int segment, int block) {
  const std::int64_t first = (block - (segment == 0 ? 0 : table.ends[segment - 1])) * block_elements;
  const std::int64_t count = table.segments[segment].count;
  return {first, first + block_elements < count ? first + block_elements : count};
}

std::int64_t blocks_of(std::int64_t count) { return rounds_up(count, block_elements); }

/// Calls put(table, blocks) for tables that together contain every segment; empty segments are left out.
template <class TableOf, class Segments, class Make, class Put>
void in_tables(const Segments& all, const Make& make, const Put& put) {
  TableOf table;
  std::int32_t blocks = 0;
  for (const auto& each : all) {
    const auto segment = make(each);
    if (segment.count == 0) continue;
    table.segments[table.count] = segment;
    blocks += static_cast<std::int32_t>(blocks_of(segment.count));
    table.ends[table.count++] = blocks;
    if (table.count == TableOf::size) {
      put(table, blocks);
      table.count = 0;
      blocks = 0;
    }
  }
  if (table.count > 0) put(table, blocks);
}

// ---- Sum of squares

struct SquaresSegment {
  const float* values;
  std::int64_t count;
};
using SquaresTable = Table<SquaresSegment, 128>;

// Products and sums in fp64: fp16 gradients may be so large before they are unscaled that floats overflow.
__global__ void __launch_bounds__(optimizer_threads) squares_of_blocks(SquaresTable table, double* block_sums_out) {
  const int block = static_cast<int>(blockIdx.x);
  const int segment = segment_of(table, block);
  const Range range = elements_of(table, segment, block);
  const float* const values = table.segments[segment].values;
  double sum[1] = {};
  std::int64_t packed = range.first;
  if (reinterpret_cast<std::uintptr_t>(values) % 16 == 0) {
    packed += (range.last - range.first) / 4 * 4;
    for (std::int64_t i = range.first + threadIdx.x * 4; i < packed; i += optimizer_threads * 4) {
      float four[4];
      load(values + i, four);
#pragma unroll
      for (int k = 0; k < 4; ++k) sum[0] += static_cast<double>(four[k]) * static_cast<double>(four[k]);
    }
  }
  for (std::int64_t i = packed + threadIdx.x; i < range.last; i += optimizer_threads)
    sum[0] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  block_sums(sum, reinterpret_cast<double*>(shared_bytes));
  if (threadIdx.x == 0) block_sums_out[block] = sum[0];
}

__global__ void __launch_bounds__(optimizer_threads)
    add_block_sums(const double* block_sums_in, std::int64_t count, double* sum) {
  double sums[1] = {};
  for (std::int64_t i = threadIdx.x; i < count; i += optimizer_threads) sums[0] += block_sums_in[i];
  block_sums(sums, reinterpret_cast<double*>(shared_bytes));
  if (threadIdx.x == 0) *sum += sums[0];
}

__global__ void factor_for_clipping(const double* squared_norm, double scale, double clip_norm, float* factor) {
  const double squares = *squared_norm;
  if (!isfinite(squares)) {
    *factor = NAN;
    return;
  }
  const double norm = sqrt(squares) / scale;
  *factor = static_cast<float>((clip_norm > 0.0 && norm > clip_norm ? clip_norm / norm : 1.0) / scale);
}

// ---- AdamW

struct AdamWSegment {
  float* value;
  const float* gradient;
  float* first_moment;
  float* second_moment;
  void* rounded;  ///< null, or 16-bit values
  std::int64_t count;
  float keep;  ///< factor that weight decay applies to a value
};
using AdamWTable = Table<AdamWSegment, 60>;

struct AdamWNumbers {
  float rate;
  float beta1;
  float beta2;
  float epsilon;
  float first_correction;
  float second_correction;
};

template <class Rounded, int N>
__device__ __forceinline__ void step_pack(const AdamWSegment& segment, const AdamWNumbers& numbers, float factor,
                                          std::int64_t i) {
  float value[N];
  float gradient[N];
  float first[N];
  float second[N];
  load(segment.value + i, value);
  load(segment.gradient + i, gradient);
  load(segment.first_moment + i, first);
  load(segment.second_moment + i, second);
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const float g = factor * gradient[k];
    first[k] = numbers.beta1 * first[k] + (1.0f - numbers.beta1) * g;
    second[k] = numbers.beta2 * second[k] + (1.0f - numbers.beta2) * g * g;
    value[k] = segment.keep * value[k] - numbers.rate * (first[k] * numbers.first_correction) /
                                             (sqrtf(second[k] * numbers.second_correction) + numbers.epsilon);
  }
  store(value, segment.value + i);
  store(first, segment.first_moment + i);
  store(second, segment.second_moment + i);
  if (segment.rounded != nullptr) store(value, static_cast<Rounded*>(segment.rounded) + i);
}

template <class Rounded>
__global__ void __launch_bounds__(optimizer_threads)
    adamw_step(AdamWTable table, AdamWNumbers numbers, const float* gradient_factor) {
  const float factor = gradient_factor != nullptr ? *gradient_factor : 1.0f;
  if (isnan(factor)) return;
  const int block = static_cast<int>(blockIdx.x);
  const int index = segment_of(table, block);
  const AdamWSegment& segment = table.segments[index];
  const Range range = elements_of(table, index, block);
  const auto bits =
      reinterpret_cast<std::uintptr_t>(segment.value) | reinterpret_cast<std::uintptr_t>(segment.gradient) |
      reinterpret_cast<std::uintptr_t>(segment.first_moment) | reinterpret_cast<std::uintptr_t>(segment.second_moment) |
      (reinterpret_cast<std::uintptr_t>(segment.rounded) * (4 / sizeof(Rounded)));
  std::int64_t packed = range.first;
  if (bits % 16 == 0) {
    packed += (range.last - range.first) / 4 * 4;
    for (std::int64_t i = range.first + threadIdx.x * 4; i < packed; i += optimizer_threads * 4)
      step_pack<Rounded, 4>(segment, numbers, factor, i);
  }
  for (std::int64_t i = packed + threadIdx.x; i < range.last; i += optimizer_threads)
    step_pack<Rounded, 1>(segment, numbers, factor, i);
}

}  // namespace

std::int64_t squares_workspace(std::span<const std::span<const float>> values) {
  std::int64_t blocks = 0;
  for (const std::span<const float>& each : values) blocks += blocks_of(static_cast<std::int64_t>(each.size()));
  return blocks;
}

void add_squares(const Queue& queue, std::span<const std::span<const float>> values, double* sum, double* workspace) {
  double* next = workspace;
  in_tables<SquaresTable>(
      values,
      [](std::span<const float> each) {
        return SquaresSegment{each.data(), static_cast<std::int64_t>(each.size())};
      },
      [&](const SquaresTable& table, std::int32_t blocks) {
        launch(
            queue,
            {.grid = static_cast<unsigned>(blocks), .block = optimizer_threads, .shared = warp_size * sizeof(double)},
            squares_of_blocks, table, next);
        next += blocks;
      });
  launch(queue, {.block = optimizer_threads, .shared = warp_size * sizeof(double)}, add_block_sums, workspace,
         static_cast<std::int64_t>(next - workspace), sum);
}

void clip_factor(const Queue& queue, const double* squared_norm, double scale, double clip_norm, float* factor) {
  launch(queue, {}, factor_for_clipping, squared_norm, scale, clip_norm, factor);
}

void adamw(const Queue& queue, const AdamWStep& step, std::span<const OptimizerSegment> segments,
           const float* gradient_factor) {
  const double steps = static_cast<double>(step.step);
  const AdamWNumbers numbers{
      .rate = step.learning_rate,
      .beta1 = step.beta1,
      .beta2 = step.beta2,
      .epsilon = step.epsilon,
      .first_correction = static_cast<float>(1.0 / (1.0 - std::pow(double{step.beta1}, steps))),
      .second_correction = static_cast<float>(1.0 / (1.0 - std::pow(double{step.beta2}, steps)))};
  // One launch for each type that values are rounded to; values that are not rounded go with float32.
  for (const DataType type : {DataType::float32, DataType::bfloat16, DataType::float16})
    with_type(type, [&]<class Rounded>(Rounded) {
      in_tables<AdamWTable>(
          segments,
          [&](const OptimizerSegment& segment) {
            const DataType own = segment.rounded.data != nullptr ? segment.rounded.type : DataType::float32;
            return AdamWSegment{.value = segment.value,
                                .gradient = segment.gradient,
                                .first_moment = segment.first_moment,
                                .second_moment = segment.second_moment,
                                .rounded = segment.rounded.data,
                                .count = own == type ? segment.count : 0,
                                .keep = 1.0f - step.learning_rate * (segment.decays ? step.weight_decay : 0.0f)};
          },
          [&](const AdamWTable& table, std::int32_t blocks) {
            launch(queue, {.grid = static_cast<unsigned>(blocks), .block = optimizer_threads}, adamw_step<Rounded>,
                   table, numbers, gradient_factor);
          });
    });
}

}  // namespace sailor::runtime::cuda
