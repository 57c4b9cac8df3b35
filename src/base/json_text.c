/* json_text: see json_text.h. The text is measured, then written into a buffer of its size. */
#include "base/json_text.h"

#include <stdlib.h>

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
