/* unsuited: --data beside networks: scores that are too low for it, and what may be wrong. */
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

wf_status cli_check_data(wf_run_app *app, const wf_zoo *zoo, const wf_run_recipe *recipe) {
    wf_suits suits;
    wf_scale own = recipe->data.scale;
    bool known =
        wf_zoo_meta(zoo, "weft.sources") == NULL || wf_zoo_meta(zoo, "weft.preparation") != NULL;
    bool same = !wf_zoo_scale(zoo, &own) || own == recipe->data.scale;
    if (wf__run_says_scale(app, recipe) ? same : known) return WF_OK;
    WF_TRY(wf_zoo_suits(app->ctx, zoo, &recipe->data, &suits));
    cli_warn_unsuited(app, wf_zoo_path(zoo), recipe, suits.accuracy, &suits);
    return WF_OK;
}

void cli_say_split(wf_run_app *app, const wf_run_recipe *recipe, const wf_dataset *data) {
    const char *path = recipe->data.path;
    if (path == NULL || recipe->data.test_path != NULL || strcmp(path, cli_text(app, "data")) != 0)
        return;
    wf__run_say(app, "%s: judged on %zu of %zu rows; --whole takes them all", path, data->n_test,
                data->n_train + data->n_test);
}

wf_status cli_open_data(wf_run_app *app, const wf_zoo *zoo, wf_dataset **out) {
    wf_run_recipe recipe;
    *out = NULL;
    wf_status status = wf__run_data_recipe(app, cli_text(app, "data"), zoo, &recipe);
    if (status == WF_OK) status = wf__run_recipe_dataset(app, &recipe, out);
    if (status == WF_OK) cli_say_split(app, &recipe, *out);
    if (status == WF_OK) status = cli_check_data(app, zoo, &recipe);
    wf__run_recipe_free(&recipe);
    if (status == WF_OK) return WF_OK;
    wf_dataset_free(*out);
    *out = NULL;
    return status;
}
