/* Which tier computes a convolution: route() and Rates, of records as tuples. */
#include "hy3d/route.h"

#include "python/core.h"

/* Converters of PyArg_ParseTuple: numbers of any size, refused in one way. A number of an
 * enumeration that does not fit is none of it. */
static int to_count(PyObject *value, void *out)
{
    return hy3d_py_int64(value, "a number", out) ? 1 : 0;
}

static int to_enum(PyObject *value, void *out)
{
    int64_t number = 0;
    if (!hy3d_py_int64(value, "a number", &number)) {
        return 0;
    }
    *(int *)out = number < 0 || number > INT32_MAX ? -1 : (int)number;
    return 1;
}

static int to_double(PyObject *value, void *out)
{
    *(double *)out = PyFloat_AsDouble(value);
    if (PyErr_Occurred() != NULL && PyErr_ExceptionMatches(PyExc_OverflowError)) {
        PyErr_Clear();
        return hy3d_py_value_error("%R is too large for a float.", value) ? 1 : 0;
    }
    return PyErr_Occurred() == NULL ? 1 : 0;
}

/* Refuses what is no tuple, which PyArg_ParseTuple takes for a fault of ours. */
static bool is_tuple(PyObject *value, const char *name)
{
    return PyTuple_Check(value) ||
           hy3d_py_type_error("%s must be a tuple, not %R.", name, (PyObject *)Py_TYPE(value));
}

static PyObject *places(const int32_t *values, int32_t count)
{
    PyObject *const tuple = PyTuple_New(count);
    for (int32_t i = 0; tuple != NULL && i < count; i++) {
        PyObject *const number = PyLong_FromLong(values[i]);
        if (number == NULL || PyTuple_SetItem(tuple, i, number) != 0) {
            Py_DECREF(tuple);
            return NULL;
        }
    }
    return tuple;
}

static PyObject *choice_tuple(const hy3d_route_choice *choice, int32_t count)
{
    int32_t reasons[HY3D_TIER_COUNT] = {0};
    for (int32_t i = 0; i < count; i++) {
        reasons[i] = (int32_t)choice->reasons[i];
    }
    PyObject *const order = places(choice->order, choice->order_count);
    PyObject *const why = places(reasons, count);
    PyObject *const unmeasured = places(choice->unmeasured, choice->unmeasured_count);
    PyObject *const spare = places(choice->spare, choice->spare_count);
    if (order != NULL && why != NULL && unmeasured != NULL && spare != NULL) {
        return Py_BuildValue("(NNiiiNNN)", order, why, (int)choice->twin, (int)choice->preferred,
                             (int)choice->probe, unmeasured, spare,
                             PyBool_FromLong(choice->is_cramped));
    }
    Py_XDECREF(order);
    Py_XDECREF(why);
    Py_XDECREF(unmeasured);
    Py_XDECREF(spare);
    return NULL;
}

static bool read_setting(PyObject *tuple, hy3d_route_setting *setting)
{
    int policy = 0;
    int pinned = 0;
    int current = 0;
    int on_gpu = 0;
    int rocm = 0;
    int vendor_on = 0;
    if (!is_tuple(tuple, "setting") ||
        !PyArg_ParseTuple(tuple, "O&O&O&pppO&:setting", to_enum, &policy, to_enum, &pinned, to_enum,
                          &current, &on_gpu, &rocm, &vendor_on, to_double,
                          &setting->column_bytes)) {
        return false;
    }
    setting->policy = (hy3d_policy)policy;
    setting->pinned = (hy3d_tier)pinned;
    setting->current = (hy3d_tier)current;
    setting->is_on_gpu = on_gpu != 0;
    setting->is_rocm = rocm != 0;
    setting->is_vendor_on = vendor_on != 0;
    return true;
}

static bool read_candidate(PyObject *tuple, hy3d_route_candidate *c)
{
    int tier = 0;
    int verdict = 0;
    int failure = 0;
    int refused = 0;
    int fits = 0;
    if (!is_tuple(tuple, "a candidate") ||
        !PyArg_ParseTuple(tuple, "O&O&O&ppO&O&O&:candidate", to_enum, &tier, to_enum, &verdict,
                          to_enum, &failure, &refused, &fits, to_double, &c->seconds, to_double,
                          &c->estimate_seconds, to_double, &c->workspace_bytes)) {
        return false;
    }
    c->tier = (hy3d_tier)tier;
    c->verdict = (hy3d_verdict)verdict;
    c->failure = (hy3d_failure)failure;
    c->is_refused = refused != 0;
    c->fits = fits != 0;
    return true;
}

PyObject *hy3d_py_route(PyObject *module, PyObject *args, PyObject *kwargs)
{
    char *keywords[] = {"setting", "candidates", NULL};
    PyObject *given_setting = NULL;
    PyObject *given = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO:route", keywords, &given_setting, &given)) {
        return NULL;
    }
    hy3d_route_setting setting;
    if (!read_setting(given_setting, &setting)) {
        return NULL;
    }
    if (!PyTuple_Check(given) && !PyList_Check(given)) {
        hy3d_py_type_error("candidates must be a tuple or list, not %R.",
                           (PyObject *)Py_TYPE(given));
        return NULL;
    }
    PyObject *const items = hy3d_py_items(given);
    if (items == NULL) {
        return NULL;
    }
    const Py_ssize_t count = PyTuple_Size(items);
    hy3d_route_candidate candidates[HY3D_TIER_COUNT];
    bool good =
        count <= HY3D_TIER_COUNT ||
        hy3d_py_value_error("candidates has %zd tiers: there are %d.", count, HY3D_TIER_COUNT);
    for (Py_ssize_t i = 0; good && i < count; i++) {
        good = read_candidate(PyTuple_GetItem(items, i), &candidates[i]);
    }
    Py_DECREF(items);
    if (!good) {
        return NULL;
    }
    hy3d_route_choice choice;
    const hy3d_status status = hy3d_route_choose(&setting, candidates, (int32_t)count, &choice);
    if (status != HY3D_OK) {
        return hy3d_py_raise(hy3d_py_get_state(module), status,
                             "The setting or a candidate has a number that stands for nothing, or "
                             "a tier comes twice.");
    }
    return choice_tuple(&choice, (int32_t)count);
}

