/* The kernels of every level against an oracle that is written another way (doubles and ldexp, no
 * bit tricks), and against each other: loop index = level. */
#include "support.h"

#include <math.h>
#include <string.h>

#include "kernels/kernels.h"

enum { HALVES = 65536, CHUNK = 4096 };

/* A 16-bit float format. */
typedef struct format {
    int fraction_bits, lowest_exponent, all_ones; /* all_ones: exponent field of infinity */
} format;
static const format f16 = {10, -14, 0x1f};
static const format bf16 = {7, -126, 0xff};

static bool is_nan_half(format of, uint32_t half)
{
    return (half & 0x7fffU) > (uint32_t)of.all_ones << of.fraction_bits;
}

/* Value of a 16-bit pattern that is no NaN. */
static double oracle_decode(format of, uint32_t half)
{
    const int fraction = (int)(half & ((1U << of.fraction_bits) - 1U));
    const int exponent = (int)((half & 0x7fffU) >> of.fraction_bits);
    const int one = 1 << of.fraction_bits;
    double magnitude = ldexp(fraction, of.lowest_exponent - of.fraction_bits);
    if (exponent == of.all_ones) {
        magnitude = INFINITY;
    } else if (exponent > 0) {
        magnitude = ldexp(one + fraction, of.lowest_exponent + exponent - 1 - of.fraction_bits);
    }
    return half & 0x8000U ? -magnitude : magnitude;
}

/* Nearest pattern to a value that is no NaN, ties to even. Every step is exact in double. */
static uint32_t oracle_encode(format of, double value)
{
    const uint32_t sign = signbit(value) ? 0x8000U : 0;
    const uint32_t infinity = (uint32_t)of.all_ones << of.fraction_bits;
    const double magnitude = fabs(value);
    if (isinf(magnitude)) {
        return sign | infinity;
    }
    int exponent;
    frexp(magnitude, &exponent);
    exponent--; /* 2^exponent <= magnitude */
    if (exponent < of.lowest_exponent || magnitude == 0) {
        exponent = of.lowest_exponent;
    }
    const double steps = ldexp(magnitude, of.fraction_bits - exponent);
    double whole = floor(steps);
    const double rest = steps - whole;
    if (rest > 0.5 || (rest == 0.5 && fmod(whole, 2) == 1)) {
        whole += 1;
    }
    const uint32_t bits =
        (uint32_t)whole + ((uint32_t)(exponent - of.lowest_exponent) << of.fraction_bits);
    return sign | (bits < infinity ? bits : infinity);
}

/* What kernels.inc promises for NaN. */
static uint32_t nan_to_half(format of, uint32_t bits)
{
    const uint32_t fraction = (bits & 0x7fffffU) >> (23 - of.fraction_bits);
    return (bits >> 16 & 0x8000U) | (uint32_t)of.all_ones << of.fraction_bits |
           1U << (of.fraction_bits - 1) | fraction;
}

static uint32_t wanted_half(format of, uint32_t bits)
{
    const float value = test_float_of(bits);
    return isnan(value) ? nan_to_half(of, bits) : oracle_encode(of, (double)value);
}

/* Both narrowing kernels of a level on n patterns. */
static void check_narrowing(int level, size_t n, const uint32_t *patterns)
{
    static float in[CHUNK];
    static uint16_t out[2][CHUNK];
    const hy3d__kernels *const kernels = hy3d__kernels_for(level);
    memcpy(in, patterns, n * sizeof *patterns);
    kernels->cvt_f32_f16(n, in, out[0]);
    kernels->cvt_f32_bf16(n, in, out[1]);
    for (size_t i = 0; i < n; i++) {
        const uint32_t half = wanted_half(f16, patterns[i]);
        const uint32_t brain = wanted_half(bf16, patterns[i]);
        if (out[0][i] != half || out[1][i] != brain) {
            ck_abort_msg("f32 %08x at level %d: f16 %04x, wanted %04x; bf16 %04x, wanted %04x",
                         patterns[i], level, out[0][i], half, out[1][i], brain);
        }
    }
}

START_TEST(test_every_f16_and_bf16_pattern_widens_exactly)
{
    static uint16_t in[HALVES];
    static float out[2][HALVES];
    const hy3d__kernels *const kernels = hy3d__kernels_for(_i);
    for (uint32_t half = 0; half < HALVES; half++) {
        in[half] = (uint16_t)half;
    }
    kernels->cvt_f16_f32(HALVES, in, out[0]);
    kernels->cvt_bf16_f32(HALVES, in, out[1]);
    for (uint32_t half = 0; half < HALVES; half++) {
        uint32_t wanted =
            test_bits_of((float)(is_nan_half(f16, half) ? 0 : oracle_decode(f16, half)));
        if (is_nan_half(f16, half)) {
            wanted = (half & 0x8000U) << 16 | 0x7fc00000U | (half & 0x3ffU) << 13;
        }
        ck_assert_msg(test_bits_of(out[0][half]) == wanted, "f16 %04x gives %08x, wanted %08x", half,
                      test_bits_of(out[0][half]), wanted);
        wanted = half << 16;
        if (!is_nan_half(bf16, half)) {
            ck_assert_msg(test_bits_of((float)oracle_decode(bf16, half)) == wanted, "oracle %04x",
                          half);
        }
        ck_assert_msg(test_bits_of(out[1][half]) == wanted, "bf16 %04x gives %08x", half,
                      test_bits_of(out[1][half]));
    }
}
END_TEST

