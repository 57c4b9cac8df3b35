/* torch_pickle: reads the pickle inside a torch.save file. Data only: no code is ever run.
 *
 * The machine knows the opcodes that dictionaries, lists, numbers, text and tensors need
 * (protocols 2 to 5) and these names alone: collections.OrderedDict, Lightning's AttributeDict,
 * torch._utils._rebuild_tensor_v2, torch._utils._rebuild_parameter and the torch storages. Any
 * other name is refused. A value never owns another one. Cycles are harmless, because neither this
 * reader nor its callers follow values to any depth. */
#pragma once

#include "base/arena.h"
#include "base/safetensors.h"

typedef enum wf_pickle_kind {
    WF_PICKLE_NONE,
    WF_PICKLE_BOOL,
    WF_PICKLE_INT,
    WF_PICKLE_FLOAT,
    WF_PICKLE_TEXT,
    WF_PICKLE_BYTES,
    WF_PICKLE_TUPLE,
    WF_PICKLE_LIST,
    WF_PICKLE_DICT,
    WF_PICKLE_GLOBAL,
    WF_PICKLE_STORAGE,
    WF_PICKLE_TENSOR
} wf_pickle_kind;

/* A storage's name in the archive and its type. */
typedef struct wf_pickle_storage {
    const char *key; /* into the pickle, not NUL-terminated */
    size_t key_length;
    wf_st_dtype dtype;
    size_t count;
} wf_pickle_storage;

/* A view into a storage. Offset, shape and strides are in elements and stay inside
 * `storage->count`; a view has no more elements than its storage. */
typedef struct wf_pickle_tensor {
    const wf_pickle_storage *storage;
    size_t offset;
    int rank;
    size_t shape[WF_ST_MAX_RANK], stride[WF_ST_MAX_RANK];
    size_t count;
} wf_pickle_tensor;

typedef struct wf_pickle_value {
    wf_pickle_kind kind;
    size_t
        /* bytes of text; items of a tuple or list; keys and values of a dict (so twice its
         * pairs) */
        n;
    size_t capacity; /* of items */
    union {
        int64_t integer; /* also of a bool, and which one of a global */
        double real;
        const char *text; /* into the pickle, not NUL-terminated */
        struct wf_pickle_value **items;
        const wf_pickle_storage *storage;
        const wf_pickle_tensor *tensor;
    };
} wf_pickle_value;

/* bytes and arena must outlive *out. label is the file's name in sentences. A pickle that asks for
 * more than `budget` bytes of memory is refused. */
wf_status wf_pickle_read(wf_ctx *ctx, const char *label, const void *bytes, size_t size,
                         size_t budget, wf_arena *arena, const wf_pickle_value **out);
