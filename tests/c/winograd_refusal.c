/* Prepared weights and plans: what is refused, what fails, what must not. */
#include "winograd_support.h"

#include <stdlib.h>
#include <string.h>

/* A layer that is done by Winograd at every level. */
static hy3d_conv3d_desc good_desc(void)
{
    hy3d_conv3d_desc desc = conv_desc(HY3D_F32, 64, 64, 4, 34, 34, 3);
    desc.accuracy = HY3D_FAST;
    return desc;
}

static conv_problem make_problem(const hy3d_conv3d_desc *desc, uint64_t seed)
{
    test_random random = test_rng(seed);
    return conv_problem_make(desc, true, LAYOUT_PLAIN, LAYOUT_PLAIN, LAYOUT_PLAIN, &random, 0);
}

static hy3d_conv3d_format format_of(hy3d_context *context, const hy3d_conv3d_desc *desc)
{
    hy3d_conv3d_format format = 77;
    ck_assert_ok(hy3d_conv3d_choose_format(context, desc, &format));
    return format;
}

START_TEST(test_what_winograd_cannot_do_has_no_format)
{
    hy3d_context *const context = test_context(NULL, 1);
    hy3d_conv3d_desc bad[9];

    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        bad[i] = good_desc();
    }
    ck_assert_uint_ne(format_of(context, &bad[0]), HY3D_FORMAT_NONE);
    bad[0].accuracy = HY3D_EXACT;
    bad[1].dtype = HY3D_F64;
    bad[2].stride[1] = 2;
    bad[3].dilation[2] = 2;
    bad[4].groups = 2;
    bad[5].kernel[1] = 1;
    bad[6].kernel[2] = 5;
    bad[7].in_channels = 15;
    bad[8].kernel[0] = 4;
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        ck_assert_msg(format_of(context, &bad[i]) == HY3D_FORMAT_NONE, "case %zu", i);
    }
    hy3d_context_destroy(context);
}
END_TEST

static hy3d_status prepare(hy3d_context *context, const hy3d_tensor *weight,
                           hy3d_conv3d_format format)
{
    hy3d_conv3d_weights *weights = NULL;
    const hy3d_status status =
        hy3d_conv3d_weights_create(context, weight, format, 1, NULL, &weights);
    ck_assert(status == HY3D_OK || weights == NULL);
    hy3d_conv3d_weights_destroy(weights);
    return status;
}

