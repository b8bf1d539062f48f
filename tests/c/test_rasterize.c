/* Rasterising from C: pictures worked out by hand, ties, refusals. Random scenes
 * against brute force: tests/unit/raster/test_rasterize.py. */
#include "rasterize_support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

Suite *hy3d_rasterize_suite(void);

static void assert_faces(const picture *p, const char *wanted)
{
    char got[PIXELS + 1] = "";
    for (int i = 0; i < PIXELS; i++) {
        got[i] = (char)('0' + p->face_index[i]);
    }
    ck_assert_str_eq(got, wanted);
}

START_TEST(test_a_square_is_as_drawn_by_hand)
{
    /* compat: the corners are centres of pixels, edges inclusive, of equal depths the lower face.
     * topleft: the diagonal is a left edge of the second face. */
    static const char *const wanted[RASTER_RULES] = {"1111111211221222", "1112112212222222"};
    hy3d_context *const context = test_context(NULL, 1);
    const raster_scene s =
        raster_scene_of(raster_rules[_i], raster_square[0], 4, raster_two_faces[0], 2);
    picture p = picture_make(&s.desc);
    ck_assert_ok(raster_draw(context, &s, &p));
    assert_faces(&p, wanted[_i]);
    for (int i = 0; i < PIXELS; i++) {
        const float *const share = p.barycentric + 3 * i;
        const float across = (float)(i % SIDE), down = (float)(i / SIDE);
        /* Of the second and the third corner: of face 1 to the right and down, of face 2 to the
         * left and up. compat has thirds from pixel to pixel, topleft quarters, from an eighth. */
        const float step = _i == 0 ? 1 / 3.0F : 0.25F, from = _i == 0 ? 0 : 0.125F;
        const float right = across * step + from, below = down * step + from;
        const bool first = p.face_index[i] == 1;
        const float b1 = first ? right : 1 - right, b2 = first ? below : 1 - below;
        ck_assert(fabsf(share[0] - (1 - b1 - b2)) < 4e-7F);
        ck_assert(fabsf(share[1] - b1) < 4e-7F && fabsf(share[2] - b2) < 4e-7F);
        ck_assert(p.depth[i] == 0);
    }
    picture_free(&p);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_edges_through_centres_are_exact)
{
    /* compat (half a pixel is 1/3): corners on the centres of pixels 1 and 2. topleft: on those of
     * 1 and 3. A face alone covers its edges under compat, and one side of them under topleft. */
    static const char *const wanted[RASTER_RULES][2] = {{"0000011001000000", "0000001001100000"},
                                                 {"0000011001000000", "0000000000100000"}};
    const float low = _i == 0 ? -1 : -0.25F, high = _i == 0 ? 1 : 0.75F, w = _i == 0 ? 3 : 1;
    const float corners[4][4] = {
        {low, low, 0, w}, {high, low, 0, w}, {low, high, 0, w}, {high, high, 0, w}};
    hy3d_context *const context = test_context(NULL, 1);
    for (int face = 0; face < 2; face++) {
        const raster_scene s =
            raster_scene_of(raster_rules[_i], corners[0], 4, raster_two_faces[face], 1);
        picture p = picture_make(&s.desc);
        ck_assert_ok(raster_draw(context, &s, &p));
        assert_faces(&p, wanted[_i][face]);
        picture_free(&p);
    }
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_the_nearest_is_seen_and_of_equal_depths_the_lower_face)
{
    /* Faces over the whole picture, at depths 1/4, -1/4, -1/4 and -1/4. */
    static const float depths[4] = {0.25F, -0.25F, -0.25F, -0.25F};
    float corners[12][4];
    int32_t faces[4][3];
    for (int i = 0; i < 12; i++) {
        const float at[4] = {i % 3 == 1 ? 9 : -3, i % 3 == 2 ? 9 : -3, depths[i / 3], 1};
        memcpy(corners[i], at, sizeof at);
        faces[i / 3][i % 3] = i;
    }
    hy3d_context *const context = test_context(NULL, 1);
    for (int first = 0; first < 3; first++) {
        const raster_scene s =
            raster_scene_of(raster_rules[_i], corners[0], 12, faces[first], 4 - first);
        picture p = picture_make(&s.desc);
        ck_assert_ok(raster_draw(context, &s, &p));
        for (int i = 0; i < PIXELS; i++) {
            ck_assert_int_eq(p.face_index[i], first == 0 ? 2 : 1);
            ck_assert(p.depth[i] == -0.25F);
        }
        picture_free(&p);
    }
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_a_prior_drops_what_is_nearer)
{
    const float nan = NAN, prior[PIXELS] = {-1, -0.1F, 0, 0.1F, nan, INFINITY, -INFINITY, 1,
                                            -1, -1,    0, 0,    nan, INFINITY, -INFINITY, -3e38F};
    /* At depth 0, what has a prior below it is kept; 1e-6 keeps a face from covering itself. */
    static const char *const wanted = "1100101011001011";
    static const float corners[3][4] = {{-3, -3, 0, 1}, {9, -3, 0, 1}, {-3, 9, 0, 1}};
    static const int32_t face[3] = {0, 1, 2};
    hy3d_context *const context = test_context(NULL, 1);
    raster_scene s = raster_scene_of(raster_rules[_i], corners[0], 3, face, 1);
    picture p = picture_make(&s.desc);
    s.prior = prior;
    ck_assert_ok(raster_draw(context, &s, &p));
    assert_faces(&p, wanted);
    for (int i = 0; i < PIXELS; i++) {
        ck_assert(p.face_index[i] != 0 || (isinf(p.depth[i]) && p.depth[i] > 0));
    }
    picture_free(&p);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_no_face_is_an_empty_picture)
{
    hy3d_context *const context = test_context(NULL, 2);
    const raster_scene s = raster_scene_of(raster_rules[_i], NULL, 0, NULL, 0);
    picture p = picture_make(&s.desc);
    ck_assert_ok(raster_draw(context, &s, &p));
    for (size_t i = 0; i < p.pixels; i++) {
        ck_assert(p.face_index[i] == 0 && isinf(p.depth[i]) && p.depth[i] > 0);
        ck_assert(p.barycentric[3 * i] == 0 && p.barycentric[3 * i + 2] == 0);
    }
    picture_free(&p);
    hy3d_context_destroy(context);
}
END_TEST

