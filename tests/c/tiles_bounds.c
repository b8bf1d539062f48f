/* The schedule's values pinned, and each bound at its last good value and the one beyond. */
#include "tiles_support.h"

TCase *hy3d_tiles_bound_cases(void);

static void mix(uint64_t *digest, int64_t value)
{
    *digest = (*digest ^ (uint64_t)value) * UINT64_C(0x100000001b3);
}

static void mix_three(uint64_t *digest, const int64_t values[3])
{
    for (int i = 0; i < 3; i++) {
        mix(digest, values[i]);
    }
}

/* Odd enough for every branch, small enough for the twin. */
static hy3d_tiles_desc pinned_desc(test_random *random)
{
    hy3d_tiles_desc desc = {.causal = 0};
    for (int i = 0; i < 3; i++) {
        desc.latent[i] = test_between(random, 1, 60);
        desc.factor[i] = test_between(random, 1, 8);
        desc.overlap[i] = test_between(random, 0, 5);
        desc.halo[i] = test_between(random, 0, 4);
        desc.min_tile[i] = test_between(random, 1, 6);
    }
    desc.causal = (int32_t)test_between(random, 0, 1);
    desc.fixed_bytes = test_between(random, 0, 1000);
    desc.bytes_per_voxel = test_between(random, 0, 9);
    desc.bytes_per_token_pair = test_between(random, 0, 2);
    desc.resident_bytes = test_between(random, 0, 100000);
    desc.budget_bytes = test_between(random, 0, 2) * test_between(random, 0, 4000000);
    desc.max_in_flight = (int32_t)test_between(random, 1, 9);
    desc.level = (int32_t)test_between(random, -3, 8);
    if (desc.level < -1) {
        desc.level = -1;
    }
    return desc;
}

static void mix_plan(uint64_t *digest, const hy3d_tiles_plan *plan)
{
    mix_three(digest, plan->out);
    mix_three(digest, plan->tile);
    mix_three(digest, plan->count);
    mix(digest, plan->tiles);
    mix(digest, plan->tile_bytes);
    mix(digest, plan->peak_bytes);
    mix(digest, plan->smallest_budget_bytes);
    mix(digest, plan->level);
    mix(digest, plan->levels);
    mix(digest, plan->in_flight);
}

static void mix_tile(uint64_t *digest, const hy3d_tile *tile)
{
    mix_three(digest, tile->in_start);
    mix_three(digest, tile->in_stop);
    mix_three(digest, tile->trim_start);
    mix_three(digest, tile->out_start);
    mix_three(digest, tile->out_stop);
    mix_three(digest, tile->ramp_before);
    mix_three(digest, tile->ramp_after);
    for (int axis = 0; axis < 3; axis++) {
        float window[MAX_OUT];
        ck_assert_int_le(tile->out_stop[axis] - tile->out_start[axis], MAX_OUT);
        ck_assert_ok(hy3d_tile_window(tile, axis, window));
        for (int64_t i = 0; i < tile->out_stop[axis] - tile->out_start[axis]; i++) {
            mix(digest, (int64_t)(window[i] * 256.0f));
        }
    }
}

/* The digest is that of the twin (hy3d_rocm/_fallback/schedule.py), which was written on its own;
 * tests/unit/_fallback/test_schedule_bounds.py makes it again. */
START_TEST(test_plans_tiles_and_windows_never_change)
{
    test_random random = {UINT64_C(20267)};
    uint64_t digest = UINT64_C(0xcbf29ce484222325);
    for (int i = 0; i < 400; i++) {
        const hy3d_tiles_desc desc = pinned_desc(&random);
        hy3d_tiles_plan plan;
        int64_t smallest = -1;
        const hy3d_status status = hy3d_tiles_make(&desc, &smallest, &plan);
        mix(&digest, (int64_t)status);
        mix(&digest, smallest);
        if (status != HY3D_OK) {
            continue;
        }
        mix_plan(&digest, &plan);
        for (int64_t index = 0; index < plan.tiles; index += 1 + plan.tiles / 7) {
            hy3d_tile tile;
            ck_assert_ok(hy3d_tiles_at(&plan, index, &tile));
            mix_tile(&digest, &tile);
        }
    }
    ck_assert_uint_eq(digest, UINT64_C(0x97eb83c3af0bc357));
}
END_TEST

START_TEST(test_levels_end_at_62_whatever_is_left_to_halve)
{
    hy3d_tiles_desc desc = basic_desc(INT64_MAX, 1, 1);
    desc.factor[0] = desc.factor[1] = desc.factor[2] = desc.min_tile[0] = 1;
    desc.overlap[0] = desc.halo[0] = desc.fixed_bytes = desc.bytes_per_voxel = 0;
    desc.level = HY3D_TILES_MAX_LEVEL;
    const hy3d_tiles_plan plan = make_ok(&desc);
    ck_assert_int_eq(plan.levels, HY3D_TILES_MAX_LEVEL + 1);
    hy3d_tiles_plan unused;
    desc.level = HY3D_TILES_MAX_LEVEL + 1;
    ck_assert_status(hy3d_tiles_make(&desc, NULL, &unused), HY3D_ERR_INVALID_ARGUMENT);
}
END_TEST

