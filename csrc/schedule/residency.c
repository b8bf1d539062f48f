/* See residency.h. */
#include <limits.h>
#include <stddef.h>
#include <string.h>

#include "base/checked.h"
#include "schedule/residency.h"

/* Bytes of the copies of one exchange, as of what a step takes: sums stay within 63 bits. */
#define MOST_EXCHANGED (INT64_C(1) << 48)
/* The end of a copy on the host: a sum of two stays within 63 bits. */
#define MOST_COPIED (INT64_C(1) << 61)

static bool is_copy(const hy3d_step *step)
{
    return step->op == HY3D_STEP_STORE || step->op == HY3D_STEP_LOAD || step->op == HY3D_STEP_DROP;
}

static bool is_exchange(const hy3d_step *step)
{
    return step->op == HY3D_STEP_SEND || step->op == HY3D_STEP_RECV;
}

/* Bytes of the rows that a SEND or RECV is of. */
static int64_t sent_bytes(const hy3d_step *step, const hy3d_slice *slice)
{
    const int64_t rows = slice->rows[1] - slice->rows[0];
    const int64_t each = slice->bytes / (rows * (slice->frames[1] - slice->frames[0]));
    return each * (step->rows[1] - step->rows[0]) * (step->frames[1] - step->frames[0]);
}

/* The largest exchange behind a step, of what is sent (once where peers in a row get the same rows)
 * and of what comes; MOST_EXCHANGED where it is not less. */
static int64_t largest_exchange(const hy3d__arrays *arrays)
{
    int64_t largest = 0;
    for (int32_t number = 0; number < arrays->section_count; number++) {
        const hy3d_section *section = &arrays->sections[number];
        const hy3d_slice *slices = &arrays->slices[section->first_slice];
        const hy3d_step *before = NULL;
        int64_t bytes = 0;
        for (int32_t i = 0; i < section->steps; i++) {
            const hy3d_step *step = &arrays->steps[section->first_step + i];
            if (is_exchange(step)) {
                const bool is_same =
                    before != NULL && before->op == HY3D_STEP_SEND && step->op == HY3D_STEP_SEND &&
                    before->rows[0] == step->rows[0] && before->rows[1] == step->rows[1];
                bytes = before == NULL ? 0 : bytes;
                bytes += is_same ? 0 : sent_bytes(step, &slices[step->slice]);
                bytes = hy3d__min_i64(bytes, MOST_EXCHANGED);
                largest = hy3d__max_i64(largest, bytes);
            }
            before = is_exchange(step) ? step : NULL;
        }
    }
    return largest;
}

int64_t hy3d__kept_throughout(const hy3d_schedule_request *request, const hy3d__arrays *arrays)
{
    return request->kept_bytes + largest_exchange(arrays);
}

bool hy3d__makes(const hy3d_step *step)
{
    switch (step->op) {
    case HY3D_STEP_ENTER:
    case HY3D_STEP_CONV:
    case HY3D_STEP_PASS:
    case HY3D_STEP_ATTEND:
    case HY3D_STEP_MAP:
    case HY3D_STEP_ADD:
    case HY3D_STEP_TRIM:
    case HY3D_STEP_OPAQUE:
        return step->slice >= 0;
    case HY3D_STEP_KEYS:
        return step->frames[0] == 0;
    default:
        return false;
    }
}

/* Bytes that the step adds to what is on the device: a result written over a slice adds none. */
static int64_t made_bytes(const hy3d_step *step, const hy3d_slice *slices)
{
    return hy3d__makes(step) && !(step->flags & HY3D_STEP_OVERWRITE) ? slices[step->slice].bytes
                                                                     : 0;
}

/* Those that it takes away when it is over; overwritten ones were counted as the result. */
static int64_t freed_on_device(const hy3d_step *step, const int32_t *refs, const hy3d_slice *slices,
                               const unsigned char *on_device)
{
    const int32_t *frees = &refs[step->first_ref + step->sources + step->others];
    int64_t bytes = 0;
    for (int32_t i = 0; i < step->frees; i++) {
        bytes += on_device == NULL || on_device[frees[i]] ? slices[frees[i]].bytes : 0;
    }
    return step->flags & HY3D_STEP_OVERWRITE ? bytes - slices[step->slice].bytes : bytes;
}

/* --- time ------------------------------------------------------------------------------------- */

/* Bytes of the frames that the step reads of its source. */
static double read_bytes(const hy3d_step *step, const int32_t *refs, const hy3d_slice *slices)
{
    double bytes = 0, frames = 0;
    for (int32_t i = 0; i < step->sources; i++) {
        const hy3d_slice *slice = &slices[refs[step->first_ref + i]];
        bytes += (double)slice->bytes;
        frames += (double)(slice->frames[1] - slice->frames[0]);
    }
    const double read = (double)(step->reads[1] - step->reads[0]);
    return frames > read ? bytes * read / frames : bytes;
}

