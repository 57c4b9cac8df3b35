/* sample: networks from a generator; from a flow those of a task it knows, under any condition, of
 * any shape. */
#include "cli/commands.h"
#include "cli/networks.h"
#include "run/pipeline.h"
#include "weft/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { max_cond = 4096 };

/* What is asked for. */
typedef struct request {
    wf_run_generation what;
    wf_generator *generator;
    wf_zoo *zoo; /* --zoo; NULL: none */
    int source;  /* of a flow: that of the task, or nearest to the condition */
    wf_flow_source about;
    wf_graph *graph;
    float cond[max_cond];
} request;

/* --refine T,K or T,K,S, or none */
static wf_status read_refine(wf_run_app *app, wf_sample_desc *desc) {
    const char *text = cli_text(app, "refine");
    if (text == NULL) return WF_OK;
    if (strcmp(text, "none") == 0) {
        desc->refine_cycles = 0;
        return WF_OK;
    }
    float numbers[3] = {0};
    int count;
    WF_TRY(wf__run_numbers(app, "--refine", text, numbers, 3, &count));
    bool whole = true;
    for (int i = 1; i < count; i++)
        whole =
            whole && numbers[i] >= 0 && numbers[i] < 1e6f && numbers[i] == (float)(int)numbers[i];
    if (count < 2 || !(numbers[0] > 0 && numbers[0] < 1) || !whole)
        return wf__run_fail(app, WF_ERR_USAGE,
                            "--refine is %s; write T,K with 0 < T < 1 and K cycles, as 0.75,10, or "
                            "T,K,S with S Euler steps a cycle, or none",
                            text);
    desc->refine_t = strtod(text, NULL);
    desc->refine_cycles = (int)numbers[1];
    desc->refine_steps = (int)numbers[2];
    return WF_OK;
}

static wf_status read_sample_options(wf_run_app *app, const wf_flow *flow, wf_sample_desc *desc) {
    wf_flow_sampling(flow, desc);
    cli_settings(app, wf_sample_settings(), desc);
    if (cli_given(app, "tolerance")) desc->rtol = desc->atol = cli_real(app, "tolerance");
    desc->first = (size_t)cli_int(app, "first");
    WF_TRY(read_refine(app, desc));
    if (cli_given(app, "direct") && desc->refine_cycles == 0)
        return wf__run_fail(
            app, WF_ERR_USAGE,
            "--direct keeps networks as they were before refinement, but there is none; "
            "give --refine 0.75,10");
    return WF_OK;
}

/* "euler of 100 steps, refined 30 times from t = 0.8" */
static void sampling_text(const wf_sample_desc *desc, char *out, size_t size) {
    char solver[WF_SETTING_BUFFER];
    wf_text text = wf_text_start(out, size);
    wf_text_add(&text, "%s",
                wf_setting_text(wf_settings_find(wf_sample_settings(), "solver"), desc, solver));
    if (desc->solver != WF_SOLVER_DOPRI5) wf_text_add(&text, " of %d steps", desc->steps);
    if (desc->refine_cycles > 0)
        wf_text_add(&text, ", refined %d time%s from t = %g", desc->refine_cycles,
                    WF_RUN_S(desc->refine_cycles), desc->refine_t);
}

/* "letter, banknote ... or": what --task may say, for a fault. */
static void task_hint(const wf_flow *flow, char *out, size_t size) {
    char tasks[256];
    wf_flow_tasks(flow, tasks, sizeof tasks);
    wf_text hint = wf_text_start(out, size);
    if (tasks[0] != '\0') wf_text_add(&hint, "--task (%s) or ", tasks);
}

