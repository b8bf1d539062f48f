/* Compiles the candidates of a request and takes one. */
#include <stddef.h>
#include <string.h>

#include "base/checked.h"
#include "schedule/allocator.h"
#include "schedule/compile.h"

/* Between the least that a program can run in and all that it takes, so many limits are tried. They
 * do not depend on a budget: so a larger budget can only add to what is chosen from. */
#define LIMITS 32

static int64_t budget_of(int64_t budget)
{
    return budget > 0 ? budget : INT64_MAX;
}

/* --- one candidate ---------------------------------------------------------------------------- */

static hy3d__builder *builder_for(hy3d_context *context, hy3d_schedule *s, int32_t on_host,
                                  hy3d_status *status)
{
    hy3d__builder *b = &s->builders[on_host];
    *status = HY3D_OK;
    if (!s->built[on_host]) {
        *status = hy3d__builder_create(context, &s->request, &s->shards, on_host, b);
        s->built[on_host] = *status == HY3D_OK;
    }
    return *status == HY3D_OK ? b : NULL;
}

/* The one step of a VAE's own code. */
static void own_code(const hy3d_schedule *s, hy3d__builder *b)
{
    const int32_t last = s->request.graph.count - 1;
    hy3d__section_begin(b, HY3D_SECTION_ALL, 0, last, s->request.size);
    hy3d__do_black_box(b, s->sizes[last].frames);
    hy3d__section_end(b);
}

/* One rank's program, before anything leaves. */
static hy3d_status build(hy3d_context *context, hy3d_schedule *s, const hy3d_candidate *c,
                         int32_t rank, hy3d__arrays *arrays)
{
    hy3d_status status;
    const int32_t last = s->request.graph.count - 1;
    hy3d__builder *b = builder_for(context, s, c->on_host, &status);
    if (b == NULL) {
        return status;
    }
    hy3d__builder_reset(b, rank, arrays);
    b->slice_bytes = c->slice_bytes;
    b->repacks = c->repacks != 0;
    if (c->order == HY3D_ORDER_WHOLE) {
        own_code(s, b);
    } else if (c->order == HY3D_ORDER_TILES) {
        hy3d__order_tiles(s, b, c);
    } else {
        hy3d__section_begin(b, HY3D_SECTION_ALL, 0, last, s->request.size);
        if (c->order == HY3D_ORDER_CHUNKS) {
            hy3d__order_chunks(b, 0, c->chunk);
        } else {
            hy3d__order_layers(b, c->order == HY3D_ORDER_LAYERS ? last : s->cut.node);
        }
        if (c->order == HY3D_ORDER_PREFIX) {
            hy3d__order_chunks(b, s->cut.node, c->chunk);
        }
        hy3d__section_end(b);
    }
    return b->status;
}

int64_t hy3d__margin_of(const hy3d_schedule_request *r, const hy3d_candidate *c)
{
    const int64_t bytes = c->on_host && !r->is_host ? c->host_bytes : c->device_bytes;
    const int64_t share =
        bytes / 1000 * r->margin_permille + bytes % 1000 * r->margin_permille / 1000;
    return share > r->margin_bytes ? share : r->margin_bytes;
}

int64_t hy3d__needed_budget(const hy3d_schedule_request *r, const hy3d_candidate *c)
{
    if (c->status != HY3D_OK) {
        return INT64_MAX;
    }
    if (c->on_host && !r->is_host) {
        const int64_t all = c->host_bytes + c->margin_bytes;
        return all > budget_of(r->host_budget) ? INT64_MAX : r->is_unified ? all : 1;
    }
    const int64_t device = c->device_bytes + c->margin_bytes;
    if (!r->is_host && c->host_bytes > budget_of(r->host_budget)) {
        return INT64_MAX;
    }
    return r->is_unified ? device + c->host_bytes : device;
}

bool hy3d__fits_budget(const hy3d_schedule *s, const hy3d_candidate *c, int64_t budget)
{
    const int64_t needed = hy3d__needed_budget(&s->request, c);
    return needed < INT64_MAX && needed <= budget_of(budget);
}

/* Of all ranks' devices; 0: there is no limit. */
static int64_t largest_budget(const hy3d_schedule *s)
{
    int64_t largest = s->budgets[0];
    for (int32_t rank = 1; rank < s->shards.ranks; rank++) {
        const int64_t budget = s->budgets[rank];
        largest = largest == 0 || budget == 0 ? 0 : hy3d__max_i64(largest, budget);
    }
    return largest;
}

static void take_cost(const hy3d_schedule *s, const hy3d__cost *cost, hy3d_candidate *c)
{
    const hy3d_schedule_request *r = &s->request;
    c->device_bytes = r->is_host ? cost->both_bytes : c->on_host ? 0 : cost->device_bytes;
    c->host_bytes = r->is_host ? 0 : c->on_host ? cost->both_bytes : cost->host_bytes;
    c->margin_bytes = hy3d__margin_of(r, c);
    c->stored_bytes = cost->stored_bytes;
    c->loaded_bytes = cost->loaded_bytes;
    c->sent_bytes = cost->sent_bytes;
    c->macs = cost->macs;
    c->steps = cost->steps;
    c->seconds = cost->seconds;
    c->fits = !cost->exceeds && hy3d__fits_budget(s, c, largest_budget(s));
}

/* Notes whether a program that fits finds room. */
static hy3d_status look_for_room(hy3d_context *context, const hy3d_schedule *s,
                                 const hy3d__arrays *program, const hy3d__cost *cost,
                                 hy3d_candidate *c)
{
    const hy3d_schedule_request *r = &s->request;
    if (r->device_room == 0 || r->is_host || r->is_unified || s->shards.ranks > 1 || c->on_host ||
        c->order == HY3D_ORDER_TILES || cost->exceeds) {
        return HY3D_OK;
    }
    hy3d_candidate margin = *c;
    margin.device_bytes = cost->device_bytes;
    int64_t room = r->device_room - hy3d__kept_throughout(r, program) - hy3d__margin_of(r, &margin);
    for (int32_t i = 0; i < program->step_count; i++) {
        room -= program->kept[i];
    }
    hy3d_status status = HY3D_OK;
    /* Whether it does is a matter of luck where it is close: in less room it has to, too. */
    for (int32_t less = 0; less <= 5 && status == HY3D_OK && !c->lacks_room; less += 5) {
        bool finds = false;
        status = hy3d__finds_room(context, program, room - room / 100 * less, &finds);
        c->lacks_room = !finds;
    }
    return status;
}

