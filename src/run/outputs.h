/* outputs: digests of what a stage leaves, kept in stage.json: {name: digest}. Names are relative
 * to the run's folder where the file lies in it. */
#pragma once

#include "run/files.h"
#include "weft/zoo.h"

/* Whether a file is there, or one that matches a pattern (weft/zoo.h). */
bool wf__run_exists(wf_run_app *app, const char *path);
/* Adds the digest of a file, of those that match a pattern, or of every file of a folder but those
 * whose names begin with '.'; what is not there is left out. */
wf_status wf__run_outputs_add(wf_run_app *app, const char *folder, const char *path,
                              json_t *outputs);
/* The path that a name stands for. */
wf_status wf__run_outputs_path(wf_run_app *app, const char *folder, const char *name,
                               char out[WF_RUN_PATH]);
/* The first file that is there and has another digest than it had; "" when there is none. */
wf_status wf__run_outputs_changed(wf_run_app *app, const char *folder, json_t *outputs,
                                  char changed[WF_RUN_PATH]);

/* The first file that was recorded and matches `pattern` no more, or matches and was not recorded;
 * "" when there is none. */
wf_status wf__run_parts_changed(wf_run_app *app, const char *folder, const char *pattern,
                                json_t *outputs, char changed[WF_RUN_PATH]);

/* Calls visit for every file below `path` (itself, when it is one), in order of names, hidden ones
 * left out. */
typedef wf_status wf_run_visit(void *user, const char *path);
wf_status wf__run_each_file(wf_run_app *app, const char *path, wf_run_visit *visit, void *user);
