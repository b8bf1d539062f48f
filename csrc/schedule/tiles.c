/* Levels, the choice among them, and single tiles. */
#include <stdbool.h>
#include <stddef.h>

#include "base/checked.h"
#include "schedule/axis.h"

/* What a level looks like. */
typedef struct level_shape {
    int64_t count[3];
    int64_t tile_bytes;
} level_shape;

static hy3d_status make_axes(const hy3d_tiles_desc *desc, hy3d__axis axes_out[3])
{
    for (int i = 0; i < 3; i++) {
        const hy3d_status status = hy3d__tiles_axis(desc, i, &axes_out[i]);
        if (status != HY3D_OK) {
            return status;
        }
    }
    return HY3D_OK;
}

/* The axes are independent, so some tile is largest along all three at once. */
static hy3d_status tile_cost(const hy3d_tiles_desc *desc, const hy3d__axis axes[3],
                             const int64_t count[3], int64_t *bytes_out)
{
    int64_t tokens = 1, voxels = 1, of_voxels, of_pairs, sum;
    bool fits = true;
    for (int i = 0; i < 3; i++) {
        const int64_t extent = hy3d__axis_max_extent(&axes[i], count[i]);
        fits = fits && hy3d__mul_i64(tokens, extent, &tokens) &&
               hy3d__mul_i64(voxels, hy3d__axis_decoded(&axes[i], extent), &voxels);
    }
    if (!fits || !hy3d__mul_i64(desc->bytes_per_voxel, voxels, &of_voxels) ||
        !hy3d__mul_i64(desc->bytes_per_token_pair, tokens, &of_pairs) ||
        !hy3d__mul_i64(of_pairs, tokens, &of_pairs) ||
        !hy3d__add_i64(desc->fixed_bytes, of_voxels, &sum) || !hy3d__add_i64(sum, of_pairs, &sum)) {
        return HY3D_ERR_OVERFLOW;
    }
    *bytes_out = sum;
    return HY3D_OK;
}

/* Makes smaller the axis whose largest tile is longest counted in its own boundaries (`reach`, the
 * latents that overlap, halo and warm-up add), of those that can be cut: there a boundary costs
 * the smallest share. Halving the tile that is longest in frames or pixels decodes 31 % more for
 * the same budget (tests/bench/split_rules.py, 1078 decodes of usual sizes), because it cuts a
 * long clip into small squares while its time is still whole. It suits the picture too: a
 * GroupNorm over (T,H,W) sees nearly the whole clip's statistics in a part of its time, not in a
 * corner of its frames. A short clip's time stays whole, because the warm-up is a large share of
 * it. Ties: the longest in output units, then H, W, T, since a wrong boundary in time flickers
 * where one in space lies still. */
static bool next_level(const hy3d__axis axes[3], int64_t shrink, int64_t count[3])
{
    static const int order[3] = {1, 2, 0};
    int64_t best_extent = 0, best_reach = 1, best_length = 0, next_count = 0;
    int chosen = -1;
    for (int i = 0; i < 3; i++) {
        const hy3d__axis *axis = &axes[order[i]];
        const int64_t now = count[order[i]], next = hy3d__axis_next_count(axis, now, shrink);
        if (next == now) {
            continue;
        }
        /* At most the product of two latent sizes, which fits like the voxels do. */
        const int64_t extent = hy3d__axis_max_extent(axis, now);
        const int64_t left = extent * best_reach, right = best_extent * axis->reach;
        const int64_t length = hy3d__axis_decoded(axis, extent);
        if (left > right || (left == right && length > best_length)) {
            best_extent = extent;
            best_reach = axis->reach;
            best_length = length;
            next_count = next;
            chosen = order[i];
        }
    }
    if (chosen < 0) {
        return false;
    }
    count[chosen] = next_count;
    return true;
}

