/* Portable convolution tile; eight lanes at a time is what baseline compilers keep in registers. */
#include "kernels/kernels.h"

#define LANES 8

void hy3d_conv_f32__ref(int mr, int nv, size_t k, const float *a, size_t lda, const float *const *b,
                        const int32_t *offset, const float *bias, float *c, size_t ldc)
{
    for (int r = 0; r < mr; r++) {
        const float *const row = a + (size_t)r * lda;
        float *const out = c + (size_t)r * ldc;
        for (int j = 0; j < nv * 16; j += LANES) {
            const float *const vector = b[j / 16] + j % 16;
            float sum[LANES] = {0.0F};
            for (size_t i = 0; i < k; i++) {
                const float *const from = vector + offset[i];
                for (int l = 0; l < LANES; l++) {
                    sum[l] += row[i] * from[l];
                }
            }
            for (int l = 0; l < LANES; l++) {
                out[j + l] = (bias == NULL ? out[j + l] : bias[r]) + sum[l];
            }
        }
    }
}
