/* Which tier computes a convolution: rules, a random sweep of what must always hold, estimates. */
#include "support.h"

#include <math.h>
#include <string.h>

#include "hy3d/route.h"

Suite *hy3d_route_suite(void);

#define ALL HY3D_TIER_COUNT
#define ck_assert_near(got, wanted) ck_assert(fabs((got) - (wanted)) <= 1e-12 * (wanted))

static hy3d_route_setting rocm(hy3d_policy policy)
{
    return (hy3d_route_setting){.policy = policy,
                                .pinned = HY3D_TIER_GEMM,
                                .current = HY3D_TIER_VENDOR,
                                .is_on_gpu = true,
                                .is_rocm = true,
                                .is_vendor_on = true};
}

/* One candidate a tier, in the order of the enumeration, each estimated at a second. */
static void all_tiers(hy3d_route_candidate candidates[ALL])
{
    for (int i = 0; i < ALL; i++) {
        candidates[i] = (hy3d_route_candidate){
            .tier = (hy3d_tier)i, .fits = true, .seconds = -1, .estimate_seconds = 1};
    }
}

static hy3d_route_choice choose(const hy3d_route_setting *setting,
                                const hy3d_route_candidate candidates[ALL])
{
    hy3d_route_choice choice;
    ck_assert_ok(hy3d_route_choose(setting, candidates, ALL, &choice));
    return choice;
}

static void assert_order(const hy3d_route_choice *choice, const int32_t *wanted, int32_t count)
{
    ck_assert_int_eq(choice->order_count, count);
    for (int32_t i = 0; i < count; i++) {
        ck_assert_int_eq(choice->order[i], wanted[i]);
    }
}

START_TEST(test_amds_library_is_called_once_it_is_proven)
{
    const hy3d_route_setting setting = rocm(HY3D_POLICY_AUTO);
    hy3d_route_candidate candidates[ALL];
    all_tiers(candidates);
    hy3d_route_choice choice = choose(&setting, candidates);
    const int32_t without[] = {HY3D_TIER_TRITON, HY3D_TIER_IM2COL, HY3D_TIER_GEMM, HY3D_TIER_CPU};
    assert_order(&choice, without, (int32_t)COUNT_OF(without));
    ck_assert_int_eq(choice.reasons[HY3D_TIER_VENDOR], HY3D_ROUTE_UNPROVEN);
    ck_assert_int_eq(choice.reasons[HY3D_TIER_CURRENT], HY3D_ROUTE_UNPROVEN);
    ck_assert_int_eq(choice.reasons[HY3D_TIER_CONV2D], HY3D_ROUTE_UNPROVEN);
    ck_assert_int_eq(choice.probe, -1);
    candidates[HY3D_TIER_VENDOR].verdict = HY3D_VERDICT_OK;
    candidates[HY3D_TIER_VENDOR].seconds = 0.5;
    choice = choose(&setting, candidates);
    ck_assert_int_eq(choice.order[0], HY3D_TIER_VENDOR);
    candidates[HY3D_TIER_VENDOR].verdict = HY3D_VERDICT_SLOW_FIND;
    choice = choose(&setting, candidates);
    ck_assert_int_eq(choice.reasons[HY3D_TIER_VENDOR], HY3D_ROUTE_SLOW_FIND);
}
END_TEST

START_TEST(test_a_measured_time_beats_an_estimate_that_promises_little_more)
{
    const hy3d_route_setting setting = rocm(HY3D_POLICY_AUTO);
    hy3d_route_candidate candidates[ALL];
    all_tiers(candidates);
    candidates[HY3D_TIER_GEMM].verdict = HY3D_VERDICT_OK;
    candidates[HY3D_TIER_GEMM].seconds = 1.4;
    ck_assert_int_eq(choose(&setting, candidates).order[0], HY3D_TIER_GEMM);
    candidates[HY3D_TIER_GEMM].seconds = 1.6;
    ck_assert_int_eq(choose(&setting, candidates).order[0], HY3D_TIER_TRITON);
    candidates[HY3D_TIER_TRITON].fits = false;
    candidates[HY3D_TIER_IM2COL].fits = false;
    const hy3d_route_choice choice = choose(&setting, candidates);
    ck_assert_int_eq(choice.order[0], HY3D_TIER_GEMM);
    ck_assert(choice.is_cramped);
    ck_assert_int_eq(choice.order[3], HY3D_TIER_CPU);
}
END_TEST

