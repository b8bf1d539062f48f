/* Schedule: coverage, windows, levels and budgets. Axes are independent, so claims about tiles
 * are checked along each axis; the odd whole volume is checked voxel by voxel as well. */
#include <stdlib.h>
#include <string.h>

#include "tiles_support.h"

Suite *hy3d_tiles_suite(void);
/* In tiles_bounds.c, tiles_refusals.c and tiles_blend.c. */
TCase *hy3d_tiles_bound_cases(void);
TCase *hy3d_tiles_refusal_cases(void);
TCase *hy3d_tiles_blend_cases(void);

/* The tile at `place` along `axis` and the first along the others. */
static hy3d_tile tile_along(const hy3d_tiles_plan *plan, int axis, int64_t place)
{
    int64_t index = place;
    for (int i = axis + 1; i < 3; i++) {
        index *= plan->count[i];
    }
    hy3d_tile tile;
    ck_assert_ok(hy3d_tiles_at(plan, index, &tile));
    return tile;
}

static int64_t decoded_length(const hy3d_tiles_plan *plan, int axis, int64_t extent)
{
    const int64_t factor = plan->desc.factor[axis];
    return axis == 0 && plan->desc.causal ? (extent - 1) * factor + 1 : extent * factor;
}

/* Every output unit of the axis is covered by one or two tiles whose weights sum to 1 exactly,
 * and what a tile keeps lies inside what it decodes. Returns the longest decoded extent. */
static int64_t check_axis(const hy3d_tiles_plan *plan, int axis)
{
    float sums[MAX_OUT] = {0}, window[MAX_OUT];
    int covered[MAX_OUT] = {0};
    int64_t previous_stop = 0, largest = 0, owned = 0;
    ck_assert_int_le(plan->out[axis], MAX_OUT);
    for (int64_t place = 0; place < plan->count[axis]; place++) {
        const hy3d_tile tile = tile_along(plan, axis, place);
        const int64_t start = tile.out_start[axis], stop = tile.out_stop[axis];
        const int64_t extent = tile.in_stop[axis] - tile.in_start[axis];
        const int64_t trim = tile.trim_start[axis];
        ck_assert(0 <= tile.in_start[axis] && tile.in_stop[axis] <= plan->desc.latent[axis]);
        ck_assert(0 <= start && start < stop && stop <= plan->out[axis]);
        ck_assert(trim >= 0 && trim + stop - start <= decoded_length(plan, axis, extent));
        ck_assert_int_eq(start, tile.in_start[axis] * plan->desc.factor[axis] + trim);
        ck_assert_int_eq(tile.ramp_before[axis], place == 0 ? 0 : previous_stop - start);
        /* Each latent is one tile's own, half of the overlap lies on each side of a boundary. */
        const int64_t own_start = tile.own_start[axis], own_stop = tile.own_stop[axis];
        const int64_t overlap = place == 0 ? 0 : plan->desc.overlap[axis];
        const int64_t before = plan->desc.causal && axis == 0 ? overlap : (overlap + 1) / 2;
        ck_assert_int_eq(own_start, owned);
        ck_assert(tile.in_start[axis] <= own_start - before);
        ck_assert(own_start < own_stop && own_stop <= tile.in_stop[axis]);
        const int64_t reach = own_start - before;
        ck_assert_int_eq(start, reach == 0 ? 0 : decoded_length(plan, axis, reach));
        owned = own_stop;
        ck_assert_ok(hy3d_tile_window(&tile, axis, window));
        for (int64_t i = start; i < stop; i++) {
            sums[i] += window[i - start];
            covered[i]++;
        }
        largest = extent > largest ? extent : largest;
        previous_stop = stop;
    }
    for (int64_t i = 0; i < plan->out[axis]; i++) {
        ck_assert_msg(covered[i] == 1 || covered[i] == 2, "unit %d covered %d times", (int)i,
                      covered[i]);
        ck_assert_msg(sums[i] == 1.0f, "unit %d has weight %.9g", (int)i, (double)sums[i]);
    }
    ck_assert_int_eq(owned, plan->desc.latent[axis]);
    return largest;
}

/* All levels of a description: axes, costs, and that levels only shrink tiles. */
static void check_levels(hy3d_tiles_desc desc)
{
    int64_t previous = INT64_MAX;
    desc.level = 0;
    hy3d_tiles_plan plan = make_ok(&desc);
    for (int32_t level = 0; level < plan.levels; level++) {
        int64_t voxels = 1, tokens = 1;
        desc.level = level;
        plan = make_ok(&desc);
        for (int axis = 0; axis < 3; axis++) {
            const int64_t extent = check_axis(&plan, axis);
            voxels *= decoded_length(&plan, axis, extent);
            tokens *= extent;
            ck_assert_int_ge(plan.desc.latent[axis] / plan.count[axis],
                             plan.count[axis] == 1 ? 1 : desc.min_tile[axis]);
        }
        ck_assert_int_eq(plan.tile_bytes, desc.fixed_bytes + desc.bytes_per_voxel * voxels +
                                               desc.bytes_per_token_pair * tokens * tokens);
        ck_assert_int_lt(plan.tile_bytes, previous);
        previous = plan.tile_bytes;
    }
    ck_assert_int_eq(plan.tile_bytes + desc.resident_bytes, plan.smallest_budget_bytes);
}

