/* The rasteriser's kernels on vectors of pixels and of faces: one text for raster_avx2.c and
 * raster_avx512.c, operation for operation that of raster_ref.c. They define
 *
 *     LANES, TARGET, SUFFIX(name); vec (doubles), half (as many floats), ints (as many int32),
 *     mask (lanes of vec), few (lanes of half and ints);
 *     V_SET V_LOAD V_STORE V_ADD V_SUB V_MUL V_DIV V_MIN V_MAX V_ABS V_NEG_IF(mask, v) V_GE V_GT V_LT,
 *     M_AND M_AND_NOT(a, b) = a and not b, M_FIRST(n) = lanes below n, M_BITS; M_FEW and F_AND;
 *     V_INDEX = 0, 1, ...; V_FLOOR_INTS V_HALF V_WIDEN; I_LOAD I_SET I_LESS I_STORE(p, few, v),
 *     H_LOAD(p, few) H_STORE(p, few, v); CORNERS(clip, corners, x, y, z, w). */

#define IN static inline __attribute__((always_inline)) TARGET

#define MOST_STEPS 1073741824.0
#define ERROR 0x1p-50
#define FRAGILE 0x1p-32

IN void cross(const vec *a, const vec *b, vec *out)
{
    out[0] = V_SUB(V_MUL(a[1], b[3]), V_MUL(a[3], b[1]));
    out[1] = V_SUB(V_MUL(a[3], b[0]), V_MUL(a[0], b[3]));
    out[2] = V_SUB(V_MUL(a[0], b[1]), V_MUL(a[1], b[0]));
}

/* LANES faces, from the k-th of the batch on. Returns which of them are odd. */
IN unsigned prepare(const hy3d__raster_view *view, const float *clip,
                    const int32_t corners[3][HY3D__FACES], size_t k, hy3d__raster_faces *out)
{
    const vec zero = V_SET(0.0), r = V_SET(view->r), error = V_SET(ERROR);
    vec v[3][4], e[3][3], quotient[3];
    unsigned positive[3], negative[3];
    for (int i = 0; i < 3; i++) {
        CORNERS(clip, corners[i] + k, v[i]);
        positive[i] = M_BITS(V_GT(v[i][3], zero));
        negative[i] = M_BITS(V_LT(v[i][3], zero));
        quotient[i] = V_DIV(v[i][2], v[i][3]);
    }
    const unsigned behind = negative[0] & negative[1] & negative[2];
    const unsigned one_side = (positive[0] & positive[1] & positive[2]) | behind;
    for (int i = 0; i < 3; i++) {
        cross(v[(i + 1) % 3], v[(i + 2) % 3], e[i]);
    }
    const vec x = V_MUL(e[2][0], v[2][0]), y = V_MUL(e[2][1], v[2][1]);
    const vec w = V_MUL(e[2][2], v[2][3]), det = V_ADD(V_ADD(x, y), w);
    const vec size = V_MUL(V_ABS(det), r), inverse = V_DIV(V_SET(1.0), size);
    const mask mirrored = M_OF(view->compat ? behind : 0U);
    const mask turned = M_OF(M_BITS(V_LT(det, zero)) ^ (view->compat ? behind : 0U));
    vec weight = zero;
    for (int i = 0; i < 3; i++) {
        for (int p = 0; p < 3; p++) {
            V_STORE(&out->edge[i][p][k], V_NEG_IF(turned, e[i][p]));
        }
        const vec bound = V_MUL(
            V_MUL(V_ADD(V_ADD(V_ABS(e[i][0]), V_ABS(e[i][1])), V_ABS(e[i][2])), r), error);
        V_STORE(&out->bound[i][k], bound);
        weight = V_MAX(V_MUL(bound, V_ABS(v[i][3])), weight);
        V_STORE(&out->z[i][k], V_NEG_IF(mirrored, V_MUL(v[i][2], inverse)));
    }
    const mask bounded = M_OF(one_side);
    V_STORE(&out->low[k], V_PICK(bounded, V_MIN(V_MIN(quotient[0], quotient[1]), quotient[2]),
                                 V_SET(-INFINITY)));
    V_STORE(&out->high[k], V_PICK(bounded, V_MAX(V_MAX(quotient[0], quotient[1]), quotient[2]),
                                  V_SET(INFINITY)));
    const vec rounding = V_MUL(V_ADD(V_ADD(V_ABS(x), V_ABS(y)), V_ABS(w)), error);
    const unsigned known = M_BITS(V_GT(V_ABS(det), rounding)) &
                           M_BITS(V_GE(V_MUL(size, V_SET(FRAGILE)), weight)) &
                           (view->compat ? one_side : ~0U);
    return ~known & ((1U << LANES) - 1U);
}

