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

/* Rows of the source that these rows of a convolution's result read, a row of padding being the one
 * at the border. */
static void conv_reads(const hy3d_node *node, int64_t source_rows, const int64_t rows[2],
                       int64_t reads[2])
{
    const int64_t last = source_rows * node->up[1] - 1;
    reads[0] = source_rows;
    reads[1] = 0;
    for (int64_t row = rows[0]; row < rows[1]; row++) {
        for (int32_t tap = 0; tap < node->kernel[1]; tap++) {
            int64_t at = row / node->shuffle[1] * node->stride[1] +
                         (int64_t)tap * node->dilation[1] - node->before[1];
            at = at < 0 ? 0 : at > last ? last : at;
            widen(reads, at / node->up[1], at / node->up[1] + 1);
        }
    }
}

replay_rows *replay_rows_make(const hy3d_graph *graph, const replay_values *values,
                              const int32_t nodes[2], int32_t rank, int32_t ranks)
{
    replay_rows *const rows = replay_room(graph->count, sizeof *rows);
    const int64_t unit = ranks > 1 ? replay_unit(values) : 1;
    for (int32_t node = nodes[0]; node <= nodes[1]; node++) {
        const int64_t of_unit = values->of[node].size.rows / unit;
        const int64_t own[2] = {unit * rank / ranks * of_unit,
                                unit * (rank + 1) / ranks * of_unit};
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
    const int64_t all = walk->values.of[node->source].size.rows;
    rows[0] = walk->rows[node->source].own[0];
    rows[1] = walk->rows[node->source].own[1];
    if (walk->group != NULL && step->op == HY3D_STEP_CONV) {
        conv_reads(node, all, step->rows, rows);
    } else if (step->op == HY3D_STEP_ATTEND && node->span == HY3D_SPAN_FRAME) {
        rows[0] = 0;
        rows[1] = all;
    }
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
