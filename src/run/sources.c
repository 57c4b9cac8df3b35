#include "run/sources.h"

#include "run/data_source.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { max_sources = 1024 };

static wf_status no_memory(wf_run_app *app) {
    return wf__run_fail(app, WF_ERR_MEMORY, "out of memory");
}

static wf_status allocate(wf_run_app *app, int n, wf_run_sources *s) {
    s->list = calloc((size_t)n, sizeof *s->list);
    s->text = calloc((size_t)n, sizeof *s->text);
    s->n = s->list != NULL && s->text != NULL ? n : 0;
    return s->n == n ? WF_OK : no_memory(app);
}

void wf__run_sources_free(wf_run_sources *s) {
    for (int i = 0; i < s->n; i++) {
        wf_zoo_free((wf_zoo *)(uintptr_t)s->list[i].zoo);
        wf_zoo_free((wf_zoo *)(uintptr_t)s->list[i].held_out);
    }
    free(s->list);
    free(s->text);
    free(s->cond);
    free(s->zoos);
    free(s->conds);
    wf_recipe_free(s->manifest);
    *s = (wf_run_sources){0};
}

wf_status wf__run_sources_open(wf_run_app *app, wf_run_sources *s) {
    for (int i = 0; i < s->n; i++) {
        if (s->list[i].zoo != NULL) continue;
        if (s->text[i].zoo[0] == '\0')
            return wf__run_fail(
                app, WF_ERR_INPUT,
                "[%s] has a recipe, but no collection yet: weft run makes it; or write "
                "zoo = FILE",
                s->text[i].label);
        wf_zoo *zoo;
        WF_TRY(wf_zoo_open(app->ctx, s->text[i].zoo, &zoo));
        s->list[i].zoo = zoo;
    }
    return WF_OK;
}

/* --- on the command line ---------------------------------------------------------------------- */

static int count_parts(const char *text, char separator) {
    int n = 1;
    for (; *text != '\0'; text++) n += *text == separator;
    return n;
}

static wf_status put_path(wf_run_app *app, const char *folder, int length, const char *path,
                          char out[WF_RUN_PATH]) {
    if (path[0] == '/') length = 0;
    if (snprintf(out, WF_RUN_PATH, "%.*s%s", length, folder, path) < WF_RUN_PATH) return WF_OK;
    return wf__run_fail(app, WF_ERR_INPUT, "%.60s...: the path is too long", path);
}

wf_status wf__run_sources_list(wf_run_app *app, const char *zoo, const char *cond,
                               wf_run_sources *s) {
    *s = (wf_run_sources){0};
    int n = count_parts(zoo, ',');
    if (n > max_sources)
        return wf__run_fail(app, WF_ERR_USAGE, "more than %d collections", max_sources);
    if (cond != NULL && count_parts(cond, ';') != n)
        return wf__run_fail(app, WF_ERR_USAGE, "%d conditions for %d collections",
                            count_parts(cond, ';'), n);
    WF_TRY(allocate(app, n, s));
    s->zoos = strdup(zoo);
    s->conds = strdup(cond != NULL ? cond : "");
    if (s->zoos == NULL || s->conds == NULL) return no_memory(app);
    char *rest = s->zoos, *conds = s->conds;
    for (int i = 0; i < n; i++) {
        s->text[i].label = strsep(&rest, ",");
        if (cond != NULL) s->text[i].cond = strsep(&conds, ";");
        WF_TRY(put_path(app, "", 0, s->text[i].label, s->text[i].zoo));
    }
    return WF_OK;
}

/* --- a manifest ------------------------------------------------------------------------------- */

/* "0.5: 79.54 54.38, 1: 87.07 73.26": the pair at `width`, NaN when there is none. False when it
 * is written otherwise. */
static bool read_paper(const char *text, double width, double pair[2]) {
    pair[0] = pair[1] = NAN;
    for (;;) {
        double numbers[3];
        int used = 0;
        if (sscanf(text, " %lf : %lf %lf %n", &numbers[0], &numbers[1], &numbers[2], &used) < 3 ||
            used == 0 || !(numbers[1] > 0 && numbers[1] <= 100) ||
            !(numbers[2] > 0 && numbers[2] <= 100))
            return false;
        if (fabs(numbers[0] - width) < 1e-6) pair[0] = numbers[1], pair[1] = numbers[2];
        text += used;
        if (*text == '\0') return true;
        if (*text++ != ',') return false;
    }
}

