/* zoo_import: files of other programs to collections (weft/import.h).
 *
 *   source -> files, in natural order -> tensors -> chain of layers -> flat weights, grouped by
 *   architecture
 *
 * All networks are read before anything is written. Flat weights of each group lie in one
 * growing matrix. */
#include "weft/import.h"
#include "base/json_text.h"
#include "data/prepare.h"
#include "graph/describe.h"
#include "zoo/zoo_import_items.h"
#include "zoo/zoo_import_layers.h"
#include "zoo/zoo_importer.h"
#include "weft/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char extension[] = ".safetensors";

wf_import_desc wf_import_desc_default(void) { return (wf_import_desc){0}; }

void wf_import_result_free(wf_import_result *result) {
    if (result == NULL) return;
    for (int i = 0; i < result->n_collections; i++) {
        free(result->collections[i].path);
        free(result->collections[i].arch);
    }
    free(result->collections);
    *result = (wf_import_result){0};
}

static bool ends_with(const char *text, const char *tail) {
    size_t length = strlen(text), tail_length = strlen(tail);
    return length >= tail_length && strcmp(text + length - tail_length, tail) == 0;
}

/* --- one file --------------------------------------------------------------------------------- */

void wf__import_close(wf_import_source *s) {
    free(s->tensors);
    if (s->st != NULL) wf_st_close(s->st);
    wf_torch_close(s->torch);
}

static wf_status open_tensors(wf_ctx *ctx, const char *path, wf_import_source *s) {
    bool torch = false;
    if (!ends_with(path, extension)) WF_TRY(wf_torch_recognise(ctx, path, &torch));
    if (!torch && wf_import_torch_name(path))
        return wf_fail(ctx, WF_ERR_INPUT, "%s: not a file of torch.save (no zip container)", path);
    wf_status opened = torch ? wf_torch_open(ctx, path, &s->torch) : wf_st_open(ctx, path, &s->st);
    if (opened == WF_ERR_INPUT && !torch && !ends_with(path, extension))
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: no file of a network: neither safetensors nor torch.save; a table of "
                       "examples goes behind --data",
                       path);
    WF_TRY(opened);
    if (s->st != NULL && wf_st_meta(s->st, "weft.format") != NULL)
        return wf_fail(ctx, WF_ERR_INPUT, "%s: already a file of weft (%s), use it as it is", path,
                       wf_st_meta(s->st, "weft.format"));
    if (s->st != NULL && wf_st_meta(s->st, "weft.kind") != NULL)
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: a generator, not networks; draw some from it: weft sample %s -o "
                       "new.safetensors",
                       path, path);
    s->n = torch ? wf_torch_count(s->torch) : wf_st_count(s->st);
    WF_TRY(wf_alloc(ctx, s->n, sizeof *s->tensors, path, &s->tensors));
    for (size_t i = 0; i < s->n; i++)
        s->tensors[i] = torch ? wf_torch_at(s->torch, i) : wf_st_at(s->st, i);
    return WF_OK;
}

/* One network, or several stacked: its description and its tensors in the order of parameters. */
typedef struct found_networks {
    wf_graph *graph;   /* owned until a group takes it */
    wf_graph *in_file; /* where batch norms are folded: the description with them; else NULL */
    float *network;    /* of in_file */
    const wf_st_tensor **parts;
    int n_parts;
    size_t networks;
} found_networks;

static wf_status describe(wf_importer *imp, const wf_import_chain *chain, wf_graph **out) {
    wf_layer layers[WF_IMPORT_MAX_LAYERS];
    for (int l = 0; l < chain->n; l++)
        layers[l] = (wf_layer){.op = WF_LAYER_LINEAR,
                               .from = {l},
                               .n = chain->layers[l].units,
                               .bias = chain->layers[l].bias != NULL,
                               .activation = l + 1 < chain->n ? imp->activation : WF_ACT_IDENTITY,
                               .name = chain->named ? chain->layers[l].name : NULL};
    return wf_graph_build(imp->ctx, chain->inputs, 0, 0, layers, chain->n, 0, out);
}

