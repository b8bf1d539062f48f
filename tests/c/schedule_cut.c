/* Where a graph may be cut, and how far a cut is felt: by pictures cut in two and looked at row by
 * row. Where a decode goes on: by what each frame reads. */
#include "schedule_support.h"

#include <stdlib.h>
#include <string.h>

/* Nodes behind `node` read it and each other alone. */
static bool stands_alone(const hy3d_graph *graph, int32_t node)
{
    for (int32_t behind = node + 1; behind < graph->count; behind++) {
        const hy3d_node *const reader = &graph->nodes[behind];
        if (reader->source < node || (reader->other >= 0 && reader->other < node)) {
            return false;
        }
    }
    return true;
}

/* Whether a value has a whole number of rows for each of the input's, as its operations say. */
static bool has_whole_scale(const hy3d_graph *graph, int32_t node)
{
    int64_t up = 1, down = 1;
    for (; node > 0; node = graph->nodes[node].source) {
        const hy3d_node *const at = &graph->nodes[node];
        const bool is_map = at->op == HY3D_OP_MAP || at->op == HY3D_OP_OPAQUE;
        up *= at->op == HY3D_OP_CONV ? (int64_t)at->up[1] * at->shuffle[1]
              : is_map               ? at->space_up[0]
                                     : 1;
        down *= at->op == HY3D_OP_CONV ? at->stride[1] : is_map ? at->space_down[0] : 1;
    }
    return up % down == 0;
}

/* The first value behind the last attention, and behind unknown code, which may look as far, that
 * stands alone. */
static int32_t cut_of(const hy3d_graph *graph)
{
    int32_t last = 0;
    for (int32_t node = 0; node < graph->count; node++) {
        const int32_t op = graph->nodes[node].op;
        last = op == HY3D_OP_ATTENTION || op == HY3D_OP_OPAQUE ? node : last;
    }
    for (int32_t node = last; node < graph->count - 2; node++) {
        if (stands_alone(graph, node) && has_whole_scale(graph, node)) {
            return node;
        }
    }
    return -1; /* what is only given away is not cut */
}

enum { GONE = 40 };

/* Rows that a picture without its first `gone` rows (from_top) or its last ones gets wrong. */
typedef struct picture {
    const hy3d_graph *graph;
    replay_values whole, part;
    bool *wrong[GRAPHS_MOST_NODES];
    int64_t scale[GRAPHS_MOST_NODES]; /* rows of the value for one of the cut's */
    int64_t gone;                     /* rows of the cut's value; 0: gone from the end */
    int axis;                         /* 1; 2: columns in place of rows */
} picture;

static int64_t length_of(const picture *p, const replay_values *values, int32_t node)
{
    return p->axis == 1 ? values->of[node].size.rows : values->of[node].size.columns;
}

/* Whether row `row` of the whole's value is not there in the part, or is wrong. Rows beyond the
 * whole are padding, which both have. */
static bool is_wrong(const picture *p, int32_t node, int64_t row)
{
    if (row < 0 || row >= length_of(p, &p->whole, node)) {
        return false;
    }
    const int64_t there = row - p->gone * p->scale[node];
    return there < 0 || there >= length_of(p, &p->part, node) || p->wrong[node][there];
}

static bool conv_row_is_wrong(const picture *p, const hy3d_node *node, int64_t row)
{
    bool wrong = false;
    for (int32_t tap = 0; tap < node->kernel[p->axis]; tap++) {
        const int64_t at =
            row / node->shuffle[p->axis] + (int64_t)tap * node->dilation[p->axis] -
            node->before[p->axis];
        wrong = wrong || (at >= 0 && is_wrong(p, node->source, at / node->up[p->axis]));
    }
    return wrong;
}

static void mark(picture *p, int32_t index, int64_t factor)
{
    const hy3d_node *const node = &p->graph->nodes[index];
    const int64_t rows = length_of(p, &p->part, index);
    p->scale[index] = p->scale[node->source] * factor;
    p->wrong[index] = calloc((size_t)rows, sizeof(bool));
    ck_assert_ptr_nonnull(p->wrong[index]);
    for (int64_t i = 0; i < rows; i++) {
        const int64_t row = i + p->gone * p->scale[index];
        p->wrong[index][i] =
            (node->op == HY3D_OP_CONV ? conv_row_is_wrong(p, node, row)
                                      : is_wrong(p, node->source, row / factor)) ||
            (node->other >= 0 && is_wrong(p, node->other, row));
    }
}

