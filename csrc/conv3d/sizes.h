/* Arithmetic on sizes, none of which is negative but a padding that crops.
 *
 * Names of csrc/conv3d: m output channels of a group, c input channels of a group, taps
 * kT * kH * kW, k = c * taps, the length of every sum. "Compute type" is f64 for f64, else f32. */
#ifndef HY3D_CONV3D_SIZES_H
#define HY3D_CONV3D_SIZES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/checked.h"
#include "hy3d/conv3d.h"

#define HY3D__CONV_ALIGN ((size_t)64)

static inline int64_t hy3d__conv_ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0 ? 1 : 0);
}

static inline int64_t hy3d__conv_round_up(int64_t a, int64_t b)
{
    return hy3d__conv_ceil_div(a, b) * b;
}

/* How often each position of x stands in the input along an axis. */
static inline int64_t hy3d__conv_upsample(const hy3d_conv3d_desc *desc, int axis)
{
    return desc->upsample[axis] > 1 ? desc->upsample[axis] : 1;
}

/* One past the last position of the input along an axis that is not cropped behind. Those that are
 * cropped before lie before the first that anything reads. */
static inline int64_t hy3d__conv_end(const hy3d_conv3d_desc *desc, int axis)
{
    return desc->in_size[axis] + hy3d__min_i64(0, desc->pad_after[axis]);
}

/* How the input's frames come in twos, as desc->pairs. */
static inline int64_t hy3d__conv_pairs(const hy3d_conv3d_desc *desc)
{
    return desc->upsample[0] == 2 ? 1 : (int64_t)desc->pairs;
}

#endif
