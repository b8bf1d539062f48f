#define _GNU_SOURCE
#include "scenarios.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conv3d_support.h"
#include "graphs.h"
#include "hy3d/cache.h"
#include "hy3d/fingerprint.h"
#include "hy3d/route.h"
#include "rasterize_support.h"
#include "registry.h"

enum { POINTS = 3000, SIDE_PIXELS = 48, CROWD = 300, LARGE = 3 << 20, PROGRAMS = 2 };
/* A sheet of squares, two faces each. */
enum { SHEET = 24, SHEET_VERTICES = (SHEET + 1) * (SHEET + 1), SHEET_FACES = 2 * SHEET * SHEET };

/* Each scenario's result is in memory of its own that children share. */
static unsigned char *result_of(size_t bytes)
{
    void *const memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_msg(memory != MAP_FAILED, "no memory for %zu bytes of a result", bytes);
    return memory;
}

static hy3d_status convolve(hy3d_context *context, const scenario *self)
{
    const conv_problem *const problem = self->argument;
    memset(problem->y.memory, 0xa5, problem->y.bytes);
    const hy3d_status status = conv_problem_run(context, problem);
    memcpy(self->result, problem->y.memory, self->bytes);
    return status;
}

/* Weights prepared, a plan with them, a run. */
static hy3d_status convolve_prepared(hy3d_context *context, const scenario *self)
{
    const conv_problem *const p = self->argument;
    hy3d_conv3d_weights *weights = NULL;
    hy3d_conv3d_plan *plan = NULL;
    hy3d_conv3d_format format;
    void *workspace = NULL;
    hy3d_status status = hy3d_conv3d_choose_format(context, &p->desc, &format);
    if (status == HY3D_OK) {
        status = hy3d_conv3d_weights_create(context, &p->weight.tensor, format, 0, NULL, &weights);
    }
    if (status == HY3D_OK) {
        status = hy3d_conv3d_plan_create_prepared(context, &p->desc, &p->weight.tensor,
                                                  &p->bias.tensor, weights, NULL, &plan);
    }
    if (status == HY3D_OK) {
        status = hy3d_workspace_take(context, hy3d_conv3d_plan_workspace_bytes(plan), &workspace);
    }
    memset(p->y.memory, 0xa5, p->y.bytes);
    if (status == HY3D_OK) {
        status = hy3d_conv3d_run(plan, &p->x.tensor, &p->y.tensor, workspace, NULL);
    }
    memcpy(self->result, p->y.memory, self->bytes);
    hy3d_workspace_give(context, workspace);
    hy3d_conv3d_plan_destroy(plan);
    hy3d_conv3d_weights_destroy(weights);
    return status;
}

typedef struct meshes {
    float positions[3 * SHEET_VERTICES], corners[2 * SHEET_VERTICES];
    int32_t faces[3 * SHEET_FACES];
    float values[3 * POINTS], uv[2 * POINTS], weights[POINTS];
    int32_t face_index[POINTS];
    float barycentric[3 * POINTS];
    float clip[12 * CROWD];
    int32_t crowd[3 * CROWD];
    raster_scene drawn;
} meshes;

static void make_sheet(test_random *random, meshes *m)
{
    for (int v = 0; v < SHEET_VERTICES; v++) {
        const int column = v % (SHEET + 1), row = v / (SHEET + 1);
        m->positions[3 * v] = (float)column;
        m->positions[3 * v + 1] = (float)row;
        m->positions[3 * v + 2] = (float)test_between(random, -1000, 1000) * 1e-3F;
        m->corners[2 * v] = (float)column / SHEET;
        m->corners[2 * v + 1] = (float)row / SHEET;
    }
    for (int f = 0; f < SHEET_FACES; f++) {
        const int32_t a = f / 2 / SHEET * (SHEET + 1) + f / 2 % SHEET, below = a + SHEET + 1;
        const int32_t cell[2][3] = {{a, a + 1, below}, {a + 1, below + 1, below}};
        memcpy(m->faces + 3 * f, cell[f % 2], sizeof cell[0]);
    }
}

