/* Which things stay in a cache that is too small: rules, and a random sweep beside a model that
 * keeps the same books another way. */
#include "support.h"

#include <string.h>

#include "hy3d/cache.h"

Suite *hy3d_cache_suite(void);

enum { THINGS = 96 };

typedef struct rig {
    hy3d_context *context;
    hy3d_cache *cache;
} rig;

static rig make_rig(int64_t limit)
{
    rig r = {.context = test_context("ref", 1)};
    ck_assert_ok(hy3d_cache_create(r.context, limit, &r.cache));
    return r;
}

static void end_rig(rig *r)
{
    hy3d_cache_destroy(r->context, r->cache);
    hy3d_context_destroy(r->context);
}

static hy3d_cache_key key_of(int thing)
{
    return (hy3d_cache_key){{(uint64_t)thing, 7, 3}};
}

static bool reserve(rig *r, int thing, int64_t bytes)
{
    const hy3d_cache_key key = key_of(thing);
    bool is_reserved = false;
    ck_assert_ok(hy3d_cache_reserve(r->cache, &key, bytes, &is_reserved));
    return is_reserved;
}

static bool is_here(rig *r, int thing)
{
    const hy3d_cache_key key = key_of(thing);
    bool found = false;
    ck_assert_ok(hy3d_cache_request(r->context, r->cache, &key, &found));
    return found;
}

/* One call's request: a miss is made and kept where there is room. */
static bool request(rig *r, int thing, int64_t bytes)
{
    if (is_here(r, thing)) {
        return true;
    }
    if (reserve(r, thing, bytes)) {
        const hy3d_cache_key key = key_of(thing);
        ck_assert(hy3d_cache_put(r->cache, &key));
    }
    const hy3d_cache_info info = hy3d_cache_get_info(r->cache);
    ck_assert_int_le(info.used_bytes, info.limit_bytes);
    return false;
}

/* Hits of `count` things from `first` on, each requested `times` in a row, in turn. */
static int scan(rig *r, int first, int count, int times)
{
    int hits = 0;
    for (int i = first; i < first + count; i++) {
        for (int j = 0; j < times; j++) {
            hits += request(r, i, 10);
        }
    }
    return hits;
}

START_TEST(test_a_scan_that_does_not_fit_keeps_the_share_that_does)
{
    rig r = make_rig(400);
    ck_assert_int_eq(scan(&r, 0, 80, 1), 0);
    for (int pass = 0; pass < 5; pass++) {
        ck_assert_int_eq(scan(&r, 0, 80, 1), 40);
    }
    ck_assert_int_eq(hy3d_cache_get_info(r.cache).evicted, 0);
    ck_assert_int_eq(hy3d_cache_get_info(r.cache).entries, 40);
    end_rig(&r);
}
END_TEST

START_TEST(test_another_model_takes_over_at_its_second_pass)
{
    rig r = make_rig(400);
    for (int pass = 0; pass < 5; pass++) {
        scan(&r, 0, 40, 1);
    }
    ck_assert_int_eq(scan(&r, 40, 40, 1), 0);
    ck_assert_int_eq(scan(&r, 40, 40, 1), 0); /* made now */
    ck_assert_int_eq(scan(&r, 40, 40, 1), 40);
    ck_assert_int_eq(hy3d_cache_get_info(r.cache).evicted, 40);
    end_rig(&r);
}
END_TEST

START_TEST(test_the_fourth_request_in_a_row_takes_the_probationary_place)
{
    rig r = make_rig(400);
    scan(&r, 0, 40, 1);
    ck_assert(!request(&r, 50, 10) && !request(&r, 50, 10) && !request(&r, 50, 10));
    ck_assert_int_eq(hy3d_cache_get_info(r.cache).evicted, 0);
    ck_assert(!request(&r, 50, 10)); /* made now */
    ck_assert(request(&r, 50, 10));
    ck_assert_int_eq(hy3d_cache_get_info(r.cache).evicted, 1);
    /* Its place is not taken while it is used. */
    for (int i = 0; i < 8; i++) {
        ck_assert(!request(&r, 51, 10));
        ck_assert(request(&r, 50, 10));
    }
    ck_assert_int_eq(hy3d_cache_get_info(r.cache).evicted, 1);
    for (int i = 0; i < 9; i++) {
        ck_assert(!request(&r, 51, 10));
    }
    ck_assert(request(&r, 51, 10));
    ck_assert(!is_here(&r, 50));
    /* Never more than half the cache. */
    for (int i = 0; i < 20; i++) {
        ck_assert(!request(&r, 52, 201));
    }
    end_rig(&r);
}
END_TEST

