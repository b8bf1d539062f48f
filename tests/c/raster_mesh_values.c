/* Values that can be written down. */
#include "raster_mesh_support.h"

#include <math.h>
#include <string.h>

START_TEST(test_a_pixel_has_its_corners_mixed_and_an_empty_one_has_nothing)
{
    const float nan = NAN;
    const float attributes[] = {1, 10, 2, 20, 4, 40, nan, nan};
    const int32_t triangles[] = {0, 1, 2, 3, 3, 3};
    const int32_t face_index[] = {1, 0, 1, 2};
    const float barycentric[] = {0.5F, 0.25F, 0.25F, nan, 1, 1, 0, 0, 1, 1, 0, 0};
    float out[8];
    hy3d_context *const context = test_context(NULL, 1);
    ck_assert_ok(hy3d_interpolate(context, 4, 2, 2, 4, attributes, triangles, face_index,
                                  barycentric, 0, NULL, NULL, out));
    const float wanted[] = {2, 20, 0, 0, 4, 40};
    ck_assert_mem_eq(out, wanted, sizeof wanted);
    ck_assert(isnan(out[6]) && isnan(out[7]));
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_a_point_between_texels_is_shared_among_them)
{
    /* A texture of 5 x 3: u = 0.375 is column 1.5, v = 0.625 is row 1.25. */
    const float values[] = {8, 80, 100, 1000}, uv[] = {0.375F, 0.625F, 1, 1};
    const float weights[] = {2, 1};
    float texture[30], total[15];
    hy3d_context *const context = test_context(NULL, 1);
    const hy3d_scatter_desc desc = {HY3D_SCATTER_LINEAR, 5, 3, 2, 2, 0};
    ck_assert_ok(hy3d_scatter(context, &desc, values, uv, weights, NULL, NULL, texture, total));
    const float sums[15] = {[6] = 0.75F, [7] = 0.75F, [11] = 0.25F, [12] = 0.25F, [14] = 1};
    ck_assert_mem_eq(total, sums, sizeof sums);
    for (int i = 0; i < 15; i++) {
        const float value = i == 14 ? 100.0F : sums[i] > 0 ? 8.0F : 0.0F;
        ck_assert_float_eq(texture[2 * i], value);
        ck_assert_float_eq(texture[2 * i + 1], 10 * value);
    }
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_nearest_goes_to_one_texel_and_halfway_to_the_right_and_below)
{
    const float values[] = {1, 3, 8}, uv[] = {0.375F, 0.5F, 0.5F, 0.25F, 0, 0.76F};
    float texture[15], total[15];
    hy3d_context *const context = test_context(NULL, 1);
    const hy3d_scatter_desc desc = {HY3D_SCATTER_NEAREST, 5, 3, 1, 3, 0};
    ck_assert_ok(hy3d_scatter(context, &desc, values, uv, NULL, NULL, NULL, texture, total));
    const float wanted[15] = {[7] = 2, [10] = 8}, sums[15] = {[7] = 2, [10] = 1};
    ck_assert_mem_eq(texture, wanted, sizeof wanted);
    ck_assert_mem_eq(total, sums, sizeof sums);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_points_outside_and_weightless_ones_leave_no_trace)
{
    const float values[] = {NAN, NAN, NAN, NAN, 5}, weights[] = {0, 1, 1, 1, 4};
    const float uv[] = {0, 0, 1.0001F, 0, 0, -1e-30F, -1e30F, 0, 0, 0};
    float texture[4], total[4];
    hy3d_context *const context = test_context(NULL, 1);
    const hy3d_scatter_desc desc = {HY3D_SCATTER_LINEAR, 2, 2, 1, 5, 0};
    ck_assert_ok(hy3d_scatter(context, &desc, values, uv, weights, NULL, NULL, texture, total));
    const float wanted[4] = {5}, sums[4] = {4};
    ck_assert_mem_eq(texture, wanted, sizeof wanted);
    ck_assert_mem_eq(total, sums, sizeof sums);
    const hy3d_scatter_desc none = {HY3D_SCATTER_LINEAR, 2, 2, 1, 0, 0};
    memset(texture, 1, sizeof texture);
    ck_assert_ok(hy3d_scatter(context, &none, NULL, NULL, NULL, NULL, NULL, texture, total));
    const float empty[4] = {0};
    ck_assert_mem_eq(texture, empty, sizeof empty);
    ck_assert_mem_eq(total, empty, sizeof empty);
    hy3d_context_destroy(context);
}
END_TEST

/* A cube whose squares are cut so that vertex 0 has two triangles in one and one in the others: by
 * angle the cut does not matter. */
