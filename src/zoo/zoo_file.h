/* zoo_file: collections as files; what the public header does not show. */
#pragma once

#include "base/safetensors.h"
#include "base/status.h"
#include "weft/zoo.h"

enum { WF_ZOO_TESTS = 8 };

typedef struct wf_zoo_test_set {
    char *name;
    float *scores;         /* [M]; NULL when absent */
    const uint8_t *errors; /* [M, bytes] in the mapping, or own_errors; NULL when absent */
    uint8_t *own_errors;
    size_t error_bytes;
} wf_zoo_test_set;

/* Block b of network i begins at blocks[b] + i * strides[b], in bytes. A collection of several
 * files has parts in place of blocks; its columns are copies and its metadata is what the parts
 * agree on. */
struct wf_zoo {
    char *path;       /* or the name of a collection in memory */
    wf_st_file *file; /* NULL: in memory, or several files */
    wf_zoo **parts;   /* [n_parts] owned */
    size_t *firsts;   /* [n_parts] the first network of each part */
    size_t n_parts;   /* 0: one file, or in memory */
    wf_graph *graph;
    size_t count;
    const uint8_t **blocks; /* [n_blocks] in the mapping or in the caller's memory */
    size_t *strides;        /* [n_blocks] */
    float *own;             /* weights of a copy */
    int64_t *seeds;
    float *rates;
    int32_t *epochs;
    int n_tests;
    wf_zoo_test_set tests[WF_ZOO_TESTS];
    char *(*meta)[2]; /* [n_meta] key and value, without a file of its own */
    size_t n_meta;
};

/* weft.format, and how tensors of test sets begin. */
extern const char wf__zoo_format[], wf__zoo_score_prefix[], wf__zoo_errors_prefix[];
/* The tensor of PyTorch with the networks in front: [M,out,in], [M,out], [M,out,in,3,3]. */
wf_st_tensor wf__zoo_block_tensor(const wf_graph *graph, const wf_block *block, size_t count);

/* The entry of test set `name`, made when it is new. */
wf_status wf__zoo_test_entry(wf_ctx *ctx, wf_zoo *zoo, const char *name, wf_zoo_test_set **out);
/* Sets metadata of a collection in memory or of several files; value NULL takes the key away. */
wf_status wf__zoo_put_meta(wf_ctx *ctx, wf_zoo *zoo, const char *key, const char *value);
void wf__zoo_free_columns(wf_zoo *zoo);
/* Whether a path names several files (*, ? or [), and no file has that very name. */
bool wf__zoo_is_pattern(const char *path);
/* Fills `zoo`, which has its path alone, from the files that match it. */
wf_status wf__zoo_open_files(wf_ctx *ctx, wf_zoo *zoo);
/* Tells the system that networks first .. first+count-1 of a file are not needed soon: their pages
 * leave this process, not the page cache. */
void wf__zoo_give_back(const wf_zoo *zoo, size_t first, size_t count);
/* Keys that describe the graph and the format: the writer's own. */
bool wf__zoo_own_key(const char *key);

/* Writes the collection with other weights (count, n_params) and one more entry of metadata;
 * everything else stays. weights NULL: its own; key NULL: none. */
wf_status wf__zoo_rewrite(wf_ctx *ctx, const wf_zoo *zoo, const float *weights, const char *key,
                          const char *value, const char *path);

/* Copies the flat parameters of network `index` (0 .. count-1) to w. */
typedef void wf_zoo_source(void *user, size_t index, float *w);

/* wf_zoo_write for weights that do not lie in one matrix: each network is asked for once, so that
 * no second copy of the collection is needed. */
wf_status wf_zoo_write_from(wf_ctx *ctx, const char *path, const wf_graph *graph,
                            wf_zoo_source *source, void *user, size_t count,
                            const wf_zoo_extra *extra);

/* A collection written while its networks still appear, in any order. `extra` says which columns
 * there will be; what stands in them is looked at by commit alone, and must have the same
 * columns. Until then nothing stands at `path`. */
typedef struct wf_zoo_stream wf_zoo_stream;
wf_status wf_zoo_stream_open(wf_ctx *ctx, const char *path, const wf_graph *graph, size_t count,
                             const wf_zoo_extra *extra, wf_zoo_stream **out);
/* Networks first .. first+count-1 from weights (count, n_params). Any thread may call; the
 * result is 0 or an errno. */
int wf_zoo_stream_put(const wf_zoo_stream *stream, size_t first, size_t count,
                      const float *weights);
int wf_zoo_stream_get(const wf_zoo_stream *stream, size_t index, float *w);
/* Both free the stream; the second takes NULL. */
wf_status wf_zoo_stream_commit(wf_ctx *ctx, wf_zoo_stream *stream, const wf_zoo_extra *extra);
void wf_zoo_stream_abort(wf_zoo_stream *stream);

/* wf_st_verify of its file. */
wf_status wf_zoo_verify(wf_ctx *ctx, const wf_zoo *zoo);

/* Learning rates and epoch counts [M] of an open collection; NULL when absent. */
const float *wf_zoo_rates(const wf_zoo *zoo);
const int32_t *wf_zoo_epochs(const wf_zoo *zoo);

/* Fails where ranks have opened different files. */
wf_status wf_zoo_same(wf_ctx *ctx, const wf_zoo *zoo);
