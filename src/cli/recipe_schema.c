/* recipe_schema: the table of recipe keys and the one function that reads it. */
#include "cli/recipe_schema.h"

#include "weft/file.h"
#include "weft/text.h"

#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef enum key_kind {
    KEY_TEXT,
    KEY_BOOL,
    KEY_INT,    /* int */
    KEY_SIZE,   /* size_t */
    KEY_SEED,   /* uint64_t */
    KEY_REAL,   /* double */
    KEY_CHOICE, /* an enum: place in `names` */
    KEY_SWITCH  /* a bool: second of two names */
} key_kind;

typedef struct key_entry {
    const char *section, *name;
    key_kind kind;
    size_t offset; /* in cli_recipe */
    double low, high;
    const char *const *names;
    cli_stage stage;
    const char *help;
} key_entry;

#define NAMES(...)                                                                                 \
    (const char *const[]) { __VA_ARGS__, NULL }
#define AT(member) offsetof(cli_recipe, member)
static const double huge = 1e300, many = 9007199254740992.0 /* 2^53 */;

/* clang-format off */
#define ANY -1e300, 1e300
#define POSITIVE 1e-300, 1e300
#define COUNT 1, 1e9
#define ZERO_UP 0, 1e300
static const key_entry keys[] = {
    {"data", "name", KEY_TEXT, AT(data.name), 0, 0, NULL, CLI_STAGE_COLLECTION, "spirals, moons or digits (built in), or the name to show"},
    {"data", "path", KEY_TEXT, AT(data.path), 0, 0, NULL, CLI_STAGE_COLLECTION, "table or IDX images, under the folder that WEFT_DATA names"},
    {"data", "labels", KEY_TEXT, AT(data.labels), 0, 0, NULL, CLI_STAGE_COLLECTION, "IDX labels"},
    {"data", "test_path", KEY_TEXT, AT(data.test_path), 0, 0, NULL, CLI_STAGE_COLLECTION, "separate test part; without it a stratified split"},
    {"data", "test_labels", KEY_TEXT, AT(data.test_labels), 0, 0, NULL, CLI_STAGE_COLLECTION, "IDX labels of the test part"},
    {"data", "format", KEY_TEXT, AT(data.format), 0, 0, NULL, CLI_STAGE_COLLECTION, "auto (by name), idx, csv, tsv or arff"},
    {"data", "target", KEY_TEXT, AT(data.target), 0, 0, NULL, CLI_STAGE_COLLECTION, "label column; without it the last one"},
    {"data", "categorical", KEY_TEXT, AT(data.categorical), 0, 0, NULL, CLI_STAGE_COLLECTION, "CSV and TSV: columns that are categories, joined by commas"},
    {"data", "drop", KEY_TEXT, AT(data.drop), 0, 0, NULL, CLI_STAGE_COLLECTION, "columns left out, joined by commas"},
    {"data", "merge", KEY_TEXT, AT(data.merge), 0, 0, NULL, CLI_STAGE_COLLECTION, "levels renamed before fitting, as RAC1P: 3.0, 4.0 -> 2.0; a semicolon between columns"},
    {"data", "joint", KEY_TEXT, AT(data.joint), 0, 0, NULL, CLI_STAGE_COLLECTION, "tables prepared together with this one, joined by commas"},
    {"data", "scale", KEY_CHOICE, AT(data.scale), 0, 0, NAMES("standard", "unit", "none"), CLI_STAGE_COLLECTION, "of numeric columns: mean 0 and std 1, bytes / 255, or as they are"},
    {"data", "test_fraction", KEY_REAL, AT(data.test_fraction), 0.001, 0.999, NULL, CLI_STAGE_COLLECTION, "share of the test part in a split"},
    {"data", "seed", KEY_SEED, AT(data.seed), 0, 0, NULL, CLI_STAGE_COLLECTION, "of built-in sets and of the split"},
    {"data", "rows", KEY_SIZE, AT(data.rows), 0, 1e9, NULL, CLI_STAGE_COLLECTION, "built-in sets: examples in all; files: at most so many, drawn at random; 0: the default, all"},
    {"data", "noise", KEY_REAL, AT(data.noise), ANY, NULL, CLI_STAGE_COLLECTION, "built-in sets: jitter; negative: the set's default"},
    {"data", "bng", KEY_TEXT, AT(data.bng), 0, 0, NULL, CLI_STAGE_COLLECTION, "in place of path: rows (0: 55,296) sampled from a Bayesian network of this table"},
    {"data", "bng_seed", KEY_SEED, AT(data.bng_seed), 0, 0, NULL, CLI_STAGE_COLLECTION, "of those rows"},

    {"zoo", "arch", KEY_TEXT, AT(arch), 0, 0, NULL, CLI_STAGE_COLLECTION, "widths joined by '-', as 64-16-8-10; a '!' behind a width: no bias"},
    {"zoo", "activation", KEY_TEXT, AT(activation), 0, 0, NULL, CLI_STAGE_COLLECTION, "relu, tanh, gelu, silu, sigmoid or identity"},
    {"zoo", "count", KEY_SIZE, AT(zoo.count), COUNT, NULL, CLI_STAGE_COLLECTION, "networks"},
    {"zoo", "first", KEY_SIZE, AT(zoo.first), 0, 4e9, NULL, CLI_STAGE_COLLECTION, "index of the first network"},
    {"zoo", "held_out", KEY_SIZE, AT(held_out), 0, 1e6, NULL, CLI_STAGE_HELD_OUT, "networks of the held-out row, trained alike with the next indices"},
    {"zoo", "seed", KEY_SEED, AT(zoo.seed), 0, 0, NULL, CLI_STAGE_COLLECTION, "of initial weights, shuffles and hyperparameters"},
    {"zoo", "optimizer", KEY_CHOICE, AT(zoo.optimizer), 0, 0, NAMES("adam", "sgd"), CLI_STAGE_COLLECTION, "of the networks"},
    {"zoo", "lr", KEY_REAL, AT(zoo.lr), POSITIVE, NULL, CLI_STAGE_COLLECTION, "learning rate, or the lowest of a range"},
    {"zoo", "lr_max", KEY_REAL, AT(zoo.lr_max), ZERO_UP, NULL, CLI_STAGE_COLLECTION, "above lr: each network's own, log-uniform up to here"},
    {"zoo", "epochs", KEY_INT, AT(zoo.epochs), 1, 1e6, NULL, CLI_STAGE_COLLECTION, "passes over the training part, or the fewest"},
    {"zoo", "epochs_max", KEY_INT, AT(zoo.epochs_max), 0, 1e6, NULL, CLI_STAGE_COLLECTION, "above epochs: each network's own, uniform up to here"},
    {"zoo", "batch", KEY_INT, AT(zoo.batch), 1, 1e6, NULL, CLI_STAGE_COLLECTION, "examples per update"},
    {"zoo", "momentum", KEY_REAL, AT(zoo.momentum), 0, 1, NULL, CLI_STAGE_COLLECTION, "sgd"},
    {"zoo", "nesterov", KEY_BOOL, AT(zoo.nesterov), 0, 0, NULL, CLI_STAGE_COLLECTION, "sgd: Nesterov's form of momentum"},
    {"zoo", "weight_decay", KEY_REAL, AT(zoo.weight_decay), ZERO_UP, NULL, CLI_STAGE_COLLECTION, "added to the gradient"},
    {"zoo", "beta1", KEY_REAL, AT(zoo.beta1), 0, 1, NULL, CLI_STAGE_COLLECTION, "adam"},
    {"zoo", "beta2", KEY_REAL, AT(zoo.beta2), 0, 1, NULL, CLI_STAGE_COLLECTION, "adam"},
    {"zoo", "eps", KEY_REAL, AT(zoo.eps), ZERO_UP, NULL, CLI_STAGE_COLLECTION, "adam"},
    {"zoo", "schedule", KEY_SWITCH, AT(zoo.cosine), 0, 0, NAMES("constant", "cosine"), CLI_STAGE_COLLECTION, "learning rate over the network's own updates"},
    {"zoo", "label_smoothing", KEY_REAL, AT(zoo.label_smoothing), 0, 1, NULL, CLI_STAGE_COLLECTION, "of the cross-entropy"},
    {"zoo", "shard", KEY_SIZE, AT(zoo.shard), 0, 1e9, NULL, CLI_STAGE_NONE, "networks per resumable piece; 0: chosen"},
    {"zoo", "precision", KEY_SWITCH, AT(zoo.fp32), 0, 0, NAMES("mixed", "fp32"), CLI_STAGE_NONE, "on a GPU: tensor cores with bf16 hi + lo where they serve, or fp32 throughout"},
    {"zoo", "path", KEY_TEXT, AT(zoo_path), 0, 0, NULL, CLI_STAGE_COLLECTION, "a collection of your own instead of a trained one"},
    {"zoo", "manifest", KEY_TEXT, AT(manifest), 0, 0, NULL, CLI_STAGE_COLLECTION, "several collections of your own, with tasks and conditions (docs/flow.md)"},
    {"zoo", "held_out_path", KEY_TEXT, AT(held_out_path), 0, 0, NULL, CLI_STAGE_HELD_OUT, "with path: a collection for the held-out row"},

    {"model", "layout", KEY_CHOICE, AT(field.layout), 0, 0, NAMES("lean", "lstar"), CLI_STAGE_TRAINING, "of the velocity field: ours, or the paper's"},
    {"model", "node", KEY_INT, AT(field.node), 1, 4096, NULL, CLI_STAGE_TRAINING, "width of node features"},
    {"model", "edge", KEY_INT, AT(field.edge), 1, 4096, NULL, CLI_STAGE_TRAINING, "width of edge features"},
    {"model", "time", KEY_INT, AT(field.time), 2, 4096, NULL, CLI_STAGE_TRAINING, "width of the time embedding"},
    {"model", "blocks", KEY_INT, AT(field.blocks), 1, 256, NULL, CLI_STAGE_TRAINING, "message-passing blocks"},
    {"model", "messages", KEY_CHOICE, AT(field.messages), 0, 0, NAMES("sum", "mean", "attention"), CLI_STAGE_TRAINING, "how messages are joined"},
    {"model", "encoder", KEY_CHOICE, AT(field.encoder), 0, 0, NAMES("sine", "fourier", "scalar"), CLI_STAGE_TRAINING, "of parameter values"},
    {"model", "activation", KEY_CHOICE, AT(field.activation), 0, 0, NAMES("default", "silu", "gelu"), CLI_STAGE_TRAINING, "default: silu in lstar, gelu in lean"},
    {"model", "cond", KEY_CHOICE, AT(field.cond), 0, 0, NAMES("none", "linear", "mlp"), CLI_STAGE_TRAINING, "how a condition enters"},
    {"model", "cond_size", KEY_INT, AT(field.cond_size), 0, 4096, NULL, CLI_STAGE_TRAINING, "numbers in a condition"},
    {"model", "fold", KEY_BOOL, AT(fold), 0, 0, NULL, CLI_STAGE_TRAINING, "first layer kept on its nodes, not as edges"},
    {"model", "seed", KEY_SEED, AT(field.seed), 0, 0, NULL, CLI_STAGE_TRAINING, "of the field's initial weights"},

    {"train", "updates", KEY_SIZE, AT(fit.updates), COUNT, NULL, CLI_STAGE_TRAINING, "optimizer steps"},
    {"train", "batch", KEY_SIZE, AT(fit.batch), 1, 1e6, NULL, CLI_STAGE_TRAINING, "networks per update"},
    {"train", "path", KEY_TEXT, AT(train_path), 0, 0, NULL, CLI_STAGE_TRAINING, "fit this collection of the same architecture, an aligned one say; scores stay against [zoo]'s"},
    {"train", "limit", KEY_SIZE, AT(fit.limit), 0, 1e9, NULL, CLI_STAGE_TRAINING, "use only the first so many networks; 0: all"},
    {"train", "optimizer", KEY_CHOICE, AT(fit.optimizer), 0, 0, NAMES("adamw", "muon"), CLI_STAGE_TRAINING, "muon: on the blocks' matrices, adamw on the rest"},
    {"train", "lr", KEY_REAL, AT(fit.lr), POSITIVE, NULL, CLI_STAGE_TRAINING, "learning rate of adamw"},
    {"train", "muon_lr", KEY_REAL, AT(fit.muon_lr), POSITIVE, NULL, CLI_STAGE_TRAINING, "learning rate of muon"},
    {"train", "muon_momentum", KEY_REAL, AT(fit.muon_momentum), 0, 1, NULL, CLI_STAGE_TRAINING, "momentum of muon"},
    {"train", "weight_decay", KEY_REAL, AT(fit.weight_decay), ZERO_UP, NULL, CLI_STAGE_TRAINING, "decoupled"},
    {"train", "beta1", KEY_REAL, AT(fit.beta1), 0, 1, NULL, CLI_STAGE_TRAINING, "adamw"},
    {"train", "beta2", KEY_REAL, AT(fit.beta2), 0, 1, NULL, CLI_STAGE_TRAINING, "adamw"},
    {"train", "eps", KEY_REAL, AT(fit.eps), ZERO_UP, NULL, CLI_STAGE_TRAINING, "adamw"},
    {"train", "clip", KEY_REAL, AT(fit.clip), ZERO_UP, NULL, CLI_STAGE_TRAINING, "largest norm of the gradient; 0: none"},
    {"train", "ema", KEY_REAL, AT(fit.ema), 0, 1, NULL, CLI_STAGE_TRAINING, "decay of the averaged weights, 0: none"},
    {"train", "weights", KEY_CHOICE, AT(fit.kept), 0, 0, NAMES("ema", "final", "best"), CLI_STAGE_TRAINING, "which weights sample; best: lowest loss on one batch"},
    {"train", "warmup", KEY_SIZE, AT(fit.warmup), 0, 1e9, NULL, CLI_STAGE_TRAINING, "updates of linear warm-up"},
    {"train", "schedule", KEY_SWITCH, AT(fit.cosine), 0, 0, NAMES("constant", "cosine"), CLI_STAGE_TRAINING, "learning rate behind the warm-up"},
    {"train", "schedule_updates", KEY_SIZE, AT(fit.schedule_updates), 0, 1e12, NULL, CLI_STAGE_TRAINING, "horizon of the schedule; 0: updates"},
    {"train", "min_lr", KEY_REAL, AT(fit.min_lr), ZERO_UP, NULL, CLI_STAGE_TRAINING, "where the cosine ends"},
    {"train", "precondition", KEY_BOOL, AT(fit.precondition), 0, 0, NULL, CLI_STAGE_TRAINING, "the field learns what a Gaussian does not explain"},
    {"train", "principal", KEY_BOOL, AT(fit.principal), 0, 0, NULL, CLI_STAGE_TRAINING, "a Gaussian with the variances of first layers' principal axes, in place of 1"},
    {"train", "normalise", KEY_BOOL, AT(fit.normalise), 0, 0, NULL, CLI_STAGE_TRAINING, "each parameter group to mean 0 and std 1"},
    {"train", "normalise_by", KEY_CHOICE, AT(fit.normalise_by), 0, 0, NAMES("architecture", "collection"), CLI_STAGE_TRAINING, "whose mean and std: of all collections of an architecture, or each one's own"},
    {"train", "coupling", KEY_CHOICE, AT(fit.coupling), 0, 0, NAMES("independent", "matched"), CLI_STAGE_TRAINING, "of noise and network; matched: by hidden units"},
    {"train", "match_sweeps", KEY_INT, AT(fit.match_sweeps), 1, 1000, NULL, CLI_STAGE_TRAINING, "of the matched coupling"},
    {"train", "source_std", KEY_REAL, AT(fit.source_std), POSITIVE, NULL, CLI_STAGE_TRAINING, "of the noise"},
    {"train", "path_noise", KEY_REAL, AT(fit.path_noise), ZERO_UP, NULL, CLI_STAGE_TRAINING, "added along the path"},
    {"train", "noise_table", KEY_SIZE, AT(fit.noise_table), 0, 4294967295.0, NULL, CLI_STAGE_TRAINING, "noise is one of so many fixed vectors; 0: fresh"},
    {"train", "times", KEY_CHOICE, AT(fit.time_law), 0, 0, NAMES("uniform", "logit-normal", "late"), CLI_STAGE_TRAINING, "how t is drawn"},
    {"train", "loss_by", KEY_CHOICE, AT(fit.loss_by), 0, 0, NAMES("parameters", "layers"), CLI_STAGE_TRAINING, "what counts alike in the loss of a network"},
    {"train", "cond_drop", KEY_REAL, AT(fit.cond_drop), 0, 1, NULL, CLI_STAGE_TRAINING, "probability that a condition is left out"},
    {"train", "seed", KEY_SEED, AT(fit.seed), 0, 0, NULL, CLI_STAGE_TRAINING, "of batches, noise and times"},
    {"train", "precision", KEY_CHOICE, AT(fit.precision), 0, 0, NAMES("auto", "bf16", "fp32"), CLI_STAGE_NONE, "on a GPU; auto: bf16"},
    {"train", "shares", KEY_TEXT, AT(shares), 0, 0, NULL, CLI_STAGE_TRAINING, "with zoo.manifest: places of a batch that collections get where others get one, as letter: 4, cmc: 2"},
    {"train", "max_seconds", KEY_REAL, AT(fit.max_seconds), ZERO_UP, NULL, CLI_STAGE_TRAINING, "of training: then it ends with a warning, and the run goes on; 0: no limit"},
    {"train", "save_seconds", KEY_REAL, AT(fit.save_seconds), ZERO_UP, NULL, CLI_STAGE_NONE, "a checkpoint at least this often"},
    {"train", "log_every", KEY_SIZE, AT(fit.log_every), COUNT, NULL, CLI_STAGE_NONE, "updates between lines of the log"},

    {"sample", "count", KEY_SIZE, AT(sample_count), COUNT, NULL, CLI_STAGE_SAMPLING, "networks to generate; controls too"},
    {"sample", "widths", KEY_TEXT, AT(widths), 0, 0, NULL, CLI_STAGE_SAMPLING, "with zoo.manifest: hidden widths times these, as 0.5,1,1.5; also of networks trained alike"},
    {"sample", "conds", KEY_TEXT, AT(conds), 0, 0, NULL, CLI_STAGE_SAMPLING, "with zoo.manifest: networks at these conditions, as 0,0.5,1, judged against every collection"},
    {"sample", "solver", KEY_CHOICE, AT(sample.solver), 0, 0, NAMES("euler", "heun", "rk4", "dopri5"), CLI_STAGE_SAMPLING, "of the flow's equation"},
    {"sample", "steps", KEY_INT, AT(sample.steps), 1, 1e6, NULL, CLI_STAGE_SAMPLING, "of euler, heun and rk4"},
    {"sample", "rtol", KEY_REAL, AT(sample.rtol), POSITIVE, NULL, CLI_STAGE_SAMPLING, "dopri5: relative tolerance"},
    {"sample", "atol", KEY_REAL, AT(sample.atol), POSITIVE, NULL, CLI_STAGE_SAMPLING, "dopri5: absolute tolerance"},
    {"sample", "min_step", KEY_REAL, AT(sample.min_step), POSITIVE, NULL, CLI_STAGE_SAMPLING, "dopri5"},
    {"sample", "max_step", KEY_REAL, AT(sample.max_step), POSITIVE, NULL, CLI_STAGE_SAMPLING, "dopri5"},
    {"sample", "max_evaluations", KEY_SIZE, AT(sample.max_evaluations), COUNT, NULL, CLI_STAGE_SAMPLING, "dopri5: per network"},
    {"sample", "refine_t", KEY_REAL, AT(sample.refine_t), 0, 1, NULL, CLI_STAGE_SAMPLING, "refinement goes back to this time"},
    {"sample", "refine_cycles", KEY_INT, AT(sample.refine_cycles), 0, 10000, NULL, CLI_STAGE_SAMPLING, "times; 0: no refinement"},
    {"sample", "refine_steps", KEY_INT, AT(sample.refine_steps), 0, 10000, NULL, CLI_STAGE_SAMPLING, "Euler steps of a cycle, 1 is a jump to the end; 0: the solver above with its step size"},
    {"sample", "refine_matched", KEY_BOOL, AT(sample.refine_matched), 0, 0, NULL, CLI_STAGE_SAMPLING, "fresh noise matched to the current network"},
    {"sample", "guidance", KEY_REAL, AT(sample.guidance), ANY, NULL, CLI_STAGE_SAMPLING, "with conditions: 1 is plain"},
    {"sample", "guidance_between", KEY_REAL, AT(guidance_between), ANY, NULL, CLI_STAGE_SAMPLING, "with conds: at conditions not trained on"},
    {"sample", "precision", KEY_CHOICE, AT(sample.precision), 0, 0, NAMES("auto", "bf16", "fp32"), CLI_STAGE_NONE, "on a GPU; auto: bf16, with dopri5 fp32"},
    {"sample", "batch", KEY_SIZE, AT(sample.batch), 0, 1e6, NULL, CLI_STAGE_NONE, "networks at a time; 0: chosen"},
    {"sample", "seed", KEY_SEED, AT(sample.seed), 0, 0, NULL, CLI_STAGE_SAMPLING, "of the noise, and of the controls"},

    {"eval", "score", KEY_CHOICE, AT(eval.score), 0, 0, NAMES("accuracy", "auc"), CLI_STAGE_EVALUATION, "auc: of the second class of two"},
    {"eval", "cloud", KEY_SIZE, AT(eval.cloud), COUNT, NULL, CLI_STAGE_EVALUATION, "networks of the reference cloud, at most"},
    {"eval", "subsets", KEY_INT, AT(eval.subsets), 1, 100000, NULL, CLI_STAGE_EVALUATION, "of the cloud that JWS is averaged over"},
    {"eval", "sweeps", KEY_INT, AT(eval.sweeps), 1, 1000, NULL, CLI_STAGE_EVALUATION, "of the matching in WCS"},
    {"eval", "seed", KEY_SEED, AT(eval.seed), 0, 0, NULL, CLI_STAGE_EVALUATION, "of cloud and subsets"},
    {"eval", "cache", KEY_BOOL, AT(eval.cache), 0, 0, NULL, CLI_STAGE_NONE, "keep the reference cloud beside the collection"},
    {"eval", "controls", KEY_BOOL, AT(controls), 0, 0, NULL, CLI_STAGE_EVALUATION, "rows of random, perturbed and averaged networks"},

    {"report", "title", KEY_TEXT, AT(title), 0, 0, NULL, CLI_STAGE_REPORT, "of the page; without it the recipe's name"},
    {"report", "wall", KEY_INT, AT(wall), 0, 200, NULL, CLI_STAGE_REPORT, "networks on each side of the wall of decision regions"},
};
/* clang-format on */
enum { n_keys = sizeof keys / sizeof keys[0] };

