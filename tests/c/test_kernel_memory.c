/* How the kernels treat memory, blending and the thread's floating-point modes; loop index =
 * level. The values of the conversions are in test_kernels.c. */
#include "support.h"

#include <fenv.h>
#include <math.h>
#include <string.h>

#include "kernels/kernels.h"

#if HY3D__X86
#include <immintrin.h>
#endif

enum { CHUNK = 4096 };

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
            word = test_bits_of((float)test_between(random, -1000, 1000) / 16);
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
            src[i] = test_float_of(((uint32_t)bits & keep) | set);
            window[i] = test_float_of(((uint32_t)(bits >> 32) & keep) | set);
            before[i] = test_float_of(((uint32_t)more & keep) | set);
        }
        const float row = (float)test_between(&random, -1000, 1000) / 777;
        for (int with_window = 0; with_window < 2; with_window++) {
            memcpy(got, before, sizeof got);
            hy3d__kernels_for(_i)->blend_f32(N, row, with_window ? window : NULL, src, got);
            for (size_t i = 0; i < N; i++) {
                const float wanted =
                    oracle_blend(before[i], src[i], row, with_window ? window[i] : 1);
                const bool same = isnan(wanted) ? isnan(got[i])
                                                : test_bits_of(wanted) == test_bits_of(got[i]);
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

Suite *hy3d_kernel_memory_suite(void);
Suite *hy3d_kernel_memory_suite(void)
{
    Suite *const suite = suite_create("kernel_memory");
    TCase *const tests = tcase_create("kernel_memory");
    const int levels = test_level_count();
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, test_every_length_and_offset_gives_the_reference_bits_and_no_more, 0,
                        levels);
    tcase_add_loop_test(tests, test_no_kernel_touches_memory_beyond_its_elements, 0, levels);
    tcase_add_loop_test(tests, test_blend_rounds_the_product_then_the_sum, 0, levels);
    tcase_add_loop_test(tests, test_conversions_ignore_the_rounding_mode_of_the_thread, 0, levels);
#if HY3D__X86
    tcase_add_loop_test(tests, test_conversions_keep_denormals_where_the_thread_flushes_them, 0,
                        levels);
#endif
    suite_add_tcase(suite, tests);
    return suite;
}
