/* The rasteriser's kernels and its exact signs. Every level must give the reference's bytes; loop
 * index = level. */
#include "support.h"

#include <math.h>
#include <string.h>

#include "kernels/kernels.h"
#include "raster/exact.h"
#include "raster/internal.h"

Suite *hy3d_raster_kernels_suite(void);

enum { VERTICES = 24, ROUNDS = 400 };

/* Whole numbers as floats; the determinant as a whole number of 128 bits. */
static __int128 whole_edge(const float a[4], const float b[4], int64_t p, int64_t q, int64_t r)
{
    const __int128 ax = (int64_t)a[0], ay = (int64_t)a[1], aw = (int64_t)a[3];
    const __int128 bx = (int64_t)b[0], by = (int64_t)b[1], bw = (int64_t)b[3];
    return (ay * bw - aw * by) * p + (aw * bx - ax * bw) * q + (ax * by - ay * bx) * r;
}

static float whole(test_random *random, int64_t most)
{
    return (float)test_between(random, -most, most);
}

START_TEST(test_exact_edges_are_those_of_whole_numbers)
{
    test_random random = test_rng(901);
    for (int round = 0; round < 20000; round++) {
        const int64_t most = (int64_t)1 << test_between(&random, 0, 23);
        const int64_t far = (int64_t)1 << test_between(&random, 0, 30);
        float a[4], b[4];
        for (int i = 0; i < 4; i++) {
            a[i] = whole(&random, most);
            b[i] = whole(&random, most);
        }
        /* Every other point lies on the edge, or next to it. */
        const int64_t s = test_between(&random, -40, 40), t = test_between(&random, -40, 40);
        int64_t p = test_between(&random, -far, far), q = test_between(&random, -far, far);
        int64_t r = test_between(&random, -far, far);
        if (round % 2 == 0) {
            p = s * (int64_t)a[0] + t * (int64_t)b[0] + test_between(&random, 0, 3) / 3;
            q = s * (int64_t)a[1] + t * (int64_t)b[1];
            r = s * (int64_t)a[3] + t * (int64_t)b[3];
        }
        const __int128 wanted = whole_edge(a, b, p, q, r);
        const double got = hy3d__raster_exact(a, b, (double)p, (double)q, (double)r);
        ck_assert_msg((got > 0) == (wanted > 0) && (got < 0) == (wanted < 0),
                      "round %d: sign of %g", round, got);
        const double nearest = (double)wanted;
        ck_assert_msg(fabs(got - nearest) <= fabs(nearest) * 0x1p-50, "round %d: %a is not %a",
                      round, got, nearest);
    }
}
END_TEST

START_TEST(test_exact_edges_hold_at_the_ends_of_floats)
{
    /* (2^127, 2^-149, ...): products from 2^-298 to 2^254 in one sum, of which the least decides.
     * */
    const float huge = 0x1p127F, tiny = 0x1p-149F;
    const float a[4] = {huge, huge, 0, huge}, b[4] = {huge, huge, 0, huge};
    const float c[4] = {huge, huge, 0, tiny}, d[4] = {tiny, 0, 0, 0};
    ck_assert(!(fabs(hy3d__raster_exact(a, b, 3, 5, 7)) > 0)); /* the same corner twice */
    /* a x c = huge (tiny - huge) (1, -1, 0): on (1, 1, r) it is 0 whatever r. */
    ck_assert(!(fabs(hy3d__raster_exact(a, c, 1, 1, 9)) > 0));
    /* d x c = (0, -tiny tiny, tiny huge); at r = 0 only the least product is left. */
    ck_assert(hy3d__raster_exact(d, c, 0, 1, 0) < 0);
    ck_assert(hy3d__raster_exact(c, d, 0, 1, 0) > 0);
}
END_TEST

typedef struct scene {
    hy3d__raster_view view;
    float clip[4 * VERTICES];
    int32_t triangles[3 * HY3D__FACES];
} scene;

static float coordinate(test_random *random, int kind)
{
    const float value = (float)test_between(random, -1000, 1000) / 256.0F;
    return kind == 0 ? roundf(value) : kind == 1 ? ldexpf(value, (int)test_between(random, -90, 90))
                                                 : value;
}

