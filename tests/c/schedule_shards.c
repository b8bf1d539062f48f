/* Compiled programs of several ranks are accepted by the replayer, and damage to them is not. */
#include "schedule_support.h"

#include <stdlib.h>
#include <string.h>

#include "replay_walk.h"

/* One program for each rank. */
typedef struct shards {
    int32_t ranks;
    program_copy of[REPLAY_MOST_RANKS];
    const hy3d_program *programs[REPLAY_MOST_RANKS];
} shards;

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
        const bool is_beside = candidate->on_host && !request->is_host;
        candidate->margin_bytes =
            replay_margin(request, is_beside ? candidate->host_bytes : candidate->device_bytes);
        candidate->seconds += (double)verdict.sent_bytes / request->link_bytes_per_second;
    }
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
    }
}

/* Compiles the request for each rank. Whether there are programs; `out` is not to be moved. */
static bool shards_make(hy3d_context *context, graphs_case *made, shards *out)
{
    out->ranks = 0;
    for (int32_t rank = 0; rank < made->request.ranks; rank++) {
        hy3d_schedule *schedule = NULL;
        made->request.rank = rank;
        if (hy3d_schedule_compile(context, &made->request, &schedule) == HY3D_OK) {
            out->of[rank] = program_copy_of(hy3d_schedule_program(schedule));
            out->programs[rank] = &out->of[rank].program;
            out->ranks++;
        }
        hy3d_schedule_destroy(context, schedule);
    }
    made->request.rank = 0;
    ck_assert_msg(out->ranks == 0 || out->ranks == made->request.ranks, "%d of %d ranks compile",
                  out->ranks, made->request.ranks);
    return out->ranks > 0;
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

/* A slice of other rows, freed by the step, is written over. */
static bool write_over(shards *all, int32_t rank)
{
    program_copy *const of = &all->of[rank];
    for (int32_t i = 0; i < of->program.step_count; i++) {
        hy3d_step *const step = &of->steps[i];
        const int32_t *const refs = of->refs + step->first_ref;
        const bool adds = step->op == HY3D_STEP_ADD;
        if (step->slice < 0 || (!adds && (step->op != HY3D_STEP_CONV || step->others == 0))) {
            continue;
        }
        const int32_t target = adds ? refs[0] : refs[step->sources];
        const int64_t *const rows = of->slices[target].rows;
        const int64_t *const made = of->slices[step->slice].rows;
        const bool is_same = rows[0] == made[0] && rows[1] == made[1];
        if (!is_same && (step->flags & HY3D_STEP_OVERWRITE) == 0) {
            step->flags |= HY3D_STEP_OVERWRITE;
            return true;
        }
    }
    return false;
}

/* Of a rank without rows: a step is left out, or damaged. */
static bool damage_idle(test_random *random, program_copy *copy, bool leaves_out)
{
    const int32_t at = (int32_t)test_between(random, 0, copy->program.step_count - 1);
    return leaves_out ? damage_leave_out(copy, copy->sections, at)
                      : damage_step(random, copy, at);
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
        const int64_t kind = has_steps ? test_between(random, 0, 3) : 4 + test_between(random, 0, 1);
        const bool does_harm = kind == 0   ? damage_link(random, damaged)
                               : kind == 1 ? damage_program(random, damaged)
                               : kind == 2
                                   ? leave_out_both(random, &request->graph, &copy, rank)
                               : kind == 3 ? write_over(&copy, rank)
                                           : damage_idle(random, damaged, kind == 4);
        for (int32_t other = 0; other < copy.ranks; other++) {
            copy.of[other].program.candidate = damaged->program.candidate;
        }
        if (kind > 1 && kind < 4) {
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
    long programs, sends, empty, unequal, objections;
} sums;

static void count(const shards *of, sums *to)
{
    to->programs++;
    to->unequal += of->programs[0]->weights[0] > 1 || of->programs[0]->weights[1] > 1;
    for (int32_t rank = 0; rank < of->ranks; rank++) {
        to->empty += of->of[rank].program.slice_count == 0;
        for (int32_t i = 0; i < of->of[rank].program.step_count; i++) {
            to->sends += of->of[rank].steps[i].op == HY3D_STEP_SEND;
        }
    }
}

static void judge_shards(const hy3d_schedule_request *request, const shards *of,
                         test_random *random, uint64_t number, sums *to)
{
    replay_verdict verdict;
    ck_assert_msg(replay_ranks(request, of->programs, &verdict), "case %llu, %d ranks: %s",
                  (unsigned long long)number, of->ranks, verdict.text);
    count(of, to);
    damage_shards(request, of, random, &to->objections);
}

START_TEST(test_programs_of_ranks_are_accepted_and_damage_to_them_is_not)
{
    test_random random = test_rng(20270102);
    hy3d_context *const context = test_context("ref", 1);
    sums all = {0};
    for (uint64_t i = 0; i < 400; i++) {
        graphs_case made;
        graphs_seed seed;
        shards of;
        graphs_random_shared(graphs_numbers_of(&seed, i), &made);
        made.request.strategies = 1U << HY3D_STRATEGY_STREAMED;
        made.request.device_budget = i % 2 == 0 ? 0 : tight_budget(context, &made);
        int64_t budgets[REPLAY_MOST_RANKS];
        for (int32_t rank = 0; rank < made.request.ranks; rank++) {
            const int64_t budget = made.request.device_budget;
            budgets[rank] = budget == 0 ? 0 : budget - budget / 8 + test_between(&random, 0, budget);
        }
        made.request.device_budgets = i % 4 == 1 ? budgets : NULL;
        if (shards_make(context, &made, &of)) {
            judge_shards(&made.request, &of, &random, i, &all);
            shards_free(&of);
        }
    }
    ck_assert_int_gt(all.sends, 5000);
    ck_assert_int_gt(all.empty, 50);
    ck_assert_int_gt(all.objections, 1500);
    test_count("programs of several ranks replayed", all.programs);
    test_count("SENDs in them", all.sends);
    test_count("ranks of them without a share", all.empty);
    test_count("of them shared as budgets are", all.unequal);
    test_count("damaged programs of ranks objected to", all.objections);
    hy3d_context_destroy(context);
}
END_TEST

TCase *hy3d_schedule_shards_cases(void)
{
    TCase *const tests = tcase_create("shards");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, test_programs_of_ranks_are_accepted_and_damage_to_them_is_not);
    return tests;
}
