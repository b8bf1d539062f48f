/* The kernels of every level against an oracle that is written another way (doubles and ldexp, no
 * bit tricks), and against each other: loop index = level. */
#include "support.h"

#include <fenv.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"

#if HY3D__X86
#include <immintrin.h>
#endif

enum { HALVES = 65536, CHUNK = 4096 };

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

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
    const float value = float_of(bits);
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
        uint32_t wanted = bits_of((float)(is_nan_half(f16, half) ? 0 : oracle_decode(f16, half)));
        if (is_nan_half(f16, half)) {
            wanted = (half & 0x8000U) << 16 | 0x7fc00000U | (half & 0x3ffU) << 13;
        }
        ck_assert_msg(bits_of(out[0][half]) == wanted, "f16 %04x gives %08x, wanted %08x", half,
                      bits_of(out[0][half]), wanted);
        wanted = half << 16;
        if (!is_nan_half(bf16, half)) {
            ck_assert_msg(bits_of((float)oracle_decode(bf16, half)) == wanted, "oracle %04x", half);
        }
        ck_assert_msg(bits_of(out[1][half]) == wanted, "bf16 %04x gives %08x", half,
                      bits_of(out[1][half]));
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
            const uint32_t exact = bits_of((float)here);
            const uint32_t middle = bits_of((float)(isinf(here) ? here : (here + next) / 2));
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

/* Source and target of one call, so that every kernel can be tried in one loop. */
enum { KERNELS = 6 };

static void call_kernel(const hy3d__kernels *kernels, int which, size_t n, const void *src,
                        const float *window, void *dst)
{
    switch (which) {
    case 0:
        kernels->cvt_f16_f32(n, src, dst);
        break;
    case 1:
        kernels->cvt_bf16_f32(n, src, dst);
        break;
    case 2:
        kernels->cvt_f32_f16(n, src, dst);
        break;
    case 3:
        kernels->cvt_f32_bf16(n, src, dst);
        break;
    case 4:
        kernels->blend_f32(n, 0.7F, window, src, dst);
        break;
    default:
        kernels->blend_f32(n, 0.7F, NULL, src, dst);
        break;
    }
}

static size_t src_bytes(int which)
{
    return which < 2 ? 2 : 4;
}

static size_t dst_bytes(int which)
{
    return which == 2 || which == 3 ? 2 : 4;
}

/* Elements of either width. */
typedef union buffer {
    uint16_t half[512];
    float wide[256];
} buffer;

/* Patterns without f32 NaN: two NaN operands of a blend may give either. */
static void fill_bits(test_random *random, int which, void *out, size_t bytes)
{
    for (size_t i = 0; i < bytes / 4; i++) {
        uint32_t word = (uint32_t)(test_next(random) >> 32);
        if (which >= 4) {
            word = bits_of((float)test_between(random, -1000, 1000) / 16);
        }
        memcpy((char *)out + 4 * i, &word, sizeof word);
    }
}

START_TEST(test_every_length_and_offset_gives_the_reference_bits_and_no_more)
{
    enum { MOST = 67, OFFSETS = 16 };
    test_random random = test_rng(21);
    buffer src, window, before, wanted, got;
    for (int which = 0; which < KERNELS; which++) {
        for (size_t n = 0; n <= MOST; n++) {
            for (size_t offset = 0; offset < OFFSETS; offset++) {
                fill_bits(&random, which, &src, sizeof src);
                fill_bits(&random, 4, &window, sizeof window);
                fill_bits(&random, which, &before, sizeof before);
                wanted = got = before;
                const void *const from = (const char *)&src + offset * src_bytes(which);
                const float *const weights = window.wide + offset;
                const size_t start = (OFFSETS - offset) * dst_bytes(which);
                call_kernel(hy3d__kernels_for(0), which, n, from, weights, (char *)&wanted + start);
                call_kernel(hy3d__kernels_for(_i), which, n, from, weights, (char *)&got + start);
                ck_assert_msg(memcmp(&wanted, &got, sizeof got) == 0,
                              "kernel %d, level %d, n %zu, offset %zu", which, _i, n, offset);
                /* The reference itself wrote inside its n elements only. */
                const size_t end = start + n * dst_bytes(which);
                ck_assert_int_eq(memcmp(&wanted, &before, start), 0);
                ck_assert_int_eq(memcmp((char *)&wanted + end, (char *)&before + end,
                                        sizeof before - end), 0);
            }
        }
    }
}
END_TEST

START_TEST(test_no_kernel_touches_memory_beyond_its_elements)
{
    enum { MOST = 257 };
    test_guard src = test_guard_make(MOST * 4), dst = test_guard_make(MOST * 4);
    test_guard window = test_guard_make(MOST * 4);
    memset(test_guard_end(&src, src.bytes), 0x3c, src.bytes);
    memset(test_guard_end(&dst, dst.bytes), 0x3c, dst.bytes);
    memset(test_guard_end(&window, window.bytes), 0x3c, window.bytes);
    for (int which = 0; which < KERNELS; which++) {
        for (size_t n = 0; n <= MOST; n++) {
            /* Against the page behind, then against the page before. */
            call_kernel(hy3d__kernels_for(_i), which, n,
                        test_guard_end(&src, n * src_bytes(which)), test_guard_end(&window, n * 4),
                        test_guard_end(&dst, n * dst_bytes(which)));
            call_kernel(hy3d__kernels_for(_i), which, n, test_guard_end(&src, src.bytes),
                        test_guard_end(&window, window.bytes), test_guard_end(&dst, dst.bytes));
        }
    }
    test_guard_free(&src);
    test_guard_free(&dst);
    test_guard_free(&window);
}
END_TEST