START_TEST(test_every_small_shape_is_covered_with_weights_that_sum_to_one)
{
    for (int64_t t = 1; t <= 40; t++) {
        check_levels(basic_desc(t, 1 + t % 7, 1));
    }
    for (int64_t h = 1; h <= 24; h++) {
        for (int64_t w = 1; w <= 24; w++) {
            check_levels(basic_desc(1 + (h * w) % 5, h, w));
        }
    }
}
END_TEST

/* Overlap, halo and smallest tile of one axis, exhaustively; _i is the latent length. */
START_TEST(test_every_overlap_halo_and_tile_covers_a_causal_and_a_plain_axis)
{
    hy3d_tiles_desc desc = basic_desc(_i, 1, 1);
    for (desc.overlap[0] = 0; desc.overlap[0] <= 5; desc.overlap[0]++) {
        for (desc.halo[0] = 0; desc.halo[0] <= 9; desc.halo[0] += 3) {
            for (desc.min_tile[0] = 1; desc.min_tile[0] <= 4; desc.min_tile[0] += 3) {
                /* Every other one in the gate: each pair of settings is met. */
                for (int variant = 0; variant < 6; variant++) {
                    if ((desc.overlap[0] + desc.halo[0] + variant) % test_draws(2, 1) != 0) {
                        continue;
                    }
                    desc.causal = variant % 2;
                    desc.factor[0] = (int64_t[]){1, 3, 4}[variant / 2];
                    check_levels(desc);
                }
            }
        }
    }
}
END_TEST

/* _i is the ramp's length; two tiles that share nothing else. */
START_TEST(test_ramps_of_every_length_rise_evenly_and_sum_to_one)
{
    hy3d_tile left = {.out_stop = {_i}, .ramp_after = {_i}};
    hy3d_tile right = {.out_stop = {_i}, .ramp_before = {_i}};
    float falling[2 * MAX_OUT], rising[2 * MAX_OUT];
    ck_assert_ok(hy3d_tile_window(&left, 0, falling));
    ck_assert_ok(hy3d_tile_window(&right, 0, rising));
    for (int at = 0; at < _i; at++) {
        const float even = (float)(2 * at + 1) / (float)(2 * _i);
        ck_assert(falling[at] + rising[at] == 1.0f);
        ck_assert(rising[at] >= even - 1.0f / 512 && rising[at] <= even + 1.0f / 512);
        ck_assert(at == 0 || rising[at] >= rising[at - 1]);
    }
}
END_TEST

START_TEST(test_weights_never_change)
{
    const hy3d_tile tile = {.out_stop = {8}, .ramp_before = {3}, .ramp_after = {4}};
    static const float weights[8] = {43 / 256.0f, 0.5f, 213 / 256.0f, 1, 0.875f, 0.625f, 0.375f,
                                     0.125f};
    float window[8];
    ck_assert_ok(hy3d_tile_window(&tile, 0, window));
    ck_assert_int_eq(memcmp(window, weights, sizeof window), 0);
}
END_TEST

START_TEST(test_products_of_windows_sum_to_one_in_the_whole_volume)
{
    hy3d_tiles_desc desc = basic_desc(7, 13, 11);
    desc.factor[1] = desc.factor[2] = 2;
    desc.overlap[1] = desc.overlap[2] = 3;
    desc.min_tile[1] = desc.min_tile[2] = 1;
    desc.level = 4;
    const hy3d_tiles_plan plan = make_ok(&desc);
    const int64_t height = plan.out[1], width = plan.out[2];
    float *const sums = calloc((size_t)(plan.out[0] * height * width), sizeof *sums);
    ck_assert_ptr_nonnull(sums);
    for (int64_t index = 0; index < plan.tiles; index++) {
        hy3d_tile tile;
        float window[3][MAX_OUT];
        ck_assert_ok(hy3d_tiles_at(&plan, index, &tile));
        for (int axis = 0; axis < 3; axis++) {
            ck_assert_ok(hy3d_tile_window(&tile, axis, window[axis]));
        }
        for (int64_t t = tile.out_start[0]; t < tile.out_stop[0]; t++) {
            for (int64_t h = tile.out_start[1]; h < tile.out_stop[1]; h++) {
                for (int64_t w = tile.out_start[2]; w < tile.out_stop[2]; w++) {
                    sums[(t * height + h) * width + w] +=
                        window[0][t - tile.out_start[0]] * window[1][h - tile.out_start[1]] *
                        window[2][w - tile.out_start[2]];
                }
            }
        }
    }
    ck_assert_int_gt(plan.tiles, 8);
    for (int64_t i = 0; i < plan.out[0] * height * width; i++) {
        ck_assert_msg(sums[i] == 1.0f, "voxel %d has weight %.9g", (int)i, (double)sums[i]);
    }
    free(sums);
}
END_TEST

