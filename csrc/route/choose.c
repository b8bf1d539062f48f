/* The order of tiers for one call. */
#include "hy3d/route.h"

#include <math.h>
#include <stddef.h>

/* An estimate has to promise this much more than a measurement to be believed. */
static const double doubt = 1.5;
/* A tier that may take more than this raises a decode's known peak: not measured in passing. */
static const double passing_bytes = 1 << 30;
/* Worth measuring: what is estimated within this multiple of the best. */
static const double worth_a_try = 3;

typedef struct chooser {
    const hy3d_route_setting *setting;
    const hy3d_route_candidate *candidates;
    int32_t count;
} chooser;

/* A library that does not hang (cuDNN) and that the user has not switched off. */
static bool trusts_vendor(const hy3d_route_setting *setting)
{
    return setting->is_vendor_on && !setting->is_rocm;
}

static bool is_vendor(const hy3d_route_setting *setting, hy3d_tier tier)
{
    return tier == HY3D_TIER_VENDOR ||
           (tier == HY3D_TIER_CURRENT && setting->current == HY3D_TIER_VENDOR);
}

static bool calls_vendor(const hy3d_route_setting *setting, hy3d_tier tier)
{
    return setting->is_on_gpu && (is_vendor(setting, tier) || tier == HY3D_TIER_CONV2D);
}

static bool is_pinned(const hy3d_route_setting *setting, hy3d_tier tier)
{
    return setting->policy == HY3D_POLICY_PIN && tier == setting->pinned;
}

/* PyTorch as it is set up on a GPU that is not AMD's. */
static bool is_trusted(const hy3d_route_setting *setting, hy3d_tier tier)
{
    return tier == HY3D_TIER_CURRENT && setting->is_on_gpu && trusts_vendor(setting);
}

static double measured(const hy3d_route_candidate *c)
{
    const bool is_sound = c->verdict == HY3D_VERDICT_OK || c->verdict == HY3D_VERDICT_SLOW_FIND;
    return is_sound ? c->seconds : -1;
}

static double cost_of(const hy3d_route_candidate *c)
{
    const double seconds = measured(c);
    if (seconds >= 0) {
        return seconds;
    }
    return c->estimate_seconds < 0 ? (double)INFINITY : doubt * c->estimate_seconds;
}

static hy3d_route_reason why_unproven(const hy3d_route_setting *setting,
                                      const hy3d_route_candidate *c)
{
    if (!calls_vendor(setting, c->tier)) {
        return HY3D_ROUTE_IN_ORDER;
    }
    if (trusts_vendor(setting) && setting->policy != HY3D_POLICY_SAFE) {
        return HY3D_ROUTE_IN_ORDER;
    }
    if (c->verdict == HY3D_VERDICT_OK) {
        return HY3D_ROUTE_IN_ORDER;
    }
    if (c->verdict != HY3D_VERDICT_SLOW_FIND) {
        return HY3D_ROUTE_UNPROVEN;
    }
    return setting->policy == HY3D_POLICY_VENDOR_FIRST ? HY3D_ROUTE_IN_ORDER : HY3D_ROUTE_SLOW_FIND;
}

static bool is_banned(hy3d_verdict verdict)
{
    return verdict == HY3D_VERDICT_HANG || verdict == HY3D_VERDICT_WRONG ||
           verdict == HY3D_VERDICT_ERROR || verdict == HY3D_VERDICT_LOST;
}

static hy3d_route_reason why_left_out(const hy3d_route_setting *setting,
                                      const hy3d_route_candidate *c)
{
    if (c->is_refused && c->fits) {
        return HY3D_ROUTE_REFUSED; /* where it only lacks memory it is asked again at each call */
    }
    if (c->failure != HY3D_FAILURE_NONE) {
        return HY3D_ROUTE_FAILED;
    }
    if (is_banned(c->verdict)) {
        return HY3D_ROUTE_BANNED;
    }
    return is_pinned(setting, c->tier) ? HY3D_ROUTE_IN_ORDER : why_unproven(setting, c);
}

static int32_t place_of(const chooser *all, hy3d_tier tier)
{
    for (int32_t i = 0; i < all->count; i++) {
        if (all->candidates[i].tier == tier) {
            return i;
        }
    }
    return -1;
}

/* Of CURRENT and the tier that it is, one goes. A trusted library stays as the user has set it up
 * (benchmark, determinism, TF32); the tier IM2COL is PyTorch's own cut to fit, which CURRENT is
 * not. */
static void drop_twin(const chooser *all, hy3d_route_choice *choice)
{
    const hy3d_route_setting *const setting = all->setting;
    const int32_t current = place_of(all, HY3D_TIER_CURRENT);
    const int32_t same =
        setting->current == HY3D_TIER_CURRENT ? -1 : place_of(all, setting->current);
    if (!setting->is_on_gpu || current < 0 || same < 0 ||
        choice->reasons[current] != HY3D_ROUTE_IN_ORDER ||
        choice->reasons[same] != HY3D_ROUTE_IN_ORDER) {
        return;
    }
    const bool keeps_current = (setting->current == HY3D_TIER_VENDOR && trusts_vendor(setting) &&
                                !is_pinned(setting, HY3D_TIER_VENDOR)) ||
                               is_pinned(setting, HY3D_TIER_CURRENT);
    choice->twin = keeps_current ? current : same;
    choice->reasons[keeps_current ? same : current] = HY3D_ROUTE_TWIN;
}

