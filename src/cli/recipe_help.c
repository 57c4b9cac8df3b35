/* recipe_help: recipes that are installed, and every key of a recipe. */
#include "cli/cli.h"
#include "run/recipe_schema.h"

#include <string.h>

/* Its name, and the first line of its comment. */
static void print_recipe(void *count, const char *name, const char *path) {
    char line[200] = "";
    FILE *file = fopen(path, "r");
    if (file != NULL && fgets(line, sizeof line, file) == NULL) line[0] = '\0';
    if (file != NULL) fclose(file);
    line[strcspn(line, "\n")] = '\0';
    const char *about = line[0] == '#' ? line + 1 + strspn(line + 1, " ") : "";
    cli_print("  %-20s %s\n", name, about);
    *(int *)count += 1;
}

void cli_recipe_files(void) {
    int n = 0;
    cli_print("Recipes that weft run takes by name:\n\n");
    wf__run_each_recipe(print_recipe, &n);
    if (n == 0)
        cli_print("  none: make install puts them beside the program; WEFT_RECIPES names a folder "
                  "of them\n");
    cli_print("\n\"weft help recipe\" has all keys of a recipe.\n");
}

static void print_help(wf_run_listing *list, const wf_setting *row, const char *value) {
    char line[128], allowed[256];
    if (wf__run_listing_begins(list, row)) {
        fprintf(list->file, "\n[%s]", row->section);
        if (list->kind != NULL)
            fprintf(list->file, "  # generator = %s: %s", list->kind->name, list->kind->about);
        fputc('\n', list->file);
    }
    snprintf(line, sizeof line, "%s = %.60s", row->key, value);
    fprintf(list->file, "%-28s # %s", line, row->help);
    if (row->names != NULL) {
        wf_setting_allowed(row, allowed, sizeof allowed);
        fprintf(list->file, " (%s)", allowed);
    }
    fputc('\n', list->file);
}

void cli_recipe_help(FILE *file) {
    fputs("A recipe is a text of sections of \"key = value  # why\". Keys, defaults, meaning:\n",
          file);
    wf__run_recipe_each(print_help, &(wf_run_listing){.file = file, .section = ""});
    fputs("\nGenerators:\n", file);
    for (int i = 0; i < wf_generator_count(); i++)
        fprintf(file, "%-28s # %s\n", wf_generator_at(i)->name, wf_generator_at(i)->about);
}

static void print_row(wf_run_listing *list, const wf_setting *row, const char *value) {
    char allowed[256];
    if (wf__run_listing_begins(list, row)) {
        fprintf(list->file, "\n## [%s]", row->section);
        if (list->kind != NULL)
            fprintf(list->file, " with generator = %s: %s", list->kind->name, list->kind->about);
        fputs("\n\n| key | default | allowed | meaning |\n| --- | --- | --- | --- |\n", list->file);
    }
    wf_setting_allowed(row, allowed, sizeof allowed);
    fprintf(list->file, "| `%s.%s` | %s | %s | %s |\n", row->section, row->key, value,
            row->type == WF_SETTING_TEXT ? "" : allowed, row->help);
}

void cli_recipe_markdown(FILE *file) {
    fputs("# Recipes\n\nA recipe is a text of sections of `key = value  # why`; `--set "
          "section.key=value` replaces a value on the command line, and `--set section.key=` takes "
          "a text back. Unknown and duplicate keys are refused with their line.\n",
          file);
    wf__run_recipe_each(print_row, &(wf_run_listing){.file = file, .section = ""});
    fputs("\n# Generators\n\n`model.generator` and `eval.rows` name them; docs/generators.md says "
          "how "
          "to add one.\n\n| generator | | what it does |\n| --- | --- | --- |\n",
          file);
    for (int i = 0; i < wf_generator_count(); i++) {
        const wf_generator_kind *kind = wf_generator_at(i);
        fprintf(file, "| `%s` | %s | %s |\n", kind->name, kind->fit == NULL ? "" : "fitted",
                kind->about);
    }
}
