/* The table of a convolution's arguments, and the loop that reads them. */
#include "python/conv_args.h"

#include <limits.h>
#include <stddef.h>
#include <string.h>

#include "python/py_prepared.h"

typedef enum kind {
    CANCEL,   /* a CancelFlag */
    PREPARED, /* a PreparedWeights */
    INTEGER,  /* int64_t */
    TRIPLE,   /* three of them (T, H, W) */
    COUNT,    /* uint32_t */
    BYTES,    /* size_t; 0 is none at all */
    WORD,     /* an enum, in the order of `words` */
    WORDS,    /* three of them, or one for all axes */
    FRAMES,
    ARRAY,
} kind;

typedef struct entry {
    char *name;
    kind kind;
    size_t target;    /* where in hy3d_py_conv it goes; frames and arrays know */
    int least;        /* of INTEGER and TRIPLE; ARRAY: dimensions, 0: conv_check.c asks */
    bool none;        /* None is as good as not given */
    const char *rule; /* of WORD and WORDS: what it must be */
    const char *words[5];
} entry;

_Static_assert(HY3D_PY_CONV_ARGS <= 32, "hy3d_py_conv.given has a bit for each");
/* Where a word is written. */
_Static_assert(sizeof(hy3d_pad_mode) == sizeof(int) && sizeof(hy3d_dtype) == sizeof(int) &&
                   sizeof(hy3d_accuracy) == sizeof(int) && sizeof(hy3d_activation) == sizeof(int),
               "enums are ints");

#define AT(member) offsetof(hy3d_py_conv, member)
#define ANY INT_MIN
enum { MOST = 22 }; /* arguments of one function */

static const entry table[HY3D_PY_CONV_ARGS] = {
    [HY3D_PY_CANCEL] = {"cancel", CANCEL, AT(cancel), .none = true},
    [HY3D_PY_PREPARED] = {"prepared", PREPARED, AT(prepared), .none = true},
    [HY3D_PY_STRIDE] = {"stride", TRIPLE, AT(desc.stride), 1},
    [HY3D_PY_DILATION] = {"dilation", TRIPLE, AT(desc.dilation), 1},
    /* hy3d_py_conv_raise has the rule of these two. */
    [HY3D_PY_PAD_BEFORE] = {"pad_before", TRIPLE, AT(desc.pad_before), ANY},
    [HY3D_PY_PAD_AFTER] = {"pad_after", TRIPLE, AT(desc.pad_after), ANY},
    [HY3D_PY_PAD_MODES] = {"pad_modes", WORDS, AT(desc.pad_mode),
                           .rule = "each must be 'zeros' or 'replicate'",
                           .words = {"zeros", "replicate"}},
    /* hy3d_py_conv_groups has the rule of these three. */
    [HY3D_PY_GROUPS] = {"groups", INTEGER, AT(desc.groups), ANY},
    [HY3D_PY_UPSAMPLE] = {"upsample", TRIPLE, AT(desc.upsample), 1, .none = true},
    [HY3D_PY_PAIRS] = {"pairs", COUNT, AT(desc.pairs)},
    [HY3D_PY_ACCURACY] = {"accuracy", WORD, AT(desc.accuracy),
                          .rule = "it must be 'exact' or 'fast'", .words = {"exact", "fast"}},
    [HY3D_PY_THREADS] = {"threads", COUNT, AT(desc.num_threads)},
    [HY3D_PY_WORKSPACE_LIMIT] = {"workspace_limit", BYTES, AT(desc.workspace_limit_bytes),
                                 .none = true},
    [HY3D_PY_IN_SIZE] = {"in_size", TRIPLE, AT(desc.in_size), 1},
    [HY3D_PY_KERNEL] = {"kernel", TRIPLE, AT(desc.kernel), 1},
    [HY3D_PY_IN_CHANNELS] = {"in_channels", INTEGER, AT(desc.in_channels), ANY},
    [HY3D_PY_OUT_CHANNELS] = {"out_channels", INTEGER, AT(desc.out_channels), ANY},
    [HY3D_PY_BATCH] = {"batch", INTEGER, AT(desc.batch), 0},
    [HY3D_PY_DTYPE] = {"dtype", WORD, AT(desc.dtype),
                       .rule = "it must be 'f32', 'f64', 'f16' or 'bf16'",
                       .words = {"f32", "f64", "f16", "bf16"}},
    [HY3D_PY_FORMAT] = {"format", COUNT, AT(format)},
    [HY3D_PY_ACTIVATION] = {"activation", WORD, AT(fusion.activation), .none = true,
                            .rule = "it must be 'silu' or None", .words = {"", "silu"}},
    [HY3D_PY_FRAMES] = {"frames", FRAMES, .none = true},
    [HY3D_PY_X] = {"x", ARRAY, .least = HY3D_TENSOR_DIMS},
    [HY3D_PY_WEIGHT] = {"weight", ARRAY, .least = HY3D_TENSOR_DIMS},
    [HY3D_PY_BIAS] = {"bias", ARRAY, .least = 1, .none = true},
    [HY3D_PY_OUT] = {"out", ARRAY, .least = HY3D_TENSOR_DIMS},
    [HY3D_PY_SCALE] = {"scale", ARRAY, .none = true},
    [HY3D_PY_SHIFT] = {"shift", ARRAY, .none = true},
    [HY3D_PY_RESIDUAL] = {"residual", ARRAY, .none = true},
};

