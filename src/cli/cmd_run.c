/* run, demo, report: recipes from beginning to end, and the page of a run again. */
#include "cli/commands.h"
#include "cli/tables.h"

static wf_status run_and_print(wf_run_job *r, const char *folder, bool redo) {
    WF_TRY(wf__run_job(r, folder, redo));
    WF_TRY(cli_print_job(r));
    if (r->app->json) return WF_OK;
    char took[32];
    wf__run_duration(wf__run_stages_total(&r->stages), took);
    cli_print("\n%s in all. The page with plots: %s\n", took, r->paths.report);
    return WF_OK;
}

wf_status cli_run(wf_run_app *app) {
    wf_run_job *r;
    WF_TRY(wf__run_job_create(app, &r));
    wf_status status = wf__run_recipe_open(app, app->argument[0], &r->recipe);
    if (status == WF_OK) {
        char folder[WF_RUN_PATH];
        const char *out = cli_text(app, "out");
        if (out != NULL) snprintf(folder, sizeof folder, "%s", out);
        else snprintf(folder, sizeof folder, "runs/%s", r->recipe.name);
        status = run_and_print(r, folder, cli_flag(app, "redo"));
    }
    return wf__run_job_end(r, status);
}

/* The demo's folder is its own, so a newer demo replaces an older one's results. */
wf_status cli_demo(wf_run_app *app) {
    wf_run_job *r;
    WF_TRY(wf__run_job_create(app, &r));
    wf_status status = wf__run_recipe_builtin(app, &r->recipe);
    if (status == WF_OK) status = run_and_print(r, cli_text(app, "out"), true);
    return wf__run_job_end(r, status);
}

static wf_status report_and_print(wf_run_job *r) {
    wf_run_app *app = r->app;
    WF_TRY(wf__run_job_report(r, app->argument[0], cli_text(app, "out")));
    if (app->json) return cli_print_json(app, json_pack("{s:s}", "path", r->paths.report));
    cli_print("%s\n", r->paths.report);
    return WF_OK;
}

wf_status cli_report(wf_run_app *app) {
    wf_run_job *r;
    WF_TRY(wf__run_job_create(app, &r));
    return wf__run_job_end(r, report_and_print(r));
}