bool wf__run_sources_paper(const wf_run_sources *s, int index, double width, double *trained,
                           double *generated) {
    double pair[2];
    const char *text = s->text[index].paper;
    if (text == NULL || !read_paper(text, width, pair) || !isfinite(pair[0])) return false;
    *trained = pair[0] / 100;
    *generated = pair[1] / 100;
    return true;
}

static wf_status read_section(wf_run_app *app, const char *path, const char *section,
                              wf_run_sources *s, int i) {
    const char *zoo = NULL, *recipe = NULL, *data = NULL, *task = section;
    wf_run_source_text *text = &s->text[i];
    const struct {
        const char *key, **value;
    } keys[] = {{"zoo", &zoo},   {"recipe", &recipe},   {"data", &data},
                {"task", &task}, {"cond", &text->cond}, {"paper", &text->paper}};
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
        WF_TRY(wf_recipe_string(app->ctx, s->manifest, section, keys[k].key, keys[k].value));
    if ((zoo == NULL) == (recipe == NULL))
        return wf__run_fail(app, WF_ERR_INPUT,
                            "%s: [%s] names %s; write zoo = FILE, or recipe = FILE to have it made",
                            path, section,
                            zoo == NULL ? "no collection" : "a collection and a recipe for one");
    if (recipe != NULL && data != NULL)
        return wf__run_fail(app, WF_ERR_INPUT, "%s: [%s] has a recipe, which says the data", path,
                            section);
    if (task[0] == '\0')
        return wf__run_fail(app, WF_ERR_INPUT, "%s: [%s] has an empty task", path, section);
    double none[2];
    if (text->paper != NULL && !read_paper(text->paper, -1, none))
        return wf__run_fail(
            app, WF_ERR_INPUT,
            "%s: [%s] has paper = %s; write WIDTH: TRAINED GENERATED, in percent, with "
            "commas between widths",
            path, section, text->paper);
    text->label = section;
    s->list[i].task = task;
    const char *slash = strrchr(path, '/');
    int folder = slash == NULL ? 0 : (int)(slash - path) + 1;
    if (zoo != NULL) WF_TRY(put_path(app, path, folder, zoo, text->zoo));
    if (recipe != NULL) WF_TRY(put_path(app, path, folder, recipe, text->recipe));
    if (data != NULL)
        WF_TRY(put_path(app, path, wf__run_is_builtin_data(data) ? 0 : folder, data, text->data));
    return WF_OK;
}

wf_status wf__run_sources_manifest(wf_run_app *app, const char *path, wf_run_sources *s) {
    *s = (wf_run_sources){0};
    WF_TRY(wf_recipe_open(app->ctx, path, &s->manifest));
    int n = 0;
    while (wf_recipe_section(s->manifest, n) != NULL) n++;
    if (n == 0)
        return wf__run_fail(app, WF_ERR_INPUT,
                            "%s: no collection; write a section [TASK] with zoo = FILE for each",
                            path);
    if (n > max_sources)
        return wf__run_fail(app, WF_ERR_INPUT, "%s: more than %d collections", path, max_sources);
    WF_TRY(allocate(app, n, s));
    for (int i = 0; i < n; i++)
        WF_TRY(read_section(app, path, wf_recipe_section(s->manifest, i), s, i));
    return wf_recipe_finish(app->ctx, s->manifest);
}

/* --- shares ----------------------------------------------------------------------------------- */

static int find_label(const wf_run_sources *s, const char *label, int length) {
    for (int i = 0; i < s->n; i++)
        if ((int)strlen(s->text[i].label) == length &&
            strncmp(s->text[i].label, label, (size_t)length) == 0)
            return i;
    return -1;
}

wf_status wf__run_sources_shares(wf_run_app *app, wf_run_sources *s, const char *shares) {
    for (const char *at = shares; at != NULL;) {
        int begin = 0, end = 0, used = 0, share = 0;
        sscanf(at, " %n%*[^ :,]%n : %d %n", &begin, &end, &share, &used);
        if (used == 0 || share < 1 || share > 1000 || (at[used] != ',' && at[used] != '\0'))
            return wf__run_fail(
                app, WF_ERR_USAGE,
                "train.shares is %s; write COLLECTION: PLACES, PLACES from 1 to 1000, "
                "with commas between collections",
                shares);
        int i = find_label(s, at + begin, end - begin);
        if (i < 0)
            return wf__run_fail(app, WF_ERR_USAGE,
                                "train.shares names %.*s, which is no collection", end - begin,
                                at + begin);
        s->list[i].draw_weight = share;
        at = at[used] == ',' ? at + used + 1 : NULL;
    }
    return WF_OK;
}

