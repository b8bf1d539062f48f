/* Portable interpolation: the operations and the order that all levels keep. */
#include "kernels/kernels.h"

void hy3d_interpolate_f32__ref(size_t pixels, size_t channels, const float *attributes,
                               const int32_t *triangles, const int32_t *face_index,
                               const float *barycentric, float *restrict out)
{
    for (size_t p = 0; p < pixels; p++, barycentric += 3, out += channels) {
        if (face_index[p] == 0) {
            for (size_t c = 0; c < channels; c++) {
                out[c] = 0;
            }
            continue;
        }
        const int32_t *const corner = triangles + 3 * (size_t)(face_index[p] - 1);
        const float *const a = attributes + channels * (size_t)corner[0];
        const float *const b = attributes + channels * (size_t)corner[1];
        const float *const c = attributes + channels * (size_t)corner[2];
        for (size_t i = 0; i < channels; i++) {
            out[i] = (barycentric[0] * a[i] + barycentric[1] * b[i]) + barycentric[2] * c[i];
        }
    }
}
