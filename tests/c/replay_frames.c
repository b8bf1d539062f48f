/* Sizes and frames of values, by lists. */
#include "replay.h"

#include <stdio.h>
#include <stdlib.h>

void *replay_room(int64_t count, size_t bytes)
{
    void *const memory = calloc(count > 0 ? (size_t)count : 1, bytes);
    if (memory == NULL) {
        fputs("no memory for the test itself\n", stderr);
        exit(3);
    }
    return memory;
}

/* Places of a kernel on `length` positions. */
static int64_t places(int64_t length, int32_t kernel, int32_t stride, int32_t dilation)
{
    int64_t count = 0;
    const int64_t last_tap = (int64_t)(kernel - 1) * dilation;
    for (int64_t at = 0; at + last_tap < length; at += stride) {
        count++;
    }
    return count;
}

static int64_t own_length(const hy3d_node *node, int axis, int64_t length)
{
    return places(length * node->up[axis] + node->before[axis] + node->after[axis],
                  node->kernel[axis], node->stride[axis], node->dilation[axis]);
}

/* The up-sampled and padded video of a convolution: for each frame the source's that it shows.
 * Padding shows the frame that replication would. */
typedef struct padded_video {
    int64_t *shows;
    bool *is_padding;
    int64_t length;
} padded_video;

static void append(padded_video *video, int64_t frame, bool is_padding)
{
    video->shows[video->length] = frame;
    video->is_padding[video->length++] = is_padding;
}

/* A video of no frames has nothing to pad. */
static padded_video padded_of(const hy3d_node *node, int64_t source_frames)
{
    padded_video video = {0};
    const int64_t first = node->skip_first - node->reread;
    const int64_t most = node->before[0] + node->after[0] + (source_frames + 1) * node->up[0];
    video.shows = replay_room(most, sizeof *video.shows);
    video.is_padding = replay_room(most, sizeof *video.is_padding);
    if (first >= source_frames) {
        return video;
    }
    for (int32_t i = 0; i < node->before[0]; i++) {
        append(&video, first, true);
    }
    for (int64_t frame = first; frame < source_frames; frame++) {
        const bool stays_one = node->keep_first && frame == first;
        for (int32_t i = 0; i < (stays_one ? 1 : node->up[0]); i++) {
            append(&video, frame, false);
        }
    }
    for (int32_t i = 0; i < node->after[0]; i++) {
        append(&video, source_frames - 1, true);
    }
    return video;
}

static void widen(replay_range *range, int64_t frame)
{
    if (range->first == range->stop) {
        *range = (replay_range){frame, frame + 1};
    } else if (frame < range->first) {
        range->first = frame;
    } else if (frame >= range->stop) {
        range->stop = frame + 1;
    }
}

static void list_reads(const hy3d_node *node, int64_t source_frames, replay_value *value)
{
    padded_video video = padded_of(node, source_frames);
    value->own_frames = places(video.length, node->kernel[0], node->stride[0], node->dilation[0]);
    value->reads = replay_room(value->own_frames, sizeof *value->reads);
    for (int64_t own = 0; own < value->own_frames; own++) {
        for (int32_t tap = 0; tap < node->kernel[0]; tap++) {
            const int64_t at = own * node->stride[0] + (int64_t)tap * node->dilation[0];
            widen(&value->reads[own].wide, video.shows[at]);
            if (!video.is_padding[at]) {
                widen(&value->reads[own].real, video.shows[at]);
            }
        }
    }
    free(video.shows);
    free(video.is_padding);
}

/* The frames after the shuffle. */
static void list_made(const hy3d_node *node, replay_value *value)
{
    value->made = replay_room(value->own_frames * node->shuffle[0], sizeof *value->made);
    for (int64_t own = 0; own < value->own_frames; own++) {
        const bool is_short = own == 0 && node->shuffle_first != 0;
        for (int32_t i = 0; i < (is_short ? node->shuffle_first : node->shuffle[0]); i++) {
            value->made[value->made_frames++] = own;
        }
    }
}

static void conv_value(const hy3d_node *node, const hy3d_size *source, replay_value *value)
{
    list_reads(node, source->frames, value);
    list_made(node, value);
    value->passes = node->skip_first < source->frames ? node->skip_first : source->frames;
    value->own_rows = own_length(node, 1, source->rows);
    value->own_columns = own_length(node, 2, source->columns);
    value->size.frames = value->passes;
    for (int64_t i = node->drop; i < value->made_frames; i++) {
        value->size.frames++;
    }
    value->size.rows = value->own_rows * node->shuffle[1];
    value->size.columns = value->own_columns * node->shuffle[2];
}

