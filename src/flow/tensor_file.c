#include "flow/tensor_file.h"

#include "base/c_locale.h"
#include "base/utf8.h"
#include "graph/describe.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- writing ---------------------------------------------------------------------------------- */

wf_status wf_tensor_list_create(wf_ctx *ctx, size_t room, wf_tensor_list *out) {
    *out = (wf_tensor_list){0};
    WF_TRY(wf_alloc(ctx, room, sizeof *out->tensors, "checkpoint", &out->tensors));
    return wf_alloc(ctx, room, sizeof *out->names, "checkpoint", &out->names);
}

void wf_tensor_list_free(wf_tensor_list *list) {
    free(list->tensors);
    free(list->names);
    *list = (wf_tensor_list){0};
}

void wf_tensor_list_add(wf_tensor_list *list, const char *name, size_t rows, size_t cols,
                        const void *data) {
    char *kept = list->names[list->n];
    snprintf(kept, WF_TENSOR_NAME, "%s", name);
    wf_st_tensor *tensor = &list->tensors[list->n++];
    *tensor = (wf_st_tensor){.name = kept,
                             .dtype = WF_ST_F32,
                             .rank = cols > 0 ? 2 : 1,
                             .shape = {rows, cols},
                             .count = cols > 0 ? rows * cols : rows,
                             .data = data};
    tensor->bytes = tensor->count * sizeof(float);
}

void wf_tensor_list_params(wf_tensor_list *list, const char *prefix, const wf_field_tensor *tensors,
                           int n, const float *flat) {
    for (int i = 0; i < n; i++) {
        const wf_field_tensor *t = &tensors[i];
        char name[WF_TENSOR_NAME];
        snprintf(name, sizeof name, "%s.%s", prefix, t->name);
        wf_tensor_list_add(list, name, (size_t)t->rows, t->cols > 1 ? (size_t)t->cols : 0,
                           flat + t->offset);
    }
}

wf_status wf_tensor_list_write(wf_ctx *ctx, const char *path, const wf_tensor_list *list,
                               const wf_meta *config, const wf_meta *run) {
    size_t n = config->n + run->n;
    const char *(*pairs)[2];
    WF_TRY(wf_alloc(ctx, n, sizeof *pairs, "checkpoint", &pairs));
    for (size_t i = 0; i < n; i++) {
        char **from = i < config->n ? config->pairs[i] : run->pairs[i - config->n];
        pairs[i][0] = from[0];
        pairs[i][1] = from[1];
    }
    wf_status status =
        wf_st_write(ctx, path, list->tensors, list->n, (const char *const(*)[2])pairs, n);
    free(pairs);
    return status;
}

wf_status wf_meta_add_text(wf_ctx *ctx, wf_meta *meta, const char *key, const char *value) {
    char *text = strdup(value);
    if (text == NULL) return wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory", value);
    size_t size = strlen(text);
    for (size_t bad; (bad = wf_utf8_check(text, size)) < size;) text[bad] = '?';
    wf_status status = wf_meta_add(ctx, meta, key, "%s", text);
    free(text);
    return status;
}

wf_status wf_meta_add_arch(wf_ctx *ctx, wf_meta *config, int index, const wf_graph *graph) {
    char key[WF_TENSOR_NAME];
    bool folded = false;
    for (int b = 0; b < graph->n_blocks; b++) folded = folded || graph->blocks[b].folded;
    snprintf(key, sizeof key, "arch.%d", index);
    WF_TRY(wf_meta_add(ctx, config, key, "%s", graph->text));
    snprintf(key, sizeof key, "arch.%d.activation", index);
    WF_TRY(wf_meta_add(ctx, config, key, "%s", wf_activation_name(graph->activation)));
    snprintf(key, sizeof key, "arch.%d.fold", index);
    return wf_meta_add(ctx, config, key, folded ? "yes" : "no");
}

wf_status wf_meta_add_graph(wf_ctx *ctx, wf_meta *run, int index, const wf_graph *graph) {
    char key[WF_TENSOR_NAME], *json;
    snprintf(key, sizeof key, "arch.%d.graph", index);
    WF_TRY(wf_graph_json(ctx, graph, &json));
    wf_status status = wf_meta_add(ctx, run, key, "%s", json);
    free(json);
    return status;
}

/* --- reading ---------------------------------------------------------------------------------- */

wf_status wf_file_check_tensor(wf_ctx *ctx, const char *path, const wf_st_file *file,
                               const char *name, size_t count) {
    const wf_st_tensor *tensor = wf_st_find(file, name);
    if (tensor == NULL)
        return wf_fail(ctx, WF_ERR_INPUT, "%s: the file lacks the tensor \"%s\"", path, name);
    if (tensor->dtype != WF_ST_F32 || tensor->count != count)
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: tensor \"%s\" has %zu values of type %s, expected %zu of type F32",
                       path, name, tensor->count, wf_st_dtype_name(tensor->dtype), count);
    return WF_OK;
}

