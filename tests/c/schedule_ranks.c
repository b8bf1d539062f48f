/* The replayer of several ranks: it accepts two programs worked out by hand, and names every damage
 * done to them. */
#include "schedule_support.h"

#include <stdlib.h>
#include <string.h>

#include "replay_walk.h"

enum { RANKS = 2 };

/* A causal convolution of 3 x 3 x 3, and one of an up-sampled picture with a GroupNorm; two frames
 * of 5 x 2. Rows are shared by 5: rank 0 has two, rank 1 three, and twice as many of the output. */
static const hy3d_node hand_nodes[] = {
    {.op = HY3D_OP_INPUT, .source = -1, .other = -1, .channels = 1},
    {.op = HY3D_OP_CONV, .source = 0, .other = -1, .channels = 2, .kernel = {3, 3, 3},
     .stride = {1, 1, 1}, .dilation = {1, 1, 1}, .up = {1, 1, 1}, .before = {2, 1, 1},
     .after = {0, 1, 1}, .shuffle = {1, 1, 1}, .groups = 1},
    {.op = HY3D_OP_CONV, .source = 1, .other = -1, .norm = HY3D_NORM_GROUP, .channels = 1,
     .kernel = {3, 3, 3}, .stride = {1, 1, 1}, .dilation = {1, 1, 1}, .up = {1, 2, 2},
     .before = {2, 1, 1}, .after = {0, 1, 1}, .shuffle = {1, 1, 1}, .groups = 1},
    {.op = HY3D_OP_OUTPUT, .source = 2, .other = -1, .channels = 1},
};

/* Of a slice, by rank: what it makes and one row of the other's. Two bytes an element. */
static const hy3d_slice hand_slices[RANKS][5] = {
    {{.node = 0, .frames = {0, 2}, .rows = {0, 3}, .bytes = 24, .host_at = -1},
     {.node = 1, .frames = {0, 1}, .rows = {0, 3}, .bytes = 24, .host_at = 0},
     {.node = 1, .frames = {1, 2}, .rows = {0, 3}, .bytes = 24, .host_at = -1},
     {.node = 2, .frames = {0, 1}, .rows = {0, 4}, .bytes = 32, .host_at = -1},
     {.node = 2, .frames = {1, 2}, .rows = {0, 4}, .bytes = 32, .host_at = -1}},
    {{.node = 0, .frames = {0, 2}, .rows = {1, 5}, .bytes = 32, .host_at = -1},
     {.node = 1, .frames = {0, 1}, .rows = {1, 5}, .bytes = 32, .host_at = 0},
     {.node = 1, .frames = {1, 2}, .rows = {1, 5}, .bytes = 32, .host_at = -1},
     {.node = 2, .frames = {0, 1}, .rows = {4, 10}, .bytes = 48, .host_at = -1},
     {.node = 2, .frames = {1, 2}, .rows = {4, 10}, .bytes = 48, .host_at = -1}},
};

static const int32_t hand_refs[] = {0, 0, 0, 1, 3, 1, 2, 1, 2, 4};

#define HAND(op_, node_, slice_, first, stop, row, row_stop)                                       \
    .op = HY3D_STEP_##op_, .node = node_, .slice = slice_, .frames = {first, stop},               \
    .rows = {row, row_stop}
#define ALONE .peer = -1

enum { SENDS = 2, RECVS, STORES, MAKES, SENDS_2, RECVS_2, REDUCES = 10, LOADS, EMITS = 13,
       LAST = 15, STEPS };

/* Rows: of the input's slice; made and had of node 1; sent and received; made of node 2. Padding of
 * both convolutions. What giving a frame away takes. */
#define HAND_STEPS(peer_, in, in_stop, mine, mine_stop, held, held_stop, sent, received, out,      \
                   out_stop, macs_1, macs_2, before_1, after_1, before_2, after_2, gathered)       \
    {                                                                                              \
        {HAND(ENTER, 0, 0, 0, 2, in, in_stop), ALONE},                                             \
        {HAND(CONV, 1, 1, 0, 1, mine, mine_stop), ALONE, .flags = HY3D_STEP_GATHER, .own = {0, 1}, \
         .reads = {0, 1}, .read_rows = {in, in_stop}, .row_padding = {before_1, after_1},          \
         .first_ref = 0, .sources = 1, .macs = macs_1},                                            \
        {HAND(SEND, 1, 1, 0, 1, sent, sent + 1), .peer = peer_},                                   \
        {HAND(RECV, 1, 1, 0, 1, received, received + 1), .peer = peer_},                           \
        {HAND(STORE, 1, 1, 0, 1, held, held_stop), ALONE},                                         \
        {HAND(CONV, 1, 2, 1, 2, mine, mine_stop), ALONE, .own = {1, 2}, .reads = {0, 2},           \
         .read_rows = {in, in_stop}, .row_padding = {before_1, after_1},                           \
         .first_ref = 1, .sources = 1, .frees = 1, .macs = macs_1},                                \
        {HAND(SEND, 1, 2, 1, 2, sent, sent + 1), .peer = peer_},                                   \
        {HAND(RECV, 1, 2, 1, 2, received, received + 1), .peer = peer_},                           \
        {HAND(MOMENTS, 1, 2, 1, 2, mine, mine_stop), ALONE},                                       \
        {HAND(DROP, 1, 1, 0, 1, held, held_stop), ALONE},                                          \
        {HAND(REDUCE, 2, -1, 0, 0, out, out_stop), ALONE},                                         \
        {HAND(LOAD, 1, 1, 0, 1, held, held_stop), ALONE},                                          \
        {HAND(CONV, 2, 3, 0, 1, out, out_stop), ALONE, .own = {0, 1}, .reads = {0, 1},             \
         .read_rows = {held, held_stop}, .row_padding = {before_2, after_2},                       \
         .first_ref = 3, .sources = 1, .macs = macs_2},                                            \
        {HAND(EMIT, 3, 3, 0, 1, out, out_stop), ALONE, .first_ref = 4, .frees = 1,                 \
         .workspace_bytes = gathered},                                                             \
        {HAND(CONV, 2, 4, 1, 2, out, out_stop), ALONE, .own = {1, 2}, .reads = {0, 2},             \
         .read_rows = {held, held_stop}, .row_padding = {before_2, after_2},                       \
         .first_ref = 5, .sources = 2, .frees = 2, .macs = macs_2},                                \
        {HAND(EMIT, 3, 4, 1, 2, out, out_stop), ALONE, .first_ref = 9, .frees = 1,                 \
         .workspace_bytes = gathered},                                                             \
    }

