#include "judge.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef long long ll;

/* What was chosen under one budget. */
typedef struct choice {
    hy3d_status status;
    hy3d_candidate candidate;
    uint64_t shapes;
    int64_t smallest, budget;
} choice;

enum { MOST_SHAPES = 64, MOST_FALLS = 3000, MOST_REFUSALS = 40, MOST_SHARED_FALLS = 4 };

/* The schedules of one request, by rank. */
typedef struct schedules {
    int32_t ranks;
    hy3d_schedule *of[REPLAY_MOST_RANKS];
} schedules;

typedef struct judge {
    hy3d_context *context;
    graphs_case *made;
    graphs_numbers numbers;
    judge_report *report;
    choice seen[MOST_SHAPES];
    int count;
} judge;

static bool object(judge *j, const char *format, ...) __attribute__((format(TEST_PRINTF, 2, 3)));
static bool object(judge *j, const char *format, ...)
{
    const hy3d_schedule_request *const r = &j->made->request;
    char *const text = j->report->text;
    va_list arguments;
    if (text[0] != '\0') {
        return false;
    }
    snprintf(text, sizeof j->report->text, "budgets %lld and %lld, strategies %u, ranks %d: ",
             (ll)r->device_budget, (ll)r->host_budget, r->strategies, r->ranks);
    const size_t used = strlen(text);
    va_start(arguments, format);
    vsnprintf(text + used, sizeof j->report->text - used, format, arguments);
    va_end(arguments);
    return false;
}

static int64_t draw(judge *j, int64_t low, int64_t high)
{
    return j->numbers.between(j->numbers.state, low, high);
}

/* Whether both are the same way to carry a decode out, so that bits must be the same. */
static bool is_same_way(const hy3d_candidate *a, const hy3d_candidate *b)
{
    return a->strategy == b->strategy && a->order == b->order && a->on_host == b->on_host &&
           a->chunk == b->chunk && a->slice_bytes == b->slice_bytes && a->level == b->level &&
           a->halo_row == b->halo_row;
}

static bool shapes_stay(judge *j, const choice *now)
{
    for (int i = 0; i < j->count; i++) {
        if (is_same_way(&j->seen[i].candidate, &now->candidate)) {
            return j->seen[i].shapes == now->shapes ||
                   object(j, "the computing steps are others than under another budget");
        }
    }
    if (j->count < MOST_SHAPES) {
        j->seen[j->count++] = *now;
    }
    return true;
}

/* The program of one rank, or those of all at once. */
static bool replay(judge *j, const schedules *all, replay_verdict *verdict)
{
    const hy3d_program *programs[REPLAY_MOST_RANKS];
    for (int32_t rank = 0; rank < all->ranks; rank++) {
        programs[rank] = hy3d_schedule_program(all->of[rank]);
        if (programs[rank] == NULL) {
            snprintf(verdict->text, sizeof verdict->text, "rank %d has no program", rank);
            return false;
        }
    }
    return all->ranks == 1 ? replay_program(&j->made->request, programs[0], verdict)
                           : replay_ranks(&j->made->request, programs, verdict);
}

static bool judge_program(judge *j, const schedules *all, choice *out)
{
    const hy3d_program *const program = hy3d_schedule_program(all->of[0]);
    replay_verdict verdict;
    out->candidate = program->candidate;
    if (!replay(j, all, &verdict)) {
        return object(j, "%s (order %d, chunk %d, slices of %lld, level %d, halo %d, resident "
                      "%lld, on host %d)", verdict.text, out->candidate.order,
                      out->candidate.chunk, (ll)out->candidate.slice_bytes,
                      out->candidate.level, out->candidate.halo_row,
                      (ll)out->candidate.resident_bytes, out->candidate.on_host);
    }
    out->shapes = verdict.shapes;
    j->report->programs[program->candidate.order]++;
    j->report->shared += all->ranks > 1;
    j->report->steps += verdict.steps;
    if (out->candidate.status != HY3D_OK || !out->candidate.fits ||
        !(out->candidate.seconds >= 0)) {
        return object(j, "the program's candidate has status %d, fits %d, %g s",
                      out->candidate.status, out->candidate.fits, out->candidate.seconds);
    }
    return shapes_stay(j, out);
}

