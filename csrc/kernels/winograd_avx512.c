/* Winograd's transforms on 16 channels a vector. */
#include "kernels/kernels.h"

#if HY3D__X86
#include <immintrin.h>

#define LANES 16
#define TARGET __attribute__((target("avx512f,fma")))
#define SUFFIX(name) name##__avx512
typedef __m512 vec;
#define V_LOAD(p) _mm512_loadu_ps(p)
#define V_STORE(p, v) _mm512_storeu_ps(p, v)
#define V_SET(x) _mm512_set1_ps(x)
#define V_ADD(a, b) _mm512_add_ps(a, b)
#define V_SUB(a, b) _mm512_sub_ps(a, b)
#define V_MUL(a, b) _mm512_mul_ps(a, b)
#define V_FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define V_FNMA(a, b, c) _mm512_fnmadd_ps(a, b, c)

#include "kernels/winograd_lanes.h"
#endif
