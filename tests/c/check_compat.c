#define _GNU_SOURCE
/* The runner behind check_compat.h; empty where the Check library is used. */
#include "support.h"

#if HY3D_CHECK_COMPAT
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if !defined(_WIN32)
#include <sys/wait.h>
#endif
#include <unistd.h>

typedef struct entry {
    const compat_test *test;
    int start, end;
    struct entry *next;
} entry;

struct TCase {
    const char *name;
    unsigned timeout_seconds;
    entry *tests;
    TCase *next;
};

struct Suite {
    const char *name;
    TCase *cases;
    Suite *next;
};

struct SRunner {
    Suite *suites;
    bool forks;
    unsigned patience;           /* times the time-outs, for tools that slow the tests down */
    unsigned share, shares, met; /* this program runs each shares-th test, from number `share` on */
    int run, failures, errors;
    FILE *messages; /* shared with the children by being open before the fork */
    FILE *failed;   /* a line a failed test */
    const char *test_name;
    bool can_jump;
    jmp_buf back;
};

/* The runner at work: what compat_fail, called from anywhere, has to reach. */
static SRunner *current;

static void *get(size_t bytes)
{
    void *const memory = calloc(1, bytes);
    if (memory == NULL) {
        perror("calloc");
        exit(EXIT_FAILURE);
    }
    return memory;
}

Suite *suite_create(const char *name)
{
    Suite *const suite = get(sizeof *suite);
    suite->name = name;
    return suite;
}

TCase *tcase_create(const char *name)
{
    TCase *const tcase = get(sizeof *tcase);
    tcase->name = name;
    tcase_set_timeout(tcase, 4);
    return tcase;
}

void suite_add_tcase(Suite *suite, TCase *tcase)
{
    TCase **link = &suite->cases;
    while (*link != NULL) {
        link = &(*link)->next;
    }
    *link = tcase;
}

void tcase_set_timeout(TCase *tcase, double seconds)
{
    tcase->timeout_seconds = seconds < 1 ? 1 : (unsigned)seconds;
}

void compat_add(TCase *tcase, const compat_test *test, int start, int end)
{
    entry **link = &tcase->tests;
    while (*link != NULL) {
        link = &(*link)->next;
    }
    *link = get(sizeof **link);
    **link = (entry){test, start, end, NULL};
}

/* "2/16": the third of sixteen. */
static void read_share(SRunner *runner, const char *text)
{
    char *end = NULL;
    runner->shares = 1;
    if (text == NULL) {
        return;
    }
    const unsigned long share = strtoul(text, &end, 10);
    const unsigned long shares = *end == '/' ? strtoul(end + 1, &end, 10) : 0;
    if (*end != '\0' || share >= shares || shares > 4096) {
        fprintf(stderr, "HY3D_TEST_SHARE=%s: wanted I/N with I below N, as in 0/16\n", text);
        exit(EXIT_FAILURE);
    }
    runner->share = (unsigned)share;
    runner->shares = (unsigned)shares;
}

SRunner *srunner_create(Suite *suite)
{
    SRunner *const runner = get(sizeof *runner);
    const char *const forks = getenv("CK_FORK");
    const char *const patience = getenv("CK_TIMEOUT_MULTIPLIER");
    const unsigned long times = patience != NULL ? strtoul(patience, NULL, 10) : 0;
    runner->suites = suite;
    runner->forks = forks == NULL || strcmp(forks, "no") != 0;
    runner->patience = times > 0 && times < 10000 ? (unsigned)times : 1;
    read_share(runner, getenv("HY3D_TEST_SHARE"));
    return runner;
}

void srunner_add_suite(SRunner *runner, Suite *suite)
{
    Suite **link = &runner->suites;
    while (*link != NULL) {
        link = &(*link)->next;
    }
    *link = suite;
}

const char *compat_test_name(void)
{
    return current != NULL && current->test_name != NULL ? current->test_name : "";
}

void compat_fail(const char *file, int line, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(current->messages, "%s:%d:", file, line);
    vfprintf(current->messages, format, arguments);
    fputc('\n', current->messages);
    fflush(current->messages);
    va_end(arguments);
    if (current->can_jump) {
        longjmp(current->back, 1);
    }
    _exit(1);
}

void compat_end(void)
{
    if (current->can_jump) {
        longjmp(current->back, 2);
    }
    exit(EXIT_SUCCESS);
}

/* One line a failed test, in Check's form: place:kind:case:test:index: message. */
static void report(SRunner *runner, const TCase *tcase, const entry *what, int index, char kind,
                   const char *without_message)
{
    char message[4096] = "";
    rewind(runner->messages);
    const size_t length = fread(message, 1, sizeof message - 1, runner->messages);
    message[length] = '\0';
    fprintf(runner->failed, "%c:%s:%s:%d: %s%s", kind, tcase->name, what->test->name, index,
            length != 0 ? message : without_message, length != 0 ? "" : "\n");
    if (kind == 'F') {
        runner->failures++;
    } else {
        runner->errors++;
    }
}

