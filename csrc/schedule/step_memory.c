/* See step_memory.h. */
#include "schedule/step_memory.h"

#include "base/checked.h"
#include "hy3d/conv3d.h"
#include "schedule/frames.h"

/* The blocks of floats that torch's attention on the CPU works in: queries, keys. */
#define QUERY_BLOCK 256
#define KEY_BLOCK 512
#define FLOAT_BYTES 4
#define MOST (INT64_C(1) << 60)

typedef struct question {
    hy3d_context *context;
    const hy3d_schedule_request *request;
    const hy3d_place *place;
    const hy3d_layer *layer;
    const hy3d_node *node;
    const hy3d_step *step;
    hy3d_size source; /* all of its frames, and the rows that are read of it: by attentions those
                          that ask */
    int64_t all_rows; /* of the source */
    int64_t frames;   /* of the value, that are made or concerned */
    int64_t position; /* elements of a channel in them, at these rows and the source's columns */
    int64_t wide;     /* bytes that norms, moments and scores are computed in */
    int32_t on_host;
    bool is_housed; /* what is made is a part of its slice */
    hy3d_step_memory taken;
    hy3d_status status;
} question;

static int64_t times(int64_t a, int64_t b)
{
    int64_t product = MOST;
    return hy3d__mul_i64(a, b, &product) ? hy3d__min_i64(product, MOST) : MOST;
}

static int64_t bytes_of(const question *q, int64_t elements)
{
    return times(elements, q->request->element_bytes);
}

static int64_t shuffled_parts(const hy3d_node *node)
{
    return (int64_t)node->shuffle[0] * node->shuffle[1] * node->shuffle[2];
}

const hy3d_place *hy3d__place_of(const hy3d_schedule_request *request, int32_t on_host)
{
    return &request->places[on_host && !request->is_host];
}

/* Whether a node's value is laid out as a result of a convolution: not what enters, functions of
 * frames make or a narrow shuffle, which is a copy. */
static bool is_made(const hy3d_schedule_request *request, const hy3d_place *place, int32_t number)
{
    const hy3d_node *node = &request->graph.nodes[number < 0 ? 0 : number];
    if (node->op == HY3D_OP_ATTENTION) {
        return true;
    }
    return node->op == HY3D_OP_CONV &&
           (shuffled_parts(node) <= 1 || node->channels >= place->fewest_shuffled);
}

bool hy3d__same_layouts(const hy3d_schedule_request *request, int32_t on_host, int32_t node,
                        int32_t other)
{
    const hy3d_place *const place = hy3d__place_of(request, on_host);
    const hy3d_node *a = &request->graph.nodes[node], *b = &request->graph.nodes[other];
    return place->layers == NULL ||
           (is_made(request, place, a->source) == is_made(request, place, b->source) &&
            is_made(request, place, a->other) == is_made(request, place, b->other));
}

/* Workspace and plan, the largest of what they are with prepared weights and without, and with
 * frames in pairs and without: those of padding are none. */
static int64_t inside(question *q, const hy3d_conv3d_desc *desc)
{
    hy3d_conv3d_desc asked = *desc;
    int64_t found = 0;
    for (int i = 0; i < (desc->pairs == 0 ? 2 : 4) && q->status == HY3D_OK; i++) {
        size_t workspace = 0, own = 0;
        asked.pairs = i < 2 ? desc->pairs : 0;
        q->status = hy3d_conv3d_memory(q->context, &asked, i % 2 == 1, &workspace, &own);
        found = hy3d__max_i64(found, (int64_t)(workspace + own));
    }
    return found;
}

static hy3d_conv3d_desc plain_desc(const hy3d_place *place, int64_t in_channels,
                                   int64_t out_channels)
{
    return (hy3d_conv3d_desc){
        .dtype = (hy3d_dtype)place->dtype,
        .batch = 1,
        .in_channels = in_channels,
        .out_channels = out_channels,
        .groups = 1,
        .kernel = {1, 1, 1},
        .stride = {1, 1, 1},
        .dilation = {1, 1, 1},
        .upsample = {1, 1, 1},
        .accuracy = HY3D_FAST,
        .num_threads = (uint32_t)place->threads,
    };
}

