#include "runtime/cpu/cpu_stream.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "runtime/cpu/kernels.hpp"
#include "runtime/cpu/matmul.hpp"
#include "runtime/cpu/reduced.hpp"
#include "runtime/cpu/threads.hpp"

namespace sailor::runtime {

namespace {

/// Floats of 16-bit operands that are widened at once (at least one row of each): they fit the second-level cache.
constexpr std::int64_t widened_at_once = std::int64_t{1} << 15;

/// A matrix that an operation works through row by row.
struct Operand {
  ConstValues from;  // values to read; null: none
  Values to;         // values to write; null: none
  std::int64_t width;
  [[nodiscard]] bool is_float32() const { return (from.data != nullptr ? from.type : to.type) == DataType::float32; }
};
Operand in(ConstValues values, std::int64_t width) { return {values, nullptr, width}; }
Operand out(Values values, std::int64_t width) { return {nullptr, values, width}; }
Operand in_out(Values values, std::int64_t width) { return {values, values, width}; }

class KernelStream final : public CpuStream {
 public:
  KernelStream(const cpu::Threads& threads, MemoryPool& pool, HostQueues& queues)
      : threads_(threads), pool_(pool), queue_(queues) {}

  void put(std::unique_ptr<HostOperation> operation) override { queue_.put(std::move(operation)); }
  void give_up() override { queue_.give_up(); }
  void record(Event& event) override { queue_.record(static_cast<HostEvent&>(event)); }
  void wait(const Event& event) override { queue_.wait(static_cast<const HostEvent&>(event)); }

  void copy(void* to, const void* from, std::size_t bytes) override {
    settle();
    std::memcpy(to, from, bytes);
  }
  void copy_rows(void* to, std::size_t to_stride, const void* from, std::size_t from_stride, std::size_t bytes,
                 std::size_t rows) override {
    settle();
    for (std::size_t row = 0; row < rows; ++row)
      std::memcpy(static_cast<char*>(to) + row * to_stride, static_cast<const char*>(from) + row * from_stride, bytes);
  }
  void copy_from_host(void* to, const void* host, std::size_t bytes) override { copy(to, host, bytes); }
  void copy_to_host(void* host, const void* from, std::size_t bytes) override { copy(host, from, bytes); }
  void zero(void* memory, std::size_t bytes) override {
    settle();
    std::memset(memory, 0, bytes);
  }

  void convert(Values to, ConstValues from, std::int64_t count) override {
    settle();
    if (to.type == from.type)
      std::memmove(to.data, from.data, bytes_of(to.type, count));
    else if (to.is_float32())
      cpu::widen(from, to.floats(), count);
    else if (from.is_float32())
      cpu::round(from.floats(), to, count);
    else
      by_rows<2>(count, {in(from, 1), out(to, 1)},
                 [](const Rows<2>& part) { std::copy_n(part.floats[0], part.count, part.floats[1]); });
  }

  void matmul(const MatrixProduct& product, ConstValues a, ConstValues b, Values c) override {
    settle();
    const Workspace workspace(*this, cpu::matmul_workspace(threads_, product, a, b, c));
    cpu::matmul(threads_, product, a, b, c, workspace.floats);
  }

