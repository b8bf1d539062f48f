/* The operating system where it is Windows: Windows 7 and later, 64 bits. The Win32 API itself and
 * not winpthreads: a slim lock and a condition variable are all that the pool asks for, they cannot
 * fail to be made, need no library of their own beside ours, and every compiler has them. */
#include "base/os.h"

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#ifndef _WIN32_WINNT
#define _WIN32_WINNT 0x0601
#endif
#include <windows.h>

#include <malloc.h>
#include <process.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(hy3d__mutex) == sizeof(SRWLOCK), "a mutex is a slim lock");
_Static_assert(sizeof(hy3d__condition) == sizeof(CONDITION_VARIABLE), "one pointer");

enum { PATH_UNITS = 4096, SETTING_UNITS = 32768 }; /* no variable is longer */

static SRWLOCK *lock_of(hy3d__mutex *mutex)
{
    void *const state = mutex;
    return state;
}

static CONDITION_VARIABLE *variable_of(hy3d__condition *condition)
{
    void *const state = condition;
    return state;
}

bool hy3d__mutex_create(hy3d__mutex *mutex)
{
    InitializeSRWLock(lock_of(mutex));
    return true;
}

void hy3d__mutex_destroy(hy3d__mutex *mutex)
{
    (void)mutex; /* holds nothing of the system's */
}

void hy3d__mutex_lock(hy3d__mutex *mutex)
{
    AcquireSRWLockExclusive(lock_of(mutex));
}

void hy3d__mutex_unlock(hy3d__mutex *mutex)
{
    ReleaseSRWLockExclusive(lock_of(mutex));
}

bool hy3d__condition_create(hy3d__condition *condition)
{
    InitializeConditionVariable(variable_of(condition));
    return true;
}

void hy3d__condition_destroy(hy3d__condition *condition)
{
    (void)condition;
}

void hy3d__condition_wait(hy3d__condition *condition, hy3d__mutex *mutex)
{
    SleepConditionVariableSRW(variable_of(condition), lock_of(mutex), INFINITE, 0);
}

void hy3d__condition_signal(hy3d__condition *condition)
{
    WakeConditionVariable(variable_of(condition));
}

void hy3d__condition_broadcast(hy3d__condition *condition)
{
    WakeAllConditionVariable(variable_of(condition));
}

static unsigned __stdcall run_thread(void *argument)
{
    const hy3d__thread *const self = argument;
    self->run(self->argument);
    return 0;
}

/* _beginthreadex and not CreateThread: the C run-time library keeps data of its own by thread. */
bool hy3d__thread_start(hy3d__thread *thread, hy3d__thread_fn run, void *argument)
{
    thread->run = run;
    thread->argument = argument;
    thread->handle = (void *)_beginthreadex(NULL, 0, run_thread, thread, 0, NULL);
    return thread->handle != NULL;
}

void hy3d__thread_join(hy3d__thread *thread)
{
    WaitForSingleObject(thread->handle, INFINITE);
    CloseHandle(thread->handle);
}

void hy3d__run_on_one_processor(hy3d__thread_fn run, void *argument)
{
    run(argument); /* libraries here count the process's processors, which are not ours to narrow */
}

hy3d__thread_id hy3d__thread_self(void)
{
    return GetCurrentThreadId();
}

bool hy3d__thread_is_self(hy3d__thread_id thread)
{
    return thread == GetCurrentThreadId();
}

/* Not by fenv.h: mingw-w64's leaves SSE's register out, and Microsoft's the x87's, which
 * mingw-w64's exp() computes with. */
void hy3d__manner_get(hy3d__manner *manner)
{
    __asm__ volatile("stmxcsr %0" : "=m"(manner->sse));
    __asm__ volatile("fnstcw %0" : "=m"(manner->x87));
}

void hy3d__manner_set(const hy3d__manner *manner)
{
    __asm__ volatile("ldmxcsr %0" : : "m"(manner->sse));
    __asm__ volatile("fldcw %0" : : "m"(manner->x87));
}

int64_t hy3d__milliseconds(void)
{
    return (int64_t)GetTickCount64();
}

int64_t hy3d__process_id(void)
{
    return GetCurrentProcessId();
}

/* The mask is that of one group of processors, at most 64; it is 0 for a process in several. */
uint32_t hy3d__processor_count(void)
{
    DWORD_PTR mask = 0, of_system = 0;
    uint32_t count = 0;
    if (GetProcessAffinityMask(GetCurrentProcess(), &mask, &of_system)) {
        for (; mask != 0; mask &= mask - 1) {
            count++;
        }
    }
    if (count == 0) {
        count = GetActiveProcessorCount(ALL_PROCESSOR_GROUPS);
    }
    return count != 0 ? count : 1;
}

void *hy3d__memory_get(size_t alignment, size_t bytes)
{
    return _aligned_malloc(bytes, alignment);
}

