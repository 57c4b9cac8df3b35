/* zoo info: what a collection looks like. */
#include "cli/commands.h"
#include "run/files.h"
#include "weft/import.h"

#include <math.h>

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
                  wf_zoo_kinship_name(s->kinship), s->near, s->far);
    if (s->warning[0] != '\0') cli_print("  warning: %s\n", s->warning);
}

static wf_status print_json(wf_run_app *app, const wf_zoo *zoo) {
    char *text;
    WF_TRY(wf_zoo_info_json(app->ctx, zoo, &text));
    json_t *json = json_loads(text, 0, NULL);
    wf_free(text);
    return cli_print_json(app, json);
}

wf_status cli_zoo_info(wf_run_app *app) {
    wf_zoo *zoo;
    wf_zoo_summary summary;
    WF_TRY(wf_zoo_open(app->ctx, app->argument[0], &zoo));
    wf_status status = app->json ? print_json(app, zoo) : wf_zoo_info(app->ctx, zoo, &summary);
    if (status == WF_OK && !app->json)
        print_summary(app->argument[0], wf_zoo_graph(zoo), wf_zoo_meta(zoo, "weft.data.note"),
                      &summary);
    wf_zoo_free(zoo);
    return status;
}