/* MAP and OPAQUE. A rest of frames_per is found by counting. */
static void map_value(const hy3d_node *node, const hy3d_size *source, replay_value *value)
{
    int64_t begins = 0, parts = 0;
    value->begins = replay_room(source->frames + 1, sizeof *value->begins);
    for (int64_t frame = 0; frame < source->frames; frame++) {
        value->begins[frame] = begins;
        if (frame == 0) {
            begins = node->frames_first;
        } else {
            for (parts += node->frames_rest; parts >= node->frames_per; begins++) {
                parts -= node->frames_per;
            }
        }
    }
    value->begins[source->frames] = begins;
    value->size.frames = begins;
    value->size.rows = source->rows * node->space_up[0] / node->space_down[0];
    value->size.columns = source->columns * node->space_up[1] / node->space_down[1];
}

static void value_of(const hy3d_graph *graph, const replay_values *values, int32_t index)
{
    const hy3d_node *const node = &graph->nodes[index];
    const hy3d_size *const source = &values->of[node->source].size;
    replay_value *const value = &values->of[index];
    value->size = *source;
    if (node->op == HY3D_OP_CONV) {
        conv_value(node, source, value);
    } else if (node->op == HY3D_OP_MAP || node->op == HY3D_OP_OPAQUE) {
        map_value(node, source, value);
    }
    value->size.channels = node->op == HY3D_OP_OUTPUT ? source->channels : node->channels;
}

replay_values replay_values_make(const hy3d_graph *graph, int32_t first, int32_t last,
                                 hy3d_size input)
{
    const replay_values values = {replay_room(graph->count, sizeof *values.of), graph->count};
    values.of[first].size = input;
    for (int32_t index = first + 1; index <= last; index++) {
        value_of(graph, &values, index);
    }
    return values;
}

void replay_values_free(replay_values *values)
{
    for (int32_t index = 0; index < values->count; index++) {
        free(values->of[index].reads);
        free(values->of[index].made);
        free(values->of[index].begins);
    }
    free(values->of);
    *values = (replay_values){0};
}

static int64_t common_divisor(int64_t a, int64_t b)
{
    while (b != 0) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

int64_t replay_unit(const replay_values *values)
{
    int64_t unit = 0;
    for (int32_t node = 0; node < values->count; node++) {
        unit = common_divisor(unit, values->of[node].size.rows);
        unit = common_divisor(unit, values->of[node].own_rows);
    }
    return unit;
}

/* Pairs of a query's frame and a frame that it sees. */
static int64_t seen_pairs(const hy3d_node *node, const hy3d_step *step, int64_t frames)
{
    int64_t pairs = 0;
    for (int64_t frame = step->frames[0]; frame < step->frames[1]; frame++) {
        pairs += node->span == HY3D_SPAN_FRAME    ? 1
                 : node->span == HY3D_SPAN_CAUSAL ? frame + 1
                                                  : frames;
    }
    return pairs;
}

static int64_t attention_macs(const hy3d_node *node, const hy3d_size *size, const hy3d_step *step)
{
    const int64_t pixels = size->rows * size->columns;
    const int64_t own = (step->rows[1] - step->rows[0]) * size->columns;
    const int64_t weights = node->channels * node->width; /* of one of q, k, v, out */
    const int64_t frames = step->frames[1] - step->frames[0];
    if (step->op == HY3D_STEP_KEYS) {
        return 2 * frames * own * weights;
    }
    const int64_t keys = node->span == HY3D_SPAN_FRAME ? 2 * frames * pixels * weights : 0;
    return keys + 2 * frames * own * weights +
           2 * seen_pairs(node, step, size->frames) * own * pixels * node->width;
}

int64_t replay_macs(const hy3d_graph *graph, const replay_values *values, const hy3d_step *step)
{
    const hy3d_node *const node = &graph->nodes[step->node];
    const replay_value *const value = &values->of[step->node];
    if (step->op == HY3D_STEP_KEYS || step->op == HY3D_STEP_ATTEND) {
        return attention_macs(node, &value->size, step);
    }
    if (step->op != HY3D_STEP_CONV) {
        return 0;
    }
    int64_t macs = (step->own[1] - step->own[0]) * (step->rows[1] - step->rows[0]) *
                   value->own_columns * node->channels *
                   (values->of[node->source].size.channels / node->groups);
    /* Of rows after the shuffle: each is one of the convolution's. */
    for (int axis = 0; axis < 3; axis++) {
        macs *= (int64_t)(axis == 1 ? 1 : node->shuffle[axis]) * node->kernel[axis];
    }
    return macs;
}
