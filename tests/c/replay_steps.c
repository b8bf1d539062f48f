/* What each kind of step must find and may make. */
#include "replay_walk.h"

#include <stddef.h>

typedef long long ll;

static int64_t length(const int64_t range[2])
{
    return range[1] - range[0];
}

bool replay_makes(const hy3d_step *step)
{
    switch ((hy3d_step_op)step->op) {
    case HY3D_STEP_ENTER:
    case HY3D_STEP_CONV:
    case HY3D_STEP_PASS:
    case HY3D_STEP_ATTEND:
    case HY3D_STEP_MAP:
    case HY3D_STEP_ADD:
    case HY3D_STEP_TRIM:
    case HY3D_STEP_OPAQUE:
        return true;
    case HY3D_STEP_KEYS:
    case HY3D_STEP_MOMENTS:
    case HY3D_STEP_REDUCE:
    case HY3D_STEP_EMIT:
    case HY3D_STEP_STORE:
    case HY3D_STEP_DROP:
    case HY3D_STEP_LOAD:
    case HY3D_STEP_SEND:
    case HY3D_STEP_RECV:
        break;
    }
    return false;
}

static bool is_slice(replay_walk *walk, int32_t number)
{
    return (number >= 0 && number < walk->section->slices) ||
           replay_object(walk, "slice %d of %d", number, walk->section->slices);
}

static bool is_on_device(replay_walk *walk, int32_t number)
{
    static const char *const places[] = {"not made", "on the device", "on the host", "freed"};
    const replay_place place = walk->slices[number].place;
    return place == REPLAY_ON_DEVICE ||
           replay_object(walk, "slice %d is read, which is %s", number, places[place]);
}

/* Slices refs[0 .. count) hold frames first .. stop of a node's value, in order, with these rows,
 * and no slice is among them for nothing. */
static bool hold(replay_walk *walk, const int32_t *refs, int32_t count, int32_t node,
                 const int64_t range[2], const int64_t rows[2])
{
    int64_t at = 0;
    if (range[0] == range[1]) {
        return count == 0 || replay_object(walk, "%d slices for no frames", count);
    }
    for (int32_t i = 0; i < count; i++) {
        const hy3d_slice *const slice = replay_slice_at(walk, refs[i]);
        if (slice->node != node || slice->is_keys) {
            return replay_object(walk, "slice %d is of node %d, not of node %d", refs[i],
                                 slice->node, node);
        }
        if (!is_on_device(walk, refs[i])) {
            return false;
        }
        if (i == 0 ? slice->frames[0] > range[0] || slice->frames[1] <= range[0]
                   : slice->frames[0] != at || at >= range[1]) {
            return replay_object(walk, "slice %d has frames %lld to %lld, not those from %lld",
                                 refs[i], (ll)slice->frames[0], (ll)slice->frames[1],
                                 (ll)(i == 0 ? range[0] : at));
        }
        const int64_t read[2] = {i == 0 ? range[0] : at,
                                 slice->frames[1] < range[1] ? slice->frames[1] : range[1]};
        if (!replay_rows_are_there(walk, refs[i], read, rows)) {
            return false;
        }
        at = slice->frames[1];
    }
    return (count > 0 && at >= range[1]) ||
           replay_object(walk, "frames %lld to %lld of node %d are wanted, up to %lld are there",
                         (ll)range[0], (ll)range[1], node, (ll)at);
}

/* A slice that begins to be has the rows that it should, and the step makes those that it should:
 * this rank's; of the input and of what is copied all that the slice has. */
static bool has_rows(replay_walk *walk, const hy3d_step *step, const hy3d_slice *slice)
{
    const int64_t all[2] = {0, walk->values.of[slice->node].size.rows};
    const replay_rows *const rows = &walk->rows[slice->node];
    const int64_t *const held = slice->is_keys ? all : rows->held;
    const bool makes_all = step->op == HY3D_STEP_ENTER || step->op == HY3D_STEP_TRIM;
    const int64_t *const made = makes_all ? held : rows->own;
    return (slice->rows[0] == held[0] && slice->rows[1] == held[1] && step->rows[0] == made[0] &&
            step->rows[1] == made[1]) ||
           replay_object(walk, "slice %d has rows %lld to %lld, not %lld to %lld, the step %lld to "
                         "%lld, not %lld to %lld", step->slice, (ll)slice->rows[0],
                         (ll)slice->rows[1], (ll)held[0], (ll)held[1], (ll)step->rows[0],
                         (ll)step->rows[1], (ll)made[0], (ll)made[1]);
}

