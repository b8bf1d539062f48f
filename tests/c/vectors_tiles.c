/* Schedules of decodes: one voxel that costs nothing, and what is set. */
#include "vectors.h"

#include "hy3d/tiles.h"

typedef struct planning {
    int64_t no_desc, nowhere;
    hy3d_tiles_desc desc;
} planning;

#define S(member, value) VECTOR_SET(planning, desc.member, value)
#define TOO_SMALL HY3D_ERR_BUDGET_TOO_SMALL

#define AXIS(i)                                                                                    \
    {"latent 0", {S(latent[i], 0)}, BAD}, {"latent -1", {S(latent[i], -1)}, BAD},                  \
    {"latent least", {S(latent[i], INT64_MIN)}, BAD},                                              \
    {"latent most", {S(latent[i], INT64_MAX)}, OK},                                                \
    {"factor 0", {S(factor[i], 0)}, BAD}, {"factor -1", {S(factor[i], -1)}, BAD},                  \
    {"factor least", {S(factor[i], INT64_MIN)}, BAD},                                              \
    {"factor most", {S(factor[i], INT64_MAX)}, OK},                                                \
    {"min_tile 0", {S(min_tile[i], 0)}, BAD}, {"min_tile -1", {S(min_tile[i], -1)}, BAD},          \
    {"min_tile most", {S(min_tile[i], INT64_MAX)}, OK},                                            \
    {"overlap -1", {S(overlap[i], -1)}, BAD}, {"overlap least", {S(overlap[i], INT64_MIN)}, BAD},  \
    {"overlap most", {S(overlap[i], INT64_MAX)}, OK},                                              \
    {"halo -1", {S(halo[i], -1)}, BAD}, {"halo least", {S(halo[i], INT64_MIN)}, BAD},              \
    {"halo most", {S(halo[i], INT64_MAX)}, OK},                                                    \
    {"the last output", {S(latent[i], INT64_MAX / 7), S(factor[i], 7)}, OK},                       \
    {"an output beyond", {S(latent[i], INT64_MAX / 7 + 1), S(factor[i], 7)}, BIG},                 \
    {"an output far beyond", {S(latent[i], INT64_MAX), S(factor[i], INT64_MAX)}, BIG}

static const vector axes[] = {AXIS(0), AXIS(1), AXIS(2)};

