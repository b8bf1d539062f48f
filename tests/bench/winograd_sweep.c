/* Times blocks of a Winograd layer, for tests/bench/fit_winograd_cost.py, which builds and runs it:
 *
 *     winograd_sweep LEVEL IN OUT KT BATCH T H W COUNT SEED
 *
 * One line a measurement: format (0: the direct way), weights prepared, whether the cost model
 * chose these blocks, the model's terms over all grains, bytes of a block, nanoseconds, and
 * nanoseconds that 64 operations (a cycle of two AVX-512 multiply-adds) took at the peak of that
 * moment. */
#include "conv3d/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void require(bool good, const char *what)
{
    if (!good) {
        fprintf(stderr, "winograd_sweep: %s\n", what);
        exit(1);
    }
}

typedef struct layer {
    hy3d_context *context;
    hy3d_conv3d_desc desc;
    int64_t out[3];
    hy3d_tensor x, weight, y;
} layer;

static hy3d_tensor tensor(const int64_t size[5])
{
    hy3d_tensor t = {.dtype = HY3D_F32};
    int64_t n = 1;

    for (int i = 4; i >= 0; i--) {
        t.size[i] = size[i];
        t.stride[i] = n;
        n *= size[i];
    }
    float *const data = malloc((size_t)n * sizeof(float));
    require(data != NULL, "no memory");
    for (int64_t i = 0; i < n; i++) {
        data[i] = (float)((uint64_t)i * 7919 % 1000) / 1000.0F - 0.5F;
    }
    t.data = data;
    return t;
}

/* ns of 64 operations. */
static double peak(const layer *l)
{
    float sums[384] = {0.0F};
    const double start = now();

    hy3d__kernels_for((int)hy3d_context_cpu_level(l->context))->peak_f32(20000, 0.5F, 1.0F, sums);
    return (now() - start) / (20000.0 * 768.0 / 64.0);
}

static void time_plan(const layer *l, hy3d_conv3d_plan *plan, unsigned format, bool is_choice,
                      const hy3d__winograd_work *work)
{
    void *workspace = NULL;
    double least = 0.0, at_peak = 0.0;

    require(hy3d_alloc(l->context, hy3d_conv3d_plan_workspace_bytes(plan), &workspace) == HY3D_OK,
            "no memory");
    memset(workspace, 0, hy3d_conv3d_plan_workspace_bytes(plan));
    for (int i = 0; i < 3; i++) {
        const double before = peak(l), start = now();
        require(hy3d_conv3d_run(plan, &l->x, &l->y, workspace, NULL) == HY3D_OK, "no run");
        const double took = now() - start, after = peak(l);
        if (i > 0 && (least <= 0.0 || took < least)) {
            least = took;
            at_peak = (before + after) / 2.0;
        }
    }
    printf("%u %d %d %.6g %.6g %.6g %.6g %.6g %.6g %.6g %.6g\n", format, plan->prepared != NULL,
           is_choice, work->products * work->rounds, work->data * work->rounds,
           work->weights * work->rounds, work->made * work->rounds, work->rounds, work->bytes, least,
           at_peak);
    fflush(stdout);
    hy3d_free(l->context, workspace);
}

static void time_direct(const layer *l)
{
    hy3d_conv3d_desc exact = l->desc;
    hy3d_conv3d_plan *plan = NULL;
    const double positions =
        (double)l->desc.batch * (double)l->out[0] * (double)l->out[1] * (double)l->out[2];
    const hy3d__winograd_work work = {
        .products = positions / 16.0 * (double)l->desc.in_channels * (double)l->desc.kernel[0] * 9.0 *
                    (double)l->desc.out_channels,
        .rounds = 1.0};

    exact.accuracy = HY3D_EXACT;
    require(hy3d_conv3d_plan_create(l->context, &exact, &l->weight, NULL, NULL, &plan) == HY3D_OK,
            "no plan");
    time_plan(l, plan, 0, true, &work);
    hy3d_conv3d_plan_destroy(plan);
}

static hy3d__winograd_blocks random_blocks(const hy3d__winograd_sizes *s, bool prepared)
{
    hy3d__winograd_blocks b = {
        .h = hy3d__conv_ceil_div(s->tiles_h, 1 + rand() % s->tiles_h),
        .w = hy3d__conv_ceil_div(s->tiles_w, 1 << rand() % 3),
        .frames = hy3d__conv_ceil_div(s->frames, 1 + rand() % s->frames),
        .panels = hy3d__conv_ceil_div(s->filters.panels, 1 << rand() % 3),
    };
    b.frames = hy3d__conv_round_up(b.frames, s->filters.kind.time->frames);
    b.panels_at_once = prepared && rand() % 2 == 0 ? b.panels : 1;
    return b;
}

