/* Plans a video VAE decode under a byte budget: temporal chunks x spatial tiles.
 *
 * Pure integer functions: nothing is allocated, everything is in plain structs, all of them are
 * thread-safe.
 *
 * Work is cut into tiles. A tile's shape depends on the latent's shape and on the level only:
 * level 0 is the whole decode in one tile, and each further level halves the cores of one axis (or
 * makes them smaller by another part, see `shrink`): of those whose largest tile gets smaller by
 * it, the one whose largest decoded tile is longest relative to what a boundary adds to it (overlap
 * and halo of both sides, at least 1), so that the least work is done twice. Ties: the longest in
 * output units, then H, W, T. A core never gets below min_tile nor below the overlap, so at most
 * two tiles meet at any position of an axis. The cores of an axis differ by one latent at most, the
 * long ones first. The budget picks the lowest level whose tile fits, and how many tiles may be
 * in flight. So results depend on the level, never on the number in flight; the cost of a tile
 * never rises with the level; and a larger budget never gives a higher level. */
#ifndef HY3D_TILES_H
#define HY3D_TILES_H

#include <stdint.h>

#include "hy3d/export.h"
#include "hy3d/status.h"

/* Arrays of three are (T, H, W). */
typedef struct hy3d_tiles_desc {
    int64_t latent[3]; /* >= 1 */
    int64_t factor[3]; /* output units per latent unit, >= 1, e.g. {4, 8, 8} */
    /* 1, causal in time: L latent frames give (L - 1) * factor[0] + 1 frames, and the first output
     * frame of a chunk that starts at latent a is frame a * factor[0] of the video. 0: they give
     * L * factor[0]. */
    int32_t causal;
    /* Latent units shared by neighbouring tiles, blended; >= 0. Half of them lie on each side of
     * the boundary (the odd one before it); in causal time all lie before it, where alone a chunk
     * needs to reach. An axis shorter than twice the overlap or twice min_tile is never split. */
    int64_t overlap[3];
    /* Latent units decoded beyond the overlap on each inner side and dropped; >= 0. In causal
     * time before only, the warm-up: at least one where factor[0] > 1, whatever is given here,
     * because the first latent of a chunk makes one frame instead of factor[0]. */
    int64_t halo[3];
    int64_t min_tile[3]; /* smallest tile core in latent units, >= 1 */
    /* Cost of a tile in bytes: fixed + per_voxel * output voxels + per_token_pair * tokens^2,
     * of all that is decoded, halo included, tokens being latent voxels (attention); >= 0. */
    int64_t fixed_bytes, bytes_per_voxel, bytes_per_token_pair;
    int64_t resident_bytes; /* needed once beside the tiles (the output when it stays in memory) */
    int64_t budget_bytes;   /* 0: unlimited */
    int32_t max_in_flight;  /* >= 1 */
    int32_t level;          /* -1: chosen by the budget; >= 0: this one, which must fit as well */
    /* A level makes an axis' cores smaller by one part in so many, at least by one latent: 2, and
     * 0, halves; up to HY3D_TILES_MAX_SHRINK, for many levels close to each other. */
    int32_t shrink;
} hy3d_tiles_desc;

/* The last level there can be: with halves, and with finer steps (each takes an eighth off one of
 * 62 bits of cores, or one latent off a core of less than eight). */
#define HY3D_TILES_MAX_LEVEL 62
#define HY3D_TILES_MAX_FINE_LEVEL 511
#define HY3D_TILES_MAX_SHRINK 8

typedef struct hy3d_tiles_plan {
    hy3d_tiles_desc desc;
    int64_t out[3];                /* size of the whole output */
    int64_t tile[3];               /* longest core: latents a tile owns, without overlap and halo */
    int64_t count[3];              /* tiles along each axis */
    int64_t extent[3];             /* most latents that a tile decodes, overlap and halo included */
    int64_t tiles;                 /* product of count */
    int64_t tile_bytes;            /* cost of the largest tile */
    int64_t peak_bytes;            /* resident + in_flight * tile_bytes */
    int64_t smallest_budget_bytes; /* resident + one tile of the finest level */
    int32_t level, levels;         /* chosen level, and how many there are */
    int32_t in_flight;             /* as many as fit, at most max_in_flight and tiles */
    /* Output voxels that all tiles decode, what is done twice included: the work of a level. Exact
     * below 2^53. */
    double decoded_voxels;
} hy3d_tiles_plan;

/* One tile: which latents to decode, which part of the result to keep, where it goes and how it
 * is blended. All ranges are half open. The part to keep of an axis is the decoded tile's
 * trim_start .. trim_start + out_stop - out_start. */
typedef struct hy3d_tile {
    int64_t in_start[3], in_stop[3];   /* latent range to decode */
    int64_t trim_start[3];             /* output units to drop at the front of the decoded tile */
    int64_t out_start[3], out_stop[3]; /* where the kept part goes */
    int64_t ramp_before[3], ramp_after[3]; /* output units shared with the neighbours; 0 at edges */
    int64_t own_start[3], own_stop[3];     /* the core: each latent is in one tile's */
} hy3d_tile;

HY3D_BEGIN_DECLS

/* HY3D_ERR_INVALID_ARGUMENT: a field out of its range, or a level that the shape does not have
 * (levels are counted from 0). HY3D_ERR_OVERFLOW: the output, its voxels, the cost of the whole
 * decode or the cost of the level wanted does not fit in 63 bits.
 * HY3D_ERR_BUDGET_TOO_SMALL: *smallest_budget_out (if not NULL, written on this status only) names
 * the smallest budget that would do, for any level or for the one given: exactly this one does. */
HY3D_API hy3d_status hy3d_tiles_make(const hy3d_tiles_desc *desc, int64_t *smallest_budget_out,
                                     hy3d_tiles_plan *plan_out);
/* Tile `index`, 0 <= index < plan->tiles, time outermost, then H, then W. The plan may have been
 * filled in by hand: what does not fit together is HY3D_ERR_INVALID_ARGUMENT. It reads desc, out,
 * count and tiles. */
HY3D_API hy3d_status hy3d_tiles_at(const hy3d_tiles_plan *plan, int64_t index, hy3d_tile *tile_out);
/* The blend window of a tile along one axis: out_stop - out_start weights, multiples of 1/256
 * from 0 to 1. Windows of neighbours sum to exactly 1 in float at every position, and so do the
 * products of the three axes' windows over all tiles. HY3D_ERR_INVALID_ARGUMENT for an axis
 * other than 0, 1, 2, an empty range, or ramps that do not fit into it. HY3D_ERR_OVERFLOW for more
 * than 2^53 - 1 output units. */
HY3D_API hy3d_status hy3d_tile_window(const hy3d_tile *tile, int axis, float *window_out);

HY3D_END_DECLS

#endif