#if defined(_WIN32)
static void run_alone(SRunner *runner, const TCase *tcase, const entry *what, int index)
{
    char text[64] = "";
    bool failed;
    fflush(NULL);
    const unsigned seconds = tcase->timeout_seconds * runner->patience;
    if (!test_run_child(runner->run, seconds, &failed, text, sizeof text)) {
        report(runner, tcase, what, index, failed ? 'F' : 'E', text);
    }
}
#else
static void run_alone(SRunner *runner, const TCase *tcase, const entry *what, int index)
{
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        setpgid(0, 0); /* so that a time-out ends the test's own children as well */
        what->test->run(index);
        exit(EXIT_SUCCESS); /* not _exit: leak checkers report here */
    }
    if (child < 0) {
        report(runner, tcase, what, index, 'E', strerror(errno));
        return;
    }
    setpgid(child, child);
    int state = 0;
    char text[64] = "";
    for (unsigned ticks = 0; waitpid(child, &state, WNOHANG) == 0; ticks++) {
        if (ticks > tcase->timeout_seconds * runner->patience * 200) {
            kill(-child, SIGKILL);
            waitpid(child, &state, 0);
            snprintf(text, sizeof text, "Test timeout expired (%u s)",
                     tcase->timeout_seconds * runner->patience);
            break;
        }
        usleep(5000);
    }
    if (WIFSIGNALED(state)) {
        if (text[0] == '\0') {
            snprintf(text, sizeof text, "Received signal %d (%s)", WTERMSIG(state),
                     strsignal(WTERMSIG(state)));
        }
        report(runner, tcase, what, index, 'E', text);
    } else if (WEXITSTATUS(state) != 0) {
        snprintf(text, sizeof text, "Early exit with return value %d", WEXITSTATUS(state));
        report(runner, tcase, what, index, WEXITSTATUS(state) == 1 ? 'F' : 'E', text);
    }
}
#endif

static void run_in_process(SRunner *runner, const TCase *tcase, const entry *what, int index)
{
    runner->can_jump = true;
    switch (setjmp(runner->back)) {
    case 0:
        what->test->run(index);
        break;
    case 1:
        report(runner, tcase, what, index, 'F', "failed");
        break;
    default:
        break;
    }
    runner->can_jump = false;
}

static void run_entry(SRunner *runner, const TCase *tcase, const entry *what)
{
    const int child = test_child_of_runner();
    for (int index = what->start; index < what->end; index++) {
        if (runner->met++ % runner->shares != runner->share) {
            continue;
        }
        runner->run++;
        if (child != 0 && runner->run != child) {
            continue;
        }
        runner->test_name = what->test->name;
        runner->messages = test_shared_file("messages");
        if (runner->messages == NULL) {
            perror("tmpfile");
            exit(EXIT_FAILURE);
        }
        if (child != 0) {
            test_notes_open();
            what->test->run(index);
            exit(EXIT_SUCCESS);
        }
        if (runner->forks) {
            run_alone(runner, tcase, what, index);
        } else {
            run_in_process(runner, tcase, what, index);
        }
        test_shared_file_close(runner->messages, "messages");
    }
}

void srunner_run_all(SRunner *runner, enum print_output how)
{
    (void)how;
    current = runner;
    runner->failed = test_shared_file("failed");
    if (runner->failed == NULL) {
        perror("tmpfile");
        exit(EXIT_FAILURE);
    }
    if (test_child_of_runner() == 0) {
        printf("Running suite(s):");
        for (const Suite *suite = runner->suites; suite != NULL; suite = suite->next) {
            printf(" %s\n", suite->name);
        }
    }
    const char *const only = getenv("CK_RUN_CASE"); /* as Check has it: one case by its name */
    for (const Suite *suite = runner->suites; suite != NULL; suite = suite->next) {
        for (const TCase *tcase = suite->cases; tcase != NULL; tcase = tcase->next) {
            if (only != NULL && strcmp(only, tcase->name) != 0) {
                continue;
            }
            for (const entry *what = tcase->tests; what != NULL; what = what->next) {
                run_entry(runner, tcase, what);
            }
        }
    }
    current = NULL;
}

void srunner_print(SRunner *runner, enum print_output how)
{
    (void)how;
    char line[4096];
    const int failed = runner->failures + runner->errors;
    rewind(runner->failed);
    while (fgets(line, sizeof line, runner->failed) != NULL) {
        fputs(line, stdout);
    }
    printf("%d%%: Checks: %d, Failures: %d, Errors: %d\n",
           runner->run == 0 ? 100 : 100 * (runner->run - failed) / runner->run, runner->run,
           runner->failures, runner->errors);
    fflush(stdout);
}

int srunner_ntests_failed(SRunner *runner)
{
    return runner->failures + runner->errors;
}

int srunner_ntests_run(SRunner *runner)
{
    return runner->run;
}

void srunner_free(SRunner *runner)
{
    while (runner->suites != NULL) {
        Suite *const suite = runner->suites;
        runner->suites = suite->next;
        while (suite->cases != NULL) {
            TCase *const tcase = suite->cases;
            suite->cases = tcase->next;
            while (tcase->tests != NULL) {
                entry *const what = tcase->tests;
                tcase->tests = what->next;
                free(what);
            }
            free(tcase);
        }
        free(suite);
    }
    free(runner);
}
#else
typedef int check_library_is_used; /* a translation unit must not be empty */
#endif
