/* ranks: the program as one of several that mpirun or srun started. */
#include "cli/commands.h"
#include "weft/comm.h"
#include "weft/text.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Another rank failed, and this one hangs in a call that does not notice. */
static void end_here(void *app_, const char *sentence) {
    wf_run_app *app = app_;
    if (wf_comm_speaks(app->comm)) cli_print_error("weft: %s\n", sentence);
    _exit(wf_status_exit_code(WF_ERR_RANK));
}

/* The words after the program's name, one a line. free() it. */
static char *arguments_of(int argc, char **argv) {
    size_t size = 1;
    for (int i = 1; i < argc; i++) size += strlen(argv[i]) + 1;
    char *text = malloc(size);
    if (text == NULL) return NULL;
    wf_text all = wf_text_start(text, size);
    for (int i = 1; i < argc; i++) wf_text_add(&all, "%s\n", argv[i]);
    return text;
}

wf_status cli_ranks_join(wf_run_app *app, int argc, char **argv) {
    char sentence[WF_COMM_SENTENCE], *arguments = arguments_of(argc, argv);
    wf_comm_desc desc = {.arguments = arguments, .stuck = end_here, .user = app};
    wf_status status = wf_comm_join(&desc, &app->comm, sentence);
    free(arguments);
    if (status != WF_OK) {
        if (sentence[0] != '\0') cli_print_error("weft: %s\n", sentence);
        wf_comm_leave(app->comm);
    }
    if (status != WF_OK || wf_comm_rank(app->comm) == 0) return status;
    app->quiet = true;
    return freopen("/dev/null", "w", stdout) != NULL ? WF_OK : WF_ERR_FAILED;
}

bool cli_ranks_share(const cli_command *command) {
    static wf_status (*const shared[])(wf_run_app *) = {
        cli_run, cli_demo, cli_zoo_train, cli_train, cli_sample, cli_eval, cli_align};
    for (size_t i = 0; i < sizeof shared / sizeof *shared; i++)
        if (command->run == shared[i]) return true;
    return false;
}

void cli_ranks_idle(wf_run_app *app) {
    char sentence[128];
    int idle = wf_comm_size(app->comm) - 1;
    if (idle == 0) return;
    snprintf(sentence, sizeof sentence, "one rank does all of weft %s; %d wait%s for it",
             app->command->name, idle, idle == 1 ? "s" : "");
    cli_progress_warn(app, sentence);
}

const char *cli_ranks_failed(wf_run_app *app, wf_status status, const char *sentence) {
    if (app->comm == NULL) return sentence;
    if (app->ctx != NULL) wf_comm_give_up(app->ctx, status, sentence);
    if (!wf_comm_speaks(app->comm)) return "";
    const char *elsewhere = wf_comm_failure(app->comm);
    bool lost = wf_comm_rank(app->comm) > 0; /* rank 0 is */
    /* Ranks fail together when all find the same fault; only work that was stopped has another
     * rank's reason. */
    if (elsewhere != NULL && (lost || status == WF_ERR_INTERRUPTED)) sentence = elsewhere;
    bool of_its_host = status == WF_ERR_DISK || status == WF_ERR_MEMORY;
    if (!of_its_host || sentence == elsewhere || strncmp(sentence, "rank ", 5) == 0)
        return sentence;
    static char named[sizeof app->sentence + 96];
    snprintf(named, sizeof named, "rank 0 on %s: %s", wf_comm_host(app->comm, 0), sentence);
    return named;
}

int cli_ranks_leave(wf_run_app *app, int code) {
    char sentence[WF_COMM_SENTENCE];
    if (app->comm == NULL) return code;
    /* The others may be saving; a launcher ends them all where this one dies. */
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGUSR1, SIG_IGN);
    wf_status status = wf_comm_end(app->comm, sentence);
    if (code == 0 && status != WF_OK) {
        if (sentence[0] != '\0') cli_print_error("weft: %s\n", sentence);
        code = wf_status_exit_code(status);
    }
    wf_comm_leave(app->comm);
    app->comm = NULL;
    return code;
}
