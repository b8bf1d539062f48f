/* Moments of channels: the kernel at every level, and the sums against an oracle in long double. */
#include "support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "hy3d/moments.h"
#include "kernels/kernels.h"

Suite *hy3d_moments_suite(void);

enum { CHANNELS = 3, MOST = 2 * 5 * 33 * 31 };

static hy3d_tensor tensor_of(void *data, hy3d_dtype dtype, const int64_t size[5])
{
    hy3d_tensor x = {.data = data, .dtype = dtype};
    int64_t stride = 1;
    for (int dim = 4; dim >= 0; dim--) {
        x.size[dim] = size[dim];
        x.stride[dim] = stride;
        stride *= size[dim];
    }
    return x;
}

static int64_t offset_of(const hy3d_tensor *x, int64_t channel, int64_t position)
{
    int64_t offset = channel * x->stride[1];
    for (int dim = 4; dim >= 0; dim--) {
        if (dim != 1) {
            offset += position % x->size[dim] * x->stride[dim];
            position /= x->size[dim];
        }
    }
    return offset;
}

/* Two passes in long double over an f32 tensor. */
static void oracle(const hy3d_tensor *x, int64_t channel, long double *mean, long double *deviations)
{
    const float *const data = x->data;
    const int64_t n = x->size[0] * x->size[2] * x->size[3] * x->size[4];
    long double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += (long double)data[offset_of(x, channel, i)];
    }
    *mean = sum / n;
    for (int64_t i = 0; i < n; i++) {
        const long double d = (long double)data[offset_of(x, channel, i)] - *mean;
        squares += d * d;
    }
    *deviations = squares;
}

/* About the sum of four dice: near enough to normal. */
static float noise(test_random *random)
{
    int64_t sum = 0;
    for (int i = 0; i < 4; i++) {
        sum += test_between(random, -1000000, 1000000);
    }
    return (float)((double)sum / 1e6);
}

START_TEST(test_kernels_give_the_reference_bits_for_every_length)
{
    enum { LONGEST = 259, OFFSETS = 17 };
    test_random random = test_rng(61);
    float x[LONGEST + OFFSETS];
    for (size_t i = 0; i < COUNT_OF(x); i++) {
        x[i] = noise(&random);
    }
    for (size_t n = 0; n <= LONGEST; n++) {
        const size_t offset = n % OFFSETS;
        double wanted[2], got[2];
        hy3d__kernels_for(0)->moments_f32(n, x + offset, 0.3, wanted);
        hy3d__kernels_for(_i)->moments_f32(n, x + offset, 0.3, got);
        ck_assert_msg(memcmp(wanted, got, sizeof got) == 0, "level %d, n %zu", _i, n);
    }
}
END_TEST

START_TEST(test_kernels_touch_nothing_beyond_their_elements)
{
    enum { LONGEST = 70 };
    test_guard guard = test_guard_make(LONGEST * 4);
    memset(test_guard_end(&guard, guard.bytes), 0x3c, guard.bytes);
    for (size_t n = 0; n <= LONGEST; n++) {
        double sums[2];
        const float *const end = test_guard_end(&guard, n * 4);
        const float *const start = test_guard_end(&guard, guard.bytes);
        hy3d__kernels_for(_i)->moments_f32(n, end, 0.0, sums);
        hy3d__kernels_for(_i)->moments_f32(n, start, 0.0, sums);
    }
    test_guard_free(&guard);
}
END_TEST

