/* zoo_import_described: which tensors of a state_dict are those of a described network. */
#include "zoo/zoo_import_items.h"
#include "zoo/zoo_import_layers.h"
#include "weft/text.h"

#include <stdlib.h>
#include <string.h>

static bool is_counter(const wf_import_item *it) {
    static const char tail[] = "num_batches_tracked";
    size_t length = strlen(it->name);
    return length >= sizeof tail - 1 && strcmp(it->name + length - (sizeof tail - 1), tail) == 0;
}

/* Stacked, when a tensor of a known shape has one dimension more. */
static bool has_shape(const wf_import_item *it, const wf_graph *graph, const wf_block *block,
                      int lead) {
    size_t shape[4];
    int rank = wf_block_shape(graph, block, shape);
    if (it->tensor->rank != rank + lead || !wf__import_is_float(it->tensor->dtype)) return false;
    for (int d = 0; d < rank; d++)
        if (it->tensor->shape[d + lead] != shape[d]) return false;
    return true;
}

static wf_status wrong_shape(const wf_import_items *file, const wf_import_item *it,
                             const wf_graph *graph, const wf_block *block) {
    size_t shape[4];
    int rank = wf_block_shape(graph, block, shape);
    char wanted[128], found[160];
    wf_text text = wf_text_start(wanted, sizeof wanted);
    for (int d = 0; d < rank; d++) wf_text_add(&text, d ? ",%zu" : "%zu", shape[d]);
    text = wf_text_start(found, sizeof found);
    for (int d = 0; d < it->tensor->rank; d++)
        wf_text_add(&text, d ? ",%zu" : "%zu", it->tensor->shape[d]);
    return wf_fail(file->ctx, WF_ERR_INPUT,
                   "%s: '%.80s' is %s [%s], layer %d of %.200s needs [%s] for %s; give another "
                   "--arch",
                   file->label, it->name, wf_st_dtype_name(it->tensor->dtype), found,
                   block->layer + 1, graph->text, wanted, block->name);
}

static wf_import_item *item_at(const wf_import_items *file, size_t place) {
    for (size_t i = 0; i < file->n; i++)
        if (file->list[i].place == place) return &file->list[i];
    return NULL;
}

/* The item of each block: by name, or all in the order of the file (*by_order). */
static wf_status assign_blocks(wf_import_items *file, const wf_graph *graph,
                               wf_import_item **of_block, bool *by_order) {
    int named = 0;
    for (int b = 0; b < graph->n_blocks; b++) {
        of_block[b] = wf__import_find(file, graph->blocks[b].name);
        named += of_block[b] != NULL;
    }
    *by_order = named == 0;
    if (named > 0)
        for (int b = 0; b < graph->n_blocks; b++)
            if (of_block[b] == NULL)
                return wf_fail(file->ctx, WF_ERR_INPUT,
                               "%s: no tensor '%.80s' for layer %d of %.200s", file->label,
                               graph->blocks[b].name, graph->blocks[b].layer + 1, graph->text);
    size_t left = 0, next = 0;
    for (size_t i = 0; i < file->n; i++) left += !is_counter(&file->list[i]);
    if (named == 0 && left != (size_t)graph->n_blocks)
        return wf__import_refuse(file, "the description has another number of tensors",
                                 WF_IMPORT_ALL,
                                 "give another --arch, or a JSON description with these names");
    for (int b = 0; named == 0 && b < graph->n_blocks; b++) {
        while (is_counter(item_at(file, next))) next++;
        of_block[b] = item_at(file, next++);
    }
    for (int b = 0; b < graph->n_blocks; b++) of_block[b]->used = true;
    for (size_t i = 0; i < file->n; i++)
        if (!file->list[i].used && !is_counter(&file->list[i]))
            return wf__import_refuse(
                file, "tensors are left over that belong to no layer of the description",
                WF_IMPORT_UNUSED, "give another --arch");
    return WF_OK;
}

