/* The one reader and the one writer of elements of any type and stride.
 *
 * What is computed with has the compute type: f64 for f64, else f32. The conversions are the
 * kernels' (kernels.inc says how they round). */
#ifndef HY3D_ELEMENTS_H
#define HY3D_ELEMENTS_H

#include <stdint.h>
#include <string.h>

#include "hy3d/tensor.h"
#include "kernels/kernels.h"

/* elements.c: the functions below, where elements are not simply copied. */
void hy3d__read_others(const hy3d__kernels *kernels, hy3d_dtype dtype, const void *src,
                       int64_t stride, int64_t n, void *dst);
void hy3d__write_others(const hy3d__kernels *kernels, hy3d_dtype dtype, const void *src, int64_t n,
                        void *dst, int64_t stride);

/* n elements, `stride` of them apart from src on, to n values of compute type. */
static inline void hy3d__read_elements(const hy3d__kernels *kernels, hy3d_dtype dtype,
                                       const void *src, int64_t stride, int64_t n, void *dst)
{
    if (stride == 1 && (dtype == HY3D_F32 || dtype == HY3D_F64)) {
        memcpy(dst, src, (size_t)n * hy3d_dtype_bytes(dtype));
    } else {
        hy3d__read_others(kernels, dtype, src, stride, n, dst);
    }
}

/* And back. */
static inline void hy3d__write_elements(const hy3d__kernels *kernels, hy3d_dtype dtype,
                                        const void *src, int64_t n, void *dst, int64_t stride)
{
    if (stride == 1 && (dtype == HY3D_F32 || dtype == HY3D_F64)) {
        memcpy(dst, src, (size_t)n * hy3d_dtype_bytes(dtype));
    } else {
        hy3d__write_others(kernels, dtype, src, n, dst, stride);
    }
}

#endif
