/* rasterize: which face is seen at each pixel of a picture. */
#include "python/mesh_args.h"

enum { CLIP, FACES, PRIOR, FACE_INDEX, BARYCENTRIC, DEPTH, ARRAYS };

static const hy3d_py_array arrays[ARRAYS] = {
    [CLIP] = {"clip", HY3D_PY_F32, 2, 4, false, false},
    [FACES] = {"faces", HY3D_PY_I32, 2, 3, false, false},
    [PRIOR] = {"prior", HY3D_PY_F32, 2, 0, false, true},
    [FACE_INDEX] = {"face_index", HY3D_PY_I32, 2, 0, true, false},
    [BARYCENTRIC] = {"barycentric", HY3D_PY_F32, 3, 3, true, true},
    [DEPTH] = {"depth", HY3D_PY_F32, 2, 0, true, true},
};

/* hy3d_raster_rule, in the order of the enumeration. */
static const char *const rules[2] = {"compat", "topleft"};

static bool check(const hy3d_py_mesh_call *call)
{
    if (!hy3d_py_mesh_picture(call, FACE_INDEX)) {
        return false;
    }
    for (int i = PRIOR; i < ARRAYS; i++) {
        if (call->flats[i].held && !(hy3d_py_mesh_same(call, i, 0, FACE_INDEX, 0) &&
                                     hy3d_py_mesh_same(call, i, 1, FACE_INDEX, 1))) {
            return false;
        }
    }
    return true;
}

static hy3d_status run(hy3d_py_mesh_call *call)
{
    const hy3d_py_flat *const flats = call->flats;
    const hy3d_raster_desc desc = {
        .rule = (hy3d_raster_rule)call->option,
        .width = flats[FACE_INDEX].size[1],
        .height = flats[FACE_INDEX].size[0],
        .vertices = flats[CLIP].size[0],
        .faces = flats[FACES].size[0],
        .num_threads = (uint32_t)call->threads,
    };
    return hy3d_rasterize(call->state->context, &desc, flats[CLIP].data, flats[FACES].data,
                          flats[PRIOR].data, call->cancel, &call->problem, flats[FACE_INDEX].data,
                          flats[BARYCENTRIC].data, flats[DEPTH].data);
}

static void explain(const hy3d_py_mesh_call *call, hy3d_status status)
{
    if (status != HY3D_ERR_INVALID_ARGUMENT ||
        !(hy3d_py_mesh_not_finite(call, CLIP, "vertex") ||
          hy3d_py_mesh_bad_face(call, FACES, call->flats[CLIP].size[0], "vertices"))) {
        hy3d_py_raise(call->state, status, "rasterize: %s.", hy3d_status_text(status));
    }
}

static const hy3d_py_mesh_function function = {arrays, ARRAYS, check, run, explain};

PyObject *hy3d_py_rasterize(PyObject *module, PyObject *args, PyObject *kwargs)
{
    char *keywords[] = {"clip",  "faces", "prior",   "face_index", "barycentric",
                        "depth", "rule",  "threads", "cancel",     NULL};
    PyObject *objects[ARRAYS] = {NULL, NULL, NULL, NULL, NULL, NULL};
    hy3d_py_mesh_call call = {.state = hy3d_py_get_state(module)};
    PyObject *threads = NULL, *cancel = Py_None;
    const char *text = "topleft";
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOOO|sOO:rasterize", keywords, &objects[CLIP],
                                     &objects[FACES], &objects[PRIOR], &objects[FACE_INDEX],
                                     &objects[BARYCENTRIC], &objects[DEPTH], &text, &threads,
                                     &cancel) ||
        !hy3d_py_mesh_choice("rule", text, rules, &call.option)) {
        return NULL;
    }
    if (!hy3d_py_mesh_run(&function, &call, objects, threads, cancel)) {
        return NULL;
    }
    Py_RETURN_NONE;
}
