/* Scale, shift and SiLU of every level: bits, values, errors and memory; loop index = level.
 * HY3D_TEST_EVERY_FLOAT=1 in the environment measures all 2^32 floats instead of every 1009th
 * (some minutes a level). */
#include "support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"

enum { CHUNK = 4096, LANES = 16 };

/* NaN is NaN, whatever its bits. */
static bool same(float a, float b)
{
    return isnan(a) ? isnan(b) : test_bits_of(a) == test_bits_of(b);
}

static double silu_oracle(double v)
{
    return v / (1.0 + exp(-v));
}

/* Error in u of the value, 2^-121 absolute aside; infinite where a NaN is wrong. */
static double error_in_u(float x, float got)
{
    const double exact = silu_oracle((double)x);
    if (isnan(exact) || isinf(exact)) {
        return same(got, (float)exact) ? 0.0 : INFINITY;
    }
    const double error = fabs((double)got - exact) - ldexp(1.0, -121);
    return error <= 0.0 ? 0.0 : error < INFINITY ? error / fabs(exact) * 0x1p24 : INFINITY;
}

START_TEST(test_silu_is_within_three_u_of_the_double_one)
{
    const char *const every = getenv("HY3D_TEST_EVERY_FLOAT");
    const bool all = every != NULL && strcmp(every, "1") == 0;
    const uint64_t step = all ? 1 : 1009;
    static float in[CHUNK], out[CHUNK];
    double worst = 0.0;
    float worst_at = 0.0F;

    for (uint64_t first = 0; first < (uint64_t)1 << 32; first += CHUNK * step) {
        for (uint64_t i = 0; i < CHUNK; i++) {
            in[i] = test_float_of((uint32_t)(first + i * step));
        }
        memcpy(out, in, sizeof in);
        hy3d__kernels_for(_i)->affine_silu_f32(CHUNK, 1.0F, -0.0F, 1, out);
        for (int i = 0; i < CHUNK; i++) {
            const double error = error_in_u(in[i], out[i]);
            if (error > worst) {
                worst = error;
                worst_at = in[i];
            }
        }
    }
    if (all) {
        fprintf(stderr, "silu at level %d: at most %.4f u (2^-24), at %a\n", _i, worst,
                (double)worst_at);
    }
    ck_assert_msg(worst <= 3.0, "%g u at %a", worst, (double)worst_at);
}
END_TEST

START_TEST(test_silu_of_special_values)
{
    static const float in[] = {INFINITY, -INFINITY, NAN, 0.0F, -0.0F, 1e30F, -1e30F, -90.0F};
    static const float wanted[] = {INFINITY, NAN, NAN, 0.0F, -0.0F, 1e30F, -0.0F, -0.0F};
    float got[COUNT_OF(in)];

    memcpy(got, in, sizeof in);
    hy3d__kernels_for(_i)->affine_silu_f32(COUNT_OF(in), 1.0F, -0.0F, 1, got);
    for (size_t i = 0; i < COUNT_OF(in); i++) {
        ck_assert_msg(same(got[i], wanted[i]), "silu(%g) = %g", (double)in[i], (double)got[i]);
    }
    memcpy(got, in, sizeof in);
    hy3d__kernels_for(_i)->affine_silu_f32(COUNT_OF(in), 1.0F, -0.0F, 0, got);
    for (size_t i = 0; i < COUNT_OF(in); i++) {
        ck_assert_msg(same(got[i], in[i]), "identity(%g) = %g", (double)in[i], (double)got[i]);
    }
}
END_TEST

static void fill_values(test_random *random, float *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        out[i] = test_between(random, 0, 9) == 0
                     ? test_float_of((uint32_t)(test_next(random) >> 32))
                     : (float)test_between(random, -4000, 4000) / 37;
    }
}

START_TEST(test_every_level_gives_the_reference_bits)
{
    static float in[CHUNK], wanted[CHUNK], got[CHUNK];
    float scale[LANES], shift[LANES];
    test_random random = test_rng(500);
    const hy3d__kernels *const reference = hy3d__kernels_for(0), *const own = hy3d__kernels_for(_i);

    for (int round = 0; round < 100; round++) {
        const int silu = round % 2;
        fill_values(&random, in, CHUNK);
        test_fill_f32(&random, scale, LANES, 8);
        test_fill_f32(&random, shift, LANES, 8);
        memcpy(wanted, in, sizeof in);
        memcpy(got, in, sizeof in);
        reference->affine_silu_lanes_f32(CHUNK / LANES, scale, shift, silu, wanted);
        own->affine_silu_lanes_f32(CHUNK / LANES, scale, shift, silu, got);
        for (int i = 0; i < CHUNK; i++) {
            float one = in[i];
            own->affine_silu_f32(1, scale[i % LANES], shift[i % LANES], silu, &one);
            ck_assert_msg(same(got[i], wanted[i]) && same(one, wanted[i]),
                          "%a * %g + %g, silu %d: lanes %a, line %a, reference %a",
                          (double)in[i], (double)scale[i % LANES], (double)shift[i % LANES], silu,
                          (double)got[i], (double)one, (double)wanted[i]);
        }
    }
}
END_TEST

