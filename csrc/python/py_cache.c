/* Admission: what stays in a cache that is too small, by keys as the cache of weights has them. */
#include "hy3d/cache.h"

#include "python/core.h"

typedef struct admission_object {
    PyObject_HEAD
    hy3d_cache *cache;
    PyObject *module; /* keeps the context alive that the memory belongs to */
} admission_object;

static admission_object *cast(PyObject *self)
{
    void *const memory = self;
    return memory;
}

static PyObject *admission_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    char *keywords[] = {"limit_bytes", NULL};
    PyObject *given = NULL;
    int64_t limit = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:Admission", keywords, &given) ||
        !hy3d_py_int64(given, "limit_bytes", &limit)) {
        return NULL;
    }
    PyObject *const module = PyType_GetModule(type);
    if (module == NULL) {
        return NULL;
    }
    const hy3d_py_state *const state = hy3d_py_get_state(module);
    hy3d_cache *cache = NULL;
    const hy3d_status status = hy3d_cache_create(state->context, limit, &cache);
    if (status == HY3D_ERR_INVALID_ARGUMENT) {
        return hy3d_py_raise(state, status, "limit_bytes is %lld: it must be from 0 to 2**61 - 1.",
                             (long long)limit);
    }
    if (status != HY3D_OK) {
        return hy3d_py_raise(state, status, "No memory for a cache.");
    }
    PyObject *const self = PyType_GenericAlloc(type, 0);
    if (self == NULL) {
        hy3d_cache_destroy(state->context, cache);
        return NULL;
    }
    cast(self)->cache = cache;
    Py_INCREF(module);
    cast(self)->module = module;
    return self;
}

static int admission_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(cast(self)->module);
    return 0;
}

