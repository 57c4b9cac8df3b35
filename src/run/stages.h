/* stages: stage.json beside the results of a run: which stage is finished, with which settings. */
#ifndef WF_RUN_STAGES_H
#define WF_RUN_STAGES_H

#include "run/files.h"
#include "run/recipe_schema.h"

typedef struct cli_stages {
    char path[CLI_PATH];
    json_t *record;             /* as in the file */
    json_t *config[WF_STAGES];  /* what each stage would be made with now */
    char digest[WF_STAGES][65]; /* of config and of the stages it stands on */
} cli_stages;

const char *cli_stage_name(wf_stage stage);

/* Read FOLDER/stage.json (absent: nothing is done yet) and compute the settings of every stage.
 * fingerprint: of the data set; "" without one. Free with cli_stages_free, also after a failure. */
wf_status cli_stages_open(cli_app *app, const char *folder, const cli_recipe *recipe,
                          const char *fingerprint, cli_stages *out);
void cli_stages_free(cli_stages *stages);

/* The first stage whose own settings differ from those it was begun with, or WF_STAGES; `what`
 * says which keys, with old and new values. */
wf_stage cli_stages_changed(const cli_stages *stages, char *what, size_t size);
bool cli_stages_finished(const cli_stages *stages, wf_stage stage);
double cli_stages_seconds(const cli_stages *stages, wf_stage stage);
double cli_stages_total(const cli_stages *stages); /* seconds of all stages together */

/* Each writes the file. forget drops a stage and all that stand on it. */
wf_status cli_stages_begin(cli_app *app, cli_stages *stages, wf_stage stage);
/* finished false: broken off after so many seconds, to be resumed. outputs: digests of what it
 * leaves (cli/outputs.h), or NULL. */
wf_status cli_stages_end(cli_app *app, cli_stages *stages, wf_stage stage, double seconds,
                         bool finished, json_t *outputs);
/* What a finished stage left; NULL where nothing was recorded, as by version 0.1. */
json_t *cli_stages_outputs(const cli_stages *stages, wf_stage stage);
wf_status cli_stages_forget(cli_app *app, cli_stages *stages, wf_stage stage);
bool cli_stage_depends(wf_stage stage, wf_stage on);

#endif
