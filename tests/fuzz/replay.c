/* Runs the kept corpora through their targets, by any compiler: replay CORPUS...
 *
 * A corpus is "hy3dfuzz", then records: four bytes of length, lowest first, and that many bytes.
 * Its file is named after the target. A record that fails aborts, and its number is told (counted
 * from 0, as tests/fuzz/corpora.py reads them). */
#include "fuzz.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct named_target {
    const char *name;
    void (*run)(const uint8_t *data, size_t size);
} named_target;

static const named_target targets[] = {
    {"conv3d", fuzz_conv3d}, {"schedule", fuzz_schedule}, {"raster", fuzz_raster},
    {"program", fuzz_program}};

static const named_target *target_of(const char *path)
{
    const char *const slash = strrchr(path, '/');
    const char *const name = slash == NULL ? path : slash + 1;
    for (size_t i = 0; i < COUNT_OF(targets); i++) {
        if (strncmp(name, targets[i].name, strlen(targets[i].name)) == 0) {
            return &targets[i];
        }
    }
    return NULL;
}

/* What runs now, for whoever reads that it failed. */
static const char *current_name;
static volatile long current_record;

static void tell(int number)
{
    fprintf(stderr, "replay: input %ld of %s\n", current_record, current_name);
    signal(number, SIG_DFL);
    raise(number);
}

/* Records of a corpus that were run; -1: not a corpus. */
static long replay(FILE *file, const named_target *target)
{
    unsigned char head[8], length[4];
    long count = 0;
    if (fread(head, 1, sizeof head, file) != sizeof head || memcmp(head, "hy3dfuzz", 8) != 0) {
        return -1;
    }
    while (fread(length, 1, sizeof length, file) == sizeof length) {
        const size_t size = length[0] | (size_t)length[1] << 8 | (size_t)length[2] << 16 |
                            (size_t)length[3] << 24;
        /* Of exact size, so that a sanitizer sees what reads beyond it. */
        uint8_t *const data = size > (1U << 20) ? NULL : malloc(size == 0 ? 1 : size);
        if (data == NULL || fread(data, 1, size, file) != size) {
            free(data);
            return -1;
        }
        current_name = target->name;
        current_record = count++;
        target->run(data, size);
        free(data);
    }
    return count;
}

int main(int argc, char **argv)
{
    long all = 0;
    signal(SIGABRT, tell);
    signal(SIGSEGV, tell);
    for (int i = 1; i < argc; i++) {
        const named_target *const target = target_of(argv[i]);
        FILE *const file = fopen(argv[i], "rb");
        const long count = target == NULL || file == NULL ? -1 : replay(file, target);
        if (file != NULL) {
            fclose(file);
        }
        if (count < 0) {
            fprintf(stderr, "%s is no corpus of a target\n", argv[i]);
            return EXIT_FAILURE;
        }
        all += count;
    }
    printf("%ld kept fuzz inputs of %d targets replayed, 0 failures\n", all, argc - 1);
    return EXIT_SUCCESS;
}
