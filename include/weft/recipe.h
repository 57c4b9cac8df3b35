/* weft/recipe.h: recipes: sections of `key = value  # why`, read strictly.
 *
 *     [zoo]
 *     arch = 64-16-8-10    # one line, one setting
 *
 * A reader asks for the keys it knows, mostly by a table of settings, and then calls
 * wf_recipe_finish, which refuses every other key with its line and the nearest known name.
 * Values keep inner spaces; '#' starts a comment at the line's start or after a space; a quoted
 * value ("...") may hold '#', and control characters: \x0a is a newline. Duplicate keys and
 * sections are refused. Overrides ("zoo.count=10") replace or add values.
 * weft/weft.h says who owns what and what NULL means where a comment does not. */
#ifndef WEFT_RECIPE_H
#define WEFT_RECIPE_H

#include "weft/settings.h"

WF_BEGIN_C

typedef struct wf_recipe wf_recipe;
/* Read a file. *out is the caller's: wf_recipe_free(), which accepts NULL. Returns WF_OK,
 * WF_ERR_INPUT (no file, or a line that is no recipe; the sentence has file and line) or
 * WF_ERR_MEMORY. */
WF_API wf_status wf_recipe_open(wf_ctx *ctx, const char *path, wf_recipe **out);
/* The same of a text, which is copied; label stands for its path. *out is the caller's:
 * wf_recipe_free(). Returns as wf_recipe_open. */
WF_API wf_status wf_recipe_parse(wf_ctx *ctx, const char *label, const char *text, size_t size,
                                 wf_recipe **out);
/* Accepts NULL. */
WF_API void wf_recipe_free(wf_recipe *recipe);
/* Returns WF_OK, WF_ERR_USAGE (not of that form) or WF_ERR_MEMORY. */
WF_API wf_status wf_recipe_override(wf_ctx *ctx, wf_recipe *recipe,
                                    const char *assignment); /* "section.key=value" */
/* The same for names and a value as they are.
 * Returns WF_OK, WF_ERR_INPUT (too many settings) or WF_ERR_MEMORY. */
WF_API wf_status wf_recipe_set(wf_ctx *ctx, wf_recipe *recipe, const char *section, const char *key,
                               const char *value);
WF_API bool wf_recipe_has(const wf_recipe *recipe, const char *section, const char *key);
/* Names in file order, which belong to the recipe; NULL after the last. */
WF_API const char *wf_recipe_section(const wf_recipe *recipe, int index);
WF_API bool wf_recipe_has_section(const wf_recipe *recipe, const char *section);

/* Both set values and mark keys as known; an absent key leaves its value as it is (the default).
 * A malformed or out-of-range value fails with file, line, key, what was found and what is
 * allowed.
 * The value belongs to the recipe. Returns WF_OK or WF_ERR_MEMORY. */
WF_API wf_status wf_recipe_string(wf_ctx *ctx, wf_recipe *recipe, const char *section,
                                  const char *key, const char **value);
/* Read every setting of a table that the recipe has; absent ones stay as they are.
 * Texts belong to the recipe. Returns WF_OK, WF_ERR_INPUT, for an override WF_ERR_USAGE, or
 * WF_ERR_MEMORY. */
WF_API wf_status wf_recipe_settings(wf_ctx *ctx, wf_recipe *recipe, const wf_setting *rows,
                                    void *desc);
/* Refuses a value that only the caller can judge: fails with file, line, key, what was found, and
 * `allowed`.
 * Returns WF_ERR_INPUT or, for an override, WF_ERR_USAGE. */
WF_API wf_status wf_recipe_refuse(wf_ctx *ctx, const wf_recipe *recipe, const char *section,
                                  const char *key, const char *allowed);
/* Refuses keys that no call has asked for. Returns WF_OK, WF_ERR_INPUT or, for an override,
 * WF_ERR_USAGE. */
WF_API wf_status wf_recipe_finish(wf_ctx *ctx, const wf_recipe *recipe);
/* The recipe with all overrides, as text that reads back to the same; free() it. NULL: out of
 * memory, or a value that wf_recipe_set was given is not UTF-8. */
WF_API char *wf_recipe_text(const wf_recipe *recipe);
/* A value as a recipe writes it: in quotes where it would read back as something else. *out is the
 * caller's: wf_free(). Returns WF_OK, WF_ERR_USAGE (not UTF-8, which no recipe can hold; the
 * sentence names the value) or WF_ERR_MEMORY. */
WF_API wf_status wf_recipe_quote(wf_ctx *ctx, const char *value, char **out);

WF_END_C

#endif
