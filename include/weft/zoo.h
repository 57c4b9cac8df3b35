/* weft/zoo.h: collections of trained networks of one architecture, one safetensors file each.
 *
 * Tensors of a file of M networks, named as torch.func.stack_module_state names them:
 *   layers.0.weight [M,out,in], layers.0.bias [M,out] ...
 *   weft.seed [M] I64     the network's index under the collection's seed
 *   weft.lr [M] F32, weft.epochs [M] I32     where known
 *   weft.score.S [M] F32, weft.errors.S [M, ceil(n/8)] U8     of each test set S; bit r%8 of byte
 *                         r/8 is set where the network is wrong on example r
 * Metadata: weft.graph (the networks as JSON), weft.arch, weft.activation, weft.recipe, weft.data
 * (fingerprint of the data), weft.preparation ...
 * docs/formats.md has them all.
 * weft/weft.h says who owns what and what NULL means where a comment does not. */
#ifndef WEFT_ZOO_H
#define WEFT_ZOO_H

#include "weft/data.h"
#include "weft/graph.h"

WF_BEGIN_C

typedef struct wf_zoo wf_zoo; /* an open collection: a mapped file, or memory; read-only */

/* Open a file, which stays mapped until *out is freed, or all files that match a pattern with *, ?
 * or [: they are one collection, in the order of their names. Files that end in .cloud.safetensors
 * are left out. *out is the caller's: wf_zoo_free(), which accepts NULL; it is NULL on failure.
 * A warning says when networks between two files seem to be missing or to be there twice.
 * Returns WF_OK, WF_ERR_INPUT (no file, damaged, no collection), WF_ERR_SHAPE (also: files of
 * several architectures) or WF_ERR_MEMORY. */
WF_API wf_status wf_zoo_open(wf_ctx *ctx, const char *path, wf_zoo **out);
WF_API void wf_zoo_free(wf_zoo *zoo);
/* The files that a path of wf_zoo_open() names: those that match a pattern, else the path itself,
 * whether it is there or not. *out [*count] is the caller's: wf_zoo_names_free().
 * Returns WF_OK, WF_ERR_INPUT (a folder that cannot be read, no file that matches) or
 * WF_ERR_MEMORY. */
WF_API wf_status wf_zoo_files(wf_ctx *ctx, const char *path, char ***out, size_t *count);

/* --- collections without a file ---------------------------------------------------------------
 * They serve wherever a wf_zoo is taken: fits, evaluation, controls, alignment, summaries, export.
 * The graph is copied. name: what messages and flow files call the collection in place of a path;
 * NULL: "collection in memory". *out is the caller's: wf_zoo_free(). Weights are not checked here:
 * calls that cannot use infinite values or NaN refuse them, wf_zoo_info() counts them.
 * Both return WF_OK, WF_ERR_USAGE (no networks) or WF_ERR_MEMORY. */

/* weights (count, n_params) in flat order. copy false: borrowed; they must stay and not change
 * until wf_zoo_free().
 * Returns WF_OK, WF_ERR_USAGE or WF_ERR_MEMORY. */
WF_API wf_status wf_zoo_from_memory(wf_ctx *ctx, const char *name, const wf_graph *graph,
                                    const float *weights, size_t count, bool copy, wf_zoo **out);
/* Tensor by tensor, in the order of wf_graph_tensor(): tensor i of network k begins at
 * base[i] + k * stride[i] and is contiguous. Stacked tensors, as torch.func.stack_module_state
 * makes them, have its count as stride. The two arrays are copied, the numbers are borrowed.
 * Returns WF_OK, WF_ERR_USAGE or WF_ERR_MEMORY. */
WF_API wf_status wf_zoo_from_tensors(wf_ctx *ctx, const char *name, const wf_graph *graph,
                                     const float *const *base, const size_t *stride, size_t count,
                                     wf_zoo **out);
/* The next three set columns and metadata of a collection in memory. They copy what they are given
 * and replace what was there. No other call may be reading the collection. WF_ERR_USAGE also means
 * a collection of a file, a bad name, or more than 8 test sets. */

