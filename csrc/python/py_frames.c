/* Frames from Python, in place of one input. */
#include <stdio.h>
#include <string.h>

#include "python/conv_args.h"

enum { FRAME_DIMS = 3 };

/* One frame's view; the first one that is there says type and sizes for all. */
static bool take_frame(PyObject *object, int64_t index, hy3d_py_conv *conv, bool *first)
{
    hy3d_py_view *const view = &conv->frame_views[index];
    hy3d_conv3d_frame *const frame = &conv->frames[index];
    hy3d_conv3d_desc *const desc = &conv->desc;
    char name[40];
    snprintf(name, sizeof name, "frames[%lld]", (long long)index);
    if (!hy3d_py_view_acquire(object, name, false, view)) {
        return false;
    }
    if (view->ndim != FRAME_DIMS) {
        return hy3d_py_value_error("%s has %d dimensions: it needs %d (channels, rows, columns).",
                                   name, view->ndim, FRAME_DIMS);
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
    for (int64_t i = 0; i < conv->count; i++) {
        PyObject *const item = PyTuple_GetItem(items, (Py_ssize_t)i);
        if (item != Py_None && !take_frame(item, i, conv, &first)) {
            return false;
        }
    }
    if (first) {
        return hy3d_py_value_error("frames has %lld items and no array among them: at least one "
                                   "must say how many channels, rows and columns there are.",
                                   (long long)conv->count);
    }
    conv->desc.batch = 1;
    conv->desc.in_size[0] = conv->count;
    conv->fusion.frames = conv->frames;
    return true;
}

/* Memory for the views and the core's frames, all of them empty. */
static bool make_room(const hy3d_py_state *state, int64_t count, hy3d_py_conv *conv)
{
    const size_t views = (size_t)count * sizeof *conv->frame_views;
    const size_t frames = (size_t)count * sizeof *conv->frames;
    void *memory = NULL;
    hy3d_status status = hy3d_alloc(state->context, views, &memory);
    if (status == HY3D_OK) {
        conv->frame_views = memset(memory, 0, views);
        status = hy3d_alloc(state->context, frames, &memory);
    }
    if (status != HY3D_OK) {
        hy3d_py_raise(state, status, "No memory for %lld frames.", (long long)count);
        return false;
    }
    conv->frames = memset(memory, 0, frames);
    conv->count = count;
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
        make_room(state, (int64_t)PyTuple_Size(items), conv) && take_frames(items, conv);
    Py_DECREF(items);
    return good;
}

void hy3d_py_frames_release(hy3d_py_conv *conv)
{
    for (int64_t i = 0; i < conv->count; i++) {
        hy3d_py_view_release(&conv->frame_views[i]);
    }
    hy3d_free(conv->context, conv->frame_views);
    hy3d_free(conv->context, conv->frames);
}
