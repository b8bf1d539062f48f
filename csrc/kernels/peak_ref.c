/* What portable code does: the compiler's idea of it, product and sum apart. */
#include "kernels/kernels.h"

void hy3d_peak_f32__ref(size_t rounds, float factor, float addend, float *restrict sums)
{
    /* 32 sums at a time stay in registers whatever the machine has. */
    for (int start = 0; start < 384; start += 32) {
        float *const restrict s = sums + start;
        for (size_t i = 0; i < rounds; i++) {
            for (int j = 0; j < 32; j++) {
                s[j] = s[j] * factor + addend;
            }
        }
    }
}
