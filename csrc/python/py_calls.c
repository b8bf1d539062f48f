/* KnownCalls: what tells a convolution's call from others, and the calls that go straight to
 * PyTorch. Every convolution within protect() comes through here. */
#include <string.h>

#include "python/view.h"

enum {
    TENSORS = 3, /* input, weight, bias */
    NUMBERS = 4, /* stride, padding, dilation, groups */
    MAX_ITEMS = 8,
    MAX_FLAGS = 8,
    WORD_BYTES = 10, /* at most, of a number of 64 bits, seven in a byte */
    KEY_BYTES = WORD_BYTES *
        (1 + MAX_FLAGS + TENSORS * HY3D_PY_TENSOR_WORDS + NUMBERS * (1 + MAX_ITEMS)),
};

typedef struct calls_object {
    PyObject_HEAD
    PyObject *capsule; /* how tensors are read (DLPack), or None */
    PyObject *types;   /* of tensors that are nothing more: a tuple */
    PyObject *flags;   /* functions whose answers are part of the key: a tuple */
    PyObject *holds;   /* functions any of which keeps calls back: a tuple */
    PyObject *clock;
    PyObject *known;   /* key -> (who, bytearray of a `counts`) */
    PyObject *running; /* who is called now or was when it failed; or NULL */
    double started;
} calls_object;

typedef struct counts {
    int64_t calls;
    double seconds;
    double longest;
} counts;

typedef struct call_key {
    unsigned char bytes[KEY_BYTES];
    size_t count;
} call_key;

/* Small numbers take one byte: the shorter a key, the sooner it is hashed. */
__attribute__((noinline)) static void put(call_key *key, int64_t number)
{
    uint64_t rest = ((uint64_t)number << 1) ^ (number < 0 ? UINT64_MAX : 0);
    for (; rest > 127; rest >>= 7) {
        key->bytes[key->count++] = (unsigned char)(rest | 128);
    }
    key->bytes[key->count++] = (unsigned char)rest;
}

/* These give 1; 0 for what no key is made of; -1 with an exception. */
static int put_number(call_key *key, PyObject *value)
{
    int overflow = 0;
    if (!PyLong_CheckExact(value)) {
        return 0;
    }
    put(key, PyLong_AsLongLongAndOverflow(value, &overflow));
    return overflow == 0 ? 1 : 0;
}

/* One number, or a tuple or list of numbers. */
static int put_numbers(call_key *key, PyObject *value)
{
    if (!PyTuple_CheckExact(value) && !PyList_CheckExact(value)) {
        put(key, -1);
        return put_number(key, value);
    }
    PyObject *const items = hy3d_py_items(value);
    if (items == NULL) {
        return -1;
    }
    const Py_ssize_t count = PyTuple_Size(items);
    int good = count <= MAX_ITEMS ? 1 : 0;
    put(key, count);
    for (Py_ssize_t i = 0; i < count && good > 0; i++) {
        good = put_number(key, PyTuple_GetItem(items, i));
    }
    Py_DECREF(items);
    return good;
}

static int put_flags(call_key *key, PyObject *flags)
{
    const Py_ssize_t count = PyTuple_Size(flags);
    if (count > MAX_FLAGS) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *const answer = PyObject_CallNoArgs(PyTuple_GetItem(flags, i));
        if (answer == NULL) {
            return -1;
        }
        put(key, answer == Py_True ? 1 : 0);
        Py_DECREF(answer);
    }
    return 1;
}

static int put_tensor(call_key *key, const calls_object *calls, PyObject *object)
{
    PyObject *const type = (PyObject *)Py_TYPE(object);
    Py_ssize_t place = PyTuple_Size(calls->types);
    do {
        if (--place < 0) {
            return 0;
        }
    } while (PyTuple_GetItem(calls->types, place) != type);
    int64_t words[HY3D_PY_TENSOR_WORDS];
    const int used = hy3d_py_tensor_words(calls->capsule, object, words);
    for (int i = 0; i < used; i++) {
        put(key, words[i]);
    }
    return used > 0 ? 1 : used;
}

/* The arguments of conv2d and conv3d in PyTorch's order; those at the end may be missing. */
static int put_arguments(call_key *key, const calls_object *calls, PyObject *arguments)
{
    static const int defaults[NUMBERS] = {1, 0, 1, 1};
    const Py_ssize_t count = PyTuple_Size(arguments);
    if (count < 2 || count > TENSORS + NUMBERS) {
        return 0;
    }
    int good = 1;
    for (Py_ssize_t i = 0; i < TENSORS && good > 0; i++) {
        PyObject *const value = i < count ? PyTuple_GetItem(arguments, i) : Py_None;
        if (i == TENSORS - 1 && value == Py_None) {
            put(key, -1);
        } else {
            good = put_tensor(key, calls, value);
        }
    }
    for (Py_ssize_t i = 0; i < NUMBERS && good > 0; i++) {
        if (TENSORS + i < count) {
            good = put_numbers(key, PyTuple_GetItem(arguments, TENSORS + i));
        } else {
            put(key, -1);
            put(key, defaults[i]);
        }
    }
    return good;
}

