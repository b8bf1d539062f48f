/* Programs of several ranks made from compiled ones of a single rank, so that the replayer of
 * several ranks meets every kind of step and graph: it accepts them, and objects to damage done to
 * them. Their rows come from the replayer itself, so they say nothing of the compiler. */
#include "schedule_support.h"

#include <stdlib.h>
#include <string.h>

#include "replay_walk.h"

/* One program for each rank. */
typedef struct shards {
    int32_t ranks;
    program_copy of[REPLAY_MOST_RANKS];
    const hy3d_program *programs[REPLAY_MOST_RANKS];
    /* A step that may not write over a slice of other rows; -1. */
    int32_t unlike[REPLAY_MOST_RANKS];
} shards;

typedef struct sharder {
    const hy3d_schedule_request *request;
    const hy3d_program *one;
    replay_values values;
    replay_rows *rows[REPLAY_MOST_RANKS];
    int32_t rank;
    program_copy *out;
    int32_t unlike;
} sharder;

static void set(int64_t to[2], const int64_t from[2])
{
    to[0] = from[0];
    to[1] = from[1];
}

static const hy3d_slice *slice_of(const sharder *s, const hy3d_step *step)
{
    return step->slice < 0 ? NULL : &s->out->slices[step->slice];
}

static void put(sharder *s, const hy3d_step *step)
{
    hy3d_program *const program = &s->out->program;
    s->out->steps[program->step_count++] = *step;
    s->out->sections[0].steps++;
}

static bool is_made_for_nothing(const sharder *s, const hy3d_step *step)
{
    const int32_t *const frees = s->out->refs + step->first_ref + step->sources + step->others;
    for (int32_t i = 0; i < step->frees; i++) {
        if (frees[i] == step->slice) {
            return true;
        }
    }
    return false;
}

/* What `from` makes of the step's value and `to` has. */
static bool are_wanted(const sharder *s, const hy3d_step *step, int32_t from, int32_t to,
                       int64_t rows[2])
{
    const replay_rows *const maker = &s->rows[from][step->node];
    const replay_rows *const reader = &s->rows[to][step->node];
    const int64_t *const held = reader->held;
    set(rows, maker->own);
    if (reader->own[0] == reader->own[1]) {
        return false;
    }
    if (!slice_of(s, step)->is_keys) {
        rows[0] = held[0] > rows[0] ? held[0] : rows[0];
        rows[1] = held[1] < rows[1] ? held[1] : rows[1];
    }
    return rows[0] < rows[1];
}

static void exchange(sharder *s, const hy3d_step *step)
{
    for (int32_t op = HY3D_STEP_SEND; op <= HY3D_STEP_RECV; op++) {
        for (int32_t peer = 0; peer < s->request->ranks; peer++) {
            hy3d_step copy = {.op = op, .node = step->node, .slice = step->slice, .peer = peer};
            const bool sends = op == HY3D_STEP_SEND;
            set(copy.frames, step->frames);
            if (peer != s->rank && are_wanted(s, step, sends ? s->rank : peer,
                                              sends ? peer : s->rank, copy.rows)) {
                put(s, &copy);
            }
        }
    }
}

/* A slice with other rows can't be written over. */
static void keep_overwrite(sharder *s, hy3d_step *step)
{
    const int32_t *const refs = s->out->refs + step->first_ref;
    if (step->flags & HY3D_STEP_OVERWRITE) {
        const int32_t target = step->op == HY3D_STEP_ADD ? refs[0] : refs[step->sources];
        const int64_t *const rows = s->out->slices[target].rows;
        const int64_t *const held = s->rows[s->rank][step->node].held;
        const bool is_same = rows[0] == held[0] && rows[1] == held[1];
        step->flags &= is_same ? ~0 : ~HY3D_STEP_OVERWRITE;
        s->unlike = is_same ? s->unlike : s->out->program.step_count;
    }
}

