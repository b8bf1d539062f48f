/* Each wrong argument and its status; sizes that overflow. */
#include "conv3d_support.h"

#include <string.h>

#define HUGE_SIZE ((int64_t)1 << 62)

typedef struct bad_desc {
    size_t field; /* offset in hy3d_conv3d_desc */
    int64_t value;
    hy3d_status status;
} bad_desc;

#define AT(member) offsetof(hy3d_conv3d_desc, member)

static const bad_desc bad_descs[] = {
    {AT(batch), -1, HY3D_ERR_INVALID_ARGUMENT},
    {AT(in_channels), 0, HY3D_ERR_INVALID_ARGUMENT},
    {AT(in_channels), 5, HY3D_ERR_SHAPE_MISMATCH},
    {AT(out_channels), -3, HY3D_ERR_INVALID_ARGUMENT},
    {AT(out_channels), 7, HY3D_ERR_SHAPE_MISMATCH},
    {AT(groups), 0, HY3D_ERR_INVALID_ARGUMENT},
    {AT(groups), 3, HY3D_ERR_SHAPE_MISMATCH},
    {AT(in_size[0]), 0, HY3D_ERR_INVALID_ARGUMENT},
    {AT(in_size[1]), -8, HY3D_ERR_INVALID_ARGUMENT},
    {AT(in_size[2]), 2, HY3D_ERR_SHAPE_MISMATCH},
    {AT(kernel[0]), 0, HY3D_ERR_INVALID_ARGUMENT},
    {AT(kernel[1]), 9, HY3D_ERR_SHAPE_MISMATCH},
    {AT(stride[1]), 0, HY3D_ERR_INVALID_ARGUMENT},
    {AT(dilation[2]), 0, HY3D_ERR_INVALID_ARGUMENT},
    {AT(dilation[2]), 4, HY3D_ERR_SHAPE_MISMATCH},
    {AT(pad_before[0]), -3, HY3D_ERR_INVALID_ARGUMENT},
    {AT(pad_after[2]), -8, HY3D_ERR_INVALID_ARGUMENT},
    {AT(pad_after[2]), INT64_MIN, HY3D_ERR_INVALID_ARGUMENT},
    {AT(pad_before[1]), -7, HY3D_ERR_SHAPE_MISMATCH},
    /* Overflow: of a padded size, of a dilated kernel, of elements in bytes. */
    {AT(pad_after[0]), INT64_MAX, HY3D_ERR_OVERFLOW},
    {AT(dilation[1]), INT64_MAX, HY3D_ERR_OVERFLOW},
    {AT(batch), HUGE_SIZE, HY3D_ERR_OVERFLOW},
    {AT(in_channels), HUGE_SIZE, HY3D_ERR_OVERFLOW},
    {AT(out_channels), HUGE_SIZE, HY3D_ERR_OVERFLOW},
    {AT(in_size[1]), HUGE_SIZE, HY3D_ERR_OVERFLOW},
    {AT(pad_before[1]), HUGE_SIZE, HY3D_ERR_OVERFLOW},
};

START_TEST(test_each_wrong_description_has_its_status)
{
    hy3d_conv3d_desc desc = conv_desc(HY3D_F32, 4, 6, 3, 8, 8, 3);
    int64_t out[3] = {-7, -7, -7};

    desc.groups = 2;
    memcpy((unsigned char *)&desc + bad_descs[_i].field, &bad_descs[_i].value, sizeof(int64_t));
    ck_assert_status(hy3d_conv3d_out_size(&desc, out), bad_descs[_i].status);
    ck_assert_int_eq(out[0], -7);
}
END_TEST