/* Where an argument is not given, or is none of the function's; all else is 0 then. */
static const hy3d_conv3d_desc defaults = {
    .batch = 1, .in_channels = 1, .out_channels = 1, .groups = 1, .upsample = {1, 1, 1}};

const char *hy3d_py_conv_name(int argument)
{
    return table[argument].name;
}

static bool read_count(const entry *row, PyObject *object, uint64_t most, uint64_t *out)
{
    return hy3d_py_uint64(object, row->name, out) &&
           (*out <= most || hy3d_py_value_error("%s is %llu: there are not so many.", row->name,
                                                (unsigned long long)*out));
}

static bool read_integer(const entry *row, PyObject *object, int64_t *out)
{
    return hy3d_py_int64(object, row->name, out) &&
           (*out >= row->least || hy3d_py_value_error("%s is %lld: it must be at least %d.",
                                                      row->name, (long long)*out, row->least));
}

static bool read_word(const entry *row, PyObject *object, int *out)
{
    for (int i = 0; PyUnicode_Check(object) && row->words[i] != NULL; i++) {
        if (row->words[i][0] != '\0' &&
            PyUnicode_CompareWithASCIIString(object, row->words[i]) == 0) {
            *out = i;
            return true;
        }
    }
    return hy3d_py_value_error(row->kind == WORD ? "%s is %R: %s." : "%s has %R: %s.", row->name,
                               object, row->rule);
}

static bool read_words(const entry *row, PyObject *object, int out[3])
{
    if (PyUnicode_Check(object)) {
        const bool good = read_word(row, object, &out[0]);
        out[1] = out[2] = out[0];
        return good;
    }
    if (!PyTuple_Check(object) || PyTuple_Size(object) != 3) {
        return hy3d_py_type_error("%s must be '%s', '%s' or a tuple of three of them (T, H, W), "
                                  "not %R.",
                                  row->name, row->words[0], row->words[1],
                                  (PyObject *)Py_TYPE(object));
    }
    bool good = true;
    for (Py_ssize_t i = 0; good && i < 3; i++) {
        good = read_word(row, PyTuple_GetItem(object, i), &out[i]);
    }
    return good;
}

static bool read_array(const entry *row, PyObject *object, hy3d_py_conv *conv)
{
    hy3d_py_view *const view = &conv->views[row - &table[HY3D_PY_X]];
    if (!hy3d_py_view_acquire(object, row->name, row == &table[HY3D_PY_OUT], view)) {
        return false;
    }
    return view->ndim == row->least || row->least == 0 ||
           hy3d_py_value_error("%s has %d dimensions: it needs %d.", row->name, view->ndim,
                               row->least);
}

