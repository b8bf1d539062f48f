/* Every site of the core fails once, with the call after it, then for ever: a documented status, nothing leaked, the next
 * call bit-equal to one that never failed. Then each site must have been the one that failed.
 *
 *   check_sites [--list]      --list: every site with its counts, not only those never failed */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "registry.h"
#include "scenarios.h"
#include "support.h"

enum { TOO_MANY = 10000 };

int64_t live_outside;

typedef struct check {
    const scenario *scenario;
    unsigned char *wanted; /* what a call gives that never failed */
    int64_t before_kept; /* test_sites_live() then */
    long runs;
    int wrong;
} check;

/* Where a helper's ck_assert ends: there is no runner here. */
void compat_fail(const char *file, int line, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "%s:%d: ", file, line);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(EXIT_FAILURE);
}

const char *compat_test_name(void)
{
    return "";
}

void compat_end(void)
{
    exit(EXIT_FAILURE);
}

static void complain(check *c, const char *how, uint64_t k, int how_many, const char *what)
{
    static const char *const tails[] = {"", "", " and the next", " and all after it"};
    const int site = test_sites_failed();
    c->wrong++;
    printf("%s, %s context: call %" PRIu64 " of a site fails%s (%s): %s\n", c->scenario->name, how,
           k, tails[how_many], site < 0 ? "none" : test_sites_name(site), what);
}

/* Which statuses a site's failure may come out as. HY3D_OK: the library does without. Where all
 * other sites fail too, one of theirs may be what is said. */
static bool is_documented(const char *function, hy3d_status status, int how_many)
{
    static const char *const done_without[] = {"pthread_create", "madvise", "dladdr", "dlsym",
                                               "dlopen",         "sysconf", "sched_getaffinity",
                                               "aligned_alloc",  "posix_memalign", "setenv"};
    static const char *const memory[] = {"hy3d_alloc", "hy3d__allocator_get", "aligned_alloc",
                                         "posix_memalign", "setenv"};
    static const char *const library[] = {"dlopen", "dlsym", "dladdr"};
    static const char *const threads[] = {"pthread_mutex_init", "pthread_cond_init"};
#define AMONG(list)                                                                                \
    for (size_t i = 0; i < sizeof(list) / sizeof((list)[0]); i++) {                                \
        if (strcmp((list)[i], function) == 0) {                                                    \
            return true;                                                                           \
        }                                                                                          \
    }
    if (status == HY3D_OK) {
        AMONG(done_without)
    } else if (how_many != SITES_ONCE) {
        return status == HY3D_ERR_OUT_OF_MEMORY || status == HY3D_ERR_BLAS_UNAVAILABLE ||
               status == HY3D_ERR_THREAD;
    } else if (status == HY3D_ERR_OUT_OF_MEMORY) {
        AMONG(memory)
    } else if (status == HY3D_ERR_BLAS_UNAVAILABLE) {
        AMONG(library)
    } else if (status == HY3D_ERR_THREAD) {
        AMONG(threads)
    }
#undef AMONG
    return false;
}

static hy3d_status call_once(const check *c, hy3d_context *kept)
{
    const scenario *const s = c->scenario;
    hy3d_context *context = kept;
    memset(s->result, 0x5a, s->bytes);
    hy3d_status status = HY3D_OK;
    live_outside = kept == NULL ? test_sites_live() : c->before_kept;
    if (kept == NULL) {
        status = hy3d_context_create(&s->options, &context);
    }
    if (status == HY3D_OK) {
        status = s->run(context, s);
    }
    if (kept == NULL && context != NULL) {
        hy3d_context_destroy(context);
    }
    return status;
}