static void set_defaults(cli_recipe *recipe) {
    recipe->data = wf_data_desc_default();
    recipe->activation = "relu";
    recipe->zoo = wf_zoo_desc_default();
    recipe->zoo.lr_max = recipe->zoo.epochs_max =
        0; /* a recipe that says lr alone means that one */
    recipe->held_out = 100;
    recipe->field = wf_field_desc_default();
    recipe->fit = wf_fit_desc_default();
    recipe->sample = wf_sample_desc_default();
    recipe->sample_count = 100;
    recipe->guidance_between = 1;
    recipe->eval = wf_eval_desc_default();
    recipe->controls = true;
    recipe->wall = 24;
}

static void *member(const cli_recipe *recipe, const key_entry *key) {
    return (char *)(uintptr_t)recipe + key->offset;
}

static wf_status read_integer(cli_app *app, cli_recipe *recipe, const key_entry *key) {
    void *at = member(recipe, key);
    int64_t value;
    double low = key->low, high = key->high;
    if (key->kind == KEY_INT) value = *(int *)at;
    else if (key->kind == KEY_SIZE) value = (int64_t) * (size_t *)at;
    else value = (int64_t) * (uint64_t *)at, low = 0, high = many;
    if (high > many) high = many;
    CLI_TRY(wf_recipe_int(app->ctx, recipe->source, key->section, key->name, (int64_t)low,
                          (int64_t)high, &value));
    if (key->kind == KEY_INT) *(int *)at = (int)value;
    else if (key->kind == KEY_SIZE) *(size_t *)at = (size_t)value;
    else *(uint64_t *)at = (uint64_t)value;
    return WF_OK;
}

