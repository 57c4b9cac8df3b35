/* data_source: a data set as people name it: a file, a built-in set, or a recipe with a [data]
 * section. */
#pragma once

#include "run/files.h"
#include "run/recipe_schema.h"
#include "weft/eval.h"

/* What is named, with --set and the command's options of [data] (--target, --scale ...). of: the
 * collection whose networks will read it; without a scale of its own the data set has the
 * collection's. NULL: none. Free *out with wf__run_recipe_free, also after a failure. */
wf_status wf__run_data_recipe(wf_run_app *app, const char *name, const wf_zoo *of,
                              wf_run_recipe *out);
/* The same, opened. */
wf_status wf__run_dataset_named(wf_run_app *app, const char *name, const wf_zoo *of,
                                wf_dataset **out);

/* Does the recipe or the command line say a scale? */
bool wf__run_says_scale(const wf_run_app *app, const wf_run_recipe *recipe);
/* Takes the collection's scale, and its order of classes, where neither the recipe nor the command
 * line says one. */
wf_status wf__run_read_as(wf_run_app *app, const wf_zoo *of, wf_run_recipe *recipe);

/* The files of [data] by their whole paths, for a recipe that is read in any folder. */
typedef char wf_run_data_paths[4][WF_RUN_PATH];
void wf__run_data_whole(wf_data_desc *data, wf_run_data_paths buffer);

bool wf__run_is_builtin_data(const char *name);
/* A remark about the set, as that the digits of scikit-learn are different ones; NULL: none. */
const char *wf__run_data_remark(const char *name);
