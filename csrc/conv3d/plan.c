/* Plans: put together from the checks, a strategy and the weights. */
#include "conv3d/plan.h"

#include "base/blas.h"

#define DEFAULT_LIMIT_BYTES ((size_t)64 << 20)

/* How many grains may be in flight: as many as threads, grains and the limit allow. */
static hy3d_status set_slots(hy3d_conv3d_plan *plan, size_t *needed_out)
{
    const hy3d_conv3d_desc *const desc = &plan->desc;
    uint32_t slots = hy3d__slots(plan->context, desc->num_threads);
    size_t limit = desc->workspace_limit_bytes;

    plan->input_bytes =
        (plan->input_bytes + HY3D__CONV_ALIGN - 1) / HY3D__CONV_ALIGN * HY3D__CONV_ALIGN;
    plan->slot_bytes = (plan->input_bytes + plan->result_bytes + HY3D__CONV_ALIGN - 1) /
                       HY3D__CONV_ALIGN * HY3D__CONV_ALIGN;
    if (needed_out != NULL) {
        *needed_out = plan->slot_bytes;
    }
    if (limit == 0) {
        limit = DEFAULT_LIMIT_BYTES * slots; /* a context has 1024 threads at most */
    }
    if (plan->slot_bytes > limit) {
        return HY3D_ERR_WORKSPACE_TOO_SMALL;
    }
    if ((int64_t)slots > plan->grains) {
        slots = plan->grains > 0 ? (uint32_t)plan->grains : 1;
    }
    if (slots > limit / plan->slot_bytes) {
        slots = (uint32_t)(limit / plan->slot_bytes);
    }
    plan->slots = slots;
    plan->workspace_bytes = plan->slot_bytes * slots;
    return HY3D_OK;
}

static hy3d_status make_offsets(hy3d_conv3d_plan *plan)
{
    const size_t bytes = (size_t)plan->block_k * sizeof *plan->offsets;
    void *memory = NULL;
    const hy3d_status status = hy3d_alloc(plan->context, bytes, &memory);
    if (status != HY3D_OK) {
        return status;
    }
    plan->offsets = memory;
    plan->own_bytes += bytes;
    for (int64_t i = 0; i < plan->block_k; i++) {
        plan->offsets[i] = plan->strategy->offset(plan, i);
    }
    return HY3D_OK;
}

hy3d_status hy3d__conv_begin(const hy3d_conv3d_desc *desc, hy3d_cpu_level level,
                             hy3d_conv3d_plan *plan_out)
{
    int64_t out[3];
    const hy3d_status status = hy3d__conv_check_desc(desc, out);

    if (status != HY3D_OK) {
        return status;
    }
    const int64_t c = desc->in_channels / desc->groups;
    const int64_t taps = desc->kernel[0] * desc->kernel[1] * desc->kernel[2];
    *plan_out = (hy3d_conv3d_plan){
        .level = level,
        .kernels = hy3d__kernels_for((int)level),
        .desc = *desc,
        .out = {out[0], out[1], out[2]},
        .m = desc->out_channels / desc->groups,
        .c = c,
        .taps = taps,
        .k = c * taps,
        .compute_bytes = desc->dtype == HY3D_F64 ? sizeof(double) : sizeof(float),
        .own_bytes = sizeof *plan_out,
    };
    return HY3D_OK;
}

/* Strategy, blocks and workspace; allocates nothing. */
static hy3d_status choose(hy3d_conv3d_plan *plan, size_t *needed_out)
{
    const hy3d__conv_strategy *const *row = hy3d__conv_strategies;

    while (!(*row)->choose(plan)) {
        row++;
    }
    plan->strategy = *row;
    plan->strategy->cut(plan, hy3d__slots(plan->context, plan->desc.num_threads));
    return set_slots(plan, needed_out);
}

/* Everything after the checks. */
static hy3d_status build(hy3d_conv3d_plan *plan, const hy3d_tensor *weight, const hy3d_tensor *bias,
                         size_t *needed_out)
{
    hy3d_status status = choose(plan, needed_out);

    if (status == HY3D_OK && plan->prepared != NULL) {
        status = hy3d__conv_check_prepared(plan);
    }
    if (status == HY3D_OK && plan->strategy->needs_blas && plan->grains > 0) {
        status = hy3d__blas_load(plan->context);
    }
    if (status == HY3D_OK && plan->strategy->offset != NULL) {
        status = make_offsets(plan);
    }
    if (status == HY3D_OK) {
        status = hy3d__conv_take_weight(plan, weight, bias);
    }
    if (status == HY3D_ERR_OUT_OF_MEMORY && plan->own_format != HY3D_FORMAT_NONE &&
        !plan->is_short) {
        /* Without weights of its own a plan needs less. */
        hy3d_free(plan->context, plan->bias);
        plan->bias = NULL;
        plan->own_bytes = sizeof *plan;
        plan->is_short = true;
        status = choose(plan, needed_out);
        return status == HY3D_OK ? hy3d__conv_take_weight(plan, weight, bias) : status;
    }
    return status;
}

