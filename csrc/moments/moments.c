/* Moments of channels, one channel a grain.
 *
 * A channel's positions are taken in order, BLOCK at a time, wherever they lie: so the sums do not
 * depend on the layout. Within a block, with s its first value, d = x - s and n values: the sum of
 * d^2 is at most n times the block's deviations (s is one of the values), so what is lost by
 * subtracting (sum d)^2 / n is at most 3 (n / 16 + 8) n 2^-53 < 1e-10 of them. Blocks are put
 * together as Chan, Golub and LeVeque do: all terms are positive. */
#include "hy3d/moments.h"

#include "base/checked.h"
#include "base/parallel.h"
#include "base/reach.h"
#include "elements/elements.h"

/* 8 KiB as f32: stays in L1 between conversion and sums. */
#define BLOCK 2048

enum { DIM_N = 0, DIM_C = 1, DIM_T = 2, DIM_H = 3, DIM_W = 4 };

typedef struct moments_job {
    const hy3d__kernels *kernels;
    const hy3d_tensor *x;
    int64_t positions; /* of a channel */
    int64_t run;       /* positions that follow each other in memory with stride `step` */
    int64_t step;
    double *mean, *deviations;
} moments_job;

typedef struct sums {
    double count, mean, deviations;
} sums;

static const char *element(const moments_job *job, int64_t channel, int64_t position)
{
    const hy3d_tensor *const x = job->x;
    int64_t offset = channel * x->stride[DIM_C];
    for (int dim = DIM_W; dim >= DIM_N; dim--) {
        if (dim != DIM_C) {
            offset += position % x->size[dim] * x->stride[dim];
            position /= x->size[dim];
        }
    }
    return (const char *)x->data + offset * (int64_t)hy3d_dtype_bytes(x->dtype);
}

/* Positions first .. first + n of a channel: in place where they can be, else in `buffer`. */
static const float *block_of(const moments_job *job, int64_t channel, int64_t first, int64_t n,
                             float *buffer)
{
    const int64_t left = job->run - first % job->run;
    if (job->x->dtype == HY3D_F32 && job->step == 1 && left >= n) {
        return (const void *)element(job, channel, first);
    }
    for (int64_t at = 0; at < n;) {
        const int64_t in_run = job->run - (first + at) % job->run;
        const int64_t count = in_run < n - at ? in_run : n - at;
        hy3d__read_elements(job->kernels, job->x->dtype, element(job, channel, first + at),
                            job->step, count, buffer + at);
        at += count;
    }
    return buffer;
}

static void add_block(const moments_job *job, size_t n, const float *block, sums *total)
{
    const double shift = (double)block[0], count = (double)n;
    double sum[2];
    job->kernels->moments_f32(n, block, shift, sum);
    const double inside = sum[1] - sum[0] * sum[0] / count;
    const double deviations = inside < 0 ? 0 : inside; /* a NaN stays one */
    const double apart = shift + sum[0] / count - total->mean;
    const double both = total->count + count;
    total->mean += apart * (count / both);
    total->deviations += deviations + apart * apart * (total->count * (count / both));
    total->count = both;
}

static hy3d_status moments_grain(void *argument, int64_t channel, uint32_t slot)
{
    const moments_job *const job = argument;
    float buffer[BLOCK];
    sums total = {0, 0, 0};
    (void)slot;
    for (int64_t at = 0; at < job->positions; at += BLOCK) {
        const int64_t left = job->positions - at;
        const int64_t n = left < BLOCK ? left : BLOCK;
        add_block(job, (size_t)n, block_of(job, channel, at, n, buffer), &total);
    }
    job->mean[channel] = total.mean;
    job->deviations[channel] = total.deviations;
    return HY3D_OK;
}

static hy3d_status check(const hy3d_tensor *x, int64_t *positions)
{
    *positions = 1;
    for (int dim = 0; dim < HY3D_TENSOR_DIMS; dim++) {
        if (x->size[dim] < 0 || (dim != DIM_C && x->size[dim] == 0)) {
            return HY3D_ERR_INVALID_ARGUMENT;
        }
        if (dim != DIM_C && !hy3d__mul_i64(*positions, x->size[dim], positions)) {
            return HY3D_ERR_OVERFLOW;
        }
    }
    if (hy3d_dtype_bytes(x->dtype) == 0) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    if (x->dtype == HY3D_F64) {
        return HY3D_ERR_UNSUPPORTED;
    }
    return x->size[DIM_C] == 0
               ? HY3D_OK
               : hy3d__check_reach(x->data, x->dtype, HY3D_TENSOR_DIMS, x->size, x->stride);
}

/* Along W, and along H, T and N too where they go on where the one inside ends. */
static void find_run(moments_job *job)
{
    const hy3d_tensor *const x = job->x;
    job->step = x->stride[DIM_W];
    job->run = x->size[DIM_W];
    for (int dim = DIM_H; dim >= DIM_N; dim--) {
        if (dim == DIM_C || x->size[dim] == 1) {
            continue;
        }
        if (x->stride[dim] != job->run * job->step) {
            return;
        }
        job->run *= x->size[dim];
    }
}

hy3d_status hy3d_channel_moments(hy3d_context *context, const hy3d_tensor *x, uint32_t num_threads,
                                 const hy3d_cancel *cancel, double *mean, double *deviations)
{
    if (context == NULL || x == NULL || mean == NULL || deviations == NULL) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    moments_job job = {
        .kernels = hy3d__kernels_for((int)hy3d_context_cpu_level(context)),
        .x = x,
        .mean = mean,
        .deviations = deviations,
    };
    const hy3d_status status = check(x, &job.positions);
    if (status != HY3D_OK) {
        return status;
    }
    find_run(&job);
    const uint32_t slots = hy3d__slots(context, num_threads);
    return hy3d__parallel_for(context, x->size[DIM_C], slots, cancel, moments_grain, &job);
}
