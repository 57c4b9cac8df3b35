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
#pragma once

#include "run/files.h"
#include "run/recipe_schema.h"

/* What is said of a collection. */
typedef struct wf_run_source_text {
    const char *label; /* what faults call it: a section, or a path */
    const char *cond;  /* NULL: none */
    const char *paper; /* NULL: none */
    char zoo[WF_RUN_PATH], recipe[WF_RUN_PATH], data[WF_RUN_PATH]; /* "" where not given */
} wf_run_source_text;

typedef struct wf_run_sources {
    int n;
    wf_source *list;          /* [n] */
    wf_run_source_text *text; /* [n] */
    float *cond;              /* (n, K) */
    wf_recipe *manifest;      /* owns the texts, or ... */
    char *zoos, *conds;       /* ... these do */
} wf_run_sources;

/* --zoo "A,B" and --cond "0;1"; cond may be NULL. Free with wf__run_sources_free, also after a
 * failure. */
wf_status wf__run_sources_list(wf_run_app *app, const char *zoo, const char *cond,
                               wf_run_sources *out);
wf_status wf__run_sources_manifest(wf_run_app *app, const char *path, wf_run_sources *out);
/* Opens the collections that are not open yet: list[i].zoo. */
wf_status wf__run_sources_open(wf_run_app *app, wf_run_sources *sources);
void wf__run_sources_free(wf_run_sources *sources);

/* Reads the conditions into list[i].cond for the recipe's generator, whose model.cond_size is
 * checked, or set when it is 0. A manifest without conditions numbers its tasks. */
wf_status wf__run_sources_condition(wf_run_app *app, wf_run_sources *sources,
                                    const wf_run_recipe *recipe);

/* train.shares, "letter: 4, cmc: 2": relative sampling weights; others have 1. NULL: all have 1. */
wf_status wf__run_sources_shares(wf_run_app *app, wf_run_sources *sources, const char *shares);

/* What the manifest says a paper has at a width, from 0 to 1; false when it says nothing. */
bool wf__run_sources_paper(const wf_run_sources *sources, int index, double width, double *trained,
                           double *generated);
