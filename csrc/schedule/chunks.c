/* By chunks: some frames of the input at a time go through all nodes. What each node still needs of
 * the chunk before stays; a node that looks ahead lags behind and catches up at the end, at most
 * one chunk's worth of frames a round. So memory does not grow with the video, but for keys of a
 * CAUSAL attention and what is in front of a VIDEO one. */
#include <stddef.h>

#include "base/checked.h"
#include "schedule/builder.h"

/* state's rate: `rate` / `per` times `factor` / `divided`; what does not fit stays as it is. */
static void set_rate(hy3d__state *state, int64_t rate, int64_t per, int64_t factor, int64_t divided)
{
    state->rate = rate;
    state->per = per;
    if (hy3d__mul_i64(rate, factor, &state->rate) && hy3d__mul_i64(per, divided, &state->per)) {
        const int64_t common = hy3d__common_divisor(state->rate, state->per);
        state->rate /= common;
        state->per /= common;
    } else {
        state->rate = rate;
        state->per = per;
    }
}

static void find_rate(hy3d__builder *b, int32_t index)
{
    const hy3d_node *node = &b->graph->nodes[index];
    const hy3d__state *source = &b->states[node->source];
    hy3d__state *state = &b->states[index];
    if (node->op == HY3D_OP_CONV) {
        set_rate(state, source->rate, source->per, (int64_t)node->up[0] * node->shuffle[0],
                 node->stride[0]);
    } else if (node->op == HY3D_OP_MAP) {
        set_rate(state, source->rate, source->per, node->frames_rest, 1);
    } else {
        set_rate(state, source->rate, source->per, 1, 1);
    }
    if (node->op == HY3D_OP_ADD) {
        const hy3d__state *other = &b->states[node->other];
        if ((double)other->rate * (double)state->per > (double)state->rate * (double)other->per) {
            set_rate(state, other->rate, other->per, 1, 1);
        }
    }
}

/* Most frames of the value that one step makes. */
static int64_t limit_of(const hy3d__state *state)
{
    return state->rate / state->per + (state->rate % state->per != 0);
}

static int64_t shown(const hy3d__builder *b, int32_t value)
{
    return value < 0 ? INT64_MAX : b->states[value].shown;
}

static void convolve(hy3d__builder *b, int32_t index)
{
    const hy3d_node *node = &b->graph->nodes[index];
    hy3d__state *state = &b->states[index];
    const hy3d__frames *f = &state->frames;
    const int64_t there = shown(b, node->source), other = shown(b, node->other);
    const int64_t passing = hy3d__min_i64(f->passed, hy3d__min_i64(there, other));
    if (state->made < passing) {
        hy3d__do_pass(b, index, passing);
    }
    if (state->made < f->passed) {
        return;
    }
    int64_t ready = hy3d__frames_ready(f, there);
    ready = node->other < 0 ? ready : hy3d__min_i64(ready, hy3d__frames_within(f, other));
    const int64_t smallest = hy3d__frames_least(f), limit = limit_of(state) / f->made;
    int64_t stop = hy3d__min_i64(ready, state->own + (limit > 1 ? limit : 1));
    stop = stop < smallest ? smallest : stop;
    if (stop > ready || stop <= state->own) {
        return;
    }
    hy3d__do_conv(b, index, stop);
    state->pending = ready > stop;
}

static void attend(hy3d__builder *b, int32_t index)
{
    const hy3d_node *node = &b->graph->nodes[index];
    hy3d__state *state = &b->states[index];
    const int64_t there = shown(b, node->source);
    while (b->status == HY3D_OK && node->span != HY3D_SPAN_FRAME && state->own < there) {
        hy3d__do_keys(b, index,
                      hy3d__min_i64(hy3d__slice_stop(b, node->source, state->own), there));
    }
    const bool waits = node->span == HY3D_SPAN_VIDEO && there < state->size.frames;
    const int64_t ready = waits ? state->made : there;
    const int64_t stop = hy3d__min_i64(ready, state->made + limit_of(state));
    while (b->status == HY3D_OK && state->made < stop) {
        hy3d__do_attend(b, index,
                        hy3d__min_i64(hy3d__slice_stop(b, node->source, state->made), stop));
    }
    state->pending = ready > stop;
}

static void run_node(hy3d__builder *b, int32_t index)
{
    const hy3d_node *node = &b->graph->nodes[index];
    hy3d__state *state = &b->states[index];
    const int64_t there = shown(b, node->source),
                  both = hy3d__min_i64(there, shown(b, node->other));
    state->pending = false;
    switch (node->op) {
    case HY3D_OP_CONV:
        convolve(b, index);
        break;
    case HY3D_OP_ATTENTION:
        attend(b, index);
        break;
    case HY3D_OP_MAP:
        while (b->status == HY3D_OK && state->own < there) {
            hy3d__do_map(b, index,
                         hy3d__min_i64(hy3d__slice_stop(b, node->source, state->own), there));
        }
        break;
    case HY3D_OP_ADD:
        while (b->status == HY3D_OK && state->made < both) {
            const int64_t stop = hy3d__min_i64(hy3d__slice_stop(b, node->source, state->made),
                                               hy3d__slice_stop(b, node->other, state->made));
            hy3d__do_add(b, index, hy3d__min_i64(stop, both));
        }
        break;
    default: /* OUTPUT: frames are given away as they are made; OPAQUE: not in chunks */
        return;
    }
    if (!state->pending) {
        hy3d__do_trim(b, node->source);
        if (node->other >= 0 && node->other != node->source) {
            hy3d__do_trim(b, node->other);
        }
    }
}

/* All nodes with what is there, again and again until none could make more. */
static void run_all(hy3d__builder *b, int32_t from)
{
    for (bool pending = true; pending && b->status == HY3D_OK;) {
        pending = false;
        for (int32_t i = from + 1; i <= b->to && b->status == HY3D_OK; i++) {
            if (b->states[i].active) {
                run_node(b, i);
                pending = pending || b->states[i].pending;
            }
        }
    }
}

void hy3d__order_chunks(hy3d__builder *b, int32_t from, int64_t chunk)
{
    hy3d__state *input = &b->states[from];
    const int64_t frames = input->size.frames;
    const bool is_there = from != b->from; /* a prefix made it */
    set_rate(input, chunk, 1, 1, 1);
    for (int32_t i = from + 1; i <= b->to; i++) {
        if (b->states[i].active) {
            find_rate(b, i);
        }
    }
    int64_t stop = 0;
    while (stop < frames && b->status == HY3D_OK) {
        stop = hy3d__min_i64(stop + chunk, frames);
        if (is_there) {
            input->shown = stop;
        } else {
            hy3d__do_enter(b, stop);
        }
        run_all(b, from);
    }
}