static wf_status find_chain(wf_importer *imp, const char *label, const wf_import_source *s,
                            bool stackable, found_networks *out) {
    wf_import_chain chain;
    WF_TRY(
        wf_import_resolve(imp->ctx, label, s->tensors, s->n, imp->desc->layers, stackable, &chain));
    wf_status status = describe(imp, &chain, &out->graph);
    if (status == WF_ERR_MEMORY) return status;
    if (status != WF_OK)
        return wf_fail(imp->ctx, WF_ERR_INPUT, "%s: %s", label, wf_last_error(imp->ctx));
    WF_TRY(wf_alloc(imp->ctx, 2 * (size_t)chain.n, sizeof *out->parts, label, &out->parts));
    for (int l = 0; l < chain.n; l++) {
        out->parts[out->n_parts++] = chain.layers[l].weight;
        if (chain.layers[l].bias != NULL) out->parts[out->n_parts++] = chain.layers[l].bias;
    }
    out->networks = chain.networks;
    return WF_OK;
}

static int count_norms(const wf_graph *graph, bool folded) {
    int n = 0;
    for (int l = 0; l < graph->n_layers; l++)
        n += folded ? graph->layers[l].folded_norm != NULL : graph->layers[l].norm == WF_NORM_BATCH;
    return n;
}

/* Files have their batch norms; what a collection has is said by the description and by
 * keep_norm. */
static wf_status find_described(wf_importer *imp, const char *label, const wf_import_source *s,
                                bool stackable, found_networks *out) {
    wf_ctx *ctx = imp->ctx;
    const wf_graph *described = imp->described;
    bool folded = count_norms(described, true) > 0;
    bool fold = folded || (!imp->keep_norm && count_norms(described, false) > 0);
    WF_TRY(folded ? wf_graph_unfold_norms(ctx, described, &out->in_file)
                  : wf_graph_clone(ctx, described, &out->in_file));
    out->n_parts = out->in_file->n_blocks;
    WF_TRY(wf_alloc(ctx, (size_t)out->n_parts, sizeof *out->parts, label, &out->parts));
    WF_TRY(wf_import_described(ctx, label, s->tensors, s->n, &out->in_file, stackable, out->parts,
                               &out->networks));
    if (!fold) {
        out->graph = out->in_file;
        out->in_file = NULL;
        return WF_OK;
    }
    WF_TRY(wf_alloc(ctx, out->in_file->n_params, sizeof *out->network, label, &out->network));
    return imp->keep_norm ? wf_graph_clone(ctx, described, &out->graph)
                          : wf_graph_fold_norms(ctx, out->in_file, &out->graph);
}

/* Networks that are to be scored must fit the data, which is said before anything is written. */
static wf_status check_data(const wf_importer *imp, const char *path, const wf_graph *graph) {
    const wf_import_desc *desc = imp->desc;
    if (desc->inputs == 0 || (graph->inputs == desc->inputs && graph->outputs == desc->outputs))
        return WF_OK;
    return wf_fail(imp->ctx, WF_ERR_SHAPE,
                   "%s: a network of %s has %d inputs and %d output%s, but the data have %d inputs "
                   "and %d classes%s",
                   path, graph->text, graph->inputs, graph->outputs, graph->outputs == 1 ? "" : "s",
                   desc->inputs, desc->outputs, wf__one_output(graph->outputs));
}

/* Takes the graph of `found`. */
static wf_status find_group(wf_importer *imp, const char *label, found_networks *found,
                            wf_import_group **out) {
    wf_graph *graph = found->graph;
    for (size_t i = 0; i < imp->n_groups; i++) {
        *out = &imp->groups[i];
        if (wf_graph_equal((*out)->graph, graph)) return WF_OK;
    }
    found->graph = NULL;
    wf_import_group *moved = realloc(imp->groups, (imp->n_groups + 1) * sizeof *moved);
    json_t *sources = json_array();
    if (moved != NULL) imp->groups = moved;
    if (moved == NULL || sources == NULL) {
        wf_graph_free(graph);
        json_decref(sources);
        return wf_fail(imp->ctx, WF_ERR_MEMORY, "%s: out of memory", label);
    }
    *out = &imp->groups[imp->n_groups++];
    **out = (wf_import_group){.graph = graph, .sources = sources};
    return WF_OK;
}

