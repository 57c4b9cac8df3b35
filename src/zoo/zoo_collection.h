/* zoo_collection: a collection while it is trained (zoo_shards.c), by one process or by several
 * ranks (zoo_ranks.c), and its files (zoo_parts.c). */
#pragma once

#include "weft/file.h"
#include "zoo/zoo_engine.h"
#include "zoo/zoo_file.h"

#include <pthread.h>

typedef struct part_list {
    size_t count, capacity;
    wf_zoo **parts;
} part_list;

enum {
    WF_ZOO_PATH = 4096,
    WF_ZOO_NETWORKS = 96,
    WF_ZOO_RECIPE = 4096,
    /* Values of place.part. */
    WF_PLACE_NONE = -1,            /* not trained yet */
    WF_PLACE_STREAM = -2,          /* in the growing file alone, at its own place */
    WF_PLACE_ELSEWHERE = INT32_MAX /* another rank has it, or trains it */
};

/* Where network first + i lies. */
typedef struct place {
    int32_t part;
    uint32_t network; /* of that part */
} place;

/* Columns of some networks, in the order of the file. */
typedef struct columns {
    int64_t *index;
    float *lr;
    int32_t *epochs;
    float *scores;
    uint8_t *errors; /* (count, error_bytes) */
} columns;

/* Networks of a piece on their way into the growing file; one thread at a time writes them. */
typedef struct hand {
    size_t handed; /* networks of the piece that were given to the thread, or are in the file */
    size_t first, count;  /* what the thread writes now, as places in the collection ... */
    const float *weights; /* ... and their weights */
    bool running;
    pthread_t thread;
    int failed; /* an errno */
} hand;

typedef struct zoo_collection {
    const wf_graph *graph;
    const wf_dataset *data;
    const wf_zoo_desc *desc;
    const char *path;
    wf_lock *lock; /* of path: the folder of parts is this call's too */
    wf_zoo_chain chain;
    wf_zoo_plan plan;
    char folder[WF_ZOO_PATH];
    char recipe[WF_ZOO_RECIPE];
    char networks[WF_ZOO_NETWORKS]; /* of the finished file: "100 to 122, 21 of them" */
    char fingerprint[65], test_name[101], seed[32];
    size_t error_bytes;
    size_t stands; /* networks of the finished collection at path; 0: it is still to be made */
    part_list list;
    place *places;         /* [count] */
    columns extra;         /* [count], of networks trained by this call */
    uint8_t *state;        /* [count] wf_zoo_state */
    uint8_t *started;      /* [count] 1: there is a file of the network under way */
    bool in_parts;         /* no growing file */
    wf_zoo_stream *stream; /* while the file grows, else NULL */
    /* the piece that is being trained: networks piece_first .. piece_first + piece_count - 1 */
    size_t piece_first, piece_count;
    const float *piece_weights; /* (piece_count, n_params) */
    hand hand;
    size_t done; /* networks trained by this call in earlier pieces */
    wf_ctx *ctx;
    double saved; /* when parts were last written */
    /* The first failure of a save while training went on. */
    wf_status save_status;
    char sentence[512];
    /* Threads that save their networks under way take turns. */
    wf_ctx *keeper;
    pthread_mutex_t keeping;
} zoo_collection;

/* --- the files (zoo_parts.c) ------------------------------------------------------------------ */

/* Fills `all` from its graph, data, desc and path: locks the path, lays out the plan, and on rank 0
 * takes up every file of an earlier call. */
wf_status wf__zoo_start(wf_ctx *ctx, zoo_collection *all);
/* The file of a part, which is named after its first network. */
wf_status wf__zoo_part_path(wf_ctx *ctx, const zoo_collection *all, int64_t first,
                            char out[WF_ZOO_PATH]);
/* Opens a part and notes where its networks lie. */
wf_status wf__zoo_take_part(wf_ctx *ctx, zoo_collection *all, const char *path);
/* Removes the folder of parts, but for files that are not this collection's. */
void wf__zoo_remove_parts(wf_ctx *ctx, zoo_collection *all);
/* The file of network first + i under way. */
wf_status wf__zoo_started_write(wf_ctx *ctx, const zoo_collection *all, size_t i, const void *w,
                                const wf_zoo_progress *progress);
wf_status wf__zoo_started_read(wf_ctx *ctx, const zoo_collection *all, size_t i, void *w,
                               wf_zoo_progress *progress);
void wf__zoo_started_remove(wf_ctx *ctx, zoo_collection *all, size_t i);
wf_status wf__zoo_columns_alloc(wf_ctx *ctx, size_t count, size_t error_bytes, columns *out);
void wf__zoo_columns_free(columns *some); /* also after a failure */
/* What a file of these networks has besides weights. */
/* "100 to 122, 21 of them": which networks are asked for, and how many did not diverge. */
void wf__zoo_name_networks(const zoo_collection *all, size_t kept, char out[WF_ZOO_NETWORKS]);
wf_zoo_extra wf__zoo_extra(const zoo_collection *all, const columns *some);
/* Writes the collection from its parts and removes them. */
wf_status wf__zoo_merge(wf_ctx *ctx, zoo_collection *all, size_t *diverged);

/* --- the training (zoo_shards.c, zoo_ranks.c) ------------------------------------------------- */

/* Trains what is WAITING; *merged: the file stands already. */
wf_status wf__zoo_train_missing(wf_ctx *ctx, zoo_collection *all, bool *merged);
/* The whole training in this process, after the files were taken up. */
wf_status wf__zoo_train_here(wf_ctx *ctx, zoo_collection *all, size_t *dropped);
/* The same by all ranks together. status: that of the start on this rank. */
wf_status wf__zoo_train_together(wf_ctx *ctx, zoo_collection *all, wf_status status,
                                 size_t *dropped);
