/* app: the program behind main. Uses the public headers and those of run/ alone.
 *
 * cli_main finds the command, reads its options, makes the context and runs it. SIGINT, SIGTERM and
 * SIGUSR1, which Slurm sends before a job's end, ask the running call to finish its step and save;
 * a second one ends the program at once. SIGBUS means that a file was lost while it was read. */
#include "cli/commands.h"
#include "run/files.h"
#include "weft/comm.h"
#include "weft/text.h"

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

/* A mapped file became shorter, or its disk failed. Outputs are whole or not there, as after a
 * kill. */
static void on_lost_file(int number, siginfo_t *info, void *context) {
    (void)context;
    char path[WF_RUN_PATH];
    if (!wf_mapped_file(info->si_addr, path, sizeof path)) {
        signal(number, SIG_DFL); /* a fault of the program: comes again, and ends it */
        return;
    }
    /* No call of the C library was interrupted but one that copied from the file, so it can
     * print. */
    cli_print_error(
        "weft: %s: cannot be read to its end: it was made shorter while weft read it, or "
        "its disk failed; bring it back and give the same command\n",
        path);
    _exit(wf_status_exit_code(WF_ERR_INPUT));
}

static void catch_signals(void) {
    struct sigaction action = {.sa_handler = on_signal};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);
    struct sigaction lost = {.sa_sigaction = on_lost_file, .sa_flags = SA_SIGINFO};
    sigemptyset(&lost.sa_mask);
    sigaction(SIGBUS, &lost, NULL);
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

enum { most_commands = 127, name_size = 32 };

/* The nearest name among the first words of all commands or, of a group, among its second words. */
static bool nearest_part(const char *group, const char *word, char out[name_size]) {
    char parts[most_commands][name_size];
    const char *names[most_commands + 1] = {NULL};
    int n = 0;
    for (const cli_command *c = cli_commands; c->name != NULL && n < most_commands; c++) {
        size_t first = strcspn(c->name, " ");
        if (group == NULL) snprintf(parts[n], name_size, "%.*s", (int)first, c->name);
        else if (strlen(group) == first && strncmp(c->name, group, first) == 0)
            snprintf(parts[n], name_size, "%s", c->name + first + (c->name[first] == ' '));
        else continue;
        names[n] = parts[n];
        n++;
    }
    const char *near = wf_nearest_name(word, names);
    if (near != NULL) snprintf(out, name_size, "%s", near);
    return near != NULL;
}

/* Does `name` begin with `part`, or `part`, as "evaluate", with `name`? */
static bool begins(const char *name, const char *part) {
    size_t shorter = strlen(name) < strlen(part) ? strlen(name) : strlen(part);
    return shorter > 2 && strncmp(name, part, shorter) == 0;
}

/* "weft zoo info, weft flow info": the commands whose second word this is, or almost; "": none. */
static void by_second_word(const char *word, char *out, size_t size) {
    const char *names[most_commands + 1] = {NULL}, *near;
    const cli_command *c;
    int n = 0;
    for (c = cli_commands; c->name != NULL && n < most_commands; c++)
        if (strchr(c->name, ' ') != NULL) names[n++] = strchr(c->name, ' ') + 1;
    near = wf_nearest_name(word, names);
    wf_text list = wf_text_start(out, size);
    for (c = cli_commands; near != NULL && c->name != NULL; c++) {
        const char *space = strchr(c->name, ' ');
        if (space != NULL && strcmp(space + 1, near) == 0)
            wf_text_add(&list, "%sweft %s", list.length > 0 ? ", " : "", c->name);
    }
}

void cli_unknown_command(int count, const char *const *words, char *out, size_t size) {
    char first[name_size], second[name_size], others[200];
    bool found = nearest_part(NULL, words[0], first);
    bool group = found && strcmp(first, words[0]) == 0;
    bool both = found && count > 1 && nearest_part(first, words[1], second);
    by_second_word(words[0], others, sizeof others);
    for (const cli_command *c = cli_commands; !found && c->name != NULL; c++) {
        found = strchr(c->name, ' ') == NULL && begins(words[0], c->name);
        if (found) snprintf(first, sizeof first, "%s", c->name);
    }
    wf_text text = wf_text_start(out, size);
    wf_text_add(&text, "unknown command %s", words[0]);
    if (count > 1 && (group || both)) wf_text_add(&text, " %s", words[1]);
    if (both) wf_text_add(&text, "; did you mean weft %s %s?", first, second);
    else if (group) wf_text_add(&text, "; weft help %s lists those there are", first);
    else if (others[0] != '\0') wf_text_add(&text, "; did you mean %s?", others);
    else if (found) wf_text_add(&text, "; did you mean weft %s?", first);
    else if (strncmp(words[0], "recipe", 6) == 0)
        wf_text_add(&text, "; weft help recipes lists them");
    else wf_text_add(&text, "; weft help lists them all");
}

static int fail(wf_run_app *app, wf_status status) {
    cli_progress_clear(app);
    const char *sentence = app->sentence;
    if (sentence[0] == '\0' && app->ctx != NULL) sentence = wf_last_error(app->ctx);
    if (sentence[0] == '\0') sentence = wf_status_name(status);
    sentence = cli_ranks_failed(app, status, sentence);
    if (sentence[0] != '\0') cli_print_error("weft: %s\n", sentence);
    wf_status elsewhere = wf_comm_failure_status(app->comm);
    if (elsewhere != WF_OK) status = elsewhere;
    if (status == WF_ERR_INTERRUPTED && caught != 0) return 128 + caught;
    return wf_status_exit_code(status);
}