  void linear_forward(const LinearShape& shape, ConstValues input, ConstValues weight, ConstValues bias,
                      ConstValues residual, PointwiseActivation activation, Values pre_activation,
                      Values output) override {
    settle();
    const std::int64_t count = shape.rows * shape.out;
    const Values product = activation == PointwiseActivation::gelu ? pre_activation : output;
    if (residual.data != nullptr) std::memcpy(product.data, residual.data, bytes_of(product.type, count));
    MatrixProduct map = shape.forward();
    map.accumulate = residual.data != nullptr;
    matmul(map, input, weight, product);
    if (bias.data != nullptr) add_bias(product, bias, shape.rows, shape.out);
    if (activation == PointwiseActivation::relu) relu_forward(output, count);
    if (activation == PointwiseActivation::gelu) gelu_forward(pre_activation, output, count);
  }
  void linear_backward_parameters(const LinearShape& shape, ConstValues input, ConstValues output_gradient,
                                  float* weight_gradient, float* bias_gradient) override {
    settle();
    const bool swap = shape.rows_are_inputs;
    matmul(shape.backward_weight(), swap ? input : output_gradient, swap ? output_gradient : input, weight_gradient);
    if (bias_gradient != nullptr) add_bias_gradient(bias_gradient, output_gradient, shape.rows, shape.out);
  }
  void linear_backward_input(const LinearShape& shape, ConstValues output_gradient, ConstValues weight,
                             Values input_gradient) override {
    settle();
    matmul(shape.backward_input(), output_gradient, weight, input_gradient);
  }
  void linear_backward_input(const LinearShape& shape, ConstValues output_gradient, ConstValues weight,
                             PointwiseActivation activation, Values kept_to_output, Values input_gradient) override {
    linear_backward_input(shape, output_gradient, weight, input_gradient);
    const std::int64_t count = shape.rows * shape.in;
    if (activation == PointwiseActivation::relu) relu_backward(kept_to_output, input_gradient, count);
    if (activation == PointwiseActivation::gelu) gelu_backward(kept_to_output, input_gradient, count);
  }

  void add_bias(Values values, ConstValues bias, std::int64_t rows, std::int64_t width) override {
    settle();
    const Widened all_bias(*this, bias, width);
    by_rows<1>(rows, {in_out(values, width)},
               [&](const Rows<1>& part) { cpu::add_bias(part.floats[0], all_bias.floats(), part.count, width); });
  }
  void add_bias_gradient(float* bias_gradient, ConstValues gradient, std::int64_t rows, std::int64_t width) {
    const Sums<1> sums(*this, {bias_gradient}, width, pieces_of(rows, width));
    by_rows<1>(rows, {in(gradient, width)}, [&](const Rows<1>& part) {
      cpu::add_bias_gradient(sums.of(part.piece)[0], part.floats[0], part.count, width);
    });
  }
  void add(Values to, ConstValues from, std::int64_t count) override {
    settle();
    by_rows<2>(count, {in_out(to, 1), in(from, 1)},
               [&](const Rows<2>& part) { cpu::add(part.floats[0], part.floats[1], part.count); });
  }
  void scale(float* values, float factor, std::int64_t count) override {
    settle();
    by_rows<1>(count, {in_out(values, 1)},
               [&](const Rows<1>& part) { cpu::scale(part.floats[0], factor, part.count); });
  }
  void layer_norm_forward(const NormShape& shape, ConstValues input, ConstValues weight, ConstValues bias,
                          Values output, float* mean, float* reciprocal_deviation) override {
    settle();
    const Widened all_weight(*this, weight, shape.width);
    const Widened all_bias(*this, bias, shape.width);
    by_rows<2>(shape.rows, {in(input, shape.width), out(output, shape.width)}, [&](const Rows<2>& part) {
      cpu::layer_norm_forward(part_of(shape, part.count), part.floats[0], all_weight.floats(), all_bias.floats(),
                              part.floats[1], mean + part.first, reciprocal_deviation + part.first);
    });
  }
  void layer_norm_backward(const NormShape& shape, ConstValues input, const float* mean,
                           const float* reciprocal_deviation, ConstValues weight, Values gradient, Values sum,
                           float* weight_gradient, float* bias_gradient) override {
    settle();
    const Widened all_weight(*this, weight, shape.width);
    const Sums<2> sums(*this, {weight_gradient, bias_gradient}, shape.width, pieces_of(shape.rows, 2 * shape.width));
    by_rows<2>(shape.rows, {in(input, shape.width), in_out(gradient, shape.width)}, [&](const Rows<2>& part) {
      const auto [weight_sum, bias_sum] = sums.of(part.piece);
      cpu::layer_norm_backward(part_of(shape, part.count), part.floats[0], mean + part.first,
                               reciprocal_deviation + part.first, all_weight.floats(), part.floats[1], weight_sum,
                               bias_sum);
    });
    if (sum.data != nullptr) add(sum, gradient, shape.rows * shape.width);
  }