static wf_status take_parts(wf_import_items *file, const wf_graph *graph, bool stackable,
                            wf_import_item **of_block, const wf_st_tensor **parts, size_t *networks,
                            bool *by_order) {
    WF_TRY(assign_blocks(file, graph, of_block, by_order));
    int lead = stackable && !has_shape(of_block[0], graph, &graph->blocks[0], 0);
    for (int b = 0; b < graph->n_blocks; b++) {
        if (!has_shape(of_block[b], graph, &graph->blocks[b], lead))
            return wrong_shape(file, of_block[b], graph, &graph->blocks[b]);
        parts[b] = of_block[b]->tensor;
        size_t stacked = lead ? parts[b]->shape[0] : 1;
        if (b > 0 && stacked != *networks)
            return wf__import_refuse(file, "stacked tensors disagree on the number of networks",
                                     WF_IMPORT_ALL,
                                     "the first dimension of each must be that number");
        *networks = stacked;
    }
    if (*networks == 0) return wf_fail(file->ctx, WF_ERR_INPUT, "%s: no networks", file->label);
    return WF_OK;
}

/* NAME of the block's tensor, where all tensors of that module are NAME.weight, NAME.bias ...;
 * NULL: they are called otherwise. */
static char *module_name(wf_import_items *file, const wf_import_item *it, const wf_block *block) {
    const char *tail = strrchr(block->name, '.');
    size_t length = 0;
    tail = tail == NULL ? block->name : tail;
    char dotted[32];
    snprintf(dotted, sizeof dotted, "%s%s", *tail == '.' ? "" : ".", tail);
    if (!wf__import_has_tail(it->name, dotted, &length)) return NULL;
    char *name = wf_arena_alloc(&file->arena, length + 1);
    if (name == NULL) return NULL;
    memcpy(name, it->name, length);
    name[length] = 0;
    return name;
}

/* The description with the names that the file has, so that an export has them again. Where they
 * do not pair up as modules, it keeps its own. */
static wf_status take_names(wf_import_items *file, wf_import_item *const *of_block,
                            wf_graph **graph) {
    const wf_graph *old = *graph;
    wf_layer *layers;
    WF_TRY(wf_alloc(file->ctx, (size_t)old->n_layers, sizeof *layers, file->label, &layers));
    memcpy(layers, old->layers, (size_t)old->n_layers * sizeof *layers);
    bool pair = true;
    for (int b = 0; b < old->n_blocks && pair; b++) {
        const wf_block *block = &old->blocks[b];
        wf_layer *layer = &layers[block->layer];
        char *name = module_name(file, of_block[b], block);
        bool first = block->kind == WF_BLOCK_WEIGHT || block->kind == WF_BLOCK_GAMMA;
        const char **place = block->kind <= WF_BLOCK_BIAS ? &layer->name : &layer->norm_name;
        pair = name != NULL && (first || strcmp(name, *place) == 0);
        *place = name;
    }
    wf_graph *renamed = NULL;
    wf_status status = WF_OK;
    if (pair) status = wf__graph_rebuild(file->ctx, old, layers, 0, &renamed);
    free(layers);
    if (status == WF_ERR_MEMORY) return status;
    if (renamed == NULL) return WF_OK; /* names that no description takes */
    wf_graph_free(*graph);
    *graph = renamed;
    return WF_OK;
}

wf_status wf_import_described(wf_ctx *ctx, const char *label, const wf_st_tensor *const *tensors,
                              size_t n, wf_graph **graph, bool stackable,
                              const wf_st_tensor **parts, size_t *networks) {
    wf_import_items file = {.ctx = ctx, .label = label};
    wf_import_item **of_block = NULL;
    bool by_order = false;
    wf_status status =
        wf_alloc(ctx, (size_t)(*graph)->n_blocks, sizeof *of_block, label, &of_block);
    if (status == WF_OK) status = wf__import_gather(&file, tensors, n, false);
    if (status == WF_OK && file.n == 0)
        status = wf_fail(ctx, WF_ERR_INPUT, "%s: no tensors", label);
    if (status == WF_OK)
        status = take_parts(&file, *graph, stackable, of_block, parts, networks, &by_order);
    if (status == WF_OK && by_order) status = take_names(&file, of_block, graph);
    free(of_block);
    wf__import_items_free(&file);
    return status;
}
