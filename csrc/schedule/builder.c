/* See builder.h. */
#include <limits.h>
#include <stddef.h>
#include <string.h>

#include "base/checked.h"
#include "schedule/builder.h"
#include "schedule/step_memory.h"

/* Of references and slices: what a program of the most steps has, some a step. */
#define MOST_ENTRIES (INT32_C(1) << 28)
/* Bytes of all values together, and of a step's workspace, a node's keys and what it keeps, and of
 * what a shape leaves: sums of them stay within 63 bits. */
#define MOST_BYTES (INT64_C(1) << 60)
#define MOST_TAKEN (INT64_C(1) << 48)
#define MOST_SHAPE (INT64_C(1) << 40)

/* --- growing arrays ------------------------------------------------------------------------- */

void *hy3d__grown(hy3d_context *context, void *array, int32_t count, int32_t *room, size_t bytes,
                  hy3d_status *status)
{
    void *larger = NULL;
    if (count < *room || *status != HY3D_OK) {
        return array;
    }
    const int32_t more = *room == 0 ? 64 : *room * 2; /* counts are below MOST_ENTRIES */
    *status = hy3d_alloc(context, (size_t)more * bytes, &larger);
    if (*status != HY3D_OK) {
        return array;
    }
    if (array != NULL) {
        memcpy(larger, array, (size_t)count * bytes);
    }
    hy3d_free(context, array);
    *room = more;
    return larger;
}

/* Room for one more; the builder's status says whether there is. */
#define GROW(b, array, count, room)                                                                \
    ((array) = hy3d__grown((b)->context, (array), (count), &(room), sizeof *(array), &(b)->status))

void hy3d__arrays_destroy(hy3d_context *context, hy3d__arrays *arrays)
{
    hy3d_free(context, arrays->steps);
    hy3d_free(context, arrays->kept);
    hy3d_free(context, arrays->slices);
    hy3d_free(context, arrays->refs);
    hy3d_free(context, arrays->sections);
    memset(arrays, 0, sizeof *arrays);
}

static bool failed(hy3d__builder *b, hy3d_status status)
{
    if (b->status == HY3D_OK) {
        b->status = status;
    }
    return b->status != HY3D_OK;
}

/* --- the builder ------------------------------------------------------------------------------ */

static void list_readers(hy3d__builder *b)
{
    int32_t at = 0;
    for (int32_t value = 0; value < b->graph->count; value++) {
        b->states[value].first_reader = at;
        for (int32_t i = value + 1; i < b->graph->count; i++) {
            const hy3d_node *node = &b->graph->nodes[i];
            if (node->source == value || node->other == value) {
                b->readers[at++] = i;
            }
        }
        b->states[value].readers = at - b->states[value].first_reader;
    }
}

hy3d_status hy3d__builder_create(hy3d_context *context, const hy3d_schedule_request *request,
                                 const hy3d__shards *shards, int32_t on_host,
                                 hy3d__builder *builder_out)
{
    const size_t count = (size_t)request->graph.count;
    hy3d__builder b = {.context = context, .request = request, .graph = &request->graph};
    b.shards = shards;
    b.on_host = on_host;
    void *memory[6] = {NULL, NULL, NULL, NULL, NULL, NULL};
    const size_t bytes[6] = {count * sizeof *b.states,
                             2 * count * sizeof *b.readers,
                             count * sizeof *b.kept_asked,
                             count * sizeof *b.kept_known,
                             HY3D__ANSWER_BUCKETS * sizeof *b.buckets,
                             HY3D_SCHEDULE_MAX_SHAPES * sizeof *b.has_shape};
    for (int i = 0; i < 6; i++) {
        const hy3d_status status = hy3d_alloc(context, bytes[i], &memory[i]);
        if (status != HY3D_OK) {
            for (int j = 0; j < i; j++) {
                hy3d_free(context, memory[j]);
            }
            return status;
        }
        memset(memory[i], 0, bytes[i]);
    }
    b.states = memory[0];
    b.readers = memory[1];
    b.kept_asked = memory[2];
    b.kept_known = memory[3];
    b.buckets = memory[4];
    b.has_shape = memory[5];
    for (int32_t i = 0; i < HY3D__ANSWER_BUCKETS; i++) {
        b.buckets[i] = -1;
    }
    list_readers(&b);
    *builder_out = b;
    return HY3D_OK;
}

void hy3d__builder_destroy(hy3d__builder *b)
{
    for (int32_t i = 0; i < b->graph->count; i++) {
        hy3d_free(b->context, b->states[i].slices);
    }
    hy3d_free(b->context, b->states);
    hy3d_free(b->context, b->readers);
    hy3d_free(b->context, b->kept_asked);
    hy3d_free(b->context, b->kept_known);
    hy3d_free(b->context, b->buckets);
    hy3d_free(b->context, b->has_shape);
    hy3d_free(b->context, b->answers);
}

void hy3d__builder_reset(hy3d__builder *b, int32_t rank, hy3d__arrays *arrays)
{
    memset(b->kept_asked, 0, (size_t)b->graph->count * sizeof *b->kept_asked);
    memset(b->has_shape, 0, HY3D_SCHEDULE_MAX_SHAPES);
    b->shapes_bytes = 0;
    b->rank = rank;
    b->arrays = arrays;
    b->macs = 0;
    b->status = HY3D_OK;
}

/* --- sections --------------------------------------------------------------------------------- */

/* STATISTICS: marks what the norms behind `from` depend on; a node of which only the norm is
 * wanted is not run. */