TARGET void SUFFIX(hy3d_raster_setup_f64)(size_t n, const hy3d__raster_view *view,
                                          const float *clip, const int32_t *triangles,
                                          hy3d__raster_faces *faces)
{
    int32_t corners[3][HY3D__FACES];
    for (size_t k = 0; k < HY3D__FACES; k++) {
        /* Places without a face repeat the last one. */
        const int32_t *const of = triangles + 3 * (size_t)faces->face[k < n ? k : n - 1];
        for (int i = 0; i < 3; i++) {
            corners[i][k] = of[i];
        }
    }
    faces->odd = 0;
    for (size_t k = 0; k < HY3D__FACES && k < n; k += LANES) {
        faces->odd |= prepare(view, clip, (const int32_t(*)[HY3D__FACES])corners, k, faces) << k;
    }
}

/* LANES pixels from `at` on, those of `surely` being covered by face k. */
IN void fragments(const hy3d__raster_view *view, const hy3d__raster_faces *faces, size_t k,
                  const vec *e, mask surely, const float *prior, hy3d__raster_tile *tile, int at)
{
    vec z = V_ADD(V_ADD(V_MUL(e[0], V_SET(faces->z[0][k])), V_MUL(e[1], V_SET(faces->z[1][k]))),
                  V_MUL(e[2], V_SET(faces->z[2][k])));
    z = V_MIN(V_MAX(z, V_SET(faces->low[k])), V_SET(faces->high[k]));
    const vec steps = V_ADD(V_MUL(z, V_SET(view->scale)), V_SET(view->offset));
    const ints step = V_FLOOR_INTS(V_MIN(V_MAX(steps, V_SET(-MOST_STEPS)), V_SET(MOST_STEPS)));
    if (!view->compat) {
        surely = M_AND(surely, M_AND(V_GE(z, V_SET(view->nearest)),
                                     V_GE(V_SET(view->farthest), z)));
    }
    if (prior != NULL) {
        const vec scale = V_SET(0.49999), middle = V_SET(0.5);
        const vec before = V_ADD(V_MUL(V_WIDEN(H_LOAD(prior, M_FEW(surely))), scale), middle);
        surely = M_AND_NOT(surely, V_LT(V_ADD(V_MUL(z, scale), middle),
                                        V_ADD(before, V_SET(1e-6))));
    }
    const few seen = F_AND(M_FEW(surely), I_LESS(step, I_LOAD(tile->step + at)));
    if (F_BITS(seen) == 0) {
        return;
    }
    const vec share = V_DIV(V_SET(1.0), V_ADD(V_ADD(e[0], e[1]), e[2]));
    I_STORE(tile->step + at, seen, step);
    I_STORE(tile->face + at, seen, I_SET(faces->face[k] + 1));
    H_STORE(tile->depth + at, seen, V_HALF(z));
    for (int i = 0; i < 3; i++) {
        H_STORE(tile->barycentric[i] + at, seen, V_HALF(V_MUL(e[i], share)));
    }
}

TARGET void SUFFIX(hy3d_raster_cover_f64)(const hy3d__raster_view *view,
                                          const hy3d__raster_faces *faces, size_t k,
                                          const hy3d__raster_box *box, hy3d__raster_tile *tile)
{
    vec bound[3], low[3];
    double constant[3];
    tile->doubts = 0;
    for (int i = 0; i < 3; i++) {
        bound[i] = V_SET(faces->bound[i][k]);
        low[i] = V_SET(-faces->bound[i][k]);
        constant[i] = faces->edge[i][2][k] * view->r;
    }
    for (int column = box->left; column <= box->right; column += LANES) {
        const double first = (2.0 * (tile->x + column) + 1 - view->width) * view->sy;
        const vec p = V_ADD(V_SET(first), V_MUL(V_INDEX, V_SET(2.0 * view->sy)));
        const mask lanes = M_FIRST(box->right - column + 1);
        const vec across[3] = {V_MUL(V_SET(faces->edge[0][0][k]), p),
                               V_MUL(V_SET(faces->edge[1][0][k]), p),
                               V_MUL(V_SET(faces->edge[2][0][k]), p)};
        for (int row = box->top; row <= box->bottom; row++) {
            const double q = (2.0 * (tile->y + row) + 1 - view->height) * view->sx;
            vec e[3];
            for (int i = 0; i < 3; i++) {
                e[i] = V_ADD(across[i], V_SET(faces->edge[i][1][k] * q + constant[i]));
            }
            const mask maybe = M_AND(M_AND(V_GE(e[0], low[0]), V_GE(e[1], low[1])),
                                     M_AND(V_GE(e[2], low[2]), lanes));
            if (M_BITS(maybe) == 0) {
                continue;
            }
            const mask surely = M_AND(M_AND(V_GT(e[0], bound[0]), V_GT(e[1], bound[1])),
                                      M_AND(V_GT(e[2], bound[2]), maybe));
            const int at = row * HY3D__TILE + column;
            for (unsigned left = M_BITS(maybe) & ~M_BITS(surely); left != 0; left &= left - 1) {
                tile->doubt[tile->doubts++] = (uint16_t)(at + __builtin_ctz(left));
            }
            if (M_BITS(surely) != 0) {
                const float *const prior = tile->prior;
                fragments(view, faces, k, e, surely,
                          prior ? prior + row * tile->prior_pitch + column : NULL, tile, at);
            }
        }
    }
}

#undef IN
#undef MOST_STEPS
#undef ERROR
#undef FRAGILE
