/* progress: one line on stderr for the running stage: how much is done, at what rate, how long
 * to go. On a terminal the line is rewritten in place; elsewhere a plain line appears every five
 * seconds. */
#include "cli/cli.h"

#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static const double plain_interval = 5;
static const double worth_telling = 1; /* stages that end sooner leave no line */

/* Since the first report, so that what an earlier call had done does not count; but a first report
 * that came late says little of the time that the work takes. */
static double rate_of(const wf_run_progress *state, const wf_progress *progress) {
    double done = progress->done - state->first_done;
    double seconds = progress->seconds - state->first_seconds;
    if (done > 0 && seconds > 0.5 * progress->seconds) return done / seconds;
    return progress->seconds > 0 ? progress->done / progress->seconds : 0;
}

static void write_line(const wf_run_progress *state, const wf_progress *progress, char *line,
                       size_t size) {
    double rate = rate_of(state, progress);
    char took[32], rest[32] = "", counted[64];
    wf__run_duration(progress->seconds, took);
    if (progress->total > 0)
        snprintf(counted, sizeof counted, "%.0f of %.0f %s (%.0f %%)", progress->done,
                 progress->total, progress->unit, 100 * progress->done / progress->total);
    else snprintf(counted, sizeof counted, "%.0f %s", progress->done, progress->unit);
    if (!progress->last && progress->total > 0 && rate > 0) {
        char left[32];
        wf__run_duration((progress->total - progress->done) / rate, left);
        snprintf(rest, sizeof rest, "%.20s left", left);
    }
    const char *separator = progress->detail[0] != '\0' ? ", " : "";
    if (progress->last)
        snprintf(line, size, "%s: %.0f %s in %s, %.4g/s%s%s", progress->stage, progress->done,
                 progress->unit, took, rate, separator, progress->detail);
    else
        snprintf(line, size, "%s: %s, %.4g/s%s%s%s%s", progress->stage, counted, rate,
                 rest[0] != '\0' ? ", " : "", rest, separator, progress->detail);
}

static void note_stage(wf_run_progress *state, const wf_progress *progress) {
    bool same = strncmp(state->stage, progress->stage, sizeof state->stage - 1) == 0;
    if (same && progress->seconds >= state->first_seconds && progress->done >= state->first_done)
        return;
    snprintf(state->stage, sizeof state->stage, "%s", progress->stage);
    state->first_done = progress->done;
    state->first_seconds = progress->seconds;
    state->last_plain = 0;
}

static bool plain_due(wf_run_progress *state, const wf_progress *progress) {
    if (progress->last) return progress->seconds >= worth_telling;
    if (progress->seconds - state->last_plain < plain_interval) return false;
    state->last_plain = progress->seconds;
    return true;
}

/* How many bytes of the line fit on one of the terminal: a wrapped line cannot be rewritten. */
static int fitting(const char *line) {
    struct winsize size = {0};
    bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
    int columns = known ? size.ws_col - 1 : 79, bytes = 0;
    while (line[bytes] != '\0' && columns >= 0) {
        bool begins = (line[++bytes] & 0xc0) != 0x80; /* the next byte, another character */
        if (begins && --columns == 0) break;
    }
    return bytes;
}

void cli_progress_report(void *app_, const wf_progress *progress) {
    wf_run_app *app = app_;
    wf_run_progress *state = &app->progress;
    if (state->quiet) return;
    char line[512];
    note_stage(state, progress);
    write_line(state, progress, line, sizeof line);
    if (state->terminal) {
        fputs("\r\033[K", stderr);
        if (!progress->last) cli_print_error("%.*s", fitting(line), line);
        else if (progress->seconds >= worth_telling) cli_print_error("%s\n", line);
        state->line_open = !progress->last;
    } else if (plain_due(state, progress)) {
        cli_print_error("%s\n", line);
    }
    if (progress->last) state->stage[0] = '\0';
    fflush(stderr);
}

void cli_progress_clear(wf_run_app *app) {
    if (app->progress.line_open) fputs("\r\033[K", stderr);
    app->progress.line_open = false;
}

void cli_progress_warn(void *app_, const char *sentence) {
    wf_run_app *app = app_;
    if (strcmp(app->warned, sentence) == 0) return; /* every cycle of a refinement may report it */
    snprintf(app->warned, sizeof app->warned, "%s", sentence);
    cli_progress_clear(app);
    cli_print_error("weft: warning: %s\n", sentence);
}

void cli_say_line(wf_run_app *app, const char *line) {
    if (app->quiet) return;
    cli_progress_clear(app);
    cli_print_error("%s\n", line);
    fflush(stderr);
}
