/* Numbers in and out. */
#include "python/core.h"

/* An exact int for anything with __index__; bool and float are refused by Python itself (float)
 * or taken as 0 and 1 (bool), as everywhere in Python. */
static PyObject *as_int(PyObject *value, const char *name)
{
    PyObject *const number = PyNumber_Index(value);
    if (number == NULL && PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Clear();
        hy3d_py_type_error("%s must be an integer, not %R.", name, (PyObject *)Py_TYPE(value));
    }
    return number;
}

bool hy3d_py_int64(PyObject *value, const char *name, int64_t *out)
{
    PyObject *const number = as_int(value, name);
    if (number == NULL) {
        return false;
    }
    int overflow = 0;
    const long long result = PyLong_AsLongLongAndOverflow(number, &overflow);
    if (overflow != 0) {
        hy3d_py_value_error("%s is %R, which does not fit in 64 bits.", name, number);
    }
    Py_DECREF(number);
    if (overflow != 0 || (result == -1 && PyErr_Occurred() != NULL)) {
        return false;
    }
    *out = (int64_t)result;
    return true;
}

bool hy3d_py_uint64(PyObject *value, const char *name, uint64_t *out)
{
    PyObject *const number = as_int(value, name);
    if (number == NULL) {
        return false;
    }
    const unsigned long long result = PyLong_AsUnsignedLongLong(number);
    const bool failed = result == (unsigned long long)-1 && PyErr_Occurred() != NULL;
    if (failed && PyErr_ExceptionMatches(PyExc_OverflowError)) {
        PyErr_Clear();
        hy3d_py_value_error("%s is %R: it must be from 0 to 2**64 - 1.", name, number);
    }
    Py_DECREF(number);
    if (failed) {
        return false;
    }
    *out = (uint64_t)result;
    return true;
}

/* Never through __len__ or __iter__ of a subclass: its length may be a lie, and its iterator have
 * no end. */
PyObject *hy3d_py_items(PyObject *value)
{
    if (PyList_Check(value)) {
        return PyList_AsTuple(value);
    }
    Py_INCREF(value);
    return value;
}

bool hy3d_py_int64_array(PyObject *value, const char *name, Py_ssize_t count, int64_t *out)
{
    if (!PyTuple_Check(value) && !PyList_Check(value)) {
        return hy3d_py_type_error("%s must be a tuple of %zd integers, not %R.", name, count,
                                  (PyObject *)Py_TYPE(value));
    }
    PyObject *const items = hy3d_py_items(value);
    if (items == NULL) {
        return false;
    }
    bool good = PyTuple_Size(items) == count;
    if (!good) {
        hy3d_py_value_error("%s has %zd values: it needs %zd.", name, PyTuple_Size(items), count);
    }
    for (Py_ssize_t i = 0; good && i < count; i++) {
        good = hy3d_py_int64(PyTuple_GetItem(items, i), name, &out[i]);
    }
    Py_DECREF(items);
    return good;
}

bool hy3d_py_at_least(const char *name, const int64_t values[3], int64_t minimum)
{
    for (int i = 0; i < 3; i++) {
        if (values[i] < minimum) {
            return hy3d_py_value_error("%s is (%lld, %lld, %lld): each must be at least %lld.",
                                       name, (long long)values[0], (long long)values[1],
                                       (long long)values[2], (long long)minimum);
        }
    }
    return true;
}

PyObject *hy3d_py_tuple3(const int64_t values[3])
{
    return Py_BuildValue("(LLL)", (long long)values[0], (long long)values[1], (long long)values[2]);
}

bool hy3d_py_put(PyObject *dict, const char *key, PyObject *value)
{
    if (value == NULL) {
        return false;
    }
    const int result = PyDict_SetItemString(dict, key, value);
    Py_DECREF(value);
    return result == 0;
}
