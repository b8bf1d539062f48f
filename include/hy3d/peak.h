/* How fast this machine multiplies and adds: what a convolution's speed is held against. */
#ifndef HY3D_PEAK_H
#define HY3D_PEAK_H

#include <stdint.h>

#include "hy3d/context.h"
#include "hy3d/export.h"
#include "hy3d/status.h"

HY3D_BEGIN_DECLS

/* Runs independent chains of f32 multiply-adds in registers, `rounds` rounds of 768 operations a
 * grain and eight grains a thread, and says how many operations that were (a fused multiply-add is
 * two). The caller takes the time; a round is about 10 ns with AVX-512. At the context's CPU level:
 * where that is REF it is the speed of portable code. num_threads 0 is the context's maximum.
 * HY3D_ERR_INVALID_ARGUMENT: rounds below 1 or above 2^22 (a tenth of a
 * second with AVX-512, two at REF: nothing here waits for long). */
HY3D_API hy3d_status hy3d_peak_run(hy3d_context *context, uint32_t num_threads, int64_t rounds,
                                   double *flops_out);

HY3D_END_DECLS

#endif