/* Whether a candidate's `fits` is what its figures say. Of several ranks whose host is the device,
 * the two peaks may be of different ranks: then both together may not fit where each rank does. */
static bool fits_as_it_says(const hy3d_schedule_request *request, const hy3d_candidate *candidate)
{
    const bool is_within = replay_is_within(request, candidate);
    return candidate->fits == is_within ||
           (request->ranks > 1 && request->is_unified && candidate->fits);
}

/* All ranks are offered the same, to the last figure. */
static bool are_offered_the_same(judge *j, const schedules *of)
{
    const hy3d_candidate *first = NULL, *other = NULL;
    const int32_t count = hy3d_schedule_candidates(of->of[0], &first);
    for (int32_t rank = 1; rank < of->ranks; rank++) {
        if (hy3d_schedule_candidates(of->of[rank], &other) != count ||
            hy3d_schedule_smallest_budget(of->of[rank]) !=
                hy3d_schedule_smallest_budget(of->of[0])) {
            return object(j, "rank %d has other candidates than rank 0", rank);
        }
        for (int32_t i = 0; i < count; i++) {
            if (!replay_is_same(&first[i], &other[i])) {
                return object(j, "candidate %d of rank %d is not that of rank 0", i, rank);
            }
        }
    }
    return true;
}

/* Of tiles: whether `a` is of a halo that comes first, or larger under the same one. */
static bool is_wider(const hy3d_candidate *a, const hy3d_candidate *b)
{
    return a->halo_row != b->halo_row ? a->halo_row < b->halo_row : a->level < b->level;
}

/* What was given up takes no less than was said of it. Of the first halo, whose levels can be asked
 * for. */
static bool is_bound_right(judge *j, const hy3d_candidate *bound)
{
    const hy3d_schedule_request before = j->made->request;
    hy3d_schedule_request *const r = &j->made->request;
    const hy3d_candidate *all = NULL;
    hy3d_schedule *schedule = NULL;
    if (bound->order == HY3D_ORDER_WHOLE) {
        return (!bound->fits && bound->device_bytes == replay_least_own_bytes(r)) ||
               object(j, "a bound of %lld bytes of the VAE's own code", (ll)bound->device_bytes);
    }
    if (bound->halo_row != 0 || bound->fits || bound->seconds > 0 || bound->macs != 0 ||
        bound->order != HY3D_ORDER_TILES) {
        return bound->halo_row != 0 || object(j, "a bound fits, or says more than bytes");
    }
    r->only_level = bound->level + 1;
    r->strategies = 1U << bound->strategy;
    r->device_budget = r->host_budget = 0;
    r->compiles_all = 1;
    const hy3d_status status = hy3d_schedule_compile(j->context, r, &schedule);
    *r = before;
    if (status != HY3D_OK && status != HY3D_ERR_BUDGET_TOO_SMALL) {
        return object(j, "level %d alone: %s", bound->level, hy3d_status_name(status));
    }
    const int32_t count = hy3d_schedule_candidates(schedule, &all);
    bool is_right = false;
    for (int32_t i = 0; i < count; i++) {
        is_right = is_right || (is_same_way(&all[i], bound) && !all[i].is_bound &&
                                (all[i].status != HY3D_OK ||
                                 (all[i].device_bytes >= bound->device_bytes &&
                                  all[i].host_bytes >= bound->host_bytes)));
    }
    hy3d_schedule_destroy(j->context, schedule);
    j->report->bounds++;
    return is_right || object(j, "level %d takes less than %lld and %lld bytes", bound->level,
                              (ll)bound->device_bytes, (ll)bound->host_bytes);
}

