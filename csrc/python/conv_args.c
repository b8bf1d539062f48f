/* The core refuses a bad description with a code; what is said about it is found here, before. */
#include "python/conv_args.h"

#include <string.h>

static const char *const view_names[HY3D_PY_CONV_VIEWS] = {"x", "weight", "bias", "out"};

static bool read_pad_mode(PyObject *value, hy3d_pad_mode *out)
{
    if (PyUnicode_Check(value) && PyUnicode_CompareWithASCIIString(value, "zeros") == 0) {
        *out = HY3D_PAD_ZEROS;
        return true;
    }
    if (PyUnicode_Check(value) && PyUnicode_CompareWithASCIIString(value, "replicate") == 0) {
        *out = HY3D_PAD_REPLICATE;
        return true;
    }
    return hy3d_py_value_error("pad_modes has %R: each must be 'zeros' or 'replicate'.", value);
}

/* One mode for all axes or a tuple of three. */
static bool read_pad_modes(PyObject *value, hy3d_pad_mode out[3])
{
    if (PyUnicode_Check(value)) {
        if (!read_pad_mode(value, &out[0])) {
            return false;
        }
        out[1] = out[2] = out[0];
        return true;
    }
    if (!PyTuple_Check(value) || PyTuple_Size(value) != 3) {
        return hy3d_py_type_error("pad_modes must be 'zeros', 'replicate' or a tuple of three of "
                                  "them (T, H, W), not %R.",
                                  (PyObject *)Py_TYPE(value));
    }
    for (Py_ssize_t i = 0; i < 3; i++) {
        if (!read_pad_mode(PyTuple_GetItem(value, i), &out[i])) {
            return false;
        }
    }
    return true;
}

static bool read_words(const hy3d_py_conv_objects *o, hy3d_conv3d_desc *desc)
{
    PyObject *const accuracy = o->accuracy;
    if (accuracy == NULL) {
        return true;
    }
    const bool text = PyUnicode_Check(accuracy);
    if (text && PyUnicode_CompareWithASCIIString(accuracy, "fast") == 0) {
        desc->accuracy = HY3D_FAST;
    } else if (!text || PyUnicode_CompareWithASCIIString(accuracy, "exact") != 0) {
        return hy3d_py_value_error("accuracy is %R: it must be 'exact' or 'fast'.", accuracy);
    }
    return true;
}

static bool read_upsample(const hy3d_py_conv_objects *o, hy3d_conv3d_desc *desc)
{
    for (int i = 0; i < 3; i++) {
        desc->upsample[i] = 1;
    }
    return !hy3d_py_given(o->upsample) ||
           (hy3d_py_int64_array(o->upsample, "upsample", 3, desc->upsample) &&
            hy3d_py_at_least("upsample", desc->upsample, 1));
}

static bool read_limits(const hy3d_py_conv_objects *o, hy3d_conv3d_desc *desc)
{
    uint64_t threads = 0;
    uint64_t limit = 0;
    if (o->threads != NULL && !hy3d_py_uint64(o->threads, "threads", &threads)) {
        return false;
    }
    if (hy3d_py_given(o->workspace_limit)) {
        if (!hy3d_py_uint64(o->workspace_limit, "workspace_limit", &limit)) {
            return false;
        }
        /* The core's 0 is its default. No workspace is a single byte, so 1 allows what 0 does. */
        limit = limit == 0 ? 1 : limit;
    }
    if (threads > UINT32_MAX) {
        return hy3d_py_value_error("threads is %llu: there are not so many.",
                                   (unsigned long long)threads);
    }
    desc->num_threads = (uint32_t)threads;
    desc->workspace_limit_bytes = limit > SIZE_MAX ? SIZE_MAX : (size_t)limit;
    return true;
}

