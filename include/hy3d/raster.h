/* A rasteriser on the CPU, and what a texture stage does with its result.
 *
 * Arrays are dense, row-major and of the caller; a picture's row 0 is Y = -1, column 0 is X = -1.
 * Faces are triples of vertex indices; a face index in a picture is 0 where nothing was drawn, else
 * the face's number + 1. Every result is bit-identical for every thread count and CPU level. No
 * array that is written may overlap another. What another thread writes to one that is read during
 * a call may spoil the result, which then means nothing; nothing outside of the arrays is read or
 * written. HY3D_ERR_INVALID_ARGUMENT, and HY3D_ERR_OVERFLOW for arrays that have no addresses, are
 * found before anything is written. */
#ifndef HY3D_RASTER_H
#define HY3D_RASTER_H

#include <stdint.h>

#include "hy3d/context.h"
#include "hy3d/export.h"
#include "hy3d/status.h"

/* Width and height of a picture, at most. */
#define HY3D_RASTER_MOST_PIXELS_A_SIDE 32768

/* Which pixels a triangle covers, and what is visible. Under both rules both facings count,
 * coverage is decided exactly (as if in real numbers, from the float32 vertices), a face without
 * area covers nothing, the smallest depth wins and of equal depths the lower face. */
typedef enum hy3d_raster_rule {
    /* Of the texture packs' rasteriser: the centre of column i is X/W = 2 i / (width - 1) - 1 (so a
     * picture one pixel wide or high shows nothing), edges belong to both neighbours, nothing is
     * clipped (a vertex behind the camera is projected through it; a face with W = 0 covers
     * nothing, nor does one with corners on both sides where these cancel to 2^-32 and barycentrics
     * have no end), and depth is (Z/W * 0.49999 + 0.5) in steps of 2^-18. */
    HY3D_RASTER_COMPAT = 0,
    /* Of OpenGL, Vulkan and Direct3D: the centre of column i is X/W = (2 i + 1) / width - 1, an
     * edge belongs to the triangle right of it or below it (top-left rule, seen with row 0 on top),
     * so that each pixel of a closed surface's outline is covered exactly once; what is nearer than
     * the near plane (Z < -W) or beyond the far one (Z > W) is cut off; depth is in steps of
     * 2^-30. */
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
    HY3D_RASTER_BAD_INDEX = 2,  /* a face names a vertex that is not there, a pixel such a face */
    HY3D_RASTER_NEGATIVE = 3,   /* a weight is below 0 */
} hy3d_raster_fault;

/* What is wrong with the values in arrays. */
typedef struct hy3d_raster_problem {
    hy3d_raster_fault fault;
    int64_t at;    /* the number of the vertex, of the face, of the pixel: the first one */
    int64_t value; /* the bad index */
} hy3d_raster_problem;

HY3D_BEGIN_DECLS

/* clip (vertices, 4) as a vertex shader leaves them: X, Y, Z, W, all finite. faces (faces, 3).
 * prior is NULL or (height, width) of Z/W: of what was drawn there before; what is nearer than it
 * by (prior * 0.49999 + 0.5 + 1e-6) is dropped (depth peeling; NaN drops nothing, +inf all).
 * To face_index (height, width); to barycentric (height, width, 3), perspective-correct, 0 where
 * nothing was drawn; to depth (height, width) Z/W, +inf where nothing was drawn. The last two may
 * be NULL. problem_out (may be NULL) says what HY3D_ERR_INVALID_ARGUMENT found wrong in clip or
 * faces. Takes 8 bytes a vertex, 44 a face (of which small faces touch 16), 12 to 72 for 64x64
 * pixels and 100 KB a thread.
 * HY3D_ERR_CANCELLED leaves the pictures partly written. */
HY3D_API hy3d_status hy3d_rasterize(hy3d_context *context, const hy3d_raster_desc *desc,
                                    const float *clip, const int32_t *faces, const float *prior,
                                    const hy3d_cancel *cancel, hy3d_raster_problem *problem_out,
                                    int32_t *face_index, float *barycentric, float *depth);