START_TEST(test_a_cubes_corner_points_along_its_diagonal_by_angle_and_not_by_area)
{
    const float positions[] = {0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 1, 1, 0, 1, 0, 1, 0, 1, 1, 7, 7,
                               7};
    const int32_t faces[] = {0, 4, 1, 0, 2, 4, 0, 1, 3, 1, 5, 3, 0, 3, 2, 2, 3, 6, 2, 2, 3};
    float normals[24];
    hy3d_context *const context = test_context(NULL, 1);
    ck_assert_ok(hy3d_vertex_normals(context, 8, 7, positions, faces, HY3D_NORMALS_BY_AREA, 0, NULL,
                                     NULL, normals));
    const float a = (float)(1 / sqrt(6.0)), b = (float)(2 / sqrt(6.0));
    const float by_area[3] = {-a, -a, -b};
    ck_assert_mem_eq(normals, by_area, sizeof by_area);
    const float none[3] = {0, 0, 0};
    ck_assert_mem_eq(normals + 21, none, sizeof none); /* of no face */
    ck_assert_ok(hy3d_vertex_normals(context, 8, 7, positions, faces, HY3D_NORMALS_BY_ANGLE, 0,
                                     NULL, NULL, normals));
    for (int i = 0; i < 3; i++) {
        /* Sums of right angles in double, then one rounding. */
        ck_assert(fabs((double)normals[i] + 1 / sqrt(3.0)) <= ldexp(1, -25) + 1e-15);
    }
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_faces_that_cancel_or_have_no_area_give_no_direction)
{
    const float positions[] = {0, 0, 0, 3, 0, 0, 0, 3, 0, 6, 0, 0, 1e38F, 0, 0, 0, 1e38F, 0, 0, 0,
                               1e38F};
    const int32_t faces[] = {0, 1, 2, 0, 2, 1, 0, 1, 3, 3, 3, 3, 4, 5, 6};
    float normals[21];
    hy3d_context *const context = test_context(NULL, 1);
    for (int by = 0; by < 2; by++) {
        const hy3d_normal_weighting weighting =
            by == 0 ? HY3D_NORMALS_BY_AREA : HY3D_NORMALS_BY_ANGLE;
        ck_assert_ok(hy3d_vertex_normals(context, 7, 5, positions, faces, weighting, 0, NULL, NULL,
                                         normals));
        for (int i = 0; i < 12; i++) {
            ck_assert_float_eq(normals[i], 0.0F);
        }
        for (int i = 12; i < 21; i++) {
            ck_assert(fabs((double)normals[i] - 1 / sqrt(3.0)) <= ldexp(1, -25) + 1e-15);
        }
    }
    hy3d_context_destroy(context);
}
END_TEST

/* Four vertices along a row of texels; 0 has successors 1 and 2, at distances 1 and 2. */
START_TEST(test_a_vertex_gets_its_successors_mean_by_closeness)
{
    const float positions[] = {0, 0, 0, 1, 0, 0, 0, 2, 0, 9, 9, 9};
    const float uv[] = {0, 1, 1.0F / 3, 1, 2.0F / 3, 1, 1, 1};
    const int32_t faces[] = {0, 1, 3, 0, 2, 3};
    float texture[8] = {[1] = 10, [2] = 20, [4] = 7, [7] = 9};
    uint8_t mask[8] = {0, 1, 255, 0, 0, 0, 0, 3};
    int64_t filled = -1;
    hy3d_context *const context = test_context(NULL, 1);
    const hy3d_vertex_inpaint_desc desc = {4, 2, 1, 4, 4, 2};
    ck_assert_ok(hy3d_vertex_inpaint(context, &desc, positions, uv, faces, faces, NULL, NULL,
                                     texture, mask, &filled));
    /* Weights 1 and 1/4: (10 + 5) / 1.25 = 12. Vertex 3 is followed by 0 alone. */
    const float painted[8] = {12, 10, 20, 12, 7, 0, 0, 9};
    const uint8_t masked[8] = {255, 255, 255, 255, 0, 0, 0, 3};
    ck_assert_mem_eq(texture, painted, sizeof painted);
    ck_assert_mem_eq(mask, masked, sizeof masked);
    ck_assert_int_eq(filled, 2);
    hy3d_context_destroy(context);
}
END_TEST

/* Vertex 0 is followed by 1, 1 by 2, 2 by 0; 3 to 5 are an island without a colour. uvs: v = 1
 * is row 0, halves go to the even texel, outside is the border. */