static const hy3d_step hand_steps[RANKS][STEPS] = {
    /* A row above the picture, up-sampled rows 0 to 5 of 0 to 6; rank 0 gets 6 rows of 8 bytes and
     * puts 10 together. */
    HAND_STEPS(1, 0, 3, 0, 2, 0, 3, 1, 2, 0, 4, 216, 864, 1, 0, 1, -1, 128),
    /* A row below it, up-sampled rows 3 to 10 of 2 to 10. */
    HAND_STEPS(0, 1, 5, 2, 5, 1, 5, 2, 1, 4, 10, 324, 1296, 0, 1, -1, 1, 48),
};

static const hy3d_section hand_section = {
    .kind = HY3D_SECTION_ALL, .steps = STEPS, .slices = 5, .size = {2, 5, 2}};

/* On rank 0's device are at most two slices of 24 and one of 32 with what giving that away takes,
 * and throughout a row that is sent and one that comes, of 8; rank 1 has 16 + 32 + 32 + 48 + 48. Each
 * rank stores and loads one slice, and sends a row of two channels and columns of each of two
 * frames. */
static program_copy hand_program(int32_t rank)
{
    const hy3d_program program = {
        .candidate = {.strategy = HY3D_STRATEGY_STREAMED, .order = HY3D_ORDER_LAYERS, .fits = 1,
                      .device_bytes = 224, .host_bytes = 32, .stored_bytes = 56,
                      .loaded_bytes = 56, .sent_bytes = 32, .macs = 5400, .steps = 2 * STEPS,
                      .resident_bytes = 224, .seconds = 1.6e-9},
        .sections = &hand_section,
        .steps = hand_steps[rank],
        .slices = hand_slices[rank],
        .refs = hand_refs,
        .section_count = 1,
        .step_count = STEPS,
        .slice_count = 5,
        .ref_count = (int32_t)COUNT_OF(hand_refs),
        .input_rows = {{0, 3}, {1, 5}},
        .copies_bytes = rank == 0 ? 24 : 32,
    };
    program_copy copy = program_copy_of(&program);
    hy3d_step *const more = realloc(copy.steps, (STEPS + 4) * sizeof *more);
    ck_assert_ptr_nonnull(more);
    copy.program.steps = copy.steps = more;
    return copy;
}

static void drop_step(program_copy *copy, int32_t at)
{
    const int32_t behind = copy->program.step_count - at - 1;
    memmove(copy->steps + at, copy->steps + at + 1, (size_t)behind * sizeof(hy3d_step));
    copy->program.step_count--;
    copy->sections[0].steps--;
}

static void swap_steps(program_copy *copy, int32_t a, int32_t b)
{
    const hy3d_step step = copy->steps[a];
    copy->steps[a] = copy->steps[b];
    copy->steps[b] = step;
}

static void move_step(program_copy *copy, int32_t from, int32_t to)
{
    for (; from > to; from--) {
        swap_steps(copy, from, from - 1);
    }
}

/* There is room for a few. */
static void insert_step(program_copy *copy, int32_t at, hy3d_step step)
{
    copy->steps[copy->program.step_count++] = step;
    copy->sections[0].steps++;
    move_step(copy, copy->program.step_count - 1, at);
}

/* A SEND or RECV of one row. */
static hy3d_step one_row(int32_t op, int32_t node, int32_t slice, int64_t frame, int64_t row,
                         int32_t peer)
{
    return (hy3d_step){.op = op, .node = node, .slice = slice, .frames = {frame, frame + 1},
                       .rows = {row, row + 1}, .peer = peer};
}

static void shift(int64_t range[2], int64_t by)
{
    range[0] += by;
    range[1] += by;
}

