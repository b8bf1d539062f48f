/* Decode programs: bytes as the numbers of a graph and a request (tests/c/graphs_random.c),
 * compiled and replayed; and graphs whose fields are anything at all, which are checked and, where
 * they are good, have the sizes that the replayer counts. */
#include "fuzz.h"

#include <string.h>

#include "judge.h"

#define MOST_FRAMES 200

static int64_t between(void *state, int64_t low, int64_t high)
{
    return fuzz_between(state, low, high);
}

static int32_t odd_number(fuzz_input *in)
{
    return (int32_t)fuzz_number(in);
}

/* Fields of a node, anywhere. */
static void spoil_node(fuzz_input *in, hy3d_node *node)
{
    int32_t *const fields[] = {&node->op, &node->source, &node->other, &node->norm,
                               &node->kernel[0], &node->kernel[1], &node->stride[0],
                               &node->stride[2], &node->dilation[0], &node->up[0], &node->up[1],
                               &node->before[0], &node->before[1], &node->after[0],
                               &node->after[2], &node->shuffle[0], &node->shuffle[1],
                               &node->groups, &node->keep_first, &node->skip_first,
                               &node->reread, &node->shuffle_first, &node->drop, &node->span,
                               &node->heads, &node->frames_first, &node->frames_rest,
                               &node->frames_per, &node->space_up[0], &node->space_down[1]};
    if (fuzz_chance(in, 64)) {
        *(fuzz_chance(in, 128) ? &node->channels : &node->width) = fuzz_number(in);
        return;
    }
    *fields[fuzz_between(in, 0, (int64_t)COUNT_OF(fields) - 1)] = odd_number(in);
}

static bool is_small(const hy3d_size *sizes, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        if (sizes[i].frames > MOST_FRAMES || sizes[i].rows > 4096 || sizes[i].columns > 4096) {
            return false;
        }
    }
    return true;
}

/* Padding, up-sampling and kernels that can be written down as lists. */
static bool has_small_fields(const graphs_case *made)
{
    for (int32_t i = 0; i < made->request.graph.count; i++) {
        const hy3d_node *const node = &made->nodes[i];
        for (int axis = 0; axis < 3; axis++) {
            if (node->kernel[axis] > 4096 || node->before[axis] > 4096 ||
                node->after[axis] > 4096 || node->up[axis] > 64 || node->shuffle[axis] > 64) {
                return false;
            }
        }
        if (node->frames_first > MOST_FRAMES || node->frames_rest > 4096) {
            return false;
        }
    }
    return true;
}

/* Whatever it is: a status, the node named, and the same sizes. */
static void fuzz_graph(fuzz_input *in, graphs_case *made)
{
    hy3d_schedule_request *const request = &made->request;
    hy3d_size sizes[GRAPHS_MOST_NODES];
    int32_t node = -7;
    for (int n = (int)fuzz_between(in, 1, 3); n > 0; n--) {
        spoil_node(in, &made->nodes[fuzz_between(in, 0, request->graph.count - 1)]);
    }
    if (fuzz_chance(in, 48)) {
        request->size[fuzz_between(in, 0, 2)] = fuzz_number(in);
    }
    const hy3d_status status = hy3d_graph_check(&request->graph, request->size, &node);
    FUZZ_CHECK(node >= -1 && node < request->graph.count, "node %d", node);
    FUZZ_CHECK(status == HY3D_OK || status == HY3D_ERR_INVALID_ARGUMENT ||
                   status == HY3D_ERR_SHAPE_MISMATCH || status == HY3D_ERR_OVERFLOW,
               "%s", hy3d_status_name(status));
    FUZZ_CHECK(status != HY3D_OK || node == -1, "node %d of a good graph", node);
    const hy3d_status again = hy3d_graph_sizes(&request->graph, request->size, sizes);
    FUZZ_CHECK(status == again, "%s, then %s", hy3d_status_name(status), hy3d_status_name(again));
    if (status != HY3D_OK || !is_small(sizes, request->graph.count) || !has_small_fields(made)) {
        return;
    }
    replay_values values = replay_values_make(
        &request->graph, 0, request->graph.count - 1,
        (hy3d_size){made->nodes[0].channels, request->size[0], request->size[1],
                    request->size[2]});
    for (int32_t i = 0; i < request->graph.count; i++) {
        FUZZ_CHECK(memcmp(&sizes[i], &values.of[i].size, sizeof sizes[i]) == 0,
                   "the size of node %d", i);
    }
    replay_values_free(&values);
}

