/* vertex_normals: a direction for each vertex from the faces around it. */
#include <string.h>

#include "python/mesh_args.h"

enum { POSITIONS, FACES, NORMALS, ARRAYS };

static const hy3d_py_array arrays[ARRAYS] = {
    [POSITIONS] = {"positions", HY3D_PY_F32, 2, 3, false, false},
    [FACES] = {"faces", HY3D_PY_I32, 2, 3, false, false},
    [NORMALS] = {"normals", HY3D_PY_F32, 2, 3, true, false},
};

static bool weighting_from(const char *text, hy3d_normal_weighting *weighting)
{
    if (strcmp(text, "area") == 0) {
        *weighting = HY3D_NORMALS_BY_AREA;
    } else if (strcmp(text, "angle") == 0) {
        *weighting = HY3D_NORMALS_BY_ANGLE;
    } else {
        return hy3d_py_value_error("weighting is \"%s\": it must be \"area\" or \"angle\".", text);
    }
    return true;
}

static hy3d_status run(hy3d_py_mesh_call *call, hy3d_normal_weighting weighting)
{
    const hy3d_py_flat *const flats = call->flats;
    hy3d_status status;
    Py_BEGIN_ALLOW_THREADS
    status = hy3d_vertex_normals(call->state->context, flats[POSITIONS].size[0],
                                 flats[FACES].size[0], flats[POSITIONS].data, flats[FACES].data,
                                 weighting, (uint32_t)call->threads, call->cancel, &call->problem,
                                 flats[NORMALS].data);
    Py_END_ALLOW_THREADS
    return status;
}

static void explain(const hy3d_py_mesh_call *call, hy3d_status status)
{
    if (status != HY3D_ERR_INVALID_ARGUMENT ||
        !(hy3d_py_mesh_bad_face(call, FACES, call->flats[POSITIONS].size[0], "vertices") ||
          hy3d_py_mesh_not_finite(call, POSITIONS, "vertex"))) {
        hy3d_py_raise(call->state, status, "vertex_normals: %s.", hy3d_status_text(status));
    }
}

PyObject *hy3d_py_vertex_normals(PyObject *module, PyObject *args, PyObject *kwargs)
{
    char *keywords[] = {"positions", "faces", "normals", "weighting", "threads", "cancel", NULL};
    PyObject *objects[ARRAYS] = {NULL, NULL, NULL};
    PyObject *threads = NULL, *cancel = Py_None;
    const char *text = "area";
    hy3d_normal_weighting weighting = HY3D_NORMALS_BY_AREA;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO|sOO:vertex_normals", keywords,
                                     &objects[POSITIONS], &objects[FACES], &objects[NORMALS], &text,
                                     &threads, &cancel) ||
        !weighting_from(text, &weighting)) {
        return NULL;
    }
    hy3d_py_mesh_call call = {
        .state = hy3d_py_get_state(module), .arrays = arrays, .count = ARRAYS};
    bool good = hy3d_py_mesh_acquire(&call, objects, threads, cancel) &&
                hy3d_py_mesh_same(&call, NORMALS, 0, POSITIONS, 0);
    if (good) {
        const hy3d_status status = run(&call, weighting);
        if (status != HY3D_OK) {
            explain(&call, status);
            good = false;
        }
    }
    hy3d_py_mesh_release(&call);
    if (!good) {
        return NULL;
    }
    Py_RETURN_NONE;
}
