/* Winograd's transforms F(4,3), F(5,3) and, of an up-sampled input, F(3,2) in two dimensions on
 * vectors of channels: one text for every ISA, in the words of vec_avx2.h, of which winograd_ref.c
 * defines those that it uses. m, the outputs of a tile, tells which: 4, 5, 6.
 *
 * F(m,3) is Toom and Cook's: the polynomial product is taken at m + 1 points and infinity. The
 * points decide the rounding error (docs/numerics.md): 0, +-3/4, +-5/4 for m = 4 and +-3/8, +-7/8,
 * +-3/2 for m = 5, where the usual 0, +-1, +-2 is three times worse. Points come in pairs, so that
 * even and odd parts are computed once for two; every constant is exact in f32, but for G's.
 * Channels never mix: 16 of them are done LANES at a time. */

#define IN static inline __attribute__((always_inline)) TARGET

/* Of a tile, along an axis: data points; products; data from one tile to the next. */
#define POINTS(m) ((m) == 6 ? 4 : (m) + 2)
#define PRODUCTS(m) ((m) == 6 ? 7 : (m) + 2)
#define STEP(m) ((m) == 6 ? 3 : (m))

/* Of F(4,3): a < b. */
#define A4 0.75F
#define B4 1.25F
/* Of F(5,3): a < b < c. */
#define A5 0.375F
#define B5 0.875F
#define C5 1.5F

/* Data: B^T d. Rows are coefficients of prod (x - other points). */
IN void data4(const vec *d, vec *v)
{
    const vec s = V_SET(A4 * A4 + B4 * B4), p = V_SET(A4 * A4 * B4 * B4);
    const vec a = V_SET(A4), b = V_SET(B4), aa = V_SET(A4 * A4), bb = V_SET(B4 * B4);
    const vec even_a = V_FNMA(bb, d[2], d[4]), odd_a = V_FNMA(bb, d[1], d[3]);
    const vec even_b = V_FNMA(aa, d[2], d[4]), odd_b = V_FNMA(aa, d[1], d[3]);

    v[0] = V_FMA(p, d[0], V_FNMA(s, d[2], d[4]));
    v[1] = V_FMA(a, odd_a, even_a);
    v[2] = V_FNMA(a, odd_a, even_a);
    v[3] = V_FMA(b, odd_b, even_b);
    v[4] = V_FNMA(b, odd_b, even_b);
    v[5] = V_FMA(p, d[1], V_FNMA(s, d[3], d[5]));
}

/* One pair of points +-x of F(5,3), whose others are +-y, +-z: s = y^2 + z^2, p = y^2 z^2. */
IN void data5_pair(const vec *d, float x, float s, float p, vec *v)
{
    const vec sum = V_SET(s), product = V_SET(p), at = V_SET(x);
    const vec even = V_FMA(product, d[0], V_FNMA(sum, d[2], d[4]));
    const vec odd = V_FMA(product, d[1], V_FNMA(sum, d[3], d[5]));

    v[0] = V_FMA(at, even, odd);
    v[1] = V_FNMA(at, even, odd);
}

IN void data5(const vec *d, vec *v)
{
    const float aa = A5 * A5, bb = B5 * B5, cc = C5 * C5;
    const vec e1 = V_SET(aa + bb + cc), e2 = V_SET(aa * bb + aa * cc + bb * cc);
    const vec e3 = V_SET(aa * bb * cc);

    data5_pair(d, A5, bb + cc, bb * cc, v);
    data5_pair(d, B5, aa + cc, aa * cc, v + 2);
    data5_pair(d, C5, aa + bb, aa * bb, v + 4);
    v[6] = V_FNMA(e3, d[0], V_FMA(e2, d[2], V_FNMA(e1, d[4], d[6])));
}

/* Results: A^T r. Row i has the points to the power of i, and infinity in the last. */
IN void result4(const vec *r, vec *y)
{
    const vec sum_a = V_ADD(r[1], r[2]), difference_a = V_SUB(r[1], r[2]);
    const vec sum_b = V_ADD(r[3], r[4]), difference_b = V_SUB(r[3], r[4]);

    y[0] = V_ADD(r[0], V_ADD(sum_a, sum_b));
    y[1] = V_FMA(V_SET(A4), difference_a, V_MUL(V_SET(B4), difference_b));
    y[2] = V_FMA(V_SET(A4 * A4), sum_a, V_MUL(V_SET(B4 * B4), sum_b));
    y[3] = V_FMA(V_SET(A4 * A4 * A4), difference_a, V_FMA(V_SET(B4 * B4 * B4), difference_b, r[5]));
}