/* Has what reads our output gone (`weft zoo info | head`)? */
static bool reader_left(void) {
    struct pollfd out = {.fd = STDOUT_FILENO};
    return poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0;
}

/* The exit code, after the last output. A reader that has closed the pipe has what it wanted: no
 * error is printed, and the code is the one that shells expect. */
static int finish(wf_run_app *app, wf_status status) {
    bool unwritten = fflush(stdout) != 0 || ferror(stdout) || cli_print_lost();
    if (status == WF_OK && unwritten) {
        if (reader_left()) return 128 + SIGPIPE;
        status = wf__run_fail(app, WF_ERR_DISK, "standard output could not be written");
    }
    return status == WF_OK ? 0 : fail(app, status);
}

/* An option that some commands have. */
static bool has(const wf_run_app *app, const char *name) {
    for (const cli_option *o = app->command->options; o != NULL && o->name != NULL; o++)
        if (strcmp(o->name, name) == 0) return true;
    return false;
}

static bool given(const wf_run_app *app, const char *name) {
    return has(app, name) && cli_given(app, name);
}

static int run_command(wf_run_app *app) {
    bool speaks = wf_comm_rank(app->comm) == 0;
    bool shares = cli_ranks_share(app->command);
    if (!shares && !speaks) return 0;
    wf_ctx_desc desc = {.threads = (int)cli_int(app, "threads"),
                        .device = (wf_device)cli_index(app, "device"),
                        .gpu = wf_comm_local_rank(app->comm),
                        .wait_for_locks = cli_flag(app, "wait"),
                        .comm = shares ? app->comm : NULL,
                        .progress = speaks ? cli_progress_report : NULL,
                        .warn = speaks ? cli_progress_warn : NULL,
                        .user = app};
    app->seed = cli_given(app, "seed") ? cli_text(app, "seed") : NULL;
    app->scale_given = given(app, "scale");
    app->whole_data = given(app, "whole");
    app->apply = cli_settings;
    app->say = cli_say_line;
    app->progress.terminal = isatty(STDERR_FILENO) == 1;
    app->quiet |= !speaks;
    app->progress.quiet = app->quiet;
    wf_status status = wf_ctx_create(&desc, &app->ctx);
    if (status != WF_OK) return fail(app, status);
    interrupted_ctx = app->ctx;
    if (!shares && has(app, "out")) cli_ranks_idle(app); /* it makes something */
    /* Work that ended well in spite of a late signal has ended well: nothing was cut. */
    int code = finish(app, app->command->run(app));
    for (int i = 0; i < app->n_locks; i++) wf_lock_free(app->locks[i]);
    interrupted_ctx = NULL;
    wf_ctx_free(app->ctx);
    return code;
}

/* Prints help or the version where one is asked for, else runs the command. */
static int answer(wf_run_app *app) {
    if (cli_flag(app, "version")) return finish(app, cli_version(app));
    if (!app->help) return run_command(app);
    cli_help_command(stdout, app->command);
    return finish(app, WF_OK);
}

/* Where help goes that nobody asked for. */
static FILE *complaints(const wf_run_app *app) {
    return wf_comm_rank(app->comm) == 0 ? stderr : stdout; /* that of others is /dev/null */
}

/* Words before and after the command's name. */
static int parse_and_answer(wf_run_app *app, int before, char **leading, int count, char **words,
                            bool named) {
    wf_status status = cli_parse(app, before, leading);
    if (status == WF_OK) status = cli_parse(app, count, words);
    if (status == WF_OK) status = cli_parse_end(app);
    if (status != WF_OK) return fail(app, status);
    if (named || cli_flag(app, "version")) return answer(app);
    cli_help_program(app->help ? stdout : complaints(app));
    return app->help ? finish(app, WF_OK) : 2;
}

/* Words that name no command, after options. */
static int unknown_command(wf_run_app *app, int before, char **leading, int count, char **words) {
    if (cli_check_leading(app, before, leading) != WF_OK) return fail(app, WF_ERR_USAGE);
    bool help = count > 1 && (strcmp(words[1], "--help") == 0 || strcmp(words[1], "-h") == 0);
    if (help && cli_help_group(stdout, words[0])) return finish(app, WF_OK);
    bool alone = count == 1 || words[1][0] == '-';
    if (alone && cli_help_group(complaints(app), words[0])) return 2;
    cli_unknown_command(count, (const char *const *)words, app->sentence, sizeof app->sentence);
    return fail(app, WF_ERR_USAGE);
}

int cli_main(int argc, char **argv) {
    catch_signals();
    wf__run_json_watch();
    /* Options may stand before the command, too. */
    int before = cli_leading_options(argc - 1, argv + 1), used = 0;
    int count = argc - 1 - before;
    char **words = argv + 1 + before;
    wf_run_app app = {.command = cli_find_command(count, words, &used)};
    bool unknown = app.command == NULL && count > 0;
    if (app.command == NULL) app.command = cli_find_command(1, (char *[]){"help"}, &(int){0});
    app.argument = calloc((size_t)argc + 1, sizeof *app.argument);
    if (app.argument == NULL) return fail(&app, WF_ERR_MEMORY);
    wf_status joined = cli_ranks_join(&app, argc, argv);
    int code = wf_status_exit_code(joined);
    if (joined == WF_OK) {
        if (unknown) code = unknown_command(&app, before, argv + 1, count, words);
        else code = parse_and_answer(&app, before, argv + 1, count - used, words + used, count > 0);
        code = cli_ranks_leave(&app, code);
    }
    free(app.argument);
    return code;
}
