/* commands: the one table that parser, help and docs/commands.md are made from. */
#include "cli/commands.h"

#include "weft/eval.h"
#include "weft/flow.h"

/* clang-format off */
#define END {.name = NULL}
#define FLAG(n, l, h) {.name = n, .letter = l, .kind = CLI_FLAG, .help = h}
#define VALUE(k, n, l, v, f, h, ...) \
    {.name = n, .letter = l, .kind = k, .value = v, .fallback = f, .help = h, __VA_ARGS__}
#define TEXT(n, l, v, f, h) VALUE(CLI_TEXT, n, l, v, f, h, .low = 0)
#define INT(n, l, f, from, to, h) VALUE(CLI_INT, n, l, "N", f, h, .low = from, .high = to)
#define REAL(n, l, v, f, from, to, h) VALUE(CLI_REAL, n, l, v, f, h, .low = from, .high = to)
#define CHOICE(n, l, v, f, h, ...) \
    VALUE(CLI_CHOICE, n, l, v, f, h, .names = (const char *const[]){__VA_ARGS__, NULL})
/* Settings of a table; INSTEAD: of a recipe, whose value is the default. */
#define SETTING(n, l, v, table) VALUE(CLI_SETTING, n, l, v, NULL, NULL, .settings = table)
#define INSTEAD(n, l, v, table) \
    VALUE(CLI_SETTING, n, l, v, NULL, "in place of the recipe's", .settings = table)
#define SET \
    {.name = "set", .kind = CLI_LIST, .value = "SECTION.KEY=VALUE", \
     .help = "Replace a value of the recipe; may be given often."}

#define FORCE FLAG("force", 0, "Replace a file that is there.")
/* A data set, named on the command line. */
#define DATA_OPTIONS(help) \
    TEXT("data", 'd', "DATA", NULL, help \
         ": a file (.csv, .tsv, .arff, .npz, IDX), a built-in set, or a recipe with a [data] " \
         "section."), DATA_SETTINGS
#define DATA_SETTINGS \
    SETTING("target", 0, "NAME", wf_data_settings), \
    VALUE(CLI_SETTING, "scale", 0, "NAME", NULL, "without it that of the collection, none for an " \
          "imported one", .settings = wf_data_settings), \
    SETTING("classes", 0, "A,B,C", wf_data_settings), \
    SETTING("categorical", 0, "A,B,C", wf_data_settings), \
    SETTING("drop", 0, "A,B,C", wf_data_settings), SETTING("labels", 0, "FILE", wf_data_settings), \
    FLAG("whole", 0, "Judge on every row of the file; without it on a fifth, drawn at random.")
#define TEST TEXT("test", 0, "NAME", NULL, \
                  "The test set whose scores count; without it the file's first.")

static const char *const activations[] = {
#define X(constant, name) name,
#include "weft/activations.def"
#undef X
    NULL};

const cli_option cli_global_options[] = {
    FLAG("json", 0, "Print the result as JSON on stdout."),
    INT("seed", 0, NULL, 0, 9007199254740992.0,
         "Seed of all that is drawn at random, in place of the recipe's."),
    INT("threads", 0, "0", 0, 256, "Worker threads; 0: one per core. Results do not depend on it."),
    CHOICE("device", 0, "NAME", "cpu",
         "Where the heavy work runs; auto: on a GPU where there is one.", "cpu", "cuda", "auto"),
    FLAG("wait", 0,
         "Wait for another process that is making the output; without it the command ends with "
         "code 5."),
    FLAG("quiet", 'q', "No progress lines."),
    FLAG("help", 'h', "Show the help of a command."),
    FLAG("version", 'V', "Show the version and what this build has."),
    END,
};

