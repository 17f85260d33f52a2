#include "runtime/cpu/reduced.hpp"

#include <algorithm>

#include "runtime/bfloat16.hpp"
#include "runtime/cpu/kernels.hpp"
#include "runtime/float16.hpp"

namespace sailor::runtime::cpu {

namespace {

/// Max floats in which heads are rotated at once, unless one head needs more: the angles are computed once for all of
/// them.
constexpr std::int64_t turned_at_once = std::int64_t{1} << 20;

/// One key-value head and the query heads that share it, of one sequence.
AttentionShape group_of(const AttentionShape& shape) {
  AttentionShape group = shape;
  group.sequences = 1;
  group.heads = shape.heads / shape.key_value_heads;
  group.key_value_heads = 1;
  return group;
}

/// First columns of one group's queries, keys and values in a row of all.
struct GroupColumns {
  GroupColumns(const AttentionShape& shape, const AttentionShape& group, std::int64_t index)
      : query(index * group.width()),
        key(shape.width() + index * shape.head_width),
        value(shape.width() + shape.key_value_width() + index * shape.head_width) {}
  std::int64_t query;
  std::int64_t key;
  std::int64_t value;
};

/// Calls use(key-value head, first token) for each group.
template <class Use>
void for_groups(const AttentionShape& shape, const Range& groups, const Use& use) {
  for (std::int64_t group = groups.first; group < groups.last; ++group)
    use(group % shape.key_value_heads, group / shape.key_value_heads * shape.sequence_length);
}

/// Shape of rows of 16-bit values, `stride` apart, for conversion to rows of floats, or vice versa.
struct Rows {
  std::int64_t rows;
  std::int64_t width;
  std::int64_t from_stride;
  std::int64_t to_stride;
};

/// Converts every row of `from`, value by value. Versions for several CPUs can be made of functions, not of templates:
/// there is one function for each conversion, and this template is inlined into all versions of it.
template <class From, class To, class Convert>
[[gnu::always_inline]] inline void convert_rows(const From* from, To* to, const Rows& shape, const Convert& convert) {
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    const From* const source = from + row * shape.from_stride;
    To* const target = to + row * shape.to_stride;
#pragma omp simd
    for (std::int64_t i = 0; i < shape.width; ++i) target[i] = convert(source[i]);
  }
}

SAILOR_CPU_VERSIONS
void widen_bfloat16(const std::uint16_t* from, float* to, const Rows& shape) {
  convert_rows(from, to, shape, [](std::uint16_t bits) { return from_bfloat16(bits); });
}
SAILOR_CPU_VERSIONS
void widen_float16(const std::uint16_t* from, float* to, const Rows& shape) {
  convert_rows(from, to, shape, [](std::uint16_t bits) { return from_float16(bits); });
}
SAILOR_CPU_VERSIONS
void round_to_bfloat16(const float* from, std::uint16_t* to, const Rows& shape) {
  convert_rows(from, to, shape, [](float value) { return to_bfloat16(value); });
}
SAILOR_CPU_VERSIONS
void round_to_float16(const float* from, std::uint16_t* to, const Rows& shape) {
  convert_rows(from, to, shape, [](float value) { return to_float16(value); });
}

void widen_columns(ConstValues from, std::int64_t from_stride, float* to, std::int64_t to_stride, std::int64_t rows,
                   std::int64_t width) {
  const Rows shape{.rows = rows, .width = width, .from_stride = from_stride, .to_stride = to_stride};
  from.type == DataType::float16 ? widen_float16(from.bits16(), to, shape) : widen_bfloat16(from.bits16(), to, shape);
}

void round_columns(const float* from, std::int64_t from_stride, Values to, std::int64_t to_stride, std::int64_t rows,
                   std::int64_t width) {
  const Rows shape{.rows = rows, .width = width, .from_stride = from_stride, .to_stride = to_stride};
  to.type == DataType::float16 ? round_to_float16(from, to.bits16(), shape)
                               : round_to_bfloat16(from, to.bits16(), shape);
}

/// Widens a group's queries, keys and values into the layout of a shape of that group alone.
void widen_group(const AttentionShape& shape, const AttentionShape& group, const GroupColumns& columns,
                 ConstValues projected, float* to) {
  const auto widen_part = [&](std::int64_t column, std::int64_t at, std::int64_t width) {
    widen_columns(projected + column, shape.projected_width(), to + at, group.projected_width(), shape.sequence_length,
                  width);
  };
  widen_part(columns.query, 0, group.width());
  widen_part(columns.key, group.width(), shape.head_width);
  widen_part(columns.value, group.width() + shape.head_width, shape.head_width);
}

void round_group(const AttentionShape& shape, const AttentionShape& group, const GroupColumns& columns,
                 const float* from, Values projected) {
  const auto round_part = [&](std::int64_t column, std::int64_t at, std::int64_t width) {
    round_columns(from + at, group.projected_width(), projected + column, shape.projected_width(),
                  shape.sequence_length, width);
  };
  round_part(columns.query, 0, group.width());
  round_part(columns.key, group.width(), shape.head_width);
  round_part(columns.value, group.width() + shape.head_width, shape.head_width);
}

}  // namespace

