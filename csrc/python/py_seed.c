/* Seeds: thin doors to the pure functions of hy3d/seed.h. */
#include "hy3d/seed.h"

#include "python/core.h"

typedef uint64_t (*seed_fn)(uint64_t seed, uint64_t index);

static PyObject *derive(PyObject *args, PyObject *kwargs, const char *format, char **keywords,
                        seed_fn function)
{
    PyObject *seed_object = NULL;
    PyObject *index_object = NULL;
    uint64_t seed = 0;
    uint64_t index = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, format, keywords, &seed_object, &index_object) ||
        !hy3d_py_uint64(seed_object, keywords[0], &seed) ||
        !hy3d_py_uint64(index_object, keywords[1], &index)) {
        return NULL;
    }
    return PyLong_FromUnsignedLongLong(function(seed, index));
}

PyObject *hy3d_py_seed_image(PyObject *module, PyObject *args, PyObject *kwargs)
{
    (void)module;
    char *keywords[] = {"seed", "index", NULL};
    return derive(args, kwargs, "OO:seed_image", keywords, hy3d_seed_image);
}

PyObject *hy3d_py_seed_stream(PyObject *module, PyObject *args, PyObject *kwargs)
{
    (void)module;
    char *keywords[] = {"seed", "stream", NULL};
    return derive(args, kwargs, "OO:seed_stream", keywords, hy3d_seed_stream);
}

static bool words(PyObject *value, const char *name, Py_ssize_t count, uint32_t *out)
{
    int64_t wide[4] = {0, 0, 0, 0};
    if (!hy3d_py_int64_array(value, name, count, wide)) {
        return false;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (wide[i] < 0 || wide[i] > (int64_t)UINT32_MAX) {
            return hy3d_py_value_error("%s[%zd] is %lld: it must be from 0 to 2**32 - 1.", name, i,
                                       (long long)wide[i]);
        }
        out[i] = (uint32_t)wide[i];
    }
    return true;
}

PyObject *hy3d_py_philox4x32(PyObject *module, PyObject *args, PyObject *kwargs)
{
    (void)module;
    char *keywords[] = {"counter", "key", NULL};
    PyObject *counter_object = NULL;
    PyObject *key_object = NULL;
    uint32_t counter[4];
    uint32_t key[2];
    uint32_t block[4];
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO:philox4x32", keywords, &counter_object,
                                     &key_object) ||
        !words(counter_object, "counter", 4, counter) || !words(key_object, "key", 2, key)) {
        return NULL;
    }
    hy3d_philox4x32_10(counter, key, block);
    return Py_BuildValue("(IIII)", block[0], block[1], block[2], block[3]);
}
