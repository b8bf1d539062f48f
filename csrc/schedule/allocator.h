/* Whether a program finds room on a device whose memory goes through a caching allocator. */
#ifndef HY3D_SCHEDULE_ALLOCATOR_H
#define HY3D_SCHEDULE_ALLOCATOR_H

#include "schedule/builder.h"

/* Follows the slices and workspaces of a program's one section by the rules of PyTorch's allocator
 * (one stream, its settings as they are by default): the smallest free block that is large enough,
 * split where more than 1 MiB would be left of it; else a segment of its own; segments that are
 * wholly free go back where `room` bytes have no more. Between blocks that are in use lies memory
 * that nobody can have, so a program needs more than the bytes it has there at a time. */
hy3d_status hy3d__finds_room(hy3d_context *context, const hy3d__arrays *arrays, int64_t room,
                             bool *finds_out);

#endif
