/* Walks a program's sections step by step, keeps the books of memory, and compares the sums with
 * the candidate. */
#include "replay.h"
#include "replay_walk.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef long long ll;

static const char *const op_names[HY3D_STEP_OPS] = {
    "enter", "conv",    "pass",   "keys", "attend", "map",  "add",  "trim", "opaque",
    "moments", "reduce", "emit", "store", "drop", "load", "send", "recv"};

bool replay_object(replay_walk *walk, const char *format, ...)
{
    char *const text = walk->verdict->text;
    const size_t most = sizeof walk->verdict->text;
    if (text[0] != '\0') {
        return false; /* the first objection says it best */
    }
    if (walk->group != NULL) {
        snprintf(text, most, "rank %d: ", walk->rank);
    }
    const size_t begun = strlen(text);
    if (walk->section != NULL && walk->at < walk->section->steps) {
        const hy3d_step *const step =
            &walk->program->steps[walk->section->first_step + walk->at];
        const char *const name =
            step->op >= 0 && step->op < HY3D_STEP_OPS ? op_names[step->op] : "?";
        snprintf(text + begun, most - begun, "section %d, step %d (%s of node %d): ",
                 (int)(walk->section - walk->program->sections), walk->at, name, step->node);
    } else if (walk->section != NULL) {
        snprintf(text + begun, most - begun, "section %d: ",
                 (int)(walk->section - walk->program->sections));
    }
    const size_t used = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + used, most - used, format, arguments);
    va_end(arguments);
    return false;
}

static void mix(uint64_t *hash, int64_t value)
{
    *hash = (*hash ^ (uint64_t)value) * 0x100000001b3U;
    *hash ^= *hash >> 29;
}

static void mix_step(uint64_t *hash, const hy3d_step *step)
{
    const bool computes = replay_makes(step) || step->op == HY3D_STEP_KEYS;
    if (!computes || step->op == HY3D_STEP_TRIM) {
        return;
    }
    mix(hash, step->op);
    mix(hash, step->node);
    mix(hash, step->drop);
    for (int i = 0; i < 2; i++) {
        mix(hash, step->op == HY3D_STEP_CONV ? step->own[i] : 0);
        mix(hash, step->frames[i]);
        mix(hash, step->op == HY3D_STEP_ENTER ? 0 : step->reads[i]);
        mix(hash, step->rows[i]);
        mix(hash, step->read_rows[i]);
        mix(hash, step->row_padding[i]);
    }
}

static int64_t within(int64_t bytes, int64_t limit)
{
    return limit == 0 || bytes < limit ? bytes : limit;
}

/* What the workspace function says of the step, what its node keeps and what its shape leaves. */
static bool take_workspace(replay_walk *walk, const hy3d_step *step)
{
    hy3d_step bare = *step;
    const int32_t source = replay_node_at(walk, step->node)->source;
    hy3d_step_memory taken = {.workspace_bytes = 0};
    bare.workspace_bytes = 0;
    if (source >= walk->entry && source >= 0) {
        const hy3d_status status = walk->request->workspace(
            walk->request->user, &bare, &walk->values.of[source].size,
            walk->program->candidate.on_host, &taken);
        if (status != HY3D_OK) {
            return replay_object(walk, "workspace: %s", hy3d_status_name(status));
        }
    }
    if (walk->program->candidate.repacks) {
        const bool computes = step->op == HY3D_STEP_CONV || step->op == HY3D_STEP_KEYS ||
                              step->op == HY3D_STEP_ATTEND || step->op == HY3D_STEP_MAP ||
                              step->op == HY3D_STEP_OPAQUE;
        taken.workspace_bytes += computes ? taken.kept_bytes : 0;
    } else if (!walk->kept[step->node]) {
        walk->kept[step->node] = true;
        walk->device += taken.kept_bytes;
    }
    if (taken.shape_bytes > 0 && !walk->shapes[taken.shape]) {
        const int64_t counted = within(walk->left, walk->request->most_shape_bytes);
        walk->shapes[taken.shape] = true;
        walk->left += taken.shape_bytes;
        walk->device += within(walk->left, walk->request->most_shape_bytes) - counted;
    }
    if (step->op == HY3D_STEP_EMIT) {
        taken.workspace_bytes = replay_rows_gathered(walk, step);
    }
    return step->workspace_bytes == taken.workspace_bytes ||
           replay_object(walk, "workspace of %lld bytes, not %lld", (ll)step->workspace_bytes,
                         (ll)taken.workspace_bytes);
}

