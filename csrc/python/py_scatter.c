/* scatter: points with values into a texture. */
#include "python/mesh_args.h"

enum { VALUES, UV, WEIGHTS, TEXTURE, TOTAL, ARRAYS };

static const hy3d_py_array arrays[ARRAYS] = {
    [VALUES] = {"values", HY3D_PY_F32, 2, 0, false, false},
    [UV] = {"uv", HY3D_PY_F32, 2, 2, false, false},
    [WEIGHTS] = {"weights", HY3D_PY_F32, 1, 0, false, true},
    [TEXTURE] = {"texture", HY3D_PY_F32, 3, 0, true, false},
    [TOTAL] = {"total", HY3D_PY_F32, 2, 0, true, false},
};

/* hy3d_scatter_filter, in the order of the enumeration. */
static const char *const filters[2] = {"linear", "nearest"};

static bool check(const hy3d_py_mesh_call *call)
{
    const int64_t *const size = call->flats[TEXTURE].size;
    if (!hy3d_py_mesh_picture(call, TEXTURE)) {
        return false;
    }
    if (size[2] == 0) {
        return hy3d_py_value_error(
            "texture has no channels: it must be (height, width, channels).");
    }
    if (call->flats[UV].size[0] > INT32_MAX) {
        return hy3d_py_value_error("uv has %lld points: scatter takes 2**31 - 1 at once.",
                                   (long long)call->flats[UV].size[0]);
    }
    return hy3d_py_mesh_same(call, VALUES, 0, UV, 0) &&
           hy3d_py_mesh_same(call, VALUES, 1, TEXTURE, 2) &&
           hy3d_py_mesh_same(call, TOTAL, 0, TEXTURE, 0) &&
           hy3d_py_mesh_same(call, TOTAL, 1, TEXTURE, 1) &&
           (!call->flats[WEIGHTS].held || hy3d_py_mesh_same(call, WEIGHTS, 0, UV, 0));
}

static hy3d_status run(hy3d_py_mesh_call *call)
{
    const hy3d_py_flat *const flats = call->flats;
    const hy3d_scatter_desc desc = {
        .filter = (hy3d_scatter_filter)call->option,
        .width = flats[TEXTURE].size[1],
        .height = flats[TEXTURE].size[0],
        .channels = flats[TEXTURE].size[2],
        .points = flats[UV].size[0],
        .num_threads = (uint32_t)call->threads,
    };
    return hy3d_scatter(call->state->context, &desc, flats[VALUES].data, flats[UV].data,
                        flats[WEIGHTS].data, call->cancel, &call->problem, flats[TEXTURE].data,
                        flats[TOTAL].data);
}

static void explain(const hy3d_py_mesh_call *call, hy3d_status status)
{
    if (status != HY3D_ERR_INVALID_ARGUMENT || call->problem.fault == HY3D_RASTER_NO_FAULT) {
        hy3d_py_raise(call->state, status, "scatter: %s.", hy3d_status_text(status));
    } else if (call->problem.fault == HY3D_RASTER_NEGATIVE) {
        hy3d_py_value_error("weights is negative at point %lld: a weight must be at least 0.",
                            (long long)call->problem.at);
    } else if (!hy3d_py_mesh_not_finite(call, UV, "point")) {
        hy3d_py_mesh_not_finite(call, WEIGHTS, "point");
    }
}

static const hy3d_py_mesh_function function = {arrays, ARRAYS, check, run, explain};

PyObject *hy3d_py_scatter(PyObject *module, PyObject *args, PyObject *kwargs)
{
    char *keywords[] = {"values", "uv",      "weights", "texture", "total",
                        "filter", "threads", "cancel",  NULL};
    PyObject *objects[ARRAYS] = {NULL, NULL, NULL, NULL, NULL};
    hy3d_py_mesh_call call = {.state = hy3d_py_get_state(module)};
    PyObject *threads = NULL, *cancel = Py_None;
    const char *text = "linear";
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOO|sOO:scatter", keywords, &objects[VALUES],
                                     &objects[UV], &objects[WEIGHTS], &objects[TEXTURE],
                                     &objects[TOTAL], &text, &threads, &cancel) ||
        !hy3d_py_mesh_choice("filter", text, filters, &call.option)) {
        return NULL;
    }
    if (!hy3d_py_mesh_run(&function, &call, objects, threads, cancel)) {
        return NULL;
    }
    Py_RETURN_NONE;
}
