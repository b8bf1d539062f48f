/* Where frames of the input are: in x or in a fusion's list. Time's padding and up-sampling end
 * here, so that strategies see frames only. */
#include "conv3d/internal.h"

hy3d_conv3d_frame hy3d__conv_source_frame(const hy3d__conv_run *run, int64_t image, int64_t t)
{
    const hy3d_conv3d_desc *const desc = &run->plan->desc;
    const hy3d_tensor *const x = run->x;
    const int64_t index = hy3d__conv_resolve(t, desc->in_size[0],
                                             desc->pad_mode[0] == HY3D_PAD_REPLICATE);

    if (index < 0) {
        return (hy3d_conv3d_frame){.data = NULL};
    }
    if (run->fusion->frames != NULL) {
        return run->fusion->frames[index];
    }
    const int64_t frame = desc->upsample[0] > 1 ? index / desc->upsample[0] : index;
    const int64_t offset = image * x->stride[0] + frame * x->stride[2];
    return (hy3d_conv3d_frame){
        .data = (const unsigned char *)x->data + offset * (int64_t)hy3d_dtype_bytes(x->dtype),
        .stride = {x->stride[1], x->stride[3], x->stride[4]},
    };
}
