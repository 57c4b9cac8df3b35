/* weft: the program. Uses the public headers alone.
 *
 * main finds the command, reads its options, makes the context and runs it. SIGINT and SIGTERM ask the
 * running call to finish its step and save; a second one ends the program at once. */
#include "cli/files.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static wf_ctx *volatile interrupted_ctx; /* what the handler speaks to */
static volatile sig_atomic_t caught;     /* the signal, or 0 */

static void on_signal(int number) {
    if (caught != 0) _exit(128 + number);
    caught = number;
    wf_ctx *ctx = interrupted_ctx;
    if (ctx != NULL) wf_interrupt(ctx);
    else _exit(128 + number);
}

static void catch_signals(void) {
    struct sigaction action = {.sa_handler = on_signal};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    /* A closed pipe and a file at its size limit are writes that fail, not a death in mid-file. */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
}

/* Does command->name equal the first words? */
static bool names_match(const char *name, int count, char **words, int *used) {
    *used = 0;
    for (const char *at = name; *at != '\0';) {
        size_t length = strcspn(at, " ");
        if (*used >= count || strlen(words[*used]) != length ||
            strncmp(at, words[*used], length) != 0)
            return false;
        (*used)++;
        at += length + strspn(at + length, " ");
    }
    return true;
}

const cli_command *cli_find_command(int count, char **words, int *used) {
    for (const cli_command *command = cli_commands; command->name != NULL; command++)
        if (names_match(command->name, count, words, used)) return command;
    *used = 0;
    return NULL;
}

static int unknown_command(int count, char **words) {
    const char *names[64];
    int n = 0;
    for (const cli_command *command = cli_commands; command->name != NULL && n < 64; command++)
        names[n++] = command->name;
    char typed[128];
    snprintf(typed, sizeof typed, "%s%s%s", words[0], count > 1 ? " " : "",
             count > 1 ? words[1] : "");
    if (cli_help_group(stderr, words[0])) return 2;
    const char *near = cli_nearest(words[0], names, n);
    if (near == NULL) near = cli_nearest(typed, names, n);
    if (near != NULL)
        cli_print_error("weft: unknown command %s; did you mean weft %s?\n", words[0], near);
    else cli_print_error("weft: unknown command %s; weft help lists them all\n", words[0]);
    return 2;
}

static int fail(cli_app *app, wf_status status) {
    cli_progress_clear(app);
    const char *sentence = app->sentence;
    if (sentence[0] == '\0' && app->ctx != NULL) sentence = wf_last_error(app->ctx);
    if (sentence[0] == '\0') sentence = wf_status_name(status);
    cli_print_error("weft: %s\n", sentence);
    if (status == WF_ERR_INTERRUPTED && caught != 0) return 128 + caught;
    return wf_status_exit_code(status);
}

/* Has what reads our output gone (`weft zoo info | head`)? */
static bool reader_left(void) {
    struct pollfd out = {.fd = STDOUT_FILENO};
    return poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0;
}

/* The exit code, once all is said. A reader who left has what it wanted: no complaint, and the code a shell knows. */
static int finish(cli_app *app, wf_status status) {
    bool unwritten = fflush(stdout) != 0 || ferror(stdout) || cli_print_lost();
    if (status == WF_OK && unwritten) {
        if (reader_left()) return 128 + SIGPIPE;
        status = cli_fail(app, WF_ERR_DISK, "standard output could not be written");
    }
    return status == WF_OK ? 0 : fail(app, status);
}

static int run_command(cli_app *app) {
    static const char *const devices[] = {"cpu", "cuda", "auto", NULL};
    int device;
    wf_status status = cli_choice(app, "device", cli_text(app, "device"), devices, &device);
    if (status != WF_OK) return fail(app, status);
    wf_ctx_desc desc = {.threads = (int)cli_int(app, "threads"),
                        .device = (wf_device)device,
                        .progress = cli_progress_report,
                        .warn = cli_progress_warn,
                        .user = app};
    app->progress.terminal = isatty(STDERR_FILENO) == 1;
    app->progress.quiet = app->quiet;
    status = wf_ctx_create(&desc, &app->ctx);
    if (status != WF_OK) return fail(app, status);
    interrupted_ctx = app->ctx;
    /* Work that ended well in spite of a late signal has ended well: nothing was cut. */
    int code = finish(app, app->command->run(app));
    interrupted_ctx = NULL;
    wf_ctx_free(app->ctx);
    return code;
}

int main(int argc, char **argv) {
    catch_signals();
    cli_json_watch();
    if (argc < 2) {
        cli_help_program(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) argv[1] = "help";
    if (strcmp(argv[1], "--version") == 0) argv[1] = "version";
    int used;
    cli_app app = {.command = cli_find_command(argc - 1, argv + 1, &used)};
    if (app.command == NULL) {
        if (argc > 2 && (strcmp(argv[2], "--help") == 0 || strcmp(argv[2], "-h") == 0) &&
            cli_help_group(stdout, argv[1]))
            return 0;
        return unknown_command(argc - 1, argv + 1);
    }
    wf_status status = cli_parse(&app, argc - 1 - used, argv + 1 + used);
    if (status != WF_OK) return fail(&app, status);
    if (app.help) {
        cli_help_command(stdout, app.command);
        return finish(&app, WF_OK);
    }
    return run_command(&app);
}