static wf_status reserve(wf_importer *imp, wf_import_group *g, size_t more) {
    size_t wanted, bytes;
    if (__builtin_add_overflow(g->count, more, &wanted))
        return wf_fail(imp->ctx, WF_ERR_MEMORY, "more networks than memory can hold");
    if (wanted <= g->capacity) return WF_OK;
    size_t larger = wanted + (g->count > 0 ? wanted / 2 : 0);
    float *moved = NULL;
    if (!__builtin_mul_overflow(larger, g->graph->n_params * sizeof *moved, &bytes))
        moved = realloc(g->weights, bytes);
    if (moved == NULL)
        return wf_fail(imp->ctx, WF_ERR_MEMORY, "%zu networks of %s do not fit in memory", larger,
                       g->graph->text);
    g->weights = moved;
    g->capacity = larger;
    return WF_OK;
}

/* Copies network m's part of a (stacked) tensor, widened to float. */
static wf_status copy_part(wf_ctx *ctx, const wf_st_tensor *tensor, size_t networks, size_t m,
                           float *out) {
    wf_st_tensor part = *tensor;
    part.count = tensor->count / networks;
    part.bytes = tensor->bytes / networks;
    part.data = (const uint8_t *)tensor->data + m * part.bytes;
    if (networks > 1) part.shape[0] = 1;
    return wf_st_to_float(ctx, &part, out);
}

static wf_status copy_network(wf_ctx *ctx, const found_networks *found, size_t m, float *w) {
    for (int k = 0; k < found->n_parts; k++) {
        WF_TRY(copy_part(ctx, found->parts[k], found->networks, m, w));
        w += found->parts[k]->count / found->networks;
    }
    return WF_OK;
}

static bool is_finite(const float *w, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!isfinite(w[i])) return false;
    return true;
}

/* File names are bytes, metadata is UTF-8: what may not be becomes '?'. */
static void make_ascii(char *text) {
    for (; *text != 0; text++)
        if ((unsigned char)*text >= 128) *text = '?';
}

static wf_status note_source(wf_importer *imp, wf_import_group *g, const char *name) {
    if (json_array_append_new(g->sources, wf_json_string(name)) != 0)
        return wf_fail(imp->ctx, WF_ERR_MEMORY, "%s: out of memory", name);
    return WF_OK;
}

/* Every network has a name, but those of one stacked file, which have that one in common. */
static wf_status note_sources(wf_importer *imp, wf_import_group *g, const char *name,
                              size_t networks) {
    if (networks == 1 || imp->of_files == 1) return note_source(imp, g, name);
    char *each;
    size_t size = strlen(name) + 24;
    WF_TRY(wf_alloc(imp->ctx, size, 1, name, &each));
    wf_status status = WF_OK;
    for (size_t m = 0; m < networks && status == WF_OK; m++) {
        snprintf(each, size, "%s[%zu]", name, m);
        status = note_source(imp, g, each);
    }
    free(each);
    return status;
}

static wf_status add_network(wf_importer *imp, wf_import_group *g, const char *name,
                             const found_networks *found, size_t m) {
    float *w = g->weights + g->count * g->graph->n_params;
    WF_TRY(copy_network(imp->ctx, found, m, found->in_file != NULL ? found->network : w));
    if (found->in_file != NULL) wf_graph_convert_norms(found->in_file, g->graph, found->network, w);
    if (!is_finite(w, g->graph->n_params) && g->non_finite++ == 0)
        snprintf(g->first_non_finite, sizeof g->first_non_finite, "network %zu, %s", g->count,
                 name);
    g->count++;
    return WF_OK;
}

/* One network, or all of a stacked file. */
static wf_status add_networks(wf_importer *imp, const wf_import_file *file, found_networks *found) {
    wf_import_group *g = NULL;
    WF_TRY(find_group(imp, file->path, found, &g));
    WF_TRY(reserve(imp, g, found->networks));
    WF_TRY(note_sources(imp, g, file->name, found->networks));
    if (found->networks == 1) return add_network(imp, g, file->name, found, 0);
    wf_status status = WF_OK;
    wf_meter meter =
        wf_meter_start(imp->ctx, "reading networks", "networks", (double)found->networks);
    for (size_t m = 0; m < found->networks && status == WF_OK; m++) {
        if (wf_interrupted(imp->ctx))
            status = wf_fail(imp->ctx, WF_ERR_INTERRUPTED,
                             "interrupted after %zu of %zu networks; nothing was written", m,
                             found->networks);
        else status = add_network(imp, g, file->name, found, m);
        wf_meter_update(&meter, (double)(m + 1), NULL);
    }
    wf_meter_end(&meter, (double)g->count, NULL);
    return status;
}

