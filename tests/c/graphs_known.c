/* Decoders and encoders by hand, node by node, as the real ones are. */
#include "graphs.h"

#include <string.h>

static int32_t put(graphs_case *out, hy3d_node node)
{
    out->nodes[out->request.graph.count] = node;
    out->request.graph.nodes = out->nodes;
    return out->request.graph.count++;
}

static int32_t input(graphs_case *out, int64_t channels)
{
    memset(&out->request, 0, sizeof out->request);
    return put(out, (hy3d_node){.op = HY3D_OP_INPUT, .source = -1, .other = -1,
                                .channels = channels});
}

static int32_t output(graphs_case *out, int32_t source)
{
    return put(out, (hy3d_node){.op = HY3D_OP_OUTPUT, .source = source, .other = -1,
                                .channels = out->nodes[source].channels});
}

/* 3 x 3 x 3 with two frames before; `ahead`: one before and one after. */
static hy3d_node conv3(int32_t source, int64_t channels, int32_t norm, bool is_ahead)
{
    return (hy3d_node){.op = HY3D_OP_CONV, .source = source, .other = -1, .norm = norm,
                       .channels = channels, .kernel = {3, 3, 3}, .stride = {1, 1, 1},
                       .dilation = {1, 1, 1}, .up = {1, 1, 1},
                       .before = {is_ahead ? 1 : 2, 1, 1}, .after = {is_ahead ? 1 : 0, 1, 1},
                       .shuffle = {1, 1, 1}, .groups = 1};
}

static hy3d_node conv2(int32_t source, int64_t channels, int32_t norm)
{
    hy3d_node node = conv3(source, channels, norm, false);
    node.kernel[0] = 1;
    node.before[0] = 0;
    return node;
}

static hy3d_node conv1(int32_t source, int64_t channels)
{
    hy3d_node node = conv2(source, channels, HY3D_NORM_NONE);
    node.kernel[1] = node.kernel[2] = 1;
    memset(node.before, 0, sizeof node.before);
    memset(node.after, 0, sizeof node.after);
    return node;
}

/* How a family's convolutions look. */
typedef struct manner {
    int32_t norm;
    bool is_ahead, is_flat;
} manner;

static hy3d_node conv_of(manner how, int32_t source, int64_t channels, int32_t norm)
{
    return how.is_flat ? conv2(source, channels, norm)
                       : conv3(source, channels, norm, how.is_ahead);
}

static int32_t resnet(graphs_case *out, manner how, int32_t source, int64_t channels)
{
    const bool is_same = out->nodes[source].channels == channels;
    const int32_t first = put(out, conv_of(how, source, channels, how.norm));
    const int32_t shortcut = is_same ? source : put(out, conv1(source, channels));
    hy3d_node second = conv_of(how, first, channels, how.norm);
    second.other = shortcut;
    return put(out, second);
}

static int32_t attention(graphs_case *out, int32_t source, int32_t norm, int32_t span)
{
    const int64_t channels = out->nodes[source].channels;
    return put(out, (hy3d_node){.op = HY3D_OP_ATTENTION, .source = source, .other = -1,
                                .norm = norm, .channels = channels, .span = span, .heads = 1,
                                .width = channels});
}

static int32_t map(graphs_case *out, int32_t source, int64_t channels, int32_t rest, int32_t up)
{
    return put(out, (hy3d_node){.op = HY3D_OP_MAP, .source = source, .other = -1,
                                .channels = channels, .frames_first = 1, .frames_rest = rest,
                                .frames_per = 1, .space_up = {up, up}, .space_down = {1, 1}});
}

static int32_t up_sample(graphs_case *out, manner how, int32_t source, int32_t time, bool keep)
{
    hy3d_node node = conv_of(how, source, out->nodes[source].channels, HY3D_NORM_NONE);
    node.up[0] = time;
    node.up[1] = node.up[2] = 2;
    node.keep_first = keep;
    return put(out, node);
}

static void hunyuan(graphs_case *out, int64_t width)
{
    const manner how = {HY3D_NORM_GROUP, false, false};
    int32_t at = put(out, conv1(input(out, 16), 16));
    at = put(out, conv3(at, 4 * width, HY3D_NORM_NONE, false));
    at = resnet(out, how, at, 4 * width);
    at = attention(out, at, HY3D_NORM_GROUP, HY3D_SPAN_CAUSAL);
    at = resnet(out, how, at, 4 * width);
    for (int level = 0; level < 4; level++) {
        const int64_t channels = level < 2 ? 4 * width : level == 2 ? 2 * width : width;
        for (int i = 0; i < 3; i++) {
            at = resnet(out, how, at, channels);
        }
        if (level < 3) {
            at = up_sample(out, how, at, level == 0 ? 1 : 2, level > 0);
        }
    }
    output(out, put(out, conv3(at, 3, HY3D_NORM_GROUP, false)));
}

/* The first frame passes by; those behind it become two each. */
static int32_t time_conv(graphs_case *out, int32_t source)
{
    hy3d_node node = conv1(source, out->nodes[source].channels);
    node.kernel[0] = 3;
    node.before[0] = 2;
    node.shuffle[0] = 2;
    node.skip_first = 1;
    return put(out, node);
}

