/* eval_json: a row of the table as JSON. */
#pragma once

#include "weft/eval.h"

#include <jansson.h>

/* The object that wf_eval_json() describes; NULL: out of memory. */
json_t *wf__eval_row_json(const wf_eval_row *row, const wf_points *points);