/* Oracle of the affine part: one rounding a step, products of floats being exact in double. */
START_TEST(test_the_product_is_rounded_then_the_sum)
{
    static float in[CHUNK], got[CHUNK];
    test_random random = test_rng(501);

    for (int round = 0; round < 20; round++) {
        const float scale = (float)test_between(&random, -9999, 9999) / 777;
        const float shift = (float)test_between(&random, -9999, 9999) / 333;
        fill_values(&random, in, CHUNK);
        memcpy(got, in, sizeof in);
        hy3d__kernels_for(_i)->affine_silu_f32(CHUNK, scale, shift, 0, got);
        for (int i = 0; i < CHUNK; i++) {
            const float product = (float)((double)in[i] * (double)scale);
            const float wanted = (float)((double)product + (double)shift);
            ck_assert_msg(same(got[i], wanted), "%a * %a + %a = %a", (double)in[i], (double)scale,
                          (double)shift, (double)got[i]);
        }
    }
}
END_TEST

/* n floats (lanes: n positions) that begin `offset` floats after a page's start or end at one. */
static void try_memory(int level, bool lanes, size_t n, float *x, const float *scale,
                       const float *shift)
{
    static float before[4 * LANES * 64], wanted[COUNT_OF(before)];
    const hy3d__kernels *const own = hy3d__kernels_for(level), *const ref = hy3d__kernels_for(0);
    const size_t floats = lanes ? n * LANES : n;

    memcpy(before, x, floats * sizeof *x);
    memcpy(wanted, before, floats * sizeof *x);
    if (lanes) {
        own->affine_silu_lanes_f32(n, scale, shift, 1, x);
        ref->affine_silu_lanes_f32(n, scale, shift, 1, wanted);
    } else {
        own->affine_silu_f32(n, scale[0], shift[0], 1, x);
        ref->affine_silu_f32(n, scale[0], shift[0], 1, wanted);
    }
    ck_assert_mem_eq(x, wanted, floats * sizeof *x);
    memcpy(x, before, floats * sizeof *x);
}

START_TEST(test_no_length_or_alignment_touches_memory_beyond)
{
    enum { MOST = 131, PAD = 64 };
    test_guard guard = test_guard_make(MOST * LANES * sizeof(float) + PAD);
    test_guard tables[2] = {test_guard_make(PAD), test_guard_make(PAD)};
    float *const scale = test_guard_end(&tables[0], LANES * sizeof(float));
    float *const shift = test_guard_end(&tables[1], LANES * sizeof(float));
    float *const all = test_guard_end(&guard, guard.bytes);
    test_random random = test_rng(502);

    test_fill_f32(&random, scale, LANES, 8);
    test_fill_f32(&random, shift, LANES, 8);
    test_fill_f32(&random, all, guard.bytes / sizeof(float), 8);
    for (size_t n = 0; n <= MOST; n++) {
        for (size_t offset = 0; offset < LANES; offset++) {
            /* From the page before on, then up to the page behind. */
            try_memory(_i, false, n, all + offset, scale, shift);
            float *const end = test_guard_end(&guard, (n + offset) * sizeof(float));
            try_memory(_i, false, n, end, scale, shift);
            try_memory(_i, false, n, end + offset, scale, shift);
        }
    }
    for (size_t n = 0; n <= 9; n++) {
        for (size_t offset = 0; offset < LANES; offset++) {
            try_memory(_i, true, n, all + offset, scale, shift);
            float *const end = test_guard_end(&guard, (n * LANES + offset) * sizeof(float));
            try_memory(_i, true, n, end, scale, shift);
            try_memory(_i, true, n, end + offset, scale, shift);
        }
    }
    test_guard_free(&guard);
    test_guard_free(&tables[0]);
    test_guard_free(&tables[1]);
}
END_TEST

Suite *hy3d_silu_suite(void);
Suite *hy3d_silu_suite(void)
{
    Suite *const suite = suite_create("silu");
    TCase *const tests = tcase_create("silu");
    const int levels = test_level_count();
    tcase_set_timeout(tests, 3600);
    tcase_add_loop_test(tests, test_silu_is_within_three_u_of_the_double_one, 0, levels);
    tcase_add_loop_test(tests, test_silu_of_special_values, 0, levels);
    tcase_add_loop_test(tests, test_every_level_gives_the_reference_bits, 0, levels);
    tcase_add_loop_test(tests, test_the_product_is_rounded_then_the_sum, 0, levels);
    tcase_add_loop_test(tests, test_no_length_or_alignment_touches_memory_beyond, 0, levels);
    suite_add_tcase(suite, tests);
    return suite;
}
