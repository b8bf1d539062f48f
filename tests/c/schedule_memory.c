/* What the core says of steps of places whose layers it knows, against figures by hand: of those
 * that the C convolution computes, and of those whose calls it asks about. */
#include "schedule_support.h"

#include "hy3d/conv3d.h"

enum { CHANNELS = 16, FRAMES = 2, SIDE = 6, BLOCK = 1000, THREADS = 2 };
enum { TOKENS = SIDE * SIDE, POSITIONS = FRAMES * TOKENS, BYTES = 2 };
enum { ONE = CHANNELS * POSITIONS * BYTES }; /* of a value of the graph but the last */

static const hy3d_node nodes_of_all[] = {
    {.op = HY3D_OP_INPUT, .source = -1, .other = -1, .channels = CHANNELS},
    {.op = HY3D_OP_CONV,
     .source = 0,
     .other = -1,
     .norm = HY3D_NORM_POSITION,
     .channels = CHANNELS,
     .kernel = {3, 3, 3},
     .stride = {1, 1, 1},
     .dilation = {1, 1, 1},
     .up = {1, 1, 1},
     .before = {2, 1, 1},
     .after = {0, 1, 1},
     .shuffle = {1, 1, 1},
     .groups = 1},
    {.op = HY3D_OP_CONV,
     .source = 1,
     .other = 0,
     .channels = CHANNELS,
     .kernel = {1, 1, 1},
     .stride = {1, 1, 1},
     .dilation = {1, 1, 1},
     .up = {1, 1, 1},
     .shuffle = {1, 1, 1},
     .groups = 1},
    {.op = HY3D_OP_ATTENTION,
     .source = 2,
     .other = -1,
     .norm = HY3D_NORM_POSITION,
     .channels = CHANNELS,
     .span = HY3D_SPAN_FRAME,
     .heads = 2,
     .width = CHANNELS},
    {.op = HY3D_OP_CONV,
     .source = 3,
     .other = -1,
     .channels = CHANNELS / 4,
     .kernel = {1, 3, 3},
     .stride = {1, 1, 1},
     .dilation = {1, 1, 1},
     .up = {1, 1, 1},
     .before = {0, 1, 1},
     .after = {0, 1, 1},
     .shuffle = {1, 2, 2},
     .groups = 1},
    {.op = HY3D_OP_OUTPUT, .source = 4, .other = -1, .channels = CHANNELS / 4},
};
enum { NODES = sizeof nodes_of_all / sizeof *nodes_of_all };

/* What is asked about, and the answers: 1000 for each part and 10000 for each node, in place where
 * it is said so. */
typedef struct known_case {
    graphs_case made;
    hy3d_layer layers[NODES];
    hy3d_call calls[4 * NODES];
    int32_t questions, in_place;
    hy3d_status status;
    hy3d_step_memory more;
} known_case;

static hy3d_status never(void *user, const hy3d_step *step, const hy3d_size *source,
                         int32_t on_host, hy3d_step_memory *taken)
{
    (void)user, (void)step, (void)source, (void)on_host, (void)taken;
    return HY3D_ERR_CANCELLED;
}

static int64_t answer_of(int32_t node, int32_t part)
{
    return INT64_C(10000) * node + INT64_C(1000) * part;
}

static hy3d_status asked(void *user, const hy3d_call *call, hy3d_step_memory *taken)
{
    known_case *const known = user;
    ck_assert_int_lt(known->questions, (int)(sizeof known->calls / sizeof *known->calls));
    known->calls[known->questions++] = *call;
    *taken = known->more;
    taken->workspace_bytes += answer_of(call->node, call->part);
    taken->is_in_place = known->in_place;
    return known->status;
}

