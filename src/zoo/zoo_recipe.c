#include "zoo/zoo_recipe.h"

#include <stdio.h>
#include <string.h>

/* The line that *at points to, which moves past it; false at the end of the text. */
static bool next_line(const char **at, wf_recipe_line *line) {
    size_t size = strcspn(*at, "\n");
    const char *sign = memmem(*at, size, " = ", 3), *end = *at + size;
    if (sign == NULL) return false;
    *line = (wf_recipe_line){*at, sign + 3, (int)(sign - *at), (int)(end - sign) - 3};
    *at = *end == '\n' ? end + 1 : end;
    return true;
}

/* The line of the same key; that of recipes without it where it is a setting. */
static wf_recipe_line line_of(const char *recipe, const wf_recipe_line *like,
                              const wf_setting *row) {
    wf_recipe_line line;
    while (next_line(&recipe, &line))
        if (line.key_size == like->key_size &&
            memcmp(line.key, like->key, (size_t)line.key_size) == 0)
            return line;
    const char *absent = row == NULL ? "" : wf_setting_absent(row);
    return (wf_recipe_line){like->key, absent, like->key_size, (int)strlen(absent)};
}

/* The value as a text of its own; version 0.1 wrote true and false. */
static const char *value_text(const wf_recipe_line *line, bool yes_no, char out[64]) {
    snprintf(out, 64, "%.*s", line->value_size, line->value);
    if (yes_no && strcmp(out, "true") == 0) return "yes";
    return yes_no && strcmp(out, "false") == 0 ? "no" : out;
}

static bool same_value(const wf_recipe_line *a, const wf_recipe_line *b, const wf_setting *row) {
    if (a->value_size == b->value_size && memcmp(a->value, b->value, (size_t)a->value_size) == 0)
        return true;
    char left[64], right[64];
    bool yes_no = row != NULL && row->type == WF_SETTING_BOOL;
    return row != NULL &&
           wf_setting_same(row, value_text(a, yes_no, left), value_text(b, yes_no, right));
}

bool wf__same_recipe(const char *a, const char *b, wf_recipe_line *left, wf_recipe_line *right) {
    const char *const texts[] = {b, a};
    for (int t = 0; t < 2; t++)
        for (const char *at = texts[t]; next_line(&at, left);) {
            char key[64];
            snprintf(key, sizeof key, "%.*s", left->key_size, left->key);
            const wf_setting *row = wf_settings_find(wf_zoo_settings(), key);
            *right = line_of(b, left, row);
            *left = line_of(a, left, row);
            if (!same_value(left, right, row)) return false;
        }
    return true;
}
