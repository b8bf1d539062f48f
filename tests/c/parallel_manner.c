/* Threads of the pool compute as their caller does. */
#define _GNU_SOURCE
#include "pool_grains.h"

#include <fenv.h>
#include <float.h>

#include "base/os.h"

/* How a thread computes: the direction it rounds in, whether products below FLT_MIN are flushed to
 * 0 (torch.set_flush_denormal), whether long double is as precise as it says. */
static int manners(void)
{
    volatile float least = FLT_MIN;
    volatile float half = least * 0.5F;
    volatile long double one = 1;
    volatile long double more = one + LDBL_EPSILON;
    return 4 * fegetround() + 2 * (half == 0) + (more > one);
}

typedef struct mannered {
    meeting all;
    int manners;
    _Atomic int strays;
} mannered;

static hy3d_status compute_as(void *argument, int64_t grain, uint32_t slot)
{
    mannered *const of = argument;
    atomic_fetch_add(&of->strays, manners() != of->manners);
    return meet(&of->all, grain, slot);
}

#define FLUSH 0x8040U /* FTZ and DAZ in MXCSR */

/* Else a result would depend on which thread computed which part of it. The system's own threads
 * begin as they like: on Windows with an x87 of 53 bits. */
START_TEST(test_every_thread_computes_in_its_callers_manner)
{
    static const int roundings[] = {FE_TONEAREST, FE_UPWARD, FE_TOWARDZERO, FE_TONEAREST};
    hy3d_context *const context = test_context(NULL, 4);
    bool keeps_flushing = true;
    for (size_t i = 0; i < 2 * COUNT_OF(roundings); i++) {
        hy3d__manner before;
        hy3d__manner_get(&before);
        fesetround(roundings[i / 2]);
#if defined(__SSE__)
        if (i % 2 != 0) {
            __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | FLUSH);
            if ((__builtin_ia32_stmxcsr() & FLUSH) == FLUSH) {
                ck_assert_int_ne(manners() & 2, 0);
            } else { /* valgrind's processor keeps nothing but the rounding */
                keeps_flushing = false;
            }
        }
#endif
        mannered of = {MEETING(4), manners(), 0};
        const hy3d_status status = hy3d__parallel_for(context, 4, 4, NULL, compute_as, &of);
        hy3d__manner_set(&before);
        ck_assert_ok(status);
        ck_assert_int_eq(of.strays, 0);
    }
    if (!keeps_flushing) {
        test_skip("flushing denormals");
    }
    hy3d_context_destroy(context);
}
END_TEST

TCase *hy3d_parallel_manner_case(void)
{
    TCase *const tests = tcase_create("manner");
    tcase_add_test(tests, test_every_thread_computes_in_its_callers_manner);
    return tests;
}
