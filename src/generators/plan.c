/* plan: how to fit a flow in a given time. See weft/plan.h.
 *
 * The sizes of the field form a ladder. The second rung is measured first, and the update times of
 * the others are predicted from their operations. Then the largest rung that gets enough updates is
 * measured; if it is slower than predicted, a smaller one is taken. In the same time a larger field
 * with a thousand updates beats a smaller one with many (docs/results/2026-11-18-plan.md). At the
 * same number of networks seen, many small updates beat few large ones
 * (docs/results/2026-11-15-cpu.md), so the batch grows only when more updates no longer help. */
#include "base/mute.h"
#include "base/settings_json.h"
#include "base/status.h"
#include "weft/file.h"
#include "weft/generator.h"
#include "weft/plan.h"
#include "weft/recipe.h"
#include "weft/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct rung {
    int width, blocks;
    size_t networks; /* with fewer networks the flow memorises them */
} rung;
static const rung ladder[] = {{16, 2, 0},    {32, 3, 0},    {32, 4, 100},   {64, 4, 300},
                              {64, 6, 1000}, {64, 8, 3000}, {128, 8, 10000}};
enum {
    n_rungs = sizeof ladder / sizeof *ladder,
    first_rung = 1,
    small_batch = 16,     /* of a CPU ... */
    small_batch_gpu = 64, /* ... and of a GPU, which is idle below */
    most_batch = 256,
    good_updates = 1000,    /* a rung is used where it gets so many ... */
    small_updates = 4000,   /* ... and the smallest one needs so many */
    plenty_updates = 10000, /* from here on a larger batch is better */
    most_updates = 20000,
    updates_a_validation = 40, /* at least, so that validating takes little of the time */
    measured_networks = 512,
    folded_inputs = 256 /* first layers with such rows are kept on their nodes */
};
/* Share of the budget for updates; the rest is for opening the collection, checkpoints and the
 * end. */
static const double used_share = 0.95;

typedef struct planner {
    wf_ctx *ctx;
    const wf_zoo *zoo;
    double budget; /* seconds of training */
    bool cuda;
    int rungs; /* that the number of networks allows */
    wf_scratch *scratch;
} planner;

/* --- settings --------------------------------------------------------------------------------- */

static void set_field(const planner *p, int at, wf_field_desc *field) {
    *field = wf_field_desc_default();
    field->node = field->edge = field->time = ladder[at].width;
    field->blocks = ladder[at].blocks;
    field->encoder = WF_ENCODER_SCALAR;
    field->activation = WF_FIELD_ACT_SILU;
    const wf_graph *graph = wf_zoo_graph(p->zoo);
    field->fold = wf_graph_fold_rows(graph) > folded_inputs;
}

static void set_training(const planner *p, wf_plan *plan) {
    size_t count = wf_zoo_count(p->zoo);
    wf_fit_desc *fit = &plan->fit;
    *fit = wf_fit_desc_default();
    fit->batch = p->cuda ? small_batch_gpu : small_batch;
    fit->muon_lr = 0.01;
    fit->set_aside = count < 20 ? 0 : count / 10;
    if (fit->set_aside > 200) fit->set_aside = 200;
    /* With few networks a flow soon memorises them, so it keeps the weights of the lowest
     * validation loss. */
    fit->kept = fit->set_aside >= 5 ? WF_KEPT_VALIDATION : WF_KEPT_EMA;
    plan->networks = count - fit->set_aside;
    plan->sample = wf_sample_desc_default();
    plan->sample.solver = WF_SOLVER_EULER;
    plan->sample.steps = 40;
    plan->sample.refine_t = 0.8;
    plan->sample.refine_cycles = 10;
    plan->sample.refine_steps = 1;
    plan->sample.refine_matched = true;
}

/* Operations of a rung relative to others: products of width^2, and passes over the features. */
static double rung_cost(int at) {
    double width = ladder[at].width;
    return ladder[at].blocks * (width * width + 48 * width);
}

/* --- measuring -------------------------------------------------------------------------------- */

