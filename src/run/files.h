/* files: small things that commands and runs do with files, JSON and rows of the table. */
#pragma once

#include "run/run_app.h"
#include "weft/eval.h"
#include "weft/file.h"

enum { WF_RUN_PATH = 4096 };

bool wf__run_ends_with(const char *text, const char *ending); /* and is longer than it */
/* FOLDER/NAME; fails when it is too long. */
wf_status wf__run_path(wf_run_app *app, const char *folder, const char *name,
                       char out[WF_RUN_PATH]);
/* The path from the root, for a recipe that is read in any folder; a pattern too. */
wf_status wf__run_whole_path(wf_run_app *app, const char *path, char out[WF_RUN_PATH]);
/* Until the command ends no other process makes this file (NULL: none) or what lies in this
 * folder. */
wf_status wf__run_lock_file(wf_run_app *app, const char *path);
wf_status wf__run_lock_folder(wf_run_app *app, const char *folder);
/* A collection that was made here is there, and nothing that its making could not remove. */
bool wf__run_zoo_is_done(const char *path);
void wf__run_count(size_t count, char out[32]); /* "1,958,017" */

/* "1,0,0.5" to numbers; `what` is named in faults. */
wf_status wf__run_numbers(wf_run_app *app, const char *what, const char *text, float *out, int most,
                          int *count);
json_t *wf__run_numbers_to_json(const float *numbers, int count);

/* jansson's calls need no check one by one: after wf__run_json_watch every request for memory that
 * failed, here or in wf__run_json_malloc, is remembered: what was built since may be incomplete.
 * Reading, writing and printing refuse then with WF_ERR_MEMORY; wf__run_json_complete asks the same
 * of a value used otherwise (NULL: not made). */
void wf__run_json_watch(void);
void *wf__run_json_malloc(size_t size); /* free() it */
wf_status wf__run_json_complete(wf_run_app *app, const char *what, const json_t *json);

wf_status wf__run_json_read(wf_run_app *app, const char *path, json_t **out);
wf_status wf__run_json_write(wf_run_app *app, const char *path, const json_t *json);

/* Rows and points to JSON and back. Values that are not defined are null. */
void wf__run_row_of_scores(const char *name, const float *scores, size_t n,
                           wf_eval_row *row); /* all but the score is not defined */
json_t *wf__run_row_to_json(const wf_eval_row *row);
bool wf__run_row_from_json(const json_t *json, wf_eval_row *row);
json_t *wf__run_points_to_json(const char *name, const wf_points *points);
bool wf__run_points_from_json(const json_t *json, wf_points *points); /* wf_points_free them */
json_t *wf__run_novelty_to_json(const wf_points *points);

/* A number or a text of a row of eval.json; NaN and "" where there is none. */
double wf__run_number_of(const json_t *row, const char *key);
const char *wf__run_text_of(const json_t *row, const char *key);
