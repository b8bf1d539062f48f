/* Helpers that all C suites share. */
#ifndef HY3D_TESTS_SUPPORT_H
#define HY3D_TESTS_SUPPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if HY3D_CHECK_COMPAT
#include "check_compat.h"
#else
#include <check.h>
/* Check writes down each assertion that holds, to name the last one after a crash: that took most
 * of the time of tests that assert in loops. What fails is told as before. */
#undef ck_assert_msg
#define ck_assert_msg(condition, ...)                                                              \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            _ck_assert_failed(__FILE__, __LINE__, "Assertion '" #condition "' failed",             \
                              __VA_ARGS__);                                                        \
        }                                                                                          \
    } while (0)
#endif

#include "counting.h"
#include "hy3d/context.h"
#include "hy3d/status.h"

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

#define ck_assert_status(got, wanted)                                                              \
    do {                                                                                           \
        const hy3d_status got_status_ = (got);                                                     \
        const hy3d_status wanted_status_ = (wanted);                                               \
        ck_assert_msg(got_status_ == wanted_status_, "%s: got %s, wanted %s", #got,                \
                      hy3d_status_name(got_status_), hy3d_status_name(wanted_status_));            \
    } while (0)
#define ck_assert_ok(got) ck_assert_status(got, HY3D_OK)

/* A context of a level ("ref", "avx2", "avx512"; NULL: as the environment says) with at most
 * max_threads threads (0: all), on test_allocator's memory, none of which fails.
 * HY3D_TEST_THREADS=N raises any number above one to N, for tools that look for races. Fails the
 * test when it cannot be made. */
hy3d_context *test_context(const char *level, uint32_t max_threads);
/* Levels this machine has and HY3D_CPU allows: 1 to 3, ref first. */
int test_level_count(void);
/* Loads BLAS; false (and one line in the closing report) where there is none: return then. */
bool test_has_blas(hy3d_context *context);

/* xorshift64*: the same numbers everywhere. test_rng(seed) notes the test and its seed, and main
 * prints both when anything failed; HY3D_TEST_SEED=N in the environment takes the place of every
 * seed, to replay or to try others. */
typedef struct test_random {
    uint64_t state;
} test_random;
#define test_rng(seed) test_rng_of(seed, __func__)
test_random test_rng_of(uint64_t seed, const char *test_name);
uint64_t test_next(test_random *random);
/* Uniform in low .. high, both included. */
int64_t test_between(test_random *random, int64_t low, int64_t high);

/* How many random cases a test takes: `gate` in make test, `full` where HY3D_TESTS=full (make
 * test-long and all tools of checks.mk). The first ones are the same. */
int test_draws(int gate, int full);

/* Small integers in -limit .. limit, exact in every dtype while limit <= 8 (sums of up to
 * 2^24 / limit^2 products are then exact in float). */
void test_fill_f32(test_random *random, float *out, size_t n, int limit);
void test_fill_f64(test_random *random, double *out, size_t n, int limit);

/* The bits of a float, and the float of bits. */
uint32_t test_bits_of(float value);
float test_float_of(uint32_t bits);

/* Runs `call` with its k-th allocation failing, k = 1, 2, ..., once and then for ever, until it
 * succeeds. Every failure must be HY3D_ERR_OUT_OF_MEMORY, must give back what it took, and the
 * next call must work. `call` returns its status and releases what it made when it succeeds.
 * Returns the number of allocations of a good call. */
typedef hy3d_status (*test_call)(hy3d_context *context, void *argument);
uint64_t test_allocation_sweep(hy3d_context *context, test_call call, void *argument);

/* Memory whose last byte is followed by a page that must not be touched, and the first preceded by
 * one. test_guard_end gives the address where `bytes` end exactly at the guard. */
typedef struct test_guard {
    unsigned char *pages;
    size_t bytes; /* usable, a whole number of pages */
} test_guard;
test_guard test_guard_make(size_t bytes);
void *test_guard_end(const test_guard *guard, size_t bytes);
void test_guard_free(test_guard *guard);

/* While true, pthread_create fails with EAGAIN (the linker's --wrap puts the test's in its place). */
void test_fail_threads(bool fail);
bool test_threads_must_fail(void);

/* Notes a test that was not run: "blas" for want of a BLAS library, else any word. */
void test_skip(const char *why);

/* Ends the test that runs as one that this system cannot run: the closing report names and counts
 * it. For what Windows has no counterpart of. */
__attribute__((noreturn)) void test_skip_here(const char *why);

#if !defined(_WIN32)
#define test_child_of_runner() 0
#define test_shared_file(name) tmpfile()
#define test_shared_file_close(file, name) fclose(file)
#endif

/* Adds to a figure that is printed when all is done; `what` has at most 60 characters. */
void test_count(const char *what, long count);

/* For main. What tests note goes through a file that is open before Check forks. false: no file. */
bool test_notes_open(void);
/* Prints the sums of what was skipped and, after failures, the seeds. */
void test_notes_report(bool has_failed);

#endif