/* A new reference to bytes, None where there is no key, or NULL. */
static PyObject *make_key(const calls_object *calls, PyObject *function, PyObject *arguments)
{
    call_key key;
    key.count = 0;
    put(&key, (int64_t)(intptr_t)function);
    int good = calls->capsule == Py_None ? 0 : put_flags(&key, calls->flags);
    if (good > 0) {
        good = put_arguments(&key, calls, arguments);
    }
    if (good < 0) {
        return NULL;
    }
    if (good == 0) {
        Py_RETURN_NONE;
    }
    return PyBytes_FromStringAndSize((const char *)key.bytes, (Py_ssize_t)key.count);
}

static calls_object *cast(PyObject *self)
{
    void *const memory = self;
    return memory;
}

static PyObject *calls_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    char *keywords[] = {"capsule", "types", "flags", "holds", "clock", NULL};
    PyObject *capsule = NULL;
    PyObject *types = NULL;
    PyObject *flags = NULL;
    PyObject *holds = NULL;
    PyObject *clock = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!O!O!O:KnownCalls", keywords, &capsule,
                                     &PyTuple_Type, &types, &PyTuple_Type, &flags, &PyTuple_Type,
                                     &holds, &clock)) {
        return NULL;
    }
    PyObject *const known = PyDict_New();
    PyObject *const self = known == NULL ? NULL : PyType_GenericAlloc(type, 0);
    if (self == NULL) {
        Py_XDECREF(known);
        return NULL;
    }
    calls_object *const calls = cast(self);
    calls->capsule = Py_NewRef(capsule);
    calls->types = Py_NewRef(types);
    calls->flags = Py_NewRef(flags);
    calls->holds = Py_NewRef(holds);
    calls->clock = Py_NewRef(clock);
    calls->known = known;
    return self;
}

static int calls_traverse(PyObject *self, visitproc visit, void *arg)
{
    const calls_object *const calls = cast(self);
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(calls->capsule);
    Py_VISIT(calls->types);
    Py_VISIT(calls->flags);
    Py_VISIT(calls->holds);
    Py_VISIT(calls->clock);
    Py_VISIT(calls->known);
    Py_VISIT(calls->running);
    return 0;
}

/* No tp_clear: what leads back here passes through the dictionary, which has one. */
static void calls_dealloc(PyObject *self)
{
    PyTypeObject *const type = Py_TYPE(self);
    calls_object *const calls = cast(self);
    PyObject_GC_UnTrack(self);
    Py_XDECREF(calls->capsule);
    Py_XDECREF(calls->types);
    Py_XDECREF(calls->flags);
    Py_XDECREF(calls->holds);
    Py_XDECREF(calls->clock);
    Py_XDECREF(calls->known);
    Py_XDECREF(calls->running);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* Whether any of the functions gives what is true: 1 or 0; -1 with an exception. */
static int any_holds(const calls_object *calls)
{
    const Py_ssize_t count = PyTuple_Size(calls->holds);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *const answer = PyObject_CallNoArgs(PyTuple_GetItem(calls->holds, i));
        const int is_true = answer == NULL ? -1 : PyObject_IsTrue(answer);
        Py_XDECREF(answer);
        if (is_true != 0) {
            return is_true;
        }
    }
    return 0;
}

static bool read_clock(const calls_object *calls, double *seconds)
{
    PyObject *const now = PyObject_CallNoArgs(calls->clock);
    *seconds = now == NULL ? -1 : PyFloat_AsDouble(now);
    Py_XDECREF(now);
    return PyErr_Occurred() == NULL;
}

/* entry: (who, bytearray). */
static PyObject *run(PyObject *self, PyObject *entry, PyObject *function, PyObject *arguments)
{
    calls_object *const calls = cast(self);
    double end = 0;
    if (!read_clock(calls, &calls->started)) {
        return NULL;
    }
    PyObject *const before = calls->running;
    calls->running = Py_NewRef(PyTuple_GetItem(entry, 0));
    Py_XDECREF(before);
    PyObject *const result = PyObject_Call(function, arguments, NULL);
    if (result == NULL) {
        return NULL;
    }
    Py_CLEAR(calls->running);
    if (!read_clock(calls, &end)) {
        Py_DECREF(result);
        return NULL;
    }
    const double seconds = end - calls->started;
    char *const memory = PyByteArray_AsString(PyTuple_GetItem(entry, 1));
    HY3D_PY_LOCK(self);
    counts booked;
    memcpy(&booked, memory, sizeof booked);
    booked.calls++;
    booked.seconds += seconds;
    booked.longest = seconds > booked.longest ? seconds : booked.longest;
    memcpy(memory, &booked, sizeof booked);
    HY3D_PY_UNLOCK();
    return result;
}

