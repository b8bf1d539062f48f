/* The one door to BLAS. The library is loaded by name at the first use (dlopen, local scope), so
 * that importing the extension costs nothing and the BLAS core type can follow the CPU level. */
#ifndef HY3D_BASE_BLAS_H
#define HY3D_BASE_BLAS_H

#include <stdbool.h>
#include <stdint.h>

#include "hy3d/context.h"

/* Row-major C[m][n] = op(A)[m][k] * op(B)[k][n] + beta * C, single-threaded, beta 0 or 1. All
 * sizes and leading dimensions below 2^31 (the caller's tiles are). Thread-safe; the number of
 * concurrent callers is capped below what the BLAS library has buffers for. */
typedef struct hy3d__gemm_args {
    bool trans_a, trans_b;
    int32_t m, n, k;
    const void *a;
    int32_t lda;
    const void *b;
    int32_t ldb;
    bool accumulate; /* beta: false 0, true 1 */
    void *c;
    int32_t ldc;
} hy3d__gemm_args;

/* Must have returned HY3D_OK once before the gemm calls. Idempotent, thread-safe. */
hy3d_status hy3d__blas_load(hy3d_context *context);
void hy3d__sgemm(hy3d_context *context, const hy3d__gemm_args *args);
void hy3d__dgemm(hy3d_context *context, const hy3d__gemm_args *args);

#endif
