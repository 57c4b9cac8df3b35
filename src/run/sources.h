/* sources: the collections a flow is fitted to, named on the command line or in a manifest.
 *
 * A manifest is a text like a recipe, one section for each collection:
 *
 *     [letter]                   # the name of its task
 *     zoo = letter.safetensors   # the collection, looked up beside the manifest ...
 *     recipe = letter.conf       # ... or the recipe that weft run makes it with: [data] and [zoo]
 *     data = letter.conf         # with zoo: what it is judged on, a built-in set or a recipe
 *     cond = 1,0                 # its condition; without any, tasks are numbered: 1,0,0  0,1,0 ...
 *     task = letter              # another name than the section's; collections may share a task
 *     paper = 0.5: 79.54 54.38, 1: 87.07 73.26    # a paper's scores in percent at these widths:
 *                                # of trained networks, of generated ones */
#ifndef WF_RUN_SOURCES_H
#define WF_RUN_SOURCES_H

#include "run/files.h"
#include "run/recipe_schema.h"

/* What is said of a collection. */
typedef struct cli_source_text {
    const char *label; /* what faults call it: a section, or a path */
    const char *cond;  /* NULL: none */
    const char *paper; /* NULL: none */
    char zoo[CLI_PATH], recipe[CLI_PATH], data[CLI_PATH]; /* "" where not given */
} cli_source_text;

typedef struct cli_sources {
    int n;
    wf_source *list;       /* [n] */
    cli_source_text *text; /* [n] */
    float *cond;           /* (n, K) */
    wf_recipe *manifest;   /* owns the texts, or ... */
    char *zoos, *conds;    /* ... these do */
} cli_sources;

/* --zoo "A,B" and --cond "0;1"; cond may be NULL. Free with cli_sources_free, also after a
 * failure. */
wf_status cli_sources_list(cli_app *app, const char *zoo, const char *cond, cli_sources *out);
wf_status cli_sources_manifest(cli_app *app, const char *path, cli_sources *out);
/* Opens the collections: list[i].zoo. */
wf_status cli_sources_open(cli_app *app, cli_sources *sources);
void cli_sources_free(cli_sources *sources);

/* Reads the conditions into list[i].cond for the recipe's generator, whose model.cond_size is
 * checked, or set when it is 0. A manifest without conditions numbers its tasks. */
wf_status cli_sources_condition(cli_app *app, cli_sources *sources, const cli_recipe *recipe);

/* train.shares, "letter: 4, cmc: 2": relative sampling weights; others have 1. NULL: all have 1. */
wf_status cli_sources_shares(cli_app *app, cli_sources *sources, const char *shares);

/* What the manifest says a paper has at a width, from 0 to 1; false when it says nothing. */
bool cli_sources_paper(const cli_sources *sources, int index, double width, double *trained,
                       double *generated);

#endif
