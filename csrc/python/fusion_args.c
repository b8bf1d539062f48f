/* Frames, scale and shift, activation and residual from Python. */
#include "python/conv_args.h"

#include <stdio.h>
#include <string.h>

static const char *const view_names[HY3D_PY_FUSION_VIEWS] = {"scale", "shift", "residual"};
enum { FRAME_DIMS = 3 };

/* One frame's view; the first one that is there says type and sizes for all. */
static bool take_frame(PyObject *object, int64_t index, hy3d_py_conv *conv, bool *first)
{
    hy3d_py_view *const view = &conv->fusion.frame_views[index];
    hy3d_conv3d_frame *const frame = &conv->fusion.frames[index];
    hy3d_conv3d_desc *const desc = &conv->desc;
    char name[40];
    snprintf(name, sizeof name, "frames[%lld]", (long long)index);
    if (!hy3d_py_view_acquire(object, name, false, view)) {
        return false;
    }
    if (view->ndim != FRAME_DIMS) {
        return hy3d_py_value_error("%s has %d dimensions: it needs %d (channels, rows, columns).",
                                   name, view->ndim, (int)FRAME_DIMS);
    }
    const int64_t *const size = view->tensor.size;
    if (*first) {
        *first = false;
        desc->dtype = view->tensor.dtype;
        desc->in_channels = size[0];
        desc->in_size[1] = size[1];
        desc->in_size[2] = size[2];
    }
    if (view->tensor.dtype != desc->dtype) {
        return hy3d_py_value_error("%s is %s but the first frame is %s: convert one of them.", name,
                                   hy3d_dtype_name(view->tensor.dtype),
                                   hy3d_dtype_name(desc->dtype));
    }
    if (size[0] != desc->in_channels || size[1] != desc->in_size[1] ||
        size[2] != desc->in_size[2]) {
        return hy3d_py_value_error("%s is (%lld, %lld, %lld) but the first frame is (%lld, %lld, "
                                   "%lld): all must have the same sizes.",
                                   name, (long long)size[0], (long long)size[1], (long long)size[2],
                                   (long long)desc->in_channels, (long long)desc->in_size[1],
                                   (long long)desc->in_size[2]);
    }
    frame->data = view->tensor.data;
    memcpy(frame->stride, view->tensor.stride, sizeof frame->stride);
    return true;
}

static bool take_frames(PyObject *items, hy3d_py_conv *conv)
{
    bool first = true;
    for (int64_t i = 0; i < conv->fusion.count; i++) {
        PyObject *const item = PyTuple_GetItem(items, (Py_ssize_t)i);
        if (item != Py_None && !take_frame(item, i, conv, &first)) {
            return false;
        }
    }
    if (first) {
        return hy3d_py_value_error("frames has %lld items and no array among them: at least one "
                                   "must say how many channels, rows and columns there are.",
                                   (long long)conv->fusion.count);
    }
    conv->desc.batch = 1;
    conv->desc.in_size[0] = conv->fusion.count;
    conv->fusion.core.frames = conv->fusion.frames;
    return true;
}

/* Memory for the views and the core's frames, all of them empty. */
static bool make_room(const hy3d_py_state *state, int64_t count, hy3d_py_fusion *fusion)
{
    const size_t views = (size_t)count * sizeof *fusion->frame_views;
    const size_t frames = (size_t)count * sizeof *fusion->frames;
    void *memory = NULL;
    hy3d_status status = hy3d_alloc(state->context, views, &memory);
    if (status == HY3D_OK) {
        fusion->frame_views = memset(memory, 0, views);
        status = hy3d_alloc(state->context, frames, &memory);
    }
    if (status != HY3D_OK) {
        hy3d_py_raise(state, status, "No memory for %lld frames.", (long long)count);
        return false;
    }
    fusion->frames = memset(memory, 0, frames);
    fusion->count = count;
    return true;
}

bool hy3d_py_frames_acquire(const hy3d_py_state *state, PyObject *frames, hy3d_py_conv *conv)
{
    if (!PyTuple_Check(frames) && !PyList_Check(frames)) {
        return hy3d_py_type_error("frames must be a tuple of arrays or None, not %R.",
                                  (PyObject *)Py_TYPE(frames));
    }
    if (conv->desc.upsample[0] != 1) {
        return hy3d_py_value_error("upsample is %lld in time: pass a frame several times instead.",
                                   (long long)conv->desc.upsample[0]);
    }
    /* A copy: what the items' own code does to a list changes nothing here. */
    PyObject *const items = hy3d_py_items(frames);
    if (items == NULL) {
        return false;
    }
    const bool good =
        make_room(state, (int64_t)PyTuple_Size(items), &conv->fusion) && take_frames(items, conv);
    Py_DECREF(items);
    return good;
}

static bool read_activation(PyObject *value, hy3d_activation *out)
{
    if (!hy3d_py_given(value)) {
        *out = HY3D_IDENTITY;
        return true;
    }
    if (PyUnicode_Check(value) && PyUnicode_CompareWithASCIIString(value, "silu") == 0) {
        *out = HY3D_SILU;
        return true;
    }
    return hy3d_py_value_error("activation is %R: it must be 'silu' or None.", value);
}

