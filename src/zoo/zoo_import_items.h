/* zoo_import_items: the tensors of one file as an import looks at them: under their names without
 * what wrappers add, in natural order, and the sentences about them. */
#pragma once

#include "base/arena.h"
#include "base/safetensors.h"

/* A tensor under its stripped name; the stacked dimension is not counted. */
typedef struct wf_import_item {
    const wf_st_tensor *tensor;
    char *name;
    int rank;
    const size_t *shape;
    size_t place; /* in the file */
    bool used;
} wf_import_item;

typedef struct wf_import_items {
    wf_ctx *ctx;
    const char *label;
    wf_import_item *list; /* [n] in natural order */
    size_t n;
    int lead;       /* 1 when networks are stacked */
    wf_arena arena; /* names */
} wf_import_items;

/* Fills `file`, which has its ctx and label. stackable: matrices of rank 3 mean stacked networks.
 * Free it also after a failure. */
wf_status wf__import_gather(wf_import_items *file, const wf_st_tensor *const *tensors, size_t n,
                            bool stackable);
void wf__import_items_free(wf_import_items *file);
wf_import_item *wf__import_find(const wf_import_items *file, const char *name);

typedef enum wf_import_which {
    WF_IMPORT_ALL,
    WF_IMPORT_UNUSED,
    WF_IMPORT_UNUSED_MATRICES,
    WF_IMPORT_UNUSED_VECTORS
} wf_import_which;

/* "fc1.weight F32 [16,64], ... and 3 more" */
const char *wf__import_list(const wf_import_items *file, wf_import_which kind, char out[512]);
/* WF_ERR_INPUT: why, the tensors of a kind, what mends it. */
wf_status wf__import_refuse(const wf_import_items *file, const char *why, wf_import_which kind,
                            const char *mend);

bool wf__import_is_float(wf_st_dtype dtype);
bool wf__import_begins(const char *text, const char *word);
/* Takes away what wrappers add to a name. */
void wf__import_strip(char *name);
/* Is the name PREFIX.TAIL or TAIL alone? tail: ".weight", ".bias". */
bool wf__import_has_tail(const char *name, const char *tail, size_t *prefix);

/* Order of names with numbers compared as numbers. *by_number (may be NULL): the names first
 * differ in a number. */
int wf_natural_order(const char *a, const char *b, bool *by_number);
/* A copy to cut or change; free(*out). */
wf_status wf_copy_names(wf_ctx *ctx, const char *text, char **out);
/* The next of comma-separated names, without spaces round it; NULL after the last. Writes into
 * the text. */
char *wf_next_name(char **rest);
