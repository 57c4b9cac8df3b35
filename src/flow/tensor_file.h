/* tensor_file: what the files of fitted generators share: named tensors of parameter lists, numbers
 * and texts in the metadata, architectures, each read with a sentence about what is wrong. */
#pragma once

#include "flow/flow_config.h"
#include "nn/params.h"

enum { WF_TENSOR_NAME = 96 };

/* --- writing ---------------------------------------------------------------------------------- */

/* Float tensors being collected for wf_st_write; names[i] holds the name of tensors[i]. */
typedef struct wf_tensor_list {
    wf_st_tensor *tensors;
    char (*names)[WF_TENSOR_NAME];
    size_t n;
} wf_tensor_list;

/* room: tensors, at most. */
wf_status wf_tensor_list_create(wf_ctx *ctx, size_t room, wf_tensor_list *out);
void wf_tensor_list_free(wf_tensor_list *list);
/* cols 0: a vector. data is borrowed until the file is written. */
void wf_tensor_list_add(wf_tensor_list *list, const char *name, size_t rows, size_t cols,
                        const void *data);
/* PREFIX.NAME for each tensor of a list of parameters. A bias or vector has one dimension, as
 * PyTorch stores it. */
void wf_tensor_list_params(wf_tensor_list *list, const char *prefix, const wf_field_tensor *tensors,
                           int n, const float *flat);
/* The file, with the metadata of both. */
wf_status wf_tensor_list_write(wf_ctx *ctx, const char *path, const wf_tensor_list *list,
                               const wf_meta *config, const wf_meta *run);
/* A path or name: bytes that are not UTF-8, which a header may not hold, become '?'. */
wf_status wf_meta_add_text(wf_ctx *ctx, wf_meta *meta, const char *key, const char *value);
/* "arch.INDEX" and what belongs to it: the description of an architecture as text, and as JSON. */
wf_status wf_meta_add_arch(wf_ctx *ctx, wf_meta *config, int index, const wf_graph *graph);
wf_status wf_meta_add_graph(wf_ctx *ctx, wf_meta *run, int index, const wf_graph *graph);

/* --- reading: WF_ERR_INPUT says which part of the file is wrong ------------------------------- */

wf_status wf_file_check_tensor(wf_ctx *ctx, const char *path, const wf_st_file *file,
                               const char *name, size_t count);
wf_status wf_file_tensor(wf_ctx *ctx, const char *path, const wf_st_file *file, const char *name,
                         size_t count, float *out); /* finite */
wf_status wf_file_params(wf_ctx *ctx, const char *path, const wf_st_file *file, const char *prefix,
                         const wf_field_tensor *tensors, int n, float *flat);
wf_status wf_file_positive(wf_ctx *ctx, const char *path, const char *name, const char *what,
                           const float *values, size_t n);
/* A number of the metadata in [low, high]. */
wf_status wf_file_number(wf_ctx *ctx, const char *path, const wf_st_file *file, const char *key,
                         double low, double high, double *out);
/* WF_ERR_USAGE unless the file names the generator `wanted`. unnamed: that of files without a
 * name. */
wf_status wf_file_check_generator(wf_ctx *ctx, const char *path, const wf_st_file *file,
                                  const char *wanted, const char *unnamed);
/* The architecture that wf_meta_add_arch and wf_meta_add_graph described; the caller frees it. */
wf_status wf_file_graph(wf_ctx *ctx, const char *path, const wf_st_file *file, int index,
                        wf_graph **out);
/* What is a wrong setting in a call is a damaged file when it was read from one. */
wf_status wf_blame_file(wf_ctx *ctx, const char *path, wf_status status);