static bool bounds_are_right(judge *j, const hy3d_schedule *schedule)
{
    const hy3d_candidate *all = NULL;
    const int32_t count = hy3d_schedule_candidates(schedule, &all);
    bool are = true;
    for (int32_t i = 0; i < count && are; i++) {
        are = !all[i].is_bound || is_bound_right(j, &all[i]);
    }
    return are;
}

/* Kinds of programs in one place, the rather taken the lower: exact ones, those by layers of graphs
 * that could go in chunks, tiles. */
enum { EXACT = 0, INSTEAD = 1, TILES = 2 };

static int kind_of(const hy3d_schedule_request *request, const hy3d_candidate *candidate)
{
    bool in_chunks = true;
    for (int32_t node = 0; node < request->graph.count; node++) {
        in_chunks = in_chunks && request->graph.nodes[node].op != HY3D_OP_OPAQUE &&
                    request->graph.nodes[node].norm != HY3D_NORM_GROUP;
    }
    return candidate->order == HY3D_ORDER_TILES                 ? TILES
           : candidate->order == HY3D_ORDER_LAYERS && in_chunks ? INSTEAD
                                                                : EXACT;
}

/* A program by layers in place of chunks is looked at where none of these fits, or all candidates
 * are wanted; it takes less than each of them, and tiles come after it. */
static bool is_wanted(judge *j, const hy3d_candidate *all, int32_t at)
{
    const hy3d_candidate *const layers = &all[at];
    for (int32_t i = 0; i < at; i++) {
        const hy3d_candidate *const one = &all[i];
        if (one->on_host != layers->on_host) {
            continue;
        }
        if (one->order == HY3D_ORDER_TILES) {
            return object(j, "candidate %d goes by layers, and %d before it in tiles", at, i);
        }
        if (one->order != HY3D_ORDER_CHUNKS || one->status != HY3D_OK) {
            continue;
        }
        if (one->fits && !j->made->request.compiles_all) {
            return object(j, "candidate %d goes by layers, and %d fits in chunks", at, i);
        }
        if (one->device_bytes + one->margin_bytes <= layers->device_bytes + layers->margin_bytes &&
            one->host_bytes <= layers->host_bytes) {
            return object(j, "candidate %d takes no less by layers than %d in chunks", at, i);
        }
    }
    return true;
}

