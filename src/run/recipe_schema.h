/* recipe_schema: a recipe as the descs of the public headers and a few settings of its own.
 * Tables of settings (weft/settings.h) read a recipe, write it with all defaults, say which stage a
 * setting belongs to, and are listed in help and docs. */
#pragma once

#include "run/files.h"
#include "weft/data.h"
#include "weft/eval.h"
#include "weft/field.h"
#include "weft/generator.h"
#include "weft/recipe.h"
#include "weft/zoo.h"

/* A recipe with all its defaults filled in. Texts belong to `source`. */
typedef struct wf_run_recipe {
    wf_recipe *source;
    char name[64];          /* of the file, without folder and ending */
    char file[WF_RUN_PATH]; /* "": it is no file */
    wf_data_desc data;
    wf_zoo_desc zoo;
    const wf_generator_kind *kind; /* of model.generator ... */
    void *model;                   /* ... and the struct of its settings */
    wf_fit_desc fit;
    wf_sample_desc sample;
    wf_eval_desc eval;
#define SETTING(section, type, member, ...) WF_MEMBER_##type member;
#include "run/recipe.def"
} wf_run_recipe;

/* The file of a recipe: the path itself, or where a recipe of that name was installed. WF_ERR_INPUT
 * names the nearest. */
wf_status wf__run_recipe_find(wf_run_app *app, const char *name, char out[WF_RUN_PATH]);
/* All of them: name and path. */
typedef void wf_run_visit_recipe(void *to, const char *name, const char *path);
void wf__run_each_recipe(wf_run_visit_recipe *visit, void *to);

/* Read a recipe file, found by wf__run_recipe_find, or the demo's recipe, which is built into the
 * program, with the command line's
 * --set overrides and --seed. Free with wf__run_recipe_free, also after a failure. */
wf_status wf__run_recipe_open(wf_run_app *app, const char *path, wf_run_recipe *out);
wf_status wf__run_recipe_builtin(wf_run_app *app, wf_run_recipe *out);
/* A recipe that is not a file; `name` stands for its path. */
wf_status wf__run_recipe_of_text(wf_run_app *app, const char *name, const char *text,
                                 wf_run_recipe *out);
/* A recipe that has nothing but one key of [data], with --set overrides. */
wf_status wf__run_recipe_of_data(wf_run_app *app, const char *key, const char *value,
                                 wf_run_recipe *out);
void wf__run_recipe_free(wf_run_recipe *recipe);

/* Text with every key and its value; free() it. NULL when out of memory. */
char *wf__run_recipe_resolved(const wf_run_recipe *recipe);
/* Object of the keys and values (as text) that a stage's result depends on. */
json_t *wf__run_recipe_stage(const wf_run_recipe *recipe, wf_stage stage);

/* Open what the recipe describes. */
wf_status wf__run_recipe_dataset(wf_run_app *app, const wf_run_recipe *recipe, wf_dataset **out);
/* The graph of [zoo], checked against the data (may be NULL). */
wf_status wf__run_recipe_graph(wf_run_app *app, const wf_run_recipe *recipe, const wf_dataset *data,
                               wf_graph **out);
/* Whether the generator of the recipe is to tell collections apart by conditions. */
bool wf__run_recipe_conditional(const wf_run_recipe *recipe);
/* model.cond_size, which collections may set; NULL: the generator has no such setting. */
int *wf__run_recipe_cond_size(const wf_run_recipe *recipe);
/* "NAME (node 32, blocks 3)": a generator, and its settings that are not the defaults. */
void wf__run_options_text(const wf_generator_kind *kind, const void *options, char *out,
                          size_t size);

/* Every key of a recipe with its default, section by section; then those of [model], generator by
 * generator. */
typedef struct wf_run_listing {
    FILE *file;
    const wf_generator_kind *kind; /* whose keys they are; NULL: of every recipe */
    const char *section;           /* of the last row; "" at first */
} wf_run_listing;
/* For a visitor: does another section begin, or another generator's [model]? */
bool wf__run_listing_begins(wf_run_listing *list, const wf_setting *row);
typedef void wf_run_visit_setting(wf_run_listing *list, const wf_setting *row, const char *value);
void wf__run_recipe_each(wf_run_visit_setting *visit, wf_run_listing *list);
