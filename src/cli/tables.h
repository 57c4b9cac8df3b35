/* tables: tables of results on standard output. */
#ifndef WF_CLI_TABLES_H
#define WF_CLI_TABLES_H

#include "cli/cli.h"
#include "run/job.h"

/* auc names the score's column, copies (may be NULL) marks rows. */
void cli_print_rows(const wf_eval_row *rows, int count, bool auc, const bool *copies);
/* An eval.json, with where this call's work ran; frees it. */
wf_status cli_print_eval_json(wf_run_app *app, json_t *eval);
/* The table of a run that ended, of any kind. */
wf_status cli_print_job(wf_run_job *run);

#endif
