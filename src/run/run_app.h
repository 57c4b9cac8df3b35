/* run_app: what the commands of the program and the parts of a run share: the context, overrides of
 * recipes, how failure is reported. The library itself fills one in for wf_run (weft/run.h),
 * without a command line. Nothing here prints: lines about the work go to app->say. */
#pragma once

#include "base/status.h"
#include "weft/settings.h"

#include <jansson.h>
#include <stdio.h>

typedef struct wf_run_app wf_run_app;

enum {
    WF_RUN_MAX_OPTIONS = 32,
    WF_RUN_MAX_LIST = 64,
    WF_RUN_MAX_ARGUMENTS = 1 << 24,
    WF_RUN_MAX_LOCKS = 2
};

typedef struct wf_run_progress {
    bool terminal, quiet;
    bool line_open; /* a line that the next report rewrites */
    char stage[64]; /* the running stage ... */
    double first_done,
        first_seconds; /* ... its first report: a resumed stage does not begin at 0 ... */
    double last_plain; /* ... and when its last plain line was written */
} wf_run_progress;

struct wf_run_app {
    wf_ctx *ctx;
    struct wf_comm *comm; /* NULL: one process */
    const struct cli_command *command;
    /* by place in the command's table, then the global one */
    const char *value[WF_RUN_MAX_OPTIONS];
    const char *list[WF_RUN_MAX_LIST]; /* values of the repeatable option, in order */
    int n_list;
    const char **argument; /* room for all words of the command line */
    int n_arguments;
    const char *seed; /* of --seed; NULL: those of the recipe */
    bool scale_given; /* --scale, which goes before that of a collection */
    bool whole_data;  /* --whole: all rows of --data are the test part */
    /* Sets what the command's options say of a table; NULL: there is no command line. */
    void (*apply)(const wf_run_app *app, const wf_setting *rows, void *desc);
    /* A line about how the work goes: "training: done before"; NULL: nobody wants it. */
    void (*say)(wf_run_app *app, const char *line);
    void *user; /* of say, where a program called wf_run */
    bool help;
    bool json, quiet;
    wf_run_progress progress;
    char sentence[1024];
    char warned[1024];                       /* the last warning */
    struct wf_lock *locks[WF_RUN_MAX_LOCKS]; /* of what the command makes; main gives them back */
    int n_locks;
};

/* "1 network", "2 networks": what stands after the noun. */
#define WF_RUN_S(count) ((count) == 1 ? "" : "s")

/* Record a printf-style sentence and return `status`. */
wf_status wf__run_fail(wf_run_app *app, wf_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The status of work that the same command goes on with: the sentence of an interruption says
 * so. */
wf_status wf__run_resumable(wf_run_app *app, wf_status status);

/* A line about how the work goes, to app->say. */
void wf__run_say(wf_run_app *app, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* "3.2 s", "4 min 05 s", "2 h 10 min". */
void wf__run_duration(double seconds, char out[32]);
json_t *wf__run_json_number(double value); /* null when it is not finite */