/* --cond: numbers, or none for the learned null. */
static wf_status read_condition(wf_run_app *app, const wf_flow *flow, request *r) {
    int cond_size = wf_flow_cond_size(flow);
    const char *text = cli_text(app, "cond");
    char hint[600];
    int count = 0;
    if (text == NULL && cond_size == 0) return WF_OK;
    if (cond_size == 0)
        return wf__run_fail(app, WF_ERR_USAGE,
                            "--cond is given, but the flow was trained without conditions");
    task_hint(flow, hint, sizeof hint);
    if (text == NULL)
        return wf__run_fail(app, WF_ERR_USAGE,
                            "the flow has conditions: give %s--cond (%d number%s, or none)", hint,
                            cond_size, WF_RUN_S(cond_size));
    if (strcmp(text, "none") == 0) return WF_OK;
    WF_TRY(wf__run_numbers(app, "--cond", text, r->cond, max_cond, &count));
    if (count != cond_size)
        return wf__run_fail(app, WF_ERR_USAGE,
                            "--cond has %d number%s, the flow's conditions have %d", count,
                            WF_RUN_S(count), cond_size);
    r->what.cond = r->cond;
    r->source = wf_flow_nearest(flow, r->cond);
    return wf_flow_place(app->ctx, flow, r->cond, &r->what.place);
}

/* --task or --cond. */
static wf_status choose_source(wf_run_app *app, const wf_flow *flow, request *r) {
    const char *task = cli_text(app, "task");
    if (task == NULL) WF_TRY(read_condition(app, flow, r));
    else if (cli_text(app, "cond") != NULL)
        return wf__run_fail(app, WF_ERR_USAGE,
                            "give --task or --cond, not both: a task has its condition");
    else WF_TRY(wf_flow_find_task(app->ctx, flow, task, &r->source));
    r->about = wf_flow_source_at(flow, r->source);
    r->what.scale = r->about.scale;
    r->what.classes = r->about.classes;
    if (task == NULL) return WF_OK;
    r->what.task = task;
    r->what.cond = r->about.cond;
    r->what.tests = r->about.tests;
    r->what.data = r->about.data;
    return WF_OK;
}

static wf_status scale_width(wf_run_app *app, request *r) {
    if (!cli_given(app, "width")) return WF_OK;
    if (r->graph->n_orbits == 0)
        return wf__run_fail(app, WF_ERR_USAGE, "--width: %s has no hidden layer", r->graph->text);
    wf_graph *scaled;
    wf_status status = wf_graph_scale_width(app->ctx, r->graph, cli_real(app, "width"), &scaled);
    if (status != WF_OK) return status;
    wf_graph_free(r->graph);
    r->graph = scaled;
    return WF_OK;
}

/* How an architecture with the ends of `like` is written. */
static void ends_text(const wf_graph *like, char out[64]) {
    const wf_group *input = &like->groups[0];
    if (input->image)
        snprintf(out, 64, "%dx%dx%d ... linear%d", input->n, input->height, input->width,
                 like->outputs);
    else snprintf(out, 64, "%d-...-%d", like->inputs, like->outputs);
}

/* Inputs and outputs are those of a collection that the flow was fitted to: hidden layers alone may
 * differ. */
static wf_status check_ends(wf_run_app *app, const wf_flow *flow, const request *r) {
    for (int i = 0; i < wf_flow_sources(flow); i++) {
        const wf_graph *known = wf_flow_source_at(flow, i).graph;
        if (known->inputs == r->graph->inputs && known->outputs == r->graph->outputs) return WF_OK;
    }
    const wf_graph *like = r->about.graph;
    char ends[64];
    ends_text(like, ends);
    return wf__run_fail(
        app, WF_ERR_USAGE,
        "--arch %s has %d inputs and %d outputs; the flow was fitted to networks of %s, "
        "with %d and %d, and makes no others: write %s",
        cli_text(app, "arch"), r->graph->inputs, r->graph->outputs, like->text, like->inputs,
        like->outputs, ends);
}

/* --arch, else a copy of `like`. NULL: there is none. */
static wf_status read_arch(wf_run_app *app, const wf_graph *like, wf_graph **out) {
    const char *arch = cli_text(app, "arch"), *activation = cli_text(app, "activation");
    if (arch == NULL && activation != NULL)
        return wf__run_fail(
            app, WF_ERR_USAGE,
            "--activation goes with --arch: a collection's own networks keep theirs");
    if (arch == NULL) return wf_graph_fold(app->ctx, like, 0, out);
    bool one = like != NULL && like->activation != WF_ACT_MIXED;
    if (activation == NULL) activation = one ? wf_activation_name(like->activation) : "relu";
    return wf_graph_parse(app->ctx, arch, activation, 0, out);
}

