/* Winograd's strategy against the double reference, within the proven bound (docs/numerics.md). */
#include "winograd_support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const levels[] = {"ref", "avx2", "avx512"};

static void check_one(hy3d_context *context, hy3d_conv3d_format format, test_random *random,
                      conv_fused *fused, int index, double *worst)
{
    hy3d_conv3d_desc desc = winograd_random_desc(random, winograd_taps(format, random));
    winograd_suit(format, random, &desc);
    const bool is_prepared = test_between(random, 0, 1) == 1;
    const bool has_silu = test_between(random, 0, 1) == 1;
    char text[640];

    conv_fused_make(fused, &desc, has_silu ? HY3D_SILU : HY3D_IDENTITY, random, 0);
    if (index % 4 != 0) {
        winograd_thin_out(fused, random);
    }
    conv_fused_text(fused, text, sizeof text);
    const hy3d_status status = winograd_run(context, format, fused, is_prepared);
    ck_assert_msg(status == HY3D_OK, "%d: %s: %s", index, hy3d_status_name(status), text);
    const double fraction = winograd_worst_fraction(fused, format);
    ck_assert_msg(fraction <= 1.0, "%d: %s%s: %g of the bound: %s", index,
                  hy3d_conv3d_format_name(format), is_prepared ? ", prepared" : "", fraction,
                  text);
    *worst = fmax(*worst, fraction);
    conv_fused_free(fused);
}

/* Dense weights now and then; with few of them a wrong element is far outside of the bound. */
START_TEST(test_random_shapes_of_every_kind_stay_within_the_proven_bound)
{
    static conv_fused fused;
    const int level = _i / WINOGRAD_FORMATS;
    const hy3d_conv3d_format format = (hy3d_conv3d_format)(_i % WINOGRAD_FORMATS + 1);
    if (level >= test_level_count()) {
        return;
    }
    hy3d_context *const context = test_context(levels[level], 3);
    test_random random = test_rng(800 + (uint64_t)_i);
    double worst = 0.0;
    const int configurations = test_draws(2, 8);

    for (int i = 0; i < configurations; i++) {
        check_one(context, format, &random, &fused, i, &worst);
    }
    hy3d_context_destroy(context);
}
END_TEST

/* Through the public interface: whichever way is chosen, and some of them must be Winograd. */
START_TEST(test_fast_convolutions_as_they_are_chosen_stay_within_the_bound)
{
    static conv_fused fused;
    if (_i >= test_level_count()) {
        return;
    }
    hy3d_context *const context = test_context(levels[_i], 3);
    test_random random = test_rng(840); /* of its first three, Winograd is chosen for some */
    int winograd = 0;
    const int configurations = test_draws(3, 9);

    for (int i = 0; i < configurations; i++) {
        hy3d_conv3d_desc desc = winograd_random_desc(&random, 1 + i % 3);
        hy3d_conv3d_format format = HY3D_FORMAT_NONE;
        char text[640];
        desc.in_size[1] += 8;
        desc.in_size[2] += 8;
        conv_fused_make(&fused, &desc, (hy3d_activation)(i % 2), &random, 0);
        winograd_thin_out(&fused, &random);
        conv_fused_text(&fused, text, sizeof text);
        ck_assert_ok(hy3d_conv3d_choose_format(context, &desc, &format));
        const hy3d_status status = conv_fused_run(context, &fused);
        if (status == HY3D_ERR_BLAS_UNAVAILABLE) {
            (void)test_has_blas(context);
        } else {
            ck_assert_msg(status == HY3D_OK, "%d: %s: %s", i, hy3d_status_name(status), text);
            /* The direct way's error is far below format 1's bound. */
            winograd += format != HY3D_FORMAT_NONE ? 1 : 0;
            const double fraction = winograd_worst_fraction(
                &fused, format != HY3D_FORMAT_NONE ? format : (hy3d_conv3d_format)1);
            ck_assert_msg(fraction <= 1.0, "%d: %g of the bound: %s", i, fraction, text);
        }
        conv_fused_free(&fused);
    }
    ck_assert_int_gt(winograd, 0);
    hy3d_context_destroy(context);
}
END_TEST

/* A strip of rows of an up-sampled picture: padded at a border, one copy of a row cropped at an
 * inner side. The kinds that read such an input as it is still apply, and are right. */
START_TEST(test_strips_of_an_upsampled_input_take_its_own_kinds)
{
    static conv_fused fused;
    const int level = _i / 4;
    if (level >= test_level_count()) {
        return;
    }
    hy3d_context *const context = test_context(levels[level], 3);
    const int64_t before = _i % 2 == 0 ? 1 : -1, after = _i / 2 % 2 == 0 ? 1 : -1;
    test_random random = test_rng(870 + (uint64_t)_i);
    hy3d_conv3d_desc desc = conv_desc(HY3D_F32, 32, 32, 1, 24, 24, 3);
    hy3d_conv3d_format chosen = HY3D_FORMAT_NONE;
    int checked = 0;

    desc.accuracy = HY3D_FAST;
    desc.kernel[0] = 1;
    desc.upsample[1] = desc.upsample[2] = 2;
    desc.pad_before[1] = before;
    desc.pad_after[1] = after;
    desc.pad_before[2] = desc.pad_after[2] = 1;
    ck_assert_ok(hy3d_conv3d_choose_format(context, &desc, &chosen));
    ck_assert(chosen != HY3D_FORMAT_NONE && winograd_is_upsampled(chosen));
    for (hy3d_conv3d_format format = 1; format <= WINOGRAD_FORMATS; format++) {
        if (!winograd_is_upsampled(format)) {
            continue;
        }
        hy3d_conv3d_desc one = desc;
        one.kernel[0] = one.in_size[0] = winograd_frames(format) > 1 ? 3 : 1;
        one.in_size[0] += 2;
        one.in_size[1] = 2 * test_between(&random, 3, 12);
        winograd_suit(format, &random, &one);
        conv_fused_make(&fused, &one, HY3D_SILU, &random, 0);
        winograd_thin_out(&fused, &random);
        ck_assert_ok(winograd_run(context, format, &fused, false));
        ck_assert(winograd_worst_fraction(&fused, format) <= 1.0);
        conv_fused_free(&fused);
        checked++;
    }
    ck_assert_int_eq(checked, 4);
    hy3d_context_destroy(context);
}
END_TEST

Suite *hy3d_winograd_suite(void);
Suite *hy3d_winograd_suite(void)
{
    Suite *const suite = suite_create("winograd");
    TCase *const tests = tcase_create("winograd");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, test_random_shapes_of_every_kind_stay_within_the_proven_bound, 0,
                        3 * WINOGRAD_FORMATS);
    tcase_add_loop_test(tests, test_fast_convolutions_as_they_are_chosen_stay_within_the_bound, 0,
                        3);
    tcase_add_loop_test(tests, test_strips_of_an_upsampled_input_take_its_own_kinds, 0,
                        3 * 4);
    suite_add_tcase(suite, tests);
    suite_add_tcase(suite, hy3d_winograd_bits_case());
    suite_add_tcase(suite, hy3d_winograd_refusal_case());
    return suite;
}