static void note_peak(replay_walk *walk, int64_t workspace)
{
    replay_verdict *const verdict = walk->verdict;
    const int64_t device = walk->device + walk->slices_bytes + workspace;
    verdict->device_bytes = device > verdict->device_bytes ? device : verdict->device_bytes;
    verdict->host_bytes = walk->host > verdict->host_bytes ? walk->host : verdict->host_bytes;
    verdict->both_bytes =
        device + walk->host > verdict->both_bytes ? device + walk->host : verdict->both_bytes;
}

/* The slice whose memory the result takes over: it is counted once. -1: none. */
static int32_t written_over(const hy3d_step *step, const int32_t *refs)
{
    if (!(step->flags & HY3D_STEP_OVERWRITE)) {
        return -1;
    }
    return step->op == HY3D_STEP_ADD ? refs[0] : refs[step->sources];
}

int64_t replay_bytes(const replay_walk *walk, const hy3d_slice *slice, int64_t frames, int64_t rows)
{
    const hy3d_size *const size = &walk->values.of[slice->node].size;
    const int64_t pixels = rows * size->columns * frames;
    if (slice->is_keys) {
        return 2 * replay_node_at(walk, slice->node)->width * pixels *
               walk->request->element_bytes;
    }
    return size->channels * pixels *
           (slice->node == 0 ? walk->request->input_bytes : walk->request->element_bytes);
}

/* What the step itself takes; `was`: where its slice was before. */
static void take(replay_walk *walk, const hy3d_step *step, replay_place was)
{
    const hy3d_slice *const slice = step->slice < 0 ? NULL : replay_slice_at(walk, step->slice);
    const replay_place is =
        step->slice < 0 ? was : walk->slices[step->slice].place;
    const int32_t over = written_over(step, walk->program->refs + step->first_ref);
    if (over >= 0) {
        walk->slices_bytes -= replay_slice_at(walk, over)->bytes;
    }
    if (slice != NULL && is == REPLAY_ON_DEVICE && was != REPLAY_ON_DEVICE) {
        walk->slices_bytes += slice->bytes;
    }
    if (step->op == HY3D_STEP_STORE) {
        walk->verdict->stored_bytes += slice->bytes;
    } else if (step->op == HY3D_STEP_LOAD) {
        walk->verdict->loaded_bytes += slice->bytes;
    } else if (step->op == HY3D_STEP_SEND) {
        walk->verdict->sent_bytes +=
            replay_bytes(walk, slice, step->frames[1] - step->frames[0],
                         step->rows[1] - step->rows[0]);
    } else if (step->op == HY3D_STEP_EMIT && walk->section->kind == HY3D_SECTION_PREFIX &&
               !walk->has_prefix) {
        walk->has_prefix = true;
        walk->host += walk->program->prefix_bytes;
    }
}

bool replay_give_back(replay_walk *walk, const hy3d_step *step)
{
    const int32_t *const refs = walk->program->refs + step->first_ref;
    const int32_t *const frees = refs + step->sources + step->others;
    if (step->op == HY3D_STEP_DROP) {
        walk->slices[step->slice].place = REPLAY_ON_HOST;
        walk->slices_bytes -= replay_slice_at(walk, step->slice)->bytes;
    }
    for (int32_t i = 0; i < step->frees; i++) {
        replay_slice *const slice = &walk->slices[frees[i]];
        if (slice->place == REPLAY_UNMADE || slice->place == REPLAY_FREED) {
            return replay_object(walk, "slice %d is freed, which is not there", frees[i]);
        }
        if (slice->place == REPLAY_ON_DEVICE && frees[i] != written_over(step, refs)) {
            walk->slices_bytes -= replay_slice_at(walk, frees[i])->bytes;
        }
        slice->place = REPLAY_FREED;
    }
    return true;
}

bool replay_act(replay_walk *walk, const hy3d_step *step)
{
    const bool has_slice = step->slice >= 0 && step->slice < walk->section->slices;
    const replay_place was = has_slice ? walk->slices[step->slice].place : REPLAY_UNMADE;
    if (!replay_check_step(walk, step)) {
        return false;
    }
    const int64_t macs = replay_macs(&walk->request->graph, &walk->values, step);
    if (step->macs != macs) {
        return replay_object(walk, "%lld multiply-accumulates, not %lld", (ll)step->macs,
                             (ll)macs);
    }
    walk->verdict->macs += macs;
    walk->verdict->steps++;
    mix_step(&walk->verdict->shapes, step);
    if (!take_workspace(walk, step)) {
        return false;
    }
    take(walk, step, was);
    note_peak(walk, step->workspace_bytes);
    return true;
}

