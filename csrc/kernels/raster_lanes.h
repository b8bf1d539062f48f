/* The rasteriser's kernels on vectors of pixels and of faces: one text for raster_avx2.c and
 * raster_avx512.c, operation for operation that of raster_ref.c. They define
 *
 *     LANES, TARGET, SUFFIX(name); vec (doubles), half (as many floats), ints (as many int32),
 *     mask (lanes of vec), few (lanes of half and ints);
 *     V_SET V_LOAD V_STORE V_ADD V_SUB V_MUL V_DIV V_MIN V_MAX V_ABS V_FLOOR
 *     V_NEG_IF(mask, v), V_PICK(mask, a, b) = a where the mask is set;
 *     V_INDEX = 0, 1, ...; comparisons V_GE V_GT V_LT and V_GE_IN(mask, a, b), V_GT_IN;
 *     M_AND_NOT(a, b) = a and not b, M_FIRST(n) = lanes below n, M_BITS, M_OF(bits), M_FEW;
 *     F_AND, F_BITS; V_INTS (of whole numbers), V_HALF, V_WIDEN; I_SET I_LOAD I_LESS
 *     I_STORE(p, few, v); H_SET H_ADD H_MUL H_DIV H_LOAD(p, few) H_STORE(p, few, v);
 *     CORNERS(clip, corners, out): X, Y, Z and W of LANES corners. */

#define IN static inline __attribute__((always_inline)) TARGET

IN void cross(const vec *a, const vec *b, vec *out)
{
    out[0] = V_SUB(V_MUL(a[1], b[3]), V_MUL(a[3], b[1]));
    out[1] = V_SUB(V_MUL(a[3], b[0]), V_MUL(a[0], b[3]));
    out[2] = V_SUB(V_MUL(a[0], b[1]), V_MUL(a[1], b[0]));
}

/* Bits of faces; see look_at in raster_ref.c. */
typedef struct corners {
    unsigned positive, negative, plain, behind_near, before_far;
} corners;

IN corners look_at(const hy3d__raster_view *view, vec v[3][4])
{
    const vec zero = V_SET(0.0);
    corners out = {~0U, ~0U, ~0U, ~0U, ~0U};
    for (int i = 0; i < 3; i++) {
        const vec z = V_ABS(v[i][2]), size = V_ABS(v[i][3]);
        const vec most = view->compat ? V_MUL(size, V_SET(HY3D__RASTER_MOST_STEPS * 0.5)) : size;
        out.behind_near &= M_BITS(V_GE(v[i][2], V_SUB(zero, v[i][3])));
        out.before_far &= M_BITS(V_GE(v[i][3], v[i][2]));
        out.positive &= M_BITS(V_GT(v[i][3], zero));
        out.negative &= M_BITS(V_LT(v[i][3], zero));
        out.plain &= M_BITS(V_GE(most, view->compat ? V_MUL(z, V_SET(view->scale)) : z));
        out.plain &= M_BITS(V_GE(size, V_SET(HY3D__RASTER_LEAST_W))) &
                     M_BITS(V_GE(V_SET(HY3D__RASTER_MOST_W), size));
    }
    out.plain &= out.positive | out.negative;
    return out;
}

