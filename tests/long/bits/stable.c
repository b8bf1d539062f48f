/* One result, bit for bit, whatever the thread count, the workspace limit and the alignment of the
 * data are; and AVX-512's is AVX2's where docs/numerics.md says so. */
#include "bits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conv3d/plan.h"

enum { LIMITS = 5, ALIGNMENTS = 16 };
static const uint32_t thread_counts[] = {1, 2, 3, 8};
enum { THREADS = sizeof thread_counts / sizeof thread_counts[0] };

/* No limit, the smallest that does, twice that and a bit, five times it, a gigabyte. */
static void find_limits(hy3d_context *context, const bits_problem *p, bits_config *c,
                        size_t limits[LIMITS])
{
    size_t low = 0, high = (size_t)1 << 30;

    c->desc.num_threads = 1;
    while (low + 1 < high) {
        hy3d_conv3d_plan *plan = NULL;
        c->desc.workspace_limit_bytes = low + (high - low) / 2;
        const hy3d_status status = bits_plan(context, p, NULL, &plan);
        hy3d_conv3d_plan_destroy(plan);
        *(status == HY3D_ERR_WORKSPACE_TOO_SMALL ? &low : &high) = c->desc.workspace_limit_bytes;
    }
    limits[0] = 0;
    limits[1] = high;
    limits[2] = 2 * high + 100;
    limits[3] = 5 * high;
    limits[4] = (size_t)1 << 30;
}

/* One run with so much of everything; the plan as it was, y in p. */
static hy3d_status run(hy3d_context *context, bits_problem *p, bits_config *c, int64_t alignment,
                       uint32_t threads, size_t limit, hy3d_conv3d_plan *plan)
{
    c->desc.num_threads = threads;
    c->desc.workspace_limit_bytes = limit;
    bits_problem_unplace(p);
    bits_problem_place(p, alignment);
    return bits_problem_run(context, p, plan);
}

static void differ(const bits_config *c, const char *level, const char *why, int64_t alignment,
                   const char *status, bits_shared *shared)
{
    char what[160];
    snprintf(what, sizeof what, "index %llu, alignment %lld, limit %zu: %s %s",
             (unsigned long long)c->index, (long long)alignment, c->desc.workspace_limit_bytes, why,
             status);
    bits_add(shared, COUNT_DIFFERING, 1);
    bits_fail(shared, level, what, c);
}

static void across_levels(const bits_stable_scope *scope, bits_problem *p, bits_config *c,
                          const bits_view *first, const hy3d_conv3d_plan *plan,
                          bits_shared *shared)
{
    hy3d_conv3d_plan other;

    if (scope->lower == NULL || plan->strategy == &hy3d__conv_panel_strategy) {
        return;
    }
    const hy3d_status status = run(scope->lower, p, c, 0, 2, 0, &other);
    /* Levels may choose another kind of Winograd, or none. */
    if (status == HY3D_OK &&
        strcmp(hy3d_conv3d_plan_strategy(&other), hy3d_conv3d_plan_strategy(plan)) == 0) {
        bits_add(shared, COUNT_ACROSS_LEVELS, 1);
        if (memcmp(p->y_view.begin, first->begin, first->bytes) != 0) {
            differ(c, "avx2 against avx512", "other bits", 0, "", shared);
        }
    }
}

/* What is too small by a byte says how much would do: the same for every thread count. */
static void check_needed(hy3d_context *context, bits_problem *p, bits_config *c, size_t least,
                         const char *level, bits_shared *shared)
{
    for (int i = 0; c->forced == HY3D_FORMAT_NONE && i < THREADS; i++) {
        hy3d_conv3d_plan *plan = NULL;
        size_t needed = 0;
        c->desc.num_threads = thread_counts[i];
        c->desc.workspace_limit_bytes = least - 1;
        const hy3d_status status = hy3d_conv3d_plan_create(
            context, &c->desc, &p->weight_view.tensor, NULL, &needed, &plan);
        hy3d_conv3d_plan_destroy(plan);
        if (status != HY3D_ERR_WORKSPACE_TOO_SMALL || needed != least) {
            differ(c, level, "not the least limit:", (int64_t)needed, hy3d_status_name(status),
                   shared);
        }
    }
}

static void all_runs(hy3d_context *context, bits_problem *p, bits_config *c,
                     const bits_view *first, bits_shared *shared)
{
    const char *const level = hy3d_cpu_level_name(hy3d_context_cpu_level(context));
    size_t limits[LIMITS];
    hy3d_conv3d_plan plan;

    find_limits(context, p, c, limits);
    check_needed(context, p, c, limits[1], level, shared);
    for (int i = 0; i < THREADS * LIMITS * ALIGNMENTS; i++) {
        const int64_t alignment = i % ALIGNMENTS;
        const size_t limit = limits[i / ALIGNMENTS % LIMITS];
        const uint32_t threads = thread_counts[i / ALIGNMENTS / LIMITS];
        const hy3d_status status = run(context, p, c, alignment, threads, limit, &plan);
        bits_add(shared, COUNT_RUNS, 1);
        if (status != HY3D_OK) {
            differ(c, level, "no result:", alignment, hy3d_status_name(status), shared);
            return;
        }
        bits_count_plan(shared, c, &plan);
        if (memcmp(p->y_view.begin, first->begin, first->bytes) != 0) {
            differ(c, level, "other bits", alignment, hy3d_conv3d_plan_strategy(&plan), shared);
            return;
        }
    }
}

void bits_stable(const bits_stable_scope *scope, uint64_t seed, uint64_t index,
                 bits_shared *shared)
{
    const char *const level = hy3d_cpu_level_name(hy3d_context_cpu_level(scope->context));
    bits_config config = bits_config_make(seed, index, false);
    bits_problem *const p = malloc(sizeof *p);
    hy3d_conv3d_plan plan;

    if (p == NULL) {
        perror("malloc");
        exit(EXIT_FAILURE);
    }
    bits_problem_fill(p, &config, false, false);
    const hy3d_status status = run(scope->context, p, &config, 0, 1, 0, &plan);
    if (status == HY3D_ERR_BLAS_UNAVAILABLE) {
        bits_add(shared, COUNT_NO_BLAS, 1);
    } else if (status != HY3D_OK) {
        differ(&config, level, "no result:", 0, hy3d_status_name(status), shared);
    } else {
        bits_view first = p->y_view;
        p->y_view = (bits_view){.memory = NULL};
        bits_add(shared, COUNT_CONFIGURATIONS, 1);
        bits_add(shared, COUNT_VALUES, bits_elems(config.y_size));
        across_levels(scope, p, &config, &first, &plan, shared);
        all_runs(scope->context, p, &config, &first, shared);
        bits_view_free(&first);
    }
    bits_problem_free(p);
    free(p);
}