/* The numbers of a slice that begins to be. */
static bool describes(replay_walk *walk, const hy3d_step *step, const int64_t frames[2],
                      int32_t is_keys)
{
    const hy3d_slice *const slice = replay_slice_at(walk, step->slice);
    const hy3d_size *const size = &walk->values.of[step->node].size;
    if (walk->slices[step->slice].place != REPLAY_UNMADE) {
        return replay_object(walk, "slice %d is made twice", step->slice);
    }
    if (slice->node != step->node || slice->is_keys != is_keys) {
        return replay_object(walk, "slice %d is of node %d, keys %d", step->slice, slice->node,
                             slice->is_keys);
    }
    if (slice->frames[0] != frames[0] || slice->frames[1] != frames[1] || frames[0] < 0 ||
        frames[1] <= frames[0] || frames[1] > size->frames) {
        return replay_object(walk, "slice %d has frames %lld to %lld of %lld, the step %lld to "
                             "%lld", step->slice, (ll)slice->frames[0], (ll)slice->frames[1],
                             (ll)size->frames, (ll)frames[0], (ll)frames[1]);
    }
    if (!has_rows(walk, step, slice)) {
        return false;
    }
    const int64_t bytes = replay_bytes(walk, slice, length(slice->frames), length(slice->rows));
    return slice->bytes == bytes ||
           replay_object(walk, "slice %d has %lld bytes, not %lld", step->slice,
                         (ll)slice->bytes, (ll)bytes);
}

/* A slice whose numbers are right: it is there, and these of its frames have the step's rows. */
static bool begin(replay_walk *walk, const hy3d_step *step)
{
    walk->slices[step->slice].place = REPLAY_ON_DEVICE;
    replay_rows_open(walk, step->slice);
    return step->op == HY3D_STEP_KEYS ||
           replay_rows_fill(walk, step->slice, step->frames, step->rows);
}

static bool gather(replay_walk *walk, int32_t node, const int64_t frames[2])
{
    for (int64_t frame = frames[0]; frame < frames[1]; frame++) {
        if (walk->frames[node].gathered[frame]++ != 0) {
            return replay_object(walk, "moments of frame %lld of node %d a second time",
                                 (ll)frame, node);
        }
    }
    return true;
}

/* The slice that the step makes, whose frames are made for the first time. */
static bool make(replay_walk *walk, const hy3d_step *step)
{
    if (!is_slice(walk, step->slice) || !describes(walk, step, step->frames, 0)) {
        return false;
    }
    for (int64_t frame = step->frames[0]; frame < step->frames[1]; frame++) {
        if (walk->frames[step->node].made[frame]++ != 0) {
            return replay_object(walk, "frame %lld is made a second time", (ll)frame);
        }
    }
    return begin(walk, step) &&
           (!(step->flags & HY3D_STEP_GATHER) || gather(walk, step->node, step->frames));
}

static bool equal(replay_walk *walk, const char *what, const int64_t got[2], int64_t first,
                  int64_t stop)
{
    return (got[0] == first && got[1] == stop) ||
           replay_object(walk, "%s %lld to %lld, not %lld to %lld", what, (ll)got[0], (ll)got[1],
                         (ll)first, (ll)stop);
}

static bool has_op(replay_walk *walk, const hy3d_step *step, hy3d_op op)
{
    const int32_t got = replay_node_at(walk, step->node)->op;
    return got == (int32_t)op || replay_object(walk, "node %d is of operation %d", step->node, got);
}

static const int32_t *refs_of(const replay_walk *walk, const hy3d_step *step)
{
    return walk->program->refs + step->first_ref;
}

/* Statistics of the node's GroupNorm are there. */
static bool is_normed(replay_walk *walk, const hy3d_step *step)
{
    return replay_node_at(walk, step->node)->norm != HY3D_NORM_GROUP ||
           walk->reduced[step->node] || walk->known[step->node] ||
           replay_object(walk, "the statistics of node %d's norm are not there", step->node);
}

