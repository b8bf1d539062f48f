/* The kernels that Winograd is made of: every level against a double computation within a proven
 * bound, avx512 against avx2 bit by bit, between pages that must not be touched. */
#include "winograd_support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GEMM, TO_LANES, FROM_LANES, DOWN, ACROSS, OUTPUT, FILTER, KERNELS };

static const char *const names[KERNELS] = {"gemm",   "to_lanes", "from_lanes", "down",
                                           "across", "output",   "filter"};

/* One call: n is rows, elements, columns or tiles; pad widens every pitch. */
typedef struct job {
    int which, m, option; /* option: accumulate, a row of `together`, of `sums`, of `filters` */
    size_t n, pad;
} job;

/* Pitches and sizes in floats; in[1] is b, other or bias. */
typedef struct shape {
    size_t in[2], out;
    size_t points, line, tile, point, moment, row; /* of a job's arguments */
    size_t segments, blocks, block;
} shape;

/* Sums of what lies at a and b in turn. */
static const struct {
    int count;
    float factors[5];
} together[4] = {{1, {1}}, {2, {1, -1}}, {2, {1, 1}}, {5, {0.5F, -1.5625F, -0.3125F, 1, 2}}};

/* Sums of products in time: one alone; F(2,3)'s two frames; two of frames in pairs; one of
 * F(3,3). */
static const struct {
    int count;
    size_t moments[5];
    float factors[5];
} sums[5] = {{1, {0}, {1}},
             {3, {0, 1, 2}, {1, 1, 1}},
             {3, {1, 2, 3}, {1, -1, -1}},
             {2, {2, 4}, {1, 1}},
             {5, {0, 1, 2, 3, 4}, {0.25F, 0.25F, 1.5625F, 1.5625F, 1}}};

/* Taps in time: one; F(2,3)'s; those of frames in pairs; some of F(3,3)'s, which are rounded. */
static const struct {
    int moments;
    float factors[5][3];
} filters[4] = {{1, {{0}}},
                {4, {{1, 0, 0}, {0.5F, 0.5F, 0.5F}, {0.5F, -0.5F, 0.5F}, {0, 0, 1}}},
                {5, {{1, 0, 0}, {1, 1, 0}, {1, 1, 1}, {0, 1, 1}, {0, 0, 1}}},
                {2, {{-16.0F / 21, -8.0F / 21, -4.0F / 21}, {32.0F / 105, 8.0F / 21, 10.0F / 21}}}};

static shape shape_of(const job *j)
{
    const winograd_matrices w = winograd_matrices_of(j->m);
    const size_t m = (size_t)j->m, n = j->n, last = (size_t)w.n - 1, step = (size_t)w.step;
    shape s = {.points = (size_t)(j->which == ACROSS ? w.n * w.n : w.products * w.products),
               .tile = 32};

    switch (j->which) {
    case GEMM: /* segments overlap, as the frames of neighbouring outputs do */
        s.segments = 1 + n % 3;
        s.blocks = 1 + n / 3 % 2;
        s.block = (n + s.segments - 1 + j->pad) * 16;
        s.in[0] = (s.segments - 1) * 16 + (s.blocks - 1) * s.block + n * 16;
        s.in[1] = s.segments * s.blocks * 16 * 32;
        s.out = n * 32;
        break;
    case TO_LANES:
    case FROM_LANES:
        s.row = n + j->pad;
        s.in[0] = j->which == TO_LANES ? 15 * s.row + n : 16 * n;
        s.out = j->which == TO_LANES ? 16 * n : 15 * s.row + n;
        break;
    case DOWN:
        s.line = (n + j->pad) * 16;
        s.in[0] = s.out = last * s.line + n * 16;
        break;
    case ACROSS:
        s.line = (step * (n - 1) + last + 1 + j->pad) * 16;
        s.tile = 16 * (1 + j->pad % 2);
        s.point = n * s.tile + 16 * j->pad;
        s.in[0] = s.in[1] = last * s.line + (step * (n - 1) + last + 1) * 16;
        s.out = (s.points - 1) * s.point + (n - 1) * s.tile + 16;
        break;
    case OUTPUT:
        s.moment = n * 32 + 16 * j->pad;
        s.point = 5 * s.moment;
        s.row = (m * n + j->pad) * 16;
        s.in[0] = (s.points - 1) * s.point +
                  sums[j->option].moments[sums[j->option].count - 1] * s.moment + (n - 1) * 32 + 16;
        s.in[1] = 16;
        s.out = (m - 1) * s.row + m * n * 16;
        break;
    default:
        s.row = 144 + 16 * j->pad; /* between taps */
        s.moment = 16 + 16 * j->pad;
        s.point = (size_t)filters[j->option].moments * s.moment;
        s.in[0] = j->option > 0 ? 2 * s.row + 144 : 144;
        s.out = s.points * s.point - s.moment + 16;
        break;
    }
    return s;
}

