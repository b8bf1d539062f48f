/* Every kernel of kernels.inc at every level, between pages that must not be touched: lengths 0 to
 * 257, at 0 to 63 elements from the page behind and from the page before, with the reference's bits
 * and no others changed.
 *
 * A run takes some lengths and offsets; HY3D_GUARDS=all takes all, HY3D_GUARDS=all:3/16 every
 * sixteenth length from 3 on (tests/long/check_guards.py does so on all cores). */
#include "guard_cases.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { MOST = 257, OFFSETS = 64, ROOM = 1 << 23, AROUND = OFFSETS * 8 };

typedef struct bench {
    test_guard guard[GUARD_OPERANDS], pages[2][GUARD_OPERANDS];
    void *source[GUARD_OPERANDS], *wanted[GUARD_OPERANDS]; /* to begin with; after ref */
    const guarded_kernel *kernel;
} bench;

static bench bench_make(const guarded_kernel *kernel)
{
    bench b = {.kernel = kernel};
    for (int i = 0; i < GUARD_OPERANDS; i++) {
        b.guard[i] = test_guard_make(ROOM - 1);
        for (int k = 0; k < 2; k++) {
            b.pages[k][i] = test_guard_make(ROOM - 1);
        }
        b.source[i] = test_guard_end(&b.pages[0][i], ROOM);
        b.wanted[i] = test_guard_end(&b.pages[1][i], ROOM);
    }
    return b;
}

static void bench_free(bench *b)
{
    for (int i = 0; i < GUARD_OPERANDS; i++) {
        test_guard_free(&b->guard[i]);
        test_guard_free(&b->pages[0][i]);
        test_guard_free(&b->pages[1][i]);
    }
}

static void fill(test_random *random, const guard_operand *operand, void *out)
{
    const size_t words = operand->bytes / 4;
    uint32_t *const bits = out;
    if (operand->fill == GUARD_INTEGERS) {
        test_fill_f32(random, out, words, 8);
    } else {
        for (size_t i = 0; i < words + 1; i++) { /* and half a word */
            bits[i] = (uint32_t)(test_next(random) >> 32);
        }
    }
}

/* What the call begins with, and what the reference makes of it. */
static void prepare(bench *b, guard_case *c, test_random *random)
{
    b->kernel->shape(c);
    c->forbidden = b->guard[0].pages;
    for (int i = 0; i < c->count; i++) {
        ck_assert_uint_le(c->operand[i].bytes, ROOM - 2 * AROUND);
        fill(random, &c->operand[i], b->source[i]);
    }
    if (b->kernel->make != NULL) {
        b->kernel->make(c, random, b->source);
    }
    for (int i = 0; i < c->count; i++) {
        memcpy(b->wanted[i], b->source[i], c->operand[i].bytes);
    }
    b->kernel->call(hy3d__kernels_for(0), c, b->wanted);
}

static bool is_all(const unsigned char *bytes, size_t n, unsigned char value)
{
    for (size_t i = 0; i < n; i++) {
        if (bytes[i] != value) {
            return false;
        }
    }
    return true;
}

/* valgrind's processor computes c - a * b as -(a * b - c), so that a zero has the other sign. */
#if defined(__x86_64__)
__attribute__((target("fma"))) static bool zero_of_difference_is_negative(void)
{
    volatile float zero = 0;
    const __m128 z = _mm_set_ss(zero);
    return signbit(_mm_cvtss_f32(_mm_fnmadd_ss(z, z, z)));
}

static bool zeros_lose_their_sign(void)
{
    return __builtin_cpu_supports("fma") && zero_of_difference_is_negative();
}
#else
static bool zeros_lose_their_sign(void)
{
    return false;
}
#endif

/* Bit for bit; where zeros lose their sign, floats that are both zero are equal too. */
static bool is_same(const unsigned char *got, const unsigned char *wanted, size_t bytes)
{
    const bool has_the_bits = memcmp(got, wanted, bytes) == 0;
    if (has_the_bits || !zeros_lose_their_sign()) {
        return has_the_bits;
    }
    for (size_t i = 0; i + 4 <= bytes; i += 4) {
        uint32_t a, b;
        memcpy(&a, got + i, 4);
        memcpy(&b, wanted + i, 4);
        if (a != b && (a | b) << 1 != 0) {
            return false;
        }
    }
    return memcmp(got + bytes / 4 * 4, wanted + bytes / 4 * 4, bytes % 4) == 0;
}

