/* Prepared weights: which layout a description takes, and memory that holds weights in it. */
#include "conv3d/plan.h"

/* NULL where no strategy knows the format. */
static const hy3d__conv_layouts *layouts_with(hy3d_conv3d_format format)
{
    for (const hy3d__conv_strategy *const *row = hy3d__conv_strategies; *row != NULL; row++) {
        if ((*row)->layouts != NULL && (*row)->layouts->name(format) != NULL) {
            return (*row)->layouts;
        }
    }
    return NULL;
}

hy3d_status hy3d_conv3d_choose_format(const hy3d_context *context, const hy3d_conv3d_desc *desc,
                                      hy3d_conv3d_format *format_out)
{
    hy3d_conv3d_plan plan;

    if (context == NULL || format_out == NULL) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    const hy3d_status status = hy3d__conv_begin(desc, hy3d_context_cpu_level(context), &plan);
    if (status != HY3D_OK) {
        return status;
    }
    *format_out = HY3D_FORMAT_NONE;
    for (const hy3d__conv_strategy *const *row = hy3d__conv_strategies; (*row)->layouts != NULL;
         row++) {
        if ((*row)->choose(&plan)) {
            *format_out = (*row)->layouts->of_plan(&plan);
            break;
        }
    }
    return HY3D_OK;
}

const char *hy3d_conv3d_format_name(hy3d_conv3d_format format)
{
    const hy3d__conv_layouts *const layouts = layouts_with(format);

    if (layouts == NULL) {
        return format == HY3D_FORMAT_NONE ? "none" : "unknown";
    }
    return layouts->name(format);
}

size_t hy3d_conv3d_format_bytes(hy3d_conv3d_format format, int64_t out_channels,
                                int64_t in_channels, const int64_t kernel[3])
{
    const hy3d__conv_layouts *const layouts = layouts_with(format);

    return layouts == NULL || kernel == NULL
               ? 0
               : layouts->bytes(format, out_channels, in_channels, kernel);
}

hy3d_status hy3d_conv3d_weights_create(hy3d_context *context, const hy3d_tensor *weight,
                                       hy3d_conv3d_format format, uint32_t num_threads,
                                       const hy3d_cancel *cancel, hy3d_conv3d_weights **weights_out)
{
    const hy3d__conv_layouts *const layouts = layouts_with(format);
    void *memory = NULL, *data = NULL;

    if (context == NULL || weight == NULL || weights_out == NULL || weight->dtype == HY3D_F64 ||
        hy3d_dtype_bytes(weight->dtype) == 0) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    const size_t bytes =
        hy3d_conv3d_format_bytes(format, weight->size[0], weight->size[1], &weight->size[2]);
    if (layouts == NULL || bytes == 0) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    hy3d_status status = hy3d__conv_check_filter(weight);
    if (status == HY3D_OK) {
        status = hy3d_alloc(context, sizeof(hy3d_conv3d_weights), &memory);
    }
    if (status == HY3D_OK) {
        status = hy3d_alloc(context, bytes, &data);
    }
    if (status == HY3D_OK) {
        status = layouts->make(context, weight, format, num_threads, cancel, data);
    }
    if (status != HY3D_OK) {
        hy3d_free(context, data);
        hy3d_free(context, memory);
        return status;
    }
    hy3d_conv3d_weights *const weights = memory;
    *weights = (hy3d_conv3d_weights){
        .context = context,
        .format = format,
        .out_channels = weight->size[0],
        .in_channels = weight->size[1],
        .kernel = {weight->size[2], weight->size[3], weight->size[4]},
        .bytes = bytes,
        .data = data,
    };
    *weights_out = weights;
    return HY3D_OK;
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

hy3d_status hy3d__conv_check_prepared(const hy3d_conv3d_plan *plan)
{
    const hy3d_conv3d_weights *const prepared = plan->prepared;
    const hy3d_conv3d_desc *const desc = &plan->desc;
    const hy3d__conv_layouts *const layouts = plan->strategy->layouts;
    const hy3d_conv3d_format format = layouts == NULL ? HY3D_FORMAT_NONE : layouts->of_plan(plan);
    /* Another context may have another CPU level, whose filters differ in their last bits. */
    const bool fits =
        prepared->context == plan->context && prepared->format == format &&
        prepared->out_channels == desc->out_channels &&
        prepared->in_channels == desc->in_channels && prepared->kernel[0] == desc->kernel[0] &&
        prepared->kernel[1] == desc->kernel[1] && prepared->kernel[2] == desc->kernel[2];
    return fits ? HY3D_OK : HY3D_ERR_INVALID_ARGUMENT;
}
