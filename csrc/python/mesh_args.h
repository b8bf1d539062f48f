/* What the bindings of the texture stage's functions share. */
#ifndef HY3D_PYTHON_MESH_ARGS_H
#define HY3D_PYTHON_MESH_ARGS_H

#include "hy3d/raster.h"
#include "python/core.h"
#include "python/flat.h"

#define HY3D_PY_MESH_ARRAYS 6

/* An array that a function takes. */
typedef struct hy3d_py_array {
    const char *name;
    hy3d_py_item item;
    int ndim;
    int last; /* the last dimension's size; 0: any */
    bool writable;
    bool optional; /* None gives an empty one */
} hy3d_py_array;

/* A call's arrays and what comes after them. */
typedef struct hy3d_py_mesh_call {
    const hy3d_py_state *state;
    const hy3d_py_array *arrays;
    int count;
    hy3d_py_flat flats[HY3D_PY_MESH_ARRAYS];
    int64_t threads;
    PyObject *cancel_object; /* held */
    const hy3d_cancel *cancel;
    hy3d_raster_problem problem;
} hy3d_py_mesh_call;

/* Acquires the arrays; threads (NULL: 0), 0 to 1024; cancel. Refuses written arrays that overlap
 * others. release is due either way. */
bool hy3d_py_mesh_acquire(hy3d_py_mesh_call *call, PyObject *const *objects, PyObject *threads,
                          PyObject *cancel);
void hy3d_py_mesh_release(hy3d_py_mesh_call *call);

/* A sentence where arrays a and b differ in the size of a dimension (of each). */
bool hy3d_py_mesh_same(const hy3d_py_mesh_call *call, int a, int dim_a, int b, int dim_b);

/* A sentence unless the array's first two dimensions are a height and a width that a picture may
 * have. */
bool hy3d_py_mesh_picture(const hy3d_py_mesh_call *call, int array);

/* ValueError for call->problem's bad index if array `faces` (rows of 3) has it: `targets` is
 * what it counts and how many there are. false: it was another array's. */
bool hy3d_py_mesh_bad_face(const hy3d_py_mesh_call *call, int faces, int64_t count,
                           const char *targets);
/* ValueError if array `array` has a NaN or an infinity in the problem's row, of which it counts
 * `rows`. false: it was another array's. */
bool hy3d_py_mesh_not_finite(const hy3d_py_mesh_call *call, int array, const char *rows);

#endif
