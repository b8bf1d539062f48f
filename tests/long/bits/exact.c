/* Integers against the oracle. Direct, thin and panel strategies and the reference must give its
 * bits; Winograd, whose transforms round, its integers once rounded to the nearest: with three
 * weights of +-1 to an output channel and |x| <= 3 the proven bound, at most 2.7e-2 * 3 * 3 by
 * docs/numerics.md, stays below a half. */
#include "bits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conv3d/plan.h"

static void count_config(bits_shared *shared, const bits_config *c)
{
    static const bits_count dtypes[] = {COUNT_F32, COUNT_F64, COUNT_F16, COUNT_BF16};
    const hy3d_conv3d_desc *const d = &c->desc;
    const bool is_upsampled = d->upsample[0] > 1 || d->upsample[1] > 1 || d->upsample[2] > 1;
    bool is_replicated = false, is_cropped = false;

    for (int i = 0; i < 3; i++) {
        is_replicated = is_replicated || (d->pad_mode[i] == HY3D_PAD_REPLICATE &&
                                          (d->pad_before[i] > 0 || d->pad_after[i] > 0));
        is_cropped = is_cropped || d->pad_before[i] < 0 || d->pad_after[i] < 0;
    }
    bits_add(shared, COUNT_CONFIGURATIONS, 1);
    bits_add(shared, dtypes[d->dtype], 1);
    bits_add(shared, COUNT_VALUES, bits_elems(c->y_size));
    bits_add(shared, COUNT_FRAMES, c->has_frames ? 1 : 0);
    bits_add(shared, COUNT_SCALED, c->has_scale ? 1 : 0);
    bits_add(shared, COUNT_RESIDUAL, c->has_residual && !c->in_place ? 1 : 0);
    bits_add(shared, COUNT_IN_PLACE, c->in_place ? 1 : 0);
    bits_add(shared, COUNT_UPSAMPLED, is_upsampled ? 1 : 0);
    bits_add(shared, COUNT_REPLICATED, is_replicated ? 1 : 0);
    bits_add(shared, COUNT_CROPPED, is_cropped ? 1 : 0);
    bits_add(shared, COUNT_EMPTY, d->batch == 0 ? 1 : 0);
}

/* y against the oracle, then the bytes between its elements. */
static void compare(const bits_problem *p, const int32_t *wanted, bool to_nearest,
                    const char *level, const char *who, bits_shared *shared)
{
    int64_t zeros = 0;
    char what[96];
    const int64_t differing = to_nearest ? bits_view_far(&p->y_view, wanted)
                                         : bits_view_differing(&p->y_view, wanted, &zeros);
    const int64_t strays = bits_view_strays(&p->y_view);

    bits_add(shared, COUNT_RUNS, 1);
    bits_add(shared, COUNT_OTHER_ZEROS, zeros);
    bits_add(shared, COUNT_DIFFERING, differing);
    if (differing != 0 || strays != 0) {
        snprintf(what, sizeof what, "index %llu, %s: %lld values differ, %lld bytes beside them",
                 (unsigned long long)p->config->index, who, (long long)differing,
                 (long long)strays);
        bits_fail(shared, level, what, p->config);
    }
}

static void note_status(const bits_config *c, const char *level, const char *who,
                        hy3d_status status, bits_shared *shared)
{
    char what[96];
    snprintf(what, sizeof what, "index %llu, %s: %s", (unsigned long long)c->index, who,
             hy3d_status_name(status));
    bits_fail(shared, level, what, c);
}

/* Now and then a limit that only the smallest plan keeps. */
static void tighten(hy3d_context *context, const bits_problem *p, bits_config *c)
{
    hy3d_conv3d_plan *plan = NULL;
    size_t needed = 0;

    if (c->forced != HY3D_FORMAT_NONE || c->index % 5 != 0) {
        return;
    }
    c->desc.workspace_limit_bytes = 1;
    if (hy3d_conv3d_plan_create(context, &c->desc, &p->weight_view.tensor, NULL, &needed, &plan) ==
        HY3D_ERR_WORKSPACE_TOO_SMALL) {
        c->desc.workspace_limit_bytes = needed;
    } else {
        c->desc.workspace_limit_bytes = 0;
        hy3d_conv3d_plan_destroy(plan);
    }
}

void bits_exact(hy3d_context *context, uint64_t seed, uint64_t index, bits_shared *shared)
{
    const char *const level = hy3d_cpu_level_name(hy3d_context_cpu_level(context));
    bits_config config = bits_config_make(seed, index, true);
    bits_problem *const p = malloc(sizeof *p);
    hy3d_conv3d_plan plan;

    if (p == NULL) {
        perror("malloc");
        exit(EXIT_FAILURE);
    }
    bits_problem_fill(p, &config, true, config.desc.accuracy == HY3D_FAST);
    bits_problem_place(p, (int64_t)(index % 16));
    int32_t *const wanted = bits_oracle(p);
    count_config(shared, &config);
    tighten(context, p, &config);
    const hy3d_status status = bits_problem_run(context, p, &plan);
    if (status == HY3D_ERR_BLAS_UNAVAILABLE) {
        bits_add(shared, COUNT_NO_BLAS, 1);
    } else if (status != HY3D_OK) {
        note_status(&config, level, "run", status, shared);
    } else {
        bits_count_plan(shared, &config, &plan);
        compare(p, wanted, plan.strategy == &hy3d__conv_winograd_strategy, level,
                hy3d_conv3d_plan_strategy(&plan), shared);
    }
    if (index % 8 == 0) {
        bits_problem_unplace(p);
        bits_problem_place(p, (int64_t)(index % 16));
        const hy3d_status by_reference = bits_problem_reference(p);
        if (by_reference == HY3D_OK) {
            bits_add(shared, COUNT_REFERENCE, 1);
            compare(p, wanted, false, level, "reference", shared);
        } else {
            note_status(&config, level, "reference", by_reference, shared);
        }
    }
    free(wanted);
    bits_problem_free(p);
    free(p);
}
