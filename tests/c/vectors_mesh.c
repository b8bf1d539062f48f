/* Scattering, normals and in-painting: a few points, a triangle, a texture of 2x2, and what is set.
 * Numbers that would want gigabytes end in a cancel or a failed allocation, after the checks. */
#include "vectors.h"

#include <string.h>

#include "hy3d/raster.h"

#define MOST_SIDE HY3D_RASTER_MOST_PIXELS_A_SIDE
#define STOPS HY3D_ERR_CANCELLED
#define NO_MEMORY HY3D_ERR_OUT_OF_MEMORY
#define NAN_BITS INT64_C(0x7fc00000)
#define INFINITY_BITS INT64_C(0x7f800000)

typedef struct call {
    int64_t no_context, no_desc, no_first, no_second, no_third, no_fourth, no_out, no_total;
    int64_t cancelled, no_memory;
    hy3d_scatter_desc scatter;
    hy3d_vertex_inpaint_desc inpaint;
    int64_t vertices, faces;
    uint32_t threads;
    hy3d_normal_weighting weighting;
    float uv[6], weights[3], positions[9];
    int32_t triangles[3], uv_triangles[3];
} call;

#define X(member, value) VECTOR_SET(call, member, value)
#define STOPPED X(cancelled, 1)
#define STARVED X(no_memory, 1)
#define SIDE(desc, side)                                                                           \
    {#side " 0", {X(desc.side, 0)}, BAD}, {#side " -1", {X(desc.side, -1)}, BAD},                  \
    {#side " least", {X(desc.side, INT64_MIN)}, BAD}, {#side " 1", {X(desc.side, 1)}, OK},         \
    {#side " beyond", {X(desc.side, MOST_SIDE + 1), STOPPED}, BAD},                                \
    {#side " most", {X(desc.side, INT64_MAX), STOPPED}, BAD},                                      \
    {"the last " #side, {X(desc.side, MOST_SIDE), STOPPED}, STOPS}
#define CHANNELS(desc)                                                                             \
    {"channels 0", {X(desc.channels, 0)}, BAD}, {"channels -1", {X(desc.channels, -1)}, BAD},      \
    {"channels least", {X(desc.channels, INT64_MIN)}, BAD},                                        \
    {"the last channels of 4 texels", {X(desc.channels, TWO(59) - 1), STOPPED}, STOPS},            \
    {"channels beyond", {X(desc.channels, TWO(59)), STOPPED}, BIG},                                \
    {"channels most", {X(desc.channels, INT64_MAX), STOPPED}, BIG}

static const vector scatters[] = {
    {"as it is", {{0}}, OK},
    {"no context", {X(no_context, 1)}, BAD},
    {"no description", {X(no_desc, 1)}, BAD},
    {"no values", {X(no_first, 1)}, BAD},
    {"no uv", {X(no_second, 1)}, BAD},
    {"no weights", {X(no_third, 1)}, OK},
    {"nothing of no point", {X(scatter.points, 0), X(no_first, 1), X(no_second, 1)}, OK},
    {"no texture", {X(no_out, 1)}, BAD},
    {"no total", {X(no_total, 1)}, BAD},
    {"nearest", {X(scatter.filter, 1)}, OK},
    {"filter 2", {X(scatter.filter, 2)}, BAD},
    {"filter -1", {X(scatter.filter, -1)}, BAD},
    SIDE(scatter, width),
    SIDE(scatter, height),
    CHANNELS(scatter),
    {"points -1", {X(scatter.points, -1)}, BAD},
    {"points least", {X(scatter.points, INT64_MIN)}, BAD},
    {"the last points", {X(scatter.points, INT32_MAX), STOPPED}, STOPS},
    {"points beyond", {X(scatter.points, TWO(31)), STOPPED}, BAD},
    {"points and channels beyond",
     {X(scatter.points, TWO(30)), X(scatter.channels, TWO(31)), STOPPED}, BIG},
    {"threads most", {X(scatter.num_threads, UINT32_MAX)}, OK},
    {"uv NaN", {X(uv[5], NAN_BITS)}, BAD},
    {"uv infinite", {X(uv[0], INFINITY_BITS)}, BAD},
    {"weight NaN", {X(weights[2], NAN_BITS)}, BAD},
    {"weight infinite", {X(weights[0], INFINITY_BITS)}, BAD},
    {"weight -1", {X(weights[1], INT64_C(0xbf800000))}, BAD},
    {"weight below 0 by the least", {X(weights[1], TWO(31) + 1)}, BAD},
    {"weight -0", {X(weights[1], TWO(31))}, OK},
    {"weight 0", {X(weights[1], 0)}, OK},
    {"no memory", {STARVED}, NO_MEMORY},
};

static const vector normals[] = {
    {"as it is", {{0}}, OK},
    {"no context", {X(no_context, 1)}, BAD},
    {"no positions", {X(no_first, 1)}, BAD},
    {"no triangles", {X(no_second, 1)}, BAD},
    {"no normals", {X(no_out, 1)}, BAD},
    {"nothing at all", {X(vertices, 0), X(faces, 0), X(no_first, 1), X(no_second, 1)}, OK},
    {"vertices -1", {X(vertices, -1)}, BAD},
    {"vertices least", {X(vertices, INT64_MIN)}, BAD},
    {"vertices 0 of a face", {X(vertices, 0)}, BAD},
    {"vertices 2 of a face with 3", {X(vertices, 2)}, BAD},
    {"the last vertices", {X(vertices, INT32_MAX), STOPPED}, STOPS},
    {"vertices beyond", {X(vertices, TWO(31)), STOPPED}, BAD},
    {"vertices most", {X(vertices, INT64_MAX), STOPPED}, BAD},
    {"faces -1", {X(faces, -1)}, BAD},
    {"faces least", {X(faces, INT64_MIN)}, BAD},
    {"faces 0", {X(faces, 0)}, OK},
    {"the last faces", {X(faces, INT32_MAX - 1), STOPPED}, STOPS},
    {"faces beyond", {X(faces, INT32_MAX), STOPPED}, BAD},
    {"faces most", {X(faces, INT64_MAX), STOPPED}, BAD},
    {"by angle", {X(weighting, 1)}, OK},
    {"weighting 2", {X(weighting, 2)}, BAD},
    {"weighting -1", {X(weighting, -1)}, BAD},
    {"threads most", {X(threads, UINT32_MAX)}, OK},
    {"index 3 of 3", {X(triangles[0], 3)}, BAD},
    {"index -1", {X(triangles[1], -1)}, BAD},
    {"index least", {X(triangles[2], INT32_MIN)}, BAD},
    {"position NaN", {X(positions[8], NAN_BITS)}, BAD},
    {"position infinite", {X(positions[0], INFINITY_BITS)}, BAD},
    {"position -infinite", {X(positions[4], INFINITY_BITS | TWO(31))}, BAD},
    {"the last float", {X(positions[4], INFINITY_BITS - 1)}, OK},
    {"no memory", {STARVED}, NO_MEMORY},
};

static const vector inpaints[] = {
    {"as it is", {{0}}, OK},
    {"no context", {X(no_context, 1)}, BAD},
    {"no description", {X(no_desc, 1)}, BAD},
    {"no positions", {X(no_first, 1)}, BAD},
    {"no uv", {X(no_second, 1)}, BAD},
    {"no triangles", {X(no_third, 1)}, BAD},
    {"no uv triangles", {X(no_fourth, 1)}, BAD},
    {"no texture", {X(no_out, 1)}, BAD},
    {"no mask", {X(no_total, 1)}, BAD},
    {"no faces", {X(inpaint.faces, 0), X(no_third, 1), X(no_fourth, 1)}, OK},
    {"nothing but a texture",
     {X(inpaint.faces, 0), X(inpaint.vertices, 0), X(inpaint.uvs, 0)}, OK},
    SIDE(inpaint, width),
    SIDE(inpaint, height),
    {"channels 0", {X(inpaint.channels, 0)}, BAD},
    {"channels -1", {X(inpaint.channels, -1)}, BAD},
    {"the last channels of 4 texels", {X(inpaint.channels, TWO(59) - 1), STOPPED}, STOPS},
    {"channels beyond", {X(inpaint.channels, TWO(59)), STOPPED}, BIG},
    {"channels most", {X(inpaint.channels, INT64_MAX), STOPPED}, BIG},
    {"vertices -1", {X(inpaint.vertices, -1)}, BAD},
    {"vertices least", {X(inpaint.vertices, INT64_MIN)}, BAD},
    {"vertices 2 of a face with 3", {X(inpaint.vertices, 2)}, BAD},
    {"the last vertices", {X(inpaint.vertices, INT32_MAX), STOPPED}, STOPS},
    {"vertices beyond", {X(inpaint.vertices, TWO(31)), STOPPED}, BAD},
    {"uvs -1", {X(inpaint.uvs, -1)}, BAD},
    {"uvs 2 of a face with 3", {X(inpaint.uvs, 2)}, BAD},
    {"the last uvs", {X(inpaint.uvs, INT32_MAX), STOPPED}, STOPS},
    {"uvs beyond", {X(inpaint.uvs, TWO(31)), STOPPED}, BAD},
    {"faces -1", {X(inpaint.faces, -1)}, BAD},
    {"faces least", {X(inpaint.faces, INT64_MIN)}, BAD},
    {"the last faces", {X(inpaint.faces, INT32_MAX - 1), STOPPED}, STOPS},
    {"faces beyond", {X(inpaint.faces, INT32_MAX), STOPPED}, BAD},
    {"faces most", {X(inpaint.faces, INT64_MAX), STOPPED}, BAD},
    {"index 3 of 3", {X(triangles[0], 3)}, BAD},
    {"index -1", {X(triangles[2], -1)}, BAD},
    {"uv index 3 of 3", {X(uv_triangles[1], 3)}, BAD},
    {"uv index least", {X(uv_triangles[1], INT32_MIN)}, BAD},
    {"position NaN", {X(positions[3], NAN_BITS)}, BAD},
    {"uv infinite", {X(uv[1], INFINITY_BITS)}, BAD},
    {"uv far outside", {X(uv[1], INFINITY_BITS - 1)}, OK},
    {"no memory", {STARVED}, NO_MEMORY},
};

static call good(void)
{
    return (call){.scatter = {.width = 2, .height = 2, .channels = 2, .points = 3,
                              .num_threads = 1},
                  .inpaint = {.width = 2, .height = 2, .channels = 2, .vertices = 3, .uvs = 3,
                              .faces = 1},
                  .vertices = 3,
                  .faces = 1,
                  .threads = 1,
                  .uv = {0, 0, 1, 0, 0, 1},
                  .weights = {1, 2, 1},
                  .positions = {0, 0, 0, 1, 0, 0, 0, 1, 0},
                  .triangles = {0, 1, 2},
                  .uv_triangles = {0, 1, 2}};
}

/* A context and a cancel flag as the vector wants them. */
static hy3d_cancel *ready(hy3d_context *context, const call *a)
{
    hy3d_cancel *cancel = NULL;
    ck_assert_ok(hy3d_cancel_create(context, &cancel));
    if (a->cancelled != 0) {
        hy3d_cancel_request(cancel);
    }
    test_fail(a->no_memory != 0 ? 1 : 0, true);
    return cancel;
}

static void finish(hy3d_context *context, hy3d_cancel *cancel)
{
    hy3d_cancel_destroy(context, cancel);
    hy3d_context_destroy(context);
}

static hy3d_status scatter(const vector *v)
{
    static const float values[6] = {1, 2, 3, 4, 5, 6};
    hy3d_context *const context = test_context(NULL, 2);
    call a = good();
    float texture[8] = {-7}, total[4] = {-7};

    vector_apply(v, &a);
    hy3d_cancel *const cancel = ready(context, &a);
    const hy3d_status status = hy3d_scatter(
        a.no_context != 0 ? NULL : context, a.no_desc != 0 ? NULL : &a.scatter,
        a.no_first != 0 ? NULL : values, a.no_second != 0 ? NULL : a.uv,
        a.no_third != 0 ? NULL : a.weights, cancel, NULL, a.no_out != 0 ? NULL : texture,
        a.no_total != 0 ? NULL : total);
    ck_assert_msg((texture[0] != -7) == (status == HY3D_OK), "%s", v->what);
    finish(context, cancel);
    return status;
}

static hy3d_status make_normals(const vector *v)
{
    hy3d_context *const context = test_context(NULL, 2);
    call a = good();
    float out[9] = {-7};

    vector_apply(v, &a);
    hy3d_cancel *const cancel = ready(context, &a);
    const hy3d_status status = hy3d_vertex_normals(
        a.no_context != 0 ? NULL : context, a.vertices, a.faces,
        a.no_first != 0 ? NULL : a.positions, a.no_second != 0 ? NULL : a.triangles, a.weighting,
        a.threads, cancel, NULL, a.no_out != 0 ? NULL : out);
    ck_assert_msg((out[0] != -7) == (status == HY3D_OK && a.vertices != 0), "%s", v->what);
    finish(context, cancel);
    return status;
}

static hy3d_status inpaint(const vector *v)
{
    hy3d_context *const context = test_context(NULL, 1);
    call a = good();
    float texture[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    uint8_t mask[4] = {255, 0, 0, 0};
    int64_t filled = -7;

    vector_apply(v, &a);
    hy3d_cancel *const cancel = ready(context, &a);
    const hy3d_status status = hy3d_vertex_inpaint(
        a.no_context != 0 ? NULL : context, a.no_desc != 0 ? NULL : &a.inpaint,
        a.no_first != 0 ? NULL : a.positions, a.no_second != 0 ? NULL : a.uv,
        a.no_third != 0 ? NULL : a.triangles, a.no_fourth != 0 ? NULL : a.uv_triangles, cancel,
        NULL, a.no_out != 0 ? NULL : texture, a.no_total != 0 ? NULL : mask, &filled);
    ck_assert_msg((filled != -7) == (status == HY3D_OK), "%s", v->what);
    finish(context, cancel);
    return status;
}

START_TEST(test_scattering)
{
    vectors_check(scatters, COUNT_OF(scatters), scatter);
}
END_TEST

START_TEST(test_normals)
{
    vectors_check(normals, COUNT_OF(normals), make_normals);
}
END_TEST

START_TEST(test_inpainting)
{
    vectors_check(inpaints, COUNT_OF(inpaints), inpaint);
}
END_TEST

int vectors_mesh(Suite *suite)
{
    TCase *const tests = tcase_create("meshes");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, test_scattering);
    tcase_add_test(tests, test_normals);
    tcase_add_test(tests, test_inpainting);
    suite_add_tcase(suite, tests);
    return (int)(COUNT_OF(scatters) + COUNT_OF(normals) + COUNT_OF(inpaints));
}