static meshes *make_meshes(void)
{
    test_random random = test_rng(4101);
    meshes *const m = calloc(1, sizeof *m);
    ck_assert_ptr_nonnull(m);
    make_sheet(&random, m);
    for (int i = 0; i < POINTS; i++) {
        m->uv[2 * i] = (float)test_between(&random, 0, 1000) * 1e-3F;
        m->uv[2 * i + 1] = (float)test_between(&random, 0, 1000) * 1e-3F;
        m->weights[i] = (float)test_between(&random, 0, 1000) * 1e-3F;
        m->face_index[i] = (int32_t)test_between(&random, 0, SHEET_FACES);
        for (int k = 0; k < 3; k++) {
            m->values[3 * i + k] = (float)test_between(&random, -1000, 1000) * 1e-3F;
            m->barycentric[3 * i + k] = (float)test_between(&random, 0, 1000) * 1e-3F;
        }
    }
    m->drawn = raster_crowd(HY3D_RASTER_TOPLEFT, CROWD, m->clip, m->crowd);
    return m;
}

static hy3d_status draw(hy3d_context *context, const scenario *self)
{
    const meshes *const m = self->argument;
    const size_t pixels = (size_t)(m->drawn.desc.width * m->drawn.desc.height);
    int32_t *const faces = (int32_t *)(void *)self->result;
    float *const barycentric = (float *)(void *)(faces + pixels);
    return hy3d_rasterize(context, &m->drawn.desc, m->drawn.clip, m->drawn.faces, NULL, NULL, NULL,
                          faces, barycentric, barycentric + 3 * pixels);
}

static hy3d_status interpolate(hy3d_context *context, const scenario *self)
{
    const meshes *const m = self->argument;
    return hy3d_interpolate(context, SHEET_VERTICES, 3, SHEET_FACES, POINTS, m->positions, m->faces,
                            m->face_index, m->barycentric, 2, NULL, NULL,
                            (float *)(void *)self->result);
}

static hy3d_status scatter_with(hy3d_context *context, const scenario *self,
                                hy3d_scatter_filter filter)
{
    const meshes *const m = self->argument;
    const hy3d_scatter_desc desc = {filter, SIDE_PIXELS, SIDE_PIXELS, 3, POINTS, 2};
    float *const texture = (float *)(void *)self->result;
    return hy3d_scatter(context, &desc, m->values, m->uv, m->weights, NULL, NULL, texture,
                        texture + 3 * SIDE_PIXELS * SIDE_PIXELS);
}

static hy3d_status scatter_linear(hy3d_context *context, const scenario *self)
{
    return scatter_with(context, self, HY3D_SCATTER_LINEAR);
}

static hy3d_status scatter_nearest(hy3d_context *context, const scenario *self)
{
    return scatter_with(context, self, HY3D_SCATTER_NEAREST);
}

static hy3d_status normals(hy3d_context *context, const scenario *self)
{
    const meshes *const m = self->argument;
    return hy3d_vertex_normals(context, SHEET_VERTICES, SHEET_FACES, m->positions, m->faces,
                               HY3D_NORMALS_BY_ANGLE, 2, NULL, NULL, (float *)(void *)self->result);
}

/* Texture and mask are read and written: each call begins with the same ones, and a failed call
 * must have left them alone. */
static hy3d_status inpaint(hy3d_context *context, const scenario *self)
{
    enum { TEXELS = SIDE_PIXELS * SIDE_PIXELS };
    const meshes *const m = self->argument;
    const hy3d_vertex_inpaint_desc desc = {SIDE_PIXELS,    SIDE_PIXELS,    3,
                                           SHEET_VERTICES, SHEET_VERTICES, SHEET_FACES};
    float *const texture = (float *)(void *)self->result;
    uint8_t *const mask = self->result + 3 * TEXELS * sizeof(float);
    int64_t filled = 0;
    for (int i = 0; i < TEXELS; i++) {
        mask[i] = i % 5 == 0 ? 255 : 0;
        texture[3 * i] = texture[3 * i + 1] = texture[3 * i + 2] = (float)(i % 7);
    }
    return hy3d_vertex_inpaint(context, &desc, m->positions, m->corners, m->faces, m->faces, NULL,
                               NULL, texture, mask, &filled);
}

static hy3d_status fingerprint(hy3d_context *context, const scenario *self)
{
    static hy3d_fingerprint_keys keys;
    const meshes *const m = self->argument;
    hy3d_fingerprint_keys_make(&keys);
    return hy3d_fingerprint(context, &keys, m, sizeof *m, NULL, 0, 2, NULL,
                            (uint64_t *)(void *)self->result);
}

