/* Tensors, fusions, prepared weights and plans of convolutions. */
#include "reference.h"
#include "vectors.h"

#include "hy3d/conv3d.h"

/* A good call: two images of 2 channels of 3x4x5, a kernel of two taps an axis to 3 channels. */
typedef struct call {
    const hy3d_context *context;
    const hy3d_conv3d_desc *desc_at;
    const hy3d_tensor *weight_at, *bias_at, *x_at, *y_at;
    const hy3d_conv3d_fusion *fusion_at;
    unsigned char *workspace;
    void *plan_out;
    int64_t no_plan;
    hy3d_conv3d_desc desc;
    hy3d_tensor weight, bias, x, y, residual;
    hy3d_conv3d_fusion fusion;
    hy3d_conv3d_frame frames[3];
} call;

static float floats[4][640], ones[8] = {1, 1, 1, 1, 1, 1, 1, 1};
static _Alignas(64) unsigned char room[1 << 18];

static hy3d_tensor plain(float *data, int64_t n, int64_t c, int64_t t, int64_t h, int64_t w)
{
    return (hy3d_tensor){
        data, HY3D_F32, {n, c, t, h, w}, {c * t * h * w, t * h * w, h * w, w, 1}};
}

static void make(call *a, hy3d_context *context)
{
    *a = (call){.context = context, .desc_at = &a->desc, .weight_at = &a->weight,
                .bias_at = &a->bias, .x_at = &a->x, .y_at = &a->y, .workspace = room,
                .plan_out = room};
    a->desc = (hy3d_conv3d_desc){.dtype = HY3D_F32, .batch = 2, .in_channels = 2,
                                 .out_channels = 3, .groups = 1, .in_size = {3, 4, 5},
                                 .kernel = {2, 2, 2}, .stride = {1, 1, 1}, .dilation = {1, 1, 1}};
    a->weight = plain(floats[0], 3, 2, 2, 2, 2);
    a->bias = (hy3d_tensor){floats[1], HY3D_F32, {3, 1, 1, 1, 1}, {1, 1, 1, 1, 1}};
    a->x = plain(floats[2], 2, 2, 3, 4, 5);
    a->y = plain(floats[3], 2, 3, 2, 3, 4);
    a->residual = a->y;
    for (int i = 0; i < 3; i++) {
        a->frames[i] = (hy3d_conv3d_frame){.data = floats[2] + 20 * i, .stride = {60, 5, 1}};
    }
}

#define C(member, value) VECTOR_SET(call, member, value)
#define C_ADD(member, value) VECTOR_ADD(call, member, value)

