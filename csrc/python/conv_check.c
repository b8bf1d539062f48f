/* Whether what a convolution was called with fits together. The core refuses a bad description with
 * a code; what is said about it is found here, before. */
#include <string.h>

#include "python/conv_args.h"

bool hy3d_py_conv_groups(const hy3d_conv3d_desc *desc)
{
    const int64_t in = desc->in_channels;
    const int64_t out = desc->out_channels;
    const int64_t groups = desc->groups;
    if (groups < 1 || in < 1 || out < 1 || in % groups != 0 || out % groups != 0) {
        return hy3d_py_value_error("%lld input and %lld output channels cannot be cut into %lld "
                                   "groups: both must be at least 1 and divisible by groups.",
                                   (long long)in, (long long)out, (long long)groups);
    }
    return true;
}

bool hy3d_py_conv_pairs(const hy3d_conv3d_desc *desc)
{
    return desc->pairs == 0 || (desc->pairs <= 2 && desc->upsample[0] == 1) ||
           hy3d_py_value_error("pairs is %u: it must be 0, 1 or 2, and frames are repeated in time "
                               "by themselves or by upsample, not by both.",
                               (unsigned int)desc->pairs);
}

/* Frames that are said to be the same are. */
static bool check_pairs(const hy3d_py_conv *conv)
{
    const hy3d_conv3d_frame *const frames = conv->frames;
    const uint32_t pairs = conv->desc.pairs;
    if (!hy3d_py_conv_pairs(&conv->desc) ||
        (pairs != 0 && conv->count == 0 &&
         !hy3d_py_value_error("pairs is %u, but x is given: only frames come in pairs.",
                              (unsigned int)pairs))) {
        return false;
    }
    for (int64_t i = pairs; pairs != 0 && i < conv->count; i += 2) {
        if (memcmp(&frames[i - 1], &frames[i], sizeof *frames) != 0) {
            return hy3d_py_value_error("pairs is %u, but frames[%lld] and frames[%lld] are not "
                                       "the same array.",
                                       (unsigned int)pairs, (long long)i - 1, (long long)i);
        }
    }
    return true;
}

/* Sizes and type from the arrays, the input's as the convolution sees it, up-sampled. */
static bool fill_sizes(hy3d_py_conv *conv)
{
    hy3d_conv3d_desc *const desc = &conv->desc;
    const hy3d_tensor *const x = hy3d_py_conv_tensor(conv, HY3D_PY_X);
    const hy3d_tensor *const weight = &hy3d_py_conv_view(conv, HY3D_PY_WEIGHT)->tensor;
    if (x != NULL) {
        desc->dtype = x->dtype;
        desc->batch = x->size[0];
        desc->in_channels = x->size[1];
        memcpy(desc->in_size, &x->size[2], sizeof desc->in_size);
    }
    desc->out_channels = weight->size[0];
    memcpy(desc->kernel, &weight->size[2], sizeof desc->kernel);
    for (int i = 0; i < 3; i++) {
        if (__builtin_mul_overflow(desc->in_size[i], desc->upsample[i], &desc->in_size[i])) {
            return hy3d_py_value_error("upsample is (%lld, %lld, %lld): no input is so large.",
                                       (long long)desc->upsample[0], (long long)desc->upsample[1],
                                       (long long)desc->upsample[2]);
        }
    }
    return true;
}

/* weight, bias and out are of the input's type. */
static bool check_types(const hy3d_py_conv *conv)
{
    for (int i = HY3D_PY_WEIGHT; i <= HY3D_PY_OUT; i++) {
        const hy3d_tensor *const tensor = hy3d_py_conv_tensor(conv, i);
        if (tensor != NULL && tensor->dtype != conv->desc.dtype) {
            return hy3d_py_value_error("%s is %s but %s %s: convert one of them.",
                                       hy3d_py_conv_name(i), hy3d_dtype_name(tensor->dtype),
                                       conv->count == 0 ? "x is" : "the frames are",
                                       hy3d_dtype_name(conv->desc.dtype));
        }
    }
    return true;
}