/* The flow that was trained there is not needed. */
static void remove_files(const planner *p) {
    static const char *const names[] = {"flow.safetensors", "flow.safetensors.log.jsonl",
                                        ".flow.safetensors.lock"};
    char path[4096 + 64];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", wf_scratch_path(p->scratch), names[i]);
        unlink(path);
    }
}

static wf_status seconds_of_flow(planner *p, const char *path, double *seconds) {
    wf_flow *flow;
    WF_TRY(wf_flow_open(p->ctx, path, &flow));
    const char *text = wf_flow_meta(flow, "seconds");
    size_t updates = wf_flow_updates(flow);
    *seconds = text == NULL || updates == 0 ? NAN : strtod(text, NULL) / (double)updates;
    wf_flow_free(flow);
    if (isfinite(*seconds) && *seconds > 0) return WF_OK;
    return wf_fail(p->ctx, WF_ERR_FAILED, "the speed of an update could not be measured");
}

/* Seconds of an update of the plan's field and batch: real ones, for a short while. */
static wf_status measure(planner *p, const wf_plan *plan, double *seconds) {
    wf_fit_desc fit = plan->fit;
    wf_source source = {.zoo = p->zoo};
    char path[4096 + 64];
    snprintf(path, sizeof path, "%s/flow.safetensors", wf_scratch_path(p->scratch));
    remove_files(p);
    fit.updates = most_updates;
    fit.max_seconds = p->cuda ? 3 : fmin(2, fmax(0.5, 0.02 * p->budget));
    fit.save_seconds = 1e9;
    fit.limit = plan->networks > measured_networks ? measured_networks : 0;
    fit.validations = 0;
    fit.set_aside = 0;
    fit.kept = WF_KEPT_EMA;
    wf_generator_fit_desc desc = {
        .sources = &source, .n_sources = 1, .options = &plan->field, .train = &fit, .path = path};
    wf__ctx_mute(p->ctx, true);
    wf_status status = wf_generator_fit(p->ctx, wf_generator_find(WF_GENERATOR_DEFAULT), &desc);
    wf__ctx_mute(p->ctx, false);
    if (status == WF_ERR_INTERRUPTED)
        status = wf_fail(p->ctx, status, "interrupted while the plan was made");
    if (status == WF_OK) status = seconds_of_flow(p, path, seconds);
    remove_files(p);
    return status;
}

/* --- choosing --------------------------------------------------------------------------------- */

static double updates_in(const planner *p, double seconds) {
    return used_share * p->budget / seconds;
}

/* The largest rung that gets good_updates if rung `known` takes so many seconds an update. */
static int best_rung(const planner *p, int known, double seconds) {
    int best = 0;
    for (int at = 0; at < p->rungs; at++)
        if (updates_in(p, seconds * rung_cost(at) / rung_cost(known)) >= good_updates) best = at;
    return best;
}

static wf_status choose_field(planner *p, wf_plan *plan, double *seconds) {
    int at = first_rung < p->rungs ? first_rung : 0;
    set_field(p, at, &plan->field);
    WF_TRY(measure(p, plan, seconds));
    int best = best_rung(p, at, *seconds);
    while (best != at) {
        bool down = best < at;
        at = best;
        set_field(p, at, &plan->field);
        WF_TRY(measure(p, plan, seconds));
        if (down || at == 0) break; /* a smaller rung is tried once */
        if (updates_in(p, *seconds) < 0.8 * good_updates) best = at - 1;
    }
    return WF_OK;
}

/* More than enough updates: larger batches, then a shorter training. */
static wf_status choose_batch(planner *p, wf_plan *plan, double *seconds) {
    while (updates_in(p, *seconds) > plenty_updates && plan->fit.batch < most_batch &&
           2 * plan->fit.batch <= plan->networks) {
        size_t before = plan->fit.batch;
        double known = *seconds;
        plan->fit.batch *= 2;
        WF_TRY(measure(p, plan, seconds));
        if (updates_in(p, *seconds) >= good_updates) continue;
        plan->fit.batch = before;
        *seconds = known;
        break;
    }
    return WF_OK;
}

