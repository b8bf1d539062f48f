/* Decode plans: any description, and every tile of plans that have few. What the header promises is
 * counted again in 128 bits: cover, windows, costs, and that no lower level and no smaller budget
 * would have done. fuzz_blend.c blends. */
#include "fuzz_schedule.h"

#include <stdlib.h>
#include <string.h>

__extension__ typedef __int128 wide;

#define MOST_TILES 600
#define MOST_OUT 4000

static hy3d_tiles_desc any_desc(fuzz_input *in)
{
    const bool is_wild = fuzz_chance(in, 80);
    hy3d_tiles_desc d = {.max_in_flight = (int32_t)fuzz_between(in, 1, 9), .level = -1};
    for (int i = 0; i < 3; i++) {
        d.latent[i] = is_wild ? fuzz_number(in) : fuzz_between(in, 1, 60);
        d.factor[i] = is_wild ? fuzz_number(in) : fuzz_between(in, 1, 9);
        d.overlap[i] = is_wild ? fuzz_number(in) : fuzz_between(in, 0, 6);
        d.halo[i] = is_wild ? fuzz_number(in) : fuzz_between(in, 0, 8);
        d.min_tile[i] = is_wild ? fuzz_number(in) : fuzz_between(in, 1, 6);
    }
    d.causal = (int32_t)fuzz_between(in, 0, fuzz_chance(in, 4) ? 3 : 1);
    d.fixed_bytes = fuzz_number(in);
    d.bytes_per_voxel = fuzz_number(in);
    d.bytes_per_token_pair = fuzz_chance(in, 96) ? fuzz_number(in) : 0;
    d.resident_bytes = fuzz_chance(in, 96) ? fuzz_number(in) : 0;
    d.budget_bytes = fuzz_chance(in, 160) ? fuzz_number(in) : 0;
    if (fuzz_chance(in, 40)) {
        d.level = (int32_t)fuzz_number(in);
        d.max_in_flight = (int32_t)fuzz_number(in);
    }
    if (fuzz_chance(in, 96)) {
        d.shrink = (int32_t)fuzz_between(in, -1, HY3D_TILES_MAX_SHRINK + 1);
    }
    return d;
}

static bool is_in_range(const hy3d_tiles_desc *d)
{
    bool is_sane = d->causal >= 0 && d->causal <= 1 && d->fixed_bytes >= 0 &&
                   d->bytes_per_voxel >= 0 && d->bytes_per_token_pair >= 0 &&
                   d->resident_bytes >= 0 && d->budget_bytes >= 0 && d->max_in_flight >= 1 &&
                   d->shrink >= 0 && d->shrink != 1 && d->shrink <= HY3D_TILES_MAX_SHRINK &&
                   d->level >= -1 &&
                   d->level <= (d->shrink > 2 ? HY3D_TILES_MAX_FINE_LEVEL
                                              : HY3D_TILES_MAX_LEVEL);
    for (int i = 0; i < 3; i++) {
        is_sane = is_sane && d->latent[i] >= 1 && d->factor[i] >= 1 && d->overlap[i] >= 0 &&
                  d->halo[i] >= 0 && d->min_tile[i] >= 1;
    }
    return is_sane;
}

static wide decoded(const hy3d_tiles_desc *d, int axis, wide latents)
{
    return axis == 0 && d->causal ? (latents - 1) * d->factor[axis] + 1
                                  : latents * d->factor[axis];
}

/* Cost of decoding so many latents; -1 beyond 63 bits. */
static wide cost_of(const hy3d_tiles_desc *d, const int64_t latents[3])
{
    wide tokens = 1, voxels = 1;
    for (int i = 0; i < 3; i++) {
        const wide units = decoded(d, i, latents[i]);
        if (units > INT64_MAX) {
            return -1;
        }
        tokens *= latents[i];
        voxels *= units;
        if (tokens > INT64_MAX || voxels > INT64_MAX) {
            return -1;
        }
    }
    const wide of_pairs = tokens * d->bytes_per_token_pair;
    if (of_pairs > INT64_MAX || of_pairs * tokens > INT64_MAX ||
        voxels * d->bytes_per_voxel > INT64_MAX) {
        return -1;
    }
    const wide sum = of_pairs * tokens + voxels * d->bytes_per_voxel + d->fixed_bytes;
    return sum > INT64_MAX ? -1 : sum;
}

