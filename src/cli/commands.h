/* commands: the functions behind the table of commands.c. */
#pragma once

#include "cli/cli.h"

wf_status cli_version(wf_run_app *app);
wf_status cli_help(wf_run_app *app);
wf_status cli_zoo_train(wf_run_app *app);
wf_status cli_zoo_import(wf_run_app *app);
wf_status cli_zoo_export(wf_run_app *app);
wf_status cli_zoo_info(wf_run_app *app);
wf_status cli_zoo_subset(wf_run_app *app);
wf_status cli_zoo_head(wf_run_app *app);
wf_status cli_zoo_split(wf_run_app *app);
wf_status cli_zoo_merge(wf_run_app *app);
wf_status cli_zoo_filter(wf_run_app *app);
wf_status cli_flow_info(wf_run_app *app);
wf_status cli_fit_zoo(wf_run_app *app);
wf_status cli_train(wf_run_app *app);
wf_status cli_sample(wf_run_app *app);
wf_status cli_eval(wf_run_app *app);
wf_status cli_mix(wf_run_app *app);
wf_status cli_align(wf_run_app *app);
wf_status cli_report(wf_run_app *app);
wf_status cli_compare(wf_run_app *app);
wf_status cli_verify(wf_run_app *app);
wf_status cli_run(wf_run_app *app);
wf_status cli_demo(wf_run_app *app);
wf_status cli_data_list(wf_run_app *app);
wf_status cli_data_info(wf_run_app *app);
wf_status cli_data_bng(wf_run_app *app);
wf_status cli_data_fetch(wf_run_app *app);
wf_status cli_model_info(wf_run_app *app);
wf_status cli_bench(wf_run_app *app);
