/* Whether a program's sections are what its candidate says: the whole graph, or a prefix and tiles
 * that cover the picture. */
#include "replay_walk.h"

#include <stdlib.h>
#include <string.h>

#include "hy3d/tiles.h"

typedef long long ll;

/* Nodes behind the cut read nothing before it but its own value. */
static bool is_cut(replay_walk *walk)
{
    const hy3d_cut *const cut = &walk->program->cut;
    const hy3d_graph *const graph = &walk->request->graph;
    int32_t norms = 0, of_frames = 0;
    if (cut->node < 0 || cut->node >= graph->count - 1) {
        return replay_object(walk, "a cut behind node %d", cut->node);
    }
    for (int32_t node = cut->node + 1; node < graph->count; node++) {
        const hy3d_node *const behind = &graph->nodes[node];
        norms += behind->norm == HY3D_NORM_GROUP;
        of_frames += behind->norm == HY3D_NORM_FRAME;
        if (behind->source < cut->node || (behind->other >= 0 && behind->other < cut->node)) {
            return replay_object(walk, "node %d, behind the cut, reads before it", node);
        }
        if (behind->op == HY3D_OP_ATTENTION && cut->node > 0) {
            return replay_object(walk, "an attention, node %d, is behind the cut", node);
        }
    }
    return (norms == cut->group_norms && of_frames == cut->frame_norms) ||
           replay_object(walk, "%d norms behind the cut and %d of frames, not %d and %d", norms,
                         of_frames, cut->group_norms, cut->frame_norms);
}

/* Tiles of one pass cover the cut's picture. */
static bool tiles_cover(replay_walk *walk, const hy3d_size *cut, int32_t pass)
{
    bool all = true;
    unsigned char *const covered = replay_room(cut->rows * cut->columns, 1);
    for (int32_t i = 0; i < walk->program->section_count; i++) {
        const hy3d_section *const section = &walk->program->sections[i];
        if (section->kind != HY3D_SECTION_TILE || section->pass != pass) {
            continue;
        }
        for (int64_t row = section->rows[0]; row < section->rows[1]; row++) {
            memset(covered + row * cut->columns + section->columns[0], 1,
                   (size_t)(section->columns[1] - section->columns[0]));
        }
    }
    for (int64_t i = 0; i < cut->rows * cut->columns; i++) {
        all = all && covered[i];
    }
    free(covered);
    return all || replay_object(walk, "tiles of pass %d leave out a part", pass);
}

static bool is_tile(replay_walk *walk, const hy3d_section *section, const hy3d_size *cut)
{
    const int64_t rows = section->rows[1] - section->rows[0];
    const int64_t columns = section->columns[1] - section->columns[0];
    walk->section = section;
    walk->at = section->steps;
    if (section->rows[0] < 0 || section->columns[0] < 0 || section->rows[1] > cut->rows ||
        section->columns[1] > cut->columns || section->size[0] != cut->frames ||
        section->size[1] != rows || section->size[2] != columns) {
        return replay_object(walk, "a tile of rows %lld to %lld, columns %lld to %lld, size "
                             "%lld x %lld x %lld", (ll)section->rows[0], (ll)section->rows[1],
                             (ll)section->columns[0], (ll)section->columns[1],
                             (ll)section->size[0], (ll)section->size[1], (ll)section->size[2]);
    }
    walk->section = NULL;
    return true;
}

/* A tile lies where the program's tiles are placed (hy3d_tiles_at, which has tests of its own), and
 * where it is exact keeps nothing nearer to where it was cut off than a cut is felt. */
static bool is_placed(replay_walk *walk, const hy3d_section *section, const hy3d_tiles_plan *plan)
{
    const int64_t reach = walk->program->candidate.is_exact ? walk->program->cut.reach : 0;
    const int64_t *const ranges[] = {NULL, section->rows, section->columns};
    hy3d_tile tile;
    if (hy3d_tiles_at(plan, section->tile, &tile) != HY3D_OK) {
        return replay_object(walk, "there is no tile %d", section->tile);
    }
    for (int axis = 1; axis < 3; axis++) {
        const int64_t first = tile.in_start[axis], stop = tile.in_stop[axis];
        const int64_t factor = plan->desc.factor[axis];
        if (ranges[axis][0] != first || ranges[axis][1] != stop) {
            return replay_object(walk, "tile %d reads %lld to %lld along axis %d, not %lld to %lld",
                                 section->tile, (ll)ranges[axis][0], (ll)ranges[axis][1], axis,
                                 (ll)first, (ll)stop);
        }
        if ((first > 0 && tile.out_start[axis] < (first + reach) * factor) ||
            (stop < plan->desc.latent[axis] && tile.out_stop[axis] > (stop - reach) * factor)) {
            return replay_object(walk, "tile %d is said to be exact and keeps %lld to %lld of %lld "
                                 "to %lld along axis %d, where a cut is felt %lld far",
                                 section->tile, (ll)tile.out_start[axis], (ll)tile.out_stop[axis],
                                 (ll)first, (ll)stop, axis, (ll)reach);
        }
    }
    return true;
}

