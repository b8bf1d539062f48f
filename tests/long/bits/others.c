/* Blending, moments and the rasteriser: one result for every CPU level, thread count, alignment and
 * (of tensors) memory layout. */
#include "bits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hy3d/blend.h"
#include "hy3d/moments.h"
#include "hy3d/raster.h"

enum { ALIGNMENTS = 16, ARRAYS = 8 };
static const uint32_t thread_counts[] = {1, 2, 3, 8};
enum { THREADS = sizeof thread_counts / sizeof thread_counts[0] };

typedef struct run_of {
    hy3d_context *context;
    uint32_t threads;
    int64_t alignment;
    int turn; /* counts the runs of a configuration: picks layouts */
} run_of;

/* Arrays of a call: inputs are copied to where an alignment puts them, outputs are wiped there. */
typedef struct arrays {
    size_t words[ARRAYS]; /* of 4 bytes */
    const void *input[ARRAYS]; /* NULL: an output */
    void *memory[ARRAYS], *at[ARRAYS];
    void *first[ARRAYS]; /* what the first run wrote */
    int count;
} arrays;

static void *get(size_t bytes)
{
    void *const memory = malloc(bytes + 64);
    if (memory == NULL) {
        perror("malloc");
        exit(EXIT_FAILURE);
    }
    return memory;
}

static void place(arrays *a, int64_t alignment)
{
    for (int i = 0; i < a->count; i++) {
        const size_t bytes = a->words[i] * 4;
        if (a->memory[i] == NULL) {
            a->memory[i] = get(bytes + 128);
        }
        unsigned char *const memory = a->memory[i];
        a->at[i] = memory + (64 - (uintptr_t)memory % 64) % 64 +
                   4 * (size_t)(alignment * (2 * i + 1) % ALIGNMENTS);
        if (a->input[i] != NULL) {
            memcpy(a->at[i], a->input[i], bytes);
        } else {
            memset(a->at[i], 0xff, bytes);
        }
    }
}

/* Whether the outputs are those of the first run, which this may be. */
static bool same(arrays *a)
{
    bool is_same = true;
    for (int i = 0; i < a->count; i++) {
        if (a->input[i] == NULL && a->first[i] == NULL) {
            a->first[i] = get(a->words[i] * 4);
            memcpy(a->first[i], a->at[i], a->words[i] * 4);
        }
        is_same = is_same && (a->input[i] != NULL ||
                              memcmp(a->first[i], a->at[i], a->words[i] * 4) == 0);
    }
    return is_same;
}

static void free_arrays(arrays *a)
{
    for (int i = 0; i < a->count; i++) {
        free(a->memory[i]);
        free(a->first[i]);
    }
}

static void add(arrays *a, const void *input, size_t words)
{
    a->input[a->count] = input;
    a->words[a->count++] = words;
}

static float real(bits_random *random)
{
    return (float)bits_between(random, -100000, 100000) / 65536.0F;
}

static float *reals(bits_random *random, size_t n)
{
    float *const values = get(n * sizeof *values);
    for (size_t i = 0; i < n; i++) {
        values[i] = real(random);
    }
    return values;
}

static int32_t *indices(bits_random *random, size_t n, int64_t low, int64_t high)
{
    int32_t *const values = get(n * sizeof *values);
    for (size_t i = 0; i < n; i++) {
        values[i] = (int32_t)bits_between(random, low, high);
    }
    return values;
}

/* A check: its values are made once, then it runs in every way. */
typedef struct check {
    arrays a;
    int64_t size[HY3D_TENSOR_DIMS];
    hy3d_dtype dtype[2];
    int64_t vertices, faces, pixels, channels, width, height;
    int choice; /* rule, filter, weighting */
    void *values[6];
    unsigned char *first; /* of blend and moments */
    size_t first_bytes;
} check;

static bool keep(check *c, unsigned char *got, size_t bytes)
{
    if (c->first == NULL) {
        c->first = got;
        c->first_bytes = bytes;
        return true;
    }
    const bool is_same = memcmp(c->first, got, bytes) == 0;
    free(got);
    return is_same;
}

static void make_tensor(check *c, bits_random *random)
{
    static const hy3d_dtype dtypes[] = {HY3D_F32, HY3D_F16, HY3D_BF16};
    const int64_t most[HY3D_TENSOR_DIMS] = {2, 9, 4, 9, 40};
    for (int i = 0; i < HY3D_TENSOR_DIMS; i++) {
        c->size[i] = bits_between(random, 1, most[i]);
    }
    const size_t n = (size_t)bits_elems(c->size);
    for (int i = 0; i < 2; i++) {
        c->dtype[i] = dtypes[bits_between(random, 0, 2)];
        c->values[i] = indices(random, n, -(1 << 24) + 1, (1 << 24) - 1);
    }
    for (int i = 0; i < 3; i++) {
        c->values[2 + i] = reals(random, (size_t)c->size[2 + i]);
    }
}