hy3d_conv3d_desc hy3d__conv_desc(const hy3d_schedule_request *request, int32_t on_host,
                                 const hy3d_step *step, int64_t channels, const int64_t size[2])
{
    const hy3d_place *const place = hy3d__place_of(request, on_host);
    const hy3d_node *const n = &request->graph.nodes[step->node];
    const int64_t own = step->own[1] - step->own[0];
    hy3d_conv3d_desc desc = plain_desc(place, channels, times(n->channels, shuffled_parts(n)));
    /* Frames come one by one, those of padding too; up-sampled ones in pairs, in which the first
     * that is read may be the second. */
    if (n->up[0] == 2 && n->stride[0] == 1) {
        const bool is_odd = (step->own[0] - n->before[0]) % 2 != 0;
        desc.pairs = is_odd == (n->keep_first != 0) ? 1 : 2;
    }
    desc.kernel[0] = n->kernel[0];
    desc.stride[0] = n->stride[0];
    desc.dilation[0] = n->dilation[0];
    desc.groups = n->groups;
    desc.in_size[0] = (own - 1) * n->stride[0] + (int64_t)n->dilation[0] * (n->kernel[0] - 1) + 1;
    desc.pad_before[1] = step->row_padding[0];
    desc.pad_after[1] = step->row_padding[1];
    desc.pad_before[2] = n->before[2];
    desc.pad_after[2] = n->after[2];
    for (int i = 1; i < 3; i++) {
        desc.kernel[i] = n->kernel[i];
        desc.stride[i] = n->stride[i];
        desc.dilation[i] = n->dilation[i];
        desc.pad_mode[i] = (hy3d_pad_mode)place->layers[step->node].pad_mode[i - 1];
        desc.upsample[i] = n->up[i];
        desc.in_size[i] = times(size[i - 1], n->up[i]);
    }
    return desc;
}

/* Beside operands and result of a convolution that reads and makes so many elements: what it takes
 * inside, beside what a norm of single frames or positions makes of what is read; a block of
 * floats; a shuffled copy. */
static int64_t convolved(question *q, const hy3d_conv3d_desc *desc, int32_t norm, int64_t read,
                         int64_t made, bool shuffles)
{
    const bool by_frame = norm == HY3D_NORM_POSITION || norm == HY3D_NORM_FRAME;
    const int64_t block =
        2 * q->wide * hy3d__min_i64(q->place->block_elements, hy3d__max_i64(read, made));
    const int64_t during = hy3d__max_i64(inside(q, desc), block);
    const int64_t beside = by_frame ? bytes_of(q, read) + during : during;
    return hy3d__max_i64(beside, shuffles ? bytes_of(q, made) : 0);
}

/* Whether the convolution that was looked at last makes its result in a residual's memory. */
static bool is_in_place(const question *q)
{
    return q->layer->is_native || q->taken.is_in_place != 0;
}

/* Asks what another than the core takes for a call. */
static int64_t asked(question *q, hy3d_part part, const hy3d_size *source, const int64_t reads[2],
                     const int64_t makes[2])
{
    const hy3d_schedule_request *r = q->request;
    const hy3d_call call = {
        .node = q->step->node,
        .part = (int32_t)part,
        .on_host = q->on_host,
        .is_made = part == HY3D_PART_OUT || is_made(r, q->place, q->node->source),
        .source = *source,
        .row_padding = {q->step->row_padding[0], q->step->row_padding[1]},
        .reads = {reads[0], reads[1]},
        .makes = {makes[0], makes[1]},
    };
    hy3d_step_memory told = {.workspace_bytes = 0};
    q->status = r->inside(r->user, &call, &told);
    if (q->status == HY3D_OK && told.workspace_bytes < 0) {
        q->status = HY3D_ERR_INVALID_ARGUMENT;
    }
    if (told.shape_bytes == 0) { /* the one before it may have left some */
        told.shape_bytes = q->taken.shape_bytes;
        told.shape = q->taken.shape;
    }
    q->taken = told;
    return hy3d__min_i64(told.workspace_bytes, MOST);
}

