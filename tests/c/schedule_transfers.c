/* What leaves the device for the host: what is read furthest in the future. Held against every
 * choice there is in small programs, and in larger ones against other rules: the least recently
 * used, the oldest, any, and the slice furthest behind in the video (the rule of the engine before
 * programs). */
#include "schedule_support.h"

#include <stdlib.h>
#include <string.h>

#include "schedule/allocator.h"
#include "schedule/residency.h"

enum {
    UNIT = 64,
    MOST_SLICES = 48,
    MOST_STEPS = 60,
    MOST_REFS = MOST_STEPS * (MOST_SLICES + 3)
};

/* A program of one section whose slices are of one size. */
typedef struct even_program {
    hy3d_step steps[MOST_STEPS];
    int64_t kept[MOST_STEPS];
    hy3d_slice slices[MOST_SLICES];
    int32_t refs[MOST_REFS];
    hy3d_section section;
    hy3d__arrays arrays;
} even_program;

/* Random steps: each makes a slice of up to three that are there, or gives one away. A slice is
 * freed by the step that reads it last. */
static void even_random(test_random *random, int32_t slices, int32_t steps, even_program *p)
{
    int32_t last[MOST_SLICES], made = 0, refs = 0;
    memset(p, 0, sizeof *p);
    for (int32_t i = 0; i < steps; i++) {
        hy3d_step *const step = &p->steps[i];
        const bool makes = made == 0 || (made < slices && test_between(random, 0, 2) != 0);
        *step = (hy3d_step){.op = makes ? HY3D_STEP_MAP : HY3D_STEP_EMIT, .node = i / 8, .peer = -1};
        step->workspace_bytes = test_between(random, 0, 3) == 0 ? test_between(random, 1, UNIT) : 0;
        p->kept[i] = test_between(random, 0, 9) == 0 ? test_between(random, 1, UNIT / 4) : 0;
        step->slice = makes ? made : (int32_t)test_between(random, 0, made - 1);
        step->first_ref = refs;
        for (int64_t n = makes ? test_between(random, 0, 3) : 0; n > 0 && made > 0; n--) {
            const int32_t slice = (int32_t)test_between(random, 0, made - 1);
            bool twice = false;
            for (int32_t k = step->first_ref; k < refs; k++) {
                twice = twice || p->refs[k] == slice;
            }
            if (!twice) {
                p->refs[refs++] = slice;
                step->sources++;
            }
        }
        refs += slices; /* room for what is freed */
        made += makes;
    }
    for (int32_t i = 0; i < steps; i++) {
        const hy3d_step *const step = &p->steps[i];
        last[step->slice] = i;
        for (int32_t k = 0; k < step->sources; k++) {
            last[p->refs[step->first_ref + k]] = i;
        }
    }
    for (int32_t slice = 0; slice < made; slice++) {
        hy3d_step *const step = &p->steps[last[slice]];
        p->refs[step->first_ref + step->sources + step->frees++] = slice;
        p->slices[slice] = (hy3d_slice){.bytes = UNIT, .host_at = -1, .frames = {slice % 6, 6}};
    }
    p->section = (hy3d_section){.steps = steps, .slices = made};
    p->arrays = (hy3d__arrays){.steps = p->steps, .kept = p->kept, .slices = p->slices,
                               .refs = p->refs, .sections = &p->section, .step_count = steps,
                               .slice_count = made, .ref_count = refs, .section_count = 1};
}

typedef enum rule { OLDEST_USE, OLDEST, ANY, LAST_PLACE, RULES } rule;

static const char *const rule_names[RULES] = {"the least recently used", "the oldest", "any",
                                              "the last of the video"};

/* What is where while a program is run under a rule. */
typedef struct place {
    const hy3d__arrays *a;
    test_random *random;
    unsigned char *seen, *there, *stored, *pinned; /* of each slice */
    int32_t *used, *came, *ends;                   /* ends: frames of its value */
    int64_t device, stored_bytes, loaded_bytes;
} place;

