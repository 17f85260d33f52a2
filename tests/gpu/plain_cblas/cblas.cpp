#include "cblas.h"

#include <cstdint>
#include <vector>

void cblas_sgemm(CBLAS_ORDER, CBLAS_TRANSPOSE transpose_a, CBLAS_TRANSPOSE transpose_b, int m, int n, int k,
                 float alpha, const float* a, int a_stride, const float* b, int b_stride, float beta, float* c,
                 int c_stride) {
  const auto index = [](int row, int stride, int column) { return std::int64_t{row} * stride + column; };
  std::vector<double> sums(static_cast<std::size_t>(n));
  for (int i = 0; i < m; ++i) {
    sums.assign(sums.size(), 0.0);
    for (int l = 0; l < k; ++l) {
      const double value = a[transpose_a == CblasTrans ? index(l, a_stride, i) : index(i, a_stride, l)];
      for (int j = 0; j < n; ++j)
        sums[static_cast<std::size_t>(j)] +=
            value * b[transpose_b == CblasTrans ? index(j, b_stride, l) : index(l, b_stride, j)];
    }
    for (int j = 0; j < n; ++j) {
      float& to = c[index(i, c_stride, j)];
      to = alpha * static_cast<float>(sums[static_cast<std::size_t>(j)]) + (beta == 0.0f ? 0.0f : beta * to);
    }
  }
}
