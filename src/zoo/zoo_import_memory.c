/* zoo_import_memory: networks brought in without a collection's file: those that are only looked
 * at, and those of programs (weft/import.h). */
#include "weft/import.h"
#include "base/json_text.h"
#include "base/settings_json.h"
#include "zoo/zoo_importer.h"

#include <stdlib.h>
#include <string.h>

/* --- networks that are only looked at --------------------------------------------------------- */

/* What an export says of its networks; NULL: nothing. */
static const char *const export_keys[] = {"weft.graph", "weft.scale", "weft.classes"};
enum { of_graph, of_scale, of_classes, n_export_keys };
typedef char *export_notes[n_export_keys];

static void free_notes(export_notes notes) {
    for (int i = 0; i < n_export_keys; i++) free(notes[i]);
}

static wf_status read_note(wf_ctx *ctx, const wf_import_source *s, const char *key, char **out) {
    if (s->torch != NULL) return wf_torch_note(ctx, s->torch, key, out);
    const char *text = wf_st_meta(s->st, key);
    if (text == NULL) return WF_OK;
    *out = strdup(text);
    return *out != NULL ? WF_OK : wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory", key);
}

/* What a file says of itself: whether it is a collection, else the notes that an export has. */
static wf_status read_notes(wf_ctx *ctx, const char *path, bool *collection, export_notes notes) {
    wf_import_source s = {0};
    bool torch = false;
    wf_status status = wf_torch_recognise(ctx, path, &torch);
    if (status == WF_OK)
        status = torch ? wf_torch_open(ctx, path, &s.torch) : wf_st_open(ctx, path, &s.st);
    for (int i = 0; status == WF_OK && i < n_export_keys; i++)
        status = read_note(ctx, &s, export_keys[i], &notes[i]);
    *collection = status == WF_OK && !torch &&
                  (wf_st_meta(s.st, "weft.format") != NULL ||
                   (notes[of_graph] == NULL && wf_st_meta(s.st, "weft.arch") != NULL));
    wf__import_close(&s);
    return status;
}

/* How the networks read data; what is no scale or list of classes is told where data are opened. */
static wf_status keep_reading(wf_ctx *ctx, export_notes notes, wf_zoo *zoo) {
    for (int i = of_scale; i <= of_classes; i++)
        if (notes[i] != NULL) WF_TRY(wf_zoo_set_meta(ctx, zoo, export_keys[i], notes[i]));
    return WF_OK;
}

/* The networks that were read, as a collection in memory. */
static wf_status gather(wf_importer *imp, const char *path, wf_zoo **out) {
    wf_import_group *g = &imp->groups[0];
    if (imp->n_groups > 1)
        return wf_fail(imp->ctx, WF_ERR_SHAPE,
                       "%s holds networks of %s and of %s; name those of one architecture", path,
                       g->graph->text, imp->groups[1].graph->text);
    WF_TRY(wf_zoo_from_memory(imp->ctx, path, g->graph, g->weights, g->count, true, out));
    char *sources = wf_json_text(g->sources, JSON_COMPACT);
    wf_status status = sources != NULL
                           ? wf_zoo_set_meta(imp->ctx, *out, "weft.sources", sources)
                           : wf_fail(imp->ctx, WF_ERR_MEMORY, "%s: out of memory", path);
    free(sources);
    if (status == WF_OK) return WF_OK;
    wf_zoo_free(*out);
    *out = NULL;
    return status;
}

wf_status wf_zoo_open_networks(wf_ctx *ctx, const char *path, const wf_graph *like, wf_zoo **out) {
    const wf_import_desc desc = {0};
    wf_importer imp = {.ctx = ctx, .desc = &desc, .keep_norm = true};
    wf_import_files files;
    export_notes notes = {NULL};
    bool collection = false;
    *out = NULL;
    wf_status status = wf_import_files_list(ctx, &path, 1, true, &files);
    if (status == WF_OK) status = read_notes(ctx, files.list[0].path, &collection, notes);
    if (status == WF_OK && collection && files.n == 1) status = wf_zoo_open(ctx, path, out);
    else if (status == WF_OK) {
        if (notes[of_graph] != NULL && !collection)
            status = wf_graph_from_json(ctx, notes[of_graph], 0, &imp.described);
        if (status == WF_OK && imp.described == NULL && like != NULL)
            status = wf_graph_clone(ctx, like, &imp.described);
        if (status == WF_OK && imp.described == NULL)
            status = wf_fail(ctx, WF_ERR_INPUT,
                             "%s: a state_dict does not say its activation; give --zoo, the "
                             "collection it is like, or bring it in with weft zoo import",
                             files.list[0].path);
        if (status == WF_OK) status = wf__import_add_files(&imp, &files);
        if (status == WF_OK) status = gather(&imp, path, out);
        if (status == WF_OK) status = keep_reading(ctx, notes, *out);
    }
    if (status != WF_OK) {
        wf_zoo_free(*out);
        *out = NULL;
    }
    free_notes(notes);
    wf_import_files_free(&files);
    wf__importer_free(&imp);
    return status;
}

/* --- into memory ------------------------------------------------------------------------------ */