/* One rank's program of a candidate, empty after an error. */
static hy3d_status compile_rank(hy3d_context *context, hy3d_schedule *s, const hy3d_candidate *c,
                                int32_t rank, hy3d__arrays *program_out)
{
    hy3d__arrays plain = {.steps = NULL}, spilled = {.steps = NULL};
    hy3d__uses uses = {.memory = NULL};
    hy3d_status status = build(context, s, c, rank, &plain);
    const bool leaves = c->resident_bytes >= 0;
    if (status == HY3D_OK && leaves) {
        status = hy3d__uses_create(context, &s->request, &plain, &uses);
    }
    if (status == HY3D_OK && leaves) {
        status = hy3d__spill(context, &s->request, &plain, &uses, c->resident_bytes,
                             c->is_early != 0, &spilled);
    }
    hy3d__uses_destroy(context, &uses);
    if (leaves || status != HY3D_OK) {
        hy3d__arrays_destroy(context, &plain);
    }
    *program_out = leaves ? spilled : plain;
    return status;
}

/* What a rank has of the input on the host throughout. */
static hy3d_status source_bytes(const hy3d_schedule *s, int32_t rank, int64_t *bytes_out)
{
    const hy3d_size *size = &s->sizes[0];
    const hy3d__rows rows = hy3d__rows_needed(&s->shards, 0, rank, size->rows);
    int64_t bytes = rank == 0 ? 0 : s->request.source_bytes;
    if (!hy3d__mul_i64(bytes, size->channels, &bytes) ||
        !hy3d__mul_i64(bytes, size->frames, &bytes) ||
        !hy3d__mul_i64(bytes, rows.stop - rows.first, &bytes) ||
        !hy3d__mul_i64(bytes, size->columns, &bytes) || bytes > HY3D__MOST_BYTES) {
        return HY3D_ERR_OVERFLOW;
    }
    *bytes_out = bytes;
    return HY3D_OK;
}

/* Adds what one rank's program of a candidate takes to what those of the ranks before it do. */
static hy3d_status add_rank(hy3d_context *context, const hy3d_schedule *s, const hy3d_candidate *c,
                            int32_t rank, const hy3d__arrays *program, hy3d__cost *all)
{
    hy3d__cost one;
    hy3d_candidate alone = *c;
    const int64_t prefix = c->order == HY3D_ORDER_TILES ? hy3d__prefix_bytes(s) : 0;
    int64_t source = 0;
    hy3d_status status = source_bytes(s, rank, &source);
    if (status == HY3D_OK) {
        status = hy3d__measure(context, &s->request, c->on_host, program, prefix, source, &one);
    }
    if (status != HY3D_OK) {
        return status;
    }
    take_cost(s, &one, &alone);
    all->exceeds = all->exceeds || !hy3d__fits_budget(s, &alone, s->budgets[rank]);
    all->device_bytes = hy3d__max_i64(all->device_bytes, one.device_bytes);
    all->host_bytes = hy3d__max_i64(all->host_bytes, one.host_bytes);
    all->both_bytes = hy3d__max_i64(all->both_bytes, one.both_bytes);
    all->seconds = one.seconds > all->seconds ? one.seconds : all->seconds;
    all->steps += one.steps;
    const bool fits = hy3d__add_i64(all->stored_bytes, one.stored_bytes, &all->stored_bytes) &&
                      hy3d__add_i64(all->loaded_bytes, one.loaded_bytes, &all->loaded_bytes) &&
                      hy3d__add_i64(all->sent_bytes, one.sent_bytes, &all->sent_bytes) &&
                      hy3d__add_i64(all->macs, one.macs, &all->macs);
    return fits ? HY3D_OK : HY3D_ERR_OVERFLOW;
}

hy3d_status hy3d__compile_one(hy3d_context *context, hy3d_schedule *s, hy3d_candidate *c)
{
    hy3d__cost cost = {.steps = 0};
    hy3d_status status = HY3D_OK;
    c->macs = 0;
    c->lacks_room = 0;
    for (int32_t rank = 0; rank < s->shards.ranks && status == HY3D_OK; rank++) {
        hy3d__arrays program;
        status = compile_rank(context, s, c, rank, &program);
        if (status == HY3D_OK && c->order != HY3D_ORDER_WHOLE) {
            status = add_rank(context, s, c, rank, &program, &cost);
            if (status == HY3D_OK) {
                status = look_for_room(context, s, &program, &cost, c);
            }
        }
        hy3d__arrays_destroy(context, &program);
    }
    if (status == HY3D_OK && c->order == HY3D_ORDER_WHOLE) {
        c->steps = 1;
        status = hy3d__whole_cost(s, s->request.own_bytes, c);
    } else if (status == HY3D_OK) {
        take_cost(s, &cost, c);
    }
    c->status = (int32_t)status;
    return status;
}

/* --- lists ------------------------------------------------------------------------------------ */

hy3d_status hy3d__append(hy3d_context *context, hy3d_candidate **list, int32_t *count,
                         int32_t *room, const hy3d_candidate *c)
{
    hy3d_status status = HY3D_OK;
    *list = hy3d__grown(context, *list, *count, room, sizeof **list, &status);
    if (status == HY3D_OK) {
        (*list)[(*count)++] = *c;
    }
    return status;
}

bool hy3d__same_candidate(const hy3d_candidate *a, const hy3d_candidate *b)
{
    return a->strategy == b->strategy && a->order == b->order && a->on_host == b->on_host &&
           a->chunk == b->chunk && a->slice_bytes == b->slice_bytes && a->level == b->level &&
           a->halo_row == b->halo_row;
}

