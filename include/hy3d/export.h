/* Visibility and C++ linkage for the public headers. */
#ifndef HY3D_EXPORT_H
#define HY3D_EXPORT_H

/* HY3D_BUILD is defined where the library itself is compiled. A program that uses it need not know
 * whether it is the DLL or the static library: only functions are exported, and calls to them reach
 * a DLL without dllimport. HY3D_HIDDEN is defined where the core becomes part of another module,
 * which then exports nothing of it: another copy in the process can't take its functions' place. */
#if defined(HY3D_HIDDEN)
#define HY3D_API
#elif defined(_WIN32) && defined(HY3D_BUILD)
#define HY3D_API __declspec(dllexport)
#elif defined(__GNUC__) && !defined(_WIN32)
#define HY3D_API __attribute__((visibility("default")))
#else
#define HY3D_API
#endif

#ifdef __cplusplus
#define HY3D_BEGIN_DECLS extern "C" {
#define HY3D_END_DECLS }
#else
#define HY3D_BEGIN_DECLS
#define HY3D_END_DECLS
#endif

#endif