/* How many tiles of `bytes` fit beside the resident bytes: 0 when one does not. */
static int64_t fitting(const hy3d_tiles_desc *desc, int64_t bytes, int64_t most)
{
    const int64_t budget = desc->budget_bytes == 0 ? INT64_MAX : desc->budget_bytes;
    if (desc->resident_bytes > budget || bytes > budget - desc->resident_bytes) {
        return 0;
    }
    const int64_t fit = bytes == 0 ? most : (budget - desc->resident_bytes) / bytes;
    return fit < most ? fit : most;
}

/* Walks all levels. *chosen_out is the wanted one, or the finest where none fits. */
static hy3d_status walk_levels(const hy3d_tiles_desc *desc, const hy3d__axis axes[3],
                               level_shape *chosen_out, level_shape *finest_out,
                               hy3d_tiles_plan *plan)
{
    level_shape now = {.count = {1, 1, 1}, .tile_bytes = 0};
    const int64_t shrink = desc->shrink == 0 ? 2 : desc->shrink;
    bool found = false;
    int32_t level = 0;
    for (;; level++) {
        const hy3d_status status = tile_cost(desc, axes, now.count, &now.tile_bytes);
        if (status != HY3D_OK) {
            return status;
        }
        const bool wanted =
            desc->level >= 0 ? level == desc->level : fitting(desc, now.tile_bytes, 1) > 0;
        if (wanted && !found) {
            *chosen_out = now;
            plan->level = level;
            found = true;
        }
        *finest_out = now;
        if (level == hy3d__tiles_max_level(desc) || !next_level(axes, shrink, now.count)) {
            break;
        }
    }
    plan->levels = level + 1;
    if (!found) { /* refused by the caller: no plan is given */
        *chosen_out = *finest_out;
    }
    return HY3D_OK;
}

hy3d_status hy3d_tiles_make(const hy3d_tiles_desc *desc, int64_t *smallest_budget_out,
                            hy3d_tiles_plan *plan_out)
{
    if (desc == NULL || plan_out == NULL) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    hy3d__axis axes[3];
    level_shape chosen, finest;
    hy3d_tiles_plan plan = {.desc = *desc, .tiles = 1, .decoded_voxels = 1};
    hy3d_status status = hy3d__tiles_check(desc);
    if (status == HY3D_OK) {
        status = make_axes(desc, axes);
    }
    if (status == HY3D_OK) {
        status = walk_levels(desc, axes, &chosen, &finest, &plan);
    }
    if (status != HY3D_OK) {
        return status;
    }
    if (desc->level >= plan.levels) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    int64_t needed;
    if (!hy3d__add_i64(desc->resident_bytes, chosen.tile_bytes, &needed)) {
        return HY3D_ERR_OVERFLOW;
    }
    plan.smallest_budget_bytes = desc->resident_bytes + finest.tile_bytes;
    for (int i = 0; i < 3; i++) {
        plan.out[i] = axes[i].out;
        plan.count[i] = chosen.count[i];
        plan.tile[i] = hy3d__axis_start(&axes[i], chosen.count[i], 1);
        plan.extent[i] = hy3d__axis_max_extent(&axes[i], chosen.count[i]);
        plan.decoded_voxels *= hy3d__axis_all_decoded(&axes[i], chosen.count[i]);
        plan.tiles *= chosen.count[i]; /* at most the latent's voxels, which were checked */
    }
    plan.tile_bytes = chosen.tile_bytes;
    const int64_t most = plan.tiles < desc->max_in_flight ? plan.tiles : desc->max_in_flight;
    plan.in_flight = (int32_t)fitting(desc, chosen.tile_bytes, most);
    if (plan.in_flight == 0) {
        if (smallest_budget_out != NULL) {
            *smallest_budget_out = needed;
        }
        return HY3D_ERR_BUDGET_TOO_SMALL;
    }
    plan.peak_bytes = desc->resident_bytes + plan.in_flight * chosen.tile_bytes;
    *plan_out = plan;
    return HY3D_OK;
}
