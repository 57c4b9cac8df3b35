/* eval_rows: the rows of a table of networks, and where the networks of each come from.
 *
 * [eval] rows lists them by name: the collection itself, networks trained alike, what the run
 * generated (NAME, and NAME-refined after refinement), and any generator that needs no fit, as
 * random or perturbation-0.25. Such a name without its number is the best of the rows with one. */
#ifndef WF_RUN_EVAL_ROWS_H
#define WF_RUN_EVAL_ROWS_H

#include "run/pipeline.h"

typedef enum cli_row_kind {
    CLI_ROW_REFERENCE,
    CLI_ROW_HELD_OUT,
    CLI_ROW_GENERATED,
    CLI_ROW_REFINED,
    CLI_ROW_CONTROL, /* a generator without a fit */
    CLI_ROW_BEST     /* of the control rows of its generator above it */
} cli_row_kind;

typedef struct cli_eval_row {
    char name[64];
    cli_row_kind kind;
    const wf_generator_kind *generator; /* of CONTROL and BEST */
    void *options;
} cli_eval_row;

typedef struct cli_eval_rows {
    cli_eval_row *list;
    int n;
    bool listed; /* by the recipe, not by default */
} cli_eval_rows;

/* held_out: what the table calls networks trained alike. controls: whether tables have control rows
 * where the recipe lists none. Free with cli_eval_rows_free, also after a failure. */
wf_status cli_eval_rows_read(cli_app *app, const cli_recipe *recipe, const char *held_out,
                             bool controls, cli_eval_rows *out);
void cli_eval_rows_free(cli_eval_rows *rows);

/* The last row of what was generated: its name is NAME or NAME-refined. */
const char *cli_generated_name(const cli_recipe *recipe, char out[64]);

/* What the networks of a table are judged against, and where they come from. Paths may be NULL. */
typedef struct cli_judging {
    cli_app *app;
    const cli_recipe *recipe;
    const wf_reference *reference; /* NULL: scores on `data` alone */
    const wf_dataset *data;
    const char *held_out, *generated, *refined; /* files of networks ... */
    const wf_zoo *nets;                         /* ... or in place of `generated`, open ones */
    const wf_zoo *zoo;     /* for controls; NULL: there is none of this architecture */
    const wf_graph *graph; /* what all networks must be */
    bool whole;            /* a row without networks is a fault; else it is left out */
} cli_judging;

typedef struct cli_judged {
    const cli_eval_row *of;
    wf_eval_row row;
    wf_points points;
    bool has_points, copies;
    bool has_scores; /* without points: points.accuracy alone */
} cli_judged;

/* Judge every row. *out is to be freed with cli_judged_free, also after a failure. */
wf_status cli_judge_rows(const cli_judging *what, const cli_eval_rows *rows, cli_judged **out,
                         int *n);
void cli_judged_free(cli_judged *judged, int n);

#endif
