/* What the schedule's tests share: an ordinary description, and a plan that must be made. */
#ifndef HY3D_TESTS_SCHEDULE_SUPPORT_H
#define HY3D_TESTS_SCHEDULE_SUPPORT_H

#include "hy3d/tiles.h"
#include "support.h"

#define MAX_OUT 512

static inline hy3d_tiles_desc basic_desc(int64_t t, int64_t h, int64_t w)
{
    const hy3d_tiles_desc desc = {
        .latent = {t, h, w},
        .factor = {4, 8, 8},
        .causal = 1,
        .overlap = {1, 2, 2},
        .halo = {1, 1, 1},
        .min_tile = {2, 4, 4},
        .fixed_bytes = 1000,
        .bytes_per_voxel = 12,
        .max_in_flight = 1,
        .level = -1,
    };
    return desc;
}

static inline hy3d_tiles_plan make_ok(const hy3d_tiles_desc *desc)
{
    hy3d_tiles_plan plan;
    ck_assert_ok(hy3d_tiles_make(desc, NULL, &plan));
    return plan;
}

#endif
