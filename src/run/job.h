/* job: a run of a recipe, and the work of its stages where the recipe has a manifest of
 * collections (run_tasks.c).
 *
 * Such a run keeps a file for each collection and width: zoos/LABEL, scratch/LABEL-xW (networks
 * trained alike at that width), nets/LABEL-xW, nets-direct/LABEL-xW. With [sample] conds
 * (run_domains.c) it has nets/condC instead, for every condition. */
#pragma once

#include "run/pipeline.h"
#include "run/stages.h"

enum { WF_RUN_MOST_WIDTHS = 16, WF_RUN_MOST_CONDS = 64 };

/* A collection of the manifest in this run. */
typedef struct wf_run_task {
    wf_run_recipe recipe; /* how it is made; its source is NULL where the collection is given */
    wf_dataset *data;     /* NULL without labelled data */
    wf_graph *graph;      /* with a recipe */
} wf_run_task;

typedef struct wf_run_tasks {
    wf_run_sources sources;
    wf_run_task *task; /* [sources.n] */
    float width[WF_RUN_MOST_WIDTHS];
    int n_widths;
    float cond[WF_RUN_MOST_CONDS]; /* of [sample] conds */
    int n_conds;
    char fingerprint[65]; /* of the manifest, the recipes and the data */
} wf_run_tasks;

typedef struct wf_run_job {
    wf_run_app *app;
    wf_run_recipe recipe;
    wf_run_paths paths;
    wf_run_stages stages;
    wf_dataset *data;
    wf_graph *graph;
    wf_run_tasks *tasks; /* NULL without a manifest */
} wf_run_job;

/* A run without a recipe yet: read one into run->recipe. wf__run_job_end frees it, and adds to the
 * sentence of a failure how the file is mended that it is about. */
wf_status wf__run_job_create(wf_run_app *app, wf_run_job **out);
wf_status wf__run_job_end(wf_run_job *run, wf_status status);
/* All stages of the recipe, in `folder`; redo: results of other settings are replaced. */
wf_status wf__run_job(wf_run_job *run, const char *folder, bool redo);
/* The page again, of a folder that has results; into `out`, or where it was (NULL). */
wf_status wf__run_job_report(wf_run_job *run, const char *folder, const char *out);
/* What training recorded of its log; NULL where it recorded nothing. */
const char *wf__run_log_digest(const wf_run_job *run);
/* A run along conditions instead of over tasks. */
bool wf__run_job_along(const wf_run_job *run);

/* What differs between a run of one collection (run_one.c), of a manifest (run_tasks.c), and along
 * conditions (run_domains.c). */
typedef struct wf_run_shape {
    wf_status (*stages[WF_STAGE_REPORT])(wf_run_job *run);
    /* The page, from eval.json. */
    wf_status (*report)(wf_run_job *run, const char *path);
    /* Is everything that a finished stage leaves still there? */
    bool (*outputs_exist)(const wf_run_job *run, wf_stage stage);
} wf_run_shape;
extern const wf_run_shape wf__run_shape_one, wf__run_shape_tasks, wf__run_shape_domains;

/* Reads manifest, recipes and data. Free with wf__run_tasks_free, also after a failure. */
wf_status wf__run_tasks_open(wf_run_job *run);
void wf__run_tasks_free(wf_run_tasks *tasks);
bool wf__run_tasks_outputs_exist(const wf_run_job *run, wf_stage stage);

wf_status wf__run_tasks_collection(wf_run_job *run);
wf_status wf__run_tasks_held_out(wf_run_job *run);
wf_status wf__run_tasks_training(wf_run_job *run);
wf_status wf__run_tasks_evaluation(wf_run_job *run);
wf_status wf__run_tasks_report(wf_run_job *run, const char *path);
/* The table of such a run. Free it also after a failure. */
typedef struct wf_run_board {
    json_t *eval;
    wf_report_task *tasks; /* [n], one for each collection and width */
    int n;
} wf_run_board;
wf_status wf__run_board_read(wf_run_job *run, wf_run_board *out);
void wf__run_board_free(wf_run_board *board);

/* With [sample] conds. */
wf_status wf__run_domains_open(wf_run_job *run); /* after the manifest is read */
wf_status wf__run_domains_report(wf_run_job *run, const char *path);

/* Numbers of the recipe that stand in names of files, where no two may look alike. */
wf_status wf__run_tasks_numbers(wf_run_job *run, const char *what, const char *text, float *out,
                                int most, int *n);
/* FOLDER/LABEL-xW.safetensors; width 0: FOLDER/LABEL.safetensors. */
wf_status wf__run_tasks_file(wf_run_job *run, const char *folder, int source, double width,
                             char out[WF_RUN_PATH]);
/* The source's networks at a width; wf_graph_free it. */
wf_status wf__run_tasks_graph(wf_run_job *run, int source, double width, wf_graph **out);
