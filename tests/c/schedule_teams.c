/* Programs of several ranks: small graphs whose steps are written out below, and what all ranks of
 * any graph must agree on. Each rank's own program is judged by replay.h. */
#include "schedule_support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHARES = 6, TEXT = 2400 };

/* --- small graphs ----------------------------------------------------------------------------- */

/* A kernel of 3 rows, `dilation` apart, as many rows as its source has. */
static hy3d_node rows_conv(int32_t source, int32_t dilation)
{
    return (hy3d_node){.op = HY3D_OP_CONV, .source = source, .other = -1, .channels = 1,
                       .kernel = {1, 3, 1}, .stride = {1, 1, 1}, .dilation = {1, dilation, 1},
                       .up = {1, 1, 1}, .before = {0, dilation, 0}, .after = {0, dilation, 0},
                       .shuffle = {1, 1, 1}, .groups = 1};
}

static hy3d_node attention(int32_t source, int32_t span)
{
    return (hy3d_node){.op = HY3D_OP_ATTENTION, .source = source, .other = -1, .channels = 1,
                       .span = span, .heads = 1, .width = 1};
}

/* The input, `count` nodes behind it, the output; of one column and one byte an element. */
static void make(graphs_case *made, const hy3d_node *nodes, int32_t count, int64_t frames,
                 int64_t rows)
{
    memset(made, 0, sizeof *made);
    made->nodes[0] = (hy3d_node){.op = HY3D_OP_INPUT, .source = -1, .other = -1, .channels = 1};
    memcpy(&made->nodes[1], nodes, (size_t)count * sizeof *nodes);
    made->nodes[count + 1] = (hy3d_node){.op = HY3D_OP_OUTPUT, .source = count, .other = -1,
                                         .channels = nodes[count - 1].channels};
    made->request.graph.count = count + 2;
    graphs_request(made, frames, rows, 1);
    made->request.element_bytes = made->request.input_bytes = 1;
    made->request.link_bytes_per_second = 1e9;
}

/* --- what a rank does, as text ---------------------------------------------------------------- */

/* "conv 1 0-3": rows of each step; of a SEND or a RECV also the other rank. */
static void describe(const hy3d_program *program, char text[TEXT])
{
    size_t used = 0;
    text[0] = '\0';
    for (int32_t i = 0; i < program->step_count && used < TEXT; i++) {
        const hy3d_step *const step = &program->steps[i];
        const char *const way = step->op == HY3D_STEP_SEND ? " to " : " from ";
        char peer[24] = "";
        if (step->peer >= 0) {
            snprintf(peer, sizeof peer, "%s%d", way, step->peer);
        }
        used += (size_t)snprintf(text + used, TEXT - used, "%s%s %d %d-%d%s", i == 0 ? "" : ", ",
                                 hy3d_step_op_name(step->op), step->node, (int)step->rows[0],
                                 (int)step->rows[1], peer);
    }
    ck_assert_uint_lt(used, TEXT);
}

static hy3d_schedule *compiled(hy3d_context *context, graphs_case *made, int32_t rank,
                               int32_t ranks)
{
    hy3d_schedule *schedule = NULL;
    made->request.rank = rank;
    made->request.ranks = ranks;
    ck_assert_ok(hy3d_schedule_compile(context, &made->request, &schedule));
    return schedule;
}

static void expect(hy3d_context *context, graphs_case *made, int32_t rank, int32_t ranks,
                   const char *steps)
{
    char text[TEXT];
    hy3d_schedule *const schedule = compiled(context, made, rank, ranks);
    describe(hy3d_schedule_program(schedule), text);
    ck_assert_str_eq(text, steps);
    hy3d_schedule_destroy(context, schedule);
}

START_TEST(test_two_ranks_send_each_other_the_row_at_their_border)
{
    hy3d_context *const context = test_context("ref", 1);
    const hy3d_node nodes[] = {rows_conv(0, 1), rows_conv(1, 1)};
    graphs_case made;
    make(&made, nodes, 2, 1, 6);
    expect(context, &made, 0, 2,
           "enter 0 0-4, conv 1 0-3, send 1 2-3 to 1, recv 1 3-4 from 1, conv 2 0-3, emit 3 0-3");
    expect(context, &made, 1, 2,
           "enter 0 2-6, conv 1 3-6, send 1 3-4 to 0, recv 1 2-3 from 0, conv 2 3-6, emit 3 3-6");
    hy3d_schedule *const schedule = compiled(context, &made, 1, 2);
    const hy3d_program *const program = hy3d_schedule_program(schedule);
    ck_assert_int_eq(program->slice_count, 3);
    ck_assert_int_eq(program->slices[1].rows[0], 2);
    ck_assert_int_eq(program->slices[1].bytes, 4);
    ck_assert_int_eq(program->slices[2].bytes, 3);
    ck_assert_int_eq(program->candidate.sent_bytes, 2);
    ck_assert_int_eq(program->candidate.macs, 2 * 6 * 3);
    ck_assert_int_eq(program->candidate.steps, 12);
    hy3d_schedule_destroy(context, schedule);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_the_middle_one_of_three_ranks_sends_both_ways)
{
    hy3d_context *const context = test_context("ref", 1);
    const hy3d_node nodes[] = {rows_conv(0, 1), rows_conv(1, 1)};
    graphs_case made;
    make(&made, nodes, 2, 1, 7); /* 2, 2 and 3 rows */
    expect(context, &made, 0, 3,
           "enter 0 0-3, conv 1 0-2, send 1 1-2 to 1, recv 1 2-3 from 1, conv 2 0-2, emit 3 0-2");
    expect(context, &made, 1, 3,
           "enter 0 1-5, conv 1 2-4, send 1 2-3 to 0, send 1 3-4 to 2, recv 1 1-2 from 0, "
           "recv 1 4-5 from 2, conv 2 2-4, emit 3 2-4");
    expect(context, &made, 2, 3,
           "enter 0 3-7, conv 1 4-7, send 1 4-5 to 1, recv 1 3-4 from 1, conv 2 4-7, emit 3 4-7");
    hy3d_context_destroy(context);
}
END_TEST

/* Rows 2 apart of single rows: two ranks on either side are read. Ranks 0 and 3 have none. */
START_TEST(test_a_halo_larger_than_a_share_comes_from_ranks_further_off)
{
    hy3d_context *const context = test_context("ref", 1);
    const hy3d_node nodes[] = {rows_conv(0, 1), rows_conv(1, 2)};
    graphs_case made;
    make(&made, nodes, 2, 1, 4);
    expect(context, &made, 0, 6, "emit 3 0-0");
    expect(context, &made, 3, 6, "emit 3 2-2");
    expect(context, &made, 1, 6,
           "enter 0 0-2, conv 1 0-1, send 1 0-1 to 2, send 1 0-1 to 4, recv 1 1-2 from 2, "
           "recv 1 2-3 from 4, conv 2 0-1, emit 3 0-1");
    expect(context, &made, 5, 6,
           "enter 0 2-4, conv 1 3-4, send 1 3-4 to 2, send 1 3-4 to 4, recv 1 1-2 from 2, "
           "recv 1 2-3 from 4, conv 2 3-4, emit 3 3-4");
    hy3d_context_destroy(context);
}
END_TEST

/* 5 rows, 10 of them up-sampled, 3 with a stride: nothing divides them. */
START_TEST(test_rows_that_cannot_be_shared_are_the_last_rank_s)
{
    hy3d_context *const context = test_context("ref", 1);
    hy3d_node nodes[] = {rows_conv(0, 1), rows_conv(1, 1)};
    nodes[1].stride[1] = 2;
    nodes[1].norm = HY3D_NORM_GROUP;
    graphs_case made;
    make(&made, nodes, 2, 1, 5);
    expect(context, &made, 0, 2, "reduce 2 0-0, emit 3 0-0");
    expect(context, &made, 1, 2, "enter 0 0-5, conv 1 0-5, reduce 2 0-3, conv 2 0-3, emit 3 0-3");
    hy3d_context_destroy(context);
}
END_TEST

