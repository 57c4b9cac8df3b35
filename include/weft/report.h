/* weft/report.h: one self-contained HTML page about a run: table, plots, decision regions, audit.
 *
 *     wf_report_desc desc = wf_report_desc_default();
 *     desc.title = "demo"; desc.entries = entries; desc.n_entries = n; ...
 *     wf_report_write(ctx, &desc, "report.html");
 *
 * The page refers to nothing outside itself and needs no script.
 * weft/weft.h says who owns what and what NULL means where a comment does not. */
#ifndef WEFT_REPORT_H
#define WEFT_REPORT_H

#include "weft/eval.h"

WF_BEGIN_C

typedef enum wf_report_role {
    WF_REPORT_REFERENCE, /* the collection itself */
    WF_REPORT_HELD_OUT,  /* networks trained like it, not in it */
    WF_REPORT_GENERATED,
    WF_REPORT_CONTROL
} wf_report_role;

/* A line of the table and, where there are any, its networks in the plots. */
typedef struct wf_report_entry {
    wf_report_role role;
    const wf_eval_row *row;
    const wf_points *points; /* NULL: only in the table */
    bool copies;             /* mark as copies; with points the report also looks for itself */
} wf_report_entry;

typedef struct wf_report_fact {
    const char *label, *value;
} wf_report_fact;

/* One task at one width: networks trained for it, and generated ones. NaN where nothing is known.
 * Rows of one task stand together. */
typedef struct wf_report_task {
    const char *name, *arch;
    double width; /* factor of the hidden widths */
    double trained, trained_std, generated, generated_std, jws;
    double paper_trained, paper_generated; /* what a paper has there; 0: nothing */
    const char *note;                      /* of the task's data; NULL or "" */
} wf_report_task;

/* Networks as points in the plane of their scores on two domains. */
typedef struct wf_report_cloud {
    const char *name;
    bool trained; /* a collection; else generated under `cond` */
    double cond;
    const float *x, *y; /* [n] scores on the first and on the second domain */
    size_t n;
} wf_report_cloud;

/* A flow between two domains. */
typedef struct wf_report_domains {
    const char *x_name, *y_name; /* of the domains */
    double x_cond, y_cond;       /* their conditions */
    const wf_report_cloud *clouds;
    int n_clouds;
    const wf_mix *mix; /* baselines on both domains; NULL: none */
    int n_jws;         /* JWS of generated networks against both collections, over the condition */
    const double *jws_cond, *jws_x, *jws_y;
} wf_report_domains;

/* Rows of several runs over a number in which they differ. */
typedef struct wf_report_series {
    const char *name;
    bool published;  /* numbers of others: dashed, without bands */
    const double *x; /* [n], rising */
    const wf_eval_row *rows;
    int n;
} wf_report_series;

typedef struct wf_report_sweep {
    const char *over; /* what x is */
    const wf_report_series *series;
    int n_series;
} wf_report_sweep;

/* The log of a fit: JSON lines with "update" and "loss", of a fit in phases "phase", too. */
typedef struct wf_report_log {
    const char *name;   /* of the run, where the page is about several; NULL */
    const char *path;   /* the file may be missing */
    const char *digest; /* by wf_file_digest; a file with another one is refused. NULL: any */
} wf_report_log;

/* Everything is borrowed for the call. A part whose input is NULL is left out of the page. */
typedef struct wf_report_desc {
    const char *title;
    const char *summary; /* one sentence under the title */
    wf_score score;      /* what accuracy columns hold */
    const wf_report_entry *entries;
    int n_entries;
    const char *notes;         /* what was cut; NULL or "" */
    const wf_report_log *logs; /* a curve of the loss for each phase of each */
    int n_logs;
    const wf_graph *graph;
    const float *trained; /* (n_trained, n_params), for histograms and decision regions */
    size_t n_trained;
    const float *generated; /* (n_generated, n_params), of the entry `generated_name` */
    size_t n_generated;
    const char *generated_name;
    const wf_dataset *data; /* with two inputs: a wall of decision regions */
    int wall;               /* networks on each side of it: 24 */
    const char *recipe;     /* its text */
    const wf_report_fact *facts;
    int n_facts;
    const wf_report_task *tasks; /* a flow of many tasks: bars by width, and a table */
    int n_tasks;
    /* the plane of two domains, JWS against the condition; NULL: none */
    const wf_report_domains *domains;
    /* the page is about several runs; four panels where it has points */
    const wf_report_sweep *sweep;
} wf_report_desc;
WF_API wf_report_desc wf_report_desc_default(void);

/* Atomic: the page appears whole or not at all.
 * Returns WF_OK, WF_ERR_MEMORY, WF_ERR_DISK or, for an unreadable log, WF_ERR_INPUT. */
WF_API wf_status wf_report_write(wf_ctx *ctx, const wf_report_desc *desc, const char *path);

/* Judges sets of networks and returns the table and the page as texts.
 * title    of the page; NULL: "evaluation".
 * names    [count] of the rows, at most 63 bytes each; the collection's own row comes first and
 *          is called reference. Rows whose name begins with "held" are held-out networks in
 *          plots, rows named after a generator without fit are controls, the others are
 *          generated.
 * weights  [count] of (n[i], n_params) each.
 * rows     a JSON list of what wf_eval_json() gives, each with "copies": wf_report_is_copy();
 *          NULL: not asked for. page: the HTML; NULL: not asked for. wf_free() both; NULL on
 *          failure.
 * Returns what wf_eval_networks() returns, and WF_ERR_USAGE without a row. */
WF_API wf_status wf_report_evaluation(wf_ctx *ctx, const char *title, const wf_reference *reference,
                                      const char *const *names, const float *const *weights,
                                      const size_t *n, int count, char **rows, char **page);

/* Most of these networks are nearer to a training network than 99 % of the training networks are to
 * each other. */
WF_API bool wf_report_is_copy(const wf_points *points);

WF_END_C

#endif