/* Rows of the output for one of a source's; 0 where rows are not for rows. */
static int64_t factor_of(const hy3d_node *node, int axis)
{
    if (node->op == HY3D_OP_CONV) {
        return node->stride[axis] == 1 ? (int64_t)node->up[axis] * node->shuffle[axis] : 0;
    }
    if (node->op == HY3D_OP_MAP) {
        return node->space_down[axis - 1] == 1 ? node->space_up[axis - 1] : 0;
    }
    return node->op == HY3D_OP_OPAQUE ? 0 : 1;
}

/* Rows of the cut's value at the border, as far as the output is wrong. */
static int64_t felt(const hy3d_graph *graph, int32_t cut, hy3d_size size, int axis,
                    bool from_top)
{
    picture p = {.graph = graph, .gone = from_top ? GONE : 0, .axis = axis};
    const int32_t last = graph->count - 1;
    hy3d_size part = size;
    *(axis == 1 ? &part.rows : &part.columns) -= GONE;
    const int64_t there = axis == 1 ? part.rows : part.columns;
    p.whole = replay_values_make(graph, cut, last, size);
    p.part = replay_values_make(graph, cut, last, part);
    p.scale[cut] = 1;
    p.wrong[cut] = calloc((size_t)there, sizeof(bool));
    ck_assert_ptr_nonnull(p.wrong[cut]);
    for (int32_t node = cut + 1; node <= last; node++) {
        mark(&p, node, factor_of(&graph->nodes[node], axis));
    }
    const int64_t rows = length_of(&p, &p.part, last), scale = p.scale[last];
    int64_t reach = 0;
    for (int64_t i = 0; i < rows; i++) {
        /* In the cut's rows from the border, which is at row 0 or at the part's end. */
        const int64_t distance = from_top ? i / scale : there - 1 - i / scale;
        if (p.wrong[last][i] && distance + 1 > reach) {
            reach = distance + 1;
        }
    }
    for (int32_t node = cut; node <= last; node++) {
        free(p.wrong[node]);
    }
    replay_values_free(&p.whole);
    replay_values_free(&p.part);
    return reach;
}

static bool has_rows_for_rows(const hy3d_graph *graph, int32_t cut)
{
    for (int32_t node = cut + 1; node < graph->count; node++) {
        if (factor_of(&graph->nodes[node], 1) == 0 || factor_of(&graph->nodes[node], 2) == 0) {
            return false;
        }
    }
    return true;
}

/* Rows of every value are a whole multiple of its source's. */
static bool scales_in_whole_numbers(const graphs_case *made)
{
    hy3d_size sizes[GRAPHS_MOST_NODES];
    const hy3d_graph *const graph = &made->request.graph;
    ck_assert_ok(hy3d_graph_sizes(graph, made->request.size, sizes));
    for (int32_t node = 1; node < graph->count; node++) {
        const hy3d_size *const source = &sizes[graph->nodes[node].source];
        const int64_t rows = factor_of(&graph->nodes[node], 1) * source->rows;
        const int64_t columns = factor_of(&graph->nodes[node], 2) * source->columns;
        if (sizes[node].rows != rows || sizes[node].columns != columns) {
            return false;
        }
    }
    return true;
}

/* _i: 1, of rows; 2, of columns. */
START_TEST(test_a_cut_is_behind_the_last_attention_and_felt_no_farther_than_said)
{
    long exact = 0, all = 0;
    for (uint64_t i = 0; i < 3000; i++) {
        graphs_case made;
        graphs_seed seed;
        hy3d_cut cut;
        graphs_random(graphs_numbers_of(&seed, i), &made);
        const hy3d_graph *const graph = &made.request.graph;
        ck_assert_ok(hy3d_graph_cut(graph, made.request.size, &cut));
        if (cut.node == -1 && !scales_in_whole_numbers(&made)) {
            continue;
        }
        ck_assert_msg(cut.node == cut_of(graph), "case %d: behind node %d, not %d", (int)i,
                      cut.node, cut_of(graph));
        if (cut.node < 0 || !has_rows_for_rows(graph, cut.node)) {
            continue;
        }
        const hy3d_size size = {graph->nodes[cut.node].channels, 3, 2 * GONE, 2 * GONE};
        int64_t most = 0;
        for (int side = 0; side < 2; side++) {
            const int64_t rows = felt(graph, cut.node, size, _i, side == 0);
            most = rows > most ? rows : most;
        }
        ck_assert_msg(cut.reach >= most, "case %d: a reach of %d, and a cut is felt %d far", (int)i,
                      (int)cut.reach, (int)most);
        all++;
        exact += cut.reach == most;
    }
    test_count("cuts whose reach is sound", all);
    test_count("cuts whose reach is the least", exact);
}
END_TEST

