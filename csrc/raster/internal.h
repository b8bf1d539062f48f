/* How a picture is drawn: vertices -> bounds -> bins -> tiles.
 *
 *   bounds.c  which pixels a face may cover, by its corners on the screen (with a margin)
 *   bins.c    a list of faces for each tile, in order of faces; faces that would be in many lists
 *             are kept aside in one
 *   tile.c    a tile's faces in batches of eight: prepared and drawn by the kernels; tiles are
 *             what threads take
 *   odd.c     what rounding leaves open, with exact signs
 *
 * A tile takes its faces in ascending order, so of equal depths the lower face stays, and nothing
 * depends on which thread does which tile. */
#ifndef HY3D_RASTER_INTERNAL_H
#define HY3D_RASTER_INTERNAL_H

#include <stdbool.h>

#include "hy3d/raster.h"
#include "kernels/kernels.h"

/* A face in more tiles than this is large: it goes to a list of its own, not to each of theirs, so
 * that lists have a length that is known before. */
#define HY3D__RASTER_FEW_TILES 4

/* A vertex's place on the screen, in parts of a pixel; see bounds.c. */
typedef struct hy3d__raster_place {
    int32_t x, y;
} hy3d__raster_place;

/* Pixels from first to last that a face may cover; left > right is none. */
typedef struct hy3d__raster_bounds {
    uint16_t left, right, top, bottom;
} hy3d__raster_bounds;

/* A face in a tile's list, with the pixels of the tile that it may cover. */
typedef struct hy3d__raster_entry {
    int32_t face;
    uint8_t left, right, top, bottom;
} hy3d__raster_entry;

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
    int64_t parts, part_faces; /* faces are binned in so many parts */
    uint32_t *counts;          /* [part][tile]: faces, then where they begin in the tile's list;
                                    after the tiles: large ones */
    int64_t *starts;           /* [tile + 1]: of tiles' lists in `entries` */
    hy3d__raster_entry *entries;
    int32_t *large; /* faces */
    int64_t large_count;
    void *tile_state; /* one for each slot, see tile.c */
} hy3d__raster_job;

/* A rule and a size in numbers; the description is a good one. */
hy3d__raster_view hy3d__raster_view_of(const hy3d_raster_desc *desc);

/* HY3D_ERR_INVALID_ARGUMENT: a vertex is not finite. */
hy3d_status hy3d__raster_place_vertices(hy3d__raster_job *job);
/* The pixels that a face may cover, by its corners' places. */
hy3d__raster_bounds hy3d__raster_bounds_of(const hy3d__raster_job *job, const int32_t *corners);
/* Bounds of all faces, and their lists. HY3D_ERR_INVALID_ARGUMENT: an index is out of range. */
hy3d_status hy3d__raster_bin_faces(hy3d__raster_job *job);

/* Where bounds and the tile at (x, y) meet; false where they don't. */
static inline bool hy3d__raster_meet(hy3d__raster_bounds b, int32_t x, int32_t y,
                                     hy3d__raster_box *box)
{
    const int last = HY3D__TILE - 1;
    box->left = b.left > x ? b.left - x : 0;
    box->top = b.top > y ? b.top - y : 0;
    box->right = b.right - x < last ? b.right - x : last;
    box->bottom = b.bottom - y < last ? b.bottom - y : last;
    return box->left <= box->right && box->top <= box->bottom;
}

/* Whether the edge function ep P + eq Q + constant, with its error, is below 0 in all of the
 * box. */
bool hy3d__raster_misses(const hy3d__raster_view *view, const hy3d__raster_tile *tile,
                         const hy3d__raster_box *box, double ep, double eq, double constant,
                         double bound);

size_t hy3d__raster_tile_state_bytes(void);
hy3d_status hy3d__raster_draw_tiles(hy3d__raster_job *job);

/* The pixels `at` of a tile for one face, with exact signs: what it covers is drawn where it is
 * nearer. */
typedef struct hy3d__raster_odd hy3d__raster_odd;
struct hy3d__raster_odd {
    const hy3d__raster_view *view;
    const float *v[3];                    /* corners */
    double edge[3][3], bound[3], sign[3]; /* sign[i] * E_i >= 0 is inside; 0: covers nothing */
    double turn;                          /* of weights: turn * E_i */
    double z[3], low, high;
    double nearest, farthest; /* in steps, as in hy3d__raster_faces */
    int32_t face;
};
/* False where the face covers nothing. */
bool hy3d__raster_odd_prepare(const hy3d__raster_view *view, const float *clip,
                              const int32_t corner[3], int32_t face, hy3d__raster_odd *out);
/* Whether it covers nothing of the box: a few tests for many pixels. */
bool hy3d__raster_odd_misses(const hy3d__raster_odd *odd, const hy3d__raster_box *box,
                             const hy3d__raster_tile *tile);
void hy3d__raster_odd_pixel(const hy3d__raster_odd *odd, int column, int row,
                            hy3d__raster_tile *tile);

#endif