/* No candidate is at least as good in all that counts, and faster; of tiles, wider or larger. */
static bool is_best(judge *j, const schedules *of, const hy3d_candidate *chosen)
{
    const hy3d_candidate *all = NULL;
    const int32_t count = hy3d_schedule_candidates(of->of[0], &all);
    bool is_there = false;
    for (int32_t i = 0; i < count; i++) {
        is_there = is_there || (is_same_way(&all[i], chosen) && all[i].steps == chosen->steps &&
                                all[i].device_bytes == chosen->device_bytes &&
                                all[i].host_bytes == chosen->host_bytes);
        const int kind = kind_of(&j->made->request, &all[i]);
        const int taken = kind_of(&j->made->request, chosen);
        const bool fits = all[i].status == HY3D_OK && all[i].fits;
        if (kind == INSTEAD && !is_wanted(j, all, i)) {
            return false;
        }
        if (fits && kind == TILES && taken == TILES &&
            all[i].on_host == chosen->on_host && is_wider(&all[i], chosen)) {
            return object(j, "candidate %d is of halo %d, level %d, the one taken of %d, %d", i,
                          all[i].halo_row, all[i].level, chosen->halo_row, chosen->level);
        }
        if (fits && all[i].on_host < chosen->on_host) {
            return object(j, "candidate %d fits on the device, the one taken is on the host", i);
        }
        if (fits && kind < taken && all[i].on_host == chosen->on_host) {
            return object(j, "candidate %d fits and is of kind %d, the one taken of kind %d", i,
                          kind, taken);
        }
        const bool is_alike = fits && kind != TILES && kind == taken &&
                              all[i].on_host == chosen->on_host;
        if (is_alike && !all[i].lacks_room && chosen->lacks_room) {
            return object(j, "candidate %d finds room, the one taken does not", i);
        }
        if (is_alike && all[i].lacks_room == chosen->lacks_room &&
            all[i].seconds < chosen->seconds) {
            return object(j, "candidate %d takes %g s, the one taken %g s", i, all[i].seconds,
                          chosen->seconds);
        }
        if (all[i].status == HY3D_OK && all[i].order != HY3D_ORDER_WHOLE &&
            !fits_as_it_says(&j->made->request, &all[i])) {
            return object(j, "candidate %d of %lld and %lld bytes: fits %d", i,
                          (ll)all[i].device_bytes, (ll)all[i].host_bytes, all[i].fits);
        }
        const int32_t only = j->made->request.only_level;
        if (all[i].order == HY3D_ORDER_TILES && only > 0 &&
            (all[i].level != only - 1 || all[i].halo_row != 0)) {
            return object(j, "candidate %d is of level %d, halo %d", i, all[i].level,
                          all[i].halo_row);
        }
        const hy3d_schedule_request *const r = &j->made->request;
        if (all[i].repacks && (!r->may_repack || r->is_host || all[i].on_host)) {
            return object(j, "candidate %d makes again what has to stay", i);
        }
        if (((r->strategies >> all[i].strategy) & 1) == 0) {
            return object(j, "candidate %d is of strategy %d", i, all[i].strategy);
        }
    }
    return is_there || object(j, "the one taken is not among the %d candidates", count);
}

/* The same failure on each rank; all do the same. */
static bool fall(judge *j, const schedules *of, int32_t attempts, hy3d_reason why, bool can_widen,
                 hy3d_action *action_out)
{
    for (int32_t rank = 0; rank < of->ranks; rank++) {
        hy3d_action action = HY3D_ACTION_STOP;
        const hy3d_status status =
            hy3d_schedule_fallback(j->context, of->of[rank], attempts, why, can_widen, &action);
        j->report->falls++;
        if (status != HY3D_OK) {
            return object(j, "fallback for reason %d: %s", (int)why, hy3d_status_name(status));
        }
        if (rank > 0 && action != *action_out) {
            return object(j, "action %d of rank %d, %d of those before", (int)action, rank,
                          (int)*action_out);
        }
        *action_out = action;
    }
    return true;
}

/* One failure after the other, of a step again or of one behind it, until nothing is left. */
static bool judge_falls(judge *j, const schedules *of, int32_t reason)
{
    int32_t attempts = 1;
    for (int falls = 0; falls < MOST_FALLS; falls++) {
        if (of->ranks > 1 && falls == MOST_SHARED_FALLS) {
            return true; /* each is judged as often as there are ranks */
        }
        const hy3d_reason why = reason >= 0 ? (hy3d_reason)reason : (hy3d_reason)draw(j, 0, 5);
        const bool can_widen = draw(j, 0, 1) == 1;
        choice next;
        hy3d_action action = HY3D_ACTION_STOP;
        if (!fall(j, of, attempts, why, can_widen, &action)) {
            return false;
        }
        if (action == HY3D_ACTION_STOP) {
            return true;
        }
        if (action == HY3D_ACTION_WIDER && can_widen && why == HY3D_REASON_NOT_FINITE) {
            return true; /* who asks compiles for the wider type */
        }
        if (why == HY3D_REASON_CANCELLED ||
            action == HY3D_ACTION_WIDER ||
            (why == HY3D_REASON_REFUSED && action != HY3D_ACTION_STEP_AGAIN)) {
            return object(j, "action %d after reason %d, can widen %d", (int)action, (int)why,
                          can_widen);
        }
        if (reason == HY3D_REASON_REFUSED && falls > MOST_REFUSALS) {
            return true; /* who asks runs out of tiers */
        }
        if (hy3d_schedule_program(of->of[0]) == NULL) {
            return object(j, "no program after action %d", (int)action);
        }
        if (action != HY3D_ACTION_STEP_AGAIN && !judge_program(j, of, &next)) {
            return false;
        }
        const bool is_same = action == HY3D_ACTION_STEP_AGAIN && draw(j, 0, 3) != 3;
        attempts = is_same ? attempts + 1 : 1;
    }
    return object(j, "%d failures (reason %d), and it does not end", MOST_FALLS, reason);
}

