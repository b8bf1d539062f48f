/* Rows of several ranks: who makes which, which others a slice has, and the books of those that are
 * filled. Here too all is found by walking over rows. */
#include "replay_walk.h"

#include <stdlib.h>

typedef long long ll;

static void widen(int64_t range[2], int64_t first, int64_t stop)
{
    range[0] = first < range[0] ? first : range[0];
    range[1] = stop > range[1] ? stop : range[1];
}

/* Up-sampled rows that the taps of these rows of a convolution's result touch, padding with them. */
static void conv_touches(const hy3d_node *node, const int64_t rows[2], int64_t touched[2])
{
    touched[0] = INT64_MAX;
    touched[1] = INT64_MIN;
    for (int64_t row = rows[0]; row < rows[1]; row++) {
        for (int32_t tap = 0; tap < node->kernel[1]; tap++) {
            const int64_t at = row / node->shuffle[1] * node->stride[1] +
                               (int64_t)tap * node->dilation[1] - node->before[1];
            widen(touched, at, at + 1);
        }
    }
}

/* Rows of the source among them, a row of padding being the one at the border, which others touch. */
static void conv_reads(const hy3d_node *node, int64_t source_rows, const int64_t rows[2],
                       int64_t reads[2])
{
    int64_t touched[2];
    conv_touches(node, rows, touched);
    reads[0] = source_rows;
    reads[1] = 0;
    for (int64_t at = touched[0]; at < touched[1]; at++) {
        int64_t row = 0;
        while (row + 1 < source_rows && (row + 1) * node->up[1] <= at) {
            row++;
        }
        widen(reads, row, row + 1);
    }
}

replay_rows *replay_rows_make(const hy3d_graph *graph, const replay_values *values,
                              const int32_t nodes[2], int32_t rank, int32_t ranks,
                              const int32_t *weights)
{
    replay_rows *const rows = replay_room(graph->count, sizeof *rows);
    const int64_t unit = ranks > 1 ? replay_unit(values) : 1;
    int64_t before = 0, with = 0, sum = 0;
    for (int32_t other = 0; other < ranks; other++) {
        const int64_t weight = ranks == 1 || weights == NULL ? 1 : weights[other];
        before += other < rank ? weight : 0;
        with += other <= rank ? weight : 0;
        sum += weight;
    }
    for (int32_t node = nodes[0]; node <= nodes[1]; node++) {
        const int64_t of_unit = values->of[node].size.rows / unit;
        const int64_t own[2] = {unit * before / sum * of_unit, unit * with / sum * of_unit};
        rows[node] = (replay_rows){{own[0], own[1]}, {own[0], own[1]}};
    }
    if (ranks == 1 || rows[nodes[0]].own[0] == rows[nodes[0]].own[1]) {
        return rows;
    }
    for (int32_t index = nodes[0] + 1; index <= nodes[1]; index++) {
        const hy3d_node *const node = &graph->nodes[index];
        const int64_t all = values->of[node->source].size.rows;
        int64_t reads[2] = {0, all};
        if (node->op == HY3D_OP_CONV) {
            conv_reads(node, all, rows[index].own, reads);
        } else if (node->op != HY3D_OP_ATTENTION || node->span != HY3D_SPAN_FRAME) {
            continue;
        }
        widen(rows[node->source].held, reads[0], reads[1]);
    }
    return rows;
}

void replay_rows_read(const replay_walk *walk, const hy3d_step *step, int64_t rows[2])
{
    const hy3d_node *const node = replay_node_at(walk, step->node);
    const int32_t source = step->op == HY3D_STEP_TRIM ? step->node : node->source;
    const int64_t all = walk->values.of[source].size.rows;
    rows[0] = walk->rows[source].own[0];
    rows[1] = walk->rows[source].own[1];
    if (walk->group != NULL && step->op == HY3D_STEP_CONV) {
        conv_reads(node, all, step->rows, rows);
    } else if (step->op == HY3D_STEP_ATTEND && node->span == HY3D_SPAN_FRAME) {
        rows[0] = 0;
        rows[1] = all;
    } else if (step->op == HY3D_STEP_TRIM) {
        rows[0] = walk->rows[source].held[0];
        rows[1] = walk->rows[source].held[1];
    }
}

/* Whether the step reads a source at all. */
static bool has_source(const replay_walk *walk, const hy3d_step *step)
{
    return step->op == HY3D_STEP_KEYS || step->op == HY3D_STEP_TRIM ||
           (replay_makes(step) && step->node > walk->entry);
}