typedef struct rates_object {
    PyObject_HEAD
    hy3d_rates *rates;
    PyObject *module; /* keeps the context alive that the memory belongs to */
} rates_object;

static rates_object *cast(PyObject *self)
{
    void *const memory = self;
    return memory;
}

static PyObject *rates_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    char *keywords[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, ":Rates", keywords)) {
        return NULL;
    }
    PyObject *const module = PyType_GetModule(type);
    if (module == NULL) {
        return NULL;
    }
    const hy3d_py_state *const state = hy3d_py_get_state(module);
    hy3d_rates *rates = NULL;
    const hy3d_status status = hy3d_rates_create(state->context, &rates);
    if (status != HY3D_OK) {
        return hy3d_py_raise(state, status, "No memory for rates.");
    }
    PyObject *const self = PyType_GenericNew(type, args, kwargs);
    if (self == NULL) {
        hy3d_rates_destroy(state->context, rates);
        return NULL;
    }
    cast(self)->rates = rates;
    Py_INCREF(module);
    cast(self)->module = module;
    return self;
}

static int rates_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(cast(self)->module);
    return 0;
}

/* No tp_clear, as CancelFlag has none. */
static void rates_dealloc(PyObject *self)
{
    PyTypeObject *const type = Py_TYPE(self);
    rates_object *const object = cast(self);
    PyObject_GC_UnTrack(self);
    if (object->rates != NULL) {
        hy3d_rates_destroy(hy3d_py_get_state(object->module)->context, object->rates);
    }
    Py_XDECREF(object->module);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static bool read_work(PyObject *tuple, hy3d_route_work *work)
{
    int dtype = 0;
    if (!is_tuple(tuple, "work") ||
        !PyArg_ParseTuple(tuple, "O&O&O&O&O&O&O&O&:work", to_enum, &dtype, to_double, &work->flops,
                          to_double, &work->moved_bytes, to_double, &work->out_bytes, to_double,
                          &work->column_bytes, to_count, &work->taps, to_count, &work->time_taps,
                          to_count, &work->group_channels)) {
        return false;
    }
    work->dtype = (hy3d_dtype)dtype;
    return true;
}

static PyObject *rates_learn(PyObject *self, PyObject *args)
{
    int tier = 0;
    double seconds = 0;
    PyObject *given = NULL;
    hy3d_route_work work;
    if (!PyArg_ParseTuple(args, "O&OO&:learn", to_enum, &tier, &given, to_double, &seconds) ||
        !read_work(given, &work)) {
        return NULL;
    }
    const hy3d_py_state *const state = hy3d_py_get_state(cast(self)->module);
    hy3d_status status = HY3D_OK;
    HY3D_PY_LOCK(self);
    status = hy3d_rates_learn(state->context, cast(self)->rates, (hy3d_tier)tier, &work, seconds);
    HY3D_PY_UNLOCK();
    if (status != HY3D_OK) {
        return hy3d_py_raise(state, status, "No memory for a measurement.");
    }
    Py_RETURN_NONE;
}

static PyObject *number_or_none(double value)
{
    if (value < 0) {
        Py_RETURN_NONE;
    }
    return PyFloat_FromDouble(value);
}

static PyObject *rates_seconds(PyObject *self, PyObject *args)
{
    int tier = 0;
    PyObject *given = NULL;
    hy3d_route_work work;
    if (!PyArg_ParseTuple(args, "O&O:seconds", to_enum, &tier, &given) ||
        !read_work(given, &work)) {
        return NULL;
    }
    double seconds = 0;
    HY3D_PY_LOCK(self);
    seconds = hy3d_rates_seconds(cast(self)->rates, (hy3d_tier)tier, &work);
    HY3D_PY_UNLOCK();
    return number_or_none(seconds);
}

static PyMethodDef rates_methods[] = {
    {"learn", rates_learn, METH_VARARGS, "learn(tier, work, seconds): one measurement."},
    {"seconds", rates_seconds, METH_VARARGS, "seconds(tier, work): the estimate, or None."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot rates_slots[] = {
    {Py_tp_doc, "What measurements on one device say about estimates of others."},
    {Py_tp_new, rates_new},
    {Py_tp_dealloc, rates_dealloc},
    {Py_tp_traverse, rates_traverse},
    {Py_tp_methods, rates_methods},
    {0, NULL},
};

static PyType_Spec rates_spec = {
    .name = "hy3d_rocm._core.Rates",
    .basicsize = (int)sizeof(rates_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = rates_slots,
};

int hy3d_py_rates_register(PyObject *module, hy3d_py_state *state)
{
    state->rates_type = PyType_FromModuleAndSpec(module, &rates_spec, NULL);
    if (state->rates_type == NULL) {
        return -1;
    }
    return PyModule_AddObjectRef(module, "Rates", state->rates_type);
}
