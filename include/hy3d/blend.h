/* Puts a decoded tile into the output with its blend windows. */
#ifndef HY3D_BLEND_H
#define HY3D_BLEND_H

#include "hy3d/context.h"
#include "hy3d/export.h"
#include "hy3d/status.h"
#include "hy3d/tensor.h"

HY3D_BEGIN_DECLS

/* out[n,c,t,h,w] += tile[n,c,t,h,w] * ((window_t[t] * window_h[h]) * window_w[w]), each operation
 * rounded to f32, or to f64 where tile or out is f64; an output of another type is rounded once
 * more when it is stored (from f64 to f16 or bf16 through f32). tile and out have equal sizes, any
 * strides, f32, f64, f16 or bf16, not necessarily the same; they must not overlap. The
 * windows have size[2], size[3] and size[4] elements. A NULL window is all ones. Single-threaded.
 * Bit-identical at every CPU level and for every layout (no fused multiply-add). An empty tensor
 * is a success whatever its strides. Fast where W, or C as in channels-last, has stride 1 in both.
 * HY3D_ERR_INVALID_ARGUMENT (also: an output with stride 0 along a size above 1, data that is not
 * aligned), HY3D_ERR_SHAPE_MISMATCH, HY3D_ERR_OVERFLOW (strides beyond any address). */
HY3D_API hy3d_status hy3d_blend_accumulate(const hy3d_context *context, const hy3d_tensor *tile,
                                           const float *window_t, const float *window_h,
                                           const float *window_w, const hy3d_tensor *out);

HY3D_END_DECLS

#endif
