/* Whether a graph is one, the sizes of its values, and where it may be cut. */
#include <math.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/checked.h"
#include "schedule/frames.h"

/* Fields are small, so that sums and products of a few of them cannot overflow. */
#define MOST_OF_A_FIELD (1 << 10)
/* Frames, rows, columns and channels: the product of a length and some fields fits in 63 bits. */
#define MOST_OF_A_LENGTH (INT64_C(1) << 40)

static bool within(int64_t value, int64_t least, int64_t most)
{
    return value >= least && value <= most;
}

static bool all_within(const int32_t values[3], int32_t least)
{
    return within(values[0], least, MOST_OF_A_FIELD) && within(values[1], least, MOST_OF_A_FIELD) &&
           within(values[2], least, MOST_OF_A_FIELD);
}

static bool has_norm(const hy3d_node *node)
{
    return within(node->norm, HY3D_NORM_NONE, HY3D_NORM_FRAME);
}

static bool conv_fields(const hy3d_node *node)
{
    return has_norm(node) && all_within(node->kernel, 1) && all_within(node->stride, 1) &&
           all_within(node->dilation, 1) && all_within(node->up, 1) &&
           all_within(node->before, 0) && all_within(node->after, 0) &&
           all_within(node->shuffle, 1) && within(node->groups, 1, MOST_OF_A_FIELD) &&
           within(node->keep_first, 0, 1) && within(node->skip_first, 0, MOST_OF_A_FIELD) &&
           within(node->reread, 0, node->skip_first) &&
           within(node->shuffle_first, 0, node->shuffle[0]) &&
           within(node->drop, 0, MOST_OF_A_FIELD);
}

static bool attention_fields(const hy3d_node *node)
{
    return has_norm(node) && within(node->span, HY3D_SPAN_FRAME, HY3D_SPAN_VIDEO) &&
           within(node->heads, 1, MOST_OF_A_FIELD) && within(node->width, 1, MOST_OF_A_LENGTH) &&
           node->width % node->heads == 0;
}

static bool map_fields(const hy3d_node *node)
{
    const bool is_map = node->op == HY3D_OP_MAP;
    bool right = within(node->frames_first, 1, MOST_OF_A_FIELD) &&
                 within(node->frames_rest, is_map ? 1 : 0, MOST_OF_A_FIELD) &&
                 within(node->frames_per, 1, is_map ? 1 : MOST_OF_A_FIELD);
    for (int i = 0; i < 2; i++) {
        right = right && within(node->space_up[i], 1, MOST_OF_A_FIELD) &&
                within(node->space_down[i], 1, MOST_OF_A_FIELD);
    }
    return right;
}

static bool no_conv_fields(const hy3d_node *node)
{
    int32_t any = node->groups | node->keep_first | node->skip_first | node->reread |
                  node->shuffle_first | node->drop;
    for (int i = 0; i < 3; i++) {
        any |= node->kernel[i] | node->stride[i] | node->dilation[i] | node->up[i] |
               node->before[i] | node->after[i] | node->shuffle[i];
    }
    return any == 0;
}

static bool no_attention_fields(const hy3d_node *node)
{
    return node->span == 0 && node->heads == 0 && node->width == 0;
}

static bool no_map_fields(const hy3d_node *node)
{
    return (node->frames_first | node->frames_rest | node->frames_per | node->space_up[0] |
            node->space_up[1] | node->space_down[0] | node->space_down[1]) == 0;
}

static bool node_fields(const hy3d_node *node)
{
    const bool is_conv = node->op == HY3D_OP_CONV, is_attention = node->op == HY3D_OP_ATTENTION;
    const bool is_map = node->op == HY3D_OP_MAP || node->op == HY3D_OP_OPAQUE;
    return within(node->op, HY3D_OP_INPUT, HY3D_OP_OUTPUT) &&
           (is_conv || is_attention || node->norm == HY3D_NORM_NONE) &&
           (is_conv ? conv_fields(node) : no_conv_fields(node)) &&
           (is_attention ? attention_fields(node) : no_attention_fields(node)) &&
           (is_map ? map_fields(node) : no_map_fields(node));
}

