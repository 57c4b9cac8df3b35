/* st_index: the header of a safetensors file, read and checked. */
#pragma once

#include "base/safetensors.h"

typedef struct wf_st_index {
    char *strings;        /* holds all names, keys and values */
    wf_st_tensor *tensor; /* in file order */
    size_t count;
    const char *(*meta)[2]; /* as the header has them */
    size_t meta_count;
    /* Places of names and of keys, in order of what stands there; a name is the first member of
     * its tensor. */
    const char *const **names, *const **keys;
} wf_st_index;

/* label names the file in sentences; size >= 2; header and data are borrowed, the data as long as
 * the index lives. On failure *out needs no freeing. */
wf_status wf__st_index_read(wf_ctx *ctx, const char *label, const char *header, size_t size,
                            const uint8_t *data, size_t data_size, wf_st_index *out);
void wf__st_index_free(wf_st_index *index);

const wf_st_tensor *wf__st_index_tensor(const wf_st_index *index, const char *name);
const char *wf__st_index_meta(const wf_st_index *index,
                              const char *key); /* the value; NULL: absent */

/* Fails when two of n strings, whose pointers are `stride` bytes apart, are equal: "label:
 * duplicate what ...". */
wf_status wf__st_check_unique(wf_ctx *ctx, const char *label, const void *first, size_t stride,
                              size_t n, const char *what);
