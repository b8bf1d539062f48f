/* One axis of a decode: where its tiles start, what they decode and which output they make.
 *
 * Every function here is total and cannot overflow once hy3d__tiles_axis has succeeded: all
 * positions lie between 0 and the axis' length, and that length in output units was checked. */
#ifndef HY3D_TILES_AXIS_H
#define HY3D_TILES_AXIS_H

#include <stdbool.h>
#include <stdint.h>

#include "hy3d/tiles.h"
#include "hy3d/status.h"

typedef struct hy3d__axis {
    int64_t latent, factor; /* length in latent units, output units per latent unit */
    int64_t out;            /* length in output units */
    bool causal;
    /* Latents that neighbours share, before and after a tile's first latent: at most `latent`. */
    int64_t shared_before, shared_after;
    /* The same with the halo added: what is decoded beyond the core. */
    int64_t reach_before, reach_after;
    int64_t reach;     /* both together, 1 .. latent: what a boundary costs */
    int64_t max_count; /* most tiles, so that none is below min_tile or the overlap */
} hy3d__axis;

/* The highest level that may be asked for. */
int32_t hy3d__tiles_max_level(const hy3d_tiles_desc *desc);
/* HY3D_ERR_INVALID_ARGUMENT for any field out of its range, checked before anything is used. */
hy3d_status hy3d__tiles_check(const hy3d_tiles_desc *desc);
/* desc has been checked. HY3D_ERR_OVERFLOW when the output's length does not fit. */
hy3d_status hy3d__tiles_axis(const hy3d_tiles_desc *desc, int index, hy3d__axis *axis_out);

/* First latent of tile `tile`, 0 <= tile <= count: cores differ by at most one, long ones first. */
int64_t hy3d__axis_start(const hy3d__axis *axis, int64_t count, int64_t tile);
/* Output units that belong to the latents before `latent`, 0 <= latent <= axis->latent. */
int64_t hy3d__axis_output(const hy3d__axis *axis, int64_t latent);
/* Output units that decoding `extent` >= 1 latents as a clip of its own gives. */
int64_t hy3d__axis_decoded(const hy3d__axis *axis, int64_t extent);
/* Latent range that tile `tile` decodes. */
void hy3d__axis_input(const hy3d__axis *axis, int64_t count, int64_t tile, int64_t *start_out,
                      int64_t *stop_out);
/* The most latents that any of `count` tiles decodes, exact. */
int64_t hy3d__axis_max_extent(const hy3d__axis *axis, int64_t count);
/* Tiles after the next step, which takes one part in `shrink` (>= 2) off the longest core; `count`
 * itself when no step makes the largest tile smaller. */
int64_t hy3d__axis_next_count(const hy3d__axis *axis, int64_t count, int64_t shrink);
/* Output units that `count` tiles decode together. */
double hy3d__axis_all_decoded(const hy3d__axis *axis, int64_t count);

#endif
