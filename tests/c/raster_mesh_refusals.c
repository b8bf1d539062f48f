/* What is refused, before anything is written; and cancels. */
#include "raster_mesh_support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void expect(const hy3d_raster_problem *problem, hy3d_raster_fault fault, int64_t at,
                   int64_t value)
{
    ck_assert_int_eq(problem->fault, fault);
    ck_assert_int_eq(problem->at, at);
    ck_assert_int_eq(problem->value, value);
}

/* Several bad ones, far apart: the first is told, whoever finds one first. */
START_TEST(test_the_first_bad_index_is_told_for_every_thread_count)
{
    enum { FACES = 100000, PIXELS = 300000 };
    int32_t *const triangles = calloc(3 * FACES, sizeof *triangles);
    int32_t *const face_index = calloc(PIXELS, sizeof *face_index);
    float *const barycentric = calloc(3 * PIXELS, sizeof *barycentric);
    float *const out = malloc(PIXELS * sizeof *out);
    ck_assert(triangles != NULL && face_index != NULL && barycentric != NULL && out != NULL);
    const float attributes[2] = {1, 2};
    memset(out, 0x55, PIXELS * sizeof *out);
    face_index[299999] = FACES + 1;
    face_index[150001] = -7;
    face_index[150002] = FACES + 9;
    hy3d_context *const context = test_context(NULL, 4);
    for (uint32_t threads = 1; threads <= 4; threads++) {
        hy3d_raster_problem problem = {HY3D_RASTER_NO_FAULT, -1, -1};
        triangles[3 * 99999] = triangles[3 * 40000 + 2] = 0;
        ck_assert_status(hy3d_interpolate(context, 2, 1, FACES, PIXELS, attributes, triangles,
                                          face_index, barycentric, threads, NULL, &problem, out),
                         HY3D_ERR_INVALID_ARGUMENT);
        expect(&problem, HY3D_RASTER_BAD_INDEX, 150001, -7);
        triangles[3 * 99999] = INT32_MIN;
        triangles[3 * 40000 + 2] = 2;
        ck_assert_status(hy3d_interpolate(context, 2, 1, FACES, PIXELS, attributes, triangles,
                                          face_index, barycentric, threads, NULL, &problem, out),
                         HY3D_ERR_INVALID_ARGUMENT);
        expect(&problem, HY3D_RASTER_BAD_INDEX, 40000, 2);
    }
    for (int i = 0; i < PIXELS; i++) {
        ck_assert(test_bits_of(out[i]) == 0x55555555);
    }
    hy3d_context_destroy(context);
    free(out);
    free(barycentric);
    free(face_index);
    free(triangles);
}
END_TEST

START_TEST(test_interpolation_refuses_what_has_no_meaning)
{
    const float numbers[9] = {0};
    const int32_t faces[3] = {0, 0, 0}, one[1] = {1};
    float out[3];
    const hy3d_status bad = HY3D_ERR_INVALID_ARGUMENT;
    hy3d_context *const c = test_context(NULL, 1);
#define TRY(context, v, ch, f, p, a, t, i, b, o)                                                   \
    hy3d_interpolate(context, v, ch, f, p, a, t, i, b, 0, NULL, NULL, o)
    ck_assert_ok(TRY(c, 1, 3, 1, 1, numbers, faces, one, numbers, out));
    ck_assert_status(TRY(NULL, 1, 3, 1, 1, numbers, faces, one, numbers, out), bad);
    ck_assert_status(TRY(c, -1, 3, 1, 1, numbers, faces, one, numbers, out), bad);
    ck_assert_status(TRY(c, 1, 0, 1, 1, numbers, faces, one, numbers, out), bad);
    ck_assert_status(TRY(c, 1, 3, INT32_MAX, 1, numbers, faces, one, numbers, out), bad);
    ck_assert_status(TRY(c, 1, 3, 1, -1, numbers, faces, one, numbers, out), bad);
    ck_assert_status(TRY(c, 1, 3, 1, 1, NULL, faces, one, numbers, out), bad);
    ck_assert_status(TRY(c, 1, 3, 1, 1, numbers, NULL, one, numbers, out), bad);
    ck_assert_status(TRY(c, 1, 3, 1, 1, numbers, faces, NULL, numbers, out), bad);
    ck_assert_status(TRY(c, 1, 3, 1, 1, numbers, faces, one, NULL, out), bad);
    ck_assert_status(TRY(c, 1, 3, 1, 1, numbers, faces, one, numbers, NULL), bad);
    ck_assert_status(TRY(c, 0, 3, 1, 1, NULL, faces, one, numbers, out), bad);
    ck_assert_status(TRY(c, 1, 3, 0, 1, numbers, NULL, one, numbers, out), bad);
    ck_assert_status(TRY(c, 1, INT64_MAX / 2, 1, 4, numbers, faces, one, numbers, out),
                     HY3D_ERR_OVERFLOW);
    ck_assert_ok(TRY(c, 0, 3, 0, 0, NULL, NULL, NULL, NULL, NULL));
#undef TRY
    hy3d_context_destroy(c);
}
END_TEST

