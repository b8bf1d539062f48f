/* Visibility and C++ linkage for the public headers. */
#ifndef HY3D_EXPORT_H
#define HY3D_EXPORT_H

#if defined(__GNUC__)
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
