/* unsuited: scores that are too low for the data, and what may be wrong. */
#include "cli/networks.h"

#include <string.h>

void cli_warn_unsuited(wf_run_app *app, const char *path, const wf_run_recipe *recipe, double mean,
                       const wf_suits *suits) {
    char sentence[1200], scale[WF_SETTING_BUFFER];
    const wf_setting *row = wf_settings_find(wf_data_settings(), "scale");
    bool again = strstr(suits->advice, "--activation") != NULL &&
                 strcmp(app->command->name, "zoo import") != 0;
    if (suits->advice[0] != '\0')
        snprintf(sentence, sizeof sentence,
                 "%s: accuracy %.1f %% with scale = %s, about %.1f %% with %s: %s", path,
                 100 * mean, wf_setting_text(row, &recipe->data, scale), 100 * suits->best,
                 suits->advice, again ? "import the networks again with that" : "pass that");
    else if (mean < suits->guessing)
        snprintf(sentence, sizeof sentence,
                 "%s: accuracy %.1f %%, hardly above the largest class (%.1f %%), and no other "
                 "scale, activation or order of classes is better: are these the data, columns and "
                 "order of inputs that the networks were trained on?",
                 path, 100 * mean, 100 * suits->largest_class);
    else return;
    cli_progress_warn(app, sentence);
}
