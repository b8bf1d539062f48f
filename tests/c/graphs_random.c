/* Random graphs, block by block; a block whose sizes can't be is taken back. */
#include "graphs.h"

#include <string.h>

#include "replay.h"

#define MOST_FRAMES 40
#define MOST_ELEMENTS 60000
#define MOST_BLOCKS 9

typedef struct builder {
    graphs_numbers numbers;
    graphs_case *out;
    int32_t at;       /* the node whose value the next block reads */
    int32_t norms;    /* the last kind of norm there may be */
    int32_t spans;    /* likewise of attention */
    hy3d_size input;
    int64_t unit;     /* rows can be shared by at least so many */
} builder;

static uint64_t step_of(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15U);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
}

static int64_t seed_between(void *state, int64_t low, int64_t high)
{
    return low + (int64_t)(step_of(state) % ((uint64_t)(high - low) + 1));
}

graphs_numbers graphs_numbers_of(graphs_seed *seed, uint64_t number)
{
    seed->state = number * 0x2545f4914f6cdd1dU + 1;
    return (graphs_numbers){seed_between, &seed->state};
}

static int32_t draw(builder *b, int32_t low, int32_t high)
{
    return (int32_t)b->numbers.between(b->numbers.state, low, high);
}

/* True once in `n`; false where numbers have run out. */
static bool once_in(builder *b, int32_t n)
{
    return draw(b, 0, n - 1) == n - 1;
}

static int32_t put(builder *b, hy3d_node node)
{
    b->out->nodes[b->out->request.graph.count] = node;
    return b->out->request.graph.count++;
}

static hy3d_node plain_conv(builder *b, int32_t source, int64_t channels)
{
    hy3d_node node = {.op = HY3D_OP_CONV, .source = source, .other = -1, .channels = channels,
                      .kernel = {1, 1, 1}, .stride = {1, 1, 1}, .dilation = {1, 1, 1},
                      .up = {1, 1, 1}, .shuffle = {1, 1, 1}, .groups = 1};
    node.norm = draw(b, 0, b->norms);
    if (b->out->nodes[source].channels % 2 == 0 && channels % 2 == 0 && once_in(b, 6)) {
        node.groups = 2;
    }
    return node;
}

/* As many frames, rows and columns as its source has; frames before, around or behind. */
static hy3d_node same_conv(builder *b, int32_t source, int64_t channels)
{
    hy3d_node node = plain_conv(b, source, channels);
    const int32_t dilation = once_in(b, 8) ? 2 : 1;
    const int32_t reach = draw(b, 0, 2) * dilation;
    node.kernel[0] = reach / dilation + 1;
    node.dilation[0] = dilation;
    node.before[0] = once_in(b, 3) ? draw(b, 0, reach) : reach;
    node.after[0] = reach - node.before[0];
    for (int axis = 1; axis < 3 && !once_in(b, 3); axis++) {
        node.kernel[axis] = 3;
        node.before[axis] = node.after[axis] = 1;
    }
    return node;
}

static int64_t channels_of(const builder *b, int32_t node)
{
    return b->out->nodes[node].channels;
}

static int32_t resnet(builder *b)
{
    const int64_t channels = once_in(b, 3) ? draw(b, 1, 4) : channels_of(b, b->at);
    int32_t shortcut = b->at;
    if (channels != channels_of(b, b->at)) {
        shortcut = put(b, plain_conv(b, b->at, channels));
    }
    const int32_t first = put(b, same_conv(b, b->at, channels));
    hy3d_node second = same_conv(b, first, channels);
    second.other = shortcut;
    return put(b, second);
}

/* Any sizes at all. */
static int32_t any_conv(builder *b)
{
    hy3d_node node = plain_conv(b, b->at, draw(b, 1, 3));
    for (int axis = 0; axis < 3; axis++) {
        node.kernel[axis] = draw(b, 1, 3);
        node.stride[axis] = once_in(b, 3) ? draw(b, 1, 3) : 1;
        node.dilation[axis] = once_in(b, 4) ? 2 : 1;
        node.up[axis] = once_in(b, 4) ? 2 : 1;
        node.before[axis] = draw(b, 0, 3);
        node.after[axis] = draw(b, 0, 2);
        node.shuffle[axis] = once_in(b, 5) ? 2 : 1;
    }
    node.keep_first = draw(b, 0, 1);
    node.shuffle_first = once_in(b, 3) ? draw(b, 1, node.shuffle[0]) : 0;
    node.drop = once_in(b, 4) ? draw(b, 1, 3) : 0;
    return put(b, node);
}