/* The architecture: --arch, else that of the source; then --width. */
static wf_status choose_graph(wf_run_app *app, const wf_flow *flow, request *r) {
    const char *arch = cli_text(app, "arch");
    const wf_graph *like = r->about.graph;
    WF_TRY(read_arch(app, like, &r->graph));
    if (r->what.task != NULL &&
        (r->graph->inputs != like->inputs || r->graph->outputs != like->outputs)) {
        char ends[64];
        ends_text(like, ends);
        return wf__run_fail(app, WF_ERR_USAGE,
                            "task %s has %d inputs and %d classes, --arch %s has %d and %d: write "
                            "%s",
                            r->what.task, like->inputs, like->outputs, arch, r->graph->inputs,
                            r->graph->outputs, ends);
    }
    if (r->what.task == NULL) WF_TRY(check_ends(app, flow, r));
    WF_TRY(scale_width(app, r));
    r->what.new_shape = true;
    for (int i = 0; i < wf_flow_sources(flow); i++)
        if (wf_graph_equal(wf_flow_source_at(flow, i).graph, r->graph)) r->what.new_shape = false;
    r->what.graph = r->graph;
    return WF_OK;
}

static wf_status print_result(wf_run_app *app, const wf_flow *flow, const wf_run_generation *what,
                              const wf_sample_stats *stats) {
    int cond_size = flow != NULL ? wf_flow_cond_size(flow) : 0;
    if (app->json) {
        json_t *json = json_pack(
            "{s:s, s:s, s:I, s:s, s:b, s:f, s:I, s:I, s:f, s:s}", "path", what->path, "generator",
            wf_generator_kind_of(what->generator)->name, "n", (json_int_t)what->n, "arch",
            what->graph->text, "new_shape", what->new_shape, "evaluations", stats->evaluations,
            "accepted", (json_int_t)stats->accepted, "rejected", (json_int_t)stats->rejected,
            "seconds", stats->seconds, "devices", wf_ctx_devices(app->ctx));
        if (json != NULL && flow != NULL) {
            char how[128];
            sampling_text(&what->sample, how, sizeof how);
            json_object_set_new(json, "sampling", json_string(how));
        }
        if (json != NULL && what->task != NULL)
            json_object_set_new(json, "task", json_string(what->task));
        if (json != NULL && cond_size > 0) {
            json_object_set_new(json, "cond",
                                what->cond != NULL ? wf__run_numbers_to_json(what->cond, cond_size)
                                                   : json_null());
            json_object_set_new(json, "cond_place", json_string(wf__run_cond_place(what)));
            json_object_set_new(json, "guidance", wf__run_json_number(what->sample.guidance));
        }
        return cli_print_json(app, json);
    }
    cli_print("%s: %zu network%s of %s%s, ", what->path, what->n, WF_RUN_S(what->n),
              what->graph->text, what->new_shape ? " (a shape never trained on)" : "");
    if (what->task != NULL) cli_print("task %s, ", what->task);
    else if (cond_size > 0)
        cli_print("%s, ", what->cond == NULL               ? "no condition"
                          : what->place == WF_COND_TRAINED ? "a condition trained on"
                          : what->place == WF_COND_BETWEEN ? "a condition between those trained on"
                                                           : "a condition beyond those trained on");
    if (cond_size > 0 && what->cond != NULL && what->sample.guidance != 1)
        cli_print("guidance %g, ", what->sample.guidance);
    char how[128];
    sampling_text(&what->sample, how, sizeof how);
    if (flow != NULL) cli_print("%s, %.6g field evaluations each, ", how, stats->evaluations);
    cli_print("%.3g s\n", stats->seconds);
    return WF_OK;
}

