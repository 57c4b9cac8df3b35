/* pipeline: the work of the stages, shared by `weft run` and the single commands. */
#pragma once

#include "run/files.h"
#include "run/recipe_schema.h"
#include "run/sources.h"
#include "weft/report.h"

/* Generate n networks of `graph` and write them as a collection. path_of: the generator's file,
 * NULL without one. direct_path (may be NULL): also the same networks before refinement. cond:
 * NULL for none. place: where it lies among the trained ones. task, tests, data (may be NULL):
 * as the generator knows them. stats may be NULL. */
typedef struct wf_run_generation {
    wf_generator *generator;
    const char *path_of;
    const wf_graph *graph;
    const float *cond;
    wf_cond_place place;
    const char *task, *tests, *data;
    /* Of the data that the networks read, and the order of its classes. NULL: those of `like`, or
     * of the first collection that a flow was fitted to. */
    const char *scale, *classes;
    const wf_zoo *like; /* may be NULL */
    bool new_shape;     /* not that of any collection */
    size_t n;
    wf_sample_desc sample;
    const char *path, *direct_path;
} wf_run_generation;
wf_status wf__run_generate_networks(wf_run_app *app, const wf_run_generation *what,
                                    wf_sample_stats *stats);
const char *
wf__run_cond_place(const wf_run_generation *what); /* "none", "trained", "between" or "beyond" */

/* Fit the recipe's generator to collections, after wf__run_sources_condition. Does nothing for a
 * generator that needs no fit. */
wf_status wf__run_fit(wf_run_app *app, const wf_run_recipe *recipe, const wf_source *sources, int n,
                      const char *path);
/* The generator that was fitted into `path`, or the recipe's own that needs no fit. zoo: for those
 * that keep their collection; may be NULL for others. */
wf_status wf__run_open_generator(wf_run_app *app, const wf_run_recipe *recipe, const char *path,
                                 const wf_zoo *zoo, wf_generator **out);

/* The files of a run. */
typedef struct wf_run_paths {
    char folder[WF_RUN_PATH], zoo[WF_RUN_PATH], held_out[WF_RUN_PATH], flow[WF_RUN_PATH],
        log[WF_RUN_PATH], nets[WF_RUN_PATH], direct[WF_RUN_PATH], eval[WF_RUN_PATH],
        points[WF_RUN_PATH], report[WF_RUN_PATH], recipe[WF_RUN_PATH], aligned[WF_RUN_PATH];
} wf_run_paths;

/* Judge the run's networks beside held-out ones and controls; writes eval.json and points.json.
 * data may be NULL. */
wf_status wf__run_evaluate(wf_run_app *app, const wf_run_recipe *recipe, const wf_run_paths *paths,
                           const wf_dataset *data);

/* The page about a run, from its files. data may be NULL; seconds of all stages together, 0: not
 * known; log_digest of the log, NULL: none was kept. */
wf_status wf__run_report(wf_run_app *app, const wf_run_recipe *recipe, const wf_run_paths *paths,
                         const wf_dataset *data, double seconds, const char *log_digest,
                         const char *out_path);

/* All rows of an eval.json; free(*rows), free(*copies). */
wf_status wf__run_rows_of_eval(wf_run_app *app, const char *path, const json_t *eval,
                               wf_eval_row **rows, bool **copies, int *n);
