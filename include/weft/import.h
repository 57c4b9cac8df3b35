/* weft/import.h: your own networks in, one network out, and what a collection looks like.
 *
 *     wf_import_desc desc = wf_import_desc_default();
 *     desc.activation = "relu";                                files do not say it
 *     wf_import_result result;
 *     wf_zoo_import(ctx, "checkpoints/", &desc, "mine", &result);     mine.safetensors
 *     puts(result.collections[0].path);
 *     wf_import_result_free(&result);
 *
 * Without a description, fully connected networks: matrices [out,in] that chain, with or without
 * biases. With one (desc.arch) any network that weft/graph.h describes: convolutions, norm layers,
 * residual connections. What belongs to no layer is refused by name.
 * docs/import.md has the rules.
 * weft/weft.h says who owns what and what NULL means where a comment does not. */
#ifndef WEFT_IMPORT_H
#define WEFT_IMPORT_H

#include "weft/zoo.h"

WF_BEGIN_C

typedef struct wf_import_desc {
    const char *activation; /* of the hidden layers, as wf_graph_parse names them; required unless
                               arch says it; "relu" where arch leaves it out */
    const char *arch;       /* as wf_graph_parse reads it; NULL: found by names and shapes */
    const char *layers;     /* their names in order, "fc1,fc2,out"; NULL: found by name and shape */
    const char *name;       /* for the metadata, as "weft.name"; NULL: the source's name */
    bool recursive;         /* folders with all folders below them */
    int inputs, outputs;    /* that every network must have, those of a data set; 0: any */
    bool keep_norm;         /* batch norms of arch stay gamma, beta and statistics; otherwise they
                               are folded into the layers before them (wf_graph_fold_norms), and
                               wf_zoo_export writes them out again */
} wf_import_desc;
WF_API wf_import_desc wf_import_desc_default(void);

/* One file written: all networks of one architecture. */
typedef struct wf_import_collection {
    char *path;
    char *arch; /* as wf_graph.text */
    size_t count;
    size_t non_finite; /* networks with an infinite value or NaN; they are kept */
    int folded_norms;  /* batch norms of each network that were folded */
} wf_import_collection;

typedef struct wf_import_result {
    size_t files, networks, non_finite;
    int n_collections;
    wf_import_collection *collections;
} wf_import_result;
/* Frees what it holds, not itself; accepts NULL. */
WF_API void wf_import_result_free(wf_import_result *result);

/* Turn networks saved by PyTorch into collections.
 * source  a safetensors or torch.save file of stacked tensors, as torch.func.stack_module_state
 *         has them ("0.weight" [M,out,in]); the same with one plain state_dict; a pattern of file
 *         names ("runs/?/last.ckpt"); or a folder of state_dict files, all .safetensors or all of
 *         torch.save (.pt, .pth, .ckpt, .bin), in natural order of their names. A folder with
 *         model.safetensors or pytorch_model.bin is one network.
 *         torch.save files are zip containers (torch 1.6 and later); no code in them is run.
 * out     the collection to write: OUT.safetensors (".safetensors" may be given). Networks of
 *         several architectures become OUT-64-16-8-10.safetensors, OUT-64-32-10.safetensors ...
 * result  may be NULL; free with wf_import_result_free().
 * Nothing is written unless every network can be read. Names of layers are kept where tensors are
 * NAME.weight and NAME.bias. Metadata "weft.sources" is a JSON list: the file of each network, or
 *         the one file where networks came stacked; "weft.scale" is none: the networks take inputs
 *         as they are in a file of data, unless wf_zoo_score says otherwise.
 * desc must not be NULL. Returns WF_OK, WF_ERR_USAGE (desc), WF_ERR_INPUT (a file, a tensor that
 * belongs to no layer), WF_ERR_SHAPE, WF_ERR_INTERRUPTED, WF_ERR_DISK or WF_ERR_MEMORY. */
WF_API wf_status wf_zoo_import(wf_ctx *ctx, const char *source, const wf_import_desc *desc,
                               const char *out, wf_import_result *result);
/* The same for several sources together.
 * Returns as wf_zoo_import. */
WF_API wf_status wf_zoo_import_all(wf_ctx *ctx, const char *const *sources, int n,
                                   const wf_import_desc *desc, const char *out,
                                   wf_import_result *result);

/* --- into memory, for programs that do not know the struct -------------------------------------
 * options  JSON: {"activation", "arch", "layers", "name": texts, "recursive", "keep_norm": true or
 *          false, "inputs", "outputs": whole numbers}, each as in wf_import_desc and none required
 *          but activation or arch; NULL: {}. Other keys are refused.
 * *out     a collection in memory with the metadata of an import; the caller's: wf_zoo_free();
 *          NULL on failure.
 * Both return WF_OK, WF_ERR_USAGE (options), WF_ERR_INPUT (a file, a tensor that belongs to no
 * layer), WF_ERR_SHAPE (also: networks of several architectures), WF_ERR_INTERRUPTED or
 * WF_ERR_MEMORY. */

/* sources [n] as in wf_zoo_import, borrowed. Returns as above. */
WF_API wf_status wf_zoo_import_json(wf_ctx *ctx, const char *const *sources, int n,
                                    const char *options, wf_zoo **out);
/* n tensors in memory: one state_dict, or several stacked. All arrays are borrowed for the call.
 * names  [n]                     data   [n] float32, row after row
 * rank   [n] dimensions of each  shape  the dimensions of all, one tensor after another
 * Returns as above. */