typedef struct rank {
    int32_t class;
    bool lacks_memory;
    double cost;
} rank;

static rank rank_of(const hy3d_route_setting *setting, const hy3d_route_candidate *c)
{
    if (is_pinned(setting, c->tier)) {
        return (rank){.class = 0};
    }
    if (!setting->is_on_gpu) {
        /* Nothing hangs and nobody measures here: as given, what is for GPUs last. */
        const bool is_for_gpus = c->tier == HY3D_TIER_GEMM || c->tier == HY3D_TIER_CONV2D;
        return (rank){.class = is_for_gpus ? 2 : 1, .lacks_memory = !c->fits};
    }
    bool is_first = setting->policy == HY3D_POLICY_VENDOR_FIRST && is_vendor(setting, c->tier);
    if (c->tier == HY3D_TIER_CURRENT && setting->policy != HY3D_POLICY_SAFE && !setting->is_rocm) {
        const bool is_own = setting->current == HY3D_TIER_CURRENT;
        is_first = is_first || is_own || (is_vendor(setting, c->tier) && trusts_vendor(setting));
    }
    if (is_first && c->fits) {
        return (rank){.class = 1};
    }
    return (rank){
        .class = c->tier == HY3D_TIER_CPU ? 3 : 2, .lacks_memory = !c->fits, .cost = cost_of(c)};
}

static bool is_before(const rank *a, const rank *b)
{
    if (a->class != b->class) {
        return a->class < b->class;
    }
    if (a->lacks_memory != b->lacks_memory) {
        return b->lacks_memory;
    }
    return a->cost < b->cost;
}

/* Reasons and order, the rest of the choice apart. */
static void put_in_order(const chooser *all, hy3d_route_choice *choice)
{
    choice->twin = -1;
    choice->order_count = 0;
    choice->is_cramped = false;
    for (int32_t i = 0; i < all->count; i++) {
        choice->reasons[i] = why_left_out(all->setting, &all->candidates[i]);
    }
    drop_twin(all, choice);
    rank ranks[HY3D_TIER_COUNT];
    for (int32_t i = 0; i < all->count; i++) {
        if (choice->reasons[i] != HY3D_ROUTE_IN_ORDER) {
            continue;
        }
        choice->is_cramped = choice->is_cramped || !all->candidates[i].fits;
        const rank own = rank_of(all->setting, &all->candidates[i]);
        int32_t place = choice->order_count++;
        for (; place > 0 && is_before(&own, &ranks[place - 1]); place--) {
            ranks[place] = ranks[place - 1];
            choice->order[place] = choice->order[place - 1];
        }
        ranks[place] = own;
        choice->order[place] = i;
    }
}

/* The vendor's library, where a child process may try it now. Under AUTO that is where nothing else
 * on the GPU is healthy and has the memory: waiting is then better than the host. */
static int32_t find_probe(const chooser *all, const hy3d_route_choice *choice)
{
    const hy3d_route_setting *const setting = all->setting;
    const int32_t vendor = place_of(all, HY3D_TIER_VENDOR);
    const bool is_auto = setting->policy == HY3D_POLICY_AUTO;
    if (!setting->is_on_gpu || vendor < 0 ||
        (!is_auto && setting->policy != HY3D_POLICY_VENDOR_FIRST)) {
        return -1;
    }
    const hy3d_route_candidate *const c = &all->candidates[vendor];
    const bool is_out = choice->reasons[vendor] != HY3D_ROUTE_IN_ORDER;
    if (!is_out || c->is_refused || c->failure != HY3D_FAILURE_NONE || !c->fits ||
        c->verdict != HY3D_VERDICT_NONE || why_unproven(setting, c) == HY3D_ROUTE_IN_ORDER) {
        return -1;
    }
    for (int32_t i = 0; i < choice->order_count && is_auto; i++) {
        const hy3d_route_candidate *const other = &all->candidates[choice->order[i]];
        if (other->fits && other->tier != HY3D_TIER_CPU) {
            return -1;
        }
    }
    return vendor;
}

/* Had nothing failed in this process: records of tiers that failed are of that failure. */
static int32_t find_preferred(const chooser *all, const hy3d_route_choice *choice)
{
    hy3d_route_candidate unharmed[HY3D_TIER_COUNT];
    bool has_failed = false;
    for (int32_t i = 0; i < all->count; i++) {
        unharmed[i] = all->candidates[i];
        if (unharmed[i].failure != HY3D_FAILURE_NONE) {
            has_failed = true;
            unharmed[i].failure = HY3D_FAILURE_NONE;
            unharmed[i].verdict = HY3D_VERDICT_NONE;
        }
    }
    hy3d_route_choice other = {.order_count = 0};
    if (has_failed) {
        const chooser then = {all->setting, unharmed, all->count};
        put_in_order(&then, &other);
    }
    const hy3d_route_choice *const which = other.order_count > 0 ? &other : choice;
    return which->order_count > 0 ? which->order[0] : -1;
}

