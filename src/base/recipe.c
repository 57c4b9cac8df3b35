/* recipe: the strict reader of `[section]` and `key = value  # why`.
 *
 * R1  A line is blank, a comment, a [section] or a setting; anything else is refused with its line.
 * R2  The recipe remembers every key it was asked for, so wf_recipe_finish can refuse the others
 *     and name the nearest one that exists.
 * R3  Everything lives in the recipe's arena: strings handed out stay valid until wf_recipe_free,
 *     also when an override replaces them. */
#include "weft/recipe.h"
#include "weft/text.h"
#include "base/arena.h"
#include "base/io.h"
#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { most_bytes = 1 << 20, most_keys = 4096, longest_name = 64 };

typedef struct setting {
    struct setting *next;
    const char *key, *value;
    int line; /* 0: an override */
} setting;

typedef struct recipe_section {
    struct recipe_section *next;
    const char *name;
    int line;
    setting *settings;
} recipe_section;

/* A key somebody asked for, whether or not the recipe has it. */
typedef struct asked {
    struct asked *next;
    const char *section, *key;
} asked;

struct wf_recipe {
    wf_arena arena;
    const char *label;
    recipe_section *sections;
    asked *asked;
    int keys;
};

/* --- small parts ------------------------------------------------------------------------------ */

static bool is_space(char c) { return c == ' ' || c == '\t'; }
static bool is_control(char c) { return ((unsigned char)c < 32 && c != '\t') || c == 127; }

/* A piece of a line; the reader cuts lines into these before it copies anything. */
typedef struct piece {
    const char *text;
    size_t size;
} piece;

static piece trim(piece p) {
    while (p.size > 0 && is_space(p.text[0])) p.text++, p.size--;
    while (p.size > 0 && is_space(p.text[p.size - 1])) p.size--;
    return p;
}

static bool is_name(piece p) {
    if (p.size == 0 || p.size > longest_name) return false;
    for (size_t i = 0; i < p.size; i++) {
        char c = p.text[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!letter && !(c >= '0' && c <= '9') && c != '_' && c != '-') return false;
    }
    return true;
}

static bool equals(const char *name, piece p) {
    return strlen(name) == p.size && memcmp(name, p.text, p.size) == 0;
}

static const char *keep(wf_recipe *recipe, const char *text, size_t size) {
    char *copy = wf_arena_alloc(&recipe->arena, size + 1);
    if (copy == NULL) return NULL;
    memcpy(copy, text, size);
    copy[size] = '\0';
    return copy;
}

static wf_status no_memory(wf_ctx *ctx, const wf_recipe *recipe) {
    return wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory", recipe->label);
}

/* A mistake in a file is bad input, one in an override (line 0) a mistake of the command line. */
static wf_status fault(int line) { return line == 0 ? WF_ERR_USAGE : WF_ERR_INPUT; }

static recipe_section *find_section(const wf_recipe *recipe, piece name) {
    for (recipe_section *s = recipe->sections; s != NULL; s = s->next)
        if (equals(s->name, name)) return s;
    return NULL;
}

static setting *find_setting(const recipe_section *s, piece key) {
    for (setting *one = s == NULL ? NULL : s->settings; one != NULL; one = one->next)
        if (equals(one->key, key)) return one;
    return NULL;
}

/* --- reading ---------------------------------------------------------------------------------- */

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* What stands after a \ in quotes: a quote, a \, or x and the two digits of a control character.
 * Returns the characters of `p` that it takes; 0: it is none of these. */
static size_t read_escape(piece p, char *out) {
    if (p.size == 0) return 0;
    *out = p.text[0];
    if (p.text[0] == '"' || p.text[0] == '\\') return 1;
    if (p.text[0] != 'x' || p.size < 3) return 0;
    int high = hex_digit(p.text[1]), low = hex_digit(p.text[2]);
    if (high < 0 || low < 0) return 0;
    *out = (char)(high << 4 | low);
    return is_control(*out) && *out != '\0' ? 3 : 0;
}

/* The value of a setting. In a file, '#' after a space begins a comment; in an override it does
 * not. */
