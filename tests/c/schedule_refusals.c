/* What graphs and requests are refused, field by field, with which status and at which node. */
#include "schedule_support.h"

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* input 0, conv 1, attention 2, map 3, add 4 (2 + 3), conv 5 (residual 4), opaque 6, output 7. */
static void small_graph(graphs_case *made)
{
    const hy3d_node conv = {.op = HY3D_OP_CONV, .other = -1, .channels = 4, .kernel = {3, 3, 3},
                            .stride = {1, 1, 1}, .dilation = {1, 1, 1}, .up = {1, 1, 1},
                            .before = {2, 1, 1}, .after = {0, 1, 1}, .shuffle = {1, 1, 1},
                            .groups = 1};
    const hy3d_node map = {.op = HY3D_OP_MAP, .source = 2, .other = -1, .channels = 4,
                           .frames_first = 1, .frames_rest = 1, .frames_per = 1,
                           .space_up = {1, 1}, .space_down = {1, 1}};
    memset(made, 0, sizeof *made);
    made->nodes[0] = (hy3d_node){.op = HY3D_OP_INPUT, .source = -1, .other = -1, .channels = 4};
    made->nodes[1] = made->nodes[5] = conv;
    made->nodes[2] = (hy3d_node){.op = HY3D_OP_ATTENTION, .source = 1, .other = -1,
                                 .channels = 4, .span = HY3D_SPAN_CAUSAL, .heads = 2,
                                 .width = 4};
    made->nodes[3] = made->nodes[6] = map;
    made->nodes[4] = (hy3d_node){.op = HY3D_OP_ADD, .source = 2, .other = 3, .channels = 4};
    made->nodes[5].source = made->nodes[5].other = 4;
    made->nodes[6].op = HY3D_OP_OPAQUE;
    made->nodes[6].source = 5;
    made->nodes[7] = (hy3d_node){.op = HY3D_OP_OUTPUT, .source = 6, .other = -1, .channels = 4};
    made->request.graph.count = 8;
    graphs_request(made, 3, 4, 6);
}

/* All that is wrong in one test. */
typedef struct notes {
    char text[1200];
} notes;