static int32_t up_sample(builder *b)
{
    hy3d_node node = same_conv(b, b->at, channels_of(b, b->at));
    node.up[0] = draw(b, 1, 2);
    node.up[1] = draw(b, 1, 2);
    node.up[2] = node.up[1];
    node.keep_first = draw(b, 0, 1);
    return put(b, node);
}

/* Wan's: some frames pass by, those behind them become several or, with a stride, fewer. */
static int32_t passing_conv(builder *b)
{
    hy3d_node node = plain_conv(b, b->at, channels_of(b, b->at));
    node.norm = once_in(b, 3) ? node.norm : 0;
    node.kernel[0] = 3;
    node.skip_first = draw(b, 1, 2);
    node.reread = draw(b, 0, node.skip_first);
    node.before[0] = draw(b, 0, 2);
    node.shuffle[0] = draw(b, 1, 2);
    node.stride[0] = node.shuffle[0] == 1 ? draw(b, 1, 2) : 1;
    return put(b, node);
}

static int32_t shuffle_conv(builder *b)
{
    hy3d_node node = same_conv(b, b->at, draw(b, 1, 2));
    node.shuffle[0] = draw(b, 1, 4);
    node.shuffle[1] = node.shuffle[2] = draw(b, 1, 2);
    node.shuffle_first = once_in(b, 2) ? draw(b, 1, node.shuffle[0]) : 0;
    node.drop = node.shuffle_first == 0 ? draw(b, 0, node.shuffle[0]) : 0;
    return put(b, node);
}

static int32_t stride_conv(builder *b)
{
    hy3d_node node = plain_conv(b, b->at, channels_of(b, b->at));
    node.kernel[0] = draw(b, 1, 3);
    node.stride[0] = draw(b, 1, 2);
    node.before[0] = draw(b, 0, node.kernel[0] - 1);
    for (int axis = 1; axis < 3; axis++) {
        node.kernel[axis] = 3;
        node.stride[axis] = 2;
        node.after[axis] = 1;
    }
    return put(b, node);
}

static int32_t attention(builder *b)
{
    hy3d_node node = {.op = HY3D_OP_ATTENTION, .source = b->at, .other = -1,
                      .channels = channels_of(b, b->at), .heads = draw(b, 1, 2)};
    node.norm = draw(b, 0, b->norms);
    node.span = draw(b, 0, b->spans);
    node.width = (int64_t)node.heads * draw(b, 1, 3);
    return put(b, node);
}

static hy3d_node map_node(builder *b, int32_t source, int64_t channels)
{
    (void)b;
    return (hy3d_node){.op = HY3D_OP_MAP, .source = source, .other = -1, .channels = channels,
                       .frames_first = 1, .frames_rest = 1, .frames_per = 1,
                       .space_up = {1, 1}, .space_down = {1, 1}};
}

static int32_t map(builder *b)
{
    hy3d_node node = map_node(b, b->at, draw(b, 1, 3));
    node.frames_first = once_in(b, 3) ? draw(b, 1, 3) : 1;
    node.frames_rest = once_in(b, 3) ? draw(b, 1, 3) : 1;
    for (int axis = 0; axis < 2; axis++) {
        node.space_up[axis] = draw(b, 1, 2);
        node.space_down[axis] = once_in(b, 4) ? 2 : 1;
    }
    return put(b, node);
}

/* Two branches of one value, added; at times a value and itself. */
static int32_t add(builder *b)
{
    const int64_t channels = draw(b, 1, 3);
    hy3d_node node = {.op = HY3D_OP_ADD, .source = b->at, .other = b->at, .channels = channels};
    if (once_in(b, 8)) {
        node.channels = channels_of(b, b->at);
        return put(b, node);
    }
    node.source = once_in(b, 2) ? put(b, map_node(b, b->at, channels))
                                : put(b, same_conv(b, b->at, channels));
    node.other = once_in(b, 2) ? put(b, map_node(b, b->at, channels))
                               : put(b, same_conv(b, b->at, channels));
    return put(b, node);
}

static int32_t unknown_code(builder *b)
{
    hy3d_node node = map_node(b, b->at, draw(b, 1, 3));
    node.op = HY3D_OP_OPAQUE;
    node.frames_rest = draw(b, 1, 3);
    node.frames_per = draw(b, 1, 3);
    node.space_up[0] = node.space_up[1] = draw(b, 1, 2);
    return put(b, node);
}

/* None in graphs for several ranks: they can't be shared. */
static bool is_unknown(builder *b)
{
    return b->unit == 0 && once_in(b, 60);
}

