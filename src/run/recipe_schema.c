/* recipe_schema: see recipe_schema.h. */
#include "run/recipe_schema.h"

#include "base/utf8.h"
#include "weft/file.h"
#include "weft/text.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const wf_setting own_rows[] = {
#define SETTING(section, ...) WF_SETTING_ROW(wf_run_recipe, section, "", __VA_ARGS__)
#include "run/recipe.def"
    {0}};

/* The tables of a recipe and the structs they describe. */
typedef struct part {
    const wf_setting *rows;
    void *desc;
} part;

enum { n_parts = 7 };

/* The settings of a kind of generator; one without settings has an empty table. */
static const wf_setting *model_rows(const wf_generator_kind *kind) {
    static const wf_setting none = {0};
    return kind == NULL || kind->settings == NULL ? &none : kind->settings();
}

static void list_parts(const wf_run_recipe *recipe, part parts[n_parts]) {
    wf_run_recipe *r = (wf_run_recipe *)(uintptr_t)recipe;
    const part all[n_parts] = {{own_rows, r},
                               {wf_data_settings(), &r->data},
                               {wf_zoo_settings(), &r->zoo},
                               {model_rows(r->kind), r->model},
                               {wf_fit_settings(), &r->fit},
                               {wf_sample_settings(), &r->sample},
                               {wf_eval_settings(), &r->eval}};
    memcpy(parts, all, sizeof all);
}

typedef void visitor(void *to, const wf_setting *row, const char *value);

/* Calls `visit` for the settings of one section of a table. */
static void each_row(const wf_setting *row, const void *desc, const char *section, visitor *visit,
                     void *to) {
    char buffer[WF_SETTING_BUFFER];
    for (; row->key != NULL; row++)
        if (*row->key != '\0' && strcmp(row->section, section) == 0)
            visit(to, row, wf_setting_text(row, desc, buffer));
}

/* Calls `visit` for every setting that recipes have, section by section. */
static void each_setting(const wf_run_recipe *recipe, visitor *visit, void *to) {
    static const char *const sections[] = {"data",   "zoo",  "model", "train",
                                           "sample", "eval", "report"};
    part parts[n_parts];
    list_parts(recipe, parts);
    for (size_t s = 0; s < sizeof sections / sizeof *sections; s++)
        for (int p = 0; p < n_parts; p++)
            each_row(parts[p].rows, parts[p].desc, sections[s], visit, to);
}

static void set_defaults(wf_run_recipe *recipe) {
    part parts[n_parts];
    list_parts(recipe, parts);
    for (int p = 0; p < n_parts; p++) wf_settings_default(parts[p].rows, parts[p].desc);
}

/* The generator that model.generator names, and its settings. */
static wf_status choose_generator(wf_run_app *app, wf_run_recipe *recipe) {
    if (recipe->generator == NULL) recipe->generator = WF_GENERATOR_DEFAULT; /* taken back */
    recipe->kind = wf_generator_find(recipe->generator);
    if (recipe->kind == NULL) {
        char names[400];
        wf_text list = wf_text_start(names, sizeof names);
        for (int i = 0; i < wf_generator_count(); i++)
            wf_text_add(&list, "%s%s", i > 0 ? ", " : "", wf_generator_at(i)->name);
        return wf_recipe_refuse(app->ctx, recipe->source, "model", "generator", names);
    }
    recipe->model = calloc(1, recipe->kind->options_size + 1);
    if (recipe->model == NULL) return wf__run_fail(app, WF_ERR_MEMORY, "out of memory");
    wf_settings_default(model_rows(recipe->kind), recipe->model);
    return WF_OK;
}

/* The place of a setting of the generator; NULL: it has none of that key. */
static void *option(const wf_run_recipe *recipe, const char *key) {
    const wf_setting *row = wf_settings_find(model_rows(recipe->kind), key);
    return row == NULL ? NULL : (char *)recipe->model + row->offset;
}

bool wf__run_recipe_conditional(const wf_run_recipe *recipe) {
    const int *cond = option(recipe, "cond"); /* a choice; the first is none */
    return cond != NULL && *cond != 0;
}

int *wf__run_recipe_cond_size(const wf_run_recipe *recipe) { return option(recipe, "cond_size"); }

