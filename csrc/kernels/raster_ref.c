/* The rasteriser's kernels, one face and one pixel after the other. Written so that every ISA can
 * follow operation for operation: min and max as the instructions do them (the second where the two
 * are equal), no fused multiply-add. */
#include <math.h>

#include "kernels/kernels.h"

#define MOST_STEPS 1073741824.0 /* 2^30 */
#define ERROR 0x1p-50           /* of an edge function: eight roundings, of which five are met */
/* Below this share of E by W the weights of corners are no longer good to 2^-32 of the whole. */
#define FRAGILE 0x1p-32

static double smaller(double a, double b) { return a < b ? a : b; }
static double larger(double a, double b) { return a > b ? a : b; }

static void cross(const float *a, const float *b, double *out)
{
    const double ax = (double)a[0], ay = (double)a[1], aw = (double)a[3];
    const double bx = (double)b[0], by = (double)b[1], bw = (double)b[3];
    out[0] = ay * bw - aw * by;
    out[1] = aw * bx - ax * bw;
    out[2] = ax * by - ay * bx;
}

/* Whether every weight that the face can give is well known; see raster_setup_f64. */
static int prepare(const hy3d__raster_view *view, const float *const v[3], size_t k,
                   hy3d__raster_faces *out)
{
    double e[3][3], quotient[3], weight = 0;
    int positive = 0, negative = 0;
    for (int i = 0; i < 3; i++) {
        cross(v[(i + 1) % 3], v[(i + 2) % 3], e[i]);
        positive += v[i][3] > 0;
        negative += v[i][3] < 0;
        quotient[i] = (double)v[i][2] / (double)v[i][3];
    }
    const double x = e[2][0] * (double)v[2][0], y = e[2][1] * (double)v[2][1];
    const double w = e[2][2] * (double)v[2][3], det = x + y + w;
    const double size = fabs(det) * view->r;
    const int turned = (det < 0) != (view->compat && negative == 3);
    for (int i = 0; i < 3; i++) {
        for (int p = 0; p < 3; p++) {
            out->edge[i][p][k] = turned ? -e[i][p] : e[i][p];
        }
        out->bound[i][k] =
            (fabs(e[i][0]) + fabs(e[i][1]) + fabs(e[i][2])) * view->r * ERROR;
        weight = larger(out->bound[i][k] * fabs((double)v[i][3]), weight);
        const double z = (double)v[i][2] * (1.0 / size);
        out->z[i][k] = view->compat && negative == 3 ? -z : z;
    }
    const int one_side = positive == 3 || negative == 3;
    out->low[k] = one_side ? smaller(smaller(quotient[0], quotient[1]), quotient[2]) : -INFINITY;
    out->high[k] = one_side ? larger(larger(quotient[0], quotient[1]), quotient[2]) : INFINITY;
    return fabs(det) > (fabs(x) + fabs(y) + fabs(w)) * ERROR && weight <= size * FRAGILE &&
           (one_side || !view->compat);
}

void hy3d_raster_setup_f64__ref(size_t n, const hy3d__raster_view *view, const float *clip,
                                const int32_t *triangles, hy3d__raster_faces *faces)
{
    faces->odd = 0;
    for (size_t k = 0; k < n; k++) {
        const int32_t *const corner = triangles + 3 * (size_t)faces->face[k];
        const float *const v[3] = {clip + 4 * (size_t)corner[0], clip + 4 * (size_t)corner[1],
                                   clip + 4 * (size_t)corner[2]};
        faces->odd |= prepare(view, v, k, faces) ? 0U : 1U << k;
    }
}

/* A pixel that the face surely covers. */
static void fragment(const hy3d__raster_view *view, const hy3d__raster_faces *faces, size_t k,
                     const double e[3], const float *prior, hy3d__raster_tile *tile, int at)
{
    double z = (e[0] * faces->z[0][k] + e[1] * faces->z[1][k]) + e[2] * faces->z[2][k];
    z = smaller(larger(z, faces->low[k]), faces->high[k]);
    const double steps = smaller(larger(z * view->scale + view->offset, -MOST_STEPS), MOST_STEPS);
    const int32_t step = (int32_t)floor(steps);
    const double share = 1.0 / ((e[0] + e[1]) + e[2]);
    if (!(z >= view->nearest && z <= view->farthest) || step >= tile->step[at]) {
        return;
    }
    if (prior != NULL &&
        z * 0.49999 + 0.5 < ((double)*prior * 0.49999 + 0.5) + 1e-6) {
        return;
    }
    tile->step[at] = step;
    tile->face[at] = faces->face[k] + 1;
    tile->depth[at] = (float)z;
    for (int i = 0; i < 3; i++) {
        tile->barycentric[i][at] = (float)(e[i] * share);
    }
}

void hy3d_raster_cover_f64__ref(const hy3d__raster_view *view, const hy3d__raster_faces *faces,
                                size_t k, const hy3d__raster_box *box, hy3d__raster_tile *tile)
{
    tile->doubts = 0;
    for (int row = box->top; row <= box->bottom; row++) {
        const double q = (2.0 * (tile->y + row) + 1 - view->height) * view->sx;
        for (int column = box->left; column <= box->right; column++) {
            const double p = (2.0 * (tile->x + column) + 1 - view->width) * view->sy;
            const int at = row * HY3D__TILE + column;
            double e[3];
            int maybe = 1, surely = 1;
            for (int i = 0; i < 3; i++) {
                e[i] = faces->edge[i][0][k] * p +
                       (faces->edge[i][1][k] * q + faces->edge[i][2][k] * view->r);
                maybe &= e[i] >= -faces->bound[i][k];
                surely &= e[i] > faces->bound[i][k];
            }
            if (maybe && !surely) {
                tile->doubt[tile->doubts++] = (uint16_t)at;
            } else if (surely) {
                const float *const prior = tile->prior;
                fragment(view, faces, k, e,
                         prior ? prior + row * tile->prior_pitch + column : NULL, tile, at);
            }
        }
    }
}