/* One call with its arrays `offset` elements from a page; one of them right at it. */
static void check_placed(bench *b, const guard_case *c, int level, size_t offset, bool at_end)
{
    void *at[GUARD_OPERANDS];
    for (int i = 0; i < c->count; i++) {
        const guard_operand *const o = &c->operand[i];
        const size_t gap = (int)(offset % (size_t)c->count) == i ? 0 : offset * o->unit;
        const size_t bytes = at_end ? o->bytes + gap : b->guard[i].bytes - gap;
        unsigned char *const place = test_guard_end(&b->guard[i], bytes);
        memset(at_end ? place - AROUND : place - gap, 0x5a, o->bytes + gap + AROUND);
        at[i] = memcpy(place, b->source[i], o->bytes);
    }
    b->kernel->call(hy3d__kernels_for(level), c, at);
    for (int i = 0; i < c->count; i++) {
        const guard_operand *const o = &c->operand[i];
        const size_t gap = (int)(offset % (size_t)c->count) == i ? 0 : offset * o->unit;
        const unsigned char *const got = at[i];
        const unsigned char *const wanted = o->is_written ? b->wanted[i] : b->source[i];
        const bool is_right = is_same(got, wanted, o->bytes);
        const bool is_kept = at_end ? is_all(got - AROUND, AROUND, 0x5a) &&
                                          is_all(got + o->bytes, gap, 0x5a)
                                    : is_all(got - gap, gap, 0x5a) &&
                                          is_all(got + o->bytes, AROUND, 0x5a);
        ck_assert_msg(is_right && is_kept,
                      "%s level %d n %zu variant %zu offset %zu %s: operand %d %s",
                      b->kernel->name, level, c->n, c->variant, offset,
                      at_end ? "behind" : "before", i,
                      is_right ? "was written beside" : "has other bits");
    }
}

static void check_case(bench *b, test_random *random, size_t n, size_t offset)
{
    guard_case c = {.n = n, .variant = n * 7 + offset};
    prepare(b, &c, random);
    for (int level = 0; level < test_level_count(); level++) {
        check_placed(b, &c, level, offset, true);
        check_placed(b, &c, level, offset, false);
    }
}

/* All lengths from `first` on in steps, or some of them. */
typedef struct extent {
    bool all;
    size_t first, step;
} extent;

static extent wanted_extent(void)
{
    const char *const text = getenv("HY3D_GUARDS");
    extent e = {text != NULL && strncmp(text, "all", 3) == 0, 0, 1};
    if (e.all && text[3] != '\0') {
        char *rest = NULL;
        e.first = strtoul(text + 4, &rest, 10);
        e.step = *rest == '/' ? strtoul(rest + 1, NULL, 10) : 0;
        ck_assert_msg(text[3] == ':' && e.step > 0 && e.first < e.step,
                      "HY3D_GUARDS=%s is not all:PART/PARTS", text);
    }
    return e;
}

static bool is_wanted(const extent *e, size_t n, size_t offset)
{
    if (e->all) {
        return n % e->step == e->first;
    }
    const size_t near = n % 32;
    return (n <= 20 || near <= 1 || near == 31 || n == MOST) && (offset * 37 + n * 5) % 16 == 0;
}

static void check_kernel(const guarded_kernel *kernel)
{
    const extent e = wanted_extent();
    test_random random = test_rng_of(7700, kernel->name);
    bench b = bench_make(kernel);
    long calls = 0;
    for (size_t n = 0; n <= MOST; n++) {
        for (size_t offset = 0; offset < OFFSETS; offset++) {
            if (is_wanted(&e, n, offset)) {
                check_case(&b, &random, n, offset);
                calls += 2L * test_level_count();
            }
        }
    }
    ck_assert_int_gt(calls, 0);
    test_count("kernels between guard pages", 1);
    test_count("calls of kernels between guard pages", calls);
    bench_free(&b);
}

/* A test each, so that a kernel that faults is named. */
#define K(name, parameters)                                                                        \
    START_TEST(test_##name##_stays_within_its_arrays_and_has_the_references_bits)                  \
    {                                                                                              \
        check_kernel(&guard_##name);                                                               \
    }                                                                                              \
    END_TEST
#include "kernels/kernels.inc"
#undef K

Suite *hy3d_guards_suite(void);
Suite *hy3d_guards_suite(void)
{
    Suite *const suite = suite_create("guards");
    TCase *const tests = tcase_create("guards");
    const char *const asked = getenv("HY3D_GUARDS");
    tcase_set_timeout(tests, asked == NULL ? 120 : 7200);
#define K(name, parameters)                                                                        \
    tcase_add_test(tests, test_##name##_stays_within_its_arrays_and_has_the_references_bits);
#include "kernels/kernels.inc"
#undef K
    suite_add_tcase(suite, tests);
    return suite;
}
