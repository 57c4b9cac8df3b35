#include "flow/checkpoint.h"

#include "flow/cuda/sample_cuda.h"
#include "flow/tensor_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- writing ---------------------------------------------------------------------------------- */

wf_status wf_checkpoint_sources(wf_ctx *ctx, const wf_training_set *set, wf_meta *config) {
    char key[WF_TENSOR_NAME];
    WF_TRY(wf_meta_add(ctx, config, "stocks", "%d", set->n_families));
    for (int s = 0; s < set->n_families; s++)
        WF_TRY(wf_meta_add_arch(ctx, config, s, set->families[s].graph));
    WF_TRY(wf_meta_add(ctx, config, "sources", "%d", set->n_sources));
    for (int i = 0; i < set->n_sources; i++) {
        const wf_training_source *source = &set->sources[i];
        snprintf(key, sizeof key, "source.%d.arch", i);
        WF_TRY(wf_meta_add(ctx, config, key, "%d", source->family));
        snprintf(key, sizeof key, "source.%d.count", i);
        WF_TRY(wf_meta_add(ctx, config, key, "%zu", source->count));
        snprintf(key, sizeof key, "source.%d.share", i);
        WF_TRY(wf_meta_add(ctx, config, key, "%d", source->draw_weight));
        snprintf(key, sizeof key, "source.%d.hash", i);
        WF_TRY(wf_meta_add(ctx, config, key, "%016llx", (unsigned long long)source->hash));
        snprintf(key, sizeof key, "source.%d.fresh", i);
        if (set->fresh) WF_TRY(wf_meta_add(ctx, config, key, "yes"));
        const char *notes[][2] = {{"path", source->path},   {"task", source->task},
                                  {"tests", source->tests}, {"data", source->data},
                                  {"scale", source->scale}, {"classes", source->classes}};
        for (size_t k = 0; k < sizeof notes / sizeof *notes; k++) {
            if (notes[k][1][0] == '\0') continue;
            snprintf(key, sizeof key, "source.%d.%s", i, notes[k][0]);
            WF_TRY(wf_meta_add_text(ctx, config, key, notes[k][1]));
        }
    }
    return WF_OK;
}

static wf_status put_state(wf_ctx *ctx, wf_meta *meta, const wf_field *field,
                           const wf_fit_state *state) {
    WF_TRY(wf_meta_add(ctx, meta, "weft.kind", "flow"));
    WF_TRY(wf_meta_add(ctx, meta, "weft.generator", "%s", field->kind->name));
    WF_TRY(wf_meta_add(ctx, meta, "weft.version", "%s", WF_VERSION));
    WF_TRY(wf_meta_add(ctx, meta, "isa", "%s", state->kernels));
    WF_TRY(wf_meta_add(ctx, meta, "step", "%zu", state->made));
    WF_TRY(wf_meta_add(ctx, meta, "seconds", "%.17g", state->seconds));
    WF_TRY(wf_meta_add(ctx, meta, "window.loss", "%.17g", state->window_loss));
    WF_TRY(wf_meta_add(ctx, meta, "best.loss", "%.17g", state->best_loss));
    if (state->validation_waits) WF_TRY(wf_meta_add(ctx, meta, "validation.waits", "yes"));
    WF_TRY(wf_meta_add(ctx, meta, "last.loss", "%.17g", state->last_loss));
    WF_TRY(wf_meta_add(ctx, meta, "worse.updates", "%zu", state->worse));
    if (state->pace.stride > 0) {
        WF_TRY(wf_meta_add(ctx, meta, "pace.from", "%zu", state->pace.from));
        WF_TRY(wf_meta_add(ctx, meta, "pace.position", "%.17g", state->pace.position));
        WF_TRY(wf_meta_add(ctx, meta, "pace.stride", "%.17g", state->pace.stride));
    }
    if (state->fresh_every > 0) {
        WF_TRY(wf_meta_add(ctx, meta, "fresh.every", "%zu", state->fresh_every));
        WF_TRY(wf_meta_add(ctx, meta, "fresh.from", "%zu", state->fresh_from));
    }
    return wf_meta_add(ctx, meta, "window.updates", "%zu", state->window_count);
}