/* 8 rows to 4 and back to 8: a shuffle's rows are not torn apart. */
START_TEST(test_rows_are_shared_before_the_shuffle)
{
    hy3d_context *const context = test_context("ref", 1);
    hy3d_node nodes[] = {rows_conv(0, 1), rows_conv(1, 1)};
    nodes[0].stride[1] = 2;
    nodes[1].shuffle[1] = 2;
    graphs_case made;
    make(&made, nodes, 2, 1, 8);
    expect(context, &made, 0, 3,
           "enter 0 0-2, conv 1 0-1, send 1 0-1 to 1, recv 1 1-2 from 1, conv 2 0-2, emit 3 0-2");
    expect(context, &made, 1, 3,
           "enter 0 1-4, conv 1 1-2, send 1 1-2 to 0, send 1 1-2 to 2, recv 1 0-1 from 0, "
           "recv 1 2-3 from 2, conv 2 2-4, emit 3 2-4");
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_up_sampled_rows_need_half_as_many)
{
    hy3d_context *const context = test_context("ref", 1);
    hy3d_node nodes[] = {rows_conv(0, 1), rows_conv(1, 1)};
    nodes[1].up[1] = 2;
    graphs_case made;
    make(&made, nodes, 2, 1, 4);
    expect(context, &made, 1, 2,
           "enter 0 1-4, conv 1 2-4, send 1 2-3 to 0, recv 1 1-2 from 0, conv 2 4-8, emit 3 4-8");
    hy3d_context_destroy(context);
}
END_TEST

/* Of a frame's attention all rows of the source; of one over all frames the keys as they come. */
START_TEST(test_keys_of_all_rows_are_gathered)
{
    hy3d_context *const context = test_context("ref", 1);
    hy3d_node nodes[] = {rows_conv(0, 1), attention(1, HY3D_SPAN_FRAME)};
    graphs_case made;
    make(&made, nodes, 2, 1, 4);
    expect(context, &made, 0, 2,
           "enter 0 0-3, conv 1 0-2, send 1 0-2 to 1, recv 1 2-4 from 1, attend 2 0-2, emit 3 0-2");
    hy3d_schedule *const schedule = compiled(context, &made, 0, 2);
    /* Queries and results of 2 rows, keys and values of 4, 2 * 2 * 4 products. */
    ck_assert_int_eq(hy3d_schedule_program(schedule)->steps[4].macs, 2 * 2 + 2 * 4 + 2 * 2 * 4);
    hy3d_schedule_destroy(context, schedule);
    made.nodes[2].span = HY3D_SPAN_CAUSAL;
    made.request.size[0] = 2;
    expect(context, &made, 1, 2,
           "enter 0 1-4, conv 1 2-4, keys 2 2-4, send 2 2-4 to 0, recv 2 0-2 from 0, attend 2 2-4, "
           "emit 3 2-4, enter 0 1-4, conv 1 2-4, keys 2 2-4, send 2 2-4 to 0, recv 2 0-2 from 0, "
           "attend 2 2-4, emit 3 2-4");
    hy3d_context_destroy(context);
}
END_TEST

/* --- rows that are read -------------------------------------------------------------------------- */

/* "conv 1 0-3 +1 -1": rows of its source that each step reads, and how they are padded. */
static void expect_reads(hy3d_context *context, graphs_case *made, int32_t rank, int32_t ranks,
                         const char *reads)
{
    char text[TEXT] = "";
    size_t used = 0;
    hy3d_schedule *const schedule = compiled(context, made, rank, ranks);
    const hy3d_program *const program = hy3d_schedule_program(schedule);
    for (int32_t i = 0; i < program->step_count && used < TEXT; i++) {
        const hy3d_step *const step = &program->steps[i];
        const int64_t *const read = step->read_rows, *const padding = step->row_padding;
        char padded[48] = "";
        if (read[0] == read[1]) {
            ck_assert(padding[0] == 0 && padding[1] == 0);
            continue;
        }
        if (step->op == HY3D_STEP_CONV) {
            snprintf(padded, sizeof padded, " %+d %+d", (int)padding[0], (int)padding[1]);
        }
        used += (size_t)snprintf(text + used, TEXT - used, "%s%s %d %d-%d%s",
                                 used == 0 ? "" : ", ", hy3d_step_op_name(step->op), step->node,
                                 (int)read[0], (int)read[1], padded);
    }
    ck_assert_str_eq(text, reads);
    hy3d_schedule_destroy(context, schedule);
}

/* On one device all rows, though a stride passes over the last. */
START_TEST(test_one_device_reads_all_rows_with_the_padding_of_the_node)
{
    hy3d_context *const context = test_context("ref", 1);
    hy3d_node nodes[] = {rows_conv(0, 1), attention(1, HY3D_SPAN_CAUSAL)};
    graphs_case made;
    nodes[0].stride[1] = 2;
    nodes[0].after[1] = 0;
    make(&made, nodes, 2, 1, 6);
    expect_reads(context, &made, 0, 1, "conv 1 0-6 +1 +0, keys 2 0-3, attend 2 0-3");
    made.nodes[1].before[1] = 0;
    expect_reads(context, &made, 0, 1, "conv 1 0-6 +0 +0, keys 2 0-2, attend 2 0-2");
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_up_sampled_rows_that_no_tap_touches_are_cropped)
{
    hy3d_context *const context = test_context("ref", 1);
    hy3d_node nodes[] = {rows_conv(0, 1), rows_conv(1, 1)};
    graphs_case made;
    nodes[1].up[1] = 2;
    make(&made, nodes, 2, 1, 6);
    expect_reads(context, &made, 0, 3, "conv 1 0-3 +1 +0, conv 2 0-3 +1 -1");
    expect_reads(context, &made, 1, 3, "conv 1 1-5 +0 +0, conv 2 1-5 -1 -1");
    expect_reads(context, &made, 2, 3, "conv 1 3-6 +0 +1, conv 2 3-6 -1 +1");
    /* Two rows of each four are between the taps of neighbours. */
    made.nodes[2].stride[1] = 4;
    made.nodes[2].kernel[1] = 2;
    made.nodes[2].before[1] = made.nodes[2].after[1] = 0;
    expect_reads(context, &made, 1, 3, "conv 1 1-5 +0 +0, conv 2 2-3 +0 +0");
    hy3d_context_destroy(context);
}
END_TEST

/* A kernel of five rows, 2 apart of three: padding by four is seen with a row of the picture. */
START_TEST(test_rows_that_may_see_padding_alone_are_not_shared)
{
    hy3d_context *const context = test_context("ref", 1);
    for (int i = 0; i < 4; i++) {
        hy3d_node node = rows_conv(0, 2);
        graphs_case made;
        hy3d_schedule *schedule = NULL;
        node.before[1] = i == 1 ? 5 : 4;
        node.after[1] = i == 2 ? 5 : 4;
        make(&made, &node, 1, 1, 16); /* 20 rows, or 21: shared by 4, or not at all */
        made.request.ranks = i < 3 ? 2 : 1;
        ck_assert_status(hy3d_schedule_compile(context, &made.request, &schedule),
                         i % 3 == 0 ? HY3D_OK : HY3D_ERR_UNSUPPORTED);
        hy3d_schedule_destroy(context, schedule);
        if (i == 0) {
            expect_reads(context, &made, 0, 2, "conv 1 0-10 +4 +0");
            expect_reads(context, &made, 1, 2, "conv 1 6-16 +0 +4");
        }
    }
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_a_trim_reads_the_rows_of_its_slice)
{
    hy3d_context *const context = test_context("ref", 1);
    hy3d_node nodes[] = {rows_conv(0, 1), rows_conv(1, 1)};
    long trims = 0;
    for (int32_t ranks = 1; ranks < 3; ranks++) {
        graphs_case made;
        nodes[1].kernel[0] = 3;
        nodes[1].before[0] = 2;
        make(&made, nodes, 2, 12, 4);
        made.request.device.chunks[0] = 6;
        hy3d_schedule *const schedule = compiled(context, &made, 0, ranks);
        const hy3d_program *const program = hy3d_schedule_program(schedule);
        for (int32_t i = 0; i < program->step_count; i++) {
            const hy3d_step *const step = &program->steps[i];
            if (step->op == HY3D_STEP_TRIM) {
                ck_assert_mem_eq(step->read_rows, program->slices[step->slice].rows,
                                 sizeof step->read_rows);
                trims++;
            }
        }
        hy3d_schedule_destroy(context, schedule);
    }
    ck_assert_int_gt(trims, 1);
    hy3d_context_destroy(context);
}
END_TEST