static void shard_step(sharder *s, hy3d_step step)
{
    const hy3d_slice *const slice = slice_of(s, &step);
    const bool is_whole = step.op == HY3D_STEP_ENTER || step.op == HY3D_STEP_TRIM;
    const bool copies = step.op >= HY3D_STEP_STORE && step.op <= HY3D_STEP_LOAD;
    const hy3d_graph *const graph = &s->request->graph;
    const int32_t source = graph->nodes[step.node].source;
    int64_t kept = 0;
    if (slice != NULL) {
        set(step.rows, is_whole || copies ? slice->rows : s->rows[s->rank][slice->node].own);
    }
    keep_overwrite(s, &step);
    step.macs = replay_macs(graph, &s->values, &step);
    step.workspace_bytes = 0;
    if (source >= 0) {
        ck_assert_ok(s->request->workspace(s->request->user, &step, &s->values.of[source].size,
                                           s->one->candidate.on_host, &step.workspace_bytes,
                                           &kept));
    }
    put(s, &step);
    if ((replay_makes(&step) || step.op == HY3D_STEP_KEYS) && !is_whole &&
        !is_made_for_nothing(s, &step)) {
        exchange(s, &step);
    }
}

static void shard_slice(sharder *s, hy3d_slice *slice)
{
    const replay_walk walk = {.request = s->request, .values = s->values};
    const int64_t all[2] = {0, s->values.of[slice->node].size.rows};
    set(slice->rows, slice->is_keys ? all : s->rows[s->rank][slice->node].held);
    slice->bytes = replay_bytes(&walk, slice, slice->frames[1] - slice->frames[0],
                                slice->rows[1] - slice->rows[0]);
    slice->host_bytes = replay_host_bytes(s->request, slice->bytes);
}

static void shard_rank(sharder *s, program_copy *out)
{
    const hy3d_program *const one = s->one;
    const replay_rows *const output = &s->rows[s->rank][s->request->graph.count - 1];
    const bool has_share = output->own[0] < output->own[1];
    *out = program_copy_of(one);
    s->out = out;
    free(out->steps);
    out->steps = replay_room((int64_t)one->step_count * 2 * REPLAY_MOST_RANKS, sizeof *out->steps);
    out->program.steps = out->steps;
    out->program.step_count = out->sections[0].steps = 0;
    out->program.slice_count = out->sections[0].slices = has_share ? one->slice_count : 0;
    for (int32_t i = 0; i < out->program.slice_count; i++) {
        shard_slice(s, &out->slices[i]);
    }
    for (int32_t i = 0; i < one->step_count; i++) {
        if (has_share || one->steps[i].op == HY3D_STEP_REDUCE) {
            shard_step(s, one->steps[i]);
        }
    }
}

/* The candidate says what is replayed. */
static void take_figures(const hy3d_schedule_request *request, shards *to)
{
    replay_verdict verdict;
    replay_ranks(request, to->programs, &verdict);
    for (int32_t rank = 0; rank < to->ranks; rank++) {
        hy3d_candidate *const candidate = &to->of[rank].program.candidate;
        candidate->device_bytes = verdict.device_bytes;
        candidate->host_bytes = verdict.host_bytes;
        candidate->stored_bytes = verdict.stored_bytes;
        candidate->loaded_bytes = verdict.loaded_bytes;
        candidate->sent_bytes = verdict.sent_bytes;
        candidate->macs = verdict.macs;
        candidate->steps = verdict.steps;
        candidate->seconds += (double)verdict.sent_bytes / request->link_bytes_per_second;
    }
}

/* Not to be moved afterwards. */
static void shards_make(const hy3d_schedule_request *request, const hy3d_program *one, shards *out)
{
    const hy3d_graph *const graph = &request->graph;
    const int32_t nodes[2] = {0, graph->count - 1};
    sharder s = {.request = request, .one = one};
    out->ranks = request->ranks;
    s.values = replay_values_make(
        graph, nodes[0], nodes[1], (hy3d_size){graph->nodes[0].channels, request->size[0],
                                               request->size[1], request->size[2]});
    for (int32_t rank = 0; rank < request->ranks; rank++) {
        s.rows[rank] = replay_rows_make(graph, &s.values, nodes, rank, request->ranks);
    }
    for (s.rank = 0; s.rank < request->ranks; s.rank++) {
        s.unlike = -1;
        shard_rank(&s, &out->of[s.rank]);
        out->unlike[s.rank] = s.unlike;
        out->programs[s.rank] = &out->of[s.rank].program;
    }
    for (int32_t rank = 0; rank < request->ranks; rank++) {
        free(s.rows[rank]);
    }
    replay_values_free(&s.values);
}

static void shards_free(shards *from)
{
    for (int32_t rank = 0; rank < from->ranks; rank++) {
        program_copy_free(&from->of[rank]);
    }
}

