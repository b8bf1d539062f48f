/* Decode plans as dictionaries.
 *
 * A plan's dictionary carries its description, and a tile is computed from a plan made anew out
 * of that: pure integers, microseconds, and nothing a caller writes into the dictionary can lead
 * the C core outside what it checked. */
#include "hy3d/tiles.h"

#include "python/core.h"

#include <string.h>

typedef struct field {
    const char *name;
    Py_ssize_t offset;
    int64_t minimum;
    int count;  /* 3 for (T, H, W) */
    bool small; /* int32_t */
    bool required;
} field;

#define FIELD(name, minimum, count, small, required)                                               \
    {#name, (Py_ssize_t)offsetof(hy3d_tiles_desc, name), minimum, count, small, required}

static const field fields[] = {
    FIELD(latent, 1, 3, false, true),
    FIELD(factor, 1, 3, false, true),
    FIELD(causal, 0, 1, true, false),
    FIELD(overlap, 0, 3, false, false),
    FIELD(halo, 0, 3, false, false),
    FIELD(min_tile, 1, 3, false, false),
    FIELD(fixed_bytes, 0, 1, false, false),
    FIELD(bytes_per_voxel, 0, 1, false, false),
    FIELD(bytes_per_token_pair, 0, 1, false, false),
    FIELD(resident_bytes, 0, 1, false, false),
    FIELD(budget_bytes, 0, 1, false, false),
    FIELD(max_in_flight, 1, 1, true, false),
    FIELD(level, -1, 1, true, false),
    FIELD(shrink, 0, 1, true, false),
};
enum { FIELD_COUNT = (int)(sizeof fields / sizeof fields[0]) };

/* What a caller may leave out. */
static hy3d_tiles_desc default_desc(void)
{
    hy3d_tiles_desc desc = {0};
    desc.min_tile[0] = desc.min_tile[1] = desc.min_tile[2] = 1;
    desc.max_in_flight = 1;
    desc.level = -1;
    return desc;
}

static bool read_field(const field *f, PyObject *value, hy3d_tiles_desc *desc)
{
    void *const place = (char *)desc + f->offset;
    int64_t wide[3];
    if (f->count == 3 ? !hy3d_py_int64_array(value, f->name, 3, wide)
                      : !hy3d_py_int64(value, f->name, &wide[0])) {
        return false;
    }
    for (int i = 0; i < f->count; i++) {
        if (wide[i] < f->minimum || (f->small && wide[i] > INT32_MAX)) {
            return hy3d_py_value_error("%s has %lld: it must be from %lld to %lld.", f->name,
                                       (long long)wide[i], (long long)f->minimum,
                                       f->small ? (long long)INT32_MAX : (long long)INT64_MAX);
        }
    }
    if (f->small) {
        *(int32_t *)place = (int32_t)wide[0];
    } else {
        memcpy(place, wide, (size_t)f->count * sizeof wide[0]);
    }
    return true;
}

static const field *find_field(PyObject *key)
{
    for (int i = 0; PyUnicode_Check(key) && i < FIELD_COUNT; i++) {
        if (PyUnicode_CompareWithASCIIString(key, fields[i].name) == 0) {
            return &fields[i];
        }
    }
    return NULL;
}

/* The dictionary is copied first: an __index__ may change the caller's. */
static bool read_desc(PyObject *source, hy3d_tiles_desc *desc)
{
    PyObject *const dict = PyDict_Copy(source);
    if (dict == NULL) {
        return false;
    }
    bool good = true;
    unsigned seen = 0;
    Py_ssize_t position = 0;
    PyObject *key = NULL;
    PyObject *value = NULL;
    *desc = default_desc();
    while (good && PyDict_Next(dict, &position, &key, &value)) {
        const field *const f = find_field(key);
        if (f == NULL) {
            good = hy3d_py_type_error("schedule_plan has no field %R.", key);
        } else {
            seen |= 1u << (f - fields);
            good = read_field(f, value, desc);
        }
    }
    for (int i = 0; good && i < FIELD_COUNT; i++) {
        if (fields[i].required && (seen >> i & 1u) == 0) {
            good = hy3d_py_type_error("schedule_plan needs %s=(T, H, W).", fields[i].name);
        }
    }
    Py_DECREF(dict);
    return good;
}

PyObject *hy3d_py_tiles_desc(const hy3d_tiles_desc *desc)
{
    PyObject *const dict = PyDict_New();
    for (int i = 0; dict != NULL && i < FIELD_COUNT; i++) {
        const field *const f = &fields[i];
        const void *const place = (const char *)desc + f->offset;
        PyObject *const value = f->count == 3 ? hy3d_py_tuple3(place)
                                : f->small    ? PyLong_FromLong(*(const int32_t *)place)
                                              : PyLong_FromLongLong(*(const int64_t *)place);
        if (!hy3d_py_put(dict, f->name, value)) {
            Py_DECREF(dict);
            return NULL;
        }
    }
    return dict;
}

static PyObject *plan_to_dict(const hy3d_tiles_plan *plan)
{
    PyObject *const dict = PyDict_New();
    if (dict == NULL) {
        return NULL;
    }
    if (hy3d_py_put(dict, "desc", hy3d_py_tiles_desc(&plan->desc)) &&
        hy3d_py_put(dict, "out", hy3d_py_tuple3(plan->out)) &&
        hy3d_py_put(dict, "tile", hy3d_py_tuple3(plan->tile)) &&
        hy3d_py_put(dict, "count", hy3d_py_tuple3(plan->count)) &&
        hy3d_py_put(dict, "extent", hy3d_py_tuple3(plan->extent)) &&
        hy3d_py_put(dict, "tiles", PyLong_FromLongLong(plan->tiles)) &&
        hy3d_py_put(dict, "tile_bytes", PyLong_FromLongLong(plan->tile_bytes)) &&
        hy3d_py_put(dict, "peak_bytes", PyLong_FromLongLong(plan->peak_bytes)) &&
        hy3d_py_put(dict, "smallest_budget_bytes",
                    PyLong_FromLongLong(plan->smallest_budget_bytes)) &&
        hy3d_py_put(dict, "level", PyLong_FromLong(plan->level)) &&
        hy3d_py_put(dict, "levels", PyLong_FromLong(plan->levels)) &&
        hy3d_py_put(dict, "in_flight", PyLong_FromLong(plan->in_flight)) &&
        hy3d_py_put(dict, "decoded_voxels", PyFloat_FromDouble(plan->decoded_voxels))) {
        return dict;
    }
    Py_DECREF(dict);
    return NULL;
}

PyObject *hy3d_py_schedule_plan(PyObject *module, PyObject *args, PyObject *kwargs)
{
    const hy3d_py_state *const state = hy3d_py_get_state(module);
    hy3d_tiles_desc desc;
    hy3d_tiles_plan plan;
    int64_t smallest = 0;
    if (PyTuple_Size(args) != 0 || kwargs == NULL) {
        hy3d_py_type_error(
            "schedule_plan takes keyword arguments only, latent and factor at least.");
        return NULL;
    }
    if (!read_desc(kwargs, &desc)) {
        return NULL;
    }
    const hy3d_status status = hy3d_tiles_make(&desc, &smallest, &plan);
    if (status == HY3D_ERR_BUDGET_TOO_SMALL) {
        return hy3d_py_raise(state, status,
                             "The budget is %lld bytes, but the smallest tiles need %lld: raise it "
                             "or lower min_tile.",
                             (long long)desc.budget_bytes, (long long)smallest);
    }
    if (status != HY3D_OK) {
        PyObject *const shown = hy3d_py_tiles_desc(&desc);
        if (shown != NULL) {
            hy3d_py_raise(state, status, "No plan: %s, in %R.", hy3d_status_text(status), shown);
            Py_DECREF(shown);
        }
        return NULL;
    }
    return plan_to_dict(&plan);
}

/* Borrowed. NULL without an exception where it is not there; PyDict_GetItemString would say so too
 * where there is no memory for the key. */
static PyObject *item_of(PyObject *dict, const char *name)
{
    PyObject *const key = PyUnicode_FromString(name);
    PyObject *const found = key != NULL ? PyDict_GetItemWithError(dict, key) : NULL;
    Py_XDECREF(key);
    return found;
}

/* From a copy, which holds what is read: an __index__ or another thread may change the caller's. */
static bool read_plan(PyObject *source, hy3d_tiles_desc *desc, int64_t *level_out)
{
    PyObject *const dict = PyDict_Copy(source);
    if (dict == NULL) {
        return false;
    }
    PyObject *const desc_dict = item_of(dict, "desc");
    PyObject *const level = desc_dict != NULL ? item_of(dict, "level") : NULL;
    bool good = false;
    if (PyErr_Occurred() != NULL) {
        /* no memory for a key */
    } else if (desc_dict == NULL || level == NULL || !PyDict_Check(desc_dict)) {
        hy3d_py_value_error("plan lacks 'desc' or 'level': pass what schedule_plan gave.");
    } else {
        good = read_desc(desc_dict, desc) && hy3d_py_int64(level, "level", level_out);
    }
    Py_DECREF(dict);
    return good;
}

/* The plan that the dictionary was made from: same description, level fixed, budget out of play. */
static bool plan_again(const hy3d_py_state *state, PyObject *dict, hy3d_tiles_plan *plan)
{
    if (!PyDict_Check(dict)) {
        return hy3d_py_type_error("plan must be the dictionary that schedule_plan gave, not %R.",
                                  (PyObject *)Py_TYPE(dict));
    }
    hy3d_tiles_desc desc;
    int64_t number = -1;
    if (!read_plan(dict, &desc, &number)) {
        return false;
    }
    const int most = desc.shrink > 2 ? HY3D_TILES_MAX_FINE_LEVEL : HY3D_TILES_MAX_LEVEL;
    if (number < 0 || number > most) {
        return hy3d_py_value_error("level is %lld: it must be from 0 to %d.", (long long)number,
                                   most);
    }
    desc.level = (int32_t)number;
    desc.budget_bytes = 0;
    const hy3d_status status = hy3d_tiles_make(&desc, NULL, plan);
    if (status != HY3D_OK) {
        hy3d_py_raise(state, status, "The plan's description is not valid any more: %s.",
                      hy3d_status_text(status));
    }
    return status == HY3D_OK;
}

PyObject *hy3d_py_schedule_tile(PyObject *module, PyObject *args, PyObject *kwargs)
{
    char *keywords[] = {"plan", "index", NULL};
    const hy3d_py_state *const state = hy3d_py_get_state(module);
    PyObject *dict = NULL;
    PyObject *index_object = NULL;
    int64_t index = 0;
    hy3d_tiles_plan plan = {.tiles = 0};
    hy3d_tile tile;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO:schedule_tile", keywords, &dict,
                                     &index_object) ||
        !hy3d_py_int64(index_object, "index", &index) || !plan_again(state, dict, &plan)) {
        return NULL;
    }
    const hy3d_status status = hy3d_tiles_at(&plan, index, &tile);
    if (status != HY3D_OK) {
        return hy3d_py_raise(state, status, "There is no tile %lld: the plan has %lld.",
                             (long long)index, (long long)plan.tiles);
    }
    return Py_BuildValue(
        "{sNsNsNsNsNsNsNsNsN}", "in_start", hy3d_py_tuple3(tile.in_start), "in_stop",
        hy3d_py_tuple3(tile.in_stop), "trim_start", hy3d_py_tuple3(tile.trim_start), "out_start",
        hy3d_py_tuple3(tile.out_start), "out_stop", hy3d_py_tuple3(tile.out_stop), "ramp_before",
        hy3d_py_tuple3(tile.ramp_before), "ramp_after", hy3d_py_tuple3(tile.ramp_after),
        "own_start", hy3d_py_tuple3(tile.own_start), "own_stop", hy3d_py_tuple3(tile.own_stop));
}