typedef struct fault {
    void (*make)(program_copy *ranks); /* both ranks' programs */
    const char *text;                  /* part of the sentence */
} fault;

static void receives_nothing(program_copy *c) { drop_step(&c[0], RECVS); }
static void receives_nothing_later(program_copy *c) { drop_step(&c[0], RECVS_2); }
static void sends_nothing(program_copy *c) { drop_step(&c[1], SENDS_2); }
static void both_receive_first(program_copy *c)
{
    swap_steps(&c[0], SENDS, RECVS);
    swap_steps(&c[1], SENDS, RECVS);
}
static void one_receives_first(program_copy *c) { swap_steps(&c[0], SENDS, RECVS); }
static void receives_for_sends(program_copy *c) { c[0].steps[SENDS].op = HY3D_STEP_RECV; }
static void sends_for_receives(program_copy *c) { c[0].steps[RECVS].op = HY3D_STEP_SEND; }
static void sends_another_row(program_copy *c) { shift(c[0].steps[SENDS].rows, -1); }
static void sends_a_row_of_the_other(program_copy *c) { shift(c[0].steps[SENDS].rows, 1); }
static void receives_another_row(program_copy *c) { shift(c[0].steps[RECVS].rows, -1); }
static void both_take_another_row(program_copy *c)
{
    shift(c[0].steps[RECVS].rows, 1);
    shift(c[1].steps[SENDS].rows, 1);
}
static void both_take_no_row(program_copy *c)
{
    c[0].steps[RECVS].rows[1] = c[0].steps[RECVS].rows[0];
    c[1].steps[SENDS].rows[1] = c[1].steps[SENDS].rows[0];
}
static void both_take_no_frame(program_copy *c)
{
    c[0].steps[RECVS].frames[1] = c[0].steps[RECVS].frames[0];
    c[1].steps[SENDS].frames[1] = c[1].steps[SENDS].frames[0];
}
static void sends_behind_the_moments(program_copy *c) { move_step(&c[0], RECVS_2 + 1, SENDS_2); }
static void sends_the_first_behind_the_second(program_copy *c)
{
    for (int rank = 0; rank < RANKS; rank++) {
        drop_step(&c[rank], LOADS);
        drop_step(&c[rank], REDUCES - 1);
        drop_step(&c[rank], STORES);
        move_step(&c[rank], STORES, SENDS);
    }
}
static void sends_of_another_node(program_copy *c) { c[1].steps[SENDS].node = 2; }
static void sends_with_a_source(program_copy *c) { c[1].steps[SENDS].sources = 1; }
static void sends_what_it_does_not_make(program_copy *c)
{
    insert_step(&c[0], 1, one_row(HY3D_STEP_SEND, 0, 0, 0, 2, 1));
}
static void receives_what_is_there(program_copy *c)
{
    insert_step(&c[0], 1, one_row(HY3D_STEP_SEND, 0, 0, 0, 1, 1));
    insert_step(&c[1], 1, one_row(HY3D_STEP_RECV, 0, 0, 0, 1, 0));
}
static void sends_what_nobody_receives(program_copy *c)
{
    insert_step(&c[0], EMITS, one_row(HY3D_STEP_SEND, 2, 3, 0, 3, 1));
}
/* Rank 1 neither receives nor stores, and comes to the REDUCE; rank 0 does not begin to send again. */
static void receives_nothing_at_all(program_copy *c)
{
    drop_step(&c[1], LOADS);
    drop_step(&c[1], REDUCES - 1);
    drop_step(&c[1], RECVS_2);
    drop_step(&c[1], STORES);
    drop_step(&c[1], RECVS);
}
static void receives_another_frame(program_copy *c) { shift(c[0].steps[RECVS].frames, 1); }
static void sends_in_another_order(program_copy *c)
{
    swap_steps(&c[1], SENDS, SENDS_2);
}
static void stores_before_it_receives(program_copy *c) { swap_steps(&c[0], RECVS, STORES); }
static void sends_to_itself(program_copy *c) { c[1].steps[SENDS].peer = 1; }
static void sends_to_nobody(program_copy *c) { c[1].steps[SENDS].peer = 2; }
static void has_a_peer_alone(program_copy *c) { c[1].steps[MAKES].peer = 0; }
static void sends_with_a_flag(program_copy *c) { c[1].steps[SENDS].flags = HY3D_STEP_GATHER; }
static void does_not_reduce(program_copy *c) { drop_step(&c[1], REDUCES); }
static void reduces_early(program_copy *c) { swap_steps(&c[1], REDUCES, REDUCES - 2); }
static void gathers_all_rows(program_copy *c) { c[1].steps[REDUCES - 2].rows[0] = 1; }
static void gathers_not(program_copy *c) { c[1].steps[1].flags = 0; }
static void gives_twice(program_copy *c)
{
    c[0].steps[LAST] = c[0].steps[EMITS];
    c[1].steps[LAST] = c[1].steps[EMITS];
}
static void one_gives_twice(program_copy *c) { c[0].steps[LAST] = c[0].steps[EMITS]; }
static void gives_another_node(program_copy *c) { c[1].steps[EMITS].node = 2; }
static void gives_where_others_reduce(program_copy *c) { move_step(&c[1], EMITS, REDUCES); }
static void gets_no_rows(program_copy *c) { c[0].steps[EMITS].workspace_bytes = 80; }
static void puts_nothing_together(program_copy *c) { c[0].steps[LAST].workspace_bytes = 48; }
static void gives_no_copy(program_copy *c) { c[1].steps[LAST].workspace_bytes = 0; }
static void forgets_the_exchange(program_copy *c)
{
    c[0].program.candidate.device_bytes = c[1].program.candidate.device_bytes = 208;
}
static void reads_too_few_rows(program_copy *c) { c[0].steps[MAKES].read_rows[1] = 2; }
static void reads_too_many_rows(program_copy *c) { c[1].steps[MAKES].read_rows[0] = 0; }
static void pads_nothing(program_copy *c) { c[0].steps[MAKES].row_padding[0] = 0; }
static void pads_inside(program_copy *c) { c[0].steps[MAKES].row_padding[1] = 1; }
static void crops_nothing(program_copy *c) { c[0].steps[LAST - 1].row_padding[1] = 0; }
static void crops_too_much(program_copy *c) { c[1].steps[LAST - 1].row_padding[0] = -2; }
static void sends_rows_of_a_source(program_copy *c) { c[1].steps[SENDS].read_rows[1] = 1; }
static void pads_what_it_sums(program_copy *c) { c[1].steps[REDUCES].row_padding[0] = 1; }
static void reduces_rows_of_the_other(program_copy *c) { c[1].steps[REDUCES].rows[0] = 3; }
static void gives_rows_of_the_other(program_copy *c) { c[1].steps[LAST].rows[0] = 3; }
static void gives_too_little(program_copy *c) { drop_step(&c[1], LAST); }
static void frees_not(program_copy *c) { c[1].steps[LAST].frees = 0; }
static void frees_early(program_copy *c) { c[0].steps[MAKES].first_ref = 2; }
static void makes_fewer_rows(program_copy *c) { c[0].steps[1].rows[1] = 1; }
static void has_too_few_rows(program_copy *c)
{
    c[0].slices[2].rows[1] = 2;
    c[0].slices[2].bytes = 16;
}
static void enters_its_own_rows(program_copy *c)
{
    c[0].slices[0].rows[1] = c[0].steps[0].rows[1] = 2;
    c[0].slices[0].bytes = 16;
}
static void wrong_bytes(program_copy *c) { c[1].slices[2].bytes = 24; }
static void wrong_macs(program_copy *c) { c[1].steps[MAKES].macs = 216; }
static void makes_by_passing(program_copy *c) { c[1].steps[1].op = HY3D_STEP_PASS; }
static void makes_another_node(program_copy *c) { c[1].steps[1].node = 2; }
static void makes_fewer_frames(program_copy *c) { c[1].steps[0].frames[1] = 1; }
static void is_of_another_size(program_copy *c) { c[1].sections[0].size[1] = 1; }
static void needs_other_input(program_copy *c) { c[0].program.input_rows[1][0] = 2; }
static void is_in_tiles(program_copy *c)
{
    c[0].program.candidate.order = c[1].program.candidate.order = HY3D_ORDER_TILES;
}
static void does_nothing(program_copy *c) { (void)c; }