static void fill_scene(test_random *random, scene *out)
{
    const int kind = (int)test_between(random, 0, 4);
    const hy3d_raster_desc desc = {
        .rule = test_between(random, 0, 1) == 1 ? HY3D_RASTER_COMPAT : HY3D_RASTER_TOPLEFT,
        .width = test_between(random, 1, 200),
        .height = test_between(random, 1, 200),
    };
    out->view = hy3d__raster_view_of(&desc);
    for (int v = 0; v < VERTICES; v++) {
        for (int i = 0; i < 4; i++) {
            out->clip[4 * v + i] = coordinate(random, kind);
        }
        if (kind > 1) {
            out->clip[4 * v + 3] = fabsf(out->clip[4 * v + 3]) + (kind == 2 ? 0.5F : 4.0F);
        }
    }
    for (int i = 0; i < 3 * HY3D__FACES; i++) {
        out->triangles[i] = (int32_t)test_between(random, 0, VERTICES - 1);
    }
}

static void fill_tile(test_random *random, hy3d__raster_tile *tile)
{
    memset(tile, 0, sizeof *tile);
    tile->x = (int32_t)test_between(random, 0, 2) * HY3D__TILE;
    tile->y = (int32_t)test_between(random, 0, 2) * HY3D__TILE;
    tile->wants_depth = (int)test_between(random, 0, 1);
    for (int i = 0; i < HY3D__TILE_PIXELS + HY3D__TILE_SLACK; i++) {
        tile->step[i] = test_between(random, 0, 3) == 0 ? (int32_t)test_next(random) : INT32_MAX;
    }
}

/* Doubts are the same ones, in whatever order; a pixel is listed once. */
static bool same_doubts(const hy3d__raster_tile *a, const hy3d__raster_tile *b)
{
    static bool listed[HY3D__TILE_PIXELS];
    bool same = a->doubts == b->doubts;
    memset(listed, 0, sizeof listed);
    for (int i = 0; i < a->doubts; i++) {
        same = same && !listed[a->doubt[i]];
        listed[a->doubt[i]] = true;
    }
    for (int i = 0; same && i < b->doubts; i++) {
        same = listed[b->doubt[i]];
        listed[b->doubt[i]] = false;
    }
    return same;
}

static bool same_tiles(const hy3d__raster_tile *a, const hy3d__raster_tile *b)
{
    return same_doubts(a, b) && memcmp(a->step, b->step, sizeof a->step) == 0 &&
           memcmp(a->face, b->face, sizeof a->face) == 0 &&
           memcmp(a->barycentric, b->barycentric, sizeof a->barycentric) == 0 &&
           memcmp(a->depth, b->depth, sizeof a->depth) == 0;
}

static void compare_cover(test_random *random, int level, const scene *s,
                          const hy3d__raster_faces *faces, size_t k)
{
    static hy3d__raster_tile wanted, got;
    static float prior[HY3D__TILE_PIXELS];
    const int left = (int)test_between(random, 0, HY3D__TILE - 1);
    const int top = (int)test_between(random, 0, HY3D__TILE - 1);
    const hy3d__raster_box box = {left, (int)test_between(random, left, HY3D__TILE - 1), top,
                                  (int)test_between(random, top, HY3D__TILE - 1)};
    fill_tile(random, &wanted);
    if (test_between(random, 0, 2) == 0) {
        for (int i = 0; i < HY3D__TILE_PIXELS; i++) {
            prior[i] = coordinate(random, 3);
        }
        wanted.prior = prior;
        wanted.prior_pitch = HY3D__TILE;
    }
    got = wanted;
    hy3d__kernels_for(0)->raster_cover_f64(&s->view, faces, k, &box, &wanted);
    hy3d__kernels_for(level)->raster_cover_f64(&s->view, faces, k, &box, &got);
    ck_assert(same_tiles(&wanted, &got));
}