static double step_seconds(const hy3d_schedule_request *request, const hy3d_machine *machine,
                           const hy3d_step *step, const int32_t *refs, const hy3d_slice *slices)
{
    if (is_copy(step)) {
        return 0;
    }
    if (step->op == HY3D_STEP_EMIT) {
        return step->slice < 0 ? 0
                               : (double)slices[step->slice].bytes / request->copy_bytes_per_second;
    }
    if (is_exchange(step)) {
        const bool sends = step->op == HY3D_STEP_SEND;
        return sends
                   ? (double)sent_bytes(step, &slices[step->slice]) / request->link_bytes_per_second
                   : 0;
    }
    double bytes = read_bytes(step, refs, slices);
    bytes += step->slice >= 0 ? (double)slices[step->slice].bytes : 0;
    for (int32_t i = 0; i < step->others && step->op != HY3D_STEP_ATTEND; i++) {
        bytes += (double)slices[refs[step->first_ref + step->sources + i]].bytes;
    }
    const double moving = bytes / machine->bytes_per_second;
    const double computing = (double)step->macs / machine->macs_per_second;
    return (moving > computing ? moving : computing) + machine->seconds_per_step;
}

/* The computing stream and one copying stream a direction. */
typedef struct timeline {
    double computing, storing, loading;
    double *copied; /* of each slice: when its last copy is complete */
} timeline;

static void tick(timeline *now, const hy3d_schedule_request *request, double seconds,
                 const hy3d_step *step, const int32_t *refs, const hy3d_slice *slices)
{
    if (is_copy(step)) {
        const double copying = (double)slices[step->slice].bytes / request->copy_bytes_per_second;
        double *stream = step->op == HY3D_STEP_STORE ? &now->storing : &now->loading;
        if (step->op == HY3D_STEP_DROP) { /* the copy has to be complete */
            now->computing = now->computing > now->copied[step->slice] ? now->computing
                                                                       : now->copied[step->slice];
            return;
        }
        *stream = (*stream > now->computing ? *stream : now->computing) + copying;
        now->copied[step->slice] = *stream;
        return;
    }
    double start = now->computing;
    for (int32_t i = 0; i < step->sources + step->others; i++) {
        const double ready = now->copied[refs[step->first_ref + i]];
        start = ready > start && ready <= now->loading ? ready : start;
    }
    now->computing = start + seconds;
}

/* --- the walk --------------------------------------------------------------------------------- */

typedef struct walk {
    const hy3d_schedule_request *request;
    const hy3d_machine *machine;
    const hy3d__arrays *arrays;
    unsigned char *on_device; /* of each slice of the section */
    timeline clock;
    int64_t device, host;
    hy3d__cost cost;
} walk;

static void note_peak(walk *w, int64_t beside)
{
    hy3d__cost *cost = &w->cost;
    cost->device_bytes = hy3d__max_i64(cost->device_bytes, w->device + beside);
    cost->host_bytes = hy3d__max_i64(cost->host_bytes, w->host);
    cost->both_bytes = hy3d__max_i64(cost->both_bytes, w->device + beside + w->host);
}

static void walk_copy(walk *w, const hy3d_step *step, const hy3d_slice *slice)
{
    if (step->op == HY3D_STEP_STORE) {
        w->cost.stored_bytes += slice->bytes;
    } else if (step->op == HY3D_STEP_LOAD) {
        w->device += slice->bytes;
        w->cost.loaded_bytes += slice->bytes;
        w->on_device[step->slice] = 1;
    } else {
        w->device -= slice->bytes;
        w->on_device[step->slice] = 0;
    }
    note_peak(w, 0);
}

static bool walk_step(walk *w, const hy3d_step *step, int64_t kept, const hy3d_slice *slices)
{
    const int32_t *refs = w->arrays->refs;
    int64_t beside = step->workspace_bytes;
    if (is_copy(step)) {
        walk_copy(w, step, &slices[step->slice]);
        return true;
    }
    if (step->op == HY3D_STEP_SEND &&
        !hy3d__add_i64(w->cost.sent_bytes, sent_bytes(step, &slices[step->slice]),
                       &w->cost.sent_bytes)) {
        return false;
    }
    w->device += kept + made_bytes(step, slices);
    int64_t sum;
    if (!hy3d__add_i64(w->device, beside, &sum) || !hy3d__add_i64(sum, w->host, &sum)) {
        return false;
    }
    note_peak(w, beside);
    if (hy3d__makes(step)) {
        w->on_device[step->slice] = 1;
    }
    w->device -= freed_on_device(step, refs, slices, w->on_device);
    const int32_t *frees = &refs[step->first_ref + step->sources + step->others];
    for (int32_t i = 0; i < step->frees; i++) {
        w->on_device[frees[i]] = 0;
    }
    return true;
}

