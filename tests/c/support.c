#define _GNU_SOURCE
#include "support.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/context_internal.h"
#include "base/cpu.h"

/* HY3D_TEST_THREADS: so many threads on a machine of two processors too. */
static uint32_t widened(uint32_t max_threads)
{
    const char *const word = getenv("HY3D_TEST_THREADS");
    const unsigned long least = word != NULL ? strtoul(word, NULL, 10) : 0;
    return max_threads > 1 && least > max_threads && least <= 64 ? (uint32_t)least : max_threads;
}

hy3d_context *test_context(const char *level, uint32_t max_threads)
{
    max_threads = widened(max_threads);
    const hy3d_context_options options = {
        .cpu_level = level, .max_threads = max_threads, .allocator = test_allocator()};
    hy3d_context *context = NULL;
    test_fail(0, false);
    ck_assert_ok(hy3d_context_create(&options, &context));
    return context;
}

int test_level_count(void)
{
    const char *const word = getenv("HY3D_CPU");
    hy3d_cpu_level level = hy3d_cpu_detect();
    if (word != NULL) {
        (void)hy3d__cpu_parse(word, level, &level);
    }
    return (int)level + 1;
}

/* Tests run in child processes, so notes go through a file that main opened before the first fork:
 * one line each, written at once so that lines stay whole. */
static FILE *notes;

bool test_notes_open(void)
{
    notes = test_shared_file("notes");
    return notes != NULL;
}