/* 62 bits of cores, an eighth at a time: all of them before the levels end. */
START_TEST(test_fine_levels_reach_a_latent_however_long_the_axis_is)
{
    hy3d_tiles_desc desc = basic_desc(INT64_MAX, 1, 1);
    desc.factor[0] = desc.factor[1] = desc.factor[2] = desc.min_tile[0] = 1;
    desc.overlap[0] = desc.halo[0] = desc.fixed_bytes = desc.bytes_per_voxel = 0;
    for (desc.shrink = 3; desc.shrink <= HY3D_TILES_MAX_SHRINK; desc.shrink++) {
        desc.level = 0;
        desc.level = make_ok(&desc).levels - 1;
        ck_assert_int_lt(desc.level, HY3D_TILES_MAX_FINE_LEVEL);
        ck_assert_int_eq(make_ok(&desc).extent[0], 1);
    }
}
END_TEST

/* Of Wan's 16 x 16 latents with the halo of four and the overlap of two, and with half of them. */
START_TEST(test_fine_levels_lie_between_those_of_halves)
{
    hy3d_tiles_desc desc = basic_desc(1, 16, 16);
    desc.overlap[1] = desc.overlap[2] = 1;
    desc.halo[1] = desc.halo[2] = 2;
    desc.min_tile[1] = desc.min_tile[2] = 2;
    static const int64_t areas[2][13] = {
        {256, 176, 121, 99, 81, 63, 49},
        {256, 176, 121, 110, 100, 90, 81, 72, 64, 56, 49},
    };
    for (int fine = 0; fine < 2; fine++) {
        desc.shrink = fine ? 8 : 0;
        desc.level = 0;
        const int32_t levels = make_ok(&desc).levels;
        for (desc.level = 0; desc.level < levels; desc.level++) {
            const hy3d_tiles_plan plan = make_ok(&desc);
            ck_assert_int_eq(plan.extent[1] * plan.extent[2], areas[fine][desc.level]);
        }
        ck_assert_int_eq(areas[fine][levels - 1], 49);
    }
}
END_TEST

/* What a level's work is said to be, against all of its tiles. */
START_TEST(test_the_work_of_a_level_is_what_its_tiles_decode)
{
    test_random random = {UINT64_C(4711)};
    for (int i = 0; i < 300; i++) {
        hy3d_tiles_desc desc = pinned_desc(&random);
        desc.budget_bytes = 0;
        desc.level = -1;
        desc.shrink = (int32_t)(i % 9 == 1 ? 0 : i % 9);
        const int32_t levels = make_ok(&desc).levels;
        desc.level = (int32_t)test_between(&random, 0, levels - 1);
        const hy3d_tiles_plan plan = make_ok(&desc);
        double work = 0;
        int64_t largest[3] = {0};
        for (int64_t index = 0; index < plan.tiles && plan.tiles < 5000; index++) {
            hy3d_tile tile;
            ck_assert_ok(hy3d_tiles_at(&plan, index, &tile));
            double voxels = 1;
            for (int axis = 0; axis < 3; axis++) {
                const int64_t extent = tile.in_stop[axis] - tile.in_start[axis];
                const bool causal = axis == 0 && desc.causal;
                voxels *= (double)(causal ? (extent - 1) * desc.factor[0] + 1
                                          : extent * desc.factor[axis]);
                largest[axis] = extent > largest[axis] ? extent : largest[axis];
            }
            work += voxels;
        }
        if (plan.tiles < 5000) {
            ck_assert(plan.decoded_voxels == work);
            ck_assert_mem_eq(plan.extent, largest, sizeof largest);
        }
    }
}
END_TEST

/* What is asked of one tile of one latent: all of it is `cost` bytes. */
static hy3d_tiles_desc one_tile(int64_t cost)
{
    hy3d_tiles_desc desc = basic_desc(1, 1, 1);
    desc.fixed_bytes = cost;
    desc.bytes_per_voxel = 0;
    desc.max_in_flight = 3;
    return desc;
}

START_TEST(test_a_budget_is_enough_at_the_byte)
{
    hy3d_tiles_desc desc = one_tile(500);
    desc.resident_bytes = 100;
    desc.budget_bytes = 600;
    hy3d_tiles_plan plan = make_ok(&desc);
    ck_assert_int_eq(plan.in_flight, 1);
    ck_assert_int_eq(plan.peak_bytes, 600);
    desc.budget_bytes = 599;
    int64_t smallest = -1;
    ck_assert_status(hy3d_tiles_make(&desc, &smallest, &plan), HY3D_ERR_BUDGET_TOO_SMALL);
    ck_assert_int_eq(smallest, 600);
    ck_assert_status(hy3d_tiles_make(&desc, NULL, &plan), HY3D_ERR_BUDGET_TOO_SMALL);
    desc.resident_bytes = 600;
    ck_assert_status(hy3d_tiles_make(&desc, &smallest, &plan), HY3D_ERR_BUDGET_TOO_SMALL);
    ck_assert_int_eq(smallest, 1100);
    desc = one_tile(0);
    desc.resident_bytes = desc.budget_bytes = 100; /* nothing more is needed, nothing is there */
    ck_assert_int_eq(make_ok(&desc).in_flight, 1);
    desc.resident_bytes = 101;
    ck_assert_status(hy3d_tiles_make(&desc, &smallest, &plan), HY3D_ERR_BUDGET_TOO_SMALL);
    desc = one_tile(INT64_MAX);
    ck_assert_int_eq(make_ok(&desc).peak_bytes, INT64_MAX);
    desc.resident_bytes = 1;
    ck_assert_status(hy3d_tiles_make(&desc, NULL, &plan), HY3D_ERR_OVERFLOW);
    desc = one_tile(INT64_MAX - 5);
    desc.resident_bytes = 5;
    ck_assert_int_eq(make_ok(&desc).smallest_budget_bytes, INT64_MAX);
}
END_TEST