static int32_t any_block(builder *b)
{
    static int32_t (*const blocks[])(builder *) = {
        resnet,      up_sample, any_conv, passing_conv, shuffle_conv,
        stride_conv, attention, map,      add};
    const int32_t most = (int32_t)(sizeof blocks / sizeof *blocks) - 1;
    return is_unknown(b) ? unknown_code(b) : blocks[draw(b, 0, most)](b);
}

static bool can_be(const hy3d_size *size)
{
    return size->frames >= 1 && size->rows >= 1 && size->columns >= 1 &&
           size->frames <= MOST_FRAMES &&
           size->channels * size->frames * size->rows * size->columns <= MOST_ELEMENTS;
}

/* Sizes of space_down without a rest, residuals and sums of one size, no frame dropped that is not
 * there. */
static bool is_valid(const builder *b, int32_t from)
{
    const hy3d_graph graph = {b->out->nodes, b->out->request.graph.count};
    bool is = true;
    for (int32_t last = from; last < graph.count && is; last++) {
        replay_values values = replay_values_make(&graph, 0, last, b->input);
        const hy3d_node *const node = &graph.nodes[last];
        const hy3d_size *const size = &values.of[last].size;
        const hy3d_size *const source = &values.of[node->source].size;
        is = can_be(size);
        if (node->other >= 0) {
            is = is && memcmp(size, &values.of[node->other].size, sizeof *size) == 0;
        }
        if (node->op == HY3D_OP_ADD) {
            is = is && memcmp(size, source, sizeof *size) == 0;
        }
        if (node->op == HY3D_OP_MAP || node->op == HY3D_OP_OPAQUE) {
            is = is && source->rows * node->space_up[0] % node->space_down[0] == 0 &&
                 source->columns * node->space_up[1] % node->space_down[1] == 0;
        }
        if (node->skip_first > 0) {
            is = is && size->channels == source->channels && size->rows == source->rows &&
                 size->columns == source->columns;
        }
        is = is && (b->unit == 0 || replay_unit(&values) >= b->unit);
        replay_values_free(&values);
    }
    return is;
}

static void add_block(builder *b)
{
    const int32_t count = b->out->request.graph.count;
    const int32_t at = any_block(b);
    if (is_valid(b, count)) {
        b->at = at;
    } else {
        b->out->request.graph.count = count;
    }
}

/* Bytes of what takes memory: some hundreds to some ten thousands in these graphs. For some salts a
 * smaller picture may take more. */
static hy3d_status workspace(void *user, const hy3d_step *step, const hy3d_size *source,
                             int32_t on_host, hy3d_step_memory *taken)
{
    graphs_case *const made = user;
    uint64_t state = made->salt ^ (uint64_t)step->node * 0x9e37U;
    const bool computes = step->op >= HY3D_STEP_CONV && step->op <= HY3D_STEP_OPAQUE &&
                          step->op != HY3D_STEP_TRIM;
    if (step->op == HY3D_STEP_OPAQUE && step->node == made->request.graph.count - 1) { /* WHOLE */
        made->own_asked++;
        const bool reads_all = step->read_rows[0] == 0 && step->read_rows[1] == source->rows;
        taken->workspace_bytes = reads_all ? made->own_told : -1;
        return made->own_told < 0 ? HY3D_ERR_UNSUPPORTED : HY3D_OK;
    }
    if (made->salt == 0 || step->op >= HY3D_STEP_EMIT) {
        return HY3D_OK;
    }
    const bool enters = step->op == HY3D_STEP_ENTER || step->node == 0;
    taken->kept_bytes = enters ? 0 : (int64_t)(step_of(&state) % 300);
    state ^= (uint64_t)step->op << 32;
    if (!computes) {
        return HY3D_OK;
    }
    state += (uint64_t)(step->frames[1] - step->frames[0]) + (uint64_t)on_host * 77;
    if (made->request.ranks > 1) {
        state += (uint64_t)(step->rows[1] - step->rows[0]) * 1009;
    }
    if (made->salt % 3 == 0) {
        state += (uint64_t)source->rows * 1009 + (uint64_t)source->columns * 9176;
    }
    taken->workspace_bytes = (int64_t)(step_of(&state) % 2000);
    if (made->salt % 4 != 0) { /* few or many shapes, of the node or of several */
        state ^= made->salt % 5 == 0 ? (uint64_t)source->rows * 31 + (uint64_t)source->columns : 0;
        taken->shape = (int32_t)(step_of(&state) % (made->salt % 7 == 0 ? 7 : 3000));
        state = made->salt + (uint64_t)taken->shape;
        taken->shape_bytes = (int64_t)(step_of(&state) % 500);
        taken->shape += made->salt % 2 == 0 ? HY3D_SCHEDULE_MAX_SHAPES - 3000 : 0;
    }
    return HY3D_OK;
}

