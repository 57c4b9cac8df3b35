/* options: the command line against a command's table: `--name value`, `--name=value`, `-o
 * value`, flags, and `--` after which everything is an argument. Numbers are checked here, so a
 * command only reads them. */
#include "cli/cli.h"
#include "run/recipe_schema.h"
#include "weft/text.h"

#include <assert.h>
#include <math.h>
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

/* "--set train.updates=...": settings of a recipe that are called as an option was. */
typedef struct key_search {
    wf_run_listing list; /* first: what a visitor gets */
    const char *key;
    wf_text found;
} key_search;

static void find_key(wf_run_listing *list, const wf_setting *row, const char *value) {
    key_search *search = (key_search *)list;
    char name[80];
    (void)value;
    snprintf(name, sizeof name, "--set %s.%s=", row->section, row->key);
    if (strcmp(row->key, search->key) != 0 || strstr(search->found.start, name) != NULL) return;
    wf_text_add(&search->found, "%s%s...", search->found.length > 0 ? " or " : "", name);
}

/* A recipe's setting given as an option; "" where it is none, or the command takes no --set. */
static void recipe_key(const wf_run_app *app, const char *word, char *out, size_t size) {
    key_search search = {.list = {.section = ""}, .key = word, .found = wf_text_start(out, size)};
    if (find_by_name(app->command, "set", 3) < 0) return;
    if (strcmp(word, "data") == 0) wf_text_add(&search.found, "--set data.path=FILE");
    else wf__run_recipe_each(find_key, &search.list);
}

static wf_status unknown_option(wf_run_app *app, const char *word) {
    const char *names[WF_RUN_MAX_OPTIONS + 1] = {NULL};
    for (int place = 0; place < option_count(app->command); place++)
        names[place] = option_at(app->command, place)->name;
    char bare[64];
    snprintf(bare, sizeof bare, "%s", word + strspn(word, "-"));
    bare[strcspn(bare, "=")] = '\0';
    const char *near = wf_nearest_name(bare, names);
    char setting[200];
    recipe_key(app, bare, setting, sizeof setting);
    if (word[1] == '-' && setting[0] != '\0')
        return wf__run_fail(app, WF_ERR_USAGE, "unknown option %s; the recipe says that: %s", word,
                            setting);
    const char *of = strcmp(app->command->name, "help") == 0 ? "" : app->command->name;
    const char *space = of[0] == '\0' ? "" : " ";
    if (near != NULL)
        return wf__run_fail(app, WF_ERR_USAGE,
                            "unknown option %s; did you mean --%s? See weft help%s%s", word, near,
                            space, of);
    return wf__run_fail(app, WF_ERR_USAGE, "unknown option %s; see weft help%s%s", word, space, of);
}

static wf_status check_number(wf_run_app *app, const cli_option *option, const char *text) {
    char *end;
    bool whole = option->kind == CLI_INT;
    double number = whole ? (double)strtoll(text, &end, 10) : strtod(text, &end);
    if (end == text || *end != '\0' || isnan(number))
        return wf__run_fail(app, WF_ERR_USAGE, "--%s needs %s, not \"%s\"", option->name,
                            whole ? "a whole number" : "a number", text);
    if (number < option->low || number > option->high)
        return wf__run_fail(app, WF_ERR_USAGE, "--%s is %s; allowed is %.16g to %.16g",
                            option->name, text, option->low, option->high);
    return WF_OK;
}

const wf_setting *cli_option_row(const cli_option *option) {
    const wf_setting *row = wf_settings_find(option->settings(), option->name);
    assert(row != NULL && "an option that is no setting of its table");
    return row;
}

const char *const *cli_option_names(const cli_option *option) {
    return option->kind == CLI_SETTING ? cli_option_row(option)->names : option->names;
}

