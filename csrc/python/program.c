/* Decode programs: a graph and a request as tuples of numbers in, steps as tuples out.
 *
 * A Schedule owns the core's and the workspace function, which a fallback may ask again.
 * A Program is a Schedule's program until a fallback gives that up: what it tells is copied out,
 * and one that is over says so. */
#include "hy3d/schedule.h"

#include "python/core.h"

#include <limits.h>
#include <math.h>
#include <string.h>

/* --- numbers from tuples ---------------------------------------------------------------------- */

typedef enum kind { SMALL, WIDE, REAL } kind; /* int32_t (or uint32_t), int64_t, double */
enum { MOST_VALUES = 3 };

typedef struct field {
    const char *name;
    Py_ssize_t offset;
    kind kind;
    int count; /* more than 1: a tuple of so many */
    int64_t minimum;
} field;

#define FIELD(type, name, kind, count, minimum)                                                    \
    {#name, (Py_ssize_t)offsetof(type, name), kind, count, minimum}
#define NODE(name, kind, count) FIELD(hy3d_node, name, kind, count, INT32_MIN)
#define REQUEST(name, kind, count, minimum) FIELD(hy3d_schedule_request, name, kind, count, minimum)
#define MACHINE(name, kind, count) FIELD(hy3d_machine, name, kind, count, 0)
#define LENGTH(table) ((int)(sizeof(table) / sizeof(table)[0]))

/* In the order of graph.h, and of hy3d_rocm/decoding/graph.py's Node. */
static const field node_fields[] = {
    NODE(op, SMALL, 1),           NODE(source, SMALL, 1),        NODE(other, SMALL, 1),
    NODE(norm, SMALL, 1),         NODE(channels, WIDE, 1),       NODE(kernel, SMALL, 3),
    NODE(stride, SMALL, 3),       NODE(dilation, SMALL, 3),      NODE(up, SMALL, 3),
    NODE(before, SMALL, 3),       NODE(after, SMALL, 3),         NODE(shuffle, SMALL, 3),
    NODE(groups, SMALL, 1),       NODE(keep_first, SMALL, 1),    NODE(skip_first, SMALL, 1),
    NODE(reread, SMALL, 1),       NODE(shuffle_first, SMALL, 1), NODE(drop, SMALL, 1),
    NODE(span, SMALL, 1),         NODE(heads, SMALL, 1),         NODE(width, WIDE, 1),
    NODE(frames_first, SMALL, 1), NODE(frames_rest, SMALL, 1),   NODE(frames_per, SMALL, 1),
    NODE(space_up, SMALL, 2),     NODE(space_down, SMALL, 2),
};
static const field machine_fields[] = {
    MACHINE(slice_bytes, WIDE, 2),      MACHINE(chunks, SMALL, HY3D_SCHEDULE_MAX_CHUNKS),
    MACHINE(macs_per_second, REAL, 1),  MACHINE(bytes_per_second, REAL, 1),
    MACHINE(seconds_per_step, REAL, 1), MACHINE(own_seconds_share, REAL, 1),
};
static const field halo_fields[] = {
    FIELD(hy3d_tile_sizes, halo, WIDE, 1, -1),
    FIELD(hy3d_tile_sizes, overlap, WIDE, 1, 0),
    FIELD(hy3d_tile_sizes, smallest, WIDE, 1, 1),
};
#define LAYER(name, kind, count) FIELD(hy3d_layer, name, kind, count, 0)
#define PLACE(name, kind) FIELD(hy3d_place, name, kind, 1, 0)
static const field layer_fields[] = {
    LAYER(is_native, SMALL, 1),   LAYER(pad_mode, SMALL, 2),    LAYER(is_fused, SMALL, 1),
    LAYER(is_composed, SMALL, 1), LAYER(is_rescaled, SMALL, 1), LAYER(kept_bytes, WIDE, 1),
    LAYER(packed_bytes, WIDE, 1),
};
static const field place_fields[] = {
    PLACE(dtype, SMALL),         PLACE(threads, SMALL),    PLACE(fewest_shuffled, SMALL),
    PLACE(block_elements, WIDE), PLACE(score_bytes, WIDE),
};
/* Keyword arguments; the graph, what is said of each node, the machines, the halos and the
 * functions are read beside them. */
static const field request_fields[] = {
    REQUEST(size, WIDE, 3, 1),
    REQUEST(element_bytes, WIDE, 1, 1),
    REQUEST(input_bytes, WIDE, 1, 0),
    REQUEST(source_bytes, WIDE, 1, 0),
    REQUEST(result_bytes, WIDE, 1, 0),
    REQUEST(kept_bytes, WIDE, 1, 0),
    REQUEST(most_shape_bytes, WIDE, 1, 0),
    REQUEST(device_budget, WIDE, 1, 0),
    REQUEST(host_budget, WIDE, 1, 0),
    REQUEST(device_room, WIDE, 1, 0),
    REQUEST(margin_bytes, WIDE, 1, 0),
    REQUEST(margin_permille, SMALL, 1, 0),
    REQUEST(is_unified, SMALL, 1, 0),
    REQUEST(is_host, SMALL, 1, 0),
    REQUEST(may_spill, SMALL, 1, 0),
    REQUEST(may_repack, SMALL, 1, 0),
    REQUEST(compiles_all, SMALL, 1, 0),
    REQUEST(strategies, SMALL, 1, 0),
    REQUEST(unit, SMALL, 3, 0),
    REQUEST(busy_positions, WIDE, 1, 0),
    REQUEST(copy_bytes_per_second, REAL, 1, 0),
    REQUEST(only_level, SMALL, 1, 0),
    REQUEST(statistic_passes, SMALL, 1, 0),
    REQUEST(own_bytes, WIDE, 1, HY3D_OWN_BYTES_ASKED),
    REQUEST(rank, SMALL, 1, 0),
    REQUEST(ranks, SMALL, 1, 0),
    REQUEST(link_bytes_per_second, REAL, 1, 0),
};

static bool read_real(PyObject *value, const char *name, double *out)
{
    const double number = PyFloat_AsDouble(value);
    const bool failed = PyErr_Occurred() != NULL;
    if (failed && PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Clear();
        return hy3d_py_type_error("%s must be a number, not %R.", name, (PyObject *)Py_TYPE(value));
    }
    if (!failed && !(isfinite(number) && number > 0)) {
        return hy3d_py_value_error("%s is %R: it must be above 0 and finite.", name, value);
    }
    *out = number;
    return !failed;
}

static bool read_whole(const field *f, PyObject *value, const char *name, void *place)
{
    int64_t wide[MOST_VALUES];
    if (f->count == 1 ? !hy3d_py_int64(value, name, wide)
                      : !hy3d_py_int64_array(value, name, f->count, wide)) {
        return false;
    }
    for (int i = 0; i < f->count; i++) {
        if (wide[i] < f->minimum || (f->kind == SMALL && wide[i] > INT32_MAX)) {
            return hy3d_py_value_error("%s has %lld: it must be from %lld to %lld.", name,
                                       (long long)wide[i], (long long)f->minimum,
                                       f->kind == SMALL ? (long long)INT32_MAX : LLONG_MAX);
        }
        if (f->kind == SMALL) {
            ((int32_t *)place)[i] = (int32_t)wide[i];
        } else {
            ((int64_t *)place)[i] = wide[i];
        }
    }
    return true;
}

/* owner: what the field belongs to, for the sentence; may be empty. */
static bool read_field(const field *f, PyObject *value, const char *owner, void *base)
{
    char name[80];
    void *const place = (char *)base + f->offset;
    PyOS_snprintf(name, sizeof name, "%s%s", owner, f->name);
    return f->kind == REAL ? read_real(value, name, place) : read_whole(f, value, name, place);
}

/* A tuple with a value for each field in the table's order. */
static bool read_record(const field *table, int count, PyObject *value, const char *owner,
                        void *base)
{
    if (!PyTuple_Check(value)) {
        return hy3d_py_type_error("%s must be a tuple, not %R.", owner, (PyObject *)Py_TYPE(value));
    }
    if (PyTuple_Size(value) != count) {
        return hy3d_py_value_error("%s has %zd values: it needs %d.", owner, PyTuple_Size(value),
                                   count);
    }
    char prefix[48];
    PyOS_snprintf(prefix, sizeof prefix, "%s.", owner);
    for (int i = 0; i < count; i++) {
        if (!read_field(&table[i], PyTuple_GetItem(value, i), prefix, base)) {
            return false;
        }
    }
    return true;
}

/* The items of a tuple or list, so many at most; NULL with an exception. */
static PyObject *items_of(PyObject *value, const char *name, Py_ssize_t most)
{
    if (!PyTuple_Check(value) && !PyList_Check(value)) {
        hy3d_py_type_error("%s must be a tuple, not %R.", name, (PyObject *)Py_TYPE(value));
        return NULL;
    }
    PyObject *const items = hy3d_py_items(value);
    if (items != NULL && PyTuple_Size(items) > most) {
        hy3d_py_value_error("%s has %zd entries: it may have %zd.", name, PyTuple_Size(items),
                            most);
        Py_DECREF(items);
        return NULL;
    }
    return items;
}

/* A record of `bytes` for each item, PyMem_Malloc'ed; NULL with an exception. */
static void *read_records(PyObject *value, const char *name, const field *table, int fields,
                          size_t bytes, int32_t *count_out)
{
    PyObject *const items = items_of(value, name, HY3D_GRAPH_MAX_NODES);
    if (items == NULL) {
        return NULL;
    }
    const Py_ssize_t count = PyTuple_Size(items);
    char *const records = PyMem_Calloc((size_t)count + 1, bytes);
    bool good = records != NULL;
    if (!good) {
        PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; good && i < count; i++) {
        char owner[32];
        PyOS_snprintf(owner, sizeof owner, "%s[%d]", name, (int)i);
        good = read_record(table, fields, PyTuple_GetItem(items, i), owner,
                           records + (size_t)i * bytes);
    }
    Py_DECREF(items);
    if (!good) {
        PyMem_Free(records);
        return NULL;
    }
    *count_out = (int32_t)count;
    return records;
}

static hy3d_node *read_nodes(PyObject *value, int32_t *count_out)
{
    return read_records(value, "nodes", node_fields, LENGTH(node_fields), sizeof(hy3d_node),
                        count_out);
}

/* A number for each node, PyMem_Malloc'ed; NULL with an exception. */
static int32_t *read_alike(PyObject *value, int32_t count)
{
    int64_t *const wide = PyMem_Calloc((size_t)count + 1, sizeof *wide);
    int32_t *const alike = PyMem_Calloc((size_t)count + 1, sizeof *alike);
    bool good = wide != NULL && alike != NULL;
    if (!good) {
        PyErr_NoMemory();
    }
    good = good && hy3d_py_int64_array(value, "alike", count, wide);
    for (int32_t i = 0; good && i < count; i++) {
        good = (wide[i] >= 0 && wide[i] <= i && wide[wide[i]] == wide[i]) ||
               hy3d_py_value_error("alike[%d] is %lld: it must be the first node of its kind.",
                                   (int)i, (long long)wide[i]);
        alike[i] = good ? (int32_t)wide[i] : 0;
    }
    PyMem_Free(wide);
    if (!good) {
        PyMem_Free(alike);
        return NULL;
    }
    return alike;
}

/* A number for each rank. */
static bool read_of_ranks(PyObject *value, const char *name, int32_t ranks, int64_t least,
                          int64_t most, int64_t out[HY3D_SCHEDULE_MAX_RANKS])
{
    PyObject *const items = items_of(value, name, HY3D_SCHEDULE_MAX_RANKS);
    if (items == NULL) {
        return false;
    }
    const Py_ssize_t count = PyTuple_Size(items);
    bool good = count == ranks || hy3d_py_value_error("%s has %zd entries: there are %d ranks.",
                                                      name, count, (int)ranks);
    for (Py_ssize_t i = 0; good && i < count; i++) {
        good = hy3d_py_int64(PyTuple_GetItem(items, i), name, &out[i]) &&
               ((out[i] >= least && out[i] <= most) ||
                hy3d_py_value_error("%s has %lld: it must be from %lld to %lld.", name,
                                    (long long)out[i], (long long)least, (long long)most));
    }
    Py_DECREF(items);
    return good;
}

/* What is said of each rank. */
typedef struct of_ranks {
    int64_t wide[HY3D_SCHEDULE_MAX_RANKS], budgets[HY3D_SCHEDULE_MAX_RANKS];
    int32_t weights[HY3D_SCHEDULE_MAX_RANKS];
} of_ranks;

/* Either may be NULL. The core looks at the weights' sum. */
static bool read_ranks(PyObject *weights, PyObject *budgets, of_ranks *out,
                       hy3d_schedule_request *request)
{
    if ((weights != NULL &&
         !read_of_ranks(weights, "weights", request->ranks, 1, INT32_MAX, out->wide)) ||
        (budgets != NULL &&
         !read_of_ranks(budgets, "device_budgets", request->ranks, 0, INT64_MAX, out->budgets))) {
        return false;
    }
    for (int32_t rank = 0; weights != NULL && rank < request->ranks; rank++) {
        out->weights[rank] = (int32_t)out->wide[rank];
    }
    request->weights = weights == NULL ? NULL : out->weights;
    request->device_budgets = budgets == NULL ? NULL : out->budgets;
    return true;
}

/* (dtype, threads, ..., a record for each node); the records are PyMem_Malloc'ed. */
static bool read_place(PyObject *value, int32_t count, hy3d_place *out, void **layers_out)
{
    const int last = LENGTH(place_fields);
    if (!PyTuple_Check(value) || PyTuple_Size(value) != last + 1) {
        return hy3d_py_type_error("A place must be a tuple of %d.", last + 1);
    }
    for (int i = 0; i < last; i++) {
        if (!read_field(&place_fields[i], PyTuple_GetItem(value, i), "places.", out)) {
            return false;
        }
    }
    int32_t found = 0;
    *layers_out = read_records(PyTuple_GetItem(value, last), "layers", layer_fields,
                               LENGTH(layer_fields), sizeof *out->layers, &found);
    out->layers = *layers_out;
    return out->layers != NULL &&
           (found == count || hy3d_py_value_error("A place has %d layers: the graph has %d nodes.",
                                                  (int)found, (int)count));
}

/* The device's, then the host's. The caller frees their layers, also with an exception. */
static bool read_places(PyObject *value, int32_t count, hy3d_place places[2], void *layers[2])
{
    PyObject *const items = items_of(value, "places", 2);
    bool good = items != NULL;
    for (Py_ssize_t i = 0; good && i < PyTuple_Size(items); i++) {
        good = read_place(PyTuple_GetItem(items, i), count, &places[i], &layers[i]);
    }
    Py_XDECREF(items);
    return good;
}

static bool read_halos(PyObject *value, hy3d_tile_sizes *halos)
{
    PyObject *const items = items_of(value, "halos", HY3D_SCHEDULE_MAX_HALOS);
    bool good = items != NULL;
    for (Py_ssize_t i = 0; good && i < PyTuple_Size(items); i++) {
        good = read_record(halo_fields, LENGTH(halo_fields), PyTuple_GetItem(items, i), "halos",
                           &halos[i]);
    }
    Py_XDECREF(items);
    return good;
}

/* What a caller may leave out is 0, but for own_bytes, which is not known. */
static bool read_entry(const char *key, PyObject *value, hy3d_schedule_request *request)
{
    if (strcmp(key, "device") == 0 || strcmp(key, "host") == 0) {
        return read_record(machine_fields, LENGTH(machine_fields), value, key,
                           key[0] == 'd' ? &request->device : &request->host);
    }
    if (strcmp(key, "halos") == 0) {
        return read_halos(value, request->halos);
    }
    for (int i = 0; i < LENGTH(request_fields); i++) {
        if (strcmp(key, request_fields[i].name) == 0) {
            return read_field(&request_fields[i], value, "", request);
        }
    }
    return hy3d_py_type_error("compile_schedule has no argument '%.60s'.", key);
}

/* kwargs is this call's own dictionary; its values are held by it. */
static bool read_request(PyObject *kwargs, hy3d_schedule_request *request)
{
    PyObject *key = NULL;
    PyObject *value = NULL;
    Py_ssize_t position = 0;
    request->own_bytes = -1;
    while (PyDict_Next(kwargs, &position, &key, &value)) {
        PyObject *const bytes = PyUnicode_AsUTF8String(key);
        const char *const name = bytes == NULL ? NULL : PyBytes_AsString(bytes);
        const bool good =
            name != NULL && (strcmp(name, "workspace") == 0 || strcmp(name, "alike") == 0 ||
                             strcmp(name, "inside") == 0 || strcmp(name, "places") == 0 ||
                             strcmp(name, "weights") == 0 || strcmp(name, "device_budgets") == 0 ||
                             read_entry(name, value, request));
        Py_XDECREF(bytes);
        if (!good) {
            return false;
        }
    }
    return true;
}

/* --- tuples out ------------------------------------------------------------------------------- */

static PyObject *pair(const int64_t values[2])
{
    return Py_BuildValue("(LL)", (long long)values[0], (long long)values[1]);
}

/* values NULL: so many times -1. */
static PyObject *numbers(const int32_t *values, int32_t count)
{
    PyObject *const tuple = PyTuple_New(count);
    for (int32_t i = 0; tuple != NULL && i < count; i++) {
        PyObject *const number = PyLong_FromLong(values == NULL ? -1 : values[i]);
        if (number == NULL) {
            Py_DECREF(tuple);
            return NULL;
        }
        PyTuple_SetItem(tuple, i, number);
    }
    return tuple;
}

/* refs NULL: they are not known yet, only how many there are (a step that is being compiled). */
static PyObject *step_tuple(const hy3d_step *step, const int32_t *refs)
{
    const bool known = refs != NULL;
    const int32_t *const sources = known ? refs + step->first_ref : NULL;
    const int32_t *const others = known ? sources + step->sources : NULL;
    const int32_t *const frees = known ? others + step->others : NULL;
    return Py_BuildValue("(iiiiNNNNiiNNNNNLL)", (int)step->op, (int)step->node, (int)step->slice,
                         (int)step->flags, pair(step->own), pair(step->frames), pair(step->reads),
                         pair(step->rows), (int)step->drop, (int)step->peer, pair(step->read_rows),
                         pair(step->row_padding), numbers(sources, step->sources),
                         numbers(others, step->others), numbers(frees, step->frees),
                         (long long)step->macs, (long long)step->workspace_bytes);
}

static PyObject *slice_tuple(const hy3d_slice *slice)
{
    return Py_BuildValue("(iiNNLL)", (int)slice->node, (int)slice->is_keys, pair(slice->frames),
                         pair(slice->rows), (long long)slice->bytes, (long long)slice->host_at);
}

static PyObject *section_dict(const hy3d_section *section)
{
    return Py_BuildValue("{sisisisisisisNsNsN}", "kind", (int)section->kind, "pass",
                         (int)section->pass, "tile", (int)section->tile, "first_step",
                         (int)section->first_step, "steps", (int)section->steps, "slices",
                         (int)section->slices, "size", hy3d_py_tuple3(section->size), "rows",
                         pair(section->rows), "columns", pair(section->columns));
}

static PyObject *candidate_dict(const hy3d_candidate *c)
{
    return Py_BuildValue(
        "{sssssisisLsisisLs(LL)sisLsisisssisisisLsLsLsLsLsLsLsLsd}", "strategy",
        hy3d_strategy_name(c->strategy), "order", hy3d_order_name(c->order), "on_host",
        (int)c->on_host, "chunk", (int)c->chunk, "slice_bytes", (long long)c->slice_bytes, "level",
        (int)c->level, "halo_row", (int)c->halo_row, "tiles", (long long)c->tiles, "tile",
        (long long)c->tile[0], (long long)c->tile[1], "is_exact", (int)c->is_exact,
        "resident_bytes", (long long)c->resident_bytes, "is_early", (int)c->is_early, "repacks",
        (int)c->repacks, "status", hy3d_status_name((hy3d_status)c->status), "fits", (int)c->fits,
        "lacks_room", (int)c->lacks_room, "is_bound", (int)c->is_bound, "device_bytes",
        (long long)c->device_bytes, "host_bytes", (long long)c->host_bytes, "margin_bytes",
        (long long)c->margin_bytes, "stored_bytes", (long long)c->stored_bytes, "loaded_bytes",
        (long long)c->loaded_bytes, "sent_bytes", (long long)c->sent_bytes, "macs",
        (long long)c->macs, "steps", (long long)c->steps, "seconds", c->seconds);
}

static PyObject *cut_dict(const hy3d_cut *cut)
{
    return Py_BuildValue("{sisisisLsL}", "node", (int)cut->node, "group_norms",
                         (int)cut->group_norms, "frame_norms", (int)cut->frame_norms, "scale",
                         (long long)cut->scale, "reach", (long long)cut->reach);
}

/* --- Schedule --------------------------------------------------------------------------------- */

typedef struct schedule_object {
    PyObject_HEAD
    hy3d_schedule *schedule;
    PyObject *workspace; /* a callable */
    int32_t nodes;       /* of its graph */
    PyObject *inside;    /* a callable; NULL where none was given */
    PyObject *module;    /* keeps the context alive that the memory belongs to */
    int64_t given_up;    /* programs so far */
    bool is_busy;        /* the core runs, and may call Python */
} schedule_object;

static schedule_object *schedule_of(PyObject *self)
{
    void *const memory = self;
    return memory;
}

static hy3d_context *context_of(const schedule_object *object)
{
    return hy3d_py_get_state(object->module)->context;
}

static int schedule_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(schedule_of(self)->workspace);
    Py_VISIT(schedule_of(self)->inside);
    Py_VISIT(schedule_of(self)->module);
    return 0;
}