/* The slices that step `i` reads: one after the other, -1 behind the last. */
static int32_t reads(const place *p, int32_t i, int32_t k)
{
    const hy3d_step *const step = &p->a->steps[i];
    const int32_t count = step->sources + step->others;
    if (k < count) {
        return p->a->refs[step->first_ref + k];
    }
    return k == count && step->slice >= 0 && p->seen[step->slice] ? step->slice : -1;
}

/* Whether the node of step `i` reads the slice in this step or behind it. */
static bool is_still_read(const place *p, int32_t i, int32_t slice)
{
    int32_t read;
    for (int32_t at = i; at < p->a->step_count && p->a->steps[at].node == p->a->steps[i].node;
         at++) {
        for (int32_t k = 0; (read = reads(p, at, k)) >= 0; k++) {
            if (read == slice) {
                return true;
            }
        }
    }
    return false;
}

/* How much a slice ought to go: the largest goes. */
static double urge(const place *p, rule which, int32_t i, int32_t slice)
{
    switch (which) {
    case OLDEST_USE:
        return -p->used[slice];
    case OLDEST:
        return -p->came[slice];
    case LAST_PLACE:
        return (double)p->a->slices[slice].frames[0] / p->ends[slice] +
               (is_still_read(p, i, slice) ? 0 : 1);
    case ANY:
    case RULES:
        break;
    }
    return (double)test_between(p->random, 0, 1 << 20);
}

static void make_room(place *p, rule which, int32_t i, int64_t need, int64_t limit)
{
    while (p->device + need > limit) {
        int32_t found = -1;
        double most = 0;
        for (int32_t slice = 0; slice < p->a->slice_count; slice++) {
            const hy3d_slice *const s = &p->a->slices[slice];
            if (!p->there[slice] || p->pinned[slice] || s->is_keys || s->bytes == 0) {
                continue;
            }
            const double now = urge(p, which, i, slice);
            if (found < 0 || now > most) {
                found = slice;
                most = now;
            }
        }
        ck_assert_int_ge(found, 0);
        p->there[found] = 0;
        p->device -= p->a->slices[found].bytes;
        p->stored_bytes += p->stored[found] ? 0 : p->a->slices[found].bytes;
        p->stored[found] = 1;
    }
}

static void run_step(place *p, rule which, int32_t i, int64_t limit)
{
    const hy3d_step *const step = &p->a->steps[i];
    const bool makes = step->slice >= 0 && !p->seen[step->slice];
    const bool over = (step->flags & HY3D_STEP_OVERWRITE) != 0;
    int64_t need = p->a->kept[i] + step->workspace_bytes;
    int32_t slice;
    need += makes && !over ? p->a->slices[step->slice].bytes : 0;
    for (int32_t k = 0; (slice = reads(p, i, k)) >= 0; k++) {
        need += p->there[slice] || p->pinned[slice] ? 0 : p->a->slices[slice].bytes;
        p->pinned[slice] = 1;
    }
    make_room(p, which, i, need, limit);
    for (int32_t k = 0; (slice = reads(p, i, k)) >= 0; k++) {
        p->loaded_bytes += p->there[slice] ? 0 : p->a->slices[slice].bytes;
        p->device += p->there[slice] ? 0 : p->a->slices[slice].bytes;
        p->came[slice] = p->there[slice] ? p->came[slice] : i;
        p->there[slice] = 1;
        p->used[slice] = i;
        p->pinned[slice] = 0;
    }
    p->device += p->a->kept[i];
    if (makes) {
        p->seen[step->slice] = p->there[step->slice] = 1;
        p->used[step->slice] = p->came[step->slice] = i;
        p->device += p->a->slices[step->slice].bytes;
    }
    for (int32_t k = 0; k < step->frees; k++) {
        slice = p->a->refs[step->first_ref + step->sources + step->others + k];
        p->device -= p->there[slice] ? p->a->slices[slice].bytes : 0;
        p->there[slice] = 0;
    }
}

