/* What stops a call: CancelFlag, the C core's cancel flag as a Python object, and signals. */
#include "python/core.h"

typedef struct cancel_object {
    PyObject_HEAD
    hy3d_cancel *flag;
    PyObject *module; /* keeps the context alive that the flag's memory belongs to */
} cancel_object;

static cancel_object *cast(PyObject *self)
{
    void *const memory = self;
    return memory;
}

static PyObject *cancel_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    char *keywords[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, ":CancelFlag", keywords)) {
        return NULL;
    }
    PyObject *const module = PyType_GetModule(type);
    if (module == NULL) {
        return NULL;
    }
    const hy3d_py_state *const state = hy3d_py_get_state(module);
    /* The flag first: whoever walks the collector's objects meets no CancelFlag without one. */
    hy3d_cancel *flag = NULL;
    const hy3d_status status = hy3d_cancel_create(state->context, &flag);
    if (status != HY3D_OK) {
        return hy3d_py_raise(state, status, "No memory for a cancel flag.");
    }
    PyObject *const self = PyType_GenericNew(type, args, kwargs);
    if (self == NULL) {
        hy3d_cancel_destroy(state->context, flag);
        return NULL;
    }
    cast(self)->flag = flag;
    Py_INCREF(module);
    cast(self)->module = module;
    return self;
}

static int cancel_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(cast(self)->module);
    return 0;
}

/* No tp_clear: the module is needed until the flag's memory has gone back, and cycles through it
 * are broken by the module's own m_clear, which leaves the context alone. */
static void cancel_dealloc(PyObject *self)
{
    PyTypeObject *const type = Py_TYPE(self);
    cancel_object *const object = cast(self);
    PyObject_GC_UnTrack(self);
    if (object->flag != NULL) {
        hy3d_cancel_destroy(hy3d_py_get_state(object->module)->context, object->flag);
    }
    Py_XDECREF(object->module);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyObject *cancel_request(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    hy3d_cancel_request(cast(self)->flag);
    Py_RETURN_NONE;
}

static PyObject *cancel_reset(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    hy3d_cancel_reset(cast(self)->flag);
    Py_RETURN_NONE;
}

static PyObject *cancel_requested(PyObject *self, void *ignored)
{
    (void)ignored;
    return PyBool_FromLong(hy3d_cancel_requested(cast(self)->flag));
}

static PyMethodDef cancel_methods[] = {
    {"request", cancel_request, METH_NOARGS, "Asks the calls that look at this flag to stop."},
    {"reset", cancel_reset, METH_NOARGS, "Takes the request back."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef cancel_getset[] = {
    {"requested", cancel_requested, NULL, "Whether request() was called since the last reset().",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot cancel_slots[] = {
    {Py_tp_doc, "A flag that any thread may raise; a running conv3d looks at it once per grain."},
    {Py_tp_new, cancel_new},
    {Py_tp_dealloc, cancel_dealloc},
    {Py_tp_traverse, cancel_traverse},
    {Py_tp_methods, cancel_methods},
    {Py_tp_getset, cancel_getset},
    {0, NULL},
};

static PyType_Spec cancel_spec = {
    .name = "hy3d_rocm._core.CancelFlag",
    .basicsize = (int)sizeof(cancel_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = cancel_slots,
};

int hy3d_py_cancel_register(PyObject *module, hy3d_py_state *state)
{
    state->cancel_type = PyType_FromModuleAndSpec(module, &cancel_spec, NULL);
    if (state->cancel_type == NULL) {
        return -1;
    }
    return PyModule_AddObjectRef(module, "CancelFlag", state->cancel_type);
}

bool hy3d_py_cancel_from(const hy3d_py_state *state, PyObject *value, const hy3d_cancel **out)
{
    if (value == Py_None) {
        *out = NULL;
        return true;
    }
    /* Not a sub-class check: the type is final. NULL once the collector has cleared the module. */
    if ((PyObject *)Py_TYPE(value) != state->cancel_type) {
        return hy3d_py_type_error("cancel must be a CancelFlag or None, not %R.",
                                  (PyObject *)Py_TYPE(value));
    }
    *out = cast(value)->flag;
    return true;
}

int hy3d_py_find_main_thread(hy3d_py_state *state)
{
    if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0) {
        return 0; /* signals are the first interpreter's */
    }
    PyObject *const module = PyImport_ImportModule("threading");
    PyObject *const thread =
        module == NULL ? NULL : PyObject_CallMethod(module, "main_thread", NULL);
    PyObject *const number = thread == NULL ? NULL : PyObject_GetAttrString(thread, "ident");
    if (number != NULL) {
        state->main_thread = PyLong_AsUnsignedLong(number);
    }
    Py_XDECREF(number);
    Py_XDECREF(thread);
    Py_XDECREF(module);
    return PyErr_Occurred() == NULL ? 0 : -1;
}

static bool run_handlers(void *argument)
{
    hy3d_py_compute *const compute = argument;
    PyEval_RestoreThread(compute->thread);
    const bool raised = PyErr_CheckSignals() != 0;
    compute->thread = PyEval_SaveThread(); /* the exception stays in it */
    return raised;
}

/* Another thread must not ask: handlers never run there, and one that wants the GIL while Python
 * ends is ended in the midst of its call. */
const hy3d_cancel *hy3d_py_compute_begin(hy3d_py_compute *compute, const hy3d_py_state *state,
                                         const hy3d_cancel *flag)
{
    compute->polls = PyThread_get_thread_ident() == state->main_thread;
    compute->thread = PyEval_SaveThread();
    return compute->polls ? hy3d_cancel_polling(&compute->memory, flag, run_handlers, compute)
                          : flag;
}

hy3d_status hy3d_py_compute_end(hy3d_py_compute *compute, hy3d_status status)
{
    PyEval_RestoreThread(compute->thread);
    return compute->polls && PyErr_Occurred() != NULL ? HY3D_ERR_CANCELLED : status;
}