/* --- conditions ------------------------------------------------------------------------------- */

/* The number of the source's task, counted in order of appearance; *count: of all tasks. */
static int task_number(const wf_run_sources *s, int index, int *count) {
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

static wf_status check_size(wf_run_app *app, int *cond_size, const char *label, int size) {
    if (*cond_size == 0) *cond_size = size;
    if (*cond_size == size) return WF_OK;
    return wf__run_fail(app, WF_ERR_USAGE,
                        "the condition of %s has %d number%s, model.cond_size is %d", label, size,
                        WF_RUN_S(size), *cond_size);
}

/* Every collection has its numbers, or none of them has any. */
static wf_status check_given(wf_run_app *app, const wf_run_sources *s, bool *given) {
    *given = s->text[0].cond != NULL;
    for (int i = 1; i < s->n; i++)
        if ((s->text[i].cond != NULL) != *given)
            return wf__run_fail(
                app, WF_ERR_INPUT,
                "[%s] has a condition, [%s] has none; give all of them one, or none",
                s->text[*given ? 0 : i].label, s->text[*given ? i : 0].label);
    return WF_OK;
}

static wf_status read_numbers(wf_run_app *app, wf_run_sources *s, int *cond_size) {
    int size = *cond_size != 0 ? *cond_size : count_parts(s->text[0].cond, ',');
    for (int i = 0; i < s->n; i++)
        WF_TRY(check_size(app, cond_size, s->text[i].label, count_parts(s->text[i].cond, ',')));
    s->cond = calloc((size_t)s->n, (size_t)size * sizeof *s->cond);
    if (s->cond == NULL) return no_memory(app);
    for (int i = 0; i < s->n; i++) {
        char what[200];
        int count;
        float *at = s->cond + (size_t)i * (size_t)size;
        snprintf(what, sizeof what, "the condition of %.150s", s->text[i].label);
        WF_TRY(wf__run_numbers(app, what, s->text[i].cond, at, size, &count));
        s->list[i].cond = at;
        for (int k = 0; s->manifest != NULL && k < i; k++)
            if (strcmp(s->list[k].task, s->list[i].task) == 0 &&
                memcmp(s->list[k].cond, at, (size_t)size * sizeof *at) != 0)
                return wf__run_fail(
                    app, WF_ERR_INPUT,
                    "[%s] and [%s] are of one task, %s, but have different conditions",
                    s->text[k].label, s->text[i].label, s->list[i].task);
    }
    return WF_OK;
}

static wf_status number_tasks(wf_run_app *app, wf_run_sources *s, int *cond_size) {
    int tasks;
    task_number(s, 0, &tasks);
    if (*cond_size != 0 && *cond_size != tasks)
        return wf__run_fail(
            app, WF_ERR_USAGE,
            "the manifest has %d task%s, model.cond_size is %d; leave it out, or give "
            "conditions of %d number%s",
            tasks, WF_RUN_S(tasks), *cond_size, *cond_size, WF_RUN_S(*cond_size));
    *cond_size = tasks;
    s->cond = calloc((size_t)s->n, (size_t)tasks * sizeof *s->cond);
    if (s->cond == NULL) return no_memory(app);
    for (int i = 0; i < s->n; i++) {
        float *at = s->cond + (size_t)i * (size_t)tasks;
        at[task_number(s, i, &tasks)] = 1;
        s->list[i].cond = at;
    }
    return WF_OK;
}

wf_status wf__run_sources_condition(wf_run_app *app, wf_run_sources *s,
                                    const wf_run_recipe *recipe) {
    bool given;
    int *cond_size = wf__run_recipe_cond_size(recipe);
    WF_TRY(check_given(app, s, &given));
    if (!wf__run_recipe_conditional(recipe) || cond_size == NULL)
        return given ? wf__run_fail(app, WF_ERR_USAGE,
                                    "%s is given, but model.cond is none in the recipe",
                                    s->manifest != NULL ? "a condition" : "--cond")
                     : WF_OK;
    if (given) return read_numbers(app, s, cond_size);
    if (s->manifest != NULL) return number_tasks(app, s, cond_size);
    return wf__run_fail(
        app, WF_ERR_USAGE,
        "model.cond is set: give each collection its condition, as --cond \"0;1\", or "
        "write a manifest");
}