START_TEST(test_frame_counts_follow_the_causal_rule_for_every_length)
{
    for (int64_t t = 1; t <= 64; t++) {
        hy3d_tiles_desc desc = basic_desc(t, 1, 1);
        ck_assert_int_eq(make_ok(&desc).out[0], (t - 1) * 4 + 1);
        desc.causal = 0;
        ck_assert_int_eq(make_ok(&desc).out[0], t * 4);
        check_levels(basic_desc(t, 1, 1));
    }
}
END_TEST

START_TEST(test_a_known_plan_has_the_ranges_worked_out_by_hand)
{
    hy3d_tiles_desc desc = basic_desc(9, 1, 1);
    desc.level = 1;
    const hy3d_tiles_plan plan = make_ok(&desc);
    const hy3d_tile first = tile_along(&plan, 0, 0), second = tile_along(&plan, 0, 1);
    /* Cores 0..5 and 5..9; one shared latent, 4, whose frames are 13..16; warm-up latent 3, whose
     * one frame, number 12, is dropped. */
    ck_assert_int_eq(plan.count[0], 2);
    ck_assert_int_eq(plan.tile[0], 5);
    ck_assert(first.in_start[0] == 0 && first.in_stop[0] == 5);
    ck_assert(first.out_start[0] == 0 && first.out_stop[0] == 17 && first.ramp_after[0] == 4);
    ck_assert(second.in_start[0] == 3 && second.in_stop[0] == 9 && second.trim_start[0] == 1);
    ck_assert(second.out_start[0] == 13 && second.out_stop[0] == 33 && second.ramp_before[0] == 4);
}
END_TEST

/* Boundaries cost 2 latents in time (1 shared, 1 warm-up) and 4 in space (2 shared, 1 of halo on
 * each side). Level 0: 24 / 2 in time is more than 32 / 4; then chunks of 14 are 7 boundaries
 * long, less than the 8 of H and of W; and so on. */
START_TEST(test_levels_halve_the_axis_with_the_smallest_share_of_boundary)
{
    hy3d_tiles_desc desc = basic_desc(24, 32, 32);
    static const int64_t counts[][3] = {{1, 1, 1}, {2, 1, 1}, {2, 2, 1}, {2, 2, 2}, {4, 2, 2},
                                        {4, 4, 2}, {4, 4, 4}};
    for (int32_t level = 0; level < (int32_t)COUNT_OF(counts); level++) {
        desc.level = level;
        const hy3d_tiles_plan plan = make_ok(&desc);
        ck_assert_int_eq(memcmp(plan.count, counts[level], sizeof plan.count), 0);
    }
}
END_TEST

START_TEST(test_without_boundaries_the_longest_axis_is_halved_height_before_width_before_time)
{
    hy3d_tiles_desc desc = basic_desc(32, 32, 32);
    desc.causal = 0;
    memset(desc.overlap, 0, sizeof desc.overlap);
    memset(desc.halo, 0, sizeof desc.halo);
    static const int64_t counts[][3] = {{1, 1, 1}, {1, 2, 1}, {1, 2, 2}, {2, 2, 2}, {2, 4, 2},
                                        {2, 4, 4}, {4, 4, 4}};
    for (int32_t level = 0; level < (int32_t)COUNT_OF(counts); level++) {
        desc.level = level;
        const hy3d_tiles_plan plan = make_ok(&desc);
        ck_assert_int_eq(memcmp(plan.count, counts[level], sizeof plan.count), 0);
    }
}
END_TEST

START_TEST(test_an_axis_too_short_for_two_tiles_is_never_split)
{
    hy3d_tiles_desc desc = basic_desc(1, 7, 7);
    ck_assert_int_eq(make_ok(&desc).levels, 1);
    desc.min_tile[1] = desc.min_tile[2] = 1;
    desc.overlap[1] = desc.overlap[2] = INT64_MAX;
    desc.halo[0] = desc.halo[1] = INT64_MAX;
    ck_assert_int_eq(make_ok(&desc).levels, 1);
}
END_TEST