void wf__run_options_text(const wf_generator_kind *kind, const void *options, char *out,
                          size_t size) {
    wf_text text = wf_text_start(out, size);
    bool any = false;
    wf_text_add(&text, "%s", kind->name);
    for (const wf_setting *row = model_rows(kind); row->key != NULL; row++) {
        char buffer[WF_SETTING_BUFFER];
        const char *value = wf_setting_text(row, options, buffer);
        if (*row->key == '\0' || strcmp(row->key, "seed") == 0 || strcmp(value, row->text) == 0)
            continue;
        wf_text_add(&text, "%s%s %s", any ? ", " : " (", row->key, value);
        any = true;
    }
    if (any) wf_text_add(&text, ")");
}

/* --seed replaces every seed of the recipe but those of data and evaluation. */
static void set_seeds(wf_run_app *app, wf_run_recipe *recipe) {
    uint64_t seed = strtoull(app->seed, NULL, 10);
    recipe->zoo.seed = recipe->fit.seed = recipe->sample.seed = seed;
    const wf_setting *row = wf_settings_find(model_rows(recipe->kind), "seed");
    if (row != NULL) wf_setting_parse(row, app->seed, recipe->model);
}

static wf_status read_all(wf_run_app *app, wf_run_recipe *recipe) {
    for (int i = 0; i < app->n_list; i++)
        WF_TRY(wf_recipe_override(app->ctx, recipe->source, app->list[i]));
    set_defaults(recipe);
    WF_TRY(wf_recipe_settings(app->ctx, recipe->source, own_rows, recipe));
    WF_TRY(choose_generator(app, recipe));
    part parts[n_parts];
    list_parts(recipe, parts);
    for (int p = 0; p < n_parts; p++)
        WF_TRY(wf_recipe_settings(app->ctx, recipe->source, parts[p].rows, parts[p].desc));
    recipe->generator = recipe->kind->name;
    if (app->seed != NULL) set_seeds(app, recipe);
    return wf_recipe_finish(app->ctx, recipe->source);
}

static void name_of_path(const char *path, char *name, size_t size) {
    const char *slash = strrchr(path, '/');
    snprintf(name, size, "%.*s", (int)size - 1, slash != NULL ? slash + 1 : path);
    char *dot = strrchr(name, '.');
    if (dot != NULL && dot != name) *dot = '\0';
    /* That of FLOW.safetensors.recipe.conf, which weft fit writes, is FLOW. */
    static const char *const endings[] = {".recipe", ".safetensors"};
    for (int i = 0; i < 2; i++) {
        if (wf__run_ends_with(name, endings[i])) name[strlen(name) - strlen(endings[i])] = '\0';
        else break;
    }
}

/* A manifest that is not where the recipe says is looked up beside the recipe. */
static wf_status find_manifest(wf_run_app *app, const char *path, wf_run_recipe *recipe) {
    char beside[4096];
    const char *slash = strrchr(path, '/'), *manifest = recipe->manifest;
    if (manifest == NULL || slash == NULL || manifest[0] == '/' || wf_file_exists(manifest))
        return WF_OK;
    snprintf(beside, sizeof beside, "%.*s%s", (int)(slash - path) + 1, path, manifest);
    if (!wf_file_exists(beside)) return WF_OK;
    WF_TRY(wf_recipe_set(app->ctx, recipe->source, "zoo", "manifest", beside));
    return wf_recipe_string(app->ctx, recipe->source, "zoo", "manifest", &recipe->manifest);
}

/* A table or a folder in place of a recipe: says what to type. */
static wf_status refuse_data(wf_run_app *app, const char *path) {
    static const char *const tables[] = {".csv", ".tsv", ".arff", ".npz"};
    char inside[WF_RUN_PATH];
    struct stat info;
    const char *ending = strrchr(path, '.');
    for (size_t i = 0; ending != NULL && i < sizeof tables / sizeof *tables; i++)
        if (strcmp(ending, tables[i]) == 0)
            return wf__run_fail(
                app, WF_ERR_USAGE,
                "%s is a table of data, not a recipe; to judge networks on it: weft "
                "eval --nets FILE --data %s",
                path, path);
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode)) return WF_OK;
    int length = snprintf(inside, sizeof inside, "%s/recipe.conf", path);
    if (length < (int)sizeof inside && wf_file_exists(inside))
        return wf__run_fail(app, WF_ERR_USAGE, "%s is a folder; its recipe is %s", path, inside);
    return wf__run_fail(app, WF_ERR_USAGE, "%s is a folder, not a recipe", path);
}

/* Does the file begin as those of safetensors do: eight bytes of a number, the last of them 0, and
 * the brace of its header? */
static bool is_safetensors(const char *path) {
    char begins[9] = "";
    FILE *file = fopen(path, "rb");
    size_t n = file == NULL ? 0 : fread(begins, 1, sizeof begins, file);
    if (file != NULL) fclose(file);
    return n == sizeof begins && begins[7] == '\0' && begins[8] == '{';
}

