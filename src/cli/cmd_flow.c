/* train, sample: fit a flow to collections, draw networks from it. */
#include "cli/commands.h"
#include "cli/pipeline.h"

#include <stdlib.h>
#include <string.h>

enum { max_sources = 64, max_cond = 1024 };

typedef struct sources {
    wf_source list[max_sources];
    wf_zoo *zoos[max_sources];
    float *cond; /* (max_sources, K) */
    int n;
} sources;

/* --zoo A,B,C */
static wf_status open_sources(cli_app *app, sources *s) {
    char *text = strdup(cli_text(app, "zoo")), *rest = text;
    if (text == NULL) return cli_fail(app, WF_ERR_MEMORY, "out of memory");
    wf_status status = WF_OK;
    for (char *path; status == WF_OK && (path = strsep(&rest, ",")) != NULL;) {
        if (s->n == max_sources)
            status = cli_fail(app, WF_ERR_USAGE, "more than %d collections", max_sources);
        else status = wf_zoo_open(app->ctx, path, &s->zoos[s->n]);
        if (status == WF_OK) s->list[s->n].zoo = s->zoos[s->n], s->n++;
    }
    free(text);
    return status;
}

/* --cond "0;1": a condition for each collection, in order. */
static wf_status read_conditions(cli_app *app, const wf_field_desc *field, sources *s) {
    const char *given = cli_text(app, "cond");
    if (field->cond == WF_COND_NONE)
        return given == NULL ? WF_OK
                             : cli_fail(app, WF_ERR_USAGE,
                                        "--cond is given, but model.cond is none in the recipe");
    if (given == NULL)
        return cli_fail(app, WF_ERR_USAGE,
                        "model.cond is set: give each collection its condition, as "
                        "--cond \"0;1\"");
    int size = field->cond_size, n = 0;
    s->cond = calloc(max_sources, (size_t)size * sizeof(float));
    char *text = strdup(given), *rest = text;
    wf_status status = WF_OK;
    if (s->cond == NULL || text == NULL) status = cli_fail(app, WF_ERR_MEMORY, "out of memory");
    for (char *one; status == WF_OK && (one = strsep(&rest, ";")) != NULL; n++) {
        int count = 0;
        if (n < s->n)
            status =
                cli_numbers(app, "cond", one, s->cond + (size_t)n * (size_t)size, size, &count);
        if (status == WF_OK && n < s->n && count != size)
            status = cli_fail(app, WF_ERR_USAGE,
                              "condition %d has %d numbers, model.cond_size is %d", n, count, size);
        if (status == WF_OK && n < s->n) s->list[n].cond = s->cond + (size_t)n * (size_t)size;
    }
    free(text);
    if (status == WF_OK && n != s->n)
        status = cli_fail(app, WF_ERR_USAGE, "%d conditions for %d collections", n, s->n);
    return status;
}

static wf_status write_recipe_beside(cli_app *app, const cli_recipe *recipe, const char *path) {
    char beside[CLI_PATH];
    snprintf(beside, sizeof beside, "%s.recipe.conf", path);
    char *text = cli_recipe_resolved(recipe);
    if (text == NULL) return cli_fail(app, WF_ERR_MEMORY, "out of memory");
    wf_status status = wf_write_file(app->ctx, beside, text, strlen(text));
    free(text);
    return status;
}

static wf_status fit(cli_app *app, cli_recipe *recipe, sources *s) {
    const char *out = cli_text(app, "out");
    wf_field_desc field;
    wf_flow *flow;
    CLI_TRY(cli_recipe_open(app, app->argument[0], recipe));
    CLI_TRY(open_sources(app, s));
    CLI_TRY(cli_recipe_field(app, recipe, wf_zoo_graph(s->zoos[0]), &field));
    CLI_TRY(read_conditions(app, &field, s));
    CLI_TRY(write_recipe_beside(app, recipe, out));
    double start = cli_seconds();
    CLI_TRY(wf_flow_fit(app->ctx, s->list, s->n, &field, &recipe->fit, out, &flow));
    double seconds = cli_seconds() - start;
    size_t updates = wf_flow_updates(flow);
    wf_flow_free(flow);
    if (app->json)
        return cli_print_json(app, json_pack("{s:s, s:I, s:f}", "path", out, "updates",
                                             (json_int_t)updates, "seconds", seconds));
    printf("%s: a flow after %zu updates\n", out, updates);
    return WF_OK;
}

wf_status cli_train(cli_app *app) {
    if (cli_text(app, "zoo") == NULL)
        return cli_fail(app, WF_ERR_USAGE,
                        "say which collection to fit: --zoo FILE (weft zoo train and "
                        "weft zoo import make one; weft run does all of it)");
    if (cli_text(app, "out") == NULL)
        return cli_fail(app, WF_ERR_USAGE, "say where the flow goes: -o FILE");
    cli_recipe recipe = {0};
    sources *s = calloc(1, sizeof *s);
    if (s == NULL) return cli_fail(app, WF_ERR_MEMORY, "out of memory");
    wf_status status = fit(app, &recipe, s);
    for (int i = 0; i < s->n; i++) wf_zoo_free(s->zoos[i]);
    free(s->cond);
    free(s);
    cli_recipe_free(&recipe);
    return status;
}

/* --- sample ------------------------------------------------------------------------------------- */

