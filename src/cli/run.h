/* run: a run of a recipe, and the work of its stages where the recipe has a manifest of
 * collections (run_tasks.c).
 *
 * Such a run keeps a file for each collection and width: zoos/LABEL, scratch/LABEL-xW (networks
 * trained alike at that width), nets/LABEL-xW, nets-direct/LABEL-xW. With [sample] conds
 * (run_domains.c) it has nets/condC instead, for every condition. */
#ifndef WF_CLI_RUN_H
#define WF_CLI_RUN_H

#include "cli/pipeline.h"
#include "cli/stages.h"

enum { CLI_MOST_WIDTHS = 16, CLI_MOST_CONDS = 64 };

/* A collection of the manifest in this run. */
typedef struct cli_task {
    cli_recipe recipe; /* how it is made; its source is NULL where the collection is given */
    wf_dataset *data;  /* NULL without labelled data */
    wf_graph *graph;   /* with a recipe */
} cli_task;

typedef struct cli_tasks {
    cli_sources sources;
    cli_task *task; /* [sources.n] */
    float width[CLI_MOST_WIDTHS];
    int n_widths;
    float cond[CLI_MOST_CONDS]; /* of [sample] conds */
    int n_conds;
    char fingerprint[65]; /* of the manifest, the recipes and the data */
} cli_tasks;

typedef struct cli_job {
    cli_app *app;
    cli_recipe recipe;
    cli_run_paths paths;
    cli_stages stages;
    wf_dataset *data;
    wf_graph *graph;
    cli_tasks *tasks; /* NULL without a manifest */
} cli_job;

/* Reads manifest, recipes and data. Free with cli_tasks_free, also after a failure. */
wf_status cli_tasks_open(cli_job *run);
void cli_tasks_free(cli_tasks *tasks);
/* Whether all files that a finished stage leaves are there. */
bool cli_tasks_outputs_exist(const cli_job *run, wf_stage stage);

wf_status cli_tasks_collection(cli_job *run);
wf_status cli_tasks_held_out(cli_job *run);
wf_status cli_tasks_training(cli_job *run);
wf_status cli_tasks_sampling(cli_job *run);
wf_status cli_tasks_evaluation(cli_job *run);
/* From eval.json: the page, and the table on stdout. */
wf_status cli_tasks_report(cli_job *run, const char *path);
wf_status cli_tasks_print(cli_job *run);

/* The stages that differ with [sample] conds. */
wf_status cli_domains_open(cli_job *run); /* after the manifest is read */
bool cli_domains_outputs_exist(const cli_job *run, wf_stage stage);
wf_status cli_domains_sampling(cli_job *run);
wf_status cli_domains_evaluation(cli_job *run);
wf_status cli_domains_report(cli_job *run, const char *path);
wf_status cli_domains_print(cli_job *run);

/* FOLDER/LABEL-xW.safetensors; width 0: FOLDER/LABEL.safetensors. */
wf_status cli_tasks_file(cli_job *run, const char *folder, int source, double width,
                         char out[CLI_PATH]);
/* The source's networks at a width; wf_graph_free it. */
wf_status cli_tasks_graph(cli_job *run, int source, double width, wf_graph **out);

#endif