/* Of a CONV that the C convolution computes: `frame` elements of a frame of its value. */
static int64_t native_conv(question *q, int64_t frame)
{
    const hy3d_node *n = q->node;
    const hy3d_step *step = q->step;
    const int64_t own = step->own[1] - step->own[0];
    const int64_t made = times(times(frame, n->shuffle[0]), own); /* before the shuffle */
    const int64_t channels = q->source.channels, size[2] = {q->source.rows, q->source.columns};
    const hy3d_conv3d_desc desc = hy3d__conv_desc(q->request, q->on_host, step, channels, size);
    const int64_t read = times(times(channels, size[0] * size[1]), step->reads[1] - step->reads[0]);
    return convolved(q, &desc, n->norm, read, made, shuffled_parts(n) > 1);
}

/* Of a CONV that others compute. */
static int64_t asked_conv(question *q)
{
    const int64_t begin = (int64_t)q->node->skip_first - q->node->reread;
    const int64_t reads[2] = {hy3d__max_i64(q->step->reads[0] - begin, 0),
                              q->step->reads[1] - begin};
    hy3d_size source = q->source;
    source.frames -= begin;
    return asked(q, HY3D_PART_LAYER, &source, reads, q->step->own);
}

static int64_t of_conv(question *q)
{
    const hy3d_node *n = q->node;
    const hy3d_step *step = q->step;
    if (step->slice < 0) {
        return 0; /* nobody wants its frames: it is not made */
    }
    hy3d_size result = {0};
    const hy3d_size source = {q->source.channels, q->source.frames, q->all_rows, q->source.columns};
    q->status = hy3d__node_size(n, &source, &result);
    const int64_t frame = times(result.channels, (step->rows[1] - step->rows[0]) * result.columns);
    if (q->status != HY3D_OK) {
        return 0;
    }
    const int64_t inside = q->layer->is_native ? native_conv(q, frame) : asked_conv(q);
    const bool is_over = is_in_place(q) && is_made(q->request, q->place, n->other);
    if (step->drop == 0 && (step->others == 0 || is_over)) {
        return inside;
    }
    /* The result beside the residual; or all frames that the convolution gives, beside a copy of
     * those that stay. */
    return inside + bytes_of(q, times(frame, q->frames + step->drop));
}

/* What a step of several ranks has made before it is copied to its rows of the slice. */
static int64_t housed(question *q)
{
    hy3d_size result = {0};
    const hy3d_size source = {q->source.channels, q->source.frames, q->all_rows, q->source.columns};
    if (!q->is_housed || q->status != HY3D_OK) {
        return 0;
    }
    q->status = hy3d__node_size(q->node, &source, &result);
    const int64_t rows = q->step->rows[1] - q->step->rows[0];
    const int64_t frames = q->step->frames[1] - q->step->frames[0];
    return bytes_of(q, times(times(result.channels, frames), rows * result.columns));
}

/* What is read, put together of several slices. */
static int64_t joined(const question *q, int32_t slices)
{
    return slices > 1 ? bytes_of(q, times(q->source.channels, q->position)) : 0;
}

/* A projection of an attention, of the step's frames: bytes inside it. */
static int64_t projected(question *q, hy3d_part part, int64_t in_channels, int64_t out_channels,
                         int32_t norm)
{
    const hy3d_size size = {in_channels, q->frames, q->source.rows, q->source.columns};
    const int64_t frames[2] = {0, q->frames};
    if (!q->layer->is_native) {
        return asked(q, part, &size, frames, frames);
    }
    hy3d_conv3d_desc desc = plain_desc(q->place, in_channels, out_channels);
    desc.in_size[0] = size.frames;
    desc.in_size[1] = size.rows;
    desc.in_size[2] = size.columns;
    return convolved(q, &desc, norm, times(in_channels, q->position),
                     times(out_channels, q->position), false);
}