/* The architecture: --arch, else that of the flow's first collection; then --width. */
static wf_status sample_graph(cli_app *app, const wf_flow *flow, wf_graph **out) {
    const char *arch = cli_text(app, "arch"), *activation = cli_text(app, "activation");
    if (arch == NULL) arch = wf_flow_meta(flow, "arch.0");
    if (activation == NULL) activation = wf_flow_meta(flow, "arch.0.activation");
    if (arch == NULL)
        return cli_fail(app, WF_ERR_USAGE, "the flow does not say an architecture; give --arch");
    CLI_TRY(wf_graph_parse(app->ctx, arch, activation != NULL ? activation : "relu", 0, out));
    if (!cli_given(app, "width")) return WF_OK;
    wf_graph *scaled;
    wf_status status = wf_graph_scale_width(app->ctx, *out, cli_real(app, "width"), &scaled);
    wf_graph_free(*out);
    *out = status == WF_OK ? scaled : NULL;
    return status;
}

/* --refine T,K */
static wf_status read_refine(cli_app *app, wf_sample_desc *desc) {
    const char *text = cli_text(app, "refine");
    if (text == NULL) return WF_OK;
    float pair[2];
    int count;
    CLI_TRY(cli_numbers(app, "refine", text, pair, 2, &count));
    if (count != 2 || !(pair[0] > 0 && pair[0] < 1) || pair[1] < 0 || pair[1] != (int)pair[1])
        return cli_fail(app, WF_ERR_USAGE,
                        "--refine is %s; write T,K with 0 < T < 1 and K cycles, as "
                        "0.75,10",
                        text);
    desc->refine_t = strtod(text, NULL);
    desc->refine_cycles = (int)pair[1];
    return WF_OK;
}

static wf_status read_sample_options(cli_app *app, const wf_flow *flow, wf_sample_desc *desc) {
    static const char *const solvers[] = {"euler", "heun", "rk4", "dopri5", NULL};
    *desc = wf_sample_desc_default();
    if (cli_given(app, "solver")) {
        int solver;
        CLI_TRY(cli_choice(app, "solver", cli_text(app, "solver"), solvers, &solver));
        desc->solver = (wf_solver)solver;
    }
    if (cli_given(app, "steps")) desc->steps = (int)cli_int(app, "steps");
    if (cli_given(app, "tolerance")) desc->rtol = desc->atol = cli_real(app, "tolerance");
    if (cli_given(app, "guidance")) desc->guidance = cli_real(app, "guidance");
    if (cli_given(app, "seed")) desc->seed = (uint64_t)cli_int(app, "seed");
    desc->first = (size_t)cli_int(app, "first");
    /* Noise of refinement is matched where the flow was trained on matched noise. */
    const char *coupling = wf_flow_meta(flow, "fit.coupling");
    desc->refine_matched = coupling != NULL && strcmp(coupling, "matched") == 0;
    return read_refine(app, desc);
}

static wf_status sample_condition(cli_app *app, const wf_field_desc *field, float *cond,
                                  bool *any) {
    const char *text = cli_text(app, "cond");
    int count = 0;
    *any = false;
    if (text == NULL && field->cond == WF_COND_NONE) return WF_OK;
    if (text == NULL)
        return cli_fail(app, WF_ERR_USAGE, "the flow has conditions of %d numbers; give --cond",
                        field->cond_size);
    if (field->cond == WF_COND_NONE)
        return cli_fail(app, WF_ERR_USAGE,
                        "--cond is given, but the flow was trained without conditions");
    CLI_TRY(cli_numbers(app, "cond", text, cond, max_cond, &count));
    if (count != field->cond_size)
        return cli_fail(app, WF_ERR_USAGE, "--cond has %d numbers, the flow's conditions have %d",
                        count, field->cond_size);
    *any = true;
    return WF_OK;
}

static wf_status sample_from(cli_app *app, wf_flow *flow, wf_graph **graph) {
    float cond[max_cond];
    bool conditioned;
    cli_generate what = {.flow = flow,
                         .flow_path = app->argument[0],
                         .n = (size_t)cli_int(app, "count"),
                         .path = cli_text(app, "out"),
                         .direct_path = cli_text(app, "direct")};
    CLI_TRY(read_sample_options(app, flow, &what.sample));
    CLI_TRY(sample_condition(app, wf_flow_field(flow), cond, &conditioned));
    CLI_TRY(sample_graph(app, flow, graph));
    what.graph = *graph;
    what.cond = conditioned ? cond : NULL;
    wf_sample_stats stats;
    CLI_TRY(cli_generate_networks(app, &what, &stats));
    if (app->json)
        return cli_print_json(app, json_pack("{s:s, s:I, s:s, s:f, s:I, s:I, s:f}", "path",
                                             what.path, "n", (json_int_t)what.n, "arch",
                                             (*graph)->text, "evaluations", stats.evaluations,
                                             "accepted", (json_int_t)stats.accepted, "rejected",
                                             (json_int_t)stats.rejected, "seconds", stats.seconds));
    printf("%s: %zu networks of %s, %.6g field evaluations each, %.3g s\n", what.path, what.n,
           (*graph)->text, stats.evaluations, stats.seconds);
    return WF_OK;
}

wf_status cli_sample(cli_app *app) {
    if (cli_text(app, "out") == NULL)
        return cli_fail(app, WF_ERR_USAGE, "say where the networks go: -o FILE");
    wf_flow *flow;
    wf_graph *graph = NULL;
    CLI_TRY(wf_flow_open(app->ctx, app->argument[0], &flow));
    wf_status status = sample_from(app, flow, &graph);
    wf_graph_free(graph);
    wf_flow_free(flow);
    return status;
}
