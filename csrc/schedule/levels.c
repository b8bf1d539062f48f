/* Which levels of tiles are looked at: the largest tiles that fit, and where nothing does the least
 * budget that would do. */
#include <stddef.h>

#include "schedule/compile.h"

/* So many levels of tiles are looked at one by one; of more, the first is found by halving. */
#define FEW 16
/* After a tile that no kernel can compute, so many further levels of its halo are tried there. */
#define FURTHER 2

/* --- one level -------------------------------------------------------------------------------- */

static hy3d_candidate tiles_of_level(const hy3d_schedule *s, int32_t on_host,
                                     const hy3d__level *level)
{
    const hy3d_machine *m = hy3d__machine_of(s, on_host);
    const int64_t halo = s->request.halos[level->row].halo;
    hy3d_candidate c = {
        .strategy = on_host ? HY3D_STRATEGY_HOST : HY3D_STRATEGY_TILED,
        .order = HY3D_ORDER_TILES,
        .on_host = on_host,
        .chunk = hy3d__tile_chunk(s, on_host),
        .slice_bytes = m->slice_bytes[1] > 0 ? m->slice_bytes[1] : m->slice_bytes[0],
        .level = level->level,
        .halo_row = level->row,
        .is_exact = s->cut.group_norms == 0 && s->cut.frame_norms == 0 && halo < 0,
        .resident_bytes = -1,
        .repacks = hy3d__may_repack(s, on_host), /* see look_at_both */
    };
    return c;
}

/* The candidate of a level, nothing of it compiled yet. */
static hy3d_status level_candidate(const hy3d_schedule *s, int32_t on_host,
                                   const hy3d__level *level, hy3d_candidate *out)
{
    hy3d_tiles_plan tiles;
    const hy3d_status status = hy3d__tiles_of(s, level->row, level->level, &tiles);
    if (status == HY3D_OK) {
        *out = tiles_of_level(s, on_host, level);
        out->tiles = tiles.tiles;
        out->tile[0] = tiles.extent[1] * tiles.desc.factor[1];
        out->tile[1] = tiles.extent[2] * tiles.desc.factor[2];
    }
    return status;
}

/* Compiles a part of tiles. Where that does not fit, `c` says what it takes at least. An error that
 * rules the candidate out will be one of all of it, too. */
static hy3d_status look_at_part(hy3d_context *context, hy3d_schedule *s, hy3d__tiles_part part,
                                hy3d_candidate *c, bool *may_fit_out)
{
    hy3d_candidate bound = *c;
    s->tiles_part = part;
    const hy3d_status status = hy3d__compile_one(context, s, &bound);
    s->tiles_part = HY3D__TILES_ALL;
    *may_fit_out = status != HY3D_OK || bound.fits;
    if (status == HY3D_OK) {
        bound.is_bound = 1;
        bound.fits = 0;
        bound.macs = bound.steps = 0;
        bound.seconds = 0;
        *c = bound;
    }
    return hy3d__is_fatal(status) ? status : HY3D_OK;
}

/* All of a candidate; where it fits also with its packed weights kept, which takes less time. */
static hy3d_status look_at_both(hy3d_context *context, hy3d_schedule *s, hy3d_candidate *c)
{
    hy3d_status status = hy3d__look_at(context, s, c);
    if (status == HY3D_OK && c->fits && c->repacks) {
        hy3d_candidate keeps = *c;
        keeps.repacks = 0;
        status = hy3d__look_at(context, s, &keeps);
    }
    return status;
}

/* Whether tiles of this level fit. What is cheapest to know first: the function is asked the less,
 * the sooner they are found too large. */
static hy3d_status look_at_level(hy3d_context *context, hy3d_schedule *s, int32_t on_host,
                                 const hy3d__level *level, bool *fits_out)
{
    hy3d_candidate c, bound;
    bool may_fit = true;
    *fits_out = false;
    hy3d_status status = level_candidate(s, on_host, level, &c);
    if (status != HY3D_OK || hy3d__has_failed(s, &c)) {
        return status;
    }
    bound = c;
    for (int32_t part = HY3D__TILES_SLICES;
         part <= HY3D__TILES_LARGEST && may_fit && status == HY3D_OK; part++) {
        status = look_at_part(context, s, (hy3d__tiles_part)part, &bound, &may_fit);
    }
    if (status != HY3D_OK) {
        return status;
    }
    if (!may_fit) { /* what is printed is compiled to the end */
        return s->request.compiles_all
                   ? HY3D_OK
                   : hy3d__append(context, &s->candidates, &s->count, &s->room, &bound);
    }
    status = look_at_both(context, s, &c);
    *fits_out = status == HY3D_OK && c.fits;
    return status;
}