/* Queries, keys and values where one product makes them all, else one of the three, with what
 * making it takes. */
static int64_t queries(question *q)
{
    const int64_t channels = times(q->node->width, q->layer->is_fused ? 3 : 1);
    return bytes_of(q, times(channels, q->position)) +
           projected(q, HY3D_PART_QUERIES, q->source.channels, channels, q->node->norm);
}

/* Beside the queries and the result, for the last frame, which sees the most. */
static int64_t mixed(const question *q)
{
    const hy3d_node *n = q->node;
    const int64_t tokens = q->source.rows * q->source.columns;
    const int64_t seen = n->span == HY3D_SPAN_FRAME    ? 1
                         : n->span == HY3D_SPAN_CAUSAL ? q->step->frames[1]
                                                       : q->source.frames;
    const int64_t keys = times(seen, q->all_rows * q->source.columns), head = n->width / n->heads;
    const int64_t score = times(times(n->heads, keys), q->wide);
    const int64_t rows = hy3d__max_i64(1, hy3d__min_i64(tokens, q->place->score_bytes / score));
    const int64_t asked = bytes_of(q, times(rows, n->width));
    if (q->layer->is_composed) {
        /* Of half types queries, keys, values and what is made are in float32, too. */
        const int64_t copies = q->wide > bytes_of(q, 1) ? 3 : 1;
        const int64_t scores = times(times(times(n->heads, rows), keys), q->wide);
        const int64_t operands = times(times(n->width, rows + keys), copies * q->wide);
        return asked + 2 * scores + operands;
    }
    return asked + q->place->threads * hy3d__min_i64(rows, QUERY_BLOCK) *
                       (2 * hy3d__min_i64(keys, KEY_BLOCK) + head + 2) * FLOAT_BYTES;
}

/* Of rows `rows` the source, and so what is projected. */
static void see_rows(question *q, int64_t rows)
{
    q->source.rows = rows;
    q->position = times(q->frames, rows * q->source.columns);
}

/* In turn: keys and values (of all rows), where frames see themselves alone; queries; the frames
 * one by one; the projection behind them. */
static int64_t of_attend(question *q)
{
    const hy3d_node *n = q->node;
    const int64_t rows = q->source.rows;
    int64_t keys = 0, filling = 0;
    if (n->span == HY3D_SPAN_FRAME) {
        see_rows(q, q->all_rows);
        keys = 2 * bytes_of(q, times(n->width, q->position));
        filling = keys + (rows < q->all_rows ? queries(q) : 0);
        see_rows(q, rows);
    }
    const int64_t one = bytes_of(q, times(n->width, q->position));
    const int64_t asking = hy3d__max_i64(filling, keys + queries(q) + one);
    const int64_t mixing = keys + 2 * one + mixed(q);
    if (q->status != HY3D_OK) {
        return 0;
    }
    int64_t leaving = one + projected(q, HY3D_PART_OUT, n->width, n->channels, HY3D_NORM_NONE);
    if (!q->layer->is_rescaled && !(is_in_place(q) && is_made(q->request, q->place, n->source))) {
        /* A copy of what was read, or the result beside it. */
        leaving += bytes_of(q, times(q->source.channels, q->position));
    }
    leaving += q->layer->is_rescaled ? housed(q) : 0;
    return joined(q, q->step->sources) + hy3d__max_i64(asking, hy3d__max_i64(mixing, leaving));
}

/* A function of frames, behind what puts its source together */
static int64_t of_map(question *q)
{
    q->frames = q->step->reads[1] - q->step->reads[0];
    see_rows(q, q->source.rows);
    const int64_t inside = asked(q, HY3D_PART_LAYER, &q->source, q->step->reads, q->step->frames);
    return joined(q, q->step->sources) + inside + housed(q);
}

