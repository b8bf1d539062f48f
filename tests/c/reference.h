/* What a convolution must be. */
#ifndef HY3D_TESTS_REFERENCE_H
#define HY3D_TESTS_REFERENCE_H

#include "hy3d/conv3d.h"

/* Plain loops with sums in double, one rounding at the end; one thread, slow, allocates nothing.
 * Arguments and statuses as those of a plan and hy3d_conv3d_run_fused (fusion may be NULL); desc's
 * threads, limit and accuracy are ignored. */
HY3D_API hy3d_status reference_conv3d(const hy3d_conv3d_desc *desc, const hy3d_tensor *x,
                                      const hy3d_tensor *weight, const hy3d_tensor *bias,
                                      const hy3d_conv3d_fusion *fusion, const hy3d_tensor *y);

/* Bytes of a description, a tensor, a frame and a fusion: who calls this from another language lays
 * them out itself. */
HY3D_API void reference_sizes(size_t sizes_out[4]);

#endif
