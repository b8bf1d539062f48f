/* See frames.h. */
#include "schedule/frames.h"

#include "base/checked.h"

/* Frames of the up-sampled own video that the source's frames 0 .. stop make. */
static int64_t up_frames(const hy3d__frames *f, int64_t stop)
{
    const int64_t own = stop - f->begin;
    if (own <= 0) {
        return 0;
    }
    return f->keep_first ? 1 + (own - 1) * f->up : own * f->up;
}

/* The frame of the own video that frame `up` of the up-sampled one repeats. */
static int64_t source_of(const hy3d__frames *f, int64_t up)
{
    if (f->keep_first) {
        return up <= 0 ? 0 : 1 + (up - 1) / f->up;
    }
    return up / f->up;
}

/* What own frames 0 .. own give before anything is dropped. */
static int64_t made_by(const hy3d__frames *f, int64_t own)
{
    return own <= 0 ? 0 : f->made_first + (own - 1) * f->made;
}

hy3d__frames hy3d__frames_of(const hy3d_node *node, int64_t total)
{
    hy3d__frames f = {
        .total = total,
        .begin = node->skip_first - node->reread,
        .passed = hy3d__min_i64(node->skip_first, total),
        .up = node->up[0],
        .stride = node->stride[0],
        .before = node->before[0],
        .after = node->after[0],
        .extent = (int64_t)node->dilation[0] * (node->kernel[0] - 1) + 1,
        .made = node->shuffle[0],
        .made_first = node->shuffle_first != 0 ? node->shuffle_first : node->shuffle[0],
        .drop = node->drop,
        .keep_first = node->keep_first,
    };
    f.own_total = hy3d__frames_ready(&f, total);
    f.result_total = hy3d__frames_result(&f, f.own_total);
    return f;
}

int64_t hy3d__frames_ready(const hy3d__frames *f, int64_t stop)
{
    const int64_t up = up_frames(f, stop);
    if (up == 0) {
        return 0;
    }
    const int64_t rest = up + f->before + (stop >= f->total ? f->after : 0) - f->extent;
    return rest < 0 ? 0 : rest / f->stride + 1;
}

int64_t hy3d__frames_result(const hy3d__frames *f, int64_t own)
{
    const int64_t made = made_by(f, own) - f->drop;
    return f->passed + (made > 0 ? made : 0);
}

int64_t hy3d__frames_within(const hy3d__frames *f, int64_t result)
{
    if (result >= f->result_total) {
        return f->own_total;
    }
    const int64_t before = result - f->passed + f->drop; /* of what own frames give */
    if (result < f->passed || before < f->made_first) {
        return 0;
    }
    return hy3d__min_i64(1 + (before - f->made_first) / f->made, f->own_total);
}

int64_t hy3d__frames_least(const hy3d__frames *f)
{
    int64_t own = 1; /* what is dropped are a few frames */
    while (own < f->own_total && hy3d__frames_result(f, own) <= f->passed) {
        own++;
    }
    return hy3d__min_i64(own, f->own_total);
}

void hy3d__frames_reads(const hy3d__frames *f, int64_t first, int64_t stop, int64_t reads_out[2])
{
    const int64_t last = up_frames(f, f->total) - 1;
    int64_t a = first * f->stride - f->before;
    int64_t b = (stop - 1) * f->stride - f->before + f->extent - 1;
    a = hy3d__min_i64(a > 0 ? a : 0, last);
    b = hy3d__min_i64(b > 0 ? b : 0, last);
    reads_out[0] = f->begin + source_of(f, a);
    reads_out[1] = f->begin + source_of(f, b) + 1;
}

int64_t hy3d__frames_needed(const hy3d__frames *f, int64_t own)
{
    int64_t reads[2];
    if (own >= f->own_total) {
        return f->total;
    }
    hy3d__frames_reads(f, own, own + 1, reads);
    return reads[0];
}