/* A collection or a flow in place of a recipe: says what to type. */
static wf_status refuse_safetensors(wf_run_app *app, const char *path) {
    struct stat info;
    wf_zoo *zoo = NULL;
    wf_flow *flow = NULL;
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode) || !is_safetensors(path)) return WF_OK;
    if (wf_zoo_open(app->ctx, path, &zoo) == WF_OK) {
        wf_zoo_free(zoo);
        return wf__run_fail(
            app, WF_ERR_USAGE,
            "%s is a collection, not a recipe. To fit a generator to it: weft fit %s -o "
            "flow.safetensors; or with a recipe: weft train RECIPE --zoo %s -o "
            "flow.safetensors",
            path, path, path);
    }
    if (wf_flow_open(app->ctx, path, &flow) != WF_OK) return WF_OK; /* reported when it is opened */
    wf_flow_free(flow);
    return wf__run_fail(app, WF_ERR_USAGE,
                        "%s is a flow, not a recipe. To make networks with it: weft sample %s -o "
                        "new.safetensors; what it was fitted to: weft flow info %s",
                        path, path, path);
}

wf_status wf__run_recipe_open(wf_run_app *app, const char *path, wf_run_recipe *out) {
    char found[WF_RUN_PATH];
    *out = (wf_run_recipe){0};
    WF_TRY(refuse_data(app, path));
    WF_TRY(refuse_safetensors(app, path));
    WF_TRY(wf__run_recipe_find(app, path, found));
    path = found;
    snprintf(out->file, sizeof out->file, "%s", found);
    WF_TRY(wf_recipe_open(app->ctx, path, &out->source));
    name_of_path(path, out->name, sizeof out->name);
    WF_TRY(read_all(app, out));
    return find_manifest(app, path, out);
}

/* recipes/demo.conf, byte for byte. */
extern const char wf__run_demo_recipe[], wf__run_demo_recipe_end[];

wf_status wf__run_recipe_builtin(wf_run_app *app, wf_run_recipe *out) {
    *out = (wf_run_recipe){.name = "demo"};
    WF_TRY(wf_recipe_parse(app->ctx, "demo.conf", wf__run_demo_recipe,
                           (size_t)(wf__run_demo_recipe_end - wf__run_demo_recipe), &out->source));
    return read_all(app, out);
}

wf_status wf__run_recipe_of_text(wf_run_app *app, const char *name, const char *text,
                                 wf_run_recipe *out) {
    *out = (wf_run_recipe){0};
    WF_TRY(wf_recipe_parse(app->ctx, name, text, strlen(text), &out->source));
    name_of_path(name, out->name, sizeof out->name);
    return read_all(app, out);
}

wf_status wf__run_recipe_of_data(wf_run_app *app, const char *key, const char *value,
                                 wf_run_recipe *out) {
    *out = (wf_run_recipe){.name = "data"};
    WF_TRY(wf_recipe_parse(app->ctx, value, "[data]\n", strlen("[data]\n"), &out->source));
    WF_TRY(wf_recipe_set(app->ctx, out->source, "data", key, value));
    return read_all(app, out);
}

void wf__run_recipe_free(wf_run_recipe *recipe) {
    wf_recipe_free(recipe->source);
    free(recipe->model);
    *recipe = (wf_run_recipe){0};
}

/* A recipe without [data] stays one: a section that names no data set would be refused. With a
 * manifest the numbers of networks are the tasks' own, unless the recipe says them. */
typedef struct resolution {
    wf_recipe *recipe;
    const wf_run_recipe *from;
} resolution;

static bool left_to_tasks(const wf_run_recipe *from, const wf_setting *row) {
    return from->manifest != NULL && strcmp(row->section, "zoo") == 0 &&
           (strcmp(row->key, "count") == 0 || strcmp(row->key, "held_out") == 0) &&
           !wf_recipe_has(from->source, row->section, row->key);
}

static void put_in_recipe(void *to, const wf_setting *row, const char *value) {
    resolution *r = to;
    if (row->type == WF_SETTING_TEXT && *value == '\0') return;
    if (strcmp(row->section, "data") == 0 && !wf_recipe_has_section(r->from->source, "data"))
        return;
    if (left_to_tasks(r->from, row)) return;
    if (r->recipe == NULL || wf_recipe_set(NULL, r->recipe, row->section, row->key, value) == WF_OK)
        return;
    wf_recipe_free(r->recipe); /* no memory */
    r->recipe = NULL;
}

