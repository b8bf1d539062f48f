/* What a convolution will take is what its plan then takes. */
#include "support.h"

#include <stdlib.h>

#include "hy3d/conv3d.h"

Suite *hy3d_conv_memory_suite(void);

static hy3d_conv3d_desc any_desc(test_random *random)
{
    static const int64_t channels[] = {3, 16, 40, 64, 64};
    hy3d_conv3d_desc desc = {
        .dtype = (hy3d_dtype)test_between(random, 0, 3),
        .batch = 1,
        .in_channels = channels[test_between(random, 0, 4)],
        .out_channels = channels[test_between(random, 0, 4)],
        .groups = 1,
        .accuracy = (hy3d_accuracy)test_between(random, 0, 1),
        .num_threads = (uint32_t)test_between(random, 0, 3),
    };
    for (int i = 0; i < 3; i++) {
        desc.kernel[i] = test_between(random, 0, 5) > 0 ? 3 : 1;
        desc.stride[i] = test_between(random, 0, 9) > 0 ? 1 : 2;
        desc.dilation[i] = 1;
        desc.in_size[i] = test_between(random, 3, i == 0 ? 6 : 40);
        desc.pad_before[i] = desc.pad_after[i] = test_between(random, 0, 1);
    }
    return desc;
}

START_TEST(test_memory_is_known_without_weights)
{
    enum { MOST = 64 * 64 * 27 };
    hy3d_context *const context = test_context(NULL, 3);
    test_random random = test_rng(71);
    double *const data = calloc(MOST, sizeof *data);
    int prepared_ones = 0;
    ck_assert_ptr_nonnull(data);
    for (int round = 0; round < 300; round++) {
        const hy3d_conv3d_desc desc = any_desc(&random);
        const int64_t taps = desc.kernel[0] * desc.kernel[1] * desc.kernel[2];
        const hy3d_tensor weight = {
            .data = data,
            .dtype = desc.dtype,
            .size = {desc.out_channels, desc.in_channels, desc.kernel[0], desc.kernel[1],
                     desc.kernel[2]},
            .stride = {desc.in_channels * taps, taps, desc.kernel[1] * desc.kernel[2],
                       desc.kernel[2], 1},
        };
        hy3d_conv3d_format format;
        ck_assert_ok(hy3d_conv3d_choose_format(context, &desc, &format));
        for (int prepared = 0; prepared < (format != HY3D_FORMAT_NONE ? 2 : 1); prepared++) {
            hy3d_conv3d_weights *weights = NULL;
            hy3d_conv3d_plan *plan;
            size_t workspace, own;
            if (prepared) {
                ck_assert_ok(
                    hy3d_conv3d_weights_create(context, &weight, format, 1, NULL, &weights));
                prepared_ones++;
            }
            ck_assert_ok(hy3d_conv3d_memory(context, &desc, prepared == 1, &workspace, &own));
            const hy3d_status status = hy3d_conv3d_plan_create_prepared(
                context, &desc, &weight, NULL, weights, NULL, &plan);
            if (status == HY3D_ERR_BLAS_UNAVAILABLE) {
                continue;
            }
            ck_assert_ok(status);
            ck_assert_uint_eq(workspace, hy3d_conv3d_plan_workspace_bytes(plan));
            ck_assert_uint_eq(own, hy3d_conv3d_plan_own_bytes(plan));
            hy3d_conv3d_plan_destroy(plan);
            hy3d_conv3d_weights_destroy(weights);
        }
    }
    ck_assert_int_ge(prepared_ones, 10);
    free(data);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_what_no_plan_can_be_made_of_is_told)
{
    hy3d_context *const context = test_context(NULL, 1);
    test_random random = test_rng(72);
    hy3d_conv3d_desc desc = any_desc(&random);
    size_t workspace, own;
    const hy3d_status bad = HY3D_ERR_INVALID_ARGUMENT;
    ck_assert_status(hy3d_conv3d_memory(NULL, &desc, false, &workspace, &own), bad);
    ck_assert_status(hy3d_conv3d_memory(context, NULL, false, &workspace, &own), bad);
    ck_assert_status(hy3d_conv3d_memory(context, &desc, false, NULL, &own), bad);
    ck_assert_status(hy3d_conv3d_memory(context, &desc, false, &workspace, NULL), bad);
    desc.stride[1] = 0;
    ck_assert_status(hy3d_conv3d_memory(context, &desc, false, &workspace, &own), bad);
    desc = any_desc(&random);
    desc.workspace_limit_bytes = 1;
    ck_assert_status(hy3d_conv3d_memory(context, &desc, false, &workspace, &own),
                     HY3D_ERR_WORKSPACE_TOO_SMALL);
    hy3d_context_destroy(context);
}
END_TEST

Suite *hy3d_conv_memory_suite(void)
{
    Suite *const suite = suite_create("conv_memory");
    TCase *const tests = tcase_create("conv_memory");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, test_memory_is_known_without_weights);
    tcase_add_test(tests, test_what_no_plan_can_be_made_of_is_told);
    suite_add_tcase(suite, tests);
    return suite;
}
