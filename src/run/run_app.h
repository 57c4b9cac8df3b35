/* run_app: what the commands of the program and the parts of a run share: the context, overrides of
 * recipes, how failure is reported. The library itself fills one in for wf_run (weft/run.h),
 * without a command line. Nothing here prints: lines about the work go to app->say. */
#ifndef WF_RUN_RUN_APP_H
#define WF_RUN_RUN_APP_H

#include "weft/settings.h"

#include <jansson.h>
#include <stdio.h>

typedef struct cli_app cli_app;

enum { CLI_MAX_OPTIONS = 32, CLI_MAX_LIST = 64, CLI_MAX_ARGUMENTS = 1 << 24, CLI_MAX_LOCKS = 2 };

typedef struct cli_progress {
    bool terminal, quiet;
    bool line_open; /* a line that the next report rewrites */
    char stage[64]; /* the running stage ... */
    double first_done,
        first_seconds; /* ... its first report: a resumed stage does not begin at 0 ... */
    double last_plain; /* ... and when its last plain line was written */
} cli_progress;

struct cli_app {
    wf_ctx *ctx;
    struct wf_comm *comm; /* NULL: one process */
    const struct cli_command *command;
    const char *value[CLI_MAX_OPTIONS]; /* by place in the command's table, then the global one */
    const char *list[CLI_MAX_LIST];     /* values of the repeatable option, in order */
    int n_list;
    const char **argument; /* room for all words of the command line */
    int n_arguments;
    const char *seed; /* of --seed; NULL: those of the recipe */
    bool scale_given; /* --scale, which goes before that of a collection */
    /* Sets what the command's options say of a table; NULL: there is no command line. */
    void (*apply)(const cli_app *app, const wf_setting *rows, void *desc);
    /* A line about how the work goes: "training: done before"; NULL: nobody wants it. */
    void (*say)(cli_app *app, const char *line);
    void *user; /* of say, where a program called wf_run */
    bool help;
    bool json, quiet;
    cli_progress progress;
    char sentence[1024];
    char warned[1024];                    /* the last warning */
    struct wf_lock *locks[CLI_MAX_LOCKS]; /* of what the command makes; main gives them back */
    int n_locks;
};

/* "1 network", "2 networks": what stands behind the noun. */
#define CLI_S(count) ((count) == 1 ? "" : "s")

/* Record a printf-style sentence and return `status`. */
wf_status cli_fail(cli_app *app, wf_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The status of work that the same command goes on with: the sentence of an interruption says
 * so. */
wf_status cli_resumable(cli_app *app, wf_status status);

#define CLI_TRY(call)                                                                              \
    do {                                                                                           \
        wf_status cli_try_status_ = (call);                                                        \
        if (cli_try_status_ != WF_OK) return cli_try_status_;                                      \
    } while (0)

/* A line about how the work goes, to app->say. */
void cli_say(cli_app *app, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* "3.2 s", "4 min 05 s", "2 h 10 min". */
void cli_duration(double seconds, char out[32]);
json_t *cli_json_number(double value); /* null when it is not finite */

#endif
