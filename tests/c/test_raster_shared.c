/* Arrays that another thread changes while they are read: whatever comes out, nothing beside them
 * is read or written. The checks of AddressSanitizer are the test; without it a stray address has to
 * be far enough away. Not for ThreadSanitizer: the races are meant. */
#include "raster_mesh_support.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "raster/buckets.h"

Suite *hy3d_raster_shared_suite(void);

enum { VERTICES = 2000, FACES = 3000, POINTS = 5000, SIDE = 90, CHANNELS = 3, WRONG = 4 };
/* Calls that must get past the checks of values, and calls at most. */
enum { WANTED_CALLS = 60, MOST_CALLS = 200000 };

typedef union word {
    float f;
    int32_t i;
} word;

/* What the other thread does: now and then one word is wrong for a moment. */
typedef struct meddler {
    word *words;
    int64_t count;
    word wrong[WRONG];
    atomic_bool stop;
} meddler;

static void *meddle(void *argument)
{
    meddler *const m = argument;
    test_random random = {88172645463325252U};
    while (!atomic_load(&m->stop)) {
        volatile word *const at = &m->words[test_between(&random, 0, m->count - 1)];
        const int32_t right = at->i;
        at->i = m->wrong[test_between(&random, 0, WRONG - 1)].i;
        for (int64_t wait = test_between(&random, 0, 200); wait > 0; wait--) {
            atomic_signal_fence(memory_order_seq_cst);
        }
        at->i = right;
    }
    return NULL;
}

typedef struct scene {
    word clip[4 * VERTICES], positions[3 * VERTICES], uv[2 * POINTS], weights[POINTS];
    word faces[3 * FACES], face_index[SIDE * SIDE];
    float values[CHANNELS * POINTS], barycentric[3 * SIDE * SIDE], depth[SIDE * SIDE];
    float texture[CHANNELS * SIDE * SIDE], total[SIDE * SIDE], normals[3 * VERTICES];
    int32_t drawn[SIDE * SIDE];
    uint8_t mask[SIDE * SIDE];
} scene;

static float fraction(test_random *random)
{
    return (float)test_between(random, 0, 1 << 20) * 0x1p-20F;
}

static scene *make_scene(void)
{
    test_random random = test_rng(2411);
    scene *const s = calloc(1, sizeof *s);
    ck_assert_ptr_nonnull(s);
    for (size_t i = 0; i < COUNT_OF(s->clip); i++) {
        s->clip[i].f = i % 4 == 3 ? 1.0F : 2 * fraction(&random) - 1;
    }
    for (size_t i = 0; i < COUNT_OF(s->positions); i++) {
        s->positions[i].f = fraction(&random);
    }
    for (size_t i = 0; i < COUNT_OF(s->uv); i++) {
        s->uv[i].f = fraction(&random) * 0.5F; /* the last rows are for those that move */
    }
    for (size_t i = 0; i < COUNT_OF(s->weights); i++) {
        s->weights[i].f = 1.0F;
    }
    for (size_t i = 0; i < COUNT_OF(s->faces); i++) {
        s->faces[i].i = (int32_t)test_between(&random, 0, VERTICES / 2);
    }
    for (size_t i = 0; i < COUNT_OF(s->face_index); i++) {
        s->face_index[i].i = (int32_t)test_between(&random, 0, FACES / 2);
        s->mask[i] = test_between(&random, 0, 3) == 0 ? 255 : 0;
    }
    return s;
}

typedef hy3d_status (*shared_call)(hy3d_context *context, scene *s);

static hy3d_status draw(hy3d_context *context, scene *s)
{
    const hy3d_raster_desc desc = {HY3D_RASTER_TOPLEFT, SIDE, SIDE, VERTICES, FACES, 0};
    return hy3d_rasterize(context, &desc, &s->clip[0].f, &s->faces[0].i, NULL, NULL, NULL, s->drawn,
                          s->barycentric, s->depth);
}

static hy3d_status interpolate(hy3d_context *context, scene *s)
{
    return hy3d_interpolate(context, VERTICES, 3, FACES, SIDE * SIDE, &s->positions[0].f,
                            &s->faces[0].i, &s->face_index[0].i, s->barycentric, 0, NULL, NULL,
                            s->texture);
}

static hy3d_status scatter(hy3d_context *context, scene *s)
{
    const hy3d_scatter_desc desc = {HY3D_SCATTER_LINEAR, SIDE, SIDE, CHANNELS, POINTS, 0};
    return hy3d_scatter(context, &desc, s->values, &s->uv[0].f, &s->weights[0].f, NULL, NULL,
                        s->texture, s->total);
}

static hy3d_status normals(hy3d_context *context, scene *s)
{
    return hy3d_vertex_normals(context, VERTICES, FACES, &s->positions[0].f, &s->faces[0].i,
                               HY3D_NORMALS_BY_ANGLE, 0, NULL, NULL, s->normals);
}

