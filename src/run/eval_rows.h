/* eval_rows: the rows of a table of networks, and where the networks of each come from.
 *
 * [eval] rows lists them by name: the collection itself, networks trained alike, what the run
 * generated (NAME, and NAME-refined after refinement), and any generator that needs no fit, as
 * random or perturbation-0.25. Such a name without its number is the best of the rows with one. */
#pragma once

#include "run/pipeline.h"

typedef enum wf_run_row_kind {
    WF_RUN_ROW_REFERENCE,
    WF_RUN_ROW_HELD_OUT,
    WF_RUN_ROW_GENERATED,
    WF_RUN_ROW_REFINED,
    WF_RUN_ROW_CONTROL, /* a generator without a fit */
    WF_RUN_ROW_BEST     /* of the control rows of its generator above it */
} wf_run_row_kind;

typedef struct wf_run_eval_row {
    char name[64];
    wf_run_row_kind kind;
    const wf_generator_kind *generator; /* of CONTROL and BEST */
    void *options;
} wf_run_eval_row;

typedef struct wf_run_eval_rows {
    wf_run_eval_row *list;
    int n;
    bool listed; /* by the recipe, not by default */
} wf_run_eval_rows;

/* held_out: what the table calls networks trained alike. controls: whether tables have control rows
 * where the recipe lists none. Free with wf__run_eval_rows_free, also after a failure. */
wf_status wf__run_eval_rows_read(wf_run_app *app, const wf_run_recipe *recipe, const char *held_out,
                                 bool controls, wf_run_eval_rows *out);
void wf__run_eval_rows_free(wf_run_eval_rows *rows);

/* The last row of what was generated: its name is NAME or NAME-refined. */
const char *wf__run_generated_name(const wf_run_recipe *recipe, char out[64]);

/* What the networks of a table are judged against, and where they come from. Paths may be NULL. */
typedef struct wf_run_judging {
    wf_run_app *app;
    const wf_run_recipe *recipe;
    const wf_reference *reference; /* NULL: scores on `data` alone */
    const wf_dataset *data;
    const char *held_out, *generated, *refined; /* files of networks ... */
    const wf_zoo *nets;                         /* ... or in place of `generated`, open ones */
    const wf_zoo *zoo;     /* for controls; NULL: there is none of this architecture */
    const wf_graph *graph; /* what all networks must be */
    bool whole;            /* a row without networks is a fault; else it is left out */
} wf_run_judging;

typedef struct wf_run_judged {
    const wf_run_eval_row *of;
    wf_eval_row row;
    wf_points points;
    bool has_points, copies;
    bool has_scores; /* without points: points.accuracy alone */
} wf_run_judged;

/* Judge every row. *out is to be freed with wf__run_judged_free, also after a failure. */
wf_status wf__run_judge_rows(const wf_run_judging *what, const wf_run_eval_rows *rows,
                             wf_run_judged **out, int *n);
void wf__run_judged_free(wf_run_judged *judged, int n);