static bool read_argument(const hy3d_py_state *state, const entry *row, PyObject *object,
                          hy3d_py_conv *conv)
{
    void *const target = (char *)conv + row->target;
    int64_t *const integers = target;
    uint64_t count = 0;
    bool good;
    switch (row->kind) {
    case CANCEL:
        return hy3d_py_cancel_from(state, object, target);
    case PREPARED:
        return hy3d_py_prepared_from(state, object, target);
    case INTEGER:
        return read_integer(row, object, integers);
    case TRIPLE:
        return hy3d_py_int64_array(object, row->name, 3, integers) &&
               (row->least == ANY || hy3d_py_at_least(row->name, integers, row->least));
    case COUNT:
        good = read_count(row, object, UINT32_MAX, &count);
        *(uint32_t *)target = (uint32_t)count;
        return good;
    case BYTES:
        good = read_count(row, object, UINT64_MAX, &count);
        /* The core's 0 is its default. No workspace is a single byte, so 1 allows what 0 does. */
        count = count == 0 ? 1 : count;
        *(size_t *)target = count > SIZE_MAX ? SIZE_MAX : (size_t)count;
        return good;
    case WORD:
        return read_word(row, object, target);
    case WORDS:
        return read_words(row, object, target);
    case FRAMES:
        return hy3d_py_frames_acquire(state, object, conv);
    case ARRAY:
    default:
        return read_array(row, object, conv);
    }
}

/* The objects of a call, by their rows; new references. */
static bool parse(const char *format, const uint8_t *positions, PyObject *args, PyObject *kwargs,
                  hy3d_py_conv *conv)
{
    PyObject *objects[MOST] = {NULL};
    PyObject **const o = objects;
    char *names[MOST + 1];
    int count = 0;
    for (const char *c = format; *c != ':'; c++) {
        if (*c == 'O') {
            names[count] = table[positions[count]].name;
            count++;
        }
    }
    names[count] = NULL;
    /* As many of these are looked at as the format says. */
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, format, names, o, o + 1, o + 2, o + 3, o + 4,
                                     o + 5, o + 6, o + 7, o + 8, o + 9, o + 10, o + 11, o + 12,
                                     o + 13, o + 14, o + 15, o + 16, o + 17, o + 18, o + 19, o + 20,
                                     o + 21)) {
        return false;
    }
    for (int i = 0; i < count; i++) {
        const int row = positions[i];
        if (o[i] != NULL && !(table[row].none && o[i] == Py_None)) {
            conv->objects[row] = Py_NewRef(o[i]);
            conv->given |= 1U << row;
        }
    }
    return true;
}

bool hy3d_py_conv_read(const hy3d_py_state *state, const char *format, const uint8_t *positions,
                       PyObject *args, PyObject *kwargs, hy3d_py_conv *conv)
{
    memset(conv, 0, sizeof *conv);
    conv->context = state->context;
    conv->desc = defaults;
    if (!parse(format, positions, args, kwargs, conv)) {
        return false;
    }
    uint32_t rest = conv->given;
    bool good = true;
    if (conv->objects[HY3D_PY_FRAMES] != NULL) {
        good = conv->objects[HY3D_PY_X] == Py_None ||
               hy3d_py_value_error("x and frames are both given: frames take the place of x, so "
                                   "pass None for one of them.");
        rest &= ~(1U << HY3D_PY_X);
    }
    for (; good && rest != 0; rest &= rest - 1) {
        const int i = __builtin_ctz(rest);
        good = read_argument(state, &table[i], conv->objects[i], conv);
    }
    if (!good) {
        hy3d_py_conv_release(conv);
    }
    return good;
}

void hy3d_py_conv_release(hy3d_py_conv *conv)
{
    if (conv->frame_views != NULL) {
        hy3d_py_frames_release(conv);
    }
    for (; conv->given != 0; conv->given &= conv->given - 1) {
        const int i = __builtin_ctz(conv->given);
        if (i >= HY3D_PY_X) {
            hy3d_py_view_release(&conv->views[i - HY3D_PY_X]);
        }
        Py_CLEAR(conv->objects[i]);
    }
}
