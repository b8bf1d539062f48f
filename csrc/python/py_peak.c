/* Chains of multiply-adds, for benchmarks. */
#include "python/core.h"

#include "hy3d/peak.h"

PyObject *hy3d_py_peak_run(PyObject *module, PyObject *args, PyObject *kwargs)
{
    char *keywords[] = {"threads", "rounds", NULL};
    const hy3d_py_state *const state = hy3d_py_get_state(module);
    PyObject *threads_object, *rounds_object;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO:peak_run", keywords, &threads_object,
                                     &rounds_object)) {
        return NULL;
    }
    int64_t threads, rounds;
    if (!hy3d_py_int64(threads_object, "threads", &threads) ||
        !hy3d_py_int64(rounds_object, "rounds", &rounds)) {
        return NULL;
    }
    if (threads < 0 || threads > 1024) {
        hy3d_py_value_error("threads is %lld: it must be 0 to 1024", (long long)threads);
        return NULL;
    }
    double flops = 0;
    hy3d_status status;
    Py_BEGIN_ALLOW_THREADS
    status = hy3d_peak_run(state->context, (uint32_t)threads, rounds, &flops);
    Py_END_ALLOW_THREADS
    if (status != HY3D_OK) {
        return hy3d_py_raise(state, status, "rounds is %lld: it must be 1 to 2**22",
                             (long long)rounds);
    }
    return PyFloat_FromDouble(flops);
}
