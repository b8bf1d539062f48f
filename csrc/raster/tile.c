/* The tiles of a picture. */
#include <math.h>
#include <string.h>

#include "base/parallel.h"
#include "raster/checks.h"
#include "raster/internal.h"

/* Pixels a side that an odd face is asked about together: most of them are long and thin. */
#define ODD_BLOCK 8
#define LOOK 64 /* batches between two looks at the cancel flag */

typedef struct tile_state {
    hy3d__raster_tile tile;
    hy3d__raster_faces faces;
    int32_t corners[HY3D__FACES][3]; /* of the batch's faces */
} tile_state;

size_t hy3d__raster_tile_state_bytes(void)
{
    return (sizeof(tile_state) + 63) / 64 * 64;
}

/* The faces of a tile in ascending order: its own list and the large ones. */
typedef struct face_lists {
    const hy3d__raster_entry *own, *own_end;
    const int32_t *large, *large_end;
} face_lists;

static bool next_large(const hy3d__raster_job *job, const hy3d__raster_tile *tile,
                       face_lists *lists, int32_t *face, hy3d__raster_box *box)
{
    while (lists->large != lists->large_end &&
           (lists->own == lists->own_end || *lists->large < lists->own->face)) {
        *face = *lists->large++;
        if (hy3d__raster_meet(job->bounds[*face], tile->x, tile->y, box)) {
            return true;
        }
    }
    return false;
}

static bool next_face(const hy3d__raster_job *job, const hy3d__raster_tile *tile, face_lists *lists,
                      int32_t *face, hy3d__raster_box *box)
{
    if (next_large(job, tile, lists, face, box)) {
        return true;
    }
    if (lists->own == lists->own_end) {
        return false;
    }
    *face = lists->own->face;
    *box = (hy3d__raster_box){lists->own->left, lists->own->right, lists->own->top,
                              lists->own->bottom};
    lists->own++;
    return true;
}

bool hy3d__raster_misses(const hy3d__raster_view *view, const hy3d__raster_tile *tile,
                         const hy3d__raster_box *box, double ep, double eq, double constant,
                         double bound)
{
    /* Where in the box it is largest. */
    const int column = tile->x + (ep > 0 ? box->right : box->left);
    const int row = tile->y + (eq > 0 ? box->bottom : box->top);
    const double p = hy3d__raster_p(view, column);
    const double q = hy3d__raster_q(view, row);
    return ep * p + (eq * q + constant) < -bound;
}

/* Whether one edge has the whole box outside. A box of some vectors is worth the question. */
static bool misses(const hy3d__raster_job *job, const tile_state *state, size_t k,
                   const hy3d__raster_box *box)
{
    const hy3d__raster_faces *const faces = &state->faces;
    if (box->bottom - box->top + (box->right - box->left) < 16) {
        return false;
    }
    for (int i = 0; i < 3; i++) {
        if (hy3d__raster_misses(&job->view, &state->tile, box, faces->edge[i][0][k],
                                faces->edge[i][1][k], faces->edge[i][2][k], faces->bound[k])) {
            return true;
        }
    }
    return false;
}

static void draw_odd_block(const hy3d__raster_odd *odd, const hy3d__raster_box *block,
                           hy3d__raster_tile *tile)
{
    for (int row = block->top; row <= block->bottom; row++) {
        for (int column = block->left; column <= block->right; column++) {
            hy3d__raster_odd_pixel(odd, column, row, tile);
        }
    }
}

static void draw_odd(const hy3d__raster_job *job, tile_state *state, size_t k,
                     const hy3d__raster_box *box)
{
    hy3d__raster_odd odd;
    if (!hy3d__raster_odd_prepare(&job->view, job->clip, state->corners[k], state->faces.face[k],
                                  &odd)) {
        return;
    }
    for (int top = box->top; top <= box->bottom; top += ODD_BLOCK) {
        for (int left = box->left; left <= box->right; left += ODD_BLOCK) {
            const int right = left + ODD_BLOCK - 1, bottom = top + ODD_BLOCK - 1;
            const hy3d__raster_box block = {left, right < box->right ? right : box->right, top,
                                            bottom < box->bottom ? bottom : box->bottom};
            if (!hy3d__raster_odd_misses(&odd, &block, &state->tile)) {
                draw_odd_block(&odd, &block, &state->tile);
            }
        }
    }
}

static void draw_doubts(const hy3d__raster_job *job, tile_state *state, size_t k)
{
    hy3d__raster_tile *const tile = &state->tile;
    hy3d__raster_odd odd;
    if (tile->doubts == 0 || !hy3d__raster_odd_prepare(&job->view, job->clip, state->corners[k],
                                                       state->faces.face[k], &odd)) {
        return;
    }
    for (int i = 0; i < tile->doubts; i++) {
        hy3d__raster_odd_pixel(&odd, tile->doubt[i] % HY3D__TILE, tile->doubt[i] / HY3D__TILE,
                               tile);
    }
}

