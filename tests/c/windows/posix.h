/* The few POSIX calls that the C tests make and mingw-w64 does not have; read before every file of
 * the tests (-include), so that the tests themselves need not know the system. */
#ifndef HY3D_TESTS_WINDOWS_POSIX_H
#define HY3D_TESTS_WINDOWS_POSIX_H

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>
#include <time.h>

/* mingw-w64's pass a double to a function of float, where nothing is called, and gcc warns. */
#undef isnan
#undef isinf
#undef isfinite
#undef signbit
#define isnan(x) __builtin_isnan(x)
#define isinf(x) __builtin_isinf(x)
#define isfinite(x) __builtin_isfinite(x)
#define signbit(x) __builtin_signbit(x)

/* C's own formats (%zu, %jd), which mingw-w64's stdio has in C11, not those of msvcrt. */
#define TEST_PRINTF gnu_printf

/* winpthreads' does not wait at all for less than a millisecond. */
int test_nanosleep(const struct timespec *length, struct timespec *left);
#define nanosleep test_nanosleep

int setenv(const char *name, const char *value, int overwrite);
int unsetenv(const char *name);
enum { _SC_PAGESIZE = 30 };
long sysconf(int name);

/* There is no fork: a test that calls it ends there, and is named and counted as skipped. */
__attribute__((noreturn)) pid_t fork(void);
pid_t waitpid(pid_t child, int *state, int options);
unsigned alarm(unsigned seconds);

/* A file that the runner and its children both write: the runner makes it, children open it. */
FILE *test_shared_file(const char *name);
void test_shared_file_close(FILE *file, const char *name);

/* For check_compat.c. Which test this process is there for, counted from 1; 0: it is the runner. */
int test_child_of_runner(void);
/* Runs this program again for one test. false: it did not end well, `text` says how; *failed: the
 * test said so itself. */
bool test_run_child(int which, unsigned timeout_seconds, bool *failed, char *text, size_t size);
/* Threads of this process. */
int test_thread_count(void);

#endif