START_TEST(test_every_f16_and_bf16_pattern_survives_a_round_trip)
{
    static uint16_t in[HALVES], back[HALVES];
    static float wide[HALVES];
    const hy3d__kernels *const kernels = hy3d__kernels_for(_i);
    for (uint32_t half = 0; half < HALVES; half++) {
        in[half] = (uint16_t)half;
    }
    kernels->cvt_f16_f32(HALVES, in, wide);
    kernels->cvt_f32_f16(HALVES, wide, back);
    for (uint32_t half = 0; half < HALVES; half++) {
        ck_assert_uint_eq(back[half], half | (is_nan_half(f16, half) ? 0x200U : 0));
    }
    kernels->cvt_bf16_f32(HALVES, in, wide);
    kernels->cvt_f32_bf16(HALVES, wide, back);
    for (uint32_t half = 0; half < HALVES; half++) {
        ck_assert_uint_eq(back[half], half | (is_nan_half(bf16, half) ? 0x40U : 0));
    }
}
END_TEST

/* At every representable value, at the middle to the next one, and one f32 step beside both. */
START_TEST(test_narrowing_rounds_to_nearest_even_at_every_boundary)
{
    static const uint32_t around[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    uint32_t patterns[CHUNK];
    size_t n = 0;
    for (uint32_t half = 0; half < HALVES; half++) {
        for (size_t i = 0; i < COUNT_OF(around); i++) {
            patterns[n++] = half << 16 | around[i]; /* boundaries of bf16 */
        }
        if (!is_nan_half(f16, half)) {
            const double here = oracle_decode(f16, half);
            /* Middle to the next one up; above the largest finite value the tie is 65520. */
            const bool has_next = (half & 0x7fffU) < 0x7bffU;
            const double next = has_next ? oracle_decode(f16, half + 1) : copysign(65536.0, here);
            const uint32_t exact = test_bits_of((float)here);
            const uint32_t middle = test_bits_of((float)(isinf(here) ? here : (here + next) / 2));
            const uint32_t beside[] = {exact, exact + 1, exact - 1, middle, middle + 1, middle - 1};
            memcpy(patterns + n, beside, sizeof beside);
            n += COUNT_OF(beside);
        }
        if (n > CHUNK - 16) {
            check_narrowing(_i, n, patterns);
            n = 0;
        }
    }
    check_narrowing(_i, n, patterns);
}
END_TEST

START_TEST(test_narrowing_agrees_with_the_oracle_on_a_million_patterns)
{
    test_random random = test_rng(20);
    uint32_t patterns[CHUNK];
    for (int chunk = 0; chunk < 1000000 / CHUNK + 1; chunk++) {
        for (size_t i = 0; i < CHUNK; i++) {
            patterns[i] = (uint32_t)(test_next(&random) >> 32);
        }
        check_narrowing(_i, CHUNK, patterns);
    }
}
END_TEST

START_TEST(test_unknown_levels_get_the_reference)
{
    ck_assert_ptr_eq(hy3d__kernels_for(-1), hy3d__kernels_for(HY3D_CPU_REF));
    ck_assert_ptr_eq(hy3d__kernels_for(99), hy3d__kernels_for(HY3D_CPU_REF));
    for (int level = test_level_count(); level <= HY3D_CPU_AVX512; level++) {
        test_skip(hy3d_cpu_level_name((hy3d_cpu_level)level));
    }
}
END_TEST

Suite *hy3d_kernels_suite(void);
Suite *hy3d_kernels_suite(void)
{
    Suite *const suite = suite_create("kernels");
    TCase *const tests = tcase_create("kernels");
    const int levels = test_level_count();
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, test_every_f16_and_bf16_pattern_widens_exactly, 0, levels);
    tcase_add_loop_test(tests, test_every_f16_and_bf16_pattern_survives_a_round_trip, 0, levels);
    tcase_add_loop_test(tests, test_narrowing_rounds_to_nearest_even_at_every_boundary, 0, levels);
    tcase_add_loop_test(tests, test_narrowing_agrees_with_the_oracle_on_a_million_patterns, 0,
                        levels);
    tcase_add_test(tests, test_unknown_levels_get_the_reference);
    suite_add_tcase(suite, tests);
    return suite;
}
