/* Portable panel product; 16 columns at a time is what baseline compilers keep in registers. */
#include "kernels/kernels.h"

#define COLUMNS 16

void hy3d_gemm_f32__ref(size_t rows, size_t segments, size_t segment, size_t blocks, size_t block,
                        const float *a, const float *b, float *c, int accumulate,
                        const hy3d__ahead *ahead)
{
    (void)ahead;
    for (size_t r = 0; r < rows; r++) {
        for (size_t j = 0; j < 32; j += COLUMNS) {
            float sum[COLUMNS] = {0.0F};
            const float *column = b + j;
            for (size_t k = 0; k < segments * blocks * 16; k++) {
                const size_t s = k / (16 * blocks), at = k / 16 % blocks;
                const float x = a[s * segment + at * block + 16 * r + k % 16];
                for (int l = 0; l < COLUMNS; l++) {
                    sum[l] += x * column[l];
                }
                column += 32;
            }
            float *const out = c + 32 * r + j;
            for (int l = 0; l < COLUMNS; l++) {
                out[l] = accumulate ? out[l] + sum[l] : sum[l];
            }
        }
    }
}
