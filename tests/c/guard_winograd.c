/* Guard cases of the Winograd kernels: n is columns or tiles, the variant chooses m and pitches. */
#include "guard_cases.h"

#include <string.h>

enum { M, LINE, POINT, TILE, MOMENT, ROW, OPTION };

static size_t m_of(const guard_case *c)
{
    return 4 + c->variant % 3;
}

static size_t pad_of(const guard_case *c)
{
    return c->variant / 3 % 3;
}

/* Of a tile along an axis: data points; products; data from one tile to the next. */
static size_t points_of(size_t m)
{
    return m == 6 ? 4 : m + 2;
}

static size_t products_of(size_t m)
{
    return m == 6 ? 7 : m + 2;
}

static size_t data_of(size_t m, size_t tiles)
{
    return (m == 6 ? 3 : m) * (tiles - 1) + points_of(m);
}

static void shape_down(guard_case *c)
{
    const size_t m = m_of(c), line = (c->n + pad_of(c)) * 16;
    const size_t used = c->n == 0 ? 0 : (points_of(m) - 1) * line + c->n * 16;
    c->number[M] = m;
    c->number[LINE] = line;
    c->count = 2;
    c->operand[0] = guard_floats(used, GUARD_INTEGERS, false);
    c->operand[1] = guard_floats(used, GUARD_INTEGERS, true);
}

static void call_down(const hy3d__kernels *kernels, const guard_case *c, void *const at[])
{
    kernels->winograd_down_f32((int)c->number[M], c->n, at[0], c->number[LINE], at[1],
                               c->number[LINE]);
}

const guarded_kernel guard_winograd_down_f32 = {"winograd_down_f32", shape_down, NULL, call_down};

static void shape_across(guard_case *c)
{
    const size_t m = m_of(c), pad = pad_of(c), points = points_of(m) * points_of(m);
    const size_t columns = c->n == 0 ? 0 : data_of(m, c->n), line = (columns + pad) * 16;
    const size_t tile = 16 * (1 + pad % 2), point = c->n * tile + 16 * pad;
    const size_t used = c->n == 0 ? 0 : (points_of(m) - 1) * line + columns * 16;
    c->number[M] = m;
    c->number[LINE] = line;
    c->number[POINT] = point;
    c->number[TILE] = tile;
    c->number[OPTION] = 1 + c->variant / 9 % 2; /* how many are summed */
    c->count = 3;
    c->operand[0] = guard_floats(used, GUARD_INTEGERS, false);
    c->operand[1] = guard_floats(used, GUARD_INTEGERS, false);
    c->operand[2] = guard_floats(
        c->n == 0 ? 0 : (points - 1) * point + (c->n - 1) * tile + 16, GUARD_INTEGERS, true);
}

static void call_across(const hy3d__kernels *kernels, const guard_case *c, void *const at[])
{
    const float *const d[2] = {at[0], c->number[OPTION] == 1 ? c->forbidden : at[1]};
    const float factors[2] = {1, -1};
    kernels->winograd_across_f32((int)c->number[M], (int)c->number[OPTION], d, factors, c->n,
                                 c->number[LINE], at[2], c->number[POINT], c->number[TILE]);
}

const guarded_kernel guard_winograd_across_f32 = {"winograd_across_f32", shape_across, NULL,
                                                  call_across};

/* Even lanes of a tile have one product and no bias, odd ones a bias alone: each sum has one term,
 * a power of two, so it is rounded alike whether or not products are fused into it. */
static float power_of_two(test_random *random)
{
    const float value = (float)(1 << test_between(random, 0, 3));
    return test_between(random, 0, 1) == 1 ? value : -value;
}

static void make_result(const guard_case *c, test_random *random, void *const at[])
{
    const size_t m = c->number[M], points = products_of(m) * products_of(m);
    float *const r = at[0], *const bias = at[1];
    memset(r, 0, c->operand[0].bytes);
    for (size_t l = 0; l < 16; l++) {
        bias[l] = l % 2 == 0 ? 0.0F : (float)test_between(random, -8, 8);
    }
    for (size_t t = 0; t < c->n; t++) {
        for (size_t l = 0; l < 16; l += 2) {
            const size_t p = (size_t)test_between(random, 0, (int64_t)points - 1);
            const size_t moment = (size_t)test_between(random, 0, (int64_t)c->number[OPTION] - 1);
            r[p * c->number[POINT] + moment * c->number[MOMENT] + t * c->number[TILE] + l] =
                power_of_two(random);
        }
    }
}

