/* The arguments of a convolution: Python objects in, a checked description, views and a fusion
 * out. */
#ifndef HY3D_PYTHON_CONV_ARGS_H
#define HY3D_PYTHON_CONV_ARGS_H

#include "hy3d/conv3d.h"
#include "python/view.h"

enum { HY3D_PY_X, HY3D_PY_WEIGHT, HY3D_PY_BIAS, HY3D_PY_OUT, HY3D_PY_CONV_VIEWS };
enum { HY3D_PY_SCALE, HY3D_PY_SHIFT, HY3D_PY_RESIDUAL, HY3D_PY_FUSION_VIEWS };

/* Borrowed. NULL is None is the default, but for x, weight, out and the geometry, which must be
 * there (x may be None where frames is given). */
typedef struct hy3d_py_conv_objects {
    PyObject *x, *weight, *bias, *out;
    PyObject *stride, *dilation, *pad_before, *pad_after, *pad_modes, *groups;
    PyObject *threads, *workspace_limit, *accuracy;
    PyObject *frames, *scale, *shift, *activation, *upsample, *residual;
} hy3d_py_conv_objects;

/* What is fused, and what keeps its memory alive. */
typedef struct hy3d_py_fusion {
    hy3d_py_view views[HY3D_PY_FUSION_VIEWS];
    bool there[HY3D_PY_FUSION_VIEWS];
    int64_t count; /* of frames; 0: x is given */
    hy3d_py_view *frame_views;
    hy3d_conv3d_frame *frames;
    hy3d_conv3d_fusion core; /* for hy3d_conv3d_run_fused */
} hy3d_py_fusion;

typedef struct hy3d_py_conv {
    hy3d_context *context;
    hy3d_conv3d_desc desc;
    hy3d_py_view views[HY3D_PY_CONV_VIEWS];
    bool has_x, has_bias;
    hy3d_py_fusion fusion;
} hy3d_py_conv;

/* On false an exception is set and nothing is held. No Python code runs between the return and
 * the release but what the caller runs. */
bool hy3d_py_conv_acquire(const hy3d_py_state *state, const hy3d_py_conv_objects *objects,
                          hy3d_py_conv *conv);
void hy3d_py_conv_release(hy3d_py_conv *conv);

/* Everything of a description that is said in numbers and words: all but dtype and sizes. */
bool hy3d_py_conv_numbers(const hy3d_py_conv_objects *objects, hy3d_conv3d_desc *desc);

/* Refuses channels that groups do not divide. */
bool hy3d_py_conv_groups(const hy3d_conv3d_desc *desc);

/* The sentence for a status that a description led to. Always returns NULL. */
PyObject *hy3d_py_conv_raise(const hy3d_py_state *state, hy3d_status status,
                             const hy3d_conv3d_desc *desc);

/* fusion_args.c. Frames come first, since they are the input; false with an exception as above,
 * but what is held then is the caller's to release. */
bool hy3d_py_frames_acquire(const hy3d_py_state *state, PyObject *frames, hy3d_py_conv *conv);
/* The rest of the fusion, once description, input and output are known. */
bool hy3d_py_fusion_acquire(const hy3d_py_conv_objects *objects, hy3d_py_conv *conv);
void hy3d_py_fusion_release(hy3d_context *context, hy3d_py_fusion *fusion);

static inline bool hy3d_py_given(const PyObject *object)
{
    return object != NULL && object != Py_None;
}

#endif