static wf_status check_choice(wf_run_app *app, const cli_option *option, const char *text) {
    char allowed[400];
    wf_text list = wf_text_start(allowed, sizeof allowed);
    for (int i = 0; option->names[i] != NULL; i++) {
        if (strcmp(option->names[i], text) == 0) return WF_OK;
        wf_text_add(&list, "%s%s", i > 0 ? ", " : "", option->names[i]);
    }
    return wf__run_fail(app, WF_ERR_USAGE, "--%s is \"%s\"; allowed is %s", option->name, text,
                        allowed);
}

static wf_status check_setting(wf_run_app *app, const cli_option *option, const char *text) {
    wf_setting alone = *cli_option_row(option);
    double value; /* as large as any but a text */
    alone.offset = 0;
    if (alone.type == WF_SETTING_TEXT || wf_setting_parse(&alone, text, &value)) return WF_OK;
    char allowed[400];
    wf_setting_allowed(&alone, allowed, sizeof allowed);
    return wf__run_fail(app, WF_ERR_USAGE, "--%s is \"%s\"; allowed is %s", option->name, text,
                        allowed);
}

void cli_settings(const wf_run_app *app, const wf_setting *rows, void *desc) {
    for (int place = 0; place < option_count(app->command); place++) {
        const cli_option *option = option_at(app->command, place);
        bool own = option->kind == CLI_SETTING && option->settings() == rows;
        const wf_setting *row = own                                 ? cli_option_row(option)
                                : strcmp(option->name, "seed") == 0 ? wf_settings_find(rows, "seed")
                                                                    : NULL;
        if (row != NULL && app->value[place] != NULL)
            wf_setting_parse(row, app->value[place], desc);
    }
}

static wf_status store(wf_run_app *app, int place, const char *text) {
    const cli_option *option = option_at(app->command, place);
    if (option->kind == CLI_INT || option->kind == CLI_REAL)
        WF_TRY(check_number(app, option, text));
    if (option->kind == CLI_SETTING) WF_TRY(check_setting(app, option, text));
    if (option->kind == CLI_CHOICE) WF_TRY(check_choice(app, option, text));
    if (option->kind == CLI_LIST) {
        if (app->n_list == WF_RUN_MAX_LIST)
            return wf__run_fail(app, WF_ERR_USAGE, "more than %d times --%s", WF_RUN_MAX_LIST,
                                option->name);
        app->list[app->n_list++] = text;
    }
    app->value[place] = text;
    return WF_OK;
}

/* Takes the option in words[0] and, where it needs one, its value; *used says how many words
 * that was. */
static wf_status take_option(wf_run_app *app, int count, char **words, int *used) {
    const char *word = words[0], *value = NULL;
    int place;
    *used = 1;
    if (word[1] == '-') {
        size_t length = strcspn(word + 2, "=");
        place = find_by_name(app->command, word + 2, length);
        if (word[2 + length] == '=') value = word + 2 + length + 1;
    } else {
        if (find_by_name(app->command, word + 1, strcspn(word + 1, "=")) >= 0 && word[2] != '\0')
            return wf__run_fail(app, WF_ERR_USAGE, "%s: a long option has two dashes: -%s", word,
                                word);
        place = find_by_letter(app->command, word[1]);
        if (word[2] != '\0') value = word + 2;
    }
    if (place < 0) return unknown_option(app, word);
    const cli_option *option = option_at(app->command, place);
    if (option->kind == CLI_FLAG) {
        if (value != NULL)
            return wf__run_fail(app, WF_ERR_USAGE, "--%s takes no value; write it alone",
                                option->name);
        app->value[place] = "yes";
        return WF_OK;
    }
    if (value == NULL) {
        if (count < 2)
            return wf__run_fail(app, WF_ERR_USAGE, "--%s needs a value: --%s %s", option->name,
                                option->name, option->value);
        value = words[1];
        *used = 2;
    }
    return store(app, place, value);
}

