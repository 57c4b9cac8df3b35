#include "cli/sources.h"

#include <stdlib.h>
#include <string.h>

enum { max_sources = 1024 };

static wf_status no_memory(cli_app *app) { return cli_fail(app, WF_ERR_MEMORY, "out of memory"); }

static wf_status allocate(cli_app *app, int n, cli_sources *s) {
    size_t count = (size_t)n;
    s->list = calloc(count, sizeof *s->list);
    s->zoos = calloc(count, sizeof *s->zoos);
    s->label = calloc(count, sizeof *s->label);
    s->cond_text = calloc(count, sizeof *s->cond_text);
    s->data = calloc(count, sizeof *s->data);
    s->data_path = calloc(count, sizeof *s->data_path);
    bool all = s->list != NULL && s->zoos != NULL && s->label != NULL && s->cond_text != NULL &&
               s->data != NULL && s->data_path != NULL;
    return all ? WF_OK : no_memory(app);
}

void cli_sources_free(cli_sources *s) {
    for (int i = 0; i < s->n; i++) wf_zoo_free(s->zoos[i]);
    free(s->list);
    free(s->zoos);
    free(s->label);
    free(s->cond_text);
    free(s->data);
    free(s->data_path);
    free(s->cond);
    free(s->zoo_text);
    free(s->conds);
    wf_recipe_free(s->manifest);
    *s = (cli_sources){0};
}

static wf_status open_zoo(cli_app *app, cli_sources *s, const char *path) {
    CLI_TRY(wf_zoo_open(app->ctx, path, &s->zoos[s->n]));
    s->list[s->n].zoo = s->zoos[s->n];
    s->n++;
    return WF_OK;
}

/* --- on the command line ------------------------------------------------------------------------ */

static int count_parts(const char *text, char separator) {
    int n = 1;
    for (; *text != '\0'; text++) n += *text == separator;
    return n;
}

wf_status cli_sources_list(cli_app *app, const char *zoo, const char *cond, cli_sources *s) {
    *s = (cli_sources){0};
    int n = count_parts(zoo, ',');
    if (n > max_sources)
        return cli_fail(app, WF_ERR_USAGE, "more than %d collections", max_sources);
    if (cond != NULL && count_parts(cond, ';') != n)
        return cli_fail(app, WF_ERR_USAGE, "%d conditions for %d collections",
                        count_parts(cond, ';'), n);
    CLI_TRY(allocate(app, n, s));
    s->zoo_text = strdup(zoo);
    s->conds = strdup(cond != NULL ? cond : "");
    if (s->zoo_text == NULL || s->conds == NULL) return no_memory(app);
    char *rest = s->zoo_text, *conds = s->conds;
    while (rest != NULL) {
        s->label[s->n] = strsep(&rest, ",");
        if (cond != NULL) s->cond_text[s->n] = strsep(&conds, ";");
        CLI_TRY(open_zoo(app, s, s->label[s->n]));
    }
    return WF_OK;
}

/* --- a manifest --------------------------------------------------------------------------------- */

/* A path of the manifest: as it is when absolute, else in the manifest's folder. */
static wf_status beside(cli_app *app, const char *manifest, const char *path, char out[CLI_PATH]) {
    const char *slash = strrchr(manifest, '/');
    int folder = path[0] == '/' || slash == NULL ? 0 : (int)(slash - manifest) + 1;
    if (snprintf(out, CLI_PATH, "%.*s%s", folder, manifest, path) < CLI_PATH) return WF_OK;
    return cli_fail(app, WF_ERR_INPUT, "%s: a path in it is too long", manifest);
}

static bool is_builtin(const char *name) {
    for (const char *const *builtin = wf_data_builtin(); *builtin != NULL; builtin++)
        if (strcmp(*builtin, name) == 0) return true;
    return false;
}

static wf_status read_section(cli_app *app, const char *path, const char *section, cli_sources *s) {
    const char *zoo = NULL, *cond = NULL, *task = section, *data = NULL;
    CLI_TRY(wf_recipe_string(app->ctx, s->manifest, section, "zoo", &zoo));
    CLI_TRY(wf_recipe_string(app->ctx, s->manifest, section, "cond", &cond));
    CLI_TRY(wf_recipe_string(app->ctx, s->manifest, section, "task", &task));
    CLI_TRY(wf_recipe_string(app->ctx, s->manifest, section, "data", &data));
    if (zoo == NULL)
        return cli_fail(app, WF_ERR_INPUT, "%s: [%s] names no collection; write zoo = FILE", path,
                        section);
    if (task[0] == '\0')
        return cli_fail(app, WF_ERR_INPUT, "%s: [%s] has an empty task", path, section);
    int i = s->n;
    s->label[i] = section;
    s->cond_text[i] = cond;
    s->list[i].task = task;
    if (data != NULL) {
        s->data[i] = s->data_path[i];
        if (is_builtin(data)) snprintf(s->data_path[i], CLI_PATH, "%s", data);
        else CLI_TRY(beside(app, path, data, s->data_path[i]));
    }
    char file[CLI_PATH];
    CLI_TRY(beside(app, path, zoo, file));
    return open_zoo(app, s, file);
}

