/* prepare_json: a preparation as JSON and back. Doubles are written with 17 digits, which reads
 * back exactly.
 *
 * {"format": "weft preparation 1", "scale": "standard", "target": "class", "classes": ["a", "b"],
 *  "columns": [{"name": "age", "impute": 54.0, "mean": 53.9, "std": 9.1},
 *              {"name": "sex", "levels": ["female", "male"], "impute": "male"}]} */
#include "data/prepare.h"

#include "base/json_text.h"

#include <errno.h>
#include <math.h>
#include <string.h>

static const char *const format_name = "weft preparation 1";

static json_t *write_strings(const char *const *strings, size_t count) {
    json_t *array = json_array();
    for (size_t i = 0; i < count; i++)
        if (json_array_append_new(array, json_string(strings[i])) != 0) {
            json_decref(array);
            return NULL;
        }
    return array;
}

static json_t *write_column(const wf_prepared_column *column) {
    if (!column->categorical)
        return json_pack("{s:s, s:f, s:f, s:f}", "name", column->name, "impute", column->impute,
                         "mean", column->mean, "std", column->std);
    return json_pack("{s:s, s:o, s:s}", "name", column->name, "levels",
                     write_strings(column->levels, column->n_levels), "impute",
                     column->levels[column->impute_level]);
}

char *wf__preparation_write(const wf_preparation *preparation) {
    json_t *columns = json_array();
    for (size_t c = 0; c < preparation->columns; c++)
        if (json_array_append_new(columns, write_column(&preparation->column[c])) != 0) {
            json_decref(columns);
            return NULL;
        }
    char buffer[WF_SETTING_BUFFER];
    const wf_data_desc desc = {.scale = preparation->scale};
    const char *scale =
        wf_setting_text(wf_settings_find(wf_data_settings(), "scale"), &desc, buffer);
    json_t *root =
        json_pack("{s:s, s:s, s:s, s:o, s:o}", "format", format_name, "scale", scale, "target",
                  preparation->target, "classes",
                  write_strings(preparation->classes, preparation->n_classes), "columns", columns);
    char *text = root == NULL ? NULL : wf_json_text(root, JSON_REAL_PRECISION(17) | JSON_COMPACT);
    json_decref(root);
    return text;
}

/* Strings of a JSON array, copied into the arena; false when it is not an array of strings. */
static bool read_strings(const json_t *array, wf_arena *arena, const char ***out, size_t *count) {
    *count = json_array_size(array);
    *out = wf_arena_alloc(arena, *count * sizeof **out);
    if (*count == 0 || *out == NULL) return false;
    for (size_t i = 0; i < *count; i++) {
        const char *text = json_string_value(json_array_get(array, i));
        if (text == NULL || ((*out)[i] = wf__arena_format(arena, "%s", text)) == NULL) return false;
    }
    return true;
}

static bool read_number(const json_t *object, const char *key, double *out) {
    const json_t *value = json_object_get(object, key);
    *out = json_number_value(value);
    return json_is_number(value) && isfinite(*out);
}

static bool read_column(const json_t *object, wf_arena *arena, wf_prepared_column *column) {
    const char *name = json_string_value(json_object_get(object, "name"));
    const json_t *levels = json_object_get(object, "levels");
    if (name == NULL || (column->name = wf__arena_format(arena, "%s", name)) == NULL) return false;
    column->categorical = levels != NULL;
    if (!column->categorical)
        return read_number(object, "impute", &column->impute) &&
               read_number(object, "mean", &column->mean) &&
               read_number(object, "std", &column->std) && column->std > 0;
    const char *impute = json_string_value(json_object_get(object, "impute"));
    if (impute == NULL || !read_strings(levels, arena, &column->levels, &column->n_levels))
        return false;
    for (column->impute_level = 0; column->impute_level < column->n_levels; column->impute_level++)
        if (strcmp(column->levels[column->impute_level], impute) == 0) return true;
    return false;
}

static bool read_scale(const char *name, wf_scale *out) {
    wf_data_desc desc;
    const wf_setting *row = wf_settings_find(wf_data_settings(), "scale");
    if (name == NULL || !wf_setting_parse(row, name, &desc)) return false;
    *out = desc.scale;
    return true;
}

static bool read_root(const json_t *root, wf_preparation *out) {
    const char *format = json_string_value(json_object_get(root, "format"));
    const char *target = json_string_value(json_object_get(root, "target"));
    const json_t *columns = json_object_get(root, "columns");
    if (format == NULL || strcmp(format, format_name) != 0 || target == NULL) return false;
    if (!read_scale(json_string_value(json_object_get(root, "scale")), &out->scale)) return false;
    out->target = wf__arena_format(&out->arena, "%s", target);
    if (out->target == NULL || !read_strings(json_object_get(root, "classes"), &out->arena,
                                             &out->classes, &out->n_classes))
        return false;
    out->columns = json_array_size(columns);
    out->column = wf_arena_zalloc(&out->arena, out->columns * sizeof *out->column);
    if (out->columns == 0 || out->column == NULL) return false;
    for (size_t c = 0; c < out->columns; c++) {
        if (!read_column(json_array_get(columns, c), &out->arena, &out->column[c])) return false;
        out->inputs += out->column[c].categorical ? out->column[c].n_levels : 1;
    }
    return true;
}

wf_status wf__preparation_read(wf_ctx *ctx, const char *json, wf_preparation *out) {
    *out = (wf_preparation){0};
    json_t *root;
    WF_TRY(wf_json_read(ctx, "preparation: not JSON", json, WF_ERR_INPUT, &root));
    errno = 0;
    bool fine = read_root(root, out), lacking = errno == ENOMEM;
    json_decref(root);
    if (fine) return WF_OK;
    wf__preparation_free(out);
    if (lacking) return wf_fail(ctx, WF_ERR_MEMORY, "preparation: out of memory");
    return wf_fail(ctx, WF_ERR_INPUT,
                   "preparation: not a \"%s\"; it comes from another version or was edited",
                   format_name);
}
