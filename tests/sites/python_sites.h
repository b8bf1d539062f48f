/* Put before every source of the binding by the build of the sites: each call of CPython that may
 * want memory becomes a site. Its failure is MemoryError and what the function returns with one.
 * What is not here asks for no memory: look-ups of borrowed references, checks, conversions of
 * numbers into C's, and what makes exceptions, which CPython itself replaces by MemoryError. */
#ifndef HY3D_TESTS_PYTHON_SITES_H
#define HY3D_TESTS_PYTHON_SITES_H

#include <Python.h>

#include "sites.h"

#define PYTHON_SITE(name, arguments, failure)                                                      \
    __extension__({                                                                                \
        TEST_SITE_NEW(#name);                                                                      \
        const bool fails_ = test_site_fails(&entry_);                                              \
        if (fails_) {                                                                              \
            (void)PyErr_NoMemory();                                                                \
        }                                                                                          \
        fails_ ? (failure) : name arguments;                                                       \
    })
#define OBJECT_SITE(name, arguments) PYTHON_SITE(name, arguments, (PyObject *)NULL)

#define PyLong_FromLong(value) OBJECT_SITE(PyLong_FromLong, (value))
#define PyLong_FromLongLong(value) OBJECT_SITE(PyLong_FromLongLong, (value))
#define PyLong_FromUnsignedLong(value) OBJECT_SITE(PyLong_FromUnsignedLong, (value))
#define PyLong_FromUnsignedLongLong(value) OBJECT_SITE(PyLong_FromUnsignedLongLong, (value))
#define PyLong_FromSize_t(value) OBJECT_SITE(PyLong_FromSize_t, (value))
#define PyLong_FromVoidPtr(value) OBJECT_SITE(PyLong_FromVoidPtr, (value))
#define PyFloat_FromDouble(value) OBJECT_SITE(PyFloat_FromDouble, (value))
#define PyNumber_Index(value) OBJECT_SITE(PyNumber_Index, (value))
#define PyUnicode_FromString(text) OBJECT_SITE(PyUnicode_FromString, (text))
#define PyUnicode_FromFormatV(text, more) OBJECT_SITE(PyUnicode_FromFormatV, (text, more))
#define PyUnicode_DecodeUTF8(...) OBJECT_SITE(PyUnicode_DecodeUTF8, (__VA_ARGS__))
#define PyUnicode_AsUTF8AndSize(text, size)                                                        \
    PYTHON_SITE(PyUnicode_AsUTF8AndSize, (text, size), (const char *)NULL)
#define PyBytes_FromStringAndSize(...) OBJECT_SITE(PyBytes_FromStringAndSize, (__VA_ARGS__))
#define PyByteArray_FromStringAndSize(...) OBJECT_SITE(PyByteArray_FromStringAndSize, (__VA_ARGS__))
#define PyMemoryView_FromObject(object) OBJECT_SITE(PyMemoryView_FromObject, (object))
#define PyList_New(size) OBJECT_SITE(PyList_New, (size))
#define PyList_AsTuple(list) OBJECT_SITE(PyList_AsTuple, (list))
#define PyList_Append(list, item) PYTHON_SITE(PyList_Append, (list, item), -1)
#define PyList_SetSlice(...) PYTHON_SITE(PyList_SetSlice, (__VA_ARGS__), -1)
#define PyTuple_Pack(...) OBJECT_SITE(PyTuple_Pack, (__VA_ARGS__))
#define PySequence_Tuple(object) OBJECT_SITE(PySequence_Tuple, (object))
#define PyDict_New() OBJECT_SITE(PyDict_New, ())
#define PyDict_Values(dict) OBJECT_SITE(PyDict_Values, (dict))
#define PyDict_Copy(dict) OBJECT_SITE(PyDict_Copy, (dict))
#define PyDict_GetItemWithError(dict, key) OBJECT_SITE(PyDict_GetItemWithError, (dict, key))
#define PyDict_SetItem(...) PYTHON_SITE(PyDict_SetItem, (__VA_ARGS__), -1)
#define PyDict_SetItemString(...) PYTHON_SITE(PyDict_SetItemString, (__VA_ARGS__), -1)
#define PySet_New(items) OBJECT_SITE(PySet_New, (items))
#define PySet_Add(set, item) PYTHON_SITE(PySet_Add, (set, item), -1)
#define PySet_Contains(set, item) PYTHON_SITE(PySet_Contains, (set, item), -1)
#define PyObject_GetIter(object) OBJECT_SITE(PyObject_GetIter, (object))
#define PyIter_Next(iterator) OBJECT_SITE(PyIter_Next, (iterator))
#define PyObject_GetAttrString(object, name) OBJECT_SITE(PyObject_GetAttrString, (object, name))
#define PyObject_SetAttrString(...) PYTHON_SITE(PyObject_SetAttrString, (__VA_ARGS__), -1)
#define PyObject_CallMethod(...) OBJECT_SITE(PyObject_CallMethod, (__VA_ARGS__))
#define PyObject_CallNoArgs(object) OBJECT_SITE(PyObject_CallNoArgs, (object))
#define PyObject_CallFunctionObjArgs(...) OBJECT_SITE(PyObject_CallFunctionObjArgs, (__VA_ARGS__))
#define PyObject_GetBuffer(...) PYTHON_SITE(PyObject_GetBuffer, (__VA_ARGS__), -1)
#define PyArg_ParseTupleAndKeywords(...)                                                           \
    PYTHON_SITE(PyArg_ParseTupleAndKeywords, (__VA_ARGS__), 0)
#define PyModule_AddObjectRef(...) PYTHON_SITE(PyModule_AddObjectRef, (__VA_ARGS__), -1)
#define PyType_FromModuleAndSpec(...) OBJECT_SITE(PyType_FromModuleAndSpec, (__VA_ARGS__))
#define PyErr_NewExceptionWithDoc(...) OBJECT_SITE(PyErr_NewExceptionWithDoc, (__VA_ARGS__))
/* It takes the references that "N" gives it, whether it fails or not. */
#define Py_BuildValue(...)                                                                         \
    __extension__({                                                                                \
        TEST_SITE_NEW("Py_BuildValue");                                                            \
        const bool fails_ = test_site_fails(&entry_);                                              \
        PyObject *made_ = Py_BuildValue(__VA_ARGS__);                                              \
        if (fails_) {                                                                              \
            Py_CLEAR(made_);                                                                       \
            (void)PyErr_NoMemory();                                                                \
        }                                                                                          \
        made_;                                                                                     \
    })

#endif