bool replay_end(replay_walk *walk)
{
    const int64_t frames = walk->values.of[walk->last].size.frames;
    const bool is_wanted =
        walk->section->kind != HY3D_SECTION_STATISTICS && walk->section->pass == 0;
    for (int32_t i = 0; i < walk->section->slices; i++) {
        if (walk->slices[i].place != REPLAY_FREED) {
            return replay_object(walk, "slice %d is left at the end, or never made", i);
        }
        if (!walk->slices[i].is_stored && replay_slice_at(walk, i)->host_at != -1) {
            return replay_object(walk, "slice %d never leaves and has a place on the host", i);
        }
    }
    if (walk->given != frames && (is_wanted || walk->given != 0)) {
        return replay_object(walk, "%lld frames of %lld were given away", (ll)walk->given,
                             (ll)frames);
    }
    for (int32_t node = 0; node < walk->request->graph.count; node++) {
        const bool is_norm = replay_node_at(walk, node)->norm == HY3D_NORM_GROUP;
        walk->known[node] = walk->known[node] || walk->reduced[node];
        const replay_value *const value = &walk->values.of[node];
        /* Where all frames pass by, nothing is normalised. */
        const bool is_used = replay_node_at(walk, node)->op != HY3D_OP_CONV ||
                             value->own_frames > 0;
        if (is_norm && is_used && walk->section->kind == HY3D_SECTION_STATISTICS &&
            node > walk->entry && !walk->known[node]) {
            return replay_object(walk, "no statistics of node %d's norm", node);
        }
    }
    return true;
}

static void open_frames(replay_walk *walk)
{
    walk->frames = replay_room(walk->request->graph.count, sizeof *walk->frames);
    for (int32_t node = walk->entry; node <= walk->last; node++) {
        const int64_t frames = walk->values.of[node].size.frames;
        walk->frames[node] =
            (replay_frames){replay_room(frames, 1), replay_room(frames, 1), replay_room(frames, 1)};
    }
}

static void close_frames(replay_walk *walk)
{
    for (int32_t node = 0; node < walk->request->graph.count; node++) {
        free(walk->frames[node].made);
        free(walk->frames[node].gathered);
        free(walk->frames[node].filled);
    }
    free(walk->frames);
}

static bool is_sound(replay_walk *walk)
{
    const hy3d_section *const section = walk->section;
    const hy3d_program *const program = walk->program;
    const bool has_room = section->first_step >= 0 && section->steps >= 0 &&
                          section->first_step <= program->step_count - section->steps &&
                          section->first_slice >= 0 && section->slices >= 0 &&
                          section->first_slice <= program->slice_count - section->slices;
    walk->at = section->steps;
    return (has_room || replay_object(walk, "its steps or slices are not of the program")) &&
           ((section->size[0] >= 1 && section->size[1] >= 1 && section->size[2] >= 1) ||
            replay_object(walk, "an empty input"));
}

bool replay_begin(replay_walk *walk, int32_t number)
{
    const hy3d_section *const section = &walk->program->sections[number];
    const hy3d_graph *const graph = &walk->request->graph;
    const bool is_behind = section->kind >= HY3D_SECTION_STATISTICS;
    walk->section = section;
    if (!is_sound(walk)) {
        return false;
    }
    walk->entry = is_behind ? walk->program->cut.node : 0;
    walk->last = section->kind == HY3D_SECTION_PREFIX ? walk->program->cut.node
                                                      : graph->count - 1;
    const hy3d_size input = {replay_node_at(walk, walk->entry)->channels, section->size[0],
                             section->size[1], section->size[2]};
    const int32_t nodes[2] = {walk->entry, walk->last};
    walk->values = replay_values_make(graph, nodes[0], nodes[1], input);
    walk->rows = replay_rows_make(graph, &walk->values, nodes, walk->rank,
                                  walk->group == NULL ? 1 : walk->request->ranks,
                                  walk->program->weights);
    walk->slices = replay_room(section->slices, sizeof *walk->slices);
    walk->reduced = replay_room(graph->count, sizeof *walk->reduced);
    walk->given = 0;
    walk->at = 0;
    open_frames(walk);
    return true;
}

