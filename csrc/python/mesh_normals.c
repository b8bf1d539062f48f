/* vertex_normals: a direction for each vertex from the faces around it. */
#include "python/mesh_args.h"

enum { POSITIONS, FACES, NORMALS, ARRAYS };

static const hy3d_py_array arrays[ARRAYS] = {
    [POSITIONS] = {"positions", HY3D_PY_F32, 2, 3, false, false},
    [FACES] = {"faces", HY3D_PY_I32, 2, 3, false, false},
    [NORMALS] = {"normals", HY3D_PY_F32, 2, 3, true, false},
};

/* hy3d_normal_weighting, in the order of the enumeration. */
static const char *const weightings[2] = {"area", "angle"};

static bool check(const hy3d_py_mesh_call *call)
{
    return hy3d_py_mesh_same(call, NORMALS, 0, POSITIONS, 0);
}

static hy3d_status run(hy3d_py_mesh_call *call)
{
    const hy3d_py_flat *const flats = call->flats;
    return hy3d_vertex_normals(call->state->context, flats[POSITIONS].size[0], flats[FACES].size[0],
                               flats[POSITIONS].data, flats[FACES].data,
                               (hy3d_normal_weighting)call->option, (uint32_t)call->threads,
                               call->cancel, &call->problem, flats[NORMALS].data);
}

static void explain(const hy3d_py_mesh_call *call, hy3d_status status)
{
    if (status != HY3D_ERR_INVALID_ARGUMENT ||
        !(hy3d_py_mesh_bad_face(call, FACES, call->flats[POSITIONS].size[0], "vertices") ||
          hy3d_py_mesh_not_finite(call, POSITIONS, "vertex"))) {
        hy3d_py_raise(call->state, status, "vertex_normals: %s.", hy3d_status_text(status));
    }
}

static const hy3d_py_mesh_function function = {arrays, ARRAYS, check, run, explain};

PyObject *hy3d_py_vertex_normals(PyObject *module, PyObject *args, PyObject *kwargs)
{
    char *keywords[] = {"positions", "faces", "normals", "weighting", "threads", "cancel", NULL};
    PyObject *objects[ARRAYS] = {NULL, NULL, NULL};
    hy3d_py_mesh_call call = {.state = hy3d_py_get_state(module)};
    PyObject *threads = NULL, *cancel = Py_None;
    const char *text = "area";
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO|sOO:vertex_normals", keywords,
                                     &objects[POSITIONS], &objects[FACES], &objects[NORMALS], &text,
                                     &threads, &cancel) ||
        !hy3d_py_mesh_choice("weighting", text, weightings, &call.option)) {
        return NULL;
    }
    if (!hy3d_py_mesh_run(&function, &call, objects, threads, cancel)) {
        return NULL;
    }
    Py_RETURN_NONE;
}