/* Bytes stored and loaded under a rule. */
static void run_rule(const hy3d__arrays *arrays, rule which, test_random *random, int64_t limit,
                     hy3d__cost *out)
{
    const size_t count = (size_t)arrays->slice_count + 1;
    place p = {.a = arrays, .random = random};
    unsigned char *const flags = calloc(count, 4);
    int32_t *const times = calloc(count, 3 * sizeof *times);
    ck_assert_ptr_nonnull(flags);
    ck_assert_ptr_nonnull(times);
    p.seen = flags;
    p.there = flags + count;
    p.stored = flags + 2 * count;
    p.pinned = flags + 3 * count;
    p.used = times;
    p.came = times + count;
    p.ends = times + 2 * count;
    for (int32_t i = 0; i < arrays->slice_count; i++) {
        for (int32_t k = 0; k < arrays->slice_count; k++) {
            const hy3d_slice *const other = &arrays->slices[k];
            const bool larger = other->node == arrays->slices[i].node &&
                                (int32_t)other->frames[1] > p.ends[i];
            p.ends[i] = larger ? (int32_t)other->frames[1] : p.ends[i];
        }
    }
    for (int32_t i = 0; i < arrays->step_count; i++) {
        run_step(&p, which, i, limit);
    }
    ck_assert_int_le(p.device - limit, 0);
    *out = (hy3d__cost){.stored_bytes = p.stored_bytes, .loaded_bytes = p.loaded_bytes};
    free(flags);
    free(times);
}

static hy3d_schedule_request plain_request(void)
{
    const hy3d_machine machine = {.macs_per_second = 1e12, .bytes_per_second = 1e11,
                                  .seconds_per_step = 1e-5, .own_seconds_share = 1};
    return (hy3d_schedule_request){.device = machine, .copy_bytes_per_second = 1e10};
}

/* As it is compiled. */
static void run_compiled(hy3d_context *context, const hy3d_schedule_request *request,
                         const hy3d__arrays *arrays, int64_t limit, bool early, hy3d__cost *out)
{
    hy3d__arrays spilled = {.steps = NULL};
    hy3d__uses uses = {.memory = NULL};
    ck_assert_ok(hy3d__uses_create(context, request, arrays, &uses));
    ck_assert_ok(hy3d__spill(context, request, arrays, &uses, limit, early, &spilled));
    ck_assert_ok(hy3d__measure(context, request, 0, &spilled, 0, 0, out));
    ck_assert_int_le(out->device_bytes, limit);
    hy3d__arrays_destroy(context, &spilled);
    hy3d__uses_destroy(context, &uses);
}

/* The fewest loads of all choices: of each set of slices that may be on the device, before each
 * step, how many it took to get there. */
static int64_t fewest_loads(const even_program *program, int64_t limit)
{
    const hy3d__arrays *const a = &program->arrays;
    const size_t sets = (size_t)1 << a->slice_count;
    int64_t *best = malloc(2 * sets * sizeof *best), *next = best + sets, kept = 0;
    unsigned char seen[MOST_SLICES] = {0};
    const place p = {.a = a, .seen = seen};
    ck_assert_ptr_nonnull(best);
    int64_t *const memory = best;
    for (size_t set = 0; set < sets; set++) {
        best[set] = set == 0 ? 0 : INT64_MAX;
    }
    for (int32_t i = 0; i < a->step_count; i++) {
        const hy3d_step *const step = &a->steps[i];
        size_t wanted = 0, freed = 0, made = 0;
        int32_t slice;
        for (int32_t k = 0; (slice = reads(&p, i, k)) >= 0; k++) {
            wanted |= (size_t)1 << slice;
        }
        for (int32_t k = 0; k < step->frees; k++) {
            freed |= (size_t)1 << a->refs[step->first_ref + step->sources + k];
        }
        made = seen[step->slice] ? 0 : (size_t)1 << step->slice;
        seen[step->slice] = 1;
        kept += a->kept[i];
        const int64_t room = (limit - kept - step->workspace_bytes) / UNIT - (made != 0);
        for (size_t set = 0; set < sets; set++) {
            next[set] = INT64_MAX;
        }
        for (size_t set = 0; set < sets; set++) {
            const size_t others = set & ~wanted;
            if (best[set] == INT64_MAX) {
                continue;
            }
            const int64_t loads = best[set] + __builtin_popcountll(wanted & ~set);
            for (size_t stay = others;; stay = (stay - 1) & others) {
                if (__builtin_popcountll(stay | wanted) <= room) {
                    const size_t after = (stay | wanted | made) & ~freed;
                    next[after] = loads < next[after] ? loads : next[after];
                }
                if (stay == 0) {
                    break;
                }
            }
        }
        int64_t *const swap = best;
        best = next;
        next = swap;
    }
    const int64_t found = best[0];
    free(memory);
    return found;
}