/* A block as in Wan's decoder: x, a convolution of three frames of it, x added to another's result.
 * 24 frames go eight at a time, and the next eight read the last two of x. */
START_TEST(test_a_residual_is_written_over_once_what_is_read_again_is_copied)
{
    hy3d_context *const context = test_context("ref", 1);
    hy3d_node nodes[] = {rows_conv(0, 1), rows_conv(1, 1), rows_conv(2, 1)};
    nodes[1].kernel[0] = 3;
    nodes[1].before[0] = 2;
    nodes[2].other = 1;
    for (int32_t ranks = 1; ranks < 3; ranks++) {
        graphs_case made;
        make(&made, nodes, 3, 24, 4);
        made.request.device.chunks[0] = 8;
        made.request.strategies = 1u << HY3D_STRATEGY_STREAMED;
        hy3d_schedule *const schedule = compiled(context, &made, 0, ranks);
        const hy3d_program *const program = hy3d_schedule_program(schedule);
        int32_t copied = 0, written_over = 0;
        for (int32_t i = 0; i < program->step_count; i++) {
            const hy3d_step *const step = &program->steps[i];
            const int32_t *const refs = &program->refs[step->first_ref];
            const bool is_sum = step->op == HY3D_STEP_CONV && step->others > 0;
            written_over += is_sum && (step->flags & HY3D_STEP_OVERWRITE) != 0;
            if (step->op == HY3D_STEP_TRIM && step->frees == 0) {
                const hy3d_step *const next = step + 1;
                const int32_t *const theirs = &program->refs[next->first_ref];
                copied++;
                ck_assert_int_eq(step->node, 1);
                ck_assert_int_eq(next->node, 3);
                ck_assert_int_eq(next->others, 1);
                ck_assert_int_eq(theirs[next->sources], refs[0]);
                ck_assert_int_eq(theirs[next->sources + 1], refs[0]); /* freed */
                ck_assert_int_eq(next->flags & HY3D_STEP_OVERWRITE, HY3D_STEP_OVERWRITE);
                ck_assert_int_eq(step->frames[1] - step->frames[0], 2);
            }
        }
        /* A rank's x has a row of the other's beside its own, which the sum has not. */
        ck_assert_int_eq(copied, ranks == 1 ? 2 : 0);
        ck_assert_int_eq(written_over, ranks == 1 ? 3 : 0);
        hy3d_schedule_destroy(context, schedule);
    }
    hy3d_context_destroy(context);
}
END_TEST

/* --- weights -------------------------------------------------------------------------------------- */

START_TEST(test_a_rank_of_more_weight_has_more_rows)
{
    static const int32_t weights[] = {1, 3, 2};
    hy3d_context *const context = test_context("ref", 1);
    const hy3d_node nodes[] = {rows_conv(0, 1), rows_conv(1, 1)};
    graphs_case made;
    make(&made, nodes, 2, 1, 13); /* 13 * 1 / 6 = 2, 13 * 4 / 6 = 8 */
    made.request.weights = weights;
    expect(context, &made, 0, 3,
           "enter 0 0-3, conv 1 0-2, send 1 1-2 to 1, recv 1 2-3 from 1, conv 2 0-2, emit 3 0-2");
    expect(context, &made, 1, 3,
           "enter 0 1-9, conv 1 2-8, send 1 2-3 to 0, send 1 7-8 to 2, recv 1 1-2 from 0, "
           "recv 1 8-9 from 2, conv 2 2-8, emit 3 2-8");
    expect(context, &made, 2, 3,
           "enter 0 7-13, conv 1 8-13, send 1 8-9 to 1, recv 1 7-8 from 1, conv 2 8-13, "
           "emit 3 8-13");
    hy3d_context_destroy(context);
}
END_TEST

/* 8 rows, of which rank 1 has 6: three frames of these, padded, are 24 bytes, on whichever rank. */
START_TEST(test_slices_are_as_large_as_the_largest_share_allows)
{
    static const int32_t weights[] = {1, 3};
    hy3d_context *const context = test_context("ref", 1);
    const hy3d_node node = rows_conv(0, 1);
    graphs_case made;
    make(&made, &node, 1, 6, 8);
    made.nodes[1].norm = HY3D_NORM_GROUP; /* by layers */
    made.request.weights = weights;
    made.request.device.slice_bytes[0] = 24;
    made.request.device.slice_bytes[1] = 0;
    for (int32_t rank = 0; rank < 2; rank++) {
        int64_t most = 0;
        hy3d_schedule *const schedule = compiled(context, &made, rank, 2);
        const hy3d_program *const program = hy3d_schedule_program(schedule);
        for (int32_t i = 0; i < program->step_count; i++) {
            const hy3d_step *const step = &program->steps[i];
            const int64_t frames = step->frames[1] - step->frames[0];
            most = step->op == HY3D_STEP_CONV && frames > most ? frames : most;
        }
        ck_assert_int_eq(most, 3);
        hy3d_schedule_destroy(context, schedule);
    }
    hy3d_context_destroy(context);
}
END_TEST

/* The array is the caller's again once a schedule is there, whatever a fallback compiles. */
START_TEST(test_weights_are_copied)
{
    int32_t weights[] = {1, 3};
    hy3d_context *const context = test_context("ref", 1);
    const hy3d_node node = rows_conv(0, 1);
    graphs_case made;
    hy3d_action action;
    make(&made, &node, 1, 1, 8);
    made.request.device.slice_bytes[1] = 1000;
    made.request.device.chunks[1] = 0;
    made.request.weights = weights;
    hy3d_schedule *const schedule = compiled(context, &made, 0, 2);
    weights[0] = weights[1] = -5;
    ck_assert_ok(hy3d_schedule_fallback(context, schedule, 1, HY3D_REASON_NO_KERNEL, false,
                                        &action));
    ck_assert_int_eq(action, HY3D_ACTION_BEGIN_AGAIN);
    const hy3d_program *const program = hy3d_schedule_program(schedule);
    ck_assert_int_eq(program->steps[program->step_count - 1].rows[1], 2);
    hy3d_schedule_destroy(context, schedule);
    hy3d_context_destroy(context);
}
END_TEST

/* A weight may be so large that rows times weights is not a number of 63 bits. */
START_TEST(test_large_weights_share_many_rows)
{
    static const int32_t weights[] = {INT32_MAX - 2, 1, 1};
    hy3d_context *const context = test_context("ref", 1);
    const hy3d_node node = rows_conv(0, 1);
    graphs_case made;
    make(&made, &node, 1, 1, INT64_C(1) << 38);
    made.request.weights = weights;
    /* 2^38 / (2^31 - 1) is 128 and 128 left over, of which 2^31 - 3 parts are 127. */
    const int64_t first = 128 * (INT64_C(2147483645)) + 127;
    const int64_t second = 128 * (INT64_C(2147483646)) + 127;
    const int64_t bounds[] = {0, first, second, INT64_C(1) << 38};
    for (int32_t rank = 0; rank < 3; rank++) {
        hy3d_schedule *const schedule = compiled(context, &made, rank, 3);
        const hy3d_program *const program = hy3d_schedule_program(schedule);
        const hy3d_step *const last = &program->steps[program->step_count - 1];
        ck_assert_int_eq(last->op, HY3D_STEP_EMIT);
        ck_assert_int_eq(last->rows[0], bounds[rank]);
        ck_assert_int_eq(last->rows[1], bounds[rank + 1]);
        hy3d_schedule_destroy(context, schedule);
    }
    hy3d_context_destroy(context);
}
END_TEST

