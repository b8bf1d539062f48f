/* channel_moments: what GroupNorm needs of an activation. */
#include "hy3d/moments.h"

#include "python/core.h"
#include "python/view.h"

enum { X, MEAN, DEVIATIONS, VIEWS };

static const char *const view_names[VIEWS] = {"x", "mean", "deviations"};

static bool acquire_all(PyObject *const objects[VIEWS], hy3d_py_view views[VIEWS])
{
    for (int i = 0; i < VIEWS; i++) {
        if (!hy3d_py_view_acquire(objects[i], view_names[i], i != X, &views[i])) {
            return false;
        }
    }
    if (views[X].ndim != HY3D_TENSOR_DIMS) {
        return hy3d_py_value_error("x must be (N, C, T, H, W); it has %d dimensions.",
                                   views[X].ndim);
    }
    for (int i = MEAN; i < VIEWS; i++) {
        const hy3d_tensor *const to = &views[i].tensor;
        if (views[i].ndim != 1 || to->dtype != HY3D_F64 || to->size[0] != views[X].tensor.size[1] ||
            (to->size[0] > 1 && to->stride[0] != 1)) {
            return hy3d_py_value_error(
                "%s must be a contiguous one-dimensional f64 array of %lld values, one per channel "
                "of x; it has %d dimensions, type %s, size %lld.",
                view_names[i], (long long)views[X].tensor.size[1], views[i].ndim,
                hy3d_dtype_name(to->dtype), (long long)to->size[0]);
        }
    }
    if (hy3d_py_view_overlaps(&views[MEAN], &views[DEVIATIONS]) ||
        hy3d_py_view_overlaps(&views[X], &views[MEAN]) ||
        hy3d_py_view_overlaps(&views[X], &views[DEVIATIONS])) {
        return hy3d_py_value_error(
            "x, mean and deviations share memory: pass arrays of their own.");
    }
    return true;
}

static PyObject *raise_moments(const hy3d_py_state *state, hy3d_status status)
{
    if (status == HY3D_ERR_UNSUPPORTED) {
        return hy3d_py_raise(state, status,
                             "channel_moments takes f32, f16 and bf16, not f64: convert x.");
    }
    if (status == HY3D_ERR_INVALID_ARGUMENT) {
        hy3d_py_value_error(
            "x has no positions to take a mean of, or its elements are not aligned: "
            "pass one that has some, and a copy of an unaligned one.");
        return NULL;
    }
    return hy3d_py_raise(state, status, NULL);
}

PyObject *hy3d_py_channel_moments(PyObject *module, PyObject *args, PyObject *kwargs)
{
    char *keywords[] = {"x", "mean", "deviations", "threads", "cancel", NULL};
    const hy3d_py_state *const state = hy3d_py_get_state(module);
    PyObject *objects[VIEWS] = {NULL, NULL, NULL};
    PyObject *threads_object = NULL, *cancel_object = Py_None;
    int64_t threads = 0;
    const hy3d_cancel *cancel = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO|OO:channel_moments", keywords, &objects[X],
                                     &objects[MEAN], &objects[DEVIATIONS], &threads_object,
                                     &cancel_object) ||
        (threads_object != NULL && !hy3d_py_int64(threads_object, "threads", &threads)) ||
        !hy3d_py_cancel_from(state, cancel_object, &cancel)) {
        return NULL;
    }
    if (threads < 0 || threads > 1024) {
        hy3d_py_value_error("threads is %lld: it must be 0 to 1024.", (long long)threads);
        return NULL;
    }
    hy3d_py_view views[VIEWS] = {{.ndim = 0}};
    /* Whoever passed it may drop it while we compute, or while arrays are asked for theirs. */
    Py_INCREF(cancel_object);
    const bool good = acquire_all(objects, views);
    hy3d_status status = HY3D_OK;
    if (good) {
        hy3d_py_compute compute;
        cancel = hy3d_py_compute_begin(&compute, state, cancel);
        status = hy3d_channel_moments(state->context, &views[X].tensor, (uint32_t)threads, cancel,
                                      views[MEAN].tensor.data, views[DEVIATIONS].tensor.data);
        status = hy3d_py_compute_end(&compute, status);
    }
    Py_DECREF(cancel_object);
    for (int i = 0; i < VIEWS; i++) {
        hy3d_py_view_release(&views[i]);
    }
    if (!good) {
        return NULL;
    }
    if (status != HY3D_OK) {
        return raise_moments(state, status);
    }
    Py_RETURN_NONE;
}