/* Large pages are given to users with a right that nobody has unasked, and never on demand. */
void *hy3d__memory_get_large(size_t alignment, size_t bytes)
{
    return _aligned_malloc(bytes, alignment);
}

void hy3d__memory_put(void *memory)
{
    _aligned_free(memory);
}

/* Not getenv: the host may have another C library than this code, and each keeps a copy of its own.
 * What Python's os.environ says reaches its own copy and the system's. */
int hy3d__setting(const char *name, char *text, size_t bytes)
{
    wchar_t wide_name[64], wide[SETTING_UNITS];
    MultiByteToWideChar(CP_UTF8, 0, name, -1, wide_name, 64);
    int units = (int)GetEnvironmentVariableW(wide_name, wide, SETTING_UNITS);
    const int length = WideCharToMultiByte(CP_UTF8, 0, wide, units, NULL, 0, NULL, NULL);
    const int room = (int)bytes - 1;
    units = length <= room ? units : room / 3; /* a unit is three bytes at most */
    text[WideCharToMultiByte(CP_UTF8, 0, wide, units, text, room, NULL, NULL)] = '\0';
    return length;
}

/* A path to a library as wide characters with backslashes. What is not UTF-8 is in the code page of
 * the system: a C program's argument may be. false: too long. */
static bool widen(const char *name, wchar_t wide[PATH_UNITS])
{
    int length = MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, name, -1, wide, PATH_UNITS);
    if (length == 0 && GetLastError() == ERROR_NO_UNICODE_TRANSLATION) {
        length = MultiByteToWideChar(CP_ACP, 0, name, -1, wide, PATH_UNITS);
    }
    for (int i = 0; i < length; i++) {
        wide[i] = wide[i] == L'/' ? L'\\' : wide[i];
    }
    return length != 0;
}

/* A path finds the libraries that it needs beside it; a bare name is looked for beside the program
 * and in the system's folder, never in the current one, where anybody may have put a file. A path
 * of MAX_PATH units and more is taken with this beginning, whatever the machine is set to. */
static HMODULE load_library(const wchar_t *name)
{
    wchar_t marked[PATH_UNITS] = L"\\\\?\\";
    wchar_t *const full = marked + 4;
    if (wcschr(name, L'\\') == NULL) {
        return LoadLibraryExW(name, NULL, LOAD_LIBRARY_SEARCH_DEFAULT_DIRS);
    }
    const DWORD length = GetFullPathNameW(name, PATH_UNITS - 4, full, NULL);
    if (length == 0 || length >= PATH_UNITS - 4) {
        SetLastError(ERROR_FILENAME_EXCED_RANGE);
        return NULL;
    }
    const bool is_long = length >= MAX_PATH && full[0] != L'\\';
    return LoadLibraryExW(is_long ? marked : full, NULL, LOAD_WITH_ALTERED_SEARCH_PATH);
}

void *hy3d__library_open(const char *name, char *reason, size_t reason_bytes)
{
    wchar_t wide[PATH_UNITS];
    char text[256] = "";
    DWORD mode = 0;
    HMODULE library = NULL;
    DWORD error = ERROR_FILENAME_EXCED_RANGE;
    if (widen(name, wide)) {
        /* A library that lacks another one must not open a window. */
        SetThreadErrorMode(SEM_FAILCRITICALERRORS | SEM_NOOPENFILEERRORBOX, &mode);
        library = load_library(wide);
        error = GetLastError();
        SetThreadErrorMode(mode, NULL);
    }
    if (library == NULL) {
        FormatMessageA(FORMAT_MESSAGE_FROM_SYSTEM | FORMAT_MESSAGE_IGNORE_INSERTS |
                           FORMAT_MESSAGE_MAX_WIDTH_MASK,
                       NULL, error, 0, text, sizeof text, NULL);
        snprintf(reason, reason_bytes, "%s: error %u (%s)", name, (unsigned)error, text);
    }
    return library;
}

void *hy3d__library_symbol(void *library, const char *name)
{
    const FARPROC function = GetProcAddress(library, name);
    void *address;
    memcpy(&address, &function, sizeof address);
    return address;
}

void hy3d__library_close(void *library)
{
    FreeLibrary(library);
}

bool hy3d__library_folder(char *folder, size_t bytes)
{
    static const char here;
    wchar_t path[PATH_UNITS];
    HMODULE module = NULL;
    const DWORD flags =
        GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT;
    if (!GetModuleHandleExW(flags, (const wchar_t *)(const void *)&here, &module)) {
        return false;
    }
    const DWORD length = GetModuleFileNameW(module, path, PATH_UNITS);
    wchar_t *const slash = length < PATH_UNITS ? wcsrchr(path, L'\\') : NULL;
    if (length == 0 || slash == NULL) {
        return false;
    }
    *slash = L'\0';
    return WideCharToMultiByte(CP_UTF8, 0, path, -1, folder, (int)bytes, NULL, NULL) != 0;
}
#endif
