/* Memory that is kept, and test hooks of the allocator. */
#include "python/core.h"

PyObject *hy3d_py_fail_allocation(PyObject *module, PyObject *args, PyObject *kwargs)
{
    char *keywords[] = {"k", "forever", NULL};
    PyObject *k_object = NULL;
    int forever = 0;
    uint64_t k = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|p:fail_allocation", keywords, &k_object,
                                     &forever) ||
        !hy3d_py_uint64(k_object, "k", &k)) {
        return NULL;
    }
    hy3d_context *const context = hy3d_py_get_state(module)->context;
    hy3d_context_trim(context); /* else a workspace that is kept hides an allocation */
    hy3d_context_fail_allocation(context, k, forever != 0);
    Py_RETURN_NONE;
}

PyObject *hy3d_py_allocation_count(PyObject *module, PyObject *ignored)
{
    (void)ignored;
    return PyLong_FromUnsignedLongLong(
        hy3d_context_allocation_count(hy3d_py_get_state(module)->context));
}

PyObject *hy3d_py_live_allocations(PyObject *module, PyObject *ignored)
{
    (void)ignored;
    hy3d_context *const context = hy3d_py_get_state(module)->context;
    hy3d_context_trim(context);
    return PyLong_FromUnsignedLongLong(hy3d_context_live_allocations(context));
}

PyObject *hy3d_py_trim(PyObject *module, PyObject *ignored)
{
    (void)ignored;
    hy3d_context_trim(hy3d_py_get_state(module)->context);
    Py_RETURN_NONE;
}
