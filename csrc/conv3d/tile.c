/* The padded input tile of a direct grain.
 *
 * Layout [channel][kT plane][h phase][w phase][row][column]: whatever stride and dilation are, the
 * input of tap (kt, kh, kw) for neighbouring outputs is one run of neighbours, so the micro-kernel
 * reads it in place and no element is copied once per tap. */
#include "conv3d/internal.h"

#include <string.h>

static void pack_line(const hy3d__conv_run *run, const hy3d__conv_part *part,
                      const hy3d__conv_line *line, float *dst)
{
    const hy3d_conv3d_plan *const plan = run->plan;
    const hy3d__conv_axis *const axis = &plan->direct.w;
    const int64_t origin = part->w * axis->stride - plan->desc.pad_before[2];

    for (int64_t phase = 0; phase < axis->phases; phase++) {
        hy3d__conv_load_line(plan->kernels, line,
                             origin + hy3d__conv_phase_start(axis, phase), axis->stride,
                             part->cols + axis->halo, dst + phase * plan->direct.phase_w_pitch);
    }
}

static void zero_line(const hy3d_conv3d_plan *plan, const hy3d__conv_part *part, float *dst)
{
    for (int64_t phase = 0; phase < plan->direct.w.phases; phase++) {
        memset(dst + phase * plan->direct.phase_w_pitch, 0,
               (size_t)(part->cols + plan->direct.w.halo) * sizeof *dst);
    }
}

/* Whole planes of a tile that is a plain copy: no padding, no phases, rows that are neighbours in
 * memory too. Against line by line it makes whole layers with rows of 42 3 to 4 % faster. */
static bool copy_plane(const hy3d__conv_run *run, const hy3d__conv_part *part,
                       const unsigned char *data, float *dst)
{
    const hy3d_conv3d_plan *const plan = run->plan;
    const hy3d__conv_direct *const d = &plan->direct;
    const int64_t h = part->h - plan->desc.pad_before[1];
    const int64_t w = part->w - plan->desc.pad_before[2];
    const int64_t rows = part->rows + d->h.halo;

    if (data == NULL || plan->desc.dtype != HY3D_F32 || run->x->stride[4] != 1 ||
        run->x->stride[3] != d->row_pitch || part->cols != d->cols || d->h.phases != 1 ||
        d->w.phases != 1 || d->h.stride != 1 || d->w.stride != 1 || h < 0 || w < 0 ||
        h + rows > plan->desc.in_size[1] || w + d->row_pitch > plan->desc.in_size[2]) {
        return false;
    }
    memcpy(dst, (const float *)(const void *)data + h * d->row_pitch + w,
           (size_t)(rows * d->row_pitch) * sizeof *dst);
    return true;
}

/* All rows of one channel and time; data is NULL for a plane of zeros. */
static void pack_plane(const hy3d__conv_run *run, const hy3d__conv_part *part,
                       const unsigned char *data, float *dst)
{
    const hy3d_conv3d_plan *const plan = run->plan;
    const hy3d_conv3d_desc *const desc = &plan->desc;
    const hy3d__conv_axis *const axis = &plan->direct.h;
    const int64_t row_bytes = run->x->stride[3] * (int64_t)hy3d_dtype_bytes(desc->dtype);
    const int64_t origin = part->h * axis->stride - desc->pad_before[1];
    hy3d__conv_line line = {.stride = run->x->stride[4],
                            .size = desc->in_size[2],
                            .dtype = desc->dtype,
                            .replicate = desc->pad_mode[2] == HY3D_PAD_REPLICATE};

    if (copy_plane(run, part, data, dst)) {
        return;
    }
    for (int64_t phase = 0; phase < axis->phases; phase++) {
        for (int64_t row = 0; row < part->rows + axis->halo; row++) {
            float *const to =
                dst + phase * plan->direct.phase_h_pitch + row * plan->direct.row_pitch;
            const int64_t h = hy3d__conv_resolve(
                origin + hy3d__conv_phase_start(axis, phase) + row * axis->stride,
                desc->in_size[1], desc->pad_mode[1] == HY3D_PAD_REPLICATE);
            if (data == NULL || h < 0) {
                zero_line(plan, part, to);
                continue;
            }
            line.data = data + h * row_bytes;
            pack_line(run, part, &line, to);
        }
    }
}

void hy3d__conv_pack_tile(const hy3d__conv_run *run, const hy3d__conv_part *part, float *tile)
{
    const hy3d_conv3d_plan *const plan = run->plan;
    const hy3d_conv3d_desc *const desc = &plan->desc;
    const hy3d_tensor *const x = run->x;
    const int64_t bytes = (int64_t)hy3d_dtype_bytes(desc->dtype);

    for (int64_t c = 0; c < part->channels; c++) {
        const unsigned char *const image =
            (const unsigned char *)x->data +
            (part->image * x->stride[0] + (part->channel + c) * x->stride[1]) * bytes;
        for (int64_t tap = 0; tap < desc->kernel[0]; tap++) {
            const int64_t t = hy3d__conv_resolve(
                part->t * desc->stride[0] + tap * desc->dilation[0] - desc->pad_before[0],
                desc->in_size[0], desc->pad_mode[0] == HY3D_PAD_REPLICATE);
            pack_plane(run, part, t < 0 ? NULL : image + t * x->stride[2] * bytes,
                       tile + c * plan->direct.channel_pitch + tap * plan->direct.plane_pitch);
        }
    }
}
