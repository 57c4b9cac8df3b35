/* safetensors: strict reader and writer. File: u64 little-endian header size, JSON header, data.
 * All rules are enforced when reading: header at most 100 MB, starts with '{', UTF-8, no duplicate
 * key, known dtypes, shape product checked against the offsets, no overlap, no hole, the data ends
 * where the file ends. */
#pragma once

#include "base/io.h"

typedef enum wf_st_dtype {
    WF_ST_BOOL,
    WF_ST_U8,
    WF_ST_I8,
    WF_ST_I16,
    WF_ST_U16,
    WF_ST_F16,
    WF_ST_BF16,
    WF_ST_I32,
    WF_ST_U32,
    WF_ST_F32,
    WF_ST_F64,
    WF_ST_I64,
    WF_ST_U64
} wf_st_dtype;
enum { WF_ST_MAX_RANK = 8 };

typedef struct wf_st_tensor {
    const char *name;
    wf_st_dtype dtype;
    int rank;
    size_t shape[WF_ST_MAX_RANK];
    size_t count, bytes;
    const void *data; /* into the mapping when read; the caller's when written. May be unaligned */
} wf_st_tensor;

typedef struct wf_st_file wf_st_file;
wf_status wf_st_open(wf_ctx *ctx, const char *path, wf_st_file **out);
/* The same over bytes in memory (fuzzing, tests); borrowed. */
wf_status wf_st_parse(wf_ctx *ctx, const char *label, const void *bytes, size_t size,
                      wf_st_file **out);
void wf_st_close(wf_st_file *file);
/* wf_map_give_back for `bytes` bytes of a tensor's data; nothing where the file is in memory. */
void wf_st_give_back(const wf_st_file *file, const void *data, size_t bytes);
size_t wf_st_count(const wf_st_file *file);
const wf_st_tensor *wf_st_at(const wf_st_file *file, size_t index);       /* in file order */
const wf_st_tensor *wf_st_find(const wf_st_file *file, const char *name); /* NULL when absent */
const char *wf_st_meta(const wf_st_file *file, const char *key);          /* NULL when absent */
size_t wf_st_meta_count(const wf_st_file *file);
void wf_st_meta_at(const wf_st_file *file, size_t index, const char **key, const char **value);
size_t wf_st_dtype_size(wf_st_dtype dtype);
const char *wf_st_dtype_name(wf_st_dtype dtype);
/* Whether the content is what the writer wrote: WF_ERR_INPUT when its digest (metadata
 * "weft.digest") says otherwise. *known (may be NULL) false: the file has none, because another
 * program or version 0.1 wrote it. Reads the whole file. */
wf_status wf_st_verify(wf_ctx *ctx, const wf_st_file *file, bool *known);
/* Any float dtype to float (F16, BF16, F32, F64); other dtypes fail. out has tensor->count
 * floats. */
wf_status wf_st_to_float(wf_ctx *ctx, const wf_st_tensor *tensor, float *out);

/* Atomic and durable. data pointers are borrowed. meta: n_meta pairs (key, value); "weft.digest" is
 * the writer's own and is left out where a caller hands on the metadata of another file. */
wf_status wf_st_write(wf_ctx *ctx, const char *path, const wf_st_tensor *tensors, size_t n,
                      const char *const (*meta)[2], size_t n_meta);

/* The same piece by piece: the shapes are known, the data comes in any order. tensors[i].data is
 * not looked at. Nothing stands at `path` before commit. A path that is no plain file (a pipe) is
 * WF_ERR_UNSUPPORTED. */
typedef struct wf_st_stream wf_st_stream;
wf_status wf_st_stream_open(wf_ctx *ctx, const char *path, const wf_st_tensor *tensors, size_t n,
                            const char *const (*meta)[2], size_t n_meta, wf_st_stream **out);
/* `count` bytes at byte `at` of tensor i. Any thread may call them, also side by side; the result
 * is 0 or an errno. */
int wf_st_stream_put(const wf_st_stream *stream, size_t i, size_t at, const void *bytes,
                     size_t count);
int wf_st_stream_get(const wf_st_stream *stream, size_t i, size_t at, void *bytes, size_t count);
wf_status wf_st_stream_commit(wf_ctx *ctx, wf_st_stream *stream); /* frees it, also on failure */
void wf_st_stream_abort(wf_st_stream *stream);                    /* NULL is fine */
