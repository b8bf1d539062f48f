/* Walks a program's sections step by step, keeps the books of memory, and compares the sums with
 * the candidate. */
#include "replay.h"
#include "replay_walk.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hy3d/tiles.h"

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
    if (walk->section != NULL && walk->at < walk->section->steps) {
        const hy3d_step *const step =
            &walk->program->steps[walk->section->first_step + walk->at];
        const char *const name =
            step->op >= 0 && step->op < HY3D_STEP_OPS ? op_names[step->op] : "?";
        snprintf(text, most, "section %d, step %d (%s of node %d): ",
                 (int)(walk->section - walk->program->sections), walk->at, name, step->node);
    } else if (walk->section != NULL) {
        snprintf(text, most, "section %d: ", (int)(walk->section - walk->program->sections));
    }
    const size_t used = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + used, most - used, format, arguments);
    va_end(arguments);
    return false;
}

static void *room(int64_t count, size_t bytes)
{
    void *const memory = calloc(count > 0 ? (size_t)count : 1, bytes);
    if (memory == NULL) {
        fputs("no memory for the test itself\n", stderr);
        exit(3);
    }
    return memory;
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
    }
}

/* What the workspace function says of the step, and what its node keeps. */
static bool take_workspace(replay_walk *walk, const hy3d_step *step)
{
    hy3d_step bare = *step;
    const int32_t source = replay_node_at(walk, step->node)->source;
    int64_t workspace = 0, kept = 0;
    bare.workspace_bytes = 0;
    if (source >= walk->entry && source >= 0) {
        const hy3d_status status = walk->request->workspace(
            walk->request->user, &bare, &walk->values.of[source].size,
            walk->program->candidate.on_host, &workspace, &kept);
        if (status != HY3D_OK) {
            return replay_object(walk, "workspace: %s", hy3d_status_name(status));
        }
    }
    if (!walk->kept[step->node]) {
        walk->kept[step->node] = true;
        walk->device += kept;
    }
    return step->workspace_bytes == workspace ||
           replay_object(walk, "workspace of %lld bytes, not %lld", (ll)step->workspace_bytes,
                         (ll)workspace);
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
        walk->host += slice->host_bytes;
        walk->verdict->stored_bytes += slice->bytes;
    } else if (step->op == HY3D_STEP_LOAD) {
        walk->verdict->loaded_bytes += slice->bytes;
    } else if (step->op == HY3D_STEP_EMIT && walk->section->kind == HY3D_SECTION_PREFIX &&
               !walk->has_prefix) {
        walk->has_prefix = true;
        walk->host += walk->program->prefix_bytes;
    }
}

static bool give_back(replay_walk *walk, const hy3d_step *step)
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
        if (slice->is_stored) {
            walk->host -= replay_slice_at(walk, frees[i])->host_bytes;
        }
        slice->place = REPLAY_FREED;
    }
    return true;
}

static bool walk_step(replay_walk *walk, const hy3d_step *step)
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
    return give_back(walk, step);
}

