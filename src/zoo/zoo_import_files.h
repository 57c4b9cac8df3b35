/* zoo_import_files: which files an import reads: files, patterns and folders, in order. */
#pragma once

#include "base/status.h"

typedef struct wf_import_file {
    char *path;
    const char *name; /* after the folder that all files have in common; into path */
    bool alone;       /* named itself, so that it may hold stacked networks */
} wf_import_file;

typedef struct wf_import_files {
    wf_import_file *list;
    size_t n, capacity;
} wf_import_files;

/* Sources in the order given: a file as it is; the files that match a pattern (*, ?, [...]) and
 * those of a folder in natural order. A folder that holds model.safetensors or pytorch_model.bin is
 * one network: what a trainer saved beside it is left out. recursive: folders with all below them.
 * On failure *out is to be freed too. */
wf_status wf_import_files_list(wf_ctx *ctx, const char *const *sources, int n, bool recursive,
                               wf_import_files *out);
void wf_import_files_free(wf_import_files *files);

/* Is this a file of torch.save by its name? */
bool wf_import_torch_name(const char *name);