/* LANES faces, from the k-th of the batch on. */
IN void prepare(const hy3d__raster_view *view, const float *clip,
                const int32_t corner[3][HY3D__FACES], size_t k, hy3d__raster_faces *out)
{
    const vec r = V_SET(view->r), error = V_SET(HY3D__RASTER_ERROR);
    vec v[3][4], e[3][3], bound = V_SET(0.0), weight = V_SET(0.0);
    for (int i = 0; i < 3; i++) {
        CORNERS(clip, corner[i] + k, v[i]);
    }
    for (int i = 0; i < 3; i++) {
        cross(v[(i + 1) % 3], v[(i + 2) % 3], e[i]);
    }
    const corners sides = look_at(view, v);
    const vec x = V_MUL(e[2][0], v[2][0]), y = V_MUL(e[2][1], v[2][1]);
    const vec w = V_MUL(e[2][2], v[2][3]), det = V_ADD(V_ADD(x, y), w);
    const vec share = V_DIV(V_SET(1.0), V_MUL(V_ABS(det), r));
    const unsigned turned = M_BITS(V_LT(det, V_SET(0.0)));
    for (int i = 0; i < 3; i++) {
        const unsigned mirrored = view->compat ? M_BITS(V_LT(v[i][3], V_SET(0.0))) : 0U;
        const vec turn = V_NEG_IF(M_OF(turned ^ mirrored), share);
        const vec factor[3] = {V_MUL(e[i][0], turn), V_MUL(e[i][1], turn),
                               V_MUL(V_MUL(e[i][2], turn), r)};
        for (int p = 0; p < 3; p++) {
            V_STORE(&out->edge[i][p][k], factor[p]);
        }
        const vec sum =
            V_ADD(V_MUL(V_ADD(V_ABS(factor[0]), V_ABS(factor[1])), r), V_ABS(factor[2]));
        bound = V_MAX(V_MUL(sum, error), bound);
        weight = V_MAX(V_ABS(v[i][3]), weight);
        V_STORE(&out->z[i][k], V_NEG_IF(M_OF(mirrored), V_MUL(v[i][2], V_SET(view->scale))));
        V_STORE(&out->side[i][k], V_NEG_IF(M_OF(mirrored), V_SET(1.0)));
    }
    V_STORE(&out->bound[k], bound);
    V_STORE(&out->nearest[k],
            V_PICK(M_OF(sides.behind_near), V_SET(-INFINITY), V_SET(view->nearest)));
    V_STORE(&out->farthest[k],
            V_PICK(M_OF(sides.before_far), V_SET(INFINITY), V_SET(view->farthest)));
    const vec rounding = V_MUL(V_ADD(V_ADD(V_ABS(x), V_ABS(y)), V_ABS(w)), error);
    const unsigned known = M_BITS(V_GT(V_ABS(det), rounding)) &
                           M_BITS(V_GE(V_SET(HY3D__RASTER_FRAGILE), V_MUL(bound, weight)));
    const unsigned all = (1U << LANES) - 1U;
    out->odd |= (~known & all) << k;
    out->careful |= (~sides.plain & all) << k;
}

TARGET void SUFFIX(hy3d_raster_setup_f64)(size_t n, const hy3d__raster_view *view,
                                          const float *clip, const int32_t *triangles,
                                          hy3d__raster_faces *faces)
{
    int32_t corner[3][HY3D__FACES];
    for (size_t k = 0; k < HY3D__FACES; k++) {
        /* Places without a face repeat the last one. */
        const int32_t *const of = triangles + 3 * (size_t)faces->face[k < n ? k : n - 1];
        for (int i = 0; i < 3; i++) {
            corner[i][k] = of[i];
        }
    }
    faces->odd = 0;
    faces->careful = 0;
    for (size_t k = 0; k < HY3D__FACES && k < n; k += LANES) {
        prepare(view, clip, (const int32_t (*)[HY3D__FACES])corner, k, faces);
    }
}

/* Where a face is drawn, what is the same for all its vectors. */
typedef struct brush {
    const hy3d__raster_view *view;
    hy3d__raster_tile *tile;
    vec z[3], side[3], offset, nearest, farthest;
    int careful;
    int32_t face;
} brush;

IN void put_doubts(hy3d__raster_tile *tile, unsigned lanes, int at)
{
    for (; lanes != 0; lanes &= lanes - 1) {
        tile->doubt[tile->doubts++] = (uint16_t)(at + __builtin_ctz(lanes));
    }
}

/* LANES pixels from `at` on, those of `surely` being covered. */
IN void fragments(const brush *b, const vec *e, mask surely, const float *prior, int at)
{
    hy3d__raster_tile *const tile = b->tile;
    const hy3d__raster_view *const view = b->view;
    const vec steps = V_ADD(
        V_ADD(V_ADD(V_MUL(e[0], b->z[0]), V_MUL(e[1], b->z[1])), V_MUL(e[2], b->z[2])), b->offset);
    vec whole = V_FLOOR(steps), weight[3], share = V_SET(1.0);
    if (b->careful) {
        for (int i = 0; i < 3; i++) {
            weight[i] = V_MUL(e[i], b->side[i]);
        }
        const vec sum = V_ADD(V_ADD(weight[0], weight[1]), weight[2]);
        const vec terms = V_ADD(V_ADD(e[0], e[1]), e[2]);
        const mask clear = V_GT_IN(surely, V_ABS(sum), V_MUL(terms, V_SET(HY3D__RASTER_CANCELS)));
        put_doubts(tile, M_BITS(surely) & ~M_BITS(clear), at);
        surely = clear;
        share = V_DIV(V_SET(1.0), sum);
        surely = V_GE_IN(surely, steps, b->nearest);
        surely = V_GE_IN(surely, b->farthest, steps);
        whole =
            V_MIN(V_MAX(whole, V_SET(-HY3D__RASTER_MOST_STEPS)), V_SET(HY3D__RASTER_MOST_STEPS));
    }
    if (prior != NULL) {
        const vec before = V_WIDEN(H_LOAD(prior, M_FEW(surely)));
        surely = M_AND_NOT(
            surely, V_LT(steps, V_ADD(V_MUL(before, V_SET(view->scale)), V_SET(view->hidden))));
    }
    const ints step = V_INTS(whole);
    const few seen = F_AND(M_FEW(surely), I_LESS(step, I_LOAD(tile->step + at)));
    if (F_BITS(seen) == 0) {
        return;
    }
    I_STORE(tile->step + at, seen, step);
    I_STORE(tile->face + at, seen, I_SET(b->face + 1));
    if (tile->wants_depth) {
        H_STORE(tile->depth + at, seen,
                V_HALF(V_MUL(V_SUB(steps, b->offset), V_SET(view->unscale))));
    }
    if (b->careful) {
        for (int i = 0; i < 3; i++) {
            H_STORE(tile->barycentric[i] + at, seen, V_HALF(V_MUL(weight[i], share)));
        }
        return;
    }
    const half f[3] = {V_HALF(e[0]), V_HALF(e[1]), V_HALF(e[2])};
    const half part = H_DIV(H_SET(1.0F), H_ADD(H_ADD(f[0], f[1]), f[2]));
    for (int i = 0; i < 3; i++) {
        H_STORE(tile->barycentric[i] + at, seen, H_MUL(f[i], part));
    }
}