wf_status wf__import_add_tensors(wf_importer *imp, const wf_import_file *file,
                                 const wf_import_source *s) {
    found_networks found = {0};
    wf_status status = (imp->described != NULL ? find_described : find_chain)(imp, file->path, s,
                                                                              file->alone, &found);
    if (status == WF_OK) status = check_data(imp, file->path, found.graph);
    if (status == WF_OK) status = add_networks(imp, file, &found);
    wf_graph_free(found.graph);
    wf_graph_free(found.in_file);
    free(found.network);
    free(found.parts);
    if (status == WF_OK) imp->files++;
    return status;
}

static wf_status add_file(wf_importer *imp, const wf_import_file *file) {
    wf_import_source s = {0};
    wf_status status = open_tensors(imp->ctx, file->path, &s);
    if (status == WF_OK) status = wf__import_add_tensors(imp, file, &s);
    wf__import_close(&s);
    return status;
}

wf_status wf__import_add_files(wf_importer *imp, const wf_import_files *files) {
    wf_status status = WF_OK;
    imp->of_files = files->n;
    if (files->n == 1) return add_file(imp, &files->list[0]);
    wf_meter meter = wf_meter_start(imp->ctx, "reading networks", "files", (double)files->n);
    for (size_t i = 0; i < files->n && status == WF_OK; i++) {
        if (wf_interrupted(imp->ctx))
            status =
                wf_fail(imp->ctx, WF_ERR_INTERRUPTED,
                        "interrupted after %zu of %zu files; nothing was written", i, files->n);
        else status = add_file(imp, &files->list[i]);
        wf_meter_update(&meter, (double)(i + 1), NULL);
    }
    wf_meter_end(&meter, (double)imp->files, NULL);
    return status;
}

/* --- writing ---------------------------------------------------------------------------------- */

/* OUT.safetensors, or OUT-64-16-10.safetensors where there are several; a layer without bias
 * shows as "16nobias". */
static char *output_path(const char *out, const char *arch) {
    size_t length = strlen(out) - (ends_with(out, extension) ? strlen(extension) : 0);
    size_t size = length + sizeof extension + (arch ? strlen(arch) * sizeof "nobias" + 1 : 0) + 1;
    char *path = malloc(size);
    if (path == NULL) return NULL;
    wf_text text = wf_text_start(path, size);
    wf_text_add(&text, "%.*s%s", (int)length, out, arch != NULL ? "-" : "");
    for (; arch != NULL && *arch != 0; arch++) {
        if (*arch == '!') wf_text_add(&text, "nobias");
        else wf_text_add(&text, "%c", *arch == ' ' ? '_' : *arch);
    }
    wf_text_add(&text, "%s", extension);
    return path;
}

static wf_status write_group(wf_importer *imp, wf_import_group *g, const char *path,
                             const char *from) {
    char *sources = wf_json_text(g->sources, JSON_COMPACT);
    if (sources == NULL) return wf_fail(imp->ctx, WF_ERR_MEMORY, "%s: out of memory", path);
    wf_zoo_extra extra = {0};
    const char *name = imp->desc->name ? imp->desc->name : from;
    extra.meta[0][0] = "weft.sources", extra.meta[0][1] = sources;
    extra.meta[1][0] = "weft.name", extra.meta[1][1] = name;
    extra.meta[2][0] = "weft.scale", extra.meta[2][1] = "none";
    extra.n_meta = 3;
    wf_status status = wf_zoo_write(imp->ctx, path, g->graph, g->weights, g->count, &extra);
    free(sources);
    if (status == WF_OK && g->non_finite > 0)
        wf_warn(
            imp->ctx,
            "%s: %zu of %zu networks have infinite values or NaN (the first: %s); they are kept. "
            "weft zoo filter %s --finite -o GOOD.safetensors leaves them out",
            path, g->non_finite, g->count, g->first_non_finite, path);
    return status;
}

