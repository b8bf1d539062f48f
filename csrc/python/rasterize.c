/* rasterize: which face is seen at each pixel of a picture. */
#include <string.h>

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

static bool rule_from(const char *text, hy3d_raster_rule *rule)
{
    if (strcmp(text, "compat") == 0) {
        *rule = HY3D_RASTER_COMPAT;
    } else if (strcmp(text, "topleft") == 0) {
        *rule = HY3D_RASTER_TOPLEFT;
    } else {
        return hy3d_py_value_error("rule is \"%s\": it must be \"compat\" or \"topleft\".", text);
    }
    return true;
}

static bool check(const hy3d_py_mesh_call *call)
{
    const int64_t *const size = call->flats[FACE_INDEX].size;
    for (int dim = 0; dim < 2; dim++) {
        if (size[dim] < 1 || size[dim] > HY3D_RASTER_MOST_PIXELS_A_SIDE) {
            return hy3d_py_value_error("the picture is %lld pixels %s: it must be 1 to %d.",
                                       (long long)size[dim], dim == 0 ? "high" : "wide",
                                       HY3D_RASTER_MOST_PIXELS_A_SIDE);
        }
    }
    for (int i = PRIOR; i < ARRAYS; i++) {
        if (call->flats[i].held && !(hy3d_py_mesh_same(call, i, 0, FACE_INDEX, 0) &&
                                     hy3d_py_mesh_same(call, i, 1, FACE_INDEX, 1))) {
            return false;
        }
    }
    return true;
}

static hy3d_status run(hy3d_py_mesh_call *call, hy3d_raster_rule rule)
{
    const hy3d_py_flat *const flats = call->flats;
    const hy3d_raster_desc desc = {
        .rule = rule,
        .width = flats[FACE_INDEX].size[1],
        .height = flats[FACE_INDEX].size[0],
        .vertices = flats[CLIP].size[0],
        .faces = flats[FACES].size[0],
        .num_threads = (uint32_t)call->threads,
    };
    hy3d_status status;
    Py_BEGIN_ALLOW_THREADS
    status = hy3d_rasterize(call->state->context, &desc, flats[CLIP].data, flats[FACES].data,
                            flats[PRIOR].data, call->cancel, &call->problem,
                            flats[FACE_INDEX].data, flats[BARYCENTRIC].data, flats[DEPTH].data);
    Py_END_ALLOW_THREADS
    return status;
}

static void explain(const hy3d_py_mesh_call *call, hy3d_status status)
{
    if (status != HY3D_ERR_INVALID_ARGUMENT ||
        !(hy3d_py_mesh_not_finite(call, CLIP, "vertex") ||
          hy3d_py_mesh_bad_face(call, FACES, call->flats[CLIP].size[0], "vertices"))) {
        hy3d_py_raise(call->state, status, "rasterize: %s.", hy3d_status_text(status));
    }
}

PyObject *hy3d_py_rasterize(PyObject *module, PyObject *args, PyObject *kwargs)
{
    char *keywords[] = {"clip",  "faces", "prior",   "face_index", "barycentric",
                        "depth", "rule",  "threads", "cancel",     NULL};
    PyObject *objects[ARRAYS] = {NULL, NULL, NULL, NULL, NULL, NULL};
    PyObject *threads = NULL, *cancel = Py_None;
    const char *text = "topleft";
    hy3d_raster_rule rule = HY3D_RASTER_TOPLEFT;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOOO|sOO:rasterize", keywords,
                                     &objects[CLIP], &objects[FACES], &objects[PRIOR],
                                     &objects[FACE_INDEX], &objects[BARYCENTRIC], &objects[DEPTH],
                                     &text, &threads, &cancel) ||
        !rule_from(text, &rule)) {
        return NULL;
    }
    hy3d_py_mesh_call call = {
        .state = hy3d_py_get_state(module), .arrays = arrays, .count = ARRAYS};
    bool good = hy3d_py_mesh_acquire(&call, objects, threads, cancel) && check(&call);
    if (good) {
        const hy3d_status status = run(&call, rule);
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
