/* The rasteriser and interpolation: a triangle over four pixels, and what is set.
 *
 * The last good numbers of vertices and faces would want gigabytes: there the first allocation is
 * made to fail, which comes after all checks, or a cancel is asked for where nothing is
 * allocated. */
#include "vectors.h"

#include <math.h>

#include "hy3d/raster.h"

#define MOST_SIDE HY3D_RASTER_MOST_PIXELS_A_SIDE
#define NO_MEMORY HY3D_ERR_OUT_OF_MEMORY

typedef struct drawing {
    int64_t no_context, no_desc, no_clip, no_faces, no_picture, no_rest, no_memory;
    hy3d_raster_desc desc;
    float clip[12];
    int32_t faces[3];
} drawing;

#define R(member, value) VECTOR_SET(drawing, member, value)
#define STARVED R(no_memory, 1)
#define NAN_BITS INT64_C(0x7fc00000)
#define INFINITY_BITS INT64_C(0x7f800000)
#define MOST_FLOAT_BITS INT64_C(0x7f7fffff)

static const vector drawings[] = {
    {"as it is", {{0}}, OK},
    {"no context", {R(no_context, 1)}, BAD},
    {"no description", {R(no_desc, 1)}, BAD},
    {"no clip", {R(no_clip, 1)}, BAD},
    {"no clip of no vertex", {R(no_clip, 1), R(desc.vertices, 0), R(desc.faces, 0)}, OK},
    {"no faces", {R(no_faces, 1)}, BAD},
    {"no faces of none", {R(no_faces, 1), R(desc.faces, 0)}, OK},
    {"no picture", {R(no_picture, 1)}, BAD},
    {"neither barycentrics nor depth", {R(no_rest, 1)}, OK},
    {"topleft", {R(desc.rule, 1)}, OK},
    {"rule 2", {R(desc.rule, 2)}, BAD},
    {"rule -1", {R(desc.rule, -1)}, BAD},
    {"rule most", {R(desc.rule, INT32_MAX)}, BAD},
    {"width 0", {R(desc.width, 0)}, BAD},
    {"width -1", {R(desc.width, -1)}, BAD},
    {"width least", {R(desc.width, INT64_MIN)}, BAD},
    {"width 1", {R(desc.width, 1)}, OK},
    {"the last width", {R(desc.width, MOST_SIDE), STARVED}, NO_MEMORY},
    {"width beyond", {R(desc.width, MOST_SIDE + 1), STARVED}, BAD},
    {"width most", {R(desc.width, INT64_MAX), STARVED}, BAD},
    {"height 0", {R(desc.height, 0)}, BAD},
    {"height -1", {R(desc.height, -1)}, BAD},
    {"height least", {R(desc.height, INT64_MIN)}, BAD},
    {"height 1", {R(desc.height, 1)}, OK},
    {"the last height", {R(desc.height, MOST_SIDE), STARVED}, NO_MEMORY},
    {"height beyond", {R(desc.height, MOST_SIDE + 1), STARVED}, BAD},
    {"height most", {R(desc.height, INT64_MAX), STARVED}, BAD},
    {"the largest picture", {R(desc.height, MOST_SIDE), R(desc.width, MOST_SIDE), STARVED},
     NO_MEMORY},
    {"vertices -1", {R(desc.vertices, -1)}, BAD},
    {"vertices least", {R(desc.vertices, INT64_MIN)}, BAD},
    {"vertices 2 of faces with 3", {R(desc.vertices, 2)}, BAD},
    {"vertices 0 of faces", {R(desc.vertices, 0)}, BAD},
    {"the last vertices", {R(desc.vertices, INT32_MAX), STARVED}, NO_MEMORY},
    {"vertices beyond", {R(desc.vertices, TWO(31)), STARVED}, BAD},
    {"vertices most", {R(desc.vertices, INT64_MAX), STARVED}, BAD},
    {"faces -1", {R(desc.faces, -1)}, BAD},
    {"faces least", {R(desc.faces, INT64_MIN)}, BAD},
    {"faces 0", {R(desc.faces, 0)}, OK},
    {"the last faces", {R(desc.faces, INT32_MAX - 1), STARVED}, NO_MEMORY},
    {"faces beyond", {R(desc.faces, INT32_MAX), STARVED}, BAD},
    {"faces most", {R(desc.faces, INT64_MAX), STARVED}, BAD},
    {"threads most", {R(desc.num_threads, UINT32_MAX)}, OK},
    {"index 3 of 3", {R(faces[2], 3)}, BAD},
    {"index -1", {R(faces[0], -1)}, BAD},
    {"index least", {R(faces[1], INT32_MIN)}, BAD},
    {"index most", {R(faces[1], INT32_MAX)}, BAD},
    {"index 2 thrice", {R(faces[0], 2), R(faces[1], 2)}, OK},
    {"NaN", {R(clip[0], NAN_BITS)}, BAD},
    {"NaN in the last place", {R(clip[11], NAN_BITS)}, BAD},
    {"infinity", {R(clip[5], INFINITY_BITS)}, BAD},
    {"-infinity", {R(clip[6], INFINITY_BITS | TWO(31))}, BAD},
    {"the last float", {R(clip[5], MOST_FLOAT_BITS)}, OK},
    {"the last float for W", {R(clip[7], MOST_FLOAT_BITS)}, OK},
    {"the least float for W", {R(clip[7], 1)}, OK},
    {"W 0", {R(clip[3], 0)}, OK},
    {"all W 0", {R(clip[3], 0), R(clip[7], 0), R(clip[11], 0)}, OK},
};

