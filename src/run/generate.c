/* generate: networks out of a generator into a collection file that says where they come from. */
#include "run/pipeline.h"
#include "weft/text.h"

#include <stdlib.h>

const char *wf__run_cond_place(const wf_run_generation *what) {
    static const char *const names[] = {"trained", "between", "beyond"};
    return what->cond == NULL ? "none" : names[what->place];
}

static void add_meta(wf_zoo_extra *extra, const char *key, const char *value) {
    if (value == NULL || value[0] == '\0') return;
    extra->meta[extra->n_meta][0] = key;
    extra->meta[extra->n_meta++][1] = value;
}

/* "1,0,0.5" for the file; free() it. */
static char *numbers_text(const float *numbers, int count) {
    size_t size = (size_t)count * 16 + 1; /* "-1.23456789e-38," */
    char *text = malloc(size);
    if (text == NULL) return NULL;
    wf_text list = wf_text_start(text, size);
    for (int i = 0; i < count; i++) wf_text_add(&list, "%s%.9g", i > 0 ? "," : "", numbers[i]);
    return text;
}

/* What a flow with conditions was asked for. `cond` keeps the text. */
static wf_status add_condition(wf_run_app *app, const wf_run_generation *what, wf_zoo_extra *extra,
                               char guidance[32], char **cond) {
    wf_flow *flow = wf_generator_flow(what->generator);
    int cond_size = flow != NULL ? wf_flow_cond_size(flow) : 0;
    add_meta(extra, "weft.task", what->task);
    add_meta(extra, "weft.sample.tests", what->tests);
    add_meta(extra, "weft.sample.data", what->data);
    if (cond_size == 0) return WF_OK;
    if (what->cond != NULL) {
        *cond = numbers_text(what->cond, cond_size);
        if (*cond == NULL) return wf__run_fail(app, WF_ERR_MEMORY, "out of memory");
    }
    snprintf(guidance, 32, "%g", what->sample.guidance);
    add_meta(extra, "weft.sample.cond", *cond);
    add_meta(extra, "weft.sample.cond_place", wf__run_cond_place(what));
    add_meta(extra, "weft.sample.guidance", guidance);
    return WF_OK;
}

/* How the networks read data: for commands that judge them. */
static void add_reading(const wf_run_generation *what, wf_zoo_extra *extra,
                        char buffer[WF_SETTING_BUFFER]) {
    wf_flow *flow = wf_generator_flow(what->generator);
    const char *scale = what->scale, *classes = what->classes;
    wf_data_desc data;
    if (scale == NULL && what->like != NULL) {
        if (wf_zoo_scale(what->like, &data.scale))
            scale = wf_setting_text(wf_settings_find(wf_data_settings(), "scale"), &data, buffer);
        classes = wf_zoo_meta(what->like, "weft.classes");
    } else if (scale == NULL && flow != NULL) {
        wf_flow_source first = wf_flow_source_at(flow, 0);
        scale = first.scale;
        classes = first.classes;
    }
    add_meta(extra, "weft.scale", scale);
    add_meta(extra, "weft.classes", classes);
}

static wf_status write_networks(wf_run_app *app, const wf_run_generation *what, const char *path,
                                const float *weights, int cycles, const wf_sample_stats *stats) {
    char updates[32], seed[32], evaluations[32], refine[64], first[32], buffer[WF_SETTING_BUFFER];
    wf_flow *flow = wf_generator_flow(what->generator);
    wf_zoo_extra extra = {.n_meta = 0};
    add_meta(&extra, "weft.generator", wf_generator_kind_of(what->generator)->name);
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)what->sample.seed);
    add_meta(&extra, "weft.sample.seed", seed);
    char guidance[32], scale[WF_SETTING_BUFFER], *cond = NULL;
    add_reading(what, &extra, scale);
    if (flow != NULL) {
        snprintf(updates, sizeof updates, "%zu", wf_flow_updates(flow));
        snprintf(first, sizeof first, "%zu", what->sample.first);
        snprintf(evaluations, sizeof evaluations, "%.6g", stats->evaluations);
        wf_text refinement = wf_text_start(refine, sizeof refine);
        wf_text_add(&refinement, "%g,%d", what->sample.refine_t, cycles);
        if (what->sample.refine_steps > 0)
            wf_text_add(&refinement, ",%d", what->sample.refine_steps);
        add_meta(&extra, "weft.flow", what->path_of);
        add_meta(&extra, "weft.flow.updates", updates);
        add_meta(&extra, "weft.sample.first", first);
        add_meta(&extra, "weft.sample.solver",
                 wf_setting_text(wf_settings_find(wf_sample_settings(), "solver"), &what->sample,
                                 buffer));
        add_meta(&extra, "weft.sample.refine", refine);
        if (cycles > 0 || what->sample.refine_cycles == 0)
            add_meta(&extra, "weft.sample.evaluations", evaluations);
    }
    wf_status status = add_condition(app, what, &extra, guidance, &cond);
    if (status == WF_OK)
        status = wf_zoo_write(app->ctx, path, what->graph, weights, what->n, &extra);
    free(cond);
    return status;
}

wf_status wf__run_generate_networks(wf_run_app *app, const wf_run_generation *what,
                                    wf_sample_stats *stats) {
    wf_sample_stats own = {0};
    if (stats == NULL) stats = &own;
    size_t each = what->graph->n_params;
    float *weights = calloc(what->n, each * sizeof *weights);
    float *direct = what->direct_path != NULL ? calloc(what->n, each * sizeof *direct) : NULL;
    wf_status status = WF_OK;
    if (weights == NULL || (what->direct_path != NULL && direct == NULL))
        status = wf__run_fail(app, WF_ERR_MEMORY,
                              "%zu networks of %zu parameters do not fit in memory", what->n, each);
    if (status == WF_OK)
        status = wf_generator_sample(app->ctx, what->generator,
                                     &(wf_generator_request){.graph = what->graph,
                                                             .cond = what->cond,
                                                             .n = what->n,
                                                             .sample = &what->sample,
                                                             .weights = weights,
                                                             .direct = direct,
                                                             .stats = stats});
    if (status == WF_OK && direct != NULL)
        status = write_networks(app, what, what->direct_path, direct, 0, stats);
    if (status == WF_OK)
        status = write_networks(app, what, what->path, weights, what->sample.refine_cycles, stats);
    free(weights);
    free(direct);
    return status;
}

wf_status wf__run_fit(wf_run_app *app, const wf_run_recipe *recipe, const wf_source *sources, int n,
                      const char *path) {
    if (recipe->kind->fit == NULL) return WF_OK;
    const int *cond_size = wf__run_recipe_cond_size(recipe);
    wf_generator_fit_desc desc = {.sources = sources,
                                  .n_sources = n,
                                  .options = recipe->model,
                                  .train = &recipe->fit,
                                  .path = path};
    if (wf__run_recipe_conditional(recipe) && cond_size != NULL) desc.cond_size = *cond_size;
    WF_TRY(wf_generator_fit(app->ctx, recipe->kind, &desc));
    return recipe->kind->flow == NULL ? WF_OK
                                      : wf_flow_keep_sampling(app->ctx, path, &recipe->sample);
}

wf_status wf__run_open_generator(wf_run_app *app, const wf_run_recipe *recipe, const char *path,
                                 const wf_zoo *zoo, wf_generator **out) {
    wf_generator_open_desc desc = {.kind = recipe->kind, .zoo = zoo, .options = recipe->model};
    if (recipe->kind->fit != NULL) desc.path = path;
    return wf_generator_open(app->ctx, &desc, out);
}