bool hy3d__has_failed(const hy3d_schedule *s, const hy3d_candidate *c)
{
    for (int32_t i = 0; i < s->failed_count; i++) {
        if (hy3d__same_candidate(&s->failed[i], c)) {
            return true;
        }
    }
    return false;
}

void hy3d__note_smallest(hy3d_schedule *s, const hy3d_candidate *c)
{
    const int64_t needed = hy3d__needed_budget(&s->request, c);
    s->smallest = needed < s->smallest ? needed : s->smallest;
}

hy3d_status hy3d__look_at(hy3d_context *context, hy3d_schedule *s, hy3d_candidate *c)
{
    if (hy3d__has_failed(s, c)) {
        return HY3D_OK;
    }
    const hy3d_status status = hy3d__compile_one(context, s, c);
    c->fits = c->fits && status == HY3D_OK;
    if (hy3d__is_fatal(status)) {
        return status;
    }
    hy3d__note_smallest(s, c);
    return hy3d__append(context, &s->candidates, &s->count, &s->room, c);
}

/* --- which one is taken ----------------------------------------------------------------------- */

/* Whether nothing sees all frames but attention, so that they can go in chunks. */
static bool goes_in_chunks(const hy3d_schedule *s)
{
    return !s->has_group_norms && !s->has_opaque;
}

/* The lower, the rather it is taken: on the device before on the host; there exact ones, those by
 * layers where chunks would do after the others, and then tiles. */
static int32_t rank_of(const hy3d_schedule *s, const hy3d_candidate *c)
{
    const bool instead = c->order == HY3D_ORDER_LAYERS && goes_in_chunks(s);
    return 3 * c->on_host + (c->order == HY3D_ORDER_TILES ? 2 : instead);
}

/* Of two that fit. */
static bool is_better(const hy3d_schedule *s, const hy3d_candidate *a, const hy3d_candidate *b)
{
    const int32_t rank = rank_of(s, a), other = rank_of(s, b);
    if (rank != other) {
        return rank < other;
    }
    if (a->lacks_room != b->lacks_room) {
        return b->lacks_room != 0;
    }
    if (a->order == HY3D_ORDER_TILES) {
        const bool alike = a->halo_row == b->halo_row && a->level == b->level;
        return alike                        ? a->repacks < b->repacks
               : a->halo_row != b->halo_row ? a->halo_row < b->halo_row
                                            : a->level < b->level;
    }
    return a->seconds < b->seconds;
}

static int32_t best_of(const hy3d_schedule *s)
{
    int32_t best = -1;
    for (int32_t i = 0; i < s->count; i++) {
        const hy3d_candidate *c = &s->candidates[i];
        if (c->fits && c->status == HY3D_OK &&
            (best < 0 || is_better(s, c, &s->candidates[best]))) {
            best = i;
        }
    }
    return best;
}

/* The candidate that was added last goes before all others. */
static void put_first(hy3d_schedule *s)
{
    const hy3d_candidate c = s->candidates[s->count - 1];
    memmove(s->candidates + 1, s->candidates, (size_t)(s->count - 1) * sizeof c);
    s->candidates[0] = c;
}

/* --- with less resident ----------------------------------------------------------------------- */

/* A candidate under one limit, from the programs of all ranks that keep everything. */
static hy3d_status measure_limit(hy3d_context *context, hy3d_schedule *s, const hy3d__arrays *plain,
                                 const hy3d__uses *uses, const hy3d_candidate *best,
                                 hy3d_candidate *c)
{
    hy3d__cost cost = {.steps = 0};
    hy3d_status status = HY3D_OK;
    for (int32_t rank = 0; rank < s->shards.ranks && status == HY3D_OK; rank++) {
        hy3d__arrays spilled = {.steps = NULL};
        status = hy3d__spill(context, &s->request, &plain[rank], &uses[rank], c->resident_bytes,
                             c->is_early != 0, &spilled);
        if (status == HY3D_OK) {
            status = add_rank(context, s, c, rank, &spilled, &cost);
        }
        const bool matters = !best->fits || best->lacks_room || cost.seconds < best->seconds;
        if (status == HY3D_OK && matters) {
            status = look_for_room(context, s, &spilled, &cost, c);
        }
        hy3d__arrays_destroy(context, &spilled);
    }
    if (status == HY3D_OK) {
        take_cost(s, &cost, c);
    }
    c->status = (int32_t)status;
    return status;
}

/* The i-th limit. The steps are five times as long at the end as at the beginning, since a small
 * budget is to be used as well as a large one. `make schedule-time` adds up what decodes of several
 * sizes and budgets are predicted to take: 0.3 % more than with 256 limits, with 16 that are evenly
 * spaced 1.9 %. */
static int64_t limit_at(int64_t least_bytes, int64_t all_bytes, int32_t i)
{
    return least_bytes +
           (all_bytes - least_bytes) / (10 * LIMITS * LIMITS) * ((3 * LIMITS + 7 * i) * (int64_t)i);
}

/* Of two limits the first of which fits. */
static bool is_better_limit(const hy3d_candidate *a, const hy3d_candidate *b)
{
    if (!b->fits || a->lacks_room != b->lacks_room) {
        return !b->fits || b->lacks_room != 0;
    }
    return a->seconds < b->seconds;
}

/* The fastest of the limits that fit; where none does, the least one. What the smallest budget is
 * is asked of the first limits that the host's budget allows: the same under any budget. */
