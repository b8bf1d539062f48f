/* Runs every C suite that is there. check_hy3d [SUITE]: that suite only. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support.h"

#ifdef HAVE_TEST_BASE
Suite *hy3d_base_suite(void);
#endif
#ifdef HAVE_TEST_PARALLEL
Suite *hy3d_parallel_suite(void);
#endif
#ifdef HAVE_TEST_BLAS
Suite *hy3d_blas_suite(void);
#endif
#ifdef HAVE_TEST_KERNELS
Suite *hy3d_kernels_suite(void);
#endif
#ifdef HAVE_TEST_CONV3D
Suite *hy3d_conv3d_suite(void);
#endif
#ifdef HAVE_TEST_SCHEDULE
Suite *hy3d_schedule_suite(void);
#endif
#ifdef HAVE_TEST_SEED
Suite *hy3d_seed_suite(void);
#endif

typedef struct named_suite {
    const char *name;
    Suite *(*make)(void);
} named_suite;

static const named_suite suites[] = {
#ifdef HAVE_TEST_BASE
    {"base", hy3d_base_suite},
#endif
#ifdef HAVE_TEST_PARALLEL
    {"parallel", hy3d_parallel_suite},
#endif
#ifdef HAVE_TEST_BLAS
    {"blas", hy3d_blas_suite},
#endif
#ifdef HAVE_TEST_KERNELS
    {"kernels", hy3d_kernels_suite},
#endif
#ifdef HAVE_TEST_CONV3D
    {"conv3d", hy3d_conv3d_suite},
#endif
#ifdef HAVE_TEST_SCHEDULE
    {"schedule", hy3d_schedule_suite},
#endif
#ifdef HAVE_TEST_SEED
    {"seed", hy3d_seed_suite},
#endif
};

static void report_skips(int file)
{
    char kind;
    long blas = 0, other = 0;
    if (lseek(file, 0, SEEK_SET) == 0) {
        while (read(file, &kind, 1) == 1) {
            blas += kind == 'b';
            other += kind != 'b';
        }
    }
    if (blas != 0 || other != 0) {
        printf("skipped: %ld for want of a BLAS library (set HY3D_BLAS_LIBRARY), %ld for want of "
               "an instruction set\n",
               blas, other);
    }
}

int main(int argc, char **argv)
{
    FILE *const skips = tmpfile();
    if (skips == NULL) {
        perror("tmpfile");
        return EXIT_FAILURE;
    }
    char number[16];
    snprintf(number, sizeof number, "%d", fileno(skips));
    setenv("HY3D_TEST_SKIPS", number, 1);

    SRunner *runner = NULL;
    for (size_t i = 0; i < COUNT_OF(suites); i++) {
        if (argc > 1 && strcmp(argv[1], suites[i].name) != 0) {
            continue;
        }
        if (runner == NULL) {
            runner = srunner_create(suites[i].make());
        } else {
            srunner_add_suite(runner, suites[i].make());
        }
    }
    if (runner == NULL) {
        fprintf(stderr, "no suite of that name\n");
        return EXIT_FAILURE;
    }
    srunner_run_all(runner, CK_NORMAL);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    report_skips(fileno(skips));
    fclose(skips);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
