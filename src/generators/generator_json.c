/* generator_json: fitting, opening and sampling with options as JSON. */
#include "base/settings_json.h"
#include "base/status.h"
#include "generators/generators.h"

#include <stdlib.h>
#include <string.h>

/* A list of numbers, free(*out); *n 0 and NULL where `list` is NULL or null. */
static wf_status read_numbers(wf_ctx *ctx, const char *what, const json_t *list, float **out,
                              int *n) {
    *out = NULL;
    *n = 0;
    if (list == NULL || json_is_null(list)) return WF_OK;
    size_t size = json_array_size(list);
    if (!json_is_array(list) || size == 0)
        return wf_fail(ctx, WF_ERR_USAGE, "%s: a list of numbers is expected", what);
    WF_TRY(wf_alloc(ctx, size, sizeof **out, "condition", out));
    for (size_t i = 0; i < size; i++) {
        if (!json_is_number(json_array_get(list, i))) {
            free(*out);
            *out = NULL;
            return wf_fail(ctx, WF_ERR_USAGE, "%s: entry %zu is no number", what, i);
        }
        (*out)[i] = (float)json_number_value(json_array_get(list, i));
    }
    *n = (int)size;
    return WF_OK;
}

/* --- fitting ---------------------------------------------------------------------------------- */

typedef struct fit_call {
    json_t *options; /* holds the names of the tasks */
    wf_source *sources;
    int n, cond_size;
    float **conds; /* [n] */
    void *model, *train;
} fit_call;

static void free_call(fit_call *call) {
    for (int i = 0; call->conds != NULL && i < call->n; i++) free(call->conds[i]);
    free(call->conds);
    free(call->sources);
    free(call->model);
    free(call->train);
    json_decref(call->options);
}

static wf_status read_source(wf_ctx *ctx, fit_call *call, const json_t *from, int i) {
    static const char *const known[] = {"task", "cond", "weight", NULL};
    char what[32];
    snprintf(what, sizeof what, "sources[%d]", i);
    if (!json_is_object(from)) return wf_fail(ctx, WF_ERR_USAGE, "%s: an object is expected", what);
    WF_TRY(wf__json_known(ctx, what, from, known));
    const json_t *task = json_object_get(from, "task"), *weight = json_object_get(from, "weight");
    if ((task != NULL && !json_is_string(task) && !json_is_null(task)) ||
        (weight != NULL && !json_is_integer(weight)))
        return wf_fail(ctx, WF_ERR_USAGE, "%s: task is a text, weight a whole number", what);
    int size;
    WF_TRY(read_numbers(ctx, what, json_object_get(from, "cond"), &call->conds[i], &size));
    if (i > 0 && size != call->cond_size)
        return wf_fail(ctx, WF_ERR_USAGE, "%s has %d numbers in its condition, sources[0] has %d",
                       what, size, call->cond_size);
    call->cond_size = size;
    call->sources[i].cond = call->conds[i];
    call->sources[i].task = json_string_value(task);
    call->sources[i].draw_weight = (int)json_integer_value(weight);
    return WF_OK;
}

static wf_status read_sources(wf_ctx *ctx, fit_call *call) {
    const json_t *list = json_object_get(call->options, "sources");
    if (list == NULL) return WF_OK;
    if (!json_is_array(list) || json_array_size(list) != (size_t)call->n)
        return wf_fail(ctx, WF_ERR_USAGE, "sources: a list of %d, one for each collection",
                       call->n);
    for (int i = 0; i < call->n; i++)
        WF_TRY(read_source(ctx, call, json_array_get(list, (size_t)i), i));
    return WF_OK;
}

/* Settings of a part of the options; *out NULL where the generator has none. */
static wf_status read_part(wf_ctx *ctx, const wf_setting *rows, const json_t *options,
                           const char *part, void **out) {
    const json_t *object = json_object_get(options, part);
    *out = NULL;
    if (object != NULL && !json_is_object(object))
        return wf_fail(ctx, WF_ERR_USAGE, "%s: an object of settings is expected", part);
    if (rows != NULL) return wf__settings_from_object(ctx, rows, object, out);
    if (json_object_size(object) == 0) return WF_OK;
    return wf_fail(ctx, WF_ERR_USAGE, "%s: this generator has no settings", part);
}