static wf_status read_choice(cli_app *app, cli_recipe *recipe, const key_entry *key) {
    void *at = member(recipe, key);
    int value = key->kind == KEY_SWITCH ? *(bool *)at : *(int *)at;
    CLI_TRY(
        wf_recipe_choice(app->ctx, recipe->source, key->section, key->name, key->names, &value));
    if (key->kind == KEY_SWITCH) *(bool *)at = value == 1;
    else *(int *)at = value;
    return WF_OK;
}

/* An empty text counts as one that is not there: --set train.shares= takes a recipe's back. */
static wf_status read_text(cli_app *app, cli_recipe *recipe, const key_entry *key) {
    const char **at = member(recipe, key), *text = *at;
    CLI_TRY(wf_recipe_string(app->ctx, recipe->source, key->section, key->name, &text));
    if (text != NULL && *text != '\0') *at = text;
    return WF_OK;
}

static wf_status read_key(cli_app *app, cli_recipe *recipe, const key_entry *key) {
    void *at = member(recipe, key);
    wf_recipe *source = recipe->source;
    switch (key->kind) {
    case KEY_TEXT: return read_text(app, recipe, key);
    case KEY_BOOL: return wf_recipe_bool(app->ctx, source, key->section, key->name, at);
    case KEY_REAL:
        return wf_recipe_double(app->ctx, source, key->section, key->name,
                                key->low <= -huge ? -INFINITY : key->low,
                                key->high >= huge ? INFINITY : key->high, at);
    case KEY_INT:
    case KEY_SIZE:
    case KEY_SEED: return read_integer(app, recipe, key);
    case KEY_CHOICE:
    case KEY_SWITCH: return read_choice(app, recipe, key);
    }
    return WF_OK;
}