START_TEST(test_a_trusted_library_stays_as_the_user_has_set_it_up)
{
    hy3d_route_setting setting = rocm(HY3D_POLICY_AUTO);
    setting.is_rocm = false;
    hy3d_route_candidate candidates[ALL];
    all_tiers(candidates);
    hy3d_route_choice choice = choose(&setting, candidates);
    ck_assert_int_eq(choice.order[0], HY3D_TIER_CURRENT);
    ck_assert_int_eq(choice.reasons[HY3D_TIER_VENDOR], HY3D_ROUTE_TWIN);
    ck_assert_int_eq(choice.twin, HY3D_TIER_CURRENT);
    ck_assert_int_eq(choice.unmeasured_count, 0);
    setting.current = HY3D_TIER_IM2COL;
    setting.is_vendor_on = false;
    choice = choose(&setting, candidates);
    ck_assert_int_eq(choice.reasons[HY3D_TIER_CURRENT], HY3D_ROUTE_TWIN);
    ck_assert_int_eq(choice.twin, HY3D_TIER_IM2COL);
}
END_TEST

START_TEST(test_a_child_may_prove_the_library_where_nothing_else_is_left)
{
    const hy3d_route_setting setting = rocm(HY3D_POLICY_AUTO);
    hy3d_route_candidate candidates[ALL];
    all_tiers(candidates);
    const hy3d_tier others[] = {HY3D_TIER_TRITON, HY3D_TIER_IM2COL, HY3D_TIER_GEMM};
    for (size_t i = 0; i < COUNT_OF(others); i++) {
        candidates[others[i]].failure = HY3D_FAILURE_MAY_RECOVER;
    }
    const hy3d_route_choice choice = choose(&setting, candidates);
    ck_assert_int_eq(choice.probe, HY3D_TIER_VENDOR);
    ck_assert_int_eq(choice.preferred, HY3D_TIER_TRITON);
    const int32_t only[] = {HY3D_TIER_CPU};
    assert_order(&choice, only, 1);
    ck_assert_int_eq(choice.spare_count, 4);
    ck_assert_int_eq(choice.spare[3], HY3D_TIER_CURRENT);
    const hy3d_route_setting safe = rocm(HY3D_POLICY_SAFE);
    ck_assert_int_eq(choose(&safe, candidates).probe, -1);
}
END_TEST

static hy3d_route_candidate any_candidate(test_random *random, hy3d_tier tier)
{
    static const double times[] = {-1, 0, 0.5, 1, 2};
    return (hy3d_route_candidate){
        .tier = tier,
        .verdict = (hy3d_verdict)test_between(random, 0, HY3D_VERDICT_OTHER),
        .failure = (hy3d_failure)test_between(random, 0, HY3D_FAILURE_FOR_GOOD),
        .is_refused = test_between(random, 0, 3) == 0,
        .fits = test_between(random, 0, 3) > 0,
        .seconds = times[test_between(random, 0, 4)],
        .estimate_seconds = times[test_between(random, 0, 4)],
        .workspace_bytes = (double)test_between(random, 0, 2) * 1e9,
    };
}

static bool has(const int32_t *places, int32_t count, int32_t place)
{
    for (int32_t i = 0; i < count; i++) {
        if (places[i] == place) {
            return true;
        }
    }
    return false;
}

