/* Micro-kernels. kernels.inc lists them once; from the list come the prototypes of every ISA, the
 * table type and the three tables (ref, avx2, avx512). A kernel not in the list does not link.
 *
 * All ISAs give the same bits for the same input (NaN results of arithmetic aside: there only "is
 * NaN" is promised; and kernels whose entry in the list says otherwise). They read and write
 * exactly n elements and take any alignment the element type allows. The conversions do not depend
 * on the rounding or denormal mode of the calling thread. */
#ifndef HY3D_KERNELS_H
#define HY3D_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/raster_data.h"

#if defined(__x86_64__) || defined(__i386__)
#define HY3D__X86 1
#else
#define HY3D__X86 0
#endif

/* Memory that a kernel brings into L2 while it computes: what the caller needs next. Never read
 * beyond a prefetch, so that it may end anywhere. */
typedef struct hy3d__ahead {
    const char *a, *b;
    size_t a_step, b_step; /* bytes per step: one and two cache lines, 0 once all is on its way */
    const char *a_end, *b_end;
} hy3d__ahead;

static inline void hy3d__ahead_advance(hy3d__ahead *ahead, size_t steps)
{
    ahead->a += steps * ahead->a_step;
    ahead->b += steps * ahead->b_step;
    ahead->a_step = ahead->a < ahead->a_end ? ahead->a_step : 0;
    ahead->b_step = ahead->b < ahead->b_end ? ahead->b_step : 0;
}

typedef struct hy3d__kernels {
/* NOLINTNEXTLINE(bugprone-macro-parentheses): a declaration's parts */
#define K(name, parameters) void(*name) parameters;
#include "kernels.inc"
#undef K
} hy3d__kernels;

#define K(name, parameters)                                                                        \
    void hy3d_##name##__ref parameters;                                                            \
    void hy3d_##name##__avx2 parameters;                                                           \
    void hy3d_##name##__avx512 parameters;
#include "kernels.inc"
#undef K

/* Table of a level; level is a hy3d_cpu_level value, unknown ones give the reference. */
const hy3d__kernels *hy3d__kernels_for(int level);

#endif
