/* A strided view of memory that somebody else owns. */
#ifndef HY3D_TENSOR_H
#define HY3D_TENSOR_H

#include <stddef.h>
#include <stdint.h>

#include "hy3d/export.h"
#include "hy3d/status.h"

#define HY3D_TENSOR_DIMS 5

typedef enum hy3d_dtype {
    HY3D_F32 = 0,
    HY3D_F64 = 1,
    HY3D_F16 = 2,  /* IEEE binary16 */
    HY3D_BF16 = 3, /* bfloat16 */
} hy3d_dtype;

/* Five dimensions, outermost first: (N, C, T, H, W) for activations whatever their memory
 * layout, (Cout, Cin / groups, kT, kH, kW) for weights. Strides are in elements, any sign, 0 for
 * expanded dimensions. data points at element (0, 0, 0, 0, 0), which with negative strides is not
 * the lowest address. */
typedef struct hy3d_tensor {
    void *data;
    hy3d_dtype dtype;
    int64_t size[HY3D_TENSOR_DIMS];
    int64_t stride[HY3D_TENSOR_DIMS];
} hy3d_tensor;

HY3D_BEGIN_DECLS

/* 4, 8, 2, 2; 0 for an unknown value. */
HY3D_API size_t hy3d_dtype_bytes(hy3d_dtype dtype);
/* "f32", "f64", "f16", "bf16"; "unknown" for an unknown value. */
HY3D_API const char *hy3d_dtype_name(hy3d_dtype dtype);
/* The bytes that the elements lie in, relative to data: from *low_out (0 or negative) to just
 * before *high_out; both 0 where a size is 0. data is not looked at. HY3D_ERR_OVERFLOW: more than
 * 2^63 of them. HY3D_ERR_INVALID_ARGUMENT (also: a negative size, an unknown dtype). */
HY3D_API hy3d_status hy3d_tensor_range(const hy3d_tensor *tensor, int64_t *low_out,
                                       int64_t *high_out);

HY3D_END_DECLS

#endif