void graphs_request(graphs_case *out, int64_t frames, int64_t rows, int64_t columns)
{
    hy3d_schedule_request *const request = &out->request;
    const hy3d_machine machine = {.slice_bytes = {256 << 20, 64 << 20}, .chunks = {1},
                                  .macs_per_second = 2e13, .bytes_per_second = 4e11,
                                  .seconds_per_step = 2e-5, .own_seconds_share = 1};
    request->graph.nodes = out->nodes;
    request->size[0] = frames;
    request->size[1] = rows;
    request->size[2] = columns;
    request->element_bytes = request->input_bytes = 2;
    request->may_spill = 1;
    request->strategies = 15;
    request->device = request->host = machine;
    request->host.macs_per_second = 2e11;
    request->host.bytes_per_second = 2e10;
    request->copy_bytes_per_second = request->link_bytes_per_second = 1e10;
    memset(request->halos, 0, sizeof request->halos);
    request->halos[0] = (hy3d_tile_sizes){-1, 0, 8};
    request->halos[1] = (hy3d_tile_sizes){8, 16, 32};
    request->statistic_passes = 1;
    request->own_bytes = -1;
    request->ranks = 1;
    request->workspace = workspace;
    request->user = out;
}

static void random_machine(builder *b, hy3d_machine *machine)
{
    machine->slice_bytes[0] = draw(b, 1, 4000);
    machine->slice_bytes[1] = once_in(b, 2) ? draw(b, 1, 400) : 0;
    machine->chunks[0] = draw(b, 1, 3);
    machine->chunks[1] = draw(b, 0, 2);
    machine->chunks[2] = draw(b, 0, 1);
    machine->macs_per_second = draw(b, 1, 1000) * 1e6;
    machine->bytes_per_second = draw(b, 1, 1000) * 1e5;
    machine->seconds_per_step = draw(b, 1, 100) * 1e-6;
    machine->own_seconds_share = draw(b, 1, 4) * 0.5;
}

/* The best first: as far as a cut is felt, or wide, and then ever less. */
static void random_halos(builder *b, hy3d_tile_sizes *halos)
{
    hy3d_tile_sizes last = {draw(b, -1, 6), draw(b, 0, 3), draw(b, 1, 6)};
    for (int i = 0; i < HY3D_SCHEDULE_MAX_HALOS && last.smallest > 0; i++) {
        halos[i] = last;
        last = (hy3d_tile_sizes){draw(b, 0, last.halo < 0 ? 6 : (int32_t)last.halo),
                                 draw(b, 0, (int32_t)last.overlap),
                                 draw(b, 0, (int32_t)last.smallest)};
    }
}

static void random_request(builder *b)
{
    hy3d_schedule_request *const request = &b->out->request;
    graphs_request(b->out, b->input.frames, b->input.rows, b->input.columns);
    random_machine(b, &request->device);
    random_machine(b, &request->host);
    request->element_bytes = 1 << draw(b, 0, 2);
    request->input_bytes = once_in(b, 3) ? 0 : request->element_bytes;
    request->result_bytes = once_in(b, 2) ? draw(b, 0, 5000) : 0;
    request->kept_bytes = once_in(b, 2) ? draw(b, 0, 5000) : 0;
    request->margin_bytes = once_in(b, 4) ? draw(b, 0, 3000) : 0;
    request->margin_permille = once_in(b, 4) ? draw(b, 0, 1000) : 0;
    request->compiles_all = once_in(b, 3);
    request->is_unified = once_in(b, 6);
    request->is_host = once_in(b, 6);
    request->may_spill = !once_in(b, 4);
    request->strategies = once_in(b, 4) ? (uint32_t)draw(b, 1, 15) : 15;
    request->copy_bytes_per_second = draw(b, 1, 100) * 1e5;
    memset(request->halos, 0, sizeof request->halos);
    random_halos(b, request->halos);
    request->statistic_passes = draw(b, 0, 2);
    request->only_level = once_in(b, 10) ? draw(b, 1, 4) : 0;
    request->own_bytes = once_in(b, 2) ? draw(b, 0, 40000) : -1;
    request->ranks = draw(b, 0, 1);
    b->out->salt = once_in(b, 4) ? 0 : (uint64_t)draw(b, 1, 1 << 30);
    request->most_shape_bytes = b->out->salt % 3 == 1 ? (int64_t)(b->out->salt % 4001) : 0;
    for (int i = 0; i < 3 && once_in(b, 2); i++) {
        request->unit[i] = draw(b, 1, 4);
    }
    if (request->unit[2] == 0) {
        memset(request->unit, 0, sizeof request->unit);
    }
    request->busy_positions = once_in(b, 2) ? draw(b, 0, 200) : 0;
    /* Fields that come later are drawn here: the inputs that the fuzzer kept mean what they did. */
}

