// Matrix products of the emulated GPU: plain loops in double precision.
#include "runtime/cuda/gemm.hpp"

#include <vector>

#include "runtime/bits16.hpp"

namespace sailor::runtime::cuda {

thread_local __attribute__((aligned(16))) unsigned char shared_bytes[most_shared_bytes + emulator::guard_bytes];

namespace {

double value_at(ConstValues values, std::int64_t i) {
  return values.is_float32() ? values.floats()[i] : from_bits16(values.type, values.bits16()[i]);
}

void multiply(const MatrixProduct& product, ConstValues a, ConstValues b, ConstValues addend, Values output) {
  const std::int64_t m = product.m;
  const std::int64_t n = product.n;
  const std::int64_t k = product.k;
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = addend.data != nullptr ? value_at(addend, i * n + j) : 0.0;
      for (std::int64_t l = 0; l < k; ++l)
        sum += value_at(a, product.transpose_a ? l * m + i : i * k + l) *
               value_at(b, product.transpose_b ? j * k + l : l * n + j);
      if (output.is_float32())
        output.floats()[i * n + j] = static_cast<float>(sum);
      else
        output.bits16()[i * n + j] = to_bits16(output.type, static_cast<float>(sum));
    }
}

}  // namespace

struct Gemm::Plans {};
Gemm::Gemm() = default;
Gemm::~Gemm() = default;
std::size_t Gemm::workspace() const { return 64; }

void Gemm::multiply(const Queue& queue, const MatrixProduct& product, ConstValues a, ConstValues b, ConstValues addend,
                    Values output, bool, void*) {
  queue.stream->queue.put([=] { cuda::multiply(product, a, b, addend, output); });
}

}  // namespace sailor::runtime::cuda
