/* settings_json: see settings_json.h and weft/settings.h.
 *
 * A value in JSON becomes the text that a recipe would have, and is read by the same parser:
 * ranges, names and messages are those of recipes. */
#include "base/settings_json.h"

#include "base/c_locale.h"
#include "base/json_text.h"
#include "base/status.h"
#include "weft/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- to JSON ---------------------------------------------------------------------------------- */

static json_t *value_json(const wf_setting *row, const void *desc) {
    char buffer[WF_SETTING_BUFFER];
    const char *text = wf_setting_text(row, desc, buffer);
    switch (row->type) {
    case WF_SETTING_BOOL: return json_boolean(wf__setting_number(row, desc) != 0);
    case WF_SETTING_REAL: return json_real(wf__setting_number(row, desc));
    case WF_SETTING_INT:
    case WF_SETTING_SIZE:
    case WF_SETTING_SEED:
        if (wf__setting_number(row, desc) <= WF_MOST_EXACT)
            return json_integer((json_int_t)wf__setting_number(row, desc));
        return json_string(text);
    default: return *text == '\0' ? json_null() : json_string(text);
    }
}

json_t *wf__settings_object(const wf_setting *rows, const void *desc) {
    json_t *object = json_object();
    bool good = object != NULL;
    for (; good && rows->key != NULL; rows++)
        good = *rows->key == '\0' ||
               json_object_set_new(object, rows->key, value_json(rows, desc)) == 0;
    if (good) return object;
    json_decref(object);
    return NULL;
}

char *wf_settings_json(const wf_setting *rows, const void *desc) {
    json_t *object = wf__settings_object(rows, desc);
    char *text = object == NULL ? NULL : wf_json_text(object, JSON_PRESERVE_ORDER);
    json_decref(object);
    return text;
}

json_t *wf__json_real(double value) { return isfinite(value) ? json_real(value) : json_null(); }

wf_status wf__json_answer(wf_ctx *ctx, json_t *object, char **out) {
    *out = object == NULL ? NULL : wf_json_text(object, JSON_PRESERVE_ORDER);
    json_decref(object);
    return *out != NULL ? WF_OK : wf_fail(ctx, WF_ERR_MEMORY, "out of memory");
}

static json_t *names_json(const wf_setting *row) {
    json_t *list = json_array();
    for (int i = 0; row->names != NULL && row->names[i] != NULL; i++)
        json_array_append_new(list, json_string(row->names[i]));
    return list;
}

wf_status wf_settings_describe(wf_ctx *ctx, const wf_setting *rows, char **out) {
    static const char *const types[] = {"text", "bool", "int",    "int",
                                        "seed", "real", "choice", "choice"};
    json_t *list = json_array();
    bool good = list != NULL;
    for (; good && rows->key != NULL; rows++) {
        char allowed[512];
        if (*rows->key == '\0') continue;
        wf_setting_allowed(rows, allowed, sizeof allowed);
        json_t *row = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s}", "section", rows->section, "key",
                                rows->key, "type", types[rows->type], "default", rows->text,
                                "allowed", allowed, "help", rows->help);
        if (row != NULL && rows->names != NULL)
            good = json_object_set_new(row, "names", names_json(rows)) == 0;
        good = good && json_array_append_new(list, row) == 0;
    }
    if (good) return wf__json_answer(ctx, list, out);
    json_decref(list);
    *out = NULL;
    return wf_fail(ctx, WF_ERR_MEMORY, "out of memory");
}

/* --- from JSON -------------------------------------------------------------------------------- */

wf_status wf__json_options(wf_ctx *ctx, const char *what, const char *text, json_t **out) {
    *out = NULL;
    if (text == NULL || *text == '\0') {
        *out = json_object();
        return *out != NULL ? WF_OK : wf_fail(ctx, WF_ERR_MEMORY, "out of memory");
    }
    char label[80];
    snprintf(label, sizeof label, "%.40s: options are not JSON", what);
    WF_TRY(wf_json_read(ctx, label, text, WF_ERR_USAGE, out));
    if (json_is_object(*out)) return WF_OK;
    json_decref(*out);
    *out = NULL;
    return wf_fail(ctx, WF_ERR_USAGE, "%s: options are a JSON object, {...}", what);
}