IN void result5(const vec *r, vec *y)
{
    const float aa = A5 * A5, bb = B5 * B5, cc = C5 * C5;
    const vec sum_a = V_ADD(r[0], r[1]), difference_a = V_SUB(r[0], r[1]);
    const vec sum_b = V_ADD(r[2], r[3]), difference_b = V_SUB(r[2], r[3]);
    const vec sum_c = V_ADD(r[4], r[5]), difference_c = V_SUB(r[4], r[5]);

    y[0] = V_ADD(sum_c, V_ADD(sum_a, sum_b));
    y[1] = V_FMA(V_SET(A5), difference_a,
                 V_FMA(V_SET(B5), difference_b, V_MUL(V_SET(C5), difference_c)));
    y[2] = V_FMA(V_SET(aa), sum_a, V_FMA(V_SET(bb), sum_b, V_MUL(V_SET(cc), sum_c)));
    y[3] = V_FMA(V_SET(aa * A5), difference_a,
                 V_FMA(V_SET(bb * B5), difference_b, V_MUL(V_SET(cc * C5), difference_c)));
    y[4] = V_FMA(V_SET(aa * aa), sum_a,
                 V_FMA(V_SET(bb * bb), sum_b, V_FMA(V_SET(cc * cc), sum_c, r[6])));
}

/* Filters: G g. Each constant is rounded once; in double it would take four times as long, and what
 * it rounds is small beside what the data's transform does. */
IN void filter_pair(const vec *g, float x, float f, vec *u)
{
    const vec even = V_FMA(V_SET(x * x / f), g[2], V_MUL(V_SET(1.0F / f), g[0]));
    const vec odd = V_SET(x / f);

    u[0] = V_FMA(odd, g[1], even);
    u[1] = V_FNMA(odd, g[1], even);
}

IN void filter4(const vec *g, vec *u)
{
    const float aa = A4 * A4, bb = B4 * B4;

    u[0] = V_MUL(V_SET(1.0F / (aa * bb)), g[0]);
    filter_pair(g, A4, 2.0F * aa * (aa - bb), u + 1);
    filter_pair(g, B4, 2.0F * bb * (bb - aa), u + 3);
    u[5] = g[2];
}

/* The product over the other points changes its sign with the point's: so does the second of each
 * pair, even - odd as odd - even. */
IN void filter5_pair(const vec *g, float x, float f, vec *u)
{
    const vec even = V_FMA(V_SET(x * x / f), g[2], V_MUL(V_SET(1.0F / f), g[0]));
    const vec odd = V_MUL(V_SET(x / f), g[1]);

    u[0] = V_ADD(odd, even);
    u[1] = V_SUB(odd, even);
}

IN void filter5(const vec *g, vec *u)
{
    const float aa = A5 * A5, bb = B5 * B5, cc = C5 * C5;

    filter5_pair(g, A5, 2.0F * A5 * (aa - bb) * (aa - cc), u);
    filter5_pair(g, B5, 2.0F * B5 * (bb - aa) * (bb - cc), u + 2);
    filter5_pair(g, C5, 2.0F * C5 * (cc - aa) * (cc - bb), u + 4);
    u[6] = g[2];
}

/* Nearest up-sampling by two, then three taps g: of four neighbours x, outputs 2j + 1 and 2j + 2
 * read x[j] and x[j + 1] alone, the one with g0 + g1 and g2, the other with g0 and g1 + g2. Both
 * are F(3,2) at 0, 1, -1 and infinity, of the same data; at 1 both have the sum of all taps, so
 * that one product serves both: seven for six outputs, and no constant but a half. */
IN void data6(const vec *d, vec *v)
{
    v[0] = V_SUB(d[0], d[2]);
    v[1] = V_ADD(d[1], d[2]);
    v[2] = V_SUB(d[2], d[1]);
    v[3] = V_SUB(d[3], d[1]);
}

IN void filter6(const vec *g, vec *u)
{
    const vec half = V_SET(0.5F);

    u[0] = g[0];
    u[1] = V_ADD(g[0], g[1]);
    u[5] = V_ADD(g[1], g[2]);
    u[6] = g[2];
    u[2] = V_MUL(half, V_ADD(u[1], g[2]));
    u[3] = V_MUL(half, V_SUB(g[0], u[5]));
    u[4] = V_MUL(half, V_SUB(u[1], g[2]));
}

