/* What CPython's headers want to know of a compiler for 64-bit Windows, as far as the limited API
 * asks: setup.py puts it beside a copy of them. Theirs is of the system that builds. */
#ifndef Py_PYCONFIG_H
#define Py_PYCONFIG_H

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

#endif