static void call(const hy3d__kernels *kernels, const job *j, const float *a, const float *b,
                 float *out, const void *forbidden)
{
    const shape s = shape_of(j);
    const char *const ahead_at = forbidden;
    size_t moments[5];
    const hy3d__ahead ahead = {ahead_at, ahead_at, 64, 128, ahead_at + 4096, ahead_at + 4096};

    switch (j->which) {
    case GEMM:
        kernels->gemm_f32(j->n, s.segments, 16, s.blocks, s.block, a, b, out, j->option, &ahead);
        break;
    case TO_LANES:
        kernels->to_lanes_f32(j->n, a, s.row, out);
        break;
    case FROM_LANES:
        kernels->from_lanes_f32(j->n, a, out, s.row);
        break;
    case DOWN:
        kernels->winograd_down_f32(j->m, j->n, a, s.line, out, s.line);
        break;
    case ACROSS:
        kernels->winograd_across_f32(j->m, together[j->option].count,
                                     (const float *[]){a, b, a, b, a}, together[j->option].factors,
                                     j->n, s.line, out, s.point, s.tile);
        break;
    case OUTPUT:
        for (int q = 0; q < 5; q++) {
            moments[q] = sums[j->option].moments[q] * s.moment;
        }
        kernels->winograd_output_f32(j->m, j->n, a, sums[j->option].count, moments,
                                     sums[j->option].factors, s.point, s.tile, b, out, s.row);
        break;
    default:
        kernels->winograd_filter_f32(j->m, filters[j->option].moments,
                                     filters[j->option].factors[0], a, s.row, out, s.moment,
                                     s.point);
        break;
    }
}

/* A value and the sum of the magnitudes it is made of. */
typedef struct sum {
    double value, magnitude;
} sum;

static void add(sum *to, double factor, double value)
{
    to->value += factor * value;
    to->magnitude += fabs(factor * value);
}

static void oracle_gemm(const job *j, const shape *s, const float *a, const float *b,
                        const float *before, sum *wanted)
{
    for (size_t at = 0; at < s->out; at++) {
        sum v = {0};
        add(&v, 1.0, j->option ? (double)before[at] : 0.0);
        for (size_t k = 0; k < s->segments * s->blocks * 16; k++) {
            const size_t segment = k / 16 / s->blocks, block = k / 16 % s->blocks;
            add(&v, (double)a[segment * 16 + block * s->block + at / 32 * 16 + k % 16],
                (double)b[k * 32 + at % 32]);
        }
        wanted[at] = v;
    }
}

static void oracle_lanes(const job *j, const shape *s, const float *a, sum *wanted)
{
    for (size_t i = 0; i < j->n; i++) {
        for (size_t l = 0; l < 16; l++) {
            const size_t line = l * s->row + i, lane = i * 16 + l;
            sum v = {0};
            add(&v, 1.0, (double)a[j->which == TO_LANES ? line : lane]);
            wanted[j->which == TO_LANES ? lane : line] = v;
        }
    }
}

/* Down, or across what lies at a and b: out point p of column or tile t. */
static void oracle_data(const job *j, const shape *s, const float *a, const float *b, sum *wanted)
{
    const winograd_matrices w = winograd_matrices_of(j->m);
    const size_t n = (size_t)w.n, lines = j->which == DOWN ? 1 : n;

    for (size_t i = 0; i < lines * n * j->n * 16; i++) {
        const size_t l = i % 16, t = i / 16 % j->n, p = i / 16 / j->n % n, line = i / 16 / j->n / n;
        sum v = {0};
        for (size_t q = 0; q < n; q++) {
            const size_t at = j->which == DOWN
                                  ? q * s->line + t * 16 + l
                                  : line * s->line + ((size_t)w.step * t + q) * 16 + l;
            for (int r = 0; r < (j->which == DOWN ? 1 : together[j->option].count); r++) {
                const double factor = j->which == DOWN ? 1.0 : (double)together[j->option].factors[r];
                add(&v, factor * w.b[p][q], (double)(r % 2 == 0 ? a : b)[at]);
            }
        }
        wanted[j->which == DOWN ? p * s->line + t * 16 + l
                                : (line * n + p) * s->point + t * s->tile + l] = v;
    }
}