static void refuse(hy3d_context *context, const raster_scene *s)
{
    int32_t face_index[PIXELS];
    hy3d_raster_problem problem = {HY3D_RASTER_BAD_INDEX, 7, 7};
    memset(face_index, 0x77, sizeof face_index);
    ck_assert_status(hy3d_rasterize(context, &s->desc, s->clip, s->faces, NULL, NULL, &problem,
                                    face_index, NULL, NULL),
                     HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_int_eq(problem.fault, HY3D_RASTER_NO_FAULT);
    for (int i = 0; i < PIXELS; i++) {
        ck_assert_int_eq(face_index[i], 0x77777777);
    }
}

START_TEST(test_arguments_out_of_range_are_refused)
{
    hy3d_context *const context = test_context(NULL, 1);
    const raster_scene good =
        raster_scene_of(HY3D_RASTER_TOPLEFT, raster_square[0], 4, raster_two_faces[0], 2);
    static const int64_t sides[] = {0, -1, HY3D_RASTER_MOST_PIXELS_A_SIDE + 1, INT64_MAX,
                                    INT64_MIN};
    for (size_t i = 0; i < COUNT_OF(sides); i++) {
        raster_scene wide = good, high = good;
        wide.desc.width = sides[i];
        high.desc.height = sides[i];
        refuse(context, &wide);
        refuse(context, &high);
    }
    static const int64_t counts[] = {-1, (int64_t)INT32_MAX + 1, INT64_MAX, INT64_MIN};
    for (size_t i = 0; i < COUNT_OF(counts); i++) {
        raster_scene vertices = good, faces = good;
        vertices.desc.vertices = counts[i];
        faces.desc.faces = counts[i];
        refuse(context, &vertices);
        refuse(context, &faces);
    }
    raster_scene most = good, rule = good, no_clip = good, no_faces = good;
    most.desc.faces = INT32_MAX;
    rule.desc.rule = (hy3d_raster_rule)2;
    no_clip.clip = NULL;
    no_faces.faces = NULL;
    refuse(context, &most);
    refuse(context, &rule);
    refuse(context, &no_clip);
    refuse(context, &no_faces);
    refuse(NULL, &good);
    int32_t face_index[PIXELS];
    ck_assert_status(hy3d_rasterize(context, NULL, good.clip, good.faces, NULL, NULL, NULL,
                                    face_index, NULL, NULL),
                     HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(hy3d_rasterize(context, &good.desc, good.clip, good.faces, NULL, NULL, NULL,
                                    NULL, NULL, NULL),
                     HY3D_ERR_INVALID_ARGUMENT);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_wrong_values_are_told_the_first_one_and_without_a_crash)
{
    hy3d_context *const context = test_context(NULL, 2);
    static const int32_t indices[] = {-1, 4, INT32_MIN, INT32_MAX};
    int32_t face_index[PIXELS], faces[3][3] = {{0, 1, 2}, {3, 2, 1}, {2, 3, 0}};
    float clip[4][4];
    hy3d_raster_problem problem;
    const raster_scene s = raster_scene_of(HY3D_RASTER_COMPAT, clip[0], 4, faces[0], 3);
    memcpy(clip, raster_square, sizeof clip);
    for (size_t i = 0; i < COUNT_OF(indices); i++) {
        faces[1][i % 3] = indices[i];
        ck_assert_status(hy3d_rasterize(context, &s.desc, s.clip, s.faces, NULL, NULL, &problem,
                                        face_index, NULL, NULL),
                         HY3D_ERR_INVALID_ARGUMENT);
        ck_assert_int_eq(problem.fault, HY3D_RASTER_BAD_INDEX);
        ck_assert_int_eq(problem.at, 1);
        ck_assert_int_eq(problem.value, indices[i]);
        memcpy(faces[1], raster_two_faces[1], sizeof faces[1]);
    }
    for (int i = 0; i < 16; i++) {
        clip[i / 4][i % 4] = i % 3 == 0 ? NAN : i % 3 == 1 ? INFINITY : -INFINITY;
        ck_assert_status(raster_draw(context, &s, &(picture){face_index, NULL, NULL, PIXELS}),
                         HY3D_ERR_INVALID_ARGUMENT);
        ck_assert_status(hy3d_rasterize(context, &s.desc, s.clip, s.faces, NULL, NULL, &problem,
                                        face_index, NULL, NULL),
                         HY3D_ERR_INVALID_ARGUMENT);
        ck_assert_int_eq(problem.fault, HY3D_RASTER_NOT_FINITE);
        ck_assert_int_eq(problem.at, i / 4);
        clip[i / 4][i % 4] = raster_square[i / 4][i % 4];
    }
    hy3d_context_destroy(context);
}
END_TEST

Suite *hy3d_rasterize_suite(void)
{
    Suite *const suite = suite_create("rasterize");
    TCase *const tests = tcase_create("rasterize");
    tcase_add_loop_test(tests, test_a_square_is_as_drawn_by_hand, 0, RASTER_RULES);
    tcase_add_loop_test(tests, test_edges_through_centres_are_exact, 0, RASTER_RULES);
    tcase_add_loop_test(tests, test_the_nearest_is_seen_and_of_equal_depths_the_lower_face, 0,
                        RASTER_RULES);
    tcase_add_loop_test(tests, test_a_prior_drops_what_is_nearer, 0, RASTER_RULES);
    tcase_add_loop_test(tests, test_no_face_is_an_empty_picture, 0, RASTER_RULES);
    tcase_add_test(tests, test_arguments_out_of_range_are_refused);
    tcase_add_test(tests, test_wrong_values_are_told_the_first_one_and_without_a_crash);
    suite_add_tcase(suite, tests);
    return suite;
}
