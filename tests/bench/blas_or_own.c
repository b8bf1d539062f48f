/* Times own code beside the BLAS library's, for tests/bench/blas_or_own.py, which builds and runs it:
 *
 *     blas_or_own layer LEVEL TYPE IN OUT KT KH KW STRIDE T H W THREADS SECONDS
 *     blas_or_own winograd LEVEL IN OUT KT T H W SECONDS
 *
 * Each line is one contender: name, floating-point operations, then nanoseconds of each round. In a
 * round all of them run once, in an order that turns. One thread: its own clock; more: wall time.
 * The program ends with status 1 where two contenders' results are not the same up to rounding. */
#include "base/blas.h"
#include "conv3d/plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_CONTENDERS = 6, MOST_ROUNDS = 2000, LEAST_ROUNDS = 7, POINTS = 8 };

static void require(bool good, const char *what)
{
    if (!good) {
        fprintf(stderr, "blas_or_own: %s\n", what);
        exit(1);
    }
}

static double now(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void *memory(size_t bytes)
{
    void *found = NULL;
    require(posix_memalign(&found, 64, bytes) == 0, "no memory");
    memset(found, 0, bytes);
    return found;
}

static double value(int64_t i)
{
    return (double)((uint64_t)i * 7919 % 1000) / 1000.0 - 0.5;
}

static float *floats(int64_t n)
{
    float *const found = memory((size_t)n * sizeof(float));
    for (int64_t i = 0; i < n; i++) {
        found[i] = (float)value(i);
    }
    return found;
}

typedef struct bench bench;
typedef struct contender {
    char name[32];
    void (*run)(bench *);
    double operations;
    double ns[MOST_ROUNDS];
} contender;

struct bench {
    hy3d_context *context;
    const hy3d__kernels *kernels;
    contender list[MOST_CONTENDERS];
    int count;
    /* layer */
    hy3d_conv3d_desc desc;
    int64_t out[3];
    hy3d_tensor x, weight, bias, y;
    unsigned char *taps; /* the weights tap by tap, [kT][out][in]; NULL: no kernel of planes */
    hy3d_conv3d_plan *chosen, *panel;
    void *workspace;
    /* winograd: products of [rows][k] with [k][n] */
    int64_t rows, k, n, chunk, turn;
    float *a, *b, *c;
};

static void add(bench *self, const char *name, void (*run)(bench *), double operations)
{
    contender *const one = &self->list[self->count++];
    snprintf(one->name, sizeof one->name, "%s", name);
    one->run = run;
    one->operations = operations;
}

static void run_peak(bench *self)
{
    float sums[384] = {0.0F};
    self->kernels->peak_f32(20000, 0.5F, 1.0F, sums);
}

static void compete(bench *self, clockid_t clock, double seconds)
{
    const double start = now(CLOCK_MONOTONIC);
    int round = -1; /* the first warms up */

    for (; round < LEAST_ROUNDS ||
           (round < MOST_ROUNDS && now(CLOCK_MONOTONIC) - start < seconds * 1e9);
         round++) {
        for (int i = 0; i < self->count; i++) {
            contender *const one = &self->list[(i + round + 1) % self->count];
            const double from = now(clock);
            one->run(self);
            if (round >= 0) {
                one->ns[round] = now(clock) - from;
            }
        }
    }
    for (int i = 0; i < self->count; i++) {
        printf("%s %.6g", self->list[i].name, self->list[i].operations);
        for (int r = 0; r < round; r++) {
            printf(" %.0f", self->list[i].ns[r]);
        }
        printf("\n");
    }
}

/* Layers. */

static hy3d_tensor tensor(hy3d_dtype dtype, const int64_t size[5])
{
    hy3d_tensor t = {.dtype = dtype};
    int64_t n = 1;

    for (int i = 4; i >= 0; i--) {
        t.size[i] = size[i];
        t.stride[i] = n;
        n *= size[i];
    }
    t.data = memory((size_t)n * hy3d_dtype_bytes(dtype));
    for (int64_t i = 0; i < n; i++) {
        const float single = (float)value(i);
        uint32_t bits;
        memcpy(&bits, &single, sizeof bits);
        switch (dtype) {
        case HY3D_F32:
            ((float *)t.data)[i] = single;
            break;
        case HY3D_F64:
            ((double *)t.data)[i] = value(i);
            break;
        case HY3D_F16: /* 0.5 to 1 */
            ((uint16_t *)t.data)[i] = (uint16_t)(0x3800 + i * 7919 % 1000);
            break;
        case HY3D_BF16:
            ((uint16_t *)t.data)[i] = (uint16_t)(bits >> 16);
            break;
        }
    }
    return t;
}

static void run_plan(const bench *self, const hy3d_conv3d_plan *plan)
{
    require(hy3d_conv3d_run(plan, &self->x, &self->y, self->workspace, NULL) == HY3D_OK, "no run");
}

static void run_chosen(bench *self)
{
    run_plan(self, self->chosen);
}

static void run_panel(bench *self)
{
    run_plan(self, self->panel);
}

/* cblas on x where it lies, a frame and a tap at a time, or all frames at once for one tap. */
static void run_whole(bench *self)
{
    const hy3d_conv3d_desc *const desc = &self->desc;
    const size_t bytes = hy3d_dtype_bytes(desc->dtype);
    const int64_t taps = desc->kernel[0], frames = taps == 1 ? 1 : self->out[0];
    const int64_t n = self->out[1] * self->out[2] * (taps == 1 ? self->out[0] : 1);
    const int64_t in = desc->in_channels, out = desc->out_channels;

    for (int64_t t = 0; t < frames; t++) {
        unsigned char *const y = (unsigned char *)self->y.data + (size_t)(t * n) * bytes;
        for (int64_t m = 0; m < out; m++) {
            for (int64_t i = 0; i < n; i++) {
                const int64_t at = m * self->y.stride[1] + i;
                if (bytes == sizeof(double)) {
                    ((double *)(void *)y)[at] = ((const double *)self->bias.data)[m];
                } else {
                    ((float *)(void *)y)[at] = ((const float *)self->bias.data)[m];
                }
            }
        }
        for (int64_t tap = 0; tap < taps; tap++) {
            const hy3d__gemm_args product = {
                .m = (int32_t)out,
                .n = (int32_t)n,
                .k = (int32_t)in,
                .a = self->taps + (size_t)(tap * out * in) * bytes,
                .lda = (int32_t)in,
                .b = (const unsigned char *)self->x.data + (size_t)((t + tap) * n) * bytes,
                .ldb = (int32_t)self->x.stride[1],
                .accumulate = true,
                .c = y,
                .ldc = (int32_t)self->y.stride[1],
            };
            (bytes == sizeof(double) ? hy3d__dgemm : hy3d__sgemm)(self->context, &product);
        }
    }
}

static void make_plans(bench *self)
{
    for (int i = 0; i < 2; i++) {
        hy3d_conv3d_plan **const plan = i == 0 ? &self->chosen : &self->panel;
        require(hy3d_conv3d_plan_create(self->context, &self->desc, &self->weight, &self->bias,
                                        NULL, plan) == HY3D_OK,
                "no plan");
    }
    hy3d_conv3d_plan *const panel = self->panel;
    panel->strategy = &hy3d__conv_panel_strategy;
    panel->strategy->cut(panel, self->desc.num_threads);
    panel->input_bytes = (panel->input_bytes + 63) / 64 * 64;
    panel->slot_bytes = (panel->input_bytes + panel->result_bytes + 63) / 64 * 64;
    panel->slots = (uint32_t)hy3d__min_i64(self->desc.num_threads, panel->grains);
    panel->workspace_bytes = panel->slot_bytes * panel->slots;
    self->workspace = memory(self->chosen->workspace_bytes > panel->workspace_bytes
                                 ? self->chosen->workspace_bytes
                                 : panel->workspace_bytes);
}

static void make_taps(bench *self)
{
    const hy3d_conv3d_desc *const desc = &self->desc;
    const size_t bytes = hy3d_dtype_bytes(desc->dtype);
    const int64_t pairs = desc->out_channels * desc->in_channels, taps = desc->kernel[0];

    self->taps = memory((size_t)(pairs * taps) * bytes);
    for (int64_t i = 0; i < pairs * taps; i++) {
        memcpy(self->taps + (size_t)(i % taps * pairs + i / taps) * bytes,
               (const unsigned char *)self->weight.data + (size_t)i * bytes, bytes);
    }
}

/* Every contender's results against the first's. */
static void agree(bench *self)
{
    const bool is_double = self->desc.dtype == HY3D_F64;
    const int64_t n = self->y.stride[0];
    double *first = NULL;

    if (!is_double && self->desc.dtype != HY3D_F32) {
        return; /* a half's last rounding */
    }
    first = memory((size_t)n * sizeof *first);
    for (int i = 0; i < self->count; i++) {
        double most = 0.0, off = 0.0;
        if (self->list[i].run == run_peak) {
            continue;
        }
        self->list[i].run(self);
        for (int64_t j = 0; j < n; j++) {
            const double y = is_double ? ((const double *)self->y.data)[j]
                                       : (double)((const float *)self->y.data)[j];
            first[j] = i == 0 ? y : first[j];
            most = fmax(most, fabs(y));
            off = fmax(off, fabs(y - first[j]));
        }
        require(off <= most * 1e-4, self->list[i].name);
    }
    free(first);
}

static void time_layer(bench *self, char **argv)
{
    static const char types[] = "f32 f64 f16 bf16";
    static const hy3d_dtype dtypes[] = {HY3D_F32, HY3D_F64, HY3D_F16, HY3D_BF16};
    const char *const found = strstr(types, argv[0]);
    int64_t n[10];
    char name[32];

    require(found != NULL && (found - types) % 4 == 0, "TYPE: f32, f64, f16 or bf16");
    for (int i = 0; i < 10; i++) {
        n[i] = strtoll(argv[i + 1], NULL, 10);
    }
    const hy3d_dtype dtype = dtypes[(found - types) / 4];
    self->desc = (hy3d_conv3d_desc){.dtype = dtype,
                                    .batch = 1,
                                    .in_channels = n[0],
                                    .out_channels = n[1],
                                    .groups = 1,
                                    .in_size = {n[6], n[7], n[8]},
                                    .kernel = {n[2], n[3], n[4]},
                                    .stride = {1, n[5], n[5]},
                                    .dilation = {1, 1, 1},
                                    .num_threads = (uint32_t)n[9]};
    require(hy3d_conv3d_out_size(&self->desc, self->out) == HY3D_OK, "no such layer");
    self->x = tensor(dtype, (int64_t[]){1, n[0], n[6], n[7], n[8]});
    self->weight = tensor(dtype, (int64_t[]){n[1], n[0], n[2], n[3], n[4]});
    self->bias = tensor(dtype, (int64_t[]){n[1], 1, 1, 1, 1});
    self->y = tensor(dtype, (int64_t[]){1, n[1], self->out[0], self->out[1], self->out[2]});
    make_plans(self);
    const double operations = 2.0 * (double)(n[0] * n[1] * n[2] * n[3] * n[4]) *
                              (double)(self->out[0] * self->out[1] * self->out[2]);
    add(self, hy3d_conv3d_plan_strategy(self->chosen), run_chosen, operations);
    if (self->chosen->strategy != &hy3d__conv_panel_strategy) {
        add(self, hy3d_conv3d_plan_strategy(self->panel), run_panel, operations);
    }
    if (hy3d__conv_has_plain_planes(&self->desc) && n[9] == 1 &&
        hy3d_dtype_bytes(dtype) == self->chosen->compute_bytes) {
        make_taps(self);
        add(self, "whole", run_whole, operations);
    }
    snprintf(name, sizeof name, "%s-again", hy3d_conv3d_plan_strategy(self->chosen));
    add(self, name, run_chosen, operations);
    add(self, "peak", run_peak, 20000.0 * 768.0);
    agree(self);
    compete(self, n[9] == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, atof(argv[11]));
}

/* Winograd: one product a point, of several points in turn, so that data comes from L3. */

static void run_own_product(bench *self)
{
    const int64_t panels = self->n / 32, v = self->rows * self->k, u = self->k * 32;
    const int64_t chunks = hy3d__conv_ceil_div(self->k, self->chunk);
    const int64_t point = self->turn++ % POINTS, share = v / (panels * chunks);
    const float *const a = self->a + point * v;
    const float *next = self->a + (point + 1) % POINTS * v;

    for (int64_t i = 0; i < panels; i++) {
        const float *from = self->b + (point * panels + i) * u;
        for (int64_t c = 0; c < self->k; c += self->chunk) {
            const int64_t length = hy3d__min_i64(self->chunk, self->k - c);
            const hy3d__ahead ahead = {
                .a = (const char *)next,
                .b = (const char *)(from + length * 32),
                .a_step = 64,
                .b_step = 128,
                .a_end = (const char *)(next + share),
                .b_end = (const char *)(from + 2 * length * 32),
            };
            self->kernels->gemm_f32((size_t)self->rows, 1, 0, (size_t)(length / 16),
                                    (size_t)self->rows * 16, a + c * self->rows, from,
                                    self->c + i * self->rows * 32, c > 0, &ahead);
            from += length * 32;
            next += share;
        }
    }
}

static void multiply(const bench *self, int64_t rows, int64_t n, int64_t k, const float *a,
                     const float *b, int64_t ldb, float *c, int64_t ldc, bool accumulate)
{
    const hy3d__gemm_args product = {.m = (int32_t)rows,
                                     .n = (int32_t)n,
                                     .k = (int32_t)k,
                                     .a = a,
                                     .lda = (int32_t)self->k,
                                     .b = b,
                                     .ldb = (int32_t)ldb,
                                     .accumulate = accumulate,
                                     .c = c,
                                     .ldc = (int32_t)ldc};
    hy3d__sgemm(self->context, &product);
}

static void run_one_product(bench *self)
{
    const int64_t point = self->turn++ % POINTS;
    multiply(self, self->rows, self->n, self->k, self->a + point * self->rows * self->k,
             self->b + point * self->k * self->n, self->n, self->c, self->n, false);
}

/* OpenBLAS takes up to 10^6 products of three sizes without packing, where it has such kernels. */
static void run_small_products(bench *self)
{
    const int64_t point = self->turn++ % POINTS, most = 1000000 / (32 * self->chunk);
    const int64_t parts = hy3d__conv_ceil_div(self->rows, most);
    const int64_t step = hy3d__conv_ceil_div(self->rows, parts);
    const float *const a = self->a + point * self->rows * self->k;

    for (int64_t i = 0; i < self->n / 32; i++) {
        const float *const b = self->b + (point * (self->n / 32) + i) * self->k * 32;
        for (int64_t c = 0; c < self->k; c += self->chunk) {
            for (int64_t r = 0; r < self->rows; r += step) {
                multiply(self, hy3d__min_i64(step, self->rows - r), 32,
                         hy3d__min_i64(self->chunk, self->k - c), a + r * self->k + c, b + c * 32,
                         32, self->c + (i * self->rows + r) * 32, 32, c > 0);
            }
        }
    }
}

static void time_winograd(bench *self, char **argv)
{
    int64_t n[6];

    for (int i = 0; i < 6; i++) {
        n[i] = strtoll(argv[i], NULL, 10);
    }
    self->desc = (hy3d_conv3d_desc){.dtype = HY3D_F32,
                                    .batch = 1,
                                    .in_channels = n[0],
                                    .out_channels = n[1],
                                    .groups = 1,
                                    .in_size = {n[3], n[4], n[5]},
                                    .kernel = {n[2], 3, 3},
                                    .stride = {1, 1, 1},
                                    .dilation = {1, 1, 1},
                                    .accuracy = HY3D_FAST,
                                    .num_threads = 1};
    require(hy3d_conv3d_out_size(&self->desc, self->out) == HY3D_OK, "no such layer");
    hy3d__winograd_kind kind;
    const hy3d_cpu_level level = hy3d_context_cpu_level(self->context);
    if (!hy3d__winograd_choose(&self->desc, self->out, level, &kind)) {
        return;
    }
    const hy3d__winograd_sizes sizes = hy3d__winograd_sizes_of(&self->desc, self->out, kind);
    const hy3d__winograd_limits limits = {
        .level = level, .threads = 1, .slot_bytes = HY3D__WINOGRAD_SLOT_BYTES, .prepared = true};
    hy3d__winograd_blocks blocks;
    (void)hy3d__winograd_best_blocks(&sizes, &limits, 1e300, &blocks);
    self->rows = blocks.h * blocks.w *
                 hy3d__conv_ceil_div(blocks.frames, kind.time->frames);
    self->k = sizes.filters.segments * sizes.filters.k;
    self->n = blocks.panels * 32;
    self->chunk = sizes.filters.chunk;
    self->a = floats(POINTS * self->rows * self->k);
    self->b = floats((POINTS * self->n + 64) * self->k);
    self->c = floats(self->rows * self->n);
    const double operations = 2.0 * (double)self->rows * (double)self->k * (double)self->n;
    char name[32];
    snprintf(name, sizeof name, "%lldx%lldx%lld", (long long)self->rows, (long long)self->k,
             (long long)self->n);
    add(self, name, run_own_product, operations);
    add(self, "one", run_one_product, operations);
    add(self, "small", run_small_products, operations);
    add(self, "again", run_own_product, operations);
    add(self, "peak", run_peak, 20000.0 * 768.0);
    compete(self, CLOCK_THREAD_CPUTIME_ID, atof(argv[6]));
}

int main(int argc, char **argv)
{
    static bench self;
    const bool is_layer = argc == 15 && strcmp(argv[1], "layer") == 0;

    require(is_layer || (argc == 10 && strcmp(argv[1], "winograd") == 0), "wrong arguments");
    const hy3d_context_options options = {
        .cpu_level = argv[2], .max_threads = is_layer ? (uint32_t)strtoul(argv[13], NULL, 10) : 1};
    require(hy3d_context_create(&options, &self.context) == HY3D_OK, "no context");
    require(hy3d__blas_load(self.context) == HY3D_OK, hy3d_context_blas_error(self.context));
    self.kernels = hy3d__kernels_for((int)hy3d_context_cpu_level(self.context));
    if (is_layer) {
        time_layer(&self, argv + 3);
    } else {
        time_winograd(&self, argv + 3);
    }
    return 0;
}