static void oracle_output(const job *j, const shape *s, const float *r, const float *bias,
                          sum *wanted)
{
    const winograd_matrices w = winograd_matrices_of(j->m);
    const size_t m = (size_t)j->m, n = (size_t)w.products;

    for (size_t i = 0; i < m * m * j->n * 16; i++) {
        const size_t l = i % 16, t = i / 16 % j->n, x = i / 16 / j->n % m, y = i / 16 / j->n / m;
        sum v = {0};
        add(&v, 1.0, (double)bias[l]);
        for (size_t p = 0; p < s->points; p++) {
            for (int q = 0; q < sums[j->option].count; q++) {
                const double factor =
                    (double)sums[j->option].factors[q] * w.a[y][p / n] * w.a[x][p % n];
                const float *const at = r + p * s->point + t * s->tile + l;
                if (factor != 0.0) {
                    add(&v, factor, (double)at[sums[j->option].moments[q] * s->moment]);
                }
            }
        }
        wanted[y * s->row + (m * t + x) * 16 + l] = v;
    }
}

static void oracle_filter(const job *j, const shape *s, const float *g, sum *wanted)
{
    const winograd_matrices w = winograd_matrices_of(j->m);
    const size_t n = (size_t)w.products, moments = (size_t)filters[j->option].moments;

    for (size_t i = 0; i < s->points * moments * 16; i++) {
        const size_t l = i % 16, q = i / 16 % moments, p = i / 16 / moments;
        sum v = {0};
        for (size_t k = 0; k < (moments > 1 ? 27 : 9); k++) {
            const double in_time =
                moments == 1 ? 1.0 : (double)filters[j->option].factors[q][k / 9];
            const double factor = in_time * w.g[p / n][k % 9 / 3] * w.g[p % n][k % 3];
            if (factor != 0.0) {
                add(&v, factor,
                    (double)g[k / 9 * s->row + k % 9 * 16 + l]);
            }
        }
        wanted[p * s->point + q * s->moment + l] = v;
    }
}

/* Expected values in the order of `out`; NaN where nothing may be written. */
static void oracle(const job *j, const float *a, const float *b, const float *before, sum *wanted)
{
    const shape s = shape_of(j);

    for (size_t i = 0; i < s.out; i++) {
        wanted[i] = (sum){.value = NAN};
    }
    switch (j->which) {
    case GEMM:
        oracle_gemm(j, &s, a, b, before, wanted);
        break;
    case TO_LANES:
    case FROM_LANES:
        oracle_lanes(j, &s, a, wanted);
        break;
    case DOWN:
    case ACROSS:
        oracle_data(j, &s, a, b, wanted);
        break;
    case OUTPUT:
        oracle_output(j, &s, a, b, wanted);
        break;
    default:
        oracle_filter(j, &s, a, wanted);
        break;
    }
}

/* Roundings to float that a term passes at most, products rounded before they are added; the
 * transforms' are counted in docs/numerics.md. */
static double roundings(const job *j)
{
    const shape s = shape_of(j);
    switch (j->which) {
    case GEMM:
        return (double)(s.segments * s.blocks * 16 + 1);
    case TO_LANES:
    case FROM_LANES:
        return 0.0;
    case DOWN:
    case ACROSS:
        return (j->m == 6 ? 1 : j->m) + (j->which == ACROSS ? together[j->option].count : 0);
    case OUTPUT:
        return (j->m == 6 ? 4 : 2 * j->m) + sums[j->option].count + 1;
    default:
        return (j->m == 6 ? 4.0 : 8.0) + (j->option > 0 ? 3.0 : 0.0);
    }
}

/* n floats between pages that fault: they end where one begins, or begin where one ends, or lie at
 * an odd address before the end. */
static float *place(const test_guard *guard, size_t n, int where)
{
    const size_t after = where < 2 ? 0 : (size_t)(where - 1) * 4;
    return test_guard_end(guard, where == 1 ? guard->bytes : n * 4 + after);
}

static void check_values(const job *j, int level, const sum *wanted, const float *got,
                         const float *before)
{
    const double u = ldexp(1.0, -24), count = roundings(j);
    const shape s = shape_of(j);

    for (size_t i = 0; i < s.out; i++) {
        /* What the double computations, the kernel's and the oracle's, are off by. */
        const double bound = (count * u / (1.0 - count * u) + ldexp(1.0, -48)) *
                             wanted[i].magnitude;
        const bool is_right = isnan(wanted[i].value)
                                  ? memcmp(&got[i], &before[i], sizeof *got) == 0
                                  : fabs((double)got[i] - wanted[i].value) <= bound;
        ck_assert_msg(is_right, "%s m %d option %d n %zu pad %zu level %d: [%zu] is %.9g, not %.9g",
                      names[j->which], j->m, j->option, j->n, j->pad, level, i, (double)got[i],
                      wanted[i].value);
    }
}

