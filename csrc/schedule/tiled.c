/* Tiles of the picture: up to the cut the whole picture at once, behind it tile after tile, each by
 * chunks, so that cuts in time change nothing. The statistics of GroupNorms behind the cut are
 * estimated beforehand from a part of the prefix's output, the same for all tiles. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "base/checked.h"
#include "schedule/compile.h"

/* A level of tiles is by one part in so many smaller than the one before. */
#define SHRINK HY3D_TILES_MAX_SHRINK
/* A level is offered if its area is at most this share of the one before. */
#define SMALLER 0.95
/* A tile with the wider halo is offered unless all of them decode so many times what tiles of a
 * narrower one would. */
#define MOST_WORK 2.0
/* The fewest rows (and columns) and frames of a part that statistics are estimated from. */
#define LEAST_ROWS 8
#define LEAST_FRAMES 5

/* Rows of the output for one row of the cut's value. */
static int64_t factor_of(const hy3d_schedule *s)
{
    const int32_t last = s->request.graph.count - 1;
    return s->sizes[last].rows / s->sizes[s->cut.node].rows;
}

int64_t hy3d__prefix_bytes(const hy3d_schedule *s)
{
    if (s->cut.node <= 0) {
        return 0;
    }
    const hy3d_size *size = &s->sizes[s->cut.node];
    return size->channels * size->frames * size->rows * size->columns * s->request.element_bytes;
}

hy3d_status hy3d__tiles_of(const hy3d_schedule *s, int32_t halo_row, int32_t level,
                           hy3d_tiles_plan *plan_out)
{
    const hy3d_tile_sizes *given = &s->request.halos[halo_row];
    const hy3d_size *size = &s->sizes[s->cut.node];
    const int64_t factor = factor_of(s);
    const int64_t overlap = (given->overlap + factor - 1) / factor;
    int64_t halo = s->cut.reach;
    if (given->halo >= 0) {
        halo = hy3d__min_i64(halo, (given->halo + factor - 1) / factor);
    }
    const int64_t smallest =
        hy3d__max_i64(hy3d__max_i64((given->smallest + factor - 1) / factor, overlap), 1);
    const hy3d_tiles_desc desc = {
        .latent = {1, size->rows, size->columns},
        .factor = {1, factor, factor},
        .overlap = {0, overlap, overlap},
        .halo = {0, halo, halo},
        .min_tile = {1, smallest, smallest},
        .max_in_flight = 1,
        .level = level,
        .shrink = SHRINK,
    };
    return hy3d_tiles_make(&desc, NULL, plan_out);
}

/* --- levels ----------------------------------------------------------------------------------- */

/* One level of one row of halos. */
typedef struct shape {
    hy3d__level level;
    double area, work;
    bool is_last;
} shape;

/* All levels of a row, appended. */
static hy3d_status shapes_of(const hy3d_schedule *s, int32_t row, shape *shapes, int32_t *count)
{
    for (int32_t level = 0;; level++) {
        hy3d_tiles_plan plan;
        const hy3d_status status = hy3d__tiles_of(s, row, level, &plan);
        if (status != HY3D_OK) {
            return level == 0 || status != HY3D_ERR_INVALID_ARGUMENT ? status : HY3D_OK;
        }
        shapes[(*count)++] = (shape){
            .level = {row, level},
            .area = (double)plan.extent[1] * (double)plan.extent[2],
            .work = plan.decoded_voxels,
            .is_last = level == plan.levels - 1,
        };
        if (level == plan.levels - 1) {
            return HY3D_OK;
        }
    }
}

/* The least work of tiles no larger than `area` under a narrower halo. */
static double narrower_work(const shape *shapes, int32_t count, const shape *wide)
{
    double found = INFINITY;
    for (int32_t i = 0; i < count; i++) {
        if (shapes[i].level.row > wide->level.row && shapes[i].area <= wide->area &&
            shapes[i].work < found) {
            found = shapes[i].work;
        }
    }
    return found;
}