static void make_known(known_case *out)
{
    memset(out, 0, sizeof *out);
    memcpy(out->made.nodes, nodes_of_all, sizeof nodes_of_all);
    out->made.request.graph.count = NODES;
    graphs_request(&out->made, FRAMES, SIDE, SIDE);
    for (int i = 0; i < NODES; i++) {
        const int32_t op = nodes_of_all[i].op;
        out->layers[i] = (hy3d_layer){.is_native = op == HY3D_OP_CONV || op == HY3D_OP_ATTENTION,
                                      .pad_mode = {1, 1},
                                      .kept_bytes = i};
    }
    out->layers[3].is_fused = 1;
    hy3d_schedule_request *const r = &out->made.request;
    r->is_host = 1;
    r->strategies = 1u << HY3D_STRATEGY_STREAMED;
    r->host.chunks[0] = FRAMES;
    r->element_bytes = BYTES;
    r->places[0] = (hy3d_place){.layers = out->layers,
                                .dtype = HY3D_F16,
                                .threads = THREADS,
                                .fewest_shuffled = 2,
                                .block_elements = BLOCK,
                                .score_bytes = 2880};
    r->workspace = never;
    r->inside = asked;
    r->user = out;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* A convolution of all frames. */
static hy3d_conv3d_desc desc_of(int64_t in, int64_t out, const hy3d_node *node)
{
    hy3d_conv3d_desc desc = {.dtype = HY3D_F16,
                             .batch = 1,
                             .in_channels = in,
                             .out_channels = out,
                             .groups = 1,
                             .in_size = {FRAMES, SIDE, SIDE},
                             .kernel = {1, 1, 1},
                             .stride = {1, 1, 1},
                             .dilation = {1, 1, 1},
                             .accuracy = HY3D_FAST,
                             .num_threads = THREADS};
    for (int i = 0; i < 3 && node != NULL; i++) {
        desc.kernel[i] = node->kernel[i];
        desc.in_size[i] += i == 0 ? node->before[0] : 0;
        desc.pad_before[i] = i == 0 ? 0 : node->before[i];
        desc.pad_after[i] = node->after[i];
        desc.pad_mode[i] = i == 0 ? HY3D_PAD_ZEROS : HY3D_PAD_REPLICATE;
    }
    return desc;
}

/* What it takes inside, or a block of floats. */
static int64_t inside_of(hy3d_context *context, const hy3d_conv3d_desc *desc)
{
    size_t workspace[2], own[2];
    for (int i = 0; i < 2; i++) {
        ck_assert_ok(hy3d_conv3d_memory(context, desc, i == 1, &workspace[i], &own[i]));
    }
    return most(most((int64_t)(workspace[0] + own[0]), (int64_t)(workspace[1] + own[1])),
                8 * BLOCK);
}

static int64_t inside(hy3d_context *context, int64_t in, int64_t out, const hy3d_node *node)
{
    const hy3d_conv3d_desc desc = desc_of(in, out, node);
    return inside_of(context, &desc);
}

/* Likewise of so many rows of its source, padded by these. */
static int64_t inside_rows(hy3d_context *context, int64_t in, int64_t out, const hy3d_node *node,
                           int64_t rows, const int64_t padding[2])
{
    hy3d_conv3d_desc desc = desc_of(in, out, node);
    desc.in_size[1] = rows;
    desc.pad_before[1] = padding[0];
    desc.pad_after[1] = padding[1];
    return inside_of(context, &desc);
}

static int64_t workspace_of(const hy3d_program *program, int32_t op, int32_t node)
{
    int64_t found = -1;
    for (int32_t i = 0; i < program->step_count; i++) {
        const hy3d_step *const step = &program->steps[i];
        if (step->op == op && step->node == node) {
            ck_assert_int_eq(found, -1); /* all frames at once */
            found = step->workspace_bytes;
        }
    }
    return found;
}

START_TEST(test_what_the_core_knows_of_steps_on_the_host_is_as_by_hand)
{
    hy3d_context *const context = test_context("ref", THREADS);
    const bool is_composed = _i % 2 == 1, is_causal = _i / 2 == 1;
    known_case known;
    hy3d_schedule *schedule = NULL;
    make_known(&known);
    known.layers[3].is_composed = is_composed;
    known.made.nodes[3].span = is_causal ? HY3D_SPAN_CAUSAL : HY3D_SPAN_FRAME;
    ck_assert_ok(hy3d_schedule_compile(context, &known.made.request, &schedule));
    ck_assert_int_eq(known.questions, 0);
    const hy3d_program *const program = hy3d_schedule_program(schedule);
    const hy3d_node *const nodes = known.made.nodes;

    /* 1: a copy of what is read, normed. 2: the result beside the input, which is its residual. */
    ck_assert_int_eq(workspace_of(program, HY3D_STEP_CONV, 1),
                     ONE + inside(context, CHANNELS, CHANNELS, &nodes[1]));
    ck_assert_int_eq(workspace_of(program, HY3D_STEP_CONV, 2),
                     inside(context, CHANNELS, CHANNELS, &nodes[2]) + ONE);
    /* 3: its product is queries, keys and values. 10 queries at a time: 2 heads of 36 keys, of the
     * last frame of CAUSAL 72, take 288 bytes of scores each, or 576. */
    const int64_t queries = 3 * ONE + ONE + inside(context, CHANNELS, 3 * CHANNELS, NULL);
    const int64_t keys = is_causal ? 0 : 2 * ONE, rows = is_causal ? 5 : 10;
    const int64_t seen = is_causal ? 2 * TOKENS : TOKENS, q = rows * CHANNELS * BYTES;
    /* Scores are float32's, and with 2 bytes an element three copies of all operands. */
    const int64_t copies = BYTES < 4 ? 3 : 1;
    const int64_t composed = 2 * (2 * rows * seen * 4) + copies * (rows + seen) * CHANNELS * 4;
    const int64_t fused = THREADS * rows * (2 * seen + CHANNELS / 2 + 2) * 4;
    const int64_t mixing = keys + 2 * ONE + q + (is_composed ? composed : fused);
    const int64_t leaving = ONE + inside(context, CHANNELS, CHANNELS, NULL);
    ck_assert_int_eq(workspace_of(program, HY3D_STEP_ATTEND, 3),
                     most(keys + queries + ONE, most(mixing, leaving)));
    ck_assert_int_eq(workspace_of(program, HY3D_STEP_KEYS, 3), is_causal ? queries : -1);
    /* 4: its result once more, shuffled, is less than what the convolution takes inside. */
    ck_assert_int_eq(workspace_of(program, HY3D_STEP_CONV, 4),
                     most(inside(context, CHANNELS, CHANNELS, &nodes[4]), ONE));
    hy3d_schedule_destroy(context, schedule);
    hy3d_context_destroy(context);
}
END_TEST

/* Compiles it with all CONV and ATTENTION by others than the core. */
static hy3d_schedule *compile_asked(hy3d_context *context, known_case *known)
{
    hy3d_schedule *schedule = NULL;
    for (int i = 0; i < NODES; i++) {
        known->layers[i].is_native = 0;
    }
    ck_assert_ok(hy3d_schedule_compile(context, &known->made.request, &schedule));
    return schedule;
}

START_TEST(test_of_calls_that_are_not_the_cores_own_it_asks_and_puts_steps_together)
{
    hy3d_context *const context = test_context("ref", THREADS);
    const bool in_place = _i % 2 == 1, is_rescaled = _i / 2 == 1;
    known_case known;
    make_known(&known);
    known.in_place = in_place;
    known.layers[3].is_rescaled = is_rescaled;
    known.made.request.places[0].threads = 0; /* attention takes nothing inside */
    hy3d_schedule *const schedule = compile_asked(context, &known);
    const hy3d_program *const program = hy3d_schedule_program(schedule);

    ck_assert_int_eq(workspace_of(program, HY3D_STEP_CONV, 1), answer_of(1, 0));
    /* 2: its residual is the input, which no convolution made. */
    ck_assert_int_eq(workspace_of(program, HY3D_STEP_CONV, 2), answer_of(2, 0) + ONE);
    ck_assert_int_eq(workspace_of(program, HY3D_STEP_CONV, 4), answer_of(4, 0));
    const int64_t asking = 2 * ONE + 3 * ONE + answer_of(3, HY3D_PART_QUERIES) + ONE;
    const int64_t mixing = 4 * ONE + 10 * CHANNELS * BYTES;
    const int64_t leaving = ONE + answer_of(3, HY3D_PART_OUT) + (is_rescaled || in_place ? 0 : ONE);
    ck_assert_int_eq(workspace_of(program, HY3D_STEP_ATTEND, 3),
                     most(asking, most(mixing, leaving)));

    static const struct {
        int32_t node, part, is_made;
        int64_t channels;
    } wanted[] = {{1, HY3D_PART_LAYER, 0, CHANNELS},
                  {2, HY3D_PART_LAYER, 1, CHANNELS},
                  {3, HY3D_PART_QUERIES, 1, CHANNELS},
                  {3, HY3D_PART_OUT, 1, CHANNELS},
                  {4, HY3D_PART_LAYER, 1, CHANNELS}};
    ck_assert_int_eq(known.questions, 5);
    for (int i = 0; i < 5; i++) {
        const hy3d_call *const call = &known.calls[i];
        ck_assert_int_eq(call->node, wanted[i].node);
        ck_assert_int_eq(call->part, wanted[i].part);
        ck_assert_int_eq(call->is_made, wanted[i].is_made);
        ck_assert_int_eq(call->on_host, 0);
        ck_assert_int_eq(call->source.channels, wanted[i].channels);
        ck_assert_int_eq(call->source.frames, FRAMES);
        ck_assert_int_eq(call->source.rows, SIDE);
        ck_assert_int_eq(call->source.columns, SIDE);
        ck_assert_int_eq(call->reads[0] + call->makes[0], 0);
        ck_assert_int_eq(call->reads[1], FRAMES);
        ck_assert_int_eq(call->makes[1], FRAMES);
    }
    hy3d_schedule_destroy(context, schedule);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_frames_of_a_call_are_counted_from_where_its_own_video_begins)
{
    hy3d_context *const context = test_context("ref", THREADS);
    known_case known;
    make_known(&known);
    known.made.nodes[1].skip_first = 1;
    known.made.nodes[1].before[0] = 1; /* of a video of one frame, with one read again: two */
    known.made.nodes[1].reread = _i;
    known.made.nodes[1].kernel[0] = 2 + _i;
    known.made.nodes[2].other = -1;
    hy3d_schedule *const schedule = compile_asked(context, &known);
    const hy3d_call *const call = &known.calls[0];
    ck_assert_int_eq(call->source.frames, FRAMES - 1 + _i);
    ck_assert_int_eq(call->reads[0], 0);
    ck_assert_int_eq(call->reads[1], FRAMES - 1 + _i);
    ck_assert_int_eq(call->makes[1], 1);
    hy3d_schedule_destroy(context, schedule);
    hy3d_context_destroy(context);
}
END_TEST

/* --- several ranks ---------------------------------------------------------------------------- */

enum { SHARE = SIDE / 2, ROW = ONE / SIDE };

static hy3d_schedule *compile_rank(hy3d_context *context, known_case *known, int32_t rank)
{
    hy3d_schedule *schedule = NULL;
    known->made.request.ranks = 2;
    known->made.request.rank = rank;
    ck_assert_ok(hy3d_schedule_compile(context, &known->made.request, &schedule));
    return schedule;
}

/* Each of two has half of the rows, and reads one more where a kernel has three. */
START_TEST(test_what_the_core_knows_of_a_ranks_steps_follows_from_its_rows)
{
    hy3d_context *const context = test_context("ref", THREADS);
    const int32_t rank = _i % 2, span = _i / 2;
    const int64_t at_border[2] = {rank == 0, rank == 1}, none[2] = {0, 0};
    known_case known;
    make_known(&known);
    known.made.nodes[3].span = span;
    hy3d_schedule *const schedule = compile_rank(context, &known, rank);
    const hy3d_program *const program = hy3d_schedule_program(schedule);
    const hy3d_node *const nodes = known.made.nodes;

    ck_assert_int_eq(workspace_of(program, HY3D_STEP_CONV, 1),
                     (SHARE + 1) * ROW + inside_rows(context, CHANNELS, CHANNELS, &nodes[1],
                                                     SHARE + 1, at_border));
    ck_assert_int_eq(workspace_of(program, HY3D_STEP_CONV, 2),
                     inside_rows(context, CHANNELS, CHANNELS, &nodes[2], SHARE, none) +
                         SHARE * ROW);
    /* 3: queries of its rows; keys and values of all, of single frames its own. */
    const bool is_alone = span == HY3D_SPAN_FRAME;
    const int64_t its_queries =
        (3 + 1) * SHARE * ROW + inside_rows(context, CHANNELS, 3 * CHANNELS, NULL, SHARE, none);
    const int64_t all_queries = 4 * ONE + inside(context, CHANNELS, 3 * CHANNELS, NULL);
    const int64_t keys = is_alone ? 2 * ONE : 0, rows = is_alone ? 10 : 5;
    const int64_t seen = is_alone ? TOKENS : 2 * TOKENS;
    const int64_t mixing = keys + 2 * SHARE * ROW + rows * CHANNELS * BYTES +
                           THREADS * rows * (2 * seen + CHANNELS / 2 + 2) * 4;
    const int64_t leaving =
        SHARE * ROW + inside_rows(context, CHANNELS, CHANNELS, NULL, SHARE, none);
    const int64_t asking =
        most(is_alone ? keys + all_queries : 0, keys + its_queries + SHARE * ROW);
    ck_assert_int_eq(workspace_of(program, HY3D_STEP_ATTEND, 3),
                     most(asking, most(mixing, leaving)));
    ck_assert_int_eq(workspace_of(program, HY3D_STEP_KEYS, 3), is_alone ? -1 : its_queries);
    ck_assert_int_eq(workspace_of(program, HY3D_STEP_CONV, 4),
                     most(inside_rows(context, CHANNELS, CHANNELS, &nodes[4], SHARE + 1, at_border),
                          SHARE * ROW));
    hy3d_schedule_destroy(context, schedule);
    hy3d_context_destroy(context);
}
END_TEST

/* Rank 0 has the whole input, and the other what its first convolution reads. */
START_TEST(test_the_rows_of_the_input_that_a_rank_was_sent_are_on_its_host)
{
    static const int64_t rows[2][2] = {{0, SHARE + 1}, {SHARE - 1, SIDE}};
    hy3d_context *const context = test_context("ref", THREADS);
    known_case known;
    make_known(&known);
    known.made.request.is_host = 0;
    known.made.request.result_bytes = 700;
    known.made.request.places[1] = known.made.request.places[0];
    known.made.request.source_bytes = _i % 3 * BYTES;
    const int64_t sent = _i % 3 * (SHARE + 1) * ROW;
    hy3d_schedule *schedule = compile_rank(context, &known, _i / 3);
    const hy3d_program *program = hy3d_schedule_program(schedule);
    ck_assert_int_eq(program->candidate.host_bytes, 700 + sent);
    ck_assert_mem_eq(program->input_rows, rows, sizeof rows);
    hy3d_schedule_destroy(context, schedule);
    known.made.request.host_budget = 700 + sent - 1;
    known.made.request.rank = _i / 3;
    ck_assert_status(hy3d_schedule_compile(context, &known.made.request, &schedule),
                     HY3D_ERR_BUDGET_TOO_SMALL);
    hy3d_schedule_destroy(context, schedule);
    known.made.request.ranks = known.made.request.rank = 0; /* one device has all of the input */
    known.made.request.host_budget = 0;
    ck_assert_ok(hy3d_schedule_compile(context, &known.made.request, &schedule));
    ck_assert_int_eq(hy3d_schedule_program(schedule)->candidate.host_bytes, 700);
    hy3d_schedule_destroy(context, schedule);
    hy3d_context_destroy(context);
}
END_TEST

/* Of slices that have a row of the other rank's beside: what is made apart from them is counted. */
START_TEST(test_what_a_rank_makes_beside_its_slice_counts)
{
    hy3d_context *const context = test_context("ref", THREADS);
    known_case known;
    make_known(&known); /* a function of frames, read by three rows of a kernel, and by one */
    known.made.nodes[1] = (hy3d_node){.op = HY3D_OP_MAP,
                                      .other = -1,
                                      .channels = CHANNELS / 2,
                                      .frames_first = 1,
                                      .frames_rest = 1,
                                      .frames_per = 1,
                                      .space_up = {1, 2},
                                      .space_down = {1, 1}};
    known.layers[1] = (hy3d_layer){.kept_bytes = 0};
    known.made.nodes[2] = nodes_of_all[1];
    known.made.nodes[2].source = 1;
    known.made.nodes[2].kernel[1] = 1 + 2 * (_i % 2);
    known.made.nodes[2].before[1] = known.made.nodes[2].after[1] = _i % 2;
    known.made.nodes[3].span = HY3D_SPAN_VIDEO;
    known.layers[3] = (hy3d_layer){.is_rescaled = 1};
    known.made.nodes[4].kernel[1] = known.made.nodes[2].kernel[1];
    known.made.nodes[4].before[1] = known.made.nodes[4].after[1] = _i % 2;
    hy3d_schedule *const schedule = compile_rank(context, &known, _i / 2);
    const hy3d_program *const program = hy3d_schedule_program(schedule);
    ck_assert_int_eq(workspace_of(program, HY3D_STEP_MAP, 1),
                     answer_of(1, HY3D_PART_LAYER) + (_i % 2) * SHARE * ROW);
    /* 3: of twice as many columns. Queries and the sums that they become; these and the result. */
    const int64_t asking = answer_of(3, HY3D_PART_QUERIES) + 2 * 2 * SHARE * ROW;
    const int64_t leaving = answer_of(3, HY3D_PART_OUT) + (1 + _i % 2) * 2 * SHARE * ROW;
    ck_assert_int_eq(leaving > asking, _i % 2);
    ck_assert_int_eq(workspace_of(program, HY3D_STEP_ATTEND, 3), most(asking, leaving));
    hy3d_schedule_destroy(context, schedule);
    hy3d_context_destroy(context);
}
END_TEST

/* Two frames that pass by are put together of two slices, then copied to their rows of one. */
START_TEST(test_frames_that_pass_by_are_put_together_beside_their_slice)
{
    hy3d_context *const context = test_context("ref", THREADS);
    known_case known;
    make_known(&known);
    known.made.nodes[2].other = -1;
    known.made.nodes[2].skip_first = FRAMES;
    known.made.nodes[3] = nodes_of_all[1];
    known.made.nodes[3].source = 2;
    known.made.nodes[3].kernel[1] = 1 + 2 * (_i % 2);
    known.made.nodes[3].before[1] = known.made.nodes[3].after[1] = _i % 2;
    known.made.nodes[4].norm = HY3D_NORM_GROUP; /* so it goes by layers, of one frame at a time */
    known.made.request.host.slice_bytes[0] = 1;
    known.made.request.host.slice_bytes[1] = 0;
    hy3d_schedule *const schedule = compile_rank(context, &known, _i / 2);
    ck_assert_int_eq(workspace_of(hy3d_schedule_program(schedule), HY3D_STEP_PASS, 2),
                     (_i % 2) * SHARE * ROW);
    hy3d_schedule_destroy(context, schedule);
    hy3d_context_destroy(context);
}
END_TEST

/* Of rows that are up-sampled, the second copy of the last or the first copy of the first is cropped;
 * prepared weights, too, are those of these rows. */
START_TEST(test_a_native_convolution_crops_up_sampled_rows_of_a_rank)
{
    static const int64_t cropped[2][2] = {{1, -1}, {-1, 1}};
    hy3d_context *const context = test_context(NULL, THREADS);
    known_case known;
    hy3d_prepared found[NODES];
    hy3d_conv3d_format format = HY3D_FORMAT_NONE;
    make_known(&known);
    hy3d_node *const node = &known.made.nodes[4];
    node->shuffle[1] = node->shuffle[2] = 1;
    node->up[1] = node->up[2] = 2;
    hy3d_schedule *const schedule = compile_rank(context, &known, _i);
    hy3d_conv3d_desc desc = desc_of(CHANNELS, CHANNELS / 4, node);
    desc.in_size[1] = 2 * (SHARE + 1);
    desc.in_size[2] = 2 * SIDE;
    desc.upsample[0] = 1;
    desc.upsample[1] = desc.upsample[2] = 2;
    desc.pad_before[1] = cropped[_i][0];
    desc.pad_after[1] = cropped[_i][1];
    ck_assert_int_eq(workspace_of(hy3d_schedule_program(schedule), HY3D_STEP_CONV, 4),
                     inside_of(context, &desc));
    ck_assert_ok(hy3d_schedule_prepared(context, schedule, found));
    ck_assert_ok(hy3d_conv3d_choose_format(context, &desc, &format));
    ck_assert_uint_eq(found[4].format, format);
    hy3d_schedule_destroy(context, schedule);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_of_a_ranks_calls_it_asks_with_the_rows_that_are_read)
{
    /* Of each rank; the last is up-sampled: row 7 of 8, or row 4 of 4 to 12, is cropped. */
    static const struct {
        int32_t node, part;
        int64_t rows, padding[2][2];
    } wanted[] = {
        {1, HY3D_PART_LAYER, SHARE + 1, {{1, 0}, {0, 1}}},
        {2, HY3D_PART_LAYER, SHARE, {{0, 0}, {0, 0}}},
        {3, HY3D_PART_QUERIES, SIDE, {{0, 0}, {0, 0}}},
        {3, HY3D_PART_QUERIES, SHARE, {{0, 0}, {0, 0}}},
        {3, HY3D_PART_OUT, SHARE, {{0, 0}, {0, 0}}},
        {4, HY3D_PART_LAYER, SHARE + 1, {{1, -1}, {-1, 1}}},
    };
    hy3d_context *const context = test_context("ref", THREADS);
    known_case known;
    make_known(&known);
    known.made.nodes[4].shuffle[1] = known.made.nodes[4].shuffle[2] = 1;
    known.made.nodes[4].up[1] = known.made.nodes[4].up[2] = 2;
    known.made.request.ranks = 2;
    hy3d_schedule *const schedule = compile_asked(context, &known);
    ck_assert_int_eq(known.questions, 2 * (int)COUNT_OF(wanted));
    for (size_t i = 0; i < 2 * COUNT_OF(wanted); i++) {
        const hy3d_call *const call = &known.calls[i];
        const size_t rank = i / COUNT_OF(wanted), at = i % COUNT_OF(wanted);
        ck_assert_int_eq(call->node, wanted[at].node);
        ck_assert_int_eq(call->part, wanted[at].part);
        ck_assert_int_eq(call->source.rows, wanted[at].rows);
        ck_assert_int_eq(call->source.columns, SIDE);
        ck_assert_mem_eq(call->row_padding, wanted[at].padding[rank], sizeof call->row_padding);
    }
    hy3d_schedule_destroy(context, schedule);
    hy3d_context_destroy(context);
}
END_TEST

/* Of convolutions alone, and an output of few channels. */
START_TEST(test_each_of_two_ranks_takes_about_half_of_a_large_picture)
{
    hy3d_context *const context = test_context("ref", THREADS);
    int64_t taken[2], inside_most[2] = {0, 0};
    for (int i = 0; i < 2; i++) {
        known_case known;
        hy3d_schedule *schedule = NULL;
        make_known(&known);
        known.made.nodes[3] = known.made.nodes[1];
        known.made.nodes[3].source = 2;
        known.layers[3] = known.layers[1];
        known.made.nodes[4].shuffle[1] = known.made.nodes[4].shuffle[2] = 1;
        known.made.nodes[4].channels = known.made.nodes[5].channels = 1;
        known.made.request.size[1] = 256;
        known.made.request.size[2] = 64;
        known.made.request.ranks = 1 + i;
        ck_assert_ok(hy3d_schedule_compile(context, &known.made.request, &schedule));
        const hy3d_program *const program = hy3d_schedule_program(schedule);
        taken[i] = program->candidate.device_bytes;
        for (int32_t j = 0; j < program->step_count; j++) {
            inside_most[i] = most(inside_most[i], program->steps[j].workspace_bytes);
        }
        hy3d_schedule_destroy(context, schedule);
    }
    ck_assert_int_gt(2 * taken[1], taken[0]);
    ck_assert_int_lt(2 * taken[1], taken[0] + taken[0] / 8);
    ck_assert_int_gt(2 * inside_most[1], inside_most[0]);
    ck_assert_int_lt(2 * inside_most[1], inside_most[0] + inside_most[0] / 4);
    hy3d_context_destroy(context);
}
END_TEST

/* The first convolution in the program of this rank; one without rows has none. Of 32 channels all
 * 12 rows have another layout than the 7 that each of two ranks reads. */
START_TEST(test_prepared_weights_of_a_rank_follow_its_rows)
{
    static const int32_t weights[] = {1, 20};
    hy3d_context *const context = test_context(NULL, THREADS);
    hy3d_conv3d_format formats[4];
    for (int32_t i = 0; i < 4; i++) {
        const int32_t rank = i % 2;
        const bool is_empty = i == 2, has_all = i == 3;
        known_case known;
        hy3d_prepared found[NODES];
        make_known(&known);
        for (int node = 0; node < NODES; node++) {
            known.made.nodes[node].channels *= 2;
        }
        known.made.nodes[3].width *= 2;
        known.made.request.size[1] = 12;
        known.made.request.size[2] = 32;
        known.made.request.weights = i < 2 ? NULL : weights;
        hy3d_schedule *const schedule = compile_rank(context, &known, rank);
        ck_assert_ok(hy3d_schedule_prepared(context, schedule, found));
        hy3d_conv3d_desc desc = desc_of(32, 32, &known.made.nodes[4]);
        desc.in_size[1] = has_all ? 12 : 7;
        desc.in_size[2] = 32;
        desc.pad_before[1] = rank == 0 || has_all;
        desc.pad_after[1] = rank == 1;
        ck_assert_ok(hy3d_conv3d_choose_format(context, &desc, &formats[i]));
        formats[i] = is_empty ? HY3D_FORMAT_NONE : formats[i];
        ck_assert_uint_eq(found[4].format, formats[i]);
        ck_assert_int_eq(found[4].bytes > 0, formats[i] != HY3D_FORMAT_NONE);
        hy3d_schedule_destroy(context, schedule);
    }
    ck_assert_uint_eq(formats[0], formats[1]);
    ck_assert_uint_ne(formats[0], formats[3]);
    hy3d_context_destroy(context);
}
END_TEST

/* --- one device again --------------------------------------------------------------------------- */

/* Its result has twice as many rows and columns. */
START_TEST(test_unknown_code_is_asked_about_with_the_rows_of_its_source)
{
    hy3d_context *const context = test_context("ref", THREADS);
    known_case known;
    make_known(&known);
    known.made.nodes[1] = (hy3d_node){.op = HY3D_OP_OPAQUE,
                                      .other = -1,
                                      .channels = CHANNELS,
                                      .frames_first = 1,
                                      .frames_rest = 1,
                                      .frames_per = 1,
                                      .space_up = {2, 2},
                                      .space_down = {1, 1}};
    known.made.nodes[2].other = -1;
    hy3d_schedule *const schedule = compile_asked(context, &known);
    ck_assert_int_eq(known.calls[0].node, 1);
    ck_assert_int_eq(known.calls[0].source.rows, SIDE);
    ck_assert_int_eq(known.calls[0].source.columns, SIDE);
    ck_assert_int_eq(known.calls[1].source.rows, 2 * SIDE);
    hy3d_schedule_destroy(context, schedule);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_a_function_of_frames_is_asked_about_and_leaves_its_shape)
{
    hy3d_context *const context = test_context("ref", THREADS);
    int64_t peaks[2];
    for (int i = 0; i < 2; i++) {
        known_case known;
        make_known(&known);
        known.made.nodes[1] = (hy3d_node){.op = HY3D_OP_MAP,
                                          .other = -1,
                                          .channels = CHANNELS,
                                          .frames_first = 1,
                                          .frames_rest = 1,
                                          .frames_per = 1,
                                          .space_up = {1, 1},
                                          .space_down = {1, 1}};
        known.more = (hy3d_step_memory){.shape_bytes = i * 5000, .shape = 3, .kept_bytes = 77};
        hy3d_schedule *const schedule = compile_asked(context, &known);
        const hy3d_program *const program = hy3d_schedule_program(schedule);
        ck_assert_int_eq(known.calls[0].node, 1);
        ck_assert_int_eq(known.calls[0].part, HY3D_PART_LAYER);
        ck_assert_int_eq(workspace_of(program, HY3D_STEP_MAP, 1), answer_of(1, 0));
        peaks[i] = program->candidate.device_bytes;
        hy3d_schedule_destroy(context, schedule);
    }
    ck_assert_int_eq(peaks[1], peaks[0] + 5000); /* once, and kept_bytes of a call are nothing */
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_what_a_layer_keeps_and_its_norms_factors_count_to_the_end)
{
    hy3d_context *const context = test_context("ref", THREADS);
    int64_t peaks[3];
    for (int i = 0; i < 3; i++) {
        known_case known;
        make_known(&known);
        known.made.nodes[2].norm = HY3D_NORM_GROUP;
        known.layers[2].kept_bytes = i == 1 ? 1000 : 0;
        if (i == 2) { /* factors of 8 bytes; everything else twice or four times as large */
            known.made.request.places[0].dtype = HY3D_F64;
            known.made.request.element_bytes = 8;
        }
        hy3d_schedule *const schedule = compile_asked(context, &known);
        const hy3d_program *const program = hy3d_schedule_program(schedule);
        peaks[i] = program->candidate.device_bytes;
        for (int32_t j = 0; j < program->step_count; j++) {
            if (program->steps[j].node == 2 && program->kept[j] > 0) {
                const int64_t factors = 2 * CHANNELS * (i == 2 ? 8 : 4);
                ck_assert_int_eq(program->kept[j], factors + known.layers[2].kept_bytes);
            }
        }
        hy3d_schedule_destroy(context, schedule);
    }
    ck_assert_int_eq(peaks[1], peaks[0] + 1000);
    ck_assert_int_gt(peaks[2], peaks[0]);
    hy3d_context_destroy(context);
}
END_TEST

/* Layers of a device keep packed weights of 5000 bytes and more, and what is converted. */
static void make_repackable(known_case *out)
{
    make_known(out);
    out->made.nodes[2].norm = HY3D_NORM_GROUP;
    out->made.request.is_host = out->made.request.may_spill = 0;
    out->made.request.device.chunks[0] = FRAMES;
    for (int i = 0; i < NODES; i++) {
        out->layers[i].is_native = 0;
        out->layers[i].packed_bytes = 5000 * i;
        out->layers[i].kept_bytes += 5000 * i;
    }
}

START_TEST(test_packed_weights_are_made_by_each_step_where_not_all_fits_with_them)
{
    hy3d_context *const context = test_context("ref", THREADS);
    known_case all, known;
    make_repackable(&all);
    all.made.request.may_repack = 1; /* but there is no limit */
    hy3d_schedule *const plain = compile_asked(context, &all);
    const hy3d_program *const before = hy3d_schedule_program(plain);
    ck_assert_int_eq(before->candidate.repacks, 0);
    for (int i = 0; i < 2; i++) {
        hy3d_schedule *schedule = NULL;
        make_repackable(&known);
        known.made.request.may_repack = i;
        known.made.request.device_budget = before->candidate.device_bytes - 1;
        const hy3d_status status = hy3d_schedule_compile(context, &known.made.request, &schedule);
        ck_assert_int_eq(status, i == 0 ? HY3D_ERR_BUDGET_TOO_SMALL : HY3D_OK);
        const hy3d_program *const program = hy3d_schedule_program(schedule);
        for (int32_t j = 0; program != NULL && j < program->step_count; j++) {
            const hy3d_step *const step = &program->steps[j];
            const bool computes = step->op == HY3D_STEP_CONV || step->op == HY3D_STEP_KEYS ||
                                  step->op == HY3D_STEP_ATTEND;
            const int64_t made = computes ? known.layers[step->node].packed_bytes : 0;
            ck_assert_int_eq(step->op, before->steps[j].op);
            ck_assert_int_eq(step->workspace_bytes, before->steps[j].workspace_bytes + made);
            ck_assert_int_eq(program->kept[j],
                             before->kept[j] == 0 ? 0 : before->kept[j] - 5000 * step->node);
        }
        if (program != NULL) {
            ck_assert_int_eq(program->candidate.repacks, 1);
            ck_assert_int_eq(program->step_count, before->step_count);
            ck_assert_int_lt(program->candidate.device_bytes, before->candidate.device_bytes);
            ck_assert(program->candidate.seconds > before->candidate.seconds);
        }
        hy3d_schedule_destroy(context, schedule);
    }
    hy3d_schedule_destroy(context, plain);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_an_error_and_a_wrong_answer_about_a_call_come_through)
{
    static const struct {
        hy3d_status status;
        hy3d_step_memory more;
        hy3d_status wanted;
    } cases[] = {
        {HY3D_ERR_CANCELLED, {0}, HY3D_ERR_CANCELLED},
        {HY3D_OK, {.workspace_bytes = -100000}, HY3D_ERR_INVALID_ARGUMENT},
        {HY3D_OK, {.shape_bytes = -1}, HY3D_ERR_INVALID_ARGUMENT},
        {HY3D_OK, {.shape_bytes = 1, .shape = -1}, HY3D_ERR_INVALID_ARGUMENT},
        {HY3D_OK, {.shape_bytes = 1, .shape = HY3D_SCHEDULE_MAX_SHAPES}, HY3D_ERR_INVALID_ARGUMENT},
    };
    hy3d_context *const context = test_context("ref", THREADS);
    known_case known;
    hy3d_schedule *schedule = NULL;
    make_known(&known);
    known.layers[1 + _i % 4].is_native = 0; /* a CONV, or the ATTENTION */
    known.status = cases[_i / 4].status;
    known.more = cases[_i / 4].more;
    ck_assert_status(hy3d_schedule_compile(context, &known.made.request, &schedule),
                     cases[_i / 4].wanted);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_the_host_beside_a_device_has_a_place_of_its_own)
{
    hy3d_context *const context = test_context("ref", THREADS);
    known_case known;
    hy3d_schedule *schedule = NULL;
    hy3d_layer others[NODES];
    make_known(&known);
    for (int i = 0; i < NODES; i++) {
        others[i] = (hy3d_layer){.kept_bytes = 0};
    }
    hy3d_schedule_request *const r = &known.made.request;
    r->is_host = 0;
    r->strategies |= 1u << HY3D_STRATEGY_HOST;
    r->compiles_all = 1;
    r->places[1] = r->places[0];
    r->places[_i].layers = others;
    ck_assert_ok(hy3d_schedule_compile(context, r, &schedule));
    ck_assert_int_gt(known.questions, 0);
    for (int32_t i = 0; i < known.questions; i++) {
        ck_assert_int_eq(known.calls[i].on_host, _i);
    }
    hy3d_schedule_destroy(context, schedule);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_of_alike_nodes_one_is_asked_about_unless_their_sources_lie_in_another_way)
{
    hy3d_context *const context = test_context("ref", THREADS);
    /* Three convolutions of one kind, the first of the input, and all of them alike. */
    static const int32_t alike[NODES] = {0, 1, 1, 1, 4, 5};
    known_case known;
    make_known(&known);
    for (int32_t i = 2; i < 4; i++) {
        known.made.nodes[i] = known.made.nodes[1];
        known.made.nodes[i].source = i - 1;
        known.layers[i] = known.layers[1];
    }
    known.made.request.alike = alike;
    hy3d_schedule *const schedule = compile_asked(context, &known);
    ck_assert_int_eq(known.questions, 3);
    for (int32_t i = 0; i < 3; i++) {
        ck_assert_int_eq(known.calls[i].node, i < 2 ? 1 + i : 4);
        ck_assert_int_eq(known.calls[i].is_made, i > 0);
    }
    ck_assert_int_eq(workspace_of(hy3d_schedule_program(schedule), HY3D_STEP_CONV, 3),
                     answer_of(2, HY3D_PART_LAYER));
    hy3d_schedule_destroy(context, schedule);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_a_call_that_takes_too_much_is_of_a_candidate_that_is_not_offered)
{
    hy3d_context *const context = test_context("ref", THREADS);
    known_case known;
    hy3d_schedule *schedule = NULL;
    const hy3d_candidate *candidates = NULL;
    make_known(&known);
    known.layers[1 + _i].is_native = 0; /* a CONV, or the ATTENTION */
    known.more.workspace_bytes = INT64_MAX / 2;
    ck_assert_status(hy3d_schedule_compile(context, &known.made.request, &schedule),
                     HY3D_ERR_BUDGET_TOO_SMALL);
    ck_assert_int_gt(hy3d_schedule_candidates(schedule, &candidates), 0);
    ck_assert_status(candidates[0].status, HY3D_ERR_OVERFLOW);
    hy3d_schedule_destroy(context, schedule);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_places_that_are_none_are_refused)
{
    hy3d_context *const context = test_context("ref", 1);
    for (int i = 0; i < 15; i++) {
        known_case known;
        hy3d_schedule *schedule = NULL;
        make_known(&known);
        hy3d_schedule_request *const r = &known.made.request;
        r->places[1] = r->places[0];
        hy3d_place *const place = &r->places[i % 2];
        known.layers[1].pad_mode[1] = i == 0 ? 2 : 0;
        known.layers[1].pad_mode[0] = i == 1 ? -1 : 0;
        known.layers[0].kept_bytes = i == 2 ? -1 : 0;
        known.layers[0].packed_bytes = i == 13 ? -1 : i == 14;
        known.layers[0].is_native = i == 3;
        place->dtype = i == 4 ? HY3D_F32 : i == 5 ? 4 : i == 6 ? -1 : HY3D_BF16;
        place->threads = i == 7 ? 0 : i == 8 ? -1 : 1;
        place->block_elements = i == 9 ? 0 : 1;
        place->score_bytes = i == 10 ? 0 : 1;
        place->fewest_shuffled = i == 11 ? -1 : 0;
        r->inside = i == 12 ? NULL : r->inside;
        ck_assert_status(hy3d_schedule_compile(context, r, &schedule), HY3D_ERR_INVALID_ARGUMENT);
    }
    known_case known;
    hy3d_schedule *schedule = NULL;
    make_known(&known);
    known.made.request.places[0].dtype = HY3D_F64; /* has no native layers */
    known.made.request.element_bytes = 8;
    ck_assert_status(hy3d_schedule_compile(context, &known.made.request, &schedule),
                     HY3D_ERR_INVALID_ARGUMENT);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_prepared_weights_have_the_layout_of_a_nodes_first_convolution)
{
    hy3d_context *const context = test_context(NULL, THREADS);
    known_case known;
    hy3d_schedule *schedule = NULL;
    hy3d_prepared found[NODES];
    make_known(&known);
    known.layers[4].is_native = _i; /* else others compute it */
    ck_assert_ok(hy3d_schedule_compile(context, &known.made.request, &schedule));
    ck_assert_ok(hy3d_schedule_prepared(context, schedule, found));
    for (int i = 0; i < NODES; i++) {
        const hy3d_node *const node = &known.made.nodes[i];
        hy3d_conv3d_format format = HY3D_FORMAT_NONE;
        size_t bytes = 0;
        if (node->op == HY3D_OP_CONV && known.layers[i].is_native) {
            const hy3d_conv3d_desc desc = desc_of(CHANNELS, CHANNELS, node);
            ck_assert_ok(hy3d_conv3d_choose_format(context, &desc, &format));
            bytes = hy3d_conv3d_format_bytes(format, CHANNELS, CHANNELS, desc.kernel);
        }
        ck_assert_uint_eq(found[i].format, format);
        ck_assert_int_eq(found[i].bytes, (int64_t)bytes);
    }
    ck_assert_status(hy3d_schedule_prepared(NULL, schedule, found), HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(hy3d_schedule_prepared(context, NULL, found), HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(hy3d_schedule_prepared(context, schedule, NULL), HY3D_ERR_INVALID_ARGUMENT);
    hy3d_schedule_destroy(context, schedule);

    known.made.request.device_budget = 1;
    ck_assert_status(hy3d_schedule_compile(context, &known.made.request, &schedule),
                     HY3D_ERR_BUDGET_TOO_SMALL);
    ck_assert_status(hy3d_schedule_prepared(context, schedule, found), HY3D_ERR_INVALID_ARGUMENT);
    hy3d_schedule_destroy(context, schedule);
    hy3d_context_destroy(context);
}
END_TEST

/* A section of tiles has its own sizes, a place without layers prepares nothing. */
START_TEST(test_prepared_weights_of_tiles_follow_the_tile)
{
    hy3d_context *const context = test_context(NULL, THREADS);
    known_case known;
    hy3d_schedule *schedule = NULL;
    hy3d_prepared found[NODES];
    make_known(&known);
    hy3d_schedule_request *const r = &known.made.request;
    r->size[1] = r->size[2] = 64;
    r->strategies = 1u << HY3D_STRATEGY_TILED;
    r->only_level = 4;
    r->halos[0] = (hy3d_tile_sizes){.halo = -1, .overlap = 8, .smallest = 16};
    if (_i == 1) {
        r->places[0].layers = NULL;
        r->workspace = NULL;
    }
    ck_assert_ok(hy3d_schedule_compile(context, r, &schedule));
    const hy3d_program *const program = hy3d_schedule_program(schedule);
    const hy3d_section *const tile = &program->sections[program->section_count - 1];
    ck_assert_int_eq(tile->kind, HY3D_SECTION_TILE);
    ck_assert_ok(hy3d_schedule_prepared(context, schedule, found));
    const hy3d_section *first = NULL; /* that has node 4 */
    for (int32_t i = 0; i < program->section_count && first == NULL; i++) {
        const hy3d_section *const section = &program->sections[i];
        for (int32_t j = 0; j < section->steps && first == NULL; j++) {
            const hy3d_step *const step = &program->steps[section->first_step + j];
            first = step->op == HY3D_STEP_CONV && step->node == 4 ? section : NULL;
        }
    }
    ck_assert_ptr_nonnull(first);
    hy3d_conv3d_format format = HY3D_FORMAT_NONE;
    hy3d_conv3d_desc desc = desc_of(CHANNELS, CHANNELS, &known.made.nodes[4]);
    desc.in_size[1] = first->size[1]; /* nothing scales in this graph before node 4's shuffle */
    desc.in_size[2] = first->size[2];
    ck_assert_int_lt(first->size[1], 64);
    ck_assert_ok(hy3d_conv3d_choose_format(context, &desc, &format));
    ck_assert_uint_eq(found[4].format, _i == 1 ? HY3D_FORMAT_NONE : format);
    hy3d_schedule_destroy(context, schedule);
    hy3d_context_destroy(context);
}
END_TEST

TCase *hy3d_schedule_memory_cases(void)
{
    TCase *const tests = tcase_create("memory");
    tcase_add_loop_test(tests, test_what_the_core_knows_of_steps_on_the_host_is_as_by_hand, 0, 4);
    tcase_add_loop_test(
        tests, test_of_calls_that_are_not_the_cores_own_it_asks_and_puts_steps_together, 0, 4);
    tcase_add_loop_test(tests, test_frames_of_a_call_are_counted_from_where_its_own_video_begins, 0,
                        2);
    tcase_add_loop_test(
        tests, test_what_the_core_knows_of_a_ranks_steps_follows_from_its_rows, 0, 6);
    tcase_add_loop_test(tests, test_the_rows_of_the_input_that_a_rank_was_sent_are_on_its_host, 0,
                        6);
    tcase_add_loop_test(tests, test_what_a_rank_makes_beside_its_slice_counts, 0, 4);
    tcase_add_loop_test(tests, test_frames_that_pass_by_are_put_together_beside_their_slice, 0, 4);
    tcase_add_loop_test(tests, test_a_native_convolution_crops_up_sampled_rows_of_a_rank, 0, 2);
    tcase_add_test(tests, test_of_a_ranks_calls_it_asks_with_the_rows_that_are_read);
    tcase_add_test(tests, test_each_of_two_ranks_takes_about_half_of_a_large_picture);
    tcase_add_test(tests, test_prepared_weights_of_a_rank_follow_its_rows);
    tcase_add_test(tests, test_unknown_code_is_asked_about_with_the_rows_of_its_source);
    tcase_add_test(tests, test_a_function_of_frames_is_asked_about_and_leaves_its_shape);
    tcase_add_test(tests, test_what_a_layer_keeps_and_its_norms_factors_count_to_the_end);
    tcase_add_test(tests, test_packed_weights_are_made_by_each_step_where_not_all_fits_with_them);
    tcase_add_loop_test(tests, test_an_error_and_a_wrong_answer_about_a_call_come_through, 0, 20);
    tcase_add_loop_test(tests, test_the_host_beside_a_device_has_a_place_of_its_own, 0, 2);
    tcase_add_test(tests,
                   test_of_alike_nodes_one_is_asked_about_unless_their_sources_lie_in_another_way);
    tcase_add_loop_test(
        tests, test_a_call_that_takes_too_much_is_of_a_candidate_that_is_not_offered, 0, 4);
    tcase_add_test(tests, test_places_that_are_none_are_refused);
    tcase_add_loop_test(tests, test_prepared_weights_have_the_layout_of_a_nodes_first_convolution,
                        0, 2);
    tcase_add_loop_test(tests, test_prepared_weights_of_tiles_follow_the_tile, 0, 2);
    return tests;
}
