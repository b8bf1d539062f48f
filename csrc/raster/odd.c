/* One face with exact signs: for faces that are nearly or truly without area, and for single pixels
 * that lie on an edge. */
#include <math.h>

#include "raster/exact.h"
#include "raster/internal.h"

/* Below HY3D__RASTER_CANCELS the weights must be exact ones, good to 2^-50; below this share of the
 * terms even those say nothing: what is seen is as far away as infinity. */
#define ENDLESS 0x1p-32
/* So many times its error an edge function is good to 2^-24 of itself. */
#define PLENTY 0x1p24

/* Of two equals the second, as the vector instructions do it. */
static double smaller(double a, double b)
{
    return a < b ? a : b;
}
static double larger(double a, double b)
{
    return a > b ? a : b;
}

static double sign_of(double value)
{
    return (double)((value > 0) - (value < 0));
}

static double exact_edge(const float *const v[3], int i, double p, double q, double r)
{
    return hy3d__raster_exact(v[(i + 1) % 3], v[(i + 2) % 3], p, q, r);
}

bool hy3d__raster_odd_prepare(const hy3d__raster_view *view, const float *clip,
                              const int32_t corner[3], int32_t face, hy3d__raster_odd *out)
{
    int positive = 0, negative = 0;
    for (int i = 0; i < 3; i++) {
        out->v[i] = clip + 4 * (int64_t)corner[i];
        positive += out->v[i][3] > 0;
        negative += out->v[i][3] < 0;
    }
    const double det =
        exact_edge(out->v, 2, (double)out->v[2][0], (double)out->v[2][1], (double)out->v[2][3]);
    const bool lost = view->compat && positive + negative != 3; /* a corner in the eye's plane */
    if (lost || !(det < 0 || det > 0) || !(view->r > 0)) {
        return false;
    }
    out->view = view;
    out->face = face;
    out->turn = sign_of(det);
    out->low = INFINITY;
    out->high = -INFINITY;
    out->nearest = -INFINITY;
    out->farthest = INFINITY;
    for (int i = 0; i < 3; i++) {
        const double z = (double)out->v[i][2], w = (double)out->v[i][3];
        hy3d__raster_cross(out->v[(i + 1) % 3], out->v[(i + 2) % 3], out->edge[i]);
        out->bound[i] = (fabs(out->edge[i][0]) + fabs(out->edge[i][1]) + fabs(out->edge[i][2])) *
                        view->r * HY3D__RASTER_ERROR;
        out->sign[i] = view->compat ? out->turn * sign_of(w) : out->turn;
        out->z[i] = z * (1.0 / (fabs(det) * view->r));
        out->low = smaller(out->low, z / w);
        out->high = larger(out->high, z / w);
        out->nearest = z >= -w ? out->nearest : view->nearest;
        out->farthest = w >= z ? out->farthest : view->farthest;
    }
    if (positive != 3 && negative != 3) {
        out->low = -INFINITY;
        out->high = INFINITY;
    }
    return true;
}

/* Whether a pixel on the edge belongs to the face: the edge is a left one (E grows with the
 * column), or a top one (E is the same along a row and grows with the row). */
static bool owns(const hy3d__raster_odd *odd, int i)
{
    const double x = odd->edge[i][0] * odd->turn, y = odd->edge[i][1] * odd->turn;
    return odd->view->compat || x > 0 || (!(x < 0) && y > 0);
}

/* The weights of corners, turned to the positive side; false where the pixel is not covered. */
static bool weights(const hy3d__raster_odd *odd, double p, double q, double out[3])
{
    const double r = odd->view->r;
    for (int i = 0; i < 3; i++) {
        const double *const e = odd->edge[i];
        out[i] = e[0] * p + (e[1] * q + e[2] * r);
        if (odd->sign[i] * out[i] < -odd->bound[i]) {
            return false;
        }
    }
    for (int i = 0; i < 3; i++) {
        if (fabs(out[i]) < odd->bound[i] * PLENTY) {
            out[i] = exact_edge(odd->v, i, p, q, r);
            const double side = odd->sign[i] * out[i];
            if (side < 0 || (!(side > 0) && !owns(odd, i))) {
                return false;
            }
        }
        out[i] *= odd->turn;
    }
    return true;
}

bool hy3d__raster_odd_misses(const hy3d__raster_odd *odd, const hy3d__raster_box *box,
                             const hy3d__raster_tile *tile)
{
    for (int i = 0; i < 3; i++) {
        const double *const e = odd->edge[i];
        if (hy3d__raster_misses(odd->view, tile, box, odd->sign[i] * e[0], odd->sign[i] * e[1],
                                odd->sign[i] * e[2] * odd->view->r, odd->bound[i])) {
            return true;
        }
    }
    return false;
}

/* The sum of weights; 0: there is none to speak of. */
static double total_of(const hy3d__raster_odd *odd, double p, double q, double e[3])
{
    const double total = (e[0] + e[1]) + e[2], terms = fabs(e[0]) + fabs(e[1]) + fabs(e[2]);
    if (fabs(total) > terms * HY3D__RASTER_CANCELS) {
        return total;
    }
    for (int i = 0; i < 3; i++) {
        e[i] = odd->turn * exact_edge(odd->v, i, p, q, odd->view->r);
    }
    const double exact = (e[0] + e[1]) + e[2];
    return fabs(exact) > terms * ENDLESS ? exact : 0;
}

void hy3d__raster_odd_pixel(const hy3d__raster_odd *odd, int column, int row,
                            hy3d__raster_tile *tile)
{
    const hy3d__raster_view *const view = odd->view;
    const double p = hy3d__raster_p(view, tile->x + column);
    const double q = hy3d__raster_q(view, tile->y + row);
    const int at = row * HY3D__TILE + column;
    double e[3];
    if (!weights(odd, p, q, e)) {
        return;
    }
    const double total = total_of(odd, p, q, e);
    double z = (e[0] * odd->z[0] + e[1] * odd->z[1]) + e[2] * odd->z[2];
    z = smaller(larger(z, odd->low), odd->high);
    const double steps = z * view->scale + view->offset;
    const int32_t step =
        (int32_t)smaller(larger(floor(steps), -HY3D__RASTER_MOST_STEPS), HY3D__RASTER_MOST_STEPS);
    if (!(total < 0 || total > 0) || !(steps >= odd->nearest && steps <= odd->farthest) ||
        step >= tile->step[at]) {
        return;
    }
    if (tile->prior != NULL) {
        const double before = (double)tile->prior[row * tile->prior_pitch + column];
        if (steps < before * view->scale + view->hidden) {
            return;
        }
    }
    tile->step[at] = step;
    tile->face[at] = odd->face + 1;
    tile->depth[at] = (float)z;
    for (int i = 0; i < 3; i++) {
        tile->barycentric[i][at] = (float)(e[i] / total);
    }
}
