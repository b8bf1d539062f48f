#define _GNU_SOURCE
/* check_bits exact|stable|others [--count N] [--seed N] [--first N] [--jobs N] [--levels WORDS]
 *
 *   exact   random convolutions of integers, by every strategy and level, against an oracle
 *   stable  the same bits for 1, 2, 3 and 8 threads, 5 workspace limits, 16 alignments
 *   others  the same for blending, moments and the rasteriser, and at every level
 *
 * Configuration i runs at level i modulo the number of levels. Workers are processes, one level at
 * a time, since OpenBLAS is loaded for one. A failure names its index: --first INDEX --count 1
 * --levels LEVEL replays it. Ends with one line, and with status 1 after any failure, or where a
 * strategy or tail case never came in a long run. */
#include "bits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_LEVELS = 3, MOST_JOBS = 256, LONG_RUN = 20000, LONG_STABLE_RUN = 600 };

static const char *const level_names[MOST_LEVELS] = {"ref", "avx2", "avx512"};

typedef struct options {
    const char *check;
    int64_t count, first, jobs;
    uint64_t seed;
    int levels[MOST_LEVELS], level_count;
    bool levels_are_given;
} options;

static const struct {
    bits_count which;
    const char *name;
    bool in_exact, in_stable; /* where it may not be 0 */
} rows[] = {
    {COUNT_DIRECT, "direct", true, true},
    {COUNT_THIN, "thin", true, true},
    {COUNT_SGEMM, "panel-sgemm", true, true},
    {COUNT_DGEMM, "panel-dgemm", true, true},
    {COUNT_W4, "winograd-4x4", true, true},
    {COUNT_W24, "winograd-2x4x4", true, true},
    {COUNT_W5, "winograd-5x5", true, true},
    {COUNT_W25, "winograd-2x5x5", true, true},
    {COUNT_UP, "winograd-up-6x6", true, true},
    {COUNT_UP2, "winograd-up-2x6x6", true, true},
    {COUNT_UP4, "winograd-up-4x6x6", true, true},
    {COUNT_W34, "winograd-3x4x4", true, true},
    {COUNT_W35, "winograd-3x5x5", true, true},
    {COUNT_UP3, "winograd-up-3x6x6", true, true},
    {COUNT_CHOSEN_WINOGRAD, "winograd by the cost model", true, true},
    {COUNT_PREPARED, "prepared weights", true, true},
    {COUNT_REFERENCE, "the C reference too", true, false},
    {COUNT_F32, "f32", true, false},
    {COUNT_F64, "f64", true, false},
    {COUNT_F16, "f16", true, false},
    {COUNT_BF16, "bf16", true, false},
    {COUNT_FRAMES, "frames", true, false},
    {COUNT_SCALED, "scale and shift", true, false},
    {COUNT_RESIDUAL, "residual", true, false},
    {COUNT_IN_PLACE, "residual in place", true, false},
    {COUNT_UPSAMPLED, "up-sampled", true, false},
    {COUNT_REPLICATED, "replicated edges", true, false},
    {COUNT_CROPPED, "cropped", true, false},
    {COUNT_EMPTY, "empty batch", true, false},
    {COUNT_ROW_TAIL, "direct: channels no multiple of 8", true, true},
    {COUNT_LANE_TAIL, "direct: columns no multiple of 16", true, true},
    {COUNT_CUT_ROWS, "direct: rows cut", true, true},
    {COUNT_CUT_COLUMNS, "direct: columns cut", true, true},
    {COUNT_CUT_INPUT, "direct: input channels cut", true, true},
    {COUNT_CUT_OUTPUT, "direct: output channels cut", true, false},
    {COUNT_BY_ROW, "direct: row by row", true, true},
    {COUNT_PER_TAP, "direct: a copy for each tap", true, true},
    {COUNT_STRAIGHT, "thin: summed in the output", true, true},
    {COUNT_THIN_CUT, "thin: cut", true, true},
    {COUNT_PANEL_IN_X, "panel: it may lie in the input", true, true},
    {COUNT_PANEL_CUT, "panel: cut", true, true},
    {COUNT_TIGHT, "a workspace limit", true, true},
    {COUNT_TWO_SLOTS, "2 threads at work", true, true},
    {COUNT_THREE_SLOTS, "3 threads at work", true, true},
    {COUNT_EIGHT_SLOTS, "8 threads at work", false, true},
    {COUNT_ACROSS_LEVELS, "avx512 against avx2", false, false},
};

