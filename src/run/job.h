/* job: a run of a recipe, and the work of its stages where the recipe has a manifest of
 * collections (run_tasks.c).
 *
 * Such a run keeps a file for each collection and width: zoos/LABEL, scratch/LABEL-xW (networks
 * trained alike at that width), nets/LABEL-xW, nets-direct/LABEL-xW. With [sample] conds
 * (run_domains.c) it has nets/condC instead, for every condition. */
#ifndef WF_RUN_JOB_H
#define WF_RUN_JOB_H

#include "run/pipeline.h"
#include "run/stages.h"

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

/* A run without a recipe yet: read one into run->recipe. cli_job_end frees it, and adds to the
 * sentence of a failure how the file is mended that it is about. */
wf_status cli_job_create(cli_app *app, cli_job **out);
wf_status cli_job_end(cli_job *run, wf_status status);
/* All stages of the recipe, in `folder`; redo: results of other settings are replaced. */
wf_status cli_job_run(cli_job *run, const char *folder, bool redo);
/* The page again, of a folder that has results; into `out`, or where it was (NULL). */
wf_status cli_job_report(cli_job *run, const char *folder, const char *out);
/* A run along conditions instead of over tasks. */
bool cli_job_along(const cli_job *run);

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
/* The page, from eval.json. */
wf_status cli_tasks_report(cli_job *run, const char *path);
/* The table of such a run. Free it also after a failure. */
typedef struct cli_board {
    json_t *eval;
    wf_report_task *tasks; /* [n], one for each collection and width */
    int n;
} cli_board;
wf_status cli_board_read(cli_job *run, cli_board *out);
void cli_board_free(cli_board *board);

/* The stages that differ with [sample] conds. */
wf_status cli_domains_open(cli_job *run); /* after the manifest is read */
bool cli_domains_outputs_exist(const cli_job *run, wf_stage stage);
wf_status cli_domains_sampling(cli_job *run);
wf_status cli_domains_evaluation(cli_job *run);
wf_status cli_domains_report(cli_job *run, const char *path);

/* FOLDER/LABEL-xW.safetensors; width 0: FOLDER/LABEL.safetensors. */
wf_status cli_tasks_file(cli_job *run, const char *folder, int source, double width,
                         char out[CLI_PATH]);
/* The source's networks at a width; wf_graph_free it. */
wf_status cli_tasks_graph(cli_job *run, int source, double width, wf_graph **out);

#endif
