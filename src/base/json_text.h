/* json_text: a JSON value as text, whole or not at all. */
#ifndef WF_BASE_JSON_TEXT_H
#define WF_BASE_JSON_TEXT_H

#include <jansson.h>

/* flags are those of json_dumps, which drops what did not fit where memory ran out and calls the
 * rest a success. NULL: no memory. Free with free(). */
char *wf_json_text(const json_t *json, size_t flags);

#endif