static const cli_option zoo_train_options[] = {
    TEXT("out", 'o', "FILE", NULL,
         "The collection to write. Finished shards lie in FILE.parts until the end."),
    INSTEAD("first", 0, "N", wf_zoo_settings),
    INSTEAD("count", 'n', "N", wf_zoo_settings),
    SET, END,
};
static const cli_option zoo_import_options[] = {
    TEXT("out", 'o', "FILE", NULL,
         "The collection to write; several architectures become FILE-ARCH.safetensors each."),
    VALUE(CLI_CHOICE, "activation", 'a', "NAME", NULL,
          "Activation of the hidden layers, which files do not hold.", .names = activations),
    TEXT("arch", 0, "TEXT", NULL,
         "Description of the network, as \"3x32x32 conv16 pool conv32 gap linear10\" or net.json; "
         "without it fully connected layers are found by names and shapes."),
    FLAG("keep-norm", 0,
         "Keep batch norms of --arch as gamma, beta and statistics; without it they are folded "
         "into the layers before them."),
    TEXT("layers", 0, "A,B,C", NULL,
         "Names of the layers in order, where names and shapes leave a doubt."),
    TEXT("name", 0, "NAME", NULL, "Name kept in the collection; without it the source's."),
    FLAG("recursive", 'r', "Search folders below the given ones, too."),
    TEXT("data", 'd', "DATA", NULL,
         "The data the networks were trained for, a file, a built-in set or a recipe: scores go "
         "into the collection, and a warning says when another scale, activation or order of "
         "classes would fit better."),
    DATA_SETTINGS, SET,
    FORCE, END,
};
static const cli_option zoo_export_options[] = {
    TEXT("out", 'o', "FILE|FOLDER", NULL,
         "The file to write, .safetensors or .pt; for several networks a folder."),
    TEXT("index", 'i', "LIST", "0", "Which networks, counted from 0: 3, or 0,3,10-19."),
    INT("best", 'b', NULL, 1, 4e9, "The N networks of the highest score."),
    FLAG("all", 0, "All of them."),
    TEST, DATA_OPTIONS("Score on this data set in place of the scores in the file"),
    CHOICE("format", 0, "NAME", "safetensors", "Of the files in a folder.", "safetensors", "pt"),
    TEXT("names", 0, "A,B,C", NULL,
         "Names of the layers in the state_dict; without it those of the collection, which an "
         "import keeps."),
    FORCE, SET, END,
};
static const cli_option zoo_subset_options[] = {
    TEXT("out", 'o', "FILE", NULL, "The collection to write."),
    TEXT("index", 'i', "LIST", NULL, "Which networks, counted from 0: 3, or 0,3,10-19."),
    FORCE, END,
};
static const cli_option zoo_head_options[] = {
    TEXT("out", 'o', "FILE", NULL, "The collection to write."),
    INT("count", 'n', "10", 1, 4e9, "How many."),
    FORCE, END,
};
static const cli_option zoo_split_options[] = {
    TEXT("out", 'o', "FILE", NULL, "The collection to write."),
    TEXT("held-out", 0, "FILE", NULL, "The collection of the networks that are drawn."),
    INT("count", 'n', NULL, 1, 4e9, "Networks to draw."),
    REAL("fraction", 0, "X", "0.1", 0, 1, "The share to draw, where --count says no number."),
    FORCE, END,
};
static const cli_option zoo_merge_options[] = {
    TEXT("out", 'o', "FILE", NULL, "The collection to write."),
    FORCE, END,
};
static const cli_option zoo_filter_options[] = {
    TEXT("out", 'o', "FILE", NULL, "The collection to write."),
    FLAG("finite", 0, "Leave out networks with infinite values or NaN."),
    FLAG("unique", 0,
         "Leave out networks that equal an earlier one, up to the order of hidden units."),
    FLAG("alive", 0, "Leave out networks with dead units."),
    REAL("min-score", 0, "X", NULL, 0, 1, "Keep scores from here up, as 0.9."),
    REAL("max-score", 0, "X", NULL, 0, 1, "Keep scores up to here."),
    INT("best", 'b', NULL, 1, 4e9, "Keep the N of the highest score, in that order."),
    TEST, DATA_OPTIONS("Score on this data set in place of the scores in the file"),
    FORCE, SET, END,
};
static const cli_option fit_options[] = {
    TEXT("out", 'o', "FILE", NULL, "The flow to write, and FILE.recipe.conf beside it."),
    REAL("minutes", 'm', "M", "5", 1e-3, 1e6, "Time to train, on this machine as it is now."),
    DATA_OPTIONS("What `weft run` with the recipe judges the networks on"),
    FLAG("force", 0, "Plan and fit anew where a flow is there."),
    END,
};
static const cli_option train_options[] = {
    TEXT("zoo", 'z', "FILE[,FILE...]", NULL, "The collections to fit, of any architectures."),
    TEXT("cond", 0, "\"C;C;...\"", NULL,
         "With model.cond: the condition of each collection, numbers joined by commas."),
    TEXT("manifest", 'm', "FILE", NULL,
         "Collections with their tasks and conditions, in place of --zoo; without either the "
         "recipe's zoo.manifest."),
    TEXT("out", 'o', "FILE", NULL,
         "The flow to write; also its checkpoint. The log is FILE.log.jsonl."),
    INSTEAD("precision", 0, "P", wf_fit_settings),
    SET, END,
};
static const cli_option sample_options[] = {
    INT("count", 'n', "100", 1, 1e9, "Networks to generate."),
    TEXT("out", 'o', "FILE", NULL, "The collection to write."),
    TEXT("direct", 0, "FILE", NULL, "With refinement: also the same networks before it."),
    TEXT("zoo", 'z', "FILE", NULL,
         "The collection, for generators that keep it: perturbation, average ..."),
    TEXT("task", 't', "NAME", NULL,
         "A task of the flow's manifest: its condition, its architecture."),
    TEXT("arch", 0, "TEXT", NULL,
         "Architecture, as 64-16-8-10 (docs/formats.md); without it that of the task, of the "
         "collection nearest to --cond, or of the first."),
    TEXT("activation", 0, "NAME", NULL,
         "With --arch: of the hidden layers; without it the collection's."),
    REAL("width", 0, "X", NULL, 1e-6, 1000, "Hidden widths times X, rounded half up, at least 1."),
    TEXT("cond", 0, "C", NULL,
         "Condition: numbers joined by commas, between those trained on, or beyond them; or none."),
    SETTING("guidance", 0, "G", wf_sample_settings),
    SETTING("solver", 0, "NAME", wf_sample_settings),
    SETTING("steps", 0, "N", wf_sample_settings),
    REAL("tolerance", 0, "X", NULL, 1e-12, 1,
         "Of dopri5, in place of the relative and the absolute one that the flow's recipe says."),
    SETTING("precision", 0, "P", wf_sample_settings),
    TEXT("refine", 0, "T,K[,S]", NULL,
         "Noise back to time T and flow again, K times, as 0.75,10; with S Euler steps each, as "
         "0.8,30,1; none: not at all. Without it as the flow's recipe says."),
    INT("first", 0, "0", 0, 4e9,
         "Index of the first network: network k is the same whatever the call."),
    FORCE, END,
};
static const cli_option eval_options[] = {
    TEXT("zoo", 'z', "FILE", NULL,
         "The collection to judge against; without it the scores on --data alone, of networks of "
         "any shape."),
    TEXT("nets", 0, "FILE", NULL,
         "The networks to judge: a collection, an exported file (.pt, .safetensors), a pattern in "
         "quotes, or a folder with all below it."),
    DATA_OPTIONS("What to judge on; without it WCS and diversity only"),
    TEXT("name", 0, "NAME", "networks", "Name of the row."),
    TEXT("csv", 0, "FILE", NULL,
         "Also a table of the networks one by one: score, error-IoU, WCS and the nearest trained "
         "one."),
    TEXT("rows", 0, "A,B", NULL,
         "Rows of a table: reference, NAME, and generators that need no fit, as "
         "perturbation-0.25; without it NAME."),
    SETTING("score", 0, "NAME", wf_eval_settings),
    SETTING("cloud", 0, "N", wf_eval_settings),
    SETTING("subsets", 0, "N", wf_eval_settings),
    SETTING("sweeps", 0, "N", wf_eval_settings),
    FLAG("no-cache", 0, "Do not keep the reference cloud beside the collection."),
    FORCE, SET, END,
};
static const cli_option mix_options[] = {
    TEXT("zoo", 'z', "A,B", NULL, "The two collections, of one architecture."),
    TEXT("data", 'd', "SET[,SET...]", NULL,
         "Test sets: files, built-in ones, or recipes with a [data] section."),
    DATA_SETTINGS,
    INT("pairs", 'n', "50", 1, 1e6, "Pairs of networks, one of each collection."),
    INT("steps", 0, "10", 1, 1000, "Alpha goes from 0 to 1 in so many steps."),
    TEXT("sweeps", 0, "N,N,...", "0,1,5,50",
         "Re-Basin sweeps before averaging, a curve each; 0: none."),
    VALUE(CLI_SETTING, "score", 0, "NAME", "auc", NULL, .settings = wf_eval_settings),
    SET, END,
};
static const cli_option align_options[] = {
    TEXT("out", 'o', "FILE", NULL, "The aligned collection; indices stay."),
    INT("reference", 0, "0", 0, 4e9, "The network that all others are matched to."),
    SETTING("sweeps", 0, "N", wf_match_settings),
    SETTING("restarts", 0, "N", wf_match_settings),
    FORCE, END,
};
static const cli_option report_options[] = {
    TEXT("out", 'o', "FILE", NULL, "Where the page goes; without it RUN/report.html."),
    SET, END,
};
static const cli_option compare_options[] = {
    TEXT("over", 0, "KEY", NULL,
         "A setting that is a number, as train.limit: scores are drawn over it."),
    TEXT("beside", 0, "FILE", NULL,
         "With --over: published numbers, JSON as bench/paper_karhunen.json."),
    FLAG("methods", 0,
         "The runs are of several generators: one line of a plot for each generator and size, "
         "parameters, updates, seconds and variants of JWS, all their networks in one plot, a loss "
         "curve each."),
    TEXT("out", 'o', "FILE", NULL, "A page with the table and the plots."),
    END,
};
static const cli_option run_options[] = {
    TEXT("out", 'o', "FOLDER", NULL, "Where everything goes; without it runs/NAME."),
    FLAG("redo", 0, "Replace results of other settings in that folder."),
    SET, END,
};
static const cli_option demo_options[] = {
    TEXT("out", 'o', "FOLDER", "runs/demo", "Where everything goes."),
    SET, END,
};
static const cli_option recipe_options[] = {SET, END};
static const cli_option data_info_options[] = {DATA_SETTINGS, SET, END};
static const cli_option data_bng_options[] = {
    TEXT("out", 'o', "FILE", NULL, "The ARFF table to write."),
    SETTING("rows", 'n', "N", wf_bng_settings),
    SETTING("bins", 0, "N", wf_bng_settings),
    SETTING("parents", 0, "N", wf_bng_settings),
    SETTING("prior", 0, "X", wf_bng_settings),
    SET, END,
};
static const cli_option data_fetch_options[] = {
    TEXT("out", 'o', "FOLDER", NULL,
         "Where files go; without it WEFT_DATA, else the working folder."),
    TEXT("server", 0, "ADDRESS", NULL,
         "Another server, as a mirror; without it www.openml.org or www2.census.gov."),
    TEXT("sha256", 0, "DIGEST", NULL,
         "Of the downloaded file; another one is refused. OpenML's own MD5 is always checked."),
    END,
};
static const cli_option bench_options[] = {
    CHOICE("only", 0, "NAME", NULL, "One measurement.", "peak", "zoo", "wcs", "lstar", "lean"),
    REAL("seconds", 0, "X", "3", 0.01, 3600, "Time for each measurement."),
    END,
};
static const cli_option help_options[] = {
    FLAG("man", 0, "Print the manual page."),
    CHOICE("completion", 0, "SHELL", NULL,
         "Print the completions of a shell.", "bash", "zsh", "fish"),
    FLAG("markdown", 0, "Print docs/commands.md."),
    END,
};

