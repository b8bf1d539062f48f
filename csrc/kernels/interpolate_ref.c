/* Portable interpolation: the operations and the order that all levels keep. */
#include "kernels/kernels.h"

void hy3d_interpolate_f32__ref(size_t pixels, size_t channels, uint32_t vertices, uint32_t faces,
                               const float *attributes, const int32_t *triangles,
                               const int32_t *face_index, const float *barycentric,
                               float *restrict out)
{
    for (size_t p = 0; p < pixels; p++, barycentric += 3, out += channels) {
        const int32_t face = hy3d__read_index(face_index + p, faces + 1);
        if (face == 0) {
            for (size_t c = 0; c < channels; c++) {
                out[c] = 0;
            }
            continue;
        }
        const int32_t *const corner = triangles + 3 * (size_t)(face - 1);
        const float *const a = attributes + channels * (size_t)hy3d__read_index(corner, vertices);
        const float *const b =
            attributes + channels * (size_t)hy3d__read_index(corner + 1, vertices);
        const float *const c =
            attributes + channels * (size_t)hy3d__read_index(corner + 2, vertices);
        for (size_t i = 0; i < channels; i++) {
            out[i] = (barycentric[0] * a[i] + barycentric[1] * b[i]) + barycentric[2] * c[i];
        }
    }
}