/* What a request says of ranks, and whether it is one. */
typedef struct ranks_case {
    int32_t rank, ranks;
    double link;
    int32_t weights[3];
    hy3d_status status;
} ranks_case;

static void expect_statuses(const ranks_case *cases, size_t count, bool have_weights)
{
    hy3d_context *const context = test_context("ref", 1);
    const hy3d_node node = rows_conv(0, 1);
    for (size_t i = 0; i < count; i++) {
        graphs_case made;
        hy3d_schedule *schedule = NULL;
        make(&made, &node, 1, 2, 6);
        made.request.rank = cases[i].rank;
        made.request.ranks = cases[i].ranks;
        made.request.link_bytes_per_second = cases[i].link;
        made.request.weights = have_weights ? cases[i].weights : NULL;
        ck_assert_status(hy3d_schedule_compile(context, &made.request, &schedule),
                         cases[i].status);
        hy3d_schedule_destroy(context, schedule);
    }
    hy3d_context_destroy(context);
}

START_TEST(test_weights_that_are_none_are_refused)
{
    static const ranks_case cases[] = {
        {0, 3, 1e9, {1, 0, 1}, HY3D_ERR_INVALID_ARGUMENT},
        {0, 3, 1e9, {1, 1, -1}, HY3D_ERR_INVALID_ARGUMENT},
        {0, 3, 1e9, {1, 1, INT32_MAX}, HY3D_ERR_INVALID_ARGUMENT},
        {0, 3, 1e9, {INT32_MAX, INT32_MAX, INT32_MAX}, HY3D_ERR_INVALID_ARGUMENT},
        {0, 3, 1e9, {1, 1, INT32_MAX - 2}, HY3D_OK},
        {0, 2, 1e9, {1, 1, -1}, HY3D_OK},
        {0, 1, 1e9, {-1, 0, 0}, HY3D_OK}, /* of one device nobody looks at them */
        {0, 0, 1e9, {-1, 0, 0}, HY3D_OK},
    };
    expect_statuses(cases, COUNT_OF(cases), true);
}
END_TEST

START_TEST(test_ranks_out_of_their_range_are_refused)
{
    enum { MOST = HY3D_SCHEDULE_MAX_RANKS };
    static const ranks_case cases[] = {
        {2, 2, 1e9, {0}, HY3D_ERR_INVALID_ARGUMENT},
        {-1, 2, 1e9, {0}, HY3D_ERR_INVALID_ARGUMENT},
        {0, MOST + 1, 1e9, {0}, HY3D_ERR_INVALID_ARGUMENT},
        {0, 2, 0, {0}, HY3D_ERR_INVALID_ARGUMENT},
        {0, 2, -1, {0}, HY3D_ERR_INVALID_ARGUMENT},
        {0, 2, INFINITY, {0}, HY3D_ERR_INVALID_ARGUMENT},
        {0, 2, NAN, {0}, HY3D_ERR_INVALID_ARGUMENT},
        {1, 1, 1e9, {0}, HY3D_ERR_INVALID_ARGUMENT},
        {0, -2, 1e9, {0}, HY3D_ERR_INVALID_ARGUMENT},
        {MOST, MOST, 1e9, {0}, HY3D_ERR_INVALID_ARGUMENT},
        {0, 1, 0, {0}, HY3D_OK},
        {0, 0, 0, {0}, HY3D_OK},
        {MOST - 1, MOST, 1e9, {0}, HY3D_OK},
    };
    expect_statuses(cases, COUNT_OF(cases), false);
}
END_TEST

/* --- budgets of each -------------------------------------------------------------------------------- */

/* Two of 3 rows of one byte: 14 bytes, as below, and two slices of 4 with 2 throughout. */
START_TEST(test_each_rank_has_a_budget_of_its_own)
{
    static const struct {
        int64_t budgets[2];
        hy3d_status status;
    } cases[] = {
        {{14, 10}, HY3D_OK},
        {{13, 100}, HY3D_ERR_BUDGET_TOO_SMALL},
        {{100, 9}, HY3D_ERR_BUDGET_TOO_SMALL},
        {{14, 0}, HY3D_OK},
        {{0, 10}, HY3D_OK},
        {{0, 9}, HY3D_ERR_BUDGET_TOO_SMALL},
        {{-1, 10}, HY3D_ERR_INVALID_ARGUMENT},
        {{14, -1}, HY3D_ERR_INVALID_ARGUMENT},
    };
    hy3d_context *const context = test_context("ref", 1);
    hy3d_node nodes[] = {rows_conv(0, 1), rows_conv(1, 1)};
    static const int32_t equal[] = {1, 1};
    for (size_t i = 0; i < 2 * COUNT_OF(cases); i++) {
        const size_t at = i / 2;
        graphs_case made;
        hy3d_schedule *schedule = NULL;
        make(&made, nodes, 2, 1, 6);
        made.request.ranks = 2;
        made.request.rank = (int32_t)(i % 2);
        made.request.may_spill = 0;
        made.request.device_budget = at == 1 ? 1000 : 1; /* is not looked at */
        made.request.device_budgets = cases[at].budgets;
        made.request.weights = equal;
        ck_assert_status(hy3d_schedule_compile(context, &made.request, &schedule),
                         cases[at].status);
        if (cases[at].status != HY3D_ERR_INVALID_ARGUMENT) {
            ck_assert_int_eq(hy3d_schedule_smallest_budget(schedule), 14);
        }
        hy3d_schedule_destroy(context, schedule);
    }
    hy3d_context_destroy(context);
}
END_TEST

/* The ratio in which a program shares rows; {0}: nothing fits. */
static void expect_ratio(hy3d_context *context, graphs_case *made, int32_t ranks,
                         const int64_t *budgets, const int32_t *weights)
{
    made->request.ranks = ranks;
    made->request.device_budgets = budgets;
    for (made->request.rank = 0; made->request.rank < ranks; made->request.rank++) {
        hy3d_schedule *schedule = NULL;
        ck_assert_status(hy3d_schedule_compile(context, &made->request, &schedule),
                         weights[0] == 0 ? HY3D_ERR_BUDGET_TOO_SMALL : HY3D_OK);
        const hy3d_program *const program = hy3d_schedule_program(schedule);
        ck_assert((program == NULL) == (weights[0] == 0));
        for (int32_t rank = 0; rank < ranks && program != NULL; rank++) {
            ck_assert_int_eq(program->weights[rank], weights[rank]);
        }
        ck_assert(program == NULL || program->weights[ranks] == 0);
        hy3d_schedule_destroy(context, schedule);
    }
}

/* Of two convolutions of 12 rows rank 0 takes 26 bytes, and rank 1 for n rows 2 * (n + 1) + 2. */
START_TEST(test_rows_are_shared_as_unlike_budgets_are_where_equal_shares_do_not_fit)
{
    static const struct {
        int32_t ranks;
        int64_t budgets[3];
        int32_t weights[3]; /* in eighths of the least */
    } cases[] = {
        {2, {100, 300}, {1, 1}}, /* equal shares fit */
        {2, {26, 16}, {1, 1}},
        {2, {26, 13}, {16, 8}},
        {2, {40, 14}, {23, 8}},
        {2, {INT64_C(1) << 62, 12}, {1 << 24, 8}}, /* no weight is larger */
        {3, {30, 1, 50}, {240, 8, 400}},           /* rank 1 has no row */
        {2, {25, 13}, {0}},
        {2, {13, 26}, {0}},
        {2, {0, 12}, {0}}, /* one has no limit, so there is no ratio */
        {2, {22, 22}, {0}},
    };
    hy3d_context *const context = test_context("ref", 1);
    const hy3d_node nodes[] = {rows_conv(0, 1), rows_conv(1, 1)};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        graphs_case made;
        make(&made, nodes, 2, 1, 12);
        made.request.may_spill = 0;
        expect_ratio(context, &made, cases[i].ranks, cases[i].budgets, cases[i].weights);
    }
    hy3d_context_destroy(context);
}
END_TEST