static const vector costs[] = {
    {"as it is", {{0}}, OK},
    {"no description", {VECTOR_SET(planning, no_desc, 1)}, BAD},
    {"nowhere to put it", {VECTOR_SET(planning, nowhere, 1)}, BAD},
    {"causal", {S(causal, 1)}, OK},
    {"causal -1", {S(causal, -1)}, BAD},
    {"causal 2", {S(causal, 2)}, BAD},
    {"causal most", {S(causal, INT32_MAX)}, BAD},
    {"causal, the last output", {S(causal, 1), S(latent[0], INT64_MAX / 3 + 1), S(factor[0], 3)},
     OK},
    {"causal, an output beyond", {S(causal, 1), S(latent[0], INT64_MAX / 3 + 2), S(factor[0], 3)},
     BIG},
    {"causal, INT64_MAX and one frame", {S(causal, 1), S(latent[0], 2), S(factor[0], INT64_MAX)},
     BIG},
    {"causal, one frame", {S(causal, 1), S(factor[0], INT64_MAX)}, OK},
    {"fixed -1", {S(fixed_bytes, -1)}, BAD},
    {"fixed most", {S(fixed_bytes, INT64_MAX)}, OK},
    {"a voxel -1", {S(bytes_per_voxel, -1)}, BAD},
    {"a voxel most", {S(bytes_per_voxel, INT64_MAX)}, OK},
    {"two voxels beyond", {S(bytes_per_voxel, TWO(62)), S(latent[2], 2), S(min_tile[2], 2)}, BIG},
    {"two voxels that fit", {S(bytes_per_voxel, TWO(62) - 1), S(latent[2], 2), S(min_tile[2], 2)},
     OK},
    {"a pair -1", {S(bytes_per_token_pair, -1)}, BAD},
    {"a pair most", {S(bytes_per_token_pair, INT64_MAX)}, OK},
    {"the last pairs", {S(bytes_per_token_pair, 1), S(latent[1], INT64_C(3037000499))}, OK},
    {"pairs beyond", {S(bytes_per_token_pair, 1), S(latent[1], INT64_C(3037000500))}, BIG},
    {"pairs that cost nothing", {S(bytes_per_token_pair, 0), S(latent[1], INT64_MAX)}, OK},
    {"fixed and a voxel fit", {S(fixed_bytes, INT64_MAX - 1), S(bytes_per_voxel, 1)}, OK},
    {"fixed and a voxel beyond", {S(fixed_bytes, INT64_MAX), S(bytes_per_voxel, 1)}, BIG},
    {"all three fit",
     {S(fixed_bytes, INT64_MAX - 3), S(bytes_per_voxel, 1), S(bytes_per_token_pair, 2)}, OK},
    {"all three beyond",
     {S(fixed_bytes, INT64_MAX - 2), S(bytes_per_voxel, 1), S(bytes_per_token_pair, 2)}, BIG},
    {"resident -1", {S(resident_bytes, -1)}, BAD},
    {"resident most", {S(resident_bytes, INT64_MAX)}, OK},
    {"resident and a tile fit", {S(resident_bytes, INT64_MAX - 9), S(fixed_bytes, 9)}, OK},
    {"resident and a tile beyond", {S(resident_bytes, INT64_MAX - 9), S(fixed_bytes, 10)}, BIG},
    {"shrink -1", {S(shrink, -1)}, BAD},
    {"shrink 1", {S(shrink, 1)}, BAD},
    {"shrink 2", {S(shrink, 2)}, OK},
    {"shrink most", {S(shrink, HY3D_TILES_MAX_SHRINK)}, OK},
    {"shrink beyond", {S(shrink, HY3D_TILES_MAX_SHRINK + 1)}, BAD},
    {"level beyond halves", {S(level, HY3D_TILES_MAX_LEVEL + 1)}, BAD},
    {"finest level of a long one",
     {S(shrink, 8), S(latent[1], 1 << 30), S(level, HY3D_TILES_MAX_LEVEL + 1)}, OK},
    {"level beyond the finest",
     {S(shrink, 8), S(latent[1], 1 << 30), S(level, HY3D_TILES_MAX_FINE_LEVEL + 1)}, BAD},
    {"budget -1", {S(budget_bytes, -1)}, BAD},
    {"budget least", {S(budget_bytes, INT64_MIN)}, BAD},
    {"budget most", {S(budget_bytes, INT64_MAX)}, OK},
    {"the least budget", {S(budget_bytes, 150), S(fixed_bytes, 100), S(resident_bytes, 50)}, OK},
    {"a byte less", {S(budget_bytes, 149), S(fixed_bytes, 100), S(resident_bytes, 50)}, TOO_SMALL},
    {"less than is resident", {S(budget_bytes, 49), S(resident_bytes, 50)}, TOO_SMALL},
    {"what is resident", {S(budget_bytes, 50), S(resident_bytes, 50)}, OK},
    {"a budget for the half",
     {S(budget_bytes, 4), S(latent[1], 8), S(bytes_per_voxel, 1)}, OK},
    {"a budget for one of eight", {S(budget_bytes, 1), S(latent[1], 8), S(bytes_per_voxel, 1)}, OK},
    {"a budget for none", {S(budget_bytes, 1), S(latent[1], 8), S(bytes_per_voxel, 2)}, TOO_SMALL},
    {"three voxels make products beyond",
     {S(latent[0], TWO(21)), S(latent[1], TWO(21)), S(latent[2], TWO(21))}, BIG},
    {"three voxels that fit",
     {S(latent[0], TWO(21)), S(latent[1], TWO(21)), S(latent[2], TWO(21) - 1)}, OK},
    {"factors that make products beyond",
     {S(factor[0], TWO(21)), S(factor[1], TWO(21)), S(factor[2], TWO(21))}, BIG},
    {"in flight 0", {S(max_in_flight, 0)}, BAD},
    {"in flight -1", {S(max_in_flight, -1)}, BAD},
    {"in flight least", {S(max_in_flight, INT32_MIN)}, BAD},
    {"in flight most", {S(max_in_flight, INT32_MAX)}, OK},
    {"in flight most of many", {S(max_in_flight, INT32_MAX), S(latent[1], TWO(40))}, OK},
    {"level -2", {S(level, -2)}, BAD},
    {"level least", {S(level, INT32_MIN)}, BAD},
    {"level 0", {S(level, 0)}, OK},
    {"level 1 of one", {S(level, 1)}, BAD},
    {"level 3 of eight", {S(level, 3), S(latent[2], 8)}, OK},
    {"level 4 of eight", {S(level, 4), S(latent[2], 8)}, BAD},
    {"level 2 of eight in pairs", {S(level, 2), S(latent[2], 8), S(min_tile[2], 2)}, OK},
    {"level 3 of eight in pairs", {S(level, 3), S(latent[2], 8), S(min_tile[2], 2)}, BAD},
    {"level 1 with an overlap of half", {S(level, 1), S(latent[2], 8), S(overlap[2], 4)}, OK},
    {"level 1 with an overlap of more", {S(level, 1), S(latent[2], 8), S(overlap[2], 5)}, BAD},
    {"the last level there is", {S(level, HY3D_TILES_MAX_LEVEL), S(latent[1], INT64_MAX)}, OK},
    {"a level beyond", {S(level, HY3D_TILES_MAX_LEVEL + 1), S(latent[1], INT64_MAX)}, BAD},
    {"level most", {S(level, INT32_MAX), S(latent[1], INT64_MAX)}, BAD},
    {"a level that does not fit",
     {S(level, 0), S(latent[1], 8), S(bytes_per_voxel, 1), S(budget_bytes, 7)}, TOO_SMALL},
    {"a level that does", {S(level, 0), S(latent[1], 8), S(bytes_per_voxel, 1), S(budget_bytes, 8)},
     OK},
};

