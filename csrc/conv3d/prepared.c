/* Prepared weights: which layout a description takes, and memory that holds weights in it. */
#include "conv3d/internal.h"

hy3d_status hy3d_conv3d_choose_format(const hy3d_context *context, const hy3d_conv3d_desc *desc,
                                      hy3d_conv3d_format *format_out)
{
    int64_t out[3];

    if (context == NULL || format_out == NULL) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    const hy3d_status status = hy3d__conv_check_desc(desc, out);
    if (status == HY3D_OK) {
        *format_out = HY3D_FORMAT_NONE;
    }
    return status;
}

const char *hy3d_conv3d_format_name(hy3d_conv3d_format format)
{
    return format == HY3D_FORMAT_NONE ? "none" : "unknown";
}

size_t hy3d_conv3d_format_bytes(hy3d_conv3d_format format, int64_t out_channels,
                                int64_t in_channels, const int64_t kernel[3])
{
    (void)format;
    (void)out_channels;
    (void)in_channels;
    (void)kernel;
    return 0;
}

hy3d_status hy3d_conv3d_weights_create(hy3d_context *context, const hy3d_tensor *weight,
                                       hy3d_conv3d_format format, uint32_t num_threads,
                                       const hy3d_cancel *cancel,
                                       hy3d_conv3d_weights **weights_out)
{
    (void)num_threads;
    (void)cancel;
    if (context == NULL || weight == NULL || weights_out == NULL) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    (void)format;
    return HY3D_ERR_UNSUPPORTED;
}

void hy3d_conv3d_weights_destroy(hy3d_conv3d_weights *weights)
{
    if (weights != NULL) {
        hy3d_context *const context = weights->context;
        hy3d_free(context, weights->data);
        hy3d_free(context, weights);
    }
}

size_t hy3d_conv3d_weights_bytes(const hy3d_conv3d_weights *weights)
{
    return weights == NULL ? 0 : weights->bytes;
}

hy3d_conv3d_format hy3d_conv3d_weights_format(const hy3d_conv3d_weights *weights)
{
    return weights == NULL ? HY3D_FORMAT_NONE : weights->format;
}

hy3d_status hy3d__conv_check_prepared(const hy3d_context *context, const hy3d_conv3d_desc *desc,
                                      const hy3d_conv3d_weights *prepared)
{
    hy3d_conv3d_format format;
    const hy3d_status status = hy3d_conv3d_choose_format(context, desc, &format);

    if (status != HY3D_OK) {
        return status;
    }
    const bool fits = prepared->format == format && prepared->out_channels == desc->out_channels &&
                      prepared->in_channels == desc->in_channels &&
                      prepared->kernel[0] == desc->kernel[0] &&
                      prepared->kernel[1] == desc->kernel[1] &&
                      prepared->kernel[2] == desc->kernel[2];
    return fits ? HY3D_OK : HY3D_ERR_INVALID_ARGUMENT;
}