/* out[p][c] = sum over corners k = 0, 1, 2 of barycentric[p][k] * attributes[triangles[f][k]][c],
 * with f = face_index[p] - 1; 0 where face_index[p] is 0. Products and sums rounded to f32, in that
 * order. attributes (vertices, channels), face_index (pixels), barycentric (pixels, 3), out
 * (pixels, channels); channels >= 1. HY3D_RASTER_BAD_INDEX: a vertex index (`at` its face), or a
 * face index (`at` its pixel, `value` what it is) out of range. Allocates nothing. */
HY3D_API hy3d_status hy3d_interpolate(hy3d_context *context, int64_t vertices, int64_t channels,
                                      int64_t faces, int64_t pixels, const float *attributes,
                                      const int32_t *triangles, const int32_t *face_index,
                                      const float *barycentric, uint32_t num_threads,
                                      const hy3d_cancel *cancel, hy3d_raster_problem *problem_out,
                                      float *out);

HY3D_END_DECLS

/* How a point's value is shared out. */
typedef enum hy3d_scatter_filter {
    HY3D_SCATTER_LINEAR = 0,  /* among the four texels around it, as bilinear sampling reads them */
    HY3D_SCATTER_NEAREST = 1, /* all of it to the nearest texel; halfway, to the right or below */
} hy3d_scatter_filter;

typedef struct hy3d_scatter_desc {
    hy3d_scatter_filter filter;
    int64_t width, height; /* of the texture, 1 to HY3D_RASTER_MOST_PIXELS_A_SIDE */
    int64_t channels;      /* at least 1 */
    int64_t points;        /* 0 to 2^31 - 1 */
    uint32_t num_threads;  /* at most; 0 is the context's maximum */
} hy3d_scatter_desc;

/* What the corners of a face weigh in a vertex normal. */
typedef enum hy3d_normal_weighting {
    HY3D_NORMALS_BY_AREA = 0,  /* the face's area */
    HY3D_NORMALS_BY_ANGLE = 1, /* its angle there: how a surface is cut does not matter */
} hy3d_normal_weighting;

typedef struct hy3d_vertex_inpaint_desc {
    int64_t width, height; /* of the texture, 1 to HY3D_RASTER_MOST_PIXELS_A_SIDE */
    int64_t channels;      /* at least 1 */
    int64_t vertices, uvs; /* 0 to 2^31 - 1 each */
    int64_t faces;         /* 0 to 2^31 - 2 */
} hy3d_vertex_inpaint_desc;

HY3D_BEGIN_DECLS

/* Back-projection: values (points, channels) at uv (points, 2) into a texture. u goes along
 * columns and v along rows, and 0 and 1 are the centres of the first and the last one:
 * column u * (width - 1), row v * (height - 1) (torch.grid_sample's align_corners = True; no
 * flip). A point outside 0 .. 1, or of weight 0, is left out. weights (points) are finite and at
 * least 0; NULL: 1 each.
 *
 * To total (height, width) the sum of weights that a texel got, to texture (height, width,
 * channels) the weighted mean of values, 0 where the sum is 0. A texel gets nothing from a point
 * whose share there is 0; a value that is not finite spreads to the texels that it reaches.
 * Shares, products and sums are in double, points in order, and rounded to f32 once: within
 * 2^-24 + 2^-52 (points + 8) of the true mean, relative to the mean of the values' magnitudes.
 *
 * problem_out (may be NULL): HY3D_RASTER_NOT_FINITE (`at` a point: its uv, or its weight) and
 * HY3D_RASTER_NEGATIVE; uv is looked at before weights. Takes 4 to 8 bytes a point, and 512 KiB a
 * thread or (channels + 1) * 8 bytes a texel of one row, and 48 bytes a thread and band of rows.
 * HY3D_ERR_CANCELLED leaves the texture partly written. */
