/* What the schedule refuses, and how. */
#include "tiles_support.h"

TCase *hy3d_tiles_refusal_cases(void);

/* One field at a time, one below the lowest good value. */
START_TEST(test_fields_out_of_range_are_refused)
{
    const hy3d_tiles_desc good = basic_desc(9, 16, 16);
    hy3d_tiles_plan plan;
    for (int field = 0; field < 24; field++) {
        hy3d_tiles_desc desc = good;
        int64_t *const numbers[] = {desc.latent, desc.factor, desc.min_tile, desc.overlap,
                                    desc.halo};
        if (field < 15) {
            numbers[field / 3][field % 3] = field < 9 ? 0 : -1;
        } else if (field < 20) {
            *(int64_t *[]){&desc.fixed_bytes, &desc.bytes_per_voxel, &desc.bytes_per_token_pair,
                           &desc.resident_bytes, &desc.budget_bytes}[field - 15] = -1;
        } else if (field == 20) {
            desc.max_in_flight = 0;
        } else if (field == 21) {
            desc.level = -2;
        } else {
            desc.causal = field == 22 ? -1 : 2;
        }
        ck_assert_status(hy3d_tiles_make(&desc, NULL, &plan), HY3D_ERR_INVALID_ARGUMENT);
    }
    hy3d_tiles_desc desc = good;
    desc.level = make_ok(&good).levels;
    ck_assert_status(hy3d_tiles_make(&desc, NULL, &plan), HY3D_ERR_INVALID_ARGUMENT);
    desc.level = INT32_MAX;
    ck_assert_status(hy3d_tiles_make(&desc, NULL, &plan), HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(hy3d_tiles_make(NULL, NULL, &plan), HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(hy3d_tiles_make(&good, NULL, NULL), HY3D_ERR_INVALID_ARGUMENT);
}
END_TEST

START_TEST(test_sizes_beyond_63_bits_are_an_overflow)
{
    const hy3d_tiles_desc good = basic_desc(9, 16, 16);
    hy3d_tiles_plan plan;
    for (int field = 0; field < 7; field++) {
        hy3d_tiles_desc desc = good;
        desc.min_tile[0] = desc.min_tile[1] = desc.min_tile[2] = INT64_MAX; /* level 0 only */
        *(int64_t *[]){&desc.latent[0], &desc.latent[1], &desc.factor[0], &desc.factor[2],
                       &desc.bytes_per_voxel, &desc.bytes_per_token_pair,
                       &desc.resident_bytes}[field] = INT64_MAX;
        ck_assert_status(hy3d_tiles_make(&desc, NULL, &plan), HY3D_ERR_OVERFLOW);
    }
    hy3d_tiles_desc desc = good;
    desc.latent[0] = desc.latent[1] = desc.latent[2] = INT64_C(1) << 21;
    ck_assert_status(hy3d_tiles_make(&desc, NULL, &plan), HY3D_ERR_OVERFLOW);
}
END_TEST

START_TEST(test_the_longest_possible_axis_is_planned)
{
    hy3d_tiles_desc desc = basic_desc(1, 1, INT64_MAX);
    desc.factor[2] = desc.min_tile[2] = desc.factor[1] = 1;
    desc.fixed_bytes = 0;
    desc.bytes_per_voxel = 1;
    const int32_t levels = make_ok(&desc).levels;
    ck_assert_int_le(levels, HY3D_TILES_MAX_LEVEL + 1);
    for (desc.level = 0; desc.level < levels; desc.level++) {
        const hy3d_tiles_plan plan = make_ok(&desc);
        hy3d_tile tile;
        ck_assert_ok(hy3d_tiles_at(&plan, plan.tiles - 1, &tile));
        ck_assert_int_eq(tile.out_stop[2], INT64_MAX);
    }
}
END_TEST

START_TEST(test_plans_and_tiles_from_outside_are_checked)
{
    hy3d_tiles_desc desc = basic_desc(9, 16, 16);
    desc.level = 2;
    const hy3d_tiles_plan good = make_ok(&desc);
    hy3d_tile tile;
    ck_assert_ok(hy3d_tiles_at(&good, 0, &tile));
    ck_assert_status(hy3d_tiles_at(&good, -1, &tile), HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(hy3d_tiles_at(&good, good.tiles, &tile),
                     HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(hy3d_tiles_at(NULL, 0, &tile), HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(hy3d_tiles_at(&good, 0, NULL), HY3D_ERR_INVALID_ARGUMENT);
    for (int change = 0; change < 6; change++) {
        hy3d_tiles_plan bad = good;
        *(int64_t *[]){&bad.count[0], &bad.count[1], &bad.count[2], &bad.tiles, &bad.out[0],
                       &bad.desc.overlap[1]}[change] = change == 5 ? 15 : change == 0 ? 0 : 1000;
        ck_assert_status(hy3d_tiles_at(&bad, 0, &tile), HY3D_ERR_INVALID_ARGUMENT);
    }
    float window[MAX_OUT];
    ck_assert_status(hy3d_tile_window(&tile, 3, window), HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(hy3d_tile_window(&tile, -1, window), HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(hy3d_tile_window(NULL, 0, window), HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(hy3d_tile_window(&tile, 0, NULL), HY3D_ERR_INVALID_ARGUMENT);
    tile.ramp_before[1] = tile.out_stop[1] - tile.out_start[1];
    tile.ramp_after[1] = 1;
    ck_assert_status(hy3d_tile_window(&tile, 1, window), HY3D_ERR_INVALID_ARGUMENT);
    tile.ramp_before[1] = 0;
    tile.out_start[1] = 0;
    tile.out_stop[1] = INT64_MAX;
    ck_assert_status(hy3d_tile_window(&tile, 1, window), HY3D_ERR_OVERFLOW);
}
END_TEST

/* Mostly small, sometimes anywhere up to INT64_MAX, and rarely just below the lowest. */
static int64_t odd_number(test_random *random, int64_t lowest)
{
    const int64_t kind = test_between(random, 0, 19);
    if (kind == 0) {
        return INT64_MAX - test_between(random, 0, 2);
    }
    if (kind == 1) {
        return INT64_MAX >> test_between(random, 0, 62);
    }
    return kind == 2 ? lowest - test_between(random, 0, 1) : test_between(random, lowest, 99);
}

/* Under the sanitizers this is where an overflow would show. */
START_TEST(test_no_description_however_odd_leads_to_a_wrong_plan)
{
    test_random random = test_rng(20263);
    int plans = 0;
    for (int i = 0; i < 30000; i++) {
        hy3d_tiles_desc desc = {.causal = i % 2, .level = (int32_t)test_between(&random, -1, 9)};
        hy3d_tiles_plan plan;
        hy3d_tile tile;
        for (int axis = 0; axis < 3; axis++) {
            desc.latent[axis] = odd_number(&random, 1);
            desc.factor[axis] = odd_number(&random, 1);
            desc.min_tile[axis] = odd_number(&random, 1);
            desc.overlap[axis] = odd_number(&random, 0);
            desc.halo[axis] = odd_number(&random, 0);
        }
        desc.fixed_bytes = odd_number(&random, 0);
        desc.bytes_per_voxel = odd_number(&random, 0);
        desc.bytes_per_token_pair = odd_number(&random, 0);
        desc.resident_bytes = odd_number(&random, 0);
        desc.budget_bytes = test_between(&random, 0, 3) == 0 ? odd_number(&random, 0) : 0;
        desc.max_in_flight = (int32_t)test_between(&random, 0, INT32_MAX >> (i % 31));
        if (hy3d_tiles_make(&desc, NULL, &plan) != HY3D_OK) {
            continue;
        }
        plans++;
        ck_assert(plan.in_flight >= 1 && plan.in_flight <= desc.max_in_flight);
        ck_assert(desc.budget_bytes == 0 || plan.peak_bytes <= desc.budget_bytes);
        ck_assert(plan.smallest_budget_bytes <= plan.peak_bytes);
        const int64_t indices[] = {0, plan.tiles / 2, plan.tiles - 1};
        for (size_t k = 0; k < COUNT_OF(indices); k++) {
            ck_assert_ok(hy3d_tiles_at(&plan, indices[k], &tile));
            for (int axis = 0; axis < 3; axis++) {
                ck_assert(tile.in_start[axis] < tile.in_stop[axis]);
                ck_assert(tile.trim_start[axis] >= 0);
                ck_assert(tile.out_start[axis] < tile.out_stop[axis]);
                ck_assert(tile.ramp_before[axis] + tile.ramp_after[axis] <=
                          tile.out_stop[axis] - tile.out_start[axis]);
            }
        }
    }
    ck_assert_int_gt(plans, 500);
}
END_TEST

TCase *hy3d_tiles_refusal_cases(void)
{
    TCase *tests = tcase_create("schedule refusals");
    tcase_add_test(tests, test_fields_out_of_range_are_refused);
    tcase_add_test(tests, test_sizes_beyond_63_bits_are_an_overflow);
    tcase_add_test(tests, test_the_longest_possible_axis_is_planned);
    tcase_add_test(tests, test_plans_and_tiles_from_outside_are_checked);
    tcase_add_test(tests, test_no_description_however_odd_leads_to_a_wrong_plan);
    return tests;
}
