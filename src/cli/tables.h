/* tables: tables of results on standard output. */
#pragma once

#include "cli/cli.h"
#include "run/job.h"

/* auc names the score's column, copies (may be NULL) marks rows. */
void cli_print_rows(const wf_eval_row *rows, int count, bool auc, const bool *copies);
/* The table of a run that ended, of any kind. */
wf_status cli_print_job(wf_run_job *run);
