/* stages: stage.json beside the results of a run: which stage is finished, with which settings. It
 * ends with its own digest; files of version 0.1 have none. */
#pragma once

#include "run/files.h"
#include "run/recipe_schema.h"

typedef struct wf_run_stages {
    char path[WF_RUN_PATH];
    json_t *record;             /* as in the file */
    json_t *config[WF_STAGES];  /* what each stage would be made with now */
    char digest[WF_STAGES][65]; /* of config and of the stages it stands on */
} wf_run_stages;

const char *wf__run_stage_name(wf_stage stage);

/* Read FOLDER/stage.json (absent: nothing is done yet) and compute the settings of every stage.
 * fingerprint: of the data set; "" without one. Call wf__run_stages_free also after a failure. */
wf_status wf__run_stages_open(wf_run_app *app, const char *folder, const wf_run_recipe *recipe,
                              const char *fingerprint, wf_run_stages *out);
/* A stage.json of any run. known: it has a digest, which is right. WF_ERR_INPUT: damaged. */
wf_status wf__run_stages_read(wf_run_app *app, const char *path, json_t **out, bool *known);
void wf__run_stages_free(wf_run_stages *stages);

/* The first stage whose own settings differ from those it was begun with, or WF_STAGES; `what`
 * says which keys, with old and new values. */
wf_stage wf__run_stages_changed(const wf_run_stages *stages, char *what, size_t size);
bool wf__run_stages_finished(const wf_run_stages *stages, wf_stage stage);
double wf__run_stages_total(const wf_run_stages *stages); /* seconds of all stages together */

/* Each writes the file. forget drops a stage and all that stand on it. */
wf_status wf__run_stages_begin(wf_run_app *app, wf_run_stages *stages, wf_stage stage);
/* finished false: broken off after so many seconds, to be resumed. outputs: digests of what it
 * leaves (run/outputs.h), or NULL. */
wf_status wf__run_stages_end(wf_run_app *app, wf_run_stages *stages, wf_stage stage, double seconds,
                             bool finished, json_t *outputs);
/* Other digests of what a finished stage left, which another command has written again. */
wf_status wf__run_stages_renew(wf_run_app *app, wf_run_stages *stages, wf_stage stage,
                               json_t *outputs);
/* What a finished stage left; NULL where nothing was recorded, as by version 0.1. */
json_t *wf__run_stages_outputs(const wf_run_stages *stages, wf_stage stage);
wf_status wf__run_stages_forget(wf_run_app *app, wf_run_stages *stages, wf_stage stage);

/* Writes the resolved recipe to `path`, which is `name` in the run's folder, and its digest to
 * stage.json. */
wf_status wf__run_stages_keep_recipe(wf_run_app *app, wf_run_stages *stages, const char *name,
                                     const char *path, const char *text);
/* {name: digest}; NULL where nothing was recorded. */
json_t *wf__run_stages_recipe(const wf_run_stages *stages);
bool wf__run_stage_depends(wf_stage stage, wf_stage on);
