/* version, help: what this program is and what it can do. */
#include "cli/commands.h"
#include "run/files.h"

#include <stdlib.h>
#include <string.h>

wf_status cli_print_json(wf_run_app *app, json_t *json) {
    wf_status status = wf__run_json_complete(app, "JSON", json);
    if (status == WF_OK) {
        char *text = json_dumps(json, JSON_INDENT(2) | JSON_REAL_PRECISION(10));
        status = wf__run_json_complete(app, "JSON", json);
        /* main looks whether standard output took it all */
        if (status == WF_OK && text != NULL) cli_print("%s\n", text);
        free(text);
    }
    json_decref(json);
    return status;
}

/* "name: value" lines to an object. */
static json_t *build_object(void) {
    json_t *object = json_pack("{s:s}", "version", WF_VERSION);
    for (const char *line = wf_build_info(); object != NULL && *line != '\0';) {
        size_t length = strcspn(line, "\n"), name = strcspn(line, ":\n");
        if (name < length) {
            char key[64];
            snprintf(key, sizeof key, "%.*s", (int)name, line);
            const char *value = line + name + 1 + strspn(line + name + 1, " ");
            json_object_set_new(object, key, json_stringn(value, (size_t)(line + length - value)));
        }
        line += length + (line[length] == '\n');
    }
    return object;
}

wf_status cli_version(wf_run_app *app) {
    if (app->json) return cli_print_json(app, build_object());
    cli_print("weft %s\n%s", WF_VERSION, wf_build_info());
    return WF_OK;
}

wf_status cli_help(wf_run_app *app) {
    if (cli_flag(app, "man")) {
        cli_help_man(stdout);
        return WF_OK;
    }
    if (cli_given(app, "completion")) {
        cli_help_completion(stdout, cli_text(app, "completion"));
        return WF_OK;
    }
    if (cli_flag(app, "markdown")) {
        cli_help_markdown(stdout);
        cli_recipe_markdown(stdout);
        return WF_OK;
    }
    if (app->n_arguments == 0) {
        cli_help_program(stdout);
        return WF_OK;
    }
    if (app->n_arguments == 1 && strcmp(app->argument[0], "recipe") == 0) {
        cli_recipe_help(stdout);
        return WF_OK;
    }
    if (app->n_arguments == 1 && strcmp(app->argument[0], "recipes") == 0) {
        cli_recipe_files();
        return WF_OK;
    }
    int used;
    const cli_command *command = cli_find_command(app->n_arguments, (char **)app->argument, &used);
    if (command != NULL && used == app->n_arguments) {
        cli_help_command(stdout, command);
        return WF_OK;
    }
    if (app->n_arguments == 1 && cli_help_group(stdout, app->argument[0])) return WF_OK;
    char sentence[256];
    cli_unknown_command(app->n_arguments, app->argument, sentence, sizeof sentence);
    return wf__run_fail(app, WF_ERR_USAGE, "%s", sentence);
}
