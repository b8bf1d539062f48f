/* The replayer: it accepts a program worked out by hand, and objects to every damage, in that one
 * and in those that are compiled. */
#include "schedule_support.h"

#include <stdlib.h>
#include <string.h>

static void *copied(const void *from, size_t bytes)
{
    void *const to = malloc(bytes == 0 ? 1 : bytes);
    ck_assert_ptr_nonnull(to);
    if (bytes != 0) {
        memcpy(to, from, bytes);
    }
    return to;
}

program_copy program_copy_of(const hy3d_program *program)
{
    program_copy copy = {
        .program = *program,
        .sections = copied(program->sections,
                           (size_t)program->section_count * sizeof(hy3d_section)),
        .steps = copied(program->steps, (size_t)program->step_count * sizeof(hy3d_step)),
        .slices = copied(program->slices, (size_t)program->slice_count * sizeof(hy3d_slice)),
        .refs = copied(program->refs, (size_t)program->ref_count * sizeof(int32_t)),
    };
    copy.program.sections = copy.sections;
    copy.program.steps = copy.steps;
    copy.program.slices = copy.slices;
    copy.program.refs = copy.refs;
    return copy;
}

void program_copy_free(program_copy *copy)
{
    free(copy->sections);
    free(copy->steps);
    free(copy->slices);
    free(copy->refs);
}

/* Two causal convolutions of three frames, the second with a GroupNorm and the first's result as
 * its residual; four frames of one pixel. Two bytes an element. */
static const hy3d_node hand_nodes[] = {
    {.op = HY3D_OP_INPUT, .source = -1, .other = -1, .channels = 1},
    {.op = HY3D_OP_CONV, .source = 0, .other = -1, .channels = 2, .kernel = {3, 1, 1},
     .stride = {1, 1, 1}, .dilation = {1, 1, 1}, .up = {1, 1, 1}, .before = {2, 0, 0},
     .shuffle = {1, 1, 1}, .groups = 1},
    {.op = HY3D_OP_CONV, .source = 1, .other = 1, .norm = HY3D_NORM_GROUP, .channels = 2,
     .kernel = {3, 1, 1}, .stride = {1, 1, 1}, .dilation = {1, 1, 1}, .up = {1, 1, 1},
     .before = {2, 0, 0}, .shuffle = {1, 1, 1}, .groups = 1},
    {.op = HY3D_OP_OUTPUT, .source = 2, .other = -1, .channels = 2},
};

static const hy3d_slice hand_slices[] = {
    {.node = 0, .frames = {0, 4}, .rows = {0, 1}, .bytes = 8, .host_at = -1},
    {.node = 1, .frames = {0, 2}, .rows = {0, 1}, .bytes = 8, .host_at = 0},
    {.node = 1, .frames = {2, 4}, .rows = {0, 1}, .bytes = 8, .host_at = -1},
    {.node = 2, .frames = {0, 2}, .rows = {0, 1}, .bytes = 8, .host_at = -1},
    {.node = 2, .frames = {2, 4}, .rows = {0, 1}, .bytes = 8, .host_at = -1},
};

/* 0 1: source and what is freed of steps 1, 3; and so on. */
static const int32_t hand_refs[] = {0, 0, 0, 1, 1, 3, 1, 2, 2, 1, 2, 4};

#define HAND(op_, node_, slice_, first, stop)                                                      \
    .op = HY3D_STEP_##op_, .node = node_, .slice = slice_, .frames = {first, stop},               \
    .rows = {0, 1}, .peer = -1

enum { REDUCES = 5, LOADS = 6, WHOLE_STEPS = 11 };

