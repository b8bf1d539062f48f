/* Winograd's transforms on 8 channels a vector. */
#include "kernels/kernels.h"

#if HY3D__X86
#include <immintrin.h>

#define LANES 8
#define TARGET __attribute__((target("avx2,fma")))
#define SUFFIX(name) name##__avx2
typedef __m256 vec;
#define V_LOAD(p) _mm256_loadu_ps(p)
#define V_STORE(p, v) _mm256_storeu_ps(p, v)
#define V_SET(x) _mm256_set1_ps(x)
#define V_ADD(a, b) _mm256_add_ps(a, b)
#define V_SUB(a, b) _mm256_sub_ps(a, b)
#define V_MUL(a, b) _mm256_mul_ps(a, b)
#define V_FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define V_FNMA(a, b, c) _mm256_fnmadd_ps(a, b, c)

#include "kernels/winograd_lanes.h"
#endif
