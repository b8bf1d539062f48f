/* Python exceptions from statuses. */
#include "python/core.h"

#include <stdarg.h>

static const char error_doc[] =
    "A failure of the C core. status is its number, name its name, e.g. 'HY3D_ERR_CANCELLED'.";

PyObject *hy3d_py_error_create(void)
{
    return PyErr_NewExceptionWithDoc("hy3d_rocm._core.Hy3dError", error_doc, PyExc_RuntimeError,
                                     NULL);
}

/* The class for a status: Python's own where it says the same, Hy3dError for the rest. */
static PyObject *class_of(const hy3d_py_state *state, hy3d_status status)
{
    switch (status) {
    case HY3D_ERR_INVALID_ARGUMENT:
    case HY3D_ERR_SHAPE_MISMATCH:
        return PyExc_ValueError;
    case HY3D_ERR_OUT_OF_MEMORY:
        return PyExc_MemoryError;
    case HY3D_OK:
    case HY3D_ERR_UNSUPPORTED:
    case HY3D_ERR_OVERFLOW:
    case HY3D_ERR_WORKSPACE_TOO_SMALL:
    case HY3D_ERR_BUDGET_TOO_SMALL:
    case HY3D_ERR_CANCELLED:
    case HY3D_ERR_BLAS_UNAVAILABLE:
    case HY3D_ERR_THREAD:
    default:
        /* NULL once the garbage collector has cleared the module. */
        return state->error == NULL ? PyExc_RuntimeError : state->error;
    }
}

static bool set_details(PyObject *error, hy3d_status status)
{
    PyObject *const number = PyLong_FromLong((long)status);
    PyObject *const name = PyUnicode_FromString(hy3d_status_name(status));
    const bool done = number != NULL && name != NULL &&
                      PyObject_SetAttrString(error, "status", number) == 0 &&
                      PyObject_SetAttrString(error, "name", name) == 0;
    Py_XDECREF(name);
    Py_XDECREF(number);
    return done;
}

bool hy3d_py_may_skip(void)
{
    return PyErr_ExceptionMatches(PyExc_Exception) && !PyErr_ExceptionMatches(PyExc_MemoryError);
}

PyObject *hy3d_py_raise(const hy3d_py_state *state, hy3d_status status, const char *format, ...)
{
    PyObject *text;
    if (status == HY3D_ERR_CANCELLED && PyErr_Occurred() != NULL) {
        return NULL; /* by a handler of a signal, which raised it */
    }
    /* Callers' sentences are about arguments and memory, and no thread is any of these. */
    if (format == NULL || status == HY3D_ERR_THREAD) {
        text = PyUnicode_FromString(hy3d_status_text(status));
    } else {
        va_list arguments;
        va_start(arguments, format);
        text = PyUnicode_FromFormatV(format, arguments);
        va_end(arguments);
    }
    if (text == NULL) {
        return NULL;
    }
    PyObject *const class = class_of(state, status);
    PyObject *const error = PyObject_CallFunctionObjArgs(class, text, NULL);
    Py_DECREF(text);
    if (error == NULL) {
        return NULL;
    }
    /* Only our own class takes the attributes in every Python version. */
    if (class != state->error || set_details(error, status)) {
        PyErr_SetObject(class, error);
    }
    Py_DECREF(error);
    return NULL;
}

bool hy3d_py_value_error(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    PyErr_FormatV(PyExc_ValueError, format, arguments);
    va_end(arguments);
    return false;
}

bool hy3d_py_type_error(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    PyErr_FormatV(PyExc_TypeError, format, arguments);
    va_end(arguments);
    return false;
}