START_TEST(test_colours_run_against_the_edges_and_islands_stay)
{
    const float positions[] = {0, 0, 0, 1, 0, 0, 0, 1, 0, 5, 5, 5, 6, 5, 5, 5, 6, 5};
    const float uv[] = {-3, 7, 0.5F, 0.5F, 1e30F, -1e30F, 0, 0.5F, 1, 1, 0.5F, 1};
    const int32_t faces[] = {0, 1, 2, 3, 4, 5};
    float texture[16] = {[15] = 6}; /* 4 x 4: u = 0.5 is column 1.5, so 2; v = 0.5 row 1.5, so 2 */
    uint8_t mask[16] = {[15] = 9};
    int64_t filled = -1;
    hy3d_context *const context = test_context(NULL, 1);
    const hy3d_vertex_inpaint_desc desc = {4, 4, 1, 6, 6, 2};
    ck_assert_ok(hy3d_vertex_inpaint(context, &desc, positions, uv, faces, faces, NULL, NULL,
                                     texture, mask, &filled));
    const float painted[16] = {[0] = 6, [10] = 6, [15] = 6};
    const uint8_t masked[16] = {[0] = 255, [10] = 255, [15] = 255};
    ck_assert_mem_eq(texture, painted, sizeof painted);
    ck_assert_mem_eq(mask, masked, sizeof masked);
    ck_assert_int_eq(filled, 2);
    hy3d_context_destroy(context);
}
END_TEST

/* A seam: vertex 0 has two uvs. Its last coloured corner decides, and both texels get that
 * colour. */
START_TEST(test_both_sides_of_a_seam_get_the_last_corners_colour)
{
    const float positions[] = {0, 0, 0, 1, 0, 0, 0, 1, 0};
    const float uv[] = {0, 1, 1.0F / 3, 1, 2.0F / 3, 1, 1, 1};
    const int32_t faces[] = {0, 1, 2, 0, 1, 2}, uv_faces[] = {0, 1, 2, 3, 1, 2};
    float texture[8] = {1, 2, 3, 4};
    uint8_t mask[8] = {255, 255, 255, 1};
    int64_t filled = -1;
    hy3d_context *const context = test_context(NULL, 1);
    const hy3d_vertex_inpaint_desc desc = {4, 2, 1, 3, 4, 2};
    ck_assert_ok(hy3d_vertex_inpaint(context, &desc, positions, uv, faces, uv_faces, NULL, NULL,
                                     texture, mask, &filled));
    const float painted[8] = {4, 2, 3, 4};
    const uint8_t masked[8] = {255, 255, 255, 255};
    ck_assert_mem_eq(texture, painted, sizeof painted);
    ck_assert_mem_eq(mask, masked, sizeof masked);
    ck_assert_int_eq(filled, 0);
    hy3d_context_destroy(context);
}
END_TEST

/* So many vertices that a run of them is longer than the shortest: faces of one corner from each
 * third of the mesh, all in the plane z = 0, every second one turned round. */
START_TEST(test_a_mesh_of_a_hundred_thousand_vertices_has_the_normals_of_its_faces)
{
    enum { THIRD = 33400 };
    static float positions[9 * THIRD], normals[9 * THIRD];
    static int32_t faces[3 * THIRD];
    for (int32_t i = 0; i < THIRD; i++) {
        for (int32_t k = 0; k < 3; k++) {
            const int32_t vertex = k * THIRD + i;
            faces[3 * i + (i % 2 == 0 ? k : 2 - k)] = vertex;
            positions[3 * vertex] = (float)(i + (k == 1));
            positions[3 * vertex + 1] = (float)(k == 2);
        }
    }
    for (uint32_t threads = 1; threads <= 3; threads++) {
        hy3d_context *const context = test_context(NULL, threads);
        memset(normals, 0xa5, sizeof normals);
        ck_assert_ok(hy3d_vertex_normals(context, 3 * THIRD, THIRD, positions, faces,
                                         HY3D_NORMALS_BY_AREA, 0, NULL, NULL, normals));
        for (int32_t i = 0; i < 3 * THIRD; i++) {
            ck_assert_float_eq(normals[3 * i], 0);
            ck_assert_float_eq(normals[3 * i + 1], 0);
            ck_assert_float_eq(normals[3 * i + 2], i % THIRD % 2 == 0 ? 1.0F : -1.0F);
        }
        hy3d_context_destroy(context);
    }
}
END_TEST

void raster_mesh_add_values(TCase *tests)
{
    tcase_add_test(tests, test_a_mesh_of_a_hundred_thousand_vertices_has_the_normals_of_its_faces);
    tcase_add_test(tests, test_a_pixel_has_its_corners_mixed_and_an_empty_one_has_nothing);
    tcase_add_test(tests, test_a_point_between_texels_is_shared_among_them);
    tcase_add_test(tests, test_nearest_goes_to_one_texel_and_halfway_to_the_right_and_below);
    tcase_add_test(tests, test_points_outside_and_weightless_ones_leave_no_trace);
    tcase_add_test(tests, test_a_cubes_corner_points_along_its_diagonal_by_angle_and_not_by_area);
    tcase_add_test(tests, test_faces_that_cancel_or_have_no_area_give_no_direction);
    tcase_add_test(tests, test_a_vertex_gets_its_successors_mean_by_closeness);
    tcase_add_test(tests, test_colours_run_against_the_edges_and_islands_stay);
    tcase_add_test(tests, test_both_sides_of_a_seam_get_the_last_corners_colour);
}