/* Adds a step that makes a slice of so many MiB (0: none) in place of `over` (-1: anew) and frees
 * another (-1: none). */
static void add_step(even_program *p, int64_t mib, int32_t over, int32_t freed, int64_t workspace)
{
    const int32_t at = p->arrays.step_count, made = p->arrays.slice_count;
    hy3d_step *const step = &p->steps[at];
    *step = (hy3d_step){.op = mib > 0 ? HY3D_STEP_ADD : HY3D_STEP_EMIT, .slice = mib > 0 ? made : -1,
                        .first_ref = p->arrays.ref_count, .sources = over >= 0, .frees = freed >= 0,
                        .flags = over >= 0 ? HY3D_STEP_OVERWRITE : 0,
                        .workspace_bytes = workspace << 20};
    p->refs[step->first_ref] = over >= 0 ? over : freed;
    p->refs[step->first_ref + step->sources] = freed;
    p->slices[made] = (hy3d_slice){.bytes = mib << 20, .host_at = -1};
    p->arrays.ref_count += 2;
    p->section.steps = ++p->arrays.step_count;
    p->section.slices = p->arrays.slice_count += mib > 0;
}

START_TEST(test_a_program_finds_room_as_an_allocator_lays_it_out)
{
    static const struct {
        int64_t mib;
        int32_t over, freed;
        int64_t workspace;
        int64_t least; /* room, in MiB, with which the program ends up to here */
    } cases[] = {
        {30, -1, -1, 0, 30},
        {30, -1, 0, 0, 60},
        {10, -1, -1, 0, 60},  /* 2: of the first, which is split */
        {18, -1, 2, 2, 60},   /* 3: the rest; its workspace in what is left of that */
        {9, -1, -1, 0, 60},   /* 4: where 2 was */
        {18, 3, 4, 0, 60},    /* 5: in place of 3 */
        {0, -1, 5, 0, 60},    /* all of the first segment is one block again */
        {0, -1, -1, 29, 60},  /* which a workspace gets */
        {31, -1, 1, 0, 62},   /* 6: the idle segment goes back, the other one is in use */
        {0, -1, 6, 0, 62},
        {0, -1, -1, 50, 62},  /* both go back */
        {1, -1, -1, 0, 62},   /* 7: too small to count */
        {64, -1, 7, 0, 64},   /* 8 */
    };
    even_program p;
    hy3d_context *const context = test_context("ref", 1);
    memset(&p, 0, sizeof p);
    p.arrays = (hy3d__arrays){.steps = p.steps, .kept = p.kept, .slices = p.slices, .refs = p.refs,
                              .sections = &p.section, .section_count = 1};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        add_step(&p, cases[i].mib, cases[i].over, cases[i].freed, cases[i].workspace);
        bool finds = false;
        ck_assert_ok(hy3d__finds_room(context, &p.arrays, cases[i].least << 20, &finds));
        ck_assert_msg(finds, "step %d finds no room in %d MiB", (int)i, (int)cases[i].least);
        ck_assert_ok(hy3d__finds_room(context, &p.arrays, (cases[i].least << 20) - 1, &finds));
        ck_assert_msg(!finds, "step %d finds room in less than %d MiB", (int)i, (int)cases[i].least);
    }
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_no_choice_at_all_loads_less_than_what_is_compiled)
{
    hy3d_context *const context = test_context("ref", 1);
    test_random random = test_rng(2301);
    const hy3d_schedule_request request = plain_request();
    even_program *const program = malloc(sizeof *program);
    int64_t loads = 0;
    ck_assert_ptr_nonnull(program);
    for (int i = 0; i < 1500; i++) {
        hy3d__cost cost;
        even_random(&random, (int32_t)test_between(&random, 3, 9),
                    (int32_t)test_between(&random, 4, 24), program);
        const int64_t limit = hy3d__least_resident(&request, &program->arrays) +
                              test_between(&random, 0, 3 * UNIT);
        run_compiled(context, &request, &program->arrays, limit, false, &cost);
        ck_assert_int_eq(cost.loaded_bytes, UNIT * fewest_loads(program, limit));
        loads += cost.loaded_bytes / UNIT;
    }
    ck_assert_int_gt(loads, 1000); /* or it would say nothing */
    test_count("loads of programs whose fewest are known", (long)loads);
    free(program);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_no_other_rule_loads_less)
{
    hy3d_context *const context = test_context("ref", 1);
    test_random random = test_rng(2302);
    const hy3d_schedule_request request = plain_request();
    even_program *const program = malloc(sizeof *program);
    int64_t ours = 0, theirs[RULES] = {0};
    ck_assert_ptr_nonnull(program);
    for (int i = 0; i < 400; i++) {
        hy3d__cost cost, other;
        even_random(&random, (int32_t)test_between(&random, 10, MOST_SLICES),
                    (int32_t)test_between(&random, 20, 60), program);
        const int64_t limit = hy3d__least_resident(&request, &program->arrays) +
                              test_between(&random, 0, 8 * UNIT);
        run_compiled(context, &request, &program->arrays, limit, false, &cost);
        ours += cost.loaded_bytes;
        for (int which = 0; which < RULES; which++) {
            run_rule(&program->arrays, (rule)which, &random, limit, &other);
            ck_assert_msg(cost.loaded_bytes <= other.loaded_bytes,
                          "program %d: %lld bytes loaded, %lld where %s goes", i,
                          (long long)cost.loaded_bytes, (long long)other.loaded_bytes,
                          rule_names[which]);
            theirs[which] += other.loaded_bytes;
        }
    }
    for (int which = 0; which < RULES; which++) {
        ck_assert_int_lt(ours, theirs[which]);
    }
    free(program);
    hy3d_context_destroy(context);
}
END_TEST

