/* Portable sums of differences and of their squares: the order that all levels keep. */
#include "kernels/kernels.h"

#define LANES 16

void hy3d_moments_f32__ref(size_t n, const float *x, double shift, double *sums)
{
    double sum[LANES] = {0}, square[LANES] = {0};
    for (size_t i = 0; i < n; i += LANES) {
        const size_t lanes = n - i < LANES ? n - i : LANES;
        for (size_t l = 0; l < lanes; l++) {
            const double d = (double)x[i + l] - shift;
            sum[l] += d;
            square[l] += d * d;
        }
    }
    for (size_t half = LANES / 2; half > 0; half /= 2) {
        for (size_t l = 0; l < half; l++) {
            sum[l] += sum[l + half];
            square[l] += square[l + half];
        }
    }
    sums[0] = sum[0];
    sums[1] = square[0];
}