void replay_close(replay_walk *walk)
{
    close_frames(walk);
    for (int32_t i = 0; i < walk->section->slices; i++) {
        free(walk->slices[i].filled);
    }
    free(walk->slices);
    free(walk->reduced);
    free(walk->rows);
    replay_values_free(&walk->values);
    walk->section = NULL;
}

static void walk_section(replay_walk *walk, int32_t number)
{
    bool is_good = replay_begin(walk, number);
    if (!is_good) {
        return;
    }
    for (; is_good && walk->at < walk->section->steps; walk->at += is_good) {
        const hy3d_step *const step =
            &walk->program->steps[walk->section->first_step + walk->at];
        is_good = replay_act(walk, step) && replay_give_back(walk, step);
    }
    if (is_good) {
        replay_end(walk);
    }
    replay_close(walk);
}

int64_t replay_margin(const hy3d_schedule_request *request, int64_t bytes)
{
    const int64_t share = bytes / 1000 * request->margin_permille +
                          bytes % 1000 * request->margin_permille / 1000;
    return share > request->margin_bytes ? share : request->margin_bytes;
}

static bool is_below(int64_t bytes, int64_t budget)
{
    return budget == 0 || bytes <= budget;
}

bool replay_is_within(const hy3d_schedule_request *request, const hy3d_candidate *candidate)
{
    const int64_t device = candidate->device_bytes, host = candidate->host_bytes;
    const bool is_beside = candidate->on_host && !request->is_host;
    const int64_t margin = replay_margin(request, is_beside ? host : device);
    if (is_beside && !request->is_unified) {
        return is_below(host + margin, request->host_budget);
    }
    return is_below(device + (request->is_unified ? host : 0) + margin, request->device_budget) &&
           is_below(host + (is_beside ? margin : 0), request->host_budget);
}

static bool agree(replay_walk *walk, const char *what, int64_t candidate, int64_t replayed)
{
    return candidate == replayed || replay_object(walk, "%s: the candidate says %lld, it is %lld",
                                                  what, (ll)candidate, (ll)replayed);
}

hy3d_candidate replay_stated(const replay_walk *walk)
{
    const replay_verdict *const verdict = walk->verdict;
    hy3d_candidate stated = walk->program->candidate;
    const bool is_host = walk->request->is_host, is_beside = stated.on_host && !is_host;
    stated.device_bytes = is_host     ? verdict->both_bytes
                          : is_beside ? 0
                                      : verdict->device_bytes;
    stated.host_bytes = is_host     ? 0
                        : is_beside ? verdict->both_bytes
                                    : verdict->host_bytes;
    stated.stored_bytes = verdict->stored_bytes;
    stated.loaded_bytes = verdict->loaded_bytes;
    stated.sent_bytes = verdict->sent_bytes;
    stated.macs = verdict->macs;
    stated.steps = verdict->steps;
    hy3d_schedule_request own = *walk->request;
    if (walk->group != NULL && own.device_budgets != NULL) {
        own.device_budget = own.device_budgets[walk->rank];
    }
    stated.fits = replay_is_within(&own, &stated);
    return stated;
}

bool replay_agrees(replay_walk *walk, const hy3d_candidate *stated)
{
    const hy3d_candidate *const candidate = &walk->program->candidate;
    const bool is_beside = candidate->on_host && !walk->request->is_host;
    if (candidate->resident_bytes < 0 && stated->stored_bytes != 0) {
        return replay_object(walk, "%lld bytes leave where all stays", (ll)stated->stored_bytes);
    }
    if (candidate->resident_bytes >= 0 && candidate->resident_bytes < stated->device_bytes) {
        return replay_object(walk, "%lld bytes on the device, and no more than %lld should be",
                             (ll)stated->device_bytes, (ll)candidate->resident_bytes);
    }
    return agree(walk, "memory for copies", walk->program->copies_bytes,
                 walk->verdict->copies_bytes) &&
           agree(walk, "device bytes", candidate->device_bytes, stated->device_bytes) &&
           agree(walk, "margin bytes", candidate->margin_bytes,
                 replay_margin(walk->request, is_beside ? stated->host_bytes : stated->device_bytes)) &&
           agree(walk, "host bytes", candidate->host_bytes, stated->host_bytes) &&
           agree(walk, "stored bytes", candidate->stored_bytes, stated->stored_bytes) &&
           agree(walk, "loaded bytes", candidate->loaded_bytes, stated->loaded_bytes) &&
           agree(walk, "sent bytes", candidate->sent_bytes, stated->sent_bytes) &&
           agree(walk, "multiply-accumulates", candidate->macs, stated->macs) &&
           agree(walk, "steps", candidate->steps, stated->steps) &&
           (candidate->fits == stated->fits ||
            replay_object(walk, "fits %d, with %lld bytes on the device and %lld on the host",
                          candidate->fits, (ll)candidate->device_bytes,
                          (ll)candidate->host_bytes));
}