static void keep_norms_only(hy3d__builder *b)
{
    for (int32_t i = b->to; i > b->from; i--) {
        const hy3d_node *node = &b->graph->nodes[i];
        hy3d__state *state = &b->states[i];
        bool wanted = false; /* its value */
        for (int32_t r = 0; r < state->readers; r++) {
            const int32_t reader = b->readers[state->first_reader + r];
            const bool runs = b->states[reader].active && !b->states[reader].only_reduces;
            const bool norms = b->states[reader].active && b->graph->nodes[reader].source == i &&
                               b->graph->nodes[reader].norm == HY3D_NORM_GROUP;
            wanted = wanted || runs || norms;
        }
        state->only_reduces = !wanted && node->norm == HY3D_NORM_GROUP;
        state->active = wanted || state->only_reduces;
    }
}

/* Whether a GroupNorm that is computed reads the value. */
static bool is_gathered(const hy3d__builder *b, int32_t value)
{
    const hy3d__state *state = &b->states[value];
    for (int32_t r = 0; r < state->readers && b->reduces; r++) {
        const int32_t reader = b->readers[state->first_reader + r];
        const hy3d_node *node = &b->graph->nodes[reader];
        if (b->states[reader].active && node->source == value && node->norm == HY3D_NORM_GROUP) {
            return true;
        }
    }
    return false;
}

/* Sizes of the values in this section: computed from its input. */
static hy3d_status size_values(hy3d__builder *b, const int64_t size[3])
{
    const hy3d_size input = {b->graph->nodes[b->from].channels, size[0], size[1], size[2]};
    int64_t all = 0;
    for (int32_t i = b->from; i <= b->to; i++) {
        hy3d__state *state = &b->states[i];
        if (i == b->from) {
            state->size = input;
        } else {
            const hy3d_node *node = &b->graph->nodes[i];
            const hy3d_status status =
                hy3d__node_size(node, &b->states[node->source].size, &state->size);
            if (status != HY3D_OK) {
                return status;
            }
            if (node->op == HY3D_OP_CONV) {
                const hy3d__frames *f = &state->frames;
                state->frames = hy3d__frames_of(node, b->states[node->source].size.frames);
                state->own = f->result_total > f->passed ? 0 : f->own_total; /* nothing to make */
            }
        }
        int64_t bytes = i == 0 ? b->request->input_bytes : b->request->element_bytes;
        if (!hy3d__mul_i64(bytes, state->size.channels, &bytes) ||
            !hy3d__mul_i64(bytes, state->size.columns, &state->row_bytes) ||
            !hy3d__mul_i64(state->row_bytes, state->size.rows, &bytes) ||
            !hy3d__mul_i64(bytes, state->size.frames, &bytes) || !hy3d__add_i64(all, bytes, &all) ||
            all > MOST_BYTES) {
            return HY3D_ERR_OVERFLOW;
        }
        state->rows = hy3d__share_of(b->shards, b->rank, state->size.rows);
        state->slice_rows = hy3d__rows_needed(b->shards, i, b->rank, state->size.rows);
        state->most_rows = hy3d__largest_share(b->shards, state->size.rows);
        state->frame_bytes = state->row_bytes * state->most_rows;
    }
    return HY3D_OK;
}

static bool has_no_rows(const hy3d__builder *b)
{
    const hy3d__rows rows = b->states[b->from].rows;
    return rows.first == rows.stop;
}

void hy3d__section_begin(hy3d__builder *b, hy3d_section_kind kind, int32_t from, int32_t to,
                         const int64_t size[3])
{
    hy3d__arrays *a = b->arrays;
    b->from = from;
    b->to = to;
    b->reduces = kind != HY3D_SECTION_TILE;
    b->emitted = 0;
    for (int32_t i = 0; i < b->graph->count; i++) {
        const hy3d__state before = b->states[i];
        b->states[i] = (hy3d__state){
            .slices = before.slices,
            .room = before.room,
            .keys = -1,
            .first_reader = before.first_reader,
            .readers = before.readers,
            .active = i > from && i <= to,
        };
    }
    b->output = kind == HY3D_SECTION_PREFIX ? to : b->graph->nodes[b->graph->count - 1].source;
    if (kind == HY3D_SECTION_STATISTICS) {
        b->output = -1;
        keep_norms_only(b);
    }
    if (failed(b, size_values(b, size))) {
        return;
    }
    GROW(b, a->sections, a->section_count, a->section_room);
    if (b->status != HY3D_OK) {
        return;
    }
    for (int32_t i = from; i <= to; i++) {
        b->states[i].gathers = is_gathered(b, i);
    }
    const hy3d_section section = {
        .kind = (int32_t)kind,
        .tile = -1,
        .first_step = a->step_count,
        .first_slice = a->slice_count,
        .size = {size[0], size[1], size[2]},
        .rows = {0, size[1]},
        .columns = {0, size[2]},
    };
    a->sections[a->section_count++] = section;
}

/* A rank without rows has nothing to do but that others wait for it where all of them meet. */
static void keep_meetings_only(hy3d__arrays *a)
{
    hy3d_section *section = &a->sections[a->section_count - 1];
    int32_t kept = section->first_step;
    for (int32_t i = kept; i < a->step_count; i++) {
        if (a->steps[i].op == HY3D_STEP_REDUCE || a->steps[i].op == HY3D_STEP_EMIT) {
            hy3d_step *step = &a->steps[kept];
            a->kept[kept++] = a->kept[i];
            *step = a->steps[i];
            step->slice = -1;
            step->first_ref = step->frees = 0;
        }
    }
    a->step_count = kept;
    a->slice_count = section->first_slice;
    a->ref_count = 0;
}

void hy3d__section_end(hy3d__builder *b)
{
    hy3d__arrays *a = b->arrays;
    if (b->status == HY3D_OK && has_no_rows(b)) {
        keep_meetings_only(a);
    }
    if (b->status == HY3D_OK) {
        hy3d_section *section = &a->sections[a->section_count - 1];
        section->steps = a->step_count - section->first_step;
        section->slices = a->slice_count - section->first_slice;
    }
}

