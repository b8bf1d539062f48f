/* Vectors: one call each, made of a good one by setting a few fields, and its exact status. */
#ifndef HY3D_TESTS_VECTORS_H
#define HY3D_TESTS_VECTORS_H

#include "support.h"

enum { VECTOR_SETS = 4 };

typedef struct vector {
    const char *what;
    struct {
        size_t at, bytes; /* 0 bytes: nothing */
        int64_t value;
        bool is_added; /* to what is there, else in its place */
    } set[VECTOR_SETS];
    hy3d_status status;
} vector;

#define VECTOR_SET(type, member, to) {offsetof(type, member), sizeof(((type *)0)->member), (to), 0}
#define VECTOR_ADD(type, member, by) {offsetof(type, member), sizeof(((type *)0)->member), (by), 1}

#define OK HY3D_OK
#define BAD HY3D_ERR_INVALID_ARGUMENT
#define SHAPE HY3D_ERR_SHAPE_MISMATCH
#define BIG HY3D_ERR_OVERFLOW
#define TWO(n) (INT64_C(1) << (n))

/* Sets what the vector says in the arguments of a good call. */
void vector_apply(const vector *v, void *arguments);
/* Every vector of a table: the statuses that are not what they should be fail the test together. */
typedef hy3d_status (*vector_call)(const vector *v);
void vectors_check(const vector *table, size_t count, vector_call call);

/* Adds the test cases of a part to the suite; the number of their vectors. */
int vectors_conv3d_desc(Suite *suite);
int vectors_conv3d_run(Suite *suite);
int vectors_tiles(Suite *suite);
int vectors_base(Suite *suite);
int vectors_tensors(Suite *suite);
int vectors_raster(Suite *suite);
int vectors_mesh(Suite *suite);

#endif
