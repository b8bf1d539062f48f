/* The arguments of a convolution: Python objects in, a checked description and views out. */
#ifndef HY3D_PYTHON_CONV_ARGS_H
#define HY3D_PYTHON_CONV_ARGS_H

#include "hy3d/conv3d.h"
#include "python/view.h"

enum { HY3D_PY_X, HY3D_PY_WEIGHT, HY3D_PY_BIAS, HY3D_PY_OUT, HY3D_PY_CONV_VIEWS };

/* Borrowed; threads and workspace_limit may be NULL (the defaults). */
typedef struct hy3d_py_conv_objects {
    PyObject *x, *weight, *bias, *out;
    PyObject *stride, *dilation, *pad_before, *pad_after, *pad_modes, *groups;
    PyObject *threads, *workspace_limit;
} hy3d_py_conv_objects;

typedef struct hy3d_py_conv {
    hy3d_conv3d_desc desc;
    hy3d_py_view views[HY3D_PY_CONV_VIEWS];
    bool has_bias;
} hy3d_py_conv;

/* On false an exception is set and nothing is held. No Python code runs between the return and
 * the release but what the caller runs. */
bool hy3d_py_conv_acquire(const hy3d_py_state *state, const hy3d_py_conv_objects *objects,
                          hy3d_py_conv *conv);
void hy3d_py_conv_release(hy3d_py_conv *conv);

/* The sentence for a status that a description led to. Always returns NULL. */
PyObject *hy3d_py_conv_raise(const hy3d_py_state *state, hy3d_status status,
                             const hy3d_conv3d_desc *desc);

#endif