wf_status cli_sources_manifest(cli_app *app, const char *path, cli_sources *s) {
    *s = (cli_sources){0};
    CLI_TRY(wf_recipe_open(app->ctx, path, &s->manifest));
    int n = 0;
    while (wf_recipe_section(s->manifest, n) != NULL) n++;
    if (n == 0)
        return cli_fail(app, WF_ERR_INPUT,
                        "%s: no collection; write a section [TASK] with zoo = FILE for each", path);
    if (n > max_sources)
        return cli_fail(app, WF_ERR_INPUT, "%s: more than %d collections", path, max_sources);
    CLI_TRY(allocate(app, n, s));
    for (int i = 0; i < n; i++)
        CLI_TRY(read_section(app, path, wf_recipe_section(s->manifest, i), s));
    return wf_recipe_finish(app->ctx, s->manifest);
}

/* --- conditions --------------------------------------------------------------------------------- */

int cli_sources_task(const cli_sources *s, int index, int *count) {
    int found = -1;
    *count = 0;
    for (int i = 0; i < s->n; i++) {
        int first = 0;
        while (strcmp(s->list[first].task, s->list[i].task) != 0) first++;
        if (found < 0 && strcmp(s->list[i].task, s->list[index].task) == 0) found = *count;
        *count += first == i;
    }
    return found;
}

static wf_status check_size(cli_app *app, wf_field_desc *field, const char *label, int size) {
    if (field->cond_size == 0) field->cond_size = size;
    if (field->cond_size == size) return WF_OK;
    return cli_fail(app, WF_ERR_USAGE, "the condition of %s has %d numbers, model.cond_size is %d",
                    label, size, field->cond_size);
}

/* Every collection has its numbers, or none of them has any. */
static wf_status check_given(cli_app *app, const cli_sources *s, bool *given) {
    *given = s->cond_text[0] != NULL;
    for (int i = 1; i < s->n; i++)
        if ((s->cond_text[i] != NULL) != *given)
            return cli_fail(app, WF_ERR_INPUT,
                            "[%s] has a condition, [%s] has none; give all of them one, or none",
                            s->label[*given ? 0 : i], s->label[*given ? i : 0]);
    return WF_OK;
}

static wf_status read_numbers(cli_app *app, cli_sources *s, wf_field_desc *field) {
    int size = field->cond_size != 0 ? field->cond_size : count_parts(s->cond_text[0], ',');
    for (int i = 0; i < s->n; i++)
        CLI_TRY(check_size(app, field, s->label[i], count_parts(s->cond_text[i], ',')));
    s->cond = calloc((size_t)s->n, (size_t)size * sizeof *s->cond);
    if (s->cond == NULL) return no_memory(app);
    for (int i = 0; i < s->n; i++) {
        char what[200];
        int count;
        float *at = s->cond + (size_t)i * (size_t)size;
        snprintf(what, sizeof what, "the condition of %.150s", s->label[i]);
        CLI_TRY(cli_numbers(app, what, s->cond_text[i], at, size, &count));
        s->list[i].cond = at;
        for (int k = 0; s->manifest != NULL && k < i; k++)
            if (strcmp(s->list[k].task, s->list[i].task) == 0 &&
                memcmp(s->list[k].cond, at, (size_t)size * sizeof *at) != 0)
                return cli_fail(app, WF_ERR_INPUT,
                                "[%s] and [%s] are of one task, %s, but have different conditions",
                                s->label[k], s->label[i], s->list[i].task);
    }
    return WF_OK;
}

static wf_status number_tasks(cli_app *app, cli_sources *s, wf_field_desc *field) {
    int tasks;
    cli_sources_task(s, 0, &tasks);
    if (field->cond_size != 0 && field->cond_size != tasks)
        return cli_fail(app, WF_ERR_USAGE,
                        "the manifest has %d tasks, model.cond_size is %d; leave it out, or give "
                        "conditions of %d numbers",
                        tasks, field->cond_size, field->cond_size);
    field->cond_size = tasks;
    s->cond = calloc((size_t)s->n, (size_t)tasks * sizeof *s->cond);
    if (s->cond == NULL) return no_memory(app);
    for (int i = 0; i < s->n; i++) {
        float *at = s->cond + (size_t)i * (size_t)tasks;
        at[cli_sources_task(s, i, &tasks)] = 1;
        s->list[i].cond = at;
    }
    return WF_OK;
}

wf_status cli_sources_condition(cli_app *app, cli_sources *s, wf_field_desc *field) {
    bool given;
    CLI_TRY(check_given(app, s, &given));
    if (field->cond == WF_COND_NONE)
        return given ? cli_fail(app, WF_ERR_USAGE,
                                "%s is given, but model.cond is none in the recipe",
                                s->manifest != NULL ? "a condition" : "--cond")
                     : WF_OK;
    if (given) return read_numbers(app, s, field);
    if (s->manifest != NULL) return number_tasks(app, s, field);
    return cli_fail(app, WF_ERR_USAGE,
                    "model.cond is set: give each collection its condition, as --cond \"0;1\", or "
                    "write a manifest");
}
