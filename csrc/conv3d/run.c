/* One run of a plan: checks the tensors, then hands the grains out. */
#include "conv3d/plan.h"

hy3d_status hy3d_conv3d_run(const hy3d_conv3d_plan *plan, const hy3d_tensor *x,
                            const hy3d_tensor *y, void *workspace, const hy3d_cancel *cancel)
{
    return hy3d_conv3d_run_fused(plan, x, NULL, y, workspace, cancel);
}

hy3d_status hy3d_conv3d_run_fused(const hy3d_conv3d_plan *plan, const hy3d_tensor *x,
                                  const hy3d_conv3d_fusion *fusion, const hy3d_tensor *y,
                                  void *workspace, const hy3d_cancel *cancel)
{
    static const hy3d_conv3d_fusion none = {0};

    if (plan == NULL) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    const hy3d_status status = hy3d__conv_check_io(&plan->desc, plan->out, x, fusion, y);
    if (status != HY3D_OK) {
        return status;
    }
    if (plan->grains == 0) {
        return HY3D_OK;
    }
    if (workspace == NULL || (uintptr_t)workspace % HY3D__CONV_ALIGN != 0) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    hy3d__conv_run run = {.plan = plan,
                          .x = x,
                          .y = y,
                          .fusion = fusion == NULL ? &none : fusion,
                          .workspace = workspace,
                          .cancel = cancel};
    return hy3d__parallel_for(plan->context, plan->grains, plan->slots, cancel, plan->strategy->run,
                              &run);
}