static hy3d_context *make_context(int level, uint32_t threads)
{
    const hy3d_context_options wanted = {.cpu_level = level_names[level], .max_threads = threads};
    hy3d_context *context = NULL;
    if (hy3d_context_create(&wanted, &context) != HY3D_OK) {
        fprintf(stderr, "check_bits: no context\n");
        _exit(EXIT_FAILURE);
    }
    return context;
}

/* Takes indices of one level until there are none; *at is where it is. */
static void work(const options *o, int place, bits_shared *shared, _Atomic int64_t *at)
{
    const bool is_exact = strcmp(o->check, "exact") == 0;
    const bool is_others = strcmp(o->check, "others") == 0;
    const int level = o->levels[place];
    const int64_t step = is_others ? 1 : o->level_count;
    hy3d_context *const context = make_context(level, is_exact ? 3 : 8);
    const bits_stable_scope scope = {context, level == 2 ? make_context(1, 8) : NULL};
    hy3d_context *all[MOST_LEVELS];

    for (int i = 0; is_others && i < o->level_count; i++) {
        all[i] = make_context(o->levels[i], 8);
    }
    for (;;) {
        const int64_t i = atomic_fetch_add(&shared->next, step);
        const uint64_t index = (uint64_t)(o->first + i);
        if (i >= o->count) {
            return;
        }
        atomic_store(at, o->first + i);
        if (is_exact) {
            bits_exact(context, o->seed, index, shared);
        } else if (is_others) {
            bits_others(all, o->level_count, o->seed, index, shared);
        } else {
            bits_stable(&scope, o->seed, index, shared);
        }
    }
}

/* All indices of a level; workers that die say where. */
static void run_level(const options *o, int place, bits_shared *shared,
                      _Atomic int64_t at[MOST_JOBS])
{
    pid_t children[MOST_JOBS];

    atomic_store(&shared->next, place);
    fflush(NULL);
    for (int64_t i = 0; i < o->jobs; i++) {
        atomic_store(&at[i], -1);
        children[i] = fork();
        if (children[i] < 0) {
            perror("fork");
            exit(EXIT_FAILURE);
        }
        if (children[i] == 0) {
            work(o, place, shared, &at[i]);
            _exit(EXIT_SUCCESS);
        }
    }
    for (int64_t i = 0; i < o->jobs; i++) {
        int status;
        if (waitpid(children[i], &status, 0) < 0 || status != 0) {
            char what[96];
            snprintf(what, sizeof what, "a worker died (status %#x) at index %lld", status,
                     (long long)atomic_load(&at[i]));
            bits_fail(shared, level_names[o->levels[place]], what, NULL);
        }
    }
}

static int64_t number(const char *word, const char *text)
{
    char *end = NULL;
    const long long value = text == NULL ? -1 : strtoll(text, &end, 10);
    if (text == NULL || *end != '\0' || value < 0) {
        fprintf(stderr, "check_bits: %s wants a whole number, not %s\n", word,
                text == NULL ? "nothing" : text);
        exit(2);
    }
    return value;
}

static void add_level(options *o, const char *word)
{
    for (int i = 0; i < MOST_LEVELS; i++) {
        if (strcmp(word, level_names[i]) == 0 && i <= (int)hy3d_cpu_detect()) {
            o->levels[o->level_count++ % MOST_LEVELS] = i;
            return;
        }
    }
    fprintf(stderr, "check_bits: %s is no level that this machine has\n", word);
    exit(2);
}