/* How many sections have the steps of each, in `times`: 0 where an earlier one has, which stands
 * for all but the last of them, -1. `owners`: room for as many; those that have steps of their own,
 * in their order. `last`: room for as many. */
static void count_runs(const hy3d__arrays *a, int32_t *times, int32_t *owners, int32_t *last)
{
    int32_t count = 0;
    for (int32_t i = 0; i < a->section_count; i++) {
        const int32_t first = a->sections[i].first_step;
        times[i] = 0;
        last[i] = -1;
        if (count == 0 || first > a->sections[owners[count - 1]].first_step) {
            owners[count++] = i;
            times[i] = 1;
            continue;
        }
        int32_t low = 0, high = count - 1;
        while (low < high) {
            const int32_t middle = low + (high - low) / 2;
            if (a->sections[owners[middle]].first_step < first) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        times[owners[low]]++;
        last[owners[low]] = i;
    }
    for (int32_t i = 0; i < count; i++) {
        if (last[owners[i]] >= 0) {
            times[last[owners[i]]] = -1;
        }
    }
}

static bool walk_section(walk *w, int32_t number, int32_t times, int64_t prefix_bytes)
{
    const hy3d__arrays *a = w->arrays;
    const hy3d_section *section = &a->sections[number];
    const hy3d_slice *slices = &a->slices[section->first_slice];
    const size_t count = (size_t)section->slices;
    bool prefix_counts = section->kind == HY3D_SECTION_PREFIX;
    int64_t macs = 0;
    if (times == 0) {
        return true;
    }
    memset(w->on_device, 0, count);
    memset(w->clock.copied, 0, count * sizeof *w->clock.copied);
    w->clock.computing = w->clock.storing = w->clock.loading = 0;
    for (int32_t i = 0; i < section->steps; i++) {
        const hy3d_step *step = &a->steps[section->first_step + i];
        const double seconds = step_seconds(w->request, w->machine, step, a->refs, slices);
        if (prefix_counts && step->op == HY3D_STEP_EMIT) {
            prefix_counts = false;
            w->host += prefix_bytes;
        }
        tick(&w->clock, w->request, seconds, step, a->refs, slices);
        const int64_t kept = times < 0 ? 0 : a->kept[section->first_step + i];
        if (!hy3d__add_i64(macs, step->macs, &macs) || !walk_step(w, step, kept, slices)) {
            return false;
        }
    }
    if (times < 0) { /* with all that was left by now; the rest the first of them has counted */
        return true;
    }
    w->cost.steps += (int64_t)times * section->steps;
    w->cost.seconds += times * w->clock.computing;
    return hy3d__mul_i64(macs, times, &macs) && hy3d__add_i64(w->cost.macs, macs, &w->cost.macs);
}

hy3d_status hy3d__measure(hy3d_context *context, const hy3d_schedule_request *request,
                          int32_t on_host, const hy3d__arrays *arrays, int64_t prefix_bytes,
                          int64_t source_bytes, hy3d__cost *cost_out)
{
    void *memory = NULL;
    size_t longest = 1;
    if (largest_exchange(arrays) >= MOST_EXCHANGED) {
        return HY3D_ERR_OVERFLOW;
    }
    const size_t count = (size_t)arrays->section_count;
    for (size_t i = 0; i < count; i++) {
        const size_t slices = (size_t)arrays->sections[i].slices;
        longest = slices > longest ? slices : longest;
    }
    const hy3d_status status =
        hy3d_alloc(context, longest * (sizeof(double) + 1) + 3 * count * sizeof(int32_t), &memory);
    if (status != HY3D_OK) {
        return status;
    }
    walk w = {.request = request, .arrays = arrays};
    w.machine = on_host || request->is_host ? &request->host : &request->device;
    w.clock.copied = memory;
    void *behind = w.clock.copied + longest;
    int32_t *times = behind;
    w.on_device = (unsigned char *)(times + 3 * count);
    w.device = hy3d__kept_throughout(request, arrays);
    w.host = request->result_bytes + source_bytes;
    bool fits = hy3d__add_i64(w.host, arrays->copies_bytes, &w.host);
    note_peak(&w, 0);
    count_runs(arrays, times, times + count, times + 2 * count);
    for (int32_t i = 0; i < arrays->section_count && fits; i++) {
        fits = walk_section(&w, i, times[i], prefix_bytes);
    }
    hy3d_free(context, memory);
    w.cost.seconds += 2 * arrays->repacked / w.machine->bytes_per_second +
                      (double)arrays->repacks * w.machine->seconds_per_step;
    *cost_out = w.cost;
    return fits ? HY3D_OK : HY3D_ERR_OVERFLOW;
}

/* Steps with seven eighths of the most that is on the device, or more, are asked about. */
void hy3d__ask_at_peaks(hy3d__builder *b)
{
    const hy3d__arrays *a = b->arrays;
    const hy3d_section *section = &a->sections[a->section_count - 1];
    const hy3d_slice *slices = &a->slices[section->first_slice];
    int64_t largest = 0;
    for (int32_t pass = 0; pass < 2; pass++) {
        int64_t there = 0;
        for (int32_t i = 0; i < section->steps; i++) {
            hy3d_step *step = &a->steps[section->first_step + i];
            there += made_bytes(step, slices);
            if (pass == 0) {
                largest = hy3d__max_i64(largest, there);
            } else if (there >= largest * 7 / 8) {
                hy3d__ask_step(b, step);
            }
            there -= freed_on_device(step, a->refs, slices, NULL);
        }
    }
}

/* --- what leaves ------------------------------------------------------------------------------ */

/* One section whose slices leave and come back. Steps are numbered as they were before. */
typedef struct spill {
    const hy3d__uses *known;
    const hy3d__arrays *arrays;
    const hy3d_step *steps;
    const hy3d_slice *slices;
    int32_t step_count, slice_count;
    /* Of each slice: how far its uses were gone through, the last step that reads it so far, its
     * first DROP, -1 for none, and where it stands among the residents. */
    int32_t *cursor, *read_by, *left_at, *place;
    struct resident {
        int32_t slice, next; /* the step that reads it next, as far as it was looked at */
    } *resident;             /* slices on the device */
    int32_t resident_count;
    unsigned char *on_device, *stored;
    int64_t device; /* bytes there */
    struct event {
        int32_t step, slice, op; /* before which step */
    } *events;
    int32_t event_count, event_room;
} spill;

/* Slices that a step reads in place `i`: sources, others, and the one that is concerned. */
static int32_t read_slice(const hy3d__arrays *arrays, const hy3d_step *step, int32_t i)
{
    if (i < step->sources + step->others) {
        return arrays->refs[step->first_ref + i];
    }
    const bool concerned = step->op == HY3D_STEP_EMIT || step->op == HY3D_STEP_MOMENTS ||
                           is_exchange(step) || (step->op == HY3D_STEP_KEYS && step->frames[0] > 0);
    return i == step->sources + step->others && concerned ? step->slice : -1;
}

hy3d_status hy3d__uses_create(hy3d_context *context, const hy3d_schedule_request *request,
                              const hy3d__arrays *arrays, hy3d__uses *uses_out)
{
    void *memory = NULL;
    const int32_t steps = arrays->sections[0].steps, slices = arrays->sections[0].slices;
    size_t total = 0;
    for (int32_t i = 0; i < steps; i++) {
        total += (size_t)arrays->steps[i].sources + (size_t)arrays->steps[i].others + 1;
    }
    const size_t starts_bytes = ((size_t)steps + 1) * sizeof(double);
    const size_t ints = 3 * (size_t)slices + 1 + total;
    const hy3d_status status = hy3d_alloc(context, starts_bytes + ints * sizeof(int32_t), &memory);
    if (status != HY3D_OK) {
        return status;
    }
    double *starts = memory;
    void *behind = starts + steps + 1;
    int32_t *first = behind, *made_at = first + slices + 1, *next = made_at + slices;
    int32_t *uses = next + slices, slice;
    memset(first, 0, ints * sizeof *first);
    starts[0] = 0;
    for (int32_t i = 0; i < steps; i++) {
        const hy3d_step *step = &arrays->steps[i];
        for (int32_t k = 0; (slice = read_slice(arrays, step, k)) >= 0; k++) {
            first[slice + 1]++;
        }
        if (hy3d__makes(step) || step->op == HY3D_STEP_RECV) {
            made_at[step->slice] = i;
        }
        starts[i + 1] =
            starts[i] + step_seconds(request, &request->device, step, arrays->refs, arrays->slices);
    }
    for (int32_t i = 0; i < slices; i++) {
        first[i + 1] += first[i];
        next[i] = first[i];
    }
    for (int32_t i = 0; i < steps; i++) {
        for (int32_t k = 0; (slice = read_slice(arrays, &arrays->steps[i], k)) >= 0; k++) {
            uses[next[slice]++] = i;
        }
    }
    *uses_out = (hy3d__uses){
        .memory = memory, .starts = starts, .first = first, .made_at = made_at, .steps = uses};
    return HY3D_OK;
}

void hy3d__uses_destroy(hy3d_context *context, hy3d__uses *uses)
{
    hy3d_free(context, uses->memory);
    *uses = (hy3d__uses){.memory = NULL};
}

/* The step behind `step` that reads the resident slice next. */
static int32_t next_use(spill *s, struct resident *resident, int32_t step)
{
    if (resident->next <= step) {
        const int32_t *uses = s->known->steps, end = s->known->first[resident->slice + 1];
        int32_t at = s->cursor[resident->slice];
        while (at < end && uses[at] <= step) {
            at++;
        }
        s->cursor[resident->slice] = at;
        resident->next = at < end ? uses[at] : INT_MAX;
    }
    return resident->next;
}

static hy3d_status note(hy3d_context *context, spill *s, int32_t step, int32_t slice, int32_t op)
{
    hy3d_status status = HY3D_OK;
    s->events =
        hy3d__grown(context, s->events, s->event_count, &s->event_room, sizeof *s->events, &status);
    if (status == HY3D_OK) {
        s->events[s->event_count++] = (struct event){.step = step, .slice = slice, .op = op};
    }
    return status;
}

static void forget(spill *s, int32_t slice)
{
    const struct resident last = s->resident[--s->resident_count];
    s->resident[s->place[slice]] = last;
    s->place[last.slice] = s->place[slice];
    s->on_device[slice] = 0;
    s->device -= s->slices[slice].bytes;
}

static void appear(spill *s, int32_t slice)
{
    s->place[slice] = s->resident_count;
    s->resident[s->resident_count++] = (struct resident){.slice = slice, .next = -1};
    s->on_device[slice] = 1;
    s->device += s->slices[slice].bytes;
}

/* The slice that is read last of those that may go before step `step`: not what it reads, nor what
 * is read before `later_than` or there. -1: none. */
static int32_t victim(spill *s, int32_t step, int32_t later_than)
{
    int32_t found = -1, furthest = later_than;
    for (int32_t i = 0; i < s->resident_count; i++) {
        const int32_t next = next_use(s, &s->resident[i], step), slice = s->resident[i].slice;
        if (next > furthest && s->read_by[slice] != step && !s->slices[slice].is_keys &&
            s->slices[slice].bytes > 0) {
            found = slice;
            furthest = next;
        }
    }
    return found;
}

static hy3d_status send_away(hy3d_context *context, spill *s, int32_t step, int32_t slice)
{
    forget(s, slice);
    if (!s->stored[slice]) {
        s->stored[slice] = 1;
        s->left_at[slice] = step;
    }
    return note(context, s, step, slice, HY3D_STEP_DROP);
}

/* Room for `need` more bytes before step `step`; HY3D_ERR_BUDGET_TOO_SMALL where there is none. */
static hy3d_status make_room(hy3d_context *context, spill *s, int32_t step, int64_t need,
                             int64_t limit, int32_t later_than)
{
    hy3d_status status = HY3D_OK;
    while (status == HY3D_OK && s->device + need > limit) {
        const int32_t slice = victim(s, step, later_than);
        if (slice < 0) {
            return HY3D_ERR_BUDGET_TOO_SMALL;
        }
        status = send_away(context, s, step, slice);
    }
    return status;
}

/* Brings back what step `reader` reads, before step `step`, beside `need` more bytes. */
static hy3d_status bring_back(hy3d_context *context, spill *s, int32_t step, int32_t reader,
                              int64_t need, int64_t limit)
{
    int32_t slice;
    for (int32_t k = 0; (slice = read_slice(s->arrays, &s->steps[reader], k)) >= 0; k++) {
        if (s->on_device[slice] || !s->stored[slice]) {
            continue;
        }
        const int64_t bytes = s->slices[slice].bytes;
        hy3d_status status = make_room(context, s, step, need + bytes, limit, reader);
        if (status != HY3D_OK) {
            return status;
        }
        status = note(context, s, step, slice, HY3D_STEP_LOAD);
        if (status != HY3D_OK) {
            return status;
        }
        appear(s, slice);
    }
    return HY3D_OK;
}

/* The first step from `step` on before which a copy may begin: a step and what is sent of its
 * result stand together. */
static int32_t behind_exchange(const spill *s, int32_t step)
{
    while (step < s->step_count && is_exchange(&s->steps[step])) {
        step++;
    }
    return step;
}

static hy3d_status spill_step(hy3d_context *context, spill *s, int32_t i, int64_t limit, bool early)
{
    const hy3d_step *step = &s->steps[i];
    const int64_t kept = s->arrays->kept[s->arrays->sections[0].first_step + i];
    const int64_t made = made_bytes(step, s->slices), beside = step->workspace_bytes;
    int64_t missing = 0;
    int32_t slice;
    for (int32_t k = 0; (slice = read_slice(s->arrays, step, k)) >= 0; k++) {
        missing += s->on_device[slice] || !s->stored[slice] ? 0 : s->slices[slice].bytes;
        s->read_by[slice] = i;
    }
    hy3d_status status = make_room(context, s, i, kept + made + beside + missing, limit, i);
    if (status == HY3D_OK) {
        status = bring_back(context, s, i, i, kept + made + beside, limit);
    }
    const int32_t next = behind_exchange(s, i + 1);
    if (status == HY3D_OK && early && next < s->step_count && !is_exchange(step)) {
        status = bring_back(context, s, i, next, kept + made + beside, limit);
        status = status == HY3D_ERR_BUDGET_TOO_SMALL ? HY3D_OK : status;
    }
    if (status != HY3D_OK) {
        return status;
    }
    s->device += kept;
    if (hy3d__makes(step)) {
        appear(s, step->slice);
    }
    const int32_t *frees = &s->arrays->refs[step->first_ref + step->sources + step->others];
    for (int32_t k = 0; k < step->frees; k++) {
        if (s->on_device[frees[k]]) {
            forget(s, frees[k]);
        }
    }
    return HY3D_OK;
}

/* --- when copies begin ------------------------------------------------------------------------ */

static hy3d_status place_stores(hy3d_context *context, const hy3d_schedule_request *request,
                                spill *s)
{
    const double *starts = s->known->starts;
    hy3d_status status = HY3D_OK;
    /* From the last one that leaves to the first: each is to be over when it has to be gone, and
     * before the next one begins. */
    double free_until = starts[s->step_count];
    const int32_t count = s->event_count;
    for (int32_t e = count - 1; e >= 0 && status == HY3D_OK; e--) {
        const struct event event = s->events[e];
        if (event.op != HY3D_STEP_DROP || s->left_at[event.slice] != event.step) {
            continue;
        }
        const double copying =
            (double)s->slices[event.slice].bytes / request->copy_bytes_per_second;
        const double end = starts[event.step] < free_until ? starts[event.step] : free_until;
        free_until = end - copying;
        int32_t at = event.step;
        while (at > s->known->made_at[event.slice] + 1 && starts[at] > free_until) {
            at--;
        }
        status = note(context, s, behind_exchange(s, at), event.slice, HY3D_STEP_STORE);
    }
    return status;
}

/* Events by step, and before one step: stores, then drops, then loads in the order they were
 * decided. A counting sort. */
static hy3d_status sort_events(hy3d_context *context, spill *s)
{
    void *memory = NULL, *sorted = NULL;
    const size_t steps = (size_t)s->step_count + 1;
    hy3d_status status = hy3d_alloc(context, (steps + 1) * sizeof(int32_t), &memory);
    if (status == HY3D_OK) {
        status = hy3d_alloc(context, (size_t)s->event_count * sizeof *s->events, &sorted);
    }
    if (status != HY3D_OK) {
        hy3d_free(context, memory);
        return status;
    }
    int32_t *at = memory;
    struct event *events = sorted;
    memset(at, 0, (steps + 1) * sizeof *at);
    for (int32_t e = 0; e < s->event_count; e++) {
        at[s->events[e].step + 1]++;
    }
    for (size_t i = 0; i < steps; i++) {
        at[i + 1] += at[i];
    }
    for (int32_t stores = 1; stores >= 0; stores--) {
        for (int32_t e = 0; e < s->event_count; e++) {
            if ((s->events[e].op == HY3D_STEP_STORE) == stores) {
                events[at[s->events[e].step]++] = s->events[e];
            }
        }
    }
    hy3d_free(context, memory);
    hy3d_free(context, s->events);
    s->events = events;
    s->event_room = s->event_count;
    return HY3D_OK;
}

/* --- the program with its copies -------------------------------------------------------------- */

static hy3d_status copy_array(hy3d_context *context, const void *from, size_t bytes, void **to_out)
{
    const hy3d_status status = hy3d_alloc(context, bytes, to_out);
    if (status == HY3D_OK && bytes > 0) {
        memcpy(*to_out, from, bytes);
    }
    return status;
}

/* Where copies lie on the host: those that are there now, from the lowest on. Among the first
 * `packed` there is no room. */
typedef struct copies {
    hy3d_slice *slices;
    int32_t *there, count, packed;
    int64_t most; /* the end of the highest so far */
} copies;

/* Where a copy may begin behind number `i`. */
static int64_t behind_copy(const copies *c, int32_t i)
{
    const int64_t end = i < 0 ? 0 : c->slices[c->there[i]].host_at + c->slices[c->there[i]].bytes;
    return end + (-end & (HY3D_SCHEDULE_COPY_ALIGNMENT - 1));
}

/* The slice's copy gets the lowest place that it has room in. */
static hy3d_status first_fit(copies *c, int32_t slice)
{
    int64_t at = behind_copy(c, c->packed - 1), end;
    int32_t i = c->packed;
    for (; i < c->count && c->slices[c->there[i]].host_at - at < c->slices[slice].bytes; i++) {
        c->packed += i == c->packed && c->slices[c->there[i]].host_at == at;
        at = behind_copy(c, i);
    }
    if (!hy3d__add_i64(at, c->slices[slice].bytes, &end) || end > MOST_COPIED) {
        return HY3D_ERR_OVERFLOW;
    }
    c->slices[slice].host_at = at;
    c->most = hy3d__max_i64(c->most, end);
    memmove(c->there + i + 1, c->there + i, (size_t)(c->count++ - i) * sizeof *c->there);
    c->there[i] = slice;
    c->packed += i == c->packed;
    return HY3D_OK;
}

static void free_copies(copies *c, const int32_t *frees, int32_t count)
{
    for (int32_t k = 0; k < count; k++) {
        const int64_t at = c->slices[frees[k]].host_at;
        int32_t low = 0, high = c->count;
        while (low < high) {
            const int32_t middle = low + (high - low) / 2;
            if (c->slices[c->there[middle]].host_at < at) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        if (at >= 0 && low < c->count && c->there[low] == frees[k]) {
            memmove(c->there + low, c->there + low + 1,
                    (size_t)(--c->count - low) * sizeof *c->there);
            c->packed = low < c->packed ? low : c->packed;
        }
    }
}

/* Gives each copy of a program its place. */
static hy3d_status place_copies(hy3d_context *context, hy3d__arrays *a)
{
    void *memory = NULL;
    hy3d_status status = hy3d_alloc(context, (size_t)a->slice_count * sizeof(int32_t), &memory);
    copies held = {.slices = a->slices, .there = memory};
    for (int32_t i = 0; i < a->step_count && status == HY3D_OK; i++) {
        const hy3d_step *step = &a->steps[i];
        if (step->op == HY3D_STEP_STORE) {
            status = first_fit(&held, step->slice);
        }
        free_copies(&held, &a->refs[step->first_ref + step->sources + step->others], step->frees);
    }
    a->copies_bytes = held.most;
    hy3d_free(context, memory);
    return status;
}

static hy3d_status assemble(hy3d_context *context, const spill *s, hy3d__arrays *out)
{
    const hy3d__arrays *a = s->arrays;
    const size_t count = (size_t)s->step_count + (size_t)s->event_count;
    void *memory[5] = {NULL, NULL, NULL, NULL, NULL};
    hy3d_status status = count > HY3D_SCHEDULE_MAX_STEPS ? HY3D_ERR_OVERFLOW : HY3D_OK;
    const size_t bytes[5] = {(size_t)a->slice_count * sizeof *a->slices,
                             (size_t)a->ref_count * sizeof *a->refs, sizeof *a->sections,
                             count * sizeof *a->steps, count * sizeof *a->kept};
    const void *from[3] = {a->slices, a->refs, a->sections};
    for (int i = 0; i < 5 && status == HY3D_OK; i++) {
        status = i < 3 ? copy_array(context, from[i], bytes[i], &memory[i])
                       : hy3d_alloc(context, bytes[i], &memory[i]);
    }
    if (status != HY3D_OK) {
        for (int i = 0; i < 5; i++) {
            hy3d_free(context, memory[i]);
        }
        return status;
    }
    *out = (hy3d__arrays){.steps = memory[3],
                          .kept = memory[4],
                          .slices = memory[0],
                          .refs = memory[1],
                          .sections = memory[2],
                          .repacked = a->repacked,
                          .repacks = a->repacks};
    out->slice_count = out->slice_room = a->slice_count;
    out->ref_count = out->ref_room = a->ref_count;
    out->section_count = out->section_room = 1;
    out->step_room = out->kept_room = (int32_t)count;
    for (int32_t i = 0, e = 0; i < s->step_count; i++) {
        for (; e < s->event_count && s->events[e].step == i; e++) {
            const int32_t slice = s->events[e].slice;
            const hy3d_slice *moved = &out->slices[slice];
            hy3d_step step = {.op = s->events[e].op,
                              .node = moved->node,
                              .slice = slice,
                              .frames = {moved->frames[0], moved->frames[1]},
                              .rows = {moved->rows[0], moved->rows[1]},
                              .peer = -1};
            out->kept[out->step_count] = 0;
            out->steps[out->step_count++] = step;
        }
        out->kept[out->step_count] = a->kept[i];
        out->steps[out->step_count++] = s->steps[i];
    }
    out->sections[0].steps = out->step_count;
    return HY3D_OK;
}

static hy3d_status spill_memory(hy3d_context *context, spill *s, void **memory_out)
{
    const size_t slices = (size_t)s->slice_count, bytes = 6 * slices * sizeof(int32_t) + 2 * slices;
    const hy3d_status status = hy3d_alloc(context, bytes, memory_out);
    if (status != HY3D_OK) {
        return status;
    }
    memset(*memory_out, 0, bytes);
    s->cursor = *memory_out;
    s->read_by = s->cursor + slices;
    s->left_at = s->read_by + slices;
    s->place = s->left_at + slices;
    void *behind = s->place + slices;
    s->resident = behind;
    s->on_device = (unsigned char *)(s->resident + slices);
    s->stored = s->on_device + slices;
    for (size_t i = 0; i < slices; i++) {
        s->cursor[i] = s->known->first[i];
        s->left_at[i] = s->read_by[i] = -1;
    }
    return HY3D_OK;
}

hy3d_status hy3d__spill(hy3d_context *context, const hy3d_schedule_request *request,
                        const hy3d__arrays *arrays, const hy3d__uses *uses, int64_t limit,
                        bool early, hy3d__arrays *spilled_out)
{
    void *memory = NULL;
    spill s = {
        .known = uses,
        .arrays = arrays,
        .steps = arrays->steps,
        .slices = arrays->slices,
        .step_count = arrays->sections[0].steps,
        .slice_count = arrays->sections[0].slices,
        .device = hy3d__kept_throughout(request, arrays),
    };
    hy3d_status status = spill_memory(context, &s, &memory);
    if (status != HY3D_OK) {
        return status;
    }
    for (int32_t i = 0; i < s.step_count && status == HY3D_OK; i++) {
        status = spill_step(context, &s, i, limit, early);
    }
    if (status == HY3D_OK) {
        status = place_stores(context, request, &s);
    }
    if (status == HY3D_OK) {
        status = sort_events(context, &s);
    }
    if (status == HY3D_OK) {
        status = assemble(context, &s, spilled_out);
    }
    if (status == HY3D_OK) {
        status = place_copies(context, spilled_out);
        if (status != HY3D_OK) {
            hy3d__arrays_destroy(context, spilled_out);
        }
    }
    hy3d_free(context, s.events);
    hy3d_free(context, memory);
    return status;
}

int64_t hy3d__least_resident(const hy3d_schedule_request *request, const hy3d__arrays *arrays)
{
    int64_t kept = hy3d__kept_throughout(request, arrays), keys = 0, least = kept;
    for (int32_t i = 0; i < arrays->sections[0].steps; i++) {
        const hy3d_step *step = &arrays->steps[i];
        const int32_t *refs = &arrays->refs[step->first_ref];
        int64_t read = 0;
        kept += arrays->kept[i];
        keys += step->op == HY3D_STEP_KEYS ? made_bytes(step, arrays->slices) : 0;
        for (int32_t k = 0; k < step->sources + step->others; k++) {
            bool twice = arrays->slices[refs[k]].is_keys != 0;
            for (int32_t j = 0; j < k; j++) {
                twice = twice || refs[j] == refs[k];
            }
            read += twice ? 0 : arrays->slices[refs[k]].bytes;
        }
        const bool concerns =
            step->op == HY3D_STEP_EMIT || step->op == HY3D_STEP_MOMENTS || is_exchange(step);
        if (concerns && step->slice >= 0 && !arrays->slices[step->slice].is_keys) {
            read += arrays->slices[step->slice].bytes;
        }
        const int64_t made = step->op == HY3D_STEP_KEYS ? 0 : made_bytes(step, arrays->slices);
        least = hy3d__max_i64(least, kept + keys + read + made + step->workspace_bytes);
        for (int32_t k = 0; k < step->frees; k++) {
            const hy3d_slice *slice = &arrays->slices[refs[step->sources + step->others + k]];
            keys -= slice->is_keys ? slice->bytes : 0;
        }
    }
    return least;
}
