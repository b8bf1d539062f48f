/* Rasterising however it is run: threads, CPU levels, faults, cancelling, the ends of memory. */
#include "rasterize_support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

Suite *hy3d_rasterize_runs_suite(void);

START_TEST(test_no_thread_count_and_no_level_changes_a_bit)
{
    enum { CROWD = 20000 };
    static const char *const names[] = {"ref", "avx2", "avx512"};
    static const uint32_t threads[] = {1, 2, 3, 8};
    float *const clip = raster_must(malloc(CROWD * 12 * sizeof(float)));
    int32_t *const faces = raster_must(malloc(CROWD * 3 * sizeof(int32_t)));
    raster_scene s = raster_crowd(raster_rules[_i], CROWD, clip, faces);
    picture wanted = picture_make(&s.desc), got = picture_make(&s.desc);
    for (int level = 0; level < test_level_count(); level++) {
        hy3d_context *const context = test_context(names[level], 8);
        for (size_t t = 0; t < COUNT_OF(threads); t++) {
            s.desc.num_threads = threads[t];
            memset(got.face_index, 0x5a, got.pixels * sizeof(int32_t));
            ck_assert_ok(raster_draw(context, &s, level == 0 && t == 0 ? &wanted : &got));
            if (level != 0 || t != 0) {
                assert_same_pictures(&wanted, &got);
            }
        }
        hy3d_context_destroy(context);
    }
    picture_free(&wanted);
    picture_free(&got);
    free(clip);
    free(faces);
}
END_TEST

/* Some of the crowd's faces reach behind the eye, which another function draws. */
START_TEST(test_layers_of_a_crowd_are_peeled_from_the_front)
{
    enum { CROWD = 2000 };
    static float clip[CROWD * 12];
    static int32_t faces[CROWD * 3];
    hy3d_context *const context = test_context(NULL, 2);
    raster_scene s = raster_crowd(raster_rules[_i], CROWD, clip, faces);
    picture first = picture_make(&s.desc), next = picture_make(&s.desc);
    float *const prior = raster_must(malloc(first.pixels * sizeof(float)));
    ck_assert_ok(raster_draw(context, &s, &first));
    s.prior = prior;
    for (size_t i = 0; i < first.pixels; i++) {
        prior[i] = NAN;
    }
    ck_assert_ok(raster_draw(context, &s, &next));
    assert_same_pictures(&first, &next); /* NaN drops nothing */
    int64_t behind = 0;
    for (int layer = 0; layer < 3; layer++) {
        memcpy(prior, first.depth, first.pixels * sizeof(float));
        ck_assert_ok(raster_draw(context, &s, &next));
        for (size_t i = 0; i < first.pixels; i++) {
            const bool is_empty = next.face_index[i] == 0;
            ck_assert(is_empty || next.depth[i] > prior[i]);
            ck_assert(is_empty || next.face_index[i] != first.face_index[i]);
            behind += !is_empty && clip[12 * (next.face_index[i] - 1) + 3] < 0;
        }
        memcpy(first.depth, next.depth, first.pixels * sizeof(float));
        memcpy(first.face_index, next.face_index, first.pixels * sizeof(int32_t));
    }
    ck_assert_int_gt(behind, 0);
    free(prior);
    picture_free(&first);
    picture_free(&next);
    hy3d_context_destroy(context);
}
END_TEST

typedef struct sweep_call {
    const raster_scene *s;
    picture *p;
} sweep_call;

static hy3d_status draw_afresh(hy3d_context *context, void *argument)
{
    const sweep_call *const call = argument;
    hy3d_context_trim(context); /* a workspace that is kept is an allocation less */
    const hy3d_status status = raster_draw(context, call->s, call->p);
    hy3d_context_trim(context);
    return status;
}

START_TEST(test_every_allocation_that_fails_is_survived)
{
    enum { CROWD = 300 };
    float clip[CROWD * 12];
    int32_t faces[CROWD * 3];
    for (uint32_t threads = 1; threads <= 2; threads++) {
        hy3d_context *const context = test_context(NULL, threads);
        const raster_scene s = raster_crowd(raster_rules[_i], CROWD, clip, faces);
        picture wanted = picture_make(&s.desc), got = picture_make(&s.desc);
        ck_assert_ok(raster_draw(context, &s, &wanted)); /* starts the pool's threads */
        hy3d_context_trim(context);
        ck_assert_uint_ge(test_allocation_sweep(context, draw_afresh, &(sweep_call){&s, &got}), 1);
        assert_same_pictures(&wanted, &got);
        picture_free(&wanted);
        picture_free(&got);
        hy3d_context_destroy(context);
    }
}
END_TEST