/* IM2COL predicts the least that it can do with, and takes what it gets. */
static bool is_modest(const chooser *all, const hy3d_route_candidate *c)
{
    const double columns = c->tier == HY3D_TIER_IM2COL ? all->setting->column_bytes : 0;
    return fmax(c->workspace_bytes, columns) <= passing_bytes;
}

/* Tiers of the order that nobody measured and that could be the best. */
static void find_unmeasured(const chooser *all, hy3d_route_choice *choice)
{
    choice->unmeasured_count = 0;
    const hy3d_route_candidate *best = NULL;
    double least = 0;
    for (int32_t i = 0; i < choice->order_count; i++) {
        const hy3d_route_candidate *const c = &all->candidates[choice->order[i]];
        if (c->tier == HY3D_TIER_CPU || !c->fits) {
            continue;
        }
        if (best == NULL) {
            if (!all->setting->is_on_gpu || is_trusted(all->setting, c->tier)) {
                return;
            }
            best = c;
            least = measured(c) > 0 ? measured(c) : fmax(c->estimate_seconds, 0);
        }
        const bool could_win = c->estimate_seconds < 0 || c->estimate_seconds < worth_a_try * least;
        if (measured(c) < 0 && (c == best || (is_modest(all, c) && could_win))) {
            choice->unmeasured[choice->unmeasured_count++] = choice->order[i];
        }
    }
}

/* Nothing is known of it that would cost more than this call. */
static bool is_harmless(const hy3d_route_candidate *c)
{
    return c->verdict != HY3D_VERDICT_HANG && c->verdict != HY3D_VERDICT_WRONG &&
           c->verdict != HY3D_VERDICT_LOST;
}

/* What failed here and may recover, what only a record says to fail, and PyTorch as it is set up
 * last. None that gave a wrong result, hung, or took the device with it. */
static void find_spare(const chooser *all, hy3d_route_choice *choice)
{
    choice->spare_count = 0;
    bool is_taken[HY3D_TIER_COUNT] = {false};
    for (int32_t i = 0; i < choice->order_count; i++) {
        is_taken[choice->order[i]] = true;
    }
    for (int32_t i = 0; i < all->count; i++) {
        const hy3d_route_candidate *const c = &all->candidates[i];
        const bool is_risky = calls_vendor(all->setting, c->tier) && !trusts_vendor(all->setting);
        const bool is_old = c->failure == HY3D_FAILURE_NONE && c->verdict == HY3D_VERDICT_ERROR;
        if (!is_taken[i] && !is_risky && (c->failure == HY3D_FAILURE_MAY_RECOVER || is_old)) {
            is_taken[i] = true;
            choice->spare[choice->spare_count++] = i;
        }
    }
    const int32_t current = place_of(all, HY3D_TIER_CURRENT);
    if (current >= 0 && !is_taken[current] && is_harmless(&all->candidates[current]) &&
        all->candidates[current].failure != HY3D_FAILURE_FOR_GOOD) {
        choice->spare[choice->spare_count++] = current;
    }
}

/* Enumerations as they come from elsewhere: any number. */
static bool is_known(const hy3d_route_candidate *c)
{
    return (uint32_t)c->tier < HY3D_TIER_COUNT && (uint32_t)c->verdict <= HY3D_VERDICT_OTHER &&
           (uint32_t)c->failure <= HY3D_FAILURE_FOR_GOOD;
}

static bool is_setting_known(const hy3d_route_setting *setting)
{
    const bool is_pin = setting->policy == HY3D_POLICY_PIN;
    return (uint32_t)setting->policy <= HY3D_POLICY_PIN &&
           (!is_pin || (uint32_t)setting->pinned < HY3D_TIER_COUNT) &&
           (setting->current == HY3D_TIER_CURRENT || setting->current == HY3D_TIER_VENDOR ||
            setting->current == HY3D_TIER_IM2COL);
}

hy3d_status hy3d_route_choose(const hy3d_route_setting *setting,
                              const hy3d_route_candidate *candidates, int32_t count,
                              hy3d_route_choice *choice_out)
{
    if (setting == NULL || (candidates == NULL && count > 0) || choice_out == NULL || count < 0 ||
        count > HY3D_TIER_COUNT || !is_setting_known(setting)) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    const chooser all = {setting, candidates, count};
    for (int32_t i = 0; i < count; i++) {
        if (!is_known(&candidates[i]) || place_of(&all, candidates[i].tier) != i) {
            return HY3D_ERR_INVALID_ARGUMENT;
        }
    }
    hy3d_route_choice choice = {.order_count = 0};
    put_in_order(&all, &choice);
    choice.probe = find_probe(&all, &choice);
    choice.preferred = find_preferred(&all, &choice);
    find_unmeasured(&all, &choice);
    find_spare(&all, &choice);
    *choice_out = choice;
    return HY3D_OK;
}