static bool check_factor(const hy3d_py_conv *conv, int which)
{
    const hy3d_py_view *const view = &conv->fusion.views[which];
    const char *const name = view_names[which];
    if (view->ndim != 1 || view->tensor.dtype != HY3D_F32) {
        return hy3d_py_value_error("%s has %d dimensions of %s: it needs one of f32.", name,
                                   view->ndim, hy3d_dtype_name(view->tensor.dtype));
    }
    if (view->tensor.size[0] != conv->desc.in_channels) {
        return hy3d_py_value_error("%s has %lld values but the input has %lld channels.", name,
                                   (long long)view->tensor.size[0],
                                   (long long)conv->desc.in_channels);
    }
    if (view->tensor.size[0] > 1 && view->tensor.stride[0] != 1) {
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
    const hy3d_py_view *const residual = &conv->fusion.views[HY3D_PY_RESIDUAL];
    const hy3d_py_view *const out = &conv->views[HY3D_PY_OUT];
    if (residual->ndim != HY3D_TENSOR_DIMS ||
        memcmp(residual->tensor.size, out->tensor.size, sizeof out->tensor.size) != 0) {
        const int64_t *const size = residual->tensor.size;
        const int64_t *const wanted = out->tensor.size;
        return hy3d_py_value_error(
            "residual is (%lld, %lld, %lld, %lld, %lld) but out is (%lld, %lld, %lld, %lld, %lld): "
            "it needs out's sizes.",
            (long long)size[0], (long long)size[1], (long long)size[2], (long long)size[3],
            (long long)size[4], (long long)wanted[0], (long long)wanted[1], (long long)wanted[2],
            (long long)wanted[3], (long long)wanted[4]);
    }
    if (residual->tensor.dtype != out->tensor.dtype) {
        return hy3d_py_value_error("residual is %s but out is %s: convert one of them.",
                                   hy3d_dtype_name(residual->tensor.dtype),
                                   hy3d_dtype_name(out->tensor.dtype));
    }
    if (hy3d_py_view_overlaps(out, residual) && !same_elements(&out->tensor, &residual->tensor)) {
        return hy3d_py_value_error("residual lies in part in the memory of out: pass out itself or "
                                   "an array of its own.");
    }
    return true;
}

static bool check_overlaps(const hy3d_py_conv *conv)
{
    const hy3d_py_fusion *const fusion = &conv->fusion;
    const hy3d_py_view *const out = &conv->views[HY3D_PY_OUT];
    for (int i = 0; i < HY3D_PY_RESIDUAL; i++) {
        if (fusion->there[i] && hy3d_py_view_overlaps(out, &fusion->views[i])) {
            return hy3d_py_value_error("out lies in the memory of %s: pass an array of its own.",
                                       view_names[i]);
        }
    }
    for (int64_t i = 0; i < fusion->count; i++) {
        if (fusion->frames[i].data != NULL && hy3d_py_view_overlaps(out, &fusion->frame_views[i])) {
            return hy3d_py_value_error(
                "out lies in the memory of frames[%lld]: pass an array of its own.", (long long)i);
        }
    }
    return true;
}

bool hy3d_py_fusion_acquire(const hy3d_py_conv_objects *objects, hy3d_py_conv *conv)
{
    hy3d_py_fusion *const fusion = &conv->fusion;
    PyObject *const given[HY3D_PY_FUSION_VIEWS] = {objects->scale, objects->shift,
                                                   objects->residual};
    if (!read_activation(objects->activation, &fusion->core.activation)) {
        return false;
    }
    if (hy3d_py_given(objects->scale) != hy3d_py_given(objects->shift)) {
        return hy3d_py_value_error("one of scale and shift is given: pass both or none.");
    }
    for (int i = 0; i < HY3D_PY_FUSION_VIEWS; i++) {
        if (!hy3d_py_given(given[i])) {
            continue;
        }
        if (!hy3d_py_view_acquire(given[i], view_names[i], false, &fusion->views[i])) {
            return false;
        }
        fusion->there[i] = true;
        if (i == HY3D_PY_RESIDUAL ? !check_residual(conv) : !check_factor(conv, i)) {
            return false;
        }
    }
    fusion->core.scale = fusion->views[HY3D_PY_SCALE].tensor.data;
    fusion->core.shift = fusion->views[HY3D_PY_SHIFT].tensor.data;
    fusion->core.residual =
        fusion->there[HY3D_PY_RESIDUAL] ? &fusion->views[HY3D_PY_RESIDUAL].tensor : NULL;
    return check_overlaps(conv);
}

void hy3d_py_fusion_release(hy3d_context *context, hy3d_py_fusion *fusion)
{
    for (int64_t i = 0; i < fusion->count; i++) {
        hy3d_py_view_release(&fusion->frame_views[i]);
    }
    hy3d_free(context, fusion->frame_views);
    hy3d_free(context, fusion->frames);
    fusion->frame_views = NULL;
    fusion->frames = NULL;
    fusion->count = 0;
    for (int i = 0; i < HY3D_PY_FUSION_VIEWS; i++) {
        hy3d_py_view_release(&fusion->views[i]);
    }
}