wf_status wf__json_known(wf_ctx *ctx, const char *what, const json_t *object,
                         const char *const *names) {
    for (void *at = json_object_iter((json_t *)(uintptr_t)object); at != NULL;
         at = json_object_iter_next((json_t *)(uintptr_t)object, at)) {
        const char *key = json_object_iter_key(at);
        bool known = false;
        for (int i = 0; names[i] != NULL && !known; i++) known = strcmp(key, names[i]) == 0;
        if (known) continue;
        const char *near = wf_nearest_name(key, names);
        char all[256];
        wf_text list = wf_text_start(all, sizeof all);
        for (int i = 0; names[i] != NULL; i++)
            wf_text_add(&list, "%s%s", i > 0 ? ", " : "", names[i]);
        return wf_fail(ctx, WF_ERR_USAGE, "%s has no option \"%.64s\"; %s%s%s", what, key,
                       near != NULL ? "did you mean \"" : "there are ", near != NULL ? near : all,
                       near != NULL ? "\"?" : "");
    }
    return WF_OK;
}

/* What a recipe would write for a scalar; false for lists, objects and null. */
static bool scalar_text(const json_t *value, wf_text *out) {
    if (json_is_string(value)) return wf_text_add(out, "%s", json_string_value(value));
    if (json_is_boolean(value)) return wf_text_add(out, "%s", json_is_true(value) ? "yes" : "no");
    if (json_is_integer(value))
        return wf_text_add(out, "%lld", (long long)json_integer_value(value));
    if (!json_is_real(value)) return false;
    locale_t before = wf_c_locale_enter();
    bool fits = wf_text_add(out, "%.17g", json_real_value(value));
    wf_c_locale_leave(before);
    return fits;
}

/* A list becomes "a, b, c". */
static bool value_text(const json_t *value, wf_text *out) {
    if (!json_is_array(value)) return scalar_text(value, out);
    for (size_t i = 0; i < json_array_size(value); i++) {
        if (i > 0) wf_text_add(out, ", ");
        if (!scalar_text(json_array_get(value, i), out)) return false;
    }
    return !out->cut;
}

/* A whole number written as 3.0, which some languages do, is one. */
static const char *whole_text(const wf_setting *row, const json_t *value, const char *text,
                              char buffer[WF_SETTING_BUFFER]) {
    double number = json_real_value(value);
    if (!json_is_real(value) || row->type == WF_SETTING_REAL || number != floor(number) ||
        fabs(number) > WF_MOST_EXACT)
        return text;
    snprintf(buffer, WF_SETTING_BUFFER, "%.0f", number);
    return buffer;
}

static wf_status set_one(wf_ctx *ctx, const wf_setting *rows, const char *key, const json_t *value,
                         wf_text *texts, void *desc) {
    const wf_setting *row = *key == '\0' ? NULL : wf_settings_find(rows, key);
    if (row == NULL || json_is_null(value))
        return wf_settings_set(ctx, rows, *key == '\0' ? " " : key, row == NULL ? "" : row->text,
                               desc);
    char buffer[4096], number[WF_SETTING_BUFFER];
    bool keep = row->type == WF_SETTING_TEXT;
    wf_text text = keep ? wf_text_start(texts->start + texts->length, texts->size - texts->length)
                        : wf_text_start(buffer, sizeof buffer);
    if (!value_text(value, &text))
        return wf_fail(ctx, WF_ERR_USAGE,
                       "%s.%s: a text, a number, true, false or a list of those "
                       "is expected",
                       row->section, row->key);
    if (keep) texts->length += text.length + 1;
    return wf_settings_set(ctx, rows, key,
                           keep ? text.start : whole_text(row, value, text.start, number), desc);
}