static bool same_faces(const hy3d__raster_faces *a, const hy3d__raster_faces *b, size_t n)
{
    bool same = a->odd == b->odd && a->careful == b->careful;
    for (size_t k = 0; k < n; k++) {
        if ((a->odd >> k & 1U) != 0) {
            continue; /* the rest of it is not set */
        }
        for (int i = 0; i < 3; i++) {
            for (int p = 0; p < 3; p++) {
                same = same && memcmp(&a->edge[i][p][k], &b->edge[i][p][k], 8) == 0;
            }
            same = same && memcmp(&a->z[i][k], &b->z[i][k], 8) == 0;
        }
        same = same && memcmp(&a->bound[k], &b->bound[k], 8) == 0;
        same = same && memcmp(&a->nearest[k], &b->nearest[k], 8) == 0;
        same = same && memcmp(&a->farthest[k], &b->farthest[k], 8) == 0;
    }
    return same;
}

START_TEST(test_every_level_prepares_and_covers_as_the_reference)
{
    test_random random = test_rng(902);
    int odd = 0, careful = 0, drawn = 0;
    for (int round = 0; round < ROUNDS; round++) {
        scene s;
        fill_scene(&random, &s);
        hy3d__raster_faces wanted, got;
        const size_t n = (size_t)test_between(&random, 1, HY3D__FACES);
        memset(&wanted, 0, sizeof wanted);
        for (size_t k = 0; k < n; k++) {
            wanted.face[k] = (int32_t)test_between(&random, 0, HY3D__FACES - 1);
        }
        got = wanted;
        hy3d__kernels_for(0)->raster_setup_f64(n, &s.view, s.clip, s.triangles, &wanted);
        hy3d__kernels_for(_i)->raster_setup_f64(n, &s.view, s.clip, s.triangles, &got);
        got.odd &= (1U << n) - 1U;
        got.careful &= (1U << n) - 1U;
        ck_assert_msg(same_faces(&wanted, &got, n), "round %d", round);
        for (size_t k = 0; k < n; k++) {
            odd += (int)(wanted.odd >> k & 1U);
            careful += (int)(wanted.careful >> k & 1U);
            if ((wanted.odd >> k & 1U) == 0) {
                compare_cover(&random, _i, &s, &wanted, k);
                drawn++;
            }
        }
    }
    /* All kinds came by. */
    ck_assert_int_gt(odd, 100);
    ck_assert_int_gt(careful, 100);
    ck_assert_int_gt(drawn, 300);
}
END_TEST

START_TEST(test_rows_are_woven_without_touching_what_is_beside_them)
{
    enum { MOST = 70 };
    test_random random = test_rng(903);
    test_guard guard = test_guard_make(3 * MOST * sizeof(float));
    test_guard inputs[4];
    for (int i = 0; i < 4; i++) {
        inputs[i] = test_guard_make(MOST * sizeof(float));
    }
    for (size_t n = 0; n <= MOST; n++) {
        float *in[3];
        int32_t *const face = test_guard_end(&inputs[3], n * sizeof(int32_t));
        for (int i = 0; i < 3; i++) {
            in[i] = test_guard_end(&inputs[i], n * sizeof(float));
            for (size_t k = 0; k < n; k++) {
                in[i][k] = (float)test_between(&random, 1, 1000000);
                face[k] = (int32_t)test_between(&random, -1, 1);
            }
        }
        float *const out = test_guard_end(&guard, 3 * n * sizeof(float));
        hy3d__kernels_for(_i)->raster_row_f32(n, face, in[0], in[1], in[2], out);
        for (size_t k = 0; k < 3 * n; k++) {
            const float wanted = face[k / 3] != 0 ? in[k % 3][k / 3] : 0.0F;
            ck_assert_uint_eq(test_bits_of(out[k]), test_bits_of(wanted));
        }
    }
    for (int i = 0; i < 4; i++) {
        test_guard_free(&inputs[i]);
    }
    test_guard_free(&guard);
}
END_TEST

Suite *hy3d_raster_kernels_suite(void)
{
    Suite *const suite = suite_create("raster_kernels");
    TCase *const exact = tcase_create("exact"), *const levels = tcase_create("levels");
    tcase_add_test(exact, test_exact_edges_are_those_of_whole_numbers);
    tcase_add_test(exact, test_exact_edges_hold_at_the_ends_of_floats);
    tcase_add_loop_test(levels, test_every_level_prepares_and_covers_as_the_reference, 0,
                        test_level_count());
    tcase_add_loop_test(levels, test_rows_are_woven_without_touching_what_is_beside_them, 0,
                        test_level_count());
    suite_add_tcase(suite, exact);
    suite_add_tcase(suite, levels);
    return suite;
}