/* Whether several ranks are offered nothing. */
static bool can_not_be_shared(const hy3d_schedule_request *request)
{
    const uint32_t wanted = 1U << HY3D_STRATEGY_STREAMED | 1U << HY3D_STRATEGY_HOST;
    bool is_unshared = false;
    for (int32_t node = 0; node < request->graph.count; node++) {
        is_unshared = is_unshared || replay_unshared(&request->graph.nodes[node]) != NULL;
    }
    return is_unshared || (request->strategies & wanted) == 0;
}

static bool is_allowed(const hy3d_schedule_request *request, hy3d_status status)
{
    return status == HY3D_OK || status == HY3D_ERR_BUDGET_TOO_SMALL ||
           (status == HY3D_ERR_UNSUPPORTED &&
            (request->ranks <= 1 || can_not_be_shared(request)));
}

/* Compiles for each rank, with the same status. Where nothing fits one other rank is asked. */
static bool compile_ranks(judge *j, schedules *out, hy3d_status *status_out)
{
    hy3d_schedule_request *const request = &j->made->request;
    const int32_t ranks = request->ranks > 1 ? request->ranks : 1;
    const int32_t other = ranks > 1 ? (int32_t)draw(j, 1, ranks - 1) : 0;
    bool is_good = true;
    *out = (schedules){.ranks = ranks};
    for (request->rank = 0; request->rank < ranks && is_good; request->rank++) {
        const int32_t rank = request->rank;
        if (rank > 0 && *status_out != HY3D_OK && rank != other) {
            continue;
        }
        const hy3d_status status =
            hy3d_schedule_compile(j->context, request, &out->of[rank]);
        is_good = rank == 0 || status == *status_out ||
                  object(j, "compile of rank %d: %s, of rank 0 %s", rank,
                         hy3d_status_name(status), hy3d_status_name(*status_out));
        *status_out = rank == 0 ? status : *status_out;
    }
    request->rank = 0;
    return is_good && (is_allowed(request, *status_out) ||
                       object(j, "compile: %s", hy3d_status_name(*status_out)));
}

static bool judge_compiled(judge *j, const schedules *all, int32_t reason, choice *out)
{
    const hy3d_program *const program = hy3d_schedule_program(all->of[0]);
    out->smallest = hy3d_schedule_smallest_budget(all->of[0]);
    if (!bounds_are_right(j, all->of[0])) {
        return false;
    }
    if ((program == NULL) != (out->status == HY3D_ERR_BUDGET_TOO_SMALL)) {
        return object(j, "%s, and program %p", hy3d_status_name(out->status),
                      (const void *)program);
    }
    if (program == NULL) {
        j->report->refused++;
        return true;
    }
    return judge_program(j, all, out) && are_offered_the_same(j, all) &&
           is_best(j, all, &out->candidate) && (reason == -2 || judge_falls(j, all, reason));
}

/* Where the bytes of the VAE's own code are asked for only where they decide: what is chosen, and
 * the smallest budget, are as where all are asked for beforehand. */