/* Whether the node stands where it may and reads what is before it. */
static bool node_edges(const hy3d_graph *graph, int32_t index)
{
    const hy3d_node *node = &graph->nodes[index];
    const bool is_input = node->op == HY3D_OP_INPUT, is_output = node->op == HY3D_OP_OUTPUT;
    if (is_input != (index == 0) || is_output != (index == graph->count - 1)) {
        return false;
    }
    if (is_input ? node->source != -1 : !within(node->source, 0, index - 1)) {
        return false;
    }
    if (node->op == HY3D_OP_ADD) {
        return within(node->other, 0, index - 1);
    }
    return node->op == HY3D_OP_CONV ? within(node->other, -1, index - 1) : node->other == -1;
}

/* A value that no node reads, or -1. */
static int32_t unread(const hy3d_graph *graph)
{
    for (int32_t value = 0; value < graph->count - 1; value++) {
        bool read = false;
        for (int32_t i = value + 1; i < graph->count && !read; i++) {
            read = graph->nodes[i].source == value || graph->nodes[i].other == value;
        }
        if (!read) {
            return value;
        }
    }
    return -1;
}

static bool same_size(const hy3d_size *a, const hy3d_size *b)
{
    return a->channels == b->channels && a->frames == b->frames && a->rows == b->rows &&
           a->columns == b->columns;
}

/* Elements of a value fit in 63 bits, and its sides are no longer than a length may be. */
static hy3d_status check_size(const hy3d_size *size)
{
    int64_t elements = size->channels;
    if (size->channels < 1 || size->frames < 1 || size->rows < 1 || size->columns < 1) {
        return HY3D_ERR_SHAPE_MISMATCH;
    }
    if (size->channels > MOST_OF_A_LENGTH || size->frames > MOST_OF_A_LENGTH ||
        size->rows > MOST_OF_A_LENGTH || size->columns > MOST_OF_A_LENGTH ||
        !hy3d__mul_i64(elements, size->frames, &elements) ||
        !hy3d__mul_i64(elements, size->rows, &elements) ||
        !hy3d__mul_i64(elements, size->columns, &elements)) {
        return HY3D_ERR_OVERFLOW;
    }
    return HY3D_OK;
}

/* Rows or columns (`axis` 1, 2) of a convolution's output before the shuffle; 0 for none. */
static int64_t conv_side(const hy3d_node *node, int axis, int64_t side)
{
    const int64_t extent = (int64_t)node->dilation[axis] * (node->kernel[axis] - 1) + 1;
    const int64_t rest = side * node->up[axis] + node->before[axis] + node->after[axis] - extent;
    return rest < 0 ? 0 : rest / node->stride[axis] + 1;
}

int64_t hy3d__conv_macs(const hy3d_node *node, const hy3d_size *source, int64_t own)
{
    const int64_t factor = (int64_t)node->shuffle[0] * node->shuffle[1] * node->shuffle[2];
    const int64_t taps = (int64_t)node->kernel[0] * node->kernel[1] * node->kernel[2];
    int64_t macs = own;
    const bool fits = hy3d__mul_i64(macs, conv_side(node, 1, source->rows), &macs) &&
                      hy3d__mul_i64(macs, conv_side(node, 2, source->columns), &macs) &&
                      hy3d__mul_i64(macs, node->channels, &macs) &&
                      hy3d__mul_i64(macs, factor, &macs) && hy3d__mul_i64(macs, taps, &macs) &&
                      hy3d__mul_i64(macs, source->channels / node->groups, &macs);
    return fits ? macs : -1;
}

int64_t hy3d__projection_macs(const hy3d_node *node, const hy3d_size *size, int64_t frames,
                              int64_t count)
{
    int64_t macs = count;
    const bool fits =
        hy3d__mul_i64(macs, frames, &macs) && hy3d__mul_i64(macs, size->rows, &macs) &&
        hy3d__mul_i64(macs, size->columns, &macs) && hy3d__mul_i64(macs, node->channels, &macs) &&
        hy3d__mul_i64(macs, node->width, &macs);
    return fits ? macs : -1;
}

