/* A rasteriser on the CPU, and what a texture stage does with its result.
 *
 * Arrays are dense, row-major and of the caller; a picture's row 0 is Y = -1, column 0 is X = -1. Faces are
 * triples of vertex indices; a face index in a picture is 0 where nothing was drawn, else the
 * face's number + 1. Every result is bit-identical for every thread count and CPU level. No array that is
 * written may overlap another. HY3D_ERR_INVALID_ARGUMENT is found before anything is written. */
#ifndef HY3D_RASTER_H
#define HY3D_RASTER_H

#include <stdint.h>

#include "hy3d/context.h"
#include "hy3d/export.h"
#include "hy3d/status.h"

/* Width and height of a picture, at most. */
#define HY3D_RASTER_MOST_PIXELS_A_SIDE 32768

/* Which pixels a triangle covers, and what is visible. Under both rules both facings count, coverage
 * is decided exactly (as if in real numbers, from the float32 vertices), a face without area covers
 * nothing, the smallest depth wins and of equal depths the lower face. */
typedef enum hy3d_raster_rule {
    /* Of the texture packs' rasteriser: the centre of column i is X/W = 2 i / (width - 1) - 1, edges
     * belong to both neighbours, nothing is clipped (a vertex behind the camera is projected through
     * it; a face with W = 0 covers nothing), and depth is (Z/W * 0.49999 + 0.5) in steps of 2^-18. */
    HY3D_RASTER_COMPAT = 0,
    /* Of OpenGL, Vulkan and Direct3D: the centre of column i is X/W = (2 i + 1) / width - 1, an edge
     * belongs to the triangle right of it or below it (top-left rule, seen with row 0 on top), so that
     * each pixel of a closed surface's outline is covered exactly once; what is nearer than the near
     * plane (Z < -W) or beyond the far one (Z > W) is cut off; depth is in steps of 2^-30. */
    HY3D_RASTER_TOPLEFT = 1,
} hy3d_raster_rule;

typedef struct hy3d_raster_desc {
    hy3d_raster_rule rule;
    int64_t width, height; /* 1 to HY3D_RASTER_MOST_PIXELS_A_SIDE */
    int64_t vertices;      /* 0 to 2^31 - 1 */
    int64_t faces;         /* 0 to 2^31 - 2 */
    uint32_t num_threads;  /* at most; 0 is the context's maximum */
} hy3d_raster_desc;

typedef enum hy3d_raster_fault {
    HY3D_RASTER_NO_FAULT = 0,
    HY3D_RASTER_NOT_FINITE = 1, /* a vertex has a NaN or an infinity */
    HY3D_RASTER_BAD_INDEX = 2,  /* a face names a vertex that is not there, or a pixel such a face */
} hy3d_raster_fault;

/* What is wrong with the values in arrays. */
typedef struct hy3d_raster_problem {
    hy3d_raster_fault fault;
    int64_t at;    /* the number of the vertex, of the face, of the pixel: the first one */
    int64_t value; /* the bad index */
} hy3d_raster_problem;

HY3D_BEGIN_DECLS

/* clip (vertices, 4) as a vertex shader leaves them: X, Y, Z, W, all finite. faces (faces, 3).
 * prior is NULL or (height, width) of Z/W: of what was drawn there before; what is nearer than it by
 * (prior * 0.49999 + 0.5 + 1e-6) is dropped (depth peeling; NaN drops nothing, +inf all).
 * To face_index (height, width); to barycentric (height, width, 3), perspective-correct, 0 where
 * nothing was drawn; to depth (height, width) Z/W, +inf where nothing was drawn. The last two may be
 * NULL. problem_out (may be NULL) says what HY3D_ERR_INVALID_ARGUMENT found wrong in clip or faces.
 * Takes about 8 bytes a vertex, 8 to 72 a face, 25 KB a thread. HY3D_ERR_CANCELLED leaves the
 * pictures partly written. */
HY3D_API hy3d_status hy3d_rasterize(hy3d_context *context, const hy3d_raster_desc *desc,
                                    const float *clip, const int32_t *faces, const float *prior,
                                    const hy3d_cancel *cancel, hy3d_raster_problem *problem_out,
                                    int32_t *face_index, float *barycentric, float *depth);

/* out[p][c] = sum over corners k = 0, 1, 2 of barycentric[p][k] * attributes[triangles[f][k]][c], with
 * f = face_index[p] - 1; 0 where face_index[p] is 0. Products and sums rounded to f32, in that order.
 * attributes (vertices, channels), face_index (pixels), barycentric (pixels, 3), out (pixels,
 * channels); channels >= 1. HY3D_RASTER_BAD_INDEX: a vertex index (`at` its face), or a face index (`at` its
 * pixel, `value` what it is) out of range. Allocates nothing. */
HY3D_API hy3d_status hy3d_interpolate(hy3d_context *context, int64_t vertices, int64_t channels,
                                      int64_t faces, int64_t pixels, const float *attributes,
                                      const int32_t *triangles, const int32_t *face_index,
                                      const float *barycentric, uint32_t num_threads,
                                      const hy3d_cancel *cancel, hy3d_raster_problem *problem_out,
                                      float *out);

HY3D_END_DECLS

#endif
