#include "runtime/cpu/matmul.hpp"

#include <cblas.h>

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "runtime/cpu/reduced.hpp"

namespace sailor::runtime::cpu {

namespace {

// Extents of the parts in which 16-bit matrices are widened: some MiB of scratch, and large enough for the BLAS to run
// at full speed and for the widening to take a few per cent of the product.
constexpr std::int64_t part_m = 512;
constexpr std::int64_t part_n = 1024;
constexpr std::int64_t part_k = 1024;

void multiply(const MatrixProduct& product, bool accumulate, const float* a, std::int64_t a_stride, const float* b,
              std::int64_t b_stride, float* c, std::int64_t c_stride) {
  const auto narrow = [](std::int64_t value) { return static_cast<int>(value); };
  cblas_sgemm(CblasRowMajor, product.transpose_a ? CblasTrans : CblasNoTrans,
              product.transpose_b ? CblasTrans : CblasNoTrans, narrow(product.m), narrow(product.n), narrow(product.k),
              1.0f, a, narrow(a_stride), b, narrow(b_stride), accumulate ? 1.0f : 0.0f, c, narrow(c_stride));
}

/// Rows [row, row + rows) and columns [column, column + columns) of op(A) or op(B), as floats.
struct Part {
  const float* floats;
  std::int64_t stride;
};
Part part_of(ConstValues matrix, bool transposed, std::int64_t stride, std::int64_t row, std::int64_t rows,
             std::int64_t column, std::int64_t columns, float* scratch) {
  if (transposed) {
    std::swap(row, column);
    std::swap(rows, columns);
  }
  const std::int64_t first = row * stride + column;
  if (matrix.is_float32()) return {matrix.floats() + first, stride};
  widen_rows(matrix + first, stride, rows, columns, scratch);
  return {scratch, columns};
}

/// Extents of the parts of A, B and C that are in scratch memory at a time.
struct Sizes {
  explicit Sizes(const MatrixProduct& product)
      : m(std::min(product.m, part_m)), n(std::min(product.n, part_n)), k(std::min(product.k, part_k)) {}
  std::int64_t m;
  std::int64_t n;
  std::int64_t k;
};

std::int64_t workspace_of_a_thread(const MatrixProduct& product, ConstValues a, ConstValues b, ConstValues c) {
  const Sizes sizes(product);
  return (a.is_float32() ? 0 : sizes.m * sizes.k) + (b.is_float32() ? 0 : sizes.k * sizes.n) +
         (c.is_float32() ? 0 : sizes.m * sizes.n);
}

int pieces_of(const Threads& threads, const MatrixProduct& product) {
  // A float of a factor counts as a float of work once a thread uses it this many times.
  constexpr std::int64_t uses = 64;
  return threads.pieces(std::max(product.m, product.n), std::min(product.m, product.n) * product.k / uses);
}

/// Computes these rows and columns of C.
void multiply_part(const MatrixProduct& product, ConstValues a, ConstValues b, Values c, const Range& rows,
                   const Range& columns, float* workspace) {
  const std::int64_t a_stride = product.a_row();
  const std::int64_t b_stride = product.b_row();
  const std::int64_t c_stride = product.c_row();
  MatrixProduct part = product;
  if (a.is_float32() && c.is_float32()) {
    part.m = rows.size();
    part.n = columns.size();
    multiply(part, product.accumulate, a.floats() + rows.first * (product.transpose_a ? 1 : a_stride), a_stride,
             b.floats() + columns.first * (product.transpose_b ? b_stride : 1), b_stride,
             c.floats() + rows.first * c_stride + columns.first, c_stride);
    return;
  }
  const Sizes sizes(product);
  float* const a_scratch = workspace;
  float* const b_scratch = a_scratch + (a.is_float32() ? 0 : sizes.m * sizes.k);
  float* const c_scratch = b_scratch + (b.is_float32() ? 0 : sizes.k * sizes.n);
  Part b_part{};
  for (std::int64_t column = columns.first; column < columns.last; column += sizes.n) {
    part.n = std::min(sizes.n, columns.last - column);
    for (std::int64_t row = rows.first; row < rows.last; row += sizes.m) {
      part.m = std::min(sizes.m, rows.last - row);
      const Values c_values = c + (row * c_stride + column);
      const bool direct = c.is_float32();
      if (!direct && product.accumulate) widen_rows(c_values, c_stride, part.m, part.n, c_scratch);
      for (std::int64_t inner = 0; inner < product.k; inner += sizes.k) {
        part.k = std::min(sizes.k, product.k - inner);
        const Part a_part = part_of(a, product.transpose_a, a_stride, row, part.m, inner, part.k, a_scratch);
        if (row == rows.first || sizes.k < product.k)  // else b_part is still valid
          b_part = part_of(b, product.transpose_b, b_stride, inner, part.k, column, part.n, b_scratch);
        multiply(part, product.accumulate || inner > 0, a_part.floats, a_part.stride, b_part.floats, b_part.stride,
                 direct ? c_values.floats() : c_scratch, direct ? c_stride : part.n);
      }
      if (!direct) round_rows(c_scratch, part.m, part.n, c_values, c_stride);
    }
  }
}

}  // namespace

std::int64_t matmul_workspace(const Threads& threads, const MatrixProduct& product, ConstValues a, ConstValues b,
                              ConstValues c) {
  return pieces_of(threads, product) * workspace_of_a_thread(product, a, b, c);
}

void matmul(const Threads& threads, const MatrixProduct& product, ConstValues a, ConstValues b, Values c,
            float* workspace) {
  if (a.type != b.type) throw std::logic_error("the factors of a matrix product have different types");
  if (std::max({product.m, product.n, product.k}) > std::numeric_limits<int>::max())  // BLAS with 32-bit integers
    throw std::runtime_error(
        "matrix with more than 2^31 rows or columns; use "
        "a smaller micro-batch");
  const bool by_rows = product.m >= product.n;
  const std::int64_t workspace_each = workspace_of_a_thread(product, a, b, c);
  Threads::run(pieces_of(threads, product), by_rows ? product.m : product.n, [&](const Range& part, int piece) {
    multiply_part(product, a, b, c, by_rows ? part : Range{0, product.m}, by_rows ? Range{0, product.n} : part,
                  workspace + piece * workspace_each);
  });
}

}  // namespace sailor::runtime::cpu