static hy3d_status look_at_limits(hy3d_context *context, hy3d_schedule *s,
                                  const hy3d_candidate *all)
{
    hy3d__arrays plain[HY3D_SCHEDULE_MAX_RANKS] = {{.steps = NULL}};
    hy3d__uses uses[HY3D_SCHEDULE_MAX_RANKS] = {{.memory = NULL}};
    hy3d_candidate best = *all;
    bool found = false, is_bounded = false;
    best.fits = 0;
    hy3d_status status = HY3D_OK;
    int64_t least_bytes = 0;
    for (int32_t rank = 0; rank < s->shards.ranks && status == HY3D_OK; rank++) {
        status = build(context, s, all, rank, &plain[rank]);
        if (status == HY3D_OK) {
            least_bytes =
                hy3d__max_i64(least_bytes, hy3d__least_resident(&s->request, &plain[rank]));
            status = hy3d__uses_create(context, &s->request, &plain[rank], &uses[rank]);
        }
    }
    for (int32_t i = 0; i < LIMITS && !hy3d__is_fatal(status); i++) {
        const int64_t limit = limit_at(least_bytes, all->device_bytes, i);
        bool allowed = false;
        if (is_bounded && limit > budget_of(largest_budget(s))) {
            break; /* and so are those behind it */
        }
        for (int32_t early = 0; early < 2 && !hy3d__is_fatal(status); early++) {
            hy3d_candidate c = *all;
            c.lacks_room = 0;
            c.resident_bytes = limit;
            c.is_early = early;
            status = measure_limit(context, s, plain, uses, &best, &c);
            if (status != HY3D_OK) {
                continue;
            }
            if (!is_bounded) {
                hy3d__note_smallest(s, &c);
            }
            allowed = allowed || hy3d__needed_budget(&s->request, &c) < INT64_MAX;
            const bool better = !found || (c.fits && is_better_limit(&c, &best));
            best = better ? c : best;
            found = true;
        }
        is_bounded = is_bounded || allowed;
    }
    for (int32_t rank = 0; rank < s->shards.ranks; rank++) {
        hy3d__arrays_destroy(context, &plain[rank]);
        hy3d__uses_destroy(context, &uses[rank]);
    }
    if (hy3d__is_fatal(status)) {
        return status;
    }
    return found ? hy3d__append(context, &s->candidates, &s->count, &s->room, &best) : HY3D_OK;
}

/* --- the kinds of candidates ------------------------------------------------------------------ */

/* Whether packed weights are `share` of the largest budget, or more. */
static bool packs_much(const hy3d_schedule *s, int64_t share)
{
    const hy3d_layer *layers = s->layers[0];
    const int64_t part = budget_of(largest_budget(s)) / share;
    int64_t packed = 0;
    for (int32_t i = 0; layers != NULL && i < s->request.graph.count && packed < part; i++) {
        packed += hy3d__min_i64(layers[i].packed_bytes, part);
    }
    return layers == NULL || packed >= part;
}

/* A candidate with all resident; where that does not fit, without packed weights; where that does
 * not either, slices leave: with packed weights, too, where these are little of what there is. */
static hy3d_status streamed_one(hy3d_context *context, hy3d_schedule *s,
                                const hy3d_candidate *plain)
{
    const hy3d_schedule_request *r = &s->request;
    const bool leaves = !plain->on_host && !r->is_host && !r->is_unified && r->may_spill;
    const bool repacks = hy3d__may_repack(s, plain->on_host) && packs_much(s, 32);
    hy3d_candidate looked[2] = {*plain, *plain};
    int32_t count = 0;
    for (; count < 1 + repacks; count++) {
        const int32_t before = s->count;
        looked[count].repacks = count;
        const hy3d_status status = hy3d__look_at(context, s, &looked[count]);
        const bool compiled = s->count > before && looked[count].status == HY3D_OK;
        const bool is_enough = looked[count].fits && !looked[count].lacks_room;
        if (status != HY3D_OK || !compiled || (is_enough && !r->compiles_all)) {
            return status;
        }
    }
    hy3d_status status = HY3D_OK;
    for (int32_t i = repacks && packs_much(s, 8); leaves && i < count && status == HY3D_OK; i++) {
        status = look_at_limits(context, s, &looked[i]);
    }
    return status;
}

static hy3d_candidate streamed_of(hy3d_order order, int32_t on_host)
{
    return (hy3d_candidate){
        .strategy = on_host ? HY3D_STRATEGY_HOST : HY3D_STRATEGY_STREAMED,
        .order = (int32_t)order,
        .on_host = on_host,
        .is_exact = 1,
        .resident_bytes = -1,
    };
}

static hy3d_status by_layers(hy3d_context *context, hy3d_schedule *s, int32_t on_host)
{
    const hy3d_machine *m = hy3d__machine_of(s, on_host);
    hy3d_candidate c = streamed_of(HY3D_ORDER_LAYERS, on_host);
    hy3d_status status = HY3D_OK;
    for (int32_t i = 0; i < 2 && status == HY3D_OK; i++) {
        c.slice_bytes = m->slice_bytes[i];
        status = c.slice_bytes > 0 ? streamed_one(context, s, &c) : HY3D_OK;
    }
    return status;
}

/* The units of a chunk that keep the device busy; 0: not known. */
static int64_t busy_units(const hy3d_schedule_request *r)
{
    int64_t positions = 0;
    if (r->busy_positions == 0 ||
        !hy3d__mul_i64(hy3d__max_i64(r->size[1] / r->unit[1], 1),
                       hy3d__max_i64(r->size[2] / r->unit[2], 1), &positions)) {
        return 0;
    }
    const int64_t of_two = r->ranks > 2 ? positions / r->ranks * 2 : positions;
    return hy3d__max_i64(r->busy_positions / hy3d__max_i64(of_two, 1), 1);
}

/* Of the input; 0 of no units. */
static int32_t frames_of(const hy3d_schedule_request *r, int64_t units)
{
    const int32_t unit = r->unit[0];
    if (unit == 0) {
        return (int32_t)units;
    }
    const int64_t all = (r->size[0] - 1) / unit + 1;
    return (int32_t)hy3d__min_i64(hy3d__min_i64(units, all), INT32_MAX / unit) * unit;
}

/* What is tried, each size once. */
static int32_t chunk_sizes(const hy3d_schedule *s, const hy3d_machine *m,
                           int32_t sizes_out[HY3D_SCHEDULE_MAX_CHUNKS + 1])
{
    const hy3d_schedule_request *r = &s->request;
    const bool knows_busy = m == &r->device && r->unit[0] > 0;
    int32_t count = 0;
    for (int i = -1; i < HY3D_SCHEDULE_MAX_CHUNKS; i++) {
        const int64_t units = i >= 0 ? m->chunks[i] : knows_busy ? busy_units(r) : 0;
        const int32_t size = frames_of(r, units);
        bool is_new = size > 0;
        for (int32_t k = 0; k < count; k++) {
            is_new = is_new && sizes_out[k] != size;
        }
        if (is_new) {
            sizes_out[count++] = size;
        }
    }
    return count;
}

