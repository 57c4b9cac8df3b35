/* weft/generator.h: everything that makes networks, behind one interface and in one registry.
 *
 *     wf_source source = {.zoo = zoo};
 *     wf_generator_fit_desc fit = {.sources = &source, .n_sources = 1, .path = "flow.safetensors"};
 *     wf_generator *generator;
 *     wf_generator_fit(ctx, wf_generator_find("gmn"), &fit);
 *     wf_generator_open(ctx, &(wf_generator_open_desc){.path = fit.path}, &generator);
 *     wf_generator_sample(ctx, generator, &(wf_generator_request){.graph = wf_zoo_graph(zoo),
 *                                                                 .n = 100, .weights = weights});
 *
 * A kind of generator is a table: name, settings, traits, fit, open, sample, free. Flows
 * (weft/flow.h) and the controls, which a generated network must beat, are kinds; a program may
 * register its own. Then recipes, tables and commands know it by its name. docs/generators.md says
 * how to write one.
 * weft/weft.h says who owns what and what NULL means where a comment does not. */
#ifndef WEFT_GENERATOR_H
#define WEFT_GENERATOR_H

#include "weft/flow.h"

WF_BEGIN_C

typedef struct wf_generator wf_generator; /* one that is open */
typedef struct wf_generator_kind wf_generator_kind;

/* One tensor of parameters: rows x cols, a vector has one column. muon: updated by Muon where that
 * is used; decay: weight decay applies. */
typedef void wf_generator_visit(void *user, const char *name, int rows, int cols, bool muon,
                                bool decay);

/* What is fitted, and how. */
typedef struct wf_generator_fit_desc {
    const wf_source *sources; /* collections; borrowed */
    int n_sources;
    int cond_size;            /* numbers in each source's condition; 0: none */
    const void *options;      /* the struct of the kind's settings; NULL: the defaults */
    const wf_fit_desc *train; /* NULL: the defaults */
    const char *path; /* the file to write; one of the same settings that broke off is continued */
} wf_generator_fit_desc;

typedef struct wf_generator_open_desc {
    const wf_generator_kind *kind; /* NULL: as the file says */
    const char *path;              /* of a fit; NULL for kinds without fit */
    /* for kinds that keep their collection: borrowed, must outlive the generator; else NULL */
    const wf_zoo *zoo;
    const void *options; /* kinds without fit; NULL: the defaults */
} wf_generator_open_desc;

/* What is asked of a generator. */
typedef struct wf_generator_request {
    const wf_graph *graph;
    const float *cond; /* NULL: none */
    size_t n;
    /* NULL: the defaults. Kinds other than flows may use the seed alone */
    const wf_sample_desc *sample;
    float *weights;         /* (n, n_params of graph) */
    float *direct;          /* with REFINES: the networks before refinement; may be NULL */
    wf_sample_stats *stats; /* may be NULL */
} wf_generator_request;

struct wf_generator_kind {
    const char *name;  /* lower-case letters, digits, '-' inside; no number after the last '-' */
    const char *about; /* one line for people */
    unsigned traits;   /* of wf_generator_trait */
    const wf_setting *(*settings)(void); /* of the struct `options`; NULL: none */
    size_t options_size;
    /* The setting that a number after the name gives: "sigma" in perturbation-0.25; NULL: none. */
    const char *parameter;
    /* Its values in a table that names no rows: "0.05,0.10"; the best of them is the row NAME. */
    const char *variants;
    const void *model; /* for the functions below: a flow's field */