static hy3d_tiles_desc one_voxel(void)
{
    return (hy3d_tiles_desc){.latent = {1, 1, 1}, .factor = {1, 1, 1}, .min_tile = {1, 1, 1},
                                .max_in_flight = 1, .level = -1};
}

/* A budget that is too small names one that is enough, and one less is not. */
static void try_named_budget(hy3d_tiles_desc desc, int64_t smallest)
{
    hy3d_tiles_plan plan;
    desc.budget_bytes = smallest;
    ck_assert_ok(hy3d_tiles_make(&desc, NULL, &plan));
    desc.budget_bytes = smallest - 1;
    if (desc.budget_bytes > 0) {
        ck_assert_status(hy3d_tiles_make(&desc, NULL, &plan), TOO_SMALL);
    }
}

static hy3d_status make(const vector *v)
{
    planning a = {.desc = one_voxel()};
    hy3d_tiles_plan plan = {.tiles = -7};
    int64_t smallest = -7;

    vector_apply(v, &a);
    const hy3d_status status = hy3d_tiles_make(a.no_desc != 0 ? NULL : &a.desc, &smallest,
                                                  a.nowhere != 0 ? NULL : &plan);
    ck_assert_msg((plan.tiles != -7) == (status == HY3D_OK), "%s", v->what);
    ck_assert_msg((smallest != -7) == (status == TOO_SMALL), "%s", v->what);
    if (status == TOO_SMALL) {
        try_named_budget(a.desc, smallest);
    }
    if (status == HY3D_OK) {
        hy3d_tile tile;
        ck_assert_ok(hy3d_tiles_at(&plan, 0, &tile));
        ck_assert_ok(hy3d_tiles_at(&plan, plan.tiles - 1, &tile));
        ck_assert_status(hy3d_tiles_at(&plan, plan.tiles, &tile), BAD);
    }
    return status;
}

