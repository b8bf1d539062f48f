#include "posix.h"

#include <windows.h>

#include <fcntl.h>
#include <io.h>
#include <stdlib.h>
#include <string.h>
#include <tlhelp32.h>

#include "../support.h"
#include "sys/mman.h"
#include "sys/wait.h"

int test_nanosleep(const struct timespec *length, struct timespec *left)
{
    (void)left;
    Sleep((DWORD)(length->tv_sec * 1000 + (length->tv_nsec + 999999) / 1000000));
    return 0;
}

int setenv(const char *name, const char *value, int overwrite)
{
    return overwrite == 0 && getenv(name) != NULL ? 0 : _putenv_s(name, value);
}

int unsetenv(const char *name)
{
    return _putenv_s(name, "");
}

long sysconf(int name)
{
    SYSTEM_INFO info;
    GetSystemInfo(&info);
    return name == _SC_PAGESIZE ? (long)info.dwPageSize : -1;
}

pid_t fork(void)
{
    test_skip_here("no fork on Windows");
}

pid_t waitpid(pid_t child, int *state, int options)
{
    (void)state;
    (void)options;
    return child;
}

unsigned alarm(unsigned seconds)
{
    return seconds;
}

static DWORD page_protection(int protection)
{
    if (protection == PROT_NONE) {
        return PAGE_NOACCESS;
    }
    return (protection & PROT_WRITE) != 0 ? PAGE_READWRITE : PAGE_READONLY;
}

void *mmap(void *address, size_t bytes, int protection, int flags, int file, long offset)
{
    (void)flags;
    (void)file;
    (void)offset;
    void *const pages =
        VirtualAlloc(address, bytes, MEM_RESERVE | MEM_COMMIT, page_protection(protection));
    return pages != NULL ? pages : MAP_FAILED;
}

int mprotect(void *address, size_t bytes, int protection)
{
    DWORD before;
    return VirtualProtect(address, bytes, page_protection(protection), &before) ? 0 : -1;
}

int munmap(void *address, size_t bytes)
{
    (void)bytes; /* all that was mapped at once */
    return VirtualFree(address, 0, MEM_RELEASE) ? 0 : -1;
}

/* Both are in the environment of the runner's children. */
static const char which_variable[] = "HY3D_TEST_CHILD";
static const char files_variable[] = "HY3D_TEST_FILES";

int test_child_of_runner(void)
{
    const char *const which = getenv(which_variable);
    return which != NULL ? atoi(which) : 0;
}

static void shared_path(const char *name, char path[2 * MAX_PATH])
{
    if (getenv(files_variable) == NULL) {
        char folder[MAX_PATH] = "";
        GetTempPathA(sizeof folder, folder);
        snprintf(path, 2 * MAX_PATH, "%shy3d-check-%lu", folder, GetCurrentProcessId());
        _putenv_s(files_variable, path);
    }
    snprintf(path, 2 * MAX_PATH, "%s.%s", getenv(files_variable), name);
}

FILE *test_shared_file(const char *name)
{
    char path[2 * MAX_PATH];
    shared_path(name, path);
    return fopen(path, test_child_of_runner() != 0 ? "ab" : "w+b");
}

void test_shared_file_close(FILE *file, const char *name)
{
    char path[2 * MAX_PATH];
    shared_path(name, path);
    fclose(file);
    if (test_child_of_runner() == 0) {
        remove(path);
    }
}

bool test_run_child(int which, unsigned timeout_seconds, bool *failed, char *text, size_t size)
{
    STARTUPINFOA start = {.cb = sizeof start};
    PROCESS_INFORMATION child;
    char number[16];
    snprintf(number, sizeof number, "%d", which);
    _putenv_s(which_variable, number);
    SetErrorMode(SEM_FAILCRITICALERRORS | SEM_NOGPFAULTERRORBOX); /* a crash opens no window */
    const BOOL is_started =
        CreateProcessA(NULL, GetCommandLineA(), NULL, NULL, TRUE, 0, NULL, NULL, &start, &child);
    _putenv_s(which_variable, "");
    *failed = false;
    if (!is_started) {
        snprintf(text, size, "CreateProcess: error %lu", GetLastError());
        return false;
    }
    DWORD code = 0;
    const bool is_late = WaitForSingleObject(child.hProcess, timeout_seconds * 1000) != WAIT_OBJECT_0;
    if (is_late) {
        TerminateProcess(child.hProcess, 1);
        WaitForSingleObject(child.hProcess, INFINITE);
    }
    GetExitCodeProcess(child.hProcess, &code);
    CloseHandle(child.hThread);
    CloseHandle(child.hProcess);
    *failed = code == 1 && !is_late;
    if (is_late) {
        snprintf(text, size, "Test timeout expired (%u s)", timeout_seconds);
    } else {
        snprintf(text, size, "Ended with code 0x%lX", code);
    }
    return code == 0;
}

int test_thread_count(void)
{
    const HANDLE all = CreateToolhelp32Snapshot(TH32CS_SNAPTHREAD, 0);
    THREADENTRY32 entry = {.dwSize = sizeof entry};
    int count = 0;
    for (BOOL more = Thread32First(all, &entry); more; more = Thread32Next(all, &entry)) {
        count += entry.th32OwnerProcessID == GetCurrentProcessId();
    }
    CloseHandle(all);
    return count;
}

/* What parallel.c calls: threads fail on request, as pthread_create does on the other systems. */
bool __real_hy3d__thread_start(void *thread, void (*run)(void *argument), void *argument);
bool __wrap_hy3d__thread_start(void *thread, void (*run)(void *argument), void *argument);

bool __wrap_hy3d__thread_start(void *thread, void (*run)(void *argument), void *argument)
{
    return !test_threads_must_fail() && __real_hy3d__thread_start(thread, run, argument);
}

/* Lines end in one character, as the readers of the closing line expect; and what is printed while
 * suites are put together is the runner's to say, once. */
__attribute__((constructor)) static void plain_lines(void)
{
    if (test_child_of_runner() == 0) {
        _setmode(_fileno(stdout), _O_BINARY);
    } else if (freopen("NUL", "w", stdout) == NULL) {
        perror("NUL");
    }
}
