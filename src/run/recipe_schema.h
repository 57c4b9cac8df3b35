/* recipe_schema: a recipe as the descs of the public headers and a few settings of its own.
 * Tables of settings (weft/settings.h) read it, write it with all defaults, tell stages apart
 * and list themselves in help and docs. */
#ifndef WF_RUN_RECIPE_SCHEMA_H
#define WF_RUN_RECIPE_SCHEMA_H

#include "run/files.h"
#include "weft/data.h"
#include "weft/eval.h"
#include "weft/field.h"
#include "weft/generator.h"
#include "weft/recipe.h"
#include "weft/zoo.h"

/* A recipe with all its defaults filled in. Texts belong to `source`. */
typedef struct cli_recipe {
    wf_recipe *source;
    char name[64]; /* of the file, without folder and ending */
    wf_data_desc data;
    wf_zoo_desc zoo;
    const wf_generator_kind *kind; /* of model.generator ... */
    void *model;                   /* ... and the struct of its settings */
    wf_fit_desc fit;
    wf_sample_desc sample;
    wf_eval_desc eval;
#define SETTING(section, type, member, ...) WF_MEMBER_##type member;
#include "run/recipe.def"
} cli_recipe;

/* The file of a recipe: the path itself, or where a recipe of that name was installed. WF_ERR_INPUT
 * names the nearest. */
wf_status cli_recipe_find(cli_app *app, const char *name, char out[CLI_PATH]);
/* All of them: name and path. */
typedef void cli_visit_recipe(void *to, const char *name, const char *path);
void cli_each_recipe(cli_visit_recipe *visit, void *to);

/* Read a recipe file, found by cli_recipe_find, or the demo's recipe, which is built into the
 * program, with the command line's
 * --set overrides and --seed. Free with cli_recipe_free, also after a failure. */
wf_status cli_recipe_open(cli_app *app, const char *path, cli_recipe *out);
wf_status cli_recipe_builtin(cli_app *app, cli_recipe *out);
/* A recipe that is not a file; `name` stands for its path. */
wf_status cli_recipe_of_text(cli_app *app, const char *name, const char *text, cli_recipe *out);
/* A recipe that has nothing but one key of [data], with --set overrides. */
wf_status cli_recipe_of_data(cli_app *app, const char *key, const char *value, cli_recipe *out);
void cli_recipe_free(cli_recipe *recipe);

/* Text with every key and its value; free() it. NULL when out of memory. */
char *cli_recipe_resolved(const cli_recipe *recipe);
/* Object of the keys and values (as text) that a stage's result depends on. */
json_t *cli_recipe_stage(const cli_recipe *recipe, wf_stage stage);

/* Open what the recipe describes. */
wf_status cli_recipe_dataset(cli_app *app, const cli_recipe *recipe, wf_dataset **out);
/* The graph of [zoo], checked against the data (may be NULL). */
wf_status cli_recipe_graph(cli_app *app, const cli_recipe *recipe, const wf_dataset *data,
                           wf_graph **out);
/* Whether the generator of the recipe is to tell collections apart by conditions. */
bool cli_recipe_conditional(const cli_recipe *recipe);
/* model.cond_size, which collections may set; NULL: the generator has no such setting. */
int *cli_recipe_cond_size(const cli_recipe *recipe);
/* "NAME (node 32, blocks 3)": a generator, and its settings that are not the defaults. */
void cli_options_text(const wf_generator_kind *kind, const void *options, char *out, size_t size);

/* Every key of a recipe with its default, section by section; then those of [model], generator by
 * generator. */
typedef struct cli_listing {
    FILE *file;
    const wf_generator_kind *kind; /* whose keys they are; NULL: of every recipe */
    const char *section;           /* of the last row; "" at first */
} cli_listing;
/* For a visitor: does another section begin, or another generator's [model]? */
bool cli_listing_begins(cli_listing *list, const wf_setting *row);
typedef void cli_visit_setting(cli_listing *list, const wf_setting *row, const char *value);
void cli_recipe_each(cli_visit_setting *visit, cli_listing *list);

#endif
