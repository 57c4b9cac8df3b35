/* run_one: the stages of a run with one collection. */
#include "base/comm.h"
#include "run/job.h"
#include "run/outputs.h"
#include "weft/align.h"

#include <stdlib.h>
#include <string.h>

typedef wf_run_job run;

static wf_status train_zoo(run *r, size_t first, size_t count, const char *path) {
    wf_zoo_desc desc = r->recipe.zoo;
    desc.first = first;
    desc.count = count;
    size_t diverged = 0;
    WF_TRY(wf_zoo_train(r->app->ctx, r->graph, r->data, &desc, path, &diverged));
    if (diverged > 0)
        wf__run_say(r->app, "%zu network%s diverged, left out", diverged, WF_RUN_S(diverged));
    return WF_OK;
}

static wf_status stage_collection(run *r) {
    const wf_run_recipe *recipe = &r->recipe;
    if (recipe->zoo_path == NULL)
        return train_zoo(r, recipe->zoo.first, recipe->zoo.count, r->paths.zoo);
    wf_zoo *zoo; /* a given collection: only looked at */
    WF_TRY(wf_zoo_open(r->app->ctx, r->paths.zoo, &zoo));
    wf_zoo_free(zoo);
    return WF_OK;
}

static wf_status stage_held_out(run *r) {
    const wf_run_recipe *recipe = &r->recipe;
    if (recipe->zoo_path != NULL || recipe->held_out == 0) return WF_OK;
    return train_zoo(r, recipe->zoo.first + recipe->zoo.count, recipe->held_out, r->paths.held_out);
}

/* train.path holds networks of the collection's architecture. */
static wf_status check_train_path(run *r, const wf_zoo *fitted) {
    wf_zoo *zoo;
    wf_status status = wf_zoo_open(r->app->ctx, r->paths.zoo, &zoo);
    if (status != WF_OK) return status;
    if (!wf_graph_equal(wf_zoo_graph(fitted), wf_zoo_graph(zoo)))
        status = wf__run_fail(
            r->app, WF_ERR_SHAPE, "train.path %s has networks of %s, the collection has %s",
            r->recipe.train_path, wf_zoo_graph(fitted)->text, wf_zoo_graph(zoo)->text);
    wf_zoo_free(zoo);
    return status;
}

/* The collection with its networks matched to network 0, made where it is not there. */
static wf_status open_aligned(run *r, wf_zoo **zoo) {
    enum { sweeps = 100 };
    wf_match_desc desc = wf_match_desc_default();
    desc.sweeps = sweeps;
    wf_status status = WF_OK;
    if (!wf_file_exists(r->paths.aligned))
        status = wf_align_zoo(r->app->ctx, *zoo, 0, &desc, r->paths.aligned);
    wf_zoo_free(*zoo);
    *zoo = NULL;
    return status == WF_OK ? wf_zoo_open(r->app->ctx, r->paths.aligned, zoo) : status;
}

/* What the generator is fitted to, and keeps where it does: train.path, else the collection,
 * aligned where the generator wants that. */
static wf_status open_fitted(run *r, wf_zoo **out) {
    const char *other = r->recipe.train_path;
    WF_TRY(wf_zoo_open(r->app->ctx, other != NULL ? other : r->paths.zoo, out));
    bool wants = (r->recipe.kind->traits & WF_GENERATOR_WANTS_ALIGNED) != 0;
    if (other == NULL && wants && wf_zoo_meta(*out, "weft.aligned") == NULL)
        return open_aligned(r, out);
    return WF_OK;
}

/* weft fit and weft train leave FLOW.recipe.conf beside FLOW. Is this run's recipe such a one, and
 * has the run no flow yet? */
static bool flow_beside_recipe(const run *r, char flow[WF_RUN_PATH]) {
    static const char ending[] = ".recipe.conf";
    int length = (int)(strlen(r->recipe.file) - (sizeof ending - 1));
    if (!wf__run_ends_with(r->recipe.file, ending)) return false;
    snprintf(flow, WF_RUN_PATH, "%.*s", length, r->recipe.file);
    return wf_file_exists(flow) && !wf_file_exists(r->paths.flow);
}

static wf_status copy_file(wf_ctx *ctx, const char *from, const char *to) {
    char *bytes;
    size_t size;
    WF_TRY(wf_read_file(ctx, from, (size_t)1 << 32, &bytes, &size));
    wf_status status = wf_write_file(ctx, to, bytes, size);
    free(bytes);
    return status;
}

typedef struct flow_copy {
    const run *r;
    const char *from;
} flow_copy;

/* The log first: a flow without its log would go on with half of one. */
static wf_status take_flow(wf_ctx *ctx, void *copy_) {
    const flow_copy *copy = copy_;
    char log[WF_RUN_PATH];
    int length = snprintf(log, sizeof log, "%s.log.jsonl", copy->from);
    if (length < (int)sizeof log && wf_file_exists(log))
        WF_TRY(copy_file(ctx, log, copy->r->paths.log));
    return copy_file(ctx, copy->from, copy->r->paths.flow);
}

