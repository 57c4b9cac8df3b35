/* zoo_export: one network of a collection as a plain state_dict, safetensors or torch.save
 * (weft/import.h). */
#include "weft/import.h"
#include "base/safetensors.h"
#include "graph/describe.h"
#include "weft/data.h"
#include "zoo/torch_write.h"
#include "zoo/zoo_import_files.h"
#include "zoo/zoo_import_items.h"

#include <stdlib.h>
#include <string.h>

typedef struct exporter {
    wf_ctx *ctx;
    wf_graph *graph; /* of the collection, with the caller's names */
    wf_layer *layers;
    wf_graph *unfolded; /* with the batch norms that were folded; NULL: none were */
    char *names, *json;
    float *weights, *unfolded_weights;
    wf_st_tensor *tensors;
} exporter;

/* What is written beside the tensors. */
typedef struct metadata {
    const char *pair[6][2];
    size_t n;
    char scale[WF_SETTING_BUFFER];
} metadata;

/* The description with the caller's names on its linear and convolution layers. */
static wf_status rename_layers(exporter *e, const char *names) {
    const wf_graph *graph = e->graph;
    WF_TRY(wf_copy_names(e->ctx, names, &e->names));
    WF_TRY(wf_alloc(e->ctx, (size_t)graph->n_layers, sizeof *e->layers, "layers", &e->layers));
    memcpy(e->layers, graph->layers, (size_t)graph->n_layers * sizeof *e->layers);
    int n = 0, wanted = 0, l = 0;
    for (int i = 0; i < graph->n_layers; i++) wanted += graph->layers[i].name != NULL;
    for (char *rest = e->names, *name; (name = wf_next_name(&rest)) != NULL; n++) {
        if (n >= wanted) continue; /* counted for the sentence below */
        while (e->layers[l].name == NULL) l++;
        if (*name == 0) return wf_fail(e->ctx, WF_ERR_USAGE, "export: a layer's name is empty");
        for (int i = 0; i < l; i++)
            if (e->layers[i].name != NULL && strcmp(e->layers[i].name, name) == 0)
                return wf_fail(e->ctx, WF_ERR_USAGE, "export: layer \"%.80s\" is named twice",
                               name);
        e->layers[l++].name = name;
    }
    if (n != wanted)
        return wf_fail(e->ctx, WF_ERR_USAGE, "export: %d name%s for the %d layers of %.200s", n,
                       n == 1 ? "" : "s", wanted, graph->text);
    wf_graph *renamed;
    WF_TRY(wf__graph_rebuild(e->ctx, graph, e->layers, 0, &renamed));
    wf_graph_free(e->graph);
    e->graph = renamed;
    return WF_OK;
}

/* Batch norms that an import folded, as the user's module has them. */
static wf_status unfold_norms(exporter *e) {
    bool folded = false;
    for (int l = 0; l < e->graph->n_layers; l++)
        folded = folded || e->graph->layers[l].folded_norm != NULL;
    if (!folded) return WF_OK;
    WF_TRY(wf_graph_unfold_norms(e->ctx, e->graph, &e->unfolded));
    WF_TRY(wf_alloc(e->ctx, e->unfolded->n_params, sizeof *e->weights, "network",
                    &e->unfolded_weights));
    wf_graph_convert_norms(e->graph, e->unfolded, e->weights, e->unfolded_weights);
    return WF_OK;
}

static void add_meta(metadata *m, const char *key, const char *value) {
    if (value == NULL) return;
    m->pair[m->n][0] = key;
    m->pair[m->n++][1] = value;
}

/* How the networks read data, as far as the collection says. */
static void add_reading(metadata *m, const wf_zoo *zoo) {
    wf_data_desc data;
    if (wf_zoo_scale(zoo, &data.scale))
        add_meta(m, "weft.scale",
                 wf_setting_text(wf_settings_find(wf_data_settings(), "scale"), &data, m->scale));
    add_meta(m, "weft.classes", wf_zoo_meta(zoo, "weft.classes"));
}

static wf_status export_network(exporter *e, const wf_zoo *zoo, size_t index, const char *path,
                                const char *names) {
    WF_TRY(wf_graph_clone(e->ctx, wf_zoo_graph(zoo), &e->graph));
    if (names != NULL) WF_TRY(rename_layers(e, names));
    WF_TRY(wf_alloc(e->ctx, e->graph->n_params, sizeof *e->weights, "network", &e->weights));
    WF_TRY(wf_graph_json(e->ctx, e->graph, &e->json));
    wf_zoo_get(zoo, index, e->weights);
    WF_TRY(unfold_norms(e));
    const wf_graph *graph = e->unfolded != NULL ? e->unfolded : e->graph;
    const float *weights = e->unfolded != NULL ? e->unfolded_weights : e->weights;
    size_t blocks = (size_t)graph->n_blocks;
    WF_TRY(wf_alloc(e->ctx, blocks, sizeof *e->tensors, "tensors", &e->tensors));
    for (size_t b = 0; b < blocks; b++) {
        const wf_block *block = &graph->blocks[b];
        wf_st_tensor *tensor = &e->tensors[b];
        *tensor = (wf_st_tensor){.name = block->name,
                                 .dtype = WF_ST_F32,
                                 .count = block->count,
                                 .bytes = block->count * sizeof(float),
                                 .data = weights + block->offset};
        tensor->rank = wf_block_shape(graph, block, tensor->shape);
    }
    metadata m = {.n = 0};
    const char *const(*pairs)[2] = (const char *const(*)[2])m.pair;
    add_meta(&m, "weft.graph", e->json);
    add_reading(&m, zoo);
    if (wf_import_torch_name(path))
        return wf_torch_write(e->ctx, path, e->tensors, blocks, pairs, m.n);
    add_meta(&m, "format", "pt"); /* as the safetensors library does for PyTorch */
    add_meta(&m, "weft.arch", e->graph->text);
    add_meta(&m, "weft.activation", wf_activation_name(graph->activation));
    return wf_st_write(e->ctx, path, e->tensors, blocks, pairs, m.n);
}

wf_status wf_zoo_export(wf_ctx *ctx, const wf_zoo *zoo, size_t index, const char *path,
                        const char *names) {
    if (index >= wf_zoo_count(zoo))
        return wf_fail(ctx, WF_ERR_USAGE, "%s: network %zu was asked for, the last one is %zu",
                       wf_zoo_path(zoo), index, wf_zoo_count(zoo) - 1);
    exporter e = {.ctx = ctx};
    wf_status status = export_network(&e, zoo, index, path, names);
    wf_graph_free(e.graph);
    wf_graph_free(e.unfolded);
    free(e.unfolded_weights);
    free(e.layers);
    free(e.names);
    free(e.json);
    free(e.weights);
    free(e.tensors);
    return status;
}