START_TEST(test_peak_never_exceeds_budget_and_more_budget_never_refines)
{
    hy3d_tiles_desc desc = basic_desc(33, 60, 104);
    desc.resident_bytes = 12345;
    desc.bytes_per_token_pair = 3;
    desc.max_in_flight = 5;
    const hy3d_tiles_plan whole = make_ok(&desc);
    int32_t previous = whole.levels;
    ck_assert_int_eq(whole.level, 0);
    for (desc.budget_bytes = whole.smallest_budget_bytes;
         desc.budget_bytes < 2 * whole.peak_bytes;
         desc.budget_bytes += desc.budget_bytes / 50) {
        const hy3d_tiles_plan plan = make_ok(&desc);
        ck_assert_int_le(plan.peak_bytes, desc.budget_bytes);
        ck_assert_int_eq(plan.peak_bytes, desc.resident_bytes + plan.in_flight * plan.tile_bytes);
        ck_assert(plan.in_flight == (plan.tiles < 5 ? plan.tiles : 5) ||
                  plan.peak_bytes + plan.tile_bytes > desc.budget_bytes);
        ck_assert_int_le(plan.level, previous);
        previous = plan.level;
    }
    ck_assert_int_eq(previous, 0);
}
END_TEST

START_TEST(test_a_refusal_names_the_smallest_budget_that_works)
{
    hy3d_tiles_desc desc = basic_desc(33, 60, 104);
    hy3d_tiles_plan plan;
    desc.resident_bytes = 777;
    const int32_t levels = make_ok(&desc).levels;
    for (desc.level = -1; desc.level < levels; desc.level++) {
        int64_t smallest = 0;
        desc.budget_bytes = 1;
        ck_assert_status(hy3d_tiles_make(&desc, &smallest, &plan), HY3D_ERR_BUDGET_TOO_SMALL);
        desc.budget_bytes = smallest - 1;
        ck_assert_status(hy3d_tiles_make(&desc, NULL, &plan), HY3D_ERR_BUDGET_TOO_SMALL);
        desc.budget_bytes = smallest;
        ck_assert_ok(hy3d_tiles_make(&desc, NULL, &plan));
        ck_assert_int_eq(plan.peak_bytes, smallest);
        ck_assert_int_eq(plan.level, desc.level < 0 ? levels - 1 : desc.level);
    }
}
END_TEST

START_TEST(test_tiles_depend_on_shape_and_level_only)
{
    hy3d_tiles_desc desc = basic_desc(21, 44, 30);
    desc.level = 3;
    const hy3d_tiles_plan one = make_ok(&desc);
    desc.max_in_flight = 7;
    desc.budget_bytes = 5 * one.peak_bytes;
    desc.resident_bytes = 99;
    const hy3d_tiles_plan many = make_ok(&desc);
    ck_assert_int_eq(many.tiles, one.tiles);
    ck_assert_int_eq(many.in_flight, 4);
    for (int64_t i = 0; i < one.tiles; i++) {
        hy3d_tile a, b;
        ck_assert_ok(hy3d_tiles_at(&one, i, &a));
        ck_assert_ok(hy3d_tiles_at(&many, i, &b));
        ck_assert_int_eq(memcmp(&a, &b, sizeof a), 0);
    }
}
END_TEST

Suite *hy3d_tiles_suite(void)
{
    Suite *suite = suite_create("tiles");
    TCase *tests = tcase_create("tiles");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, test_every_small_shape_is_covered_with_weights_that_sum_to_one);
    tcase_add_loop_test(tests, test_every_overlap_halo_and_tile_covers_a_causal_and_a_plain_axis,
                        1, 41);
    tcase_add_loop_test(tests, test_ramps_of_every_length_rise_evenly_and_sum_to_one, 1, 65);
    tcase_add_loop_test(tests, test_ramps_of_every_length_rise_evenly_and_sum_to_one, 255, 258);
    tcase_add_test(tests, test_weights_never_change);
    tcase_add_test(tests, test_products_of_windows_sum_to_one_in_the_whole_volume);
    tcase_add_test(tests, test_frame_counts_follow_the_causal_rule_for_every_length);
    tcase_add_test(tests, test_a_known_plan_has_the_ranges_worked_out_by_hand);
    tcase_add_test(tests, test_levels_halve_the_axis_with_the_smallest_share_of_boundary);
    tcase_add_test(
        tests, test_without_boundaries_the_longest_axis_is_halved_height_before_width_before_time);
    tcase_add_test(tests, test_an_axis_too_short_for_two_tiles_is_never_split);
    tcase_add_test(tests, test_peak_never_exceeds_budget_and_more_budget_never_refines);
    tcase_add_test(tests, test_a_refusal_names_the_smallest_budget_that_works);
    tcase_add_test(tests, test_tiles_depend_on_shape_and_level_only);
    suite_add_tcase(suite, tests);
    suite_add_tcase(suite, hy3d_tiles_bound_cases());
    suite_add_tcase(suite, hy3d_tiles_refusal_cases());
    suite_add_tcase(suite, hy3d_tiles_blend_cases());
    return suite;
}
