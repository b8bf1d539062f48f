#include "hy3d/tensor.h"

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
