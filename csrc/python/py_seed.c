#include "hy3d/seed.h"

#include "python/core.h"

PyObject *hy3d_py_seed_image(PyObject *module, PyObject *args, PyObject *kwargs)
{
    (void)module;
    char *keywords[] = {"seed", "index", NULL};
    PyObject *seed_object = NULL;
    PyObject *index_object = NULL;
    uint64_t seed = 0;
    uint64_t index = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO:seed_image", keywords, &seed_object,
                                     &index_object) ||
        !hy3d_py_uint64(seed_object, "seed", &seed) ||
        !hy3d_py_uint64(index_object, "index", &index)) {
        return NULL;
    }
    return PyLong_FromUnsignedLongLong(hy3d_seed_image(seed, index));
}