/* scores [count], errors (count, error_bytes) as in the list above; either may be NULL.
 * Returns WF_OK, WF_ERR_USAGE or WF_ERR_MEMORY. */
WF_API wf_status wf_zoo_set_scores(wf_ctx *ctx, wf_zoo *zoo, const char *test, const float *scores,
                                   const uint8_t *errors, size_t error_bytes);
/* The network's names or files [count], kept as "weft.sources".
 * Returns WF_OK, WF_ERR_USAGE (a name that is not UTF-8) or WF_ERR_MEMORY. */
WF_API wf_status wf_zoo_set_names(wf_ctx *ctx, wf_zoo *zoo, const char *const *names);
/* Keys of the file's own ("weft.graph", "weft.arch" ...) are refused. value NULL takes one away.
 * Returns WF_OK, WF_ERR_USAGE or WF_ERR_MEMORY. */
WF_API wf_status wf_zoo_set_meta(wf_ctx *ctx, wf_zoo *zoo, const char *key, const char *value);
/* Write any collection, with its columns and metadata. Atomic: the file appears whole or not at
 * all. The collection's own path is fine.
 * Returns WF_OK, WF_ERR_INPUT (the file it came from is damaged), WF_ERR_MEMORY or WF_ERR_DISK. */
WF_API wf_status wf_zoo_save(wf_ctx *ctx, const wf_zoo *zoo, const char *path);

/* --- what is in a collection ------------------------------------------------------------------
 * zoo must not be NULL. Pointers belong to the collection. Several threads may read one. */
WF_API const wf_graph *wf_zoo_graph(const wf_zoo *zoo);
WF_API size_t wf_zoo_count(const wf_zoo *zoo);
WF_API const char *wf_zoo_path(const wf_zoo *zoo); /* or the name of one in memory */
WF_API bool wf_zoo_in_memory(const wf_zoo *zoo);
/* Flat parameters of one network, index < wf_zoo_count(), into w (n_params). */
WF_API void wf_zoo_get(const wf_zoo *zoo, size_t index, float *w);
/* Networks first .. first+count-1 as a (count, n_params) matrix; wf_free(*out), NULL on failure.
 * Returns WF_OK, WF_ERR_USAGE (there are fewer), WF_ERR_INPUT when all are asked for and the file's
 * digest says that it is damaged, WF_ERR_INTERRUPTED or WF_ERR_MEMORY. */
WF_API wf_status wf_zoo_load(wf_ctx *ctx, const wf_zoo *zoo, size_t first, size_t count,
                             float **out);
/* Without a copy: tensor `index` of network k begins *stride * k floats after the result; NULL:
 * there is no such tensor, or the collection lies in several files. In a file of another program it
 * may not be aligned to 4 bytes. */
WF_API const float *wf_zoo_tensor(const wf_zoo *zoo, int index, size_t *stride);
/* The name of a test set; NULL after the last. */
WF_API const char *wf_zoo_test(const wf_zoo *zoo, int index);
WF_API const char *wf_zoo_meta(const wf_zoo *zoo, const char *key); /* NULL when absent */
WF_API size_t wf_zoo_meta_count(const wf_zoo *zoo);
/* Key and value number index < wf_zoo_meta_count(). */
WF_API void wf_zoo_meta_at(const wf_zoo *zoo, size_t index, const char **key, const char **value);
/* Scores [M] and error bits of a test set (NULL: the first). NULL when absent. */
WF_API const float *wf_zoo_scores(const wf_zoo *zoo, const char *test);
WF_API const uint8_t *wf_zoo_errors(const wf_zoo *zoo, const char *test, size_t *bytes_each);
WF_API const int64_t *wf_zoo_seeds(const wf_zoo *zoo); /* NULL when absent */

/* What a writer needs besides the weights; any pointer may be NULL. */
typedef struct wf_zoo_extra {
    const int64_t *seeds;
    const float *lr;
    const int32_t *epochs;
    int n_tests;
    const char *test_names[8];
    const float *scores[8];
    const uint8_t *errors[8];
    size_t error_bytes[8];
    int n_meta;
    const char *meta[32][2]; /* key, value */
} wf_zoo_extra;
/* weights (count, n_params). Atomic: the file appears whole or not at all.
 * extra NULL: none. Returns WF_OK, WF_ERR_USAGE (no networks, a bad name), WF_ERR_INPUT (a name
 * that is not UTF-8), WF_ERR_DISK or WF_ERR_MEMORY. */