hy3d_status hy3d__worthwhile_levels(hy3d_context *context, const hy3d_schedule *s,
                                    hy3d__level **levels_out, int32_t *count_out)
{
    void *memory = NULL, *found = NULL;
    int32_t count = 0, kept = 0, refused = -1;
    const size_t room = HY3D_SCHEDULE_MAX_HALOS * (HY3D_TILES_MAX_FINE_LEVEL + 1);
    hy3d_status status = hy3d_alloc(context, room * sizeof(shape), &memory);
    if (status == HY3D_OK) {
        status = hy3d_alloc(context, room * sizeof(hy3d__level), &found);
    }
    shape *shapes = memory;
    hy3d__level *levels = found;
    for (int32_t row = 0; row < HY3D_SCHEDULE_MAX_HALOS && status == HY3D_OK; row++) {
        if (s->request.halos[row].smallest > 0) {
            status = shapes_of(s, row, shapes, &count);
        }
    }
    double area = INFINITY;
    for (int32_t i = 0; i < count && status == HY3D_OK; i++) {
        const shape *one = &shapes[i];
        if (one->level.row == refused || one->area >= area) {
            continue;
        }
        if (one->work > MOST_WORK * narrower_work(shapes, count, one)) {
            refused = one->level.row; /* and all its smaller ones */
        } else if (one->area <= SMALLER * area || one->is_last) {
            area = one->area;
            levels[kept++] = one->level;
        }
    }
    hy3d_free(context, memory);
    if (status != HY3D_OK) {
        hy3d_free(context, found);
        return status;
    }
    *levels_out = levels;
    *count_out = kept;
    return HY3D_OK;
}

/* --- sections --------------------------------------------------------------------------------- */

/* The size (T, H, W) of the part of the cut's value that statistics are estimated from: at most
 * `positions`, or the smallest part. Rows and columns shrink alike, and only then frames. */
static void part_size(const hy3d_size *size, double positions, int64_t part_out[3])
{
    const double all = (double)size->frames * (double)size->rows * (double)size->columns;
    const double share = positions < all ? sqrt(positions / all) : 1;
    int64_t rows =
        hy3d__min_i64(size->rows, hy3d__max_i64((int64_t)((double)size->rows * share), LEAST_ROWS));
    const int64_t columns = hy3d__min_i64(
        size->columns, hy3d__max_i64((int64_t)((double)size->columns * share), LEAST_ROWS));
    const double fit = positions / ((double)size->frames * (double)columns);
    if (fit < (double)rows) {
        rows = hy3d__max_i64((int64_t)fit, hy3d__min_i64(size->rows, LEAST_ROWS));
    }
    const double frames = positions / ((double)rows * (double)columns);
    part_out[0] = size->frames;
    if (frames < (double)size->frames) {
        part_out[0] = hy3d__min_i64(size->frames, hy3d__max_i64((int64_t)frames, LEAST_FRAMES));
    }
    part_out[1] = rows;
    part_out[2] = columns;
}

static bool has_norms_before(const hy3d_schedule *s)
{
    for (int32_t i = 0; i <= s->cut.node; i++) {
        if (s->nodes[i].norm == HY3D_NORM_GROUP) {
            return true;
        }
    }
    return false;
}

static void prefix_section(hy3d_schedule *s, hy3d__builder *b, int64_t chunk)
{
    hy3d__section_begin(b, HY3D_SECTION_PREFIX, 0, s->cut.node, s->request.size);
    if (has_norms_before(s)) {
        hy3d__order_layers(b, s->cut.node);
    } else {
        hy3d__order_chunks(b, 0, chunk);
    }
    hy3d__section_end(b);
}

static void statistics_section(hy3d_schedule *s, hy3d__builder *b, const hy3d_tiles_plan *tiles,
                               int64_t chunk)
{
    int64_t part[3];
    const double positions =
        4.0 * (double)chunk * (double)tiles->extent[1] * (double)tiles->extent[2];
    part_size(&s->sizes[s->cut.node], positions, part);
    hy3d__section_begin(b, HY3D_SECTION_STATISTICS, s->cut.node, s->request.graph.count - 1, part);
    hy3d__order_layers(b, s->request.graph.count - 1);
    hy3d__section_end(b);
}

/* Sections of tiles that have steps of their own, one a size. */
typedef struct sizes {
    int32_t *sections;
    int32_t count, room;
} sizes;