/* The part of edge functions that is the same along a row, for the rows of the box. */
IN void rows_of(const hy3d__raster_view *view, const hy3d__raster_faces *faces, size_t k,
                const hy3d__raster_box *box, int y, double out[3][HY3D__TILE + LANES])
{
    for (int row = box->top; row <= box->bottom; row += LANES) {
        const vec first = V_SET(hy3d__raster_q(view, y + row));
        const vec q = V_ADD(first, V_MUL(V_INDEX, V_SET(2.0 * view->sx)));
        for (int i = 0; i < 3; i++) {
            V_STORE(&out[i][row],
                    V_ADD(V_MUL(V_SET(faces->edge[i][1][k]), q), V_SET(faces->edge[i][2][k])));
        }
    }
}

TARGET void SUFFIX(hy3d_raster_cover_f64)(const hy3d__raster_view *view,
                                          const hy3d__raster_faces *faces, size_t k,
                                          const hy3d__raster_box *box, hy3d__raster_tile *tile)
{
    const vec bound = V_SET(faces->bound[k]), low = V_SET(-faces->bound[k]);
    const brush b = {
        .view = view,
        .tile = tile,
        .z = {V_SET(faces->z[0][k]), V_SET(faces->z[1][k]), V_SET(faces->z[2][k])},
        .side = {V_SET(faces->side[0][k]), V_SET(faces->side[1][k]), V_SET(faces->side[2][k])},
        .offset = V_SET(view->offset),
        .nearest = V_SET(faces->nearest[k]),
        .farthest = V_SET(faces->farthest[k]),
        .careful = (int)(faces->careful >> k & 1U),
        .face = faces->face[k],
    };
    double rows[3][HY3D__TILE + LANES];
    rows_of(view, faces, k, box, tile->y, rows);
    tile->doubts = 0;
    for (int column = box->left; column <= box->right; column += LANES) {
        const double first = hy3d__raster_p(view, tile->x + column);
        const vec p = V_ADD(V_SET(first), V_MUL(V_INDEX, V_SET(2.0 * view->sy)));
        const mask lanes = M_FIRST(box->right - column + 1);
        const vec across[3] = {V_MUL(V_SET(faces->edge[0][0][k]), p),
                               V_MUL(V_SET(faces->edge[1][0][k]), p),
                               V_MUL(V_SET(faces->edge[2][0][k]), p)};
        for (int row = box->top; row <= box->bottom; row++) {
            const vec e[3] = {V_ADD(across[0], V_SET(rows[0][row])),
                              V_ADD(across[1], V_SET(rows[1][row])),
                              V_ADD(across[2], V_SET(rows[2][row]))};
            const vec least = V_MIN(V_MIN(e[0], e[1]), e[2]);
            const mask maybe = V_GE_IN(lanes, least, low);
            if (M_BITS(maybe) == 0) {
                continue;
            }
            const mask surely = V_GT_IN(lanes, least, bound);
            const int at = row * HY3D__TILE + column;
            put_doubts(tile, M_BITS(maybe) & ~M_BITS(surely), at);
            const float *const prior = tile->prior;
            fragments(&b, e, surely, prior ? prior + row * tile->prior_pitch + column : NULL, at);
        }
    }
}

#undef IN
