/* How a picture is drawn: vertices -> bounds -> bins -> tiles.
 *
 *   bounds.c  which pixels a face may cover, by its corners on the screen (with a margin)
 *   bins.c    a list of faces for each tile, in order of faces; faces that would be in many lists are
 *             kept aside in one
 *   tile.c    a tile's faces in batches of eight: prepared and drawn by the kernels, a thread a tile
 *   odd.c     what rounding leaves open, with exact signs
 *
 * A tile takes its faces in ascending order, so of equal depths the lower face stays, and nothing
 * depends on which thread does which tile. */
#ifndef HY3D_RASTER_INTERNAL_H
#define HY3D_RASTER_INTERNAL_H

#include <stdbool.h>

#include "hy3d/raster.h"
#include "kernels/kernels.h"

/* A face in more tiles than this is large. */
#define HY3D__RASTER_FEW_TILES 16

/* A vertex's place on the screen, in parts of a pixel; see bounds.c. */
typedef struct hy3d__raster_place {
    int32_t x, y;
} hy3d__raster_place;

/* Pixels from first to last that a face may cover; left > right is none. */
typedef struct hy3d__raster_bounds {
    uint16_t left, right, top, bottom;
} hy3d__raster_bounds;

typedef struct hy3d__raster_job {
    hy3d_context *context;
    const hy3d__kernels *kernels;
    const hy3d_raster_desc *desc;
    hy3d__raster_view view;
    uint32_t slots;
    const hy3d_cancel *cancel;
    const float *clip;
    const int32_t *triangles;
    const float *prior;
    int32_t *face_index;
    float *barycentric, *depth;
    /* What is worked out on the way. */
    hy3d__raster_place *places;  /* of vertices */
    hy3d__raster_bounds *bounds; /* of faces */
    int64_t tiles_across, tiles;
    int64_t chunks, chunk_faces; /* faces are binned in so many parts */
    uint32_t *counts;            /* [chunk][tile + 1], then where a part's faces begin in a tile's list */
    int64_t *starts;             /* [tile + 2]: of tiles' lists in `entries`; the last one: large faces */
    int32_t *entries;
    void *tile_state; /* one for each slot, see tile.c */
} hy3d__raster_job;

/* HY3D_ERR_INVALID_ARGUMENT: a vertex is not finite, or an index out of range. */
hy3d_status hy3d__raster_place_vertices(hy3d__raster_job *job);
hy3d_status hy3d__raster_bound_faces(hy3d__raster_job *job);

/* Tiles from first to last that bounds lie in. */
static inline hy3d__raster_bounds hy3d__raster_tiles_of(hy3d__raster_bounds b)
{
    return (hy3d__raster_bounds){b.left / HY3D__TILE, b.right / HY3D__TILE, b.top / HY3D__TILE,
                                 b.bottom / HY3D__TILE};
}

static inline bool hy3d__raster_is_large(hy3d__raster_bounds tiles)
{
    return (tiles.right - tiles.left + 1) * (tiles.bottom - tiles.top + 1) >
           HY3D__RASTER_FEW_TILES;
}

/* Bins: how many entries, then the entries themselves. */
hy3d_status hy3d__raster_bin_count(hy3d__raster_job *job, int64_t *entries_out);
hy3d_status hy3d__raster_bin_fill(hy3d__raster_job *job);

size_t hy3d__raster_tile_state_bytes(void);
hy3d_status hy3d__raster_draw_tiles(hy3d__raster_job *job);

/* The pixels `at` of a tile for one face, with exact signs: what it covers is drawn where it is
 * nearer. */
typedef struct hy3d__raster_odd hy3d__raster_odd;
struct hy3d__raster_odd {
    const hy3d__raster_view *view;
    const float *v[3]; /* corners */
    double edge[3][3], bound[3], sign[3]; /* sign[i] * E_i >= 0 is inside; 0: covers nothing */
    double turn; /* of weights: turn * E_i */
    double z[3], low, high;
    int32_t face;
};
/* False where the face covers nothing. */
bool hy3d__raster_odd_prepare(const hy3d__raster_view *view, const float *clip,
                              const int32_t *triangles, int32_t face, hy3d__raster_odd *out);
void hy3d__raster_odd_pixel(const hy3d__raster_odd *odd, int column, int row,
                            hy3d__raster_tile *tile);

#endif