  void rms_norm_forward(const NormShape& shape, ConstValues input, ConstValues weight, Values output,
                        float* reciprocal_rms) override {
    settle();
    const Widened all_weight(*this, weight, shape.width);
    by_rows<2>(shape.rows, {in(input, shape.width), out(output, shape.width)}, [&](const Rows<2>& part) {
      cpu::rms_norm_forward(part_of(shape, part.count), part.floats[0], all_weight.floats(), part.floats[1],
                            reciprocal_rms + part.first);
    });
  }
  void rms_norm_backward(const NormShape& shape, ConstValues input, const float* reciprocal_rms, ConstValues weight,
                         Values gradient, Values sum, float* weight_gradient) override {
    settle();
    const Widened all_weight(*this, weight, shape.width);
    const Sums<1> sums(*this, {weight_gradient}, shape.width, pieces_of(shape.rows, 2 * shape.width));
    by_rows<2>(shape.rows, {in(input, shape.width), in_out(gradient, shape.width)}, [&](const Rows<2>& part) {
      cpu::rms_norm_backward(part_of(shape, part.count), part.floats[0], reciprocal_rms + part.first,
                             all_weight.floats(), part.floats[1], sums.of(part.piece)[0]);
    });
    if (sum.data != nullptr) add(sum, gradient, shape.rows * shape.width);
  }

  void relu_forward(Values values, std::int64_t count) {
    by_rows<1>(count, {in_out(values, 1)}, [&](const Rows<1>& part) { cpu::relu_forward(part.floats[0], part.count); });
  }
  void relu_backward(ConstValues output, Values gradient, std::int64_t count) {
    by_rows<2>(count, {in(output, 1), in_out(gradient, 1)},
               [&](const Rows<2>& part) { cpu::relu_backward(part.floats[0], part.floats[1], part.count); });
  }
  void gelu_forward(ConstValues input, Values output, std::int64_t count) {
    by_rows<2>(count, {in(input, 1), out(output, 1)},
               [&](const Rows<2>& part) { cpu::gelu_forward(part.floats[0], part.floats[1], part.count); });
  }
  void gelu_backward(Values input_to_output, Values gradient, std::int64_t count) {
    by_rows<2>(count, {in_out(input_to_output, 1), in_out(gradient, 1)},
               [&](const Rows<2>& part) { cpu::gelu_backward(part.floats[0], part.floats[1], part.count); });
  }

  void swiglu_forward(ConstValues input, const float* factors, Values output, std::int64_t rows,
                      std::int64_t width) override {
    settle();
    by_rows<2>(rows, {in(input, 2 * width), out(output, width)}, [&](const Rows<2>& part) {
      cpu::swiglu_forward(part.floats[0], factors != nullptr ? factors + part.first : nullptr, part.floats[1],
                          part.count, width);
    });
  }
  void swiglu_backward(Values input_to_gradient, const float* factors, Values gradient_to_output,
                       float* factor_gradients, std::int64_t rows, std::int64_t width) override {
    settle();
    by_rows<2>(rows, {in_out(input_to_gradient, 2 * width), in_out(gradient_to_output, width)},
               [&](const Rows<2>& part) {
                 const bool weighted = factors != nullptr;
                 cpu::swiglu_backward(part.floats[0], weighted ? factors + part.first : nullptr, part.floats[1],
                                      weighted ? factor_gradients + part.first : nullptr, part.count, width);
               });
  }

