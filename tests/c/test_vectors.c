/* Boundaries and overflows of every public function, with their exact status: tables, one file a
 * part of the interface. */
#include "vectors.h"

#include <stdio.h>
#include <string.h>

void vector_apply(const vector *v, void *arguments)
{
    for (int i = 0; i < VECTOR_SETS; i++) {
        unsigned char *const at = (unsigned char *)arguments + v->set[i].at;
        int64_t value = 0;
        if (v->set[i].bytes == 0) {
            continue;
        }
        if (v->set[i].is_added) {
            memcpy(&value, at, v->set[i].bytes);
        }
        /* Little-endian, as all that the library runs on; wraps where a sum does. */
        value = (int64_t)((uint64_t)value + (uint64_t)v->set[i].value);
        memcpy(at, &value, v->set[i].bytes);
    }
}

void vectors_check(const vector *table, size_t count, vector_call call)
{
    char wrong[1000] = "";
    size_t at = 0;
    int failed = 0;

    for (size_t i = 0; i < count; i++) {
        const hy3d_status got = call(&table[i]);
        if (got != table[i].status) {
            failed++;
            at += at >= sizeof wrong
                      ? 0
                      : (size_t)snprintf(wrong + at, sizeof wrong - at, "\n  %zu, %s: %s, not %s",
                                         i, table[i].what, hy3d_status_name(got),
                                         hy3d_status_name(table[i].status));
        }
    }
    ck_assert_msg(failed == 0, "%d of %zu vectors:%s", failed, count, wrong);
}

Suite *hy3d_vectors_suite(void);
Suite *hy3d_vectors_suite(void)
{
    Suite *const suite = suite_create("vectors");
    int count = vectors_conv3d_desc(suite);
    count += vectors_conv3d_run(suite);
    count += vectors_tiles(suite);
    count += vectors_base(suite);
    count += vectors_tensors(suite);
    count += vectors_raster(suite);
    count += vectors_mesh(suite);
    printf("vectors: %d\n", count);
    fflush(stdout); /* before tests fork */
    return suite;
}