/* A value that waits for two others of four channels to be made and read. */
START_TEST(test_rows_are_shared_as_unlike_budgets_are_where_that_saves_all_copies_to_the_host)
{
    static const struct {
        int64_t budgets[2];
        int32_t weights[2];
        bool copies;
    } cases[] = {
        {{200, 80}, {1, 1}, false},
        {{200, 64}, {25, 8}, false},
        {{80, 64}, {1, 1}, true}, /* as 10 to 8 there are some, too */
    };
    hy3d_context *const context = test_context("ref", 1);
    hy3d_node nodes[] = {rows_conv(0, 1), rows_conv(1, 1), rows_conv(2, 1), rows_conv(3, 1)};
    nodes[1].channels = nodes[2].channels = 4;
    nodes[3].other = 1;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        graphs_case made;
        make(&made, nodes, 4, 1, 12);
        made.request.device.slice_bytes[0] = 1 << 20;
        expect_ratio(context, &made, 2, cases[i].budgets, cases[i].weights);
        hy3d_schedule *const schedule = compiled(context, &made, 0, 2);
        const hy3d_program *const program = hy3d_schedule_program(schedule);
        ck_assert((program->candidate.stored_bytes > 0) == cases[i].copies);
        hy3d_schedule_destroy(context, schedule);
    }
    hy3d_context_destroy(context);
}
END_TEST

/* A chunk on a device of 2 rows by 6 columns a position; the input has 9 frames of 12 x 24. */
START_TEST(test_chunks_keep_each_rank_busy)
{
    static const struct {
        int32_t ranks, unit, given[HY3D_SCHEDULE_MAX_CHUNKS];
        int64_t busy;
        int32_t offered[HY3D_SCHEDULE_MAX_CHUNKS + 2];
    } cases[] = {
        {1, 1, {1}, 72, {3, 1}}, /* 24 positions a frame */
        {2, 1, {1}, 72, {3, 1}},
        {3, 1, {1}, 72, {4, 1}}, /* 16 of two shares */
        {4, 1, {1}, 72, {6, 1}}, /* 12 of two shares */
        {12, 1, {1}, 72, {9, 1}}, /* 4, and the input has no more frames than 9 */
        {1, 1, {4, 2, 1}, 0, {4, 2, 1}},
        {1, 1, {4, 2, 1}, 120, {5, 4, 2, 1}},
        {1, 1, {4, 2, 1}, 48, {2, 4, 1}},
        {1, 1, {1}, 23, {1}},           /* not so many: one at least */
        {1, 4, {4, 3, 1}, 47, {4, 12}}, /* of 4 frames there are three */
        {1, 0, {20, 3}, 72, {20, 3}},   /* as they are */
    };
    hy3d_context *const context = test_context("ref", 1);
    const hy3d_node node = rows_conv(0, 1);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        graphs_case made;
        const hy3d_candidate *all = NULL;
        make(&made, &node, 1, 9, 12);
        made.request.size[2] = 24;
        made.request.compiles_all = 1;
        made.request.may_spill = 0;
        made.request.busy_positions = cases[i].busy;
        memcpy(made.request.device.chunks, cases[i].given, sizeof cases[i].given);
        if (cases[i].unit > 0) {
            memcpy(made.request.unit, (int32_t[]){cases[i].unit, 2, 6}, sizeof made.request.unit);
        }
        hy3d_schedule *const schedule = compiled(context, &made, 0, cases[i].ranks);
        const int32_t count = hy3d_schedule_candidates(schedule, &all);
        int32_t offered = 0;
        for (int32_t k = 0; k < count; k++) {
            if (all[k].order == HY3D_ORDER_CHUNKS && !all[k].on_host) {
                ck_assert_msg(all[k].chunk == cases[i].offered[offered], "case %zu: %d", i,
                              all[k].chunk);
                offered++;
            }
        }
        ck_assert_int_eq(cases[i].offered[offered], 0);
        hy3d_schedule_destroy(context, schedule);
    }
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_chunks_of_tiles_are_the_last_that_are_given)
{
    static const struct {
        int32_t unit, given[HY3D_SCHEDULE_MAX_CHUNKS];
        int64_t busy;
        int32_t chunk;
    } cases[] = {
        {1, {4, 1}, 1, 1}, /* that of a busy device is tried first, and 1 again no second time */
        {1, {4, 1}, 1 << 20, 1},
        {1, {4, 2}, 0, 2},
        {0, {3, 2, 3}, 0, 3},
        {4, {2, 1}, 0, 4},
        {4, {7}, 0, 12}, /* of 9 frames there are three */
    };
    hy3d_context *const context = test_context("ref", 1);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        graphs_case made;
        graphs_make_known(GRAPHS_HUNYUAN, 16, &made);
        graphs_request(&made, 9, 64, 64);
        made.request.strategies = 1u << HY3D_STRATEGY_TILED;
        made.request.only_level = 4;
        made.request.halos[0] = (hy3d_tile_sizes){.halo = -1, .overlap = 8, .smallest = 16};
        made.request.busy_positions = cases[i].busy;
        memcpy(made.request.device.chunks, cases[i].given, sizeof cases[i].given);
        for (int axis = 0; axis < 3; axis++) {
            made.request.unit[axis] = cases[i].unit;
        }
        hy3d_schedule *const schedule = compiled(context, &made, 0, 1);
        const hy3d_candidate *const taken = &hy3d_schedule_program(schedule)->candidate;
        ck_assert_int_eq(taken->order, HY3D_ORDER_TILES);
        ck_assert_msg(taken->chunk == cases[i].chunk, "case %zu: %d", i, taken->chunk);
        hy3d_schedule_destroy(context, schedule);
    }
    hy3d_context_destroy(context);
}
END_TEST

/* Each budget is lowered, that of the rank with the most rows, too, whichever it is. */
START_TEST(test_where_memory_runs_out_the_budgets_of_all_ranks_are_lowered)
{
    static const int32_t weights[2][2] = {{3, 1}, {1, 3}};
    hy3d_context *const context = test_context("ref", 1);
    graphs_case made;
    graphs_make_known(GRAPHS_HUNYUAN, 16, &made);
    graphs_request(&made, 3, 4, 2);
    made.request.device.slice_bytes[0] = 4000;
    made.request.device.slice_bytes[1] = 0;
    made.request.link_bytes_per_second = 1e9;
    made.request.weights = weights[_i];
    hy3d_schedule *const free_one = compiled(context, &made, 0, 2);
    const int64_t all = hy3d_schedule_program(free_one)->candidate.device_bytes;
    hy3d_schedule_destroy(context, free_one);
    const int64_t own[] = {2 * all, 0};
    made.request.device_budgets = own;
    int64_t bytes[2];
    for (int32_t rank = 0; rank < 2; rank++) {
        hy3d_action action = HY3D_ACTION_STOP;
        hy3d_schedule *const schedule = compiled(context, &made, rank, 2);
        ck_assert_ok(hy3d_schedule_fallback(context, schedule, HY3D_STEP_ATTEMPTS,
                                            HY3D_REASON_OUT_OF_MEMORY, false, &action));
        ck_assert_int_eq(action, HY3D_ACTION_BEGIN_AGAIN);
        bytes[rank] = hy3d_schedule_program(schedule)->candidate.device_bytes;
        hy3d_schedule_destroy(context, schedule);
    }
    ck_assert_int_eq(bytes[0], bytes[1]);
    ck_assert_int_le(bytes[0], all / 10 * 7);
    hy3d_context_destroy(context);
}
END_TEST

/* --- what several ranks take ---------------------------------------------------------------------- */

/* Of one frame of 6 rows of one byte: what is received and sent throughout, and of EMIT rank 0 the
 * rows of the other and all put together. */
START_TEST(test_the_peak_has_the_copies_of_the_largest_exchange_and_of_what_is_given_away)
{
    hy3d_context *const context = test_context("ref", 1);
    const hy3d_node nodes[] = {rows_conv(0, 1), rows_conv(1, 1)};
    graphs_case made;
    make(&made, nodes, 2, 1, 6);
    for (int32_t rank = 0; rank < 2; rank++) {
        hy3d_schedule *const schedule = compiled(context, &made, rank, 2);
        const hy3d_program *const program = hy3d_schedule_program(schedule);
        ck_assert_int_eq(program->steps[5].op, HY3D_STEP_EMIT);
        ck_assert_int_eq(program->steps[5].workspace_bytes, rank == 0 ? 3 + 6 : 3);
        ck_assert_int_eq(program->candidate.device_bytes, 2 + 3 + 9);
        hy3d_schedule_destroy(context, schedule);
    }
    hy3d_context_destroy(context);
}
END_TEST

