/* settings_json: settings as JSON, and JSON that a caller hands in. */
#pragma once

#include "weft/settings.h"

#include <jansson.h>

#define WF_MOST_EXACT 9007199254740992.0 /* 2^53: a double holds whole numbers up to it exactly */

/* The value of a setting that is a number, a choice or a switch; 0 for texts. */
double wf__setting_number(const wf_setting *row, const void *desc);

/* A JSON object from a caller's text; NULL and "" are an empty one. WF_ERR_USAGE says where it is
 * no object, and names `what`. json_decref(*out). */
wf_status wf__json_options(wf_ctx *ctx, const char *what, const char *text, json_t **out);
/* WF_ERR_USAGE unless each key of `object` is one of `names` (ended by NULL). */
wf_status wf__json_known(wf_ctx *ctx, const char *what, const json_t *object,
                         const char *const *names);

/* wf_settings_create with an object that was read before; NULL: an empty one. */
wf_status wf__settings_from_object(wf_ctx *ctx, const wf_setting *rows, const json_t *object,
                                   void **out);
/* wf_settings_json as an object; NULL: out of memory. */
json_t *wf__settings_object(const wf_setting *rows, const void *desc);
/* A number, or null where it is not finite. */
json_t *wf__json_real(double value);
/* The text of an object that was just made, which is released; wf_free(*out). */
wf_status wf__json_answer(wf_ctx *ctx, json_t *object, char **out);
