/* What the files of the extension share. The only folder that includes Python.h.
 *
 * Functions named hy3d_py_* follow CPython's conventions: they return NULL, -1 or false with an
 * exception set. All of them need the GIL, or an attached thread where Python has none. */
#ifndef HY3D_PYTHON_CORE_H
#define HY3D_PYTHON_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

#include "hy3d/context.h"
#include "hy3d/fingerprint.h"
#include "hy3d/status.h"
#include "hy3d/tiles.h"

/* Module state: nothing here is shared between two copies of the module, so a second interpreter
 * gets a context, an exception and a type of its own. */
typedef struct hy3d_py_state {
    hy3d_context *context;
    PyObject *error;           /* Hy3dError */
    PyObject *cancel_type;     /* CancelFlag */
    PyObject *prepared_type;   /* PreparedWeights */
    PyObject *schedule_type;   /* Schedule */
    PyObject *program_type;    /* Program */
    PyObject *rates_type;      /* Rates */
    PyObject *calls_type;      /* KnownCalls */
    PyObject *admission_type;  /* Admission */
    unsigned long main_thread; /* Python runs the handlers of signals there; 0: not in this one */
    hy3d_fingerprint_keys fingerprint_keys;
} hy3d_py_state;

hy3d_py_state *hy3d_py_get_state(PyObject *module);

/* What the GIL makes one step, around statements that run no code of others; needed where an object
 * that callers can see is changed. The limited API has no such macros before Python 3.15. */
#ifdef Py_GIL_DISABLED
#define HY3D_PY_LOCK(object) Py_BEGIN_CRITICAL_SECTION(object)
#define HY3D_PY_UNLOCK() Py_END_CRITICAL_SECTION()
#else
#define HY3D_PY_LOCK(object) {
#define HY3D_PY_UNLOCK() }
#endif

/* errors.c: the one translation of a status. The sentence is built as PyUnicode_FromFormat does;
 * NULL takes the list's text. Always returns NULL. */
PyObject *hy3d_py_raise(const hy3d_py_state *state, hy3d_status status, const char *format, ...);
/* ValueError or TypeError with a sentence; always returns false. */
bool hy3d_py_value_error(const char *format, ...);
bool hy3d_py_type_error(const char *format, ...);
/* Whether the exception that is set may be passed over, as what a strange object says: an
 * Exception, but not MemoryError, after which nothing is known about the object. */
bool hy3d_py_may_skip(void);
/* Makes the exception class. */
PyObject *hy3d_py_error_create(void);

/* arguments.c: numbers from Python, each refusal names the argument and the value. */
bool hy3d_py_int64(PyObject *value, const char *name, int64_t *out);
bool hy3d_py_uint64(PyObject *value, const char *name, uint64_t *out);
/* What a tuple or list holds, as a tuple: a new reference; NULL only for want of memory. */
PyObject *hy3d_py_items(PyObject *value);
/* A sequence of `count` integers. It is copied first, so an __index__ that changes the sequence
 * changes nothing here. */
bool hy3d_py_int64_array(PyObject *value, const char *name, Py_ssize_t count, int64_t *out);
/* Refuses a triple (T, H, W) with a value below the minimum. */
bool hy3d_py_at_least(const char *name, const int64_t values[3], int64_t minimum);
PyObject *hy3d_py_tuple3(const int64_t values[3]);
/* Adds value (a new reference, may be NULL) to the dictionary; false when that failed. */
bool hy3d_py_put(PyObject *dict, const char *key, PyObject *value);

/* py_cancel.c: None gives NULL. */
int hy3d_py_cancel_register(PyObject *module, hy3d_py_state *state);
bool hy3d_py_cancel_from(const hy3d_py_state *state, PyObject *value, const hy3d_cancel **out);
/* The thread whose calls can be interrupted by signals, into the state. */
int hy3d_py_find_main_thread(hy3d_py_state *state);

/* py_cancel.c: in place of Py_BEGIN_ALLOW_THREADS and its end where the core computes. In the main
 * thread the handlers of signals run every 50 ms, with the GIL taken for that alone; one that
 * raises (Ctrl-C) cancels. `flag` is the caller's, or NULL; the core gets what begin returns. */
typedef struct hy3d_py_compute {
    PyThreadState *thread;
    hy3d_cancel_memory memory;
    bool polls;
} hy3d_py_compute;
const hy3d_cancel *hy3d_py_compute_begin(hy3d_py_compute *compute, const hy3d_py_state *state,
                                         const hy3d_cancel *flag);
/* The core's status, or HY3D_ERR_CANCELLED with the handler's exception set, which hy3d_py_raise
 * then leaves alone. */
hy3d_status hy3d_py_compute_end(hy3d_py_compute *compute, hy3d_status status);

/* py_prepared.c */
int hy3d_py_prepared_register(PyObject *module, hy3d_py_state *state);

/* py_schedule.c: a dictionary of the description, as schedule_plan takes it. */
PyObject *hy3d_py_tiles_desc(const hy3d_tiles_desc *desc);

/* py_cache.c */
int hy3d_py_admission_register(PyObject *module, hy3d_py_state *state);

/* py_route.c */
int hy3d_py_rates_register(PyObject *module, hy3d_py_state *state);

/* py_calls.c */
int hy3d_py_calls_register(PyObject *module, hy3d_py_state *state);

/* program.c */
int hy3d_py_program_register(PyObject *module, hy3d_py_state *state);

/* The functions of the module, one table entry each in module.c. */
PyObject *hy3d_py_conv3d(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *hy3d_py_conv3d_format(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *hy3d_py_conv3d_prepare(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *hy3d_py_conv3d_out_size(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *hy3d_py_fingerprint(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *hy3d_py_resolve_device(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *hy3d_py_seed_image(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *hy3d_py_schedule_plan(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *hy3d_py_schedule_tile(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *hy3d_py_schedule_window(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *hy3d_py_compile_schedule(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *hy3d_py_route(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *hy3d_py_graph_sizes(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *hy3d_py_blend_accumulate(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *hy3d_py_channel_moments(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *hy3d_py_rasterize(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *hy3d_py_interpolate(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *hy3d_py_scatter(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *hy3d_py_vertex_normals(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *hy3d_py_inpaint_vertices(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *hy3d_py_cpu_info(PyObject *module, PyObject *ignored);
PyObject *hy3d_py_blas_info(PyObject *module, PyObject *ignored);
PyObject *hy3d_py_peak_run(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *hy3d_py_trim(PyObject *module, PyObject *ignored);

#endif