  void route(const RoutingShape& shape, ConstValues logits, const Routing& routing) override {
    settle();
    const Widened all_logits(*this, logits, shape.tokens * shape.experts);
    cpu::route(shape, all_logits.floats(), routing);
  }
  void route_backward(const RoutingShape& shape, const Routing& routing, const float* weight_gradients,
                      const RoutingBalance* balance, Values logits_gradient) override {
    settle();
    const std::int64_t count = shape.tokens * shape.experts;
    const Widened logits(*this, balance != nullptr ? balance->logits : ConstValues(nullptr),
                         balance != nullptr ? count : 0);
    by_rows<1>(
        1, {out(logits_gradient, count)},
        [&](const Rows<1>& all) {
          cpu::route_backward(shape, routing, weight_gradients, all.floats[0]);
          if (balance != nullptr) cpu::add_balance_gradient(shape, *balance, logits.floats(), all.floats[0]);
        },
        1);
  }
  void count_choices(const RoutingShape& shape, const Routing& routing, std::int64_t sequence_length,
                     float* counts) override {
    settle();
    cpu::count_choices(shape, routing, sequence_length, counts);
  }
  void add_pairs(const RoutingShape& shape, const std::int32_t* places, ConstValues pairs, std::int64_t width,
                 Values sums) override {
    settle();
    const Workspace row(*this, pairs.is_float32() ? 0 : width);
    const auto add_rows = [&](const Rows<1>& part) {
      for (std::int64_t i = 0; i < part.count; ++i)
        for (std::int64_t k = 0; k < shape.per_token; ++k) {
          const ConstValues pair = pairs + places[(part.first + i) * shape.per_token + k] * width;
          if (row.floats != nullptr) cpu::widen(pair, row.floats, width);
          cpu::add(part.floats[0] + i * width, row.floats != nullptr ? row.floats : pair.floats(), width);
        }
    };
    // One thread where rows have to be widened, since there is memory for one.
    by_rows<1>(shape.tokens, {in_out(sums, width)}, add_rows,
               row.floats != nullptr ? 1 : pieces_of(shape.tokens, width * (shape.per_token + 1)));
  }

  void rotary(const AttentionShape& shape, double base, bool inverse, Values projected) override {
    settle();
    if (projected.is_float32()) return cpu::rotary(shape, base, inverse, projected.floats());
    const Workspace workspace(*this, cpu::rotary_reduced_workspace(shape));
    cpu::rotary_reduced(shape, base, inverse, projected, workspace.floats);
  }
  void attention_forward(const AttentionShape& shape, ConstValues projected, Values output, float* log_sum) override {
    settle();
    const bool widens = !projected.is_float32();
    by_groups(shape, widens ? cpu::attention_reduced_workspace(shape, false) : cpu::attention_workspace(shape, false),
              [&](const Range& groups, float* workspace) {
                if (widens)
                  cpu::attention_forward_reduced(shape, groups, projected, output, log_sum, workspace);
                else
                  cpu::attention_forward(shape, groups, projected.floats(), output.floats(), log_sum, workspace);
              });
  }
  void attention_backward(const AttentionShape& shape, ConstValues projected, ConstValues output, const float* log_sum,
                          ConstValues output_gradient, Values projected_gradient) override {
    settle();
    const bool widens = !projected.is_float32();
    by_groups(shape, widens ? cpu::attention_reduced_workspace(shape, true) : cpu::attention_workspace(shape, true),
              [&](const Range& groups, float* workspace) {
                if (widens)
                  cpu::attention_backward_reduced(shape, groups, projected, output, log_sum, output_gradient,
                                                  projected_gradient, workspace);
                else
                  cpu::attention_backward(shape, groups, projected.floats(), output.floats(), log_sum,
                                          output_gradient.floats(), projected_gradient.floats(), workspace);
              });
  }

