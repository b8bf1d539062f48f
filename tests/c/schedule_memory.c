/* What the core says of steps that the C convolution computes, against figures by hand. */
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

static hy3d_status asked(void *user, const hy3d_step *step, const hy3d_size *source,
                         int32_t on_host, hy3d_step_memory *taken)
{
    (void)step, (void)source, (void)on_host, (void)taken;
    ++*(int64_t *)user;
    return HY3D_OK;
}

typedef struct known_case {
    graphs_case made;
    hy3d_host_layer layers[NODES];
    int64_t questions;
} known_case;

static void make_known(known_case *out)
{
    memset(out, 0, sizeof *out);
    memcpy(out->made.nodes, nodes_of_all, sizeof nodes_of_all);
    out->made.request.graph.count = NODES;
    graphs_request(&out->made, FRAMES, SIDE, SIDE);
    for (int i = 0; i < NODES; i++) {
        out->layers[i] = (hy3d_host_layer){.is_known = 1, .pad_mode = {1, 1}, .kept_bytes = i};
    }
    out->layers[3].is_fused = 1;
    hy3d_schedule_request *const r = &out->made.request;
    r->is_host = 1;
    r->strategies = 1u << HY3D_STRATEGY_STREAMED;
    r->host.chunks[0] = FRAMES;
    r->element_bytes = BYTES;
    r->host_layers = (hy3d_host_layers){.layers = out->layers,
                                        .dtype = HY3D_F16,
                                        .threads = THREADS,
                                        .fewest_shuffled = 2,
                                        .block_elements = BLOCK,
                                        .score_bytes = 2880};
    r->workspace = asked;
    r->user = &out->questions;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Of a convolution of all frames: what it takes inside, or a block of floats. */
static int64_t inside(hy3d_context *context, int64_t in, int64_t out, const hy3d_node *node)
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
    size_t workspace[2], own[2];
    for (int i = 0; i < 2; i++) {
        ck_assert_ok(hy3d_conv3d_memory(context, &desc, i == 1, &workspace[i], &own[i]));
    }
    return most(most((int64_t)(workspace[0] + own[0]), (int64_t)(workspace[1] + own[1])),
                8 * BLOCK);
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
    const int64_t composed = 2 * (2 * rows * seen * BYTES) + q + seen * CHANNELS * BYTES;
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

START_TEST(test_of_nodes_that_the_core_does_not_know_the_function_is_asked)
{
    hy3d_context *const context = test_context("ref", THREADS);
    int64_t peaks[2];
    for (int i = 0; i < 2; i++) {
        known_case known;
        hy3d_schedule *schedule = NULL;
        make_known(&known);
        known.layers[1].is_known = 0;
        known.layers[2].kept_bytes = i == 0 ? 0 : 1000;
        ck_assert_ok(hy3d_schedule_compile(context, &known.made.request, &schedule));
        ck_assert_int_eq(known.questions, 1);
        ck_assert_int_eq(workspace_of(hy3d_schedule_program(schedule), HY3D_STEP_CONV, 1), 0);
        peaks[i] = hy3d_schedule_program(schedule)->candidate.device_bytes;
        hy3d_schedule_destroy(context, schedule);
    }
    ck_assert_int_eq(peaks[1], peaks[0] + 1000);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_layers_of_the_host_that_are_none_are_refused)
{
    hy3d_context *const context = test_context("ref", 1);
    for (int i = 0; i < 9; i++) {
        known_case known;
        hy3d_schedule *schedule = NULL;
        make_known(&known);
        hy3d_host_layers *const host = &known.made.request.host_layers;
        known.layers[1].pad_mode[1] = i == 0 ? 2 : 0;
        known.layers[1].pad_mode[0] = i == 1 ? -1 : 0;
        known.layers[0].kept_bytes = i == 2 ? -1 : 0;
        host->dtype = i == 3 ? HY3D_F64 : i == 4 ? HY3D_F32 : HY3D_BF16;
        host->threads = i == 5 ? 0 : 1;
        host->block_elements = i == 6 ? 0 : 1;
        host->score_bytes = i == 7 ? 0 : 1;
        host->fewest_shuffled = i == 8 ? -1 : 0;
        ck_assert_status(hy3d_schedule_compile(context, &known.made.request, &schedule),
                         HY3D_ERR_INVALID_ARGUMENT);
    }
    known_case known;
    hy3d_schedule *schedule = NULL;
    make_known(&known);
    known.made.nodes[1] = (hy3d_node){.op = HY3D_OP_MAP,
                                      .other = -1,
                                      .channels = CHANNELS,
                                      .frames_first = 1,
                                      .frames_rest = 1,
                                      .frames_per = 1,
                                      .space_up = {1, 1},
                                      .space_down = {1, 1}};
    ck_assert_status(hy3d_schedule_compile(context, &known.made.request, &schedule),
                     HY3D_ERR_INVALID_ARGUMENT);
    known.layers[1].is_known = 0;
    ck_assert_ok(hy3d_schedule_compile(context, &known.made.request, &schedule));
    hy3d_schedule_destroy(context, schedule);
    hy3d_context_destroy(context);
}
END_TEST

TCase *hy3d_schedule_memory_cases(void)
{
    TCase *const tests = tcase_create("memory");
    tcase_add_loop_test(tests, test_what_the_core_knows_of_steps_on_the_host_is_as_by_hand, 0, 4);
    tcase_add_test(tests, test_of_nodes_that_the_core_does_not_know_the_function_is_asked);
    tcase_add_test(tests, test_layers_of_the_host_that_are_none_are_refused);
    return tests;
}