/* Sets what the object has; the texts stay in `texts`. */
static wf_status set_all(wf_ctx *ctx, const wf_setting *rows, const json_t *object, wf_text *texts,
                         void *desc) {
    for (void *at = json_object_iter((json_t *)(uintptr_t)object); at != NULL;
         at = json_object_iter_next((json_t *)(uintptr_t)object, at))
        WF_TRY(
            set_one(ctx, rows, json_object_iter_key(at), json_object_iter_value(at), texts, desc));
    return WF_OK;
}

/* Bytes that suffice for all texts of an object: numbers in lists are written with at most 32. */
static size_t texts_size(const json_t *object) {
    size_t size = 1;
    for (void *at = json_object_iter((json_t *)(uintptr_t)object); at != NULL;
         at = json_object_iter_next((json_t *)(uintptr_t)object, at)) {
        const json_t *value = json_object_iter_value(at);
        size += 64 + json_string_length(value);
        for (size_t i = 0; i < json_array_size(value); i++)
            size += 64 + json_string_length(json_array_get(value, i));
    }
    return size;
}

size_t wf_settings_size(const wf_setting *rows) {
    size_t size = 1;
    for (; rows->key != NULL; rows++)
        if (rows->offset + rows->size > size) size = rows->offset + rows->size;
    return (size + 15) / 16 * 16;
}

wf_status wf__settings_from_object(wf_ctx *ctx, const wf_setting *rows, const json_t *object,
                                   void **out) {
    *out = NULL;
    size_t size = wf_settings_size(rows), room = texts_size(object);
    char *memory;
    WF_TRY(wf_alloc(ctx, size + room, 1, "options", &memory));
    wf_text texts = {.start = memory + size, .size = room};
    wf_settings_default(rows, memory);
    wf_status status = set_all(ctx, rows, object, &texts, memory);
    if (status == WF_OK) *out = memory;
    else free(memory);
    return status;
}

wf_status wf_settings_create(wf_ctx *ctx, const wf_setting *rows, const char *json, void **out) {
    json_t *object;
    *out = NULL;
    WF_TRY(wf__json_options(ctx, rows->section, json, &object));
    wf_status status = wf__settings_from_object(ctx, rows, object, out);
    json_decref(object);
    return status;
}

wf_status wf_settings_from_json(wf_ctx *ctx, const wf_setting *rows, const char *json, void *desc,
                                char **texts) {
    json_t *object;
    void *copy = NULL;
    size_t size = wf_settings_size(rows);
    if (texts != NULL) *texts = NULL;
    WF_TRY(wf__json_options(ctx, rows->section, json, &object));
    size_t room = texts_size(object);
    char *memory = NULL;
    wf_status status = wf_alloc(ctx, room, 1, "options", &memory);
    if (status == WF_OK) status = wf_alloc(ctx, size, 1, "options", &copy);
    if (status == WF_OK) {
        /* On a copy, so that a fault changes nothing. */
        for (const wf_setting *row = rows; row->key != NULL; row++)
            memcpy((char *)copy + row->offset, (char *)desc + row->offset, row->size);
        wf_text kept = {.start = memory, .size = room};
        status = set_all(ctx, rows, object, &kept, copy);
        if (status == WF_OK && kept.length > 0 && texts == NULL)
            status = wf_fail(ctx, WF_ERR_USAGE, "[%s] has texts, which need memory of their own",
                             rows->section);
    }
    for (const wf_setting *row = rows; status == WF_OK && row->key != NULL; row++)
        memcpy((char *)desc + row->offset, (char *)copy + row->offset, row->size);
    if (status == WF_OK && texts != NULL) *texts = memory;
    else free(memory);
    free(copy);
    json_decref(object);
    return status;
}