/* Matched noise is the default, which a flow that does not know the symmetry refuses. */
static void choose_coupling(const wf_generator_kind *kind, const json_t *options,
                            wf_fit_desc *train) {
    const json_t *given = json_object_get(json_object_get(options, "train"), "coupling");
    bool equivariant = (kind->traits & WF_GENERATOR_EQUIVARIANT) != 0;
    if (given == NULL && kind->flow != NULL && !equivariant)
        train->coupling = WF_COUPLING_INDEPENDENT;
}

static wf_status find_kind(wf_ctx *ctx, const char *name, const wf_generator_kind **out) {
    void *options;
    WF_TRY(wf_generator_named(ctx, name, out, &options)); /* lists the names there are */
    free(options);
    return WF_OK;
}

wf_status wf_generator_fit_json(wf_ctx *ctx, const char *name, const wf_zoo *const *zoos,
                                const wf_zoo *const *held_out, int n, const char *json,
                                const char *path) {
    static const char *const known[] = {"model", "train", "sources", NULL};
    const wf_generator_kind *kind;
    fit_call call = {.n = n};
    wf_status status = WF_OK;
    WF_TRY(find_kind(ctx, name, &kind));
    if (n < 1) return wf_fail(ctx, WF_ERR_USAGE, "no collection to fit; give at least one");
    WF_TRY(wf__json_options(ctx, "fit", json, &call.options));
    WF_TRY_GOTO(wf__json_known(ctx, "fit", call.options, known), done);
    WF_TRY_GOTO(wf_alloc(ctx, (size_t)n, sizeof *call.sources, "fit", &call.sources), done);
    WF_TRY_GOTO(wf_alloc(ctx, (size_t)n, sizeof *call.conds, "fit", &call.conds), done);
    for (int i = 0; i < n; i++) {
        call.sources[i].zoo = zoos[i];
        call.sources[i].held_out = held_out == NULL ? NULL : held_out[i];
    }
    WF_TRY_GOTO(read_sources(ctx, &call), done);
    const wf_setting *rows = kind->settings == NULL ? NULL : kind->settings();
    WF_TRY_GOTO(read_part(ctx, rows, call.options, "model", &call.model), done);
    WF_TRY_GOTO(read_part(ctx, wf_fit_settings(), call.options, "train", &call.train), done);
    choose_coupling(kind, call.options, call.train);
    wf_generator_fit_desc desc = {.sources = call.sources,
                                  .n_sources = n,
                                  .cond_size = call.cond_size,
                                  .options = call.model,
                                  .train = call.train,
                                  .path = path};
    status = wf_generator_fit(ctx, kind, &desc);
done:
    free_call(&call);
    return status;
}

/* --- opening and sampling --------------------------------------------------------------------- */

wf_status wf_generator_open_json(wf_ctx *ctx, const char *name, const char *path, const wf_zoo *zoo,
                                 const char *json, wf_generator **out) {
    wf_generator_open_desc desc = {.path = path, .zoo = zoo};
    void *named = NULL, *given = NULL;
    *out = NULL;
    if (name != NULL) WF_TRY(wf_generator_named(ctx, name, &desc.kind, &named));
    wf_status status = WF_OK;
    if (json != NULL && json[0] != '\0') {
        const wf_setting *rows =
            desc.kind == NULL || desc.kind->settings == NULL ? NULL : desc.kind->settings();
        status = rows != NULL ? wf_settings_create(ctx, rows, json, &given)
                              : wf_fail(ctx, WF_ERR_USAGE,
                                        "options belong to a generator by name that has "
                                        "settings; a file has its own");
    }
    desc.options = given != NULL ? given : path == NULL ? named : NULL;
    if (status == WF_OK) status = wf_generator_open(ctx, &desc, out);
    free(named);
    free(given);
    return status;
}