/* Of an attention of single frames, a rank sends one copy of its 2 rows to both others, and gets 4. */
START_TEST(test_rows_that_several_ranks_get_are_copied_once)
{
    hy3d_context *const context = test_context("ref", 1);
    hy3d_node nodes[] = {rows_conv(0, 1), attention(1, HY3D_SPAN_FRAME), rows_conv(2, 1)};
    graphs_case made;
    nodes[0].channels = nodes[1].channels = 100;
    make(&made, nodes, 3, 1, 6);
    hy3d_schedule *const schedule = compiled(context, &made, 1, 3);
    const hy3d_program *const program = hy3d_schedule_program(schedule);
    /* All rows of what it reads, its own of the result with one on either side. */
    ck_assert_int_eq(program->candidate.device_bytes, 600 + 400 + (200 + 400));
    ck_assert_int_eq(program->candidate.sent_bytes, 3 * 2 * 200 + 4 * 100);
    hy3d_schedule_destroy(context, schedule);
    hy3d_context_destroy(context);
}
END_TEST

/* 2^48 bytes of a frame of the output, or of what one rank sends. */
START_TEST(test_copies_beyond_what_a_step_may_take_are_an_overflow)
{
    hy3d_context *const context = test_context("ref", 1);
    hy3d_node nodes[] = {rows_conv(0, 1), rows_conv(1, 1)};
    for (int i = 0; i < 4; i++) {
        graphs_case made;
        hy3d_schedule *schedule = NULL;
        const hy3d_candidate *all = NULL;
        nodes[i / 2 == 0 ? 1 : 0].channels = INT64_C(1) << (i % 2 == 0 ? 38 : 20);
        nodes[i / 2 == 0 ? 0 : 1].channels = 1;
        nodes[1].dilation[1] = nodes[1].before[1] = nodes[1].after[1] = i / 2 == 0 ? 1 : 1000;
        make(&made, nodes, 2, 1, 2048);
        made.request.ranks = 2;
        const bool is_much = i % 2 == 0;
        ck_assert_status(hy3d_schedule_compile(context, &made.request, &schedule),
                         is_much ? HY3D_ERR_BUDGET_TOO_SMALL : HY3D_OK);
        ck_assert_int_gt(hy3d_schedule_candidates(schedule, &all), 0);
        ck_assert_int_eq(all[0].status, is_much ? HY3D_ERR_OVERFLOW : HY3D_OK);
        hy3d_schedule_destroy(context, schedule);
    }
    hy3d_context_destroy(context);
}
END_TEST

/* 2^57 elements of the input, of which a rank has somewhat more than half, or 2^59, of which it has
 * all. */
START_TEST(test_an_input_that_is_too_large_to_be_sent_is_an_overflow)
{
    static const struct {
        int64_t columns, source_bytes;
        int32_t weights[2];
        bool is_much;
    } cases[] = {
        {1 << 16, 4, {1, 1}, false},    {1 << 16, 8, {1, 1}, true},
        {1 << 18, 1, {1, 4000}, false}, {1 << 18, 16, {1, 4000}, true},
    };
    hy3d_context *const context = test_context("ref", 1);
    const hy3d_node node = rows_conv(0, 1);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        graphs_case made;
        hy3d_schedule *schedule = NULL;
        const hy3d_candidate *all = NULL;
        make(&made, &node, 1, 1, 2048);
        made.nodes[0].channels = 1 << 30;
        made.request.size[2] = cases[i].columns;
        made.request.ranks = 2;
        made.request.weights = cases[i].weights;
        made.request.source_bytes = cases[i].source_bytes;
        ck_assert_status(hy3d_schedule_compile(context, &made.request, &schedule),
                         cases[i].is_much ? HY3D_ERR_BUDGET_TOO_SMALL : HY3D_OK);
        ck_assert_int_gt(hy3d_schedule_candidates(schedule, &all), 0);
        ck_assert_int_eq(all[0].status, cases[i].is_much ? HY3D_ERR_OVERFLOW : HY3D_OK);
        hy3d_schedule_destroy(context, schedule);
    }
    hy3d_context_destroy(context);
}
END_TEST

/* --- agreement -------------------------------------------------------------------------------- */

typedef struct team {
    graphs_case *made;
    hy3d_schedule *of[HY3D_SCHEDULE_MAX_RANKS];
    int32_t ranks;
} team;

static bool is_exchange(const hy3d_step *step)
{
    return step->op == HY3D_STEP_SEND || step->op == HY3D_STEP_RECV;
}

/* What a rank does with its own memory, when it will: it trims a residual early where that has its
 * result's rows, and so is written over. */
static bool is_copy(const hy3d_step *step)
{
    return step->op == HY3D_STEP_STORE || step->op == HY3D_STEP_LOAD ||
           step->op == HY3D_STEP_DROP || step->op == HY3D_STEP_TRIM;
}

/* The next step from *at on that is `op` with `peer`; NULL: none. */
static const hy3d_step *next_of(const hy3d_program *program, int32_t *at, int32_t op, int32_t peer)
{
    while (*at < program->step_count) {
        const hy3d_step *const step = &program->steps[(*at)++];
        if (step->op == op && step->peer == peer) {
            return step;
        }
    }
    return NULL;
}

static void check_pair(const hy3d_program *from, const hy3d_program *to, int32_t sender,
                       int32_t receiver)
{
    int32_t at = 0, there = 0;
    const hy3d_step *sent, *received;
    do {
        sent = next_of(from, &at, HY3D_STEP_SEND, receiver);
        received = next_of(to, &there, HY3D_STEP_RECV, sender);
        ck_assert((sent == NULL) == (received == NULL));
        if (sent != NULL) {
            ck_assert_int_eq(sent->node, received->node);
            ck_assert_int_lt(sent->rows[0], sent->rows[1]);
            ck_assert_mem_eq(sent->frames, received->frames, sizeof sent->frames);
            ck_assert_mem_eq(sent->rows, received->rows, sizeof sent->rows);
        }
    } while (sent != NULL);
}

/* The next step that computes, of those in which all ranks meet if `meets`. */
static const hy3d_step *next_computing(const hy3d_program *program, int32_t *at, bool meets)
{
    while (*at < program->step_count) {
        const hy3d_step *const step = &program->steps[(*at)++];
        const bool is_met = step->op == HY3D_STEP_REDUCE || step->op == HY3D_STEP_EMIT;
        if (!is_exchange(step) && !is_copy(step) && (!meets || is_met)) {
            return step;
        }
    }
    return NULL;
}

static void check_order(const hy3d_program *one, const hy3d_program *other)
{
    int32_t at = 0, there = 0;
    const bool meets = one->slice_count == 0 || other->slice_count == 0;
    const hy3d_step *a, *b;
    do {
        a = next_computing(one, &at, meets);
        b = next_computing(other, &there, meets);
        ck_assert((a == NULL) == (b == NULL));
        if (a != NULL) {
            ck_assert(a->op == b->op && a->node == b->node && a->drop == b->drop);
            ck_assert_mem_eq(a->frames, b->frames, sizeof a->frames);
            ck_assert_mem_eq(a->own, b->own, sizeof a->own);
            ck_assert_mem_eq(a->reads, b->reads, sizeof a->reads);
        }
    } while (a != NULL);
}

