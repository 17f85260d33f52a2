// A BLAS whose matrix products take SAILOR_TEST_PRODUCT_US longer, without computing, for programs that load this with
// LD_PRELOAD: a training during which other things are to happen leaves the cores to them.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>

extern "C" void cblas_sgemm(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha,
                            const float* a, int stride_a, const float* b, int stride_b, float beta, float* c,
                            int stride_c) {
  using Product =
      void (*)(int, int, int, int, int, int, float, const float*, int, const float*, int, float, float*, int);
  static const auto product = reinterpret_cast<Product>(::dlsym(RTLD_NEXT, "cblas_sgemm"));
  static const char* const microseconds = std::getenv("SAILOR_TEST_PRODUCT_US");
  if (microseconds != nullptr) ::usleep(static_cast<useconds_t>(std::atoi(microseconds)));
  product(order, transpose_a, transpose_b, m, n, k, alpha, a, stride_a, b, stride_b, beta, c, stride_c);
}
