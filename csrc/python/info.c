/* What this machine and its BLAS are, and memory that is kept. */
#include "python/core.h"

#include <string.h>

static PyObject *levels_up_to(hy3d_cpu_level best)
{
    PyObject *const names = PyList_New(0);
    for (int level = HY3D_CPU_REF; names != NULL && level <= (int)best; level++) {
        PyObject *const name = PyUnicode_FromString(hy3d_cpu_level_name((hy3d_cpu_level)level));
        if (name == NULL || PyList_Append(names, name) != 0) {
            Py_XDECREF(name);
            Py_DECREF(names);
            return NULL;
        }
        Py_DECREF(name);
    }
    PyObject *const result = names == NULL ? NULL : PyList_AsTuple(names);
    Py_XDECREF(names);
    return result;
}

PyObject *hy3d_py_cpu_info(PyObject *module, PyObject *ignored)
{
    (void)ignored;
    hy3d_context *const context = hy3d_py_get_state(module)->context;
    const hy3d_cpu_level best = hy3d_cpu_detect();
    const char *const used = hy3d_cpu_level_name(hy3d_context_cpu_level(context));
    PyObject *const info = PyDict_New();
    if (info == NULL) {
        return NULL;
    }
    if (hy3d_py_put(info, "level", PyUnicode_FromString(used)) &&
        hy3d_py_put(info, "detected", PyUnicode_FromString(hy3d_cpu_level_name(best))) &&
        hy3d_py_put(info, "levels", levels_up_to(best)) &&
        hy3d_py_put(info, "max_threads",
                    PyLong_FromUnsignedLong(hy3d_context_max_threads(context)))) {
        return info;
    }
    Py_DECREF(info);
    return NULL;
}

PyObject *hy3d_py_blas_info(PyObject *module, PyObject *ignored)
{
    (void)ignored;
    hy3d_context *const context = hy3d_py_get_state(module)->context;
    const char *text = "";
    hy3d_status status;
    Py_BEGIN_ALLOW_THREADS
    status = hy3d_context_blas_info(context, &text);
    Py_END_ALLOW_THREADS
    const char *const error = status == HY3D_OK ? "" : hy3d_context_blas_error(context);
    PyObject *const info = PyDict_New();
    if (info == NULL) {
        return NULL;
    }
    if (hy3d_py_put(info, "available", PyBool_FromLong(status == HY3D_OK)) &&
        hy3d_py_put(info, "text",
                    PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace")) &&
        hy3d_py_put(info, "error",
                    PyUnicode_DecodeUTF8(error, (Py_ssize_t)strlen(error), "replace"))) {
        return info;
    }
    Py_DECREF(info);
    return NULL;
}

PyObject *hy3d_py_trim(PyObject *module, PyObject *ignored)
{
    (void)ignored;
    hy3d_context_trim(hy3d_py_get_state(module)->context);
    Py_RETURN_NONE;
}