START_TEST(test_moments_are_those_of_the_definition)
{
    static const int64_t sizes[][5] = {
        {1, CHANNELS, 5, 33, 31}, {2, CHANNELS, 5, 33, 31}, {1, CHANNELS, 1, 1, 1},
        {1, CHANNELS, 1, 1, 2048}, {1, CHANNELS, 1, 1, 2049}, {2, CHANNELS, 3, 1, 7},
    };
    static const double means[] = {0, 1000, -3e6};
    static float data[CHANNELS * MOST];
    hy3d_context *const context = test_context(NULL, 2);
    test_random random = test_rng(62);
    for (size_t s = 0; s < COUNT_OF(sizes) * COUNT_OF(means); s++) {
        const double offset = means[s % COUNT_OF(means)];
        for (size_t i = 0; i < COUNT_OF(data); i++) {
            data[i] = (float)(offset + (double)noise(&random));
        }
        const hy3d_tensor x = tensor_of(data, HY3D_F32, sizes[s / COUNT_OF(means)]);
        const double n = (double)(x.size[0] * x.size[2] * x.size[3] * x.size[4]);
        double mean[CHANNELS], deviations[CHANNELS];
        ck_assert_ok(hy3d_channel_moments(context, &x, 0, NULL, mean, deviations));
        for (int64_t c = 0; c < CHANNELS; c++) {
            long double wanted, spread;
            oracle(&x, c, &wanted, &spread);
            const double sigma = sqrt((double)spread / n) + 1e-300, blocks = ceil(n / 2048);
            const double share = 1e-10 + ldexp(blocks * (1 + fabs(offset) / sigma), -50);
            ck_assert(fabs((double)(mean[c] - wanted)) <= ldexp(fabs(offset) + 8, -50) * blocks);
            ck_assert_msg(fabs((double)(deviations[c] - spread)) <= share * (double)spread,
                          "size %zu, mean %g: %.17g for %.17g", s / COUNT_OF(means), offset,
                          deviations[c], (double)spread);
        }
    }
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_a_constant_channel_deviates_by_nothing)
{
    static float data[CHANNELS * 4099];
    hy3d_context *const context = test_context(NULL, 1);
    for (size_t i = 0; i < COUNT_OF(data); i++) {
        data[i] = 12345.678F;
    }
    const hy3d_tensor x = tensor_of(data, HY3D_F32, (const int64_t[5]){1, CHANNELS, 1, 1, 4099});
    double mean[CHANNELS], deviations[CHANNELS];
    ck_assert_ok(hy3d_channel_moments(context, &x, 1, NULL, mean, deviations));
    for (int c = 0; c < CHANNELS; c++) {
        ck_assert(mean[c] == (double)12345.678F);
        ck_assert(deviations[c] == 0.0);
    }
    hy3d_context_destroy(context);
}
END_TEST

/* The same numbers as channels-last, with room between rows, backwards in memory and in 16 bits:
 * small integers, exact in all of them. */
START_TEST(test_layout_threads_level_and_type_change_no_bit)
{
    enum { T = 3, H = 29, W = 35, N = T * H * W };
    static float plain[CHANNELS * N], last[CHANNELS * N], roomy[CHANNELS * T * H * (W + 5)];
    static uint16_t brain[CHANNELS * N];
    test_random random = test_rng(63);
    test_fill_f32(&random, plain, COUNT_OF(plain), 8);
    const int64_t size[5] = {1, CHANNELS, T, H, W};
    hy3d_tensor x[5];
    for (size_t i = 0; i < COUNT_OF(x); i++) {
        x[i] = tensor_of(plain, HY3D_F32, size);
    }
    x[1].data = last;
    memcpy(x[1].stride, (const int64_t[5]){CHANNELS * N, 1, CHANNELS * H * W, CHANNELS * W, CHANNELS},
           sizeof x[1].stride);
    x[2] = tensor_of(roomy, HY3D_F32, (const int64_t[5]){1, CHANNELS, T, H, W + 5});
    x[2].size[4] = W;
    x[3] = tensor_of(brain, HY3D_BF16, size);
    x[4].data = last + COUNT_OF(last) - 1;
    memcpy(x[4].stride, (const int64_t[5]){0, -1, -CHANNELS * H * W, -CHANNELS * W, -CHANNELS},
           sizeof x[4].stride);
    double wanted[2][CHANNELS];
    hy3d_context *const reference = test_context("ref", 1);
    ck_assert_ok(hy3d_channel_moments(reference, &x[0], 1, NULL, wanted[0], wanted[1]));
    hy3d_context_destroy(reference);
    for (int level = 0; level < test_level_count(); level++) {
        static const char *const names[] = {"ref", "avx2", "avx512"};
        hy3d_context *const context = test_context(names[level], 4);
        for (size_t i = 0; i < COUNT_OF(x); i++) {
            for (int64_t c = 0; c < CHANNELS; c++) {
                for (int64_t at = 0; at < N; at++) {
                    const float value = plain[c * N + at];
                    uint32_t bits;
                    memcpy(&bits, &value, sizeof bits);
                    const int64_t to = offset_of(&x[i], c, at);
                    if (x[i].dtype == HY3D_BF16) {
                        brain[to] = (uint16_t)(bits >> 16);
                    } else {
                        ((float *)x[i].data)[to] = value;
                    }
                }
            }
            for (uint32_t threads = 0; threads <= 4; threads++) {
                double got[2][CHANNELS];
                ck_assert_ok(
                    hy3d_channel_moments(context, &x[i], threads, NULL, got[0], got[1]));
                ck_assert_msg(memcmp(wanted, got, sizeof got) == 0,
                              "level %d, layout %zu, %u threads", level, i, threads);
            }
        }
        hy3d_context_destroy(context);
    }
}
END_TEST