/* Multiply-accumulates of a node over all of its frames. */
static int64_t node_macs(const hy3d_graph *graph, const replay_values *values, int32_t node)
{
    const hy3d_size *const size = &values->of[node].size;
    hy3d_step step = {.op = HY3D_STEP_CONV, .node = node, .frames = {0, size->frames},
                      .rows = {0, size->rows}, .own = {0, values->of[node].own_frames}};
    if (graph->nodes[node].op == HY3D_OP_CONV) {
        return replay_macs(graph, values, &step);
    }
    if (graph->nodes[node].op != HY3D_OP_ATTENTION) {
        return 0;
    }
    step.op = HY3D_STEP_KEYS;
    const int64_t keys =
        graph->nodes[node].span == HY3D_SPAN_FRAME ? 0 : replay_macs(graph, values, &step);
    step.op = HY3D_STEP_ATTEND;
    return keys + replay_macs(graph, values, &step);
}

typedef struct over_time {
    int64_t half, kept, both; /* elements; both: of a frame that is read and one that is made */
} over_time;

static int larger_first(const void *a, const void *b)
{
    const int64_t x = ((const over_time *)a)->half, y = ((const over_time *)b)->half;
    return (x < y) - (x > y);
}

/* Those with the largest halves keep frames, the others get half of theirs at once: where the least
 * is, of all places to cut the list in two. */
static int64_t least_in_parts(const hy3d_schedule_request *r, const replay_values *values)
{
    over_time *const all = calloc((size_t)r->graph.count, sizeof *all);
    if (all == NULL) {
        abort();
    }
    size_t count = 0;
    for (int32_t node = 1; node < r->graph.count - 1; node++) {
        const hy3d_node *const n = &r->graph.nodes[node];
        if (n->op == HY3D_OP_CONV && values->of[node].own_frames > 0 && n->kernel[0] > 1 &&
            n->stride[0] == 1 && n->up[0] == 1) {
            const hy3d_size *const read = &values->of[n->source].size;
            const int64_t frame = read->channels * read->rows * read->columns;
            const int64_t half = read->frames / 2;
            const int64_t past = (int64_t)(n->kernel[0] - 1) * n->dilation[0];
            const hy3d_size *const made = &values->of[node].size;
            all[count++] = (over_time){frame * half, frame * (past < half ? past : half),
                                       frame + made->channels * made->rows * made->columns};
        }
    }
    qsort(all, count, sizeof *all, larger_first);
    int64_t least = INT64_MAX, kept = 0, both = 0;
    for (size_t i = 0; i <= count; i++) {
        const int64_t most = i < count ? all[i].half : 0;
        const int64_t held = kept + both > most ? kept + both : most;
        /* Those with equal halves stand together. */
        least = (i == 0 || i == count || most < all[i - 1].half) && held < least ? held : least;
        kept += i < count ? all[i].kept : 0;
        both = i < count && all[i].both > both ? all[i].both : both;
    }
    free(all);
    return r->size[0] < 4 ? 0 : least;
}

int64_t replay_least_own_bytes(const hy3d_schedule_request *r)
{
    const int32_t last = r->graph.count - 1;
    replay_values values = replay_values_make(
        &r->graph, 0, last, (hy3d_size){r->graph.nodes[0].channels, r->size[0], r->size[1],
                                        r->size[2]});
    const hy3d_size *const out = &values.of[last].size;
    const int64_t parts = least_in_parts(r, &values);
    int64_t most = out->channels * out->frames * out->rows * out->columns;
    most = parts > most ? parts : most;
    for (int32_t node = 1; node < last; node++) {
        const hy3d_size *const made = &values.of[node].size;
        const hy3d_size *const read = &values.of[r->graph.nodes[node].source].size;
        const int64_t both = made->channels * made->rows * made->columns +
                             read->channels * read->rows * read->columns;
        if (r->graph.nodes[node].op == HY3D_OP_CONV && values.of[node].own_frames > 0 &&
            both > most) {
            most = both;
        }
        const int64_t whole = read->channels * read->frames * read->rows * read->columns;
        if (r->graph.nodes[node].op == HY3D_OP_CONV && values.of[node].own_frames > 0 &&
            r->graph.nodes[node].norm == HY3D_NORM_GROUP && whole > most) {
            most = whole;
        }
    }
    replay_values_free(&values);
    return most * r->element_bytes;
}