START_TEST(test_without_threads_the_caller_draws_alone)
{
    enum { CROWD = 300 };
    float clip[CROWD * 12];
    int32_t faces[CROWD * 3];
    const raster_scene s = raster_crowd(raster_rules[_i], CROWD, clip, faces);
    picture wanted = picture_make(&s.desc), got = picture_make(&s.desc);
    hy3d_context *context = test_context(NULL, 1);
    ck_assert_ok(raster_draw(context, &s, &wanted));
    hy3d_context_destroy(context);
    context = test_context(NULL, 4);
    test_fail_threads(true);
    ck_assert_ok(raster_draw(context, &s, &got));
    test_fail_threads(false);
    assert_same_pictures(&wanted, &got);
    hy3d_context_destroy(context);
    picture_free(&wanted);
    picture_free(&got);
}
END_TEST

START_TEST(test_a_cancelled_call_says_so)
{
    hy3d_context *const context = test_context(NULL, 2);
    hy3d_cancel *cancel = NULL;
    const raster_scene s =
        raster_scene_of(raster_rules[_i], raster_square[0], 4, raster_two_faces[0], 2);
    picture p = picture_make(&s.desc);
    ck_assert_ok(hy3d_cancel_create(context, &cancel));
    hy3d_cancel_request(cancel);
    ck_assert_status(hy3d_rasterize(context, &s.desc, s.clip, s.faces, NULL, cancel, NULL,
                                    p.face_index, p.barycentric, p.depth),
                     HY3D_ERR_CANCELLED);
    hy3d_cancel_reset(cancel);
    ck_assert_ok(hy3d_rasterize(context, &s.desc, s.clip, s.faces, NULL, cancel, NULL,
                                p.face_index, NULL, NULL));
    hy3d_cancel_destroy(context, cancel);
    picture_free(&p);
    hy3d_context_destroy(context);
}
END_TEST

/* Every array ends where memory does, and begins where it does when shifted to the front. */
START_TEST(test_nothing_is_read_or_written_beyond_the_arrays)
{
    enum { CROWD = 60, MOST = 70 };
    float clip[CROWD * 12];
    int32_t faces[CROWD * 3];
    raster_scene s = raster_crowd(raster_rules[_i], CROWD, clip, faces);
    test_guard guards[6];
    for (size_t i = 0; i < COUNT_OF(guards); i++) {
        guards[i] = test_guard_make(MOST * MOST * 3 * sizeof(float));
    }
    s.clip = memcpy(test_guard_end(&guards[0], sizeof clip), clip, sizeof clip);
    s.faces = memcpy(test_guard_end(&guards[1], sizeof faces), faces, sizeof faces);
    for (int level = 0; level < test_level_count(); level++) {
        static const char *const names[] = {"ref", "avx2", "avx512"};
        hy3d_context *const context = test_context(names[level], 1);
        for (int64_t side = 1; side <= MOST; side += side < 10 ? 1 : 13) {
            const int64_t other = MOST + 1 - side;
            const size_t bytes = (size_t)(side * other) * sizeof(float);
            s.desc.width = side;
            s.desc.height = other;
            float *const prior = test_guard_end(&guards[5], bytes);
            for (int64_t i = 0; i < side * other; i++) {
                prior[i] = -1;
            }
            s.prior = side % 2 ? prior : NULL;
            picture p = {test_guard_end(&guards[2], bytes), test_guard_end(&guards[3], 3 * bytes),
                         test_guard_end(&guards[4], bytes), (size_t)(side * other)};
            ck_assert_ok(raster_draw(context, &s, &p));
        }
        hy3d_context_destroy(context);
    }
    for (size_t i = 0; i < COUNT_OF(guards); i++) {
        test_guard_free(&guards[i]);
    }
}
END_TEST

Suite *hy3d_rasterize_runs_suite(void)
{
    Suite *const suite = suite_create("rasterize_runs");
    TCase *const tests = tcase_create("rasterize_runs");
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, test_no_thread_count_and_no_level_changes_a_bit, 0, RASTER_RULES);
    tcase_add_loop_test(tests, test_layers_of_a_crowd_are_peeled_from_the_front, 0, RASTER_RULES);
    tcase_add_loop_test(tests, test_every_allocation_that_fails_is_survived, 0, RASTER_RULES);
    tcase_add_loop_test(tests, test_without_threads_the_caller_draws_alone, 0, RASTER_RULES);
    tcase_add_loop_test(tests, test_a_cancelled_call_says_so, 0, RASTER_RULES);
    tcase_add_loop_test(tests, test_nothing_is_read_or_written_beyond_the_arrays, 0, RASTER_RULES);
    suite_add_tcase(suite, tests);
    return suite;
}