static const hy3d_step hand_steps[WHOLE_STEPS] = {
    {HAND(ENTER, 0, 0, 0, 4)},
    {HAND(CONV, 1, 1, 0, 2), .flags = HY3D_STEP_GATHER, .own = {0, 2}, .reads = {0, 2}, .read_rows = {0, 1},
     .first_ref = 0, .sources = 1, .macs = 12},
    {HAND(STORE, 1, 1, 0, 2)},
    {HAND(CONV, 1, 2, 2, 4), .flags = HY3D_STEP_GATHER, .own = {2, 4}, .reads = {0, 4}, .read_rows = {0, 1},
     .first_ref = 1, .sources = 1, .frees = 1, .macs = 12},
    {HAND(DROP, 1, 1, 0, 2)},
    {HAND(REDUCE, 2, -1, 0, 0)},
    {HAND(LOAD, 1, 1, 0, 2)},
    {HAND(CONV, 2, 3, 0, 2), .own = {0, 2}, .reads = {0, 2}, .read_rows = {0, 1}, .first_ref = 3, .sources = 1,
     .others = 1, .macs = 24},
    {HAND(EMIT, 3, 3, 0, 2), .first_ref = 5, .frees = 1},
    {HAND(CONV, 2, 4, 2, 4), .own = {2, 4}, .reads = {0, 4}, .read_rows = {0, 1}, .first_ref = 6, .sources = 2,
     .others = 1, .frees = 2, .macs = 24},
    {HAND(EMIT, 3, 4, 2, 4), .first_ref = 11, .frees = 1},
};

static const hy3d_section hand_section = {
    .kind = HY3D_SECTION_ALL, .steps = WHOLE_STEPS, .slices = 5, .size = {4, 1, 1}};

static void hand_case(graphs_case *made)
{
    memset(made, 0, sizeof *made);
    memcpy(made->nodes, hand_nodes, sizeof hand_nodes);
    made->request.graph.count = (int32_t)COUNT_OF(hand_nodes);
    graphs_request(made, 4, 1, 1);
}

/* On the device: 8 of the input, 8 of the first slice, 8 of the second; after step 3 without the
 * input. On the host one slice. */
static hy3d_program hand_program(void)
{
    const hy3d_program program = {
        .candidate = {.strategy = HY3D_STRATEGY_STREAMED, .order = HY3D_ORDER_LAYERS, .fits = 1,
                      .device_bytes = 24, .host_bytes = 8, .stored_bytes = 8, .loaded_bytes = 8,
                      .macs = 72, .steps = WHOLE_STEPS, .resident_bytes = 24},
        .sections = &hand_section,
        .steps = hand_steps,
        .slices = hand_slices,
        .refs = hand_refs,
        .section_count = 1,
        .step_count = WHOLE_STEPS,
        .slice_count = 5,
        .ref_count = (int32_t)COUNT_OF(hand_refs),
        .copies_bytes = 8,
    };
    return program;
}

static void expect(const program_copy *copy, const hy3d_schedule_request *request,
                   const char *wanted)
{
    replay_verdict verdict;
    replay_program(request, &copy->program, &verdict);
    ck_assert_msg(wanted == NULL ? verdict.text[0] == '\0' : strstr(verdict.text, wanted) != NULL,
                  "\"%s\", not \"%s\"", verdict.text, wanted == NULL ? "" : wanted);
}

START_TEST(test_a_program_by_hand_is_accepted)
{
    graphs_case made;
    hand_case(&made);
    made.request.user = &made;
    made.request.graph.nodes = made.nodes;
    hy3d_program program = hand_program();
    program_copy copy = program_copy_of(&program);
    expect(&copy, &made.request, NULL);
    program_copy_free(&copy);
}
END_TEST

typedef struct fault {
    void (*make)(program_copy *copy);
    const char *text; /* part of the sentence */
} fault;

