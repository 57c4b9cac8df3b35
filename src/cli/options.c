/* options: the command line against a command's table: `--name value`, `--name=value`, `-o value`, flags,
 * and `--` behind which everything is an argument. Numbers are checked here, so a command only reads them. */
#include "cli/cli.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static int count_options(const cli_option *options) {
    int count = 0;
    while (options != NULL && options[count].name != NULL) count++;
    return count;
}

/* Option at `place` of the command's own table followed by the global one. */
static const cli_option *option_at(const cli_command *command, int place) {
    int own = count_options(command->options);
    return place < own ? &command->options[place] : &cli_global_options[place - own];
}

static int option_count(const cli_command *command) {
    return count_options(command->options) + count_options(cli_global_options);
}

static int find_by_name(const cli_command *command, const char *name, size_t length) {
    for (int place = 0; place < option_count(command); place++) {
        const char *candidate = option_at(command, place)->name;
        if (strlen(candidate) == length && strncmp(candidate, name, length) == 0) return place;
    }
    return -1;
}

static int find_by_letter(const cli_command *command, char letter) {
    for (int place = 0; place < option_count(command); place++)
        if (option_at(command, place)->letter == letter) return place;
    return -1;
}

/* Edit distance; words are short. */
static int distance(const char *a, const char *b) {
    enum { longest = 40 };
    int row[longest + 1];
    int width = (int)strnlen(b, longest);
    for (int j = 0; j <= width; j++) row[j] = j;
    for (int i = 1; a[i - 1] != '\0'; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= width; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[width];
}

const char *cli_nearest(const char *word, const char *const *names, int count) {
    const char *best = NULL;
    int limit = strlen(word) < 4 ? 1 : 3;
    for (int i = 0; i < count; i++) {
        int far = distance(word, names[i]);
        if (far <= limit) {
            best = names[i];
            limit = far - 1;
        }
    }
    return best;
}

static wf_status unknown_option(cli_app *app, const char *word) {
    const char *names[2 * CLI_MAX_OPTIONS];
    int count = option_count(app->command);
    for (int place = 0; place < count; place++) names[place] = option_at(app->command, place)->name;
    char bare[64];
    snprintf(bare, sizeof bare, "%s", word + strspn(word, "-"));
    bare[strcspn(bare, "=")] = '\0';
    const char *near = cli_nearest(bare, names, count);
    if (near != NULL)
        return cli_fail(app, WF_ERR_USAGE, "unknown option %s; did you mean --%s? See weft help %s",
                        word, near, app->command->name);
    return cli_fail(app, WF_ERR_USAGE, "unknown option %s; see weft help %s", word,
                    app->command->name);
}

static wf_status check_number(cli_app *app, const cli_option *option, const char *text) {
    char *end;
    errno = 0;
    bool bad;
    double number;
    if (option->kind == CLI_INT) {
        number = (double)strtoll(text, &end, 10);
        bad = end == text || *end != '\0' || errno == ERANGE;
    } else {
        number = strtod(text, &end);
        bad = end == text || *end != '\0' || !isfinite(number);
    }
    if (bad)
        return cli_fail(app, WF_ERR_USAGE, "--%s needs %s, not \"%s\"", option->name,
                        option->kind == CLI_INT ? "a whole number" : "a number", text);
    if (number < option->low || number > option->high)
        return cli_fail(app, WF_ERR_USAGE, "--%s is %s; allowed is %.10g to %.10g", option->name,
                        text, option->low, option->high);
    return WF_OK;
}

static wf_status store(cli_app *app, int place, const char *text) {
    const cli_option *option = option_at(app->command, place);
    if (option->kind == CLI_INT || option->kind == CLI_REAL)
        CLI_TRY(check_number(app, option, text));
    if (option->kind == CLI_LIST) {
        if (app->n_list == CLI_MAX_LIST)
            return cli_fail(app, WF_ERR_USAGE, "more than %d times --%s", CLI_MAX_LIST,
                            option->name);
        app->list[app->n_list++] = text;
    }
    app->value[place] = text;
    return WF_OK;
}

/* Takes the option in words[0] and, where it needs one, its value; *used says how many words that was. */
static wf_status take_option(cli_app *app, int count, char **words, int *used) {
    const char *word = words[0], *value = NULL;
    int place;
    *used = 1;
    if (word[1] == '-') {
        size_t length = strcspn(word + 2, "=");
        place = find_by_name(app->command, word + 2, length);
        if (word[2 + length] == '=') value = word + 2 + length + 1;
    } else {
        place = find_by_letter(app->command, word[1]);
        if (word[2] != '\0') value = word + 2;
    }
    if (place < 0) return unknown_option(app, word);
    const cli_option *option = option_at(app->command, place);
    if (option->kind == CLI_FLAG) {
        if (value != NULL)
            return cli_fail(app, WF_ERR_USAGE, "--%s takes no value; write it alone", option->name);
        app->value[place] = "yes";
        return WF_OK;
    }
    if (value == NULL) {
        if (count < 2)
            return cli_fail(app, WF_ERR_USAGE, "--%s needs a value: --%s %s", option->name,
                            option->name, option->value);
        value = words[1];
        *used = 2;
    }
    return store(app, place, value);
}

static wf_status check_arguments(cli_app *app) {
    const cli_command *command = app->command;
    if (app->n_arguments < command->least)
        return cli_fail(app, WF_ERR_USAGE, "weft %s needs %s; see weft help %s", command->name,
                        command->arguments, command->name);
    if (app->n_arguments > command->most)
        return cli_fail(app, WF_ERR_USAGE,
                        "\"%s\" is one argument too many for weft %s; see weft help %s",
                        app->argument[command->most], command->name, command->name);
    return WF_OK;
}

wf_status cli_parse(cli_app *app, int count, char **words) {
    assert(option_count(app->command) <= CLI_MAX_OPTIONS);
    bool only_arguments = false;
    for (int i = 0, used; i < count; i += used) {
        const char *word = words[i];
        used = 1;
        if (!only_arguments && strcmp(word, "--") == 0) only_arguments = true;
        else if (!only_arguments && word[0] == '-' && word[1] != '\0')
            CLI_TRY(take_option(app, count - i, words + i, &used));
        else if (app->n_arguments == CLI_MAX_ARGUMENTS)
            return cli_fail(app, WF_ERR_USAGE, "too many arguments");
        else app->argument[app->n_arguments++] = word;
    }
    app->json = cli_flag(app, "json");
    app->quiet = cli_flag(app, "quiet");
    app->help = cli_flag(app, "help");
    return app->help ? WF_OK : check_arguments(app);
}

static int place_of(const cli_app *app, const char *name) {
    int place = find_by_name(app->command, name, strlen(name));
    assert(place >= 0 && "an option that is not in the command's table");
    return place;
}

bool cli_given(const cli_app *app, const char *name) {
    return app->value[place_of(app, name)] != NULL;
}

bool cli_flag(const cli_app *app, const char *name) { return cli_given(app, name); }

const char *cli_text(const cli_app *app, const char *name) {
    int place = place_of(app, name);
    return app->value[place] != NULL ? app->value[place] : option_at(app->command, place)->fallback;
}

int64_t cli_int(const cli_app *app, const char *name) {
    const char *text = cli_text(app, name);
    return text == NULL ? 0 : strtoll(text, NULL, 10);
}

double cli_real(const cli_app *app, const char *name) {
    const char *text = cli_text(app, name);
    return text == NULL ? 0 : strtod(text, NULL);
}

wf_status cli_fail(cli_app *app, wf_status status, const char *format, ...) {
    char sentence[sizeof app->sentence];
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    memcpy(app->sentence, sentence, sizeof sentence);
    return status;
}

wf_status cli_resumable(cli_app *app, wf_status status) {
    if (status != WF_ERR_INTERRUPTED) return status;
    return cli_fail(app, status, "%s; the same command goes on from here",
                    app->sentence[0] != '\0' ? app->sentence : wf_last_error(app->ctx));
}