static void list_add_families(wf_tensor_list *list, const wf_training_set *set) {
    char name[WF_TENSOR_NAME];
    for (int s = 0; s < set->n_families; s++) {
        const wf_norm *norm = &set->families[s].norm;
        if (norm->n == 0) continue;
        snprintf(name, sizeof name, "norm.%d.mean", s);
        wf_tensor_list_add(list, name, (size_t)norm->n, 0, norm->mean);
        snprintf(name, sizeof name, "norm.%d.std", s);
        wf_tensor_list_add(list, name, (size_t)norm->n, 0, norm->std);
        const wf_principal *principal = &set->families[s].principal;
        size_t width = (size_t)principal->width;
        if (width == 0) continue;
        snprintf(name, sizeof name, "principal.%d.mean", s);
        wf_tensor_list_add(list, name, width, 0, principal->mean);
        snprintf(name, sizeof name, "principal.%d.variance", s);
        wf_tensor_list_add(list, name, width, 0, principal->variance);
        snprintf(name, sizeof name, "principal.%d.axes", s);
        wf_tensor_list_add(list, name, width, width, principal->axes);
    }
    if (set->cond != NULL)
        wf_tensor_list_add(list, "cond", (size_t)set->n_sources, (size_t)set->cond_size, set->cond);
}

/* The descriptions stand beside the configuration, so that flows of version 0.1, which have the
 * texts alone, can be continued. */
static wf_status put_graphs(wf_ctx *ctx, const wf_training_set *set, wf_meta *run) {
    for (int s = 0; s < set->n_families; s++)
        WF_TRY(wf_meta_add_graph(ctx, run, s, set->families[s].graph));
    return WF_OK;
}

wf_status wf_checkpoint_save(wf_ctx *ctx, const char *path, const wf_field *field,
                             const wf_training_set *set, const wf_meta *config,
                             const wf_fit_state *state, const wf_fit_arrays *arrays) {
    size_t most = 3 * (size_t)field->n_tensors + 5 * (size_t)set->n_families + 3;
    wf_tensor_list list = {0};
    wf_meta run = {0};
    wf_status status;
    WF_TRY_GOTO(wf_tensor_list_create(ctx, most, &list), done);
    wf_tensor_list_params(&list, "weights", field->tensors, field->n_tensors, arrays->weights);
    if (arrays->ema != NULL)
        wf_tensor_list_params(&list, "ema", field->tensors, field->n_tensors, arrays->ema);
    if (arrays->best != NULL)
        wf_tensor_list_params(&list, "best", field->tensors, field->n_tensors, arrays->best);
    wf_tensor_list_add(&list, "optim.first", field->params, 0, arrays->first);
    wf_tensor_list_add(&list, "optim.second", field->params, 0, arrays->second);
    list_add_families(&list, set);
    WF_TRY_GOTO(put_state(ctx, &run, field, state), done);
    WF_TRY_GOTO(put_graphs(ctx, set, &run), done);
    status = wf_tensor_list_write(ctx, path, &list, config, &run);
done:
    wf_meta_free(&run);
    wf_tensor_list_free(&list);
    return status;
}

/* --- reading ---------------------------------------------------------------------------------- */

static wf_status read_pace(wf_ctx *ctx, const char *path, const wf_st_file *file, double made,
                           wf_pace *pace) {
    double from;
    if (wf_st_meta(file, "pace.stride") == NULL) return WF_OK;
    WF_TRY(wf_file_number(ctx, path, file, "pace.from", 0, made, &from));
    WF_TRY(wf_file_number(ctx, path, file, "pace.position", from, 1e12, &pace->position));
    WF_TRY(wf_file_number(ctx, path, file, "pace.stride", 1, 1e6, &pace->stride));
    pace->from = (size_t)from;
    return WF_OK;
}

static wf_status read_state(wf_ctx *ctx, const char *path, const wf_st_file *file,
                            wf_fit_state *state) {
    double made, window;
    WF_TRY(wf_file_number(ctx, path, file, "step", 0, 4294967295.0, &made));
    WF_TRY(wf_file_number(ctx, path, file, "seconds", 0, 1e12, &state->seconds));
    WF_TRY(wf_file_number(ctx, path, file, "window.loss", 0, 1e300, &state->window_loss));
    WF_TRY(wf_file_number(ctx, path, file, "best.loss", 0, 1e300, &state->best_loss));
    WF_TRY(wf_file_number(ctx, path, file, "window.updates", 0, 4294967295.0, &window));
    state->made = (size_t)made;
    state->window_count = (size_t)window;
    state->validation_waits = wf_st_meta(file, "validation.waits") != NULL;
    if (wf_st_meta(file, "worse.updates") != NULL) { /* version 0.1 had no patience */
        double worse;
        WF_TRY(wf_file_number(ctx, path, file, "last.loss", 0, 1e300, &state->last_loss));
        WF_TRY(wf_file_number(ctx, path, file, "worse.updates", 0, 4294967295.0, &worse));
        state->worse = (size_t)worse;
    }
    WF_TRY(read_pace(ctx, path, file, made, &state->pace));
    if (wf_st_meta(file, "fresh.every") == NULL) return WF_OK;
    double every, from;
    WF_TRY(wf_file_number(ctx, path, file, "fresh.every", 1, 1e15, &every));
    WF_TRY(wf_file_number(ctx, path, file, "fresh.from", 0, 4294967295.0, &from));
    state->fresh_every = (size_t)every;
    state->fresh_from = (size_t)from;
    return WF_OK;
}