HY3D_API hy3d_status hy3d_scatter(hy3d_context *context, const hy3d_scatter_desc *desc,
                                  const float *values, const float *uv, const float *weights,
                                  const hy3d_cancel *cancel, hy3d_raster_problem *problem_out,
                                  float *texture, float *total);

/* normals (vertices, 3): at each vertex the sum over its faces of (v1 - v0) x (v2 - v0) (so it
 * points to where the corners run counter-clockwise), made of length 1; for
 * HY3D_NORMALS_BY_ANGLE of the same made of length 1 and times the angle. 0, 0, 0 for a vertex
 * without a face, with faces without area only, or whose sum is 0. Sums in double, faces in
 * order, rounded to f32 once. positions (vertices, 3) are finite, triangles (faces, 3) in range;
 * vertices and faces as in hy3d_raster_desc. problem_out (may be NULL): HY3D_RASTER_BAD_INDEX
 * (`at` a face), then HY3D_RASTER_NOT_FINITE (a vertex). Takes 4 to 12 bytes a face, 400 KB a
 * thread, and 48 bytes a thread and run of vertices. HY3D_ERR_CANCELLED leaves normals partly
 * written. */
HY3D_API hy3d_status hy3d_vertex_normals(hy3d_context *context, int64_t vertices, int64_t faces,
                                         const float *positions, const int32_t *triangles,
                                         hy3d_normal_weighting weighting, uint32_t num_threads,
                                         const hy3d_cancel *cancel,
                                         hy3d_raster_problem *problem_out, float *normals);

/* Fills colours of vertices in from their neighbours, as the texture packs' meshVerticeInpaint
 * does (method "smooth"): with the bits of its Python version. The compiled one rounds halves of
 * texels up, and colours otherwise in the last bits.
 *
 * A corner of a face has a texel: column round(u * (width - 1)), row
 * round((1 - v) * (height - 1)), in f32, halves to even; what is outside is clamped to the border
 * (upstream reads elsewhere or fails there). A vertex has the
 * colour of its last corner, faces in order, whose texel's mask is not 0. The corners whose
 * texel's mask is 0 are then gone through in order, again and again: their vertex gets the mean
 * of the colours that its successors (the next corner in each face it is in) have, weighted by
 * 1 / max(distance, 1e-4)^2. A counter begins at 2; a round that leaves as many corners without a
 * coloured successor as the one before (0 before the first) takes 1 from it, any other adds 1;
 * at 0 it ends. So a vertex is smoothed a few times after it was filled, and what no coloured
 * vertex can be reached from stays. In the end each corner whose vertex has a colour writes it
 * to its texel, and 255 to the mask there.
 *
 * texture (height, width, channels) and mask (height, width) are changed; positions (vertices,
 * 3), uv (uvs, 2), triangles and uv_triangles (faces, 3). problem_out (may be NULL):
 * HY3D_RASTER_BAD_INDEX of triangles, of uv_triangles, then HY3D_RASTER_NOT_FINITE of positions,
 * of uv. *filled_out (may be NULL): vertices that had no colour and got one. One thread. A round
 * takes 1 to 30 ns an open corner, and as many rounds are needed as there are steps against the
 * corners' order from the border of what is coloured: of 500,000 faces, holes take 0.06 to 1.4
 * s, all but a small spot 20 s. Takes 60 bytes a face and 4 * channels + 10 a vertex.
 * HY3D_ERR_CANCELLED leaves texture and mask as they were. */
HY3D_API hy3d_status hy3d_vertex_inpaint(hy3d_context *context,
                                         const hy3d_vertex_inpaint_desc *desc,
                                         const float *positions, const float *uv,
                                         const int32_t *triangles, const int32_t *uv_triangles,
                                         const hy3d_cancel *cancel,
                                         hy3d_raster_problem *problem_out, float *texture,
                                         uint8_t *mask, int64_t *filled_out);

HY3D_END_DECLS

#endif
