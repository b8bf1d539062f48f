/* Plans a video VAE decode under a byte budget: temporal chunks x spatial tiles.
 *
 * Pure integer functions: nothing is allocated, everything is in plain structs.
 *
 * Work is cut into grains. A grain's shape depends on the latent's shape and on the level only:
 * level 0 is the whole decode in one grain, each further level halves the longest tile axis (in
 * output units), down to the smallest tile that the overlap allows. The budget picks the lowest
 * level whose grain fits, and how many grains may be in flight. So results depend on the level,
 * never on the number in flight, and a larger budget never gives a higher level. */
#ifndef HY3D_SCHEDULE_H
#define HY3D_SCHEDULE_H

#include <stdint.h>

#include "hy3d/export.h"
#include "hy3d/status.h"

/* Arrays of three are (T, H, W). */
typedef struct hy3d_schedule_desc {
    int64_t latent[3]; /* >= 1 */
    int64_t factor[3]; /* output units per latent unit, >= 1, e.g. {4, 8, 8} */
    /* Causal in time: L latent frames give (L - 1) * factor[0] + 1 frames, and the first output
     * frame of a chunk that starts at latent a is frame a * factor[0] of the video. Otherwise
     * L * factor[0]. */
    int32_t causal;
    int64_t overlap[3];  /* latent units shared by neighbouring tiles, blended; >= 0 */
    int64_t halo[3];     /* latent units decoded beyond the overlap on each inner side and dropped
                            (in time: before only, the causal warm-up); >= 0 */
    int64_t min_tile[3]; /* smallest tile core in latent units, >= 1 */
    /* Cost of a grain in bytes: fixed + per_voxel * output voxels + per_token_pair * tokens^2,
     * tokens being latent voxels (attention). Everything >= 0. */
    int64_t fixed_bytes, bytes_per_voxel, bytes_per_token_pair;
    int64_t resident_bytes; /* needed once beside the grains (the output when it stays in memory) */
    int64_t budget_bytes;   /* 0: unlimited */
    int32_t max_in_flight;  /* >= 1 */
    int32_t level;          /* -1: chosen by the budget; >= 0: this one */
} hy3d_schedule_desc;

#define HY3D_SCHEDULE_MAX_LEVEL 62

typedef struct hy3d_schedule_plan {
    hy3d_schedule_desc desc;
    int64_t out[3];        /* size of the whole output */
    int64_t tile[3];       /* latent units a grain owns before overlap and halo are added */
    int64_t count[3];      /* grains along each axis */
    int64_t grains;        /* product of count */
    int64_t grain_bytes;   /* cost of the largest grain */
    int64_t peak_bytes;    /* resident + in_flight * grain_bytes */
    int64_t smallest_budget_bytes; /* of the finest level: what a refusal names */
    int32_t level, levels; /* chosen level, and how many there are */
    int32_t in_flight;
} hy3d_schedule_plan;

/* One grain: which latents to decode, which part of the result to keep, where it goes and how it
 * is blended. All ranges are half open. */
typedef struct hy3d_schedule_grain {
    int64_t in_start[3], in_stop[3];   /* latent range to decode */
    int64_t trim_start[3];             /* output units to drop at the front of the decoded tile */
    int64_t out_start[3], out_stop[3]; /* where the kept part goes */
    int64_t ramp_before[3], ramp_after[3]; /* output units shared with the neighbours; 0 at edges */
} hy3d_schedule_grain;

HY3D_BEGIN_DECLS

/* On HY3D_ERR_BUDGET_TOO_SMALL *smallest_budget_out (if not NULL) names the smallest budget that
 * would do. */
HY3D_API hy3d_status hy3d_schedule_make(const hy3d_schedule_desc *desc,
                                        int64_t *smallest_budget_out, hy3d_schedule_plan *plan_out);
/* Grain `index`, 0 <= index < plan->grains, time outermost, then H, then W. */
HY3D_API hy3d_status hy3d_schedule_grain_at(const hy3d_schedule_plan *plan, int64_t index,
                                            hy3d_schedule_grain *grain_out);
/* The blend window of a grain along one axis: out_stop - out_start weights. Windows of
 * neighbours sum to exactly 1 in float at every position. */
HY3D_API hy3d_status hy3d_schedule_window(const hy3d_schedule_grain *grain, int axis,
                                          float *window_out);

HY3D_END_DECLS

#endif