/* The same, compiled to the end whether or not it fits. */
static hy3d_status look_at_all(hy3d_context *context, hy3d_schedule *s, int32_t on_host,
                               const hy3d__level *level, bool *fits_out)
{
    hy3d_candidate c;
    hy3d_status status = level_candidate(s, on_host, level, &c);
    c.fits = 0;
    status = status == HY3D_OK ? look_at_both(context, s, &c) : status;
    *fits_out = status == HY3D_OK && c.fits;
    return status;
}

/* The first of many levels whose slices fit, by halving. */
static hy3d_status first_that_may_fit(hy3d_context *context, hy3d_schedule *s, int32_t on_host,
                                      const hy3d__level *levels, int32_t count, int32_t *first_out)
{
    int32_t low = 0, high = count;
    hy3d_status status = HY3D_OK;
    while (count > FEW && low < high && status == HY3D_OK) {
        const int32_t middle = low + (high - low) / 2;
        hy3d_candidate c;
        bool may_fit = false;
        status = level_candidate(s, on_host, &levels[middle], &c);
        if (status == HY3D_OK) {
            status = look_at_part(context, s, HY3D__TILES_SLICES, &c, &may_fit);
        }
        low = may_fit ? low : middle + 1;
        high = may_fit ? middle : high;
    }
    *first_out = low < count ? low : count - 1; /* one is told of */
    return status;
}

/* How many of one halo's levels no kernel could compute there. */
static int32_t without_kernel(const hy3d_schedule *s, int32_t on_host, int32_t row)
{
    int32_t found = 0;
    for (int32_t i = 0; i < s->failed_count; i++) {
        const hy3d_candidate *c = &s->failed[i];
        found += c->order == HY3D_ORDER_TILES && c->on_host == on_host && c->halo_row == row &&
                 c->status == HY3D_ERR_UNSUPPORTED;
    }
    return found;
}

/* The first of one halo's levels that fits: the largest tiles. Where candidates are printed, the
 * largest tiles of all are among them, and the smallest where none fits. */
static hy3d_status search_levels(hy3d_context *context, hy3d_schedule *s, int32_t on_host,
                                 const hy3d__level *levels, int32_t count, bool *fits_out)
{
    const int32_t failures = without_kernel(s, on_host, levels[0].row);
    int32_t first = 0;
    *fits_out = false;
    if (failures > FURTHER) {
        return HY3D_OK;
    }
    const bool prints = s->request.compiles_all != 0;
    hy3d_status status = HY3D_OK;
    if (failures == FURTHER) {
        first = count - 1;
    } else if (prints) {
        status = look_at_all(context, s, on_host, &levels[0], fits_out);
    }
    if (first == 0 && status == HY3D_OK && !*fits_out) {
        status = first_that_may_fit(context, s, on_host, levels, count, &first);
        first = prints && first == 0 ? 1 : first;
    }
    int32_t i = first;
    for (; i < count - prints && status == HY3D_OK && !*fits_out; i++) {
        status = look_at_level(context, s, on_host, &levels[i], fits_out);
    }
    if (prints && count > 1 && status == HY3D_OK && !*fits_out) {
        status = look_at_all(context, s, on_host, &levels[count - 1], fits_out);
    }
    return status;
}

hy3d_status hy3d__search_tiles(hy3d_context *context, hy3d_schedule *s, int32_t on_host)
{
    hy3d__level *levels = NULL;
    int32_t count = 0;
    if (!s->can_tile) {
        return HY3D_OK;
    }
    if (s->request.only_level > 0) {
        const hy3d__level level = {0, s->request.only_level - 1};
        bool fits;
        const hy3d_status found = look_at_all(context, s, on_host, &level, &fits);
        return found == HY3D_ERR_INVALID_ARGUMENT ? HY3D_OK : found;
    }
    hy3d_status status = hy3d__worthwhile_levels(context, s, &levels, &count);
    for (int32_t first = 0; first < count && status == HY3D_OK;) {
        int32_t stop = first + 1;
        while (stop < count && levels[stop].row == levels[first].row) {
            stop++;
        }
        bool fits = false;
        status = search_levels(context, s, on_host, &levels[first], stop - first, &fits);
        first = fits && !s->request.compiles_all ? count : stop;
    }
    hy3d_free(context, levels);
    return status == HY3D_ERR_OVERFLOW ? HY3D_OK : status;
}

/* --- the smallest budget ---------------------------------------------------------------------- */