/* Fits the generator, or takes over the flow that the recipe was written for. One of other settings
 * is refused by the fit, which then begins anew. */
static wf_status fit_or_take(run *r, const wf_source *source) {
    wf_ctx *ctx = r->app->ctx;
    char flow[WF_RUN_PATH];
    bool take = flow_beside_recipe(r, flow);
    WF_TRY(wf_ctx_decide(ctx, &take));
    if (take) WF_TRY(wf_rank_0_does(ctx, take_flow, &(flow_copy){r, flow}));
    wf_status status = wf__run_fit(r->app, &r->recipe, source, 1, r->paths.flow);
    if (take && status == WF_OK) wf__run_say(r->app, "training: that of %s", flow);
    if (!take || (status != WF_ERR_USAGE && status != WF_ERR_INPUT)) return status;
    WF_TRY(wf_remove(ctx, r->paths.flow));
    WF_TRY(wf_remove(ctx, r->paths.log));
    return wf__run_fit(r->app, &r->recipe, source, 1, r->paths.flow);
}

static wf_status stage_training(run *r) {
    wf_zoo *zoo = NULL;
    wf_status status = open_fitted(r, &zoo);
    if (status == WF_OK && r->recipe.train_path != NULL) status = check_train_path(r, zoo);
    if (status == WF_OK && wf__run_recipe_conditional(&r->recipe))
        status = wf__run_fail(
            r->app, WF_ERR_UNSUPPORTED,
            "one collection needs no conditions; set model.cond = none, or write a manifest "
            "of several");
    wf_zoo *held_out = NULL; /* for the validation loss */
    if (status == WF_OK && wf__run_exists(r->app, r->paths.held_out))
        status = wf_zoo_open(r->app->ctx, r->paths.held_out, &held_out);
    wf_fresh fresh = {.data = r->data, .zoo = r->recipe.zoo};
    wf_source source = {.zoo = zoo, .held_out = held_out, .fresh = r->recipe.fresh ? &fresh : NULL};
    if (status == WF_OK) status = fit_or_take(r, &source);
    wf_zoo_free(zoo);
    wf_zoo_free(held_out);
    return status;
}

static wf_status stage_sampling(run *r) {
    wf_zoo *zoo = NULL;
    wf_generator *generator = NULL;
    wf_status status = open_fitted(r, &zoo);
    if (status == WF_OK)
        status = wf__run_open_generator(r->app, &r->recipe, r->paths.flow, zoo, &generator);
    if (status == WF_OK) {
        bool refined = r->recipe.sample.refine_cycles > 0;
        wf_run_generation what = {.generator = generator,
                                  .path_of = r->paths.flow,
                                  .graph = wf_zoo_graph(zoo),
                                  .like = zoo,
                                  .n = r->recipe.sample_count,
                                  .sample = r->recipe.sample,
                                  .path = r->paths.nets,
                                  .direct_path = refined ? r->paths.direct : NULL};
        status = wf__run_generate_networks(r->app, &what, NULL);
    }
    wf_generator_free(generator);
    wf_zoo_free(zoo);
    return status;
}

static wf_status stage_evaluation(run *r) {
    return wf__run_evaluate(r->app, &r->recipe, &r->paths, r->data);
}

static wf_status report(run *r, const char *path) {
    return wf__run_report(r->app, &r->recipe, &r->paths, r->data, wf__run_stages_total(&r->stages),
                          wf__run_log_digest(r), path);
}

/* The direct networks exist only with refinement. */
static bool outputs_exist(const run *r, wf_stage stage) {
    const wf_run_paths *paths = &r->paths;
    switch (stage) {
    case WF_STAGE_COLLECTION:
        return r->recipe.zoo_path != NULL ? wf__run_exists(r->app, paths->zoo)
                                          : wf__run_zoo_is_done(paths->zoo);
    case WF_STAGE_HELD_OUT:
        return r->recipe.held_out == 0 || r->recipe.zoo_path != NULL ||
               wf__run_zoo_is_done(paths->held_out);
    case WF_STAGE_TRAINING: return r->recipe.kind->fit == NULL || wf_file_exists(paths->flow);
    case WF_STAGE_SAMPLING:
        return wf_file_exists(paths->nets) &&
               (r->recipe.sample.refine_cycles == 0 || wf_file_exists(paths->direct));
    default: return wf_file_exists(paths->eval) && wf_file_exists(paths->points);
    }
}

const wf_run_shape wf__run_shape_one = {
    {stage_collection, stage_held_out, stage_training, stage_sampling, stage_evaluation},
    report,
    outputs_exist};