static bool blend(check *c, const run_of *r, hy3d_status *status)
{
    bits_view tile = bits_view_make(c->dtype[0], c->size, (bits_layout)(r->turn % 5), r->alignment);
    bits_view out = bits_view_make(c->dtype[1], c->size, (bits_layout)(r->turn / 5 % 5),
                                   r->alignment * 3 % ALIGNMENTS);
    bits_view_put_reals(&tile, c->values[0]);
    bits_view_put_reals(&out, c->values[1]);
    *status = hy3d_blend_accumulate(r->context, &tile.tensor, c->values[2], c->values[3],
                                    c->values[4], &out.tensor);
    const bool is_same =
        keep(c, bits_view_elements(&out), (size_t)bits_elems(c->size) *
                                              hy3d_dtype_bytes(c->dtype[1]));
    bits_view_free(&tile);
    bits_view_free(&out);
    return is_same;
}

static bool moments(check *c, const run_of *r, hy3d_status *status)
{
    const size_t bytes = (size_t)c->size[1] * sizeof(double);
    bits_view x = bits_view_make(c->dtype[0], c->size, (bits_layout)(r->turn % 5), r->alignment);
    unsigned char *const got = get(2 * bytes);
    bits_view_put_reals(&x, c->values[0]);
    *status = hy3d_channel_moments(r->context, &x.tensor, r->threads, NULL,
                                   (void *)got, (void *)(got + bytes));
    bits_view_free(&x);
    return keep(c, got, 2 * bytes);
}

/* Triangles over a picture; every third vertex lies on whole numbers, so that edges meet pixels. */
static void make_mesh(check *c, bits_random *random)
{
    const bool is_large = bits_one_in(random, 12);
    c->vertices = bits_between(random, 3, is_large ? 9000 : 300);
    c->faces = bits_between(random, 1, is_large ? 20000 : 500);
    c->width = bits_between(random, 1, 170);
    c->height = bits_between(random, 1, 130);
    c->pixels = c->width * c->height;
    c->channels = bits_between(random, 1, 9);
    c->choice = (int)bits_between(random, 0, 1);
    float *const clip = reals(random, 4 * (size_t)c->vertices);
    for (int64_t i = 0; i < c->vertices; i++) {
        clip[4 * i + 3] = i % 5 == 0 ? clip[4 * i + 3] : 1.0F;
        clip[4 * i] = i % 3 == 0 ? (float)bits_between(random, -4, 4) / 4.0F : clip[4 * i];
        clip[4 * i + 1] = i % 3 == 0 ? (float)bits_between(random, -4, 4) / 4.0F : clip[4 * i + 1];
    }
    c->values[0] = clip;
    c->values[1] = indices(random, 3 * (size_t)c->faces, 0, c->vertices - 1);
    c->values[2] = indices(random, (size_t)c->pixels, 0, c->faces);
    c->values[3] = reals(random, 3 * (size_t)c->pixels);
    c->values[4] = reals(random, (size_t)(c->vertices * c->channels));
    float *const uv = reals(random, 2 * (size_t)c->vertices);
    for (int64_t i = 0; i < 2 * c->vertices; i++) {
        uv[i] = (uv[i] + 1.5F) / 3.0F;
    }
    c->values[5] = uv;
}

static bool rasterize(check *c, const run_of *r, hy3d_status *status)
{
    arrays *const a = &c->a;
    const hy3d_raster_desc desc = {.rule = (hy3d_raster_rule)c->choice, .width = c->width,
                                   .height = c->height, .vertices = c->vertices,
                                   .faces = c->faces, .num_threads = r->threads};
    if (a->count == 0) {
        add(a, c->values[0], 4 * (size_t)c->vertices);
        add(a, c->values[1], 3 * (size_t)c->faces);
        add(a, NULL, (size_t)c->pixels);
        add(a, NULL, 3 * (size_t)c->pixels);
        add(a, NULL, (size_t)c->pixels);
    }
    place(a, r->alignment);
    *status = hy3d_rasterize(r->context, &desc, a->at[0],
                             a->at[1], NULL, NULL, NULL,
                             a->at[2], a->at[3],
                             a->at[4]);
    return same(a);
}

