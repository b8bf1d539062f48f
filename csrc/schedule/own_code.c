/* What a VAE's own code takes: asked of the caller, and no less than any code must. */
#include <stddef.h>

#include "base/checked.h"
#include "schedule/compile.h"

/* The VAE's own code, of which `own` bytes are known; -1: nothing is. */
hy3d_status hy3d__whole_cost(const hy3d_schedule *s, int64_t own, hy3d_candidate *c)
{
    const hy3d_schedule_request *r = &s->request;
    const hy3d_machine *m = r->is_host ? &r->host : &r->device;
    for (int32_t i = 0; i < r->graph.count; i++) {
        const hy3d_node *node = &s->nodes[i];
        int64_t macs = 0;
        if (node->op == HY3D_OP_CONV) {
            const hy3d__frames f = hy3d__frames_of(node, s->sizes[node->source].frames);
            macs = hy3d__conv_macs(node, &s->sizes[node->source], f.own_total);
        } else if (node->op == HY3D_OP_ATTENTION) {
            macs = hy3d__attention_macs(node, &s->sizes[i]);
        }
        if (macs < 0 || !hy3d__add_i64(c->macs, macs, &c->macs)) {
            return HY3D_ERR_OVERFLOW;
        }
    }
    c->device_bytes = own < 0 ? 0 : own;
    c->host_bytes = r->is_host ? 0 : r->result_bytes;
    c->margin_bytes = own < 0 ? 0 : hy3d__margin_of(r, c);
    c->seconds = (double)c->macs / m->macs_per_second * m->own_seconds_share;
    c->fits = own < 0 || hy3d__fits_budget(s, c, s->budgets[0]);
    return HY3D_OK;
}

/* So many frames of a value. */
static int64_t frames_bytes(const hy3d_schedule_request *r, const hy3d_size *size, int64_t frames)
{
    int64_t bytes = r->element_bytes;
    return hy3d__mul_i64(bytes, size->channels, &bytes) &&
                   hy3d__mul_i64(bytes, size->rows, &bytes) &&
                   hy3d__mul_i64(bytes, size->columns, &bytes) &&
                   hy3d__mul_i64(bytes, frames, &bytes)
               ? hy3d__min_i64(bytes, HY3D__MOST_BYTES)
               : HY3D__MOST_BYTES;
}

/* A convolution over time, in bytes: half of the frames that it reads, those that it must keep
 * where they come in parts, and one that it reads with one that it makes. */
typedef struct over_time {
    int64_t half, kept, both;
} over_time;

/* What convolutions over time hold at once, at least: each of them gets half of its frames or more
 * at a time, or keeps its last ones while the others compute: a frame, of one more. */
static int64_t least_in_parts(const over_time *all, int32_t count)
{
    int64_t least = HY3D__MOST_BYTES;
    for (int32_t k = -1; k < count; k++) { /* those with a larger half than k's keep; -1: all do */
        const int64_t most = k < 0 ? 0 : all[k].half;
        int64_t kept = 0, both = 0;
        for (int32_t i = 0; i < count; i++) {
            if (all[i].half > most) {
                kept = hy3d__min_i64(kept + all[i].kept, HY3D__MOST_BYTES);
                both = hy3d__max_i64(both, all[i].both);
            }
        }
        least = hy3d__min_i64(least, hy3d__max_i64(most, kept + both));
    }
    return least;
}

/* What code that makes whole frames, each once, takes at least, however it goes about it: the
 * output; of each convolution a frame that it reads and one that it makes; all that a GroupNorm
 * reads; of four frames or more, what convolutions over time hold. */
int64_t hy3d__least_own_bytes(const hy3d_schedule *s)
{
    const hy3d_schedule_request *r = &s->request;
    const hy3d_size *output = &s->sizes[r->graph.count - 1];
    int64_t bytes = frames_bytes(r, output, output->frames);
    over_time all[HY3D_GRAPH_MAX_NODES];
    int32_t count = 0;
    for (int32_t i = 0; i < r->graph.count; i++) {
        const hy3d_node *node = &s->nodes[i];
        if (node->op != HY3D_OP_CONV ||
            hy3d__frames_of(node, s->sizes[node->source].frames).own_total == 0) {
            continue;
        }
        const hy3d_size *read = &s->sizes[node->source];
        const int64_t both = frames_bytes(r, read, 1) + frames_bytes(r, &s->sizes[i], 1);
        bytes = hy3d__max_i64(bytes, both);
        if (node->norm == HY3D_NORM_GROUP) {
            bytes = hy3d__max_i64(bytes, frames_bytes(r, read, read->frames));
        }
        if (node->kernel[0] > 1 && node->stride[0] == 1 && node->up[0] == 1) {
            const int64_t half = read->frames / 2;
            const int64_t past = (int64_t)node->dilation[0] * (node->kernel[0] - 1);
            all[count++] = (over_time){frames_bytes(r, read, half),
                                       frames_bytes(r, read, hy3d__min_i64(past, half)), both};
        }
    }
    bytes = hy3d__max_i64(bytes, s->sizes[0].frames < 4 ? 0 : least_in_parts(all, count));
    return hy3d__min_i64(bytes, HY3D__MOST_BYTES);
}

/* Asks for the bytes of the VAE's own code, once in a schedule. HY3D_ERR_UNSUPPORTED: nobody can
 * tell. */
hy3d_status hy3d__ask_own_bytes(hy3d_schedule *s)
{
    hy3d_schedule_request *r = &s->request;
    const int32_t last = r->graph.count - 1;
    const hy3d_step step = {
        .op = HY3D_STEP_OPAQUE,
        .node = last,
        .slice = -1,
        .frames = {0, s->sizes[last].frames},
        .reads = {0, s->sizes[0].frames},
        .rows = {0, s->sizes[last].rows},
        .read_rows = {0, s->sizes[0].rows},
        .peer = -1,
    };
    hy3d_step_memory taken = {.workspace_bytes = 0};
    hy3d_status status = s->own_is_untold ? HY3D_ERR_UNSUPPORTED
                                          : r->workspace(r->user, &step, &s->sizes[0], 0, &taken);
    const int64_t bytes = taken.workspace_bytes;
    s->own_is_untold = status == HY3D_ERR_UNSUPPORTED;
    if (status == HY3D_OK && (bytes < 0 || bytes > HY3D__MOST_BYTES)) {
        status = bytes < 0 ? HY3D_ERR_INVALID_ARGUMENT : HY3D_ERR_OVERFLOW;
    }
    if (status == HY3D_OK) {
        r->own_bytes = hy3d__max_i64(bytes, hy3d__least_own_bytes(s));
    }
    return status;
}