IN void result6(const vec *r, vec *y)
{
    const vec odd = V_ADD(r[2], r[4]), even = V_ADD(r[2], r[3]);

    y[0] = V_ADD(r[1], odd);
    y[1] = V_ADD(r[0], even);
    y[2] = V_SUB(r[2], r[4]);
    y[3] = V_SUB(r[2], r[3]);
    y[4] = V_ADD(odd, r[6]);
    y[5] = V_ADD(even, r[5]);
}

IN void data1(const int m, const vec *d, vec *v)
{
    m == 4 ? data4(d, v) : m == 5 ? data5(d, v) : data6(d, v);
}

IN void result1(const int m, const vec *r, vec *y)
{
    m == 4 ? result4(r, y) : m == 5 ? result5(r, y) : result6(r, y);
}

IN void filter1(const int m, const vec *g, vec *u)
{
    m == 4 ? filter4(g, u) : m == 5 ? filter5(g, u) : filter6(g, u);
}

/* Down the columns, which neighbouring tiles share. */
IN void down_lanes(const int m, size_t columns, const float *x, size_t row, float *d, size_t line)
{
    const int n = POINTS(m);

    for (size_t w = 0; w < columns; w++) {
        vec in[7], out[7];
#pragma GCC unroll 7
        for (int i = 0; i < n; i++) {
            in[i] = V_LOAD(x + (size_t)i * row + w * 16);
        }
        data1(m, in, out);
#pragma GCC unroll 7
        for (int i = 0; i < n; i++) {
            V_STORE(d + (size_t)i * line + w * 16, out[i]);
        }
    }
}

/* The sum of `count` lines, each by its factor, of so many columns. */
IN void sum_lines(int count, const float *const *d, const float *factors, size_t from,
                  size_t columns, vec *sum)
{
    for (size_t w = 0; w < columns; w++) {
        vec total = V_MUL(V_SET(factors[0]), V_LOAD(d[0] + from + 16 * w));
#pragma GCC unroll 1
        for (int q = 1; q < count; q++) {
            total = V_FMA(V_SET(factors[q]), V_LOAD(d[q] + from + 16 * w), total);
        }
        sum[w] = total;
    }
}

/* Along the rows; lanes [lane, lane + LANES) of every d. */
IN void across_lanes(const int m, int count, const float *const *d, const float *factors,
                     size_t lane, size_t tiles, size_t line, float *v, size_t point, size_t tile)
{
    enum { AT_ONCE = 8 };
    const int n = POINTS(m);
    const size_t step = (size_t)STEP(m);

    for (size_t first = 0; first < tiles; first += AT_ONCE) {
        const size_t end = tiles - first < AT_ONCE ? tiles : first + AT_ONCE;
        for (int i = 0; i < n; i++) {
            vec sum[5 * AT_ONCE + 2];
            sum_lines(count, d, factors, (size_t)i * line + step * first * 16 + lane,
                      step * (end - first - 1) + (size_t)n, sum);
            for (size_t t = first; t < end; t++) {
                float *const to = v + (size_t)(i * n) * point + t * tile;
                vec out[7];
                data1(m, sum + step * (t - first), out);
#pragma GCC unroll 7
                for (int j = 0; j < n; j++) {
                    V_STORE(to + (size_t)j * point, out[j]);
                }
            }
        }
    }
}

/* One frame of a row of tiles: a point is the sum of `count` products, each by its factor. The
 * loops are not unrolled: the code would be twenty times as long, and no faster. */
IN void output_lanes(const int m, size_t tiles, const float *r, int count, const size_t *moments,
                     const float *factors, size_t point, size_t tile, const float *bias, float *y,
                     size_t row)
{
    const int n = PRODUCTS(m);
    const vec add = V_LOAD(bias);

    for (size_t t = 0; t < tiles; t++) {
        vec points[49], across[6][7];
#pragma GCC unroll 1
        for (int i = 0; i < n * n; i++) {
            const float *const from = r + t * tile + (size_t)i * point;
            vec sum = V_MUL(V_SET(factors[0]), V_LOAD(from + moments[0]));
            __builtin_prefetch(from + moments[0] + tile);
#pragma GCC unroll 1
            for (int q = 1; q < count; q++) {
                __builtin_prefetch(from + moments[q] + tile);
                sum = V_FMA(V_SET(factors[q]), V_LOAD(from + moments[q]), sum);
            }
            points[i] = sum;
        }
#pragma GCC unroll 1
        for (int i = 0; i < n; i++) {
            vec out[6];
            result1(m, points + n * i, out);
#pragma GCC unroll 6
            for (int j = 0; j < m; j++) {
                across[j][i] = out[j];
            }
        }
#pragma GCC unroll 1
        for (int j = 0; j < m; j++) {
            vec out[6];
            result1(m, across[j], out);
#pragma GCC unroll 6
            for (int i = 0; i < m; i++) {
                V_STORE(y + (size_t)i * row + ((size_t)m * t + (size_t)j) * 16, V_ADD(out[i], add));
            }
        }
    }
}

