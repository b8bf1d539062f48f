/* Who has which rows where several ranks share them: this rank's share of a value, the rows that
 * its slices of it need, and what of them goes from one rank to another. */
#ifndef HY3D_SCHEDULE_SHARDS_H
#define HY3D_SCHEDULE_SHARDS_H

#include <stdbool.h>
#include <stdint.h>

#include "hy3d/schedule.h"

/* Half open. */
typedef struct hy3d__rows {
    int64_t first, stop;
} hy3d__rows;

/* Without ranks (one device) `needed` is NULL and `ranks` 1: each value has all of its rows. */
typedef struct hy3d__shards {
    int32_t ranks;
    int64_t unit;                                /* rows are shared in so many equal parts */
    int64_t before[HY3D_SCHEDULE_MAX_RANKS + 1]; /* weights of the ranks before each, and of all */
    hy3d__rows *needed; /* of each value by each rank: the rows of its slices */
} hy3d__shards;

/* For the sizes of all values and the weight of each rank; NULL: equal ones. */
hy3d_status hy3d__shards_create(hy3d_context *context, const hy3d_graph *graph,
                                const hy3d_size *sizes, int32_t ranks, const int32_t *weights,
                                hy3d__shards *shards_out);
void hy3d__shards_destroy(hy3d_context *context, hy3d__shards *shards);

/* Weights in the ratio of what each rank's device may hold. false: there is none, since all may
 * hold nearly the same or one has no limit. */
bool hy3d__weights_by_room(const int64_t *budgets, int32_t ranks,
                           int32_t weights_out[HY3D_SCHEDULE_MAX_RANKS]);

/* A rank's share of `rows` rows. All shares of a rank are empty or none is. */
hy3d__rows hy3d__share_of(const hy3d__shards *shards, int32_t rank, int64_t rows);
/* Rows of the largest share. */
int64_t hy3d__largest_share(const hy3d__shards *shards, int64_t rows);
/* The rows of a rank's slices of a value of `rows` rows. */
hy3d__rows hy3d__rows_needed(const hy3d__shards *shards, int32_t value, int32_t rank, int64_t rows);
/* The rows of its source that a convolution whose padding is shorter than its kernel reads for
 * rows `result` of its value; what is padded before and after these, up-sampled, or, less than 0
 * and more than -up, cropped. */
hy3d__rows hy3d__conv_rows(const hy3d_node *node, int64_t source_rows, hy3d__rows result,
                           int64_t padding_out[2]);
/* The rows of a slice of a value (of its keys) that rank `from` sends to rank `to`. false: none. */
bool hy3d__rows_sent(const hy3d__shards *shards, int32_t value, bool is_keys, int64_t rows,
                     int32_t from, int32_t to, hy3d__rows *sent_out);

#endif