/* Each frame's rows that were given away, over all ranks, are the output's. */
static void check_result(const team *t, const hy3d_size *size)
{
    const size_t all = (size_t)(size->frames * size->rows);
    unsigned char *const given = calloc(all, 1);
    for (int32_t rank = 0; rank < t->ranks; rank++) {
        const hy3d_program *const program = hy3d_schedule_program(t->of[rank]);
        for (int32_t i = 0; i < program->step_count; i++) {
            const hy3d_step *const step = &program->steps[i];
            ck_assert(step->op != HY3D_STEP_EMIT ||
                      memcmp(step->rows, &program->shares[rank], sizeof step->rows) == 0);
            for (int64_t frame = step->frames[0];
                 frame < step->frames[1] && step->op == HY3D_STEP_EMIT; frame++) {
                for (int64_t row = step->rows[0]; row < step->rows[1]; row++) {
                    given[frame * size->rows + row]++;
                }
            }
        }
    }
    for (size_t i = 0; i < all; i++) {
        ck_assert_int_eq(given[i], 1);
    }
    free(given);
}

static int64_t total(const team *t, int32_t op, bool of_macs)
{
    int64_t sum = 0;
    for (int32_t rank = 0; rank < t->ranks; rank++) {
        const hy3d_program *const program = hy3d_schedule_program(t->of[rank]);
        for (int32_t i = 0; i < program->step_count; i++) {
            const bool counts = op < 0 || program->steps[i].op == op;
            sum += counts ? (of_macs ? program->steps[i].macs : 1) : 0;
        }
    }
    return sum;
}

/* Same candidates, same choice, and programs that fit together. */
static void check_team(const team *t)
{
    hy3d_size sizes[GRAPHS_MOST_NODES];
    const hy3d_candidate *first = NULL, *other = NULL;
    const int32_t count = hy3d_schedule_candidates(t->of[0], &first);
    const hy3d_program *const program = hy3d_schedule_program(t->of[0]);
    for (int32_t rank = 1; rank < t->ranks; rank++) {
        ck_assert_int_eq(hy3d_schedule_candidates(t->of[rank], &other), count);
        ck_assert_mem_eq(first, other, (size_t)count * sizeof *first);
        ck_assert_int_eq(hy3d_schedule_smallest_budget(t->of[0]),
                         hy3d_schedule_smallest_budget(t->of[rank]));
        ck_assert((program == NULL) == (hy3d_schedule_program(t->of[rank]) == NULL));
    }
    if (program == NULL) {
        return;
    }
    for (int32_t rank = 0; rank < t->ranks; rank++) {
        const hy3d_program *const its = hy3d_schedule_program(t->of[rank]);
        ck_assert_mem_eq(&program->candidate, &its->candidate, sizeof its->candidate);
        check_order(program, its);
        for (int32_t peer = 0; peer < t->ranks; peer++) {
            check_pair(its, hy3d_schedule_program(t->of[peer]), rank, peer);
        }
    }
    ck_assert_int_eq(total(t, -1, false), program->candidate.steps);
    ck_assert_int_eq(total(t, -1, true), program->candidate.macs);
    ck_assert_ok(hy3d_graph_sizes(&t->made->request.graph, t->made->request.size, sizes));
    check_result(t, &sizes[t->made->request.graph.count - 1]);
}

/* What each rank says of one request; the same of all. */
static hy3d_status compile_team(hy3d_context *context, team *t)
{
    hy3d_status first = HY3D_OK;
    t->made->request.ranks = t->ranks;
    for (int32_t rank = 0; rank < t->ranks; rank++) {
        t->of[rank] = NULL;
        t->made->request.rank = rank;
        const hy3d_status status =
            hy3d_schedule_compile(context, &t->made->request, &t->of[rank]);
        first = rank == 0 ? status : first;
        ck_assert_int_eq(status, first);
    }
    return first;
}

static void disband(hy3d_context *context, team *t)
{
    for (int32_t rank = 0; rank < t->ranks; rank++) {
        hy3d_schedule_destroy(context, t->of[rank]);
    }
}

/* One failure, told to all ranks. */
static bool fall(hy3d_context *context, const team *t, hy3d_reason reason)
{
    hy3d_action first = HY3D_ACTION_STOP;
    for (int32_t rank = 0; rank < t->ranks; rank++) {
        hy3d_action action = HY3D_ACTION_STOP;
        ck_assert_ok(hy3d_schedule_fallback(context, t->of[rank], HY3D_STEP_ATTEMPTS, reason,
                                            false, &action));
        first = rank == 0 ? action : first;
        ck_assert_int_eq(action, first);
    }
    return first == HY3D_ACTION_BEGIN_AGAIN;
}

/* Under several budgets: without one, the smallest, one byte less, and some between; each followed
 * by failures. How many programs there were. */
static long check_budgets(hy3d_context *context, graphs_case *made, int32_t ranks)
{
    team t = {.made = made, .ranks = ranks};
    int64_t budgets[5] = {0, 1, 0, 0, 0};
    long programs = 0;
    for (size_t i = 0; i < COUNT_OF(budgets); i++) {
        made->request.device_budget = budgets[i];
        const hy3d_status status = compile_team(context, &t);
        if (status == HY3D_ERR_UNSUPPORTED) {
            return 0;
        }
        check_team(&t);
        if (i == 1 && status == HY3D_OK) { /* nothing takes memory */
            disband(context, &t);
            break;
        }
        if (i == 1) {
            const int64_t smallest = hy3d_schedule_smallest_budget(t.of[0]);
            budgets[2] = smallest;
            budgets[3] = smallest - 1;
            budgets[4] = smallest + smallest / 5;
        }
        ck_assert_int_eq(status == HY3D_OK, i != 1 && i != 3);
        programs += status == HY3D_OK ? ranks : 0;
        for (int falls = 0; falls < 3 && status == HY3D_OK; falls++) {
            if (!fall(context, &t, falls == 0 ? HY3D_REASON_OUT_OF_MEMORY
                                              : HY3D_REASON_NO_KERNEL)) {
                break;
            }
            check_team(&t);
        }
        disband(context, &t);
    }
    return programs;
}

START_TEST(test_all_ranks_of_a_random_graph_agree)
{
    hy3d_context *const context = test_context("ref", 1);
    long programs = 0;
    const uint64_t cases = (uint64_t)test_draws(18, 600);
    for (uint64_t i = (uint64_t)_i; i < cases; i += SHARES) {
        static const int32_t ranks[] = {2, 3, 4, 5, 7, 12};
        graphs_case made;
        graphs_seed seed;
        graphs_random(graphs_numbers_of(&seed, 70000 + i), &made);
        made.request.strategies |= 1U << HY3D_STRATEGY_STREAMED;
        made.request.link_bytes_per_second = 1e6;
        programs += check_budgets(context, &made, ranks[i / SHARES % COUNT_OF(ranks)]);
    }
    test_count("programs of ranks compared", programs);
    ck_assert_int_gt(programs, 0);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_all_ranks_of_a_known_graph_agree)
{
    static const int64_t rows[] = {4, 5, 9};
    static const int32_t ranks[] = {2, 3, 11};
    hy3d_context *const context = test_context("ref", 1);
    long programs = 0;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const int64_t scale = _i == GRAPHS_ENCODER ? 8 : 1;
        graphs_case made;
        graphs_make_known((graphs_known)_i, 4, &made);
        graphs_request(&made, _i == GRAPHS_ENCODER ? 5 : 3, scale * rows[i], scale * 4);
        made.request.device.slice_bytes[0] = 5000;
        made.request.device.slice_bytes[1] = 0;
        made.request.link_bytes_per_second = 1e9;
        made.salt = 5;
        programs += check_budgets(context, &made, ranks[i]);
    }
    test_count("programs of ranks compared", programs);
    ck_assert((_i == GRAPHS_OPAQUE) == (programs == 0));
    hy3d_context_destroy(context);
}
END_TEST

/* --- what is not offered ---------------------------------------------------------------------- */