/* The condition of a task, or that of the options; borrowed from either. */
static wf_status find_cond(wf_ctx *ctx, wf_generator *generator, const json_t *options,
                           float **numbers, const float **out) {
    const json_t *named = json_object_get(options, "task");
    const char *task = json_string_value(named);
    wf_flow *flow = wf_generator_flow(generator);
    int n, index, expected = flow != NULL ? wf_flow_cond_size(flow) : 0;
    if (named != NULL && task == NULL)
        return wf_fail(ctx, WF_ERR_USAGE, "task: a text is expected");
    WF_TRY(read_numbers(ctx, "cond", json_object_get(options, "cond"), numbers, &n));
    *out = *numbers;
    if (*numbers != NULL && n != expected)
        return wf_fail(ctx, WF_ERR_USAGE, "cond has %d numbers, the generator takes %d", n,
                       expected);
    if (task == NULL) return WF_OK;
    if (flow == NULL || *numbers != NULL)
        return wf_fail(ctx, WF_ERR_USAGE, "task \"%s\": %s", task,
                       flow == NULL ? "this generator knows no tasks" : "cond is given too");
    WF_TRY(wf_flow_find_task(ctx, flow, task, &index));
    *out = wf_flow_source_at(flow, index).cond;
    return WF_OK;
}

wf_status wf_generator_sample_json(wf_ctx *ctx, wf_generator *generator, const wf_graph *graph,
                                   size_t n, const char *json, float *weights, float *direct,
                                   char **stats) {
    static const char *const known[] = {"sample", "cond", "task", NULL};
    json_t *options;
    float *numbers = NULL;
    void *sample = NULL;
    wf_sample_stats made = {0};
    wf_generator_request request = {
        .graph = graph, .n = n, .weights = weights, .direct = direct, .stats = &made};
    wf_status status = WF_OK;
    if (stats != NULL) *stats = NULL;
    WF_TRY(wf__json_options(ctx, "sample", json, &options));
    WF_TRY_GOTO(wf__json_known(ctx, "sample", options, known), done);
    WF_TRY_GOTO(read_part(ctx, wf_sample_settings(), options, "sample", &sample), done);
    WF_TRY_GOTO(find_cond(ctx, generator, options, &numbers, &request.cond), done);
    request.sample = sample;
    WF_TRY_GOTO(wf_generator_sample(ctx, generator, &request), done);
    if (stats != NULL)
        status = wf__json_answer(ctx,
                                 json_pack("{s:f, s:I, s:I, s:f}", "evaluations", made.evaluations,
                                           "accepted", (json_int_t)made.accepted, "rejected",
                                           (json_int_t)made.rejected, "seconds", made.seconds),
                                 stats);
done:
    free(sample);
    free(numbers);
    json_decref(options);
    return status;
}

/* --- what there is ---------------------------------------------------------------------------- */

wf_status wf_generator_json(wf_ctx *ctx, int index, char **out) {
    static const char *const names[] = {
        "any-architecture", "conditions", "equivariant", "wants-aligned",
        "keeps-collection", "on-gpu",     "refines",     NULL};
    const wf_generator_kind *kind = wf_generator_at(index);
    *out = NULL;
    if (kind == NULL)
        return wf_fail(ctx, WF_ERR_USAGE, "generator %d: there are %d", index,
                       wf_generator_count());
    json_t *traits = json_array();
    for (int bit = 0; names[bit] != NULL; bit++)
        if ((kind->traits >> bit & 1) != 0) json_array_append_new(traits, json_string(names[bit]));
    return wf__json_answer(ctx,
                           json_pack("{s:s, s:s, s:b, s:s?, s:s?, s:o}", "name", kind->name,
                                     "about", kind->about, "fitted", kind->fit != NULL, "parameter",
                                     kind->parameter, "variants", kind->variants, "traits", traits),
                           out);
}

const wf_setting *wf_generator_settings(const char *name) {
    const wf_generator_kind *kind = wf_generator_find(name);
    return kind == NULL || kind->settings == NULL ? NULL : kind->settings();
}
