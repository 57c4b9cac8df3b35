/* compare_methods: what weft compare --methods says of each run: generator and size, updates,
 * seconds, variants of JWS, networks as points. */
#ifndef CLI_COMPARE_METHODS_H
#define CLI_COMPARE_METHODS_H

#include "cli/cli.h"
#include "run/pipeline.h"

typedef struct cli_method {
    char label[96]; /* "dit, 2,019,872 parameters": runs with the same are one line of a plot */
    size_t params;  /* 0: not known */
    char generator[64];
    char log[WF_RUN_PATH]; /* what training wrote; "": nothing */
    const char *log_digest;
    size_t updates;  /* that were made, of all phases; 0: not known */
    wf_eval_row row; /* of its networks, direct ones where it refines */
    json_t *points;  /* points.json; NULL: not wanted, or there is none */
    wf_points *clouds;
    char (*names)[64];
    int n_clouds;
} cli_method;

/* Of the run in `folder`. points: they are wanted. `stages` is borrowed. */
wf_status cli_method_read(wf_run_app *app, const char *folder, const json_t *eval,
                          const json_t *stages, const json_t *settings, bool points,
                          cli_method *out);
void cli_method_free(cli_method *method);
const wf_points *cli_method_points(const cli_method *method, const char *row); /* or NULL */

double cli_stage_seconds(const json_t *stages, wf_stage stage); /* 0 where none are recorded */
void cli_print_methods_head(void);
void cli_print_method(const char *run, const cli_method *method, const json_t *stages);
void cli_method_text(const cli_method *method, const json_t *stages, char *out, size_t size);
json_t *cli_method_to_json(const cli_method *method, const json_t *stages);

#endif