/* What it takes: as the request says, or as it is told. */
static int64_t own_bytes(const hy3d_schedule_request *r, const hy3d_step *step)
{
    const hy3d_size input = {r->graph.nodes[0].channels, r->size[0], r->size[1], r->size[2]};
    hy3d_step_memory taken = {.workspace_bytes = 0};
    if (r->own_bytes != HY3D_OWN_BYTES_ASKED) {
        return r->own_bytes < 0 ? 0 : r->own_bytes;
    }
    if (r->workspace(r->user, step, &input, 0, &taken) != HY3D_OK) {
        return -1;
    }
    const int64_t least = replay_least_own_bytes(r);
    return taken.workspace_bytes < least ? least : taken.workspace_bytes;
}

/* The VAE's own code: one step that makes the output, with the memory that the request says. */
static bool replay_whole(replay_walk *walk)
{
    const hy3d_schedule_request *const r = walk->request;
    const hy3d_program *const program = walk->program;
    const hy3d_candidate *const candidate = &program->candidate;
    const hy3d_step *const step = program->steps;
    const int32_t last = r->graph.count - 1;
    replay_values values = replay_values_make(
        &r->graph, 0, last, (hy3d_size){r->graph.nodes[0].channels, r->size[0], r->size[1],
                                        r->size[2]});
    const int64_t frames = values.of[last].size.frames;
    int64_t macs = 0;
    for (int32_t node = 0; node <= last; node++) {
        macs += node_macs(&r->graph, &values, node);
    }
    replay_values_free(&values);
    if (program->section_count != 1 || program->step_count != 1 ||
        step->op != HY3D_STEP_OPAQUE || step->node != last || step->frames[0] != 0 ||
        step->frames[1] != frames || step->sources + step->others + step->frees != 0 ||
        step->read_rows[0] != 0 || step->read_rows[1] != r->size[1] ||
        step->row_padding[0] != 0 || step->row_padding[1] != 0) {
        return replay_object(walk, "the VAE's own code is not one step that makes %lld frames",
                             (ll)frames);
    }
    mix_step(&walk->verdict->shapes, step);
    walk->verdict->steps = 1;
    return agree(walk, "device bytes", candidate->device_bytes, own_bytes(r, step)) &&
           agree(walk, "host bytes", candidate->host_bytes, r->is_host ? 0 : r->result_bytes) &&
           agree(walk, "multiply-accumulates", candidate->macs, macs) &&
           agree(walk, "steps", candidate->steps, 1);
}

replay_walk replay_walk_of(const hy3d_schedule_request *request, const hy3d_program *program,
                           replay_verdict *verdict)
{
    const int32_t nodes = request->graph.count;
    replay_walk walk = {.request = request, .program = program, .verdict = verdict,
                        .device = request->kept_bytes,
                        .host = request->result_bytes + program->copies_bytes};
    *verdict = (replay_verdict){.device_bytes = walk.device, .host_bytes = walk.host,
                                .both_bytes = walk.device + walk.host,
                                .shapes = 0xcbf29ce484222325U};
    walk.kept = replay_room(nodes, sizeof *walk.kept);
    walk.known = replay_room(nodes, sizeof *walk.known);
    walk.shapes = replay_room(HY3D_SCHEDULE_MAX_SHAPES, sizeof *walk.shapes);
    return walk;
}

void replay_walk_free(replay_walk *walk)
{
    free(walk->kept);
    free(walk->known);
    free(walk->shapes);
}

bool replay_program(const hy3d_schedule_request *request, const hy3d_program *program,
                    replay_verdict *verdict)
{
    replay_walk walk = replay_walk_of(request, program, verdict);
    if (request->ranks > 1) {
        replay_object(&walk, "one program of %d ranks", request->ranks);
    } else if (program->candidate.order == HY3D_ORDER_WHOLE) {
        replay_whole(&walk);
    } else if (replay_is_laid_out(&walk)) {
        for (int32_t i = 0; i < program->section_count && verdict->text[0] == '\0'; i++) {
            walk_section(&walk, i);
        }
        if (verdict->text[0] == '\0') {
            const hy3d_candidate stated = replay_stated(&walk);
            replay_agrees(&walk, &stated);
        }
    }
    replay_walk_free(&walk);
    return verdict->text[0] == '\0';
}