/* Not the module, which is needed until the memory has gone back. */
static int schedule_clear(PyObject *self)
{
    Py_CLEAR(schedule_of(self)->workspace);
    Py_CLEAR(schedule_of(self)->inside);
    return 0;
}

static void schedule_dealloc(PyObject *self)
{
    PyTypeObject *const type = Py_TYPE(self);
    schedule_object *const object = schedule_of(self);
    PyObject_GC_UnTrack(self);
    if (object->schedule != NULL) {
        hy3d_schedule_destroy(context_of(object), object->schedule);
    }
    Py_XDECREF(object->workspace);
    Py_XDECREF(object->inside);
    Py_XDECREF(object->module);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* Claims the schedule for a call of the core; false with an exception where it runs already. */
static bool claim(schedule_object *object)
{
    bool is_free = false;
    HY3D_PY_LOCK((PyObject *)object)
    is_free = !object->is_busy && object->schedule != NULL;
    object->is_busy |= is_free;
    HY3D_PY_UNLOCK()
    return is_free ||
           hy3d_py_value_error("The schedule is being compiled: ask it when that is over.");
}

static void let_go(schedule_object *object)
{
    HY3D_PY_LOCK((PyObject *)object)
    object->is_busy = false;
    HY3D_PY_UNLOCK()
}

/* The callable's answer to the core's question: four numbers, the last a shape's; NULL arguments
 * are an exception. */
static hy3d_status call(PyObject *callable, PyObject *arguments, const char *name, bool may_be_none,
                        int64_t told[4])
{
    PyObject *answer = NULL;
    if (callable == NULL) {
        hy3d_py_value_error("The schedule has no %s function any more.", name);
    } else if (arguments != NULL) {
        answer = PyObject_Call(callable, arguments, NULL);
    }
    Py_XDECREF(arguments);
    if (answer == Py_None && may_be_none) {
        Py_DECREF(answer);
        return HY3D_ERR_UNSUPPORTED;
    }
    char what[40];
    PyOS_snprintf(what, sizeof what, "the %s's answer", name);
    bool good = answer != NULL && hy3d_py_int64_array(answer, what, 4, told);
    if (good && (told[0] < 0 || told[1] < 0 || told[2] < 0 || told[3] < 0 ||
                 told[3] >= HY3D_SCHEDULE_MAX_SHAPES)) {
        good = hy3d_py_value_error("The %s's answer is %R: all must be at least 0, the shape's "
                                   "number below %d.",
                                   name, answer, HY3D_SCHEDULE_MAX_SHAPES);
    }
    Py_XDECREF(answer);
    return good ? HY3D_OK : HY3D_ERR_CANCELLED;
}

/* Of the VAE's own code (the one step of WHOLE, without a slice) None where nobody can tell. The
 * callable's exception stays set. */
static hy3d_status ask_workspace(void *user, const hy3d_step *step, const hy3d_size *source,
                                 int32_t on_host, hy3d_step_memory *taken_out)
{
    const schedule_object *const object = user;
    PyObject *const arguments =
        Py_BuildValue("(N(LLLL)O)", step_tuple(step, NULL), (long long)source->channels,
                      (long long)source->frames, (long long)source->rows,
                      (long long)source->columns, on_host != 0 ? Py_True : Py_False);
    const bool is_own = step->op == HY3D_STEP_OPAQUE && step->slice < 0;
    int64_t told[4] = {0, 0, 0, 0};
    const hy3d_status status = call(object->workspace, arguments, "workspace", is_own, told);
    if (status == HY3D_OK) {
        *taken_out = (hy3d_step_memory){.workspace_bytes = told[0],
                                        .kept_bytes = told[1],
                                        .shape_bytes = told[2],
                                        .shape = (int32_t)told[3]};
    }
    return status;
}

static hy3d_status ask_inside(void *user, const hy3d_call *c, hy3d_step_memory *taken_out)
{
    const schedule_object *const object = user;
    PyObject *const arguments = Py_BuildValue(
        "(iiO(LLLL)(LL)O(LL)(LL))", (int)c->node, (int)c->part,
        c->on_host != 0 ? Py_True : Py_False, (long long)c->source.channels,
        (long long)c->source.frames, (long long)c->source.rows, (long long)c->source.columns,
        (long long)c->row_padding[0], (long long)c->row_padding[1],
        c->is_made != 0 ? Py_True : Py_False, (long long)c->reads[0], (long long)c->reads[1],
        (long long)c->makes[0], (long long)c->makes[1]);
    int64_t told[4] = {0, 0, 0, 0};
    const hy3d_status status = call(object->inside, arguments, "inside", false, told);
    if (status == HY3D_OK) {
        *taken_out = (hy3d_step_memory){.workspace_bytes = told[0],
                                        .is_in_place = told[1] != 0,
                                        .shape_bytes = told[2],
                                        .shape = (int32_t)told[3]};
    }
    return status;
}

/* The sentence of a graph or a request that was refused. */
static PyObject *refuse(const hy3d_py_state *state, hy3d_status status, const hy3d_graph *graph,
                        const int64_t size[3])
{
    int32_t node = -1;
    const bool is_graph = hy3d_graph_check(graph, size, &node) != HY3D_OK;
    if (is_graph && node >= 0) {
        return hy3d_py_raise(state, status,
                             "Node %d of %d (op %d) is wrong for an input of (%lld, %lld, %lld): "
                             "%s.",
                             (int)node, (int)graph->count, (int)graph->nodes[node].op,
                             (long long)size[0], (long long)size[1], (long long)size[2],
                             hy3d_status_text(status));
    }
    if (is_graph) {
        return hy3d_py_raise(state, status,
                             "%d nodes are no graph for an input of (%lld, %lld, %lld): %s.",
                             (int)graph->count, (long long)size[0], (long long)size[1],
                             (long long)size[2], hy3d_status_text(status));
    }
    if (status == HY3D_ERR_UNSUPPORTED) {
        return hy3d_py_raise(state, status,
                             "No strategy that is allowed can run this graph: allow more.");
    }
    if (status == HY3D_ERR_OUT_OF_MEMORY) {
        return hy3d_py_raise(state, status, "No memory to compile a program of %d nodes.",
                             (int)graph->count);
    }
    return hy3d_py_raise(state, status, "The request for a program was refused, %s.",
                         hy3d_status_text(status));
}

static bool is_usable(hy3d_status status)
{
    return status == HY3D_OK || status == HY3D_ERR_BUDGET_TOO_SMALL;
}

/* The object first: it is what the functions get. Nothing can be asked of it until the
 * core is done, since it is busy. */
static PyObject *compile(PyObject *module, const hy3d_py_state *state,
                         hy3d_schedule_request *request, PyObject *workspace, PyObject *inside)
{
    void *const type = state->schedule_type;
    /* NULL once the garbage collector has cleared the module. */
    PyObject *const self = type == NULL ? PyErr_NoMemory() : PyType_GenericAlloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    schedule_object *const object = schedule_of(self);
    Py_INCREF(module);
    object->module = module;
    Py_INCREF(workspace);
    object->workspace = workspace;
    Py_XINCREF(inside);
    object->inside = inside;
    object->nodes = request->graph.count;
    object->is_busy = true;
    request->workspace = ask_workspace;
    request->inside = inside == NULL ? NULL : ask_inside;
    request->user = object;
    hy3d_schedule *schedule = NULL;
    const hy3d_status status = hy3d_schedule_compile(state->context, request, &schedule);
    if (is_usable(status)) {
        object->schedule = schedule;
    }
    let_go(object);
    if (is_usable(status) && PyErr_Occurred() == NULL) {
        return self;
    }
    if (PyErr_Occurred() == NULL) {
        refuse(state, status, &request->graph, request->size);
    }
    Py_DECREF(self);
    return NULL;
}

/* Borrowed; NULL where it is not given, or with an exception. */
static PyObject *argument(PyObject *kwargs, const char *key)
{
    PyObject *const name = PyUnicode_FromString(key);
    PyObject *const value =
        kwargs == NULL || name == NULL ? NULL : PyDict_GetItemWithError(kwargs, name);
    Py_XDECREF(name);
    return value;
}

PyObject *hy3d_py_compile_schedule(PyObject *module, PyObject *args, PyObject *kwargs)
{
    const hy3d_py_state *const state = hy3d_py_get_state(module);
    hy3d_schedule_request request;
    memset(&request, 0, sizeof request);
    static const char *const names[] = {"workspace", "inside",  "alike",
                                        "places",    "weights", "device_budgets"};
    PyObject *given[LENGTH(names)];
    for (int i = 0; i < LENGTH(names); i++) {
        given[i] = argument(kwargs, names[i]);
        if (PyErr_Occurred() != NULL) {
            return NULL;
        }
    }
    PyObject *const workspace = given[0], *const inside = given[1];
    if (PyTuple_Size(args) != 1 || workspace == NULL || !PyCallable_Check(workspace) ||
        (inside != NULL && !PyCallable_Check(inside))) {
        hy3d_py_type_error("compile_schedule takes the nodes, and by keywords a callable "
                           "workspace, size and what else the request says.");
        return NULL;
    }
    of_ranks ranks;
    if (!read_request(kwargs, &request) || !read_ranks(given[4], given[5], &ranks, &request)) {
        return NULL;
    }
    hy3d_node *const nodes = read_nodes(PyTuple_GetItem(args, 0), &request.graph.count);
    if (nodes == NULL) {
        return NULL;
    }
    request.graph.nodes = nodes;
    int32_t *const kinds = given[2] == NULL ? NULL : read_alike(given[2], request.graph.count);
    request.alike = kinds;
    void *layers[2] = {NULL, NULL};
    const bool good =
        (given[2] == NULL || kinds != NULL) &&
        (given[3] == NULL || read_places(given[3], request.graph.count, request.places, layers));
    PyObject *const self = good ? compile(module, state, &request, workspace, inside) : NULL;
    PyMem_Free(layers[0]); /* the core has copied all of them */
    PyMem_Free(layers[1]);
    PyMem_Free(kinds);
    PyMem_Free(nodes);
    return self;
}

PyObject *hy3d_py_graph_sizes(PyObject *module, PyObject *args, PyObject *kwargs)
{
    char *keywords[] = {"nodes", "size", NULL};
    const hy3d_py_state *const state = hy3d_py_get_state(module);
    PyObject *nodes_object = NULL;
    PyObject *size_object = NULL;
    int64_t size[3];
    hy3d_graph graph = {NULL, 0};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO:graph_sizes", keywords, &nodes_object,
                                     &size_object) ||
        !hy3d_py_int64_array(size_object, "size", 3, size)) {
        return NULL;
    }
    hy3d_node *const nodes = read_nodes(nodes_object, &graph.count);
    hy3d_size *const sizes =
        nodes == NULL ? NULL : PyMem_Calloc((size_t)graph.count + 1, sizeof *sizes);
    PyObject *result = NULL;
    if (nodes != NULL && sizes == NULL) {
        PyErr_NoMemory();
    } else if (nodes != NULL) {
        graph.nodes = nodes;
        const hy3d_status status = hy3d_graph_sizes(&graph, size, sizes);
        result = status == HY3D_OK ? PyTuple_New(graph.count) : refuse(state, status, &graph, size);
    }
    for (int32_t i = 0; result != NULL && i < graph.count; i++) {
        PyObject *const entry =
            Py_BuildValue("(LLLL)", (long long)sizes[i].channels, (long long)sizes[i].frames,
                          (long long)sizes[i].rows, (long long)sizes[i].columns);
        if (entry == NULL) {
            Py_CLEAR(result);
        } else {
            PyTuple_SetItem(result, i, entry);
        }
    }
    PyMem_Free(sizes);
    PyMem_Free(nodes);
    return result;
}