/* What no knowledge may bring about. */
static void assert_sound(const hy3d_route_setting *setting, const hy3d_route_candidate *candidates,
                         int32_t count, const hy3d_route_choice *choice)
{
    for (int32_t i = 0; i < count; i++) {
        const hy3d_route_candidate *const c = &candidates[i];
        const bool is_in = has(choice->order, choice->order_count, i);
        ck_assert_int_eq(is_in, choice->reasons[i] == HY3D_ROUTE_IN_ORDER);
        ck_assert(!is_in || c->failure == HY3D_FAILURE_NONE);
        ck_assert(!is_in || !c->is_refused || !c->fits);
        ck_assert(!is_in || c->verdict < HY3D_VERDICT_HANG || c->verdict == HY3D_VERDICT_OTHER);
        const bool is_library = c->tier == HY3D_TIER_VENDOR || c->tier == HY3D_TIER_CONV2D ||
                                (c->tier == HY3D_TIER_CURRENT &&
                                 setting->current == HY3D_TIER_VENDOR);
        const bool is_asked_for = setting->policy == HY3D_POLICY_PIN && c->tier == setting->pinned;
        const bool is_proven =
            c->verdict == HY3D_VERDICT_OK ||
            (c->verdict == HY3D_VERDICT_SLOW_FIND && setting->policy == HY3D_POLICY_VENDOR_FIRST);
        const bool may_hang = is_library && setting->is_on_gpu &&
                              (setting->is_rocm || setting->policy == HY3D_POLICY_SAFE);
        ck_assert(!is_in || !may_hang || is_proven || is_asked_for);
        const bool is_spare = has(choice->spare, choice->spare_count, i);
        ck_assert(!is_spare || !is_in);
        ck_assert(!is_spare || c->failure != HY3D_FAILURE_FOR_GOOD);
        ck_assert(!has(choice->unmeasured, choice->unmeasured_count, i) || is_in);
        if (choice->probe == i) {
            ck_assert_int_eq(c->tier, HY3D_TIER_VENDOR);
            ck_assert_int_eq(c->verdict, HY3D_VERDICT_NONE);
            ck_assert(!is_in && c->fits && setting->policy != HY3D_POLICY_SAFE);
        }
    }
}

START_TEST(test_nothing_unproven_and_nothing_that_failed_is_in_an_order)
{
    test_random random = test_rng(20261126);
    const int draws = test_draws(20000, 200000);
    for (int draw = 0; draw < draws; draw++) {
        const hy3d_tier currents[] = {HY3D_TIER_CURRENT, HY3D_TIER_VENDOR, HY3D_TIER_IM2COL};
        const hy3d_route_setting setting = {
            .policy = (hy3d_policy)test_between(&random, 0, HY3D_POLICY_PIN),
            .pinned = (hy3d_tier)test_between(&random, 0, ALL - 1),
            .current = currents[test_between(&random, 0, 2)],
            .is_on_gpu = test_between(&random, 0, 7) > 0,
            .is_rocm = test_between(&random, 0, 1) > 0,
            .is_vendor_on = test_between(&random, 0, 3) > 0,
            .column_bytes = (double)test_between(&random, 0, 2) * 1e9,
        };
        hy3d_route_candidate candidates[ALL];
        const int32_t count = (int32_t)test_between(&random, 0, ALL);
        const int first = (int)test_between(&random, 0, ALL - 1);
        for (int32_t i = 0; i < count; i++) {
            candidates[i] = any_candidate(&random, (hy3d_tier)((first + i) % ALL));
        }
        hy3d_route_choice choice;
        ck_assert_ok(hy3d_route_choose(&setting, candidates, count, &choice));
        assert_sound(&setting, candidates, count, &choice);
    }
}
END_TEST

