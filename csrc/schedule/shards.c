/* See shards.h. */
#include "schedule/shards.h"

#include <stddef.h>

#include "base/checked.h"

/* Weights count in eighths of what the least rank may hold, up to the largest of which
 * HY3D_SCHEDULE_MAX_RANKS together are less than 2^31. */
#define PARTS 8
#define MOST_WEIGHT (1 << 24)

static bool is_empty(hy3d__rows rows)
{
    return rows.first >= rows.stop;
}

/* Parts of the unit that the ranks before `rank` have: unit * before / all, without the product,
 * which may be too large. */
static int64_t parts_before(const hy3d__shards *shards, int32_t rank)
{
    const int64_t before = shards->before[rank], all = shards->before[shards->ranks];
    return shards->unit / all * before + shards->unit % all * before / all;
}

hy3d__rows hy3d__share_of(const hy3d__shards *shards, int32_t rank, int64_t rows)
{
    const int64_t each = rows / shards->unit;
    return (hy3d__rows){parts_before(shards, rank) * each, parts_before(shards, rank + 1) * each};
}

int64_t hy3d__largest_share(const hy3d__shards *shards, int64_t rows)
{
    int64_t largest = 0;
    for (int32_t rank = 0; rank < shards->ranks; rank++) {
        const hy3d__rows share = hy3d__share_of(shards, rank, rows);
        largest = hy3d__max_i64(largest, share.stop - share.first);
    }
    return largest;
}

bool hy3d__weights_by_room(const int64_t *budgets, int32_t ranks,
                           int32_t weights_out[HY3D_SCHEDULE_MAX_RANKS])
{
    int64_t least = budgets[0];
    for (int32_t rank = 1; rank < ranks; rank++) {
        least = hy3d__min_i64(least, budgets[rank]);
    }
    bool is_unlike = false;
    for (int32_t rank = 0; rank < ranks && least > 0; rank++) {
        const double weight = PARTS * ((double)budgets[rank] / (double)least) + 0.5;
        weights_out[rank] = weight < MOST_WEIGHT ? (int32_t)weight : MOST_WEIGHT;
        is_unlike = is_unlike || weights_out[rank] != PARTS;
    }
    return is_unlike;
}

static hy3d__rows *needed_at(const hy3d__shards *shards, int32_t value, int32_t rank)
{
    return &shards->needed[(size_t)value * (size_t)shards->ranks + (size_t)rank];
}

hy3d__rows hy3d__rows_needed(const hy3d__shards *shards, int32_t value, int32_t rank, int64_t rows)
{
    return shards->needed == NULL ? (hy3d__rows){0, rows} : *needed_at(shards, value, rank);
}

bool hy3d__rows_sent(const hy3d__shards *shards, int32_t value, bool is_keys, int64_t rows,
                     int32_t from, int32_t to, hy3d__rows *sent_out)
{
    if (from == to || is_empty(hy3d__share_of(shards, to, rows))) {
        return false;
    }
    const hy3d__rows own = hy3d__share_of(shards, from, rows);
    const hy3d__rows needed =
        is_keys ? (hy3d__rows){0, rows} : hy3d__rows_needed(shards, value, to, rows);
    *sent_out =
        (hy3d__rows){hy3d__max_i64(own.first, needed.first), hy3d__min_i64(own.stop, needed.stop)};
    return !is_empty(*sent_out);
}

hy3d__rows hy3d__conv_rows(const hy3d_node *node, int64_t source_rows, hy3d__rows result,
                           int64_t padding_out[2])
{
    const int64_t extent = (int64_t)node->dilation[1] * (node->kernel[1] - 1) + 1;
    const int64_t first = result.first / node->shuffle[1] * node->stride[1] - node->before[1];
    const int64_t stop =
        (result.stop / node->shuffle[1] - 1) * node->stride[1] - node->before[1] + extent;
    const int64_t up = node->up[1];
    const hy3d__rows read = {hy3d__max_i64(first, 0) / up,
                             hy3d__min_i64(source_rows, (stop + up - 1) / up)};
    padding_out[0] = read.first * up - first;
    padding_out[1] = stop - read.stop * up;
    return read;
}

/* What node `index` reads beyond a rank's share of its source is needed there, too. */
static void need_more(const hy3d__shards *shards, const hy3d_graph *graph, const hy3d_size *sizes,
                      int32_t index, int32_t rank)
{
    const hy3d_node *node = &graph->nodes[index];
    const int64_t rows = sizes[index].rows;
    const hy3d__rows share = hy3d__share_of(shards, rank, rows);
    const bool is_conv = node->op == HY3D_OP_CONV;
    if (is_empty(share) ||
        !(is_conv || (node->op == HY3D_OP_ATTENTION && node->span == HY3D_SPAN_FRAME))) {
        return;
    }
    int64_t padding[2];
    const hy3d__rows reads = is_conv
                                 ? hy3d__conv_rows(node, sizes[node->source].rows, share, padding)
                                 : (hy3d__rows){0, rows};
    hy3d__rows *needed = needed_at(shards, node->source, rank);
    needed->first = hy3d__min_i64(needed->first, reads.first);
    needed->stop = hy3d__max_i64(needed->stop, reads.stop);
}

/* In how many equal parts rows can be shared, so that each value and what each convolution makes
 * before its shuffle have whole ones. */
static int64_t unit_of(const hy3d_graph *graph, const hy3d_size *sizes)
{
    int64_t unit = 0;
    for (int32_t i = 0; i < graph->count; i++) {
        const hy3d_node *node = &graph->nodes[i];
        const int32_t shuffled = node->op == HY3D_OP_CONV ? node->shuffle[1] : 1;
        unit = hy3d__common_divisor(sizes[i].rows / shuffled, unit);
    }
    return unit;
}

hy3d_status hy3d__shards_create(hy3d_context *context, const hy3d_graph *graph,
                                const hy3d_size *sizes, int32_t ranks, const int32_t *weights,
                                hy3d__shards *shards_out)
{
    hy3d__shards shards = {.ranks = 1, .unit = 1, .before = {0, 1}};
    void *memory = NULL;
    if (ranks > 1) {
        const size_t bytes = (size_t)graph->count * (size_t)ranks * sizeof *shards.needed;
        const hy3d_status status = hy3d_alloc(context, bytes, &memory);
        if (status != HY3D_OK) {
            return status;
        }
        shards = (hy3d__shards){.ranks = ranks, .unit = unit_of(graph, sizes), .needed = memory};
        for (int32_t rank = 0; rank < ranks; rank++) {
            shards.before[rank + 1] = shards.before[rank] + (weights == NULL ? 1 : weights[rank]);
        }
    }
    for (int32_t rank = 0; rank < ranks && memory != NULL; rank++) {
        for (int32_t i = 0; i < graph->count; i++) { /* each after what it reads */
            *needed_at(&shards, i, rank) = hy3d__share_of(&shards, rank, sizes[i].rows);
            need_more(&shards, graph, sizes, i, rank);
        }
    }
    *shards_out = shards;
    return HY3D_OK;
}

void hy3d__shards_destroy(hy3d_context *context, hy3d__shards *shards)
{
    hy3d_free(context, shards->needed);
    shards->needed = NULL;
}