static wf_status read_value(wf_ctx *ctx, wf_recipe *recipe, const char *where, piece p, int line,
                            const char **out) {
    p = trim(p);
    if (p.size > 0 && p.text[0] == '"') {
        char *value = wf_arena_alloc(&recipe->arena, p.size);
        if (value == NULL) return no_memory(ctx, recipe);
        size_t size = 0, at = 1;
        while (at < p.size && p.text[at] != '"') {
            char c = p.text[at++];
            if (c == '\\') {
                size_t taken = read_escape((piece){p.text + at, p.size - at}, &c);
                if (taken == 0)
                    return wf_fail(ctx, fault(line),
                                   "%s: in quotes, \\ stands before \", \\ or the x of a control "
                                   "character (\\x0a is a newline) only",
                                   where);
                at += taken;
            }
            value[size++] = c;
        }
        if (at == p.size)
            return wf_fail(ctx, fault(line), "%s: the value lacks its closing quote", where);
        value[size] = '\0';
        piece rest = trim((piece){p.text + at + 1, p.size - at - 1});
        bool comment =
            rest.size > 0 && rest.text[0] == '#' && line > 0 && rest.text > p.text + at + 1;
        if (rest.size > 0 && !comment)
            return wf_fail(ctx, fault(line), "%s: \"%.*s\" stands after the closing quote", where,
                           (int)(rest.size < 40 ? rest.size : 40), rest.text);
        *out = value;
        return WF_OK;
    }
    for (size_t i = 0; line > 0 && i < p.size; i++)
        if (p.text[i] == '#' && (i == 0 || is_space(p.text[i - 1]))) p.size = i;
    p = trim(p);
    if (p.size == 0 && line > 0)
        return wf_fail(ctx, fault(line), "%s: the key has no value; write \"\" for an empty one",
                       where);
    *out = keep(recipe, p.text, p.size);
    return *out == NULL ? no_memory(ctx, recipe) : WF_OK;
}

static recipe_section *add_section(wf_recipe *recipe, piece name, int line) {
    recipe_section **end = &recipe->sections;
    while (*end != NULL) end = &(*end)->next;
    recipe_section *s = wf_arena_zalloc(&recipe->arena, sizeof *s);
    if (s == NULL || (s->name = keep(recipe, name.text, name.size)) == NULL) return NULL;
    s->line = line;
    return *end = s;
}

static wf_status add_setting(wf_ctx *ctx, wf_recipe *recipe, recipe_section *s, piece key,
                             const char *value, int line) {
    if (++recipe->keys > most_keys)
        return wf_fail(ctx, WF_ERR_INPUT, "%s: more than %d settings", recipe->label, most_keys);
    setting **end = &s->settings;
    while (*end != NULL) end = &(*end)->next;
    setting *one = wf_arena_zalloc(&recipe->arena, sizeof *one);
    if (one == NULL || (one->key = keep(recipe, key.text, key.size)) == NULL)
        return no_memory(ctx, recipe);
    one->value = value;
    one->line = line;
    *end = one;
    return WF_OK;
}

static wf_status read_section(wf_ctx *ctx, wf_recipe *recipe, const char *where, piece p, int line,
                              recipe_section **current) {
    const char *close = memchr(p.text, ']', p.size);
    if (close == NULL) return wf_fail(ctx, WF_ERR_INPUT, "%s: the section lacks its ']'", where);
    piece name = trim((piece){p.text + 1, (size_t)(close - p.text) - 1});
    piece rest = trim((piece){close + 1, p.size - (size_t)(close - p.text) - 1});
    if (rest.size > 0 && rest.text[0] != '#')
        return wf_fail(ctx, WF_ERR_INPUT, "%s: only a comment may stand after [%.*s]", where,
                       (int)(name.size < 64 ? name.size : 64), name.text);
    if (!is_name(name))
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: \"%.*s\" is no section name; letters, digits, _ and - make one, 64 at "
                       "most",
                       where, (int)(name.size < 64 ? name.size : 64), name.text);
    const recipe_section *earlier = find_section(recipe, name);
    if (earlier != NULL)
        return wf_fail(ctx, WF_ERR_INPUT, "%s: section [%s] was begun in line %d already", where,
                       earlier->name, earlier->line);
    if (++recipe->keys > most_keys)
        return wf_fail(ctx, WF_ERR_INPUT, "%s: more than %d settings", recipe->label, most_keys);
    *current = add_section(recipe, name, line);
    return *current == NULL ? no_memory(ctx, recipe) : WF_OK;
}

