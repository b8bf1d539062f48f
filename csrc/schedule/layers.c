/* By layers: each node goes over all frames, slice by slice, before the next one begins. What
 * streams a VAE whose norms see the whole video. */
#include <stddef.h>

#include "base/checked.h"
#include "schedule/builder.h"

/* Frames of so many bytes each that a slice may have: at least one. */
static int64_t frames_in(const hy3d__builder *b, int64_t frame_bytes)
{
    return hy3d__max_i64(1, b->slice_bytes / hy3d__max_i64(frame_bytes, 1));
}

/* Brings frames 0 .. stop of `value` if it is the section's input, which enters as it is read. */
static void require(hy3d__builder *b, int32_t value, int64_t stop)
{
    const hy3d__state *state = &b->states[value];
    if (value != b->from) {
        return;
    }
    const int64_t elements = state->size.channels * state->most_rows * state->size.columns;
    const int64_t step = frames_in(b, elements * b->request->element_bytes);
    while (b->status == HY3D_OK && state->made < stop) {
        hy3d__do_enter(b, hy3d__min_i64(state->made + step, state->size.frames));
    }
}

/* Bytes of a convolution's step for one own frame: of the result or of the padded input, whichever
 * is larger. */
static int64_t conv_frame_bytes(const hy3d__builder *b, int32_t index)
{
    const hy3d_node *node = &b->graph->nodes[index];
    const hy3d__state *state = &b->states[index];
    const hy3d_size *source = &b->states[node->source].size;
    const int64_t made = hy3d__max_i64(state->frames.made, state->frames.made_first);
    const int64_t shared = b->states[node->source].most_rows;
    const int64_t rows = shared * node->up[1] + node->before[1] + node->after[1];
    const int64_t columns = source->columns * node->up[2] + node->before[2] + node->after[2];
    const double result = (double)state->frame_bytes * (double)made;
    const double padded = (double)source->channels * (double)rows * (double)columns *
                          node->stride[0] * (double)b->request->element_bytes;
    const double larger = result > padded ? result : padded;
    return larger < (double)b->slice_bytes ? (int64_t)larger : b->slice_bytes;
}

/* Own frames up to which a convolution's next step goes: what a slice holds, and no further than
 * where a slice of the residual ends, which can then be taken as it is. */
static int64_t conv_stop(const hy3d__builder *b, int32_t index)
{
    const hy3d_node *node = &b->graph->nodes[index];
    const hy3d__state *state = &b->states[index];
    const hy3d__frames *f = &state->frames;
    const int64_t smallest = hy3d__frames_least(f);
    int64_t stop =
        hy3d__min_i64(state->own + frames_in(b, conv_frame_bytes(b, index)), f->own_total);
    stop = hy3d__max_i64(stop, smallest);
    if (node->other < 0) {
        return stop;
    }
    int64_t at = state->made;
    while (at < hy3d__frames_result(f, stop)) {
        const int64_t end = hy3d__slice_stop(b, node->other, at);
        const int64_t own = hy3d__frames_within(f, end);
        if (end <= at) {
            break;
        }
        if (own > state->own && own >= smallest && own < stop &&
            hy3d__frames_result(f, own) == end) {
            return own;
        }
        at = end;
    }
    return stop;
}

static bool is_done(const hy3d__state *state)
{
    return state->own >= state->frames.own_total;
}

/* The convolutions first .. last all read one value: whoever is furthest behind goes on, so that
 * its slices are freed as early as can be. */
static void convolve(hy3d__builder *b, int32_t first, int32_t last)
{
    const int32_t source = b->graph->nodes[first].source;
    for (int32_t i = first; i <= last; i++) {
        hy3d__state *state = &b->states[i];
        if (b->graph->nodes[i].norm == HY3D_NORM_GROUP) {
            require(b, source, b->states[source].size.frames);
            if (b->output < 0) { /* the statistics are wanted, though it may have nothing to make */
                hy3d__do_reduce(b, i);
            }
        }
        require(b, source, state->frames.passed);
        if (state->made < state->frames.passed) {
            hy3d__do_pass(b, i, state->frames.passed);
        }
    }
    while (b->status == HY3D_OK) {
        int32_t next = -1;
        int64_t next_read = 0, next_stop = 0;
        for (int32_t i = first; i <= last; i++) {
            int64_t reads[2];
            if (is_done(&b->states[i])) {
                continue;
            }
            const int64_t stop = conv_stop(b, i);
            hy3d__frames_reads(&b->states[i].frames, b->states[i].own, stop, reads);
            if (next < 0 || reads[1] < next_read) {
                next = i;
                next_read = reads[1];
                next_stop = stop;
            }
        }
        if (next < 0) {
            return;
        }
        require(b, source, next_read);
        hy3d__do_conv(b, next, next_stop);
    }
}