/* A figure of both candidates, one more. */
#define WRONG_FIGURE(name, field)                                                                  \
    static void name(program_copy *c)                                                              \
    {                                                                                              \
        c[0].program.candidate.field++;                                                            \
        c[1].program.candidate.field++;                                                            \
    }
WRONG_FIGURE(wrong_peak, device_bytes)
WRONG_FIGURE(wrong_host_peak, host_bytes)
WRONG_FIGURE(wrong_stored, stored_bytes)
WRONG_FIGURE(wrong_loaded, loaded_bytes)
WRONG_FIGURE(wrong_sent, sent_bytes)
WRONG_FIGURE(wrong_work, macs)
WRONG_FIGURE(wrong_steps, steps)
static void disagrees(program_copy *c) { c[1].program.candidate.seconds = 1; }
static void has_no_time(program_copy *c)
{
    c[0].program.candidate.seconds = c[1].program.candidate.seconds = 1.5e-9;
}
static void disagrees_on_memory(program_copy *c) { c[1].program.candidate.device_bytes = 80; }

static const fault faults[] = {
    {receives_nothing, "rank 0: section 0, step 3 (store of node 1): row 2 of frame 0 of slice 1 "
                       "is not there"},
    {receives_nothing_later, "row 2 of frame 1 of slice 2 is not there"},
    {sends_nothing, "rank 0: section 0, step 7 (recv of node 1): waits for ever"},
    {both_receive_first, "step 2 (recv of node 1): waits for ever"},
    {one_receives_first, "it is not in its place"},
    {receives_for_sends, "rank 1 sent of node 1 frames 0 to 1, rows 2 to 3"},
    {sends_for_receives, "it is not in its place"},
    {sends_another_row, "rank 0 sent of node 1 frames 0 to 1, rows 0 to 1"},
    {sends_a_row_of_the_other, "row 2 of frame 0 of slice 1 is not there"},
    {receives_another_row, "rows 1 to 2; rank 1 sent"},
    {both_take_another_row, "slice 1 has frames 0 to 1, rows 0 to 3"},
    {both_take_no_row, "rows 2 to 2"},
    {both_take_no_frame, "frames 0 to 0"},
    {sends_behind_the_moments, "step 7 (send of node 1): it is not in its place"},
    {sends_the_first_behind_the_second, "step 3 (send of node 1): it is not in its place"},
    {sends_of_another_node, "slice 1 of node 1"},
    {sends_with_a_source, "slice 1 of node 1"},
    {sends_what_it_does_not_make, "rows 2 to 3, and it makes 0 to 2"},
    {receives_what_is_there, "row 1 of frame 0 of slice 0 a second time"},
    {sends_what_nobody_receives, "rank 0: section 0: what it sent is never received"},
    {receives_nothing_at_all, "rank 0: section 0, step 6 (send of node 1): waits for ever"},
    {receives_another_frame, "frames 1 to 2, rows 2 to 3; rank 1 sent"},
    {sends_in_another_order, "slice 2 is not on the device"},
    {stores_before_it_receives, "row 2 of frame 0 of slice 1 is not there"},
    {sends_to_itself, "peer 1 of 2"},
    {sends_to_nobody, "peer 2 of 2"},
    {has_a_peer_alone, "operation 1, peer 0"},
    {sends_with_a_flag, "slice 1 of node 1"},
    {does_not_reduce, "statistics of node 2's norm are not there"},
    {reduces_early, "frame 1 of node 1 has no moments"},
    {gathers_all_rows, "rows 1 to 5, not 2 to 5"},
    {gathers_not, "has no moments"},
    {gives_twice, "slice 3 is read, which is freed"},
    {gives_rows_of_the_other, "rows 3 to 10, not 4 to 10"},
    {one_gives_twice, "rank 0: section 0, step 15 (emit of node 3): another rank emits for frames 1 "
                      "to 2 of node 3 here"},
    {gives_another_node, "another rank emits for frames 0 to 1 of node 3 here"},
    {gives_where_others_reduce, "(reduce of node 2): another rank emits for frames 0 to 1"},
    {gets_no_rows, "workspace of 80 bytes, not 128"},
    {puts_nothing_together, "workspace of 48 bytes, not 128"},
    {gives_no_copy, "workspace of 0 bytes, not 48"},
    {forgets_the_exchange, "device bytes: the candidate says 208, it is 224"},
    {reads_too_few_rows, "reads rows 0 to 2, padded by 1 and 0, not 0 to 3 by 1 and 0"},
    {reads_too_many_rows, "reads rows 0 to 5, padded by 0 and 1, not 1 to 5 by 0 and 1"},
    {pads_nothing, "padded by 0 and 0, not 0 to 3 by 1 and 0"},
    {pads_inside, "padded by 1 and 1, not 0 to 3 by 1 and 0"},
    {crops_nothing, "padded by 1 and 0, not 0 to 3 by 1 and -1"},
    {crops_too_much, "padded by -2 and 1, not 1 to 5 by -1 and 1"},
    {sends_rows_of_a_source, "(send of node 1): reads rows 0 to 1"},
    {pads_what_it_sums, "(reduce of node 2): reads rows 0 to 0, padded by 1"},
    {reduces_rows_of_the_other, "rows 3 to 10, not 4 to 10"},
    {gives_too_little, "rank 0: section 0, step 15 (emit of node 3): waits for ever"},
    {frees_not, "slice 4 is left"},
    {frees_early, "which is freed"},
    {makes_fewer_rows, "the step 0 to 1, not 0 to 2"},
    {has_too_few_rows, "slice 2 has rows 0 to 2, not 0 to 3"},
    {enters_its_own_rows, "slice 0 has rows 0 to 2, not 0 to 3"},
    {wrong_bytes, "slice 2 has 24 bytes, not 32"},
    {wrong_macs, "216 multiply-accumulates, not 324"},
    {makes_by_passing, "another rank makes frames 0 to 1 of node 1"},
    {makes_another_node, "another rank makes frames 0 to 1 of node 1"},
    {makes_fewer_frames, "rank 1: section 0, step 0 (enter of node 0): another rank makes frames "
                         "0 to 2 of node 0 here"},
    {is_of_another_size, "another size"},
    {needs_other_input, "of the input rank 1 needs rows 1 to 5, not 2 to 5"},
    {is_in_tiles, "order 4 of several ranks"},
    {wrong_peak, "device bytes: the candidate says 225, it is 224"},
    {wrong_host_peak, "host bytes: the candidate says 33, it is 32"},
    {wrong_stored, "stored bytes: the candidate says 57, it is 56"},
    {wrong_loaded, "loaded bytes"},
    {wrong_sent, "sent bytes: the candidate says 33, it is 32"},
    {wrong_work, "multiply-accumulates: the candidate says 5401, it is 5400"},
    {wrong_steps, "steps: the candidate says 33, it is 32"},
    {has_no_time, "1.5e-09 s, and what it sends takes 1.6e-09 s"},
    {disagrees, "rank 1: section 0: its candidate is not rank 0's"},
    {disagrees_on_memory, "rank 1: section 0: its candidate is not rank 0's"},
};