static bool has_sources(replay_walk *walk, const hy3d_step *step)
{
    int64_t rows[2];
    replay_rows_read(walk, step, rows);
    return hold(walk, refs_of(walk, step), step->sources,
                replay_node_at(walk, step->node)->source, step->reads, rows);
}

/* The residual or the second summand, frames as those that are made. */
static bool has_others(replay_walk *walk, const hy3d_step *step)
{
    const int32_t other = replay_node_at(walk, step->node)->other;
    if (other < 0) {
        return step->others == 0 || replay_object(walk, "%d others", step->others);
    }
    return hold(walk, refs_of(walk, step) + step->sources, step->others, other, step->frames,
                step->rows);
}

/* A slice may be written over: one alone, of the frames that are made and rows as the result has,
 * freed by this step, no memory of the caller's, and not what a convolution still reads. */
static bool may_overwrite(replay_walk *walk, const hy3d_step *step)
{
    const bool is_sum = step->op == HY3D_STEP_ADD;
    const int32_t *const refs = refs_of(walk, step);
    const int32_t *const frees = refs + step->sources + step->others;
    const int32_t target = is_sum ? refs[0] : refs[step->sources];
    bool is_freed = false;
    if (!(step->flags & HY3D_STEP_OVERWRITE)) {
        return true;
    }
    if ((step->op != HY3D_STEP_CONV && step->op != HY3D_STEP_PASS && !is_sum) ||
        (is_sum ? step->sources : step->others) != 1) {
        return replay_object(walk, "nothing can be written over");
    }
    for (int32_t i = 0; i < step->frees; i++) {
        is_freed = is_freed || frees[i] == target;
    }
    for (int32_t i = 0; i < step->sources && !is_sum; i++) {
        if (refs[i] == target) {
            return replay_object(walk, "slice %d is read and written over", target);
        }
    }
    const hy3d_slice *const slice = replay_slice_at(walk, target);
    const int64_t *const held = walk->rows[step->node].held;
    return (is_freed && length(slice->frames) == length(step->frames) &&
            slice->rows[0] == held[0] && slice->rows[1] == held[1] &&
            !(slice->node == 0 && walk->request->input_bytes == 0)) ||
           replay_object(walk, "slice %d can't be written over", target);
}

static bool enter(replay_walk *walk, const hy3d_step *step)
{
    return (step->node == walk->entry ||
            replay_object(walk, "node %d is not the section's input", step->node)) &&
           make(walk, step);
}

/* Which frames the step's own frames become, and what they read. */
static bool conv_frames(replay_walk *walk, const hy3d_step *step)
{
    const replay_value *const value = &walk->values.of[step->node];
    const int64_t drop = replay_node_at(walk, step->node)->drop;
    replay_range real = {0}, wide = {0};
    int64_t first = 0, stop = 0;
    if (step->own[0] < 0 || step->own[0] >= step->own[1] || step->own[1] > value->own_frames) {
        return replay_object(walk, "own frames %lld to %lld of %lld", (ll)step->own[0],
                             (ll)step->own[1], (ll)value->own_frames);
    }
    while (first < value->made_frames && value->made[first] < step->own[0]) {
        first++;
    }
    for (stop = first; stop < value->made_frames && value->made[stop] < step->own[1];) {
        stop++;
    }
    if (step->drop < 0 || first + step->drop < drop) {
        return replay_object(walk, "drops %d frames, and frame %lld is not of the value",
                             step->drop, (ll)(first + step->drop));
    }
    for (int64_t own = step->own[0]; own < step->own[1]; own++) {
        const replay_reads *const reads = &value->reads[own];
        if (reads->real.first != reads->real.stop) {
            real.first = real.stop == 0 || reads->real.first < real.first ? reads->real.first
                                                                          : real.first;
            real.stop = reads->real.stop > real.stop ? reads->real.stop : real.stop;
        }
        wide.first = wide.stop == 0 || reads->wide.first < wide.first ? reads->wide.first
                                                                      : wide.first;
        wide.stop = reads->wide.stop > wide.stop ? reads->wide.stop : wide.stop;
    }
    if (step->reads[0] != step->reads[1]
            ? (real.stop != 0 && (step->reads[0] > real.first || step->reads[1] < real.stop)) ||
                  step->reads[0] < wide.first || step->reads[1] > wide.stop
            : real.stop != 0) {
        return replay_object(walk, "reads %lld to %lld; needed %lld to %lld, with padding %lld to "
                             "%lld", (ll)step->reads[0], (ll)step->reads[1], (ll)real.first,
                             (ll)real.stop, (ll)wide.first, (ll)wide.stop);
    }
    return equal(walk, "frames", step->frames, value->passes + first + step->drop - drop,
                 value->passes + stop - drop);
}

