/* eval_json: rows of the table and points as JSON, and the members that both have. */
#pragma once

#include "weft/eval.h"

#include <jansson.h>

/* The numbers of a row and the arrays of points: name in JSON, place in the struct. Both tables end
 * with a NULL name. */
typedef struct wf_row_member {
    const char *name;
    size_t offset;
} wf_row_member;
typedef struct wf_points_member {
    const char *name;
    size_t offset;
    bool index; /* of uint32_t, else of float */
} wf_points_member;
extern const wf_row_member wf__row_members[];
extern const wf_points_member wf__points_members[];

/* The number of a row. */
static inline double *wf__row_number(const wf_eval_row *row, const wf_row_member *member) {
    return (double *)(void *)((char *)(uintptr_t)row + member->offset);
}
/* Where points keep the array. */
static inline void **wf__points_array(const wf_points *points, const wf_points_member *member) {
    return (void **)(void *)((char *)(uintptr_t)points + member->offset);
}

/* {"name", "n", the numbers}, and {the arrays that there are}. NULL: out of memory. */
json_t *wf__row_json(const wf_eval_row *row);
json_t *wf__points_json(const wf_points *points);
/* The object that wf_eval_json() describes; NULL: out of memory. */
json_t *wf__eval_row_json(const wf_eval_row *row, const wf_points *points);