static PyObject *all_candidates(const schedule_object *object)
{
    const hy3d_candidate *candidates = NULL;
    const int32_t count = hy3d_schedule_candidates(object->schedule, &candidates);
    PyObject *list = PyList_New(0);
    for (int32_t i = 0; list != NULL && i < count; i++) {
        PyObject *const dict = candidate_dict(&candidates[i]);
        if (dict == NULL || PyList_Append(list, dict) != 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(dict);
    }
    return list;
}

static PyObject *schedule_candidates(PyObject *self, void *ignored)
{
    (void)ignored;
    if (!claim(schedule_of(self))) {
        return NULL;
    }
    PyObject *const list = all_candidates(schedule_of(self));
    let_go(schedule_of(self));
    return list;
}

static PyObject *schedule_smallest_budget(PyObject *self, void *ignored)
{
    (void)ignored;
    if (!claim(schedule_of(self))) {
        return NULL;
    }
    const int64_t smallest = hy3d_schedule_smallest_budget(schedule_of(self)->schedule);
    let_go(schedule_of(self));
    return PyLong_FromLongLong(smallest);
}

/* --- Program ---------------------------------------------------------------------------------- */

typedef struct program_object {
    PyObject_HEAD
    PyObject *owner;  /* the Schedule */
    int64_t given_up; /* of the owner when it was made */
} program_object;

static program_object *program_of(PyObject *self)
{
    void *const memory = self;
    return memory;
}

static int program_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(program_of(self)->owner);
    return 0;
}