static wf_status read_all(cli_app *app, cli_recipe *recipe) {
    for (int i = 0; i < app->n_list; i++)
        CLI_TRY(wf_recipe_override(app->ctx, recipe->source, app->list[i]));
    set_defaults(recipe);
    for (int i = 0; i < n_keys; i++) CLI_TRY(read_key(app, recipe, &keys[i]));
    if (cli_given(app, "seed")) {
        uint64_t seed = (uint64_t)cli_int(app, "seed");
        recipe->zoo.seed = recipe->field.seed = recipe->fit.seed = recipe->sample.seed = seed;
    }
    return wf_recipe_finish(app->ctx, recipe->source);
}

static void name_of_path(const char *path, char *name, size_t size) {
    const char *slash = strrchr(path, '/');
    snprintf(name, size, "%s", slash != NULL ? slash + 1 : path);
    char *dot = strrchr(name, '.');
    if (dot != NULL && dot != name) *dot = '\0';
}

/* A manifest that is not where the recipe says is looked up beside the recipe. */
static wf_status find_manifest(cli_app *app, const char *path, cli_recipe *recipe) {
    char beside[4096], assignment[4200];
    const char *slash = strrchr(path, '/'), *manifest = recipe->manifest;
    if (manifest == NULL || slash == NULL || manifest[0] == '/' || wf_file_exists(manifest))
        return WF_OK;
    snprintf(beside, sizeof beside, "%.*s%s", (int)(slash - path) + 1, path, manifest);
    if (!wf_file_exists(beside)) return WF_OK;
    snprintf(assignment, sizeof assignment, "zoo.manifest=%s", beside);
    CLI_TRY(wf_recipe_override(app->ctx, recipe->source, assignment));
    return wf_recipe_string(app->ctx, recipe->source, "zoo", "manifest", &recipe->manifest);
}