/* One axis: tiles in a row cover its output, at most two meet, and their weights are 1 together. */
static void check_axis(const hy3d_tiles_plan *plan, int axis, int64_t stride)
{
    const int64_t out = plan->out[axis];
    float *const sums = fuzz_room((size_t)out * sizeof(float), 0);
    unsigned char *const meets = fuzz_room((size_t)out, 0);
    for (int64_t i = 0; i < plan->count[axis]; i++) {
        hy3d_tile g;
        FUZZ_CHECK(hy3d_tiles_at(plan, i * stride, &g) == HY3D_OK, "tile %lld",
                   (long long)(i * stride));
        const int64_t n = g.out_stop[axis] - g.out_start[axis];
        FUZZ_CHECK(n >= 1 && g.out_start[axis] >= 0 && g.out_stop[axis] <= out, "axis %d", axis);
        float *const window = fuzz_room((size_t)n * sizeof(float), 0xff);
        FUZZ_CHECK(hy3d_tile_window(&g, axis, window) == HY3D_OK, "axis %d", axis);
        for (int64_t k = 0; k < n; k++) {
            sums[g.out_start[axis] + k] += window[k];
            meets[g.out_start[axis] + k]++;
        }
        free(window);
    }
    for (int64_t k = 0; k < out; k++) {
        FUZZ_CHECK(sums[k] <= 1.0F && sums[k] >= 1.0F && meets[k] <= 2,
                   "axis %d, unit %lld: weights sum to %g, of %d tiles", axis, (long long)k,
                   (double)sums[k], meets[k]);
    }
    free(sums);
    free(meets);
}

/* What a single tile must be; its cost, and its latents' range inside of the clip. */
static wide check_tile(const hy3d_tiles_plan *plan, const hy3d_tile *g)
{
    int64_t latents[3];
    for (int i = 0; i < 3; i++) {
        const int64_t kept = g->out_stop[i] - g->out_start[i];
        latents[i] = g->in_stop[i] - g->in_start[i];
        FUZZ_CHECK(g->in_start[i] >= 0 && latents[i] >= 1 &&
                       g->in_stop[i] <= plan->desc.latent[i] && kept >= 1 &&
                       g->out_start[i] >= 0 && g->out_stop[i] <= plan->out[i],
                   "axis %d: latents %lld to %lld", i, (long long)g->in_start[i],
                   (long long)g->in_stop[i]);
        FUZZ_CHECK(g->trim_start[i] >= 0 &&
                       (wide)g->trim_start[i] + kept <= decoded(&plan->desc, i, latents[i]),
                   "axis %d: trims %lld, keeps %lld", i, (long long)g->trim_start[i],
                   (long long)kept);
        FUZZ_CHECK(g->in_start[i] <= g->own_start[i] && g->own_start[i] < g->own_stop[i] &&
                       g->own_stop[i] <= g->in_stop[i],
                   "axis %d: owns %lld to %lld", i, (long long)g->own_start[i],
                   (long long)g->own_stop[i]);
        FUZZ_CHECK(g->ramp_before[i] >= 0 && g->ramp_after[i] >= 0 &&
                       (wide)g->ramp_before[i] + g->ramp_after[i] <= kept,
                   "axis %d: ramps %lld and %lld of %lld", i, (long long)g->ramp_before[i],
                   (long long)g->ramp_after[i], (long long)kept);
    }
    const wide cost = cost_of(&plan->desc, latents);
    FUZZ_CHECK(cost >= 0 && cost <= plan->tile_bytes, "a tile is dearer than tile_bytes");
    return cost;
}

static void check_tiles(fuzz_input *in, const hy3d_tiles_plan *plan)
{
    hy3d_tile g;
    wide largest = 0;
    const bool all = plan->tiles <= MOST_TILES;
    for (int64_t i = 0; i < (all ? plan->tiles : 24); i++) {
        const int64_t index = all ? i : fuzz_between(in, 0, plan->tiles - 1);
        FUZZ_CHECK(hy3d_tiles_at(plan, index, &g) == HY3D_OK, "tile %lld",
                   (long long)index);
        const wide cost = check_tile(plan, &g);
        largest = cost > largest ? cost : largest;
    }
    FUZZ_CHECK(!all || largest == plan->tile_bytes, "no tile costs tile_bytes");
    memset(&g, 0x5a, sizeof g);
    const hy3d_tile before = g;
    FUZZ_CHECK(hy3d_tiles_at(plan, -1, &g) == HY3D_ERR_INVALID_ARGUMENT &&
                   hy3d_tiles_at(plan, plan->tiles, &g) == HY3D_ERR_INVALID_ARGUMENT &&
                   memcmp(&g, &before, sizeof g) == 0,
               "a tile that is not there");
    int64_t stride = 1;
    for (int axis = 2; axis >= 0; axis--) {
        if (plan->out[axis] <= MOST_OUT && plan->count[axis] <= MOST_TILES) {
            check_axis(plan, axis, stride);
        }
        stride *= plan->count[axis];
    }
}