START_TEST(test_what_is_being_made_counts_and_a_failure_gives_it_back)
{
    rig r = make_rig(100);
    const hy3d_cache_key a = key_of(1);
    const hy3d_cache_key b = key_of(2);
    ck_assert(!reserve(&r, 1, 60)); /* never requested */
    ck_assert(!is_here(&r, 1));
    ck_assert(reserve(&r, 1, 60));
    ck_assert(!reserve(&r, 1, 60));
    ck_assert(!is_here(&r, 2));
    ck_assert(!reserve(&r, 2, 60));
    hy3d_cache_cancel(r.cache, &a);
    ck_assert_int_eq(hy3d_cache_get_info(r.cache).used_bytes, 0);
    ck_assert(reserve(&r, 2, 60));
    ck_assert_int_eq(hy3d_cache_clear(r.cache), 0);
    ck_assert(!hy3d_cache_put(r.cache, &b)); /* everything was dropped meanwhile */
    ck_assert(!is_here(&r, 2));
    ck_assert(reserve(&r, 2, 60));
    ck_assert(hy3d_cache_put(r.cache, &b));
    ck_assert(hy3d_cache_has(r.cache, &b));
    hy3d_cache_cancel(r.cache, &b); /* nothing is reserved */
    ck_assert(hy3d_cache_has(r.cache, &b));
    ck_assert(hy3d_cache_drop(r.cache, &b));
    ck_assert(!hy3d_cache_drop(r.cache, &b));
    ck_assert_int_eq(hy3d_cache_get_info(r.cache).used_bytes, 0);
    end_rig(&r);
}
END_TEST

START_TEST(test_requests_that_lie_back_furthest_are_forgotten)
{
    rig r = make_rig(10);
    request(&r, 0, 10);
    for (int i = 1; i <= 4096; i++) {
        ck_assert(!is_here(&r, i));
    }
    const hy3d_cache_key first = key_of(0);
    const hy3d_cache_key second = key_of(1);
    ck_assert(hy3d_cache_has(r.cache, &first)); /* the thing stays, its request is forgotten */
    ck_assert(!is_here(&r, 9999));
    ck_assert(!reserve(&r, 1, 1)); /* forgotten: as if it had never been requested */
    ck_assert(hy3d_cache_drop(r.cache, &first));
    ck_assert(!reserve(&r, 0, 1));
    ck_assert(reserve(&r, 2, 1));
    ck_assert(!hy3d_cache_has(r.cache, &second));
    end_rig(&r);
}
END_TEST

/* Sizes and states of all things, kept beside the cache. */
START_TEST(test_random_requests_never_pass_the_limit_and_add_up)
{
    static const int64_t sizes[] = {1, 10, 90, 250, 600, 1000, 1001};
    test_random random = test_rng(20261127);
    const int rounds = test_draws(40, 200);
    for (int round = 0; round < rounds; round++) {
        rig r = make_rig(1000);
        bool here[THINGS] = {false};
        int64_t bytes[THINGS];
        for (int i = 0; i < THINGS; i++) {
            bytes[i] = sizes[test_between(&random, 0, 6)];
        }
        for (int step = 0; step < 400; step++) {
            const bool is_near = test_between(&random, 0, 1) == 0;
            const int thing = (int)test_between(&random, 0, is_near ? 5 : THINGS - 1);
            const hy3d_cache_key key = key_of(thing);
            ck_assert_int_eq(is_here(&r, thing), here[thing]);
            if (!here[thing] && reserve(&r, thing, bytes[thing])) {
                here[thing] = test_between(&random, 0, 9) > 0;
                if (here[thing]) {
                    ck_assert(hy3d_cache_put(r.cache, &key));
                } else {
                    hy3d_cache_cancel(r.cache, &key);
                }
            }
            if (test_between(&random, 0, 99) == 0) {
                ck_assert_int_eq(hy3d_cache_drop(r.cache, &key), here[thing]);
            }
            int64_t used = 0;
            int64_t entries = 0;
            for (int i = 0; i < THINGS; i++) {
                const hy3d_cache_key other = key_of(i);
                const bool had = here[i];
                here[i] = hy3d_cache_has(r.cache, &other);
                ck_assert(had || !here[i]); /* nothing comes by itself */
                used += here[i] ? bytes[i] : 0;
                entries += here[i];
            }
            const hy3d_cache_info info = hy3d_cache_get_info(r.cache);
            ck_assert_int_eq(info.used_bytes, used);
            ck_assert_int_eq(info.entries, entries);
            ck_assert_int_le(used, 1000);
        }
        end_rig(&r);
    }
}
END_TEST

