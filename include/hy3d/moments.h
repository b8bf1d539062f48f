/* Mean and squared deviations of each channel: what GroupNorm needs of an activation. */
#ifndef HY3D_MOMENTS_H
#define HY3D_MOMENTS_H

#include <stdint.h>

#include "hy3d/context.h"
#include "hy3d/export.h"
#include "hy3d/status.h"
#include "hy3d/tensor.h"

HY3D_BEGIN_DECLS

/* Of x (N, C, T, H, W), f32, f16 or bf16, any strides: mean[c] is the mean over all positions of
 * channel c, deviations[c] the sum of (x - mean[c])^2. Sums are made in double, of blocks of
 * positions whose first value is subtracted before squaring, so nothing cancels: deviations are
 * within 1e-10 of themselves for any data, plus 2^-50 * (blocks of 2048 positions) * (1 + |mean| /
 * standard deviation) of them. NaN and infinities in x give
 * NaN deviations, and a mean that is not finite.
 *
 * num_threads as in hy3d_conv3d_desc. Bit-identical for every thread count, CPU level and memory
 * layout (NaN aside: only "is NaN" is promised). Allocates nothing. cancel may be NULL;
 * HY3D_ERR_CANCELLED leaves mean and deviations partly written. HY3D_ERR_INVALID_ARGUMENT (also:
 * a channel without positions, data that is not aligned), HY3D_ERR_UNSUPPORTED (f64),
 * HY3D_ERR_OVERFLOW. */
HY3D_API hy3d_status hy3d_channel_moments(hy3d_context *context, const hy3d_tensor *x,
                                          uint32_t num_threads, const hy3d_cancel *cancel,
                                          double *mean, double *deviations);

HY3D_END_DECLS

#endif