static bool conv(replay_walk *walk, const hy3d_step *step)
{
    return has_op(walk, step, HY3D_OP_CONV) && is_normed(walk, step) && conv_frames(walk, step) &&
           has_sources(walk, step) && has_others(walk, step) && may_overwrite(walk, step) &&
           make(walk, step);
}

static bool pass(replay_walk *walk, const hy3d_step *step)
{
    const replay_value *const value = &walk->values.of[step->node];
    return has_op(walk, step, HY3D_OP_CONV) &&
           (step->frames[1] <= value->passes ||
            replay_object(walk, "frame %lld does not pass by, only %lld do",
                          (ll)step->frames[1] - 1, (ll)value->passes)) &&
           equal(walk, "reads", step->reads, step->frames[0], step->frames[1]) &&
           has_sources(walk, step) && has_others(walk, step) && may_overwrite(walk, step) &&
           make(walk, step);
}

static bool keys(replay_walk *walk, const hy3d_step *step)
{
    const int64_t all[2] = {0, walk->values.of[step->node].size.frames};
    if (!has_op(walk, step, HY3D_OP_ATTENTION) || !is_normed(walk, step) ||
        !is_slice(walk, step->slice)) {
        return false;
    }
    if (replay_node_at(walk, step->node)->span == HY3D_SPAN_FRAME) {
        return replay_object(walk, "keys are kept of an attention within frames");
    }
    if (walk->slices[step->slice].place == REPLAY_UNMADE) {
        if (!describes(walk, step, all, 1) || !begin(walk, step)) {
            return false;
        }
    }
    if (!is_on_device(walk, step->slice) || !replay_slice_at(walk, step->slice)->is_keys ||
        replay_slice_at(walk, step->slice)->node != step->node) {
        return replay_object(walk, "slice %d is not of the node's keys", step->slice);
    }
    if (!equal(walk, "reads", step->reads, step->frames[0], step->frames[1]) ||
        length(step->frames) < 1 || !has_sources(walk, step)) {
        return replay_object(walk, "keys of no frames");
    }
    for (int64_t frame = step->frames[0]; frame < step->frames[1]; frame++) {
        if (walk->frames[step->node].filled[frame]++ != 0) {
            return replay_object(walk, "keys of frame %lld a second time", (ll)frame);
        }
    }
    const int64_t *const own = walk->rows[step->node].own;
    return equal(walk, "rows", step->rows, own[0], own[1]) &&
           replay_rows_fill(walk, step->slice, step->frames, step->rows);
}

/* The slice of keys that the attention has, as long as it is there; -1. */
static int32_t keys_of(const replay_walk *walk, int32_t node)
{
    for (int32_t i = 0; i < walk->section->slices; i++) {
        if (replay_slice_at(walk, i)->node == node && replay_slice_at(walk, i)->is_keys &&
            walk->slices[i].place == REPLAY_ON_DEVICE) {
            return i;
        }
    }
    return -1;
}