#ifndef TEST_PRINTF
#define TEST_PRINTF printf
#endif
__attribute__((format(TEST_PRINTF, 1, 2))) static void note(const char *format, ...)
{
    char line[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (notes != NULL && write(fileno(notes), line, (unsigned)strlen(line)) < 0) {
        perror("test notes");
    }
}

typedef struct figure {
    char what[64];
    long count;
} figure;

/* "count N WHAT". */
static void add_figure(figure *figures, size_t most, const char *line)
{
    char *what = NULL;
    const long count = strtol(line + strlen("count "), &what, 10);
    size_t i = 0;
    while (i < most && figures[i].what[0] != '\0' && strcmp(figures[i].what, what) != 0) {
        i++;
    }
    if (i < most) {
        snprintf(figures[i].what, sizeof figures[i].what, "%s", what);
        figures[i].count += count;
    }
}

void test_count(const char *what, long count)
{
    note("count %ld %s\n", count, what);
}

void test_notes_report(bool has_failed)
{
    char line[256], before[256] = "";
    figure figures[12] = {{"", 0}};
    long blas = 0, other = 0, here = 0;
    rewind(notes);
    while (fgets(line, sizeof line, notes) != NULL) {
        if (strncmp(line, "skipped: ", 9) == 0) {
            here++;
            fputs(line, stdout);
        } else if (strncmp(line, "count ", 6) == 0) {
            add_figure(figures, COUNT_OF(figures), line);
        } else if (strncmp(line, "skip ", 5) == 0) {
            blas += strcmp(line, "skip blas\n") == 0;
            other += strcmp(line, "skip blas\n") != 0;
        } else if (has_failed && strcmp(line, before) != 0) {
            fputs(line, stdout);
            strcpy(before, line);
        }
    }
    if (blas != 0 || other != 0) {
        printf("skipped: %ld for want of a BLAS library (set HY3D_BLAS_LIBRARY), %ld for want of "
               "an instruction set or because a sanitizer cannot follow them\n",
               blas, other);
    }
    if (here != 0) {
        printf("skipped: %ld that this system cannot run, named above\n", here);
    }
    for (size_t i = 0; i < COUNT_OF(figures) && figures[i].what[0] != '\0'; i++) {
        printf("%ld%s", figures[i].count, figures[i].what); /* with the line's end */
    }
    test_shared_file_close(notes, "notes");
    notes = NULL;
}

void test_skip(const char *why)
{
    note("skip %s\n", why);
}

void test_skip_here(const char *why)
{
#if HY3D_CHECK_COMPAT
    note("skipped: %s: %s\n", compat_test_name(), why);
    compat_end();
#else
    note("skipped: %s\n", why);
    exit(EXIT_SUCCESS);
#endif
}

bool test_has_blas(hy3d_context *context)
{
    const char *text = NULL;
    const hy3d_status status = hy3d_context_blas_info(context, &text);
    if (status == HY3D_OK) {
        return true;
    }
    /* A library that was asked for by name must load. */
    const char *const asked = getenv("HY3D_BLAS_LIBRARY");
    ck_assert_msg(asked == NULL || asked[0] == '\0', "%s", hy3d_context_blas_error(context));
    ck_assert_status(status, HY3D_ERR_BLAS_UNAVAILABLE);
    test_skip("blas");
    return false;
}

test_random test_rng_of(uint64_t seed, const char *test_name)
{
    const char *const replay = getenv("HY3D_TEST_SEED");
    if (replay != NULL) {
        seed = strtoull(replay, NULL, 0);
    }
    note("seed of %s: HY3D_TEST_SEED=%" PRIu64 "\n", test_name, seed);
    return (test_random){seed * 2685821657736338717U | 1U};
}

uint64_t test_next(test_random *random)
{
    random->state ^= random->state >> 12;
    random->state ^= random->state << 25;
    random->state ^= random->state >> 27;
    return random->state * 2685821657736338717U;
}

int test_draws(int gate, int full)
{
    const char *const how = getenv("HY3D_TESTS");
    return how != NULL && strcmp(how, "full") == 0 ? full : gate;
}

int64_t test_between(test_random *random, int64_t low, int64_t high)
{
    const uint64_t span = (uint64_t)high - (uint64_t)low + 1;
    return low + (int64_t)((test_next(random) >> 11) % span);
}

void test_fill_f32(test_random *random, float *out, size_t n, int limit)
{
    for (size_t i = 0; i < n; i++) {
        out[i] = (float)test_between(random, -limit, limit);
    }
}

void test_fill_f64(test_random *random, double *out, size_t n, int limit)
{
    for (size_t i = 0; i < n; i++) {
        out[i] = (double)test_between(random, -limit, limit);
    }
}

static uint64_t sweep(hy3d_context *context, test_call call, void *argument, bool forever)
{
    enum { TOO_MANY = 10000 };
    for (uint64_t k = 1; k < TOO_MANY; k++) {
        const uint64_t live = test_live();
        const uint64_t count = test_asked();
        test_fail(k, forever);
        const hy3d_status status = call(context, argument);
        const uint64_t asked = test_asked() - count;
        test_fail(0, false);
        if (status == HY3D_OK) {
            ck_assert_msg(asked < k, "allocation %" PRIu64 " failed and was not noticed", k);
            return asked;
        }
        ck_assert_msg(status == HY3D_ERR_OUT_OF_MEMORY, "allocation %" PRIu64 " failing gives %s",
                      k, hy3d_status_name(status));
        ck_assert_msg(test_live() == live,
                      "allocation %" PRIu64 " failing leaks", k);
    }
    ck_abort_msg("no end after %d allocations", TOO_MANY);
    return 0;
}

uint64_t test_allocation_sweep(hy3d_context *context, test_call call, void *argument)
{
    ck_assert_msg(context->allocator.context == test_allocator()->context,
                  "this context's allocations are not counted");
    const uint64_t asked = sweep(context, call, argument, false);
    sweep(context, call, argument, true);
    const uint64_t live = test_live();
    ck_assert_ok(call(context, argument));
    ck_assert_uint_eq(test_live(), live);
    return asked;
}

test_guard test_guard_make(size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t usable = (bytes / page + 1) * page;
    unsigned char *const pages = mmap(NULL, usable + 2 * page, PROT_NONE,
                                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_msg(pages != MAP_FAILED, "mmap: %s", strerror(errno));
    ck_assert_int_eq(mprotect(pages + page, usable, PROT_READ | PROT_WRITE), 0);
    return (test_guard){pages, usable};
}

void *test_guard_end(const test_guard *guard, size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return guard->pages + page + guard->bytes - bytes;
}

void test_guard_free(test_guard *guard)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    munmap(guard->pages, guard->bytes + 2 * page);
    guard->pages = NULL;
}

static _Atomic bool threads_fail;

bool test_threads_must_fail(void)
{
    return atomic_load(&threads_fail);
}

void test_fail_threads(bool fail)
{
    atomic_store(&threads_fail, fail);
}

typedef void *(*thread_fn)(void *);
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, thread_fn start,
                          void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, thread_fn start,
                          void *argument);

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, thread_fn start,
                          void *argument)
{
    return atomic_load(&threads_fail) ? EAGAIN
                                      : __real_pthread_create(thread, attributes, start, argument);
}

uint32_t test_bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

float test_float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