static wf_status check_arguments(wf_run_app *app) {
    const cli_command *command = app->command;
    if (app->n_arguments < command->least)
        return wf__run_fail(app, WF_ERR_USAGE, "weft %s needs %s; see weft help %s", command->name,
                            command->arguments, command->name);
    if (app->n_arguments > command->most)
        return wf__run_fail(app, WF_ERR_USAGE,
                            "\"%s\" is one argument too many for weft %s; as in %s (weft help "
                            "%s)%s",
                            app->argument[command->most], command->name,
                            command->examples[0].command, command->name,
                            app->json ? "; --json takes no file, it prints: > FILE" : "");
    return WF_OK;
}

wf_status cli_parse(wf_run_app *app, int count, char **words) {
    assert(option_count(app->command) <= WF_RUN_MAX_OPTIONS);
    bool only_arguments = false;
    for (int i = 0, used; i < count; i += used) {
        const char *word = words[i];
        used = 1;
        if (!only_arguments && strcmp(word, "--") == 0) only_arguments = true;
        else if (!only_arguments && word[0] == '-' && word[1] != '\0')
            WF_TRY(take_option(app, count - i, words + i, &used));
        else app->argument[app->n_arguments++] = word;
    }
    return WF_OK;
}

wf_status cli_parse_end(wf_run_app *app) {
    app->json = cli_flag(app, "json");
    app->quiet = cli_flag(app, "quiet");
    app->help = cli_flag(app, "help");
    return app->help || cli_flag(app, "version") ? WF_OK : check_arguments(app);
}

/* The option in `word` of any command: which command it is comes later. NULL: there is none. */
static const cli_option *find_anywhere(const char *word) {
    bool letter = word[1] != '-';
    for (const cli_command *command = cli_commands; command->name != NULL; command++) {
        int place = letter ? find_by_letter(command, word[1])
                           : find_by_name(command, word + 2, strcspn(word + 2, "="));
        if (place >= 0) return option_at(command, place);
    }
    return NULL;
}

/* Does the option in `word` take the next word as its value? */
static bool takes_next(const char *word) {
    const cli_option *option = find_anywhere(word);
    bool has_value = word[1] != '-' ? word[2] != '\0' : strchr(word, '=') != NULL;
    return !has_value && option != NULL && option->kind != CLI_FLAG;
}

int cli_leading_options(int count, char **words) {
    int n = 0;
    while (n < count && words[n][0] == '-' && words[n][1] != '\0' && strcmp(words[n], "--") != 0)
        n += takes_next(words[n]) ? 2 : 1;
    return n < count ? n : count;
}

wf_status cli_check_leading(wf_run_app *app, int count, char **words) {
    for (int i = 0; i < count; i += takes_next(words[i]) ? 2 : 1)
        if (find_anywhere(words[i]) == NULL) return unknown_option(app, words[i]);
    return WF_OK;
}

static int place_of(const wf_run_app *app, const char *name) {
    int place = find_by_name(app->command, name, strlen(name));
    assert(place >= 0 && "an option that is not in the command's table");
    return place;
}

bool cli_given(const wf_run_app *app, const char *name) {
    return app->value[place_of(app, name)] != NULL;
}

bool cli_flag(const wf_run_app *app, const char *name) { return cli_given(app, name); }

const char *cli_text(const wf_run_app *app, const char *name) {
    int place = place_of(app, name);
    return app->value[place] != NULL ? app->value[place] : option_at(app->command, place)->fallback;
}

int64_t cli_int(const wf_run_app *app, const char *name) {
    const char *text = cli_text(app, name);
    return text == NULL ? 0 : strtoll(text, NULL, 10);
}

int cli_index(const wf_run_app *app, const char *name) {
    const char *text = cli_text(app, name);
    const char *const *names = option_at(app->command, place_of(app, name))->names;
    int index = 0;
    while (text != NULL && strcmp(names[index], text) != 0) index++;
    return text == NULL ? -1 : index;
}

double cli_real(const wf_run_app *app, const char *name) {
    const char *text = cli_text(app, name);
    return text == NULL ? 0 : strtod(text, NULL);
}