WF_API wf_status wf_zoo_import_tensors(wf_ctx *ctx, const char *const *names,
                                       const float *const *data, const int *rank,
                                       const size_t *shape, int n, const char *options,
                                       wf_zoo **out);

/* Networks to look at: a collection, a network that wf_zoo_export wrote, a pattern, or a folder of
 * networks, those in folders below it with them. Those that do not describe themselves are taken
 * for networks like `like` (NULL: they are refused).
 * *out is the caller's: wf_zoo_free().
 * Returns WF_OK, WF_ERR_INPUT, WF_ERR_SHAPE or WF_ERR_MEMORY; *out is then NULL. */
WF_API wf_status wf_zoo_open_networks(wf_ctx *ctx, const char *path, const wf_graph *like,
                                      wf_zoo **out);

/* Write network `index` as a plain state_dict: as torch.save does where the path ends in .pt, .pth,
 * .ckpt or .bin, else as safetensors.
 * names  comma-separated names of the layers that have weights; NULL: those of the collection.
 *        Tensors are NAME.weight and NAME.bias.
 * Batch norms that an import folded are written under their names, as norms that change nothing
 * but by their bias; the network computes the same.
 * Returns WF_OK, WF_ERR_USAGE (no such network, a wrong number of names), WF_ERR_UNSUPPORTED (too
 * large for torch.save's container), WF_ERR_DISK or WF_ERR_MEMORY. */
WF_API wf_status wf_zoo_export(wf_ctx *ctx, const wf_zoo *zoo, size_t index, const char *path,
                               const char *names);

/* Scores of all networks on one test set. */
typedef struct wf_zoo_score_info {
    char name[64];
    double mean, std, min, max; /* std with divisor n; NaN scores are left out */
} wf_zoo_score_info;

/* How similar networks are to their neighbours by index, by cosines of flat weight vectors (medians
 * over at most 2,000 pairs). With `near` over pairs (i, i+1) and `far` over pairs half
 * the collection apart:
 *   near <= 0.5                        independent, as far as weights can tell
 *   1 - near < (1 - far) / 2           one or more training trajectories, saved step by step
 *   otherwise                          a common start, or networks that were aligned
 * Networks without hidden layers are called independent: their weights are similar anyway. */
typedef enum wf_zoo_kinship {
    WF_ZOO_INDEPENDENT,
    WF_ZOO_TRAJECTORY,
    WF_ZOO_RELATED
} wf_zoo_kinship;
WF_API const char *wf_zoo_kinship_name(wf_zoo_kinship kinship); /* "independent" ...; static */

typedef struct wf_zoo_duplicate {
    size_t index, earlier; /* network `index` equals network `earlier` */
    bool permuted;         /* after relabelling hidden units, not bit by bit */
} wf_zoo_duplicate;

typedef struct wf_zoo_summary {
    size_t count, parameters;
    int n_tests;
    wf_zoo_score_info tests[8];
    size_t duplicates;            /* networks that equal an earlier one, bit by bit */
    size_t permuted_duplicates;   /* that equal an earlier one up to the order of hidden units */
    wf_zoo_duplicate examples[8]; /* the first of both kinds, by index */
    int n_examples;
    size_t hidden_units; /* of all networks together */
    size_t dead_units; /* of these: cannot change the output, whatever the input (docs/import.md) */
    size_t dead_networks;     /* networks with at least one */
    size_t non_finite_values; /* infinite or NaN parameters */
    size_t non_finite_networks;
    size_t first_non_finite; /* index, when there is one */
    double near, far;        /* median cosines; NaN with fewer than four finite networks */
    wf_zoo_kinship kinship;
    char warning[512]; /* one sentence when the networks are not independent, else "" */
} wf_zoo_summary;

/* What a collection shows without its data set.
 * Returns WF_OK, WF_ERR_INPUT (a damaged file), WF_ERR_INTERRUPTED or WF_ERR_MEMORY. */
WF_API wf_status wf_zoo_info(wf_ctx *ctx, const wf_zoo *zoo, wf_zoo_summary *out);
/* The same as JSON, which `weft zoo info --json` prints:
 *   path, arch, activation          the file, or the name of a collection in memory; its networks
 *   count, parameters               networks; parameters of each
 *   tests                           [{name, mean, std, min, max}]
 *   duplicates, permuted_duplicates, duplicate_examples    the last [{index, earlier, permuted}]
 *   hidden_units, dead_units, dead_networks, non_finite_values, non_finite_networks
 *   near, far, kinship, warning     as in wf_zoo_summary
 *   data_note                       metadata "weft.data.note", else ""
 * Numbers that are not finite are null. *out: wf_free(), NULL on failure.
 * Returns as wf_zoo_info. */
WF_API wf_status wf_zoo_info_json(wf_ctx *ctx, const wf_zoo *zoo, char **out);
/* wf_zoo_info, and what was found of each network: marks [count], of these bits. */
enum {
    WF_ZOO_NON_FINITE = 1,
    WF_ZOO_DUPLICATE = 2, /* of an earlier one, relabelled or not */
    WF_ZOO_DEAD_UNITS = 4
};
/* Returns as wf_zoo_info. */
WF_API wf_status wf_zoo_inspect(wf_ctx *ctx, const wf_zoo *zoo, wf_zoo_summary *out,
                                uint8_t *marks);

WF_END_C

#endif