  void gather_rows(ConstValues table, const Range& rows, const std::int32_t* tokens, std::int64_t count,
                   std::int64_t width, Values output) override {
    settle();
    const std::size_t bytes = bytes_of(table.type, width);
    for (std::int64_t i = 0; i < count; ++i) {
      void* const to = (output + i * width).data;
      if (rows.first <= tokens[i] && tokens[i] < rows.last)
        std::memcpy(to, (table + (tokens[i] - rows.first) * width).data, bytes);
      else
        std::memset(to, 0, bytes);
    }
  }
  void scatter_add_rows(float* table_gradient, const Range& rows, const std::int32_t* tokens, std::int64_t count,
                        std::int64_t width, ConstValues gradient) override {
    settle();
    const auto add_rows = [&](const Rows<1>& part) {
      for (std::int64_t i = 0; i < part.count; ++i) {
        const std::int32_t token = tokens[part.first + i];
        if (rows.first <= token && token < rows.last)
          cpu::add(table_gradient + (token - rows.first) * width, part.floats[0] + i * width, width);
      }
    };
    by_rows<1>(count, {in(gradient, width)}, add_rows,
               1);  // one thread, as tokens may repeat
  }
  void add_repeated(Values values, ConstValues table, std::int64_t repeats, std::int64_t count) override {
    settle();
    for (std::int64_t repeat = 0; repeat < repeats; ++repeat) add(values + repeat * count, table, count);
  }
  void add_repeated_gradient(float* table_gradient, ConstValues gradient, std::int64_t repeats,
                             std::int64_t count) override {
    settle();
    for (std::int64_t repeat = 0; repeat < repeats; ++repeat) add(table_gradient, gradient + repeat * count, count);
  }
  void softmax_cross_entropy(const LogitsShape& shape, Values logits_to_gradient, const std::int32_t* targets,
                             float gradient_scale, double* loss_sum) override {
    settle();
    std::vector<double> losses(static_cast<std::size_t>(pieces_of(shape.rows, shape.stride)));
    by_rows<1>(shape.rows, {in_out(logits_to_gradient, shape.stride)}, [&](const Rows<1>& part) {
      cpu::softmax_cross_entropy(part_of(shape, part.count), part.floats[0], targets + part.first, gradient_scale,
                                 &losses[static_cast<std::size_t>(part.piece)]);
    });
    *loss_sum = std::accumulate(losses.begin(), losses.end(), *loss_sum);
  }
  void row_maxima(const LogitsShape& shape, ConstValues logits, float* maxima) override {
    settle();
    by_rows<1>(shape.rows, {in(logits, shape.stride)}, [&](const Rows<1>& part) {
      cpu::row_maxima(part_of(shape, part.count), part.floats[0], maxima + part.first);
    });
  }
  void softmax_sums(const LogitsShape& shape, Values logits_to_exponentials, const float* maxima,
                    const std::int32_t* targets, float* sums, float* target_logits) override {
    settle();
    by_rows<1>(shape.rows, {in_out(logits_to_exponentials, shape.stride)}, [&](const Rows<1>& part) {
      cpu::softmax_sums(part_of(shape, part.count), part.floats[0], maxima + part.first, targets + part.first,
                        sums + part.first, target_logits + part.first);
    });
  }
  void softmax_gradient(const LogitsShape& shape, Values exponentials_to_gradient, const float* sums,
                        const float* target_logits, const std::int32_t* targets, float gradient_scale,
                        double* loss_sum) override {
    settle();
    std::vector<double> losses(static_cast<std::size_t>(pieces_of(shape.rows, shape.stride)));
    by_rows<1>(shape.rows, {in_out(exponentials_to_gradient, shape.stride)}, [&](const Rows<1>& part) {
      cpu::softmax_gradient(part_of(shape, part.count), part.floats[0], sums + part.first, target_logits + part.first,
                            targets + part.first, gradient_scale, &losses[static_cast<std::size_t>(part.piece)]);
    });
    *loss_sum = std::accumulate(losses.begin(), losses.end(), *loss_sum);
  }

  void add_squares(std::span<const std::span<const float>> values, double* sum) override {
    settle();
    for (const std::span<const float> part : values) *sum += squares(part.data(), std::ssize(part));
  }
  void clip_factor(const double* squared_norm, double scale, double clip_norm, float* factor) override {
    settle();
    const double norm = std::sqrt(*squared_norm) / scale;
    *factor = static_cast<float>(1.0 / scale);
    if (!std::isfinite(norm))
      *factor = std::numeric_limits<float>::quiet_NaN();
    else if (clip_norm > 0.0 && norm > clip_norm)
      *factor = static_cast<float>(clip_norm / norm / scale);
  }
  void adamw(const AdamWStep& step, std::span<const OptimizerSegment> segments, const float* gradient_factor) override {
    settle();
    const float factor = gradient_factor == nullptr ? 1.0f : *gradient_factor;
    if (std::isnan(factor)) return;
    for (const OptimizerSegment& segment : segments) adamw(step, segment, factor);
  }