/* A decode's program, then what follows until nothing is left. The result: steps of each. */
static hy3d_status compile_all(hy3d_context *context, graphs_case *made, const scenario *self)
{
    hy3d_schedule *schedule = NULL;
    hy3d_action action = HY3D_ACTION_BEGIN_AGAIN;
    int32_t steps[PROGRAMS] = {0};
    hy3d_status status = hy3d_schedule_compile(context, &made->request, &schedule);
    for (int i = 0; i < PROGRAMS && status == HY3D_OK && action == HY3D_ACTION_BEGIN_AGAIN; i++) {
        steps[i] = hy3d_schedule_program(schedule)->step_count;
        status = hy3d_schedule_fallback(context, schedule, HY3D_STEP_ATTEMPTS,
                                        HY3D_REASON_NO_KERNEL, false, &action);
    }
    hy3d_schedule_destroy(context, schedule);
    memcpy(self->result, steps, sizeof steps);
    return status;
}

static hy3d_status no_call(void *user, const hy3d_call *asked, hy3d_step_memory *taken)
{
    (void)user, (void)asked, (void)taken;
    return HY3D_OK;
}

/* HunyuanVideo's decoder with less on the device than all, then tiles, and the host. */
static hy3d_status compile_decode(hy3d_context *context, const scenario *self)
{
    static graphs_case made;
    static int32_t alike[sizeof made.nodes / sizeof made.nodes[0]];
    static hy3d_layer layers[sizeof made.nodes / sizeof made.nodes[0]];
    graphs_make_known(GRAPHS_HUNYUAN, 8, &made);
    graphs_request(&made, 2, 4, 4);
    for (int32_t i = 0; i < made.request.graph.count; i++) {
        alike[i] = i; /* each of its own kind */
        layers[i].is_native =
            made.nodes[i].op == HY3D_OP_CONV || made.nodes[i].op == HY3D_OP_ATTENTION;
    }
    made.request.alike = alike;
    for (int i = 0; i < 2; i++) {
        made.request.places[i] = (hy3d_place){.layers = layers,
                                              .dtype = HY3D_F16,
                                              .threads = 1,
                                              .block_elements = 1 << 20,
                                              .score_bytes = 1 << 20};
    }
    made.request.inside = no_call; /* all that is computed is native */
    made.request.halos[1].smallest = 0;
    made.request.device.slice_bytes[0] = 20000;
    made.request.device_budget = 60000;
    return compile_all(context, &made, self);
}

/* It on so many rows and columns, in slices of 20 kB. */
static void in_slices(graphs_case *made, int64_t size)
{
    graphs_make_known(GRAPHS_HUNYUAN, 8, made);
    graphs_request(made, 2, size, size);
    made->request.device.slice_bytes[0] = 20000;
    made->request.device.slice_bytes[1] = 0;
}

/* The same of one of three ranks, all of which it compiles for. */
static hy3d_status compile_rank(hy3d_context *context, const scenario *self)
{
    static graphs_case made;
    in_slices(&made, 4);
    made.request.device_budget = 80000;
    made.request.link_bytes_per_second = 1e9;
    made.request.ranks = 3;
    made.request.rank = 1;
    return compile_all(context, &made, self);
}

/* Slices of MiBs, in a room that not every limit finds. */
static hy3d_status compile_in_a_room(hy3d_context *context, const scenario *self)
{
    static graphs_case made;
    in_slices(&made, 256);
    made.request.halos[0].smallest = 0;
    made.request.may_spill = 1;
    made.request.device_room = INT64_C(64) << 20;
    return compile_all(context, &made, self);
}

static hy3d_status describe_blas(hy3d_context *context, const scenario *self)
{
    const char *text = NULL;
    (void)self; /* what it says is for people: how it was found may differ */
    return hy3d_context_blas_info(context, &text);
}

/* Beside this program there is a library as the build puts it beside the extension. */
static hy3d_status search_blas(hy3d_context *context, const scenario *self)
{
    const char *const asked = getenv("HY3D_BLAS_LIBRARY");
    unsetenv("HY3D_BLAS_LIBRARY");
    const hy3d_status status = describe_blas(context, self);
    if (asked != NULL) {
        setenv("HY3D_BLAS_LIBRARY", self->argument, 1);
    }
    return status;
}

static char *put_library_beside(void)
{
    static char library[4096], folder[4096], path[4200];
    const char *const asked = getenv("HY3D_BLAS_LIBRARY");
    const ssize_t length = readlink("/proc/self/exe", folder, sizeof folder - 1);
    if (asked == NULL || length <= 0) {
        return NULL;
    }
    folder[length] = '\0';
    *strrchr(folder, '/') = '\0';
    snprintf(library, sizeof library, "%s", asked);
    snprintf(path, sizeof path, "%s/_vendor", folder);
    mkdir(path, 0777);
    snprintf(path, sizeof path, "%s/_vendor/libhy3d_openblas.so", folder);
    unlink(path);
    return symlink(library, path) == 0 ? library : NULL;
}

