#include "elements/elements.h"

/* Halves that are gathered before a kernel converts them; small enough for the stack. */
#define CHUNK 128

static void copy_f32(const float *src, int64_t src_stride, int64_t n, float *dst,
                     int64_t dst_stride)
{
    for (int64_t i = 0; i < n; i++) {
        dst[i * dst_stride] = src[i * src_stride];
    }
}

static void copy_f64(const double *src, int64_t src_stride, int64_t n, double *dst,
                     int64_t dst_stride)
{
    for (int64_t i = 0; i < n; i++) {
        dst[i * dst_stride] = src[i * src_stride];
    }
}

static void widen(const hy3d__kernels *kernels, hy3d_dtype dtype, int64_t n, const uint16_t *src,
                  float *dst)
{
    (dtype == HY3D_F16 ? kernels->cvt_f16_f32 : kernels->cvt_bf16_f32)((size_t)n, src, dst);
}

static void narrow(const hy3d__kernels *kernels, hy3d_dtype dtype, int64_t n, const float *src,
                   uint16_t *dst)
{
    (dtype == HY3D_F16 ? kernels->cvt_f32_f16 : kernels->cvt_f32_bf16)((size_t)n, src, dst);
}

static void read_halves(const hy3d__kernels *kernels, hy3d_dtype dtype, const uint16_t *src,
                        int64_t stride, int64_t n, float *dst)
{
    uint16_t chunk[CHUNK];

    if (stride == 1) {
        widen(kernels, dtype, n, src, dst);
        return;
    }
    for (int64_t i = 0; i < n; i += CHUNK) {
        const int64_t count = n - i < CHUNK ? n - i : CHUNK;
        for (int64_t j = 0; j < count; j++) {
            chunk[j] = src[(i + j) * stride];
        }
        widen(kernels, dtype, count, chunk, dst + i);
    }
}

static void write_halves(const hy3d__kernels *kernels, hy3d_dtype dtype, const float *src,
                         int64_t n, uint16_t *dst, int64_t stride)
{
    uint16_t chunk[CHUNK];

    if (stride == 1) {
        narrow(kernels, dtype, n, src, dst);
        return;
    }
    for (int64_t i = 0; i < n; i += CHUNK) {
        const int64_t count = n - i < CHUNK ? n - i : CHUNK;
        narrow(kernels, dtype, count, src + i, chunk);
        for (int64_t j = 0; j < count; j++) {
            dst[(i + j) * stride] = chunk[j];
        }
    }
}

void hy3d__read_others(const hy3d__kernels *kernels, hy3d_dtype dtype, const void *src,
                       int64_t stride, int64_t n, void *dst)
{
    switch (dtype) {
    case HY3D_F32:
        copy_f32(src, stride, n, dst, 1);
        break;
    case HY3D_F64:
        copy_f64(src, stride, n, dst, 1);
        break;
    case HY3D_F16:
    case HY3D_BF16:
        read_halves(kernels, dtype, src, stride, n, dst);
        break;
    }
}

void hy3d__write_others(const hy3d__kernels *kernels, hy3d_dtype dtype, const void *src, int64_t n,
                        void *dst, int64_t stride)
{
    switch (dtype) {
    case HY3D_F32:
        copy_f32(src, 1, n, dst, stride);
        break;
    case HY3D_F64:
        copy_f64(src, 1, n, dst, stride);
        break;
    case HY3D_F16:
    case HY3D_BF16:
        write_halves(kernels, dtype, src, n, dst, stride);
        break;
    }
}
