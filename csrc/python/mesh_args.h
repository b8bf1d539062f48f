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
    int option; /* which of a function's choices, see hy3d_py_mesh_choice */
    int64_t threads;
    PyObject *cancel_object; /* held */
    const hy3d_cancel *cancel;
    hy3d_raster_problem problem;
    int64_t filled; /* what inpaint_vertices returns */
} hy3d_py_mesh_call;

/* A function of the texture stage. */
typedef struct hy3d_py_mesh_function {
    const hy3d_py_array *arrays;
    int count;
    bool (*check)(const hy3d_py_mesh_call *call); /* sizes, with a sentence where they don't fit */
    hy3d_status (*run)(hy3d_py_mesh_call *call);  /* without the GIL inside */
    void (*explain)(const hy3d_py_mesh_call *call, hy3d_status status); /* sets the exception */
} hy3d_py_mesh_function;

/* Acquires the arrays (written ones that overlap others are refused), threads (NULL: 0; 0 to 1024)
 * and cancel; checks, runs, explains, releases. call->state and call->option are set before. */
bool hy3d_py_mesh_run(const hy3d_py_mesh_function *function, hy3d_py_mesh_call *call,
                      PyObject *const *objects, PyObject *threads, PyObject *cancel);

/* Which of two words `text` is: 0 or 1 to *option; else a sentence that names the argument. */
bool hy3d_py_mesh_choice(const char *name, const char *text, const char *const words[2],
                         int *option);

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