static bool ends_well(replay_walk *walk)
{
    const int64_t frames = walk->values.of[walk->last].size.frames;
    const bool is_wanted =
        walk->section->kind != HY3D_SECTION_STATISTICS && walk->section->pass == 0;
    for (int32_t i = 0; i < walk->section->slices; i++) {
        if (walk->slices[i].place != REPLAY_FREED) {
            return replay_object(walk, "slice %d is left at the end, or never made", i);
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
    walk->frames = room(walk->request->graph.count, sizeof *walk->frames);
    for (int32_t node = walk->entry; node <= walk->last; node++) {
        const int64_t frames = walk->values.of[node].size.frames;
        walk->frames[node] =
            (replay_frames){room(frames, 1), room(frames, 1), room(frames, 1)};
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

static void walk_section(replay_walk *walk, const hy3d_section *section)
{
    const bool is_behind = section->kind >= HY3D_SECTION_STATISTICS;
    walk->section = section;
    if (!is_sound(walk)) {
        return;
    }
    walk->entry = is_behind ? walk->program->cut.node : 0;
    walk->last = section->kind == HY3D_SECTION_PREFIX ? walk->program->cut.node
                                                      : walk->request->graph.count - 1;
    const hy3d_size input = {replay_node_at(walk, walk->entry)->channels, section->size[0],
                             section->size[1], section->size[2]};
    walk->values = replay_values_make(&walk->request->graph, walk->entry, walk->last, input);
    walk->slices = room(section->slices, sizeof *walk->slices);
    walk->reduced = room(walk->request->graph.count, sizeof *walk->reduced);
    walk->given = 0;
    open_frames(walk);
    for (walk->at = 0; walk->at < section->steps; walk->at++) {
        if (!walk_step(walk, &walk->program->steps[section->first_step + walk->at])) {
            break;
        }
    }
    if (walk->verdict->text[0] == '\0') {
        ends_well(walk);
    }
    close_frames(walk);
    free(walk->slices);
    free(walk->reduced);
    replay_values_free(&walk->values);
}

/* Nodes behind the cut read nothing before it but its own value. */
static bool is_cut(replay_walk *walk)
{
    const hy3d_cut *const cut = &walk->program->cut;
    const hy3d_graph *const graph = &walk->request->graph;
    int32_t norms = 0;
    if (cut->node < 0 || cut->node >= graph->count - 1) {
        return replay_object(walk, "a cut behind node %d", cut->node);
    }
    for (int32_t node = cut->node + 1; node < graph->count; node++) {
        const hy3d_node *const behind = &graph->nodes[node];
        norms += behind->norm == HY3D_NORM_GROUP;
        if (behind->source < cut->node || (behind->other >= 0 && behind->other < cut->node)) {
            return replay_object(walk, "node %d, behind the cut, reads before it", node);
        }
        if (behind->op == HY3D_OP_ATTENTION && cut->node > 0) {
            return replay_object(walk, "an attention, node %d, is behind the cut", node);
        }
    }
    return norms == cut->group_norms ||
           replay_object(walk, "%d norms behind the cut, not %d", norms, cut->group_norms);
}

/* Tiles of one pass cover the cut's picture. */
static bool tiles_cover(replay_walk *walk, const hy3d_size *cut, int32_t pass)
{
    bool all = true;
    unsigned char *const covered = room(cut->rows * cut->columns, 1);
    for (int32_t i = 0; i < walk->program->section_count; i++) {
        const hy3d_section *const section = &walk->program->sections[i];
        if (section->kind != HY3D_SECTION_TILE || section->pass != pass) {
            continue;
        }
        for (int64_t row = section->rows[0]; row < section->rows[1]; row++) {
            memset(covered + row * cut->columns + section->columns[0], 1,
                   (size_t)(section->columns[1] - section->columns[0]));
        }
    }
    for (int64_t i = 0; i < cut->rows * cut->columns; i++) {
        all = all && covered[i];
    }
    free(covered);
    return all || replay_object(walk, "tiles of pass %d leave out a part", pass);
}

static bool is_tile(replay_walk *walk, const hy3d_section *section, const hy3d_size *cut)
{
    const int64_t rows = section->rows[1] - section->rows[0];
    const int64_t columns = section->columns[1] - section->columns[0];
    walk->section = section;
    walk->at = section->steps;
    if (section->rows[0] < 0 || section->columns[0] < 0 || section->rows[1] > cut->rows ||
        section->columns[1] > cut->columns || section->size[0] != cut->frames ||
        section->size[1] != rows || section->size[2] != columns) {
        return replay_object(walk, "a tile of rows %lld to %lld, columns %lld to %lld, size "
                             "%lld x %lld x %lld", (ll)section->rows[0], (ll)section->rows[1],
                             (ll)section->columns[0], (ll)section->columns[1],
                             (ll)section->size[0], (ll)section->size[1], (ll)section->size[2]);
    }
    walk->section = NULL;
    return true;
}

/* A tile lies where the program's tiles are placed (hy3d_tiles_at, which has tests of its own), and
 * where it is exact keeps nothing nearer to where it was cut off than a cut is felt. */
static bool is_placed(replay_walk *walk, const hy3d_section *section, const hy3d_tiles_plan *plan)
{
    const int64_t reach = walk->program->candidate.is_exact ? walk->program->cut.reach : 0;
    const int64_t *const ranges[] = {NULL, section->rows, section->columns};
    hy3d_tile tile;
    if (hy3d_tiles_at(plan, section->tile, &tile) != HY3D_OK) {
        return replay_object(walk, "there is no tile %d", section->tile);
    }
    for (int axis = 1; axis < 3; axis++) {
        const int64_t first = tile.in_start[axis], stop = tile.in_stop[axis];
        const int64_t factor = plan->desc.factor[axis];
        if (ranges[axis][0] != first || ranges[axis][1] != stop) {
            return replay_object(walk, "tile %d reads %lld to %lld along axis %d, not %lld to %lld",
                                 section->tile, (ll)ranges[axis][0], (ll)ranges[axis][1], axis,
                                 (ll)first, (ll)stop);
        }
        if ((first > 0 && tile.out_start[axis] < (first + reach) * factor) ||
            (stop < plan->desc.latent[axis] && tile.out_stop[axis] > (stop - reach) * factor)) {
            return replay_object(walk, "tile %d is said to be exact and keeps %lld to %lld of %lld "
                                 "to %lld along axis %d, where a cut is felt %lld far",
                                 section->tile, (ll)tile.out_start[axis], (ll)tile.out_stop[axis],
                                 (ll)first, (ll)stop, axis, (ll)reach);
        }
    }
    return true;
}

static bool are_placed(replay_walk *walk, const hy3d_size *cut)
{
    const hy3d_program *const program = walk->program;
    hy3d_tiles_plan plan;
    const hy3d_status status = hy3d_tiles_make(&program->tiles, NULL, &plan);
    if (status != HY3D_OK || plan.desc.latent[1] != cut->rows ||
        plan.desc.latent[2] != cut->columns) {
        return replay_object(walk, "its tiles: %s, of %lld x %lld", hy3d_status_name(status),
                             (ll)program->tiles.latent[1], (ll)program->tiles.latent[2]);
    }
    if (program->candidate.is_exact && program->cut.group_norms > 0 && plan.grains > 1) {
        return replay_object(walk, "%lld tiles with norms behind the cut are said to be exact",
                             (ll)plan.grains);
    }
    for (int32_t i = 0; i < program->section_count; i++) {
        if (program->sections[i].kind == HY3D_SECTION_TILE &&
            !is_placed(walk, &program->sections[i], &plan)) {
            return false;
        }
    }
    return true;
}

static bool kinds_are(replay_walk *walk, const hy3d_size *cut)
{
    const hy3d_program *const program = walk->program;
    const int64_t *const size = walk->request->size;
    int32_t counts[4] = {0}, passes = 0;
    for (int32_t i = 0; i < program->section_count; i++) {
        const hy3d_section *const section = &program->sections[i];
        if (section->kind < 0 || section->kind > HY3D_SECTION_TILE) {
            return replay_object(walk, "a section of kind %d", section->kind);
        }
        counts[section->kind]++;
        passes = section->pass > passes ? section->pass : passes;
        if (section->kind <= HY3D_SECTION_PREFIX &&
            memcmp(section->size, size, sizeof section->size) != 0) {
            return replay_object(walk, "section %d has another size than the input", i);
        }
        if (section->kind == HY3D_SECTION_TILE && !is_tile(walk, section, cut)) {
            return false;
        }
    }
    if (program->candidate.order != HY3D_ORDER_TILES) {
        return (program->section_count == 1 && counts[HY3D_SECTION_ALL] == 1) ||
               replay_object(walk, "%d sections", program->section_count);
    }
    for (int32_t pass = 0; pass <= passes; pass++) {
        if (pass == 0 && !are_placed(walk, cut)) {
            return false;
        }
        if (!tiles_cover(walk, cut, pass)) {
            return false;
        }
    }
    return (counts[HY3D_SECTION_ALL] == 0 &&
            counts[HY3D_SECTION_PREFIX] == (program->cut.node > 0) &&
            counts[HY3D_SECTION_STATISTICS] >= (program->cut.group_norms > 0) &&
            passes <= walk->request->statistic_passes) ||
           replay_object(walk, "%d sections of a prefix, %d of statistics, %d corrections, cut "
                         "behind node %d", counts[1], counts[2], passes, program->cut.node);
}

static bool is_laid_out(replay_walk *walk)
{
    replay_values values;
    const int64_t *const size = walk->request->size;
    const hy3d_graph *const graph = &walk->request->graph;
    const int32_t node =
        walk->program->candidate.order >= HY3D_ORDER_PREFIX ? walk->program->cut.node : 0;
    if (walk->program->candidate.order >= HY3D_ORDER_PREFIX && !is_cut(walk)) {
        return false;
    }
    values = replay_values_make(
        graph, 0, node, (hy3d_size){graph->nodes[0].channels, size[0], size[1], size[2]});
    const hy3d_size cut = values.of[node].size;
    replay_values_free(&values);
    const bool has_prefix =
        node > 0 && walk->program->candidate.order == HY3D_ORDER_TILES;
    const int64_t bytes =
        cut.channels * cut.frames * cut.rows * cut.columns * walk->request->element_bytes;
    return kinds_are(walk, &cut) &&
           (walk->program->prefix_bytes == (has_prefix ? bytes : 0) ||
            replay_object(walk, "the prefix's output has %lld bytes, not %lld",
                          (ll)walk->program->prefix_bytes, (ll)(has_prefix ? bytes : 0)));
}

/* What the budget must hold beside so many bytes. */
static int64_t margin_of(const hy3d_schedule_request *request, int64_t bytes)
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
    const int64_t margin = margin_of(request, is_beside ? host : device);
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

static bool figures_agree(replay_walk *walk)
{
    const hy3d_candidate *const candidate = &walk->program->candidate;
    const replay_verdict *const verdict = walk->verdict;
    walk->section = NULL;
    const int64_t both = verdict->both_bytes;
    const bool is_host = walk->request->is_host, is_beside = candidate->on_host && !is_host;
    const int64_t device = is_host ? both : is_beside ? 0 : verdict->device_bytes;
    const int64_t host = is_host ? 0 : is_beside ? both : verdict->host_bytes;
    if (candidate->resident_bytes < 0 && verdict->stored_bytes != 0) {
        return replay_object(walk, "%lld bytes leave where all stays", (ll)verdict->stored_bytes);
    }
    return agree(walk, "device bytes", candidate->device_bytes, device) &&
           agree(walk, "margin bytes", candidate->margin_bytes,
                 margin_of(walk->request, is_beside ? host : device)) &&
           agree(walk, "host bytes", candidate->host_bytes, host) &&
           agree(walk, "stored bytes", candidate->stored_bytes, verdict->stored_bytes) &&
           agree(walk, "loaded bytes", candidate->loaded_bytes, verdict->loaded_bytes) &&
           agree(walk, "multiply-accumulates", candidate->macs, verdict->macs) &&
           agree(walk, "steps", candidate->steps, verdict->steps) &&
           (candidate->fits == replay_is_within(walk->request, candidate) ||
            replay_object(walk, "fits %d, with %lld bytes on the device and %lld on the host",
                          candidate->fits, (ll)candidate->device_bytes,
                          (ll)candidate->host_bytes));
}

/* Multiply-accumulates of a node over all of its frames. */
static int64_t node_macs(const hy3d_graph *graph, const replay_values *values, int32_t node)
{
    const int64_t frames = values->of[node].size.frames;
    hy3d_step step = {.op = HY3D_STEP_CONV, .node = node, .frames = {0, frames},
                      .own = {0, values->of[node].own_frames}};
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
        step->frames[1] != frames || step->sources + step->others + step->frees != 0) {
        return replay_object(walk, "the VAE's own code is not one step that makes %lld frames",
                             (ll)frames);
    }
    mix_step(&walk->verdict->shapes, step);
    walk->verdict->steps = 1;
    return agree(walk, "device bytes", candidate->device_bytes,
                 r->own_bytes < 0 ? 0 : r->own_bytes) &&
           agree(walk, "host bytes", candidate->host_bytes, r->is_host ? 0 : r->result_bytes) &&
           agree(walk, "multiply-accumulates", candidate->macs, macs) &&
           agree(walk, "steps", candidate->steps, 1);
}

bool replay_program(const hy3d_schedule_request *request, const hy3d_program *program,
                    replay_verdict *verdict)
{
    replay_walk walk = {.request = request, .program = program, .verdict = verdict,
                        .device = request->kept_bytes, .host = request->result_bytes};
    *verdict = (replay_verdict){.device_bytes = walk.device, .host_bytes = walk.host,
                                .both_bytes = walk.device + walk.host,
                                .shapes = 0xcbf29ce484222325U};
    if (program->candidate.order == HY3D_ORDER_WHOLE) {
        return replay_whole(&walk);
    }
    walk.kept = room(request->graph.count, sizeof *walk.kept);
    walk.known = room(request->graph.count, sizeof *walk.known);
    if (is_laid_out(&walk)) {
        for (int32_t i = 0; i < program->section_count && verdict->text[0] == '\0'; i++) {
            walk_section(&walk, &program->sections[i]);
        }
    }
    if (verdict->text[0] == '\0') {
        figures_agree(&walk);
    }
    free(walk.kept);
    free(walk.known);
    return verdict->text[0] == '\0';
}