static void reads_too_few(program_copy *c) { c->steps[9].reads[0] = 1; }
static void reads_too_many(program_copy *c) { c->steps[7].reads[1] = 3; }
static void reads_too_few_rows(program_copy *c) { c->steps[9].read_rows[1] = 0; }
static void enters_rows_of_a_source(program_copy *c) { c->steps[0].read_rows[1] = 1; }
static void pads_rows(program_copy *c) { c->steps[9].row_padding[1] = 1; }
static void reduces_no_rows(program_copy *c) { c->steps[REDUCES].rows[1] = 0; }
static void lacks_a_source(program_copy *c) { c->steps[9].first_ref++; c->steps[9].sources--; }
static void reads_before_the_load(program_copy *c)
{
    const hy3d_step load = c->steps[LOADS];
    c->steps[LOADS] = c->steps[LOADS + 1];
    c->steps[LOADS + 1] = load;
}
static void frees_too_early(program_copy *c) { c->steps[1].frees = 1; }
static void frees_nothing(program_copy *c) { c->steps[10].frees = 0; }
static void other_of_other_frames(program_copy *c) { c->refs[8] = 1; }
static void gathers_not(program_copy *c) { c->steps[3].flags = 0; }
static void reduces_late(program_copy *c)
{
    const hy3d_step reduce = c->steps[REDUCES];
    c->steps[REDUCES] = c->steps[LOADS];
    c->steps[LOADS] = c->steps[LOADS + 1];
    c->steps[LOADS + 1] = reduce;
}
static void writes_over_its_source(program_copy *c) { c->steps[9].flags = HY3D_STEP_OVERWRITE; }
static void drops_without_a_store(program_copy *c) { c->steps[2].op = HY3D_STEP_DROP; }
static void makes_twice(program_copy *c)
{
    c->steps[3].own[0] = 1;
    c->steps[3].frames[0] = c->slices[2].frames[0] = 1;
    c->slices[2].bytes = 12;
    c->steps[3].macs = 18;
}
static void gives_in_disorder(program_copy *c) { c->slices[3].frames[0] = 1; }
static void wrong_peak(program_copy *c) { c->program.candidate.device_bytes++; }
static void wrong_limit(program_copy *c) { c->program.candidate.resident_bytes--; }
static void wrong_margin(program_copy *c) { c->program.candidate.margin_bytes = 1; }
static void wrong_host_peak(program_copy *c) { c->program.candidate.host_bytes--; }
static void wrong_work(program_copy *c) { c->program.candidate.macs++; }
static void wrong_stored(program_copy *c) { c->program.candidate.stored_bytes = 0; }
static void wrong_loaded(program_copy *c) { c->program.candidate.loaded_bytes = 16; }
static void wrong_bytes(program_copy *c) { c->slices[4].bytes = 16; }
static void wrong_copy(program_copy *c) { c->slices[1].host_at = 256; }
static void unaligned_copy(program_copy *c)
{
    c->slices[1].host_at = 8;
    c->program.copies_bytes = 16;
}
static void place_for_nothing(program_copy *c) { c->slices[2].host_at = 0; }
static void copies_in_one_place(program_copy *c)
{
    c->steps[4].op = HY3D_STEP_STORE;
    c->steps[4].slice = 2;
    c->steps[4].frames[0] = 2;
    c->steps[4].frames[1] = 4;
    c->slices[2].host_at = 0;
}
static void too_much_for_copies(program_copy *c)
{
    c->program.copies_bytes++;
    c->program.candidate.host_bytes++;
}
static void wrong_workspace(program_copy *c) { c->steps[1].workspace_bytes = 1; }
static void drops_a_frame(program_copy *c) { c->steps[7].drop = 1; }
static void ref_beyond(program_copy *c) { c->refs[11] = 5; }
static void section_beyond(program_copy *c) { c->sections[0].steps++; }
static void another_size(program_copy *c) { c->sections[0].size[1] = 2; }
static void stops_early(program_copy *c) { c->sections[0].steps -= 2; }

START_TEST(test_every_fault_by_hand_is_named)
{
    static const fault faults[] = {
        {reads_too_few, "reads 1 to 4"},
        {reads_too_many, "reads 0 to 3"},
        {reads_too_few_rows, "reads rows 0 to 0, padded by 0 and 0, not 0 to 1 by 0 and 0"},
        {enters_rows_of_a_source, "step 0 (enter of node 0): reads rows 0 to 1"},
        {pads_rows, "reads rows 0 to 1, padded by 0 and 1, not 0 to 1 by 0 and 0"},
        {reduces_no_rows, "rows 0 to 0, not 0 to 1"},
        {lacks_a_source, "has frames 2 to 4, not those from 0"},
        {reads_before_the_load, "which is on the host"},
        {frees_too_early, "which is freed"},
        {frees_nothing, "slice 4 is left"},
        {other_of_other_frames, "has frames 0 to 2, not those from 2"},
        {gathers_not, "has no moments"},
        {reduces_late, "statistics of node 2's norm are not there"},
        {writes_over_its_source, "read and written over"},
        {drops_without_a_store, "never stored"},
        {makes_twice, "made a second time"},
        {gives_in_disorder, "slice 3 has frames 1 to 2"},
        {wrong_peak, "device bytes: the candidate says 25, it is 24"},
        {wrong_limit, "24 bytes on the device, and no more than 23 should be"},
        {wrong_margin, "margin bytes: the candidate says 1, it is 0"},
        {wrong_host_peak, "host bytes: the candidate says 7, it is 8"},
        {wrong_work, "multiply-accumulates: the candidate says 73"},
        {wrong_stored, "stored bytes"},
        {wrong_loaded, "loaded bytes"},
        {wrong_bytes, "slice 4 has 16 bytes, not 8"},
        {wrong_copy, "a copy of 8 bytes from 256 on, in memory of 8"},
        {unaligned_copy, "a copy of 8 bytes from 8 on, in memory of 16"},
        {place_for_nothing, "slice 2 never leaves and has a place on the host"},
        {copies_in_one_place, "the copies of slices 2 and 1 lie in one place"},
        {too_much_for_copies, "memory for copies: the candidate says 9, it is 8"},
        {wrong_workspace, "workspace of 1 bytes, not 0"},
        {drops_a_frame, "frames 0 to 2, not 1 to 2"},
        {ref_beyond, "slice 5 of 5"},
        {section_beyond, "not of the program"},
        {another_size, "another size"},
        {stops_early, "left at the end"},
    };
    graphs_case made;
    hand_case(&made);
    made.request.user = &made;
    made.request.graph.nodes = made.nodes;
    for (size_t i = 0; i < COUNT_OF(faults); i++) {
        hy3d_program program = hand_program();
        program_copy copy = program_copy_of(&program);
        faults[i].make(&copy);
        expect(&copy, &made.request, faults[i].text);
        program_copy_free(&copy);
    }
}
END_TEST