START_TEST(test_scatter_refuses_what_has_no_meaning)
{
    float uv[6] = {0}, weights[3] = {1, 1, 1};
    const float values[3] = {0};
    float texture[4], total[4];
    hy3d_raster_problem problem;
    const hy3d_scatter_desc good = {HY3D_SCATTER_LINEAR, 2, 2, 1, 3, 0};
    hy3d_context *const c = test_context(NULL, 2);
#define TRY(desc) hy3d_scatter(c, desc, values, uv, weights, NULL, &problem, texture, total)
    ck_assert_ok(TRY(&good));
    static const struct {
        hy3d_scatter_desc desc;
        hy3d_status status;
    } bad[] = {
        {{HY3D_SCATTER_LINEAR, 0, 2, 1, 3, 0}, HY3D_ERR_INVALID_ARGUMENT},
        {{HY3D_SCATTER_LINEAR, 2, 32769, 1, 3, 0}, HY3D_ERR_INVALID_ARGUMENT},
        {{HY3D_SCATTER_LINEAR, 2, 2, 0, 3, 0}, HY3D_ERR_INVALID_ARGUMENT},
        {{HY3D_SCATTER_LINEAR, 2, 2, 1, -1, 0}, HY3D_ERR_INVALID_ARGUMENT},
        {{HY3D_SCATTER_LINEAR, 2, 2, 1, (int64_t)1 << 31, 0}, HY3D_ERR_INVALID_ARGUMENT},
        {{(hy3d_scatter_filter)2, 2, 2, 1, 3, 0}, HY3D_ERR_INVALID_ARGUMENT},
        {{HY3D_SCATTER_LINEAR, 2, 2, INT64_MAX / 4, 3, 0}, HY3D_ERR_OVERFLOW},
        {{HY3D_SCATTER_LINEAR, 1, 1, INT64_MAX / 4, 0, 0}, HY3D_ERR_OVERFLOW},
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        ck_assert_status(TRY(&bad[i].desc), bad[i].status);
        ck_assert_int_eq(problem.fault, HY3D_RASTER_NO_FAULT);
    }
    weights[1] = -0x1p-149F;
    ck_assert_status(TRY(&good), HY3D_ERR_INVALID_ARGUMENT);
    expect(&problem, HY3D_RASTER_NEGATIVE, 1, 0);
    weights[2] = INFINITY;
    ck_assert_status(TRY(&good), HY3D_ERR_INVALID_ARGUMENT);
    expect(&problem, HY3D_RASTER_NOT_FINITE, 2, 0);
    uv[5] = NAN;
    ck_assert_status(TRY(&good), HY3D_ERR_INVALID_ARGUMENT);
    expect(&problem, HY3D_RASTER_NOT_FINITE, 2, 0);
    uv[3] = -INFINITY;
    ck_assert_status(TRY(&good), HY3D_ERR_INVALID_ARGUMENT);
    expect(&problem, HY3D_RASTER_NOT_FINITE, 1, 0);
#undef TRY
    const hy3d_status invalid = HY3D_ERR_INVALID_ARGUMENT;
    ck_assert_status(hy3d_scatter(NULL, &good, values, uv, NULL, NULL, NULL, texture, total),
                     invalid);
    ck_assert_status(hy3d_scatter(c, NULL, values, uv, NULL, NULL, NULL, texture, total), invalid);
    ck_assert_status(hy3d_scatter(c, &good, NULL, uv, NULL, NULL, NULL, texture, total), invalid);
    ck_assert_status(hy3d_scatter(c, &good, values, NULL, NULL, NULL, NULL, texture, total),
                     invalid);
    ck_assert_status(hy3d_scatter(c, &good, values, uv, NULL, NULL, NULL, NULL, total), invalid);
    ck_assert_status(hy3d_scatter(c, &good, values, uv, NULL, NULL, NULL, texture, NULL), invalid);
    hy3d_context_destroy(c);
}
END_TEST