wf_status cli_recipe_open(cli_app *app, const char *path, cli_recipe *out) {
    *out = (cli_recipe){0};
    CLI_TRY(wf_recipe_open(app->ctx, path, &out->source));
    name_of_path(path, out->name, sizeof out->name);
    CLI_TRY(read_all(app, out));
    return find_manifest(app, path, out);
}

/* recipes/demo.conf, byte for byte. */
extern const char cli_demo_recipe[], cli_demo_recipe_end[];

wf_status cli_recipe_builtin(cli_app *app, cli_recipe *out) {
    *out = (cli_recipe){.name = "demo"};
    CLI_TRY(wf_recipe_parse(app->ctx, "demo.conf", cli_demo_recipe,
                            (size_t)(cli_demo_recipe_end - cli_demo_recipe), &out->source));
    return read_all(app, out);
}

void cli_recipe_free(cli_recipe *recipe) {
    wf_recipe_free(recipe->source);
    *recipe = (cli_recipe){0};
}

/* The shortest decimal that reads back to the same number. */
static void real_text(double value, char *out, size_t size) {
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(out, size, "%.*g", digits, value);
        if (strtod(out, NULL) == value) return;
    }
}

/* The value as a recipe writes it; "" for a string that is not set. */
static void value_text(const cli_recipe *recipe, const key_entry *key, char *out, size_t size) {
    const void *at = member(recipe, key);
    switch (key->kind) {
    case KEY_TEXT: {
        const char *text = *(const char *const *)at;
        snprintf(out, size, "%s", text != NULL ? text : "");
        break;
    }
    case KEY_BOOL: snprintf(out, size, "%s", *(const bool *)at ? "yes" : "no"); break;
    case KEY_INT: snprintf(out, size, "%d", *(const int *)at); break;
    case KEY_SIZE: snprintf(out, size, "%zu", *(const size_t *)at); break;
    case KEY_SEED: snprintf(out, size, "%llu", (unsigned long long)*(const uint64_t *)at); break;
    case KEY_REAL: real_text(*(const double *)at, out, size); break;
    case KEY_CHOICE: snprintf(out, size, "%s", key->names[*(const int *)at]); break;
    case KEY_SWITCH: snprintf(out, size, "%s", key->names[*(const bool *)at]); break;
    }
}

