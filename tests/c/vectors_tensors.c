/* Blending and moments: tensors of two images, three channels, 2x3x4, and what is set. */
#include "vectors.h"

#include <string.h>

#include "hy3d/blend.h"
#include "hy3d/moments.h"

static _Alignas(8) float numbers[2][512]; /* f64, too */
static const float window[8] = {1, 1, 1, 1, 1, 1, 1, 1};

static hy3d_tensor plain(float *data)
{
    return (hy3d_tensor){data, HY3D_F32, {2, 3, 2, 3, 4}, {72, 24, 12, 4, 1}};
}

typedef struct blending {
    int64_t no_context, no_tile, no_out, no_windows;
    hy3d_tensor tile, out;
} blending;

#define B(member, value) VECTOR_SET(blending, member, value)
#define B_ADD(member, value) VECTOR_ADD(blending, member, value)
#define BLEND_TENSOR(name)                                                                         \
    {#name " NULL data", {B(name.data, 0)}, BAD}, {#name " odd data", {B_ADD(name.data, 1)}, BAD}, \
    {#name " data at 2", {B_ADD(name.data, 2)}, BAD},                                              \
    {#name " data at 4", {B_ADD(name.data, 4)}, OK},                                               \
    {#name " f16", {B(name.dtype, HY3D_F16)}, OK},                                                 \
    {#name " bf16", {B(name.dtype, HY3D_BF16)}, OK},                                               \
    {#name " f16 at 1", {B(name.dtype, HY3D_F16), B_ADD(name.data, 1)}, BAD},                      \
    {#name " f16 at 2", {B(name.dtype, HY3D_F16), B_ADD(name.data, 2)}, OK},                       \
    {#name " f64", {B(name.dtype, HY3D_F64)}, OK},                                                 \
    {#name " f64 at 4", {B(name.dtype, HY3D_F64), B_ADD(name.data, 4)}, BAD},                      \
    {#name " dtype 4", {B(name.dtype, 4)}, BAD}, {#name " dtype -1", {B(name.dtype, -1)}, BAD},    \
    {#name " dtype most", {B(name.dtype, INT32_MAX)}, BAD}
#define BLEND_DIM(name, i)                                                                         \
    {#name " larger", {B_ADD(name.size[i], 1)}, SHAPE},                                            \
    {#name " smaller", {B_ADD(name.size[i], -1)}, SHAPE},                                          \
    {#name " empty", {B(name.size[i], 0)}, SHAPE}, {#name " size -1", {B(name.size[i], -1)}, BAD}, \
    {#name " size least", {B(name.size[i], INT64_MIN)}, BAD},                                      \
    {#name " size most", {B(name.size[i], INT64_MAX)}, SHAPE},                                     \
    {#name " stride most", {B(name.stride[i], INT64_MAX)}, BIG},                                   \
    {#name " stride least", {B(name.stride[i], INT64_MIN)}, BIG},                                  \
    {#name " stride that wraps in bytes", {B(name.stride[i], TWO(61))}, BIG}
#define BLEND_DIMS(name)                                                                           \
    BLEND_DIM(name, 0), BLEND_DIM(name, 1), BLEND_DIM(name, 2), BLEND_DIM(name, 3),                \
        BLEND_DIM(name, 4)
#define BOTH_EMPTY(i)                                                                              \
    {"empty", {B(tile.size[i], 0), B(out.size[i], 0)}, OK},                                        \
                                                                                                   \
    {"empty of no data",                                                                           \
     {B(tile.size[i], 0), B(out.size[i], 0), B(tile.data, 0), B(out.data, 0)},                     \
     OK},                                                                                          \
    {"one", {B(tile.size[i], 1), B(out.size[i], 1), B(out.stride[i], 0)}, OK},                     \
    {"out stride 0", {B(out.stride[i], 0)}, BAD}, {"tile stride 0", {B(tile.stride[i], 0)}, OK}

static const vector blendings[] = {
    {"as it is", {{0}}, OK},
    {"no context", {B(no_context, 1)}, BAD},
    {"no tile", {B(no_tile, 1)}, BAD},
    {"no output", {B(no_out, 1)}, BAD},
    {"no windows", {B(no_windows, 1)}, OK},
    BLEND_TENSOR(tile),
    BLEND_TENSOR(out),
    BLEND_DIMS(tile),
    BLEND_DIMS(out),
    BOTH_EMPTY(0),
    BOTH_EMPTY(1),
    BOTH_EMPTY(2),
    BOTH_EMPTY(3),
    BOTH_EMPTY(4),
    {"strides that add up", {B(tile.stride[0], TWO(60)), B(tile.stride[1], TWO(59))}, BIG},
};

static hy3d_status blend(const vector *v)
{
    hy3d_context *const context = test_context(NULL, 1);
    blending a = {.tile = plain(numbers[0]), .out = plain(numbers[1])};

    vector_apply(v, &a);
    const float *const w = a.no_windows != 0 ? NULL : window;
    memset(numbers, 0, sizeof numbers);
    const hy3d_status status =
        hy3d_blend_accumulate(a.no_context != 0 ? NULL : context, a.no_tile != 0 ? NULL : &a.tile,
                              w, w, w, a.no_out != 0 ? NULL : &a.out);
    hy3d_context_destroy(context);
    return status;
}

typedef struct averaging {
    int64_t no_context, no_x, no_mean, no_deviations;
    uint32_t threads;
    hy3d_tensor x;
} averaging;

#define A(member, value) VECTOR_SET(averaging, member, value)
#define A_ADD(member, value) VECTOR_ADD(averaging, member, value)
#define MOMENTS_DIM(i)                                                                             \
    {"size -1", {A(x.size[i], -1)}, BAD}, {"size least", {A(x.size[i], INT64_MIN)}, BAD},          \
    {"size 1", {A(x.size[i], 1)}, OK}, {"stride 0", {A(x.stride[i], 0)}, OK},                      \
    {"stride most", {A(x.stride[i], INT64_MAX)}, BIG},                                             \
    {"stride least", {A(x.stride[i], INT64_MIN)}, BIG},                                            \
    {"stride that wraps in bytes", {A(x.stride[i], TWO(61))}, BIG},                                \
    {"stride most of one", {A(x.stride[i], INT64_MAX), A(x.size[i], 1)}, OK},                      \
    {"size most", {A(x.size[i], INT64_MAX), A(x.stride[i], 2)}, BIG}
#define NO_POSITIONS(i) {"no positions", {A(x.size[i], 0)}, BAD}

static const vector averagings[] = {
    {"as it is", {{0}}, OK},
    {"no context", {A(no_context, 1)}, BAD},
    {"no x", {A(no_x, 1)}, BAD},
    {"no mean", {A(no_mean, 1)}, BAD},
    {"no deviations", {A(no_deviations, 1)}, BAD},
    {"no data", {A(x.data, 0)}, BAD},
    {"odd data", {A_ADD(x.data, 1)}, BAD},
    {"data at 2", {A_ADD(x.data, 2)}, BAD},
    {"data at 4", {A_ADD(x.data, 4)}, OK},
    {"f16 at 1", {A(x.dtype, HY3D_F16), A_ADD(x.data, 1)}, BAD},
    {"f16 at 2", {A(x.dtype, HY3D_F16), A_ADD(x.data, 2)}, OK},
    {"f16", {A(x.dtype, HY3D_F16)}, OK},
    {"bf16", {A(x.dtype, HY3D_BF16)}, OK},
    {"f64", {A(x.dtype, HY3D_F64)}, HY3D_ERR_UNSUPPORTED},
    {"dtype 4", {A(x.dtype, 4)}, BAD},
    {"dtype -1", {A(x.dtype, -1)}, BAD},
    {"threads most", {A(threads, UINT32_MAX)}, OK},
    {"no channels", {A(x.size[1], 0)}, OK},
    {"no channels of no data", {A(x.size[1], 0), A(x.data, 0)}, OK},
    MOMENTS_DIM(0),
    MOMENTS_DIM(1),
    MOMENTS_DIM(2),
    MOMENTS_DIM(3),
    MOMENTS_DIM(4),
    NO_POSITIONS(0),
    NO_POSITIONS(2),
    NO_POSITIONS(3),
    NO_POSITIONS(4),
    {"positions beyond", {A(x.size[0], TWO(32)), A(x.size[2], TWO(32)), A(x.size[1], 0)}, BIG},
};

static hy3d_status average(const vector *v)
{
    hy3d_context *const context = test_context(NULL, 2);
    averaging a = {.threads = 1, .x = plain(numbers[0])};
    double mean[4] = {0}, deviations[4] = {0};

    vector_apply(v, &a);
    const hy3d_status status = hy3d_channel_moments(
        a.no_context != 0 ? NULL : context, a.no_x != 0 ? NULL : &a.x, a.threads, NULL,
        a.no_mean != 0 ? NULL : mean, a.no_deviations != 0 ? NULL : deviations);
    hy3d_context_destroy(context);
    return status;
}

START_TEST(test_blending)
{
    vectors_check(blendings, COUNT_OF(blendings), blend);
}
END_TEST

START_TEST(test_moments_of_channels)
{
    vectors_check(averagings, COUNT_OF(averagings), average);
}
END_TEST

int vectors_tensors(Suite *suite)
{
    TCase *const tests = tcase_create("blend and moments");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, test_blending);
    tcase_add_test(tests, test_moments_of_channels);
    suite_add_tcase(suite, tests);
    return (int)(COUNT_OF(blendings) + COUNT_OF(averagings));
}