static wf_status write_groups(wf_importer *imp, const char *from, const char *out,
                              wf_import_result *result) {
    WF_TRY(wf_alloc(imp->ctx, imp->n_groups, sizeof *result->collections, "import",
                    &result->collections));
    result->files = imp->files;
    for (size_t i = 0; i < imp->n_groups; i++) {
        wf_import_group *g = &imp->groups[i];
        wf_import_collection *made = &result->collections[i];
        made->path = output_path(out, imp->n_groups > 1 ? g->graph->text : NULL);
        made->arch = strdup(g->graph->text);
        result->n_collections++;
        if (made->path == NULL || made->arch == NULL)
            return wf_fail(imp->ctx, WF_ERR_MEMORY, "%s: out of memory", out);
        made->count = g->count;
        made->non_finite = g->non_finite;
        made->folded_norms = count_norms(g->graph, true);
        result->networks += g->count;
        result->non_finite += g->non_finite;
        WF_TRY(write_group(imp, g, made->path, from));
    }
    return WF_OK;
}

/* --- the call --------------------------------------------------------------------------------- */

/* Whether every batch norm can be folded, before files are read. */
static wf_status check_folds(wf_ctx *ctx, const wf_graph *graph) {
    wf_graph *folded = NULL;
    wf_status status = wf_graph_fold_norms(ctx, graph, &folded);
    wf_graph_free(folded);
    return status;
}

wf_status wf__import_check_desc(wf_ctx *ctx, const wf_import_desc *desc, wf_importer *imp) {
    if (desc != NULL && desc->arch != NULL) {
        imp->keep_norm = desc->keep_norm;
        if (desc->layers != NULL)
            return wf_fail(ctx, WF_ERR_USAGE, "import: give either --arch or --layers");
        WF_TRY(wf_graph_parse(ctx, desc->arch, desc->activation != NULL ? desc->activation : "relu",
                              0, &imp->described));
        return desc->keep_norm ? WF_OK : check_folds(ctx, imp->described);
    }
    if (desc == NULL || desc->activation == NULL)
        return wf_fail(ctx, WF_ERR_USAGE,
                       "import: the activation of the hidden layers is needed (files do not say "
                       "it), for example --activation relu");
    return wf__activation_parse(ctx, desc->activation, &imp->activation);
}

void wf__importer_free(wf_importer *imp) {
    for (size_t i = 0; i < imp->n_groups; i++) {
        wf_graph_free(imp->groups[i].graph);
        free(imp->groups[i].weights);
        json_decref(imp->groups[i].sources);
    }
    free(imp->groups);
    wf_graph_free(imp->described);
}

/* The last component of a path that may end in slashes. */
wf_status wf__import_source_name(wf_ctx *ctx, const char *path, char **out) {
    WF_TRY(wf_copy_names(ctx, path, out));
    size_t length = strlen(*out);
    while (length > 1 && (*out)[length - 1] == '/') (*out)[--length] = 0;
    const char *slash = strrchr(*out, '/');
    const char *name = slash == NULL ? *out : slash + 1;
    memmove(*out, name, strlen(name) + 1);
    make_ascii(*out);
    return WF_OK;
}

wf_status wf_zoo_import(wf_ctx *ctx, const char *path, const wf_import_desc *desc, const char *out,
                        wf_import_result *result) {
    return wf_zoo_import_all(ctx, &path, 1, desc, out, result);
}

wf_status wf_zoo_import_all(wf_ctx *ctx, const char *const *sources, int n,
                            const wf_import_desc *desc, const char *out, wf_import_result *result) {
    wf_import_result local = {0};
    if (result != NULL) *result = local;
    wf_importer imp = {.ctx = ctx, .desc = desc};
    char *from = NULL;
    wf_import_files files = {0};
    wf_status status = wf__import_check_desc(ctx, desc, &imp);
    if (status == WF_OK) status = wf_import_files_list(ctx, sources, n, desc->recursive, &files);
    if (status == WF_OK) status = wf__import_source_name(ctx, n == 1 ? sources[0] : out, &from);
    if (status == WF_OK) status = wf__import_add_files(&imp, &files);
    if (status == WF_OK) status = write_groups(&imp, from, out, &local);
    if (status == WF_OK && result != NULL) *result = local;
    else wf_import_result_free(&local);
    free(from);
    wf_import_files_free(&files);
    wf__importer_free(&imp);
    return status;
}