static bool attend(replay_walk *walk, const hy3d_step *step)
{
    if (!has_op(walk, step, HY3D_OP_ATTENTION) || !is_normed(walk, step) ||
        !equal(walk, "reads", step->reads, step->frames[0], step->frames[1]) ||
        !has_sources(walk, step)) {
        return false;
    }
    const int32_t span = replay_node_at(walk, step->node)->span;
    const int32_t slice = keys_of(walk, step->node);
    if (span == HY3D_SPAN_FRAME) {
        return make(walk, step);
    }
    if (slice < 0 ||
        (step->others == 1 && refs_of(walk, step)[step->sources] != slice) || step->others > 1) {
        return replay_object(walk, "its keys are not there");
    }
    const hy3d_size *const size = &walk->values.of[step->node].size;
    const int64_t seen = span == HY3D_SPAN_VIDEO ? size->frames : step->frames[1];
    for (int64_t frame = 0; frame < seen; frame++) {
        if (walk->frames[step->node].filled[frame] == 0) {
            return replay_object(walk, "keys of frame %lld are not there", (ll)frame);
        }
    }
    return replay_rows_are_there(walk, slice, (int64_t[]){0, seen}, (int64_t[]){0, size->rows}) &&
           make(walk, step);
}

/* MAP, OPAQUE. */
static bool map(replay_walk *walk, const hy3d_step *step)
{
    const bool is_opaque = step->op == HY3D_STEP_OPAQUE;
    if (!has_op(walk, step, is_opaque ? HY3D_OP_OPAQUE : HY3D_OP_MAP)) {
        return false;
    }
    const int64_t frames = walk->values.of[replay_node_at(walk, step->node)->source].size.frames;
    const int64_t *const begins = walk->values.of[step->node].begins;
    if (is_opaque ? !equal(walk, "reads", step->reads, 0, frames)
                  : step->reads[0] < 0 || step->reads[0] >= step->reads[1] ||
                        step->reads[1] > frames) {
        return replay_object(walk, "reads %lld to %lld of %lld", (ll)step->reads[0],
                             (ll)step->reads[1], (ll)frames);
    }
    return equal(walk, "frames", step->frames, begins[step->reads[0]], begins[step->reads[1]]) &&
           has_sources(walk, step) && make(walk, step);
}

static bool add(replay_walk *walk, const hy3d_step *step)
{
    return has_op(walk, step, HY3D_OP_ADD) &&
           equal(walk, "reads", step->reads, step->frames[0], step->frames[1]) &&
           has_sources(walk, step) && has_others(walk, step) && may_overwrite(walk, step) &&
           make(walk, step);
}

/* Whether the next step but copies is a convolution whose result is written over the slice, which
 * it frees then (may_overwrite). */
static bool is_written_over_next(const replay_walk *walk, const hy3d_step *step, int32_t slice)
{
    const hy3d_step *const end =
        &walk->program->steps[walk->section->first_step + walk->section->steps];
    for (const hy3d_step *next = step + 1; next < end; next++) {
        const bool copies = next->op == HY3D_STEP_STORE || next->op == HY3D_STEP_DROP ||
                            next->op == HY3D_STEP_LOAD;
        if (!copies) {
            return next->op == HY3D_STEP_CONV && (next->flags & HY3D_STEP_OVERWRITE) != 0 &&
                   next->others == 1 && next->sources >= 0 && next->first_ref >= 0 &&
                   next->first_ref < walk->program->ref_count - next->sources &&
                   walk->program->refs[next->first_ref + next->sources] == slice;
        }
    }
    return false;
}

static bool trim(replay_walk *walk, const hy3d_step *step)
{
    const int32_t *const refs = refs_of(walk, step);
    if (step->sources != 1 || step->others != 0 || !is_slice(walk, step->slice) ||
        step->flags != 0) {
        return replay_object(walk, "%d slices to trim", step->sources);
    }
    const hy3d_slice *const source = replay_slice_at(walk, refs[0]);
    if (!is_on_device(walk, refs[0]) || source->node != step->node || source->is_keys ||
        source->frames[0] >= step->frames[0] || source->frames[1] != step->frames[1]) {
        return replay_object(walk, "frames %lld to %lld are not the last ones of slice %d",
                             (ll)step->frames[0], (ll)step->frames[1], refs[0]);
    }
    if (step->frees == 0 ? !is_written_over_next(walk, step, refs[0])
                         : step->frees != 1 || refs[1] != refs[0]) {
        return replay_object(walk, "the slice that is trimmed is not freed");
    }
    return describes(walk, step, step->frames, 0) &&
           replay_rows_are_there(walk, refs[0], source->frames, source->rows) && begin(walk, step);
}