static void program_dealloc(PyObject *self)
{
    PyTypeObject *const type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_XDECREF(program_of(self)->owner);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyObject *schedule_program(PyObject *self, void *ignored)
{
    (void)ignored;
    schedule_object *const object = schedule_of(self);
    if (!claim(object)) {
        return NULL;
    }
    const bool exists = hy3d_schedule_program(object->schedule) != NULL;
    const int64_t given_up = object->given_up;
    let_go(object);
    if (!exists) {
        Py_RETURN_NONE;
    }
    void *const type = hy3d_py_get_state(object->module)->program_type;
    PyObject *const made = type == NULL ? PyErr_NoMemory() : PyType_GenericAlloc(type, 0);
    if (made != NULL) {
        Py_INCREF(self);
        program_of(made)->owner = self;
        program_of(made)->given_up = given_up;
    }
    return made;
}

/* The program, its schedule claimed; NULL with an exception, and nothing claimed. */
static const hy3d_program *open_program(PyObject *self)
{
    schedule_object *const owner = schedule_of(program_of(self)->owner);
    if (!claim(owner)) {
        return NULL;
    }
    const hy3d_program *const program = hy3d_schedule_program(owner->schedule);
    if (program != NULL && owner->given_up == program_of(self)->given_up) {
        return program;
    }
    let_go(owner);
    hy3d_py_value_error("This program was given up: take the schedule's program.");
    return NULL;
}

static PyObject *close_program(PyObject *self, PyObject *result)
{
    let_go(schedule_of(program_of(self)->owner));
    return result;
}

static PyObject *program_candidate(PyObject *self, void *ignored)
{
    (void)ignored;
    const hy3d_program *const program = open_program(self);
    return program == NULL ? NULL : close_program(self, candidate_dict(&program->candidate));
}

static PyObject *program_cut(PyObject *self, void *ignored)
{
    (void)ignored;
    const hy3d_program *const program = open_program(self);
    return program == NULL ? NULL : close_program(self, cut_dict(&program->cut));
}

static int32_t ranks_of(const hy3d_program *program)
{
    int32_t ranks = 0;
    while (ranks < HY3D_SCHEDULE_MAX_RANKS && program->weights[ranks] > 0) {
        ranks++;
    }
    return ranks;
}

static PyObject *program_weights(PyObject *self, void *ignored)
{
    (void)ignored;
    const hy3d_program *const program = open_program(self);
    return program == NULL ? NULL
                           : close_program(self, numbers(program->weights, ranks_of(program)));
}

/* Of each rank a pair: `rows` are `apart` numbers apart. */
static PyObject *rows_of_ranks(PyObject *self, const hy3d_program *program, const int64_t *rows,
                               int apart)
{
    PyObject *found = PyTuple_New(ranks_of(program));
    for (int32_t rank = 0; found != NULL && rank < ranks_of(program); rank++) {
        PyObject *const one = pair(&rows[rank * apart]);
        if (one == NULL) {
            Py_CLEAR(found);
        } else {
            PyTuple_SetItem(found, rank, one);
        }
    }
    return close_program(self, found);
}

static PyObject *program_shares(PyObject *self, void *ignored)
{
    (void)ignored;
    const hy3d_program *const program = open_program(self);
    return program == NULL ? NULL : rows_of_ranks(self, program, program->shares, 1);
}

static PyObject *program_input_rows(PyObject *self, void *ignored)
{
    (void)ignored;
    const hy3d_program *const program = open_program(self);
    return program == NULL ? NULL : rows_of_ranks(self, program, program->input_rows[0], 2);
}

static PyObject *program_copies_bytes(PyObject *self, void *ignored)
{
    (void)ignored;
    const hy3d_program *const program = open_program(self);
    return program == NULL ? NULL : close_program(self, PyLong_FromLongLong(program->copies_bytes));
}

static PyObject *program_prefix_bytes(PyObject *self, void *ignored)
{
    (void)ignored;
    const hy3d_program *const program = open_program(self);
    return program == NULL ? NULL : close_program(self, PyLong_FromLongLong(program->prefix_bytes));
}

static PyObject *program_tiles(PyObject *self, void *ignored)
{
    (void)ignored;
    const hy3d_program *const program = open_program(self);
    if (program == NULL) {
        return NULL;
    }
    const bool has_tiles = program->candidate.order == HY3D_ORDER_TILES;
    return close_program(self,
                         has_tiles ? hy3d_py_tiles_desc(&program->tiles) : Py_NewRef(Py_None));
}

/* `count` of what make(data, i) gives, as a tuple. */
static PyObject *tuple_of(const void *data, int32_t count,
                          PyObject *(*make)(const void *data, int32_t index))
{
    PyObject *tuple = PyTuple_New(count);
    for (int32_t i = 0; tuple != NULL && i < count; i++) {
        PyObject *const item = make(data, i);
        if (item == NULL) {
            Py_CLEAR(tuple);
        } else {
            PyTuple_SetItem(tuple, i, item);
        }
    }
    return tuple;
}

static PyObject *section_at(const void *data, int32_t index)
{
    return section_dict(&((const hy3d_program *)data)->sections[index]);
}

static PyObject *program_sections(PyObject *self, void *ignored)
{
    (void)ignored;
    const hy3d_program *const program = open_program(self);
    return program == NULL
               ? NULL
               : close_program(self, tuple_of(program, program->section_count, section_at));
}

/* What belongs to one section. */
typedef struct part {
    const hy3d_program *program;
    const hy3d_section *section;
} part;

static PyObject *step_at(const void *data, int32_t index)
{
    const part *const p = data;
    return step_tuple(&p->program->steps[p->section->first_step + index], p->program->refs);
}

static PyObject *kept_at(const void *data, int32_t index)
{
    const part *const p = data;
    return PyLong_FromLongLong(p->program->kept[p->section->first_step + index]);
}

static PyObject *slice_at(const void *data, int32_t index)
{
    const part *const p = data;
    return slice_tuple(&p->program->slices[p->section->first_slice + index]);
}

/* The section of that number, its program opened. */
static bool open_part(PyObject *self, PyObject *number, part *out)
{
    int64_t index = 0;
    if (!hy3d_py_int64(number, "section", &index)) {
        return false;
    }
    out->program = open_program(self);
    if (out->program == NULL) {
        return false;
    }
    const int32_t count = out->program->section_count;
    if (index < 0 || index >= count) {
        close_program(self, NULL);
        hy3d_py_value_error("There is no section %lld: the program has %d.", (long long)index,
                            (int)count);
        return false;
    }
    out->section = &out->program->sections[index];
    return true;
}

/* What make() gives of each step, or slice, of the section of that number. */
static PyObject *all_of(PyObject *self, PyObject *number, bool is_of_slices,
                        PyObject *(*make)(const void *data, int32_t index))
{
    part p;
    if (!open_part(self, number, &p)) {
        return NULL;
    }
    const int32_t count = is_of_slices ? p.section->slices : p.section->steps;
    return close_program(self, tuple_of(&p, count, make));
}

static PyObject *program_steps(PyObject *self, PyObject *number)
{
    return all_of(self, number, false, step_at);
}

static PyObject *program_step(PyObject *self, PyObject *args)
{
    PyObject *number = NULL;
    PyObject *index_object = NULL;
    int64_t index = 0;
    part p;
    if (!PyArg_ParseTuple(args, "OO", &number, &index_object) ||
        !hy3d_py_int64(index_object, "index", &index) || !open_part(self, number, &p)) {
        return NULL;
    }
    if (index >= 0 && index < p.section->steps) {
        return close_program(self, step_at(&p, (int32_t)index));
    }
    hy3d_py_value_error("There is no step %lld: the section has %d.", (long long)index,
                        (int)p.section->steps);
    return close_program(self, NULL);
}

static PyObject *program_kept(PyObject *self, PyObject *number)
{
    return all_of(self, number, false, kept_at);
}

static PyObject *program_start(PyObject *self, PyObject *args)
{
    int64_t wanted = 0;
    PyObject *wanted_object = NULL;
    if (!PyArg_ParseTuple(args, "O", &wanted_object) ||
        !hy3d_py_int64(wanted_object, "wanted", &wanted) || open_program(self) == NULL) {
        return NULL;
    }
    const schedule_object *const owner = schedule_of(program_of(self)->owner);
    const int64_t start = hy3d_schedule_start(owner->schedule, wanted);
    return close_program(self, PyLong_FromLongLong(start));
}

static PyObject *program_prepared(PyObject *self, PyObject *args)
{
    (void)args;
    if (open_program(self) == NULL) {
        return NULL;
    }
    const schedule_object *const owner = schedule_of(program_of(self)->owner);
    const hy3d_py_state *const state = hy3d_py_get_state(owner->module);
    hy3d_prepared *const found = PyMem_Calloc((size_t)owner->nodes + 1, sizeof *found);
    PyObject *result = NULL;
    if (found == NULL) {
        PyErr_NoMemory();
    } else {
        const hy3d_status status = hy3d_schedule_prepared(state->context, owner->schedule, found);
        result = status == HY3D_OK
                     ? PyTuple_New(owner->nodes)
                     : hy3d_py_raise(state, status, "No layouts of weights can be chosen: %s.",
                                     hy3d_status_text(status));
    }
    for (int32_t i = 0; result != NULL && i < owner->nodes; i++) {
        PyObject *const one = Py_BuildValue("(IL)", found[i].format, (long long)found[i].bytes);
        if (one == NULL) {
            Py_CLEAR(result);
        } else {
            PyTuple_SetItem(result, i, one);
        }
    }
    PyMem_Free(found);
    return close_program(self, result);
}

static PyObject *program_slices(PyObject *self, PyObject *number)
{
    return all_of(self, number, true, slice_at);
}

/* --- what follows a failure ------------------------------------------------------------------- */

static const char *const reasons[] = {
    "out of memory", "out of host memory", "no kernel", "not finite", "refused", "cancelled"};
static const char *const actions[] = {"step again", "begin again", "wider", "stop"};

static bool read_reason(PyObject *value, hy3d_reason *out)
{
    for (int i = 0; PyUnicode_Check(value) && i < LENGTH(reasons); i++) {
        if (PyUnicode_CompareWithASCIIString(value, reasons[i]) == 0) {
            *out = (hy3d_reason)i;
            return true;
        }
    }
    return hy3d_py_value_error("reason is %R: it must be 'out of memory', 'out of host memory', "
                               "'no kernel', 'not finite', 'refused' or 'cancelled'.",
                               value);
}

static PyObject *fall_back(PyObject *self, int64_t attempts, hy3d_reason reason, bool can_widen)
{
    const hy3d_program *const program = open_program(self);
    if (program == NULL) {
        return NULL;
    }
    schedule_object *const owner = schedule_of(program_of(self)->owner);
    if (attempts < 1 || attempts > INT32_MAX) {
        hy3d_py_value_error("attempts is %lld: it must be at least 1.", (long long)attempts);
        return close_program(self, NULL);
    }
    hy3d_action action = HY3D_ACTION_STOP;
    const hy3d_status status = hy3d_schedule_fallback(
        context_of(owner), owner->schedule, (int32_t)attempts, reason, can_widen, &action);
    owner->given_up += action == HY3D_ACTION_BEGIN_AGAIN || status != HY3D_OK;
    close_program(self, NULL);
    if (PyErr_Occurred() != NULL) {
        return NULL;
    }
    if (status != HY3D_OK) {
        return hy3d_py_raise(hy3d_py_get_state(owner->module), status,
                             "What follows the failure could not be compiled: %s.",
                             hy3d_status_text(status));
    }
    return PyUnicode_FromString(actions[action]);
}

static PyObject *program_fallback(PyObject *self, PyObject *args, PyObject *kwargs)
{
    char *keywords[] = {"attempts", "reason", "can_widen", NULL};
    PyObject *attempts_object = NULL;
    PyObject *reason_object = NULL;
    int can_widen = 0;
    int64_t attempts = 0;
    hy3d_reason reason = HY3D_REASON_OUT_OF_MEMORY;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|p:fallback", keywords, &attempts_object,
                                     &reason_object, &can_widen) ||
        !hy3d_py_int64(attempts_object, "attempts", &attempts) ||
        !read_reason(reason_object, &reason)) {
        return NULL;
    }
    return fall_back(self, attempts, reason, can_widen != 0);
}

