/* The rasteriser's kernels, one face and one pixel after the other. Written so that every ISA can
 * follow operation for operation: no fused multiply-add. */
#include <math.h>

#include "kernels/kernels.h"

/* What corners say: on which side of the eye they are, whether they are plain. */
typedef struct corners {
    int positive, negative, plain;
    int behind_near, before_far; /* how many lie so, or in the plane */
} corners;

static corners look_at(const hy3d__raster_view *view, const float *const v[3])
{
    corners out = {0, 0, 1, 0, 0};
    for (int i = 0; i < 3; i++) {
        const double z = fabs((double)v[i][2]), w = (double)v[i][3], size = fabs(w);
        const double most = view->compat ? size * (HY3D__RASTER_MOST_STEPS * 0.5) : size;
        out.positive += w > 0;
        out.behind_near += (double)v[i][2] >= -w;
        out.before_far += w >= (double)v[i][2];
        out.negative += w < 0;
        out.plain &= (view->compat ? z * view->scale : z) <= most;
        out.plain &= size >= HY3D__RASTER_LEAST_W && size <= HY3D__RASTER_MOST_W;
    }
    out.plain &= out.positive == 3 || out.negative == 3;
    return out;
}

static void prepare(const hy3d__raster_view *view, const float *const v[3], size_t k,
                    hy3d__raster_faces *out)
{
    double e[3][3], bound = 0, weight = 0;
    for (int i = 0; i < 3; i++) {
        hy3d__raster_cross(v[(i + 1) % 3], v[(i + 2) % 3], e[i]);
    }
    const corners sides = look_at(view, v);
    const double x = e[2][0] * (double)v[2][0], y = e[2][1] * (double)v[2][1];
    const double w = e[2][2] * (double)v[2][3], det = x + y + w;
    const double share = 1.0 / (fabs(det) * view->r);
    for (int i = 0; i < 3; i++) {
        const int mirrored = view->compat && v[i][3] < 0;
        const double turned = (det < 0) != mirrored ? -share : share;
        double sum = 0;
        for (int p = 0; p < 3; p++) {
            const double factor = e[i][p] * turned * (p == 2 ? view->r : 1);
            out->edge[i][p][k] = factor;
            sum = p == 2 ? sum * view->r + fabs(factor) : sum + fabs(factor);
        }
        sum *= HY3D__RASTER_ERROR;
        bound = sum > bound ? sum : bound;
        weight = fabs((double)v[i][3]) > weight ? fabs((double)v[i][3]) : weight;
        const double z = (double)v[i][2] * view->scale;
        out->z[i][k] = mirrored ? -z : z;
        out->side[i][k] = mirrored ? -1 : 1;
    }
    out->bound[k] = bound;
    out->nearest[k] = sides.behind_near == 3 ? -INFINITY : view->nearest;
    out->farthest[k] = sides.before_far == 3 ? INFINITY : view->farthest;
    const int known = fabs(det) > (fabs(x) + fabs(y) + fabs(w)) * HY3D__RASTER_ERROR &&
                      bound * weight <= HY3D__RASTER_FRAGILE;
    out->odd |= known ? 0U : 1U << k;
    out->careful |= sides.plain ? 0U : 1U << k;
}

void hy3d_raster_setup_f64__ref(size_t n, const hy3d__raster_view *view, const float *clip,
                                const int32_t *triangles, hy3d__raster_faces *faces)
{
    faces->odd = 0;
    faces->careful = 0;
    for (size_t k = 0; k < n; k++) {
        const int32_t *const corner = triangles + 3 * (size_t)faces->face[k];
        const float *const v[3] = {clip + 4 * (size_t)corner[0], clip + 4 * (size_t)corner[1],
                                   clip + 4 * (size_t)corner[2]};
        prepare(view, v, k, faces);
    }
}