void hy3d__section_again(hy3d__builder *b, int32_t section)
{
    hy3d__arrays *a = b->arrays;
    GROW(b, a->sections, a->section_count, a->section_room);
    if (b->status == HY3D_OK) {
        a->sections[a->section_count++] = a->sections[section];
    }
}

/* --- slices ----------------------------------------------------------------------------------- */

static hy3d_slice *slice_at(const hy3d__builder *b, int32_t slice)
{
    const hy3d_section *section = &b->arrays->sections[b->arrays->section_count - 1];
    return &b->arrays->slices[section->first_slice + slice];
}

/* A new slice of a node's value, not yet among those that are there; -1 after an error. */
static int32_t new_slice(hy3d__builder *b, int32_t node, int64_t first, int64_t stop)
{
    hy3d__arrays *a = b->arrays;
    const hy3d__state *state = &b->states[node];
    const int32_t number = a->slice_count - a->sections[a->section_count - 1].first_slice;
    GROW(b, a->slices, a->slice_count, a->slice_room);
    if (b->status != HY3D_OK) {
        return -1;
    }
    const hy3d_slice slice = {
        .node = node,
        .frames = {first, stop},
        .rows = {state->slice_rows.first, state->slice_rows.stop},
        .bytes =
            state->row_bytes * (state->slice_rows.stop - state->slice_rows.first) * (stop - first),
        .host_at = -1,
    };
    a->slices[a->slice_count++] = slice;
    return number;
}

static void append(hy3d__builder *b, int32_t node, int32_t slice)
{
    hy3d__state *state = &b->states[node];
    GROW(b, state->slices, state->last, state->room);
    if (b->status == HY3D_OK) {
        state->slices[state->last++] = slice;
    }
}