/* '?' in place of what a comment cannot hold: a control character, or a character cut apart. */
static void name_for_comment(const char *name, char *out) {
    size_t size = strlen(name);
    while (size > 0) {
        size_t length = wf_utf8_step(name, size);
        bool fine = length > 0 && (unsigned char)*name >= 32 && *name != 127;
        if (length == 0) length = 1;
        if (fine) memcpy(out, name, length);
        else *out = '?';
        out += fine ? length : 1;
        name += length;
        size -= length;
    }
    *out = '\0';
}

char *wf__run_recipe_resolved(const wf_run_recipe *recipe) {
    wf_recipe *full = NULL;
    if (wf_recipe_parse(NULL, recipe->name, "", 0, &full) != WF_OK) return NULL;
    resolution to = {full, recipe};
    each_setting(recipe, put_in_recipe, &to);
    full = to.recipe;
    char *settings = full == NULL ? NULL : wf_recipe_text(full), *text = NULL;
    char name[sizeof recipe->name];
    name_for_comment(recipe->name, name);
    if (settings != NULL &&
        asprintf(&text, "# %s, with every key: what this result was made with.\n\n%s", name,
                 settings) < 0)
        text = NULL;
    wf_recipe_free(full);
    free(settings);
    return text;
}

typedef struct stage_settings {
    wf_stage stage;
    json_t *object;
} stage_settings;

/* A setting that came after the first run folders is left out where it has the value that folders
 * without it had: their stages stay finished. */
static void put_in_stage(void *to, const wf_setting *row, const char *value) {
    stage_settings *settings = to;
    if (row->stage != settings->stage) return;
    if (row->before != NULL && strcmp(row->before, value) == 0) return;
    char name[160];
    snprintf(name, sizeof name, "%s.%s", row->section, row->key);
    json_object_set_new(settings->object, name, json_string(value));
}

json_t *wf__run_recipe_stage(const wf_run_recipe *recipe, wf_stage stage) {
    stage_settings settings = {stage, json_object()};
    each_setting(recipe, put_in_stage, &settings);
    return settings.object;
}

wf_status wf__run_recipe_dataset(wf_run_app *app, const wf_run_recipe *recipe, wf_dataset **out) {
    *out = NULL;
    if (!wf_recipe_has_section(recipe->source, "data"))
        return wf__run_fail(app, WF_ERR_INPUT, "%s has no [data] section; name a data set there",
                            recipe->name);
    return wf_dataset_open(app->ctx, &recipe->data, out);
}

wf_status wf__run_recipe_graph(wf_run_app *app, const wf_run_recipe *recipe, const wf_dataset *data,
                               wf_graph **out) {
    *out = NULL;
    if (recipe->arch == NULL)
        return wf__run_fail(app, WF_ERR_INPUT,
                            "%s has no zoo.arch; say the widths, as arch = 64-16-8-10",
                            recipe->name);
    WF_TRY(wf_graph_parse(app->ctx, recipe->arch, recipe->activation, 0, out));
    wf_status status = data != NULL ? wf_dataset_fits(app->ctx, data, *out) : WF_OK;
    if (status == WF_OK) return WF_OK;
    wf_graph_free(*out);
    *out = NULL;
    return wf__run_fail(app, status, "zoo.arch: %s", wf_last_error(app->ctx));
}

typedef struct default_visit {
    wf_run_visit_setting *visit;
    wf_run_listing *list;
} default_visit;

static void visit_default(void *to, const wf_setting *row, const char *value) {
    default_visit *v = to;
    v->visit(v->list, row, value);
}

void wf__run_recipe_each(wf_run_visit_setting *visit, wf_run_listing *list) {
    wf_run_recipe defaults = {0};
    default_visit to = {visit, list};
    set_defaults(&defaults);
    each_setting(&defaults, visit_default, &to);
    for (int i = 0; i < wf_generator_count(); i++) {
        const wf_generator_kind *kind = wf_generator_at(i);
        void *model = kind->settings == NULL ? NULL : calloc(1, kind->options_size + 1);
        if (model == NULL) continue;
        list->kind = kind;
        wf_settings_default(model_rows(kind), model);
        each_row(model_rows(kind), model, "model", visit_default, &to);
        free(model);
    }
}

bool wf__run_listing_begins(wf_run_listing *list, const wf_setting *row) {
    const char *section = list->kind != NULL ? list->kind->name : row->section;
    bool other = strcmp(list->section, section) != 0;
    list->section = section;
    return other;
}