enum { value_size = 4096 };

char *cli_recipe_resolved(const cli_recipe *recipe) {
    char *text = NULL;
    size_t size;
    FILE *stream = open_memstream(&text, &size);
    if (stream == NULL) return NULL;
    fprintf(stream, "# %s, with every key: what this result was made with.\n", recipe->name);
    const char *section = "";
    for (int i = 0; i < n_keys; i++) {
        char value[value_size];
        value_text(recipe, &keys[i], value, sizeof value);
        if (keys[i].kind == KEY_TEXT && value[0] == '\0') continue;
        if (strcmp(section, keys[i].section) != 0) fprintf(stream, "\n[%s]\n", keys[i].section);
        section = keys[i].section;
        bool quoted = strpbrk(value, "#") != NULL;
        fprintf(stream, "%s = %s%s%s\n", keys[i].name, quoted ? "\"" : "", value,
                quoted ? "\"" : "");
    }
    bool failed = ferror(stream) != 0; /* no memory */
    if (fclose(stream) != 0 || failed) {
        free(text);
        return NULL;
    }
    return text;
}

json_t *cli_recipe_stage(const cli_recipe *recipe, cli_stage stage) {
    json_t *object = json_object();
    for (int i = 0; i < n_keys; i++) {
        if (keys[i].stage != stage) continue;
        char name[64], value[value_size];
        snprintf(name, sizeof name, "%s.%s", keys[i].section, keys[i].name);
        value_text(recipe, &keys[i], value, sizeof value);
        json_object_set_new(object, name, json_string(value));
    }
    return object;
}