static bool interpolate(check *c, const run_of *r, hy3d_status *status)
{
    arrays *const a = &c->a;
    if (a->count == 0) {
        add(a, c->values[4], (size_t)(c->vertices * c->channels));
        add(a, c->values[1], 3 * (size_t)c->faces);
        add(a, c->values[2], (size_t)c->pixels);
        add(a, c->values[3], 3 * (size_t)c->pixels);
        add(a, NULL, (size_t)(c->pixels * c->channels));
    }
    place(a, r->alignment);
    *status = hy3d_interpolate(r->context, c->vertices, c->channels, c->faces, c->pixels,
                               a->at[0], a->at[1],
                               a->at[2], a->at[3],
                               r->threads, NULL, NULL, a->at[4]);
    return same(a);
}

static bool scatter(check *c, const run_of *r, hy3d_status *status)
{
    arrays *const a = &c->a;
    const hy3d_scatter_desc desc = {.filter = (hy3d_scatter_filter)c->choice, .width = c->width,
                                    .height = c->height, .channels = c->channels,
                                    .points = c->vertices, .num_threads = r->threads};
    if (a->count == 0) {
        add(a, c->values[4], (size_t)(c->vertices * c->channels));
        add(a, c->values[5], 2 * (size_t)c->vertices);
        add(a, NULL, (size_t)(c->pixels * c->channels));
        add(a, NULL, (size_t)c->pixels);
    }
    place(a, r->alignment);
    *status = hy3d_scatter(r->context, &desc, a->at[0],
                           a->at[1], NULL, NULL, NULL,
                           a->at[2], a->at[3]);
    return same(a);
}

static bool normals(check *c, const run_of *r, hy3d_status *status)
{
    arrays *const a = &c->a;
    if (a->count == 0) {
        add(a, c->values[0], 3 * (size_t)c->vertices);
        add(a, c->values[1], 3 * (size_t)c->faces);
        add(a, NULL, 3 * (size_t)c->vertices);
    }
    place(a, r->alignment);
    *status = hy3d_vertex_normals(r->context, c->vertices, c->faces,
                                  a->at[0],
                                  a->at[1],
                                  (hy3d_normal_weighting)c->choice, r->threads, NULL, NULL,
                                  a->at[2]);
    return same(a);
}

/* How many values a run wrote. */
static int64_t outputs(const check *c)
{
    size_t words = c->a.count == 0 ? c->first_bytes / hy3d_dtype_bytes(c->dtype[1]) : 0;
    for (int i = 0; i < c->a.count; i++) {
        words += c->a.input[i] == NULL ? c->a.words[i] : 0;
    }
    return (int64_t)words;
}

static const struct {
    const char *name;
    void (*make)(check *c, bits_random *random);
    bool (*run)(check *c, const run_of *r, hy3d_status *status);
} checks[] = {{"blend", make_tensor, blend},        {"moments", make_tensor, moments},
              {"rasterize", make_mesh, rasterize},  {"interpolate", make_mesh, interpolate},
              {"scatter", make_mesh, scatter},      {"vertex_normals", make_mesh, normals}};

void bits_others(hy3d_context *const *levels, int level_count, uint64_t seed, uint64_t index,
                 bits_shared *shared)
{
    const size_t which = (size_t)(index % (sizeof checks / sizeof checks[0]));
    bits_random random = bits_random_of(seed, index);
    check *const c = calloc(1, sizeof *c);
    const int runs = level_count * THREADS * ALIGNMENTS;
    char what[160] = "";

    if (c == NULL) {
        perror("calloc");
        exit(EXIT_FAILURE);
    }
    checks[which].make(c, &random);
    for (int i = 0; i < runs && what[0] == '\0'; i++) {
        const run_of r = {.context = levels[i % level_count],
                          .threads = thread_counts[i / level_count % THREADS],
                          .alignment = i / level_count / THREADS,
                          .turn = i};
        hy3d_status status = HY3D_OK;
        const bool is_same = checks[which].run(c, &r, &status);
        bits_add(shared, COUNT_RUNS, 1);
        if (status != HY3D_OK || !is_same) {
            snprintf(what, sizeof what, "index %llu, %s, %u threads, alignment %lld: %s",
                     (unsigned long long)index, checks[which].name, r.threads,
                     (long long)r.alignment,
                     status != HY3D_OK ? hy3d_status_name(status) : "other bits");
            bits_add(shared, COUNT_DIFFERING, 1);
            bits_fail(shared, hy3d_cpu_level_name(hy3d_context_cpu_level(r.context)), what, NULL);
        }
    }
    bits_add(shared, COUNT_CONFIGURATIONS, 1);
    bits_add(shared, COUNT_VALUES, outputs(c));
    free_arrays(&c->a);
    for (size_t i = 0; i < sizeof c->values / sizeof c->values[0]; i++) {
        free(c->values[i]);
    }
    free(c->first);
    free(c);
}