int32_t hy3d__tile_chunk(const hy3d_schedule *s, int32_t on_host)
{
    const hy3d_machine *m = hy3d__machine_of(s, on_host);
    int last = HY3D_SCHEDULE_MAX_CHUNKS - 1;
    while (last > 0 && m->chunks[last] == 0) {
        last--;
    }
    return frames_of(&s->request, m->chunks[last]);
}

/* By chunks throughout, or behind the cut. */
static hy3d_status by_chunks(hy3d_context *context, hy3d_schedule *s, int32_t on_host,
                             hy3d_order order)
{
    const hy3d_machine *m = hy3d__machine_of(s, on_host);
    hy3d_candidate c = streamed_of(order, on_host);
    hy3d_status status = HY3D_OK;
    int32_t chunks[HY3D_SCHEDULE_MAX_CHUNKS + 1];
    const int32_t sizes = chunk_sizes(s, m, chunks);
    c.slice_bytes = order == HY3D_ORDER_PREFIX ? m->slice_bytes[0] : 0;
    for (int32_t i = 0; i < sizes && status == HY3D_OK; i++) {
        c.chunk = chunks[i];
        status = streamed_one(context, s, &c);
    }
    return status;
}

/* By layers, though chunks would do: offered if that takes less than all that came before it. */
static hy3d_status instead_of_chunks(hy3d_context *context, hy3d_schedule *s, int32_t on_host)
{
    const int32_t first = s->count;
    const int64_t before = s->smallest;
    if (!goes_in_chunks(s) || (best_of(s) >= 0 && !s->request.compiles_all)) {
        return HY3D_OK;
    }
    const hy3d_status status = by_layers(context, s, on_host);
    int32_t kept = first;
    for (int32_t i = first; i < s->count; i++) {
        if (hy3d__needed_budget(&s->request, &s->candidates[i]) < before) {
            s->candidates[kept++] = s->candidates[i];
        }
    }
    s->count = kept;
    return status;
}

static hy3d_status streamed(hy3d_context *context, hy3d_schedule *s, int32_t on_host)
{
    if (goes_in_chunks(s)) {
        return by_chunks(context, s, on_host, HY3D_ORDER_CHUNKS);
    }
    const hy3d_status status = by_layers(context, s, on_host);
    const bool cuts = s->cut.node > 0 && s->cut.group_norms == 0;
    return status == HY3D_OK && cuts ? by_chunks(context, s, on_host, HY3D_ORDER_PREFIX) : status;
}

static hy3d_candidate whole_candidate(void)
{
    return (hy3d_candidate){.strategy = HY3D_STRATEGY_WHOLE,
                            .order = HY3D_ORDER_WHOLE,
                            .is_exact = 1,
                            .resident_bytes = -1};
}

/* Looks at the VAE's own code, which stands before all others. */
static hy3d_status whole(hy3d_context *context, hy3d_schedule *s)
{
    const bool alone = s->request.strategies == 1u << HY3D_STRATEGY_WHOLE;
    const int32_t before = s->count;
    hy3d_candidate c = whole_candidate();
    if (hy3d__has_failed(s, &c)) {
        return HY3D_OK;
    }
    hy3d_status status = HY3D_OK;
    if (s->request.own_bytes == HY3D_OWN_BYTES_ASKED) {
        status = hy3d__ask_own_bytes(s);
    } else if (s->request.own_bytes < 0 && !alone) {
        return HY3D_OK;
    }
    status = status == HY3D_OK ? hy3d__look_at(context, s, &c) : status;
    if (status == HY3D_OK && s->count > before) {
        put_first(s);
    }
    return status == HY3D_ERR_UNSUPPORTED || status == HY3D_ERR_OVERFLOW ? HY3D_OK : status;
}

hy3d_status hy3d__look_at_whole(hy3d_schedule *s, hy3d_candidate *c)
{
    hy3d_status status = hy3d__ask_own_bytes(s);
    if (status == HY3D_OK) {
        c->is_bound = 0;
        c->steps = 1;
        status = hy3d__whole_cost(s, s->request.own_bytes, c);
    }
    c->status = (int32_t)status;
    hy3d__note_smallest(s, c);
    return hy3d__is_fatal(status) && status != HY3D_ERR_UNSUPPORTED ? status : HY3D_OK;
}

/* The same where its bytes are asked for: only where they decide. Its seconds are known, so they do
 * not where something exact that is faster fits, nor where the least that it can take does not. */
static hy3d_status whole_if_it_decides(hy3d_context *context, hy3d_schedule *s)
{
    hy3d_candidate c = whole_candidate();
    const int32_t best = best_of(s);
    if (hy3d__has_failed(s, &c) || s->own_is_untold) {
        return HY3D_OK;
    }
    const hy3d_status status = hy3d__whole_cost(s, hy3d__least_own_bytes(s), &c);
    if (status != HY3D_OK) {
        return HY3D_OK; /* too much to be counted, and so it would be with its bytes */
    }
    if (best >= 0 && rank_of(s, &s->candidates[best]) == 0 &&
        s->candidates[best].seconds < c.seconds) {
        return HY3D_OK;
    }
    if (c.fits) {
        return whole(context, s);
    }
    c.is_bound = 1;
    c.macs = c.steps = 0;
    c.seconds = 0;
    const hy3d_status added = hy3d__append(context, &s->candidates, &s->count, &s->room, &c);
    if (added == HY3D_OK) {
        put_first(s);
    }
    return added;
}

/* --- the choice ------------------------------------------------------------------------------- */