/* --- types ------------------------------------------------------------------------------------ */

static PyGetSetDef schedule_getset[] = {
    {"candidates", schedule_candidates, NULL, "What was compiled, in the order offered.", NULL},
    {"smallest_budget", schedule_smallest_budget, NULL, "The least device_budget that fits.", NULL},
    {"program", schedule_program, NULL, "What to carry out; None where nothing fits.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot schedule_slots[] = {
    {Py_tp_doc, "The candidates of a decode, and the one that was taken."},
    {Py_tp_dealloc, schedule_dealloc},
    {Py_tp_traverse, schedule_traverse},
    {Py_tp_clear, schedule_clear},
    {Py_tp_getset, schedule_getset},
    {0, NULL},
};

static PyGetSetDef program_getset[] = {
    {"candidate", program_candidate, NULL, "What it does, and what that takes.", NULL},
    {"cut", program_cut, NULL, "Where the graph is cut in two.", NULL},
    {"weights", program_weights, NULL, "Rows are shared by ranks in this ratio.", NULL},
    {"shares", program_shares, NULL, "The output's rows of each rank.", NULL},
    {"input_rows", program_input_rows, NULL, "The input's rows that each rank's slices have.",
     NULL},
    {"prefix_bytes", program_prefix_bytes, NULL, "Of the prefix's output.", NULL},
    {"copies_bytes", program_copies_bytes, NULL, "Host memory for all that leaves.", NULL},
    {"tiles", program_tiles, NULL, "How tiles are placed, as schedule_plan takes it, or None.",
     NULL},
    {"sections", program_sections, NULL, "A dictionary each.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef program_methods[] = {
    {"steps", program_steps, METH_O, "The steps of a section, a tuple each."},
    {"step", program_step, METH_VARARGS, "One step of a section."},
    {"kept", program_kept, METH_O, "Bytes that steps leave until the end."},
    {"slices", program_slices, METH_O, "The slices of a section, a tuple each."},
    {"prepared", program_prepared, METH_NOARGS, "The layout and bytes of each node's weights."},
    {"start", program_start, METH_VARARGS, "Where an input may begin for the same bits."},
    {"fallback", (PyCFunction)(void (*)(void))program_fallback, METH_VARARGS | METH_KEYWORDS,
     "What comes after a step failed."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot program_slots[] = {
    {Py_tp_doc, "What a decode carries out, step by step."},
    {Py_tp_dealloc, program_dealloc},
    {Py_tp_traverse, program_traverse},
    {Py_tp_getset, program_getset},
    {Py_tp_methods, program_methods},
    {0, NULL},
};

#define TYPE_FLAGS                                                                                 \
    (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |                          \
     Py_TPFLAGS_DISALLOW_INSTANTIATION)

static PyType_Spec schedule_spec = {
    .name = "hy3d_rocm._core.Schedule",
    .basicsize = (int)sizeof(schedule_object),
    .flags = TYPE_FLAGS,
    .slots = schedule_slots,
};

static PyType_Spec program_spec = {
    .name = "hy3d_rocm._core.Program",
    .basicsize = (int)sizeof(program_object),
    .flags = TYPE_FLAGS,
    .slots = program_slots,
};

int hy3d_py_program_register(PyObject *module, hy3d_py_state *state)
{
    state->schedule_type = PyType_FromModuleAndSpec(module, &schedule_spec, NULL);
    if (state->schedule_type == NULL ||
        PyModule_AddObjectRef(module, "Schedule", state->schedule_type) != 0) {
        return -1;
    }
    state->program_type = PyType_FromModuleAndSpec(module, &program_spec, NULL);
    return state->program_type == NULL
               ? -1
               : PyModule_AddObjectRef(module, "Program", state->program_type);
}
