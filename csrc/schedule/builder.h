/* Builds one section of a program: appends steps in the order that somebody else decides
 * (layers.c, chunks.c), keeps track of which slices are there, and frees each as soon as nobody
 * reads it any more. */
#ifndef HY3D_SCHEDULE_BUILDER_H
#define HY3D_SCHEDULE_BUILDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hy3d/schedule.h"
#include "schedule/frames.h"
#include "schedule/shards.h"

/* A program's arrays while they grow. */
typedef struct hy3d__arrays {
    hy3d_step *steps;
    int64_t *kept; /* of each step: bytes that it makes and that stay until the end, for its node
                      and its shape */
    hy3d_slice *slices;
    int32_t *refs;
    hy3d_section *sections;
    int64_t copies_bytes; /* as the program's */
    double repacked;      /* bytes that steps pack of weights that do not stay, */
    int64_t repacks;      /* and how many steps do; those that several tiles share count once */
    int32_t step_count, slice_count, ref_count, section_count;
    int32_t step_room, kept_room, slice_room, ref_room, section_room;
} hy3d__arrays;

/* What one value's frames are at, and what its node still reads. */
typedef struct hy3d__state {
    hy3d__frames frames;   /* of a CONV */
    hy3d_size size;        /* of the value, in this section */
    hy3d__rows rows;       /* this rank's share of it */
    hy3d__rows slice_rows; /* of its slices */
    int64_t most_rows;     /* of the largest share: what sizes of slices go by, on every rank */
    int64_t row_bytes;     /* of one row of one frame */
    int64_t frame_bytes;   /* of most_rows */
    int64_t made;          /* frames of the value that were made */
    int64_t shown;         /* of these, frames that its readers may see */
    int64_t own;           /* CONV: own frames made; MAP: frames of the source read; ATTENTION:
                                 frames whose keys are known */
    int32_t *slices;       /* those that are there, in order: slices[first .. last) */
    int32_t first, last, room;
    int32_t keys; /* ATTENTION: the slice of keys; -1: not there */
    int32_t first_reader, readers;
    bool active;       /* the section runs it */
    bool only_reduces; /* STATISTICS: of it only the norm is wanted */
    bool gathers;      /* a GroupNorm reads its value: moments are wanted */
    bool reduced;      /* its own GroupNorm's statistics are known */
    bool pending;      /* CHUNKS: more could be made with what is there */
    int64_t rate, per; /* CHUNKS: frames of the value for one chunk, as a fraction */
} hy3d__state;

/* An answer of the workspace function. */
typedef struct hy3d__answer {
    hy3d_step step; /* what it was asked with */
    hy3d_size source;
    bool is_housed;
    hy3d_step_memory taken;
    int32_t next; /* of the same bucket; -1: none */
} hy3d__answer;
#define HY3D__ANSWER_BUCKETS 1024

typedef struct hy3d__builder {
    hy3d_context *context;
    const hy3d_schedule_request *request;
    const hy3d_graph *graph;
    hy3d__arrays *arrays;
    hy3d__state *states;   /* one a node */
    int32_t *readers;      /* of all nodes, see first_reader */
    bool *kept_asked;      /* nodes whose first step was */
    int64_t *kept_known;   /* what nodes keep, as far as it was said; else 0 */
    bool *has_shape;       /* of each number: whether the program has a step of that shape */
    int64_t shapes_bytes;  /* what these leave */
    hy3d__answer *answers; /* of all programs so far */
    int32_t *buckets;      /* first answers; -1: none */
    int32_t answer_count, answer_room;
    bool is_silent;   /* nothing is asked: steps and nodes take what is known already */
    int32_t from, to; /* nodes: the section's input, and the last one that it runs */
    int32_t output;   /* the value that is given away; -1: none */
    int64_t emitted;  /* frames of it that were */
    int32_t on_host;
    bool repacks; /* as the candidate */
    const hy3d__shards *shards;
    int32_t rank;
    int64_t slice_bytes;
    int64_t macs;
    bool reduces;       /* norms are computed, not given */
    hy3d_status status; /* the first error; after it nothing is appended */
} hy3d__builder;

/* `array` with room for one more than `count` elements of `bytes` each; as it is where there is no
 * memory, or where *status is an error already. */
void *hy3d__grown(hy3d_context *context, void *array, int32_t count, int32_t *room, size_t bytes,
                  hy3d_status *status);

hy3d_status hy3d__builder_create(hy3d_context *context, const hy3d_schedule_request *request,
                                 const hy3d__shards *shards, int32_t on_host,
                                 hy3d__builder *builder_out);
void hy3d__builder_destroy(hy3d__builder *builder);
/* Forgets what kept_asked, has_shape and the sums hold: another program begins, that of `rank`. */
void hy3d__builder_reset(hy3d__builder *builder, int32_t rank, hy3d__arrays *arrays);
void hy3d__arrays_destroy(hy3d_context *context, hy3d__arrays *arrays);

/* A section over the nodes behind `from` up to `to`, of which `from` gives the input: of `size`
 * frames, rows and columns. STATISTICS: of these, those that norms depend on. */
void hy3d__section_begin(hy3d__builder *builder, hy3d_section_kind kind, int32_t from, int32_t to,
                         const int64_t size[3]);
void hy3d__section_end(hy3d__builder *builder);
/* Another section with the steps of section `section`. */
void hy3d__section_again(hy3d__builder *builder, int32_t section);

/* The next step of a node, up to frame `stop`: of the source for ENTER, KEYS and MAP, of the own
 * frames for CONV, else of the value. Each appends one computing step and what belongs to it
 * (SEND, RECV, MOMENTS and EMIT behind it). */
void hy3d__do_reduce(hy3d__builder *builder, int32_t node);
void hy3d__do_enter(hy3d__builder *builder, int64_t stop);
void hy3d__do_pass(hy3d__builder *builder, int32_t index, int64_t stop);
void hy3d__do_conv(hy3d__builder *builder, int32_t index, int64_t stop);
void hy3d__do_keys(hy3d__builder *builder, int32_t index, int64_t stop);
void hy3d__do_attend(hy3d__builder *builder, int32_t index, int64_t stop);
void hy3d__do_map(hy3d__builder *builder, int32_t index, int64_t stop);
void hy3d__do_add(hy3d__builder *builder, int32_t index, int64_t stop);
void hy3d__do_opaque(hy3d__builder *builder, int32_t index);
/* The whole decode by the VAE's own code, without slices. */
void hy3d__do_black_box(hy3d__builder *builder, int64_t frames);
/* Copies the frames of the value that are still read, where that frees at least half of their first
 * slice. */
void hy3d__do_trim(hy3d__builder *builder, int32_t value);

/* Asks for the workspace of a step of the last section. */
void hy3d__ask_step(hy3d__builder *builder, hy3d_step *step);
/* The first frame of the value that anybody still reads. */
int64_t hy3d__needed(const hy3d__builder *builder, int32_t value);
/* One past the last frame of the first slice that holds frame `frame` of a value. */
int64_t hy3d__slice_stop(const hy3d__builder *builder, int32_t node, int64_t frame);
/* The frames of a MAP's result that the first `frames` of its source make. */
int64_t hy3d__map_frames(const hy3d_node *node, int64_t frames);

/* The two orders: all steps of a section that was begun. */
void hy3d__order_layers(hy3d__builder *builder, int32_t to);
/* chunk: frames of the section's input (of `from`'s value, where a prefix made that) at a time. */
void hy3d__order_chunks(hy3d__builder *builder, int32_t from, int64_t chunk);

#endif