START_TEST(test_unknown_dtype_and_pad_mode_are_refused)
{
    hy3d_conv3d_desc desc = conv_desc(HY3D_F32, 4, 6, 3, 8, 8, 3);
    int64_t out[3];

    ck_assert_ok(hy3d_conv3d_out_size(&desc, out));
    ck_assert_status(hy3d_conv3d_out_size(NULL, out), HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(hy3d_conv3d_out_size(&desc, NULL), HY3D_ERR_INVALID_ARGUMENT);
    memset(&desc.dtype, 0x7f, sizeof desc.dtype);
    ck_assert_status(hy3d_conv3d_out_size(&desc, out), HY3D_ERR_INVALID_ARGUMENT);
    desc.dtype = HY3D_F32;
    memset(&desc.pad_mode[1], 0x7f, sizeof desc.pad_mode[1]);
    ck_assert_status(hy3d_conv3d_out_size(&desc, out), HY3D_ERR_INVALID_ARGUMENT);
}
END_TEST

START_TEST(test_output_size_follows_the_formula)
{
    hy3d_conv3d_desc desc = conv_desc(HY3D_F32, 4, 6, 9, 30, 31, 3);
    int64_t out[3];

    for (int i = 0; i < 3; i++) {
        desc.stride[i] = 1 + i;
        desc.dilation[i] = 3 - i;
        desc.pad_before[i] = 2 * i;
        desc.pad_after[i] = 1;
    }
    ck_assert_ok(hy3d_conv3d_out_size(&desc, out));
    ck_assert_int_eq(out[0], (9 + 0 + 1 - 7) / 1 + 1);
    ck_assert_int_eq(out[1], (30 + 2 + 1 - 5) / 2 + 1);
    ck_assert_int_eq(out[2], (31 + 4 + 1 - 3) / 3 + 1);
}
END_TEST

static hy3d_status create(hy3d_context *context, const conv_problem *problem)
{
    hy3d_conv3d_plan *plan = NULL;
    const hy3d_status status = hy3d_conv3d_plan_create(
        context, &problem->desc, &problem->weight.tensor, &problem->bias.tensor, NULL, &plan);
    hy3d_conv3d_plan_destroy(plan);
    return status;
}

START_TEST(test_plan_refuses_each_wrong_argument)
{
    hy3d_context *const context = test_context(NULL, 2);
    test_random random = test_rng(400);
    const hy3d_conv3d_desc desc = conv_desc(HY3D_F32, 4, 6, 3, 8, 8, 3);
    const conv_problem good =
        conv_problem_make(&desc, true, LAYOUT_PLAIN, LAYOUT_PLAIN, LAYOUT_PLAIN, &random, 3);
    hy3d_conv3d_plan *plan = NULL;
    const hy3d_tensor *const weight = &good.weight.tensor;
    const uint64_t live = test_live();

    ck_assert_status(hy3d_conv3d_plan_create(NULL, &desc, weight, NULL, NULL, &plan),
                     HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(hy3d_conv3d_plan_create(context, NULL, weight, NULL, NULL, &plan),
                     HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(hy3d_conv3d_plan_create(context, &desc, NULL, NULL, NULL, &plan),
                     HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(hy3d_conv3d_plan_create(context, &desc, weight, NULL, NULL, NULL),
                     HY3D_ERR_INVALID_ARGUMENT);
    conv_problem bad = good;
    bad.weight.tensor.dtype = HY3D_F64;
    ck_assert_status(create(context, &bad), HY3D_ERR_INVALID_ARGUMENT);
    bad = good;
    bad.bias.tensor.dtype = HY3D_F16;
    ck_assert_status(create(context, &bad), HY3D_ERR_INVALID_ARGUMENT);
    bad = good;
    bad.weight.tensor.data = NULL;
    ck_assert_status(create(context, &bad), HY3D_ERR_INVALID_ARGUMENT);
    bad = good;
    bad.weight.tensor.data = good.weight.memory + 1;
    ck_assert_status(create(context, &bad), HY3D_ERR_INVALID_ARGUMENT);
    bad = good;
    bad.bias.tensor.size[0] = 5;
    ck_assert_status(create(context, &bad), HY3D_ERR_SHAPE_MISMATCH);
    for (int i = 0; i < HY3D_TENSOR_DIMS; i++) {
        bad = good;
        bad.weight.tensor.size[i]++;
        ck_assert_status(create(context, &bad), HY3D_ERR_SHAPE_MISMATCH);
        bad = good;
        bad.weight.tensor.stride[i] = INT64_MAX;
        ck_assert_status(create(context, &bad), HY3D_ERR_OVERFLOW);
    }
    ck_assert_ok(create(context, &good));
    ck_assert_uint_eq(test_live(), live);
    hy3d_conv3d_plan_destroy(NULL);
    conv_problem_free(&bad);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_run_refuses_each_wrong_argument)
{
    hy3d_context *const context = test_context(NULL, 2);
    test_random random = test_rng(401);
    const hy3d_conv3d_desc desc = conv_desc(HY3D_F32, 4, 6, 3, 8, 8, 3);
    conv_problem p =
        conv_problem_make(&desc, true, LAYOUT_PLAIN, LAYOUT_PLAIN, LAYOUT_PLAIN, &random, 3);
    hy3d_conv3d_plan *plan = NULL;
    void *workspace = NULL;
    const hy3d_tensor *const x = &p.x.tensor;
    const hy3d_tensor *const y = &p.y.tensor;

    ck_assert_ok(hy3d_conv3d_plan_create(context, &desc, &p.weight.tensor, NULL, NULL, &plan));
    ck_assert_ok(hy3d_alloc(context, hy3d_conv3d_plan_workspace_bytes(plan) + 64, &workspace));
    ck_assert_status(hy3d_conv3d_run(NULL, x, y, workspace, NULL), HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(hy3d_conv3d_run(plan, NULL, y, workspace, NULL), HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(hy3d_conv3d_run(plan, x, NULL, workspace, NULL), HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(hy3d_conv3d_run(plan, x, y, NULL, NULL), HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(hy3d_conv3d_run(plan, x, y, (unsigned char *)workspace + 32, NULL),
                     HY3D_ERR_INVALID_ARGUMENT);
    hy3d_tensor bad = *x;
    bad.dtype = HY3D_BF16;
    ck_assert_status(hy3d_conv3d_run(plan, &bad, y, workspace, NULL), HY3D_ERR_INVALID_ARGUMENT);
    bad = *y;
    bad.data = NULL;
    ck_assert_status(hy3d_conv3d_run(plan, x, &bad, workspace, NULL), HY3D_ERR_INVALID_ARGUMENT);
    bad = *y;
    bad.stride[4] = 0;
    ck_assert_status(hy3d_conv3d_run(plan, x, &bad, workspace, NULL), HY3D_ERR_INVALID_ARGUMENT);
    for (int i = 0; i < HY3D_TENSOR_DIMS; i++) {
        bad = *x;
        bad.size[i]++;
        ck_assert_status(hy3d_conv3d_run(plan, &bad, y, workspace, NULL),
                         HY3D_ERR_SHAPE_MISMATCH);
        bad = *y;
        bad.size[i]--;
        ck_assert_status(hy3d_conv3d_run(plan, x, &bad, workspace, NULL),
                         HY3D_ERR_SHAPE_MISMATCH);
        bad = *x;
        bad.stride[i] = INT64_MIN;
        ck_assert_status(hy3d_conv3d_run(plan, &bad, y, workspace, NULL),
                         i == 0 ? HY3D_OK : HY3D_ERR_OVERFLOW);
    }
    ck_assert_ok(hy3d_conv3d_run(plan, x, y, workspace, NULL));
    hy3d_free(context, workspace);
    hy3d_conv3d_plan_destroy(plan);
    conv_problem_free(&p);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_questions_about_no_plan_have_answers)
{
    ck_assert_uint_eq(hy3d_conv3d_plan_workspace_bytes(NULL), 0);
    ck_assert_uint_eq(hy3d_conv3d_plan_own_bytes(NULL), 0);
    ck_assert_uint_eq(hy3d_conv3d_plan_threads(NULL), 0);
    ck_assert_str_eq(hy3d_conv3d_plan_strategy(NULL), "none");
}
END_TEST

TCase *hy3d_conv3d_argument_case(void)
{
    TCase *const tests = tcase_create("arguments");
    tcase_add_loop_test(tests, test_each_wrong_description_has_its_status, 0,
                        (int)COUNT_OF(bad_descs));
    tcase_add_test(tests, test_unknown_dtype_and_pad_mode_are_refused);
    tcase_add_test(tests, test_output_size_follows_the_formula);
    tcase_add_test(tests, test_plan_refuses_each_wrong_argument);
    tcase_add_test(tests, test_run_refuses_each_wrong_argument);
    tcase_add_test(tests, test_questions_about_no_plan_have_answers);
    return tests;
}
