/* What workers count: which strategy and which of its tail cases a plan took. */
#include "bits.h"

#include <stdio.h>

#include "conv3d/plan.h"

void bits_add(bits_shared *shared, bits_count which, int64_t n)
{
    atomic_fetch_add_explicit(&shared->count[which], n, memory_order_relaxed);
}

void bits_fail(bits_shared *shared, const char *level, const char *what, const bits_config *config)
{
    const int64_t at = atomic_fetch_add(&shared->failures, 1);
    char text[BITS_TEXT] = "";

    if (at < BITS_MOST_FAILURES) {
        if (config != NULL) {
            bits_config_text(config, text, sizeof text);
        }
        snprintf(shared->failed[at], sizeof shared->failed[at], "%s, %s: %s", level, what, text);
    }
}

static void add_if(bits_shared *shared, bits_count which, bool is_so)
{
    if (is_so) {
        bits_add(shared, which, 1);
    }
}

static void count_direct(bits_shared *shared, const hy3d_conv3d_plan *plan)
{
    const hy3d__conv_direct *const d = &plan->direct;
    bits_add(shared, COUNT_DIRECT, 1);
    add_if(shared, COUNT_ROW_TAIL, plan->m % HY3D__CONV_ROWS != 0);
    add_if(shared, COUNT_LANE_TAIL, plan->out[2] % HY3D__CONV_LANES != 0);
    add_if(shared, COUNT_CUT_ROWS, d->row_blocks > 1);
    add_if(shared, COUNT_CUT_COLUMNS, d->col_blocks > 1);
    add_if(shared, COUNT_CUT_INPUT, d->c_block < plan->c);
    add_if(shared, COUNT_CUT_OUTPUT, d->m_blocks > 1);
    add_if(shared, COUNT_BY_ROW, d->by_row && d->rows > 1);
    add_if(shared, COUNT_PER_TAP, d->w.per_tap || d->h.per_tap);
}

void bits_count_plan(bits_shared *shared, const bits_config *config, const hy3d_conv3d_plan *plan)
{
    static const bits_count kinds[] = {COUNT_W4, COUNT_W24, COUNT_W5, COUNT_W25,
                                       COUNT_UP, COUNT_UP2, COUNT_UP4, COUNT_W34, COUNT_W35,
                                       COUNT_UP3};

    if (plan->strategy == &hy3d__conv_thin_strategy) {
        bits_add(shared, COUNT_THIN, 1);
        add_if(shared, COUNT_STRAIGHT, plan->thin.writes_straight);
        add_if(shared, COUNT_THIN_CUT,
               plan->thin.c_block < plan->c || plan->thin.blocks > 1 || plan->thin.m_blocks > 1);
    } else if (plan->strategy == &hy3d__conv_panel_strategy) {
        const hy3d__conv_panel *const d = &plan->panel;
        bits_add(shared, plan->compute_bytes == sizeof(double) ? COUNT_DGEMM : COUNT_SGEMM, 1);
        add_if(shared, COUNT_PANEL_IN_X,
               d->has_planes && plan->taps == 1 && d->span == plan->out[1] * plan->out[2]);
        add_if(shared, COUNT_PANEL_CUT,
               d->n_blocks > 1 || d->m_blocks > 1 || d->k_block < plan->k);
    } else if (plan->strategy == &hy3d__conv_winograd_strategy) {
        bits_add(shared, kinds[hy3d__winograd_format(&plan->winograd.sizes.filters.kind) - 1], 1);
        add_if(shared, COUNT_PREPARED, plan->prepared != NULL);
        add_if(shared, COUNT_CHOSEN_WINOGRAD, config->forced == HY3D_FORMAT_NONE);
    } else {
        count_direct(shared, plan);
    }
    add_if(shared, COUNT_TWO_SLOTS, plan->slots == 2);
    add_if(shared, COUNT_THREE_SLOTS, plan->slots == 3);
    add_if(shared, COUNT_EIGHT_SLOTS, plan->slots == 8);
    add_if(shared, COUNT_TIGHT, plan->desc.workspace_limit_bytes != 0);
}