static void set_up(graphs_case *made)
{
    memset(made, 0, sizeof *made);
    memcpy(made->nodes, hand_nodes, sizeof hand_nodes);
    made->request.graph.count = (int32_t)COUNT_OF(hand_nodes);
    graphs_request(made, 2, 5, 2);
    made->request.ranks = RANKS;
}

/* Two frames of 1 x 2: one row can't be shared, and rank 1 has it. */
static program_copy empty_program(int32_t rank)
{
    static const int32_t linked[] = {RECVS_2, SENDS_2, RECVS, SENDS};
    program_copy copy = hand_program(1);
    for (size_t i = 0; i < COUNT_OF(linked); i++) {
        drop_step(&copy, linked[i]);
    }
    for (int32_t i = 0; i < copy.program.step_count; i++) {
        hy3d_step *const step = &copy.steps[i];
        step->rows[0] = 0;
        step->rows[1] = step->node < 2 ? 1 : 2;
        step->macs = step->op != HY3D_STEP_CONV ? 0 : step->node == 1 ? 108 : 432;
        if (step->op == HY3D_STEP_CONV) {
            step->read_rows[0] = 0;
            step->read_rows[1] = step->row_padding[0] = step->row_padding[1] = 1;
        }
        step->workspace_bytes = step->op == HY3D_STEP_EMIT ? 16 : 0;
    }
    for (int32_t i = 0; i < copy.program.slice_count; i++) {
        hy3d_slice *const slice = &copy.slices[i];
        slice->rows[0] = 0;
        slice->rows[1] = slice->node < 2 ? 1 : 2;
        slice->bytes = slice->node < 2 ? 8 : 16;
    }
    if (rank == 0) {
        static const int32_t kept[] = {REDUCES - 4, EMITS - 4, LAST - 4};
        for (size_t i = 0; i < COUNT_OF(kept); i++) {
            copy.steps[i] = copy.steps[kept[i]];
            copy.steps[i].slice = -1;
            copy.steps[i].first_ref = copy.steps[i].frees = 0;
            copy.steps[i].rows[1] = 0;
            copy.steps[i].workspace_bytes *= 2; /* 2 rows that come, and put together */
        }
        copy.program.step_count = copy.sections[0].steps = COUNT_OF(kept);
        copy.program.slice_count = copy.sections[0].slices = 0;
    }
    copy.program.copies_bytes = rank == 0 ? 0 : 8;
    copy.sections[0].size[1] = 1;
    memset(copy.program.input_rows, 0, sizeof copy.program.input_rows);
    copy.program.input_rows[1][1] = 1;
    hy3d_candidate *const candidate = &copy.program.candidate;
    candidate->device_bytes = 48;
    candidate->host_bytes = candidate->stored_bytes = candidate->loaded_bytes = 8;
    candidate->sent_bytes = 0;
    candidate->macs = 1080;
    candidate->steps = STEPS - 4 + 3;
    return copy;
}

