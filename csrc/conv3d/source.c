/* Where frames and rows of the input are: in x or in a fusion's list. Padding and up-sampling of
 * time and height end here, so that strategies see lines only. */
#include "conv3d/plan.h"

hy3d_conv3d_frame hy3d__conv_source_frame(const hy3d__conv_run *run, int64_t image, int64_t t)
{
    const hy3d_conv3d_desc *const desc = &run->plan->desc;
    const hy3d_tensor *const x = run->x;
    const int64_t index =
        hy3d__conv_resolve(t, hy3d__conv_end(desc, 0), desc->pad_mode[0] == HY3D_PAD_REPLICATE);

    if (index < 0) {
        return (hy3d_conv3d_frame){.data = NULL};
    }
    if (run->fusion->frames != NULL) {
        /* Strides of a frame of zeros were never looked at. */
        return run->fusion->frames[index].data != NULL ? run->fusion->frames[index]
                                                       : (hy3d_conv3d_frame){.data = NULL};
    }
    const int64_t frame = index / hy3d__conv_upsample(desc, 0);
    const int64_t offset = image * x->stride[0] + frame * x->stride[2];
    return (hy3d_conv3d_frame){
        .data = (const unsigned char *)x->data + offset * (int64_t)hy3d_dtype_bytes(x->dtype),
        .stride = {x->stride[1], x->stride[3], x->stride[4]},
    };
}

hy3d__conv_line hy3d__conv_source_line(const hy3d__conv_run *run, const hy3d_conv3d_frame *frame,
                                       int64_t channel, int64_t h)
{
    const hy3d_conv3d_desc *const desc = &run->plan->desc;
    const hy3d_conv3d_fusion *const fusion = run->fusion;
    const int64_t index =
        hy3d__conv_resolve(h, desc->in_size[1], desc->pad_mode[1] == HY3D_PAD_REPLICATE);
    hy3d__conv_line line = {.stride = frame->stride[2],
                            .size = desc->in_size[2],
                            .dtype = desc->dtype,
                            .replicate = desc->pad_mode[2] == HY3D_PAD_REPLICATE,
                            .repeat = desc->upsample[2],
                            .scale = 1.0F,
                            .shift = -0.0F};

    if (frame->data == NULL || index < 0) {
        return line;
    }
    const int64_t row = index / hy3d__conv_upsample(desc, 1);
    line.data =
        (const unsigned char *)frame->data + (channel * frame->stride[0] + row * frame->stride[1]) *
                                                 (int64_t)hy3d_dtype_bytes(desc->dtype);
    line.silu = fusion->activation == HY3D_SILU ? 1 : 0;
    line.is_changed = fusion->scale != NULL || line.silu != 0;
    if (fusion->scale != NULL) {
        line.scale = fusion->scale[channel];
        line.shift = fusion->shift[channel];
    }
    return line;
}