static bool is_as_if_told(judge *j, const choice *found)
{
    const hy3d_schedule_request before = j->made->request;
    hy3d_schedule_request *const r = &j->made->request;
    hy3d_schedule *schedule = NULL;
    if (r->own_bytes != HY3D_OWN_BYTES_ASKED || r->ranks > 1) {
        return true;
    }
    r->own_bytes = j->made->own_told;
    if (r->own_bytes < 0) {
        r->strategies &= ~(1U << HY3D_STRATEGY_WHOLE);
    } else {
        const int64_t least = replay_least_own_bytes(r);
        r->own_bytes = least > r->own_bytes ? least : r->own_bytes;
    }
    const hy3d_status status = r->strategies == 0
                                   ? HY3D_ERR_UNSUPPORTED
                                   : hy3d_schedule_compile(j->context, r, &schedule);
    *r = before;
    if (status != HY3D_OK) {
        const bool is_same = status == found->status &&
                             (status != HY3D_ERR_BUDGET_TOO_SMALL ||
                              hy3d_schedule_smallest_budget(schedule) == found->smallest);
        hy3d_schedule_destroy(j->context, schedule);
        return is_same || object(j, "own bytes told: %s, asked for: %s",
                                 hy3d_status_name(status), hy3d_status_name(found->status));
    }
    const hy3d_candidate told = hy3d_schedule_program(schedule)->candidate;
    hy3d_schedule_destroy(j->context, schedule);
    j->report->asked++;
    return (found->status == HY3D_OK && replay_is_same(&told, &found->candidate)) ||
           object(j, "own bytes told: order %d on host %d, asked for: order %d on host %d, %s",
                  told.order, told.on_host, found->candidate.order, found->candidate.on_host,
                  hy3d_status_name(found->status));
}

/* Compiles the case as it is. reason: -1 any, -2 none. */
static bool compile(judge *j, int32_t reason, choice *out)
{
    schedules all;
    memset(out, 0, sizeof *out);
    out->budget = j->made->request.device_budget;
    bool is_good = compile_ranks(j, &all, &out->status);
    if (is_good && out->status == HY3D_ERR_UNSUPPORTED) {
        j->report->unsupported++;
    } else if (is_good) {
        is_good = judge_compiled(j, &all, reason, out);
    }
    is_good = is_good && is_as_if_told(j, out);
    for (int32_t rank = 0; rank < all.ranks; rank++) {
        hy3d_schedule_destroy(j->context, all.of[rank]);
    }
    return is_good;
}

/* The budget named is the least. */
static bool is_exact(judge *j, int64_t smallest)
{
    choice at, below;
    if (smallest < 1) {
        return object(j, "the smallest budget is %lld", (ll)smallest);
    }
    j->made->request.device_budget = smallest;
    if (!compile(j, (int32_t)draw(j, -1, 5), &at)) {
        return false;
    }
    if (at.status != HY3D_OK) {
        return object(j, "the budget said to be the smallest does not do");
    }
    if (at.smallest != smallest) {
        return object(j, "it is the smallest, and there %lld is", (ll)at.smallest);
    }
    if (smallest == 1) {
        return true;
    }
    j->made->request.device_budget = smallest - 1;
    if (!compile(j, -2, &below)) {
        return false;
    }
    return below.status == HY3D_ERR_BUDGET_TOO_SMALL ||
           object(j, "a budget one byte below the smallest does");
}

/* A larger budget is never predicted slower, and neither the device nor the whole picture is given
 * up for it: the device before the host, then the kind, then the fastest; of tiles the widest halo
 * (in the request's order) and the largest, which have the fewest borders. */
static bool is_no_worse(judge *j, const choice *small, const choice *large)
{
    const hy3d_candidate *const a = &small->candidate, *const b = &large->candidate;
    if (small->status != HY3D_OK) {
        return true;
    }
    if (large->status != HY3D_OK) {
        return object(j, "a smaller budget does, this one does not");
    }
    const int kind = kind_of(&j->made->request, a), now = kind_of(&j->made->request, b);
    return (b->on_host <= a->on_host &&
            (b->on_host != a->on_host || now < kind ||
             (now == kind &&
              (b->seconds <= a->seconds || b->halo_row < a->halo_row ||
               (now == TILES && b->level < a->level))))) ||
           object(j, "%g s, exact %d, on host %d, and with a budget of %lld %g s, exact %d, on "
                  "host %d", b->seconds, b->is_exact, b->on_host, (ll)small->budget, a->seconds,
                  a->is_exact, a->on_host);
}