static void store(const hy3d__raster_view *view, hy3d__raster_tile *tile, int at, int32_t step,
                  int32_t face, double steps)
{
    tile->step[at] = step;
    tile->face[at] = face + 1;
    if (tile->wants_depth) {
        tile->depth[at] = (float)((steps - view->offset) * view->unscale);
    }
}

/* A pixel that the face surely covers. */
static void fragment(const hy3d__raster_view *view, const hy3d__raster_faces *faces, size_t k,
                     const double e[3], const float *prior, hy3d__raster_tile *tile, int at)
{
    const int careful = (int)(faces->careful >> k & 1U);
    double steps =
        ((e[0] * faces->z[0][k] + e[1] * faces->z[1][k]) + e[2] * faces->z[2][k]) + view->offset;
    if ((careful && !(steps >= faces->nearest[k] && steps <= faces->farthest[k])) ||
        (prior != NULL && steps < (double)*prior * view->scale + view->hidden)) {
        return;
    }
    double whole = floor(steps), weight[3], share = 1;
    if (careful) {
        for (int i = 0; i < 3; i++) {
            weight[i] = e[i] * faces->side[i][k];
        }
        const double sum = (weight[0] + weight[1]) + weight[2];
        if (!(fabs(sum) > ((e[0] + e[1]) + e[2]) * HY3D__RASTER_CANCELS)) {
            tile->doubt[tile->doubts++] = (uint16_t)at;
            return;
        }
        share = 1.0 / sum;
        whole = whole > -HY3D__RASTER_MOST_STEPS ? whole : -HY3D__RASTER_MOST_STEPS;
        whole = whole < HY3D__RASTER_MOST_STEPS ? whole : HY3D__RASTER_MOST_STEPS;
    }
    if ((int32_t)whole >= tile->step[at]) {
        return;
    }
    store(view, tile, at, (int32_t)whole, faces->face[k], steps);
    if (careful) {
        for (int i = 0; i < 3; i++) {
            tile->barycentric[i][at] = (float)(weight[i] * share);
        }
        return;
    }
    const float f[3] = {(float)e[0], (float)e[1], (float)e[2]};
    const float part = 1.0F / ((f[0] + f[1]) + f[2]);
    for (int i = 0; i < 3; i++) {
        tile->barycentric[i][at] = f[i] * part;
    }
}

void hy3d_raster_cover_f64__ref(const hy3d__raster_view *view, const hy3d__raster_faces *faces,
                                size_t k, const hy3d__raster_box *box, hy3d__raster_tile *tile)
{
    const double bound = faces->bound[k];
    tile->doubts = 0;
    for (int row = box->top; row <= box->bottom; row++) {
        const double q = hy3d__raster_q(view, tile->y + row);
        for (int column = box->left; column <= box->right; column++) {
            const double p = hy3d__raster_p(view, tile->x + column);
            const int at = row * HY3D__TILE + column;
            double e[3];
            for (int i = 0; i < 3; i++) {
                e[i] = faces->edge[i][0][k] * p + (faces->edge[i][1][k] * q + faces->edge[i][2][k]);
            }
            const double two = e[0] < e[1] ? e[0] : e[1], least = two < e[2] ? two : e[2];
            if (least > bound) {
                const float *const prior = tile->prior;
                fragment(view, faces, k, e, prior ? prior + row * tile->prior_pitch + column : NULL,
                         tile, at);
            } else if (least >= -bound) {
                tile->doubt[tile->doubts++] = (uint16_t)at;
            }
        }
    }
}

void hy3d_raster_row_f32__ref(size_t n, const int32_t *face, const float *a, const float *b,
                              const float *c, float *restrict out)
{
    for (size_t i = 0; i < n; i++) {
        out[3 * i] = face[i] != 0 ? a[i] : 0.0F;
        out[3 * i + 1] = face[i] != 0 ? b[i] : 0.0F;
        out[3 * i + 2] = face[i] != 0 ? c[i] : 0.0F;
    }
}