/* A slice that is there as a step of copying says. */
static bool concerns(replay_walk *walk, const hy3d_step *step)
{
    if (!is_slice(walk, step->slice)) {
        return false;
    }
    const hy3d_slice *const slice = replay_slice_at(walk, step->slice);
    const bool is_own = step->op == HY3D_STEP_EMIT || step->op == HY3D_STEP_MOMENTS;
    const int64_t *const rows = is_own ? walk->rows[slice->node].own : slice->rows;
    return ((!slice->is_keys || replay_object(walk, "slice %d is of keys", step->slice)) &&
            equal(walk, "frames", step->frames, slice->frames[0], slice->frames[1]) &&
            equal(walk, "rows", step->rows, rows[0], rows[1]) &&
            step->sources + step->others == 0) ||
           replay_object(walk, "%d sources", step->sources);
}

static bool moments(replay_walk *walk, const hy3d_step *step)
{
    return concerns(walk, step) && is_on_device(walk, step->slice) &&
           gather(walk, replay_slice_at(walk, step->slice)->node, step->frames);
}

static bool reduce(replay_walk *walk, const hy3d_step *step)
{
    const hy3d_node *const node = replay_node_at(walk, step->node);
    if (node->norm != HY3D_NORM_GROUP) {
        return replay_object(walk, "node %d has no GroupNorm", step->node);
    }
    if (walk->section->kind == HY3D_SECTION_TILE) {
        return replay_object(walk, "in a tile");
    }
    if (node->source < walk->entry || node->source > walk->last) {
        return replay_object(walk, "node %d is not of this section", node->source);
    }
    const int64_t *const own = walk->rows[node->source].own;
    const int64_t frames = own[0] < own[1] ? walk->values.of[node->source].size.frames : 0;
    for (int64_t frame = 0; frame < frames; frame++) {
        if (walk->frames[node->source].gathered[frame] == 0) {
            return replay_object(walk, "frame %lld of node %d has no moments", (ll)frame,
                                 node->source);
        }
    }
    if (walk->reduced[step->node]) {
        return replay_object(walk, "node %d a second time", step->node);
    }
    walk->reduced[step->node] = true;
    const int64_t *const rows = walk->rows[step->node].own;
    return step->node > walk->last || equal(walk, "rows", step->rows, rows[0], rows[1]);
}

/* What a rank without rows has of it: no slice. */
static bool emit_nothing(replay_walk *walk, const hy3d_step *step, int32_t output)
{
    const int64_t *const own = walk->rows[output].own;
    if (step->slice != -1 || step->sources + step->others + step->frees != 0 ||
        (step->node != output && step->node != walk->last)) {
        return replay_object(walk, "slice %d of node %d, and there is none", step->slice,
                             step->node);
    }
    return equal(walk, "rows", step->rows, own[0], own[1]);
}

static bool emit(replay_walk *walk, const hy3d_step *step)
{
    const bool is_prefix = walk->section->kind == HY3D_SECTION_PREFIX;
    const int32_t output = is_prefix ? walk->last : replay_node_at(walk, walk->last)->source;
    if (walk->rows[output].own[0] == walk->rows[output].own[1]) {
        if (!emit_nothing(walk, step, output)) {
            return false;
        }
    } else if (!concerns(walk, step) || !is_on_device(walk, step->slice)) {
        return false;
    } else if (replay_slice_at(walk, step->slice)->node != output ||
               (step->node != output && step->node != walk->last)) {
        return replay_object(walk, "slice %d of node %d is not of the output", step->slice,
                             replay_slice_at(walk, step->slice)->node);
    }
    if (step->frames[0] != walk->given || step->frames[1] <= step->frames[0]) {
        return replay_object(walk, "frame %lld is given away when it is frame %lld's turn",
                             (ll)step->frames[0], (ll)walk->given);
    }
    walk->given = step->frames[1];
    return replay_give(walk, step);
}