bool replay_rows_are_stated(replay_walk *walk, const hy3d_step *step)
{
    const hy3d_node *const node = replay_node_at(walk, step->node);
    int64_t rows[2] = {step->read_rows[0], step->read_rows[0]}, padding[2] = {0, 0};
    if (has_source(walk, step)) {
        replay_rows_read(walk, step, rows);
    }
    if (step->op == HY3D_STEP_CONV && walk->group == NULL) {
        padding[0] = node->before[1];
        padding[1] = node->after[1];
    } else if (step->op == HY3D_STEP_CONV) {
        int64_t touched[2];
        conv_touches(node, step->rows, touched);
        padding[0] = rows[0] * node->up[1] - touched[0];
        padding[1] = touched[1] - rows[1] * node->up[1];
    }
    return (step->read_rows[0] == rows[0] && step->read_rows[1] == rows[1] &&
            step->row_padding[0] == padding[0] && step->row_padding[1] == padding[1]) ||
           replay_object(walk, "reads rows %lld to %lld, padded by %lld and %lld, not %lld to %lld "
                         "by %lld and %lld", (ll)step->read_rows[0], (ll)step->read_rows[1],
                         (ll)step->row_padding[0], (ll)step->row_padding[1], (ll)rows[0],
                         (ll)rows[1], (ll)padding[0], (ll)padding[1]);
}

int64_t replay_rows_gathered(const replay_walk *walk, const hy3d_step *step)
{
    const bool is_prefix = walk->section->kind == HY3D_SECTION_PREFIX;
    const int32_t output = is_prefix ? walk->last : replay_node_at(walk, walk->last)->source;
    const int64_t *const own = walk->rows[output].own;
    const hy3d_slice value = {.node = output};
    int64_t rows = 0;
    for (int64_t row = 0; row < walk->values.of[output].size.rows && walk->group != NULL; row++) {
        const bool is_own = row >= own[0] && row < own[1];
        /* On rank 0 each row is among those put together, and those of others came before. */
        rows += walk->rank == 0 ? 1 + !is_own : is_own;
    }
    return replay_bytes(walk, &value, step->frames[1] - step->frames[0], rows);
}

void replay_rows_open(replay_walk *walk, int32_t number)
{
    const hy3d_slice *const slice = replay_slice_at(walk, number);
    if (walk->group != NULL) {
        walk->slices[number].lacks =
            (slice->frames[1] - slice->frames[0]) * (slice->rows[1] - slice->rows[0]);
        walk->slices[number].filled = replay_room(walk->slices[number].lacks, 1);
    }
}

/* Whether the slice has these frames and rows at all. */
static bool is_within(replay_walk *walk, int32_t number, const int64_t frames[2],
                      const int64_t rows[2])
{
    const hy3d_slice *const slice = replay_slice_at(walk, number);
    return (frames[0] >= slice->frames[0] && frames[1] <= slice->frames[1] &&
            rows[0] >= slice->rows[0] && rows[1] <= slice->rows[1]) ||
           replay_object(walk, "slice %d has frames %lld to %lld, rows %lld to %lld, not frames "
                         "%lld to %lld, rows %lld to %lld", number, (ll)slice->frames[0],
                         (ll)slice->frames[1], (ll)slice->rows[0], (ll)slice->rows[1],
                         (ll)frames[0], (ll)frames[1], (ll)rows[0], (ll)rows[1]);
}

static unsigned char *filled_at(const replay_walk *walk, int32_t number, int64_t frame,
                                int64_t row)
{
    const hy3d_slice *const slice = replay_slice_at(walk, number);
    return walk->slices[number].filled +
           (frame - slice->frames[0]) * (slice->rows[1] - slice->rows[0]) + row - slice->rows[0];
}

bool replay_rows_fill(replay_walk *walk, int32_t number, const int64_t frames[2],
                      const int64_t rows[2])
{
    if (walk->group == NULL) {
        return true;
    }
    if (!is_within(walk, number, frames, rows)) {
        return false;
    }
    for (int64_t frame = frames[0]; frame < frames[1]; frame++) {
        for (int64_t row = rows[0]; row < rows[1]; row++) {
            if ((*filled_at(walk, number, frame, row))++ != 0) {
                return replay_object(walk, "row %lld of frame %lld of slice %d a second time",
                                     (ll)row, (ll)frame, number);
            }
            walk->slices[number].lacks--;
        }
    }
    return true;
}

bool replay_rows_are_there(replay_walk *walk, int32_t number, const int64_t frames[2],
                           const int64_t rows[2])
{
    if (walk->group == NULL) {
        return true;
    }
    if (!is_within(walk, number, frames, rows)) {
        return false;
    }
    for (int64_t frame = frames[0]; frame < frames[1] && walk->slices[number].lacks > 0; frame++) {
        for (int64_t row = rows[0]; row < rows[1]; row++) {
            if (*filled_at(walk, number, frame, row) == 0) {
                return replay_object(walk, "row %lld of frame %lld of slice %d is not there",
                                     (ll)row, (ll)frame, number);
            }
        }
    }
    return true;
}
