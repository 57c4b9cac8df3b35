/* recipe_files: recipes that are named without a path: those of the folder WEFT_RECIPES, those that
 * were installed with the program, or those of the source tree that it was built in. */
#include "run/files.h"
#include "run/recipe_schema.h"
#include "weft/text.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { n_folders = 3, most_recipes = 256 };

/* The folder at `place`; false when there is none. */
static bool folder_at(int place, char out[WF_RUN_PATH]) {
    static const char *const beside_program[] = {"../share/weft/recipes", "../recipes"};
    const char *given = getenv("WEFT_RECIPES");
    wf_text path = wf_text_start(out, WF_RUN_PATH);
    if (place == 0) return given != NULL && wf_text_add(&path, "%s", given);
    char program[WF_RUN_PATH];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program);
    if (length <= 0 || length == (ssize_t)sizeof program) return false;
    while (length > 0 && program[length - 1] != '/') length--;
    return wf_text_add(&path, "%.*s%s", (int)length, program, beside_program[place - 1]);
}

static bool find_in(int place, const char *name, char out[WF_RUN_PATH]) {
    char folder[WF_RUN_PATH];
    if (!folder_at(place, folder)) return false;
    wf_text path = wf_text_start(out, WF_RUN_PATH);
    return wf_text_add(&path, "%s/%s.conf", folder, name) && wf_file_exists(out);
}

/* Calls `visit` for every recipe there is, a name once. */
void wf__run_each_recipe(wf_run_visit_recipe *visit, void *to) {
    char folder[WF_RUN_PATH], path[WF_RUN_PATH], first[WF_RUN_PATH];
    for (int place = 0; place < n_folders; place++) {
        struct dirent **entries = NULL;
        int n = folder_at(place, folder) ? scandir(folder, &entries, NULL, alphasort) : 0;
        for (int i = 0; i < n; i++) {
            char *ending = strrchr(entries[i]->d_name, '.');
            if (ending != NULL && strcmp(ending, ".conf") == 0) {
                *ending = '\0';
                bool hidden = false; /* by a folder before this one */
                for (int before = 0; before < place; before++)
                    hidden = hidden || find_in(before, entries[i]->d_name, first);
                if (!hidden && find_in(place, entries[i]->d_name, path))
                    visit(to, entries[i]->d_name, path);
            }
            free(entries[i]);
        }
        free(entries);
    }
}

typedef struct name_list {
    char names[most_recipes][64];
    const char *list[most_recipes + 1];
    int n;
} name_list;

static void add_name(void *to, const char *name, const char *path) {
    (void)path;
    name_list *all = to;
    if (all->n == most_recipes) return;
    snprintf(all->names[all->n], sizeof all->names[0], "%s", name);
    all->list[all->n] = all->names[all->n];
    all->n++;
}

wf_status wf__run_recipe_find(wf_run_app *app, const char *name, char out[WF_RUN_PATH]) {
    wf_text path = wf_text_start(out, WF_RUN_PATH);
    if (!wf_text_add(&path, "%s", name))
        return wf__run_fail(app, WF_ERR_USAGE, "%.60s...: the path is too long", name);
    if (strchr(name, '/') != NULL || wf_file_exists(name)) return WF_OK;
    for (int place = 0; place < n_folders; place++)
        if (find_in(place, name, out)) return WF_OK;
    static const char *const endings[] = {".conf", ".csv", ".tsv", ".arff", ".npz"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (snprintf(out, WF_RUN_PATH, "%s%s", name, endings[i]) < WF_RUN_PATH &&
            wf_file_exists(out))
            return wf__run_fail(app, WF_ERR_INPUT, "there is no file %s; did you mean %s?", name,
                                out);
    name_list *all = calloc(1, sizeof *all);
    if (all == NULL) return wf__run_fail(app, WF_ERR_MEMORY, "out of memory");
    wf__run_each_recipe(add_name, all);
    const char *near = wf_nearest_name(name, all->list);
    wf_status status =
        wf__run_fail(app, WF_ERR_INPUT,
                     "there is no file %s, and no recipe of that name%s%s%s; weft help "
                     "recipes lists them",
                     name, near != NULL ? " (did you mean " : "", near != NULL ? near : "",
                     near != NULL ? "?)" : "");
    free(all);
    return status;
}