static wf_status check_kind(wf_ctx *ctx, const char *path, const wf_st_file *file) {
    const char *kind = wf_st_meta(file, "weft.kind");
    if (kind != NULL && strcmp(kind, "flow") == 0) return WF_OK;
    const char *generator = wf_st_meta(file, "weft.generator");
    if (kind != NULL && generator != NULL && strcmp(kind, "generator") == 0)
        return wf_fail(ctx, WF_ERR_INPUT, "%s: made by the generator %.40s, which is no flow", path,
                       generator);
    if (wf_st_meta(file, "weft.graph") != NULL || wf_st_meta(file, "weft.arch") != NULL)
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: a collection of networks, not a flow; weft zoo info shows it, and "
                       "weft fit %s -o flow.safetensors fits a flow to it",
                       path, path);
    return wf_fail(ctx, WF_ERR_INPUT, "%s: not a flow (\"weft.kind\" is %.40s); weft fit makes one",
                   path, kind == NULL ? "missing" : kind);
}

static wf_status read_norm(wf_ctx *ctx, const char *path, const wf_st_file *file, int s,
                           wf_family *family) {
    char key[WF_TENSOR_NAME];
    WF_TRY(wf_norm_create(ctx, family->graph->n_blocks, &family->norm));
    size_t n = (size_t)family->norm.n;
    snprintf(key, sizeof key, "norm.%d.mean", s);
    WF_TRY(wf_file_tensor(ctx, path, file, key, n, family->norm.mean));
    snprintf(key, sizeof key, "norm.%d.std", s);
    WF_TRY(wf_file_tensor(ctx, path, file, key, n, family->norm.std));
    return wf_file_positive(ctx, path, key, "deviation", family->norm.std, n);
}

static wf_status read_principal(wf_ctx *ctx, const char *path, const wf_st_file *file, int s,
                                wf_family *family) {
    char key[WF_TENSOR_NAME];
    size_t width = (size_t)wf_principal_width(family->graph);
    snprintf(key, sizeof key, "principal.%d.axes", s);
    WF_TRY(wf_file_check_tensor(ctx, path, file, key, width * width));
    wf_principal *principal = &family->principal;
    WF_TRY(wf_principal_create(ctx, (int)width, principal));
    WF_TRY(wf_file_tensor(ctx, path, file, key, width * width, principal->axes));
    snprintf(key, sizeof key, "principal.%d.mean", s);
    WF_TRY(wf_file_tensor(ctx, path, file, key, width, principal->mean));
    snprintf(key, sizeof key, "principal.%d.variance", s);
    WF_TRY(wf_file_tensor(ctx, path, file, key, width, principal->variance));
    return wf_file_positive(ctx, path, key, "variance", principal->variance, width);
}

/* Whether the file's flow works along principal axes. */
static bool has_principal(const wf_st_file *file) {
    const char *text = wf_st_meta(file, "fit.principal");
    return text != NULL && strcmp(text, "yes") == 0;
}

