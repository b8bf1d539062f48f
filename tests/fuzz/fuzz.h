/* What the fuzz targets share: numbers out of bytes, memory of exact size, and the one way to fail.
 *
 * A target is a function over bytes, so the same one runs under libFuzzer (entry.c) and, built by
 * any compiler, over the kept corpora (replay.c). Bytes that are missing read as 0. */
#ifndef HY3D_TESTS_FUZZ_H
#define HY3D_TESTS_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "counting.h"
#include "hy3d/context.h"
#include "hy3d/status.h"
#include "hy3d/tensor.h"

void fuzz_conv3d(const uint8_t *data, size_t size);
void fuzz_schedule(const uint8_t *data, size_t size);
void fuzz_raster(const uint8_t *data, size_t size);
void fuzz_program(const uint8_t *data, size_t size);

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/* A broken promise: says which, and aborts, so that a fuzzer keeps the input. */
#define FUZZ_CHECK(condition, ...)                                                                 \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fuzz_fail(__FILE__, __LINE__, #condition, __VA_ARGS__);                                \
        }                                                                                          \
    } while (0)
_Noreturn void fuzz_fail(const char *file, int line, const char *condition, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

typedef struct fuzz_input {
    const uint8_t *data;
    size_t size, at;
} fuzz_input;

uint8_t fuzz_byte(fuzz_input *in);
/* True about `of256` times in 256. */
bool fuzz_chance(fuzz_input *in, unsigned of256);
uint64_t fuzz_bits(fuzz_input *in);
/* low .. high, both included. */
int64_t fuzz_between(fuzz_input *in, int64_t low, int64_t high);
/* Mostly small, often at a power of two or beside it, at times any 64 bits. */
int64_t fuzz_number(fuzz_input *in);
/* Small whole numbers, halves, the odd ones of its type, at times any 32 bits. */
float fuzz_float(fuzz_input *in);

/* The context of a CPU level (taken modulo those of this machine), three threads; one each a
 * process. */
hy3d_context *fuzz_context(unsigned level);
/* What it takes its memory from. */
counting *fuzz_memory(const hy3d_context *context);
/* Arms the allocator now and then; tells whether a status may then be HY3D_ERR_OUT_OF_MEMORY. */
bool fuzz_arm(fuzz_input *in, hy3d_context *context);

/* Exactly so many bytes (1 where 0), aligned to 64, filled; ends the process where there are none.
 * Its neighbours are a sanitizer's. Released with free. */
void *fuzz_room(size_t bytes, int fill);
/* Small integers -limit .. limit from a seed. */
uint64_t fuzz_step(uint64_t *state);
int fuzz_small(uint64_t *state, int limit);

/* A tensor of these sizes in memory of its own, dimensions in any order, with gaps, backwards, and
 * where it is only read with strides of 0; all bytes are `fill`. */
typedef struct fuzz_tensor {
    hy3d_tensor tensor;
    unsigned char *memory;
    size_t bytes;
} fuzz_tensor;
fuzz_tensor fuzz_tensor_make(fuzz_input *in, hy3d_dtype dtype, const int64_t size[HY3D_TENSOR_DIMS],
                             bool written, int fill);
/* The same strides over memory of its own. */
fuzz_tensor fuzz_tensor_like(const fuzz_tensor *other);
void fuzz_tensor_free(fuzz_tensor *tensor);
void fuzz_tensor_fill(const hy3d_tensor *tensor, uint64_t seed, int limit);
/* Whether all bytes that belong to no element are still `fill`. */
bool fuzz_gaps_are(const fuzz_tensor *tensor, int fill);
double fuzz_get(const hy3d_tensor *tensor, const int64_t at[HY3D_TENSOR_DIMS]);
void fuzz_set(const hy3d_tensor *tensor, const int64_t at[HY3D_TENSOR_DIMS], double value);
/* Next index; false after the last. */
bool fuzz_next(const hy3d_tensor *tensor, int64_t at[HY3D_TENSOR_DIMS]);
bool fuzz_is_empty(const hy3d_tensor *tensor);
/* Spoils one field: a size, the type, a stride, the pointer. Whatever reads it must refuse it. */
void fuzz_spoil(fuzz_input *in, hy3d_tensor *tensor, bool written);

#endif
