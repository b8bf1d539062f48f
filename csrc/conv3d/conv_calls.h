/* How direct and thin call the kernel conv_f32: how many rows and vectors at once. */
#ifndef HY3D_CONV3D_CONV_CALLS_H
#define HY3D_CONV3D_CONV_CALLS_H

#include "conv3d/sizes.h"

/* Rows and lanes of the widest call; see kernels.inc. */
#define HY3D__CONV_ROWS 8
#define HY3D__CONV_LANES 16
#define HY3D__CONV_VECTORS 3

/* Rows and vectors of the next call, of so many left. 4 = 2 + 2: a single vector leaves the
 * multipliers waiting for loads. */
static inline int64_t hy3d__conv_rows_next(int64_t left)
{
    return left >= HY3D__CONV_ROWS ? HY3D__CONV_ROWS : hy3d__min_i64(left, 4);
}

static inline int64_t hy3d__conv_vectors_next(int64_t left)
{
    return left == 4 ? 2 : hy3d__min_i64(left, HY3D__CONV_VECTORS);
}

/* Time of n vectors in a row, in that of a vector of a full call: calls of three, and of two, which
 * run at 93 % of their speed; a single vector waits for loads. */
static inline double hy3d__conv_vectors_cost(int64_t n)
{
    const int64_t in_threes = n - n % HY3D__CONV_VECTORS;
    const double full = (double)in_threes;
    switch (n % HY3D__CONV_VECTORS) {
    case 1:
        return n == 1 ? 1.4 : full + 1.3;
    case 2:
        return full + 2.15;
    default:
        return full;
    }
}

#endif
