/* cli: what the parts of the program share: the option tables, the parsed command line, and how
 * a command reports failure.
 *
 * One table of options per command feeds the parser, `--help` and docs/commands.md. A command is
 * a function that returns a wf_status; its sentence is in app->sentence when the program noticed
 * the fault itself, else in the library's context. main() prints it and turns the status into
 * the exit code. */
#pragma once

#include "run/run_app.h"

#include <stdio.h>

typedef enum cli_kind {
    CLI_FLAG,
    CLI_TEXT,
    CLI_INT,
    CLI_REAL,
    CLI_LIST,
    CLI_CHOICE, /* one of `names` */
    CLI_SETTING /* a row of a table of settings: the one whose key is the option's name */
} cli_kind;

typedef struct cli_option {
    const char *name; /* without the dashes; NULL ends a table */
    char letter;      /* '-o', or 0 */
    cli_kind kind;
    const char *value;    /* what stands for the value in the help: "N" */
    const char *fallback; /* the default as text; NULL: none */
    const char *help;
    double low, high;                    /* allowed numbers */
    const wf_setting *(*settings)(void); /* SETTING: the table; help then adds to the row's */
    const char *const *names;            /* CHOICE: ended by NULL */
} cli_option;

typedef struct cli_example {
    const char *command, *what;
} cli_example;

typedef struct cli_command {
    const char *name;      /* "zoo train" */
    const char *arguments; /* "RECIPE", as the help shows them */
    int least, most;       /* how many arguments */
    const char *summary;   /* one line */
    const char *details;   /* a paragraph for --help */
    const cli_option *options;
    cli_example examples[4];
    wf_status (*run)(wf_run_app *app);
} cli_command;

/* The program, without its main: tests and programs with generators of their own call it. */
int cli_main(int argc, char **argv);

/* Where mpirun or srun started several processes (ranks.c). Joins them: app->comm; on failure rank
 * 0 says why not. Ranks other than 0 print nothing. */
wf_status cli_ranks_join(wf_run_app *app, int argc, char **argv);
/* Whether the ranks share the command's work; else rank 0 runs it by itself. */
bool cli_ranks_share(const cli_command *command);
/* Warns that the others wait. */
void cli_ranks_idle(wf_run_app *app);
/* A command has ended: the other ranks hear of a failure. What to tell the user: the failure of
 * another rank before what followed from it; "" on ranks other than 0, which say nothing. */
const char *cli_ranks_failed(wf_run_app *app, wf_status status, const char *sentence);
/* Leaves; code becomes that of a failure that came after this rank's work. */
int cli_ranks_leave(wf_run_app *app, int code);

/* The commands, ended by a NULL name, and the options every command has. */
extern const cli_command cli_commands[];
extern const cli_option cli_global_options[];
extern const char *const cli_exit_codes[][2]; /* code and meaning, ended by NULL */

/* Words before the command that are options, with their values. */
int cli_leading_options(int count, char **words);
/* Fails at the first of these words that is an option of no command; app->command is any. */
wf_status cli_check_leading(wf_run_app *app, int count, char **words);
/* Fill app from words before and after the command's name; then check that all of them are
 * there. */
wf_status cli_parse(wf_run_app *app, int count, char **words);
wf_status cli_parse_end(wf_run_app *app);

/* Values of options by name. The name must be in the table: anything else is a programming
 * mistake. */
bool cli_given(const wf_run_app *app, const char *name);
bool cli_flag(const wf_run_app *app, const char *name);
const char *cli_text(const wf_run_app *app,
                     const char *name); /* NULL when neither given nor defaulted */
int64_t cli_int(const wf_run_app *app, const char *name);
int cli_index(const wf_run_app *app,
              const char *name); /* of a CHOICE, in its names; -1: not given */
double cli_real(const wf_run_app *app, const char *name);

/* Set what the options of this table say, and --seed where the table has a seed. */
void cli_settings(const wf_run_app *app, const wf_setting *rows, void *desc);
/* The row of an option of kind SETTING. */
const wf_setting *cli_option_row(const cli_option *option);

/* Help: of the program, of one command or a group of them ("zoo"), and all of it as Markdown. */
void cli_help_program(FILE *file);
void cli_help_command(FILE *file, const cli_command *command);
bool cli_help_group(FILE *file, const char *group); /* false when there is none of that name */
void cli_help_markdown(FILE *file);
/* `weft help recipes`; `weft help recipe`, and the same for docs/commands.md. */
void cli_recipe_files(void);
void cli_recipe_help(FILE *file);
void cli_recipe_markdown(FILE *file);
/* For shells: the manual page, and completions for "bash", "zsh" or "fish". */
void cli_help_man(FILE *file);
void cli_help_completion(FILE *file, const char *shell);
/* "-o, --out FILE"; what it means and its default ("": none); its allowed names (NULL: any
 * value). */
void cli_option_usage(const cli_option *option, char *out, size_t size);
void cli_option_text(const cli_option *option, char *out, size_t size, const char **fallback);
const char *const *cli_option_names(const cli_option *option);
const cli_command *cli_find_command(int count, char **words, int *used);
/* "unknown command zoo trian; did you mean weft zoo train?" */
void cli_unknown_command(int count, const char *const *words, char *out, size_t size);

/* Progress and warnings of the library, and lines of the program's own, on stderr. */
void cli_progress_report(void *app, const wf_progress *progress);
void cli_progress_warn(void *app, const char *sentence);
void cli_progress_clear(wf_run_app *app); /* before anything else is printed on stderr */
void cli_say_line(wf_run_app *app, const char *line); /* for app->say */

/* Print on stdout, on stderr. The only way to print: what a terminal would act on is
 * shown as an escape. */
void cli_print(const char *format, ...) __attribute__((format(printf, 1, 2)));
void cli_print_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
bool cli_print_lost(void); /* text was lost for want of memory */
/* Print on stdout and free. NULL is out of memory. */
wf_status cli_print_json(wf_run_app *app, json_t *json);