/* The level is the lowest that fits, and as many tiles are in flight as can be. */
static void check_choice(const hy3d_tiles_plan *plan)
{
    hy3d_tiles_desc d = plan->desc;
    hy3d_tiles_plan other;
    const wide budget = d.budget_bytes == 0 ? INT64_MAX : d.budget_bytes;
    FUZZ_CHECK((wide)d.resident_bytes + (wide)plan->in_flight * plan->tile_bytes ==
                       plan->peak_bytes &&
                   plan->peak_bytes <= budget,
               "peak %lld", (long long)plan->peak_bytes);
    FUZZ_CHECK(plan->in_flight >= 1 && plan->in_flight <= d.max_in_flight &&
                   plan->in_flight <= plan->tiles,
               "%d in flight", plan->in_flight);
    FUZZ_CHECK(plan->in_flight == d.max_in_flight || plan->in_flight == plan->tiles ||
                   (wide)plan->peak_bytes + plan->tile_bytes > budget,
               "one more than %d would fit", plan->in_flight);
    FUZZ_CHECK(plan->level >= 0 && plan->level < plan->levels &&
                   (d.level < 0 || d.level == plan->level),
               "level %d of %d, asked for %d", plan->level, plan->levels, d.level);
    if (d.level < 0 && plan->level > 0) {
        d.level = plan->level - 1;
        const hy3d_status coarser = hy3d_tiles_make(&d, NULL, &other);
        /* No budget holds what is beyond 63 bits together with the resident bytes. */
        FUZZ_CHECK(coarser == HY3D_ERR_BUDGET_TOO_SMALL || coarser == HY3D_ERR_OVERFLOW,
                   "level %d fits as well", d.level);
    }
    if (plan->level + 1 < plan->levels) {
        d.level = plan->level + 1;
        FUZZ_CHECK(hy3d_tiles_make(&d, NULL, &other) == HY3D_OK &&
                       other.tile_bytes <= plan->tile_bytes,
                   "level %d does not fit or is dearer", d.level);
    }
}

static void check_plan(fuzz_input *in, const hy3d_tiles_plan *plan)
{
    const hy3d_tiles_desc *const d = &plan->desc;
    wide tiles = 1;
    for (int i = 0; i < 3; i++) {
        FUZZ_CHECK(plan->out[i] == decoded(d, i, d->latent[i]), "output %lld",
                   (long long)plan->out[i]);
        FUZZ_CHECK(plan->count[i] >= 1 && plan->count[i] <= d->latent[i], "%lld tiles",
                   (long long)plan->count[i]);
        const int64_t shortest = d->latent[i] / plan->count[i];
        FUZZ_CHECK(plan->tile[i] == shortest + (d->latent[i] % plan->count[i] != 0) &&
                       (plan->count[i] == 1 ||
                        (shortest >= d->min_tile[i] && shortest >= d->overlap[i])),
                   "tiles of %lld", (long long)shortest);
        tiles *= plan->count[i];
    }
    FUZZ_CHECK(tiles == plan->tiles, "%lld tiles", (long long)plan->tiles);
    check_choice(plan);
    check_tiles(in, plan);
}

/* A budget of exactly what was named does; one byte less does not. */
static void check_refusal(const hy3d_tiles_desc *desc, int64_t named)
{
    hy3d_tiles_desc d = *desc;
    hy3d_tiles_plan plan;
    FUZZ_CHECK(named > d.budget_bytes && d.budget_bytes > 0, "%lld named, %lld there",
               (long long)named, (long long)d.budget_bytes);
    d.budget_bytes = named;
    FUZZ_CHECK(hy3d_tiles_make(&d, NULL, &plan) == HY3D_OK && plan.peak_bytes == named,
               "%lld does not do", (long long)named);
    d.budget_bytes = named - 1;
    FUZZ_CHECK(named == 1 || hy3d_tiles_make(&d, NULL, &plan) == HY3D_ERR_BUDGET_TOO_SMALL,
               "less than %lld does", (long long)named);
}

/* Plans that somebody has filled in by hand; tiles that come out of them are sane. */
static void check_forged(fuzz_input *in, hy3d_tiles_plan *plan)
{
    int64_t *const fields[] = {plan->out,        plan->count,        &plan->tiles,
                               plan->desc.latent, plan->desc.factor, plan->desc.overlap,
                               plan->desc.halo,   plan->desc.min_tile};
    for (int n = (int)fuzz_between(in, 1, 3); n > 0; n--) {
        const size_t which = (size_t)fuzz_between(in, 0, (int64_t)COUNT_OF(fields) - 1);
        fields[which][which == 2 ? 0 : fuzz_between(in, 0, 2)] = fuzz_number(in);
    }
    hy3d_tile g;
    const hy3d_status status = hy3d_tiles_at(plan, fuzz_number(in), &g);
    FUZZ_CHECK(status == HY3D_OK || status == HY3D_ERR_INVALID_ARGUMENT ||
                   status == HY3D_ERR_OVERFLOW,
               "%s", hy3d_status_name(status));
    for (int i = 0; i < 3 && status == HY3D_OK; i++) {
        FUZZ_CHECK(g.in_start[i] >= 0 && g.in_start[i] < g.in_stop[i] &&
                       g.in_stop[i] <= plan->desc.latent[i] && g.out_start[i] >= 0 &&
                       g.out_start[i] < g.out_stop[i] && g.out_stop[i] <= plan->out[i],
                   "axis %d of a forged plan's tile", i);
    }
}

