/* blend_accumulate: a decoded tile into the output. */
#include "hy3d/blend.h"

#include "python/core.h"
#include "python/view.h"

enum { TILE, OUT, WINDOW_T, WINDOW_H, WINDOW_W, VIEWS };

typedef struct blend_call {
    const hy3d_py_state *state;
    hy3d_py_view views[VIEWS]; /* an empty window view: all ones */
    const float *window[3];
} blend_call;

static bool acquire_window(PyObject *object, const char *name, int axis, blend_call *call)
{
    hy3d_py_view *const view = &call->views[WINDOW_T + axis];
    if (object == Py_None) {
        return true;
    }
    if (!hy3d_py_view_acquire(object, name, false, view)) {
        return false;
    }
    const hy3d_tensor *const tensor = &view->tensor;
    const int64_t wanted = call->views[TILE].tensor.size[2 + axis];
    if (view->ndim != 1 || tensor->dtype != HY3D_F32 || tensor->size[0] != wanted ||
        (tensor->size[0] > 1 && tensor->stride[0] != 1)) {
        return hy3d_py_value_error("%s must be a contiguous one-dimensional f32 array of %lld "
                                   "weights, one per position of "
                                   "the tile; it has %d dimensions, type %s, size %lld.",
                                   name, (long long)wanted, view->ndim,
                                   hy3d_dtype_name(tensor->dtype), (long long)tensor->size[0]);
    }
    call->window[axis] = tensor->data;
    return true;
}

static bool check_pair(const blend_call *call)
{
    const hy3d_py_view *const tile = &call->views[TILE];
    const hy3d_py_view *const out = &call->views[OUT];
    for (int i = 0; i < HY3D_TENSOR_DIMS; i++) {
        if (tile->tensor.size[i] != out->tensor.size[i]) {
            return hy3d_py_value_error("tile has size %lld in dimension %d but out has %lld: pass "
                                       "the slice of the output that the tile covers.",
                                       (long long)tile->tensor.size[i], i,
                                       (long long)out->tensor.size[i]);
        }
    }
    if (hy3d_py_view_overlaps(tile, out)) {
        return hy3d_py_value_error("tile and out share memory: pass a copy of the tile.");
    }
    return true;
}

static bool acquire_all(PyObject *const objects[VIEWS], blend_call *call)
{
    static const struct {
        int index;
        const char *name;
    } windows[] = {{WINDOW_T, "window_t"}, {WINDOW_H, "window_h"}, {WINDOW_W, "window_w"}};
    if (!hy3d_py_view_acquire(objects[TILE], "tile", false, &call->views[TILE]) ||
        !hy3d_py_view_acquire(objects[OUT], "out", true, &call->views[OUT])) {
        return false;
    }
    if (call->views[TILE].ndim != HY3D_TENSOR_DIMS || call->views[OUT].ndim != HY3D_TENSOR_DIMS) {
        return hy3d_py_value_error("tile and out must be (N, C, T, H, W); they have %d and %d "
                                   "dimensions.",
                                   call->views[TILE].ndim, call->views[OUT].ndim);
    }
    for (int axis = 0; axis < 3; axis++) {
        if (!acquire_window(objects[windows[axis].index], windows[axis].name, axis, call)) {
            return false;
        }
    }
    return check_pair(call);
}

PyObject *hy3d_py_blend_accumulate(PyObject *module, PyObject *args, PyObject *kwargs)
{
    char *keywords[] = {"tile", "window_t", "window_h", "window_w", "out", NULL};
    PyObject *objects[VIEWS] = {NULL, NULL, NULL, NULL, NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOO:blend_accumulate", keywords,
                                     &objects[TILE], &objects[WINDOW_T], &objects[WINDOW_H],
                                     &objects[WINDOW_W], &objects[OUT])) {
        return NULL;
    }
    blend_call call = {.state = hy3d_py_get_state(module)};
    const bool good = acquire_all(objects, &call);
    hy3d_status status = HY3D_OK;
    if (good) {
        Py_BEGIN_ALLOW_THREADS
        status =
            hy3d_blend_accumulate(call.state->context, &call.views[TILE].tensor, call.window[0],
                                  call.window[1], call.window[2], &call.views[OUT].tensor);
        Py_END_ALLOW_THREADS
    }
    for (int i = 0; i < VIEWS; i++) {
        hy3d_py_view_release(&call.views[i]);
    }
    if (!good) {
        return NULL;
    }
    if (status != HY3D_OK) {
        return hy3d_py_raise(call.state, status, "blend_accumulate: %s.", hy3d_status_text(status));
    }
    Py_RETURN_NONE;
}
