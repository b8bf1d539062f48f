/* The arguments of a convolution: Python objects in, a checked description, views and a fusion
 * out. */
#ifndef HY3D_PYTHON_CONV_ARGS_H
#define HY3D_PYTHON_CONV_ARGS_H

#include "hy3d/conv3d.h"
#include "python/view.h"

/* Every argument that one of the functions takes, in the order in which they are read: integers may
 * be objects whose __index__ runs Python code, which must not find an array of ours half used. The
 * last seven are the arrays. */
enum {
    HY3D_PY_CANCEL,
    HY3D_PY_PREPARED,
    HY3D_PY_STRIDE,
    HY3D_PY_DILATION,
    HY3D_PY_PAD_BEFORE,
    HY3D_PY_PAD_AFTER,
    HY3D_PY_PAD_MODES,
    HY3D_PY_GROUPS,
    HY3D_PY_UPSAMPLE,
    HY3D_PY_PAIRS,
    HY3D_PY_ACCURACY,
    HY3D_PY_THREADS,
    HY3D_PY_WORKSPACE_LIMIT,
    HY3D_PY_IN_SIZE,
    HY3D_PY_KERNEL,
    HY3D_PY_IN_CHANNELS,
    HY3D_PY_OUT_CHANNELS,
    HY3D_PY_BATCH,
    HY3D_PY_DTYPE,
    HY3D_PY_FORMAT,
    HY3D_PY_ACTIVATION,
    HY3D_PY_FRAMES,
    HY3D_PY_X,
    HY3D_PY_WEIGHT,
    HY3D_PY_BIAS,
    HY3D_PY_OUT,
    HY3D_PY_SCALE,
    HY3D_PY_SHIFT,
    HY3D_PY_RESIDUAL,
    HY3D_PY_CONV_ARGS
};
enum { HY3D_PY_CONV_VIEWS = HY3D_PY_CONV_ARGS - HY3D_PY_X };

/* What a function was called with. What is no argument of it has its default. */
typedef struct hy3d_py_conv {
    hy3d_context *context;
    uint32_t given;                       /* a bit for each argument */
    PyObject *objects[HY3D_PY_CONV_ARGS]; /* held, since callers may drop them; NULL: not given */
    hy3d_conv3d_desc desc;
    hy3d_conv3d_format format;
    const hy3d_conv3d_weights *prepared;
    const hy3d_cancel *cancel;
    int64_t count; /* of frames; 0: x is given */
    hy3d_py_view *frame_views;
    hy3d_conv3d_frame *frames;
    hy3d_conv3d_fusion fusion;              /* for hy3d_conv3d_run_fused */
    hy3d_py_view views[HY3D_PY_CONV_VIEWS]; /* ndim 0: not given */
} hy3d_py_conv;

/* Reads the arguments, each by itself. `format` is PyArg_ParseTupleAndKeywords', an O for each of
 * the arguments, of which `positions` has the order. On false an exception is set and nothing is
 * held. */
bool hy3d_py_conv_read(const hy3d_py_state *state, const char *format, const uint8_t *positions,
                       PyObject *args, PyObject *kwargs, hy3d_py_conv *conv);
/* The rest of description and fusion, from the arrays, once all fits together; else false with an
 * exception. No Python code runs between the last array's coming and the release but what the
 * caller runs. */
bool hy3d_py_conv_check(const hy3d_py_state *state, hy3d_py_conv *conv);
void hy3d_py_conv_release(hy3d_py_conv *conv);

const char *hy3d_py_conv_name(int argument);
/* An array by its argument, and its tensor or NULL where it was not given. */
static inline const hy3d_py_view *hy3d_py_conv_view(const hy3d_py_conv *conv, int argument)
{
    return &conv->views[argument - HY3D_PY_X];
}
static inline const hy3d_tensor *hy3d_py_conv_tensor(const hy3d_py_conv *conv, int argument)
{
    const hy3d_py_view *const view = hy3d_py_conv_view(conv, argument);
    return view->ndim > 0 ? &view->tensor : NULL;
}

/* Refuses channels that groups do not divide, and pairs that stand for nothing. */
bool hy3d_py_conv_groups(const hy3d_conv3d_desc *desc);
bool hy3d_py_conv_pairs(const hy3d_conv3d_desc *desc);

/* The sentence for a status that a description led to. Always returns NULL. */
PyObject *hy3d_py_conv_raise(const hy3d_py_state *state, hy3d_status status,
                             const hy3d_conv3d_desc *desc);

/* py_frames.c: the frames, and the description's sizes and type from them. What is held on false is
 * the caller's to release. */
bool hy3d_py_frames_acquire(const hy3d_py_state *state, PyObject *frames, hy3d_py_conv *conv);
void hy3d_py_frames_release(hy3d_py_conv *conv);

#endif
