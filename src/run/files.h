/* files: small things that commands and runs do with files, JSON and rows of the table. */
#ifndef WF_RUN_FILES_H
#define WF_RUN_FILES_H

#include "run/run_app.h"
#include "weft/eval.h"
#include "weft/file.h"

enum { CLI_PATH = 4096 };

/* FOLDER/NAME; fails when it is too long. */
wf_status cli_path(cli_app *app, const char *folder, const char *name, char out[CLI_PATH]);
/* Until the command ends no other process makes this file (NULL: none) or what lies in this
 * folder. */
wf_status cli_lock_file(cli_app *app, const char *path);
wf_status cli_lock_folder(cli_app *app, const char *folder);
double cli_seconds(void);                   /* monotonic clock */
void cli_count(size_t count, char out[32]); /* "1,958,017" */

/* "1,0,0.5" to numbers; `what` is named in faults. */
wf_status cli_numbers(cli_app *app, const char *what, const char *text, float *out, int most,
                      int *count);
json_t *cli_numbers_to_json(const float *numbers, int count);

/* jansson's calls need no check one by one: after cli_json_watch every request for memory that
 * failed, here or in cli_json_malloc, is remembered, and what was built since may be incomplete.
 * Reading, writing and printing refuse then with WF_ERR_MEMORY; cli_json_complete asks the same
 * of a value used otherwise (NULL: not made). */
void cli_json_watch(void);
void *cli_json_malloc(size_t size); /* free() it */
wf_status cli_json_complete(cli_app *app, const char *what, const json_t *json);

wf_status cli_json_read(cli_app *app, const char *path, json_t **out);
wf_status cli_json_write(cli_app *app, const char *path, const json_t *json);

/* Rows and points to JSON and back. Values that are not defined are null. */
void cli_row_of_scores(const char *name, const float *scores, size_t n,
                       wf_eval_row *row); /* all but the score is not defined */
json_t *cli_row_to_json(const wf_eval_row *row);
bool cli_row_from_json(const json_t *json, wf_eval_row *row);
json_t *cli_points_to_json(const char *name, const wf_points *points);
bool cli_points_from_json(const json_t *json, wf_points *points);
void cli_points_release(wf_points *points); /* of cli_points_from_json */
json_t *cli_novelty_to_json(const wf_points *points);

/* A number or a text of a row of eval.json; NaN and "" where there is none. */
double cli_number_of(const json_t *row, const char *key);
const char *cli_text_of(const json_t *row, const char *key);

#endif
