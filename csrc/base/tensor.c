#include "base/reach.h"

#include <stdbool.h>

#include "base/checked.h"

size_t hy3d_dtype_bytes(hy3d_dtype dtype)
{
    switch (dtype) {
    case HY3D_F32:
        return 4;
    case HY3D_F64:
        return 8;
    case HY3D_F16:
    case HY3D_BF16:
        return 2;
    }
    return 0;
}

const char *hy3d_dtype_name(hy3d_dtype dtype)
{
    switch (dtype) {
    case HY3D_F32:
        return "f32";
    case HY3D_F64:
        return "f64";
    case HY3D_F16:
        return "f16";
    case HY3D_BF16:
        return "bf16";
    }
    return "unknown";
}

/* From the first byte of the lowest element to the one behind the highest, relative to element 0;
 * false where that, or the distance, overflows. No size is 0. */
static bool byte_range(hy3d_dtype dtype, int dims, const int64_t *size, const int64_t *stride,
                       int64_t *low_out, int64_t *high_out)
{
    const int64_t bytes = (int64_t)hy3d_dtype_bytes(dtype);
    int64_t low = 0, high = 0, total;

    for (int i = 0; i < dims; i++) {
        int64_t reach;
        if (!hy3d__mul_i64(size[i] - 1, stride[i], &reach) ||
            !hy3d__mul_i64(reach, bytes, &reach) ||
            !hy3d__add_i64(reach < 0 ? low : high, reach, reach < 0 ? &low : &high)) {
            return false;
        }
    }
    if (!hy3d__add_i64(high, bytes, &high) || __builtin_sub_overflow(high, low, &total)) {
        return false;
    }
    *low_out = low;
    *high_out = high;
    return true;
}

hy3d_status hy3d_tensor_range(const hy3d_tensor *tensor, int64_t *low_out, int64_t *high_out)
{
    int64_t low = 0, high = 0;
    bool empty = false;

    if (tensor == NULL || hy3d_dtype_bytes(tensor->dtype) == 0 || low_out == NULL ||
        high_out == NULL) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    for (int i = 0; i < HY3D_TENSOR_DIMS; i++) {
        if (tensor->size[i] < 0) {
            return HY3D_ERR_INVALID_ARGUMENT;
        }
        empty = empty || tensor->size[i] == 0;
    }
    if (!empty &&
        !byte_range(tensor->dtype, HY3D_TENSOR_DIMS, tensor->size, tensor->stride, &low, &high)) {
        return HY3D_ERR_OVERFLOW;
    }
    *low_out = low;
    *high_out = high;
    return HY3D_OK;
}

hy3d_status hy3d__check_reach(const void *data, hy3d_dtype dtype, int dims, const int64_t *size,
                              const int64_t *stride)
{
    const uintptr_t address = (uintptr_t)data;
    int64_t low, high;

    if (!byte_range(dtype, dims, size, stride, &low, &high)) {
        return HY3D_ERR_OVERFLOW;
    }
    if (data == NULL || address % hy3d_dtype_bytes(dtype) != 0) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    return (uint64_t)0 - (uint64_t)low > address || (uint64_t)high > UINTPTR_MAX - address
               ? HY3D_ERR_OVERFLOW
               : HY3D_OK;
}