/* Tiles of a plan of 4x3x2 tiles of two that somebody has changed. */
typedef struct lookup {
    int64_t no_plan, nowhere, index;
    hy3d_tiles_plan plan;
} lookup;

#define L(member, value) VECTOR_SET(lookup, member, value)
#define PLAN_AXIS(i)                                                                               \
    {"count 0", {L(plan.count[i], 0)}, BAD}, {"count -1", {L(plan.count[i], -1)}, BAD},            \
    {"count least", {L(plan.count[i], INT64_MIN)}, BAD},                                           \
    {"count most", {L(plan.count[i], INT64_MAX)}, BAD},                                            \
    {"count one more", {VECTOR_ADD(lookup, plan.count[i], 1)}, BAD},                               \
    {"out one more", {VECTOR_ADD(lookup, plan.out[i], 1)}, BAD},                                   \
    {"out -1", {L(plan.out[i], -1)}, BAD},                                                         \
    {"latent 0", {L(plan.desc.latent[i], 0)}, BAD},                                                \
    {"latent most", {L(plan.desc.latent[i], INT64_MAX)}, BIG},                                     \
    {"factor -1", {L(plan.desc.factor[i], -1)}, BAD},                                              \
    {"factor most", {L(plan.desc.factor[i], INT64_MAX)}, BIG},                                     \
    {"overlap -1", {L(plan.desc.overlap[i], -1)}, BAD},                                            \
    {"overlap longer than a core", {L(plan.desc.overlap[i], 9)}, BAD},                             \
    {"halo -1", {L(plan.desc.halo[i], -1)}, BAD}, {"min_tile 0", {L(plan.desc.min_tile[i], 0)}, BAD}

static const vector lookups[] = {
    {"the first", {{0}}, OK},
    {"the last", {L(index, 23)}, OK},
    {"one beyond", {L(index, 24)}, BAD},
    {"index -1", {L(index, -1)}, BAD},
    {"index least", {L(index, INT64_MIN)}, BAD},
    {"index most", {L(index, INT64_MAX)}, BAD},
    {"no plan", {L(no_plan, 1)}, BAD},
    {"nowhere to put it", {L(nowhere, 1)}, BAD},
    {"tiles 0", {L(plan.tiles, 0)}, BAD},
    {"tiles -24", {L(plan.tiles, -24)}, BAD},
    {"one tile less", {L(plan.tiles, 23)}, BAD},
    {"twice the tiles", {L(plan.tiles, 48)}, BAD},
    {"tiles most", {L(plan.tiles, INT64_MAX)}, BAD},
    {"causal 2", {L(plan.desc.causal, 2)}, BAD},
    {"level -2", {L(plan.desc.level, -2)}, BAD},
    {"budget -1", {L(plan.desc.budget_bytes, -1)}, BAD},
    {"in flight 0", {L(plan.desc.max_in_flight, 0)}, BAD},
    PLAN_AXIS(0),
    PLAN_AXIS(1),
    PLAN_AXIS(2),
};

static hy3d_status look_up(const vector *v)
{
    lookup a = {
        .plan = {.desc = one_voxel(), .count = {4, 3, 2}, .out = {16, 12, 8}, .tiles = 24}};
    hy3d_tile tile = {.in_stop = {-7, -7, -7}};

    for (int i = 0; i < 3; i++) {
        a.plan.desc.latent[i] = a.plan.out[i] / 2;
        a.plan.desc.factor[i] = a.plan.desc.min_tile[i] = 2;
    }
    vector_apply(v, &a);
    const hy3d_status status = hy3d_tiles_at(a.no_plan != 0 ? NULL : &a.plan, a.index,
                                                      a.nowhere != 0 ? NULL : &tile);
    ck_assert_msg((tile.in_stop[0] != -7) == (status == HY3D_OK), "%s", v->what);
    return status;
}