static bool check_channels(const hy3d_py_conv *conv)
{
    const hy3d_conv3d_desc *const desc = &conv->desc;
    const hy3d_tensor *const bias = hy3d_py_conv_tensor(conv, HY3D_PY_BIAS);
    const int64_t taken = hy3d_py_conv_view(conv, HY3D_PY_WEIGHT)->tensor.size[1];
    if (!hy3d_py_conv_groups(desc)) {
        return false;
    }
    if (taken != desc->in_channels / desc->groups) {
        return hy3d_py_value_error("weight takes %lld channels a group but x has %lld in %lld "
                                   "groups, so %lld each.",
                                   (long long)taken, (long long)desc->in_channels,
                                   (long long)desc->groups,
                                   (long long)(desc->in_channels / desc->groups));
    }
    if (bias != NULL && bias->size[0] != desc->out_channels) {
        return hy3d_py_value_error("bias has %lld values but weight makes %lld channels.",
                                   (long long)bias->size[0], (long long)desc->out_channels);
    }
    return hy3d_py_at_least("the size of x (T, H, W)", desc->in_size, 1) &&
           hy3d_py_at_least("the kernel (T, H, W)", desc->kernel, 1);
}

/* A sentence that two arrays' five sizes are not the same. */
static bool refuse_sizes(const char *format, const int64_t *had, const int64_t *wanted)
{
    return hy3d_py_value_error(format, (long long)had[0], (long long)had[1], (long long)had[2],
                               (long long)had[3], (long long)had[4], (long long)wanted[0],
                               (long long)wanted[1], (long long)wanted[2], (long long)wanted[3],
                               (long long)wanted[4]);
}

static bool check_out(const hy3d_py_state *state, const hy3d_py_conv *conv)
{
    const int64_t *const size = hy3d_py_conv_view(conv, HY3D_PY_OUT)->tensor.size;
    int64_t wanted[HY3D_TENSOR_DIMS] = {conv->desc.batch, conv->desc.out_channels, 0, 0, 0};
    const hy3d_status status = hy3d_conv3d_out_size(&conv->desc, &wanted[2]);
    if (status != HY3D_OK) {
        hy3d_py_conv_raise(state, status, &conv->desc);
        return false;
    }
    return memcmp(wanted, size, sizeof wanted) == 0 ||
           refuse_sizes("out is (%lld, %lld, %lld, %lld, %lld) but the result is (%lld, %lld, "
                        "%lld, %lld, %lld).",
                        size, wanted);
}

/* scale or shift */
static bool check_factor(const hy3d_py_conv *conv, int which)
{
    const hy3d_tensor *const factor = hy3d_py_conv_tensor(conv, which);
    const int ndim = hy3d_py_conv_view(conv, which)->ndim;
    const char *const name = hy3d_py_conv_name(which);
    if (factor == NULL) {
        return true;
    }
    if (ndim != 1 || factor->dtype != HY3D_F32) {
        return hy3d_py_value_error("%s has %d dimensions of %s: it needs one of f32.", name, ndim,
                                   hy3d_dtype_name(factor->dtype));
    }
    if (factor->size[0] != conv->desc.in_channels) {
        return hy3d_py_value_error("%s has %lld values but the input has %lld channels.", name,
                                   (long long)factor->size[0], (long long)conv->desc.in_channels);
    }
    if (factor->size[0] > 1 && factor->stride[0] != 1) {
        return hy3d_py_value_error("%s has gaps between its values: pass a contiguous copy.", name);
    }
    return true;
}

/* Whether both name the same element at every index. */
static bool same_elements(const hy3d_tensor *a, const hy3d_tensor *b)
{
    bool same = a->data == b->data;
    for (int i = 0; i < HY3D_TENSOR_DIMS; i++) {
        same = same && (a->size[i] == 1 || a->stride[i] == b->stride[i]);
    }
    return same;
}

static bool check_residual(const hy3d_py_conv *conv)
{
    const hy3d_py_view *const view = hy3d_py_conv_view(conv, HY3D_PY_RESIDUAL);
    const hy3d_py_view *const out = hy3d_py_conv_view(conv, HY3D_PY_OUT);
    const hy3d_tensor *const residual = &view->tensor;
    if (view->ndim == 0) {
        return true;
    }
    if (view->ndim != HY3D_TENSOR_DIMS ||
        memcmp(residual->size, out->tensor.size, sizeof residual->size) != 0) {
        return refuse_sizes("residual is (%lld, %lld, %lld, %lld, %lld) but out is (%lld, %lld, "
                            "%lld, %lld, %lld): it needs out's sizes.",
                            residual->size, out->tensor.size);
    }
    if (residual->dtype != out->tensor.dtype) {
        return hy3d_py_value_error("residual is %s but out is %s: convert one of them.",
                                   hy3d_dtype_name(residual->dtype),
                                   hy3d_dtype_name(out->tensor.dtype));
    }
    if (hy3d_py_view_overlaps(out, view) && !same_elements(&out->tensor, residual)) {
        return hy3d_py_value_error("residual lies in part in the memory of out: pass out itself or "
                                   "an array of its own.");
    }
    return true;
}