static bool are_placed(replay_walk *walk, const hy3d_size *cut)
{
    const hy3d_program *const program = walk->program;
    hy3d_tiles_plan plan;
    const hy3d_status status = hy3d_tiles_make(&program->tiles, NULL, &plan);
    if (status != HY3D_OK || plan.desc.latent[1] != cut->rows ||
        plan.desc.latent[2] != cut->columns) {
        return replay_object(walk, "its tiles: %s, of %lld x %lld", hy3d_status_name(status),
                             (ll)program->tiles.latent[1], (ll)program->tiles.latent[2]);
    }
    const bool has_norms = program->cut.group_norms > 0 || program->cut.frame_norms > 0;
    const int64_t halo = walk->request->halos[program->candidate.halo_row].halo;
    if (program->candidate.is_exact != (halo < 0 && !has_norms)) {
        return replay_object(walk, "%lld tiles with a halo of %lld are said to be exact: %d, with "
                             "norms behind the cut: %d", (ll)plan.tiles, (ll)halo,
                             program->candidate.is_exact, has_norms);
    }
    for (int32_t i = 0; i < program->section_count; i++) {
        if (program->sections[i].kind == HY3D_SECTION_TILE &&
            !is_placed(walk, &program->sections[i], &plan)) {
            return false;
        }
    }
    return true;
}

static bool kinds_are(replay_walk *walk, const hy3d_size *cut)
{
    const hy3d_program *const program = walk->program;
    const int64_t *const size = walk->request->size;
    int32_t counts[4] = {0}, passes = 0;
    for (int32_t i = 0; i < program->section_count; i++) {
        const hy3d_section *const section = &program->sections[i];
        if (section->kind < 0 || section->kind > HY3D_SECTION_TILE) {
            return replay_object(walk, "a section of kind %d", section->kind);
        }
        counts[section->kind]++;
        passes = section->pass > passes ? section->pass : passes;
        if (section->kind <= HY3D_SECTION_PREFIX &&
            memcmp(section->size, size, sizeof section->size) != 0) {
            return replay_object(walk, "section %d has another size than the input", i);
        }
        if (section->kind == HY3D_SECTION_TILE && !is_tile(walk, section, cut)) {
            return false;
        }
    }
    if (program->candidate.order != HY3D_ORDER_TILES) {
        return (program->section_count == 1 && counts[HY3D_SECTION_ALL] == 1) ||
               replay_object(walk, "%d sections", program->section_count);
    }
    for (int32_t pass = 0; pass <= passes; pass++) {
        if (pass == 0 && !are_placed(walk, cut)) {
            return false;
        }
        if (!tiles_cover(walk, cut, pass)) {
            return false;
        }
    }
    return (counts[HY3D_SECTION_ALL] == 0 &&
            counts[HY3D_SECTION_PREFIX] == (program->cut.node > 0) &&
            counts[HY3D_SECTION_STATISTICS] >= (program->cut.group_norms > 0) &&
            passes <= walk->request->statistic_passes) ||
           replay_object(walk, "%d sections of a prefix, %d of statistics, %d corrections, cut "
                         "behind node %d", counts[1], counts[2], passes, program->cut.node);
}

bool replay_is_laid_out(replay_walk *walk)
{
    replay_values values;
    const int64_t *const size = walk->request->size;
    const hy3d_graph *const graph = &walk->request->graph;
    const int32_t node =
        walk->program->candidate.order >= HY3D_ORDER_PREFIX ? walk->program->cut.node : 0;
    if (walk->program->candidate.order >= HY3D_ORDER_PREFIX && !is_cut(walk)) {
        return false;
    }
    values = replay_values_make(
        graph, 0, node, (hy3d_size){graph->nodes[0].channels, size[0], size[1], size[2]});
    const hy3d_size cut = values.of[node].size;
    replay_values_free(&values);
    const bool has_prefix =
        node > 0 && walk->program->candidate.order == HY3D_ORDER_TILES;
    const int64_t bytes =
        cut.channels * cut.frames * cut.rows * cut.columns * walk->request->element_bytes;
    return kinds_are(walk, &cut) &&
           (walk->program->prefix_bytes == (has_prefix ? bytes : 0) ||
            replay_object(walk, "the prefix's output has %lld bytes, not %lld",
                          (ll)walk->program->prefix_bytes, (ll)(has_prefix ? bytes : 0)));
}