START_TEST(test_normals_refuse_what_has_no_meaning)
{
    float positions[9] = {0}, normals[9];
    int32_t faces[6] = {0, 1, 2, 2, 1, 0};
    hy3d_raster_problem problem;
    hy3d_context *const c = test_context(NULL, 2);
#define TRY(context, v, f, p, t, by, n)                                                            \
    hy3d_vertex_normals(context, v, f, p, t, by, 0, NULL, &problem, n)
    const hy3d_normal_weighting area = HY3D_NORMALS_BY_AREA;
    const hy3d_status bad = HY3D_ERR_INVALID_ARGUMENT;
    ck_assert_ok(TRY(c, 3, 2, positions, faces, area, normals));
    ck_assert_ok(TRY(c, 0, 0, NULL, NULL, area, NULL));
    ck_assert_status(TRY(NULL, 3, 2, positions, faces, area, normals), bad);
    ck_assert_status(TRY(c, -1, 2, positions, faces, area, normals), bad);
    ck_assert_status(TRY(c, 3, -1, positions, faces, area, normals), bad);
    ck_assert_status(TRY(c, 3, 2, NULL, faces, area, normals), bad);
    ck_assert_status(TRY(c, 3, 2, positions, NULL, area, normals), bad);
    ck_assert_status(TRY(c, 3, 2, positions, faces, area, NULL), bad);
    ck_assert_status(TRY(c, 3, 2, positions, faces, (hy3d_normal_weighting)2, normals), bad);
    positions[4] = NAN;
    ck_assert_status(TRY(c, 3, 2, positions, faces, area, normals), bad);
    expect(&problem, HY3D_RASTER_NOT_FINITE, 1, 0);
    faces[4] = 3;
    ck_assert_status(TRY(c, 3, 2, positions, faces, area, normals), bad);
    expect(&problem, HY3D_RASTER_BAD_INDEX, 1, 3);
#undef TRY
    hy3d_context_destroy(c);
}
END_TEST

START_TEST(test_in_painting_refuses_what_has_no_meaning)
{
    float positions[9] = {0}, uv[4] = {0}, texture[4] = {1, 2, 3, 4};
    uint8_t mask[4] = {0, 0, 0, 5};
    int32_t faces[3] = {0, 1, 2}, uv_faces[3] = {0, 1, 1};
    hy3d_raster_problem problem;
    int64_t filled = -5;
    const hy3d_vertex_inpaint_desc good = {2, 2, 1, 3, 2, 1};
    const hy3d_status bad = HY3D_ERR_INVALID_ARGUMENT;
    hy3d_context *const c = test_context(NULL, 1);
#define TRY(desc) hy3d_vertex_inpaint(c, desc, positions, uv, faces, uv_faces, NULL, &problem,     \
                                      texture, mask, &filled)
    static const hy3d_vertex_inpaint_desc wrong[] = {
        {0, 2, 1, 3, 2, 1}, {2, 32769, 1, 3, 2, 1}, {2, 2, 0, 3, 2, 1},
        {2, 2, 1, -1, 2, 1}, {2, 2, 1, 3, -1, 1},   {2, 2, 1, 3, 2, -1},
    };
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        ck_assert_status(TRY(&wrong[i]), bad);
    }
    uv[3] = INFINITY;
    ck_assert_status(TRY(&good), bad);
    expect(&problem, HY3D_RASTER_NOT_FINITE, 1, 0);
    positions[8] = NAN;
    ck_assert_status(TRY(&good), bad);
    expect(&problem, HY3D_RASTER_NOT_FINITE, 2, 0);
    uv_faces[2] = 2;
    ck_assert_status(TRY(&good), bad);
    expect(&problem, HY3D_RASTER_BAD_INDEX, 0, 2);
    faces[1] = -1;
    ck_assert_status(TRY(&good), bad);
    expect(&problem, HY3D_RASTER_BAD_INDEX, 0, -1);
    ck_assert_status(hy3d_vertex_inpaint(c, &good, NULL, uv, faces, uv_faces, NULL, NULL, texture,
                                         mask, NULL),
                     bad);
    ck_assert_status(TRY(NULL), bad);