bool hy3d_py_conv_numbers(const hy3d_py_conv_objects *o, hy3d_conv3d_desc *desc)
{
    return hy3d_py_int64_array(o->stride, "stride", 3, desc->stride) &&
           hy3d_py_at_least("stride", desc->stride, 1) &&
           hy3d_py_int64_array(o->dilation, "dilation", 3, desc->dilation) &&
           hy3d_py_at_least("dilation", desc->dilation, 1) &&
           hy3d_py_int64_array(o->pad_before, "pad_before", 3, desc->pad_before) &&
           hy3d_py_at_least("pad_before", desc->pad_before, 0) &&
           hy3d_py_int64_array(o->pad_after, "pad_after", 3, desc->pad_after) &&
           hy3d_py_at_least("pad_after", desc->pad_after, 0) &&
           read_pad_modes(o->pad_modes, desc->pad_mode) &&
           hy3d_py_int64(o->groups, "groups", &desc->groups) && read_upsample(o, desc) &&
           read_words(o, desc) && read_limits(o, desc);
}

/* x or frames: the rest must be of their type. */
static bool acquire_input(const hy3d_py_state *state, const hy3d_py_conv_objects *o,
                          hy3d_py_conv *conv)
{
    hy3d_py_view *const view = &conv->views[HY3D_PY_X];
    conv->has_x = o->x != Py_None;
    if (conv->has_x && hy3d_py_given(o->frames)) {
        return hy3d_py_value_error("x and frames are both given: frames take the place of x, so "
                                   "pass None for one of them.");
    }
    if (!conv->has_x && hy3d_py_given(o->frames)) {
        return hy3d_py_frames_acquire(state, o->frames, conv);
    }
    if (!hy3d_py_view_acquire(o->x, "x", false, view)) {
        return false;
    }
    if (view->ndim != HY3D_TENSOR_DIMS) {
        return hy3d_py_value_error("x has %d dimensions: it needs %d.", view->ndim,
                                   HY3D_TENSOR_DIMS);
    }
    const hy3d_tensor *const x = &view->tensor;
    conv->desc.dtype = x->dtype;
    conv->desc.batch = x->size[0];
    conv->desc.in_channels = x->size[1];
    for (int i = 0; i < 3; i++) {
        conv->desc.in_size[i] = x->size[2 + i];
    }
    return true;
}

static bool acquire_views(const hy3d_py_conv_objects *o, hy3d_py_conv *conv)
{
    PyObject *const objects[HY3D_PY_CONV_VIEWS] = {o->x, o->weight, o->bias, o->out};
    conv->has_bias = o->bias != Py_None;
    for (int i = HY3D_PY_WEIGHT; i < HY3D_PY_CONV_VIEWS; i++) {
        hy3d_py_view *const view = &conv->views[i];
        const int wanted = i == HY3D_PY_BIAS ? 1 : HY3D_TENSOR_DIMS;
        if (i == HY3D_PY_BIAS && !conv->has_bias) {
            continue;
        }
        if (!hy3d_py_view_acquire(objects[i], view_names[i], i == HY3D_PY_OUT, view)) {
            return false;
        }
        if (view->ndim != wanted) {
            return hy3d_py_value_error("%s has %d dimensions: it needs %d.", view_names[i],
                                       view->ndim, wanted);
        }
        if (view->tensor.dtype != conv->desc.dtype) {
            return hy3d_py_value_error("%s is %s but %s %s: convert one of them.", view_names[i],
                                       hy3d_dtype_name(view->tensor.dtype),
                                       conv->has_x ? "x is" : "the frames are",
                                       hy3d_dtype_name(conv->desc.dtype));
        }
    }
    return true;
}

/* The kernel's sizes, and the input's as the convolution sees it, up-sampled. */
static bool fill_sizes(hy3d_py_conv *conv)
{
    hy3d_conv3d_desc *const desc = &conv->desc;
    const hy3d_tensor *const weight = &conv->views[HY3D_PY_WEIGHT].tensor;
    desc->out_channels = weight->size[0];
    for (int i = 0; i < 3; i++) {
        desc->kernel[i] = weight->size[2 + i];
        if (__builtin_mul_overflow(desc->in_size[i], desc->upsample[i], &desc->in_size[i])) {
            return hy3d_py_value_error("upsample is (%lld, %lld, %lld): no input is so large.",
                                       (long long)desc->upsample[0], (long long)desc->upsample[1],
                                       (long long)desc->upsample[2]);
        }
    }
    return true;
}

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