static void shards_copy(const shards *from, shards *out)
{
    out->ranks = from->ranks;
    for (int32_t rank = 0; rank < from->ranks; rank++) {
        out->of[rank] = program_copy_of(&from->of[rank].program);
        out->programs[rank] = &out->of[rank].program;
        out->unlike[rank] = from->unlike[rank];
    }
}

/* One of the SENDs and RECVs at random; -1: there is none. */
static int32_t any_link(test_random *random, const program_copy *of)
{
    int32_t links[2048], count = 0;
    for (int32_t i = 0; i < of->program.step_count && count < 2048; i++) {
        links[count] = i;
        count += of->steps[i].op >= HY3D_STEP_SEND;
    }
    return count == 0 ? -1 : links[test_between(random, 0, count - 1)];
}

/* Another peer, rows or frames, or none of it. */
static bool damage_link(test_random *random, program_copy *copy)
{
    const int32_t at = any_link(random, copy);
    if (at < 0) {
        return false;
    }
    hy3d_step *const step = &copy->steps[at];
    switch (test_between(random, 0, 4)) {
    case 0:
        step->peer += test_between(random, 0, 1) ? 1 : -1;
        return true;
    case 1:
        step->op = HY3D_STEP_SEND + HY3D_STEP_RECV - step->op;
        return true;
    case 2:
        step->rows[0]--;
        step->rows[1]--;
        return true;
    case 3:
        step->frames[test_between(random, 0, 1)]++;
        return true;
    default:
        return damage_leave_out(copy, copy->sections, at);
    }
}

/* The SEND to this rank behind so many others. */
static int32_t find_send(const program_copy *of, int32_t peer, int32_t number)
{
    int32_t at = 0;
    while (of->steps[at].op != HY3D_STEP_SEND || of->steps[at].peer != peer || number-- > 0) {
        at++;
    }
    return at;
}

/* Whether the node's value is read by one convolution, or attention of single frames, alone. */
static bool has_one_reader(const hy3d_graph *graph, int32_t value)
{
    int32_t readers = 0;
    for (int32_t i = 0; i < graph->count; i++) {
        const hy3d_node *const node = &graph->nodes[i];
        const bool is_attention =
            node->op == HY3D_OP_ATTENTION && node->span == HY3D_SPAN_FRAME;
        readers += node->source == value && (node->op == HY3D_OP_CONV || is_attention);
    }
    return readers == 1;
}

/* Whether rows that the slice lacks are missed: it is stored, trimmed, or read beyond own rows. */
static bool is_missed(const hy3d_graph *graph, const program_copy *of, int32_t slice)
{
    const int32_t value = of->slices[slice].node;
    const bool is_keys = of->slices[slice].is_keys;
    for (int32_t i = 0; i < of->program.step_count; i++) {
        const hy3d_step *const step = &of->steps[i];
        const int32_t *const refs = of->refs + step->first_ref;
        const hy3d_node *const node = &graph->nodes[step->node];
        const bool reads_all =
            step->op == HY3D_STEP_TRIM ||
            (has_one_reader(graph, value) &&
             (step->op == HY3D_STEP_CONV ||
              (step->op == HY3D_STEP_ATTEND && node->span == HY3D_SPAN_FRAME)));
        bool reads = is_keys ? step->op == HY3D_STEP_ATTEND && step->node == value
                             : step->op == HY3D_STEP_STORE && step->slice == slice;
        for (int32_t k = 0; k < step->sources && reads_all && !is_keys; k++) {
            reads = reads || refs[k] == slice;
        }
        if (reads) {
            return true;
        }
    }
    return false;
}

/* A RECV and its SEND are left out, and the figures say so. */
static bool leave_out_both(test_random *random, const hy3d_graph *graph, shards *all, int32_t rank)
{
    const int32_t at = any_link(random, &all->of[rank]);
    if (at < 0 || all->of[rank].steps[at].op != HY3D_STEP_RECV) {
        return false;
    }
    const int32_t peer = all->of[rank].steps[at].peer;
    int32_t number = 0;
    for (int32_t i = 0; i < at; i++) {
        const hy3d_step *const step = &all->of[rank].steps[i];
        number += step->op == HY3D_STEP_RECV && step->peer == peer;
    }
    const bool is = is_missed(graph, &all->of[rank], all->of[rank].steps[at].slice);
    damage_leave_out(&all->of[rank], all->of[rank].sections, at);
    damage_leave_out(&all->of[peer], all->of[peer].sections,
                     find_send(&all->of[peer], rank, number));
    return is;
}

