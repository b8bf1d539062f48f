/* The convolution tile of every level, on integers: exact whether or not products are fused. */
#include "conv3d_support.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"

enum { K_MAX = 70, PITCH = 80, LDA = 90, LDC = 61, ROWS = 8, LANES = 16 };

typedef struct tile_data {
    float a[ROWS * LDA], b[K_MAX * PITCH], bias[ROWS], c[ROWS * LDC];
    int32_t offset[K_MAX];
    const float *vectors[3];
} tile_data;

static void fill(test_random *random, tile_data *data, bool integers)
{
    test_fill_f32(random, data->a, COUNT_OF(data->a), 8);
    test_fill_f32(random, data->b, COUNT_OF(data->b), 8);
    test_fill_f32(random, data->bias, COUNT_OF(data->bias), 8);
    test_fill_f32(random, data->c, COUNT_OF(data->c), 8);
    for (size_t i = 0; !integers && i < COUNT_OF(data->a); i++) {
        data->a[i] /= 7.0F;
    }
    for (int i = 0; i < K_MAX; i++) {
        data->offset[i] = (int32_t)test_between(random, 0, (K_MAX - 1) * PITCH);
    }
    for (int v = 0; v < 3; v++) {
        data->vectors[v] = data->b + test_between(random, 0, PITCH - LANES);
    }
}

static double wanted(const tile_data *data, int r, int v, int l, int k, bool bias)
{
    double sum = (double)(bias ? data->bias[r] : data->c[r * LDC + v * LANES + l]);
    for (int i = 0; i < k; i++) {
        sum += (double)data->a[r * LDA + i] * (double)data->vectors[v][data->offset[i] + l];
    }
    return sum;
}

static void check_tile(const hy3d__kernels *kernels, const tile_data *data, int mr, int nv, int k,
                       bool bias)
{
    float c[ROWS * LDC];
    memcpy(c, data->c, sizeof c);
    kernels->conv_f32(mr, nv, (size_t)k, data->a, LDA, data->vectors, data->offset,
                      bias ? data->bias : NULL, c, LDC);
    for (int i = 0; i < ROWS * LDC; i++) {
        const int r = i / LDC, column = i % LDC;
        const double value = r < mr && column < nv * LANES
                                 ? wanted(data, r, column / LANES, column % LANES, k, bias)
                                 : (double)data->c[i];
        ck_assert_msg((double)c[i] == value, "mr %d nv %d k %d: row %d column %d", mr, nv, k, r,
                      column);
    }
}

START_TEST(test_conv_tile_is_exact_on_integers_and_writes_nothing_else)
{
    static const int row_counts[] = {1, 2, 3, 4, 8};
    static const int k_counts[] = {0, 1, 2, 15, 16, 17, 70};
    test_random random = test_rng(7);
    tile_data data;

    if (_i >= test_level_count()) {
        return;
    }
    fill(&random, &data, true);
    for (size_t m = 0; m < COUNT_OF(row_counts); m++) {
        for (int nv = 1; nv <= 3; nv++) {
            for (size_t k = 0; k < COUNT_OF(k_counts); k++) {
                check_tile(hy3d__kernels_for(_i), &data, row_counts[m], nv, k_counts[k],
                           (k + (size_t)nv) % 2 == 0);
            }
        }
    }
}
END_TEST

START_TEST(test_conv_tile_gives_the_same_bits_at_avx2_and_avx512)
{
    test_random random = test_rng(8);
    tile_data data;
    float c[2][ROWS * LDC];

    if (test_level_count() < 3) {
        return;
    }
    fill(&random, &data, false);
    for (int rows = 1; rows <= ROWS; rows = rows < 4 ? rows + 1 : 2 * rows) {
        for (int nv = 1; nv <= 3; nv++) {
            for (int level = 1; level <= 2; level++) {
                memcpy(c[level - 1], data.c, sizeof data.c);
                hy3d__kernels_for(level)->conv_f32(rows, nv, K_MAX, data.a, LDA, data.vectors,
                                                   data.offset, NULL, c[level - 1], LDC);
            }
            ck_assert_mem_eq(c[0], c[1], sizeof c[0]);
        }
    }
}
END_TEST

/* Every operand ends where a page does: the weights' last row, the last vector of the input, the
 * last offset, bias and result. Then each begins where a page does. */
START_TEST(test_conv_tile_touches_nothing_beyond_its_operands)
{
    enum { K = 37 };
    static const size_t floats[] = {ROWS * K, K + 3 * LANES + 15, ROWS, ROWS * 3 * LANES};
    test_guard guards[COUNT_OF(floats)], table = test_guard_make(K * sizeof(int32_t));
    test_random random = test_rng(9);

    for (size_t i = 0; i < COUNT_OF(floats); i++) {
        guards[i] = test_guard_make(floats[i] * sizeof(float));
        test_fill_f32(&random, test_guard_end(&guards[i], guards[i].bytes),
                      guards[i].bytes / sizeof(float), 8);
    }
    for (int mr = 1; mr <= ROWS; mr = mr < 4 ? mr + 1 : 2 * mr) {
        for (int nv = 1; nv <= 3; nv++) {
            for (size_t k = 0; k <= K; k++) {
                for (size_t shift = 0; shift < 2 * LANES; shift++) {
                    const bool at_start = shift >= LANES;
                    const size_t lanes = (size_t)nv * LANES + shift % LANES;
                    const size_t used[] = {(size_t)mr * k, k + lanes, (size_t)mr,
                                           (size_t)mr * (size_t)nv * LANES};
                    float *at[COUNT_OF(floats)];
                    for (size_t i = 0; i < COUNT_OF(floats); i++) {
                        at[i] = test_guard_end(
                            &guards[i], at_start ? guards[i].bytes : used[i] * sizeof(float));
                    }
                    int32_t *const offset =
                        test_guard_end(&table, at_start ? table.bytes : k * sizeof(int32_t));
                    for (size_t i = 0; i < k; i++) {
                        offset[i] = (int32_t)(i + 1);
                    }
                    /* Vectors one after another, up to the last float of the input. */
                    const float *b[3];
                    for (int v = 0; v < 3; v++) {
                        b[v] = at[1] + shift % LANES + v * LANES - (at_start ? 1 : 0);
                    }
                    hy3d__kernels_for(_i)->conv_f32(mr, nv, k, at[0], k, b, offset,
                                                    k % 2 == 0 ? at[2] : NULL, at[3],
                                                    (size_t)nv * LANES);
                }
            }
        }
    }
    for (size_t i = 0; i < COUNT_OF(floats); i++) {
        test_guard_free(&guards[i]);
    }
    test_guard_free(&table);
}
END_TEST

TCase *hy3d_conv3d_kernel_case(void)
{
    TCase *const tests = tcase_create("tile");
    tcase_add_loop_test(tests, test_conv_tile_is_exact_on_integers_and_writes_nothing_else, 0, 3);
    tcase_add_test(tests, test_conv_tile_gives_the_same_bits_at_avx2_and_avx512);
    tcase_add_loop_test(tests, test_conv_tile_touches_nothing_beyond_its_operands, 0,
                        test_level_count());
    return tests;
}