START_TEST(test_numbers_that_stand_for_nothing_are_refused)
{
    const hy3d_route_setting good = rocm(HY3D_POLICY_PIN);
    hy3d_route_candidate candidates[ALL];
    all_tiers(candidates);
    hy3d_route_choice choice = {.order_count = -7};
    const hy3d_route_choice before = choice;
#define REFUSED(setting, list, count)                                                              \
    ck_assert_status(hy3d_route_choose(setting, list, count, &choice), HY3D_ERR_INVALID_ARGUMENT)
    REFUSED(NULL, candidates, ALL);
    REFUSED(&good, NULL, ALL);
    REFUSED(&good, candidates, -1);
    REFUSED(&good, candidates, ALL + 1);
    ck_assert_status(hy3d_route_choose(&good, candidates, ALL, NULL), HY3D_ERR_INVALID_ARGUMENT);
    hy3d_route_setting bad = good;
    bad.policy = (hy3d_policy)4;
    REFUSED(&bad, candidates, ALL);
    bad = good;
    bad.pinned = (hy3d_tier)ALL;
    REFUSED(&bad, candidates, ALL);
    bad = good;
    bad.current = HY3D_TIER_TRITON;
    REFUSED(&bad, candidates, ALL);
    bad.current = HY3D_TIER_CPU;
    REFUSED(&bad, candidates, ALL);
    hy3d_route_candidate wrong = candidates[3];
    for (int field = 0; field < 4; field++) {
        candidates[3] = wrong;
        candidates[3].tier = field == 0 ? HY3D_TIER_CPU : field == 1 ? (hy3d_tier)ALL : wrong.tier;
        candidates[3].verdict = field == 2 ? (hy3d_verdict)8 : wrong.verdict;
        candidates[3].failure = field == 3 ? (hy3d_failure)3 : wrong.failure;
        REFUSED(&good, candidates, ALL);
    }
#undef REFUSED
    ck_assert_mem_eq(&choice, &before, sizeof choice);
    ck_assert_ok(hy3d_route_choose(&good, NULL, 0, &choice));
    ck_assert_int_eq(choice.order_count, 0);
    ck_assert_int_eq(choice.preferred, -1);
}
END_TEST

/* 128 to 128 channels, 3x3x3, 17x320x320, bf16: a layer of a video VAE. */
static hy3d_route_work layer(void)
{
    const double voxels = 17.0 * 320 * 320;
    return (hy3d_route_work){.dtype = HY3D_BF16,
                             .flops = 2.0 * 128 * 128 * 27 * voxels,
                             .moved_bytes = 2.0 * 2 * 128 * voxels,
                             .out_bytes = 2.0 * 128 * voxels,
                             .column_bytes = 2.0 * 27 * 128 * voxels,
                             .taps = 27,
                             .time_taps = 3,
                             .group_channels = 128};
}

START_TEST(test_estimates_follow_what_was_measured_on_the_device)
{
    hy3d_context *const context = test_context("ref", 1);
    hy3d_rates *rates = NULL;
    ck_assert_ok(hy3d_rates_create(context, &rates));
    const hy3d_route_work work = layer();
    const double triton = hy3d_route_baseline_seconds(HY3D_TIER_TRITON, &work);
    const double gemm = hy3d_route_baseline_seconds(HY3D_TIER_GEMM, &work);
    const double cpu = hy3d_route_baseline_seconds(HY3D_TIER_CPU, &work);
    ck_assert(triton > 0 && triton < gemm && gemm < cpu);
    ck_assert(hy3d_rates_factor(rates, HY3D_TIER_TRITON, HY3D_BF16) < 0);
    for (int i = 0; i < 3; i++) { /* the same one counts once */
        ck_assert_ok(hy3d_rates_learn(context, rates, HY3D_TIER_TRITON, &work, 2 * triton));
    }
    ck_assert_ok(hy3d_rates_learn(context, rates, HY3D_TIER_TRITON, &work, 8 * triton));
    const double nothing[] = {0, -1, (double)INFINITY, (double)NAN};
    for (size_t i = 0; i < COUNT_OF(nothing); i++) {
        ck_assert_ok(hy3d_rates_learn(context, rates, HY3D_TIER_TRITON, &work, nothing[i]));
    }
    ck_assert_near(hy3d_rates_factor(rates, HY3D_TIER_TRITON, HY3D_BF16), 4);
    ck_assert_near(hy3d_rates_seconds(rates, HY3D_TIER_GEMM, &work), 4 * gemm);
    ck_assert(hy3d_rates_seconds(rates, HY3D_TIER_CPU, &work) == cpu);
    hy3d_route_work other = work;
    other.dtype = HY3D_F16;
    ck_assert(hy3d_rates_seconds(rates, HY3D_TIER_GEMM, &other) == gemm);
    hy3d_rates_destroy(context, rates);
    hy3d_context_destroy(context);
}
END_TEST