START_TEST(test_nan_and_infinity_spoil_their_own_channel_only)
{
    static float data[CHANNELS * 5000];
    hy3d_context *const context = test_context(NULL, 2);
    data[5000 + 4321] = NAN;
    data[2 * 5000 + 1] = INFINITY;
    const hy3d_tensor x = tensor_of(data, HY3D_F32, (const int64_t[5]){1, CHANNELS, 1, 5000, 1});
    double mean[CHANNELS], deviations[CHANNELS];
    ck_assert_ok(hy3d_channel_moments(context, &x, 0, NULL, mean, deviations));
    ck_assert(mean[0] == 0.0 && deviations[0] == 0.0);
    ck_assert(isnan(mean[1]) && isnan(deviations[1]) && isnan(deviations[2]));
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_wrong_arguments_and_a_cancel_are_told)
{
    float data[4] = {0};
    double mean[2], deviations[2];
    hy3d_context *const context = test_context(NULL, 1);
    hy3d_tensor x = tensor_of(data, HY3D_F32, (const int64_t[5]){1, 2, 1, 1, 2});
    const hy3d_status bad = HY3D_ERR_INVALID_ARGUMENT;
    ck_assert_status(hy3d_channel_moments(NULL, &x, 0, NULL, mean, deviations), bad);
    ck_assert_status(hy3d_channel_moments(context, NULL, 0, NULL, mean, deviations), bad);
    ck_assert_status(hy3d_channel_moments(context, &x, 0, NULL, NULL, deviations), bad);
    ck_assert_status(hy3d_channel_moments(context, &x, 0, NULL, mean, NULL), bad);
    x.size[4] = 0;
    ck_assert_status(hy3d_channel_moments(context, &x, 0, NULL, mean, deviations), bad);
    x.size[4] = -1;
    ck_assert_status(hy3d_channel_moments(context, &x, 0, NULL, mean, deviations), bad);
    x.size[4] = x.size[3] = INT64_MAX;
    ck_assert_status(hy3d_channel_moments(context, &x, 0, NULL, mean, deviations),
                     HY3D_ERR_OVERFLOW);
    x = tensor_of(data, HY3D_F64, (const int64_t[5]){1, 1, 1, 1, 2});
    ck_assert_status(hy3d_channel_moments(context, &x, 0, NULL, mean, deviations),
                     HY3D_ERR_UNSUPPORTED);
    x = tensor_of(NULL, HY3D_F32, (const int64_t[5]){1, 1, 1, 1, 2});
    ck_assert_status(hy3d_channel_moments(context, &x, 0, NULL, mean, deviations), bad);
    x.size[1] = 0; /* no channels: nothing to do */
    ck_assert_ok(hy3d_channel_moments(context, &x, 0, NULL, mean, deviations));
    hy3d_cancel *cancel;
    ck_assert_ok(hy3d_cancel_create(context, &cancel));
    hy3d_cancel_request(cancel);
    x = tensor_of(data, HY3D_F32, (const int64_t[5]){1, 2, 1, 1, 2});
    ck_assert_status(hy3d_channel_moments(context, &x, 0, cancel, mean, deviations),
                     HY3D_ERR_CANCELLED);
    hy3d_cancel_destroy(context, cancel);
    hy3d_context_destroy(context);
}
END_TEST

Suite *hy3d_moments_suite(void)
{
    Suite *const suite = suite_create("moments");
    TCase *const tests = tcase_create("moments");
    const int levels = test_level_count();
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, test_kernels_give_the_reference_bits_for_every_length, 0, levels);
    tcase_add_loop_test(tests, test_kernels_touch_nothing_beyond_their_elements, 0, levels);
    tcase_add_test(tests, test_moments_are_those_of_the_definition);
    tcase_add_test(tests, test_a_constant_channel_deviates_by_nothing);
    tcase_add_test(tests, test_layout_threads_level_and_type_change_no_bit);
    tcase_add_test(tests, test_nan_and_infinity_spoil_their_own_channel_only);
    tcase_add_test(tests, test_wrong_arguments_and_a_cancel_are_told);
    suite_add_tcase(suite, tests);
    return suite;
}