/* Guards of both inputs, the output, and one that nothing may touch. */
static void check_job(const job *j, const test_guard guards[4], test_random *random, int where,
                      sum *wanted, float *first)
{
    const shape s = shape_of(j);
    float *const in[2] = {place(&guards[0], s.in[0], where), place(&guards[1], s.in[1], where)};
    float *const out = place(&guards[2], s.out, where);
    float *const before = first + s.out;

    for (int i = 0; i < 2; i++) {
        for (size_t e = 0; e < s.in[i]; e++) {
            in[i][e] = (float)test_between(random, -9999, 9999) / 3000;
        }
    }
    for (size_t e = 0; e < s.out; e++) {
        before[e] = (float)test_between(random, -9999, 9999) / 1000;
    }
    oracle(j, in[0], in[1], before, wanted);
    for (int level = 0; level < test_level_count(); level++) {
        memset(out + s.out, 0x5a, where < 2 ? 0 : (size_t)(where - 1) * 4);
        memcpy(out, before, s.out * sizeof *out);
        call(hy3d__kernels_for(level), j, in[0], in[1], out, guards[3].pages);
        check_values(j, level, wanted, out, before);
        const bool has_same_bits = level == 2;
        ck_assert_msg(!has_same_bits || memcmp(out, first, s.out * sizeof *out) == 0,
                      "%s: other bits at level %d", names[j->which], level);
        memcpy(first, out, s.out * sizeof *out);
        for (size_t e = 0; where >= 2 && e < (size_t)(where - 1) * 4; e++) {
            ck_assert_uint_eq(((unsigned char *)(out + s.out))[e], 0x5a);
        }
    }
}

static void check_sizes(int which, size_t most, const int *options, int count)
{
    enum { BYTES = 1 << 20 };
    test_random random = test_rng(850 + (uint64_t)which);
    test_guard guards[4];
    sum *const wanted = malloc(BYTES / 4 * sizeof *wanted);
    float *const first = malloc(2 * BYTES);
    for (int i = 0; i < 4; i++) {
        guards[i] = test_guard_make(BYTES);
    }
    for (int m = 4; m <= (which < DOWN ? 4 : 6); m++) {
        /* Long vectors are 16: every remainder is met on the way to 70, in the gate beyond 20 once. */
        for (size_t n = 1; n <= most; n += n < 20 ? 1 : (size_t)test_draws(3, 1)) {
            for (int i = 0; i < count; i++) {
                const job j = {which, m, options[i], n, (n + (size_t)i) % 3};
                ck_assert_uint_le(shape_of(&j).out, BYTES / 4);
                ck_assert_uint_le(shape_of(&j).in[0], BYTES / 4);
                for (int where = 0; where < 2; where++) {
                    check_job(&j, guards, &random, where, wanted, first);
                }
                check_job(&j, guards, &random, 2 + (int)(n % 15), wanted, first);
            }
        }
    }
    for (int i = 0; i < 4; i++) {
        test_guard_free(&guards[i]);
    }
    free(wanted);
    free(first);
}

START_TEST(test_every_size_and_alignment_is_within_the_bound_and_touches_nothing_else)
{
    static const struct {
        size_t most;
        int options[5], count;
    } plans[KERNELS] = {
        [GEMM] = {30, {0, 1}, 2},       [TO_LANES] = {70, {0}, 1}, [FROM_LANES] = {70, {0}, 1},
        [DOWN] = {70, {0}, 1},          [ACROSS] = {20, {0, 1, 2, 3}, 4},
        [OUTPUT] = {16, {0, 1, 2, 3, 4}, 5},
        [FILTER] = {4, {0, 1, 2, 3}, 4},
    };
    check_sizes(_i, plans[_i].most, plans[_i].options, plans[_i].count);
}
END_TEST

Suite *hy3d_winograd_kernels_suite(void);
Suite *hy3d_winograd_kernels_suite(void)
{
    Suite *const suite = suite_create("winograd_kernels");
    TCase *const tests = tcase_create("winograd_kernels");
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(
        tests, test_every_size_and_alignment_is_within_the_bound_and_touches_nothing_else, 0,
        KERNELS);
    suite_add_tcase(suite, tests);
    return suite;
}