/* A graph and a request for an input of b's size. */
static void random_case(builder *b)
{
    b->out->request.graph.nodes = b->out->nodes;
    b->at = put(b, (hy3d_node){.op = HY3D_OP_INPUT, .source = -1, .other = -1,
                               .channels = b->input.channels});
    for (int32_t blocks = draw(b, 0, MOST_BLOCKS); blocks > 0; blocks--) {
        add_block(b);
    }
    put(b, (hy3d_node){.op = HY3D_OP_OUTPUT, .source = b->at, .other = -1,
                       .channels = channels_of(b, b->at)});
    random_request(b);
}

/* Some norms of positions become norms of frames. Drawn last: the inputs that the fuzzer kept mean
 * what they did. */
static void norms_of_frames(builder *b, int32_t one_of)
{
    const bool has_some = once_in(b, one_of);
    for (int32_t i = 0; has_some && i < b->out->request.graph.count; i++) {
        hy3d_node *const node = &b->out->nodes[i];
        if (node->norm == HY3D_NORM_POSITION && once_in(b, 2)) {
            node->norm = HY3D_NORM_FRAME;
        }
    }
}

/* Some bytes of the VAE's own code are asked for. Drawn last, likewise. */
static void ask_own_bytes(builder *b)
{
    hy3d_schedule_request *const request = &b->out->request;
    if (request->own_bytes >= 0 && once_in(b, 2)) {
        b->out->own_told = once_in(b, 6) ? -1 : request->own_bytes;
        request->own_bytes = HY3D_OWN_BYTES_ASKED;
    }
}

/* What nodes keep need not stay. Drawn last, likewise. */
static void may_repack(builder *b)
{
    b->out->request.may_repack = once_in(b, 2);
}

static builder builder_of(graphs_numbers numbers, graphs_case *out)
{
    builder b = {.numbers = numbers, .out = out};
    memset(out, 0, sizeof *out);
    b.norms = draw(&b, 0, 2);
    b.spans = draw(&b, 0, 2);
    b.input = (hy3d_size){draw(&b, 1, 3), draw(&b, 1, 12), draw(&b, 1, 10), draw(&b, 1, 8)};
    return b;
}

void graphs_random(graphs_numbers numbers, graphs_case *out)
{
    builder b = builder_of(numbers, out);
    random_case(&b);
    norms_of_frames(&b, 4);
    ask_own_bytes(&b);
    may_repack(&b);
}

void graphs_random_shared(graphs_numbers numbers, graphs_case *out)
{
    hy3d_schedule_request *const request = &out->request;
    builder b = builder_of(numbers, out);
    b.input.rows = once_in(&b, 4) ? b.input.rows : draw(&b, 3, 18);
    b.input.columns = draw(&b, 1, 4);
    b.unit = draw(&b, 1, b.input.rows < 6 ? (int32_t)b.input.rows : 6);
    random_case(&b);
    request->strategies |= 1U << HY3D_STRATEGY_STREAMED;
    request->ranks = once_in(&b, 2) ? draw(&b, 3, 6) : 2;
    request->link_bytes_per_second = draw(&b, 1, 100) * 1e5;
    norms_of_frames(&b, 16);
    const bool has_weights = once_in(&b, 3);
    for (int32_t rank = 0; rank < request->ranks && has_weights; rank++) {
        out->weights[rank] = once_in(&b, 6) ? draw(&b, 1, 100000000) : draw(&b, 1, 4);
    }
    request->weights = has_weights ? out->weights : NULL;
    request->source_bytes = once_in(&b, 2) ? draw(&b, 0, 4) : 0;
    may_repack(&b);
}

graphs_numbers graphs_of_number(graphs_seed *seed, uint64_t number, graphs_case *out)
{
    const graphs_numbers numbers = graphs_numbers_of(seed, number);
    (number % 8 == 7 ? graphs_random_shared : graphs_random)(numbers, out);
    return numbers;
}