/* LANES channels of one filter, whose nine values are in g. */
IN void filter_planes(const int m, vec g[3][3], float *u, size_t point)
{
    const int n = PRODUCTS(m);
    vec down[7][3];

#pragma GCC unroll 3
    for (int j = 0; j < 3; j++) {
        const vec in[3] = {g[0][j], g[1][j], g[2][j]};
        vec out[7];
        filter1(m, in, out);
#pragma GCC unroll 7
        for (int i = 0; i < n; i++) {
            down[i][j] = out[i];
        }
    }
    /* Not unrolled: 49 addresses kept at once would all be in memory. */
#pragma GCC unroll 1
    for (int i = 0; i < n; i++) {
        float *const to = u + (size_t)(i * n) * point;
        vec out[7];
        filter1(m, down[i], out);
#pragma GCC unroll 7
        for (int j = 0; j < n; j++) {
            V_STORE(to + (size_t)j * point, out[j]);
        }
    }
}

/* One tap in time, or `moments` sums of three. */
IN void filter_lanes(const int m, int moments, const float *factors, const float *g, size_t tap,
                     float *u, size_t moment, size_t point)
{
    for (int q = 0; q < moments; q++, factors += 3) {
        vec plane[3][3];
#pragma GCC unroll 1
        for (int i = 0; i < 9; i++) {
            vec sum = V_LOAD(g + 16 * i);
            if (moments > 1) {
                sum = V_MUL(V_SET(factors[0]), sum);
                sum = V_FMA(V_SET(factors[1]), V_LOAD(g + tap + 16 * i), sum);
                sum = V_FMA(V_SET(factors[2]), V_LOAD(g + 2 * tap + 16 * i), sum);
            }
            plane[i / 3][i % 3] = sum;
        }
        filter_planes(m, plane, u + (size_t)q * moment, point);
    }
}

TARGET void SUFFIX(hy3d_winograd_down_f32)(int m, size_t columns, const float *x, size_t row,
                                           float *d, size_t line)
{
    for (int l = 0; l < 16; l += LANES) {
        if (m == 4) {
            down_lanes(4, columns, x + l, row, d + l, line);
        } else if (m == 5) {
            down_lanes(5, columns, x + l, row, d + l, line);
        } else {
            down_lanes(6, columns, x + l, row, d + l, line);
        }
    }
}

#define ACROSS(m) across_lanes(m, count, d, factors, (size_t)l, tiles, line, v + l, point, tile)
TARGET void SUFFIX(hy3d_winograd_across_f32)(int m, int count, const float *const *d,
                                             const float *factors, size_t tiles, size_t line,
                                             float *v, size_t point, size_t tile)
{
    for (int l = 0; l < 16; l += LANES) {
        m == 4 ? ACROSS(4) : m == 5 ? ACROSS(5) : ACROSS(6);
    }
}

#define OUTPUT(m)                                                                                  \
    output_lanes(m, tiles, r + l, count, moments, factors, point, tile, bias + l, y + l, row)
TARGET void SUFFIX(hy3d_winograd_output_f32)(int m, size_t tiles, const float *r, int count,
                                             const size_t *moments, const float *factors,
                                             size_t point, size_t tile, const float *bias, float *y,
                                             size_t row)
{
    for (int l = 0; l < 16; l += LANES) {
        m == 4 ? OUTPUT(4) : m == 5 ? OUTPUT(5) : OUTPUT(6);
    }
}

#define FILTER(m) filter_lanes(m, moments, factors, g + l, tap, u + l, moment, point)
TARGET void SUFFIX(hy3d_winograd_filter_f32)(int m, int moments, const float *factors,
                                             const float *g, size_t tap, float *u, size_t moment,
                                             size_t point)
{
    for (int l = 0; l < 16; l += LANES) {
        m == 4 ? FILTER(4) : m == 5 ? FILTER(5) : FILTER(6);
    }
}