static int needed_updates(const wf_plan *plan) {
    return plan->field.node == ladder[0].width ? small_updates : good_updates;
}

static void set_updates(const planner *p, double seconds, wf_plan *plan) {
    /* Two batches of 16 networks or more forward at each validation; an update is three passes. */
    double validation = plan->fit.set_aside == 0 ? 0 : 2 * 16 / (3.0 * (double)plan->fit.batch);
    double updates = floor(updates_in(p, seconds) / (1 + validation / updates_a_validation));
    plan->short_time = updates < 0.8 * needed_updates(plan);
    plan->fit.updates = (size_t)fmin(most_updates, fmax(updates, 100));
    if (plan->fit.updates >= 1000) plan->fit.updates -= plan->fit.updates % 100;
    plan->fit.validations = plan->fit.updates / updates_a_validation;
    if (plan->fit.validations > 100) plan->fit.validations = 100;
    plan->update_seconds = seconds;
    plan->seconds =
        seconds * ((double)plan->fit.updates + validation * (double)plan->fit.validations);
    plan->fit.max_seconds = ceil(fmax(p->budget, plan->seconds / used_share));
}

static wf_status choose(planner *p, wf_plan *plan) {
    double seconds;
    set_training(p, plan);
    WF_TRY(choose_field(p, plan, &seconds));
    WF_TRY(choose_batch(p, plan, &seconds));
    set_updates(p, seconds, plan);
    return wf_generator_params(p->ctx, wf_generator_find(WF_GENERATOR_DEFAULT), &plan->field,
                               wf_zoo_graph(p->zoo), 0, &plan->field_params);
}

static void warn_user(const planner *p, const wf_plan *plan) {
    if (plan->short_time)
        wf_warn(p->ctx,
                "%zu updates fit into the time, and flows need %d and more, as minutes = %.0f "
                "would give",
                plan->fit.updates, needed_updates(plan),
                ceil(needed_updates(plan) * plan->update_seconds / used_share / 60));
}

wf_status wf_plan_fit(wf_ctx *ctx, const wf_zoo *zoo, double minutes, wf_plan *out) {
    memset(out, 0, sizeof *out);
    if (minutes == 0) minutes = WF_PLAN_MINUTES;
    if (!(minutes > 0 && minutes <= 1e6))
        return wf_fail(ctx, WF_ERR_USAGE, "%g minutes; give a number above 0", minutes);
    planner p = {.ctx = ctx, .zoo = zoo, .budget = 60 * minutes};
    while (p.rungs < n_rungs && wf_zoo_count(zoo) >= ladder[p.rungs].networks) p.rungs++;
    WF_TRY(wf_use_cuda(ctx, &p.cuda));
    WF_TRY(wf_scratch_make(ctx, WF_PLAN_SCRATCH, &p.scratch));
    out->few_networks = wf_zoo_count(zoo) < WF_PLAN_FEW;
    wf_status status = choose(&p, out);
    wf_scratch_free(p.scratch);
    if (status == WF_OK) warn_user(&p, out);
    return status;
}

/* --- as text ---------------------------------------------------------------------------------- */

wf_status wf_plan_json(wf_ctx *ctx, const wf_zoo *zoo, double minutes, char **out) {
    wf_plan plan;
    *out = NULL;
    WF_TRY(wf_plan_fit(ctx, zoo, minutes, &plan));
    return wf__json_answer(
        ctx,
        json_pack(
            "{s:s, s:o, s:o, s:o, s:I, s:I, s:I, s:f, s:f, s:b, s:b}", "generator",
            WF_GENERATOR_DEFAULT, "model", wf__settings_object(wf_field_settings(), &plan.field),
            "train", wf__settings_object(wf_fit_settings(), &plan.fit), "sample",
            wf__settings_object(wf_sample_settings(), &plan.sample), "networks",
            (json_int_t)plan.networks, "set_aside", (json_int_t)plan.fit.set_aside, "field_params",
            (json_int_t)plan.field_params, "seconds", plan.seconds, "update_seconds",
            plan.update_seconds, "few_networks", plan.few_networks, "short_time", plan.short_time),
        out);
}

