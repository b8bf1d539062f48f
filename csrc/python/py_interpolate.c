/* interpolate: attributes of vertices at the pixels of a picture. */
#include "python/mesh_args.h"

enum { ATTRIBUTES, FACES, FACE_INDEX, BARYCENTRIC, OUT, ARRAYS };

static const hy3d_py_array arrays[ARRAYS] = {
    [ATTRIBUTES] = {"attributes", HY3D_PY_F32, 2, 0, false, false},
    [FACES] = {"faces", HY3D_PY_I32, 2, 3, false, false},
    [FACE_INDEX] = {"face_index", HY3D_PY_I32, 1, 0, false, false},
    [BARYCENTRIC] = {"barycentric", HY3D_PY_F32, 2, 3, false, false},
    [OUT] = {"out", HY3D_PY_F32, 2, 0, true, false},
};

static bool check(const hy3d_py_mesh_call *call)
{
    if (call->flats[ATTRIBUTES].size[1] == 0) {
        return hy3d_py_value_error("attributes has no channels: it must be (vertices, channels).");
    }
    return hy3d_py_mesh_same(call, BARYCENTRIC, 0, FACE_INDEX, 0) &&
           hy3d_py_mesh_same(call, OUT, 0, FACE_INDEX, 0) &&
           hy3d_py_mesh_same(call, OUT, 1, ATTRIBUTES, 1);
}

static hy3d_status run(hy3d_py_mesh_call *call)
{
    const hy3d_py_flat *const flats = call->flats;
    return hy3d_interpolate(call->state->context, flats[ATTRIBUTES].size[0],
                            flats[ATTRIBUTES].size[1], flats[FACES].size[0],
                            flats[FACE_INDEX].size[0], flats[ATTRIBUTES].data, flats[FACES].data,
                            flats[FACE_INDEX].data, flats[BARYCENTRIC].data,
                            (uint32_t)call->threads, call->cancel, &call->problem, flats[OUT].data);
}

/* Pixels are looked at only where all faces are good. */
static void explain(const hy3d_py_mesh_call *call, hy3d_status status)
{
    const int64_t vertices = call->flats[ATTRIBUTES].size[0], faces = call->flats[FACES].size[0];
    if (status != HY3D_ERR_INVALID_ARGUMENT || call->problem.fault == HY3D_RASTER_NO_FAULT) {
        hy3d_py_raise(call->state, status, "interpolate: %s.", hy3d_status_text(status));
    } else if (!hy3d_py_mesh_bad_face(call, FACES, vertices, "vertices")) {
        hy3d_py_value_error("face_index has %lld at pixel %lld: there are %lld faces, so it must "
                            "be 0 (nothing there) or a face's number + 1.",
                            (long long)call->problem.value, (long long)call->problem.at,
                            (long long)faces);
    }
}

static const hy3d_py_mesh_function function = {arrays, ARRAYS, check, run, explain};

PyObject *hy3d_py_interpolate(PyObject *module, PyObject *args, PyObject *kwargs)
{
    char *keywords[] = {"attributes", "faces",   "face_index", "barycentric",
                        "out",        "threads", "cancel",     NULL};
    PyObject *objects[ARRAYS] = {NULL, NULL, NULL, NULL, NULL};
    hy3d_py_mesh_call call = {.state = hy3d_py_get_state(module)};
    PyObject *threads = NULL, *cancel = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOO|OO:interpolate", keywords,
                                     &objects[ATTRIBUTES], &objects[FACES], &objects[FACE_INDEX],
                                     &objects[BARYCENTRIC], &objects[OUT], &threads, &cancel)) {
        return NULL;
    }
    if (!hy3d_py_mesh_run(&function, &call, objects, threads, cancel)) {
        return NULL;
    }
    Py_RETURN_NONE;
}