static bool write_over(shards *all, int32_t rank)
{
    if (all->unlike[rank] < 0) {
        return false;
    }
    all->of[rank].steps[all->unlike[rank]].flags |= HY3D_STEP_OVERWRITE;
    return true;
}

static void damage_shards(const hy3d_schedule_request *request, const shards *from,
                          test_random *random, long *objections)
{
    for (int i = 0; i < 12; i++) {
        shards copy;
        replay_verdict verdict;
        shards_copy(from, &copy);
        const uint64_t before = random->state;
        const int32_t rank = (int32_t)test_between(random, 0, from->ranks - 1);
        program_copy *const damaged = &copy.of[rank];
        const bool has_steps = damaged->program.slice_count > 0;
        const int64_t kind = has_steps ? test_between(random, 0, 3) : 4;
        const bool does_harm = kind == 0   ? damage_link(random, damaged)
                               : kind == 1 ? damage_program(random, damaged)
                               : kind == 2
                                   ? leave_out_both(random, &request->graph, &copy, rank)
                                   : kind == 3 && write_over(&copy, rank);
        for (int32_t other = 0; other < copy.ranks; other++) {
            copy.of[other].program.candidate = damaged->program.candidate;
        }
        if (kind > 1) {
            take_figures(request, &copy);
        }
        const bool is_accepted = replay_ranks(request, copy.programs, &verdict);
        ck_assert_msg(!does_harm || !is_accepted, "damage %d to rank %d with numbers from %llx is "
                      "accepted", i, rank, (unsigned long long)before);
        *objections += !is_accepted;
        shards_free(&copy);
    }
}

/* Sums of what the programs had. */
typedef struct sums {
    long programs, sends, empty, objections;
} sums;

static void count(const shards *of, sums *to)
{
    to->programs++;
    for (int32_t rank = 0; rank < of->ranks; rank++) {
        to->empty += of->of[rank].program.slice_count == 0;
        for (int32_t i = 0; i < of->of[rank].program.step_count; i++) {
            to->sends += of->of[rank].steps[i].op == HY3D_STEP_SEND;
        }
    }
}

static void judge_shards(graphs_case *made, const hy3d_program *one, test_random *random,
                         uint64_t number, sums *to)
{
    shards of;
    replay_verdict verdict;
    made->request.ranks = (int32_t)test_between(random, 2, 6);
    made->request.device_budget = made->request.host_budget = 0;
    shards_make(&made->request, one, &of);
    take_figures(&made->request, &of);
    ck_assert_msg(replay_ranks(&made->request, of.programs, &verdict), "case %llu, %d ranks: %s",
                  (unsigned long long)number, made->request.ranks, verdict.text);
    count(&of, to);
    damage_shards(&made->request, &of, random, &to->objections);
    shards_free(&of);
    made->request.ranks = 1;
}

START_TEST(test_shards_of_compiled_programs_are_accepted_and_damage_to_them_is_not)
{
    test_random random = test_rng(20270102);
    hy3d_context *const context = test_context("ref", 1);
    sums all = {0};
    for (uint64_t i = 0; i < 400; i++) {
        graphs_case made;
        graphs_seed seed;
        hy3d_schedule *schedule = NULL;
        graphs_random_shared(graphs_numbers_of(&seed, i), &made);
        made.request.ranks = 1;
        made.request.strategies = 1U << HY3D_STRATEGY_STREAMED;
        made.request.device_budget = i % 2 == 0 ? 0 : tight_budget(context, &made);
        if (hy3d_schedule_compile(context, &made.request, &schedule) == HY3D_OK) {
            judge_shards(&made, hy3d_schedule_program(schedule), &random, i, &all);
        }
        hy3d_schedule_destroy(context, schedule);
    }
    ck_assert_int_gt(all.sends, 5000);
    ck_assert_int_gt(all.empty, 50);
    ck_assert_int_gt(all.objections, 1500);
    test_count("programs shared by ranks and replayed", all.programs);
    test_count("SENDs in them", all.sends);
    test_count("ranks of them without a share", all.empty);
    test_count("damaged programs of ranks objected to", all.objections);
    hy3d_context_destroy(context);
}
END_TEST

TCase *hy3d_schedule_shards_cases(void)
{
    TCase *const tests = tcase_create("shards");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests,
                   test_shards_of_compiled_programs_are_accepted_and_damage_to_them_is_not);
    return tests;
}