/* Of the slices of a value that are there, the first that ends behind `frame`; `last` for none. */
static int32_t first_behind(const hy3d__builder *b, int32_t node, int64_t frame)
{
    const hy3d__state *state = &b->states[node];
    int32_t low = state->first, high = state->last;
    while (low < high) {
        const int32_t middle = low + (high - low) / 2;
        if (slice_at(b, state->slices[middle])->frames[1] > frame) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

int64_t hy3d__slice_stop(const hy3d__builder *b, int32_t node, int64_t frame)
{
    const hy3d__state *state = &b->states[node];
    const int32_t found = first_behind(b, node, frame);
    return found < state->last ? slice_at(b, state->slices[found])->frames[1] : frame;
}

/* The first frame of `value` that node `reader` still reads. */
static int64_t needed_by(const hy3d__builder *b, int32_t reader, int32_t value)
{
    const hy3d_node *node = &b->graph->nodes[reader];
    const hy3d__state *state = &b->states[reader];
    const int64_t all = b->states[value].size.frames;
    int64_t needed = all;
    switch (node->op) {
    case HY3D_OP_CONV:
        if (node->source == value) {
            needed = hy3d__frames_needed(&state->frames, state->own);
            needed =
                state->made < state->frames.passed ? hy3d__min_i64(needed, state->made) : needed;
        }
        return node->other == value ? hy3d__min_i64(needed, state->made) : needed;
    case HY3D_OP_ATTENTION:
        return node->span == HY3D_SPAN_FRAME ? state->made : hy3d__min_i64(state->made, state->own);
    case HY3D_OP_MAP:
    case HY3D_OP_OPAQUE:
        return state->own;
    case HY3D_OP_ADD:
        return state->made;
    default: /* OUTPUT: by `emitted` */
        return all;
    }
}

int64_t hy3d__needed(const hy3d__builder *b, int32_t value)
{
    const hy3d__state *state = &b->states[value];
    int64_t needed = value == b->output ? b->emitted : state->size.frames;
    for (int32_t r = 0; r < state->readers; r++) {
        const int32_t reader = b->readers[state->first_reader + r];
        if (b->states[reader].active && !b->states[reader].only_reduces) {
            needed = hy3d__min_i64(needed, needed_by(b, reader, value));
        }
    }
    return needed;
}

/* --- steps ------------------------------------------------------------------------------------ */

static void set(int64_t range[2], int64_t first, int64_t stop)
{
    range[0] = first;
    range[1] = stop;
}

static hy3d_step *last_step(hy3d__builder *b)
{
    return &b->arrays->steps[b->arrays->step_count - 1];
}

/* The rows of its source that a step reads, and how a convolution pads them. On one device it has
 * all rows, those too that a stride passes over. */
static void set_read_rows(const hy3d__builder *b, hy3d_step *step)
{
    const hy3d_node *node = &b->graph->nodes[step->node];
    if (step->node == b->from || step->op > HY3D_STEP_OPAQUE) {
        return; /* it has no source, or reads no rows of it */
    }
    const hy3d__state *source = &b->states[node->source];
    hy3d__rows read = source->rows;
    if (step->op == HY3D_STEP_ATTEND && node->span == HY3D_SPAN_FRAME) {
        read = (hy3d__rows){0, source->size.rows};
    } else if (step->op == HY3D_STEP_CONV && b->shards->ranks > 1 && !has_no_rows(b)) {
        const hy3d__rows made = {step->rows[0], step->rows[1]};
        read = hy3d__conv_rows(node, source->size.rows, made, step->row_padding);
    } else if (step->op == HY3D_STEP_CONV) {
        set(step->row_padding, node->before[1], node->after[1]);
    }
    set(step->read_rows, read.first, read.stop);
}

/* A step without references; NULL after an error. */
static hy3d_step *new_step(hy3d__builder *b, hy3d_step_op op, int32_t node)
{
    hy3d__arrays *a = b->arrays;
    GROW(b, a->steps, a->step_count, a->step_room);
    GROW(b, a->kept, a->step_count, a->kept_room);
    if (b->status != HY3D_OK || a->step_count >= HY3D_SCHEDULE_MAX_STEPS) {
        failed(b, HY3D_ERR_OVERFLOW);
        return NULL;
    }
    a->kept[a->step_count] = 0;
    a->steps[a->step_count++] = (hy3d_step){
        .op = (int32_t)op,
        .node = node,
        .slice = -1,
        .rows = {b->states[node].rows.first, b->states[node].rows.stop},
        .peer = -1,
        .first_ref = a->ref_count,
    };
    set_read_rows(b, last_step(b));
    return last_step(b);
}

static bool add_ref(hy3d__builder *b, int32_t slice, int32_t *count)
{
    hy3d__arrays *a = b->arrays;
    GROW(b, a->refs, a->ref_count, a->ref_room);
    if (b->status != HY3D_OK || a->ref_count >= MOST_ENTRIES) {
        return !failed(b, HY3D_ERR_OVERFLOW);
    }
    a->refs[a->ref_count++] = slice;
    (*count)++;
    return true;
}

/* References to the slices of `value` that hold frames first .. stop. */
static void refer(hy3d__builder *b, int32_t value, int64_t first, int64_t stop, int32_t *count)
{
    const hy3d__state *state = &b->states[value];
    for (int32_t i = first_behind(b, value, first); i < state->last && b->status == HY3D_OK; i++) {
        if (slice_at(b, state->slices[i])->frames[0] >= stop) {
            break;
        }
        add_ref(b, state->slices[i], count);
    }
}

/* Frees the slices of `value` that nobody reads any more. */
static void release(hy3d__builder *b, int32_t value)
{
    hy3d__state *state = &b->states[value];
    const int64_t needed = hy3d__needed(b, value);
    while (b->status == HY3D_OK && state->first < state->last &&
           slice_at(b, state->slices[state->first])->frames[1] <= needed) {
        add_ref(b, state->slices[state->first++], &last_step(b)->frees);
    }
}

static bool is_freed(const hy3d__builder *b, const hy3d_step *step, int32_t slice)
{
    const int32_t *frees = &b->arrays->refs[step->first_ref + step->sources + step->others];
    for (int32_t i = 0; i < step->frees; i++) {
        if (frees[i] == slice) {
            return true;
        }
    }
    return false;
}

/* Whether the step's result may be written over slice `slice`. */
static bool may_overwrite(const hy3d__builder *b, const hy3d_step *step, int32_t slice)
{
    const hy3d_slice *over = slice_at(b, slice), *made = slice_at(b, step->slice);
    return over->frames[0] == step->frames[0] && over->frames[1] == step->frames[1] &&
           over->rows[0] == made->rows[0] && over->rows[1] == made->rows[1] &&
           over->bytes == made->bytes && is_freed(b, step, slice);
}

static void mark_overwrite(hy3d__builder *b, hy3d_step *step)
{
    const hy3d_node *node = &b->graph->nodes[step->node];
    if (node->source == node->other || step->slice < 0) {
        return; /* the first step of all is among them: there are no refs yet */
    }
    const int32_t *refs = &b->arrays->refs[step->first_ref];
    if (step->op == HY3D_STEP_CONV && step->others == 1 && step->drop == 0 &&
        may_overwrite(b, step, refs[step->sources])) {
        step->flags |= HY3D_STEP_OVERWRITE;
    }
    if (step->op == HY3D_STEP_ADD && step->sources == 1 && may_overwrite(b, step, refs[0])) {
        step->flags |= HY3D_STEP_OVERWRITE;
    }
}

/* --- workspace -------------------------------------------------------------------------------- */

static bool same_range(const int64_t a[2], const int64_t b[2], int64_t end)
{
    return a[1] - a[0] == b[1] - b[0] && (a[0] == 0) == (b[0] == 0) &&
           (a[1] == end) == (b[1] == end);
}

/* What both below ask of two steps whose sources have one size. */
static bool same_work(const hy3d_step *a, const hy3d_step *c, const hy3d_size *source)
{
    return a->op == c->op && a->flags == c->flags && a->drop == c->drop && a->others == c->others &&
           (a->slice < 0) == (c->slice < 0) && a->rows[0] == c->rows[0] &&
           a->rows[1] == c->rows[1] && same_range(a->reads, c->reads, source->frames);
}

/* Whether two steps of a node differ in their place only. */
static bool same_question(const hy3d__builder *b, const hy3d_step *a, const hy3d_step *c,
                          const hy3d_size *source)
{
    const hy3d__state *state = &b->states[c->node];
    return same_work(a, c, source) && a->sources == c->sources &&
           same_range(a->own, c->own, state->frames.own_total) &&
           same_range(a->frames, c->frames, state->size.frames);
}

/* Whether the function says the same of two steps of nodes that are alike. */
static bool same_answer(const hy3d__builder *b, const hy3d_step *a, const hy3d_step *c,
                        const hy3d_size *source)
{
    return same_work(a, c, source) &&
           hy3d__same_layouts(b->request, b->on_host, a->node, c->node) &&
           (a->sources > 1) == (c->sources > 1) && same_range(a->own, c->own, -1) &&
           a->frames[1] - a->frames[0] == c->frames[1] - c->frames[0] &&
           (c->op != HY3D_STEP_ATTEND || a->frames[1] == c->frames[1]);
}

static bool same_size(const hy3d_size *a, const hy3d_size *b)
{
    return a->channels == b->channels && a->frames == b->frames && a->rows == b->rows &&
           a->columns == b->columns;
}

static int32_t first_alike(const hy3d__builder *b, int32_t node)
{
    return b->request->alike == NULL ? node : b->request->alike[node];
}

static int32_t *bucket_of(hy3d__builder *b, const hy3d_step *step, const hy3d_size *source)
{
    const uint64_t values[] = {(uint64_t)first_alike(b, step->node),
                               (uint64_t)step->op,
                               (uint64_t)step->flags,
                               (uint64_t)source->frames,
                               (uint64_t)source->rows,
                               (uint64_t)source->columns,
                               (uint64_t)(step->frames[1] - step->frames[0]),
                               (uint64_t)(step->reads[1] - step->reads[0])};
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        hash = (hash ^ values[i]) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 29;
    }
    return &b->buckets[hash % HY3D__ANSWER_BUCKETS];
}

static hy3d_status fill_answer(const hy3d__builder *b, hy3d__answer *answer)
{
    hy3d_step_memory *const taken = &answer->taken;
    const hy3d_status status =
        hy3d__step_memory(b->context, b->request, &answer->step, &answer->source, b->on_host,
                          answer->is_housed, taken);
    if (status != HY3D_OK) {
        return status;
    }
    return taken->workspace_bytes > MOST_TAKEN || taken->kept_bytes > MOST_TAKEN ||
                   taken->shape_bytes > MOST_SHAPE
               ? HY3D_ERR_OVERFLOW
               : HY3D_OK;
}

/* Whether a step makes some rows of its slice and other ranks send the rest. */
static bool is_housed(const hy3d__builder *b, const hy3d_step *step)
{
    const hy3d__state *state = &b->states[step->node];
    return step->slice >= 0 &&
           step->rows[1] - step->rows[0] < state->slice_rows.stop - state->slice_rows.first;
}

/* What the workspace function says of the step; NULL after an error, and where nothing is asked and
 * nothing is known of this very node. */
static const hy3d_step_memory *answer_to(hy3d__builder *b, const hy3d_step *step, bool is_silent)
{
    const int32_t value = step->node == b->from ? b->from : b->graph->nodes[step->node].source;
    const hy3d_size *source = &b->states[value].size;
    int32_t *bucket = bucket_of(b, step, source);
    int32_t alike = -1;
    const bool housed = is_housed(b, step);
    for (int32_t i = *bucket; i >= 0; i = b->answers[i].next) {
        const hy3d__answer *known = &b->answers[i];
        if (!same_size(&known->source, source) || known->is_housed != housed ||
            first_alike(b, known->step.node) != first_alike(b, step->node)) {
            continue;
        }
        if (known->step.node == step->node && same_question(b, &known->step, step, source)) {
            return &known->taken;
        }
        alike = same_answer(b, &known->step, step, source) ? i : alike;
    }
    if (is_silent) {
        return NULL;
    }
    GROW(b, b->answers, b->answer_count, b->answer_room);
    if (b->status != HY3D_OK) {
        return NULL;
    }
    hy3d__answer *answer = &b->answers[b->answer_count];
    *answer =
        (hy3d__answer){.step = *step, .source = *source, .is_housed = housed, .next = *bucket};
    if (alike >= 0) {
        answer->taken = b->answers[alike].taken;
    } else if (failed(b, fill_answer(b, answer))) {
        return NULL;
    }
    *bucket = b->answer_count++;
    b->kept_known[step->node] = answer->taken.kept_bytes;
    return &answer->taken;
}

/* Of `kept`, which the step's node keeps, what it need not. */
static int64_t droppable(const hy3d__builder *b, const hy3d_step *step, int64_t kept)
{
    const hy3d_layer *layers = b->request->places[b->on_host].layers;
    return !b->repacks ? 0 : layers == NULL ? kept : layers[step->node].packed_bytes;
}

/* What a step makes of that. */
static int64_t repacked(const hy3d__builder *b, const hy3d_step *step, int64_t kept)
{
    const bool computes = step->op == HY3D_STEP_CONV || step->op == HY3D_STEP_KEYS ||
                          step->op == HY3D_STEP_ATTEND || step->op == HY3D_STEP_MAP ||
                          step->op == HY3D_STEP_OPAQUE;
    return computes ? droppable(b, step, kept) : 0;
}

void hy3d__ask_step(hy3d__builder *b, hy3d_step *step)
{
    const hy3d_step_memory *taken =
        b->request->workspace == NULL || b->status != HY3D_OK ? NULL : answer_to(b, step, false);
    step->workspace_bytes = 0;
    if (taken != NULL) {
        step->workspace_bytes = taken->workspace_bytes + repacked(b, step, taken->kept_bytes);
    }
}

/* What the step leaves for its shape, of which it may be the program's first. */
static int64_t left_bytes(hy3d__builder *b, const hy3d_step_memory *taken)
{
    const int64_t most = b->request->most_shape_bytes;
    if (taken->shape_bytes == 0 || b->has_shape[taken->shape]) {
        return 0;
    }
    b->has_shape[taken->shape] = true;
    int64_t left = taken->shape_bytes;
    if (most > 0 && left > most - b->shapes_bytes) {
        left = most - b->shapes_bytes;
    }
    b->shapes_bytes += left;
    return left;
}

/* Asks for what the step that was appended takes beside its slices. */
static void ask(hy3d__builder *b, hy3d_step *step)
{
    const bool is_idle = has_no_rows(b) && step->op != HY3D_STEP_REDUCE;
    if (b->request->workspace == NULL || is_idle || b->status != HY3D_OK) {
        return;
    }
    const hy3d_step_memory *taken = answer_to(b, step, b->is_silent);
    if (b->status != HY3D_OK) {
        return;
    }
    int64_t *kept = &b->arrays->kept[b->arrays->step_count - 1];
    const int64_t all = taken == NULL ? b->kept_known[step->node] : taken->kept_bytes;
    const int64_t made = repacked(b, step, all);
    step->workspace_bytes = (taken == NULL ? 0 : taken->workspace_bytes) + made;
    b->arrays->repacked += (double)made;
    b->arrays->repacks += made > 0;
    if (!b->kept_asked[step->node]) {
        b->kept_asked[step->node] = true;
        *kept = all - droppable(b, step, all);
    }
    *kept += taken == NULL ? 0 : left_bytes(b, taken);
}

/* --- what follows a step ---------------------------------------------------------------------- */

/* What this rank has just made of a slice goes to the ranks that lack it, and what it lacks of
 * those frames comes from the others. */
static void exchange(hy3d__builder *b, int32_t slice, int64_t first, int64_t stop)
{
    const hy3d_slice made = *slice_at(b, slice);
    const int64_t rows = b->states[made.node].size.rows;
    const int32_t ranks = b->shards->ranks;
    for (int32_t i = 0; i < 2 * ranks && b->status == HY3D_OK; i++) {
        const bool sends = i < ranks;
        const int32_t peer = i % ranks;
        hy3d__rows sent;
        if (!hy3d__rows_sent(b->shards, made.node, made.is_keys != 0, rows, sends ? b->rank : peer,
                             sends ? peer : b->rank, &sent)) {
            continue;
        }
        hy3d_step *step = new_step(b, sends ? HY3D_STEP_SEND : HY3D_STEP_RECV, made.node);
        if (step != NULL) {
            step->slice = slice;
            step->peer = peer;
            set(step->frames, first, stop);
            set(step->rows, sent.first, sent.stop);
        }
    }
}

/* What giving frames away takes: rank 0 has the rows of the others and the frames put together of
 * all, these have a copy of theirs. */
static int64_t gathered_bytes(const hy3d__builder *b, int32_t value, int64_t frames)
{
    const hy3d__state *state = &b->states[value];
    const int64_t own = state->rows.stop - state->rows.first, all = state->size.rows;
    if (b->shards->ranks == 1) {
        return 0;
    }
    return state->row_bytes * frames * (b->rank == 0 ? all - own + all : own);
}

static void emit_ready(hy3d__builder *b)
{
    const int32_t value = b->output;
    hy3d__state *state = &b->states[value];
    const bool is_output = b->to == b->graph->count - 1;
    for (int32_t i = first_behind(b, value, b->emitted); i < state->last && b->status == HY3D_OK;
         i++) {
        const int32_t slice = state->slices[i];
        hy3d_step *step = new_step(b, HY3D_STEP_EMIT, is_output ? b->to : value);
        if (step == NULL) {
            return;
        }
        step->slice = slice;
        memcpy(step->frames, slice_at(b, slice)->frames, sizeof step->frames);
        step->workspace_bytes = gathered_bytes(b, value, step->frames[1] - step->frames[0]);
        if (step->workspace_bytes > MOST_TAKEN) {
            failed(b, HY3D_ERR_OVERFLOW);
        }
        b->emitted = step->frames[1];
        release(b, value);
    }
}

static void take_moments(hy3d__builder *b, int32_t value, int32_t slice)
{
    hy3d_step *step = new_step(b, HY3D_STEP_MOMENTS, value);
    if (step == NULL) {
        return;
    }
    step->slice = slice;
    memcpy(step->frames, slice_at(b, slice)->frames, sizeof step->frames);
    ask(b, step);
    release(b, value);
}

/* The step that was appended is complete but for what it makes, frees and takes. */
static void finish(hy3d__builder *b, hy3d_step *step)
{
    const int32_t value = step->node;
    hy3d__state *state = &b->states[value];
    const hy3d_node *node = &b->graph->nodes[value];
    const bool makes = step->frames[1] > step->frames[0];
    const bool gives =
        step->op == HY3D_STEP_ATTEND || (step->op == HY3D_STEP_CONV && step->drop == 0);
    if (makes) {
        const int32_t slice = new_slice(b, value, step->frames[0], step->frames[1]);
        if (slice < 0) {
            return;
        }
        step->slice = slice;
        append(b, value, slice);
        state->made = state->shown = step->frames[1];
        step->flags |= state->gathers && gives ? HY3D_STEP_GATHER : 0;
    }
    if (value != b->from) {
        release(b, node->source);
        if (node->other >= 0 && node->other != node->source) {
            release(b, node->other);
        }
    }
    const bool measured = makes && state->gathers && !gives;
    if (makes && !measured && value != b->output) {
        release(b, value);
    }
    mark_overwrite(b, step);
    ask(b, step);
    const int32_t slice = step->slice;
    if (b->shards->ranks > 1 && makes && b->status == HY3D_OK && value != b->from &&
        !is_freed(b, step, slice)) {
        exchange(b, slice, step->frames[0], step->frames[1]); /* then `step` may lie elsewhere */
    }
    if (measured) {
        take_moments(b, value, slice);
    }
    if (value == b->output) {
        emit_ready(b);
    }
}

/* --- the steps of each kind ------------------------------------------------------------------- */

/* Those of this rank's rows of what a node makes, of the multiply-accumulates for all: they are a
 * multiple of the rows before a shuffle by `shuffled`. */
static int64_t macs_here(const hy3d__state *state, int32_t shuffled, int64_t macs)
{
    return macs < 0 ? macs
                    : macs / (state->size.rows / shuffled) *
                          ((state->rows.stop - state->rows.first) / shuffled);
}

static void count_macs(hy3d__builder *b, hy3d_step *step, int64_t macs)
{
    step->macs = macs;
    if (macs < 0 || !hy3d__add_i64(b->macs, macs, &b->macs)) {
        failed(b, HY3D_ERR_OVERFLOW);
    }
}

void hy3d__do_enter(hy3d__builder *b, int64_t stop)
{
    hy3d_step *step = new_step(b, HY3D_STEP_ENTER, b->from);
    const hy3d__state *state = &b->states[b->from];
    if (step != NULL) {
        set(step->frames, state->made, stop);
        set(step->rows, state->slice_rows.first, state->slice_rows.stop);
        finish(b, step);
    }
}

void hy3d__do_reduce(hy3d__builder *b, int32_t node)
{
    hy3d__state *state = &b->states[node];
    if (b->graph->nodes[node].norm != HY3D_NORM_GROUP || !b->reduces || state->reduced) {
        return;
    }
    hy3d_step *step = new_step(b, HY3D_STEP_REDUCE, node);
    if (step != NULL) {
        set(step->reads, 0, b->states[b->graph->nodes[node].source].size.frames);
        state->reduced = true;
        ask(b, step);
    }
}

void hy3d__do_pass(hy3d__builder *b, int32_t index, int64_t stop)
{
    const hy3d_node *node = &b->graph->nodes[index];
    const int64_t first = b->states[index].made;
    hy3d_step *step = new_step(b, HY3D_STEP_PASS, index);
    if (step == NULL) {
        return;
    }
    set(step->frames, first, stop);
    set(step->reads, first, stop);
    refer(b, node->source, first, stop, &step->sources);
    if (node->other >= 0) {
        refer(b, node->other, first, stop, &step->others);
    }
    b->states[index].made = stop;
    finish(b, step);
}

/* A copy of the frames of slice number `at` of those of `value` from `needed` on takes its place
 * there, if they are no more than half of it; frees: the slice is freed. The slice; -1: none was
 * trimmed. */
static int32_t trim_slice(hy3d__builder *b, int32_t value, int32_t at, int64_t needed, bool frees)
{
    hy3d__state *state = &b->states[value];
    const int32_t old = state->slices[at];
    const hy3d_slice slice = *slice_at(b, old);
    const int64_t kept = slice.frames[1] - needed;
    if (b->status != HY3D_OK || state->frame_bytes == 0 || needed <= slice.frames[0] || kept <= 0 ||
        2 * kept > slice.frames[1] - slice.frames[0]) {
        return -1;
    }
    hy3d_step *step = new_step(b, HY3D_STEP_TRIM, value);
    if (step == NULL) {
        return -1;
    }
    set(step->frames, needed, slice.frames[1]);
    set(step->reads, needed, slice.frames[1]);
    set(step->rows, slice.rows[0], slice.rows[1]);
    set(step->read_rows, slice.rows[0], slice.rows[1]);
    step->slice = new_slice(b, value, needed, slice.frames[1]);
    if (step->slice < 0 || !add_ref(b, old, &step->sources) ||
        (frees && !add_ref(b, old, &step->frees))) {
        return -1;
    }
    state->slices[at] = step->slice;
    ask(b, step);
    return old;
}

/* Before a convolution adds frames of one whole slice of its residual, of which others still read
 * the last ones: these are copied, so that the result may be written over the slice, which the
 * convolution frees. The slice; -1: none. */
static int32_t set_apart(hy3d__builder *b, int32_t index, const int64_t frames[2])
{
    const int32_t value = b->graph->nodes[index].other;
    hy3d__state *state = &b->states[index];
    if (b->status != HY3D_OK || value < 0 || value == b->graph->nodes[index].source) {
        return -1;
    }
    const hy3d__state *residual = &b->states[value];
    const int32_t at = first_behind(b, value, frames[0]);
    if (at == residual->last || residual->slice_rows.first != state->slice_rows.first ||
        residual->slice_rows.stop != state->slice_rows.stop) {
        return -1;
    }
    const hy3d_slice *slice = slice_at(b, residual->slices[at]);
    if (slice->frames[0] != frames[0] || slice->frames[1] != frames[1]) {
        return -1;
    }
    const int64_t made = state->made;
    state->made = frames[1]; /* what is needed once the step is done */
    const int64_t needed = hy3d__needed(b, value);
    state->made = made;
    return trim_slice(b, value, at, needed, false);
}

void hy3d__do_conv(hy3d__builder *b, int32_t index, int64_t stop)
{
    const hy3d_node *node = &b->graph->nodes[index];
    hy3d__state *state = &b->states[index];
    const hy3d__frames *f = &state->frames;
    const int64_t first = state->own;
    const int64_t given = (stop - first) * f->made + (first == 0 ? f->made_first - f->made : 0);
    const int64_t frames[2] = {hy3d__frames_result(f, first), hy3d__frames_result(f, stop)};
    const int32_t drop = (int32_t)(given - (frames[1] - frames[0]));
    hy3d__do_reduce(b, index);
    const int32_t apart = drop == 0 ? set_apart(b, index, frames) : -1;
    hy3d_step *step = new_step(b, HY3D_STEP_CONV, index);
    if (step == NULL) {
        return;
    }
    set(step->own, first, stop);
    set(step->frames, frames[0], frames[1]);
    step->drop = drop;
    hy3d__frames_reads(f, first, stop, step->reads);
    refer(b, node->source, step->reads[0], step->reads[1], &step->sources);
    if (apart >= 0) {
        add_ref(b, apart, &step->others);
        add_ref(b, apart, &step->frees);
    } else if (node->other >= 0) {
        refer(b, node->other, step->frames[0], step->frames[1], &step->others);
    }
    const int64_t macs = hy3d__conv_macs(node, &b->states[node->source].size, stop - first);
    count_macs(b, step, macs_here(state, node->shuffle[1], macs));
    state->own = stop;
    state->made = step->frames[1];
    finish(b, step);
}

void hy3d__do_keys(hy3d__builder *b, int32_t index, int64_t stop)
{
    const hy3d_node *node = &b->graph->nodes[index];
    hy3d__state *state = &b->states[index];
    hy3d__do_reduce(b, index);
    if (state->keys < 0) {
        state->keys = new_slice(b, index, 0, state->size.frames);
        if (state->keys < 0) {
            return;
        }
        hy3d_slice *keys = slice_at(b, state->keys);
        int64_t elements = keys->frames[1];
        keys->is_keys = 1;
        set(keys->rows, 0, state->size.rows);
        if (!hy3d__mul_i64(elements, state->size.rows * state->size.columns, &elements) ||
            !hy3d__mul_i64(elements, 2 * node->width, &elements) ||
            !hy3d__mul_i64(elements, b->request->element_bytes, &keys->bytes) ||
            keys->bytes > MOST_TAKEN) {
            failed(b, HY3D_ERR_OVERFLOW);
            return;
        }
    }
    hy3d_step *step = new_step(b, HY3D_STEP_KEYS, index);
    if (step == NULL) {
        return;
    }
    step->slice = state->keys;
    set(step->frames, state->own, stop);
    set(step->reads, state->own, stop);
    refer(b, node->source, state->own, stop, &step->sources);
    const int64_t first = state->own;
    const int64_t macs = hy3d__projection_macs(node, &state->size, stop - first, 2);
    count_macs(b, step, macs_here(state, 1, macs));
    state->own = stop;
    release(b, node->source);
    ask(b, step);
    exchange(b, state->keys, first, stop);
}

/* Of span FRAME, keys and values of all rows are projected beside. */
static int64_t attend_macs(const hy3d__builder *b, int32_t index, int64_t first, int64_t stop)
{
    const hy3d_node *node = &b->graph->nodes[index];
    const hy3d__state *state = &b->states[index];
    const int64_t two = hy3d__projection_macs(node, &state->size, stop - first, 2);
    const int64_t scores = hy3d__score_macs(node, &state->size, first, stop);
    int64_t macs = -1;
    if (two < 0 || scores < 0 ||
        !hy3d__add_i64(macs_here(state, 1, two), macs_here(state, 1, scores), &macs) ||
        (node->span == HY3D_SPAN_FRAME && !hy3d__add_i64(macs, two, &macs))) {
        return -1;
    }
    return macs;
}

void hy3d__do_attend(hy3d__builder *b, int32_t index, int64_t stop)
{
    const hy3d_node *node = &b->graph->nodes[index];
    hy3d__state *state = &b->states[index];
    const int64_t first = state->made;
    hy3d__do_reduce(b, index);
    hy3d_step *step = new_step(b, HY3D_STEP_ATTEND, index);
    if (step == NULL) {
        return;
    }
    count_macs(b, step, attend_macs(b, index, first, stop));
    set(step->frames, first, stop);
    set(step->reads, first, stop);
    refer(b, node->source, first, stop, &step->sources);
    state->made = stop;
    if (node->span == HY3D_SPAN_FRAME) {
        state->own = stop;
    } else {
        add_ref(b, state->keys, &step->others);
    }
    if (stop == state->size.frames && state->keys >= 0) {
        add_ref(b, state->keys, &step->frees);
    }
    finish(b, step);
}

int64_t hy3d__map_frames(const hy3d_node *node, int64_t frames)
{
    return frames <= 0 ? 0 : node->frames_first + (frames - 1) * node->frames_rest;
}

void hy3d__do_map(hy3d__builder *b, int32_t index, int64_t stop)
{
    const hy3d_node *node = &b->graph->nodes[index];
    hy3d__state *state = &b->states[index];
    hy3d_step *step = new_step(b, HY3D_STEP_MAP, index);
    if (step == NULL) {
        return;
    }
    set(step->reads, state->own, stop);
    set(step->frames, hy3d__map_frames(node, state->own), hy3d__map_frames(node, stop));
    refer(b, node->source, state->own, stop, &step->sources);
    state->own = stop;
    state->made = step->frames[1];
    finish(b, step);
}

void hy3d__do_add(hy3d__builder *b, int32_t index, int64_t stop)
{
    const hy3d_node *node = &b->graph->nodes[index];
    hy3d__state *state = &b->states[index];
    const int64_t first = state->made;
    hy3d_step *step = new_step(b, HY3D_STEP_ADD, index);
    if (step == NULL) {
        return;
    }
    set(step->frames, first, stop);
    set(step->reads, first, stop);
    refer(b, node->source, first, stop, &step->sources);
    refer(b, node->other, first, stop, &step->others);
    state->made = stop;
    finish(b, step);
}

void hy3d__do_opaque(hy3d__builder *b, int32_t index)
{
    const hy3d_node *node = &b->graph->nodes[index];
    hy3d__state *state = &b->states[index];
    hy3d_step *step = new_step(b, HY3D_STEP_OPAQUE, index);
    if (step == NULL) {
        return;
    }
    state->own = b->states[node->source].size.frames;
    state->made = state->size.frames;
    set(step->frames, 0, state->made);
    set(step->reads, 0, state->own);
    refer(b, node->source, 0, state->own, &step->sources);
    finish(b, step);
}

void hy3d__do_black_box(hy3d__builder *b, int64_t frames)
{
    hy3d_step *step = new_step(b, HY3D_STEP_OPAQUE, b->to);
    if (step != NULL) {
        set(step->reads, 0, b->states[b->from].size.frames);
        set(step->read_rows, 0, b->states[b->from].size.rows);
        set(step->frames, 0, frames);
    }
}

void hy3d__do_trim(hy3d__builder *b, int32_t value)
{
    const hy3d__state *state = &b->states[value];
    if (b->status == HY3D_OK && state->first < state->last) {
        trim_slice(b, value, state->first, hy3d__needed(b, value), true);
    }
}
