/* Planes of positions: the rows of a frame one after the other, as strategies that cut a frame
 * without regard to its rows see them. Where rows follow each other in memory a plane is one line,
 * and may be used where it lies. */
#include "conv3d/plan.h"

bool hy3d__conv_has_plain_planes(const hy3d_conv3d_desc *desc)
{
    for (int i = 1; i < 3; i++) {
        if (desc->kernel[i] != 1 || desc->stride[i] != 1 || desc->pad_before[i] != 0 ||
            desc->pad_after[i] != 0 || hy3d__conv_upsample(desc, i) != 1) {
            return false;
        }
    }
    return true;
}

static bool is_flat(const hy3d_conv3d_frame *frame, int64_t width)
{
    return frame->stride[1] == width * frame->stride[2];
}

const void *hy3d__conv_plane_in_place(const hy3d__conv_run *run, const hy3d_conv3d_frame *frame,
                                      int64_t channel)
{
    const hy3d_conv3d_plan *const plan = run->plan;

    if (frame->stride[2] != 1 || !is_flat(frame, plan->out[2]) ||
        hy3d_dtype_bytes(plan->desc.dtype) != plan->compute_bytes) {
        return NULL;
    }
    const hy3d__conv_line line = hy3d__conv_source_line(run, frame, channel, 0);
    return line.is_changed ? NULL : line.data;
}

void hy3d__conv_plane_load(const hy3d__conv_run *run, const hy3d_conv3d_frame *frame,
                           int64_t channel, int64_t first, int64_t count, void *dst)
{
    const hy3d_conv3d_plan *const plan = run->plan;
    const int64_t row_bytes = frame->stride[1] * (int64_t)hy3d_dtype_bytes(plan->desc.dtype);
    const int64_t width = is_flat(frame, plan->out[2]) ? plan->out[1] * plan->out[2] : plan->out[2];
    hy3d__conv_line line = hy3d__conv_source_line(run, frame, channel, 0);
    const unsigned char *const data = line.data;

    int64_t row = first / width, at = first % width;

    line.size = width;
    for (int64_t done = 0, n; done < count; done += n, row++, at = 0) {
        n = hy3d__min_i64(count - done, width - at);
        line.data = data == NULL ? NULL : data + row * row_bytes;
        hy3d__conv_load_line(plan->kernels, &line, at, 1, n,
                             (unsigned char *)dst + (size_t)done * plan->compute_bytes);
    }
}

/* A tensor whose rows follow each other, as one of a single row a frame. */
static bool flatten(const hy3d_tensor *tensor, hy3d_tensor *flat)
{
    *flat = *tensor;
    flat->size[3] = 1;
    flat->size[4] = tensor->size[3] * tensor->size[4];
    return tensor->stride[3] == tensor->size[4] * tensor->stride[4];
}

void *hy3d__conv_plane_out(const hy3d__conv_run *run, const hy3d__conv_span *span)
{
    const hy3d_tensor *const y = run->y;

    if (run->fusion->residual != NULL || hy3d_dtype_bytes(y->dtype) != run->plan->compute_bytes ||
        y->stride[4] != 1 || y->stride[3] != y->size[4] || y->stride[1] < 0) {
        return NULL;
    }
    return (unsigned char *)y->data + (span->image * y->stride[0] + span->channel * y->stride[1] +
                                       span->t * y->stride[2] + span->first) *
                                          (int64_t)run->plan->compute_bytes;
}

void hy3d__conv_plane_store(const hy3d__conv_run *run, const hy3d__conv_span *span,
                            const void *results, int64_t pitch)
{
    const hy3d_conv3d_plan *const plan = run->plan;
    const hy3d_tensor *residual = run->fusion->residual;
    hy3d_tensor y, other;
    const bool flat = flatten(run->y, &y) && (residual == NULL || flatten(residual, &other));
    const int64_t width = flat ? plan->out[1] * plan->out[2] : plan->out[2];

    for (int64_t done = 0, n; done < span->count; done += n) {
        const int64_t row = (span->first + done) / width, at = (span->first + done) % width;
        n = hy3d__min_i64(span->count - done, width - at);
        const hy3d__conv_result stored = {
            .data = (const unsigned char *)results + (size_t)done * plan->compute_bytes,
            .at = {span->image, span->channel, span->t, row, at},
            .channels = span->channels,
            .rows = 1,
            .cols = n,
            .channel_pitch = pitch,
            .row_pitch = pitch,
            .residual = residual != NULL && flat ? &other : residual,
        };
        hy3d__conv_store(plan->kernels, flat ? &y : run->y, &stored);
    }
}