/* Options that flows alone have, and one of all that are fitted. */
static wf_status refuse_flow_options(wf_run_app *app, const wf_generator_kind *kind) {
    static const char *const names[] = {"task",  "cond",      "guidance", "solver", "steps",
                                        "first", "tolerance", "refine",   "direct"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (cli_given(app, names[i]))
            return wf__run_fail(app, WF_ERR_USAGE, "--%s belongs to flows, and %s is none",
                                names[i], kind->name);
    if (kind->fit != NULL || !cli_given(app, "precision")) return WF_OK;
    return wf__run_fail(app, WF_ERR_USAGE,
                        "--precision belongs to generators that are fitted, and "
                        "%s needs no fit",
                        kind->name);
}

/* --arch, else what the generator was fitted to, else the collection's. */
static wf_status choose_plain_graph(wf_run_app *app, request *r) {
    const wf_graph *like = wf_generator_graph(r->generator);
    if (like == NULL && r->zoo != NULL) like = wf_zoo_graph(r->zoo);
    if (like == NULL && cli_text(app, "arch") == NULL)
        return wf__run_fail(app, WF_ERR_USAGE,
                            "say which networks to make: --arch 64-16-8-10, or --zoo");
    WF_TRY(read_arch(app, like, &r->graph));
    WF_TRY(scale_width(app, r));
    r->what.new_shape = like != NULL && !wf_graph_equal(like, r->graph);
    r->what.graph = r->graph;
    return WF_OK;
}

static wf_status sample_from(wf_run_app *app, request *r) {
    wf_flow *flow = wf_generator_flow(r->generator);
    r->what = (wf_run_generation){.generator = r->generator,
                                  .path_of = app->argument[0],
                                  .like = r->zoo,
                                  .n = (size_t)cli_int(app, "count"),
                                  .path = cli_text(app, "out"),
                                  .direct_path = cli_text(app, "direct")};
    if (flow != NULL) {
        WF_TRY(read_sample_options(app, flow, &r->what.sample));
        WF_TRY(choose_source(app, flow, r));
        WF_TRY(choose_graph(app, flow, r));
    } else {
        WF_TRY(refuse_flow_options(app, wf_generator_kind_of(r->generator)));
        r->what.sample = wf_sample_desc_default();
        cli_settings(app, wf_sample_settings(), &r->what.sample);
        WF_TRY(choose_plain_graph(app, r));
    }
    wf_sample_stats stats;
    double start = wf_seconds();
    WF_TRY(wf__run_generate_networks(app, &r->what, &stats));
    if (flow == NULL) stats.seconds = wf_seconds() - start;
    return print_result(app, flow, &r->what, &stats);
}

/* The argument is a file, or the name of a generator that needs no fit. */
static wf_status open_generator(wf_run_app *app, request *r) {
    const char *zoo = cli_text(app, "zoo"), *name = app->argument[0];
    wf_generator_open_desc desc = {.path = name};
    void *options = NULL;
    if (zoo != NULL) WF_TRY(wf_zoo_open(app->ctx, zoo, &r->zoo));
    desc.zoo = r->zoo;
    wf_status status = WF_OK;
    if (!wf_file_exists(name)) {
        if (strchr(name, '/') != NULL || wf__run_ends_with(name, ".safetensors"))
            return wf__run_fail(app, WF_ERR_INPUT, "there is no file %s", name);
        if (wf_generator_named(app->ctx, name, &desc.kind, &options) != WF_OK)
            return wf__run_fail(app, WF_ERR_INPUT, "there is no file %s, and %s", name,
                                wf_last_error(app->ctx));
        if (desc.kind->fit != NULL)
            status = wf__run_fail(app, WF_ERR_USAGE,
                                  "%s has to be fitted first (weft fit, weft train); give the file "
                                  "that it was fitted into",
                                  name);
        desc.path = NULL;
        desc.options = options;
    }
    if (status == WF_OK) status = wf_generator_open(app->ctx, &desc, &r->generator);
    free(options);
    return status;
}

wf_status cli_sample(wf_run_app *app) {
    if (cli_text(app, "out") == NULL)
        return wf__run_fail(app, WF_ERR_USAGE, "say where the networks go: -o FILE");
    WF_TRY(cli_new_file(app, cli_text(app, "out")));
    if (cli_text(app, "direct") != NULL) WF_TRY(cli_new_file(app, cli_text(app, "direct")));
    request *r = calloc(1, sizeof *r);
    if (r == NULL) return wf__run_fail(app, WF_ERR_MEMORY, "out of memory");
    wf_status status = open_generator(app, r);
    if (status == WF_OK) status = sample_from(app, r);
    wf_graph_free(r->graph);
    wf_generator_free(r->generator);
    wf_zoo_free(r->zoo);
    free(r);
    return status;
}