/* Any numbers in a request: a status, and nothing that does not replay. */
static void spoil_request(fuzz_input *in, hy3d_schedule_request *request)
{
    int64_t *const wide[] = {&request->element_bytes, &request->input_bytes,
                             &request->result_bytes, &request->kept_bytes, &request->own_bytes,
                             &request->device.slice_bytes[0], &request->device.slice_bytes[1],
                             &request->host.slice_bytes[0], &request->halos[0].halo,
                             &request->halos[0].overlap, &request->halos[0].smallest,
                             &request->halos[1].smallest, &request->most_shape_bytes,
                             &request->busy_positions};
    int32_t *const narrow[] = {&request->is_unified, &request->is_host, &request->may_spill,
                               &request->statistic_passes,
                               &request->device.chunks[0], &request->device.chunks[1],
                               &request->device.chunks[2], &request->host.chunks[0],
                               &request->rank, &request->unit[0], &request->unit[1],
                               &request->unit[2], &request->may_repack};
    if (fuzz_chance(in, 128)) {
        *wide[fuzz_between(in, 0, (int64_t)COUNT_OF(wide) - 1)] = fuzz_number(in);
    } else {
        *narrow[fuzz_between(in, 0, (int64_t)COUNT_OF(narrow) - 1)] = odd_number(in);
    }
}

static void compile_anything(fuzz_input *in, hy3d_context *context, graphs_case *made)
{
    hy3d_schedule *schedule = NULL;
    const bool is_armed = fuzz_arm(in, context);
    const hy3d_status status = hy3d_schedule_compile(context, &made->request, &schedule);
    counting_fail(fuzz_memory(context), 0, false);
    FUZZ_CHECK(status <= HY3D_ERR_OVERFLOW || status == HY3D_ERR_BUDGET_TOO_SMALL ||
                   (status == HY3D_ERR_OUT_OF_MEMORY && is_armed),
               "%s", hy3d_status_name(status));
    if (status == HY3D_OK) {
        replay_verdict verdict;
        FUZZ_CHECK(replay_program(&made->request, hy3d_schedule_program(schedule), &verdict),
                   "%s", verdict.text);
    }
    if (status == HY3D_OK || status == HY3D_ERR_BUDGET_TOO_SMALL) {
        hy3d_schedule_destroy(context, schedule);
    }
}

void fuzz_program(const uint8_t *data, size_t size)
{
    fuzz_input in = {data, size, 0};
    hy3d_context *const context = fuzz_context(0);
    const graphs_numbers numbers = {between, &in};
    judge_report report = {0};
    graphs_case made;
    const int64_t kind = fuzz_between(&in, 0, 3);
    graphs_random(numbers, &made);
    if (kind == 3) {
        fuzz_graph(&in, &made);
        return;
    }
    made.request.device_budget = fuzz_chance(&in, 128) ? fuzz_between(&in, 1, 100000) : 0;
    made.request.host_budget = fuzz_chance(&in, 64) ? fuzz_between(&in, 1, 100000) : 0;
    if (kind == 2) {
        spoil_request(&in, &made.request);
        compile_anything(&in, context, &made);
    } else {
        FUZZ_CHECK(judge_request(context, &made, numbers, &report), "%s", report.text);
    }
}
