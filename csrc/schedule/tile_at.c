/* Single tiles and their blend windows. */
#include <stdbool.h>
#include <stddef.h>

#include "schedule/axis.h"

/* Weights are multiples of 1/256. Then 1 - w is exact, the product of three weights is a multiple
 * of 2^-24 and exact too, and so are the sums of all of them: the windows of a plan add up to
 * exactly 1 in float, along each axis and in space. A step of 1/256 of the difference between two
 * tiles is below what 8-bit video shows. */
#define WEIGHT_STEPS 256

/* A plan may have been built by someone else. Everything the arithmetic below relies on is
 * checked: field ranges, and counts that keep a core as long as the overlap. */
static hy3d_status check_plan(const hy3d_tiles_plan *plan, hy3d__axis axes_out[3])
{
    hy3d_status status = hy3d__tiles_check(&plan->desc);
    int64_t tiles = plan->tiles;
    for (int i = 0; i < 3 && status == HY3D_OK; i++) {
        status = hy3d__tiles_axis(&plan->desc, i, &axes_out[i]);
        if (status != HY3D_OK) {
            break;
        }
        const int64_t count = plan->count[i];
        if (count < 1 || count > axes_out[i].max_count || plan->out[i] != axes_out[i].out ||
            tiles % count != 0) {
            return HY3D_ERR_INVALID_ARGUMENT;
        }
        tiles /= count;
    }
    if (status == HY3D_OK && tiles != 1) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    return status;
}

static void fill_axis(const hy3d__axis *axis, int64_t count, int64_t place, int i, hy3d_tile *tile)
{
    const int64_t start = hy3d__axis_start(axis, count, place);
    const int64_t stop = hy3d__axis_start(axis, count, place + 1);
    const bool first = place == 0, last = place == count - 1;
    tile->own_start[i] = start;
    tile->own_stop[i] = stop;
    hy3d__axis_input(axis, count, place, &tile->in_start[i], &tile->in_stop[i]);
    const int64_t out_start = first ? 0 : hy3d__axis_output(axis, start - axis->shared_before);
    const int64_t out_stop = last ? axis->out : hy3d__axis_output(axis, stop + axis->shared_after);
    tile->out_start[i] = out_start;
    tile->out_stop[i] = out_stop;
    /* The decoded tile's unit 0 is unit in_start * factor of the output, causal or not. */
    tile->trim_start[i] = out_start - tile->in_start[i] * axis->factor;
    tile->ramp_before[i] =
        first ? 0 : hy3d__axis_output(axis, start + axis->shared_after) - out_start;
    tile->ramp_after[i] = last ? 0 : out_stop - hy3d__axis_output(axis, stop - axis->shared_before);
}

hy3d_status hy3d_tiles_at(const hy3d_tiles_plan *plan, int64_t index, hy3d_tile *tile_out)
{
    if (plan == NULL || tile_out == NULL) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    hy3d__axis axes[3];
    const hy3d_status status = check_plan(plan, axes);
    if (status != HY3D_OK) {
        return status;
    }
    if (index < 0 || index >= plan->tiles) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    hy3d_tile tile;
    for (int i = 2; i >= 0; i--) {
        fill_axis(&axes[i], plan->count[i], index % plan->count[i], i, &tile);
        index /= plan->count[i];
    }
    *tile_out = tile;
    return HY3D_OK;
}

/* Weight of position `at` of a rising ramp: the ramp at the middle of the unit, (2 at + 1) / 2n,
 * rounded to a step. */
static float ramp(int64_t at, int64_t length)
{
    const int64_t steps = (WEIGHT_STEPS * (2 * at + 1) + length) / (2 * length);
    return (float)steps / (float)WEIGHT_STEPS;
}

hy3d_status hy3d_tile_window(const hy3d_tile *tile, int axis, float *window_out)
{
    if (tile == NULL || window_out == NULL || axis < 0 || axis > 2) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    const int64_t start = tile->out_start[axis], stop = tile->out_stop[axis];
    const int64_t before = tile->ramp_before[axis], after = tile->ramp_after[axis];
    if (start < 0 || stop <= start || before < 0 || before > stop - start || after < 0 ||
        after > stop - start - before) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    const int64_t length = stop - start;
    if (length > INT64_MAX / (4 * WEIGHT_STEPS)) {
        return HY3D_ERR_OVERFLOW;
    }
    for (int64_t i = 0; i < before; i++) {
        window_out[i] = ramp(i, before);
    }
    for (int64_t i = before; i < length - after; i++) {
        window_out[i] = 1.0f;
    }
    /* Taken from the neighbour's rising ramp, so that the two always add up to 1. */
    for (int64_t i = 0; i < after; i++) {
        window_out[length - after + i] = 1.0f - ramp(i, after);
    }
    return HY3D_OK;
}