/* A frame is made of OPTION products in time. */
static void shape_output(guard_case *c)
{
    const size_t m = m_of(c), pad = pad_of(c), points = products_of(m) * products_of(m);
    const size_t tile = 16 * (1 + pad % 2), moment = c->n * tile + 16 * pad;
    const size_t count = 1 + c->variant / 9 % 3, point = count * moment, row = (m * c->n + pad) * 16;
    const size_t in = (points - 1) * point + (count - 1) * moment + (c->n - 1) * tile + 16;
    const size_t out = (m - 1) * row + m * c->n * 16;
    c->number[M] = m;
    c->number[POINT] = point;
    c->number[TILE] = tile;
    c->number[MOMENT] = moment;
    c->number[ROW] = row;
    c->number[OPTION] = count;
    c->count = 3;
    c->operand[0] = guard_floats(c->n == 0 ? 0 : in, GUARD_MADE, false);
    c->operand[1] = guard_floats(16, GUARD_MADE, false);
    c->operand[2] = guard_floats(c->n == 0 ? 0 : out, GUARD_INTEGERS, true);
}

static void call_output(const hy3d__kernels *kernels, const guard_case *c, void *const at[])
{
    static const float factors[2][3] = {{1, 1, 1}, {1, -1, -1}};
    const size_t moment = c->number[MOMENT], moments[3] = {0, moment, 2 * moment};
    kernels->winograd_output_f32((int)c->number[M], c->n, at[0], (int)c->number[OPTION], moments,
                                 factors[c->variant / 27 % 2], c->number[POINT], c->number[TILE],
                                 at[1], at[2], c->number[ROW]);
}

const guarded_kernel guard_winograd_output_f32 = {"winograd_output_f32", shape_output, make_result,
                                                  call_output};

/* One filter has one size: n widens the pitches. */
static void shape_filter(guard_case *c)
{
    static const size_t counts[] = {1, 4, 5};
    const size_t m = m_of(c), points = products_of(m) * products_of(m);
    const size_t moments = counts[c->variant / 3 % 3];
    const size_t tap = 144 + 16 * (c->n % 17), moment = 16 + 16 * (c->n % 5);
    const size_t point = moments * moment + 16 * (c->n % 3);
    c->number[M] = m;
    c->number[OPTION] = moments;
    c->number[ROW] = tap;
    c->number[MOMENT] = moment;
    c->number[POINT] = point;
    c->count = 2;
    c->operand[0] = guard_floats(moments > 1 ? 2 * tap + 144 : 144, GUARD_MADE, false);
    c->operand[1] = guard_floats((points - 1) * point + (moments - 1) * moment + 16,
                                 GUARD_INTEGERS, true);
}

/* One weight a channel, for the same reason. */
static void make_filter(const guard_case *c, test_random *random, void *const at[])
{
    float *const g = at[0];
    memset(g, 0, c->operand[0].bytes);
    for (size_t l = 0; l < 16; l++) {
        const size_t tap = c->number[OPTION] > 1 ? (size_t)test_between(random, 0, 2) : 0;
        g[tap * c->number[ROW] + 16 * (size_t)test_between(random, 0, 8) + l] =
            power_of_two(random);
    }
}

static void call_filter(const hy3d__kernels *kernels, const guard_case *c, void *const at[])
{
    static const float factors[5][3] = {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}, {0, 2, 0}, {1, 1, 1}};
    kernels->winograd_filter_f32((int)c->number[M], (int)c->number[OPTION], factors[0], at[0],
                                 c->number[ROW], at[1], c->number[MOMENT], c->number[POINT]);
}

const guarded_kernel guard_winograd_filter_f32 = {"winograd_filter_f32", shape_filter,
                                                  make_filter, call_filter};
