/* A BLAS of two functions, a loop each: what the tests load where a tool cannot follow OpenBLAS
 * (it is not built with MemorySanitizer). With TEST_CONFIG, an expression, it says of itself
 * what a build of OpenBLAS might say, and counts threads as that does: for everybody. With TEST_LOCAL
 * it counts them for each caller, as MKL does. */
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))
enum { TRANSPOSED = 112 };

/* The threads that the last product was allowed. */
EXPORT int test_blas_allowed = -1;
static int of_everybody = 4;
#ifdef TEST_LOCAL
static _Thread_local int of_caller;

EXPORT int MKL_Set_Num_Threads_Local(int count);
EXPORT int MKL_Set_Num_Threads_Local(int count)
{
    const int before = of_caller;
    of_caller = count;
    return before;
}
#define ALLOWED() (of_caller != 0 ? of_caller : of_everybody)
#else
#define ALLOWED() of_everybody
#endif

/* Element (i, j) of op(X), row-major. */
#define AT(x, ld, transposed, i, j) \
    ((transposed) ? (x)[(size_t)(j) * (size_t)(ld) + (size_t)(i)] \
                  : (x)[(size_t)(i) * (size_t)(ld) + (size_t)(j)])

/* The caller asks for row-major order and alpha 1. */
#define GEMM(name, type)                                                                           \
    EXPORT void name(int order, int trans_a, int trans_b, int m, int n, int k, type alpha,         \
                     const type *a, int lda, const type *b, int ldb, type beta, type *c, int ldc); \
    EXPORT void name(int order, int trans_a, int trans_b, int m, int n, int k, type alpha,         \
                     const type *a, int lda, const type *b, int ldb, type beta, type *c, int ldc)  \
    {                                                                                              \
        const bool keeps = beta > 0;                                                               \
        (void)order;                                                                               \
        test_blas_allowed = ALLOWED();                                                             \
        for (int i = 0; i < m; i++) {                                                              \
            type *const row = c + (size_t)i * (size_t)ldc;                                         \
            for (int j = 0; j < n; j++) {                                                          \
                row[j] = keeps ? beta * row[j] : 0;                                                \
            }                                                                                      \
            for (int l = 0; l < k; l++) {                                                          \
                const type x = alpha * AT(a, lda, trans_a == TRANSPOSED, i, l);                    \
                for (int j = 0; j < n; j++) {                                                      \
                    row[j] += x * AT(b, ldb, trans_b == TRANSPOSED, l, j);                         \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
    }

GEMM(cblas_sgemm, float)
GEMM(cblas_dgemm, double)

#ifdef TEST_CONFIG
EXPORT const char *openblas_get_config(void);
EXPORT const char *openblas_get_config(void)
{
    return TEST_CONFIG;
}

EXPORT const char *openblas_get_corename(void);
EXPORT const char *openblas_get_corename(void)
{
    return "Prescott";
}

EXPORT void openblas_set_num_threads(int count);
EXPORT void openblas_set_num_threads(int count)
{
    of_everybody = count;
}

EXPORT int openblas_get_num_threads(void);
EXPORT int openblas_get_num_threads(void)
{
    return of_everybody;
}
#endif
