/* resolve_device: where does this pipeline, module or VAE compute?
 *
 * Nothing but attribute look-ups, and one call: .parameters(). Whatever a look-up raises is
 * skipped, if it is an Exception: KeyboardInterrupt and SystemExit pass, and MemoryError. No import
 * of torch: a device is what looks like one. hy3d_rocm/_fallback/device.py is the same in
 * Python. */
#include "python/core.h"

#include <string.h>

/* A model has a few thousand modules at most; the bound is for objects that make up children. */
#define MAX_OBJECTS 20000

/* Results of the look-ups: an exception that must pass, nothing usable, a new reference. */
enum { RAISED = -1, NOTHING = 0, FOUND = 1 };

typedef int (*finder)(PyObject *object, PyObject **out);

static int skip_exception(void)
{
    if (!hy3d_py_may_skip()) {
        return RAISED;
    }
    PyErr_Clear();
    return NOTHING;
}

static int look_up(PyObject *object, const char *name, PyObject **out)
{
    *out = PyObject_GetAttrString(object, name);
    return *out != NULL ? FOUND : skip_exception();
}

/* "cuda", "cuda:1": a type that torch knows, other than meta, and perhaps an index. */
static int text_is_device(PyObject *text)
{
    static const char *const types[] = {"cpu", "cuda",          "hip",    "hpu", "mps", "mtia",
                                        "npu", "privateuseone", "vulkan", "xla", "xpu"};
    Py_ssize_t length = 0;
    const char *const characters = PyUnicode_AsUTF8AndSize(text, &length);
    if (characters == NULL) {
        return skip_exception();
    }
    const size_t name = strcspn(characters, ":");
    bool known = false;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        known = known || (strlen(types[i]) == name && memcmp(types[i], characters, name) == 0);
    }
    if (!known || (size_t)length == name) {
        return known ? FOUND : NOTHING;
    }
    const char *const digits = characters + name + 1;
    const size_t count = strspn(digits, "0123456789");
    /* The last condition refuses an embedded NUL. */
    return count >= 1 && count <= 3 && name + 1 + count == (size_t)length ? FOUND : NOTHING;
}

/* torch.device or its like: .type is a text other than "meta", .index an integer or None. */
static int object_is_device(PyObject *value)
{
    PyObject *type = NULL;
    PyObject *index = NULL;
    int result = look_up(value, "type", &type);
    if (result == FOUND) {
        if (!PyUnicode_Check(type) || PyUnicode_CompareWithASCIIString(type, "meta") == 0) {
            result = NOTHING;
        } else {
            result = look_up(value, "index", &index);
        }
    }
    if (result == FOUND && index != Py_None && !PyLong_Check(index)) {
        result = NOTHING;
    }
    Py_XDECREF(index);
    Py_XDECREF(type);
    return result;
}

static int is_device(PyObject *value)
{
    return PyUnicode_Check(value) ? text_is_device(value) : object_is_device(value);
}

/* The attribute where it is a device, else nothing. Hooks may name a device by its number. */
static int device_attribute(PyObject *object, const char *name, bool number_allowed, PyObject **out)
{
    PyObject *value = NULL;
    int result = look_up(object, name, &value);
    if (result != FOUND) {
        return result;
    }
    if (PyLong_CheckExact(value)) {
        int overflow = 0;
        const long number = PyLong_AsLongAndOverflow(value, &overflow);
        result = number_allowed && overflow == 0 && number >= 0 && number < 1000 ? FOUND : NOTHING;
    } else {
        result = is_device(value);
    }
    if (result == FOUND) {
        *out = value;
    } else {
        Py_DECREF(value);
    }
    return result;
}

static int own_device(PyObject *object, PyObject **out)
{
    return device_attribute(object, "device", false, out);
}

/* accelerate's hook of one module; a SequentialHook keeps several in .hooks. */
static int hook_device(PyObject *object, PyObject **out)
{
    PyObject *hook = NULL;
    PyObject *hooks = NULL;
    int result = look_up(object, "_hf_hook", &hook);
    if (result != FOUND) {
        return result;
    }
    result = device_attribute(hook, "execution_device", true, out);
    if (result == NOTHING) {
        result = look_up(hook, "hooks", &hooks);
        if (result == FOUND) {
            result = NOTHING;
            const Py_ssize_t count = PyTuple_Check(hooks) ? PyTuple_Size(hooks) : 0;
            for (Py_ssize_t i = 0; result == NOTHING && i < count; i++) {
                result = device_attribute(PyTuple_GetItem(hooks, i), "execution_device", true, out);
            }
        }
    }
    Py_XDECREF(hooks);
    Py_DECREF(hook);
    return result;
}