/* The kernel gets a mesh of the batch's faces alone, its indices read once and bounded. */
static void prepare(const hy3d__raster_job *job, tile_state *state, size_t n)
{
    int32_t face[HY3D__FACES];
    for (size_t k = 0; k < n; k++) {
        face[k] = state->faces.face[k];
        state->faces.face[k] = (int32_t)k;
        for (int i = 0; i < 3; i++) {
            state->corners[k][i] = hy3d__read_index(job->triangles + 3 * (int64_t)face[k] + i,
                                                    (uint32_t)job->desc->vertices);
        }
    }
    job->kernels->raster_setup_f64(n, &job->view, job->clip, state->corners[0], &state->faces);
    memcpy(state->faces.face, face, n * sizeof face[0]);
}

static void draw_batch(const hy3d__raster_job *job, tile_state *state, size_t n,
                       const hy3d__raster_box *boxes)
{
    prepare(job, state, n);
    for (size_t k = 0; k < n; k++) {
        if ((state->faces.odd >> k & 1U) != 0) {
            draw_odd(job, state, k, &boxes[k]);
        } else if (!misses(job, state, k, &boxes[k])) {
            job->kernels->raster_cover_f64(&job->view, &state->faces, k, &boxes[k], &state->tile);
            draw_doubts(job, state, k);
        }
    }
}

static void clear(hy3d__raster_tile *tile)
{
    for (int i = 0; i < HY3D__TILE_PIXELS; i++) {
        tile->step[i] = INT32_MAX;
    }
    memset(tile->face, 0, HY3D__TILE_PIXELS * sizeof(tile->face[0]));
    for (int i = 0; tile->wants_depth && i < HY3D__TILE_PIXELS; i++) {
        tile->depth[i] = INFINITY;
    }
}

static void write_out(const hy3d__raster_job *job, const hy3d__raster_tile *tile)
{
    const int64_t width = job->desc->width, right = width - tile->x;
    const int64_t below = job->desc->height - tile->y;
    const int64_t columns = right < HY3D__TILE ? right : HY3D__TILE;
    const int64_t rows = below < HY3D__TILE ? below : HY3D__TILE;
    for (int64_t row = 0; row < rows; row++) {
        const int64_t from = row * HY3D__TILE, to = (tile->y + row) * width + tile->x;
        memcpy(job->face_index + to, tile->face + from, (size_t)columns * sizeof(int32_t));
        if (job->depth != NULL) {
            memcpy(job->depth + to, tile->depth + from, (size_t)columns * sizeof(float));
        }
        if (job->barycentric != NULL) {
            job->kernels->raster_row_f32((size_t)columns, tile->face + from,
                                         tile->barycentric[0] + from, tile->barycentric[1] + from,
                                         tile->barycentric[2] + from, job->barycentric + 3 * to);
        }
    }
}

static hy3d_status tile_grain(void *argument, int64_t number, uint32_t slot)
{
    const hy3d__raster_job *const job = argument;
    tile_state *const state =
        (void *)((char *)job->tile_state + slot * hy3d__raster_tile_state_bytes());
    hy3d__raster_tile *const tile = &state->tile;
    face_lists lists = {job->entries + job->starts[number], job->entries + job->starts[number + 1],
                        job->large, job->large + job->large_count};
    hy3d__raster_box boxes[HY3D__FACES];
    size_t n = 0, batches = 0;
    tile->x = (int32_t)(number % job->tiles_across * HY3D__TILE);
    tile->y = (int32_t)(number / job->tiles_across * HY3D__TILE);
    tile->prior_pitch = job->desc->width;
    tile->prior = job->prior ? job->prior + tile->y * tile->prior_pitch + tile->x : NULL;
    tile->wants_depth = job->depth != NULL;
    clear(tile);
    while (next_face(job, tile, &lists, &state->faces.face[n], &boxes[n])) {
        if (++n == HY3D__FACES) {
            draw_batch(job, state, n, boxes);
            n = 0;
            if (++batches % LOOK == 0 && hy3d_cancel_requested(job->cancel)) {
                return HY3D_ERR_CANCELLED; /* one tile may have all faces */
            }
        }
    }
    if (n > 0) {
        draw_batch(job, state, n, boxes);
    }
    write_out(job, tile);
    return HY3D_OK;
}

hy3d_status hy3d__raster_draw_tiles(hy3d__raster_job *job)
{
    return hy3d__parallel_for(job->context, job->tiles, job->slots, job->cancel, tile_grain, job);
}
