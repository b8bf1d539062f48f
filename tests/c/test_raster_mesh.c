/* Interpolation, scatter, normals and in-painting: the same bits for every thread count and CPU
 * level, and every failed allocation survived. Values by hand are in raster_mesh_values.c, what
 * is refused in raster_mesh_refusals.c. */
#include "raster_mesh_support.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"

Suite *hy3d_raster_mesh_suite(void);

enum { PIXELS = 70000, POINTS = 20000, WIDTH = 61, HEIGHT = 83, CHANNELS = 3 };

/* Any float between -1 and 1 with all its bits in use. */
static float fraction(test_random *random)
{
    return (float)test_between(random, -(1 << 24), 1 << 24) * 0x1p-24F;
}

void test_sheet_make(test_random *random, test_sheet *sheet)
{
    for (int v = 0; v < SHEET_VERTICES; v++) {
        const int column = v % (SHEET + 1), row = v / (SHEET + 1);
        sheet->positions[3 * v] = (float)column;
        sheet->positions[3 * v + 1] = (float)row;
        sheet->positions[3 * v + 2] = fraction(random);
        sheet->uv[2 * v] = (float)column / SHEET;
        sheet->uv[2 * v + 1] = (float)row / SHEET;
    }
    for (int f = 0; f < SHEET_FACES; f++) {
        const int cell = f / 2, a = cell / SHEET * (SHEET + 1) + cell % SHEET;
        const int32_t below = a + SHEET + 1;
        const int32_t corners[2][3] = {{a, a + 1, below}, {a + 1, below + 1, below}};
        const int64_t other = test_between(random, 0, f);
        memcpy(sheet->faces + 3 * f, sheet->faces + 3 * other, 3 * sizeof(int32_t));
        memcpy(sheet->faces + 3 * other, corners[f % 2], 3 * sizeof(int32_t));
    }
}

typedef struct scene {
    test_sheet sheet;
    float attributes[CHANNELS * SHEET_VERTICES];
    int32_t face_index[PIXELS];
    float barycentric[3 * PIXELS];
    float values[CHANNELS * POINTS], uv[2 * POINTS], weights[POINTS];
} scene;

typedef struct results {
    float out[CHANNELS * PIXELS];
    float texture[2][CHANNELS * WIDTH * HEIGHT], total[2][WIDTH * HEIGHT];
    float normals[2][3 * SHEET_VERTICES];
    float painted[CHANNELS * WIDTH * HEIGHT];
    uint8_t mask[WIDTH * HEIGHT];
    int64_t filled;
} results;

static scene *make_scene(uint64_t seed)
{
    test_random random = test_rng(seed);
    scene *const s = calloc(1, sizeof *s);
    ck_assert_ptr_nonnull(s);
    test_sheet_make(&random, &s->sheet);
    for (size_t i = 0; i < COUNT_OF(s->attributes); i++) {
        s->attributes[i] = fraction(&random);
    }
    for (size_t i = 0; i < PIXELS; i++) {
        s->face_index[i] = (int32_t)test_between(&random, 0, SHEET_FACES);
        for (int k = 0; k < 3; k++) {
            s->barycentric[3 * i + (size_t)k] = fraction(&random);
        }
    }
    for (size_t i = 0; i < POINTS; i++) {
        s->uv[2 * i] = fraction(&random) * 0.55F + 0.5F;
        s->uv[2 * i + 1] = fraction(&random) * 0.55F + 0.5F;
        s->weights[i] = (float)test_between(&random, 0, 1000) * 1e-3F;
    }
    for (size_t i = 0; i < COUNT_OF(s->values); i++) {
        s->values[i] = fraction(&random);
    }
    return s;
}

/* The seed's mask and texture, so that each call begins with the same. */
static void begin_inpaint(results *r)
{
    test_random random = test_rng(1207);
    for (size_t i = 0; i < COUNT_OF(r->mask); i++) {
        r->mask[i] = test_between(&random, 0, 4) == 0 ? 200 : 0;
        for (size_t c = 0; c < CHANNELS; c++) {
            r->painted[CHANNELS * i + c] = fraction(&random);
        }
    }
}

typedef struct call {
    const scene *scene;
    results *results;
    int which;
    uint32_t threads;
} call;

enum { CALLS = 6 };

static hy3d_status run_call(hy3d_context *context, void *argument)
{
    const call *const c = argument;
    const scene *const s = c->scene;
    results *const r = c->results;
    hy3d_context_trim(context); /* a workspace that is kept hides an allocation */
    if (c->which == 0) {
        return hy3d_interpolate(context, SHEET_VERTICES, CHANNELS, SHEET_FACES, PIXELS,
                                s->attributes,
                                s->sheet.faces, s->face_index, s->barycentric, c->threads, NULL,
                                NULL, r->out);
    }
    hy3d_status status;
    if (c->which <= 2) {
        const int linear = c->which == 1;
        const hy3d_scatter_desc desc = {linear ? HY3D_SCATTER_LINEAR : HY3D_SCATTER_NEAREST, WIDTH,
                                        HEIGHT, CHANNELS, POINTS, c->threads};
        status = hy3d_scatter(context, &desc, s->values, s->uv, s->weights, NULL, NULL,
                              r->texture[linear], r->total[linear]);
    } else if (c->which <= 4) {
        const int angle = c->which == 4;
        status = hy3d_vertex_normals(context, SHEET_VERTICES, SHEET_FACES, s->sheet.positions,
                                     s->sheet.faces,
                                     angle ? HY3D_NORMALS_BY_ANGLE : HY3D_NORMALS_BY_AREA,
                                     c->threads, NULL, NULL, r->normals[angle]);
    } else {
        const hy3d_vertex_inpaint_desc desc = {
            WIDTH, HEIGHT, CHANNELS, SHEET_VERTICES, SHEET_VERTICES, SHEET_FACES};
        begin_inpaint(r);
        status = hy3d_vertex_inpaint(context, &desc, s->sheet.positions, s->sheet.uv,
                                     s->sheet.faces,
                                     s->sheet.faces, NULL, NULL, r->painted, r->mask, &r->filled);
    }
    hy3d_context_trim(context);
    return status;
}

