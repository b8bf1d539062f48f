/* Plans the decode of a small video VAE under a memory budget: the ways that there are, what each
 * takes, and the first steps of the one that is chosen. Nothing is decoded.
 *
 *     make install PREFIX=$HOME/.local
 *     export PKG_CONFIG_PATH=$HOME/.local/lib/pkgconfig LD_LIBRARY_PATH=$HOME/.local/lib
 *     cc -std=c11 plan_decode.c -o plan_decode $(pkg-config --cflags --libs hy3d_core)
 *     ./plan_decode [BYTES]
 *
 * Ends with 0, with 1 where nothing fits into so many bytes, with 2 after an error. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "hy3d/schedule.h"

typedef long long ll;

static void stop_unless_ok(hy3d_status status, const char *what)
{
    if (status != HY3D_OK) {
        fprintf(stderr, "%s: %s\n", what, hy3d_status_text(status));
        exit(2);
    }
}

/* A causal convolution of 3 x 3 x 3: it sees two frames before its own, and none after it. */
static hy3d_node conv(int32_t source, int64_t channels, int32_t norm)
{
    return (hy3d_node){.op = HY3D_OP_CONV,
                       .source = source,
                       .other = -1,
                       .norm = norm,
                       .channels = channels,
                       .kernel = {3, 3, 3},
                       .stride = {1, 1, 1},
                       .dilation = {1, 1, 1},
                       .up = {1, 1, 1},
                       .before = {2, 1, 1},
                       .after = {0, 1, 1},
                       .shuffle = {1, 1, 1},
                       .groups = 1};
}

/* The same of a picture that is made twice as long (but for its first frame), high and wide. */
static hy3d_node up_conv(int32_t source, int64_t channels)
{
    hy3d_node node = conv(source, channels, HY3D_NORM_NONE);
    node.up[0] = node.up[1] = node.up[2] = 2;
    node.keep_first = 1;
    return node;
}

/* The decoder: each node reads the value of one before it. Returns how many there are. */
#define NODES 9
static int32_t describe(hy3d_node nodes[NODES])
{
    int32_t at = 0;
    nodes[at] = (hy3d_node){.op = HY3D_OP_INPUT, .source = -1, .other = -1, .channels = 16};
    nodes[++at] = conv(0, 128, HY3D_NORM_NONE);
    nodes[++at] = conv(1, 128, HY3D_NORM_GROUP);
    nodes[++at] = conv(2, 128, HY3D_NORM_GROUP);
    nodes[at].other = 1; /* a residual: node 1 is added to what comes out */
    nodes[++at] = up_conv(3, 64);
    nodes[++at] = conv(4, 64, HY3D_NORM_GROUP);
    nodes[++at] = up_conv(5, 32);
    nodes[++at] = conv(6, 3, HY3D_NORM_GROUP);
    at++;
    nodes[at] = (hy3d_node){.op = HY3D_OP_OUTPUT, .source = at - 1, .other = -1, .channels = 3};
    return at + 1;
}

/* What a convolution takes beside its source and its result: here a copy of the frames that it
 * reads, and for good its weights. `user` is what the request holds: the nodes. */
static hy3d_status workspace(void *user, const hy3d_step *step, const hy3d_size *source,
                             int32_t on_host, hy3d_step_memory *taken_out)
{
    const hy3d_node *const node = (const hy3d_node *)user + step->node;
    (void)on_host;
    if (step->op == HY3D_STEP_CONV) {
        taken_out->workspace_bytes = source->channels * (step->reads[1] - step->reads[0]) *
                                     source->rows * source->columns * 2;
        taken_out->kept_bytes = node->channels * source->channels * 27 * 2;
    }
    return HY3D_OK;
}

static hy3d_schedule_request request_of(hy3d_node *nodes, int32_t count, int64_t budget)
{
    /* How fast the machine is thought to be; the seconds of the table follow from it. */
    const hy3d_machine machine = {.slice_bytes = {64 << 20, 16 << 20},
                                  .chunks = {4, 1},
                                  .macs_per_second = 2e13,
                                  .bytes_per_second = 4e11,
                                  .seconds_per_step = 2e-5,
                                  .own_seconds_share = 1};
    return (hy3d_schedule_request){
        .graph = {nodes, count},
        .size = {9, 40, 64}, /* frames, rows and columns of the latent video */
        .element_bytes = 2,
        .input_bytes = 2,
        .device_budget = budget,
        .may_spill = 1,
        .compiles_all = 1, /* all of them are to be shown */
        .strategies = 1u << HY3D_STRATEGY_STREAMED | 1u << HY3D_STRATEGY_TILED,
        .device = machine,
        .host = machine,
        .copy_bytes_per_second = 1e10,
        .halos = {{.halo = 16, .overlap = 32, .smallest = 64}},
        .statistic_passes = 1,
        .workspace = workspace,
        .user = nodes,
    };
}

