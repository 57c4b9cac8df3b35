/* commands: the functions behind the table of commands.c. */
#ifndef WF_CLI_COMMANDS_H
#define WF_CLI_COMMANDS_H

#include "cli/cli.h"

wf_status cli_version(cli_app *app);
wf_status cli_help(cli_app *app);
wf_status cli_zoo_train(cli_app *app);
wf_status cli_zoo_import(cli_app *app);
wf_status cli_zoo_export(cli_app *app);
wf_status cli_zoo_info(cli_app *app);
wf_status cli_zoo_subset(cli_app *app);
wf_status cli_zoo_head(cli_app *app);
wf_status cli_zoo_split(cli_app *app);
wf_status cli_zoo_merge(cli_app *app);
wf_status cli_zoo_filter(cli_app *app);
wf_status cli_flow_info(cli_app *app);
wf_status cli_fit_zoo(cli_app *app);
wf_status cli_train(cli_app *app);
wf_status cli_sample(cli_app *app);
wf_status cli_eval(cli_app *app);
wf_status cli_mix(cli_app *app);
wf_status cli_align(cli_app *app);
wf_status cli_report(cli_app *app);
wf_status cli_compare(cli_app *app);
wf_status cli_verify(cli_app *app);
wf_status cli_run(cli_app *app);
wf_status cli_demo(cli_app *app);
wf_status cli_data_list(cli_app *app);
wf_status cli_data_info(cli_app *app);
wf_status cli_data_bng(cli_app *app);
wf_status cli_data_fetch(cli_app *app);
wf_status cli_model_info(cli_app *app);
wf_status cli_bench(cli_app *app);

#endif