static options parse(int argc, char **argv)
{
    options o = {.check = argc > 1 ? argv[1] : "", .count = 1000, .seed = 1,
                 .jobs = sysconf(_SC_NPROCESSORS_ONLN)};
    int i = 2;

    if (strcmp(o.check, "exact") != 0 && strcmp(o.check, "stable") != 0 &&
        strcmp(o.check, "others") != 0) {
        fprintf(stderr, "check_bits exact|stable|others [--count N] [--seed N] [--first N] "
                        "[--jobs N] [--levels ref avx2 avx512]\n");
        exit(2);
    }
    while (i < argc) {
        const char *const word = argv[i++];
        if (strcmp(word, "--levels") == 0) {
            for (; i < argc && strncmp(argv[i], "--", 2) != 0; i++) {
                add_level(&o, argv[i]);
            }
            o.levels_are_given = true;
            continue;
        }
        const int64_t value = number(word, i < argc ? argv[i++] : NULL);
        if (strcmp(word, "--count") == 0) {
            o.count = value;
        } else if (strcmp(word, "--seed") == 0) {
            o.seed = (uint64_t)value;
        } else if (strcmp(word, "--first") == 0) {
            o.first = value;
        } else if (strcmp(word, "--jobs") == 0) {
            o.jobs = value;
        } else {
            fprintf(stderr, "check_bits: unknown option %s\n", word);
            exit(2);
        }
    }
    for (int level = 0; o.level_count == 0 && level <= (int)hy3d_cpu_detect(); level++) {
        o.levels[level] = level;
    }
    o.level_count = o.level_count > 0 ? o.level_count : (int)hy3d_cpu_detect() + 1;
    o.jobs = o.jobs < 1 ? 1 : o.jobs > MOST_JOBS ? MOST_JOBS : o.jobs;
    return o;
}

/* Prints what came how often; the number of kinds that never did and had to. */
static int report(const options *o, bits_shared *shared)
{
    const bool is_exact = strcmp(o->check, "exact") == 0;
    const bool is_long = o->count >= (is_exact ? LONG_RUN : LONG_STABLE_RUN);
    int missing = 0;

    for (size_t i = 0; strcmp(o->check, "others") != 0 && i < sizeof rows / sizeof rows[0]; i++) {
        const int64_t n = atomic_load(&shared->count[rows[i].which]);
        const bool is_needed = is_exact ? rows[i].in_exact : rows[i].in_stable;
        if (n > 0 || is_needed) {
            printf("  %-36s %lld%s\n", rows[i].name, (long long)n,
                   n == 0 ? is_long ? "  NEVER CAME" : "  (a short run)" : "");
        }
        missing += is_long && is_needed && n == 0 ? 1 : 0;
    }
    for (int64_t i = 0; i < atomic_load(&shared->failures) && i < BITS_MOST_FAILURES; i++) {
        printf("FAILED (--seed %llu) %s\n", (unsigned long long)o->seed, shared->failed[i]);
    }
    return missing;
}

int main(int argc, char **argv)
{
    const options o = parse(argc, argv);
    const size_t bytes = sizeof(bits_shared) + MOST_JOBS * sizeof(_Atomic int64_t);
    void *const memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct timespec from, to;

    if (memory == MAP_FAILED) {
        perror("mmap");
        return EXIT_FAILURE;
    }
    bits_shared *const shared = memory;
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (int place = 0; place < (strcmp(o.check, "others") == 0 ? 1 : o.level_count); place++) {
        run_level(&o, place, shared, (_Atomic int64_t *)(void *)(shared + 1));
    }
    clock_gettime(CLOCK_MONOTONIC, &to);
    const int missing = report(&o, shared);
    const int64_t failures = atomic_load(&shared->failures);
    const int64_t no_blas = atomic_load(&shared->count[COUNT_NO_BLAS]);
    printf("%s: %lld configurations at %d levels, %lld runs, %lld values, %lld differing, "
           "%lld zeros of another sign, %lld skipped for want of BLAS, %lld failures, %d kinds "
           "missing, %.0f s\n",
           o.check, (long long)atomic_load(&shared->count[COUNT_CONFIGURATIONS]), o.level_count,
           (long long)atomic_load(&shared->count[COUNT_RUNS]),
           (long long)atomic_load(&shared->count[COUNT_VALUES]),
           (long long)atomic_load(&shared->count[COUNT_DIFFERING]),
           (long long)atomic_load(&shared->count[COUNT_OTHER_ZEROS]), (long long)no_blas,
           (long long)failures, missing, difftime(to.tv_sec, from.tv_sec));
    return failures == 0 && missing == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