/* wanted: part of the objection; NULL: none. */
static void expect_of(program_copy (*program)(int32_t rank), const hy3d_schedule_request *request,
                      const fault *wrong)
{
    program_copy copies[RANKS] = {program(0), program(1)};
    replay_verdict verdict;
    for (int rank = 0; rank < RANKS * RANKS; rank++) {
        const int32_t weight = request->weights == NULL ? 1 : request->weights[rank % RANKS];
        copies[rank / RANKS].program.weights[rank % RANKS] = weight;
    }
    if (wrong != NULL) {
        wrong->make(copies);
    }
    const hy3d_program *const programs[RANKS] = {&copies[0].program, &copies[1].program};
    const bool is_accepted = replay_ranks(request, programs, &verdict);
    const char *const wanted = wrong == NULL ? NULL : wrong->text;
    ck_assert_msg(is_accepted == (verdict.text[0] == '\0'), "accepted %d: %s", is_accepted,
                  verdict.text);
    ck_assert_msg(wanted == NULL ? is_accepted : strstr(verdict.text, wanted) != NULL,
                  "\"%s\", not \"%s\"", verdict.text, wanted == NULL ? "" : wanted);
    for (int rank = 0; rank < RANKS; rank++) {
        program_copy_free(&copies[rank]);
    }
}

static void expect(const hy3d_schedule_request *request, const fault *wrong)
{
    expect_of(hand_program, request, wrong);
}

START_TEST(test_two_programs_by_hand_are_accepted)
{
    graphs_case made;
    set_up(&made);
    expect(&made.request, NULL);
}
END_TEST

START_TEST(test_every_fault_between_two_ranks_is_named)
{
    graphs_case made;
    set_up(&made);
    for (size_t i = 0; i < COUNT_OF(faults); i++) {
        expect(&made.request, &faults[i]);
    }
}
END_TEST