const cli_command cli_commands[] = {
    {"demo", "", 0, 0, "All of it in minutes, with nothing to download.",
     "Trains a small collection on built-in data, fits a flow to it, draws 100 new networks, "
     "judges them beside held-out networks and controls, and writes a page with plots. It is weft "
     "run of a recipe inside the program.",
     demo_options,
     {{"weft demo", "leaves runs/demo/report.html"},
      {"weft demo -o short --set train.updates=500", "a shorter flow, elsewhere"}}, cli_demo},
    {"run", "RECIPE", 1, 1, "Everything a recipe describes, resumable.",
     "Collection, held-out networks, training, sampling, evaluation, report. Finished stages with "
     "the same settings are skipped, a broken one goes on where it stopped, and results of other "
     "settings are refused unless --redo is given. The recipe with all defaults filled in is "
     "written beside the results. RECIPE is a file, or the name of an installed recipe (weft help "
     "recipes), here and wherever a recipe is asked for.",
     run_options,
     {{"weft run digits", "leaves runs/digits"},
      {"weft run karhunen --set zoo.count=2000 -o runs/k2000", "a variant in its own folder"},
      {"weft run my.conf --redo", "replace what is there"}}, cli_run},
    {"zoo train", "RECIPE", 1, 1, "Train a collection of independent networks.",
     "Trains the networks that [zoo] describes on the data of [data]. Network i is the same "
     "whatever the shard, the thread count or a restart; a broken call goes on where it stopped.",
     zoo_train_options,
     {{"weft zoo train digits -o digits.safetensors", "the recipe's collection"},
      {"weft zoo train digits -o part2.safetensors --first 2000 -n 500",
       "the next 500 networks"}}, cli_zoo_train},
    {"zoo import", "SOURCE...", 1, WF_RUN_MAX_ARGUMENTS, "Bring in networks saved by PyTorch.",
     "SOURCE is a state_dict file (.safetensors, .pt, .pth, .ckpt, .bin), a file of stacked "
     "networks (torch.func.stack_module_state), a pattern of files in quotes, or a folder of them; "
     "a Hugging Face folder is one network. No code in them is ever run. Names of layers and files "
     "are kept. Mixed architectures become one collection each.",
     zoo_import_options,
     {{"weft zoo import checkpoints/ -a relu -o mine.safetensors", "a folder of state_dicts"},
      {"weft zoo import checkpoints/ -a relu --data my.csv --target kind --scale standard -o mine",
       "scored, and checked against the data"},
      {"weft zoo import 'runs/*/last.ckpt' more/ --recursive -a relu -o mine.safetensors",
       "files by a pattern, and a folder with all below it"},
      {"weft zoo import resnets/ --arch \"3x32x32 conv16! batchnorm basic16x2 basic32x2s2 gap "
       "linear10\" -o mine",
       "ResNets with torchvision's names"}}, cli_zoo_import},
    {"zoo export", "COLLECTION", 1, 1, "Networks as plain PyTorch state_dicts.",
     "Writes networks of a collection, trained or generated, one file each: .safetensors, or .pt "
     "as torch.save does, which torch.load reads, also with weights_only. Layers have the names "
     "that they were imported with, so that load_state_dict takes them.",
     zoo_export_options,
     {{"weft zoo export nets.safetensors -i 3 -o net3.pt", "for torch.load"},
      {"weft zoo export nets.safetensors --best 5 -o best/ --format pt",
       "the five of the highest score"},
      {"weft zoo export nets.safetensors --all -o new/", "new/net-000.safetensors ..."},
      {"weft zoo export nets.safetensors --names fc1,fc2,out -o net.safetensors",
       "with names of your own"}}, cli_zoo_export},
    {"zoo subset", "COLLECTION", 1, 1, "Some networks of a collection, by number.",
     "Writes the networks of --index as a collection, in that order. Scores, seeds and names go "
     "along.",
     zoo_subset_options,
     {{"weft zoo subset zoo.safetensors -i 0,3,10-19 -o some.safetensors", "twelve networks"},
      {"weft zoo subset zoo.safetensors -i 7 -o one.safetensors --force", "replace a file"}},
     cli_zoo_subset},
    {"zoo head", "COLLECTION", 1, 1, "The first networks of a collection.",
     "Writes the first --count networks as a collection.",
     zoo_head_options,
     {{"weft zoo head zoo.safetensors -n 100 -o first.safetensors", "a hundred to try things with"},
      {"weft zoo head zoo.safetensors -o first.safetensors --json", "ten, for programs"}},
     cli_zoo_head},
    {"zoo split", "COLLECTION", 1, 1, "Hold networks out of a collection.",
     "Draws networks at random into a collection of their own; the others stay together. Both keep "
     "the order of the networks. --seed draws others.",
     zoo_split_options,
     {{"weft zoo split mine.safetensors -o fit.safetensors --held-out held-out.safetensors",
       "a tenth held out"},
      {"weft zoo split mine.safetensors -n 50 -o fit.safetensors --held-out held-out.safetensors",
       "fifty held out"}}, cli_zoo_split},
    {"zoo merge", "COLLECTION...", 1, WF_RUN_MAX_ARGUMENTS,
     "Collections of one architecture as one.",
     "Puts the networks of several collections one after the other. Scores, seeds and names go "
     "along where all have them.",
     zoo_merge_options,
     {{"weft zoo merge a.safetensors b.safetensors -o both.safetensors", "two"},
      {"weft zoo merge part*.safetensors -o all.safetensors --json", "shards, for programs"}},
     cli_zoo_merge},
    {"zoo filter", "COLLECTION", 1, 1, "The good networks of a collection.",
     "Leaves out networks that are not finite, doubled, have dead units, or score too low or too "
     "high, and says how many of each.",
     zoo_filter_options,
     {{"weft zoo filter mine.safetensors --finite --unique -o good.safetensors", "clean"},
      {"weft zoo filter mine.safetensors --min-score 0.9 -o good.safetensors",
       "by the scores in the file"},
      {"weft zoo filter nets.safetensors --best 20 --data my.csv -o best.safetensors",
       "by scores on a table"}}, cli_zoo_filter},
    {"zoo info", "COLLECTION", 1, 1, "What a collection looks like.",
     "Architecture, number, spread of scores, duplicates, dead units, values that are not finite, "
     "and a warning when the networks look like one training trajectory.",
     NULL,
     {{"weft zoo info digits.safetensors",
       "for people"}, {"weft zoo info digits.safetensors --json", "for programs"}}, cli_zoo_info},
    {"fit", "ZOO", 1, 1, "Fit a flow to a collection in a given time, without a recipe.",
     "Measures how long real updates take here, chooses field, batch and updates for the time and "
     "the number of networks, says so, and trains. The recipe beside the flow makes the same flow "
     "(weft train) and the whole table (weft run). Interrupted, the same command goes on.",
     fit_options,
     {{"weft fit mine.safetensors -o flow.safetensors", "five minutes"},
      {"weft fit mine.safetensors --minutes 30 --data my.csv --target kind -o flow.safetensors",
       "longer, with data to judge the networks on"},
      {"weft fit mine.safetensors -m 1 -o flow.safetensors --json", "for programs"}}, cli_fit_zoo},
    {"train", "RECIPE", 1, 1, "Fit a generator to collections.",
     "Trains the generator of [model] with the settings of [train]. A checkpoint at the output "
     "file with the same settings is continued, bit for bit.",
     train_options,
     {{"weft train digits --zoo digits.safetensors -o flow.safetensors", "one collection"},
      {"weft train acs.conf --zoo ca.safetensors,pr.safetensors --cond \"0;1\" "
       "-o domains.safetensors",
       "two domains"},
      {"weft train tasks.conf --manifest tasks.manifest -o tasks.safetensors",
       "many tasks and architectures"}}, cli_train},
    {"flow info", "FLOW", 1, 1, "What a flow was fitted to.",
     "The generator, its settings and conditions, and for every collection its task, "
     "architecture, condition and test sets.", NULL,
     {{"weft flow info flow.safetensors",
       "for people"}, {"weft flow info flow.safetensors --json", "for programs"}}, cli_flow_info},
    {"sample", "GENERATOR", 1, 1, "Generate networks, of any task, condition and width.",
     "Draws networks from the file of a fitted generator, or from a generator by name that needs "
     "no fit (weft help recipe lists them), and writes them as a collection that eval, align and "
     "zoo export take. A flow is sampled as the [sample] section of its recipe said, refinement "
     "too, unless options say otherwise.",
     sample_options,
     {{"weft sample flow.safetensors -n 100 -o nets.safetensors", "100 networks"},
      {"weft sample flow.safetensors -o nets.safetensors --refine 0.75,10", "refined"},
      {"weft sample tasks.safetensors -o wide.safetensors --task letter --width 1.5",
       "of one task, at widths never trained on"},
      {"weft sample domains.safetensors -o mid.safetensors --cond 0.5 --guidance 4",
       "between two domains"}}, cli_sample},
    {"eval", "", 0, 0, "Judge networks against a collection.",
     "Accuracy, largest error-IoU, matched cosine (WCS), joint similarity (JWS) with its spread "
     "and ablations, diversity, and how near each network comes to a trained one.",
     eval_options,
     {{"weft eval --zoo zoo.safetensors --nets nets.safetensors --data digits", "one row"},
      {"weft eval --zoo zoo.safetensors --nets net.pt --data my.csv --csv scores.csv --json",
       "an exported network; every network's scores, for programs"},
      {"weft eval --zoo zoo.safetensors --nets nets.safetensors --rows reference,random,networks",
       "several rows, without labelled data"},
      {"weft eval --nets wide.safetensors --data digits",
       "accuracy alone: no collection has that width"}}, cli_eval},
    {"mix", "", 0, 0, "Averaged weights and ensembles of two collections.",
     "What can be had between two collections without a generator: means of the weights of pairs, "
     "as they are and after weight matching, and ensembles of pairs (means of logits), from all "
     "of the first to all of the second.",
     mix_options,
     {{"weft mix --zoo ca.safetensors,pr.safetensors --data ca.conf,pr.conf",
       "ROC AUC on both test sets"},
      {"weft mix --zoo a.safetensors,b.safetensors --data digits --score accuracy --json",
       "for programs"}}, cli_mix},
    {"align", "COLLECTION", 1, 1, "Git Re-Basin: relabel hidden units to match one network.",
     "Matches every network of the collection to one of them. What the networks compute does not "
     "change, nor do indices.",
     align_options,
     {{"weft align zoo.safetensors -o aligned.safetensors", "to network 0"},
      {"weft align zoo.safetensors --reference 7 --restarts 3 -o aligned.safetensors",
       "more thoroughly"}}, cli_align},
    {"report", "RUN", 1, 1, "The page about a run, written again.",
     "Makes the HTML page from the files that weft run left in the folder RUN.",
     report_options,
     {{"weft report runs/demo", "writes runs/demo/report.html"},
      {"weft report runs/demo -o demo.html --set report.wall=60",
       "elsewhere, with a larger wall"}}, cli_report},
    {"compare", "RUN...", 1, WF_RUN_MAX_ARGUMENTS, "Runs side by side.",
     "The settings in which folders of weft run differ, and the rows of their networks in one "
     "table. Runs that have no results yet are left out.",
     compare_options,
     {{"weft compare runs/adamw runs/muon", "one table"},
      {"weft compare runs/sweep-* --over train.limit -o sweep.html", "with plots over a setting"},
      {"weft compare runs/digits-* --methods -o methods.html",
       "several generators on one collection"},
      {"weft compare runs/sweep-* --json",
       "for programs: all rows, settings, seconds"}}, cli_compare},
    {"verify", "FILE|FOLDER...", 1, WF_RUN_MAX_ARGUMENTS,
     "Whether files are still what weft wrote.",
     "Reads files whole and compares them with their digests: the one that every safetensors file "
     "of weft holds, and those that weft run keeps of what its stages left (stage.json). A folder "
     "is searched for both. Files of other programs and of version 0.1 have no digest and are said "
     "to have none. Ends with code 3 when a file is damaged, exchanged or missing.",
     NULL,
     {{"weft verify runs/digits", "everything that a run has left"},
      {"weft verify flow.safetensors zoo.safetensors", "single files"},
      {"weft verify runs/* --json", "for programs"}}, cli_verify},
    {"data list", "", 0, 0, "The built-in data sets.",
     "Lists the data sets that need no file, and where files of recipes are looked up.", NULL,
     {{"weft data list", "for people"}, {"weft data list --json", "for programs"}}, cli_data_list},
    {"data info", "DATA", 1, 1, "What a data set looks like.",
     "DATA is a file (.csv, .tsv, .arff, .npz, IDX), a built-in set or a recipe with a [data] "
     "section.", data_info_options,
     {{"weft data info spirals", "a built-in set"},
      {"weft data info my.csv --target kind", "a table"},
      {"weft data info karhunen --json", "the data of a recipe"}}, cli_data_info},
    {"data bng", "TABLE", 1, 1, "A table sampled from a Bayesian network learned on another.",
     "Learns a Bayesian network (the class is a parent of every column, further edges by hill "
     "climbing on BIC) and samples rows from it, as OpenML's BNG sets were made. TABLE is a file "
     "or a recipe with a [data] section. The file says in its first line that it is regenerated "
     "and with which seed, and so does everything made from it.", data_bng_options,
     {{"weft data bng cmc/cmc.arff -o bng-cmc.arff --seed 1", "stands in for BNG(cmc)"},
      {"weft data bng cmc/cmc.arff -n 1000 -o small.arff --json",
       "the network, for programs"}}, cli_data_bng},
    {"data fetch", "SET", 1, 1, "Get a data set from OpenML or the American Community Survey.",
     "SET is an OpenML number or name, acs:YEAR:STATE (ACSIncome: person records filtered as "
     "Folktables does), or an http address. A broken download goes on where it stopped; a file "
     "that is there and unchanged costs no network. Needs a build with libcurl (weft version "
     "says).", data_fetch_options,
     {{"weft data fetch 255", "OpenML 255 into openml/255-BNG(cmc).arff"},
      {"weft data fetch cmc", "the first active version of that name"},
      {"weft data fetch acs:2018:CA",
       "California into acs-income/acsincome-2018-CA.csv"}}, cli_data_fetch},
    {"model info", "RECIPE", 1, 1, "How large the generator is.",
     "Counts the parameters of [model] for the networks of [zoo], of a collection that it names, "
     "or of a manifest's first collection, and lists its tensors: names as in files of flows, "
     "shapes, what Muon updates and what decays.", recipe_options,
     {{"weft model info karhunen-paper", "1,958,017 parameters"},
      {"weft model info digits --set model.layout=lstar --json", "for programs"}}, cli_model_info},
    {"bench", "", 0, 0, "How fast this machine is.",
     "Networks trained a second, matchings a second, training steps of both layouts on "
     "64-16-8-10, beside the measured peak of multiply-adds. make bench runs PyTorch beside it.",
     bench_options,
     {{"weft bench",
       "all measurements"}, {"weft bench --only wcs --threads 1 --json", "one of them"},
      {"weft bench --device cuda",
       "on the GPU: collections, matching, training steps, velocities"}}, cli_bench},
    {"version", "", 0, 0, "What this program is and what it was built with.",
     "Prints the version, the instruction set in use and the optional parts of this build.", NULL,
     {{"weft version",
       "version and build"}, {"weft version --json", "the same for programs"}}, cli_version},
    {"help", "[COMMAND]", 0, 2, "Help on a command, or on recipes.",
     "Lists the commands, shows one command's options and examples, all keys of a recipe (help "
     "recipe) or the recipes that were installed (help recipes).", help_options,
     {{"weft help zoo train", "one command"}, {"weft help recipe", "what a recipe may say"},
      {"source <(weft help --completion bash)",
       "completions, without installing"}}, cli_help},
    {NULL, NULL, 0, 0, NULL, NULL, NULL, {{NULL, NULL}}, NULL},
};
/* clang-format on */
