/* What CPython's headers want to know of a compiler for 64-bit Windows, as far as the limited API
 * asks: read before Python.h (-include) in place of the pyconfig.h beside it, which is of the system
 * that builds, or Microsoft's compiler's. The two names are the guards of those files. */
#define Py_PYCONFIG_H
#define Py_CONFIG_H

#define MS_WINDOWS
#define MS_WIN64
#define SIZEOF_INT 4
#define SIZEOF_LONG 4
#define SIZEOF_LONG_LONG 8
#define SIZEOF_SIZE_T 8
#define SIZEOF_VOID_P 8
#define SIZEOF_WCHAR_T 2
/* Objects of python3.dll are reached through its import table. */
#define HAVE_DECLSPEC_DLL
#define Py_ENABLE_SHARED
