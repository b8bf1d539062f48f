#include "hy3d/peak.h"

#include "base/parallel.h"
#include "kernels/kernels.h"

/* Eight grains a thread: one that is interrupted does not make the others wait for long. */
enum { GRAINS = 8, SUMS = 384, FLOPS_PER_ROUND = 2 * SUMS };

typedef struct burn {
    const hy3d__kernels *kernels;
    size_t rounds;
} burn;

static hy3d_status burn_grain(void *argument, int64_t grain, uint32_t slot)
{
    const burn *const job = argument;
    float sums[SUMS];
    (void)slot;
    for (int i = 0; i < SUMS; i++) {
        sums[i] = (float)(i + grain % GRAINS);
    }
    job->kernels->peak_f32(job->rounds, 0.5F, 1.0F, sums);
    return HY3D_OK;
}

hy3d_status hy3d_peak_run(hy3d_context *context, uint32_t num_threads, int64_t rounds,
                          double *flops_out)
{
    if (context == NULL || flops_out == NULL || rounds < 1 || rounds > INT64_C(1) << 22) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    const uint32_t threads = hy3d__slots(context, num_threads);
    burn job = {hy3d__kernels_for((int)hy3d_context_cpu_level(context)), (size_t)rounds};
    const int64_t grains = (int64_t)GRAINS * threads;
    const hy3d_status status = hy3d__parallel_for(context, grains, threads, NULL, burn_grain, &job);
    if (status == HY3D_OK) {
        *flops_out = (double)grains * (double)rounds * (double)FLOPS_PER_ROUND;
    }
    return status;
}