/* What a plan chooses, and why. */
static const char *const reasons[][3] = {
    {"model", "layout", "the cheaper of two layouts, and better at this size"},
    {"model", "node", "the largest field that gets enough updates in the time"},
    {"model", "edge", NULL},
    {"model", "time", NULL},
    {"model", "blocks", NULL},
    {"model", "encoder", "as good as sine in small fields, and cheaper"},
    {"model", "activation", NULL},
    {"model", "fold", "yes for first layers with long rows"},
    {"model", "seed", NULL},
    {"train", "updates", "what the time gives, by updates that were measured"},
    {"train", "max_seconds", "on a slower machine the schedule is shortened to end by then"},
    {"train", "batch", "small: more updates are worth more than larger ones"},
    {"train", "set_aside", "networks that only validate"},
    {"train", "validations", NULL},
    {"train", "weights", "of the lowest validation loss: nothing is learned by heart"},
    {"train", "optimizer", "on the blocks' matrices: the largest single gain"},
    {"train", "muon_lr", NULL},
    {"train", "lr", NULL},
    {"train", "seed", NULL},
    {"sample", "solver", NULL},
    {"sample", "steps", NULL},
    {"sample", "refine_t", "networks are noised back to this time ..."},
    {"sample", "refine_cycles", NULL},
    {"sample", "refine_steps", "... and brought to the end in one jump"},
    {"sample", "refine_matched", NULL},
    {"sample", "seed", NULL},
};

static void add_line(wf_text *text, const wf_setting *rows, const void *desc, const char *key,
                     const char *why) {
    const wf_setting *row = wf_settings_find(rows, key);
    char buffer[WF_SETTING_BUFFER], line[128];
    snprintf(line, sizeof line, "%s = %s", key, wf_setting_text(row, desc, buffer));
    if (why == NULL) wf_text_add(text, "%s\n", line);
    else wf_text_add(text, "%-26s # %s\n", line, why);
}

wf_status wf_plan_recipe(wf_ctx *ctx, const wf_plan *plan, const char *zoo, const char *data,
                         char **out) {
    char *path;
    *out = NULL;
    WF_TRY(wf_recipe_quote(ctx, zoo, &path));
    size_t size = 4096 + strlen(path) + (data == NULL ? 0 : strlen(data));
    wf_status status = wf_alloc(ctx, size, 1, "recipe", out);
    if (status != WF_OK) {
        wf_free(path);
        return status;
    }
    wf_text text = wf_text_start(*out, size);
    wf_text_add(&text,
                "# Planned by weft fit for %zu networks: %.0f s of training at %.3g ms an update, "
                "measured.\n# weft run with this recipe also samples, judges and reports; weft "
                "train makes the same flow.\n",
                plan->networks, plan->seconds, 1000 * plan->update_seconds);
    if (data != NULL) wf_text_add(&text, "\n[data]\n%s", data);
    wf_text_add(&text, "\n[zoo]\npath = %s\n", path);
    wf_free(path);
    const char *section = "";
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++) {
        const char *in = reasons[i][0];
        if (strcmp(section, in) != 0) wf_text_add(&text, "\n[%s]\n", section = in);
        bool model = strcmp(in, "model") == 0, train = strcmp(in, "train") == 0;
        add_line(&text,
                 model   ? wf_field_settings()
                 : train ? wf_fit_settings()
                         : wf_sample_settings(),
                 model   ? (const void *)&plan->field
                 : train ? (const void *)&plan->fit
                         : (const void *)&plan->sample,
                 reasons[i][1], reasons[i][2]);
    }
    if (!text.cut) return WF_OK;
    free(*out);
    *out = NULL;
    return wf_fail(ctx, WF_ERR_USAGE, "the recipe is too long");
}
