/* What every reader of tensors must know before it computes an address. */
#ifndef HY3D_BASE_REACH_H
#define HY3D_BASE_REACH_H

#include <stdint.h>

#include "hy3d/status.h"
#include "hy3d/tensor.h"

/* That data is there and aligned (else HY3D_ERR_INVALID_ARGUMENT), and that the address of no
 * element overflows (HY3D_ERR_OVERFLOW). Sizes are at least 1, dtype is a known one. */
hy3d_status hy3d__check_reach(const void *data, hy3d_dtype dtype, int dims, const int64_t *size,
                              const int64_t *stride);

#endif
