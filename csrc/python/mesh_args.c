#include "python/mesh_args.h"

#include <math.h>
#include <string.h>

static bool acquire_array(hy3d_py_mesh_call *call, int i, PyObject *object)
{
    const hy3d_py_array *const array = &call->arrays[i];
    hy3d_py_flat *const flat = &call->flats[i];
    if (array->optional && object == Py_None) {
        return true;
    }
    if (!hy3d_py_flat_acquire(object, array->name, array->item, array->ndim, array->writable,
                              flat)) {
        return false;
    }
    const int64_t last = flat->size[array->ndim - 1];
    if (array->last != 0 && last != array->last) {
        return hy3d_py_value_error("%s has %lld values a row: it needs %d.", array->name,
                                   (long long)last, array->last);
    }
    return true;
}

static bool check_overlaps(const hy3d_py_mesh_call *call)
{
    for (int i = 0; i < call->count; i++) {
        for (int j = 0; call->arrays[i].writable && j < call->count; j++) {
            if (i != j && hy3d_py_flat_overlaps(&call->flats[i], &call->flats[j])) {
                return hy3d_py_value_error("%s and %s share memory: pass arrays of their own.",
                                           call->arrays[i].name, call->arrays[j].name);
            }
        }
    }
    return true;
}

static bool acquire(hy3d_py_mesh_call *call, PyObject *const *objects, PyObject *threads,
                    PyObject *cancel)
{
    if (threads != NULL && !hy3d_py_int64(threads, "threads", &call->threads)) {
        return false;
    }
    if (call->threads < 0 || call->threads > 1024) {
        return hy3d_py_value_error("threads is %lld: it must be 0 to 1024.",
                                   (long long)call->threads);
    }
    if (!hy3d_py_cancel_from(call->state, cancel, &call->cancel)) {
        return false;
    }
    /* Whoever passed it may drop it while we compute, or while arrays are asked for theirs. */
    Py_INCREF(cancel);
    call->cancel_object = cancel;
    for (int i = 0; i < call->count; i++) {
        if (!acquire_array(call, i, objects[i])) {
            return false;
        }
    }
    return check_overlaps(call);
}

static void release(hy3d_py_mesh_call *call)
{
    for (int i = 0; i < call->count; i++) {
        hy3d_py_flat_release(&call->flats[i]);
    }
    Py_CLEAR(call->cancel_object);
}

bool hy3d_py_mesh_run(const hy3d_py_mesh_function *function, hy3d_py_mesh_call *call,
                      PyObject *const *objects, PyObject *threads, PyObject *cancel)
{
    call->arrays = function->arrays;
    call->count = function->count;
    bool good = acquire(call, objects, threads, cancel) && function->check(call);
    if (good) {
        hy3d_py_compute compute;
        call->cancel = hy3d_py_compute_begin(&compute, call->state, call->cancel);
        const hy3d_status status = hy3d_py_compute_end(&compute, function->run(call));
        if (status != HY3D_OK) {
            function->explain(call, status);
            good = false;
        }
    }
    release(call);
    return good;
}

bool hy3d_py_mesh_choice(const char *name, const char *text, const char *const words[2],
                         int *option)
{
    for (int i = 0; i < 2; i++) {
        if (strcmp(text, words[i]) == 0) {
            *option = i;
            return true;
        }
    }
    return hy3d_py_value_error("%s is \"%s\": it must be \"%s\" or \"%s\".", name, text, words[0],
                               words[1]);
}

bool hy3d_py_mesh_same(const hy3d_py_mesh_call *call, int a, int dim_a, int b, int dim_b)
{
    const int64_t one = call->flats[a].size[dim_a], other = call->flats[b].size[dim_b];
    if (one == other) {
        return true;
    }
    return hy3d_py_value_error("%s has size %lld in dimension %d but %s has %lld in dimension %d: "
                               "they must be equal.",
                               call->arrays[a].name, (long long)one, dim_a, call->arrays[b].name,
                               (long long)other, dim_b);
}

bool hy3d_py_mesh_picture(const hy3d_py_mesh_call *call, int array)
{
    for (int dim = 0; dim < 2; dim++) {
        const int64_t size = call->flats[array].size[dim];
        if (size < 1 || size > HY3D_RASTER_MOST_PIXELS_A_SIDE) {
            return hy3d_py_value_error("%s is %lld pixels %s: it must be 1 to %d.",
                                       call->arrays[array].name, (long long)size,
                                       dim == 0 ? "high" : "wide", HY3D_RASTER_MOST_PIXELS_A_SIDE);
        }
    }
    return true;
}

/* The problem's row of an array that is there and has it, else NULL. */
static const void *problem_row(const hy3d_py_mesh_call *call, int array)
{
    const hy3d_py_flat *const flat = &call->flats[array];
    const int64_t at = call->problem.at;
    if (!flat->held || at < 0 || at >= flat->size[0]) {
        return NULL;
    }
    return (const char *)flat->data + at * flat->size[1] * 4;
}

bool hy3d_py_mesh_bad_face(const hy3d_py_mesh_call *call, int faces, int64_t count,
                           const char *targets)
{
    const int32_t *const row = problem_row(call, faces);
    const int64_t value = call->problem.value;
    if (call->problem.fault != HY3D_RASTER_BAD_INDEX || row == NULL ||
        (value >= 0 && value < count) || (row[0] != value && row[1] != value && row[2] != value)) {
        return false;
    }
    hy3d_py_value_error("%s has index %lld in face %lld: there are %lld %s, and the first is 0.",
                        call->arrays[faces].name, (long long)value, (long long)call->problem.at,
                        (long long)count, targets);
    return true;
}

bool hy3d_py_mesh_not_finite(const hy3d_py_mesh_call *call, int array, const char *rows)
{
    const float *const row = problem_row(call, array);
    if (call->problem.fault != HY3D_RASTER_NOT_FINITE || row == NULL) {
        return false;
    }
    for (int64_t i = 0; i < call->flats[array].size[1]; i++) {
        if (!isfinite(row[i])) {
            hy3d_py_value_error(
                "%s has a NaN or an infinity in %s %lld: its values must be finite.",
                call->arrays[array].name, rows, (long long)call->problem.at);
            return true;
        }
    }
    return false;
}
