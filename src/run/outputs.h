/* outputs: digests of what a stage leaves, kept in stage.json: {name: digest}. Names are relative
 * to the run's folder where the file lies in it. */
#ifndef WF_RUN_OUTPUTS_H
#define WF_RUN_OUTPUTS_H

#include "run/files.h"

/* Adds the digest of a file, or of every file of a folder but those whose names begin with '.';
 * what is not there is left out. */
wf_status wf__run_outputs_add(wf_run_app *app, const char *folder, const char *path,
                              json_t *outputs);
/* The path behind a name. */
wf_status wf__run_outputs_path(wf_run_app *app, const char *folder, const char *name,
                               char out[WF_RUN_PATH]);
/* The first file that is there and has another digest than it had; "" when there is none. */
wf_status wf__run_outputs_changed(wf_run_app *app, const char *folder, json_t *outputs,
                                  char changed[WF_RUN_PATH]);

/* Calls visit for every file below `path` (itself, when it is one), in order of names, hidden ones
 * left out. */
typedef wf_status wf_run_visit(void *user, const char *path);
wf_status wf__run_each_file(wf_run_app *app, const char *path, wf_run_visit *visit, void *user);

#endif
