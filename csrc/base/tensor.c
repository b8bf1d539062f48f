#include "base/tensor.h"

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

hy3d_status hy3d__check_reach(const void *data, hy3d_dtype dtype, int dims, const int64_t *size,
                              const int64_t *stride)
{
    const uintptr_t address = (uintptr_t)data;
    const size_t bytes = hy3d_dtype_bytes(dtype);
    int64_t low = 0, high = 0;

    for (int i = 0; i < dims; i++) {
        int64_t reach;
        if (!hy3d__mul_i64(size[i] - 1, stride[i], &reach) ||
            !hy3d__mul_i64(reach, (int64_t)bytes, &reach) ||
            !hy3d__add_i64(reach < 0 ? low : high, reach, reach < 0 ? &low : &high)) {
            return HY3D_ERR_OVERFLOW;
        }
    }
    if (data == NULL || address % bytes != 0) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    return (uint64_t)0 - (uint64_t)low > address || (uint64_t)high + bytes > UINTPTR_MAX - address
               ? HY3D_ERR_OVERFLOW
               : HY3D_OK;
}