static void fuzz_plan(fuzz_input *in)
{
    const hy3d_tiles_desc d = any_desc(in);
    hy3d_tiles_plan plan;
    int64_t named = -7;
    memset(&plan, 0x5a, sizeof plan);
    const hy3d_tiles_plan before = plan;
    const hy3d_status status = hy3d_tiles_make(&d, &named, &plan);
    if (status != HY3D_OK) {
        FUZZ_CHECK(memcmp(&plan, &before, sizeof plan) == 0, "a plan after %s",
                   hy3d_status_name(status));
        FUZZ_CHECK((named == -7) == (status != HY3D_ERR_BUDGET_TOO_SMALL), "%lld after %s",
                   (long long)named, hy3d_status_name(status));
    }
    const wide whole = is_in_range(&d) ? cost_of(&d, d.latent) : 0;
    if (status == HY3D_OK) {
        FUZZ_CHECK(is_in_range(&d) && whole >= 0, "a plan of what has none");
        check_plan(in, &plan);
        check_forged(in, &plan);
    } else if (status == HY3D_ERR_BUDGET_TOO_SMALL) {
        check_refusal(&d, named);
    } else if (status == HY3D_ERR_INVALID_ARGUMENT) { /* or a level that is not there */
        FUZZ_CHECK(!is_in_range(&d) || d.level > 0, "refused");
    } else {
        FUZZ_CHECK(status == HY3D_ERR_OVERFLOW &&
                       (whole < 0 || whole + d.resident_bytes > INT64_MAX || d.level >= 0),
                   "%s, and the whole costs %lld", hy3d_status_name(status), (long long)whole);
    }
}

/* Any tile at all: a window of its length, or a refusal that writes nothing. */
static void fuzz_window(fuzz_input *in)
{
    hy3d_tile g = {0};
    const int axis = (int)fuzz_between(in, -1, 3);
    for (int i = 0; i < 3; i++) {
        g.out_start[i] = fuzz_chance(in, 64) ? fuzz_number(in) : 0;
        g.out_stop[i] = fuzz_number(in);
        g.ramp_before[i] = fuzz_number(in);
        g.ramp_after[i] = fuzz_number(in);
    }
    const bool is_axis = axis >= 0 && axis <= 2;
    const int64_t start = is_axis ? g.out_start[axis] : 0, stop = is_axis ? g.out_stop[axis] : 0;
    const bool is_sane = is_axis && start >= 0 && stop > start && g.ramp_before[axis] >= 0 &&
                         g.ramp_after[axis] >= 0 &&
                         (wide)g.ramp_before[axis] + g.ramp_after[axis] <= stop - start;
    const int64_t n = is_sane ? stop - start : 1;
    if (n > (1 << 16) && n <= INT64_MAX / 1024) {
        return; /* would be written, all of it */
    }
    float *const window = fuzz_room(n > (1 << 16) ? 4 : (size_t)n * sizeof(float), 0xa5);
    const hy3d_status status = hy3d_tile_window(&g, axis, window);
    const hy3d_status wanted = !is_sane          ? HY3D_ERR_INVALID_ARGUMENT
                               : n > (1 << 16) ? HY3D_ERR_OVERFLOW
                                               : HY3D_OK;
    FUZZ_CHECK(status == wanted, "%s, not %s", hy3d_status_name(status), hy3d_status_name(wanted));
    for (int64_t i = 0; i < n && status == HY3D_OK; i++) {
        const float steps = window[i] * 256;
        FUZZ_CHECK(steps >= 0 && steps <= 256 && steps <= (float)(int)steps, "weight %g",
                   (double)window[i]);
    }
    FUZZ_CHECK(status == HY3D_OK || *(unsigned char *)window == 0xa5, "written");
    free(window);
}

void fuzz_schedule(const uint8_t *data, size_t size)
{
    fuzz_input in = {data, size, 0};
    const uint8_t kind = fuzz_byte(&in);
    if (kind % 8 < 5) {
        fuzz_plan(&in);
    } else if (kind % 8 == 5) {
        fuzz_window(&in);
    } else {
        fuzz_blend(&in, fuzz_context(kind / 8));
    }
}