static bool check_channels(const hy3d_py_conv *conv)
{
    const hy3d_conv3d_desc *const desc = &conv->desc;
    const long long in = (long long)desc->in_channels;
    const long long out = (long long)desc->out_channels;
    const long long groups = (long long)desc->groups;
    const long long taken = (long long)conv->views[HY3D_PY_WEIGHT].tensor.size[1];
    if (!hy3d_py_conv_groups(desc)) {
        return false;
    }
    if (taken != in / groups) {
        return hy3d_py_value_error("weight takes %lld channels a group but x has %lld in %lld "
                                   "groups, so %lld each.",
                                   taken, in, groups, in / groups);
    }
    if (conv->has_bias && conv->views[HY3D_PY_BIAS].tensor.size[0] != desc->out_channels) {
        return hy3d_py_value_error("bias has %lld values but weight makes %lld channels.",
                                   (long long)conv->views[HY3D_PY_BIAS].tensor.size[0], out);
    }
    return hy3d_py_at_least("the size of x (T, H, W)", desc->in_size, 1) &&
           hy3d_py_at_least("the kernel (T, H, W)", desc->kernel, 1);
}

static bool check_out(const hy3d_py_state *state, const hy3d_py_conv *conv)
{
    const hy3d_py_view *const out = &conv->views[HY3D_PY_OUT];
    int64_t wanted[HY3D_TENSOR_DIMS] = {conv->desc.batch, conv->desc.out_channels, 0, 0, 0};
    const hy3d_status status = hy3d_conv3d_out_size(&conv->desc, &wanted[2]);
    if (status != HY3D_OK) {
        hy3d_py_conv_raise(state, status, &conv->desc);
        return false;
    }
    if (memcmp(wanted, out->tensor.size, sizeof wanted) != 0) {
        const int64_t *const size = out->tensor.size;
        return hy3d_py_value_error(
            "out is (%lld, %lld, %lld, %lld, %lld) but the result is (%lld, %lld, %lld, %lld, "
            "%lld).",
            (long long)size[0], (long long)size[1], (long long)size[2], (long long)size[3],
            (long long)size[4], (long long)wanted[0], (long long)wanted[1], (long long)wanted[2],
            (long long)wanted[3], (long long)wanted[4]);
    }
    for (int i = 0; i < HY3D_PY_OUT; i++) {
        const bool there = i == HY3D_PY_WEIGHT || (i == HY3D_PY_X ? conv->has_x : conv->has_bias);
        if (there && hy3d_py_view_overlaps(out, &conv->views[i])) {
            return hy3d_py_value_error("out lies in the memory of %s: pass an array of its own.",
                                       view_names[i]);
        }
    }
    return true;
}

bool hy3d_py_conv_acquire(const hy3d_py_state *state, const hy3d_py_conv_objects *objects,
                          hy3d_py_conv *conv)
{
    memset(conv, 0, sizeof *conv);
    conv->context = state->context;
    if (hy3d_py_conv_numbers(objects, &conv->desc) && acquire_input(state, objects, conv) &&
        acquire_views(objects, conv) && fill_sizes(conv) && check_channels(conv) &&
        check_out(state, conv) && hy3d_py_fusion_acquire(objects, conv)) {
        return true;
    }
    hy3d_py_conv_release(conv);
    return false;
}

void hy3d_py_conv_release(hy3d_py_conv *conv)
{
    for (int i = 0; i < HY3D_PY_CONV_VIEWS; i++) {
        hy3d_py_view_release(&conv->views[i]);
    }
    hy3d_py_fusion_release(conv->context, &conv->fusion);
}

PyObject *hy3d_py_conv_raise(const hy3d_py_state *state, hy3d_status status,
                             const hy3d_conv3d_desc *desc)
{
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