wf_status cli_recipe_dataset(cli_app *app, const cli_recipe *recipe, wf_dataset **out) {
    *out = NULL;
    if (!wf_recipe_has_section(recipe->source, "data"))
        return cli_fail(app, WF_ERR_INPUT, "%s has no [data] section; name a data set there",
                        recipe->name);
    return wf_dataset_open(app->ctx, &recipe->data, out);
}

wf_status cli_recipe_graph(cli_app *app, const cli_recipe *recipe, const wf_dataset *data,
                           wf_graph **out) {
    *out = NULL;
    if (recipe->arch == NULL)
        return cli_fail(app, WF_ERR_INPUT,
                        "%s has no zoo.arch; say the widths, as arch = 64-16-8-10", recipe->name);
    CLI_TRY(wf_graph_parse(app->ctx, recipe->arch, recipe->activation, 0, out));
    const wf_graph *graph = *out;
    if (data != NULL && (graph->inputs != data->inputs || graph->outputs != data->classes)) {
        wf_status status = cli_fail(
            app, WF_ERR_SHAPE,
            "zoo.arch is %s, but %s has %d inputs and %d classes: write %d-...-%d", recipe->arch,
            data->name, data->inputs, data->classes, data->inputs, data->classes);
        wf_graph_free(*out);
        *out = NULL;
        return status;
    }
    return WF_OK;
}

