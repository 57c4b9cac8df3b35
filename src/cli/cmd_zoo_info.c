/* zoo info: what a collection looks like. */
#include "cli/commands.h"
#include "run/files.h"
#include "weft/import.h"

#include <math.h>

static const char *kinship_name(wf_zoo_kinship kinship) {
    static const char *const names[] = {"independent", "trajectory", "related"};
    return names[kinship];
}

static json_t *summary_to_json(const char *path, const wf_graph *graph, const wf_zoo_summary *s) {
    json_t *tests = json_array(), *examples = json_array();
    for (int i = 0; i < s->n_tests; i++) {
        const wf_zoo_score_info *t = &s->tests[i];
        json_array_append_new(tests, json_pack("{s:s, s:o, s:o, s:o, s:o}", "name", t->name, "mean",
                                               wf__run_json_number(t->mean), "std",
                                               wf__run_json_number(t->std), "min",
                                               wf__run_json_number(t->min), "max",
                                               wf__run_json_number(t->max)));
    }
    for (int i = 0; i < s->n_examples; i++)
        json_array_append_new(examples, json_pack("{s:I, s:I, s:b}", "index",
                                                  (json_int_t)s->examples[i].index, "earlier",
                                                  (json_int_t)s->examples[i].earlier, "permuted",
                                                  (int)s->examples[i].permuted));
    return json_pack(
        "{s:s, s:s, s:s, s:I, s:I, s:o, s:I, s:I, s:o, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:s, "
        "s:s}",
        "path", path, "arch", graph->text, "activation", wf_activation_name(graph->activation),
        "count", (json_int_t)s->count, "parameters", (json_int_t)s->parameters, "tests", tests,
        "duplicates", (json_int_t)s->duplicates, "permuted_duplicates",
        (json_int_t)s->permuted_duplicates, "duplicate_examples", examples, "hidden_units",
        (json_int_t)s->hidden_units, "dead_units", (json_int_t)s->dead_units, "dead_networks",
        (json_int_t)s->dead_networks, "non_finite_values", (json_int_t)s->non_finite_values,
        "non_finite_networks", (json_int_t)s->non_finite_networks, "near",
        wf__run_json_number(s->near), "far", wf__run_json_number(s->far), "kinship",
        kinship_name(s->kinship), "warning", s->warning);
}

static void print_summary(const char *path, const wf_graph *graph, const char *note,
                          const wf_zoo_summary *s) {
    char count[32], parameters[32];
    wf__run_count(s->count, count);
    wf__run_count(s->parameters, parameters);
    cli_print("%s\n  networks       %s of %s (%s), %s parameters each\n", path, count, graph->text,
              wf_activation_name(graph->activation), parameters);
    for (int i = 0; i < s->n_tests; i++)
        cli_print("  score          %s: %.4f \u00b1 %.4f, from %.4f to %.4f\n", s->tests[i].name,
                  s->tests[i].mean, s->tests[i].std, s->tests[i].min, s->tests[i].max);
    if (note != NULL) cli_print("  data           %s\n", note);
    cli_print("  duplicates     %zu, and %zu more up to the order of hidden units\n", s->duplicates,
              s->permuted_duplicates);
    for (int i = 0; i < s->n_examples; i++)
        cli_print("                 network %zu equals %zu%s\n", s->examples[i].index,
                  s->examples[i].earlier, s->examples[i].permuted ? " relabelled" : "");
    cli_print("  dead units     %zu of %zu, in %zu network%s\n", s->dead_units, s->hidden_units,
              s->dead_networks, WF_RUN_S(s->dead_networks));
    cli_print("  not finite     %zu value%s in %zu network%s\n", s->non_finite_values,
              WF_RUN_S(s->non_finite_values), s->non_finite_networks,
              WF_RUN_S(s->non_finite_networks));
    if (isfinite(s->near))
        cli_print("  relationship   %s (median cosine: neighbours %.3f, others %.3f)\n",
                  kinship_name(s->kinship), s->near, s->far);
    if (s->warning[0] != '\0') cli_print("  warning: %s\n", s->warning);
}

wf_status cli_zoo_info(wf_run_app *app) {
    wf_zoo *zoo;
    wf_zoo_summary summary;
    WF_TRY(wf_zoo_open(app->ctx, app->argument[0], &zoo));
    wf_status status = wf_zoo_info(app->ctx, zoo, &summary);
    const char *note = wf_zoo_meta(zoo, "weft.data.note");
    if (status == WF_OK && app->json) {
        json_t *json = summary_to_json(app->argument[0], wf_zoo_graph(zoo), &summary);
        json_object_set_new(json, "data_note", json_string(note != NULL ? note : ""));
        status = cli_print_json(app, json);
    } else if (status == WF_OK) print_summary(app->argument[0], wf_zoo_graph(zoo), note, &summary);
    wf_zoo_free(zoo);
    return status;
}