/* Whether a copy has a place of its own, aligned, within the memory for copies. */
static bool has_a_place(replay_walk *walk, int32_t number)
{
    const hy3d_slice *const slice = replay_slice_at(walk, number);
    const int64_t stop = slice->host_at + slice->bytes;
    if (slice->host_at < 0 || slice->host_at % 256 != 0 || stop > walk->program->copies_bytes) {
        return replay_object(walk, "a copy of %lld bytes from %lld on, in memory of %lld",
                             (ll)slice->bytes, (ll)slice->host_at,
                             (ll)walk->program->copies_bytes);
    }
    for (int32_t i = 0; i < walk->section->slices; i++) {
        const hy3d_slice *const other = replay_slice_at(walk, i);
        if (walk->slices[i].is_stored && walk->slices[i].place != REPLAY_FREED &&
            slice->host_at < other->host_at + other->bytes && other->host_at < stop) {
            return replay_object(walk, "the copies of slices %d and %d lie in one place", number, i);
        }
    }
    int64_t *const most = &walk->verdict->copies_bytes;
    *most = stop > *most ? stop : *most;
    return true;
}

static bool store(replay_walk *walk, const hy3d_step *step)
{
    if (!concerns(walk, step) || !is_on_device(walk, step->slice)) {
        return false;
    }
    const hy3d_slice *const slice = replay_slice_at(walk, step->slice);
    if (!replay_rows_are_there(walk, step->slice, slice->frames, slice->rows)) {
        return false;
    }
    if (!walk->request->may_spill || walk->slices[step->slice].is_stored) {
        return replay_object(walk, "slice %d may not be stored%s", step->slice,
                             walk->request->may_spill ? " twice" : "");
    }
    if (!has_a_place(walk, step->slice)) {
        return false;
    }
    walk->slices[step->slice].is_stored = true;
    return true;
}

static bool drop(replay_walk *walk, const hy3d_step *step)
{
    return concerns(walk, step) && is_on_device(walk, step->slice) &&
           (walk->slices[step->slice].is_stored ||
            replay_object(walk, "slice %d was never stored", step->slice));
}

static bool load(replay_walk *walk, const hy3d_step *step)
{
    if (!concerns(walk, step)) {
        return false;
    }
    if (walk->slices[step->slice].place != REPLAY_ON_HOST) {
        return replay_object(walk, "slice %d is not on the host alone", step->slice);
    }
    walk->slices[step->slice].place = REPLAY_ON_DEVICE;
    return true;
}

static bool refs_are_slices(replay_walk *walk, const hy3d_step *step)
{
    const int64_t count = (int64_t)step->sources + step->others + step->frees;
    if (step->sources < 0 || step->others < 0 || step->frees < 0 || step->first_ref < 0 ||
        step->first_ref + count > walk->program->ref_count) {
        return replay_object(walk, "refs %d and %lld more, of %d", step->first_ref, (ll)count,
                             walk->program->ref_count);
    }
    for (int64_t i = 0; i < count; i++) {
        if (!is_slice(walk, refs_of(walk, step)[i])) {
            return false;
        }
    }
    return true;
}

bool replay_check_step(replay_walk *walk, const hy3d_step *step)
{
    static bool (*const checks[HY3D_STEP_OPS])(replay_walk *, const hy3d_step *) = {
        enter, conv, pass, keys, attend, map, add, trim, map, moments, reduce, emit, store, drop,
        load, replay_send, replay_receive};
    const bool is_linked = step->op == HY3D_STEP_SEND || step->op == HY3D_STEP_RECV;
    if (step->op < 0 || step->op >= HY3D_STEP_OPS || (is_linked && walk->group == NULL) ||
        (!is_linked && step->peer != -1)) {
        return replay_object(walk, "operation %d, peer %d", step->op, step->peer);
    }
    if (step->node < walk->entry || step->node > walk->request->graph.count - 1 ||
        (step->node > walk->last && step->op != HY3D_STEP_REDUCE)) {
        return replay_object(walk, "node %d is not of this section", step->node);
    }
    if ((step->node == walk->entry) != (step->op == HY3D_STEP_ENTER) && replay_makes(step) &&
        step->op != HY3D_STEP_TRIM) {
        return replay_object(walk, "node %d is the section's input", step->node);
    }
    return refs_are_slices(walk, step) && checks[step->op](walk, step) &&
           replay_rows_are_stated(walk, step);
}