static void print_candidates(const hy3d_schedule *schedule)
{
    const hy3d_candidate *all = NULL;
    const int32_t count = hy3d_schedule_candidates(schedule, &all);

    printf("\n%-10s %-8s %7s %16s %16s %8s  %s\n", "strategy", "order", "tiles", "device bytes",
           "host bytes", "seconds", "fits");
    for (int32_t i = 0; i < count; i++) {
        const hy3d_candidate *const one = &all[i];
        printf("%-10s %-8s %7lld", hy3d_strategy_name(one->strategy), hy3d_order_name(one->order),
               (ll)one->tiles);
        if (one->status != HY3D_OK) {
            printf("  %s\n", hy3d_status_text((hy3d_status)one->status));
        } else if (one->is_bound) {
            printf(" %16lld or more; given up\n", (ll)one->device_bytes);
        } else {
            printf(" %16lld %16lld %8.3f  %s\n", (ll)one->device_bytes, (ll)one->host_bytes,
                   one->seconds, one->fits ? "yes" : "no");
        }
    }
}

#define SHOWN 12
static void print_program(const hy3d_program *program, int64_t budget)
{
    const hy3d_candidate *const one = &program->candidate;

    printf("\nchosen: %s by %s, %.3f s, %lld steps\n", hy3d_strategy_name(one->strategy),
           hy3d_order_name(one->order), one->seconds, (ll)one->steps);
    printf("peak: %lld of %lld bytes\n", (ll)one->device_bytes, (ll)budget);
    printf("\n%4s  %-9s %5s %10s %6s %6s %16s\n", "step", "operation", "node", "frames", "slice",
           "frees", "workspace bytes");
    for (int32_t i = 0; i < program->step_count && i < SHOWN; i++) {
        const hy3d_step *const step = &program->steps[i];
        printf("%4d  %-9s %5d %4lld ..%4lld %6d %6d %16lld\n", (int)i, hy3d_step_op_name(step->op),
               (int)step->node, (ll)step->frames[0], (ll)step->frames[1], (int)step->slice,
               (int)step->frees, (ll)step->workspace_bytes);
    }
    if (program->step_count > SHOWN) {
        printf("      and %d more\n", program->step_count - SHOWN);
    }
}

static int64_t budget_of(int count, char **words)
{
    char *end = NULL;
    errno = 0;
    const ll bytes = count > 1 ? strtoll(words[1], &end, 10) : 100000000;
    if (count > 2 || bytes < 1 || errno != 0 || (end != NULL && *end != '\0')) {
        fprintf(stderr, "usage: %s [BYTES]\n", words[0]);
        exit(2);
    }
    return bytes;
}

int main(int count, char **words)
{
    const int64_t budget = budget_of(count, words);
    hy3d_node nodes[NODES];
    hy3d_size sizes[NODES];
    hy3d_context *context = NULL;
    hy3d_schedule *schedule = NULL;
    int32_t wrong = -1;
    const hy3d_schedule_request request = request_of(nodes, describe(nodes), budget);

    hy3d_status status = hy3d_graph_check(&request.graph, request.size, &wrong);
    if (status != HY3D_OK) {
        fprintf(stderr, "node %d: %s\n", (int)wrong, hy3d_status_text(status));
        return 2;
    }
    stop_unless_ok(hy3d_graph_sizes(&request.graph, request.size, sizes), "sizes");
    const hy3d_size *const out = &sizes[request.graph.count - 1];
    printf("%lld frames of %lld x %lld become %lld of %lld x %lld\n", (ll)request.size[0],
           (ll)request.size[1], (ll)request.size[2], (ll)out->frames, (ll)out->rows,
           (ll)out->columns);

    stop_unless_ok(hy3d_context_create(NULL, &context), "context");
    status = hy3d_schedule_compile(context, &request, &schedule);
    if (status == HY3D_ERR_BUDGET_TOO_SMALL) {
        print_candidates(schedule);
        printf("\n%lld bytes: %s\n", (ll)budget, hy3d_status_text(status));
        printf("enough: %lld bytes\n", (ll)hy3d_schedule_smallest_budget(schedule));
    } else {
        stop_unless_ok(status, "schedule");
        print_candidates(schedule);
        print_program(hy3d_schedule_program(schedule), budget);
    }
    hy3d_schedule_destroy(context, schedule);
    hy3d_context_destroy(context);
    return status == HY3D_OK ? 0 : 1;
}