int64_t hy3d__score_macs(const hy3d_node *node, const hy3d_size *size, int64_t first, int64_t stop)
{
    int64_t seen = stop - first, tokens, macs; /* frames of keys, over all frames of queries */
    bool fits = true;
    if (node->span == HY3D_SPAN_CAUSAL) {
        fits = hy3d__mul_i64(stop, stop + 1, &seen);
        seen = fits ? seen / 2 - first * (first + 1) / 2 : 0;
    } else if (node->span == HY3D_SPAN_VIDEO) {
        fits = hy3d__mul_i64(seen, size->frames, &seen);
    }
    fits = fits && hy3d__mul_i64(size->rows, size->columns, &tokens) &&
           hy3d__mul_i64(seen, tokens, &macs) && hy3d__mul_i64(macs, tokens, &macs) &&
           hy3d__mul_i64(macs, node->width, &macs) && hy3d__mul_i64(macs, 2, &macs);
    return fits ? macs : -1;
}

int64_t hy3d__attention_macs(const hy3d_node *node, const hy3d_size *size)
{
    const int64_t projected = hy3d__projection_macs(node, size, size->frames, 4);
    const int64_t scored = hy3d__score_macs(node, size, 0, size->frames);
    int64_t macs;
    return projected >= 0 && scored >= 0 && hy3d__add_i64(projected, scored, &macs) ? macs : -1;
}

static hy3d_status conv_size(const hy3d_node *node, const hy3d_size *source, hy3d_size *size_out)
{
    const hy3d__frames frames = hy3d__frames_of(node, source->frames);
    const int64_t factor = (int64_t)node->shuffle[0] * node->shuffle[1] * node->shuffle[2];
    int64_t outputs;
    if (!hy3d__mul_i64(node->channels, factor, &outputs)) {
        return HY3D_ERR_OVERFLOW;
    }
    if (source->channels % node->groups != 0 || outputs % node->groups != 0) {
        return HY3D_ERR_SHAPE_MISMATCH;
    }
    const hy3d_size size = {node->channels, frames.result_total,
                            conv_side(node, 1, source->rows) * node->shuffle[1],
                            conv_side(node, 2, source->columns) * node->shuffle[2]};
    if (frames.passed > 0 && (size.channels != source->channels || size.rows != source->rows ||
                              size.columns != source->columns)) {
        return HY3D_ERR_SHAPE_MISMATCH;
    }
    *size_out = size;
    if (check_size(&size) != HY3D_OK) {
        return check_size(&size);
    }
    return hy3d__conv_macs(node, source, frames.own_total) < 0 ? HY3D_ERR_OVERFLOW : HY3D_OK;
}

static hy3d_status map_size(const hy3d_node *node, const hy3d_size *source, hy3d_size *size_out)
{
    const int64_t rows = source->rows * node->space_up[0];
    const int64_t columns = source->columns * node->space_up[1];
    if (rows % node->space_down[0] != 0 || columns % node->space_down[1] != 0) {
        return HY3D_ERR_SHAPE_MISMATCH;
    }
    const hy3d_size size = {node->channels,
                            node->frames_first +
                                (source->frames - 1) * node->frames_rest / node->frames_per,
                            rows / node->space_down[0], columns / node->space_down[1]};
    *size_out = size;
    return check_size(&size);
}

static hy3d_status attention_size(const hy3d_node *node, const hy3d_size *source,
                                  hy3d_size *size_out)
{
    const hy3d_size keys = {node->width * 2, source->frames, source->rows, source->columns};
    if (node->channels != source->channels) {
        return HY3D_ERR_SHAPE_MISMATCH;
    }
    *size_out = *source;
    const hy3d_status status = check_size(&keys);
    if (status == HY3D_OK && hy3d__attention_macs(node, source) < 0) {
        return HY3D_ERR_OVERFLOW;
    }
    return status;
}

hy3d_status hy3d__node_size(const hy3d_node *node, const hy3d_size *source, hy3d_size *size_out)
{
    switch (node->op) {
    case HY3D_OP_CONV:
        return conv_size(node, source, size_out);
    case HY3D_OP_ATTENTION:
        return attention_size(node, source, size_out);
    case HY3D_OP_MAP:
    case HY3D_OP_OPAQUE:
        return map_size(node, source, size_out);
    default: /* ADD, OUTPUT */
        *size_out = *source;
        return node->channels == source->channels ? HY3D_OK : HY3D_ERR_SHAPE_MISMATCH;
    }
}

