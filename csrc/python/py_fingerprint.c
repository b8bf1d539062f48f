/* fingerprint: what the cache of prepared weights knows weights by. */
#include "python/core.h"
#include "python/view.h"

PyObject *hy3d_py_fingerprint(PyObject *module, PyObject *args, PyObject *kwargs)
{
    char *keywords[] = {"array", "threads", NULL};
    const hy3d_py_state *const state = hy3d_py_get_state(module);
    PyObject *array = NULL;
    PyObject *threads = NULL;
    uint64_t count = 0;
    uint64_t value[2];
    const void *first = NULL;
    size_t bytes = 0;
    hy3d_py_view view;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O:fingerprint", keywords, &array, &threads) ||
        (threads != NULL && !hy3d_py_uint64(threads, "threads", &count)) ||
        !hy3d_py_view_acquire(array, "array", false, &view)) {
        return NULL;
    }
    if (!hy3d_py_view_bytes(&view, &first, &bytes)) {
        hy3d_py_view_release(&view);
        Py_RETURN_NONE;
    }
    int64_t words[2 + 2 * HY3D_TENSOR_DIMS] = {(int64_t)view.tensor.dtype, view.ndim};
    for (int i = 0; i < HY3D_TENSOR_DIMS; i++) {
        words[2 + 2 * i] = view.tensor.size[i];
        words[3 + 2 * i] = view.tensor.size[i] > 1 ? view.tensor.stride[i] : 0;
    }
    hy3d_py_compute compute;
    const hy3d_cancel *const cancel = hy3d_py_compute_begin(&compute, state, NULL);
    hy3d_status status =
        hy3d_fingerprint(state->context, &state->fingerprint_keys, first, bytes, words,
                         sizeof words / sizeof words[0],
                         count > UINT32_MAX ? UINT32_MAX : (uint32_t)count, cancel, value);
    status = hy3d_py_compute_end(&compute, status);
    hy3d_py_view_release(&view);
    if (status != HY3D_OK) {
        return hy3d_py_raise(state, status, "No memory for the fingerprint of %zu bytes.", bytes);
    }
    return Py_BuildValue("(KK)", (unsigned long long)value[0], (unsigned long long)value[1]);
}