static void empty_does_not_reduce(program_copy *c) { drop_step(&c[0], 0); }
static void empty_reduces_another(program_copy *c) { c[0].steps[0].node = 1; }
static void empty_makes(program_copy *c) { insert_step(&c[0], 1, c[1].steps[1]); }
static void empty_gives_not(program_copy *c) { drop_step(&c[0], 2); }
static void empty_gives_another_frame(program_copy *c) { shift(c[0].steps[2].frames, -1); }
static void empty_gives_a_slice(program_copy *c) { c[0].steps[2].slice = 0; }
static void empty_gives_rows(program_copy *c) { c[0].steps[2].rows[1] = 1; }
static void empty_reduces_rows(program_copy *c) { c[0].steps[0].rows[1] = 2; }
static void empty_gets_nothing(program_copy *c) { c[0].steps[1].workspace_bytes = 0; }
static void empty_reduces_twice(program_copy *c) { insert_step(&c[0], 1, c[0].steps[0]); }

START_TEST(test_a_rank_without_a_share_has_steps_alone_in_which_all_meet)
{
    static const fault empty_faults[] = {
        {empty_does_not_reduce, "another rank emits for frames 0 to 1 of node 3 here"},
        {empty_reduces_another, "another rank reduces for frames 0 to 0 of node 1 here"},
        {empty_reduces_twice, "step 1 (reduce of node 2): another rank emits for frames 0 to 1"},
        {empty_makes, "step 1 (conv of node 1): of a rank whose share is empty"},
        {empty_gives_not, "rank 1: section 0, step 11 (emit of node 3): waits for ever"},
        {empty_gives_another_frame, "another rank emits for frames 0 to 1 of node 3 here"},
        {empty_gives_a_slice, "slice 0 of node 3, and there is none"},
        {empty_gives_rows, "rows 0 to 1, not 0 to 0"},
        {empty_reduces_rows, "rows 0 to 2, not 0 to 0"},
        {empty_gets_nothing, "rank 0: section 0, step 1 (emit of node 3): workspace of 0 bytes, not "
                             "32"},
    };
    graphs_case made;
    set_up(&made);
    made.request.size[1] = 1;
    expect_of(empty_program, &made.request, NULL);
    for (size_t i = 0; i < COUNT_OF(empty_faults); i++) {
        expect_of(empty_program, &made.request, &empty_faults[i]);
    }
}
END_TEST

START_TEST(test_unknown_code_is_not_shared)
{
    graphs_case made;
    set_up(&made);
    made.nodes[1].op = HY3D_OP_OPAQUE;
    expect(&made.request, &(fault){does_nothing, "node 1 is unknown code"});
}
END_TEST

START_TEST(test_a_norm_of_frames_is_not_shared)
{
    graphs_case made;
    set_up(&made);
    made.nodes[1].norm = HY3D_NORM_FRAME;
    expect(&made.request, &(fault){does_nothing, "node 1 has a norm of frames"});
}
END_TEST

START_TEST(test_rows_that_may_see_padding_alone_are_not_shared)
{
    graphs_case made;
    set_up(&made);
    made.nodes[2].after[1] = 3;
    expect(&made.request, &(fault){does_nothing, "node 2 may see padding alone"});
    made.nodes[2].after[1] = 1;
    made.nodes[2].before[1] = 3;
    expect(&made.request, &(fault){does_nothing, "node 2 may see padding alone"});
}
END_TEST

START_TEST(test_ranks_fit_where_each_does)
{
    graphs_case made;
    set_up(&made);
    made.request.device_budget = 224;
    made.request.host_budget = 32;
    expect(&made.request, NULL);
    made.request.device_budget = 223;
    expect(&made.request, &(fault){does_nothing, "fits 1, with 224 bytes on the device"});
    made.request.device_budget = 224;
    made.request.host_budget = 31;
    expect(&made.request, &(fault){does_nothing, "fits 1"});
    /* Of one memory for both: 224 and 24 on rank 0. */
    made.request.is_unified = 1;
    made.request.host_budget = 0;
    made.request.device_budget = 248;
    expect(&made.request, NULL);
    made.request.device_budget = 247;
    expect(&made.request, &(fault){does_nothing, "fits 1"});
}
END_TEST

START_TEST(test_each_rank_fits_its_own_budget)
{
    static const struct {
        int64_t budgets[RANKS];
        bool fit;
    } cases[] = {
        {{224, 176}, true}, {{223, 1000}, false}, {{1000, 175}, false},
        {{0, 176}, true},   {{224, 0}, true},     {{0, 175}, false},
    };
    graphs_case made;
    set_up(&made);
    made.request.device_budget = 1; /* is not looked at */
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        made.request.device_budgets = cases[i].budgets;
        expect(&made.request,
               cases[i].fit ? NULL : &(fault){does_nothing, "fits 1, with 224 bytes"});
    }
}
END_TEST

/* What six rows become, and how three ranks share them by three: a convolution with a stride and a
 * shuffle, an attention of single frames, one of all, and one that reads far above. */
