/* unsuited: scores that are too low for the data, and what may be wrong. */
#include "cli/networks.h"

#include <string.h>

/* The share of the largest class, which every network should beat. */
static double largest_class(const wf_dataset *data) {
    size_t largest = 0;
    for (int c = 0; c < data->classes; c++) {
        size_t count = 0;
        for (size_t k = 0; k < data->n_test; k++) count += data->y_test[k] == c;
        if (count > largest) largest = count;
    }
    return (double)largest / (double)data->n_test;
}

void cli_warn_unsuited(wf_run_app *app, const char *path, const wf_run_recipe *recipe,
                       const wf_dataset *data, double mean, const wf_suits *suits) {
    char sentence[1200], scale[WF_SETTING_BUFFER];
    const wf_setting *row = wf_settings_find(wf_data_settings(), "scale");
    double chance = largest_class(data);
    bool again = strstr(suits->advice, "--activation") != NULL &&
                 strcmp(app->command->name, "zoo import") != 0;
    if (suits->advice[0] != '\0')
        snprintf(sentence, sizeof sentence,
                 "%s: accuracy %.1f %% with scale = %s, about %.1f %% with %s: %s", path,
                 100 * mean, wf_setting_text(row, &recipe->data, scale), 100 * suits->best,
                 suits->advice, again ? "import the networks again with that" : "pass that");
    else if (mean < chance + 0.1 * (1 - chance))
        snprintf(sentence, sizeof sentence,
                 "%s: accuracy %.1f %%, hardly above the largest class (%.1f %%), and no other "
                 "scale, activation or order of classes is better: are these the data, columns and "
                 "order of inputs that the networks were trained on?",
                 path, 100 * mean, 100 * chance);
    else return;
    cli_progress_warn(app, sentence);
}
