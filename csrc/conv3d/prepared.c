/* Prepared weights: which layout a description takes, and memory that holds weights in it. */
#include "conv3d/internal.h"

#include "base/checked.h"
#include "base/parallel.h"

hy3d_status hy3d_conv3d_choose_format(const hy3d_context *context, const hy3d_conv3d_desc *desc,
                                      hy3d_conv3d_format *format_out)
{
    hy3d__winograd_kind kind;
    int64_t out[3];

    if (context == NULL || format_out == NULL) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    const hy3d_status status = hy3d__conv_check_desc(desc, out);
    if (status == HY3D_OK) {
        *format_out = hy3d__winograd_choose(desc, out, hy3d_context_cpu_level(context), &kind)
                          ? hy3d__winograd_format(&kind)
                          : HY3D_FORMAT_NONE;
    }
    return status;
}

const char *hy3d_conv3d_format_name(hy3d_conv3d_format format)
{
    hy3d__winograd_kind kind;

    if (!hy3d__winograd_kind_of(format, &kind)) {
        return format == HY3D_FORMAT_NONE ? "none" : "unknown";
    }
    if (kind.m == 4) {
        return kind.moments == 1 ? "winograd-4x4" : "winograd-2x4x4";
    }
    return kind.moments == 1 ? "winograd-5x5" : "winograd-2x5x5";
}

/* Sizes of a layer's weights in a layout; false where it has none, or they overflow. */
static bool filters_of(hy3d_conv3d_format format, int64_t out_channels, int64_t in_channels,
                       const int64_t kernel[3], hy3d__winograd_filters *filters_out,
                       size_t *bytes_out)
{
    hy3d__winograd_kind kind;
    int64_t elems;

    if (!hy3d__winograd_kind_of(format, &kind) || out_channels < 1 || in_channels < 1 ||
        out_channels > INT32_MAX || in_channels > INT32_MAX || kernel[0] < 1 || kernel[0] > 3 ||
        kernel[1] != 3 || kernel[2] != 3 || (kind.moments != 1 && kernel[0] != 3)) {
        return false;
    }
    *filters_out = hy3d__winograd_filters_of(kind, out_channels, in_channels, kernel[0]);
    if (!hy3d__mul_i64(filters_out->panel_elems, filters_out->panels, &elems) ||
        !hy3d__mul_i64(elems, filters_out->products * (int64_t)sizeof(float), &elems)) {
        return false;
    }
    *bytes_out = (size_t)elems;
    return true;
}

size_t hy3d_conv3d_format_bytes(hy3d_conv3d_format format, int64_t out_channels,
                                int64_t in_channels, const int64_t kernel[3])
{
    hy3d__winograd_filters filters;
    size_t bytes;
    return kernel != NULL &&
                   filters_of(format, out_channels, in_channels, kernel, &filters, &bytes)
               ? bytes
               : 0;
}

/* One panel a grain. */
typedef struct making {
    const hy3d__kernels *kernels;
    const hy3d__winograd_filters *filters;
    const hy3d_tensor *weight;
    float *u, *scratch;
    const hy3d_cancel *cancel;
} making;

static hy3d_status make_panel(void *argument, int64_t grain, uint32_t slot)
{
    const making *const m = argument;
    const hy3d__winograd_filters *const f = m->filters;
    for (int64_t c = 0; c < f->k; c += f->chunk) {
        if (hy3d_cancel_requested(m->cancel)) {
            return HY3D_ERR_CANCELLED;
        }
        hy3d__winograd_filters_make(m->kernels, f, m->weight, grain, c,
                                    hy3d__conv_min(f->chunk, f->k - c),
                                    m->u + grain * f->panel_elems + c * f->segments * 32,
                                    (size_t)(f->panels * f->panel_elems),
                                    m->scratch + slot * HY3D__WINOGRAD_FILTER_ELEMS);
    }
    return HY3D_OK;
}

static hy3d_status make_all(hy3d_context *context, const hy3d_tensor *weight,
                            const hy3d__winograd_filters *filters, uint32_t num_threads,
                            const hy3d_cancel *cancel, void *u)
{
    uint32_t slots = hy3d__slots(context, num_threads);
    void *scratch = NULL;

    slots = (int64_t)slots > filters->panels ? (uint32_t)filters->panels : slots;
    hy3d_status status = hy3d_alloc(
        context, slots * HY3D__WINOGRAD_FILTER_ELEMS * sizeof(float), &scratch);
    if (status != HY3D_OK) {
        return status;
    }
    making m = {.kernels = hy3d__kernels_for((int)hy3d_context_cpu_level(context)),
                .filters = filters,
                .weight = weight,
                .u = u,
                .scratch = scratch,
                .cancel = cancel};
    status = hy3d__parallel_for(context, filters->panels, slots, cancel, make_panel, &m);
    hy3d_free(context, scratch);
    return status;
}

hy3d_status hy3d_conv3d_weights_create(hy3d_context *context, const hy3d_tensor *weight,
                                       hy3d_conv3d_format format, uint32_t num_threads,
                                       const hy3d_cancel *cancel,
                                       hy3d_conv3d_weights **weights_out)
{
    hy3d__winograd_filters filters;
    void *memory = NULL, *data = NULL;
    size_t bytes = 0;

    if (context == NULL || weight == NULL || weights_out == NULL || weight->dtype == HY3D_F64 ||
        hy3d_dtype_bytes(weight->dtype) == 0 ||
        !filters_of(format, weight->size[0], weight->size[1], &weight->size[2], &filters,
                    &bytes)) {
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
        status = make_all(context, weight, &filters, num_threads, cancel, data);
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
    const hy3d_conv3d_format format = plan->strategy == HY3D__CONV_WINOGRAD
                                          ? hy3d__winograd_format(&plan->winograd.filters.kind)
                                          : HY3D_FORMAT_NONE;
    /* Another context may have another CPU level, whose filters differ in their last bits. */
    const bool fits = prepared->context == plan->context && prepared->format == format &&
                      prepared->out_channels == desc->out_channels &&
                      prepared->in_channels == desc->in_channels &&
                      prepared->kernel[0] == desc->kernel[0] &&
                      prepared->kernel[1] == desc->kernel[1] &&
                      prepared->kernel[2] == desc->kernel[2];
    return fits ? HY3D_OK : HY3D_ERR_INVALID_ARGUMENT;
}
