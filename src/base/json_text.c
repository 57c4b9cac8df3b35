/* json_text: see json_text.h. The text is measured, then written into a buffer of its size. */
#include "base/json_text.h"
#include "base/status.h"
#include "weft/file.h"

#include <stdlib.h>
#include <string.h>

/* What jansson takes for a value, with the allocator's share; memory that any text may take. */
enum {
    object_cost = 256,
    array_cost = 128,
    member_cost = 64,
    cost_floor = 64 << 20,
    cost_factor = 4
};

wf_status wf_json_check(wf_ctx *ctx, const char *label, const char *text, size_t size) {
    size_t cost = 0;
    bool in_string = false;
    for (size_t i = 0; i < size; i++) {
        char c = text[i];
        if (c == '"') in_string = !in_string;
        else if (in_string) i += c == '\\';
        else if (c == '{') cost += object_cost;
        else if (c == '[') cost += array_cost;
        else if (c == ',' || c == ':') cost += member_cost;
    }
    if (cost <= cost_floor + cost_factor * size) return WF_OK;
    return wf_fail(ctx, WF_ERR_INPUT,
                   "%s: JSON of %zu bytes that would take %zu MB of memory; it is damaged or was "
                   "not made by weft",
                   label, size, cost >> 20);
}

char *wf_json_text(const json_t *json, size_t flags) {
    size_t length = json_dumpb(json, NULL, 0, flags);
    char *text = length == 0 ? NULL : malloc(length + 1);
    if (text == NULL) return NULL;
    if (json_dumpb(json, text, length, flags) != length) {
        free(text);
        return NULL;
    }
    text[length] = '\0';
    return text;
}

json_t *wf_json_string(const char *text) {
    json_t *string = json_string(text);
    char *copy = string == NULL ? strdup(text) : NULL;
    if (copy == NULL) return string;
    for (char *c = copy; *c != '\0'; c++)
        if ((unsigned char)*c >= 128) *c = '?';
    string = json_string(copy);
    free(copy);
    return string;
}

wf_status wf_json_read(wf_ctx *ctx, const char *what, const char *text, wf_status bad,
                       json_t **out) {
    json_error_t error = {0};
    *out = NULL;
    WF_TRY(wf_json_check(ctx, what, text, strlen(text)));
    json_t *once = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    json_t *again = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    bool same = once != NULL && again != NULL ? json_equal(once, again) : once == again;
    void *probe = malloc(strlen(text) + 4096);
    bool lacking = !same || probe == NULL;
    free(probe);
    json_decref(again);
    if (once != NULL && !lacking) {
        *out = once;
        return WF_OK;
    }
    json_decref(once);
    if (lacking) return wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory", what);
    return wf_fail(ctx, bad, "%s (line %d): %s", what, error.line, error.text);
}