static PyObject *calls_call(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2 || !PyTuple_Check(args[1])) {
        hy3d_py_type_error("call takes a function and a tuple.");
        return NULL;
    }
    calls_object *const calls = cast(self);
    PyObject *const key = make_key(calls, args[0], args[1]);
    if (key == NULL || key == Py_None) {
        return key;
    }
    PyObject *const entry = PyDict_GetItemWithError(calls->known, key);
    const int holds = entry == NULL ? (PyErr_Occurred() == NULL ? 1 : -1) : any_holds(calls);
    if (holds > 0) {
        return key;
    }
    Py_DECREF(key);
    if (holds < 0) {
        return NULL;
    }
    Py_INCREF(entry);
    PyObject *const result = run(self, entry, args[0], args[1]);
    Py_DECREF(entry);
    return result;
}

static PyObject *calls_add(PyObject *self, PyObject *args)
{
    const counts none = {.calls = 0};
    PyObject *key = NULL;
    PyObject *who = NULL;
    if (!PyArg_ParseTuple(args, "OO:add", &key, &who)) {
        return NULL;
    }
    const calls_object *const calls = cast(self);
    const int has = PyDict_Contains(calls->known, key);
    if (has != 0) {
        return has < 0 ? NULL : Py_NewRef(Py_None);
    }
    PyObject *const memory = PyByteArray_FromStringAndSize((const char *)&none, sizeof none);
    PyObject *const entry = memory == NULL ? NULL : PyTuple_Pack(2, who, memory);
    const bool good = entry != NULL && PyDict_SetItem(calls->known, key, entry) == 0;
    Py_XDECREF(memory);
    Py_XDECREF(entry);
    return good ? Py_NewRef(Py_None) : NULL;
}

static PyObject *take_one(PyObject *self, PyObject *entry)
{
    (void)self; /* named by the lock alone */
    char *const memory = PyByteArray_AsString(PyTuple_GetItem(entry, 1));
    counts taken;
    HY3D_PY_LOCK(self);
    memcpy(&taken, memory, sizeof taken);
    memset(memory, 0, sizeof taken);
    HY3D_PY_UNLOCK();
    if (taken.calls == 0) {
        return Py_NewRef(Py_None);
    }
    return Py_BuildValue("(OLdd)", PyTuple_GetItem(entry, 0), (long long)taken.calls, taken.seconds,
                         taken.longest);
}

static PyObject *calls_take(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    PyObject *const entries = PyDict_Values(cast(self)->known);
    PyObject *const found = entries == NULL ? NULL : PyList_New(0);
    bool good = found != NULL;
    for (Py_ssize_t i = 0; good && i < PyList_Size(entries); i++) {
        PyObject *const one = take_one(self, PyList_GetItem(entries, i));
        good = one != NULL && (one == Py_None || PyList_Append(found, one) == 0);
        Py_XDECREF(one);
    }
    Py_XDECREF(entries);
    if (!good) {
        Py_XDECREF(found);
        return NULL;
    }
    return found;
}

static PyObject *calls_failed(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    calls_object *const calls = cast(self);
    if (calls->running == NULL) {
        Py_RETURN_NONE;
    }
    PyObject *const who = calls->running;
    calls->running = NULL;
    return Py_BuildValue("(Nd)", who, calls->started);
}

static PyMethodDef calls_methods[] = {
    {"call", (PyCFunction)(void (*)(void))calls_call, METH_FASTCALL, "The result, a key, or None."},
    {"add", calls_add, METH_VARARGS, "add(key, who)"},
    {"take", calls_take, METH_NOARGS, "[(who, calls, seconds, longest)]"},
    {"failed", calls_failed, METH_NOARGS, "(who, start) or None"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot calls_slots[] = {
    {Py_tp_doc, "Calls that go straight to PyTorch."},
    {Py_tp_new, calls_new},
    {Py_tp_dealloc, calls_dealloc},
    {Py_tp_traverse, calls_traverse},
    {Py_tp_methods, calls_methods},
    {0, NULL},
};

static PyType_Spec calls_spec = {
    .name = "hy3d_rocm._core.KnownCalls",
    .basicsize = (int)sizeof(calls_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = calls_slots,
};

int hy3d_py_calls_register(PyObject *module, hy3d_py_state *state)
{
    state->calls_type = PyType_FromModuleAndSpec(module, &calls_spec, NULL);
    if (state->calls_type == NULL) {
        return -1;
    }
    return PyModule_AddObjectRef(module, "KnownCalls", state->calls_type);
}
