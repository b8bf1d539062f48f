/* Arithmetic of one axis. */
#include "schedule/axis.h"

#include <stddef.h>

#include "base/checked.h"

static int64_t ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

/* a + b, at most `limit`; all of them >= 0. */
static int64_t add_up_to(int64_t a, int64_t b, int64_t limit)
{
    const int64_t first = hy3d__min_i64(a, limit);
    return first + hy3d__min_i64(b, limit - first);
}

int32_t hy3d__tiles_max_level(const hy3d_tiles_desc *desc)
{
    return desc->shrink > 2 ? HY3D_TILES_MAX_FINE_LEVEL : HY3D_TILES_MAX_LEVEL;
}

hy3d_status hy3d__tiles_check(const hy3d_tiles_desc *desc)
{
    for (int i = 0; i < 3; i++) {
        if (desc->latent[i] < 1 || desc->factor[i] < 1 || desc->min_tile[i] < 1 ||
            desc->overlap[i] < 0 || desc->halo[i] < 0) {
            return HY3D_ERR_INVALID_ARGUMENT;
        }
    }
    if (desc->causal < 0 || desc->causal > 1 || desc->fixed_bytes < 0 ||
        desc->bytes_per_voxel < 0 || desc->bytes_per_token_pair < 0 || desc->resident_bytes < 0 ||
        desc->budget_bytes < 0 || desc->max_in_flight < 1 || desc->level < -1 ||
        desc->level > hy3d__tiles_max_level(desc) || desc->shrink < 0 || desc->shrink == 1 ||
        desc->shrink > HY3D_TILES_MAX_SHRINK) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    return HY3D_OK;
}

hy3d_status hy3d__tiles_axis(const hy3d_tiles_desc *desc, int index, hy3d__axis *axis_out)
{
    const int64_t latent = desc->latent[index], factor = desc->factor[index];
    const int64_t overlap = desc->overlap[index];
    const bool causal = index == 0 && desc->causal == 1;
    int64_t out;
    if (!hy3d__mul_i64(causal ? latent - 1 : latent, factor, &out) ||
        !hy3d__add_i64(out, causal ? 1 : 0, &out)) {
        return HY3D_ERR_OVERFLOW;
    }
    /* A causal tile is exact up to its last frame, so nothing beyond its core is worth decoding:
     * the whole overlap lies before the boundary. Elsewhere the two tiles share it evenly. The
     * first latent of a causal clip gives one frame instead of `factor`: unless they are the same,
     * at least one latent of warm-up is needed for a whole first group. */
    const int64_t after = causal ? 0 : overlap / 2;
    const int64_t warm_up = causal && factor > 1 ? 1 : 0;
    const int64_t shared_before = hy3d__min_i64(overlap - after, latent);
    const int64_t shared_after = hy3d__min_i64(after, latent);
    const int64_t halo = hy3d__max_i64(desc->halo[index], warm_up);
    const int64_t reach_before = add_up_to(shared_before, halo, latent);
    const int64_t reach_after = causal ? 0 : add_up_to(shared_after, halo, latent);
    const hy3d__axis axis = {
        .latent = latent,
        .factor = factor,
        .out = out,
        .causal = causal,
        .shared_before = shared_before,
        .shared_after = shared_after,
        .reach_before = reach_before,
        .reach_after = reach_after,
        .reach = hy3d__max_i64(1, add_up_to(reach_before, reach_after, latent)),
        /* A core at least as long as the overlap keeps the two ramps of a tile apart, so that at
         * most two tiles meet anywhere. */
        .max_count = hy3d__max_i64(1, latent / hy3d__max_i64(desc->min_tile[index], overlap)),
    };
    *axis_out = axis;
    return HY3D_OK;
}

/* The long cores come first: the first tile has nothing before it to decode (no warm-up, no
 * halo), so the extra latent costs least there. */
int64_t hy3d__axis_start(const hy3d__axis *axis, int64_t count, int64_t tile)
{
    return tile * (axis->latent / count) + hy3d__min_i64(tile, axis->latent % count);
}