/* No tp_clear, as CancelFlag has none. */
static void admission_dealloc(PyObject *self)
{
    PyTypeObject *const type = Py_TYPE(self);
    admission_object *const object = cast(self);
    PyObject_GC_UnTrack(self);
    if (object->cache != NULL) {
        hy3d_cache_destroy(hy3d_py_get_state(object->module)->context, object->cache);
    }
    Py_XDECREF(object->module);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* ((low, high), layout): a fingerprint and the number of a layout. */
static bool read_key(PyObject *value, hy3d_cache_key *key)
{
    PyObject *const print =
        PyTuple_Check(value) && PyTuple_Size(value) == 2 ? PyTuple_GetItem(value, 0) : NULL;
    if (print == NULL || !PyTuple_Check(print) || PyTuple_Size(print) != 2) {
        return hy3d_py_type_error("A key is ((low, high), layout), not %R.", value);
    }
    return hy3d_py_uint64(PyTuple_GetItem(print, 0), "low", &key->words[0]) &&
           hy3d_py_uint64(PyTuple_GetItem(print, 1), "high", &key->words[1]) &&
           hy3d_py_uint64(PyTuple_GetItem(value, 1), "layout", &key->words[2]);
}

static PyObject *admission_request(PyObject *self, PyObject *value)
{
    hy3d_cache_key key;
    if (!read_key(value, &key)) {
        return NULL;
    }
    const hy3d_py_state *const state = hy3d_py_get_state(cast(self)->module);
    hy3d_status status = HY3D_OK;
    bool is_here = false;
    HY3D_PY_LOCK(self);
    status = hy3d_cache_request(state->context, cast(self)->cache, &key, &is_here);
    HY3D_PY_UNLOCK();
    if (status != HY3D_OK) {
        return hy3d_py_raise(state, status, "No memory to note a request.");
    }
    return PyBool_FromLong(is_here);
}

static PyObject *admission_reserve(PyObject *self, PyObject *args)
{
    PyObject *given_key = NULL;
    PyObject *given_bytes = NULL;
    hy3d_cache_key key;
    int64_t bytes = 0;
    if (!PyArg_ParseTuple(args, "OO:reserve", &given_key, &given_bytes) ||
        !read_key(given_key, &key) || !hy3d_py_int64(given_bytes, "nbytes", &bytes)) {
        return NULL;
    }
    hy3d_status status = HY3D_OK;
    bool is_reserved = false;
    HY3D_PY_LOCK(self);
    status = hy3d_cache_reserve(cast(self)->cache, &key, bytes, &is_reserved);
    HY3D_PY_UNLOCK();
    if (status != HY3D_OK) {
        return hy3d_py_raise(hy3d_py_get_state(cast(self)->module), status,
                             "nbytes is %lld: it must not be negative.", (long long)bytes);
    }
    return PyBool_FromLong(is_reserved);
}

static PyObject *admission_put(PyObject *self, PyObject *value)
{
    hy3d_cache_key key;
    if (!read_key(value, &key)) {
        return NULL;
    }
    bool is_here = false;
    HY3D_PY_LOCK(self);
    is_here = hy3d_cache_put(cast(self)->cache, &key);
    HY3D_PY_UNLOCK();
    return PyBool_FromLong(is_here);
}

static PyObject *admission_cancel(PyObject *self, PyObject *value)
{
    hy3d_cache_key key;
    if (!read_key(value, &key)) {
        return NULL;
    }
    HY3D_PY_LOCK(self);
    hy3d_cache_cancel(cast(self)->cache, &key);
    HY3D_PY_UNLOCK();
    Py_RETURN_NONE;
}

static PyObject *admission_drop(PyObject *self, PyObject *value)
{
    hy3d_cache_key key;
    if (!read_key(value, &key)) {
        return NULL;
    }
    bool was_here = false;
    HY3D_PY_LOCK(self);
    was_here = hy3d_cache_drop(cast(self)->cache, &key);
    HY3D_PY_UNLOCK();
    return PyBool_FromLong(was_here);
}

static PyObject *admission_has(PyObject *self, PyObject *value)
{
    hy3d_cache_key key;
    if (!read_key(value, &key)) {
        return NULL;
    }
    bool is_here = false;
    HY3D_PY_LOCK(self);
    is_here = hy3d_cache_has(cast(self)->cache, &key);
    HY3D_PY_UNLOCK();
    return PyBool_FromLong(is_here);
}

static PyObject *admission_clear(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    int64_t held = 0;
    HY3D_PY_LOCK(self);
    held = hy3d_cache_clear(cast(self)->cache);
    HY3D_PY_UNLOCK();
    return PyLong_FromLongLong((long long)held);
}

static PyObject *admission_info(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    hy3d_cache_info info;
    HY3D_PY_LOCK(self);
    info = hy3d_cache_get_info(cast(self)->cache);
    HY3D_PY_UNLOCK();
    return Py_BuildValue("(LLLLL)", (long long)info.clock, (long long)info.limit_bytes,
                         (long long)info.used_bytes, (long long)info.entries,
                         (long long)info.evicted);
}

static PyMethodDef admission_methods[] = {
    {"request", admission_request, METH_O, "request(key): whether the thing is here; it counts."},
    {"reserve", admission_reserve, METH_VARARGS,
     "reserve(key, nbytes): whether there is room for it now; put or cancel must follow."},
    {"put", admission_put, METH_O, "put(key): whether what was reserved is here now."},
    {"cancel", admission_cancel, METH_O, "cancel(key): gives back what was reserved."},
    {"drop", admission_drop, METH_O, "drop(key): lets go of it; whether it was here."},
    {"has", admission_has, METH_O, "has(key): whether it is here; no request."},
    {"clear", admission_clear, METH_NOARGS, "Forgets everything; the bytes that were here."},
    {"info", admission_info, METH_NOARGS, "(clock, limit, used, entries, evicted)."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot admission_slots[] = {
    {Py_tp_doc, "What stays in a cache that is smaller than what is asked of it."},
    {Py_tp_new, admission_new},
    {Py_tp_dealloc, admission_dealloc},
    {Py_tp_traverse, admission_traverse},
    {Py_tp_methods, admission_methods},
    {0, NULL},
};

static PyType_Spec admission_spec = {
    .name = "hy3d_rocm._core.Admission",
    .basicsize = (int)sizeof(admission_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = admission_slots,
};

int hy3d_py_admission_register(PyObject *module, hy3d_py_state *state)
{
    state->admission_type = PyType_FromModuleAndSpec(module, &admission_spec, NULL);
    if (state->admission_type == NULL) {
        return -1;
    }
    return PyModule_AddObjectRef(module, "Admission", state->admission_type);
}