static int parameter_device(PyObject *object, PyObject **out)
{
    PyObject *method = NULL;
    int result = look_up(object, "parameters", &method);
    if (result != FOUND) {
        return result;
    }
    PyObject *const parameters = PyObject_CallNoArgs(method);
    PyObject *const iterator = parameters == NULL ? NULL : PyObject_GetIter(parameters);
    PyObject *const first = iterator == NULL ? NULL : PyIter_Next(iterator);
    if (first != NULL) {
        result = own_device(first, out);
    } else {
        result = PyErr_Occurred() != NULL ? skip_exception() : NOTHING;
    }
    Py_XDECREF(first);
    Py_XDECREF(iterator);
    Py_XDECREF(parameters);
    Py_DECREF(method);
    return result;
}

/* Appends the values of a dictionary attribute, last first, so that a stack gives them in order.
 * Reading a real dictionary runs nobody's code. */
static int push_children(PyObject *stack, PyObject *object, const char *name)
{
    PyObject *dict = NULL;
    const int found = look_up(object, name, &dict);
    if (found != FOUND) {
        return found;
    }
    int result = NOTHING;
    PyObject *const values = PyDict_Check(dict) ? PyDict_Values(dict) : NULL;
    const Py_ssize_t count = values == NULL ? 0 : PyList_Size(values);
    for (Py_ssize_t i = count; result == NOTHING && i > 0; i--) {
        PyObject *const child = PyList_GetItem(values, i - 1);
        if (child != Py_None && PyList_Append(stack, child) != 0) {
            result = RAISED;
        }
    }
    if (values == NULL && PyErr_Occurred() != NULL) {
        result = RAISED;
    }
    Py_XDECREF(values);
    Py_DECREF(dict);
    return result;
}

static PyObject *pop(PyObject *stack)
{
    const Py_ssize_t last = PyList_Size(stack) - 1;
    PyObject *const item = PySequence_GetItem(stack, last);
    if (item != NULL && PyList_SetSlice(stack, last, last + 1, NULL) != 0) {
        Py_DECREF(item);
        return NULL;
    }
    return item;
}

/* FOUND at the first sight of an object; modules shared by two parents are common, cycles are not
 * unheard of. */
static int note_as_seen(PyObject *seen, PyObject *item)
{
    PyObject *const identity = PyLong_FromVoidPtr(item);
    int result = identity == NULL ? RAISED : PySet_Contains(seen, identity);
    if (result == 0) {
        result = PySet_Add(seen, identity) == 0 ? FOUND : RAISED;
    } else if (result == 1) {
        result = NOTHING;
    }
    Py_XDECREF(identity);
    return result;
}

/* Tries one object; its children go on the stack. */
static int visit(PyObject *item, finder find, bool first, bool deep, PyObject *stack,
                 PyObject **out)
{
    int result = find(item, out);
    if (result == NOTHING && first) {
        result = push_children(stack, item, "components");
    }
    if (result == NOTHING && deep) {
        result = push_children(stack, item, "_modules");
    }
    return result;
}

/* Tries `find` on the object, then on its children, depth first in their order: of a pipeline the
 * components; with `deep`, of every module also its sub-modules. */
static int search(PyObject *object, finder find, bool deep, PyObject **out)
{
    PyObject *const stack = PyList_New(0);
    PyObject *const seen = PySet_New(NULL);
    int result = NOTHING;
    if (stack == NULL || seen == NULL || PyList_Append(stack, object) != 0) {
        result = RAISED;
    }
    for (int i = 0; result == NOTHING && i < MAX_OBJECTS && PyList_Size(stack) > 0; i++) {
        PyObject *const item = pop(stack);
        result = item == NULL ? RAISED : note_as_seen(seen, item);
        if (result == FOUND) {
            result = visit(item, find, i == 0, deep, stack, out);
        }
        Py_XDECREF(item);
    }
    Py_XDECREF(seen);
    Py_XDECREF(stack);
    return result;
}

PyObject *hy3d_py_resolve_device(PyObject *module, PyObject *args, PyObject *kwargs)
{
    (void)module;
    char *keywords[] = {"obj", "default", NULL};
    PyObject *object = NULL;
    PyObject *fallback = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O:resolve_device", keywords, &object,
                                     &fallback)) {
        return NULL;
    }
    PyObject *device = NULL;
    const char *rule = "_execution_device";
    int result = device_attribute(object, "_execution_device", false, &device);
    if (result == NOTHING) {
        rule = "accelerate hook";
        result = search(object, hook_device, true, &device);
    }
    if (result == NOTHING) {
        rule = "device";
        result = own_device(object, &device);
    }
    if (result == NOTHING) {
        rule = "first parameter";
        result = search(object, parameter_device, false, &device);
    }
    if (result == RAISED) {
        return NULL;
    }
    if (result == NOTHING) {
        Py_INCREF(fallback);
        device = fallback;
        rule = "default";
    }
    return Py_BuildValue("(Ns)", device, rule);
}