static hy3d_status consider(hy3d_context *context, hy3d_schedule *s)
{
    const bool goes_on = s->request.compiles_all;
    hy3d_status status = HY3D_OK;
    s->count = 0;
    s->chosen = -1;
    s->smallest = INT64_MAX;
    const bool is_alone = s->shards.ranks == 1;
    const bool owns = is_alone && hy3d__allows(s, HY3D_STRATEGY_WHOLE);
    const bool asks = s->request.own_bytes == HY3D_OWN_BYTES_ASKED && !goes_on;
    const bool streams = hy3d__allows(s, HY3D_STRATEGY_STREAMED) && (is_alone || s->can_share);
    if (owns && !asks) {
        status = whole(context, s);
    }
    if (status == HY3D_OK && streams) {
        status = streamed(context, s, 0);
    }
    if (status == HY3D_OK && owns && asks) {
        status = whole_if_it_decides(context, s);
    }
    if (status == HY3D_OK && streams) {
        status = instead_of_chunks(context, s, 0);
    }
    if (!is_alone) {
        return status;
    }
    if (status == HY3D_OK && hy3d__allows(s, HY3D_STRATEGY_TILED) && (goes_on || best_of(s) < 0)) {
        status = hy3d__search_tiles(context, s, 0);
    }
    if (status == HY3D_OK && hy3d__moves(s, HY3D_STRATEGY_STREAMED) &&
        (goes_on || best_of(s) < 0)) {
        status = streamed(context, s, 1);
        status = status == HY3D_OK ? instead_of_chunks(context, s, 1) : status;
    }
    if (status == HY3D_OK && hy3d__moves(s, HY3D_STRATEGY_TILED) && (goes_on || best_of(s) < 0)) {
        status = hy3d__search_tiles(context, s, 1);
    }
    return status;
}

/* Compiles the candidate that is taken once more, to keep its program. */
static hy3d_status take(hy3d_context *context, hy3d_schedule *s)
{
    hy3d__arrays_destroy(context, &s->arrays);
    memset(&s->program, 0, sizeof s->program);
    s->chosen = best_of(s);
    if (s->chosen < 0) {
        return HY3D_ERR_BUDGET_TOO_SMALL;
    }
    const hy3d_status status =
        compile_rank(context, s, &s->candidates[s->chosen], s->request.rank, &s->arrays);
    if (status != HY3D_OK) {
        s->chosen = -1;
        return status;
    }
    const hy3d__arrays *a = &s->arrays;
    const hy3d_candidate *c = &s->candidates[s->chosen];
    hy3d_tiles_plan tiles = {.tiles = 0};
    if (c->order == HY3D_ORDER_TILES) {
        hy3d__tiles_of(s, c->halo_row, c->level, &tiles); /* it succeeded before */
    }
    s->program = (hy3d_program){
        .candidate = s->candidates[s->chosen],
        .cut = s->cut,
        .sections = a->sections,
        .steps = a->steps,
        .kept = a->kept,
        .slices = a->slices,
        .refs = a->refs,
        .section_count = a->section_count,
        .step_count = a->step_count,
        .slice_count = a->slice_count,
        .ref_count = a->ref_count,
        .copies_bytes = s->arrays.copies_bytes,
        .prefix_bytes =
            s->candidates[s->chosen].order == HY3D_ORDER_TILES ? hy3d__prefix_bytes(s) : 0,
        .tiles = tiles.desc,
    };
    memcpy(s->program.weights, s->weights, sizeof s->weights);
    for (int32_t rank = 0; rank < s->shards.ranks; rank++) {
        const int64_t rows = s->sizes[s->request.graph.count - 1].rows;
        s->program.shares[rank + 1] = hy3d__share_of(&s->shards, rank, rows).stop;
        const hy3d__rows needed = hy3d__rows_needed(&s->shards, 0, rank, s->request.size[1]);
        s->program.input_rows[rank][0] = needed.first;
        s->program.input_rows[rank][1] = needed.stop;
    }
    return HY3D_OK;
}

static hy3d_status choose(hy3d_context *context, hy3d_schedule *s)
{
    const hy3d_status status = consider(context, s);
    if (status != HY3D_OK) {
        return status;
    }
    if (s->count == 0 && s->failed_count == 0) {
        return HY3D_ERR_UNSUPPORTED;
    }
    return take(context, s);
}

/* --- the public functions --------------------------------------------------------------------- */

/* Whether tiles of the value behind the cut make whole rows of the output. */
static bool tiles_fit(const hy3d_schedule *s)
{
    const int32_t last = s->request.graph.count - 1;
    if (s->cut.node < 0 || s->has_opaque) {
        return false;
    }
    const hy3d_size *cut = &s->sizes[s->cut.node], *out = &s->sizes[last];
    const int64_t factor = out->rows / cut->rows;
    return factor >= 1 && factor * cut->rows == out->rows && factor * cut->columns == out->columns;
}

/* Whether a rank can make its rows of a node from some of its source's: not of one that sees all of
 * a frame in a way that is no step of its own, nor of one that may see padding alone. */
static bool has_own_rows(const hy3d_node *node)
{
    const int64_t extent = (int64_t)node->dilation[1] * (node->kernel[1] - 1) + 1;
    return node->op != HY3D_OP_OPAQUE && node->norm != HY3D_NORM_FRAME &&
           (node->op != HY3D_OP_CONV || (node->before[1] < extent && node->after[1] < extent));
}