/* More positions than any picture or clip has; a slip of a caller must not cost gigabytes. */
#define MAX_WINDOW (INT64_C(1) << 24)

/* A memoryview of float32 over bytes: NumPy, torch and blend_accumulate all take it. */
static PyObject *as_floats(PyObject *bytes)
{
    PyObject *const view = PyMemoryView_FromObject(bytes);
    PyObject *const floats = view == NULL ? NULL : PyObject_CallMethod(view, "cast", "s", "f");
    Py_XDECREF(view);
    return floats;
}

PyObject *hy3d_py_schedule_window(PyObject *module, PyObject *args, PyObject *kwargs)
{
    char *keywords[] = {"length", "ramp_before", "ramp_after", NULL};
    const hy3d_py_state *const state = hy3d_py_get_state(module);
    PyObject *objects[3] = {NULL, NULL, NULL};
    int64_t values[3] = {0, 0, 0};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO:schedule_window", keywords, &objects[0],
                                     &objects[1], &objects[2])) {
        return NULL;
    }
    for (int i = 0; i < 3; i++) {
        if (!hy3d_py_int64(objects[i], keywords[i], &values[i])) {
            return NULL;
        }
    }
    if (values[0] < 1 || values[0] > MAX_WINDOW || values[1] < 0 || values[2] < 0 ||
        values[1] > values[0] || values[2] > values[0]) {
        hy3d_py_value_error("A window of %lld with ramps of %lld and %lld does not exist: length "
                            "must be from 1 to 2**24, each ramp from 0 to the length.",
                            (long long)values[0], (long long)values[1], (long long)values[2]);
        return NULL;
    }
    const hy3d_tile tile = {
        .out_stop = {values[0]}, .ramp_before = {values[1]}, .ramp_after = {values[2]}};
    PyObject *const bytes =
        PyBytes_FromStringAndSize(NULL, (Py_ssize_t)values[0] * (Py_ssize_t)sizeof(float));
    if (bytes == NULL) {
        return NULL;
    }
    float *const window = (float *)(void *)PyBytes_AsString(bytes);
    const hy3d_status status = hy3d_tile_window(&tile, 0, window);
    PyObject *const result =
        status == HY3D_OK
            ? as_floats(bytes)
            : hy3d_py_raise(state, status,
                            "A window of %lld with ramps of %lld and %lld does not "
                            "exist.",
                            (long long)values[0], (long long)values[1], (long long)values[2]);
    Py_DECREF(bytes);
    return result;
}