static hy3d_status draw(const vector *v)
{
    hy3d_context *const context = test_context(NULL, 2);
    drawing a = {.desc = {.width = 2, .height = 2, .vertices = 3, .faces = 1, .num_threads = 1},
                 .clip = {-1, -1, 0, 1, 1, -1, 0, 1, 0, 1, 0, 1},
                 .faces = {0, 1, 2}};
    int32_t picture[4] = {-7, -7, -7, -7};
    float barycentric[12], depth[4];

    vector_apply(v, &a);
    const uint64_t live = test_live();
    test_fail(a.no_memory != 0 ? 1 : 0, true);
    const hy3d_status status = hy3d_rasterize(
        a.no_context != 0 ? NULL : context, a.no_desc != 0 ? NULL : &a.desc,
        a.no_clip != 0 ? NULL : a.clip, a.no_faces != 0 ? NULL : a.faces, NULL, NULL, NULL,
        a.no_picture != 0 ? NULL : picture, a.no_rest != 0 ? NULL : barycentric,
        a.no_rest != 0 ? NULL : depth);
    ck_assert_msg((picture[0] != -7) == (status == HY3D_OK), "%s", v->what);
    hy3d_context_trim(context);
    ck_assert_msg(test_live() <= live + 2, "%s", v->what); /* the pool */
    hy3d_context_destroy(context);
    return status;
}

typedef struct mixing {
    int64_t no_context, no_attributes, no_triangles, no_index, no_barycentric, no_out, cancelled;
    int64_t vertices, channels, faces, pixels;
    uint32_t threads;
    int32_t triangles[3], index[2];
} mixing;

#define I(member, value) VECTOR_SET(mixing, member, value)
#define STOPPED I(cancelled, 1)
#define STOPS HY3D_ERR_CANCELLED