/* Rows are shared in the ratio of `weights`; NULL: equally. */
static hy3d_status copy_graph(hy3d_context *context, const hy3d_schedule_request *request,
                              const int32_t *weights, hy3d_schedule *s)
{
    const size_t count = (size_t)request->graph.count;
    void *nodes = NULL, *sizes = NULL, *alike = NULL;
    hy3d_status status = hy3d_alloc(context, count * sizeof *s->nodes, &nodes);
    s->nodes = nodes;
    if (status == HY3D_OK && request->alike != NULL) {
        status = hy3d_alloc(context, count * sizeof *s->alike, &alike);
        s->request.alike = s->alike = alike;
    }
    for (int i = 0; i < 2; i++) {
        void *layers = NULL;
        if (status == HY3D_OK && request->places[i].layers != NULL) {
            status = hy3d_alloc(context, count * sizeof *s->layers[i], &layers);
        }
        s->request.places[i].layers = s->layers[i] = layers;
    }
    if (status == HY3D_OK) {
        status = hy3d_alloc(context, count * sizeof *s->sizes, &sizes);
        s->sizes = sizes;
    }
    if (status != HY3D_OK) {
        return status;
    }
    memcpy(s->nodes, request->graph.nodes, count * sizeof *s->nodes);
    s->request.graph.nodes = s->nodes;
    if (s->alike != NULL) {
        memcpy(s->alike, request->alike, count * sizeof *s->alike);
    }
    for (int i = 0; i < 2; i++) {
        if (s->layers[i] != NULL) {
            memcpy(s->layers[i], request->places[i].layers, count * sizeof *s->layers[i]);
        }
    }
    status = hy3d_graph_sizes(&s->request.graph, request->size, s->sizes);
    if (status == HY3D_OK) {
        status = hy3d_graph_cut(&s->request.graph, request->size, &s->cut);
    }
    s->can_share = true;
    for (int32_t rank = 0; rank < HY3D_SCHEDULE_MAX_RANKS; rank++) {
        const bool has_own = request->device_budgets != NULL && rank < request->ranks;
        const bool is_one = rank < (request->ranks > 1 ? request->ranks : 1);
        s->budgets[rank] =
            has_own && request->ranks > 1 ? request->device_budgets[rank] : request->device_budget;
        s->weights[rank] = is_one && weights != NULL && request->ranks > 1 ? weights[rank] : is_one;
    }
    for (size_t i = 0; i < count; i++) {
        s->has_group_norms = s->has_group_norms || s->nodes[i].norm == HY3D_NORM_GROUP;
        s->can_share = s->can_share && has_own_rows(&s->nodes[i]);
        s->has_opaque = s->has_opaque || s->nodes[i].op == HY3D_OP_OPAQUE;
    }
    s->can_tile = status == HY3D_OK && s->request.ranks <= 1 && tiles_fit(s);
    if (status == HY3D_OK) {
        status = hy3d__shards_create(context, &s->request.graph, s->sizes, s->request.ranks,
                                     s->weights, &s->shards);
        s->request.weights = NULL; /* the caller's */
        s->request.device_budgets = NULL;
    }
    return status;
}

/* With rows shared in the ratio of `weights`; NULL: equally. */
static hy3d_status compile_shared(hy3d_context *context, const hy3d_schedule_request *request,
                                  const int32_t *weights, hy3d_schedule **schedule_out)
{
    void *memory = NULL;
    hy3d_status status = hy3d_alloc(context, sizeof(hy3d_schedule), &memory);
    if (status != HY3D_OK) {
        return status;
    }
    hy3d_schedule *s = memory;
    *s = (hy3d_schedule){.request = *request, .chosen = -1};
    status = copy_graph(context, request, weights, s);
    if (status == HY3D_OK) {
        status = choose(context, s);
    }
    if (status == HY3D_ERR_BUDGET_TOO_SMALL) {
        const hy3d_status found = hy3d__find_smallest(context, s);
        status = found == HY3D_OK ? status : found;
    }
    if (status != HY3D_OK && status != HY3D_ERR_BUDGET_TOO_SMALL) {
        hy3d_schedule_destroy(context, s);
        return status;
    }
    *schedule_out = s;
    return status;
}

/* Whether it has a program, of which nothing leaves for the host. */
static bool stays_on_devices(const hy3d_schedule *s)
{
    return s->chosen >= 0 && s->program.candidate.stored_bytes == 0;
}

hy3d_status hy3d_schedule_compile(hy3d_context *context, const hy3d_schedule_request *request,
                                  hy3d_schedule **schedule_out)
{
    int32_t weights[HY3D_SCHEDULE_MAX_RANKS];
    if (context == NULL || request == NULL || schedule_out == NULL) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    hy3d_status status = hy3d_graph_check(&request->graph, request->size, NULL);
    if (status == HY3D_OK && !hy3d__right_request(request)) {
        status = HY3D_ERR_INVALID_ARGUMENT;
    }
    if (status != HY3D_OK) {
        return status;
    }
    hy3d_schedule *s = NULL, *other = NULL;
    status = compile_shared(context, request, request->weights, &s);
    const bool is_done = s == NULL || stays_on_devices(s);
    if (is_done || request->weights != NULL || request->ranks <= 1 ||
        !hy3d__weights_by_room(s->budgets, request->ranks, weights)) {
        *schedule_out = s == NULL ? *schedule_out : s;
        return status;
    }
    const hy3d_status unequal = compile_shared(context, request, weights, &other);
    if (other == NULL) {
        hy3d_schedule_destroy(context, s);
        return unequal;
    }
    const bool takes_other = unequal == HY3D_OK && (status != HY3D_OK || stays_on_devices(other));
    *schedule_out = takes_other ? other : s;
    hy3d_schedule_destroy(context, takes_other ? s : other);
    return takes_other ? unequal : status;
}

void hy3d_schedule_destroy(hy3d_context *context, hy3d_schedule *s)
{
    if (s == NULL) {
        return;
    }
    for (int i = 0; i < 2; i++) {
        if (s->built[i]) {
            hy3d__builder_destroy(&s->builders[i]);
        }
    }
    hy3d__arrays_destroy(context, &s->arrays);
    hy3d__shards_destroy(context, &s->shards);
    hy3d_free(context, s->nodes);
    hy3d_free(context, s->alike);
    hy3d_free(context, s->layers[0]);
    hy3d_free(context, s->layers[1]);
    hy3d_free(context, s->sizes);
    hy3d_free(context, s->candidates);
    hy3d_free(context, s->failed);
    hy3d_free(context, s);
}

int32_t hy3d_schedule_candidates(const hy3d_schedule *s, const hy3d_candidate **candidates_out)
{
    *candidates_out = s->candidates;
    return s->count;
}

int64_t hy3d_schedule_smallest_budget(const hy3d_schedule *s)
{
    return s->smallest;
}

const hy3d_program *hy3d_schedule_program(const hy3d_schedule *s)
{
    return s->chosen < 0 ? NULL : &s->program;
}