static void attend(hy3d__builder *b, int32_t index)
{
    const hy3d_node *node = &b->graph->nodes[index];
    const hy3d__state *state = &b->states[index];
    const int64_t frames = state->size.frames;
    require(b, node->source, frames);
    while (b->status == HY3D_OK && node->span != HY3D_SPAN_FRAME && state->own < frames) {
        hy3d__do_keys(b, index, hy3d__slice_stop(b, node->source, state->own));
    }
    while (b->status == HY3D_OK && state->made < frames) {
        hy3d__do_attend(b, index, hy3d__slice_stop(b, node->source, state->made));
    }
}

/* The first frame by itself, then what a slice holds of the larger of source and result. */
static void map(hy3d__builder *b, int32_t index)
{
    const hy3d_node *node = &b->graph->nodes[index];
    const hy3d__state *state = &b->states[index], *source = &b->states[node->source];
    const double made = (double)state->frame_bytes * node->frames_rest;
    const int64_t bytes = made < (double)b->slice_bytes ? (int64_t)made : b->slice_bytes;
    const int64_t count = frames_in(b, hy3d__max_i64(bytes, source->frame_bytes));
    while (b->status == HY3D_OK && state->own < source->size.frames) {
        const int64_t stop = state->own + (state->own == 0 ? 1 : count);
        require(b, node->source, hy3d__min_i64(stop, source->size.frames));
        hy3d__do_map(b, index, hy3d__min_i64(stop, hy3d__slice_stop(b, node->source, state->own)));
    }
}

static void sum(hy3d__builder *b, int32_t index)
{
    const hy3d_node *node = &b->graph->nodes[index];
    const hy3d__state *state = &b->states[index];
    require(b, node->source, state->size.frames);
    require(b, node->other, state->size.frames);
    while (b->status == HY3D_OK && state->made < state->size.frames) {
        hy3d__do_add(b, index,
                     hy3d__min_i64(hy3d__slice_stop(b, node->source, state->made),
                                   hy3d__slice_stop(b, node->other, state->made)));
    }
}

/* The last of the convolutions behind `first` that read what it reads, without one between. */
static int32_t last_sibling(const hy3d__builder *b, int32_t first, int32_t to)
{
    int32_t last = first;
    while (last < to && b->graph->nodes[last + 1].op == HY3D_OP_CONV &&
           b->graph->nodes[last + 1].source == b->graph->nodes[first].source &&
           b->graph->nodes[last + 1].other < first && b->states[last + 1].active &&
           !b->states[last + 1].only_reduces) {
        last++;
    }
    return last;
}

static int32_t run_node(hy3d__builder *b, int32_t index, int32_t to)
{
    const hy3d_node *node = &b->graph->nodes[index];
    const int32_t source = node->source;
    if (b->states[index].only_reduces) {
        require(b, source, b->states[source].size.frames);
        hy3d__do_reduce(b, index);
        return index;
    }
    switch (node->op) {
    case HY3D_OP_CONV: {
        const int32_t last = last_sibling(b, index, to);
        convolve(b, index, last);
        return last;
    }
    case HY3D_OP_ATTENTION:
        attend(b, index);
        return index;
    case HY3D_OP_MAP:
        map(b, index);
        return index;
    case HY3D_OP_ADD:
        sum(b, index);
        return index;
    case HY3D_OP_OPAQUE:
        require(b, source, b->states[source].size.frames);
        hy3d__do_opaque(b, index);
        return index;
    default: /* OUTPUT: frames are given away as they are made */
        return index;
    }
}

void hy3d__order_layers(hy3d__builder *b, int32_t to)
{
    if (b->output == b->from) { /* nothing is computed */
        require(b, b->from, b->states[b->from].size.frames);
    }
    for (int32_t i = b->from + 1; i <= to && b->status == HY3D_OK; i++) {
        if (b->states[i].active) {
            i = run_node(b, i, to);
        }
    }
}