START_TEST(test_threads_and_level_change_no_bit)
{
    static const char *const names[] = {"ref", "avx2", "avx512"};
    static const uint32_t threads[] = {1, 2, 3, 8};
    scene *const s = make_scene(1201);
    results *const wanted = calloc(1, sizeof *wanted), *const got = calloc(1, sizeof *got);
    ck_assert(wanted != NULL && got != NULL);
    hy3d_context *context = test_context("ref", 1);
    memset(wanted, 0xff, sizeof *wanted); /* padding is compared too */
    for (int which = 0; which < CALLS; which++) {
        ck_assert_ok(run_call(context, &(call){s, wanted, which, 1}));
    }
    hy3d_context_destroy(context);
    for (int level = 0; level < test_level_count(); level++) {
        for (size_t t = 0; t < COUNT_OF(threads); t++) {
            context = test_context(names[level], 8);
            memset(got, 0xff, sizeof *got);
            for (int which = 0; which < CALLS; which++) {
                ck_assert_ok(run_call(context, &(call){s, got, which, threads[t]}));
            }
            ck_assert_msg(memcmp(wanted, got, sizeof *got) == 0, "%s, %u threads", names[level],
                          threads[t]);
            hy3d_context_destroy(context);
        }
    }
    ck_assert(got->filled > 1000);
    free(got);
    free(wanted);
    free(s);
}
END_TEST

START_TEST(test_every_allocation_may_fail)
{
    scene *const s = make_scene(1202);
    results *const r = calloc(1, sizeof *r);
    ck_assert_ptr_nonnull(r);
    hy3d_context *const context = test_context(NULL, 2);
    ck_assert_ok(run_call(context, &(call){s, r, 0, 2})); /* threads are made once */
    for (int which = 0; which < CALLS; which++) {
        const uint64_t asked = test_allocation_sweep(context, run_call, &(call){s, r, which, 2});
        static const uint64_t wanted[CALLS] = {0, 4, 4, 4, 4, 8};
        ck_assert_msg(asked == wanted[which], "call %d asks %d times", which, (int)asked);
    }
    hy3d_context_destroy(context);
    free(r);
    free(s);
}
END_TEST

/* All arrays end at a page that must not be touched, and then begin after one. */
START_TEST(test_the_kernel_gives_the_reference_bits_and_touches_nothing_beyond)
{
    enum { VERTICES = 5, FACES = 4, MOST_CHANNELS = 36, MOST = 9 };
    test_random random = test_rng(1203);
    test_guard guard[5];
    for (int i = 0; i < 5; i++) {
        guard[i] = test_guard_make(MOST * MOST_CHANNELS * 4);
    }
    for (size_t channels = 1; channels <= MOST_CHANNELS; channels++) {
        for (size_t n = 0; n <= MOST; n++) {
            const size_t sizes[5] = {VERTICES * channels, 3 * FACES, n, 3 * n, n * channels};
            void *at[5];
            float wanted[MOST * MOST_CHANNELS];
            for (int i = 0; i < 5; i++) {
                at[i] = test_guard_end(&guard[i], n % 2 == 0 ? sizes[i] * 4 : guard[i].bytes);
            }
            float *const attributes = at[0], *const barycentric = at[3];
            int32_t *const triangles = at[1], *const face_index = at[2];
            for (size_t i = 0; i < sizes[0]; i++) {
                attributes[i] = fraction(&random);
            }
            for (size_t i = 0; i < sizes[1]; i++) {
                triangles[i] = (int32_t)test_between(&random, 0, VERTICES - 1);
            }
            triangles[1] = VERTICES - 1;
            for (size_t i = 0; i < n; i++) {
                face_index[i] = (int32_t)test_between(&random, 0, FACES);
            }
            for (size_t i = 0; i < 3 * n; i++) {
                barycentric[i] = fraction(&random);
            }
            hy3d__kernels_for(0)->interpolate_f32(n, channels, VERTICES, FACES, attributes,
                                                  triangles, face_index, barycentric, wanted);
            hy3d__kernels_for(_i)->interpolate_f32(n, channels, VERTICES, FACES, attributes,
                                                   triangles, face_index, barycentric, at[4]);
            ck_assert_msg(memcmp(wanted, at[4], n * channels * 4) == 0,
                          "level %d, %zu channels, n %zu",
                          _i, channels, n);
        }
    }
    for (int i = 0; i < 5; i++) {
        test_guard_free(&guard[i]);
    }
}
END_TEST

Suite *hy3d_raster_mesh_suite(void)
{
    Suite *const suite = suite_create("raster_mesh");
    TCase *const tests = tcase_create("raster_mesh");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, test_threads_and_level_change_no_bit);
    tcase_add_test(tests, test_every_allocation_may_fail);
    tcase_add_loop_test(tests, test_the_kernel_gives_the_reference_bits_and_touches_nothing_beyond,
                        0, test_level_count());
    raster_mesh_add_values(tests);
    raster_mesh_add_refusals(tests);
    suite_add_tcase(suite, tests);
    return suite;
}