static void note(notes *to, const char *format, ...) __attribute__((format(TEST_PRINTF, 2, 3)));
static void note(notes *to, const char *format, ...)
{
    const size_t used = strlen(to->text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(to->text + used, sizeof to->text - used, format, arguments);
    va_end(arguments);
}

/* One field of one node. */
typedef struct node_fault {
    int32_t node;
    size_t offset;
    bool is_wide; /* 64 bits */
    int64_t value;
    hy3d_status status;
} node_fault;

#define FIELD(node, field, value, status)                                                          \
    {node, offsetof(hy3d_node, field), sizeof(((hy3d_node *)NULL)->field) == 8, value,             \
     HY3D_ERR_##status}
#define PART(node, field, part, value, status)                                                     \
    {node, offsetof(hy3d_node, field) + part * sizeof(int32_t), false, value, HY3D_ERR_##status}
#define TRIPLE(node, field, value, status)                                                         \
    PART(node, field, 0, value, status), PART(node, field, 1, value, status),                      \
        PART(node, field, 2, value, status)

static const node_fault node_faults[] = {
    FIELD(0, op, HY3D_OP_MAP, INVALID_ARGUMENT),
    FIELD(0, source, 0, INVALID_ARGUMENT),
    FIELD(0, channels, 0, INVALID_ARGUMENT),
    FIELD(0, channels, -1, INVALID_ARGUMENT),
    FIELD(1, op, -1, INVALID_ARGUMENT),
    FIELD(1, op, 7, INVALID_ARGUMENT),
    FIELD(1, op, HY3D_OP_INPUT, INVALID_ARGUMENT),
    FIELD(1, source, 1, INVALID_ARGUMENT),
    FIELD(1, source, 5, INVALID_ARGUMENT),
    FIELD(1, source, -1, INVALID_ARGUMENT),
    FIELD(1, source, INT32_MIN, INVALID_ARGUMENT),
    FIELD(1, other, 1, INVALID_ARGUMENT),
    FIELD(1, other, -2, INVALID_ARGUMENT),
    FIELD(1, norm, 4, INVALID_ARGUMENT),
    FIELD(1, norm, -1, INVALID_ARGUMENT),
    FIELD(1, channels, 0, INVALID_ARGUMENT),
    TRIPLE(1, kernel, 0, INVALID_ARGUMENT),
    TRIPLE(1, stride, 0, INVALID_ARGUMENT),
    TRIPLE(1, dilation, 0, INVALID_ARGUMENT),
    TRIPLE(1, up, 0, INVALID_ARGUMENT),
    TRIPLE(1, before, -1, INVALID_ARGUMENT),
    TRIPLE(1, after, -1, INVALID_ARGUMENT),
    TRIPLE(1, shuffle, 0, INVALID_ARGUMENT),
    FIELD(1, groups, 0, INVALID_ARGUMENT),
        FIELD(1, groups, -4, INVALID_ARGUMENT),
    FIELD(1, keep_first, 2, INVALID_ARGUMENT),
    FIELD(1, skip_first, -1, INVALID_ARGUMENT),
    FIELD(1, reread, 1, INVALID_ARGUMENT),
    FIELD(1, reread, -1, INVALID_ARGUMENT),
    FIELD(1, shuffle_first, 2, INVALID_ARGUMENT),
    FIELD(1, shuffle_first, -1, INVALID_ARGUMENT),
    FIELD(1, drop, -1, INVALID_ARGUMENT),
    FIELD(1, span, 1, INVALID_ARGUMENT), /* no field of a convolution */
    FIELD(1, heads, 1, INVALID_ARGUMENT),
    FIELD(1, width, 4, INVALID_ARGUMENT),
    FIELD(1, frames_first, 1, INVALID_ARGUMENT),
    PART(1, space_up, 1, 1, INVALID_ARGUMENT),
    FIELD(2, other, 1, INVALID_ARGUMENT),
    FIELD(2, norm, 4, INVALID_ARGUMENT),
    FIELD(2, span, 3, INVALID_ARGUMENT),
    FIELD(2, span, -1, INVALID_ARGUMENT),
    FIELD(2, heads, 0, INVALID_ARGUMENT),
    FIELD(2, width, 0, INVALID_ARGUMENT),
    FIELD(2, heads, 3, INVALID_ARGUMENT), /* width is no multiple of it */
    PART(2, kernel, 0, 1, INVALID_ARGUMENT),
    FIELD(2, groups, 1, INVALID_ARGUMENT),
    FIELD(3, norm, 1, INVALID_ARGUMENT),
    FIELD(3, other, 1, INVALID_ARGUMENT),
    FIELD(3, frames_first, -1, INVALID_ARGUMENT),
    FIELD(3, frames_rest, -1, INVALID_ARGUMENT),
    FIELD(3, frames_per, 2, INVALID_ARGUMENT),
    FIELD(3, frames_per, 0, INVALID_ARGUMENT),
    PART(3, space_up, 0, 0, INVALID_ARGUMENT),
    PART(3, space_down, 1, 0, INVALID_ARGUMENT),
    PART(3, space_down, 1, -2, INVALID_ARGUMENT),
    FIELD(3, drop, 1, INVALID_ARGUMENT),
    FIELD(4, other, -1, INVALID_ARGUMENT),
    FIELD(4, other, 4, INVALID_ARGUMENT),
    FIELD(4, norm, 2, INVALID_ARGUMENT),
    FIELD(4, source, 3, INVALID_ARGUMENT), /* then only 3 + 3 is left, which reads 2 still */
    FIELD(5, other, 6, INVALID_ARGUMENT),
    FIELD(6, frames_per, 0, INVALID_ARGUMENT),
    FIELD(7, op, HY3D_OP_ADD, INVALID_ARGUMENT),
    FIELD(7, source, 7, INVALID_ARGUMENT),
    FIELD(7, other, 1, INVALID_ARGUMENT),
    FIELD(5, op, HY3D_OP_OUTPUT, INVALID_ARGUMENT),
    FIELD(1, groups, 3, SHAPE_MISMATCH), /* a division with a rest */
    FIELD(2, channels, 5, SHAPE_MISMATCH),
    FIELD(3, channels, 5, SHAPE_MISMATCH),
    FIELD(5, channels, 8, SHAPE_MISMATCH),
    PART(1, kernel, 0, 6, SHAPE_MISMATCH), /* of five frames */
    PART(1, kernel, 2, 9, SHAPE_MISMATCH),
    PART(1, dilation, 1, 3, SHAPE_MISMATCH),
    PART(3, space_down, 0, 3, SHAPE_MISMATCH),
    PART(3, space_up, 0, 2, SHAPE_MISMATCH), /* the sum's two sides */
    PART(5, up, 0, 2, SHAPE_MISMATCH),       /* the residual */
    PART(5, stride, 1, 2, SHAPE_MISMATCH),
    FIELD(1, drop, 3, SHAPE_MISMATCH), /* nothing is left */
};

/* Where the fault is found: sums complain of what their sides are. */
static hy3d_status status_with(graphs_case *made, const node_fault *fault)
{
    char *const field = (char *)&made->nodes[fault->node] + fault->offset;
    const int32_t narrow = (int32_t)fault->value;
    int32_t node = -7;
    if (fault->is_wide) {
        memcpy(field, &fault->value, sizeof fault->value);
    } else {
        memcpy(field, &narrow, sizeof narrow);
    }
    const hy3d_status status = hy3d_graph_check(&made->request.graph, made->request.size, &node);
    if (status == HY3D_ERR_INVALID_ARGUMENT) {
        ck_assert_msg(node == fault->node || node == -1 || node < fault->node,
                      "node %d is wrong, %d is named", fault->node, node);
    }
    return status;
}

START_TEST(test_a_wrong_field_of_a_node_is_refused)
{
    notes wrong = {{0}};
    for (size_t i = 0; i < COUNT_OF(node_faults); i++) {
        const node_fault *const fault = &node_faults[i];
        graphs_case made;
        small_graph(&made);
        const hy3d_status status = status_with(&made, fault);
        if (fault->node == 4 && fault->value == 3 && fault->offset == offsetof(hy3d_node, source)) {
            ck_assert_ok(status); /* 3 + 3: a sum of a value and itself */
            continue;
        }
        if (status != fault->status) {
            note(&wrong, "node %d, field at %d, value %lld: %s; ", fault->node,
                 (int)fault->offset, (long long)fault->value, hy3d_status_name(status));
        }
    }
    ck_assert_msg(wrong.text[0] == '\0', "%s", wrong.text);
}
END_TEST

START_TEST(test_graphs_that_are_none_are_refused)
{
    graphs_case made;
    int32_t node = 5;
    small_graph(&made);
    const int64_t *const size = made.request.size;
    hy3d_graph graph = made.request.graph;
    ck_assert_ok(hy3d_graph_check(&graph, size, &node));
    ck_assert_int_eq(node, -1);
    ck_assert_ok(hy3d_graph_check(&graph, size, NULL));
    for (int32_t count = -1; count < 2; count++) {
        graph.count = count;
        ck_assert_status(hy3d_graph_check(&graph, size, &node), HY3D_ERR_INVALID_ARGUMENT);
    }
    graph.count = HY3D_GRAPH_MAX_NODES + 1;
    ck_assert_status(hy3d_graph_check(&graph, size, &node), HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_int_eq(node, -1);
    graph.count = 7; /* the last is no output */
    ck_assert_status(hy3d_graph_check(&graph, size, &node), HY3D_ERR_INVALID_ARGUMENT);
    for (int axis = 0; axis < 3; axis++) {
        for (int64_t length = -1; length <= 0; length++) {
            int64_t bad[3] = {3, 4, 6};
            bad[axis] = length;
            ck_assert_status(hy3d_graph_check(&made.request.graph, bad, &node),
                             HY3D_ERR_INVALID_ARGUMENT);
            ck_assert_int_eq(node, -1);
        }
    }
    made.nodes[4].source = made.nodes[4].other = 2; /* nobody reads the map */
    ck_assert_status(hy3d_graph_check(&made.request.graph, size, &node),
                     HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_int_eq(node, 3);
}
END_TEST

START_TEST(test_sizes_beyond_63_bits_are_refused)
{
    static const int64_t sizes[][3] = {
        {INT64_MAX, 1, 1},    {1, INT64_MAX, 1},           {1, 1, INT64_MAX},
        {1LL << 62, 4, 6},    {1LL << 31, 1LL << 31, 4},   {3, 1LL << 32, 1LL << 32},
        {1LL << 61, 1, 1},    {1LL << 20, 1LL << 20, 1LL << 20},
    };
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        graphs_case made;
        hy3d_size out[8];
        int32_t node = -7;
        small_graph(&made);
        ck_assert_status(hy3d_graph_check(&made.request.graph, sizes[i], &node),
                         HY3D_ERR_OVERFLOW);
        ck_assert_int_ge(node, -1);
        ck_assert_status(hy3d_graph_sizes(&made.request.graph, sizes[i], out), HY3D_ERR_OVERFLOW);
    }
    /* Elements that fit, and multiply-accumulates that do not: 32 frames of 2^26 positions attend
     * to those before them, 528 * 2^52 pairs, with 2 * 4 each. */
    graphs_case made;
    small_graph(&made);
    ck_assert_status(
        hy3d_graph_check(&made.request.graph, (int64_t[]){32, 1 << 13, 1 << 13}, NULL),
        HY3D_ERR_OVERFLOW);
    made.nodes[1].channels = made.nodes[2].channels = INT64_MAX / 2;
    ck_assert_status(hy3d_graph_check(&made.request.graph, made.request.size, NULL),
                     HY3D_ERR_OVERFLOW);
}
END_TEST

/* One field of a request. */
typedef struct request_fault {
    size_t offset, bytes;
    int64_t value;
    double real;
} request_fault;

#define REQUEST(field, value)                                                                      \
    {offsetof(hy3d_schedule_request, field),                                                       \
     sizeof(((hy3d_schedule_request *)NULL)->field), value, 0}
#define REQUEST_REAL(field, value)                                                                 \
    {offsetof(hy3d_schedule_request, field), 0, 0, value}

static const request_fault request_faults[] = {
    REQUEST(element_bytes, 0), REQUEST(element_bytes, -1), REQUEST(input_bytes, -1),
    REQUEST(source_bytes, -1), REQUEST(source_bytes, 17),
    REQUEST(result_bytes, -1), REQUEST(kept_bytes, -1), REQUEST(device_budget, -1),
    REQUEST(most_shape_bytes, -1),
    REQUEST(host_budget, -1), REQUEST(margin_bytes, -1), REQUEST(margin_permille, -1),
    REQUEST(strategies, 0),
    REQUEST(strategies, 16), REQUEST(statistic_passes, -1), REQUEST(own_bytes, -3),
    REQUEST(rank, -1), REQUEST(rank, 1), REQUEST(ranks, -1), REQUEST(device.slice_bytes[0], -1),
    REQUEST(device.slice_bytes[1], -1), REQUEST(device.chunks[0], -1),
    REQUEST(device.chunks[0], 0), REQUEST(device.chunks[1], -1), REQUEST(device.chunks[2], -1),
    REQUEST(host.slice_bytes[0], -1), REQUEST(host.chunks[0], -1), REQUEST(host.chunks[2], -1),
    REQUEST(halos[0].halo, -2), REQUEST(halos[0].overlap, -1), REQUEST(halos[0].smallest, -1),
    REQUEST_REAL(device.macs_per_second, 0), REQUEST_REAL(device.macs_per_second, -1),
    REQUEST_REAL(device.bytes_per_second, 0), REQUEST_REAL(device.seconds_per_step, 0),
    REQUEST_REAL(device.own_seconds_share, 0), REQUEST_REAL(host.macs_per_second, 0),
    REQUEST_REAL(copy_bytes_per_second, 0), REQUEST_REAL(copy_bytes_per_second, -2),
    REQUEST(unit[0], 1), REQUEST(unit[1], 1), REQUEST(unit[2], 1), REQUEST(unit[0], -1),
    REQUEST(unit[1], -1), REQUEST(unit[2], -1), REQUEST(busy_positions, -1),
    REQUEST_REAL(copy_bytes_per_second, NAN), REQUEST_REAL(device.macs_per_second, NAN),
};

START_TEST(test_a_wrong_field_of_a_request_is_refused)
{
    notes wrong = {{0}};
    hy3d_context *const context = test_context("ref", 1);
    for (size_t i = 0; i < COUNT_OF(request_faults); i++) {
        const request_fault *const fault = &request_faults[i];
        graphs_case made;
        small_graph(&made);
        char *const field = (char *)&made.request + fault->offset;
        const int32_t narrow = (int32_t)fault->value;
        hy3d_schedule *schedule = NULL;
        memcpy(field,
               fault->bytes == 8   ? (const void *)&fault->value
               : fault->bytes == 4 ? (const void *)&narrow
                                   : (const void *)&fault->real,
               fault->bytes == 4 ? 4 : 8);
        const hy3d_status status = hy3d_schedule_compile(context, &made.request, &schedule);
        if (status != HY3D_ERR_INVALID_ARGUMENT) {
            note(&wrong, "field at %d, value %lld or %g: %s; ", (int)fault->offset,
                 (long long)fault->value, fault->real, hy3d_status_name(status));
        } else {
            ck_assert_ptr_null(schedule); /* written on success alone */
        }
        hy3d_schedule_destroy(context, schedule);
    }
    ck_assert_msg(wrong.text[0] == '\0', "%s", wrong.text);
    hy3d_context_destroy(context);
}
END_TEST

static hy3d_status compile_status(hy3d_context *context, const graphs_case *made)
{
    hy3d_schedule *schedule = NULL;
    const hy3d_status status = hy3d_schedule_compile(context, &made->request, &schedule);
    if (status == HY3D_OK || status == HY3D_ERR_BUDGET_TOO_SMALL) {
        hy3d_schedule_destroy(context, schedule);
    }
    return status;
}

START_TEST(test_nodes_are_alike_the_first_of_their_kind)
{
    hy3d_context *const context = test_context("ref", 1);
    static const int32_t wrong[][8] = {{0, 2, 2}, {0, -1, 2}, {0, 1, 2, 3, 4, 5, 6, 8},
                                       {0, 0, 1}};
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        graphs_case made;
        small_graph(&made);
        made.request.alike = wrong[i];
        ck_assert_status(compile_status(context, &made), HY3D_ERR_INVALID_ARGUMENT);
    }
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_what_no_strategy_can_run_is_unsupported)
{
    hy3d_context *const context = test_context("ref", 1);
    graphs_case made;
    graphs_make_known(GRAPHS_HUNYUAN, 4, &made);
    graphs_request(&made, 3, 8, 8);
    made.request.strategies = 1U << HY3D_STRATEGY_STREAMED;
    ck_assert_ok(compile_status(context, &made));
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_errors_of_graph_and_workspace_come_through)
{
    hy3d_context *const context = test_context("ref", 1);
    graphs_case made;
    small_graph(&made);
    made.nodes[1].kernel[0] = 6;
    ck_assert_status(compile_status(context, &made), HY3D_ERR_SHAPE_MISMATCH);
    small_graph(&made);
    made.request.size[0] = INT64_MAX;
    ck_assert_status(compile_status(context, &made), HY3D_ERR_OVERFLOW);
    small_graph(&made);
    made.nodes[1].groups = 0;
    ck_assert_status(compile_status(context, &made), HY3D_ERR_INVALID_ARGUMENT);
    hy3d_context_destroy(context);
}
END_TEST

static hy3d_status no_workspace(void *user, const hy3d_step *step, const hy3d_size *source,
                                int32_t on_host, hy3d_step_memory *taken)
{
    (void)user;
    (void)source;
    (void)on_host;
    (void)taken;
    return step->op == HY3D_STEP_CONV ? HY3D_ERR_THREAD : HY3D_OK;
}

START_TEST(test_what_the_workspace_function_returns_is_returned)
{
    hy3d_context *const context = test_context("ref", 1);
    graphs_case made;
    const uint64_t before = test_live();
    small_graph(&made);
    made.request.strategies = 1U << HY3D_STRATEGY_STREAMED;
    made.request.workspace = no_workspace;
    ck_assert_status(compile_status(context, &made), HY3D_ERR_THREAD);
    hy3d_context_trim(context);
    ck_assert_uint_eq(test_live(), before);
    hy3d_context_destroy(context);
}
END_TEST

TCase *hy3d_schedule_refusal_cases(void)
{
    TCase *const tests = tcase_create("refusals");
    tcase_add_test(tests, test_a_wrong_field_of_a_node_is_refused);
    tcase_add_test(tests, test_graphs_that_are_none_are_refused);
    tcase_add_test(tests, test_sizes_beyond_63_bits_are_refused);
    tcase_add_test(tests, test_a_wrong_field_of_a_request_is_refused);
    tcase_add_test(tests, test_nodes_are_alike_the_first_of_their_kind);
    tcase_add_test(tests, test_what_no_strategy_can_run_is_unsupported);
    tcase_add_test(tests, test_errors_of_graph_and_workspace_come_through);
    tcase_add_test(tests, test_what_the_workspace_function_returns_is_returned);
    return tests;
}