bool damage_step(test_random *random, program_copy *copy, int32_t at)
{
    hy3d_step *const step = &copy->steps[at];
    const bool computes = step->op < HY3D_STEP_MOMENTS;
    const int64_t by = test_between(random, 0, 1) ? 1 : -1;
    switch (test_between(random, 0, 11)) {
    case 0:
        step->frames[test_between(random, 0, 1)] += by;
        return step->op != HY3D_STEP_REDUCE;
    case 1:
        step->own[test_between(random, 0, 1)] += by;
        return step->op == HY3D_STEP_CONV;
    case 2: /* of a convolution's reads see damage_reads */
        step->reads[test_between(random, 0, 1)] += by;
        return computes && step->op != HY3D_STEP_CONV && step->op != HY3D_STEP_ENTER &&
               step->op != HY3D_STEP_TRIM;
    case 3:
        step->rows[test_between(random, 0, 1)] += by;
        return true;
    case 4:
        step->drop += (int32_t)by;
        return step->op == HY3D_STEP_CONV;
    case 5:
        step->slice += (int32_t)by;
        return step->op != HY3D_STEP_REDUCE;
    case 6:
        step->workspace_bytes += by;
        return true;
    case 7:
        step->macs += by;
        return true;
    case 8:
        step->op = step->op == HY3D_STEP_SEND ? HY3D_STEP_RECV : HY3D_STEP_SEND;
        return true;
    case 9:
        step->read_rows[test_between(random, 0, 1)] += by;
        return true;
    case 10:
        step->row_padding[test_between(random, 0, 1)] += by;
        return true;
    default:
        if (step->frees == 0) {
            return false;
        }
        step->frees--; /* one is left */
        return true;
    }
}

static bool damage_slice(test_random *random, program_copy *copy, int32_t at)
{
    hy3d_slice *const slice = &copy->slices[at];
    const int64_t by = test_between(random, 0, 1) ? 1 : -1;
    switch (test_between(random, 0, 4)) {
    case 0:
        slice->frames[test_between(random, 0, 1)] += by;
        return true;
    case 1:
        slice->bytes += by;
        return true;
    case 2:
        slice->rows[test_between(random, 0, 1)] += by;
        return true;
    case 3:
        slice->node += (int32_t)by;
        return true;
    default:
        slice->is_keys = !slice->is_keys;
        return true;
    }
}

static bool damage_figure(test_random *random, program_copy *copy)
{
    hy3d_candidate *const candidate = &copy->program.candidate;
    int64_t *const figures[] = {&candidate->device_bytes, &candidate->host_bytes,
                                &candidate->stored_bytes, &candidate->loaded_bytes,
                                &candidate->sent_bytes,   &candidate->macs,
                                &candidate->steps,        &candidate->margin_bytes};
    *figures[test_between(random, 0, COUNT_OF(figures) - 1)] +=
        test_between(random, 0, 1) ? 1 : -1;
    return true;
}

