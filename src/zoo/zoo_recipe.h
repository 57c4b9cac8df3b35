/* zoo_recipe: the settings of a collection's networks as lines of "key = value". */
#pragma once

#include "weft/zoo.h"

/* A line of a recipe. */
typedef struct wf_recipe_line {
    const char *key, *value;
    int key_size, value_size;
} wf_recipe_line;

/* Whether two recipes mean the same networks; if not, the first lines that differ. */
bool wf__same_recipe(const char *a, const char *b, wf_recipe_line *left, wf_recipe_line *right);
