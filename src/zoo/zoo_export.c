/* zoo_export: one network of a collection as a plain state_dict (weft/import.h). */
#include "weft/import.h"
#include "base/safetensors.h"
#include "zoo/zoo_import_layers.h"

#include <stdlib.h>
#include <string.h>

typedef struct exporter {
    wf_ctx *ctx;
    const wf_graph *graph;
    char *names;                             /* the caller's, cut into layers */
    const char *layer[WF_IMPORT_MAX_LAYERS]; /* NULL: the blocks' own names */
    float *weights;
    wf_st_tensor *tensors;
    char (*tensor_names)[256];
} exporter;

static wf_status split_names(exporter *e, const char *names) {
    WF_TRY(wf_copy_names(e->ctx, names, &e->names));
    int n = 0;
    for (char *rest = e->names, *name; (name = wf_next_name(&rest)) != NULL; n++) {
        if (n >= e->graph->n_layers) continue; /* counted for the sentence below */
        e->layer[n] = name;
        if (*name == 0) return wf_fail(e->ctx, WF_ERR_USAGE, "export: a layer's name is empty");
        for (int i = 0; i < n; i++)
            if (strcmp(e->layer[i], name) == 0)
                return wf_fail(e->ctx, WF_ERR_USAGE, "export: layer \"%s\" is named twice", name);
    }
    if (n != e->graph->n_layers)
        return wf_fail(e->ctx, WF_ERR_USAGE, "export: %d name%s for the %d layers of %s", n,
                       n == 1 ? "" : "s", e->graph->n_layers, e->graph->text);
    return WF_OK;
}

static wf_status describe_block(exporter *e, int b) {
    const wf_block *block = &e->graph->blocks[b];
    wf_st_tensor *tensor = &e->tensors[b];
    bool weight = block->kind == WF_BLOCK_WEIGHT;
    if (block->coef != 1)
        return wf_fail(e->ctx, WF_ERR_UNSUPPORTED,
                       "export: %s is a convolution kernel, only linear layers can be exported",
                       block->name);
    const char *name = block->name;
    if (e->layer[block->layer] != NULL) {
        size_t room = sizeof e->tensor_names[b];
        if ((size_t)snprintf(e->tensor_names[b], room, "%s.%s", e->layer[block->layer],
                             weight ? "weight" : "bias") >= room)
            return wf_fail(e->ctx, WF_ERR_USAGE, "export: the name \"%.40s...\" is too long",
                           e->layer[block->layer]);
        name = e->tensor_names[b];
    }
    *tensor = (wf_st_tensor){.name = name,
                             .dtype = WF_ST_F32,
                             .rank = weight ? 2 : 1,
                             .shape = {(size_t)e->graph->groups[block->dst].n},
                             .count = block->count,
                             .bytes = block->count * sizeof(float),
                             .data = e->weights + block->offset};
    if (weight) tensor->shape[1] = (size_t)e->graph->groups[block->src].n;
    return WF_OK;
}

static wf_status export_network(exporter *e, const wf_zoo *zoo, size_t index, const char *path,
                                const char *names) {
    const wf_graph *graph = e->graph;
    size_t blocks = (size_t)graph->n_blocks;
    if (names != NULL) WF_TRY(split_names(e, names));
    WF_TRY(wf_alloc(e->ctx, graph->n_params, sizeof *e->weights, "network", &e->weights));
    WF_TRY(wf_alloc(e->ctx, blocks, sizeof *e->tensors, "tensors", &e->tensors));
    WF_TRY(wf_alloc(e->ctx, blocks, sizeof *e->tensor_names, "names", &e->tensor_names));
    wf_zoo_get(zoo, index, e->weights);
    for (int b = 0; b < graph->n_blocks; b++) WF_TRY(describe_block(e, b));
    const char *meta[][2] = {{"format", "pt"}, /* what the safetensors library writes for PyTorch */
                             {"weft.arch", graph->text},
                             {"weft.activation", wf_activation_name(graph->activation)}};
    return wf_st_write(e->ctx, path, e->tensors, blocks, (const char *const(*)[2])meta,
                       sizeof meta / sizeof *meta);
}

wf_status wf_zoo_export(wf_ctx *ctx, const wf_zoo *zoo, size_t index, const char *path,
                        const char *names) {
    if (index >= wf_zoo_count(zoo))
        return wf_fail(ctx, WF_ERR_USAGE, "%s: network %zu was asked for, the last one is %zu",
                       wf_zoo_path(zoo), index, wf_zoo_count(zoo) - 1);
    exporter e = {.ctx = ctx, .graph = wf_zoo_graph(zoo)};
    wf_status status = export_network(&e, zoo, index, path, names);
    free(e.names);
    free(e.weights);
    free(e.tensors);
    free(e.tensor_names);
    return status;
}