hy3d_status hy3d__graph_edges(const hy3d_graph *graph, int32_t *node_out)
{
    *node_out = -1;
    if (graph->nodes == NULL || !within(graph->count, 2, HY3D_GRAPH_MAX_NODES)) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    for (int32_t i = 0; i < graph->count; i++) {
        const bool sized = graph->nodes[i].channels >= 1;
        if (!sized || !node_fields(&graph->nodes[i]) || !node_edges(graph, i)) {
            *node_out = i;
            return HY3D_ERR_INVALID_ARGUMENT;
        }
    }
    *node_out = unread(graph);
    return *node_out < 0 ? HY3D_OK : HY3D_ERR_INVALID_ARGUMENT;
}

hy3d_status hy3d__graph_sizes_from(const hy3d_graph *graph, const int64_t size[3],
                                   hy3d_size *sizes_out, int32_t *node_out)
{
    const hy3d_size input = {graph->nodes[0].channels, size[0], size[1], size[2]};
    sizes_out[0] = input;
    hy3d_status status = check_size(&input);
    *node_out = status == HY3D_OK ? -1 : 0;
    for (int32_t i = 1; i < graph->count && status == HY3D_OK; i++) {
        const hy3d_node *node = &graph->nodes[i];
        status = hy3d__node_size(node, &sizes_out[node->source], &sizes_out[i]);
        if (status == HY3D_OK && node->other >= 0 &&
            !same_size(&sizes_out[i], &sizes_out[node->other])) {
            status = HY3D_ERR_SHAPE_MISMATCH;
        }
        *node_out = status == HY3D_OK ? -1 : i;
    }
    return status;
}

static bool right_input(const hy3d_graph *graph, const int64_t size[3])
{
    return graph != NULL && size != NULL && size[0] >= 1 && size[1] >= 1 && size[2] >= 1;
}

hy3d_status hy3d_graph_check(const hy3d_graph *graph, const int64_t size[3], int32_t *node_out)
{
    hy3d_size sizes[HY3D_GRAPH_MAX_NODES];
    int32_t node = -1;
    hy3d_status status = HY3D_ERR_INVALID_ARGUMENT;
    if (right_input(graph, size)) {
        status = hy3d__graph_edges(graph, &node);
    }
    if (status == HY3D_OK) {
        status = hy3d__graph_sizes_from(graph, size, sizes, &node);
    }
    if (node_out != NULL) {
        *node_out = node;
    }
    return status;
}

hy3d_status hy3d_graph_sizes(const hy3d_graph *graph, const int64_t size[3], hy3d_size *sizes_out)
{
    int32_t node;
    if (!right_input(graph, size) || sizes_out == NULL) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    const hy3d_status status = hy3d__graph_edges(graph, &node);
    return status == HY3D_OK ? hy3d__graph_sizes_from(graph, size, sizes_out, &node) : status;
}

/* Behind which node nothing before it is read: the first one from `from` on, or -1. Not the one
 * that only OUTPUT reads: then nothing would be left to do. */
static int32_t lonely_from(const hy3d_graph *graph, int32_t from)
{
    for (int32_t cut = from; cut < graph->count - 2; cut++) {
        bool alone = true;
        for (int32_t i = cut + 1; i < graph->count && alone; i++) {
            alone = graph->nodes[i].source >= cut &&
                    (graph->nodes[i].other < 0 || graph->nodes[i].other >= cut);
        }
        if (alone) {
            return cut;
        }
    }
    return -1;
}

/* How far a cut is felt along one axis, counted in rows (columns) of the cut's value, and those of
 * each value for one of the input: doubles, which hold quotients of small powers of two exactly.
 */
typedef struct reached {
    double far, scale;
} reached;

static reached reached_by(const hy3d_node *node, int axis, const reached *all, double cut_scale)
{
    reached found = all[node->source];
    if (node->op == HY3D_OP_CONV) {
        const double up = found.scale * node->up[axis];
        const int32_t extent = node->dilation[axis] * (node->kernel[axis] - 1);
        const int32_t after = extent - node->before[axis];
        found.far += (after > node->before[axis] ? after : node->before[axis]) / (up / cut_scale);
        found.scale = up * node->shuffle[axis] / node->stride[axis];
    } else if (node->op == HY3D_OP_MAP || node->op == HY3D_OP_OPAQUE) {
        found.scale *= (double)node->space_up[axis - 1] / node->space_down[axis - 1];
    }
    if (node->other >= 0 && all[node->other].far > found.far) {
        found.far = all[node->other].far;
    }
    return found;
}

