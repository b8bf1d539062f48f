/* What the rasteriser's kernels work on; plain data, see csrc/raster/internal.h for the whole.
 *
 * A face's corners are (X, Y, Z, W). Edge i is the plane through the eye and the two corners other
 * than i: E_i(p) = det(v_j, v_k, p) over (X, Y, W), (i, j, k) cyclic, which no vertex behind the
 * eye disturbs. A pixel is p = (P, Q, R), whole numbers that are exact in double:
 *     P = (2 column + 1 - width) * sy,  Q = (2 row + 1 - height) * sx,  R = sx * sy. */
#ifndef HY3D_KERNELS_RASTER_DATA_H
#define HY3D_KERNELS_RASTER_DATA_H

#include <stdint.h>

/* One read of a value that another thread may be changing: what is compared is what is used. */
static inline int32_t hy3d__read_i32(const int32_t *at)
{
    return *(const volatile int32_t *)at;
}

static inline float hy3d__read_f32(const float *at)
{
    return *(const volatile float *)at;
}

/* An index that was below limit, which is at least 1, when all were checked; 0 where another thread
 * has changed it since. */
static inline int32_t hy3d__read_index(const int32_t *at, uint32_t limit)
{
    const int32_t index = hy3d__read_i32(at);
    return (uint32_t)index < limit ? index : 0;
}

#define HY3D__TILE 64 /* pixels a side: depth and faces of them take 32 KB */
#define HY3D__TILE_PIXELS (HY3D__TILE * HY3D__TILE)
#define HY3D__TILE_SLACK 8 /* a vector may be loaded beyond the last pixel */
#define HY3D__FACES 8      /* in a batch */

/* An edge function's error, relative to its terms: at most seven roundings of 2^-53 are met. */
#define HY3D__RASTER_ERROR 0x1p-50
/* Above this share of the whole a corner's weight is not known well enough for depth. */
#define HY3D__RASTER_FRAGILE 0x1p-32
/* Corners on both sides of the eye may cancel in the sum of weights; below this share of its terms
 * it is left to exact signs. Weights are good to HY3D__RASTER_FRAGILE of them. */
#define HY3D__RASTER_CANCELS 0x1p-12
/* W within these: weights are at home in float. */
#define HY3D__RASTER_LEAST_W 0x1p-60
#define HY3D__RASTER_MOST_W 0x1p60
/* Steps of depth are held within +- these. */
#define HY3D__RASTER_MOST_STEPS 0x1p30

/* What is the same for all faces of a picture. */
typedef struct hy3d__raster_view {
    int32_t width, height;
    double sx, sy, r;
    double scale, offset;     /* Z/W counts scale * Z/W + offset steps of depth, rounded down */
    double unscale;           /* 1 / scale */
    double nearest, farthest; /* in steps; what is outside of them is cut off */
    double hidden;            /* drops what is nearer than prior * scale + hidden */
    int compat;               /* hy3d_raster_rule */
} hy3d__raster_view;

/* P of a column, Q of a row. */
static inline double hy3d__raster_p(const hy3d__raster_view *view, int column)
{
    return (2.0 * column + 1 - view->width) * view->sy;
}

static inline double hy3d__raster_q(const hy3d__raster_view *view, int row)
{
    return (2.0 * row + 1 - view->height) * view->sx;
}

/* The factors of P, Q and R in det(a, b, (P, Q, R)): each one rounded difference of exact products,
 * so of the exact sign. */
static inline void hy3d__raster_cross(const float *a, const float *b, double out[3])
{
    const double ax = (double)a[0], ay = (double)a[1], aw = (double)a[3];
    const double bx = (double)b[0], by = (double)b[1], bw = (double)b[3];
    out[0] = ay * bw - aw * by;
    out[1] = aw * bx - ax * bw;
    out[2] = ax * by - ay * bx;
}

/* Prepared faces, structure of arrays. Edge functions are turned so that the inside is >= 0, and
 * divided by |det(v_0, v_1, v_2)| R: times `side` they are the corners' weights, and the sum of
 * weight_i W_i is 1. */
typedef struct hy3d__raster_faces {
    double edge[3][3][HY3D__FACES]; /* [edge][factor of P, factor of Q, constant] */
    double bound[HY3D__FACES];      /* no edge function's rounding error is above */
    double z[3][HY3D__FACES];       /* depth in steps is the sum of E_i z_i, and offset */
    double side[3][HY3D__FACES];    /* -1 for a corner behind the eye, not clipped; else 1 */
    /* Depths in steps outside of which a careful face is cut: the planes, or nothing where all
     * corners lie on the right side, so that rounding cuts no face that lies in a plane. */
    double nearest[HY3D__FACES], farthest[HY3D__FACES];
    int32_t face[HY3D__FACES];
    unsigned odd;     /* bit k: face k needs exact arithmetic; all else of it is undefined */
    unsigned careful; /* bit k: it is cut, goes through the eye's plane, or out of depth's range */
} hy3d__raster_faces;

/* Pixels of a tile, first to last, within it. */
typedef struct hy3d__raster_box {
    int left, right, top, bottom; /* the last two columns and rows belong to it */
} hy3d__raster_box;

typedef struct hy3d__raster_tile {
    int32_t x, y;       /* of its first pixel */
    const float *prior; /* at its first pixel; NULL without one */
    int64_t prior_pitch;
    int wants_depth;
    int32_t step[HY3D__TILE_PIXELS + HY3D__TILE_SLACK]; /* depth; INT32_MAX where nothing is */
    int32_t face[HY3D__TILE_PIXELS + HY3D__TILE_SLACK]; /* + 1 */
    float barycentric[3][HY3D__TILE_PIXELS + HY3D__TILE_SLACK];
    float depth[HY3D__TILE_PIXELS + HY3D__TILE_SLACK];
    /* Pixels of the last face of which rounding leaves open whether they are covered, in any
     * order. */
    int doubts;
    uint16_t doubt[HY3D__TILE_PIXELS];
} hy3d__raster_tile;

#endif