/* One failure, looked at from all sides. False: k was beyond the last call of a site. */
static bool fail_one(check *c, hy3d_context *kept, uint64_t k, int how_many)
{
    const char *const how = kept != NULL ? "kept" : "new";
    const int64_t live = test_sites_live();
    test_sites_arm(k, how_many);
    const hy3d_status status = call_once(c, kept);
    const uint64_t asked = test_sites_disarm();
    const int site = test_sites_failed();
    c->runs++;
    if (kept != NULL) {
        hy3d_context_trim(kept);
    }
    if (asked < k) {
        if (status != HY3D_OK || memcmp(c->wanted, c->scenario->result, c->scenario->bytes) != 0) {
            complain(c, how, k, how_many, "nothing failed, but the result is another");
        }
        return false;
    }
    if (!is_documented(test_sites_function(site), status, how_many)) {
        complain(c, how, k, how_many, hy3d_status_name(status));
    }
    if (status == HY3D_OK && memcmp(c->wanted, c->scenario->result, c->scenario->bytes) != 0) {
        complain(c, how, k, how_many, "it came through with another result");
    }
    if (test_sites_live() != live) {
        complain(c, how, k, how_many, "memory was leaked");
    }
    if (kept == NULL || status != HY3D_ERR_BLAS_UNAVAILABLE) {
        if (call_once(c, kept) != HY3D_OK ||
            memcmp(c->wanted, c->scenario->result, c->scenario->bytes) != 0) {
            complain(c, how, k, how_many, "the next call differs");
        }
    }
    if (kept != NULL) {
        hy3d_context_trim(kept);
    }
    return true;
}

/* How many calls of sites an undisturbed call makes. */
static uint64_t calls(const check *c, hy3d_context *kept)
{
    test_sites_arm(UINT64_MAX, SITES_ONCE);
    call_once(c, kept);
    return test_sites_disarm();
}

/* All sites of a scenario: with a new context each time, and with one that has worked before. In
 * the gate what makes a context fails in the one, and each call behind that in one of both, in
 * turns; with HY3D_TESTS=full in both. */
static void sweep(check *c)
{
    hy3d_context *kept = NULL;
    c->before_kept = test_sites_live();
    if (hy3d_context_create(&c->scenario->options, &kept) != HY3D_OK ||
        call_once(c, kept) != HY3D_OK) {
        complain(c, "kept", 0, SITES_ONCE, "does not work undisturbed");
        hy3d_context_destroy(kept);
        return;
    }
    hy3d_context_trim(kept);
    memcpy(c->wanted, c->scenario->result, c->scenario->bytes);
    const uint64_t apart = (uint64_t)test_draws(2, 1);
    const uint64_t in_both = calls(c, NULL) - calls(c, kept) + 2;
    hy3d_context_trim(kept);
    for (int how_many = SITES_ONCE; how_many <= SITES_FOREVER; how_many++) {
        for (uint64_t k = 1; k < TOO_MANY && fail_one(c, kept, k, how_many); k += apart) {
        }
        for (uint64_t k = 1; k < TOO_MANY && fail_one(c, NULL, k, how_many);
             k += k < in_both ? 1 : apart) {
        }
    }
    hy3d_context_destroy(kept);
}

static int report(bool list)
{
    int missed = 0;
    for (int site = 0; site < test_sites_count(); site++) {
        uint64_t asked, once, forever;
        test_sites_tally(site, &asked, &once, &forever);
        const bool is_missed = once == 0 || forever == 0;
        missed += is_missed;
        if (list || is_missed) {
            printf("%-58s asked %6" PRIu64 "  failed once %4" PRIu64 "  for ever %4" PRIu64 "%s\n",
                   test_sites_name(site), asked, once, forever, is_missed ? "  NEVER FAILED" : "");
        }
    }
    return missed;
}

int main(int argc, char **argv)
{
    scenario list[MOST_SCENARIOS];
    long runs = 0;
    int wrong = 0;
    int count = scenarios_make(list);
    hy3d_context *probe = NULL;
    const char *text = NULL;
    const bool has_blas = hy3d_context_create(NULL, &probe) == HY3D_OK &&
                          hy3d_context_blas_info(probe, &text) == HY3D_OK;
    hy3d_context_destroy(probe);
    if (!has_blas) {
        printf("no BLAS library: set HY3D_BLAS_LIBRARY; its sites are not reached\n");
        count = scenarios_without_blas(list, count);
    }
    for (int i = 0; i < count; i++) {
        check c = {.scenario = &list[i], .wanted = malloc(list[i].bytes)};
        if (c.wanted == NULL) {
            return EXIT_FAILURE;
        }
        sweep(&c);
        runs += c.runs;
        wrong += c.wrong;
        free(c.wanted);
    }
    const int missed = report(argc > 1 && strcmp(argv[1], "--list") == 0);
    const int sites = test_sites_count();
    printf("%d of %d sites of the core failed once and for ever, in %ld calls of %d scenarios: %d "
           "wrong\n",
           sites - missed, sites, runs, count, wrong);
    return wrong != 0 || (missed != 0 && has_blas) ? EXIT_FAILURE : EXIT_SUCCESS;
}