/* First tile that starts at `latent` or after it, 0 <= latent <= axis->latent. */
static int64_t first_tile_from(const hy3d__axis *axis, int64_t count, int64_t latent)
{
    const int64_t core = axis->latent / count, long_cores = axis->latent % count;
    /* Without long cores the longest may be INT64_MAX: nothing is added to it then. */
    const int64_t long_total = long_cores == 0 ? 0 : long_cores * (core + 1);
    if (latent == 0) {
        return 0;
    }
    if (latent <= long_total) {
        return ceil_div(latent, core + 1);
    }
    return long_cores + ceil_div(latent - long_total, core);
}

int64_t hy3d__axis_output(const hy3d__axis *axis, int64_t latent)
{
    if (axis->causal) {
        return latent == 0 ? 0 : (latent - 1) * axis->factor + 1;
    }
    return latent * axis->factor;
}

int64_t hy3d__axis_decoded(const hy3d__axis *axis, int64_t extent)
{
    return axis->causal ? (extent - 1) * axis->factor + 1 : extent * axis->factor;
}

void hy3d__axis_input(const hy3d__axis *axis, int64_t count, int64_t tile, int64_t *start_out,
                      int64_t *stop_out)
{
    const int64_t start = hy3d__axis_start(axis, count, tile);
    const int64_t stop = hy3d__axis_start(axis, count, tile + 1);
    *start_out = start - hy3d__min_i64(start, axis->reach_before);
    *stop_out = stop + hy3d__min_i64(axis->latent - stop, axis->reach_after);
}

/* Tiles that the front edge cuts off grow with their index. Those after them are whole, the long
 * cores first, or cut off by the rear edge, and then shrink. So the largest is the last of the
 * first kind or the one after it. */
int64_t hy3d__axis_max_extent(const hy3d__axis *axis, int64_t count)
{
    const int64_t uncut = first_tile_from(axis, count, axis->reach_before);
    int64_t largest = 0;
    for (int64_t tile = hy3d__max_i64(0, uncut - 1); tile <= hy3d__min_i64(uncut, count - 1);
         tile++) {
        int64_t start, stop;
        hy3d__axis_input(axis, count, tile, &start, &stop);
        largest = hy3d__max_i64(largest, stop - start);
    }
    return largest;
}

/* With a wide halo one step may gain nothing where the next one does (the inner tiles reach to
 * both sides, the two halves to one): such steps are passed over. */
int64_t hy3d__axis_next_count(const hy3d__axis *axis, int64_t count, int64_t shrink)
{
    const int64_t largest = hy3d__axis_max_extent(axis, count);
    int64_t next = count;
    while (next < axis->max_count) {
        const int64_t core = ceil_div(axis->latent, next);
        const int64_t smaller = hy3d__max_i64(1, core - hy3d__max_i64(1, core / shrink));
        next = hy3d__min_i64(ceil_div(axis->latent, smaller), axis->max_count);
        if (hy3d__axis_max_extent(axis, next) < largest) {
            return next;
        }
    }
    return count;
}

/* Sum of the starts of the first `tiles` tiles. In double, as all of what is summed here: a sum of
 * starts may pass 63 bits where each of them does not. */
static double sum_of_starts(const hy3d__axis *axis, int64_t count, int64_t tiles)
{
    const int64_t shortest = axis->latent / count;
    const double core = (double)shortest, n = (double)tiles;
    const double m = (double)hy3d__min_i64(tiles, axis->latent % count + 1);
    const double longs = (double)(axis->latent % count);
    return core * (n * (n - 1.0) / 2.0) + (m * (m - 1.0) / 2.0 + (n - m) * longs);
}

/* A tile reaches back as far as its start allows, and on as far as the rest behind it does. */
double hy3d__axis_all_decoded(const hy3d__axis *axis, int64_t count)
{
    const double n = (double)count;
    const int64_t uncut = first_tile_from(axis, count, axis->reach_before);
    double latents = (double)axis->latent + sum_of_starts(axis, count, uncut) +
                     (n - (double)uncut) * (double)axis->reach_before;
    if (axis->reach_after > 0) {
        const int64_t cut = first_tile_from(axis, count, axis->latent - axis->reach_after + 1);
        const double behind =
            sum_of_starts(axis, count, count + 1) - sum_of_starts(axis, count, cut);
        latents += (double)(count + 1 - cut) * (double)axis->latent - behind +
                   (double)(cut - 1) * (double)axis->reach_after;
    }
    const double all = latents * (double)axis->factor;
    return axis->causal ? all - n * (double)(axis->factor - 1) : all;
}