    /* NULL: there is nothing to fit. Interrupted, it keeps what it needs to go on at desc->path. */
    wf_status (*fit)(wf_ctx *ctx, const wf_generator_kind *kind, const wf_generator_fit_desc *desc);
    wf_status (*open)(wf_ctx *ctx, const wf_generator_kind *kind,
                      const wf_generator_open_desc *desc, void **self);
    wf_status (*sample)(wf_ctx *ctx, void *self, const wf_generator_request *request);
    void (*free)(void *self); /* NULL: nothing to free */
    /* The architecture it was fitted to, which a fixed one samples; NULL: any, or not known. */
    const wf_graph *(*graph)(const void *self);
    wf_flow *(*flow)(void *self); /* of flow generators; NULL for others */
    /* The fewest networks that a fit with these settings accepts; NULL: one. */
    size_t (*least)(const void *options);
    /* Trainable parameters when fitted to networks of `graph`; NULL: none. */
    wf_status (*params)(wf_ctx *ctx, const wf_generator_kind *kind, const void *options,
                        const wf_graph *graph, int cond_size, size_t *out);
    /* The same tensor by tensor, in the order of the flat array; NULL: not known. */
    wf_status (*tensors)(wf_ctx *ctx, const wf_generator_kind *kind, const void *options,
                         const wf_graph *graph, int cond_size, wf_generator_visit *visit,
                         void *user);
};

/* --- the registry --------------------------------------------------------------------------------
 * Kinds of the library are there from the start. Register others before threads use the
 * registry. */

/* kind is borrowed for the rest of the program. Returns WF_OK, or WF_ERR_USAGE: a bad table, a name
 * that is taken, or too many kinds. */
WF_API wf_status wf_generator_register(wf_ctx *ctx, const wf_generator_kind *kind);
WF_API int wf_generator_count(void);
/* By number, in order of registration, and by name; a constant. NULL: there is none. */
WF_API const wf_generator_kind *wf_generator_at(int index);
WF_API const wf_generator_kind *wf_generator_find(const char *name);
/* A name that may have its parameter after it, "perturbation-0.25": the kind, and its options with
 * that parameter; free(*options), which is NULL for kinds without settings. Returns WF_OK,
 * WF_ERR_USAGE (no such name, with those there are; a bad number) or WF_ERR_MEMORY. */
WF_API wf_status wf_generator_named(wf_ctx *ctx, const char *name, const wf_generator_kind **kind,
                                    void **options);

/* --- use -------------------------------------------------------------------------------------- */

/* Fit a generator. Collections that do not suit the kind (several architectures, conditions, no
 * alignment) are refused before any work. With the device cuda, a kind that cannot use a GPU warns
 * and runs on the CPU; wf_ctx_devices says where "fitting" and "sampling" ran.
 * desc is borrowed for the call. Returns WF_OK, WF_ERR_USAGE, WF_ERR_INPUT, WF_ERR_SHAPE,
 * WF_ERR_UNSUPPORTED, WF_ERR_LOCKED, WF_ERR_DIVERGED, WF_ERR_INTERRUPTED, WF_ERR_DISK or
 * WF_ERR_MEMORY. */
WF_API wf_status wf_generator_fit(wf_ctx *ctx, const wf_generator_kind *kind,
                                  const wf_generator_fit_desc *desc);
/* *out is the caller's: wf_generator_free(). Returns WF_OK, WF_ERR_USAGE (neither kind nor file, a
 * collection that is needed), WF_ERR_INPUT (the file) or WF_ERR_MEMORY; *out is then NULL. */
WF_API wf_status wf_generator_open(wf_ctx *ctx, const wf_generator_open_desc *desc,
                                   wf_generator **out);
/* Returns WF_OK, WF_ERR_USAGE (conditions or refinement that the kind does not offer),
 * WF_ERR_UNSUPPORTED (another architecture), WF_ERR_SOLVER, WF_ERR_INTERRUPTED or WF_ERR_MEMORY. */
WF_API wf_status wf_generator_sample(wf_ctx *ctx, wf_generator *generator,
                                     const wf_generator_request *request);
WF_API void wf_generator_free(wf_generator *generator); /* accepts NULL */
/* A constant, never NULL. */
WF_API const wf_generator_kind *wf_generator_kind_of(const wf_generator *generator);
/* Its architecture, which belongs to the generator; NULL: any, or not known. */
WF_API const wf_graph *wf_generator_graph(const wf_generator *generator);
/* Trainable parameters of a fit to networks of `graph`; options NULL: the defaults. 0: none.
 * Returns WF_OK, WF_ERR_USAGE (options) or WF_ERR_MEMORY. */
