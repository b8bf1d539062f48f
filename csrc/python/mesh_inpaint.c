/* inpaint_vertices: colours that a mask leaves out, from their neighbours over the mesh. */
#include <string.h>

#include "python/mesh_args.h"

enum { TEXTURE, MASK, POSITIONS, UVS, FACES, UV_FACES, ARRAYS };

static const hy3d_py_array arrays[ARRAYS] = {
    [TEXTURE] = {"texture", HY3D_PY_F32, 3, 0, true, false},
    [MASK] = {"mask", HY3D_PY_U8, 2, 0, true, false},
    [POSITIONS] = {"positions", HY3D_PY_F32, 2, 3, false, false},
    [UVS] = {"uvs", HY3D_PY_F32, 2, 2, false, false},
    [FACES] = {"faces", HY3D_PY_I32, 2, 3, false, false},
    [UV_FACES] = {"uv_faces", HY3D_PY_I32, 2, 3, false, false},
};

static bool check(const hy3d_py_mesh_call *call)
{
    if (!hy3d_py_mesh_picture(call, TEXTURE)) {
        return false;
    }
    if (call->flats[TEXTURE].size[2] == 0) {
        return hy3d_py_value_error(
            "texture has no channels: it must be (height, width, channels).");
    }
    return hy3d_py_mesh_same(call, MASK, 0, TEXTURE, 0) &&
           hy3d_py_mesh_same(call, MASK, 1, TEXTURE, 1) &&
           hy3d_py_mesh_same(call, UV_FACES, 0, FACES, 0);
}

static hy3d_status run(hy3d_py_mesh_call *call)
{
    const hy3d_py_flat *const flats = call->flats;
    const hy3d_vertex_inpaint_desc desc = {
        .width = flats[TEXTURE].size[1],
        .height = flats[TEXTURE].size[0],
        .channels = flats[TEXTURE].size[2],
        .vertices = flats[POSITIONS].size[0],
        .uvs = flats[UVS].size[0],
        .faces = flats[FACES].size[0],
    };
    return hy3d_vertex_inpaint(call->state->context, &desc, flats[POSITIONS].data, flats[UVS].data,
                               flats[FACES].data, flats[UV_FACES].data, call->cancel,
                               &call->problem, flats[TEXTURE].data, flats[MASK].data,
                               &call->filled);
}

/* In the order that the C core looks: what is bad in faces is not looked for in uv_faces. */
static void explain(const hy3d_py_mesh_call *call, hy3d_status status)
{
    if (status != HY3D_ERR_INVALID_ARGUMENT ||
        !(hy3d_py_mesh_bad_face(call, FACES, call->flats[POSITIONS].size[0], "vertices") ||
          hy3d_py_mesh_bad_face(call, UV_FACES, call->flats[UVS].size[0], "uvs") ||
          hy3d_py_mesh_not_finite(call, POSITIONS, "vertex") ||
          hy3d_py_mesh_not_finite(call, UVS, "uv"))) {
        hy3d_py_raise(call->state, status, "inpaint_vertices: %s.", hy3d_status_text(status));
    }
}

static const hy3d_py_mesh_function function = {arrays, ARRAYS, check, run, explain};

PyObject *hy3d_py_inpaint_vertices(PyObject *module, PyObject *args, PyObject *kwargs)
{
    char *keywords[] = {"texture",  "mask",   "positions", "uvs", "faces",
                        "uv_faces", "method", "cancel",    NULL};
    PyObject *objects[ARRAYS] = {NULL, NULL, NULL, NULL, NULL, NULL};
    PyObject *cancel = Py_None;
    const char *method = "smooth";
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOOO|sO:inpaint_vertices", keywords,
                                     &objects[TEXTURE], &objects[MASK], &objects[POSITIONS],
                                     &objects[UVS], &objects[FACES], &objects[UV_FACES], &method,
                                     &cancel)) {
        return NULL;
    }
    if (strcmp(method, "smooth") != 0) {
        hy3d_py_value_error("method is \"%s\": the one there is is \"smooth\".", method);
        return NULL;
    }
    hy3d_py_mesh_call call = {.state = hy3d_py_get_state(module)};
    return hy3d_py_mesh_run(&function, &call, objects, NULL, cancel)
               ? PyLong_FromLongLong((long long)call.filled)
               : NULL;
}
