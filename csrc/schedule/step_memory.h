/* What a step takes: the core's own rules, which ask of convolutions that it does not compute. */
#ifndef HY3D_SCHEDULE_STEP_MEMORY_H
#define HY3D_SCHEDULE_STEP_MEMORY_H

#include <stdbool.h>

#include "hy3d/conv3d.h"
#include "hy3d/schedule.h"

const hy3d_place *hy3d__place_of(const hy3d_schedule_request *request, int32_t on_host);
/* A CONV step of a native layer, of a source of so many channels, rows and columns. */
hy3d_conv3d_desc hy3d__conv_desc(const hy3d_schedule_request *request, int32_t on_host,
                                 const hy3d_step *step, int64_t channels, const int64_t size[2]);

/* What the step takes; sizes beyond 60 bits count as 2^60. is_housed: its slice has rows beside
 * those that it makes, which others send. Errors: as hy3d_conv3d_memory, and what
 * the request's functions return; HY3D_ERR_INVALID_ARGUMENT where their answer is none. */
hy3d_status hy3d__step_memory(hy3d_context *context, const hy3d_schedule_request *request,
                              const hy3d_step *step, const hy3d_size *source, int32_t on_host,
                              bool is_housed, hy3d_step_memory *taken_out);
/* Whether what two nodes of one op read, and what is added to it, is laid out alike. */
bool hy3d__same_layouts(const hy3d_schedule_request *request, int32_t on_host, int32_t node,
                        int32_t other);

#endif