bool damage_leave_out(program_copy *copy, const hy3d_section *section, int32_t at)
{
    for (int32_t i = at; i + 1 < section->first_step + section->steps; i++) {
        copy->steps[i] = copy->steps[i + 1];
    }
    for (int32_t i = 0; i < copy->program.section_count; i++) {
        if (copy->sections[i].first_step == section->first_step) {
            copy->program.candidate.steps -= i != section - copy->sections;
        }
    }
    copy->sections[section - copy->sections].steps--;
    copy->program.candidate.steps--;
    return true;
}

bool damage_program(test_random *random, program_copy *copy)
{
    const int32_t which = (int32_t)test_between(random, 0, copy->program.section_count - 1);
    const hy3d_section *const section = &copy->sections[which];
    const int32_t step =
        section->first_step + (int32_t)test_between(random, 0, section->steps - 1);
    const int64_t kind = test_between(random, 0, 9);
    if (kind < 5) {
        return damage_step(random, copy, step);
    }
    if (kind < 7) {
        return damage_slice(random, copy,
                            section->first_slice +
                                (int32_t)test_between(random, 0, section->slices - 1));
    }
    if (kind == 7) {
        return damage_figure(random, copy);
    }
    if (kind == 8) {
        return damage_leave_out(copy, section, step);
    }
    const hy3d_step *const reader = &copy->steps[step];
    const int32_t refs = reader->sources + reader->others + reader->frees;
    if (refs == 0 || section->slices < 2 || reader->op == HY3D_STEP_REDUCE) {
        return false;
    }
    int32_t *const ref =
        &copy->refs[reader->first_ref + (int32_t)test_between(random, 0, refs - 1)];
    *ref = (*ref + (int32_t)test_between(random, 1, section->slices - 1)) % section->slices;
    return true;
}

int64_t tight_budget(hy3d_context *context, graphs_case *made)
{
    hy3d_schedule *schedule = NULL;
    int64_t budget = 0;
    made->request.device_budget = 1;
    if (hy3d_schedule_compile(context, &made->request, &schedule) == HY3D_ERR_BUDGET_TOO_SMALL) {
        budget = hy3d_schedule_smallest_budget(schedule);
    }
    hy3d_schedule_destroy(context, schedule);
    return budget;
}

static void damage_programs(hy3d_context *context, graphs_case *made, test_random *random,
                            long *objections)
{
    hy3d_schedule *schedule = NULL;
    replay_verdict verdict;
    if (test_between(random, 0, 1) == 1) {
        made->request.device_budget = tight_budget(context, made);
    }
    if (hy3d_schedule_compile(context, &made->request, &schedule) != HY3D_OK) {
        hy3d_schedule_destroy(context, schedule);
        return; /* other tests ask why */
    }
    const hy3d_program *const program = hy3d_schedule_program(schedule);
    for (int i = 0; i < 12 && program->candidate.order != HY3D_ORDER_WHOLE; i++) {
        program_copy copy = program_copy_of(program);
        test_random before = *random;
        const bool does_harm = damage_program(random, &copy);
        const bool is_accepted = replay_program(&made->request, &copy.program, &verdict);
        ck_assert_msg(!does_harm || !is_accepted, "damage %d with numbers from %llx is accepted", i,
                      (unsigned long long)before.state);
        *objections += !is_accepted;
        program_copy_free(&copy);
    }
    hy3d_schedule_destroy(context, schedule);
}

START_TEST(test_random_damage_to_compiled_programs_is_objected_to)
{
    test_random random = test_rng(20270101);
    hy3d_context *const context = test_context("ref", 1);
    long objections = 0;
    for (uint64_t i = 0; i < 300; i++) {
        graphs_case made;
        graphs_seed seed;
        graphs_random(graphs_numbers_of(&seed, i), &made);
        made.request.strategies &= (1U << HY3D_STRATEGY_STREAMED | 1U << HY3D_STRATEGY_TILED);
        if (made.request.strategies != 0) {
            damage_programs(context, &made, &random, &objections);
        }
    }
    ck_assert_int_gt(objections, 1000);
    test_count("damaged programs objected to", objections);
    hy3d_context_destroy(context);
}
END_TEST

TCase *hy3d_schedule_replay_cases(void)
{
    TCase *const tests = tcase_create("replay");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, test_a_program_by_hand_is_accepted);
    tcase_add_test(tests, test_every_fault_by_hand_is_named);
    tcase_add_test(tests, test_random_damage_to_compiled_programs_is_objected_to);
    return tests;
}