#undef TRY
    const float before[4] = {1, 2, 3, 4};
    ck_assert_mem_eq(texture, before, sizeof before);
    ck_assert_int_eq(filled, -5);
    /* No faces: nothing to do. */
    const hy3d_vertex_inpaint_desc none = {2, 2, 1, 0, 0, 0};
    ck_assert_ok(hy3d_vertex_inpaint(c, &none, NULL, NULL, NULL, NULL, NULL, NULL, texture, mask,
                                     &filled));
    ck_assert_mem_eq(texture, before, sizeof before);
    ck_assert_int_eq(filled, 0);
    hy3d_context_destroy(c);
}
END_TEST

START_TEST(test_a_cancel_ends_each_call)
{
    const float positions[9] = {0, 0, 0, 1, 0, 0, 0, 1, 0}, uv[6] = {0, 1, 1, 1, 1, 0};
    const int32_t faces[3] = {0, 1, 2}, one[1] = {1};
    float texture[4] = {1, 2, 3, 4}, total[4], out[9];
    uint8_t mask[4] = {0, 0, 0, 5};
    hy3d_context *const c = test_context(NULL, 1);
    hy3d_cancel *cancel;
    ck_assert_ok(hy3d_cancel_create(c, &cancel));
    hy3d_cancel_request(cancel);
    const hy3d_vertex_inpaint_desc paint = {2, 2, 1, 3, 3, 1};
    const hy3d_scatter_desc scatter = {HY3D_SCATTER_LINEAR, 2, 2, 1, 3, 0};
    const hy3d_status wanted = HY3D_ERR_CANCELLED;
    ck_assert_status(hy3d_vertex_inpaint(c, &paint, positions, uv, faces, faces, cancel, NULL,
                                         texture, mask, NULL),
                     wanted);
    const float before[4] = {1, 2, 3, 4};
    ck_assert_mem_eq(texture, before, sizeof before);
    ck_assert_int_eq(mask[0], 0);
    ck_assert_status(hy3d_scatter(c, &scatter, positions, uv, NULL, cancel, NULL, texture, total),
                     wanted);
    ck_assert_status(hy3d_vertex_normals(c, 3, 1, positions, faces, HY3D_NORMALS_BY_AREA, 1, cancel,
                                         NULL, out),
                     wanted);
    ck_assert_status(hy3d_interpolate(c, 3, 3, 1, 1, positions, faces, one, positions, 1, cancel,
                                      NULL, out),
                     wanted);
    hy3d_cancel_destroy(c, cancel);
    hy3d_context_destroy(c);
}
END_TEST

void raster_mesh_add_refusals(TCase *tests)
{
    tcase_add_test(tests, test_the_first_bad_index_is_told_for_every_thread_count);
    tcase_add_test(tests, test_interpolation_refuses_what_has_no_meaning);
    tcase_add_test(tests, test_scatter_refuses_what_has_no_meaning);
    tcase_add_test(tests, test_normals_refuse_what_has_no_meaning);
    tcase_add_test(tests, test_in_painting_refuses_what_has_no_meaning);
    tcase_add_test(tests, test_a_cancel_ends_each_call);
}