void widen(ConstValues from, float* to, std::int64_t count) { widen_columns(from, 0, to, 0, 1, count); }
void round(const float* from, Values to, std::int64_t count) { round_columns(from, 0, to, 0, 1, count); }

void widen_rows(ConstValues from, std::int64_t stride, std::int64_t rows, std::int64_t width, float* to) {
  widen_columns(from, stride, to, width, rows, width);
}
void round_rows(const float* from, std::int64_t rows, std::int64_t width, Values to, std::int64_t stride) {
  round_columns(from, width, to, stride, rows, width);
}

std::int64_t rotary_reduced_workspace(const AttentionShape& shape) {
  const std::int64_t head = shape.sequence_length * shape.head_width;
  const std::int64_t heads = shape.heads + shape.key_value_heads;
  return head * std::clamp<std::int64_t>(turned_at_once / std::max<std::int64_t>(head, 1), 1, heads);
}

void rotary_reduced(const AttentionShape& shape, double base, bool inverse, Values projected, float* workspace) {
  const std::int64_t heads = shape.heads + shape.key_value_heads;  // keys follow the queries
  const std::int64_t at_once =
      rotary_reduced_workspace(shape) / std::max<std::int64_t>(shape.sequence_length * shape.head_width, 1);
  for (std::int64_t sequence = 0; sequence < shape.sequences; ++sequence)
    for (std::int64_t first = 0; first < heads; first += at_once) {
      AttentionShape part = shape;
      part.sequences = 1;
      part.heads = std::min(at_once, heads - first);
      part.key_value_heads = 0;
      const Values values =
          projected + (sequence * shape.sequence_length * shape.projected_width() + first * shape.head_width);
      widen_rows(values, shape.projected_width(), shape.sequence_length, part.width(), workspace);
      rotary(part, base, inverse, workspace);
      round_rows(workspace, shape.sequence_length, part.width(), values, shape.projected_width());
    }
}

std::int64_t attention_reduced_workspace(const AttentionShape& shape, bool backward) {
  const AttentionShape group = group_of(shape);
  const std::int64_t row = group.projected_width() + group.width();
  return shape.sequence_length * (row * (backward ? 2 : 1) + group.heads) + attention_workspace(group, backward);
}

void attention_forward_reduced(const AttentionShape& shape, const Range& groups, ConstValues projected, Values output,
                               float* log_sum, float* workspace) {
  const AttentionShape group = group_of(shape);
  const std::int64_t length = shape.sequence_length;
  float* const group_projected = workspace;
  float* const group_output = group_projected + length * group.projected_width();
  float* const group_log_sum = group_output + length * group.width();
  float* const rest = group_log_sum + length * group.heads;
  for_groups(shape, groups, [&](std::int64_t index, std::int64_t token) {
    const GroupColumns columns(shape, group, index);
    widen_group(shape, group, columns, projected + token * shape.projected_width(), group_projected);
    attention_forward(group, {0, 1}, group_projected, group_output, group_log_sum, rest);
    round_rows(group_output, length, group.width(), output + (token * shape.width() + columns.query), shape.width());
    for (std::int64_t row = 0; row < length; ++row)
      std::copy_n(group_log_sum + row * group.heads, group.heads,
                  log_sum + (token + row) * shape.heads + index * group.heads);
  });
}

void attention_backward_reduced(const AttentionShape& shape, const Range& groups, ConstValues projected,
                                ConstValues output, const float* log_sum, ConstValues output_gradient,
                                Values projected_gradient, float* workspace) {
  const AttentionShape group = group_of(shape);
  const std::int64_t length = shape.sequence_length;
  float* const group_projected = workspace;
  float* const group_projected_gradient = group_projected + length * group.projected_width();
  float* const group_output = group_projected_gradient + length * group.projected_width();
  float* const group_output_gradient = group_output + length * group.width();
  float* const group_log_sum = group_output_gradient + length * group.width();
  float* const rest = group_log_sum + length * group.heads;
  for_groups(shape, groups, [&](std::int64_t index, std::int64_t token) {
    const GroupColumns columns(shape, group, index);
    const std::int64_t at = token * shape.width() + columns.query;
    widen_group(shape, group, columns, projected + token * shape.projected_width(), group_projected);
    widen_rows(output + at, shape.width(), length, group.width(), group_output);
    widen_rows(output_gradient + at, shape.width(), length, group.width(), group_output_gradient);
    for (std::int64_t row = 0; row < length; ++row)
      std::copy_n(log_sum + (token + row) * shape.heads + index * group.heads, group.heads,
                  group_log_sum + row * group.heads);
    attention_backward(group, {0, 1}, group_projected, group_output, group_log_sum, group_output_gradient,
                       group_projected_gradient, rest);
    round_group(shape, group, columns, group_projected_gradient, projected_gradient + token * shape.projected_width());
  });
}

}  // namespace sailor::runtime::cpu