static hy3d_status inpaint(hy3d_context *context, scene *s)
{
    const hy3d_vertex_inpaint_desc desc = {SIDE, SIDE, CHANNELS, VERTICES, VERTICES, FACES};
    return hy3d_vertex_inpaint(context, &desc, &s->positions[0].f, &s->uv[0].f, &s->faces[0].i,
                               &s->faces[0].i, NULL, NULL, s->texture, s->mask, NULL);
}

#define INDICES {.i = INT32_MAX}, {.i = -1}, {.i = INT32_MIN}
#define FLOATS {.f = 1.0F}, {.f = NAN}, {.f = 3e38F}, {.f = -INFINITY}
#define PART(array) offsetof(scene, array), COUNT_OF(((scene *)NULL)->array)

static const struct {
    const char *name;
    shared_call call;
    size_t offset;
    int64_t count;
    word wrong[WRONG];
} cases[] = {
    {"rasterize, faces", draw, PART(faces), {INDICES, {.i = VERTICES - 1}}},
    {"rasterize, clip", draw, PART(clip), {FLOATS}},
    {"interpolate, faces", interpolate, PART(faces), {INDICES, {.i = VERTICES}}},
    {"interpolate, face_index", interpolate, PART(face_index), {INDICES, {.i = FACES + 1}}},
    {"scatter, uv", scatter, PART(uv), {FLOATS}},
    {"scatter, weights", scatter, PART(weights), {{.f = 0.0F}, {.f = NAN}, {.f = -1.0F}, {.f = 0}}},
    {"normals, faces", normals, PART(faces), {INDICES, {.i = VERTICES - 1}}},
    {"normals, positions", normals, PART(positions), {FLOATS}},
    {"inpaint, faces", inpaint, PART(faces), {INDICES, {.i = VERTICES - 1}}},
    {"inpaint, uv", inpaint, PART(uv), {FLOATS}},
};

START_TEST(test_a_thread_that_changes_inputs_sends_nothing_out_of_bounds)
{
    hy3d_context *const context = test_context(NULL, 2);
    scene *const s = make_scene();
    void *const words = (char *)s + cases[_i].offset;
    meddler other = {.words = words, .count = cases[_i].count};
    pthread_t thread;
    for (int i = 0; i < WRONG; i++) {
        other.wrong[i] = cases[_i].wrong[i];
    }
    ck_assert_int_eq(pthread_create(&thread, NULL, meddle, &other), 0);
    int done = 0;
    for (int call = 0; done < WANTED_CALLS && call < MOST_CALLS; call++) {
        const hy3d_status status = cases[_i].call(context, s);
        ck_assert_msg(status == HY3D_OK || status == HY3D_ERR_INVALID_ARGUMENT, "%s: %s",
                      cases[_i].name, hy3d_status_name(status));
        done += status == HY3D_OK;
    }
    atomic_store(&other.stop, true);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_msg(done == WANTED_CALLS, "%s: no call got past the checks", cases[_i].name);
    free(s);
    hy3d_context_destroy(context);
}
END_TEST

/* A pass that says something else each time: bucket `first` for all items, then bucket `then`. */
typedef struct fickle {
    int64_t first, then;
} fickle;

static void fickle_pass(const void *argument, int64_t begin, int64_t end,
                        const hy3d__buckets_sink *sink)
{
    const fickle *const f = argument;
    for (int64_t i = begin; i < end; i++) {
        hy3d__buckets_put(sink, sink->items == NULL ? f->first : f->then, i);
    }
}

START_TEST(test_a_bucket_takes_no_more_than_was_counted)
{
    enum { ITEMS = 50000, BUCKETS = 3 };
    static const int64_t elsewhere[] = {0, 1, -1, BUCKETS, INT64_MAX, INT64_MIN};
    hy3d_context *const context = test_context(NULL, 2);
    for (size_t i = 0; i < COUNT_OF(elsewhere); i++) {
        const fickle moves = {2, elsewhere[i]}, comes = {elsewhere[i], 2};
        hy3d__buckets buckets;
        ck_assert_ok(hy3d__buckets_make(context, ITEMS, BUCKETS, fickle_pass, &moves, 2, NULL,
                                        &buckets));
        ck_assert_int_eq(buckets.first[BUCKETS], ITEMS);
        for (int64_t k = 0; k < ITEMS; k++) {
            ck_assert_int_eq(buckets.items[k], HY3D__NO_ITEM);
        }
        hy3d__buckets_destroy(&buckets);
        ck_assert_ok(hy3d__buckets_make(context, ITEMS, BUCKETS, fickle_pass, &comes, 2, NULL,
                                        &buckets));
        ck_assert_int_eq(buckets.first[3] - buckets.first[2], 0);
        hy3d__buckets_destroy(&buckets);
    }
    hy3d_context_destroy(context);
}
END_TEST

Suite *hy3d_raster_shared_suite(void)
{
    Suite *const suite = suite_create("raster_shared");
    TCase *const tests = tcase_create("raster_shared");
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, test_a_thread_that_changes_inputs_sends_nothing_out_of_bounds, 0,
                        (int)COUNT_OF(cases));
    tcase_add_test(tests, test_a_bucket_takes_no_more_than_was_counted);
    suite_add_tcase(suite, tests);
    return suite;
}