static wf_status read_setting(wf_ctx *ctx, wf_recipe *recipe, const char *where, piece p, int line,
                              recipe_section *current) {
    const char *sign = memchr(p.text, '=', p.size);
    int shown = (int)(p.size < 60 ? p.size : 60);
    if (sign == NULL)
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: \"%.*s\" is neither a [section] nor a \"key = value\"", where, shown,
                       p.text);
    piece key = trim((piece){p.text, (size_t)(sign - p.text)});
    if (!is_name(key))
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: \"%.*s\" is no key; letters, digits, _ and - make one, 64 at most",
                       where, (int)(key.size < 64 ? key.size : 64), key.text);
    if (current == NULL)
        return wf_fail(ctx, WF_ERR_INPUT, "%s: \"%.*s\" stands before the first [section]", where,
                       (int)key.size, key.text);
    const setting *earlier = find_setting(current, key);
    if (earlier != NULL)
        return wf_fail(ctx, WF_ERR_INPUT, "%s: %s was set in line %d already", where, earlier->key,
                       earlier->line);
    const char *value;
    piece behind = {sign + 1, p.size - (size_t)(sign - p.text) - 1};
    WF_TRY(read_value(ctx, recipe, where, behind, line, &value));
    return add_setting(ctx, recipe, current, key, value, line);
}

static wf_status check_characters(wf_ctx *ctx, const char *where, int line, piece p) {
    size_t good = wf_utf8_check(p.text, p.size);
    if (good < p.size)
        return wf_fail(ctx, fault(line), "%s: not UTF-8 at column %zu", where, good + 1);
    for (size_t i = 0; i < p.size; i++) {
        if (is_control(p.text[i]))
            return wf_fail(ctx, fault(line), "%s: control character 0x%02x at column %zu", where,
                           (unsigned char)p.text[i], i + 1);
    }
    return WF_OK;
}

static wf_status read_line(wf_ctx *ctx, wf_recipe *recipe, piece p, int line,
                           recipe_section **current) {
    char where[512];
    snprintf(where, sizeof where, "%.480s:%d", recipe->label, line);
    if (p.size > 0 && p.text[p.size - 1] == '\r') p.size--;
    WF_TRY(check_characters(ctx, where, line, p));
    p = trim(p);
    if (p.size == 0 || p.text[0] == '#') return WF_OK;
    if (p.text[0] == '[') return read_section(ctx, recipe, where, p, line, current);
    return read_setting(ctx, recipe, where, p, line, *current);
}

static wf_status read_lines(wf_ctx *ctx, wf_recipe *recipe, const char *text, size_t size) {
    recipe_section *current = NULL;
    if (size >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) text += 3, size -= 3;
    for (int line = 1; size > 0; line++) {
        const char *newline = memchr(text, '\n', size);
        size_t length = newline != NULL ? (size_t)(newline - text) : size;
        WF_TRY(read_line(ctx, recipe, (piece){text, length}, line, &current));
        size_t taken = newline != NULL ? length + 1 : length;
        text += taken;
        size -= taken;
    }
    return WF_OK;
}

wf_status wf_recipe_parse(wf_ctx *ctx, const char *label, const char *text, size_t size,
                          wf_recipe **out) {
    *out = NULL;
    if (size > most_bytes)
        return wf_fail(ctx, WF_ERR_INPUT, "%s: %zu bytes are too many for a recipe", label, size);
    wf_recipe *recipe;
    WF_TRY(wf_alloc(ctx, 1, sizeof *recipe, label, &recipe));
    recipe->label = keep(recipe, label, strlen(label));
    wf_status status = WF_OK;
    if (recipe->label == NULL) status = wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory", label);
    else status = read_lines(ctx, recipe, text, size);
    if (status == WF_OK) *out = recipe;
    else wf_recipe_free(recipe);
    return status;
}