START_TEST(test_weights_that_cannot_be_prepared_are_refused)
{
    hy3d_context *const context = test_context(NULL, 1);
    static float data[16 * 16 * 27];
    const hy3d_tensor weight = {data, HY3D_F32, {16, 16, 3, 3, 3}, {432, 27, 9, 3, 1}};
    hy3d_tensor bad = weight;
    hy3d_conv3d_weights *weights = NULL;
    ck_assert_ok(prepare(context, &weight, 1));
    const uint64_t live = test_live();

    for (hy3d_conv3d_format format = 1; format <= WINOGRAD_FORMATS; format++) {
        ck_assert_ok(prepare(context, &weight, format));
        bad = weight;
        bad.dtype = HY3D_F64;
        ck_assert_status(prepare(context, &bad, format), HY3D_ERR_INVALID_ARGUMENT);
        bad.dtype = (hy3d_dtype)99;
        ck_assert_status(prepare(context, &bad, format), HY3D_ERR_INVALID_ARGUMENT);
        bad = weight;
        bad.size[3] = 1;
        ck_assert_status(prepare(context, &bad, format), HY3D_ERR_INVALID_ARGUMENT);
        bad = weight;
        bad.size[2] = 2;
        ck_assert_status(prepare(context, &bad, format),
                         winograd_frames(format) > 1 ? HY3D_ERR_INVALID_ARGUMENT : HY3D_OK);
        bad = weight;
        bad.data = NULL;
        ck_assert_status(prepare(context, &bad, format), HY3D_ERR_INVALID_ARGUMENT);
    }
    ck_assert_status(prepare(context, &weight, HY3D_FORMAT_NONE), HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(prepare(context, &weight, WINOGRAD_FORMATS + 1), HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(prepare(context, &weight, UINT32_MAX), HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(prepare(context, NULL, 1), HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(prepare(NULL, &weight, 1), HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(hy3d_conv3d_weights_create(context, &weight, 1, 1, NULL, NULL),
                     HY3D_ERR_INVALID_ARGUMENT);
    hy3d_cancel *cancel = NULL;
    ck_assert_ok(hy3d_cancel_create(context, &cancel));
    hy3d_cancel_request(cancel);
    ck_assert_status(hy3d_conv3d_weights_create(context, &weight, 1, 1, cancel, &weights),
                     HY3D_ERR_CANCELLED);
    ck_assert_ptr_null(weights);
    hy3d_cancel_destroy(context, cancel);
    ck_assert_uint_eq(test_live(), live);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_prepared_weights_of_another_layer_or_layout_are_refused)
{
    hy3d_context *const context = test_context(NULL, 1);
    const hy3d_conv3d_desc desc = good_desc();
    conv_problem p = make_problem(&desc, 900);
    const hy3d_conv3d_format right = format_of(context, &desc);

    for (hy3d_conv3d_format format = 1; format <= WINOGRAD_FORMATS; format++) {
        for (int dim = -1; dim < 2; dim++) {
            hy3d_conv3d_weights *weights = NULL;
            hy3d_conv3d_plan *plan = NULL;
            hy3d_tensor weight = p.weight.tensor;
            if (dim >= 0) {
                weight.size[dim] -= 1;
            }
            ck_assert_ok(hy3d_conv3d_weights_create(context, &weight, format, 0, NULL, &weights));
            const hy3d_status status = hy3d_conv3d_plan_create_prepared(
                context, &desc, &p.weight.tensor, NULL, weights, NULL, &plan);
            ck_assert_status(status, format == right && dim < 0 ? HY3D_OK
                                                                : HY3D_ERR_INVALID_ARGUMENT);
            hy3d_conv3d_plan_destroy(plan);
            hy3d_conv3d_weights_destroy(weights);
        }
    }
    hy3d_context *const other = test_context(NULL, 1);
    hy3d_conv3d_weights *foreign = NULL;
    hy3d_conv3d_plan *none = NULL;
    ck_assert_ok(
        hy3d_conv3d_weights_create(other, &p.weight.tensor, right, 0, NULL, &foreign));
    ck_assert_status(hy3d_conv3d_plan_create_prepared(context, &desc, &p.weight.tensor, NULL,
                                                      foreign, NULL, &none),
                     HY3D_ERR_INVALID_ARGUMENT);
    hy3d_conv3d_weights_destroy(foreign);
    hy3d_context_destroy(other);
    conv_problem_free(&p);
    hy3d_context_destroy(context);
}
END_TEST

static hy3d_status prepare_and_plan(hy3d_context *context, void *argument)
{
    const conv_problem *const p = argument;
    hy3d_conv3d_weights *weights = NULL;
    hy3d_conv3d_plan *plan = NULL;
    hy3d_status status = hy3d_conv3d_weights_create(
        context, &p->weight.tensor, format_of(context, &p->desc), 0, NULL, &weights);
    if (status == HY3D_OK) {
        status = hy3d_conv3d_plan_create_prepared(context, &p->desc, &p->weight.tensor,
                                                  &p->bias.tensor, weights, NULL, &plan);
    }
    hy3d_conv3d_plan_destroy(plan);
    hy3d_conv3d_weights_destroy(weights);
    return status;
}

START_TEST(test_every_failing_allocation_is_survived)
{
    hy3d_context *const context = test_context(NULL, 1);
    const hy3d_conv3d_desc desc = good_desc();
    conv_problem p = make_problem(&desc, 901);
    /* The weights, their memory, scratch; the plan, its bias. */
    ck_assert_uint_eq(test_allocation_sweep(context, prepare_and_plan, &p), 5);
    conv_problem_free(&p);
    hy3d_context_destroy(context);
}
END_TEST

/* Weights that every grain would make anew; where there is no memory for them each grain does. */
START_TEST(test_a_plan_prepares_its_own_weights_or_does_without_for_the_same_bits)
{
    hy3d_context *const context = test_context(NULL, 1);
    hy3d_conv3d_desc desc = good_desc();
    desc.in_size[0] = 6;
    desc.in_size[1] = desc.in_size[2] = 202;
    desc.num_threads = 1;
    conv_problem p = make_problem(&desc, 904);
    const size_t bytes = hy3d_conv3d_format_bytes(format_of(context, &desc), desc.out_channels,
                                                  desc.in_channels, desc.kernel);
    size_t workspace = 0, own = 0;
    ck_assert_ok(hy3d_conv3d_memory(context, &desc, false, &workspace, &own));
    ck_assert_uint_gt(own, bytes);
    ck_assert_ok(hy3d_conv3d_memory(context, &desc, true, &workspace, &own));
    ck_assert_uint_lt(own, bytes);
    ck_assert_ok(conv_problem_run(context, &p));
    unsigned char *const first = malloc(p.y.bytes);
    memcpy(first, p.y.memory, p.y.bytes);
    const uint64_t live = test_live();
    int short_ones = 0;

    for (uint64_t k = 1; k <= 6; k++) { /* plan, bias, weights, their memory, scratch, workspace */
        hy3d_conv3d_plan *plan = NULL;
        memset(p.y.memory, 0xff, p.y.bytes);
        test_fail(k, false);
        const hy3d_status status = hy3d_conv3d_plan_create(
            context, &desc, &p.weight.tensor, p.has_bias ? &p.bias.tensor : NULL, NULL, &plan);
        test_fail(0, false);
        ck_assert(status == HY3D_OK || status == HY3D_ERR_OUT_OF_MEMORY);
        if (status == HY3D_OK) {
            void *memory = NULL;
            short_ones += hy3d_conv3d_plan_own_bytes(plan) < bytes ? 1 : 0;
            ck_assert_ok(hy3d_alloc(context, hy3d_conv3d_plan_workspace_bytes(plan), &memory));
            ck_assert_ok(hy3d_conv3d_run(plan, &p.x.tensor, &p.y.tensor, memory, NULL));
            ck_assert_mem_eq(p.y.memory, first, p.y.bytes);
            hy3d_free(context, memory);
        }
        hy3d_conv3d_plan_destroy(plan);
        ck_assert_uint_eq(test_live(), live);
    }
    ck_assert_int_ge(short_ones, 3);
    free(first);
    conv_problem_free(&p);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_a_workspace_too_small_says_what_would_do_and_that_does)
{
    hy3d_context *const context = test_context(NULL, 3);
    hy3d_conv3d_desc desc = good_desc();
    conv_problem p = make_problem(&desc, 902);
    hy3d_conv3d_plan *plan = NULL;
    size_t needed = 0;

    p.desc.workspace_limit_bytes = 1;
    ck_assert_status(hy3d_conv3d_plan_create(context, &p.desc, &p.weight.tensor, NULL, &needed,
                                             &plan),
                     HY3D_ERR_WORKSPACE_TOO_SMALL);
    ck_assert_ptr_null(plan);
    p.desc.workspace_limit_bytes = needed - 1;
    ck_assert_status(conv_problem_run(context, &p), HY3D_ERR_WORKSPACE_TOO_SMALL);
    p.desc.workspace_limit_bytes = needed;
    ck_assert_ok(hy3d_conv3d_plan_create(context, &p.desc, &p.weight.tensor, NULL, NULL, &plan));
    ck_assert_uint_le(hy3d_conv3d_plan_workspace_bytes(plan), needed);
    hy3d_conv3d_plan_destroy(plan);
    ck_assert_ok(conv_problem_run(context, &p));
    conv_problem_free(&p);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_a_requested_cancel_stops_a_winograd_run)
{
    hy3d_context *const context = test_context(NULL, 2);
    const hy3d_conv3d_desc desc = good_desc();
    conv_problem p = make_problem(&desc, 903);
    hy3d_conv3d_plan *plan = NULL;
    hy3d_cancel *cancel = NULL;
    void *workspace = NULL;

    ck_assert_ok(hy3d_conv3d_plan_create(context, &desc, &p.weight.tensor, NULL, NULL, &plan));
    ck_assert_msg(strncmp(hy3d_conv3d_plan_strategy(plan), "winograd", 8) == 0, "%s",
                  hy3d_conv3d_plan_strategy(plan));
    ck_assert_ok(hy3d_cancel_create(context, &cancel));
    ck_assert_ok(hy3d_alloc(context, hy3d_conv3d_plan_workspace_bytes(plan), &workspace));
    hy3d_cancel_request(cancel);
    ck_assert_status(hy3d_conv3d_run(plan, &p.x.tensor, &p.y.tensor, workspace, cancel),
                     HY3D_ERR_CANCELLED);
    hy3d_cancel_reset(cancel);
    ck_assert_ok(hy3d_conv3d_run(plan, &p.x.tensor, &p.y.tensor, workspace, cancel));
    hy3d_free(context, workspace);
    hy3d_cancel_destroy(context, cancel);
    hy3d_conv3d_plan_destroy(plan);
    conv_problem_free(&p);
    hy3d_context_destroy(context);
}
END_TEST

/* Weights made while running need room for a panel: where they don't fit, another way is taken. */
START_TEST(test_layers_of_many_channels_need_no_limit_to_be_set)
{
    static const int64_t channels[] = {1024, 2048, 3072, 4096, 8192};
    hy3d_context *const context = test_context(NULL, 1);
    static float data[1];
    const hy3d_tensor weight = {data, HY3D_F32, {64, 0, 3, 3, 3}, {0, 0, 0, 0, 0}};

    for (size_t i = 0; i < COUNT_OF(channels); i++) {
        hy3d_conv3d_desc desc = good_desc();
        hy3d_tensor w = weight;
        hy3d_conv3d_plan *plan = NULL;
        size_t needed = 0;
        desc.in_channels = w.size[1] = channels[i];
        const hy3d_status status =
            hy3d_conv3d_plan_create(context, &desc, &w, NULL, &needed, &plan);
        ck_assert_msg(status == HY3D_OK || status == HY3D_ERR_BLAS_UNAVAILABLE,
                      "%lld channels: %s, needs %zu", (long long)channels[i],
                      hy3d_status_name(status), needed);
        hy3d_conv3d_plan_destroy(plan);
    }
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_every_number_of_frames_can_be_done)
{
    hy3d_context *const context = test_context(NULL, 1);
    hy3d_conv3d_desc desc = good_desc();

    for (int64_t frames = 3; frames < 700; frames++) {
        desc.in_size[0] = frames;
        ck_assert_msg(format_of(context, &desc) != HY3D_FORMAT_NONE, "%lld frames",
                      (long long)frames);
    }
    hy3d_context_destroy(context);
}
END_TEST

/* Sizes whose tiles, times products and channels, pass 63 bits. */
START_TEST(test_huge_sizes_are_planned_without_overflow)
{
    static const int64_t sizes[][3] = {{1, (int64_t)1 << 28, (int64_t)1 << 27},
                                       {1, (int64_t)1 << 55, 3},
                                       {3, 3, (int64_t)1 << 53},
                                       {(int64_t)1 << 53, 3, 3},
                                       {1, 3, 3}};
    hy3d_context *const context = test_context(NULL, 2);

    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        for (int64_t taps = 1; taps <= 3; taps += 2) {
            hy3d_conv3d_desc desc = conv_desc(HY3D_F32, 16, 16, 1, 1, 1, 3);
            hy3d_conv3d_format format;
            desc.accuracy = HY3D_FAST;
            desc.kernel[0] = taps;
            desc.pad_before[0] = taps - 1;
            desc.pad_before[1] = i == 4 ? (int64_t)1 << 55 : 0;
            memcpy(desc.in_size, sizes[i], sizeof sizes[i]);
            const hy3d_status status = hy3d_conv3d_choose_format(context, &desc, &format);
            ck_assert(status == HY3D_OK || status == HY3D_ERR_OVERFLOW ||
                      status == HY3D_ERR_SHAPE_MISMATCH);
        }
    }
    hy3d_context_destroy(context);
}
END_TEST

TCase *hy3d_winograd_refusal_case(void)
{
    TCase *const tests = tcase_create("refusal");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, test_what_winograd_cannot_do_has_no_format);
    tcase_add_test(tests, test_weights_that_cannot_be_prepared_are_refused);
    tcase_add_test(tests, test_prepared_weights_of_another_layer_or_layout_are_refused);
    tcase_add_test(tests, test_every_failing_allocation_is_survived);
    tcase_add_test(tests, test_a_plan_prepares_its_own_weights_or_does_without_for_the_same_bits);
    tcase_add_test(tests, test_a_workspace_too_small_says_what_would_do_and_that_does);
    tcase_add_test(tests, test_a_requested_cancel_stops_a_winograd_run);
    tcase_add_test(tests, test_layers_of_many_channels_need_no_limit_to_be_set);
    tcase_add_test(tests, test_every_number_of_frames_can_be_done);
    tcase_add_test(tests, test_huge_sizes_are_planned_without_overflow);
    return tests;
}