hy3d_status hy3d_conv3d_plan_create(hy3d_context *context, const hy3d_conv3d_desc *desc,
                                    const hy3d_tensor *weight, const hy3d_tensor *bias,
                                    size_t *needed_out, hy3d_conv3d_plan **plan_out)
{
    return hy3d_conv3d_plan_create_prepared(context, desc, weight, bias, NULL, needed_out,
                                            plan_out);
}

hy3d_status hy3d_conv3d_plan_create_prepared(hy3d_context *context, const hy3d_conv3d_desc *desc,
                                             const hy3d_tensor *weight, const hy3d_tensor *bias,
                                             const hy3d_conv3d_weights *prepared,
                                             size_t *needed_out, hy3d_conv3d_plan **plan_out)
{
    hy3d_conv3d_plan begun;
    void *memory = NULL;

    if (context == NULL || desc == NULL || weight == NULL || plan_out == NULL) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    hy3d_status status = hy3d__conv_begin(desc, hy3d_context_cpu_level(context), &begun);
    if (status == HY3D_OK) {
        status = hy3d__conv_check_weight(desc, weight, bias);
    }
    if (status == HY3D_OK) {
        status = hy3d_alloc(context, sizeof begun, &memory);
    }
    if (status != HY3D_OK) {
        return status;
    }
    hy3d_conv3d_plan *const plan = memory;
    *plan = begun;
    plan->context = context;
    plan->prepared = prepared;
    plan->filter = *weight;
    status = build(plan, weight, bias, needed_out);
    if (status != HY3D_OK) {
        hy3d_conv3d_plan_destroy(plan);
        return status;
    }
    *plan_out = plan;
    return HY3D_OK;
}

hy3d_status hy3d_conv3d_memory(hy3d_context *context, const hy3d_conv3d_desc *desc,
                               bool has_prepared, size_t *workspace_bytes_out,
                               size_t *own_bytes_out)
{
    static const hy3d_conv3d_weights some = {0};
    hy3d_conv3d_plan plan;

    if (context == NULL || desc == NULL || workspace_bytes_out == NULL || own_bytes_out == NULL) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    hy3d_status status = hy3d__conv_begin(desc, hy3d_context_cpu_level(context), &plan);
    if (status != HY3D_OK) {
        return status;
    }
    plan.context = context;
    plan.prepared = has_prepared ? &some : NULL;
    status = choose(&plan, NULL);
    if (status != HY3D_OK) {
        return status;
    }
    if (plan.strategy->offset != NULL) {
        plan.own_bytes += (size_t)plan.block_k * sizeof *plan.offsets;
    }
    *own_bytes_out = plan.own_bytes + hy3d__conv_taken_bytes(&plan);
    *workspace_bytes_out = plan.workspace_bytes;
    return HY3D_OK;
}

void hy3d_conv3d_plan_destroy(hy3d_conv3d_plan *plan)
{
    if (plan == NULL) {
        return;
    }
    hy3d_context *const context = plan->context;
    hy3d_conv3d_weights_destroy(plan->own_prepared);
    hy3d_free(context, plan->bias);
    hy3d_free(context, plan->own_weight);
    hy3d_free(context, plan->offsets);
    hy3d_free(context, plan);
}

size_t hy3d_conv3d_plan_workspace_bytes(const hy3d_conv3d_plan *plan)
{
    return plan == NULL ? 0 : plan->workspace_bytes;
}

size_t hy3d_conv3d_plan_own_bytes(const hy3d_conv3d_plan *plan)
{
    return plan == NULL ? 0 : plan->own_bytes;
}

uint32_t hy3d_conv3d_plan_threads(const hy3d_conv3d_plan *plan)
{
    return plan == NULL ? 0 : plan->slots;
}

const char *hy3d_conv3d_plan_strategy(const hy3d_conv3d_plan *plan)
{
    return plan == NULL ? "none" : plan->strategy->name(plan);
}
