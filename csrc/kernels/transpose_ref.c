#include "kernels/kernels.h"

void hy3d_to_lanes_f32__ref(size_t n, const float *src, size_t pitch, float *dst)
{
    for (size_t i = 0; i < n; i++) {
        for (size_t l = 0; l < 16; l++) {
            dst[i * 16 + l] = src[l * pitch + i];
        }
    }
}

void hy3d_from_lanes_f32__ref(size_t n, const float *src, float *dst, size_t pitch)
{
    for (size_t i = 0; i < n; i++) {
        for (size_t l = 0; l < 16; l++) {
            dst[l * pitch + i] = src[i * 16 + l];
        }
    }
}