WF_API wf_status wf_generator_params(wf_ctx *ctx, const wf_generator_kind *kind,
                                     const void *options, const wf_graph *graph, int cond_size,
                                     size_t *out);
/* Calls visit for each of its tensors; kinds that do not list them are passed over.
 * Returns WF_OK, WF_ERR_USAGE (options), WF_ERR_UNSUPPORTED or WF_ERR_MEMORY. */
WF_API wf_status wf_generator_tensors(wf_ctx *ctx, const wf_generator_kind *kind,
                                      const void *options, const wf_graph *graph, int cond_size,
                                      wf_generator_visit *visit, void *user);
/* The flow inside, which belongs to the generator; NULL: it is no flow. */
WF_API wf_flow *wf_generator_flow(wf_generator *generator);

/* --- without structs: options as JSON ----------------------------------------------------------
 * For bindings. Unknown keys and bad values are WF_ERR_USAGE with a sentence that names them. */

/* Fit the generator `name` to n collections.
 * zoos      [n]; borrowed.
 * held_out  [n] networks for the validation loss, NULL where there are none; NULL: none at all.
 * json      {"model": settings of the generator, "train": settings of [train],
 *           "sources": [{"task": text, "cond": [numbers], "weight": N}, ...] one for each
 *           collection}; every part may be absent. NULL: the defaults, where train.coupling is
 *           "matched" for flows that are equivariant and "independent" for other flows.
 * path      of the file that is written. Where it holds an unfinished fit, that one continues.
 * Returns what wf_generator_fit() returns: WF_OK, WF_ERR_USAGE, WF_ERR_INPUT, WF_ERR_SHAPE,
 * WF_ERR_DIVERGED, WF_ERR_INTERRUPTED (the checkpoint is kept), WF_ERR_LOCKED, WF_ERR_DISK,
 * WF_ERR_MEMORY, WF_ERR_UNSUPPORTED. */
WF_API wf_status wf_generator_fit_json(wf_ctx *ctx, const char *name, const wf_zoo *const *zoos,
                                       const wf_zoo *const *held_out, int n, const char *json,
                                       const char *path);
/* Open the generator in the file `path`, or a generator `name` that needs no fit
 * ("perturbation-0.1").
 * name  NULL: as the file says.     path  NULL: a generator without fit.
 * zoo   for those that keep their collection; borrowed until wf_generator_free(); else NULL.
 * json  settings of a generator without fit; NULL: the defaults.
 * *out is the caller's: wf_generator_free(); NULL on failure.
 * Returns WF_OK, WF_ERR_USAGE, WF_ERR_INPUT or WF_ERR_MEMORY. */
WF_API wf_status wf_generator_open_json(wf_ctx *ctx, const char *name, const char *path,
                                        const wf_zoo *zoo, const char *json, wf_generator **out);
/* n networks of `graph` into weights (n, n_params).
 * json    {"sample": settings of [sample], "cond": [numbers], "task": name of a task whose
 *         condition is taken}; NULL: the defaults.
 * direct  the networks before refinement; may be NULL.
 * stats   {"evaluations", "accepted", "rejected", "seconds"}: wf_free(*stats); may be NULL.
 * Returns what wf_generator_sample() returns; WF_ERR_USAGE for bad options. */
WF_API wf_status wf_generator_sample_json(wf_ctx *ctx, wf_generator *generator,
                                          const wf_graph *graph, size_t n, const char *json,
                                          float *weights, float *direct, char **stats);
/* What is known of generator number `index`: {"name", "about", "fitted": bool, "parameter",
 * "variants", "traits": ["any-architecture", "conditions", "equivariant", "wants-aligned",
 * "keeps-collection", "on-gpu", "refines"]}; wf_free(*out). Returns WF_OK, WF_ERR_USAGE (after the
 * last) or WF_ERR_MEMORY. */
WF_API wf_status wf_generator_json(wf_ctx *ctx, int index, char **out);
/* The table of a generator's settings, for wf_settings_create(); NULL: there is no such generator,
 * or it has no settings. */
WF_API const wf_setting *wf_generator_settings(const char *name);

WF_END_C

#endif