/* A product of two floats is exact in double, and a sum of two floats rounded to double and then to
 * float is the correctly rounded one (53 >= 2 * 24 + 2), so the oracle has one rounding a step. */
static float oracle_blend(float dst, float src, float row, float window)
{
    const float weight = (float)((double)row * (double)window);
    const float product = (float)((double)src * (double)weight);
    return (float)((double)dst + (double)product);
}

START_TEST(test_blend_rounds_the_product_then_the_sum)
{
    enum { N = 997, ROUNDS = 100 };
    test_random random = test_rng(22);
    float src[N], window[N], before[N], got[N];
    for (int round = 0; round < ROUNDS; round++) {
        /* Odd rounds: any bits at all, infinities and NaN included. */
        for (size_t i = 0; i < N; i++) {
            const uint64_t bits = test_next(&random), more = test_next(&random);
            const uint32_t keep = round % 2 ? 0xffffffffU : 0x83ffffffU;
            const uint32_t set = round % 2 ? 0 : 0x3c000000U;
            src[i] = float_of(((uint32_t)bits & keep) | set);
            window[i] = float_of(((uint32_t)(bits >> 32) & keep) | set);
            before[i] = float_of(((uint32_t)more & keep) | set);
        }
        const float row = (float)test_between(&random, -1000, 1000) / 777;
        for (int with_window = 0; with_window < 2; with_window++) {
            memcpy(got, before, sizeof got);
            hy3d__kernels_for(_i)->blend_f32(N, row, with_window ? window : NULL, src, got);
            for (size_t i = 0; i < N; i++) {
                const float wanted =
                    oracle_blend(before[i], src[i], row, with_window ? window[i] : 1);
                const bool same = isnan(wanted) ? isnan(got[i]) : bits_of(wanted) == bits_of(got[i]);
                ck_assert_msg(same, "%a + %a * (%a * %a) gives %a, wanted %a", (double)before[i],
                              (double)src[i], (double)row, (double)window[i], (double)got[i],
                              (double)wanted);
            }
        }
    }
}
END_TEST

START_TEST(test_conversions_ignore_the_rounding_mode_of_the_thread)
{
    static const int modes[] = {FE_DOWNWARD, FE_UPWARD, FE_TOWARDZERO};
    test_random random = test_rng(23);
    float src[CHUNK];
    uint16_t wanted[CHUNK], got[CHUNK];
    fill_bits(&random, 0, src, sizeof src);
    for (int which = 2; which < 4; which++) {
        call_kernel(hy3d__kernels_for(0), which, CHUNK, src, NULL, wanted);
        for (size_t i = 0; i < COUNT_OF(modes); i++) {
            ck_assert_int_eq(fesetround(modes[i]), 0);
            call_kernel(hy3d__kernels_for(_i), which, CHUNK, src, NULL, got);
            fesetround(FE_TONEAREST);
            ck_assert_int_eq(memcmp(wanted, got, sizeof got), 0);
        }
    }
}
END_TEST

#if HY3D__X86
/* torch.set_flush_denormal and some audio hosts switch this on. */
START_TEST(test_conversions_keep_denormals_where_the_thread_flushes_them)
{
    enum { FLUSH_TO_ZERO = 0x8000, DENORMALS_ARE_ZERO = 0x0040 };
    uint16_t halves[CHUNK], wanted_back[CHUNK], back[CHUNK];
    float wanted[CHUNK], got[CHUNK];
    for (int i = 0; i < CHUNK; i++) {
        halves[i] = (uint16_t)(i % 2 << 15 | i / 2 % 0x400); /* zeros and denormals */
    }
    for (int which = 0; which < 2; which++) {
        call_kernel(hy3d__kernels_for(0), which, CHUNK, halves, NULL, wanted);
        call_kernel(hy3d__kernels_for(0), which + 2, CHUNK, wanted, NULL, wanted_back);
        const unsigned mode = _mm_getcsr();
        _mm_setcsr(mode | FLUSH_TO_ZERO | DENORMALS_ARE_ZERO);
        call_kernel(hy3d__kernels_for(_i), which, CHUNK, halves, NULL, got);
        call_kernel(hy3d__kernels_for(_i), which + 2, CHUNK, got, NULL, back);
        _mm_setcsr(mode);
        ck_assert_int_eq(memcmp(wanted, got, sizeof got), 0);
        ck_assert_int_eq(memcmp(wanted_back, back, sizeof back), 0);
        ck_assert_int_eq(memcmp(halves, back, sizeof back), 0);
    }
}
END_TEST
#endif

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
    tcase_add_loop_test(tests, test_every_length_and_offset_gives_the_reference_bits_and_no_more, 0,
                        levels);
    tcase_add_loop_test(tests, test_no_kernel_touches_memory_beyond_its_elements, 0, levels);
    tcase_add_loop_test(tests, test_blend_rounds_the_product_then_the_sum, 0, levels);
    tcase_add_loop_test(tests, test_conversions_ignore_the_rounding_mode_of_the_thread, 0, levels);
#if HY3D__X86
    tcase_add_loop_test(tests, test_conversions_keep_denormals_where_the_thread_flushes_them, 0,
                        levels);
#endif
    tcase_add_test(tests, test_unknown_levels_get_the_reference);
    suite_add_tcase(suite, tests);
    return suite;
}