static hy3d_status fill(hy3d_context *context, void *argument)
{
    (void)argument;
    rig r = {.context = context};
    hy3d_status status = hy3d_cache_create(context, 1000, &r.cache);
    for (int i = 0; i < 200 && status == HY3D_OK; i++) {
        const hy3d_cache_key key = key_of(i);
        const int64_t clock = hy3d_cache_get_info(r.cache).clock;
        bool found = true;
        status = hy3d_cache_request(context, r.cache, &key, &found);
        ck_assert_int_eq(hy3d_cache_get_info(r.cache).clock, clock + (status == HY3D_OK));
    }
    hy3d_cache_destroy(context, r.cache);
    return status;
}

START_TEST(test_every_failed_allocation_is_survived)
{
    hy3d_context *const context = test_context("ref", 1);
    ck_assert_uint_eq(test_allocation_sweep(context, fill, NULL), 4);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_what_is_refused)
{
    rig r = make_rig(0);
    hy3d_cache *other = NULL;
    const hy3d_cache_key key = key_of(1);
    bool flag = false;
    ck_assert_status(hy3d_cache_create(NULL, 1, &other), HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(hy3d_cache_create(r.context, 1, NULL), HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(hy3d_cache_create(r.context, -1, &other), HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(hy3d_cache_create(r.context, INT64_MAX / 4 + 1, &other),
                     HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(hy3d_cache_request(NULL, r.cache, &key, &flag), HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(hy3d_cache_request(r.context, NULL, &key, &flag), HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(hy3d_cache_request(r.context, r.cache, NULL, &flag),
                     HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(hy3d_cache_request(r.context, r.cache, &key, NULL),
                     HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(hy3d_cache_reserve(NULL, &key, 1, &flag), HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(hy3d_cache_reserve(r.cache, NULL, 1, &flag), HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(hy3d_cache_reserve(r.cache, &key, -1, &flag), HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(hy3d_cache_reserve(r.cache, &key, 1, NULL), HY3D_ERR_INVALID_ARGUMENT);
    ck_assert(!hy3d_cache_put(NULL, &key) && !hy3d_cache_put(r.cache, NULL));
    ck_assert(!hy3d_cache_drop(NULL, &key) && !hy3d_cache_has(NULL, &key));
    hy3d_cache_cancel(NULL, &key);
    ck_assert_int_eq(hy3d_cache_clear(NULL), 0);
    ck_assert_int_eq(hy3d_cache_get_info(NULL).limit_bytes, 0);
    ck_assert(!request(&r, 1, 1) && !request(&r, 1, 1)); /* a limit of 0 keeps nothing */
    hy3d_cache_destroy(r.context, NULL);
    end_rig(&r);
}
END_TEST

Suite *hy3d_cache_suite(void)
{
    Suite *suite = suite_create("cache");
    TCase *tests = tcase_create("cache");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, test_a_scan_that_does_not_fit_keeps_the_share_that_does);
    tcase_add_test(tests, test_another_model_takes_over_at_its_second_pass);
    tcase_add_test(tests, test_the_fourth_request_in_a_row_takes_the_probationary_place);
    tcase_add_test(tests, test_what_is_being_made_counts_and_a_failure_gives_it_back);
    tcase_add_test(tests, test_requests_that_lie_back_furthest_are_forgotten);
    tcase_add_test(tests, test_random_requests_never_pass_the_limit_and_add_up);
    tcase_add_test(tests, test_every_failed_allocation_is_survived);
    tcase_add_test(tests, test_what_is_refused);
    suite_add_tcase(suite, tests);
    return suite;
}