static bool sweep(judge *j, int64_t smallest, int64_t most)
{
    choice before = {.status = HY3D_ERR_BUDGET_TOO_SMALL};
    int64_t budget = smallest;
    most = most > smallest ? most : smallest;
    const int budgets = j->made->request.ranks > 1 ? 2 : 5; /* of ranks each is compiled often */
    for (int i = 0; i < budgets; i++) {
        choice now;
        j->made->request.device_budget = budget;
        if (!compile(j, i == 2 ? -1 : -2, &now) || !is_no_worse(j, &before, &now)) {
            return false;
        }
        before = now;
        const int64_t quarter = most > budget ? (most - budget) / 4 : 1;
        budget += quarter + draw(j, 0, quarter);
    }
    return true;
}

static bool sizes_agree(judge *j)
{
    const hy3d_schedule_request *const r = &j->made->request;
    hy3d_size sizes[GRAPHS_MOST_NODES];
    int32_t node = -7;
    bool is_same = true;
    const hy3d_status status = hy3d_graph_check(&r->graph, r->size, &node);
    if (status != HY3D_OK || node != -1) {
        return object(j, "graph check: %s, node %d", hy3d_status_name(status), node);
    }
    if (hy3d_graph_sizes(&r->graph, r->size, sizes) != HY3D_OK) {
        return object(j, "no sizes");
    }
    replay_values values = replay_values_make(
        &r->graph, 0, r->graph.count - 1,
        (hy3d_size){r->graph.nodes[0].channels, r->size[0], r->size[1], r->size[2]});
    for (int32_t i = 0; i < r->graph.count && is_same; i++) {
        const hy3d_size *const size = &values.of[i].size;
        is_same = memcmp(size, &sizes[i], sizeof *size) == 0 ||
                  object(j, "node %d has %lld x %lld x %lld x %lld, not %lld x %lld x %lld x %lld",
                         i, (ll)sizes[i].channels, (ll)sizes[i].frames, (ll)sizes[i].rows,
                         (ll)sizes[i].columns, (ll)size->channels, (ll)size->frames,
                         (ll)size->rows, (ll)size->columns);
    }
    replay_values_free(&values);
    return is_same;
}

bool judge_request(hy3d_context *context, graphs_case *made, graphs_numbers numbers,
                   judge_report *report)
{
    judge j = {.context = context, .made = made, .numbers = numbers, .report = report};
    choice out;
    return sizes_agree(&j) && compile(&j, -1, &out);
}

bool judge_case(hy3d_context *context, graphs_case *made, graphs_numbers numbers,
                judge_report *report)
{
    judge j = {.context = context, .made = made, .numbers = numbers, .report = report};
    choice free_one, first;
    made->request.device_budget = made->request.host_budget = 0;
    if (!sizes_agree(&j) || !compile(&j, (int32_t)draw(&j, -1, 5), &free_one)) {
        return false;
    }
    if (free_one.status != HY3D_OK) {
        return true;
    }
    const int64_t most = free_one.candidate.device_bytes + free_one.candidate.host_bytes;
    if (draw(&j, 0, 2) == 2) {
        made->request.host_budget = 1 + draw(&j, 0, 2 * most);
    }
    if (made->request.host_budget > 0 && !compile(&j, -2, &first)) {
        return false;
    }
    made->request.device_budget = 1;
    if (!compile(&j, -2, &first)) {
        return false;
    }
    if (first.status != HY3D_ERR_BUDGET_TOO_SMALL) {
        return true; /* nothing takes memory */
    }
    return first.smallest == INT64_MAX || /* the host's budget is too small for all */
           (is_exact(&j, first.smallest) && sweep(&j, first.smallest, most + most / 4));
}