wf_status cli_recipe_field(cli_app *app, const cli_recipe *recipe, const wf_graph *graph,
                           wf_field_desc *out) {
    *out = recipe->field;
    if (out->cond == WF_COND_NONE && out->cond_size != 0)
        return cli_fail(app, WF_ERR_USAGE, "model.cond_size is %d, but model.cond is none",
                        out->cond_size);
    if (out->cond != WF_COND_NONE && out->cond_size == 0)
        return cli_fail(
            app, WF_ERR_USAGE,
            "model.cond is set; say how many numbers a condition has in model.cond_size");
    if (!recipe->fold) return WF_OK;
    if (graph->n_orbits == 0)
        return cli_fail(app, WF_ERR_USAGE, "model.fold needs a hidden layer; %s has none",
                        graph->text);
    out->fold_rows = graph->inputs;
    for (int i = 0; i < graph->n_blocks; i++)
        if (graph->blocks[i].layer == 0 && graph->blocks[i].kind == WF_BLOCK_BIAS) out->fold_rows++;
    return WF_OK;
}

wf_status cli_dataset_named(cli_app *app, const char *name, wf_dataset **out) {
    for (const char *const *builtin = wf_data_builtin(); *builtin != NULL; builtin++) {
        if (strcmp(*builtin, name) != 0) continue;
        wf_data_desc desc = wf_data_desc_default();
        desc.name = name;
        return wf_dataset_open(app->ctx, &desc, out);
    }
    cli_recipe recipe;
    *out = NULL;
    wf_status status = cli_recipe_open(app, name, &recipe);
    if (status == WF_OK) status = cli_recipe_dataset(app, &recipe, out);
    cli_recipe_free(&recipe);
    return status;
}

static void allowed_text(const key_entry *key, char *out, size_t size) {
    wf_text list = wf_text_start(out, size);
    for (int i = 0; key->names != NULL && key->names[i] != NULL; i++)
        wf_text_add(&list, "%s%s", i > 0 ? ", " : "", key->names[i]);
}

void cli_recipe_help(FILE *file) {
    cli_recipe defaults = {0};
    set_defaults(&defaults);
    fputs("A recipe is a text of sections of \"key = value  # why\". Keys, defaults, meaning:\n",
          file);
    const char *section = "";
    for (int i = 0; i < n_keys; i++) {
        char value[value_size], allowed[256];
        value_text(&defaults, &keys[i], value, sizeof value);
        allowed_text(&keys[i], allowed, sizeof allowed);
        if (strcmp(section, keys[i].section) != 0) fprintf(file, "\n[%s]\n", keys[i].section);
        section = keys[i].section;
        char line[128];
        snprintf(line, sizeof line, "%s = %.60s", keys[i].name, value);
        fprintf(file, "%-28s # %s%s%s\n", line, keys[i].help, allowed[0] != '\0' ? ": " : "",
                allowed);
    }
}

void cli_recipe_markdown(FILE *file) {
    cli_recipe defaults = {0};
    set_defaults(&defaults);
    fputs("# Recipes\n\nA recipe is a text of sections of `key = value  # why`; `--set "
          "section.key=value` "
          "replaces a value on the command line. Unknown and duplicate keys are refused with their "
          "line.\n\n"
          "| key | default | meaning |\n| --- | --- | --- |\n",
          file);
    for (int i = 0; i < n_keys; i++) {
        char value[value_size], allowed[256];
        value_text(&defaults, &keys[i], value, sizeof value);
        allowed_text(&keys[i], allowed, sizeof allowed);
        fprintf(file, "| `%s.%s` | %s | %s%s%s |\n", keys[i].section, keys[i].name, value,
                keys[i].help, allowed[0] != '\0' ? ": " : "", allowed);
    }
}