/* A table that grows twice gives what was put in: measurements that are seen again do not count. */
static hy3d_status learn_many(hy3d_context *context, void *argument)
{
    (void)argument;
    hy3d_rates *rates = NULL;
    hy3d_status status = hy3d_rates_create(context, &rates);
    if (status != HY3D_OK) {
        return status;
    }
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 100 && status == HY3D_OK; i++) {
            hy3d_route_work work = layer();
            work.flops *= i + 1;
            const double guess = hy3d_route_baseline_seconds(HY3D_TIER_VENDOR, &work);
            const double factor = i % 2 == 0 ? 2 : 8;
            status = hy3d_rates_learn(context, rates, HY3D_TIER_VENDOR, &work, factor * guess);
        }
        /* Only the first round adds one that pulls the mean away. */
        const hy3d_route_work work = layer();
        const double guess = hy3d_route_baseline_seconds(HY3D_TIER_VENDOR, &work);
        if (status == HY3D_OK) {
            status = hy3d_rates_learn(context, rates, HY3D_TIER_VENDOR, &work, 4 * guess);
        }
    }
    if (status == HY3D_OK) {
        const double factor = hy3d_rates_factor(rates, HY3D_TIER_VENDOR, HY3D_BF16);
        ck_assert_near(factor, 4);
    }
    hy3d_rates_destroy(context, rates);
    return status;
}

START_TEST(test_rates_survive_every_failed_allocation)
{
    hy3d_context *const context = test_context("ref", 1);
    ck_assert_uint_eq(test_allocation_sweep(context, learn_many, NULL), 4);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_what_rates_refuse)
{
    hy3d_context *const context = test_context("ref", 1);
    hy3d_rates *rates = NULL;
    hy3d_route_work work = layer();
    ck_assert_status(hy3d_rates_create(NULL, &rates), HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(hy3d_rates_create(context, NULL), HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_ok(hy3d_rates_create(context, &rates));
    ck_assert_status(hy3d_rates_learn(NULL, rates, HY3D_TIER_CPU, &work, 1),
                     HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(hy3d_rates_learn(context, NULL, HY3D_TIER_CPU, &work, 1),
                     HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(hy3d_rates_learn(context, rates, HY3D_TIER_CPU, NULL, 1),
                     HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_ok(hy3d_rates_learn(context, rates, (hy3d_tier)ALL, &work, 1));
    ck_assert(hy3d_rates_factor(NULL, HY3D_TIER_CPU, HY3D_F32) < 0);
    ck_assert(hy3d_rates_factor(rates, (hy3d_tier)-1, HY3D_F32) < 0);
    ck_assert(hy3d_rates_seconds(NULL, HY3D_TIER_CPU, &work) > 0);
    ck_assert(hy3d_rates_seconds(rates, HY3D_TIER_CPU, NULL) < 0);
    work.dtype = (hy3d_dtype)4;
    ck_assert(hy3d_route_baseline_seconds(HY3D_TIER_CPU, &work) < 0);
    ck_assert_ok(hy3d_rates_learn(context, rates, HY3D_TIER_CPU, &work, 1));
    hy3d_rates_destroy(context, rates);
    hy3d_rates_destroy(context, NULL);
    hy3d_context_destroy(context);
}
END_TEST

Suite *hy3d_route_suite(void)
{
    Suite *suite = suite_create("route");
    TCase *tests = tcase_create("route");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, test_amds_library_is_called_once_it_is_proven);
    tcase_add_test(tests, test_a_measured_time_beats_an_estimate_that_promises_little_more);
    tcase_add_test(tests, test_a_trusted_library_stays_as_the_user_has_set_it_up);
    tcase_add_test(tests, test_a_child_may_prove_the_library_where_nothing_else_is_left);
    tcase_add_test(tests, test_nothing_unproven_and_nothing_that_failed_is_in_an_order);
    tcase_add_test(tests, test_numbers_that_stand_for_nothing_are_refused);
    tcase_add_test(tests, test_estimates_follow_what_was_measured_on_the_device);
    tcase_add_test(tests, test_rates_survive_every_failed_allocation);
    tcase_add_test(tests, test_what_rates_refuse);
    suite_add_tcase(suite, tests);
    return suite;
}