 private:
  // Memory from the pool, so that it counts as tensor memory. None for 0 floats.
  struct Workspace {
    Workspace(KernelStream& owner, std::int64_t count)
        : stream(owner),
          floats(count == 0
                     ? nullptr
                     : static_cast<float*>(owner.pool_.allocate(static_cast<std::size_t>(count) * sizeof(float)))) {}
    ~Workspace() {
      if (floats != nullptr) stream.pool_.release(floats);
    }
    Workspace(const Workspace&) = delete;
    Workspace& operator=(const Workspace&) = delete;
    KernelStream& stream;
    float* floats;
  };

  /// Values as floats: the values themselves, or widened ones.
  class Widened {
   public:
    Widened(KernelStream& stream, ConstValues values, std::int64_t count)
        : values_(values), workspace_(stream, values.is_float32() ? 0 : count) {
      if (!values.is_float32()) cpu::widen(values, workspace_.floats, count);
    }
    [[nodiscard]] const float* floats() const {
      return workspace_.floats != nullptr ? workspace_.floats : values_.floats();
    }

   private:
    ConstValues values_;
    Workspace workspace_;
  };

  /// Arrays of `width` floats to which pieces of an operation's rows add: `all` for the first piece, own sums for the
  /// others, which are added to `all` in the end.
  template <std::size_t arrays>
  class Sums {
   public:
    Sums(KernelStream& stream, const std::array<float*, arrays>& all, std::int64_t width, int pieces)
        : all_(all), width_(width), pieces_(pieces), workspace_(stream, (pieces - 1) * size()) {
      if (pieces > 1) std::fill_n(workspace_.floats, (pieces - 1) * size(), 0.0f);
    }
    ~Sums() {
      for (int piece = 1; piece < pieces_; ++piece)
        for (std::size_t i = 0; i < arrays; ++i) cpu::add(all_[i], of(piece)[i], width_);
    }
    Sums(const Sums&) = delete;
    Sums& operator=(const Sums&) = delete;
    [[nodiscard]] std::array<float*, arrays> of(int piece) const {
      if (piece == 0) return all_;
      std::array<float*, arrays> sums;
      for (std::size_t i = 0; i < arrays; ++i)
        sums[i] = workspace_.floats + (piece - 1) * size() + static_cast<std::int64_t>(i) * width_;
      return sums;
    }

   private:
    [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(arrays) * width_; }
    std::array<float*, arrays> all_;
    std::int64_t width_;
    int pieces_;
    Workspace workspace_;
  };

  /// Some rows of each operand as floats.
  template <std::size_t operands>
  struct Rows {
    int piece = 0;  // of pieces_of()
    std::int64_t first = 0;
    std::int64_t count = 0;
    std::array<float*, operands> floats{};
  };

  /// Number of pieces into which by_rows() cuts rows whose operands have `width` floats together.
  [[nodiscard]] int pieces_of(std::int64_t rows, std::int64_t width) const { return threads_.pieces(rows, width); }

  /// Calls `kernel` from several threads, each with a piece of the rows: the whole piece at once if all operands are
  /// float32, else some rows at a time.
  template <std::size_t operands, class Kernel>
  void by_rows(std::int64_t rows, const std::array<Operand, operands>& all, const Kernel& kernel) {
    std::int64_t width = 0;
    for (const Operand& operand : all) width += operand.width;
    by_rows(rows, all, kernel, pieces_of(rows, width));
  }

  template <std::size_t operands, class Kernel>
  void by_rows(std::int64_t rows, const std::array<Operand, operands>& all, const Kernel& kernel, int pieces) {
    std::int64_t width = 0;  // of a row of the operands to be widened
    for (const Operand& operand : all)
      if (!operand.is_float32()) width += operand.width;
    const std::int64_t longest_piece = (rows + pieces - 1) / pieces;
    const std::int64_t at_once =
        width == 0 ? longest_piece : std::min(std::max<std::int64_t>(widened_at_once / width, 1), longest_piece);
    const Workspace workspace(*this, pieces * width * at_once);
    cpu::Threads::run(pieces, rows, [&](const Range& piece, int index) {
      rows_of_a_piece(piece, index, at_once, all, kernel, workspace.floats + index * width * at_once);
    });
  }