/* HunyuanVideo as it is published, of this many latent frames, rows and columns. */
static void hunyuan(hy3d_context *context, const int64_t size[3], graphs_case *made,
                    hy3d__builder *builder, hy3d__arrays *arrays)
{
    graphs_make_known(GRAPHS_HUNYUAN, 128, made);
    graphs_request(made, size[0], size[1], size[2]);
    made->request.device.macs_per_second = 3e14;
    made->request.device.bytes_per_second = 3e12;
    made->request.copy_bytes_per_second = 2.5e10;
    const int32_t last = made->request.graph.count - 1;
    static const hy3d__shards alone = {.ranks = 1, .unit = 1, .before = {0, 1}};
    ck_assert_ok(hy3d__builder_create(context, &made->request, &alone, 0, builder));
    hy3d__builder_reset(builder, 0, arrays);
    builder->slice_bytes = INT64_C(512) << 20;
    hy3d__section_begin(builder, HY3D_SECTION_ALL, 0, last, made->request.size);
    hy3d__order_layers(builder, last);
    hy3d__section_end(builder);
    ck_assert_ok(builder->status);
}

static int64_t copied(const hy3d__cost *cost)
{
    return cost->stored_bytes + cost->loaded_bytes;
}

/* Of slices of several sizes no rule is always the best; of this decoder's it is where slices come
 * back when they are read. One that comes a step early takes room, which costs a few more copies and
 * less time; it is held against the rules that are blind to the video. */
