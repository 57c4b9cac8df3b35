/* pipeline: the work of the stages, shared by `weft run` and the single commands. */
#ifndef WF_CLI_PIPELINE_H
#define WF_CLI_PIPELINE_H

#include "cli/files.h"
#include "cli/recipe_schema.h"
#include "cli/sources.h"
#include "weft/flow.h"
#include "weft/report.h"

/* Generate n networks of `graph` from the flow at flow_path and write them as a collection. direct_path (may be
 * NULL): also the same networks before refinement. cond: NULL for none. place: where it lies among the trained ones.
 * task, tests, data (may be NULL): as the flow knows them. stats may be NULL. */
typedef struct cli_generate {
    wf_flow *flow;
    const char *flow_path;
    const wf_graph *graph;
    const float *cond;
    wf_cond_place place;
    const char *task, *tests, *data;
    bool new_shape; /* not that of any collection */
    size_t n;
    wf_sample_desc sample;
    const char *path, *direct_path;
} cli_generate;
wf_status cli_generate_networks(cli_app *app, const cli_generate *what, wf_sample_stats *stats);
const char *cli_cond_place(const cli_generate *what); /* "none", "trained", "between" or "beyond" */

/* --precision of `weft train` and `weft sample`. */

/* Fit the recipe's field to collections, after cli_sources_condition on it. out may be NULL. */
wf_status cli_fit_sources(cli_app *app, const cli_recipe *recipe, const cli_sources *sources,
                          const char *path, wf_flow **out);

/* The files of a run. */
typedef struct cli_run_paths {
    char folder[CLI_PATH], zoo[CLI_PATH], held_out[CLI_PATH], flow[CLI_PATH], log[CLI_PATH],
        nets[CLI_PATH], direct[CLI_PATH], eval[CLI_PATH], points[CLI_PATH], report[CLI_PATH],
        recipe[CLI_PATH];
} cli_run_paths;
/* With [zoo] path the collections are those of the recipe. */
wf_status cli_run_paths_set(cli_app *app, const cli_recipe *recipe, const char *folder,
                            cli_run_paths *out);

/* Judge the run's networks beside held-out ones and controls; writes eval.json and points.json. data may be NULL. */
wf_status cli_evaluate_run(cli_app *app, const cli_recipe *recipe, const cli_run_paths *paths,
                           const wf_dataset *data);

/* The page about a run, from its files. data may be NULL; seconds of all stages together, 0: not known. */
wf_status cli_report_run(cli_app *app, const cli_recipe *recipe, const cli_run_paths *paths,
                         const wf_dataset *data, double seconds, const char *out_path);

/* The table of an eval.json on stdout. */
wf_status cli_print_eval(cli_app *app, const char *path, bool auc);

#endif