wf_status wf_recipe_open(wf_ctx *ctx, const char *path, wf_recipe **out) {
    *out = NULL;
    char *text;
    size_t size;
    WF_TRY(wf_read_file(ctx, path, most_bytes, &text, &size));
    wf_status status = wf_recipe_parse(ctx, path, text, size, out);
    free(text);
    return status;
}

void wf_recipe_free(wf_recipe *recipe) {
    if (recipe == NULL) return;
    wf_arena_free(&recipe->arena);
    free(recipe);
}

/* Replaces or adds a value, as an override does. */
static wf_status put(wf_ctx *ctx, wf_recipe *recipe, piece name, piece key, const char *value) {
    recipe_section *s = find_section(recipe, name);
    if (s == NULL && (s = add_section(recipe, name, 0)) == NULL) return no_memory(ctx, recipe);
    setting *one = find_setting(s, key);
    if (one == NULL) return add_setting(ctx, recipe, s, key, value, 0);
    one->value = value;
    one->line = 0;
    return WF_OK;
}

wf_status wf_recipe_override(wf_ctx *ctx, wf_recipe *recipe, const char *assignment) {
    char where[128];
    snprintf(where, sizeof where, "override \"%.100s\"", assignment);
    WF_TRY(check_characters(ctx, where, 0, (piece){assignment, strlen(assignment)}));
    const char *sign = strchr(assignment, '=');
    const char *dot = sign == NULL ? NULL : memchr(assignment, '.', (size_t)(sign - assignment));
    if (dot == NULL) return wf_fail(ctx, WF_ERR_USAGE, "%s: write it as section.key=value", where);
    piece name = trim((piece){assignment, (size_t)(dot - assignment)});
    piece key = trim((piece){dot + 1, (size_t)(sign - dot) - 1});
    if (!is_name(name) || !is_name(key))
        return wf_fail(ctx, WF_ERR_USAGE,
                       "%s: letters, digits, _ and - make a section and a key, 64 at most", where);
    const char *value;
    WF_TRY(read_value(ctx, recipe, where, (piece){sign + 1, strlen(sign + 1)}, 0, &value));
    return put(ctx, recipe, name, key, value);
}

wf_status wf_recipe_set(wf_ctx *ctx, wf_recipe *recipe, const char *section, const char *key,
                        const char *value) {
    const char *kept = keep(recipe, value, strlen(value));
    if (kept == NULL) return no_memory(ctx, recipe);
    return put(ctx, recipe, (piece){section, strlen(section)}, (piece){key, strlen(key)}, kept);
}

/* --- asking ----------------------------------------------------------------------------------- */

const char *wf_recipe_section(const wf_recipe *recipe, int index) {
    const recipe_section *s = recipe->sections;
    while (s != NULL && index-- > 0) s = s->next;
    return s != NULL ? s->name : NULL;
}

bool wf_recipe_has_section(const wf_recipe *recipe, const char *name) {
    return find_section(recipe, (piece){name, strlen(name)}) != NULL;
}

static setting *look_up(const wf_recipe *recipe, const char *name, const char *key) {
    const recipe_section *s = find_section(recipe, (piece){name, strlen(name)});
    return find_setting(s, (piece){key, strlen(key)});
}

bool wf_recipe_has(const wf_recipe *recipe, const char *section, const char *key) {
    return look_up(recipe, section, key) != NULL;
}

static bool was_asked(const wf_recipe *recipe, const char *section, const char *key) {
    for (const asked *a = recipe->asked; a != NULL; a = a->next)
        if (strcmp(a->section, section) == 0 && strcmp(a->key, key) == 0) return true;
    return false;
}

