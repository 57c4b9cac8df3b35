/* recipe_schema: all keys of a recipe in one table, read into the descs of the public headers.
 * The table also writes the resolved recipe, tells stages apart, and lists itself in the docs. */
#ifndef WF_CLI_RECIPE_SCHEMA_H
#define WF_CLI_RECIPE_SCHEMA_H

#include "cli/cli.h"
#include "weft/data.h"
#include "weft/eval.h"
#include "weft/field.h"
#include "weft/flow.h"
#include "weft/recipe.h"
#include "weft/zoo.h"

/* A recipe with all its defaults filled in. Strings belong to `source`. */
typedef struct cli_recipe {
    wf_recipe *source;
    char name[64]; /* of the file, without folder and ending */
    wf_data_desc data;
    const char *arch, *activation;
    wf_zoo_desc zoo;
    const char *zoo_path, *held_out_path; /* given collections instead of trained ones */
    const char *manifest;                 /* of such */
    const char *train_path;               /* fitted in place of the collection judged against */
    size_t held_out;
    wf_field_desc field;
    bool fold;
    wf_fit_desc fit;
    wf_sample_desc sample;
    size_t sample_count;
    const char *widths; /* factors, joined by commas */
    const char *conds;  /* numbers, joined by commas */
    const char *shares; /* as letter: 4, cmc: 2 */
    double guidance_between;
    wf_eval_desc eval;
    bool controls;
    const char *title;
    int wall;
} cli_recipe;

/* The stages whose results depend on a key; a key of no stage changes how, not what. */
typedef enum cli_stage {
    CLI_STAGE_COLLECTION,
    CLI_STAGE_HELD_OUT,
    CLI_STAGE_TRAINING,
    CLI_STAGE_SAMPLING,
    CLI_STAGE_EVALUATION,
    CLI_STAGE_REPORT,
    CLI_STAGES,
    CLI_STAGE_NONE = CLI_STAGES
} cli_stage;

/* Read a recipe file with the command line's --set overrides and --seed. path "demo" without a file of that
 * name is the recipe built into the program. Free with cli_recipe_free, also after a failure. */
wf_status cli_recipe_open(cli_app *app, const char *path, cli_recipe *out);
wf_status cli_recipe_builtin(cli_app *app, cli_recipe *out);
void cli_recipe_free(cli_recipe *recipe);

/* Text with every key and its value; free() it. NULL when out of memory. */
char *cli_recipe_resolved(const cli_recipe *recipe);
/* Object of the keys and values (as text) that a stage's result depends on. */
json_t *cli_recipe_stage(const cli_recipe *recipe, cli_stage stage);

/* Open what the recipe describes. */
wf_status cli_recipe_dataset(cli_app *app, const cli_recipe *recipe, wf_dataset **out);
/* The graph of [zoo], checked against the data (may be NULL). */
wf_status cli_recipe_graph(cli_app *app, const cli_recipe *recipe, const wf_dataset *data,
                           wf_graph **out);
/* [model] for networks of this graph. */
wf_status cli_recipe_field(cli_app *app, const cli_recipe *recipe, const wf_graph *graph,
                           wf_field_desc *out);
/* A data set by built-in name or by a recipe with a [data] section. */
wf_status cli_dataset_named(cli_app *app, const char *name, wf_dataset **out);

/* All keys, for `weft help recipe` and docs/commands.md. */
void cli_recipe_help(FILE *file);
void cli_recipe_markdown(FILE *file);

#endif