/* Scale and reach of a cut along one axis. */
static reached cut_along(const hy3d_graph *graph, int32_t cut, int axis)
{
    reached all[HY3D_GRAPH_MAX_NODES];
    all[0] = (reached){.scale = 1};
    for (int32_t i = 1; i < graph->count; i++) {
        all[i] = reached_by(&graph->nodes[i], axis, all, i > cut ? all[cut].scale : 1);
        all[i].far = i <= cut ? 0 : all[i].far;
    }
    /* NOLINTNEXTLINE(clang-analyzer-security.ArrayBound): a graph that was checked has nodes */
    return (reached){.far = all[graph->count - 1].far, .scale = all[cut].scale};
}

hy3d_status hy3d_graph_cut(const hy3d_graph *graph, const int64_t size[3], hy3d_cut *cut_out)
{
    if (cut_out == NULL) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    const hy3d_status status = hy3d_graph_check(graph, size, NULL);
    if (status != HY3D_OK) {
        return status;
    }
    int32_t last = 0;
    for (int32_t i = 0; i < graph->count; i++) {
        const int32_t op = graph->nodes[i].op;
        last = op == HY3D_OP_ATTENTION || op == HY3D_OP_OPAQUE ? i : last;
    }
    hy3d_cut cut = {.node = lonely_from(graph, last), .scale = 1};
    for (int32_t i = cut.node + 1; i < graph->count; i++) {
        cut.group_norms += graph->nodes[i].norm == HY3D_NORM_GROUP;
        cut.frame_norms += graph->nodes[i].norm == HY3D_NORM_FRAME;
    }
    if (cut.node >= 0) {
        const reached rows = cut_along(graph, cut.node, 1);
        const reached columns = cut_along(graph, cut.node, 2);
        const double far = rows.far > columns.far ? rows.far : columns.far;
        cut.scale = (int64_t)rows.scale;
        cut.reach = (int64_t)ceil(far - 1e-6);
        if (rows.scale < 1 || floor(rows.scale) < rows.scale) {
            cut.node = -1;
        }
    }
    *cut_out = cut;
    return HY3D_OK;
}

/* Of a value: frames for one of the input, and how many of the input's back one of them depends:
 * doubles, as above. */
typedef struct traced {
    double rate, past;
} traced;

static bool sees_all(const hy3d_node *node)
{
    return node->norm == HY3D_NORM_GROUP || node->op == HY3D_OP_OPAQUE ||
           (node->op == HY3D_OP_ATTENTION && node->span != HY3D_SPAN_FRAME);
}

static traced traced_by(const hy3d_node *node, const traced *all)
{
    traced found = all[node->source];
    if (node->op == HY3D_OP_CONV) {
        const double read = found.rate * node->up[0];
        const double made = read * node->shuffle[0] / node->stride[0];
        found.past += (double)node->dilation[0] * (node->kernel[0] - 1) / read;
        if ((int64_t)node->up[0] * node->shuffle[0] != node->stride[0] || node->skip_first != 0) {
            /* frames are not read one to one */
            found.past += 1 / fmin(found.rate, made);
        }
        found.rate = made;
    } else if (node->op == HY3D_OP_MAP) {
        found.rate *= node->frames_rest > 1 ? node->frames_rest : 1;
    }
    if (node->other >= 0) {
        found.rate = fmax(found.rate, all[node->other].rate);
        found.past = fmax(found.past, all[node->other].past);
    }
    return found;
}

int64_t hy3d__graph_past(const hy3d_graph *graph, double *rate_out)
{
    traced all[HY3D_GRAPH_MAX_NODES];
    all[0] = (traced){.rate = 1};
    for (int32_t i = 1; i < graph->count; i++) {
        if (sees_all(&graph->nodes[i])) {
            return -1;
        }
        all[i] = traced_by(&graph->nodes[i], all);
    }
    *rate_out = all[graph->count - 1].rate;
    return (int64_t)ceil(all[graph->count - 1].past - 1e-6);
}