/* Where nothing fits: levels that were given up, or not looked at, by what they take at least. */
typedef struct given_up {
    hy3d_candidate *levels;
    int32_t count, room;
} given_up;

/* Where the candidate stands among those that were looked at; -1: nowhere. */
static int32_t place_of(const hy3d_schedule *s, const hy3d_candidate *c)
{
    for (int32_t i = 0; i < s->count; i++) {
        if (hy3d__same_candidate(&s->candidates[i], c)) {
            return i;
        }
    }
    return -1;
}

static hy3d_status list_given_up(hy3d_context *context, hy3d_schedule *s, int32_t on_host,
                                 given_up *list)
{
    hy3d__level *levels = NULL;
    int32_t count = 0;
    hy3d_status status = hy3d__worthwhile_levels(context, s, &levels, &count);
    for (int32_t i = 0; i < count && status == HY3D_OK; i++) {
        hy3d_candidate c;
        bool may_fit = false;
        status = level_candidate(s, on_host, &levels[i], &c);
        const int32_t place = status == HY3D_OK ? place_of(s, &c) : -1;
        if (status != HY3D_OK || hy3d__has_failed(s, &c) ||
            (place >= 0 && !s->candidates[place].is_bound)) {
            continue;
        }
        status = look_at_part(context, s, HY3D__TILES_SLICES, &c, &may_fit);
        if (status == HY3D_OK) {
            status = hy3d__append(context, &list->levels, &list->count, &list->room, &c);
        }
    }
    hy3d_free(context, levels);
    return status == HY3D_ERR_OVERFLOW ? HY3D_OK : status;
}

/* What is known of one of them by now. */
static hy3d_status replace(hy3d_context *context, hy3d_schedule *s, const hy3d_candidate *c)
{
    const int32_t place = place_of(s, c);
    if (place < 0) {
        return hy3d__append(context, &s->candidates, &s->count, &s->room, c);
    }
    s->candidates[place] = *c;
    return HY3D_OK;
}

/* Compiles one of them to the end, unless a part of it takes what something else does. */
static hy3d_status look_at_given_up(hy3d_context *context, hy3d_schedule *s, hy3d_candidate *c)
{
    hy3d_status status = HY3D_OK;
    bool may_fit = false;
    for (int32_t part = HY3D__TILES_PEAKS; part <= HY3D__TILES_LARGEST && status == HY3D_OK &&
                                           hy3d__needed_budget(&s->request, c) < s->smallest;
         part++) {
        status = look_at_part(context, s, (hy3d__tiles_part)part, c, &may_fit);
    }
    if (status == HY3D_OK && hy3d__needed_budget(&s->request, c) < s->smallest) {
        c->is_bound = 0;
        status = hy3d__compile_one(context, s, c);
        status = hy3d__is_fatal(status) ? status : HY3D_OK;
        hy3d__note_smallest(s, c);
    }
    return status;
}

hy3d_status hy3d__find_smallest(hy3d_context *context, hy3d_schedule *s)
{
    given_up list = {.levels = NULL};
    hy3d_status status = HY3D_OK;
    const bool looked_at[2] = {hy3d__allows(s, HY3D_STRATEGY_TILED),
                               hy3d__moves(s, HY3D_STRATEGY_TILED)};
    for (int32_t i = 0; i < 2 && s->can_tile && s->request.only_level == 0; i++) {
        if (looked_at[i] && status == HY3D_OK) {
            status = list_given_up(context, s, i, &list);
        }
    }
    const hy3d_candidate whole = {.strategy = HY3D_STRATEGY_WHOLE};
    const int32_t own = place_of(s, &whole);
    if (status == HY3D_OK && own >= 0 && s->candidates[own].is_bound) {
        status = hy3d__append(context, &list.levels, &list.count, &list.room, &s->candidates[own]);
    }
    while (status == HY3D_OK && list.count > 0) {
        int32_t least = 0;
        for (int32_t i = 1; i < list.count; i++) {
            const int64_t needed = hy3d__needed_budget(&s->request, &list.levels[i]);
            least = needed < hy3d__needed_budget(&s->request, &list.levels[least]) ? i : least;
        }
        hy3d_candidate c = list.levels[least];
        if (hy3d__needed_budget(&s->request, &c) >= s->smallest) {
            break;
        }
        status = c.order == HY3D_ORDER_WHOLE ? hy3d__look_at_whole(s, &c)
                                             : look_at_given_up(context, s, &c);
        status = status == HY3D_OK ? replace(context, s, &c) : status;
        list.levels[least] = list.levels[--list.count];
    }
    hy3d_free(context, list.levels);
    return status;
}