#define TENSOR(name)                                                                               \
    {#name " NULL data", {C(name.data, 0)}, BAD}, {#name " odd data", {C_ADD(name.data, 1)}, BAD}, \
    {#name " data at 2", {C_ADD(name.data, 2)}, BAD},                                              \
    {#name " data at 3", {C_ADD(name.data, 3)}, BAD},                                              \
    {#name " f64", {C(name.dtype, HY3D_F64)}, BAD},                                                \
    {#name " f16", {C(name.dtype, HY3D_F16)}, BAD},                                                \
    {#name " dtype 4", {C(name.dtype, 4)}, BAD}, {#name " dtype -1", {C(name.dtype, -1)}, BAD}

#define SIZE(name, i)                                                                              \
    {#name " size", {C_ADD(name.size[i], 1)}, SHAPE},                                              \
    {#name " size", {C_ADD(name.size[i], -1)}, SHAPE},                                             \
    {#name " size -1", {C(name.size[i], -1)}, SHAPE},                                              \
    {#name " size most", {C(name.size[i], INT64_MAX)}, SHAPE}

/* Of a dimension of two or more. */
#define STRIDE(name, i)                                                                            \
    {#name " stride most", {C(name.stride[i], INT64_MAX)}, BIG},                                   \
    {#name " stride least", {C(name.stride[i], INT64_MIN)}, BIG},                                  \
    {#name " stride that wraps in bytes", {C(name.stride[i], TWO(61))}, BIG}

#define SIZES(name) SIZE(name, 0), SIZE(name, 1), SIZE(name, 2), SIZE(name, 3), SIZE(name, 4)
#define STRIDES(name)                                                                              \
    STRIDE(name, 0), STRIDE(name, 1), STRIDE(name, 2), STRIDE(name, 3), STRIDE(name, 4)

static const vector plans[] = {
    {"as it is", {{0}}, OK},
    {"no context", {C(context, 0)}, BAD},
    {"no description", {C(desc_at, 0)}, BAD},
    {"no weight", {C(weight_at, 0)}, BAD},
    {"nowhere to put it", {C(plan_out, 0)}, BAD},
    {"no bias", {C(bias_at, 0)}, OK},
    TENSOR(weight),
    SIZES(weight),
    STRIDES(weight),
    {"weight strides that add up", {C(weight.stride[0], TWO(59)), C(weight.stride[1], TWO(60))},
     BIG},
    {"weight stride 0", {C(weight.stride[0], 0)}, OK},
    TENSOR(bias),
    SIZES(bias),
    STRIDE(bias, 0),
    {"bias stride 0", {C(bias.stride[0], 0)}, OK},
    {"bias strides that say nothing", {C(bias.stride[4], INT64_MAX)}, OK},
    {"a limit of a byte", {C(desc.workspace_limit_bytes, 1)}, HY3D_ERR_WORKSPACE_TOO_SMALL},
    {"a limit of 63 bytes", {C(desc.workspace_limit_bytes, 63)}, HY3D_ERR_WORKSPACE_TOO_SMALL},
    {"no end of room", {C(desc.workspace_limit_bytes, -1)}, OK},
    {"more threads than there are", {C(desc.num_threads, UINT32_MAX)}, OK},
};

/* Runs; the oracle agrees about each. */
static const vector runs[] = {
    {"as it is", {{0}}, OK},
    {"no input", {C(x_at, 0)}, BAD},
    {"no output", {C(y_at, 0)}, BAD},
    TENSOR(x),
    SIZES(x),
    STRIDES(x),
    {"x strides that add up", {C(x.stride[0], TWO(60)), C(x.stride[1], TWO(60))}, BIG},
    {"x strides of two signs", {C(x.stride[0], 0), C(x.stride[1], 0)}, OK},
    TENSOR(y),
    SIZES(y),
    STRIDES(y),
    {"y stride 0", {C(y.stride[0], 0)}, BAD},
    {"y stride 0", {C(y.stride[1], 0)}, BAD},
    {"y stride 0", {C(y.stride[2], 0)}, BAD},
    {"y stride 0", {C(y.stride[3], 0)}, BAD},
    {"y stride 0", {C(y.stride[4], 0)}, BAD},
};

#define FUSED C(fusion_at, 1)
static const vector fusions[] = {
    {"nothing", {FUSED}, OK},
    {"scale and shift", {FUSED, C(fusion.scale, 1), C(fusion.shift, 1)}, OK},
    {"scale alone", {FUSED, C(fusion.scale, 1)}, BAD},
    {"shift alone", {FUSED, C(fusion.shift, 1)}, BAD},
    {"SiLU", {FUSED, C(fusion.activation, HY3D_SILU)}, OK},
    {"activation 2", {FUSED, C(fusion.activation, 2)}, BAD},
    {"activation -1", {FUSED, C(fusion.activation, -1)}, BAD},
    {"activation most", {FUSED, C(fusion.activation, INT32_MAX)}, BAD},
    {"a residual", {FUSED, C(fusion.residual, 1)}, OK},
    {"residual repeated", {FUSED, C(fusion.residual, 1), C(residual.stride[0], 0)}, OK},
    {"residual of no data", {FUSED, C(fusion.residual, 1), C(residual.data, 0)}, BAD},
    {"residual at an odd place", {FUSED, C(fusion.residual, 1), C_ADD(residual.data, 1)}, BAD},
    {"residual f16", {FUSED, C(fusion.residual, 1), C(residual.dtype, HY3D_F16)}, BAD},
    {"residual smaller", {FUSED, C(fusion.residual, 1), C_ADD(residual.size[4], -1)}, SHAPE},
    {"residual larger", {FUSED, C(fusion.residual, 1), C_ADD(residual.size[0], 1)}, SHAPE},
    {"residual beyond", {FUSED, C(fusion.residual, 1), C(residual.stride[1], INT64_MAX)}, BIG},
    {"frames of two images", {FUSED, C(fusion.frames, 1)}, BAD},
    {"frames", {FUSED, C(fusion.frames, 2)}, OK},
    {"frames and no x", {FUSED, C(fusion.frames, 2), C(x_at, 0)}, OK},
    {"a frame of zeros", {FUSED, C(fusion.frames, 2), C(frames[1].data, 0)}, OK},
    {"a frame at an odd place", {FUSED, C(fusion.frames, 2), C_ADD(frames[2].data, 1)}, BAD},
    {"a frame that wraps", {FUSED, C(fusion.frames, 2), C(frames[2].stride[0], INT64_MAX)}, BIG},
    {"rows that wrap", {FUSED, C(fusion.frames, 2), C(frames[1].stride[1], INT64_MIN)}, BIG},
    {"columns that wrap", {FUSED, C(fusion.frames, 2), C(frames[0].stride[2], TWO(61))}, BIG},
    {"zeros whose strides say nothing",
     {FUSED, C(fusion.frames, 2), C(frames[0].data, 0), C(frames[0].stride[0], INT64_MAX)},
     OK},
    {"rows repeated", {FUSED, C(fusion.frames, 2), C(frames[0].stride[1], 0)}, OK},
};

static const vector workspaces[] = {
    {"no plan", {C(no_plan, 1)}, BAD},
    {"no workspace", {C(workspace, 0)}, BAD},
    {"workspace at 1", {C_ADD(workspace, 1)}, BAD},
    {"workspace at 32", {C_ADD(workspace, 32)}, BAD},
    {"workspace at 63", {C_ADD(workspace, 63)}, BAD},
    {"workspace at 64", {C_ADD(workspace, 64)}, OK},
};

static hy3d_status plan(const vector *v)
{
    hy3d_context *context = test_context("ref", 2);
    hy3d_conv3d_plan *made = NULL;
    call a;

    make(&a, context);
    vector_apply(v, &a);
    const uint64_t live = test_live();
    const hy3d_status status =
        hy3d_conv3d_plan_create(a.context == NULL ? NULL : context, a.desc_at, a.weight_at,
                                a.bias_at, NULL, a.plan_out == NULL ? NULL : &made);
    ck_assert_msg((made != NULL) == (status == HY3D_OK), "%s", v->what);
    hy3d_conv3d_plan_destroy(made);
    ck_assert_uint_eq(test_live(), live);
    hy3d_context_destroy(context);
    return status;
}

/* Pointers of a fusion that vectors set to 1 or 2 are put in their places. */
static void point(call *a)
{
    if (a->fusion_at != NULL) {
        a->fusion_at = &a->fusion;
        a->fusion.scale = a->fusion.scale == NULL ? NULL : ones;
        a->fusion.shift = a->fusion.shift == NULL ? NULL : ones;
        a->fusion.residual = a->fusion.residual == NULL ? NULL : &a->residual;
        if ((uintptr_t)a->fusion.frames == 2) {
            a->desc.batch = 1;
            a->y.size[0] = a->residual.size[0] = 1;
        }
        a->fusion.frames = a->fusion.frames == NULL ? NULL : a->frames;
    }
}

static hy3d_status run(const vector *v)
{
    hy3d_context *const context = test_context("ref", 2);
    hy3d_conv3d_plan *made = NULL;
    call a;

    make(&a, context);
    vector_apply(v, &a);
    point(&a);
    ck_assert_ok(hy3d_conv3d_plan_create(context, &a.desc, &a.weight, NULL, NULL, &made));
    ck_assert_uint_le(hy3d_conv3d_plan_workspace_bytes(made), sizeof room - 64);
    const hy3d_status status = hy3d_conv3d_run_fused(a.no_plan != 0 ? NULL : made, a.x_at,
                                                     a.fusion_at, a.y_at, a.workspace, NULL);
    if (a.no_plan == 0 && a.workspace == room) {
        ck_assert_status(
            reference_conv3d(&a.desc, a.x_at, &a.weight, NULL, a.fusion_at, a.y_at),
            status);
    }
    hy3d_conv3d_plan_destroy(made);
    hy3d_context_destroy(context);
    return status;
}

/* Prepared weights: 16 channels to 16, a 3x3x3 kernel of zeros that are one zero. */
typedef struct preparation {
    int64_t no_context, no_weight, nowhere;
    hy3d_tensor weight;
    hy3d_conv3d_format format;
} preparation;

#define P(member, value) VECTOR_SET(preparation, member, value)
static const vector preparations[] = {
    {"as it is", {{0}}, OK},
    {"no context", {P(no_context, 1)}, BAD},
    {"no weight", {P(no_weight, 1)}, BAD},
    {"nowhere to put it", {P(nowhere, 1)}, BAD},
    {"format 0", {P(format, 0)}, BAD},
    {"format 2", {P(format, 2)}, OK},
    {"format 3", {P(format, 3)}, OK},
    {"format 4", {P(format, 4)}, OK},
    {"format 11", {P(format, 11)}, BAD},
    {"format most", {P(format, UINT32_MAX)}, BAD},
    {"two taps of time", {P(weight.size[2], 2)}, OK},
    {"two taps of time in pairs of frames", {P(weight.size[2], 2), P(format, 2)}, BAD},
    {"one tap of time", {P(weight.size[2], 1)}, OK},
    {"no tap of time", {P(weight.size[2], 0)}, BAD},
    {"four taps of time", {P(weight.size[2], 4)}, BAD},
    {"two rows", {P(weight.size[3], 2)}, BAD},
    {"four rows", {P(weight.size[3], 4)}, BAD},
    {"two columns", {P(weight.size[4], 2)}, BAD},
    {"four columns", {P(weight.size[4], 4)}, BAD},
    {"no output channel", {P(weight.size[0], 0)}, BAD},
    {"output channels -1", {P(weight.size[0], -1)}, BAD},
    {"one output channel", {P(weight.size[0], 1)}, OK},
    {"output channels beyond", {P(weight.size[0], TWO(31))}, BAD},
    {"output channels most", {P(weight.size[0], INT64_MAX)}, BAD},
    {"no input channel", {P(weight.size[1], 0)}, BAD},
    {"one input channel", {P(weight.size[1], 1)}, OK},
    {"input channels beyond", {P(weight.size[1], TWO(31))}, BAD},
    {"input channels least", {P(weight.size[1], INT64_MIN)}, BAD},
    {"f64", {P(weight.dtype, HY3D_F64)}, BAD},
    {"f16", {P(weight.dtype, HY3D_F16)}, OK},
    {"bf16", {P(weight.dtype, HY3D_BF16)}, OK},
    {"dtype 4", {P(weight.dtype, 4)}, BAD},
    {"dtype -1", {P(weight.dtype, -1)}, BAD},
    {"no data", {P(weight.data, 0)}, BAD},
    {"odd data", {VECTOR_ADD(preparation, weight.data, 1)}, BAD},
    {"data at 2 of f32", {VECTOR_ADD(preparation, weight.data, 2)}, BAD},
    {"data at 2 of f16",
     {VECTOR_ADD(preparation, weight.data, 2), P(weight.dtype, HY3D_F16)},
     OK},
    {"strides that wrap", {P(weight.stride[0], INT64_MAX)}, BIG},
    {"strides that wrap in bytes", {P(weight.stride[4], TWO(60))}, BIG},
    {"strides that wrap downwards", {P(weight.stride[2], INT64_MIN)}, BIG},
    {"strides that add up", {P(weight.stride[3], TWO(60) - 1), P(weight.stride[4], TWO(60) - 1)},
     BIG},
};

static hy3d_status prepare(const vector *v)
{
    hy3d_context *const context = test_context("ref", 2);
    preparation a = {.weight = {floats[0], HY3D_F32, {16, 16, 3, 3, 3}, {0}}, .format = 1};
    hy3d_conv3d_weights *made = NULL;

    vector_apply(v, &a);
    const hy3d_status status = hy3d_conv3d_weights_create(
        a.no_context != 0 ? NULL : context, a.no_weight != 0 ? NULL : &a.weight, a.format, 1, NULL,
        a.nowhere != 0 ? NULL : &made);
    ck_assert_msg((made != NULL) == (status == HY3D_OK), "%s", v->what);
    ck_assert_uint_eq(hy3d_conv3d_weights_bytes(made),
                      made == NULL ? 0
                                   : hy3d_conv3d_format_bytes(a.format, a.weight.size[0],
                                                              a.weight.size[1], &a.weight.size[2]));
    hy3d_conv3d_weights_destroy(made);
    hy3d_context_destroy(context);
    return status;
}

/* Vectors of calls that work want a plan, and this one takes BLAS. */
static bool has_blas(void)
{
    hy3d_context *const context = test_context("ref", 2);
    const bool there = test_has_blas(context);
    hy3d_context_destroy(context);
    return there;
}

START_TEST(test_plans)
{
    if (has_blas()) {
        vectors_check(plans, COUNT_OF(plans), plan);
    }
}
END_TEST

START_TEST(test_runs)
{
    if (has_blas()) {
        vectors_check(runs, COUNT_OF(runs), run);
    }
}
END_TEST

START_TEST(test_fusions)
{
    if (has_blas()) {
        vectors_check(fusions, COUNT_OF(fusions), run);
    }
}
END_TEST

START_TEST(test_workspaces)
{
    if (has_blas()) {
        vectors_check(workspaces, COUNT_OF(workspaces), run);
    }
}
END_TEST

START_TEST(test_preparations)
{
    vectors_check(preparations, COUNT_OF(preparations), prepare);
}
END_TEST

int vectors_conv3d_run(Suite *suite)
{
    TCase *const tests = tcase_create("conv3d calls");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, test_plans);
    tcase_add_test(tests, test_runs);
    tcase_add_test(tests, test_fusions);
    tcase_add_test(tests, test_workspaces);
    tcase_add_test(tests, test_preparations);
    suite_add_tcase(suite, tests);
    return (int)(COUNT_OF(plans) + COUNT_OF(runs) + COUNT_OF(fusions) + COUNT_OF(workspaces) +
                 COUNT_OF(preparations));
}
