/* outputs: digests of what a stage leaves, kept in stage.json: {name: digest}. Names are relative
 * to the run's folder where the file lies in it. */
#ifndef WF_RUN_OUTPUTS_H
#define WF_RUN_OUTPUTS_H

#include "run/files.h"

/* Adds the digest of a file, or of every file of a folder but those whose names begin with '.';
 * what is not there is left out. */
wf_status cli_outputs_add(cli_app *app, const char *folder, const char *path, json_t *outputs);
/* The path behind a name. */
wf_status cli_outputs_path(cli_app *app, const char *folder, const char *name, char out[CLI_PATH]);
/* The first file that is there and has another digest than it had; "" when there is none. */
wf_status cli_outputs_changed(cli_app *app, const char *folder, json_t *outputs,
                              char changed[CLI_PATH]);

/* Calls visit for every file below `path` (itself, when it is one), in order of names, hidden ones
 * left out. */
typedef wf_status cli_visit(void *user, const char *path);
wf_status cli_each_file(cli_app *app, const char *path, cli_visit *visit, void *user);

#endif