/* The one that has this size; -1 where there is none yet. */
static int32_t same_tile(const hy3d__arrays *a, const sizes *known, const int64_t size[3])
{
    for (int32_t i = 0; i < known->count; i++) {
        const hy3d_section *section = &a->sections[known->sections[i]];
        if (section->size[1] == size[1] && section->size[2] == size[2]) {
            return known->sections[i];
        }
    }
    return -1;
}

static void tile_section(hy3d_schedule *s, hy3d__builder *b, const hy3d_tiles_plan *tiles,
                         int32_t index, int32_t pass, int64_t chunk, sizes *known)
{
    hy3d_tile tile;
    b->status = hy3d_tiles_at(tiles, index, &tile);
    const int64_t size[3] = {s->sizes[s->cut.node].frames, tile.in_stop[1] - tile.in_start[1],
                             tile.in_stop[2] - tile.in_start[2]};
    if (b->status != HY3D_OK) {
        return;
    }
    const int32_t same = same_tile(b->arrays, known, size);
    if (same >= 0) {
        hy3d__section_again(b, same);
    } else {
        known->sections = hy3d__grown(b->context, known->sections, known->count, &known->room,
                                      sizeof *known->sections, &b->status);
        if (b->status == HY3D_OK) {
            known->sections[known->count++] = b->arrays->section_count;
            hy3d__section_begin(b, HY3D_SECTION_TILE, s->cut.node, s->request.graph.count - 1,
                                size);
            hy3d__order_chunks(b, s->cut.node, chunk);
            hy3d__section_end(b);
        }
    }
    if (b->status == HY3D_OK) {
        hy3d_section *section = &b->arrays->sections[b->arrays->section_count - 1];
        section->tile = index;
        section->pass = pass;
        section->rows[0] = tile.in_start[1];
        section->rows[1] = tile.in_stop[1];
        section->columns[0] = tile.in_start[2];
        section->columns[1] = tile.in_stop[2];
    }
}

/* A tile that is largest along both axes, which are independent: some is. */
static int32_t largest_tile(hy3d__builder *b, const hy3d_tiles_plan *tiles)
{
    int64_t at[2] = {0, 0};
    for (int axis = 0; axis < 2; axis++) {
        const int64_t beside = axis == 0 ? tiles->count[2] : 1;
        for (; at[axis] < tiles->count[axis + 1] - 1 && b->status == HY3D_OK; at[axis]++) {
            hy3d_tile tile;
            b->status = hy3d_tiles_at(tiles, at[axis] * beside, &tile);
            if (tile.in_stop[axis + 1] - tile.in_start[axis + 1] == tiles->extent[axis + 1]) {
                break;
            }
        }
    }
    return (int32_t)(at[0] * tiles->count[2] + at[1]);
}

void hy3d__order_tiles(hy3d_schedule *s, hy3d__builder *b, const hy3d_candidate *candidate)
{
    hy3d_tiles_plan tiles;
    sizes known = {.sections = NULL};
    const bool is_all = s->tiles_part == HY3D__TILES_ALL;
    const int32_t passes = is_all && s->cut.group_norms > 0 ? s->request.statistic_passes : 0;
    b->is_silent = !is_all && s->tiles_part != HY3D__TILES_LARGEST;
    b->status = hy3d__tiles_of(s, candidate->halo_row, candidate->level, &tiles);
    if (b->status == HY3D_OK && tiles.tiles > HY3D_SCHEDULE_MAX_STEPS) {
        b->status = HY3D_ERR_OVERFLOW;
    }
    if (b->status == HY3D_OK && s->cut.node > 0) {
        prefix_section(s, b, candidate->chunk);
    }
    for (int32_t pass = 1; pass <= passes + 1 && b->status == HY3D_OK; pass++) {
        if (s->cut.group_norms > 0) {
            statistics_section(s, b, &tiles, candidate->chunk);
        }
        const int32_t first = is_all ? 0 : largest_tile(b, &tiles);
        const int64_t stop = is_all ? tiles.tiles : first + 1;
        for (int32_t i = first; i < stop && b->status == HY3D_OK; i++) {
            tile_section(s, b, &tiles, i, pass > passes ? 0 : pass, candidate->chunk, &known);
        }
    }
    if (s->tiles_part == HY3D__TILES_PEAKS && b->status == HY3D_OK) {
        hy3d__ask_at_peaks(b);
    }
    b->is_silent = false;
    hy3d_free(b->context, known.sections);
}