static bool check_overlaps(const hy3d_py_conv *conv)
{
    const hy3d_py_view *const out = hy3d_py_conv_view(conv, HY3D_PY_OUT);
    for (int i = HY3D_PY_X; i < HY3D_PY_RESIDUAL; i++) {
        const hy3d_py_view *const view = hy3d_py_conv_view(conv, i);
        if (i != HY3D_PY_OUT && view->ndim > 0 && hy3d_py_view_overlaps(out, view)) {
            return hy3d_py_value_error("out lies in the memory of %s: pass an array of its own.",
                                       hy3d_py_conv_name(i));
        }
    }
    for (int64_t i = 0; i < conv->count; i++) {
        if (conv->frames[i].data != NULL && hy3d_py_view_overlaps(out, &conv->frame_views[i])) {
            return hy3d_py_value_error(
                "out lies in the memory of frames[%lld]: pass an array of its own.", (long long)i);
        }
    }
    return true;
}

bool hy3d_py_conv_check(const hy3d_py_state *state, hy3d_py_conv *conv)
{
    const hy3d_tensor *const scale = hy3d_py_conv_tensor(conv, HY3D_PY_SCALE);
    const hy3d_tensor *const shift = hy3d_py_conv_tensor(conv, HY3D_PY_SHIFT);
    if (!fill_sizes(conv) || !check_types(conv) || !check_channels(conv) || !check_pairs(conv) ||
        !check_out(state, conv)) {
        return false;
    }
    if ((scale == NULL) != (shift == NULL)) {
        return hy3d_py_value_error("one of scale and shift is given: pass both or none.");
    }
    if (scale != NULL) {
        conv->fusion.scale = scale->data;
        conv->fusion.shift = shift->data;
    }
    conv->fusion.residual = hy3d_py_conv_tensor(conv, HY3D_PY_RESIDUAL);
    return check_factor(conv, HY3D_PY_SCALE) && check_factor(conv, HY3D_PY_SHIFT) &&
           check_residual(conv) && check_overlaps(conv);
}

/* A sentence where padding crops all of an axis. */
static bool check_crops(const hy3d_conv3d_desc *desc, const char *name, const int64_t pad[3])
{
    for (int i = 0; i < 3; i++) {
        if (desc->in_size[i] >= 1 && pad[i] <= -desc->in_size[i]) {
            return hy3d_py_value_error("%s is (%lld, %lld, %lld): negative padding crops the input "
                                       "(%lld, %lld, %lld), of which a part must be left.",
                                       name, (long long)pad[0], (long long)pad[1],
                                       (long long)pad[2], (long long)desc->in_size[0],
                                       (long long)desc->in_size[1], (long long)desc->in_size[2]);
        }
    }
    return true;
}

PyObject *hy3d_py_conv_raise(const hy3d_py_state *state, hy3d_status status,
                             const hy3d_conv3d_desc *desc)
{
    if (status == HY3D_ERR_INVALID_ARGUMENT &&
        (!check_crops(desc, "pad_before", desc->pad_before) ||
         !check_crops(desc, "pad_after", desc->pad_after))) {
        return NULL;
    }
    const char *const what = status == HY3D_ERR_SHAPE_MISMATCH
                                 ? "the dilated kernel is larger than the padded input"
                                 : hy3d_status_text(status);
    PyObject *const triples[] = {hy3d_py_tuple3(desc->in_size),    hy3d_py_tuple3(desc->kernel),
                                 hy3d_py_tuple3(desc->stride),     hy3d_py_tuple3(desc->dilation),
                                 hy3d_py_tuple3(desc->pad_before), hy3d_py_tuple3(desc->pad_after)};
    const int count = (int)(sizeof triples / sizeof triples[0]);
    bool good = true;
    for (int i = 0; i < count; i++) {
        good = good && triples[i] != NULL;
    }
    if (good) {
        hy3d_py_raise(
            state, status,
            "No such convolution: %s (input %R, kernel %R, stride %R, dilation %R, padding "
            "before %R and after %R).",
            what, triples[0], triples[1], triples[2], triples[3], triples[4], triples[5]);
    }
    for (int i = 0; i < count; i++) {
        Py_XDECREF(triples[i]);
    }
    return NULL;
}