static hy3d_status large_memory(hy3d_context *context, const scenario *self)
{
    void *memory = NULL;
    const hy3d_status status = hy3d_alloc(context, LARGE, &memory);
    if (status == HY3D_OK) {
        memset(memory, 3, LARGE);
        memcpy(self->result, memory, self->bytes);
    }
    hy3d_free(context, memory);
    return status;
}

static hy3d_status flag(hy3d_context *context, const scenario *self)
{
    hy3d_cancel *cancel = NULL;
    const hy3d_status status = hy3d_cancel_create(context, &cancel);
    if (status == HY3D_OK) {
        hy3d_cancel_request(cancel);
        self->result[0] = hy3d_cancel_requested(cancel);
    }
    hy3d_cancel_destroy(context, cancel);
    return status;
}

/* More measurements than a table begins with. The result: the factor. */
static hy3d_status learn_rates(hy3d_context *context, const scenario *self)
{
    hy3d_rates *rates = NULL;
    hy3d_status status = hy3d_rates_create(context, &rates);
    for (int i = 0; i < 100 && status == HY3D_OK; i++) {
        const hy3d_route_work work = {.dtype = HY3D_F32, .flops = 1e9 * (i + 1), .taps = 27};
        status = hy3d_rates_learn(context, rates, HY3D_TIER_TRITON, &work, 1);
    }
    const double factor = hy3d_rates_factor(rates, HY3D_TIER_TRITON, HY3D_F32);
    memcpy(self->result, &factor, sizeof factor);
    hy3d_rates_destroy(context, rates);
    return status;
}

/* More requests than a cache begins with. The result: whether each thing was here. */
static hy3d_status fill_cache(hy3d_context *context, const scenario *self)
{
    hy3d_cache *cache = NULL;
    hy3d_status status = hy3d_cache_create(context, 1000, &cache);
    for (size_t i = 0; i < self->bytes && status == HY3D_OK; i++) {
        const hy3d_cache_key key = {{i % 80, 7, 3}};
        bool is_here = false, is_reserved = false;
        status = hy3d_cache_request(context, cache, &key, &is_here);
        self->result[i] = is_here;
        if (status == HY3D_OK) {
            status = hy3d_cache_reserve(cache, &key, 10, &is_reserved);
            hy3d_cache_put(cache, &key);
        }
    }
    hy3d_cache_destroy(context, cache);
    return status;
}

/* A child has none of its parent's threads and makes itself a pool. What it holds at its end is what
 * the parent holds beside this context. */
static hy3d_status in_a_child(hy3d_context *context, const scenario *self,
                              hy3d_status (*run)(hy3d_context *, const scenario *))
{
    enum { LEAKED = 99 };
    const pid_t child = fork();
    int ended = 0;
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        const hy3d_status status = run(context, self);
        hy3d_context_destroy(context);
        _exit(test_sites_live() == live_outside ? (int)status : LEAKED);
    }
    ck_assert_int_eq(waitpid(child, &ended, 0), child);
    ck_assert_msg(WIFEXITED(ended), "the child died: %d", ended);
    ck_assert_msg(WEXITSTATUS(ended) != LEAKED, "the child leaked");
    return (hy3d_status)WEXITSTATUS(ended);
}

static hy3d_status after_fork(hy3d_context *context, const scenario *self)
{
    return in_a_child(context, self, interpolate);
}

/* The child is the first to need BLAS. */
static hy3d_status blas_after_fork(hy3d_context *context, const scenario *self)
{
    return in_a_child(context, self, describe_blas);
}

static conv_problem *problem_of(hy3d_conv3d_desc desc, uint64_t seed)
{
    test_random random = test_rng(seed);
    conv_problem *const made = calloc(1, sizeof *made);
    ck_assert_ptr_nonnull(made);
    *made = conv_problem_make(&desc, true, LAYOUT_PLAIN, LAYOUT_LAST, LAYOUT_PLAIN, &random, 2);
    return made;
}

