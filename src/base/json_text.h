/* json_text: a JSON value as text. Where memory is short there is no text, never part of one. */
#pragma once

#include "base/status.h"

#include <jansson.h>

/* flags are those of json_dumps, which drops what did not fit where memory ran out and calls the
 * rest a success. NULL: no memory. Free with free(). */
char *wf_json_text(const json_t *json, size_t flags);
/* A text that may come from a file's name: where it is not UTF-8, which JSON demands, bytes above
 * 127 become '?'. NULL: no memory. */
json_t *wf_json_string(const char *text);

/* A small text as JSON. jansson drops characters when memory is short and does not always say so:
 * the text is read twice, and what differs was short of memory.
 * Returns WF_OK, `bad` (no JSON: "WHAT (line 3): why") or WF_ERR_MEMORY; *out is then NULL. */
wf_status wf_json_read(wf_ctx *ctx, const char *what, const char *text, wf_status bad,
                       json_t **out);