START_TEST(test_ranks_have_streamed_programs_of_known_code_alone)
{
    hy3d_context *const context = test_context("ref", 1);
    graphs_case made;
    hy3d_schedule *schedule = NULL;
    const hy3d_candidate *all = NULL;
    graphs_make_known(GRAPHS_OPAQUE, 4, &made);
    graphs_request(&made, 2, 4, 4);
    made.request.link_bytes_per_second = 1e9;
    made.request.ranks = 2;
    ck_assert_status(hy3d_schedule_compile(context, &made.request, &schedule),
                     HY3D_ERR_UNSUPPORTED);
    graphs_make_known(GRAPHS_WAN, 4, &made);
    graphs_request(&made, 2, 4, 4);
    made.request.link_bytes_per_second = 1e9;
    made.request.ranks = 2;
    const int32_t norm = made.nodes[1].norm;
    made.nodes[1].norm = HY3D_NORM_FRAME;
    ck_assert_status(hy3d_schedule_compile(context, &made.request, &schedule),
                     HY3D_ERR_UNSUPPORTED);
    made.nodes[1].norm = norm;
    made.request.own_bytes = 5;
    made.request.strategies = 15 & ~(1U << HY3D_STRATEGY_STREAMED);
    ck_assert_status(hy3d_schedule_compile(context, &made.request, &schedule),
                     HY3D_ERR_UNSUPPORTED);
    made.request.strategies = 15;
    made.request.compiles_all = 1;
    ck_assert_ok(hy3d_schedule_compile(context, &made.request, &schedule));
    const int32_t count = hy3d_schedule_candidates(schedule, &all);
    ck_assert_int_gt(count, 0);
    for (int32_t i = 0; i < count; i++) {
        ck_assert_int_eq(all[i].strategy, HY3D_STRATEGY_STREAMED);
        ck_assert_int_eq(all[i].on_host, 0);
    }
    hy3d_schedule_destroy(context, schedule);
    hy3d_context_destroy(context);
}
END_TEST

/* Keys and values of all rows are projected on each rank: 2^61 multiply-accumulates. */
START_TEST(test_work_of_all_ranks_beyond_63_bits_is_an_overflow)
{
    hy3d_context *const context = test_context("ref", 1);
    hy3d_node node = attention(0, HY3D_SPAN_FRAME);
    node.channels = node.width = 1 << 27;
    for (int32_t ranks = 2; ranks <= 64; ranks += 62) {
        graphs_case made;
        hy3d_schedule *schedule = NULL;
        const hy3d_candidate *all = NULL;
        make(&made, &node, 1, 1, 64);
        made.nodes[0].channels = node.channels;
        made.request.ranks = ranks;
        ck_assert_status(hy3d_schedule_compile(context, &made.request, &schedule),
                         ranks == 2 ? HY3D_OK : HY3D_ERR_BUDGET_TOO_SMALL);
        ck_assert_int_gt(hy3d_schedule_candidates(schedule, &all), 0);
        ck_assert_int_eq(all[0].status, ranks == 2 ? HY3D_OK : HY3D_ERR_OVERFLOW);
        hy3d_schedule_destroy(context, schedule);
    }
    hy3d_context_destroy(context);
}
END_TEST

/* Of equal shares, and (_i 1) of those that unlike budgets have as well. */
START_TEST(test_every_failing_allocation_of_ranks_is_survived)
{
    hy3d_context *const context = test_context("ref", 1);
    graphs_case made;
    graphs_make_known(GRAPHS_HUNYUAN, 8, &made);
    graphs_request(&made, 2, 3, 2);
    made.request.device.slice_bytes[0] = 4000;
    made.request.device.slice_bytes[1] = 0;
    made.request.link_bytes_per_second = 1e9;
    made.request.ranks = 3;
    made.request.rank = 1;
    made.request.device_budget = 1;
    hy3d_schedule *schedule = NULL;
    ck_assert_status(hy3d_schedule_compile(context, &made.request, &schedule),
                     HY3D_ERR_BUDGET_TOO_SMALL);
    made.request.device_budget = hy3d_schedule_smallest_budget(schedule); /* slices leave */
    const int64_t least = made.request.device_budget;
    const int64_t budgets[] = {3 * least, least, 2 * least};
    made.request.device_budgets = _i == 1 ? budgets : NULL;
    hy3d_schedule_destroy(context, schedule);
    hy3d_context_trim(context);
    const uint64_t live = test_live();
    hy3d_status status = HY3D_ERR_OUT_OF_MEMORY;
    /* In the gate every third: each compiles anew up to there. */
    const uint64_t step = (uint64_t)test_draws(3, 1);
    for (uint64_t k = 1; status == HY3D_ERR_OUT_OF_MEMORY; k += step) {
        schedule = NULL;
        test_fail(k, false);
        status = hy3d_schedule_compile(context, &made.request, &schedule);
        test_fail(0, false);
        ck_assert(status == HY3D_ERR_OUT_OF_MEMORY || status == HY3D_OK);
        if (status == HY3D_OK) {
            ck_assert(_i == 1 ||
                      hy3d_schedule_program(schedule)->candidate.resident_bytes >= 0);
            hy3d_schedule_destroy(context, schedule);
        }
        hy3d_context_trim(context);
        ck_assert_uint_eq(test_live(), live);
    }
    hy3d_context_destroy(context);
}
END_TEST

TCase *hy3d_schedule_team_cases(void)
{
    TCase *const tests = tcase_create("ranks");
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, test_two_ranks_send_each_other_the_row_at_their_border);
    tcase_add_test(tests, test_the_middle_one_of_three_ranks_sends_both_ways);
    tcase_add_test(tests, test_a_halo_larger_than_a_share_comes_from_ranks_further_off);
    tcase_add_test(tests, test_rows_that_cannot_be_shared_are_the_last_rank_s);
    tcase_add_test(tests, test_rows_are_shared_before_the_shuffle);
    tcase_add_test(tests, test_up_sampled_rows_need_half_as_many);
    tcase_add_test(tests, test_keys_of_all_rows_are_gathered);
    tcase_add_test(tests, test_one_device_reads_all_rows_with_the_padding_of_the_node);
    tcase_add_test(tests, test_up_sampled_rows_that_no_tap_touches_are_cropped);
    tcase_add_test(tests, test_rows_that_may_see_padding_alone_are_not_shared);
    tcase_add_test(tests, test_a_trim_reads_the_rows_of_its_slice);
    tcase_add_test(tests, test_a_residual_is_written_over_once_what_is_read_again_is_copied);
    tcase_add_test(tests, test_a_rank_of_more_weight_has_more_rows);
    tcase_add_test(tests, test_slices_are_as_large_as_the_largest_share_allows);
    tcase_add_test(tests, test_weights_are_copied);
    tcase_add_test(tests, test_large_weights_share_many_rows);
    tcase_add_test(tests, test_weights_that_are_none_are_refused);
    tcase_add_test(tests, test_ranks_out_of_their_range_are_refused);
    tcase_add_test(
        tests, test_rows_are_shared_as_unlike_budgets_are_where_equal_shares_do_not_fit);
    tcase_add_test(
        tests, test_rows_are_shared_as_unlike_budgets_are_where_that_saves_all_copies_to_the_host);
    tcase_add_test(tests, test_chunks_keep_each_rank_busy);
    tcase_add_test(tests, test_chunks_of_tiles_are_the_last_that_are_given);
    tcase_add_test(tests, test_each_rank_has_a_budget_of_its_own);
    tcase_add_loop_test(
        tests, test_where_memory_runs_out_the_budgets_of_all_ranks_are_lowered, 0, 2);
    tcase_add_test(
        tests, test_the_peak_has_the_copies_of_the_largest_exchange_and_of_what_is_given_away);
    tcase_add_test(tests, test_rows_that_several_ranks_get_are_copied_once);
    tcase_add_test(tests, test_copies_beyond_what_a_step_may_take_are_an_overflow);
    tcase_add_test(tests, test_an_input_that_is_too_large_to_be_sent_is_an_overflow);
    tcase_add_loop_test(tests, test_all_ranks_of_a_random_graph_agree, 0, SHARES);
    tcase_add_loop_test(tests, test_all_ranks_of_a_known_graph_agree, 0, GRAPHS_KNOWN);
    tcase_add_test(tests, test_ranks_have_streamed_programs_of_known_code_alone);
    tcase_add_test(tests, test_work_of_all_ranks_beyond_63_bits_is_an_overflow);
    tcase_add_loop_test(tests, test_every_failing_allocation_of_ranks_is_survived, 0, 2);
    return tests;
}