wf_status wf_file_tensor(wf_ctx *ctx, const char *path, const wf_st_file *file, const char *name,
                         size_t count, float *out) {
    WF_TRY(wf_file_check_tensor(ctx, path, file, name, count));
    memcpy(out, wf_st_find(file, name)->data, count * sizeof *out);
    for (size_t i = 0; i < count; i++)
        if (!isfinite(out[i]))
            return wf_fail(ctx, WF_ERR_INPUT, "%s: tensor \"%s\" has values that are not finite",
                           path, name);
    return WF_OK;
}

wf_status wf_file_params(wf_ctx *ctx, const char *path, const wf_st_file *file, const char *prefix,
                         const wf_field_tensor *tensors, int n, float *flat) {
    for (int i = 0; i < n; i++) {
        const wf_field_tensor *t = &tensors[i];
        char name[WF_TENSOR_NAME];
        snprintf(name, sizeof name, "%s.%s", prefix, t->name);
        WF_TRY(wf_file_tensor(ctx, path, file, name, (size_t)t->rows * (size_t)t->cols,
                              flat + t->offset));
    }
    return WF_OK;
}

wf_status wf_file_number(wf_ctx *ctx, const char *path, const wf_st_file *file, const char *key,
                         double low, double high, double *out) {
    const char *text = wf_st_meta(file, key);
    char *end = NULL;
    if (text != NULL) *out = wf_c_strtod(text, &end);
    if (text != NULL && end != text && *end == '\0' && *out >= low && *out <= high) return WF_OK;
    return wf_fail(ctx, WF_ERR_INPUT, "%s: metadata \"%s\" is %.40s; expected %g to %g", path, key,
                   text == NULL ? "missing" : text, low, high);
}

wf_status wf_file_check_generator(wf_ctx *ctx, const char *path, const wf_st_file *file,
                                  const char *wanted, const char *unnamed) {
    const char *name = wf_st_meta(file, "weft.generator");
    if (name == NULL) name = unnamed;
    if (strcmp(name, wanted) == 0) return WF_OK;
    return wf_fail(ctx, WF_ERR_USAGE,
                   "%s: made by the generator %.40s, this run's is %s; use another path, or "
                   "remove it",
                   path, name, wanted);
}

wf_status wf_file_positive(wf_ctx *ctx, const char *path, const char *name, const char *what,
                           const float *values, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!(values[i] > 0))
            return wf_fail(ctx, WF_ERR_INPUT, "%s: tensor \"%s\" has a %s that is not positive",
                           path, name, what);
    return WF_OK;
}

wf_status wf_file_graph(wf_ctx *ctx, const char *path, const wf_st_file *file, int index,
                        wf_graph **out) {
    char key[WF_TENSOR_NAME];
    snprintf(key, sizeof key, "arch.%d", index);
    const char *arch = wf_st_meta(file, key);
    snprintf(key, sizeof key, "arch.%d.activation", index);
    const char *activation = wf_st_meta(file, key);
    snprintf(key, sizeof key, "arch.%d.fold", index);
    const char *fold = wf_st_meta(file, key);
    if (arch == NULL || activation == NULL || fold == NULL)
        return wf_fail(ctx, WF_ERR_INPUT, "%s: the file lacks the description of architecture %d",
                       path, index);
    unsigned flags = strcmp(fold, "yes") == 0 ? WF_GRAPH_FOLD_INPUT : 0;
    snprintf(key, sizeof key, "arch.%d.graph", index);
    const char *json = wf_st_meta(file, key); /* version 0.1 had the text alone */
    WF_TRY(wf_blame_file(ctx, path,
                         json != NULL ? wf_graph_from_json(ctx, json, flags, out)
                                      : wf__graph_parse_text(ctx, arch, activation, flags, out)));
    if (json == NULL || strcmp((*out)->text, arch) == 0) return WF_OK;
    wf_fail(ctx, WF_ERR_INPUT,
            "%s: metadata \"arch.%d\" is %.60s, but \"%s\" describes %.60s; the file is damaged",
            path, index, arch, key, (*out)->text);
    wf_graph_free(*out);
    *out = NULL;
    return WF_ERR_INPUT;
}

wf_status wf_blame_file(wf_ctx *ctx, const char *path, wf_status status) {
    if (status == WF_OK || status == WF_ERR_MEMORY) return status;
    return wf_fail(ctx, WF_ERR_INPUT,
                   "%s: %s; the file is damaged or of another version: train it again", path,
                   wf_last_error(ctx));
}