/* Texts of *desc are those of *object, which the caller releases. */
static wf_status read_options(wf_ctx *ctx, const char *options, json_t **object,
                              wf_import_desc *desc) {
    static const char *const names[] = {"activation", "arch",    "layers",    "name", "recursive",
                                        "inputs",     "outputs", "keep_norm", NULL};
    int recursive = 0, keep_norm = 0;
    json_error_t error;
    WF_TRY(wf__json_options(ctx, "import", options, object));
    WF_TRY(wf__json_known(ctx, "import", *object, names));
    if (json_unpack_ex(*object, &error, 0, "{s?s, s?s, s?s, s?s, s?b, s?i, s?i, s?b}", "activation",
                       &desc->activation, "arch", &desc->arch, "layers", &desc->layers, "name",
                       &desc->name, "recursive", &recursive, "inputs", &desc->inputs, "outputs",
                       &desc->outputs, "keep_norm", &keep_norm) != 0)
        return wf_fail(
            ctx, json_error_code(&error) == json_error_out_of_memory ? WF_ERR_MEMORY : WF_ERR_USAGE,
            "import: %s", error.text);
    desc->recursive = recursive != 0;
    desc->keep_norm = keep_norm != 0;
    return WF_OK;
}

static wf_status note_import(wf_importer *imp, const char *from, wf_zoo *zoo) {
    WF_TRY(wf_zoo_set_meta(imp->ctx, zoo, "weft.name", imp->desc->name ? imp->desc->name : from));
    return wf_zoo_set_meta(imp->ctx, zoo, "weft.scale", "none");
}

/* What add(importer, from) reads. */
static wf_status import_to_memory(wf_ctx *ctx, const char *options, const char *label,
                                  wf_status (*add)(wf_importer *imp, const void *from),
                                  const void *from, wf_zoo **out) {
    wf_import_desc desc = {0};
    wf_importer imp = {.ctx = ctx, .desc = &desc};
    json_t *object = NULL;
    char *name = NULL;
    *out = NULL;
    wf_status status = read_options(ctx, options, &object, &desc);
    if (status == WF_OK) status = wf__import_check_desc(ctx, &desc, &imp);
    if (status == WF_OK) status = wf__import_source_name(ctx, label, &name);
    if (status == WF_OK) status = add(&imp, from);
    if (status == WF_OK) status = gather(&imp, label, out);
    if (status == WF_OK) status = note_import(&imp, name, *out);
    if (status != WF_OK) {
        wf_zoo_free(*out);
        *out = NULL;
    }
    free(name);
    json_decref(object);
    wf__importer_free(&imp);
    return status;
}

typedef struct named_sources {
    const char *const *list;
    int n;
} named_sources;

static wf_status add_sources(wf_importer *imp, const void *from) {
    const named_sources *sources = from;
    wf_import_files files = {0};
    wf_status status =
        wf_import_files_list(imp->ctx, sources->list, sources->n, imp->desc->recursive, &files);
    if (status == WF_OK) status = wf__import_add_files(imp, &files);
    wf_import_files_free(&files);
    return status;
}

wf_status wf_zoo_import_json(wf_ctx *ctx, const char *const *sources, int n, const char *options,
                             wf_zoo **out) {
    const char *label = n == 1 ? sources[0] : "import";
    return import_to_memory(ctx, options, label, add_sources, &(named_sources){sources, n}, out);
}

static char tensors_label[] = "tensors in memory";

static wf_status add_memory(wf_importer *imp, const void *from) {
    const wf_import_file file = {.path = tensors_label, .name = tensors_label, .alone = true};
    imp->of_files = 1;
    return wf__import_add_tensors(imp, &file, from);
}

/* Tensor i of the caller's arrays; *shape moves on to that of the next. */
static wf_status tensor_of(wf_ctx *ctx, const char *name, const float *data, int rank,
                           const size_t **shape, wf_st_tensor *out) {
    if (rank < 0 || rank > WF_ST_MAX_RANK)
        return wf_fail(ctx, WF_ERR_SHAPE, "%s: %d dimensions; a tensor has at most %d", name, rank,
                       WF_ST_MAX_RANK);
    *out = (wf_st_tensor){.name = name, .dtype = WF_ST_F32, .rank = rank, .count = 1, .data = data};
    for (int d = 0; d < rank; d++) out->count *= out->shape[d] = *(*shape)++;
    out->bytes = out->count * sizeof *data;
    return WF_OK;
}

wf_status wf_zoo_import_tensors(wf_ctx *ctx, const char *const *names, const float *const *data,
                                const int *rank, const size_t *shape, int n, const char *options,
                                wf_zoo **out) {
    wf_st_tensor *tensors = NULL;
    wf_import_source s = {.n = (size_t)n};
    *out = NULL;
    wf_status status = wf_alloc(ctx, s.n, sizeof *tensors, tensors_label, &tensors);
    if (status == WF_OK) status = wf_alloc(ctx, s.n, sizeof *s.tensors, tensors_label, &s.tensors);
    for (int i = 0; i < n && status == WF_OK; i++) {
        status = tensor_of(ctx, names[i], data[i], rank[i], &shape, &tensors[i]);
        s.tensors[i] = &tensors[i];
    }
    if (status == WF_OK)
        status = import_to_memory(ctx, options, tensors_label, add_memory, &s, out);
    free(s.tensors);
    free(tensors);
    return status;
}