START_TEST(test_hunyuan_video_is_copied_no_more_than_under_any_other_rule)
{
    static const int64_t sizes[][3] = {{9, 76, 80}, {17, 76, 80}, {33, 68, 120}};
    static const int64_t gigabytes[] = {3, 4, 6, 8};
    hy3d_context *const context = test_context("ref", 1);
    test_random random = test_rng(2303);
    for (size_t i = 0; i < COUNT_OF(sizes) * COUNT_OF(gigabytes); i++) {
        const int64_t limit = gigabytes[i % COUNT_OF(gigabytes)] << 30;
        graphs_case made;
        hy3d__builder builder;
        hy3d__arrays arrays = {.steps = NULL};
        hy3d__cost cost, early, other;
        hunyuan(context, sizes[i / COUNT_OF(gigabytes)], &made, &builder, &arrays);
        run_compiled(context, &made.request, &arrays, limit, false, &cost);
        run_compiled(context, &made.request, &arrays, limit, true, &early);
        ck_assert(early.seconds <= cost.seconds);
        for (int which = 0; which < RULES; which++) {
            run_rule(&arrays, (rule)which, &random, limit, &other);
            ck_assert_msg(copied(&cost) <= copied(&other) &&
                              (which == LAST_PLACE || copied(&early) <= copied(&other)),
                          "%d latent frames, %d GB: %lld bytes, early %lld, and %lld where %s goes",
                          (int)made.request.size[0], (int)(limit >> 30), (long long)copied(&cost),
                          (long long)copied(&early), (long long)copied(&other), rule_names[which]);
        }
        hy3d__arrays_destroy(context, &arrays);
        hy3d__builder_destroy(&builder);
    }
    hy3d_context_destroy(context);
}
END_TEST

/* While slices leave for the host, nine tenths of a budget are used, be it small or large. */
START_TEST(test_a_budget_of_any_size_is_used)
{
    static const int64_t sizes[][3] = {{9, 76, 80}, {17, 76, 80}, {33, 68, 120}};
    hy3d_context *const context = test_context("ref", 1);
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        graphs_case made;
        hy3d__builder builder;
        hy3d__arrays arrays = {.steps = NULL};
        int compiled = 0;
        hunyuan(context, sizes[i], &made, &builder, &arrays);
        for (int64_t megabytes = 2048; megabytes <= 16384; megabytes += 640) {
            hy3d_schedule *schedule = NULL;
            made.request.device_budget = megabytes << 20;
            ck_assert_ok(hy3d_schedule_compile(context, &made.request, &schedule));
            const hy3d_candidate *const c = &hy3d_schedule_program(schedule)->candidate;
            const int64_t taken = c->device_bytes + c->margin_bytes;
            ck_assert_int_le(taken, made.request.device_budget);
            if (c->stored_bytes > 0) {
                ck_assert_msg(taken / 9 * 10 >= made.request.device_budget,
                              "%d latent frames: %lld of %lld MB", (int)sizes[i][0],
                              (long long)(taken >> 20), (long long)megabytes);
                compiled++;
            }
            hy3d_schedule_destroy(context, schedule);
        }
        ck_assert_int_gt(compiled, 2);
        hy3d__arrays_destroy(context, &arrays);
        hy3d__builder_destroy(&builder);
    }
    hy3d_context_destroy(context);
}
END_TEST

TCase *hy3d_schedule_transfer_cases(void)
{
    TCase *const tests = tcase_create("transfers");
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, test_a_program_finds_room_as_an_allocator_lays_it_out);
    tcase_add_test(tests, test_no_choice_at_all_loads_less_than_what_is_compiled);
    tcase_add_test(tests, test_no_other_rule_loads_less);
    tcase_add_test(tests, test_hunyuan_video_is_copied_no_more_than_under_any_other_rule);
    tcase_add_test(tests, test_a_budget_of_any_size_is_used);
    return tests;
}