START_TEST(test_a_plan_whose_tiles_do_not_multiply_up_is_refused)
{
    hy3d_tiles_desc desc = basic_desc(9, 16, 16);
    desc.level = 2;
    const hy3d_tiles_plan good = make_ok(&desc);
    hy3d_tile tile;
    ck_assert_ok(hy3d_tiles_at(&good, good.tiles - 1, &tile));
    for (int change = 0; change < 8; change++) {
        hy3d_tiles_plan bad = good;
        *(int64_t *[]){&bad.tiles, &bad.tiles, &bad.tiles, &bad.out[0], &bad.out[1],
                       &bad.out[2], &bad.desc.latent[2], &bad.count[2]}[change] =
            (int64_t[]){good.tiles + 1, good.tiles * 2, good.tiles - 1, good.out[0] + 1,
                        good.out[1] - 1, good.out[2] + 1, 0, 0}[change];
        ck_assert_status(hy3d_tiles_at(&bad, 0, &tile), HY3D_ERR_INVALID_ARGUMENT);
    }
    hy3d_tiles_plan large = good;
    large.desc.latent[1] = INT64_MAX;
    ck_assert_status(hy3d_tiles_at(&large, 0, &tile), HY3D_ERR_OVERFLOW);
}
END_TEST

START_TEST(test_a_windows_ramps_fit_to_the_unit)
{
    float window[4] = {-1, -1, -1, -1};
    hy3d_tile tile = {.out_start = {7, 7, 7}, .out_stop = {10, 10, 10}};
    for (int axis = 0; axis < 3; axis++) {
        tile.ramp_before[axis] = 2;
        tile.ramp_after[axis] = 1;
        ck_assert_ok(hy3d_tile_window(&tile, axis, window));
        ck_assert(window[0] == 0.25f && window[1] == 0.75f && window[2] == 0.5f);
        ck_assert(window[3] == -1.0f);
    }
    const int64_t wrong[][4] = {{-1, 3, 0, 0}, {3, 3, 0, 0}, {3, 2, 0, 0}, {0, 3, -1, 0},
                                {0, 3, 4, 0},  {0, 3, 0, -1}, {0, 3, 0, 4}, {0, 3, 2, 2}};
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        const hy3d_tile bad = {.out_start = {wrong[i][0]}, .out_stop = {wrong[i][1]},
                                         .ramp_before = {wrong[i][2]}, .ramp_after = {wrong[i][3]}};
        ck_assert_status(hy3d_tile_window(&bad, 0, window), HY3D_ERR_INVALID_ARGUMENT);
    }
    const hy3d_tile good[] = {{.out_stop = {3}, .ramp_before = {3}},
                                        {.out_stop = {3}, .ramp_after = {3}},
                                        {.out_stop = {1}},
                                        {.out_start = {1}, .out_stop = {4}}};
    for (size_t i = 0; i < COUNT_OF(good); i++) {
        ck_assert_ok(hy3d_tile_window(&good[i], 0, window));
    }
    const hy3d_tile long_one = {.out_stop = {INT64_MAX / 1024 + 1}};
    ck_assert_status(hy3d_tile_window(&long_one, 0, window), HY3D_ERR_OVERFLOW);
    ck_assert_status(hy3d_tile_window(&good[0], 3, window), HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(hy3d_tile_window(&good[0], -1, window), HY3D_ERR_INVALID_ARGUMENT);
}
END_TEST

TCase *hy3d_tiles_bound_cases(void)
{
    TCase *tests = tcase_create("schedule bounds");
    tcase_add_test(tests, test_plans_tiles_and_windows_never_change);
    tcase_add_test(tests, test_levels_end_at_62_whatever_is_left_to_halve);
    tcase_add_test(tests, test_fine_levels_reach_a_latent_however_long_the_axis_is);
    tcase_add_test(tests, test_fine_levels_lie_between_those_of_halves);
    tcase_add_test(tests, test_the_work_of_a_level_is_what_its_tiles_decode);
    tcase_add_test(tests, test_a_budget_is_enough_at_the_byte);
    tcase_add_test(tests, test_a_plan_whose_tiles_do_not_multiply_up_is_refused);
    tcase_add_test(tests, test_a_windows_ramps_fit_to_the_unit);
    return tests;
}