  template <std::size_t operands, class Kernel>
  static void rows_of_a_piece(const Range& rows, int piece, std::int64_t at_once,
                              const std::array<Operand, operands>& all, const Kernel& kernel, float* workspace) {
    Rows<operands> part{.piece = piece, .first = rows.first, .count = 0, .floats = {}};
    for (; part.first < rows.last; part.first += part.count) {
      part.count = std::min(at_once, rows.last - part.first);
      float* scratch = workspace;
      for (std::size_t i = 0; i < operands; ++i) {
        const Operand& operand = all[i];
        const std::int64_t first = part.first * operand.width;
        if (operand.is_float32()) {
          // A kernel takes read-only operands as const.
          part.floats[i] = operand.to.data != nullptr ? operand.to.floats() + first
                                                      : const_cast<float*>(operand.from.floats()) + first;
          continue;
        }
        part.floats[i] = std::exchange(scratch, scratch + at_once * operand.width);
        if (operand.from.data != nullptr)
          cpu::widen((operand.from + first), part.floats[i], part.count * operand.width);
      }
      kernel(part);
      for (std::size_t i = 0; i < operands; ++i)
        if (all[i].to.data != nullptr && !all[i].is_float32())
          cpu::round(part.floats[i], (all[i].to + part.first * all[i].width), part.count * all[i].width);
    }
  }

  /// Calls work(groups, workspace) from several threads for all groups of attention.
  template <class Work>
  void by_groups(const AttentionShape& shape, std::int64_t workspace_each, const Work& work) {
    const std::int64_t groups = cpu::attention_groups(shape);
    const std::int64_t scores = shape.heads / shape.key_value_heads * shape.sequence_length * shape.sequence_length / 2;
    const int pieces = threads_.pieces(groups, scores);
    const Workspace workspace(*this, pieces * workspace_each);
    cpu::Threads::run(pieces, groups,
                      [&](const Range& part, int piece) { work(part, workspace.floats + piece * workspace_each); });
  }

  static LogitsShape part_of(const LogitsShape& shape, std::int64_t rows) {
    return {rows, shape.classes, shape.stride};
  }
  static NormShape part_of(const NormShape& shape, std::int64_t rows) { return {rows, shape.width, shape.epsilon}; }

  double squares(const float* values, std::int64_t count) {
    std::vector<double> sums(static_cast<std::size_t>(pieces_of(count, 1)));
    by_rows<1>(count, {in(values, 1)}, [&](const Rows<1>& part) {
      sums[static_cast<std::size_t>(part.piece)] = cpu::squared_sum(part.floats[0], part.count);
    });
    return std::accumulate(sums.begin(), sums.end(), 0.0);
  }

  void adamw(const AdamWStep& step, const OptimizerSegment& all, float gradient_factor) {
    cpu::Threads::run(threads_.pieces(all.count), all.count, [&](const Range& piece, int) {
      // Values are rounded while they are in the cache.
      const bool rounds = all.rounded.data != nullptr;
      const std::int64_t at_once = rounds ? widened_at_once : piece.size();
      for (std::int64_t first = piece.first; first < piece.last; first += at_once) {
        const std::int64_t part = std::min(at_once, piece.last - first);
        cpu::adamw(step, all.decays, gradient_factor, all.value + first, all.gradient + first, all.first_moment + first,
                   all.second_moment + first, part);
        if (rounds) cpu::round(all.value + first, (all.rounded + first), part);
      }
    });
  }

  void settle() { queue_.settle(); }

  const cpu::Threads& threads_;
  MemoryPool& pool_;
  HostQueue queue_;
};

}  // namespace

std::unique_ptr<CpuStream> make_cpu_stream(const cpu::Threads& threads, MemoryPool& pool, HostQueues& queues) {
  return std::make_unique<KernelStream>(threads, pool, queues);
}

}  // namespace sailor::runtime