wf_status wf_checkpoint_resume(wf_ctx *ctx, const char *path, const wf_field *field,
                               const wf_meta *config, wf_training_set *set, wf_fit_state *state,
                               wf_fit_arrays *arrays) {
    wf_st_file *file;
    WF_TRY(wf_st_open(ctx, path, &file));
    wf_status status;
    WF_TRY_GOTO(wf_st_verify(ctx, file, NULL), done);
    WF_TRY_GOTO(check_kind(ctx, path, file), done);
    WF_TRY_GOTO(wf_file_check_generator(ctx, path, file, field->kind->name, WF_GENERATOR_DEFAULT),
                done);
    WF_TRY_GOTO(wf_config_compare(ctx, path, file, config), done);
    WF_TRY_GOTO(read_state(ctx, path, file, state), done);
    WF_TRY_GOTO(wf_file_params(ctx, path, file, "weights", field->tensors, field->n_tensors,
                               arrays->weights),
                done);
    if (arrays->ema != NULL)
        WF_TRY_GOTO(
            wf_file_params(ctx, path, file, "ema", field->tensors, field->n_tensors, arrays->ema),
            done);
    if (arrays->best != NULL)
        WF_TRY_GOTO(
            wf_file_params(ctx, path, file, "best", field->tensors, field->n_tensors, arrays->best),
            done);
    WF_TRY_GOTO(wf_file_tensor(ctx, path, file, "optim.first", field->params, arrays->first), done);
    WF_TRY_GOTO(wf_file_tensor(ctx, path, file, "optim.second", field->params, arrays->second),
                done);
    for (int s = 0; has_principal(file) && s < set->n_families; s++)
        WF_TRY_GOTO(read_principal(ctx, path, file, s, &set->families[s]), done);
    for (int s = 0; set->fresh && s < set->n_families; s++)
        if (wf_st_find(file, "norm.0.mean") != NULL)
            WF_TRY_GOTO(read_norm(ctx, path, file, s, &set->families[s]), done);
    const char *isa = wf_st_meta(file, "isa");
    if (isa != NULL && strcmp(isa, state->kernels) != 0)
        wf_warn(ctx, "%s: begun with %s kernels and continued with %s: not bit for bit", path, isa,
                state->kernels);
done:
    wf_st_close(file);
    return status;
}

/* --- a flow to sample from -------------------------------------------------------------------- */

/* The kind of the file's field. Files of version 0.1 do not name it. */
static wf_status find_kind(wf_ctx *ctx, const char *path, const wf_st_file *file,
                           const wf_field_kind **kind) {
    const char *name = wf_st_meta(file, "weft.generator");
    if (name == NULL) name = WF_GENERATOR_DEFAULT;
    if (*kind != NULL) return wf_file_check_generator(ctx, path, file, (*kind)->name, name);
    *kind = wf_field_find(name);
    if (*kind != NULL) return WF_OK;
    return wf_fail(ctx, WF_ERR_INPUT,
                   "%s: made by the generator \"%.40s\", which is not known here", path, name);
}

/* The field that the file describes, and its parameters. */
static wf_status read_field_of(wf_ctx *ctx, const char *path, const wf_field_kind *kind,
                               wf_flow *flow) {
    const wf_st_tensor *flat = wf_st_find(flow->file, "optim.first");
    size_t stored = flat == NULL ? 0 : flat->count;
    if (stored == 0)
        return wf_fail(ctx, WF_ERR_INPUT, "%s: the flow lacks the tensor \"optim.first\"", path);
    bool any = (kind->traits & WF_GENERATOR_ANY_ARCHITECTURE) != 0;
    WF_TRY(wf_blame_file(ctx, path,
                         kind->create(ctx, kind, flow->options,
                                      any ? NULL : flow->set.families[0].graph, WF_F32, stored,
                                      &flow->field)));
    WF_TRY(wf_alloc(ctx, flow->field->params, sizeof(float), "flow", &flow->params));
    bool best = flow->fit.kept == WF_KEPT_BEST || flow->fit.kept == WF_KEPT_VALIDATION;
    bool ema = flow->fit.kept == WF_KEPT_EMA && flow->fit.ema > 0;
    const char *kept = best ? "best" : ema ? "ema" : "weights";
    return wf_file_params(ctx, path, flow->file, kept, flow->field->tensors, flow->field->n_tensors,
                          flow->params);
}

static wf_status read_family(wf_ctx *ctx, const char *path, const wf_st_file *file, int s,
                             bool normalise, wf_family *family) {
    WF_TRY(wf_file_graph(ctx, path, file, s, &family->graph));
    if (!normalise) return WF_OK;
    WF_TRY(read_norm(ctx, path, file, s, family));
    return has_principal(file) ? read_principal(ctx, path, file, s, family) : WF_OK;
}

