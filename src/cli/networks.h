/* networks: the networks of a collection that a command works on, their names and scores, and the
 * check that output files do not exist yet. */
#pragma once

#include "cli/cli.h"
#include "run/data_source.h"
#include "weft/zoo.h"

/* Locks an output for this command. WF_ERR_USAGE where a file is there already and --force, which
 * the command must have, is not given. */
wf_status cli_new_file(wf_run_app *app, const char *path);
/* The same without a lock, for one of many files. */
wf_status cli_not_there(wf_run_app *app, const char *path);

/* "0,3,10-19" to indices below `count`; free(*out). `what` names the option. */
wf_status cli_read_indices(wf_run_app *app, const char *what, const char *text, const char *path,
                           size_t count, size_t **out, size_t *n);

/* Scores of all networks: on --data where it is given, else those in the file, of --test or the
 * first test set. The command must have both options. free(*out). name: of the test set, as long as
 * zoo and *data live. data: wf_dataset_free it; NULL where the file's scores serve. */
wf_status cli_scores(wf_run_app *app, const wf_zoo *zoo, float **out, const char **name,
                     wf_dataset **data);

/* Indices in order of falling score, equal ones by index, those without a score last. */
wf_status cli_order_by_score(wf_run_app *app, const float *scores, size_t *index, size_t n);

/* Warns where something else would fit far better, or where accuracy is hardly above chance.
 * mean: of all networks, from 0 to 1. */
void cli_warn_unsuited(wf_run_app *app, const char *path, const wf_run_recipe *recipe, double mean,
                       const wf_suits *suits);
/* Warns as above where nobody has seen that these data suit the networks: they were brought in
 * without them, or another scale is said than the collection's own. */
wf_status cli_check_data(wf_run_app *app, const wf_zoo *zoo, const wf_run_recipe *recipe);
/* A table that was split: how to judge on all of it. Not for a recipe, which --whole refuses. */
void cli_say_split(wf_run_app *app, const wf_run_recipe *recipe, const wf_dataset *data);
/* --data, which was given, as the networks of `zoo` want it, checked so. wf_dataset_free it. */
wf_status cli_open_data(wf_run_app *app, const wf_zoo *zoo, wf_dataset **out);