/* The first frame of the input that frame `frame` of a value, far from the video's end, depends on.
 */
static int64_t earliest(const hy3d_graph *graph, int32_t index, int64_t frame)
{
    const hy3d_node *const node = &graph->nodes[index];
    int64_t read = frame;
    if (index == 0) {
        return frame;
    }
    if (node->op == HY3D_OP_CONV && frame >= node->skip_first) {
        const int64_t first = node->shuffle_first != 0 ? node->shuffle_first : node->shuffle[0];
        const int64_t made = frame - node->skip_first + node->drop;
        const int64_t own = made < first ? 0 : 1 + (made - first) / node->shuffle[0];
        const int64_t up = own * node->stride[0] - node->before[0];
        const int64_t at = up <= 0               ? 0
                           : node->keep_first != 0 ? 1 + (up - 1) / node->up[0]
                                                 : up / node->up[0];
        read = node->skip_first - node->reread + at;
    } else if (node->op == HY3D_OP_MAP && node->frames_rest > 0) {
        read = frame < node->frames_first
                   ? 0
                   : 1 + (frame - node->frames_first) / node->frames_rest;
    }
    const int64_t found = earliest(graph, node->source, read);
    const int64_t other = node->other < 0 ? found : earliest(graph, node->other, frame);
    return other < found ? other : found;
}

/* Some frames before it, and none that is the first of its video. */
START_TEST(test_a_decode_that_goes_on_begins_before_all_that_a_frame_depends_on)
{
    static const graphs_known which[] = {GRAPHS_WAN, GRAPHS_LTX};
    const int64_t slack = _i / 2 == 0 ? 4 : 16; /* how far LTX looks ahead counts as back, too */
    hy3d_context *const context = test_context("ref", 1);
    graphs_case made;
    hy3d_schedule *schedule = NULL;
    graphs_make_known(which[_i / 2], 4, &made);
    graphs_request(&made, 5, 8, 8);
    made.request.strategies = 1U << HY3D_STRATEGY_STREAMED;
    made.request.device.chunks[0] = 1 + 2 * (_i % 2);
    ck_assert_ok(hy3d_schedule_compile(context, &made.request, &schedule));
    const int64_t chunk = hy3d_schedule_program(schedule)->candidate.chunk;
    ck_assert_int_eq(chunk, made.request.device.chunks[0]);
    ck_assert_int_eq(hy3d_schedule_start(schedule, 0), 0);
    for (int64_t wanted = 1; wanted < 400; wanted++) {
        const int64_t start = hy3d_schedule_start(schedule, wanted);
        const int64_t least = earliest(&made.request.graph, made.request.graph.count - 1, wanted);
        ck_assert_int_eq(start % chunk, 0);
        ck_assert_msg(start == 0 || start < least, "frame %d depends on %d, not %d", (int)wanted,
                      (int)least, (int)start);
        ck_assert_int_ge(start, least - slack - chunk);
    }
    hy3d_schedule_destroy(context, schedule);
    graphs_make_known(GRAPHS_HUNYUAN, 4, &made);
    graphs_request(&made, 5, 8, 8);
    made.request.strategies = 1U << HY3D_STRATEGY_STREAMED;
    ck_assert_ok(hy3d_schedule_compile(context, &made.request, &schedule));
    ck_assert_int_eq(hy3d_schedule_start(schedule, 400), 0);
    hy3d_schedule_destroy(context, schedule);
    hy3d_context_destroy(context);
}
END_TEST

TCase *hy3d_schedule_cut_cases(void)
{
    TCase *const tests = tcase_create("cut");
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(
        tests, test_a_cut_is_behind_the_last_attention_and_felt_no_farther_than_said, 1, 3);
    tcase_add_loop_test(
        tests, test_a_decode_that_goes_on_begins_before_all_that_a_frame_depends_on, 0, 4);
    return tests;
}
