/* Values of arrays that must be right before anything is computed from them. */
#ifndef HY3D_RASTER_CHECKS_H
#define HY3D_RASTER_CHECKS_H

#include <stdbool.h>
#include <stdint.h>

#include "hy3d/raster.h"
#include "kernels/raster_data.h" /* hy3d__read_index and its kin */

#define HY3D__RASTER_MOST_INDEX INT32_MAX

/* Looks at a cancel flag each time in so many steps of a loop. */
static inline bool hy3d__raster_stops(const hy3d_cancel *cancel, int64_t step)
{
    return step % 4096 == 0 && hy3d_cancel_requested(cancel);
}

/* Whether a dense array of a times b elements of 4 bytes has an address for each. */
bool hy3d__raster_fits(int64_t a, int64_t b);

/* Whether `rows` rows of `row` values are all within 0 .. limit - 1, or all finite; for every
 * thread count the same answer: HY3D_ERR_INVALID_ARGUMENT with the first bad row in *problem (may
 * be NULL), HY3D_ERR_CANCELLED. */
hy3d_status hy3d__raster_check_indices(hy3d_context *context, int64_t rows, int64_t row,
                                       const int32_t *values, uint32_t limit, uint32_t slots,
                                       const hy3d_cancel *cancel, hy3d_raster_problem *problem);
hy3d_status hy3d__raster_check_finite(hy3d_context *context, int64_t rows, int64_t row,
                                      const float *values, uint32_t slots,
                                      const hy3d_cancel *cancel, hy3d_raster_problem *problem);

#endif
