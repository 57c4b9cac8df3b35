/* zoo_importer: an import at work: what is read, and the networks that were. */
#pragma once

#include "base/safetensors.h"
#include "weft/import.h"
#include "zoo/torch_file.h"
#include "zoo/zoo_import_files.h"

#include <jansson.h>

/* Networks of one architecture. */
typedef struct wf_import_group {
    wf_graph *graph;
    float *weights; /* (count, n_params) */
    size_t count, capacity, non_finite;
    json_t *sources; /* file of each network; of one stacked file, that one */
    char first_non_finite[256];
} wf_import_group;

typedef struct wf_importer {
    wf_ctx *ctx;
    const wf_import_desc *desc;
    wf_activation activation; /* of the hidden layers */
    wf_graph *described;      /* the user's description; NULL: found in each file */
    bool keep_norm;           /* batch norms stay as they are described */
    wf_import_group *groups;
    size_t n_groups, files;
    size_t of_files; /* to be read */
} wf_importer;

/* Tensors of one file, whatever its format. */
typedef struct wf_import_source {
    wf_st_file *st;
    wf_torch_file *torch;
    const wf_st_tensor **tensors;
    size_t n;
} wf_import_source;

void wf__import_close(wf_import_source *s);

/* Takes activation and description from the user's desc; NULL is refused. */
wf_status wf__import_check_desc(wf_ctx *ctx, const wf_import_desc *desc, wf_importer *imp);
void wf__importer_free(wf_importer *imp);
wf_status wf__import_add_files(wf_importer *imp, const wf_import_files *files);
wf_status wf__import_add_tensors(wf_importer *imp, const wf_import_file *file,
                                 const wf_import_source *s);
/* The last component of a path that may end in slashes; free(*out). */
wf_status wf__import_source_name(wf_ctx *ctx, const char *path, char **out);