/* Windows of ten output units. */
typedef struct framing {
    int64_t no_tile, nowhere;
    int axis;
    hy3d_tile tile;
} framing;

#define W(member, value) VECTOR_SET(framing, member, value)
#define G(member, value) VECTOR_SET(framing, tile.member[1], value)

static const vector windows[] = {
    {"as it is", {{0}}, OK},
    {"axis 0", {W(axis, 0)}, OK},
    {"axis 2", {W(axis, 2)}, OK},
    {"axis 3", {W(axis, 3)}, BAD},
    {"axis -1", {W(axis, -1)}, BAD},
    {"axis least", {W(axis, INT32_MIN)}, BAD},
    {"axis most", {W(axis, INT32_MAX)}, BAD},
    {"no tile", {W(no_tile, 1)}, BAD},
    {"nowhere to put it", {W(nowhere, 1)}, BAD},
    {"start -1", {G(out_start, -1)}, BAD},
    {"start least", {G(out_start, INT64_MIN)}, BAD},
    {"empty", {G(out_start, 10)}, BAD},
    {"one unit", {G(out_start, 9)}, OK},
    {"stop before start", {G(out_start, 11)}, BAD},
    {"stop least", {G(out_stop, INT64_MIN)}, BAD},
    {"far out", {G(out_start, INT64_MAX - 10), G(out_stop, INT64_MAX)}, OK},
    {"before -1", {G(ramp_before, -1)}, BAD},
    {"before least", {G(ramp_before, INT64_MIN)}, BAD},
    {"before all of it", {G(ramp_before, 10)}, OK},
    {"before one more", {G(ramp_before, 11)}, BAD},
    {"before most", {G(ramp_before, INT64_MAX)}, BAD},
    {"after -1", {G(ramp_after, -1)}, BAD},
    {"after all of it", {G(ramp_after, 10)}, OK},
    {"after one more", {G(ramp_after, 11)}, BAD},
    {"after most", {G(ramp_after, INT64_MAX)}, BAD},
    {"both fill it", {G(ramp_before, 4), G(ramp_after, 6)}, OK},
    {"both overlap by one", {G(ramp_before, 5), G(ramp_after, 6)}, BAD},
    {"both most", {G(ramp_before, INT64_MAX), G(ramp_after, INT64_MAX)}, BAD},
    {"a length whose ramps would not fit", {G(out_stop, INT64_MAX / 1024 + 1)}, BIG},
    {"a length that is all there is", {G(out_stop, INT64_MAX)}, BIG},
};

static hy3d_status window(const vector *v)
{
    framing a = {.axis = 1, .tile = {.out_stop = {10, 10, 10}}};
    float weights[12] = {-7};

    vector_apply(v, &a);
    const hy3d_status status =
        hy3d_tile_window(a.no_tile != 0 ? NULL : &a.tile, a.axis,
                             a.nowhere != 0 ? NULL : weights);
    ck_assert_msg((weights[0] != -7) == (status == HY3D_OK), "%s", v->what);
    return status;
}

START_TEST(test_axes)
{
    vectors_check(axes, COUNT_OF(axes), make);
}
END_TEST

START_TEST(test_costs_and_levels)
{
    vectors_check(costs, COUNT_OF(costs), make);
}
END_TEST

START_TEST(test_tiles)
{
    vectors_check(lookups, COUNT_OF(lookups), look_up);
}
END_TEST

START_TEST(test_windows)
{
    vectors_check(windows, COUNT_OF(windows), window);
}
END_TEST

int vectors_tiles(Suite *suite)
{
    TCase *const tests = tcase_create("schedules");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, test_axes);
    tcase_add_test(tests, test_costs_and_levels);
    tcase_add_test(tests, test_tiles);
    tcase_add_test(tests, test_windows);
    suite_add_tcase(suite, tests);
    return (int)(COUNT_OF(axes) + COUNT_OF(costs) + COUNT_OF(lookups) + COUNT_OF(windows));
}