static void wan(graphs_case *out, int64_t width)
{
    const manner how = {HY3D_NORM_POSITION, false, false};
    int32_t at = put(out, conv1(input(out, 16), 16));
    at = put(out, conv3(at, 4 * width, HY3D_NORM_NONE, false));
    at = resnet(out, how, at, 4 * width);
    at = attention(out, at, HY3D_NORM_POSITION, HY3D_SPAN_FRAME);
    at = resnet(out, how, at, 4 * width);
    for (int level = 0; level < 4; level++) {
        const int64_t channels = level < 2 ? 4 * width : level == 2 ? 2 * width : width;
        for (int i = 0; i < 3; i++) {
            at = resnet(out, how, at, channels);
        }
        if (level < 2) {
            at = time_conv(out, at);
        }
        if (level < 3) {
            hy3d_node up = conv2(at, level == 0 ? channels : channels / 2, HY3D_NORM_NONE);
            up.up[1] = up.up[2] = 2;
            at = put(out, up);
        }
    }
    at = put(out, conv3(at, 3, HY3D_NORM_POSITION, false));
    output(out, map(out, at, 3, 1, 1));
}

static void ltx(graphs_case *out, int64_t width)
{
    const manner how = {HY3D_NORM_POSITION, true, false};
    int32_t at = put(out, conv3(input(out, 128), 4 * width, HY3D_NORM_NONE, true));
    for (int level = 0; level < 3; level++) {
        const int64_t channels = (4 * width) >> level;
        at = resnet(out, how, at, channels);
        at = resnet(out, how, at, channels);
        hy3d_node up = conv3(at, channels / 2, HY3D_NORM_NONE, true);
        up.shuffle[0] = up.shuffle[1] = up.shuffle[2] = 2;
        up.drop = 1;
        /* The shortcut: channels to space and time, without a convolution. */
        up.other = map(out, at, channels / 2, 2, 2);
        at = put(out, up);
    }
    at = put(out, conv3(at, 48, HY3D_NORM_POSITION, true));
    output(out, map(out, at, 3, 1, 4));
}

static void image(graphs_case *out, int64_t width)
{
    const manner how = {HY3D_NORM_GROUP, false, true};
    int32_t at = put(out, conv2(input(out, 4), 4 * width, HY3D_NORM_NONE));
    at = resnet(out, how, at, 4 * width);
    at = attention(out, at, HY3D_NORM_GROUP, HY3D_SPAN_VIDEO);
    at = resnet(out, how, at, 4 * width);
    for (int level = 0; level < 4; level++) {
        at = resnet(out, how, at, (4 * width) >> (level == 0 ? 0 : level - 1));
        at = level < 3 ? up_sample(out, how, at, 1, false) : at;
    }
    output(out, put(out, conv2(at, 3, HY3D_NORM_GROUP)));
}

static int32_t down_sample(graphs_case *out, int32_t source, bool in_time)
{
    hy3d_node space = conv2(source, out->nodes[source].channels, HY3D_NORM_NONE);
    space.stride[1] = space.stride[2] = 2;
    space.before[1] = space.before[2] = 0;
    const int32_t at = put(out, space);
    hy3d_node time = conv1(at, space.channels);
    time.kernel[0] = 3;
    time.stride[0] = 2;
    time.skip_first = time.reread = 1;
    return in_time ? put(out, time) : at;
}

static void encoder(graphs_case *out, int64_t width)
{
    const manner how = {HY3D_NORM_POSITION, false, false};
    int32_t at = put(out, conv3(input(out, 3), width, HY3D_NORM_NONE, false));
    for (int level = 0; level < 3; level++) {
        at = resnet(out, how, at, width << level);
        at = down_sample(out, at, level > 0);
    }
    at = attention(out, at, HY3D_NORM_POSITION, HY3D_SPAN_FRAME);
    at = put(out, conv3(at, 32, HY3D_NORM_POSITION, false));
    output(out, put(out, conv1(at, 32)));
}

static void opaque(graphs_case *out)
{
    const int32_t at = input(out, 16);
    output(out, put(out, (hy3d_node){.op = HY3D_OP_OPAQUE, .source = at, .other = -1,
                                     .channels = 3, .frames_first = 1, .frames_rest = 4,
                                     .frames_per = 1, .space_up = {8, 8}, .space_down = {1, 1}}));
}

void graphs_make_known(graphs_known which, int64_t width, graphs_case *out)
{
    memset(out, 0, sizeof *out);
    switch (which) {
    case GRAPHS_WAN:
        wan(out, width);
        break;
    case GRAPHS_LTX:
        ltx(out, width);
        break;
    case GRAPHS_IMAGE:
        image(out, width);
        break;
    case GRAPHS_ENCODER:
        encoder(out, width);
        break;
    case GRAPHS_OPAQUE:
        opaque(out);
        break;
    case GRAPHS_HUNYUAN:
    case GRAPHS_KNOWN:
        hunyuan(out, width);
        break;
    }
}

const char *graphs_known_name(graphs_known which)
{
    static const char *const names[GRAPHS_KNOWN] = {"HunyuanVideo", "Wan",     "LTX",
                                                    "image",        "encoder", "opaque"};
    return which < GRAPHS_KNOWN ? names[which] : "?";
}