static const vector mixings[] = {
    {"as it is", {{0}}, OK},
    {"no context", {I(no_context, 1)}, BAD},
    {"no attributes", {I(no_attributes, 1)}, BAD},
    {"no triangles", {I(no_triangles, 1)}, BAD},
    {"no face index", {I(no_index, 1)}, BAD},
    {"no barycentrics", {I(no_barycentric, 1)}, BAD},
    {"no output", {I(no_out, 1)}, BAD},
    {"nothing of no pixel", {I(pixels, 0), I(no_index, 1), I(no_barycentric, 1), I(no_out, 1)}, OK},
    {"vertices -1", {I(vertices, -1)}, BAD},
    {"vertices least", {I(vertices, INT64_MIN)}, BAD},
    {"vertices 0 of faces", {I(vertices, 0)}, BAD},
    {"vertices 2 of faces with 3", {I(vertices, 2)}, BAD},
    {"the last vertices", {I(vertices, INT32_MAX), STOPPED}, STOPS},
    {"vertices beyond", {I(vertices, TWO(31)), STOPPED}, BAD},
    {"vertices most", {I(vertices, INT64_MAX), STOPPED}, BAD},
    {"channels 0", {I(channels, 0)}, BAD},
    {"channels -1", {I(channels, -1)}, BAD},
    {"channels least", {I(channels, INT64_MIN)}, BAD},
    {"the last channels of 3 vertices", {I(channels, TWO(61) / 3), STOPPED}, STOPS},
    {"channels beyond", {I(channels, TWO(61) / 3 + 1), STOPPED}, BIG},
    {"channels most", {I(channels, INT64_MAX), STOPPED}, BIG},
    {"faces -1", {I(faces, -1)}, BAD},
    {"faces least", {I(faces, INT64_MIN)}, BAD},
    {"faces 0 of pixels with one", {I(faces, 0)}, BAD},
    {"the last faces", {I(faces, INT32_MAX - 1), STOPPED}, STOPS},
    {"faces beyond", {I(faces, INT32_MAX), STOPPED}, BAD},
    {"faces most", {I(faces, INT64_MAX), STOPPED}, BAD},
    {"pixels -1", {I(pixels, -1)}, BAD},
    {"pixels least", {I(pixels, INT64_MIN)}, BAD},
    {"pixels 0", {I(pixels, 0)}, OK},
    {"the last pixels", {I(pixels, TWO(61) / 3), STOPPED}, STOPS},
    {"pixels beyond", {I(pixels, TWO(61) / 3 + 1), STOPPED}, BIG},
    {"pixels most", {I(pixels, INT64_MAX), STOPPED}, BIG},
    {"pixels and channels beyond", {I(pixels, TWO(31)), I(channels, TWO(30)), STOPPED}, BIG},
    {"threads most", {I(threads, UINT32_MAX)}, OK},
    {"index 3 of 3", {I(triangles[1], 3)}, BAD},
    {"index -1", {I(triangles[2], -1)}, BAD},
    {"face 2 of 1", {I(index[1], 2)}, BAD},
    {"face -1", {I(index[0], -1)}, BAD},
    {"face least", {I(index[0], INT32_MIN)}, BAD},
    {"face most", {I(index[1], INT32_MAX)}, BAD},
    {"no face anywhere", {I(index[0], 0), I(index[1], 0)}, OK},
};

static hy3d_status mix(const vector *v)
{
    static const float attributes[6] = {1, 2, 3, 4, 5, 6}, barycentric[6] = {1, 0, 0, 0, 1, 0};
    hy3d_context *const context = test_context(NULL, 2);
    mixing a = {.vertices = 3, .channels = 2, .faces = 1, .pixels = 2, .threads = 1,
                .triangles = {0, 1, 2}, .index = {0, 1}};
    hy3d_cancel *cancel = NULL;
    float out[4] = {-7, -7, -7, -7};

    vector_apply(v, &a);
    ck_assert_ok(hy3d_cancel_create(context, &cancel));
    if (a.cancelled != 0) {
        hy3d_cancel_request(cancel);
    }
    const hy3d_status status = hy3d_interpolate(
        a.no_context != 0 ? NULL : context, a.vertices, a.channels, a.faces, a.pixels,
        a.no_attributes != 0 ? NULL : attributes, a.no_triangles != 0 ? NULL : a.triangles,
        a.no_index != 0 ? NULL : a.index, a.no_barycentric != 0 ? NULL : barycentric, a.threads,
        cancel, NULL, a.no_out != 0 ? NULL : out);
    ck_assert_msg((out[0] != -7) == (status == HY3D_OK && a.pixels != 0), "%s", v->what);
    hy3d_cancel_destroy(context, cancel);
    hy3d_context_destroy(context);
    return status;
}

START_TEST(test_drawing)
{
    vectors_check(drawings, COUNT_OF(drawings), draw);
}
END_TEST

START_TEST(test_interpolation)
{
    vectors_check(mixings, COUNT_OF(mixings), mix);
}
END_TEST

int vectors_raster(Suite *suite)
{
    TCase *const tests = tcase_create("rasteriser");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, test_drawing);
    tcase_add_test(tests, test_interpolation);
    suite_add_tcase(suite, tests);
    return (int)(COUNT_OF(drawings) + COUNT_OF(mixings));
}
