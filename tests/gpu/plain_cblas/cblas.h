/* The one call of a BLAS that the CPU backend makes, for machines that have none: plain loops, for small matrices. */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif
enum CBLAS_ORDER { CblasRowMajor = 101 };
enum CBLAS_TRANSPOSE { CblasNoTrans = 111, CblasTrans = 112 };
void cblas_sgemm(enum CBLAS_ORDER order, enum CBLAS_TRANSPOSE transpose_a, enum CBLAS_TRANSPOSE transpose_b, int m,
                 int n, int k, float alpha, const float* a, int a_stride, const float* b, int b_stride, float beta,
                 float* c, int c_stride);
#ifdef __cplusplus
}
#endif