WF_API wf_status wf_zoo_write(wf_ctx *ctx, const char *path, const wf_graph *graph,
                              const float *weights, size_t count, const wf_zoo_extra *extra);

/* The scale that its networks expect of inputs: metadata "weft.scale", which an import writes, or
 * the scale in "weft.preparation". False: the collection does not say, and *out stays. */
WF_API bool wf_zoo_scale(const wf_zoo *zoo, wf_scale *out);

/* Networks of an open collection, in this order. */
typedef struct wf_zoo_pick {
    const wf_zoo *zoo;
    const size_t *index; /* [n]; NULL: all of them */
    size_t n;
} wf_zoo_pick;
/* Write networks of collections of one architecture as one collection: part of one, or several
 * joined. Scores, seeds and names go along where all picks have them, and so does metadata on which
 * all agree; a warning says when they were scored on different data.
 * Returns WF_OK, WF_ERR_USAGE (no networks), WF_ERR_SHAPE (two architectures), WF_ERR_INPUT,
 * WF_ERR_DISK or WF_ERR_MEMORY. */
WF_API wf_status wf_zoo_select(wf_ctx *ctx, const wf_zoo_pick *picks, int n, const char *path);
/* The name of each network, the file it came from; *out is NULL where there are none, else
 * wf_zoo_names_free it.
 * Returns WF_OK or WF_ERR_MEMORY. */
WF_API wf_status wf_zoo_names(wf_ctx *ctx, const wf_zoo *zoo, char ***out);
WF_API void wf_zoo_names_free(char **names, size_t count); /* accepts NULL */

#define NAME(constant, text) constant,
#define ENUM(type, values) typedef enum type { values } type;
#include "weft/zoo.def"

typedef struct wf_zoo_desc {
#define SETTING(type, member, ...) WF_MEMBER_##type member;
#include "weft/zoo.def"
} wf_zoo_desc;
/* The defaults: a struct that owns nothing. */
WF_API wf_zoo_desc wf_zoo_desc_default(void);
/* The table of its settings, for wf_settings_create(): a constant, never NULL. */
WF_API const wf_setting *wf_zoo_settings(void);

/* Train networks first .. first+count-1 and write them to `path`. If the file already holds them,
 * intact and with the same settings, nothing is done. Finished shards lie in `path`.parts/ until
 * the end, so a broken call goes on where it stopped. A network that diverges is reported, left out
 * of the file and counted in *diverged (may be NULL). Returns WF_OK, WF_ERR_USAGE (desc),
 * WF_ERR_SHAPE (data for other networks), WF_ERR_UNSUPPORTED (networks that weft cannot train),
 * WF_ERR_DIVERGED (all of them), WF_ERR_INTERRUPTED (finished shards stay), WF_ERR_LOCKED,
 * WF_ERR_DISK or WF_ERR_MEMORY. */
WF_API wf_status wf_zoo_train(wf_ctx *ctx, const wf_graph *graph, const wf_dataset *data,
                              const wf_zoo_desc *desc, const char *path, size_t *diverged);

/* Train `count` networks in memory; for tests and controls.
 * weights  (count, n_params) initial weights, replaced by the trained ones.
 * Returns WF_OK, WF_ERR_USAGE (desc), WF_ERR_SHAPE (data for other networks), WF_ERR_UNSUPPORTED
 * (networks that weft cannot train), WF_ERR_DIVERGED (some are not finite at the end; the others
 * are trained), WF_ERR_INTERRUPTED or WF_ERR_MEMORY. */
WF_API wf_status wf_zoo_train_from(wf_ctx *ctx, const wf_graph *graph, const wf_dataset *data,
                                   const wf_zoo_desc *desc, float *weights);
/* PyTorch's default initial weights of network `index`. */
WF_API void wf_zoo_init(const wf_graph *graph, uint64_t seed, uint32_t index, float *w);

WF_END_C

#endif