static const hy3d_node row_nodes[] = {
    {.op = HY3D_OP_INPUT, .source = -1, .other = -1, .channels = 1},
    {.op = HY3D_OP_CONV, .source = 0, .other = -1, .channels = 1, .kernel = {1, 3, 1},
     .stride = {1, 2, 1}, .dilation = {1, 1, 1}, .up = {1, 1, 1}, .after = {0, 1, 0},
     .shuffle = {1, 2, 1}, .groups = 1},
    {.op = HY3D_OP_ATTENTION, .source = 1, .other = -1, .channels = 1, .heads = 1, .width = 5},
    {.op = HY3D_OP_ATTENTION, .source = 2, .other = -1, .channels = 1, .heads = 1, .width = 5,
     .span = HY3D_SPAN_VIDEO},
    {.op = HY3D_OP_CONV, .source = 3, .other = -1, .channels = 1, .kernel = {1, 2, 1},
     .stride = {1, 1, 1}, .dilation = {1, 3, 1}, .up = {1, 1, 1}, .before = {0, 3, 0},
     .shuffle = {1, 1, 1}, .groups = 1},
    {.op = HY3D_OP_OUTPUT, .source = 4, .other = -1, .channels = 1},
};

START_TEST(test_rows_and_work_of_a_rank_are_as_worked_out_by_hand)
{
    static const int64_t held[3][6][2] = {
        {{0, 3}, {0, 6}, {0, 2}, {0, 2}, {0, 2}, {0, 2}},
        {{2, 5}, {0, 6}, {2, 4}, {0, 4}, {2, 4}, {2, 4}},
        {{4, 6}, {0, 6}, {4, 6}, {1, 6}, {4, 6}, {4, 6}},
    };
    const hy3d_graph graph = {row_nodes, (int32_t)COUNT_OF(row_nodes)};
    const int32_t nodes[2] = {0, graph.count - 1};
    /* Of two frames of three columns: six positions a row. */
    replay_values values = replay_values_make(&graph, 0, nodes[1], (hy3d_size){1, 2, 6, 3});
    ck_assert_int_eq(replay_unit(&values), 3);
    for (int32_t rank = 0; rank < 3; rank++) {
        replay_rows *const rows = replay_rows_make(&graph, &values, nodes, rank, 3, NULL);
        for (int32_t node = 0; node < graph.count; node++) {
            ck_assert_int_eq(rows[node].own[0], 2 * rank);
            ck_assert_int_eq(rows[node].own[1], 2 * rank + 2);
            ck_assert_msg(rows[node].held[0] == held[rank][node][0] &&
                              rows[node].held[1] == held[rank][node][1],
                          "rank %d, node %d: rows %d to %d", rank, node, (int)rows[node].held[0],
                          (int)rows[node].held[1]);
        }
        free(rows);
    }
    hy3d_step step = {.op = HY3D_STEP_CONV, .node = 1, .own = {0, 2}, .frames = {0, 2},
                      .rows = {2, 4}};
    /* One row before the shuffle: two frames, three columns, two channels, three weights. */
    ck_assert_int_eq(replay_macs(&graph, &values, &step), 36);
    step.op = HY3D_STEP_ATTEND;
    step.node = 2;
    /* Keys and values of 36 positions, queries and results of 12; each sees 18. */
    ck_assert_int_eq(replay_macs(&graph, &values, &step),
                     2 * 36 * 5 + 2 * 12 * 5 + 2 * 12 * 18 * 5);
    step.node = 3;
    ck_assert_int_eq(replay_macs(&graph, &values, &step), 2 * 12 * 5 + 2 * 12 * 36 * 5);
    step.op = HY3D_STEP_KEYS;
    ck_assert_int_eq(replay_macs(&graph, &values, &step), 2 * 12 * 5);
    replay_values_free(&values);
}
END_TEST

/* Five rows: two and three, whatever the ratio is called. */
START_TEST(test_rows_are_shared_by_weights)
{
    static const int32_t right[][RANKS] = {{2, 3}, {1, 1}, {400, 600}, {1073741823, 1073741824}};
    static const int32_t wrong[][RANKS] = {{3, 2}, {1, 2}, {1, 400}};
    graphs_case made;
    set_up(&made);
    for (size_t i = 0; i < COUNT_OF(right); i++) {
        made.request.weights = right[i];
        expect(&made.request, NULL);
    }
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        made.request.weights = wrong[i];
        expect(&made.request, &(fault){does_nothing, i == 0 ? "not 0 to 4" : i == 1 ? "not 0 to 2"
                                       : "of a rank whose share is empty"});
    }
}
END_TEST

TCase *hy3d_schedule_ranks_cases(void)
{
    TCase *const tests = tcase_create("ranks");
    tcase_add_test(tests, test_rows_are_shared_by_weights);
    tcase_add_test(tests, test_two_programs_by_hand_are_accepted);
    tcase_add_test(tests, test_every_fault_between_two_ranks_is_named);
    tcase_add_test(tests, test_a_rank_without_a_share_has_steps_alone_in_which_all_meet);
    tcase_add_test(tests, test_unknown_code_is_not_shared);
    tcase_add_test(tests, test_a_norm_of_frames_is_not_shared);
    tcase_add_test(tests, test_rows_that_may_see_padding_alone_are_not_shared);
    tcase_add_test(tests, test_ranks_fit_where_each_does);
    tcase_add_test(tests, test_each_rank_fits_its_own_budget);
    tcase_add_test(tests, test_rows_and_work_of_a_rank_are_as_worked_out_by_hand);
    return tests;
}