static wf_status read_families(wf_ctx *ctx, const char *path, wf_flow *flow) {
    wf_training_set *set = &flow->set;
    double n_families, n_sources,
        most = (double)wf_st_meta_count(flow->file); /* each has entries */
    WF_TRY(wf_file_number(ctx, path, flow->file, "stocks", 1, fmin(most, WF_MAX_FAMILIES),
                          &n_families));
    WF_TRY(wf_file_number(ctx, path, flow->file, "sources", 1, most, &n_sources));
    WF_TRY(wf_alloc(ctx, (size_t)n_families, sizeof *set->families, "flow", &set->families));
    set->n_families = (int)n_families;
    for (int s = 0; s < set->n_families; s++)
        WF_TRY(read_family(ctx, path, flow->file, s, flow->fit.normalise, &set->families[s]));
    WF_TRY(wf_alloc(ctx, (size_t)n_sources, sizeof *set->sources, "flow", &set->sources));
    set->n_sources = (int)n_sources;
    for (int i = 0; i < set->n_sources; i++) {
        char key[WF_TENSOR_NAME];
        double arch, count;
        snprintf(key, sizeof key, "source.%d.arch", i);
        WF_TRY(wf_file_number(ctx, path, flow->file, key, 0, n_families - 1, &arch));
        snprintf(key, sizeof key, "source.%d.count", i);
        WF_TRY(wf_file_number(ctx, path, flow->file, key, 0, 4294967295.0, &count));
        set->sources[i].family = (int)arch;
        set->sources[i].count = (size_t)count;
    }
    return WF_OK;
}

static wf_status read_conditions(wf_ctx *ctx, const char *path, wf_flow *flow) {
    wf_training_set *set = &flow->set;
    set->cond_size = flow->field->cond_size;
    if (set->cond_size == 0) return WF_OK;
    size_t numbers = (size_t)set->n_sources * (size_t)set->cond_size;
    WF_TRY(wf_file_check_tensor(ctx, path, flow->file, "cond", numbers));
    WF_TRY(wf_alloc(ctx, numbers, sizeof(float), "flow", &set->cond));
    return wf_file_tensor(ctx, path, flow->file, "cond", numbers, set->cond);
}

wf_status wf_flow_open_with(wf_ctx *ctx, const char *path, const wf_field_kind *kind,
                            wf_flow **out) {
    *out = NULL;
    wf_flow *flow;
    WF_TRY(wf_alloc(ctx, 1, sizeof *flow, "flow", &flow));
    wf_status status;
    WF_TRY_GOTO(wf_st_open(ctx, path, &flow->file), fail);
    WF_TRY_GOTO(wf_st_verify(ctx, flow->file, NULL), fail);
    WF_TRY_GOTO(check_kind(ctx, path, flow->file), fail);
    WF_TRY_GOTO(find_kind(ctx, path, flow->file, &kind), fail);
    WF_TRY_GOTO(wf_alloc(ctx, 1, kind->options_size, "flow", &flow->options), fail);
    WF_TRY_GOTO(wf_config_get(ctx, path, flow->file, kind->settings(), flow->options), fail);
    WF_TRY_GOTO(wf_config_get(ctx, path, flow->file, wf_fit_settings(), &flow->fit), fail);
    WF_TRY_GOTO(wf_blame_file(ctx, path, wf_fit_check(ctx, &flow->fit)), fail);
    WF_TRY_GOTO(read_state(ctx, path, flow->file, &flow->state), fail);
    WF_TRY_GOTO(read_families(ctx, path, flow), fail);
    WF_TRY_GOTO(read_field_of(ctx, path, kind, flow), fail);
    WF_TRY_GOTO(read_conditions(ctx, path, flow), fail);
    *out = flow;
    return WF_OK;
fail:
    wf_flow_free(flow);
    return status;
}

wf_status wf_flow_open(wf_ctx *ctx, const char *path, wf_flow **out) {
    return wf_flow_open_with(ctx, path, NULL, out);
}

void wf_flow_free(wf_flow *flow) {
    if (flow == NULL) return;
    wf__sample_cuda_free(flow->gpu);
    wf_field_free(flow->field);
    wf_training_set_free(&flow->set);
    wf_st_close(flow->file);
    free(flow->options);
    free(flow->params);
    free(flow);
}

const char *wf_flow_generator(const wf_flow *flow) { return flow->field->kind->name; }
int wf_flow_cond_size(const wf_flow *flow) { return flow->field->cond_size; }
size_t wf_flow_params(const wf_flow *flow) { return flow->field->params; }
const void *wf_flow_options(const wf_flow *flow) { return flow->options; }
const wf_fit_desc *wf_flow_trained_with(const wf_flow *flow) { return &flow->fit; }
size_t wf_flow_updates(const wf_flow *flow) { return flow->state.made; }
size_t wf_flow_position(const wf_flow *flow) {
    return wf_pace_position(&flow->state.pace, flow->state.made);
}
const char *wf_flow_meta(const wf_flow *flow, const char *key) {
    return wf_st_meta(flow->file, key);
}