static scenario of_problem(const char *name, hy3d_status (*run)(hy3d_context *, const scenario *),
                           const hy3d_conv3d_desc *desc, uint64_t seed)
{
    conv_problem *const problem = problem_of(*desc, seed);
    return (scenario){.name = name,
                      .run = run,
                      .argument = problem,
                      .result = result_of(problem->y.bytes),
                      .bytes = problem->y.bytes,
                      .options = {.max_threads = 2},
                      .needs_blas = true};
}

static int make_convolutions(scenario *list)
{
    static const char *const names[] = {"conv3d f32", "conv3d f64", "conv3d f16", "conv3d bf16"};
    static const hy3d_dtype dtypes[] = {HY3D_F32, HY3D_F64, HY3D_F16, HY3D_BF16};
    int count = 0;
    for (size_t i = 0; i < COUNT_OF(dtypes); i++) {
        const hy3d_conv3d_desc desc = conv_desc(dtypes[i], 3, 5, 3, 9, 9, 3);
        list[count++] = of_problem(names[i], convolve, &desc, 4110 + i);
    }
    hy3d_conv3d_desc panel = conv_desc(HY3D_F32, 40, 40, 2, 9, 9, 1);
    list[count++] = of_problem("conv3d 1x1x1", convolve, &panel, 4120);
    hy3d_conv3d_desc thin = conv_desc(HY3D_F32, 48, 3, 3, 12, 12, 3);
    list[count++] = of_problem("conv3d thin", convolve, &thin, 4121);
    hy3d_conv3d_desc fast = conv_desc(HY3D_F32, 64, 64, 4, 18, 18, 3);
    fast.accuracy = HY3D_FAST;
    list[count++] = of_problem("conv3d winograd", convolve, &fast, 4122);
    list[count++] = of_problem("conv3d prepared", convolve_prepared, &fast, 4123);
    return count;
}

int scenarios_make(scenario list[MOST_SCENARIOS])
{
    meshes *const m = make_meshes();
    const size_t pixels = (size_t)(m->drawn.desc.width * m->drawn.desc.height);
    const size_t texture = SIDE_PIXELS * SIDE_PIXELS * 4 * sizeof(float);
    const hy3d_context_options two = {.max_threads = 2}, all = {.max_threads = 0};
    const hy3d_context_options named = {
        .cpu_level = "ref", .blas_library = getenv("HY3D_BLAS_LIBRARY"), .max_threads = 1};
    const scenario rest[] = {
        {"rasterize", draw, m, NULL, pixels * 5 * sizeof(float), two, false},
        {"interpolate", interpolate, m, NULL, 3 * POINTS * sizeof(float), two, false},
        {"scatter linear", scatter_linear, m, NULL, texture, two, false},
        {"scatter nearest", scatter_nearest, m, NULL, texture, two, false},
        {"vertex normals", normals, m, NULL, 3 * SHEET_VERTICES * sizeof(float), two, false},
        {"inpaint", inpaint, m, NULL, texture, two, false},
        {"fingerprint", fingerprint, m, NULL, 16, two, false},
        {"decode program", compile_decode, m, NULL, PROGRAMS * sizeof(int32_t), two, false},
        {"program in a room", compile_in_a_room, m, NULL, PROGRAMS * sizeof(int32_t), two, false},
        {"program of a rank", compile_rank, m, NULL, PROGRAMS * sizeof(int32_t), two, false},
        {"rates", learn_rates, m, NULL, sizeof(double), two, false},
        {"cache", fill_cache, m, NULL, 200, two, false},
        {"cancel flag", flag, m, NULL, 1, all, false},
        {"large memory", large_memory, m, NULL, LARGE, two, false},
        {"BLAS", describe_blas, m, NULL, 1, two, true},
        {"BLAS by name", describe_blas, m, NULL, 1, named, true},
        {"BLAS beside", search_blas, put_library_beside(), NULL, 1, two, true},
        {"after a fork", after_fork, m, NULL, 3 * POINTS * sizeof(float), two, false},
        {"BLAS after a fork", blas_after_fork, m, NULL, 1, two, true},
    };
    int count = make_convolutions(list);
    for (size_t i = 0; i < COUNT_OF(rest); i++) {
        if (rest[i].run == search_blas && rest[i].argument == NULL) {
            continue;
        }
        list[count] = rest[i];
        list[count++].result = result_of(rest[i].bytes);
    }
    return count;
}

int scenarios_without_blas(scenario *list, int count)
{
    int kept = 0;
    for (int i = 0; i < count; i++) {
        if (!list[i].needs_blas) {
            list[kept++] = list[i];
        }
    }
    return kept;
}