/* Marks the key as known; *out is its setting, or NULL. */
static wf_status ask(wf_ctx *ctx, wf_recipe *recipe, const char *section, const char *key,
                     const setting **out) {
    *out = look_up(recipe, section, key);
    if (was_asked(recipe, section, key)) return WF_OK;
    asked *a = wf_arena_zalloc(&recipe->arena, sizeof *a);
    if (a == NULL) return no_memory(ctx, recipe);
    a->section = keep(recipe, section, strlen(section));
    a->key = keep(recipe, key, strlen(key));
    if (a->section == NULL || a->key == NULL) return no_memory(ctx, recipe);
    asked **end = &recipe->asked;
    while (*end != NULL) end = &(*end)->next;
    *end = a;
    return WF_OK;
}

wf_status wf_recipe_string(wf_ctx *ctx, wf_recipe *recipe, const char *section, const char *key,
                           const char **value) {
    const setting *one;
    WF_TRY(ask(ctx, recipe, section, key, &one));
    if (one != NULL) *value = one->value;
    return WF_OK;
}

wf_status wf_recipe_refuse(wf_ctx *ctx, const wf_recipe *recipe, const char *section,
                           const char *key, const char *allowed) {
    const setting *one = look_up(recipe, section, key);
    if (one == NULL)
        return wf_fail(ctx, WF_ERR_INPUT, "%s: [%s] %s is not set; allowed is %s", recipe->label,
                       section, key, allowed);
    char place[512];
    if (one->line == 0) snprintf(place, sizeof place, "override %.64s.%.64s", section, one->key);
    else
        snprintf(place, sizeof place, "%.300s:%d: [%.64s] %.64s", recipe->label, one->line, section,
                 one->key);
    return wf_fail(ctx, fault(one->line), "%s is \"%.80s\"; allowed is %s", place, one->value,
                   allowed);
}

wf_status wf_recipe_settings(wf_ctx *ctx, wf_recipe *recipe, const wf_setting *rows, void *desc) {
    for (; rows->key != NULL; rows++) {
        const setting *one = NULL;
        if (*rows->key != '\0') WF_TRY(ask(ctx, recipe, rows->section, rows->key, &one));
        if (one == NULL || wf_setting_parse(rows, one->value, desc)) continue;
        char allowed[600];
        wf_setting_allowed(rows, allowed, sizeof allowed);
        const char *near = rows->names == NULL ? NULL : wf_nearest_name(one->value, rows->names);
        wf_text text = {.start = allowed, .size = sizeof allowed, .length = strlen(allowed)};
        if (near != NULL) wf_text_add(&text, " (did you mean %s?)", near);
        return wf_recipe_refuse(ctx, recipe, rows->section, rows->key, allowed);
    }
    return WF_OK;
}

/* --- what nobody asked for -------------------------------------------------------------------- */

enum { most_names = 512 };

/* Names that are known, each once, as a list for wf_nearest_name and as text. */
typedef struct known_names {
    const char *list[most_names + 1];
    int count;
    char buffer[400];
    wf_text text;
} known_names;

static void know(known_names *known, const char *name) {
    for (int i = 0; i < known->count; i++)
        if (strcmp(known->list[i], name) == 0) return;
    if (known->count == most_names) return;
    if (known->count == 0) known->text = wf_text_start(known->buffer, sizeof known->buffer);
    wf_text_add(&known->text, "%s%s", known->count > 0 ? ", " : "", name);
    known->list[known->count++] = name;
}

static wf_status refuse_section(wf_ctx *ctx, const wf_recipe *recipe, const recipe_section *s) {
    char place[512];
    if (s->line == 0) snprintf(place, sizeof place, "an override");
    else snprintf(place, sizeof place, "%.480s:%d", recipe->label, s->line);
    known_names known = {0};
    for (const asked *a = recipe->asked; a != NULL; a = a->next) know(&known, a->section);
    const char *near = wf_nearest_name(s->name, known.list);
    if (near != NULL)
        return wf_fail(ctx, fault(s->line), "%s: unknown section [%s]; did you mean [%s]?", place,
                       s->name, near);
    return wf_fail(ctx, fault(s->line), "%s: unknown section [%s]; known here: %s", place, s->name,
                   known.buffer);
}