/* Frames as they are, whose rows go to their place in the slice, or a sum. */
static int64_t of_sum(question *q)
{
    if (q->step->others == 0) {
        return q->is_housed ? joined(q, q->step->sources) : 0;
    }
    return joined(q, q->step->sources) + joined(q, q->step->others);
}

static int64_t inside_step(question *q)
{
    switch ((hy3d_step_op)q->step->op) {
    case HY3D_STEP_CONV:
        return of_conv(q);
    case HY3D_STEP_PASS:
    case HY3D_STEP_ADD:
        return of_sum(q);
    case HY3D_STEP_KEYS:
        return joined(q, q->step->sources) + queries(q);
    case HY3D_STEP_ATTEND:
        return of_attend(q);
    case HY3D_STEP_MOMENTS:
        return 2 * q->wide *
               hy3d__min_i64(q->place->block_elements, times(q->node->channels, q->position));
    case HY3D_STEP_MAP:
    case HY3D_STEP_OPAQUE:
        return of_map(q);
    case HY3D_STEP_ENTER:
    case HY3D_STEP_TRIM:
    case HY3D_STEP_REDUCE:
    case HY3D_STEP_EMIT:
    case HY3D_STEP_STORE:
    case HY3D_STEP_DROP:
    case HY3D_STEP_LOAD:
    case HY3D_STEP_SEND:
    case HY3D_STEP_RECV:
        return 0;
    }
    return 0;
}

/* What a caller said of a step. */
static bool is_answer(const hy3d_step_memory *taken)
{
    return taken->workspace_bytes >= 0 && taken->kept_bytes >= 0 && taken->shape_bytes >= 0 &&
           (taken->shape_bytes == 0 ||
            (taken->shape >= 0 && taken->shape < HY3D_SCHEDULE_MAX_SHAPES));
}

hy3d_status hy3d__step_memory(hy3d_context *context, const hy3d_schedule_request *request,
                              const hy3d_step *step, const hy3d_size *source, int32_t on_host,
                              bool is_housed, hy3d_step_memory *taken_out)
{
    const hy3d_place *const place = hy3d__place_of(request, on_host);
    const int64_t frames = step->frames[1] - step->frames[0];
    const bool reads =
        step->op == HY3D_STEP_CONV || step->op == HY3D_STEP_MAP || step->op == HY3D_STEP_OPAQUE;
    const int64_t *const of = reads ? step->read_rows : step->rows;
    const int64_t rows = of[1] - of[0];
    question q = {
        .context = context,
        .request = request,
        .place = place,
        .layer = place->layers == NULL ? NULL : &place->layers[step->node],
        .node = &request->graph.nodes[step->node],
        .step = step,
        .source = {source->channels, source->frames, rows, source->columns},
        .all_rows = source->rows,
        .frames = frames,
        .position = times(frames, rows * source->columns),
        .wide = place->dtype == HY3D_F64 ? 8 : 4,
        .on_host = on_host,
        .is_housed = is_housed,
    };
    if (q.layer == NULL) {
        q.status = request->workspace(request->user, step, source, on_host, &q.taken);
    } else {
        const int64_t inside = inside_step(&q);
        q.taken.workspace_bytes = inside;
        q.taken.kept_bytes = 0;
    }
    if (q.status == HY3D_OK && !is_answer(&q.taken)) {
        q.status = HY3D_ERR_INVALID_ARGUMENT;
    }
    if (q.layer != NULL) {
        const bool has_factors = q.node->norm == HY3D_NORM_GROUP; /* and summands */
        q.taken.kept_bytes = hy3d__min_i64(q.taken.kept_bytes, MOST) + q.layer->kept_bytes +
                             (has_factors ? 2 * q.wide * source->channels : 0);
    }
    if (q.status == HY3D_OK) {
        *taken_out = q.taken;
    }
    return q.status;
}