int64_t hy3d_schedule_start(const hy3d_schedule *s, int64_t wanted)
{
    const int64_t chunk = s->chosen < 0 ? 0 : s->program.candidate.chunk;
    double rate = 1;
    const int64_t past =
        chunk <= 0 || wanted <= 0 ? -1 : hy3d__graph_past(&s->request.graph, &rate);
    if (past < 0) {
        return 0;
    }
    /* The first frame of the input makes one. It is unlike others, so the one that is the first of
     * its video then must be one further back. */
    const int64_t own = (int64_t)((double)(wanted - 1) / rate) + 1;
    const int64_t start = (own - past - 1) / chunk;
    return start > 0 ? start * chunk : 0;
}

/* --- after a failure -------------------------------------------------------------------------- */

/* Less than what was planned with and what was there: seven tenths. */
static int64_t lowered(int64_t budget, int64_t planned)
{
    const int64_t room = budget_of(budget) < planned ? budget_of(budget) : planned;
    const int64_t less = room / 10 * 7;
    return less > 1 ? less : 1;
}

static bool takes_less(const hy3d_candidate *now, const hy3d_candidate *before, bool of_host)
{
    return of_host ? now->host_bytes < before->host_bytes
                   : now->device_bytes < before->device_bytes;
}

/* Another program, without the one that failed. `why`: HY3D_ERR_UNSUPPORTED where no kernel is. */
static hy3d_status give_up(hy3d_context *context, hy3d_schedule *s, const hy3d_candidate *failed,
                           hy3d_status why)
{
    hy3d_candidate c = *failed;
    c.status = (int32_t)why;
    const hy3d_status status =
        hy3d__append(context, &s->failed, &s->failed_count, &s->failed_room, &c);
    return status == HY3D_OK ? choose(context, s) : status;
}

/* The same with less resident if that does, else another. */
static hy3d_status with_less(hy3d_context *context, hy3d_schedule *s, bool of_host)
{
    const hy3d_candidate failed = s->candidates[s->chosen];
    const int64_t host_before = s->request.host_budget;
    int64_t before[HY3D_SCHEDULE_MAX_RANKS];
    memcpy(before, s->budgets, sizeof before);
    if (of_host) {
        s->request.host_budget = lowered(host_before, failed.host_bytes);
    }
    for (int32_t rank = 0; rank < s->shards.ranks && !of_host; rank++) {
        s->budgets[rank] = lowered(before[rank], failed.device_bytes);
    }
    const hy3d_status status = choose(context, s);
    if (status == HY3D_OK && (!hy3d__same_candidate(&s->candidates[s->chosen], &failed) ||
                              takes_less(&s->candidates[s->chosen], &failed, of_host))) {
        return status;
    }
    if (status != HY3D_OK && status != HY3D_ERR_BUDGET_TOO_SMALL) {
        return status;
    }
    if (status != HY3D_OK) {
        s->request.host_budget = host_before;
        memcpy(s->budgets, before, sizeof before);
    }
    return give_up(context, s, &failed, HY3D_ERR_OUT_OF_MEMORY);
}

hy3d_status hy3d_schedule_fallback(hy3d_context *context, hy3d_schedule *s, int32_t attempts,
                                   hy3d_reason reason, bool can_widen, hy3d_action *action_out)
{
    const bool memory =
        reason == HY3D_REASON_OUT_OF_MEMORY || reason == HY3D_REASON_OUT_OF_HOST_MEMORY;
    if (context == NULL || s == NULL || action_out == NULL || s->chosen < 0 || attempts < 1) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    /* Of the VAE's own code the one step is the whole decode. */
    const int32_t allowed =
        s->candidates[s->chosen].order == HY3D_ORDER_WHOLE ? 1 : HY3D_STEP_ATTEMPTS;
    if (reason == HY3D_REASON_REFUSED || (memory && attempts < allowed)) {
        *action_out = HY3D_ACTION_STEP_AGAIN;
        return HY3D_OK;
    }
    if (reason == HY3D_REASON_NOT_FINITE || reason == HY3D_REASON_CANCELLED) {
        *action_out =
            reason == HY3D_REASON_NOT_FINITE && can_widen ? HY3D_ACTION_WIDER : HY3D_ACTION_STOP;
        return HY3D_OK;
    }
    if (!memory && reason != HY3D_REASON_NO_KERNEL) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    const hy3d_candidate failed = s->candidates[s->chosen];
    const bool of_host = reason == HY3D_REASON_OUT_OF_HOST_MEMORY && !s->request.is_host;
    hy3d_status status = memory ? with_less(context, s, of_host)
                                : give_up(context, s, &failed, HY3D_ERR_UNSUPPORTED);
    if (status == HY3D_ERR_BUDGET_TOO_SMALL) {
        const hy3d_status found = hy3d__find_smallest(context, s);
        status = found == HY3D_OK ? status : found;
    }
    if (status != HY3D_OK && status != HY3D_ERR_BUDGET_TOO_SMALL) {
        return status;
    }
    *action_out = status == HY3D_OK ? HY3D_ACTION_BEGIN_AGAIN : HY3D_ACTION_STOP;
    return HY3D_OK;
}

/* --- names ------------------------------------------------------------------------------------ */

const char *hy3d_step_op_name(int32_t op)
{
    static const char *const names[HY3D_STEP_OPS] = {
        "enter",   "conv",   "pass", "keys",  "attend", "map",  "add",  "trim", "opaque",
        "moments", "reduce", "emit", "store", "drop",   "load", "send", "recv"};
    return op >= 0 && op < HY3D_STEP_OPS ? names[op] : "?";
}

const char *hy3d_order_name(int32_t order)
{
    static const char *const names[] = {"whole", "layers", "chunks", "prefix", "tiles"};
    return order >= 0 && order <= HY3D_ORDER_TILES ? names[order] : "?";
}

const char *hy3d_strategy_name(int32_t strategy)
{
    static const char *const names[] = {"whole", "streamed", "tiled", "cpu"};
    return strategy >= 0 && strategy <= HY3D_STRATEGY_HOST ? names[strategy] : "?";
}