static wf_status refuse_key(wf_ctx *ctx, const wf_recipe *recipe, const recipe_section *s,
                            const setting *one) {
    char place[512];
    if (one->line == 0) snprintf(place, sizeof place, "override %s.%s", s->name, one->key);
    else snprintf(place, sizeof place, "%.480s:%d", recipe->label, one->line);
    const char *elsewhere = NULL;
    known_names known = {0};
    for (const asked *a = recipe->asked; a != NULL; a = a->next)
        if (strcmp(a->section, s->name) == 0) know(&known, a->key);
        else if (strcmp(a->key, one->key) == 0) elsewhere = a->section;
    if (elsewhere != NULL)
        return wf_fail(ctx, fault(one->line), "%s: [%s] has no key \"%s\"; it belongs to [%s]",
                       place, s->name, one->key, elsewhere);
    const char *near = wf_nearest_name(one->key, known.list);
    if (near != NULL)
        return wf_fail(ctx, fault(one->line), "%s: [%s] has no key \"%s\"; did you mean \"%s\"?",
                       place, s->name, one->key, near);
    return wf_fail(ctx, fault(one->line), "%s: [%s] has no key \"%s\"; it has %s", place, s->name,
                   one->key, known.buffer);
}

wf_status wf_recipe_finish(wf_ctx *ctx, const wf_recipe *recipe) {
    for (const recipe_section *s = recipe->sections; s != NULL; s = s->next) {
        bool known = false;
        for (const asked *a = recipe->asked; a != NULL && !known; a = a->next)
            known = strcmp(a->section, s->name) == 0;
        if (!known) return refuse_section(ctx, recipe, s);
        for (const setting *one = s->settings; one != NULL; one = one->next)
            if (!was_asked(recipe, s->name, one->key)) return refuse_key(ctx, recipe, s, one);
    }
    return WF_OK;
}

/* --- writing ---------------------------------------------------------------------------------- */

/* Would the plain value read back as something else? */
static bool needs_quotes(const char *value) {
    size_t length = strlen(value);
    if (length == 0 || value[0] == '"' || value[0] == '#') return true;
    if (is_space(value[0]) || is_space(value[length - 1])) return true;
    for (size_t i = 0; i < length; i++)
        if (is_control(value[i]) || (value[i] == '#' && is_space(value[i - 1]))) return true;
    return false;
}

static void put_quoted(wf_long_text *to, const char *value) {
    wf_long_text_put(to, "\"", 1);
    for (; *value != '\0'; value++) {
        if (is_control(*value)) wf_long_text_add(to, "\\x%02x", (unsigned char)*value);
        else {
            if (*value == '"' || *value == '\\') wf_long_text_put(to, "\\", 1);
            wf_long_text_put(to, value, 1);
        }
    }
    wf_long_text_put(to, "\"", 1);
}

wf_status wf_recipe_quote(wf_ctx *ctx, const char *value, char **out) {
    size_t length = strlen(value);
    *out = NULL;
    if (wf_utf8_check(value, length) < length)
        return wf_fail(ctx, WF_ERR_USAGE,
                       "\"%.300s\" is not UTF-8, and a recipe cannot hold it; give it another name",
                       value);
    wf_long_text to = {0};
    if (!needs_quotes(value)) wf_long_text_put(&to, value, length);
    else put_quoted(&to, value);
    *out = wf_long_text_end(&to);
    return *out != NULL ? WF_OK : wf_fail(ctx, WF_ERR_MEMORY, "recipe: out of memory");
}

char *wf_recipe_text(const wf_recipe *recipe) {
    wf_long_text to = {0};
    for (const recipe_section *s = recipe->sections; s != NULL; s = s->next) {
        wf_long_text_add(&to, "%s[%s]\n", s == recipe->sections ? "" : "\n", s->name);
        for (const setting *one = s->settings; one != NULL; one = one->next) {
            char *value;
            if (wf_recipe_quote(NULL, one->value, &value) != WF_OK) to.cut = true;
            else wf_long_text_add(&to, "%s = %s\n", one->key, value);
            free(value);
        }
    }
    return wf_long_text_end(&to);
}