static void time_kind(const layer *l, hy3d_conv3d_format format, bool is_prepared, int count)
{
    hy3d__winograd_kind kind;
    hy3d_conv3d_weights *weights = NULL;
    hy3d_conv3d_plan *plan = NULL;

    require(hy3d__winograd_kind_of(format, &kind), "no such format");
    const hy3d__winograd_sizes sizes = hy3d__winograd_sizes_of(&l->desc, l->out, kind);
    const hy3d__winograd_limits limits = {.level = hy3d_context_cpu_level(l->context),
                                          .threads = 1,
                                          .slot_bytes = HY3D__WINOGRAD_SLOT_BYTES,
                                          .prepared = is_prepared};
    require(hy3d_conv3d_plan_create(l->context, &l->desc, &l->weight, NULL, NULL, &plan) == HY3D_OK,
            "no plan");
    if (is_prepared) {
        require(hy3d_conv3d_weights_create(l->context, &l->weight, format, 1, NULL, &weights) ==
                    HY3D_OK,
                "no weights");
    }
    plan->strategy = &hy3d__conv_winograd_strategy;
    plan->prepared = weights;
    for (int i = 0; i <= count; i++) {
        hy3d__winograd_blocks blocks;
        hy3d__winograd_elems elems;
        if (i == 0) {
            (void)hy3d__winograd_best_blocks(&sizes, &limits, 1e300, &blocks);
        }
        int tries = 0;
        do {
            require(tries++ < 10000, "no blocks that fit");
            blocks = i == 0 ? blocks : random_blocks(&sizes, is_prepared);
            elems = hy3d__winograd_block_elems(&sizes, &blocks, is_prepared);
        } while (i > 0 && (size_t)(elems.v + elems.r + elems.strips + elems.u) * sizeof(float) >
                              HY3D__WINOGRAD_SLOT_BYTES);
        hy3d__winograd_use_blocks(plan, &sizes, &blocks, is_prepared);
        plan->slots = 1;
        plan->slot_bytes = plan->workspace_bytes = plan->input_bytes;
        const hy3d__winograd_work work = hy3d__winograd_work_of(&sizes, &limits, &blocks);
        time_plan(l, plan, format, i == 0, &work);
    }
    hy3d_conv3d_plan_destroy(plan);
    hy3d_conv3d_weights_destroy(weights);
}

int main(int argc, char **argv)
{
    require(argc == 11, "arguments: LEVEL IN OUT KT BATCH T H W COUNT SEED");
    int64_t n[9];
    for (int i = 0; i < 9; i++) {
        n[i] = strtoll(argv[i + 2], NULL, 10);
    }
    const hy3d_context_options options = {.cpu_level = argv[1], .max_threads = 1};
    layer l = {.desc = {.batch = n[3],
                        .in_channels = n[0],
                        .out_channels = n[1],
                        .groups = 1,
                        .in_size = {n[4], n[5], n[6]},
                        .kernel = {n[2], 3, 3},
                        .stride = {1, 1, 1},
                        .dilation = {1, 1, 1},
                        .accuracy = HY3D_FAST,
                        .num_threads = 1}};
    require(hy3d_context_create(&options, &l.context) == HY3D_OK, "no context");
    require(hy3d_conv3d_out_size(&l.desc, l.out) == HY3D_OK, "no such layer");
    l.x = tensor((int64_t[]){n[3], n[0], n[4], n[5], n[6]});
    l.weight = tensor((int64_t[]){n[1], n[0], n[2], 3, 3});
    l.y = tensor((int64_t[]){n[3], n[1], l.out[0], l.out[1], l.out[2]});
    srand((unsigned)n[8]);
    time_direct(&l);
    for (hy3d_conv3d_format format = 1; format <= 4; format++) {
        if (format % 2 == 0 && (n[2] != 3 || l.out[0] < 2)) {
            continue;
        }
        time_kind(&l, format, true, (int)n[7]);
        time_kind(&l, format, false, (int)n[7] / 4);
    }
    free(l.x.data);
    free(l.weight.data);
    free(l.y.data);
    hy3d_context_destroy(l.context);
    return 0;
}
