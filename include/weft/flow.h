/* weft/flow.h: train a flow on collections, sample networks from it.
 *
 *     wf_source source = {.zoo = zoo};
 *     wf_fit_desc fit = wf_fit_desc_default();
 *     wf_flow *flow;
 *     wf_flow_fit(ctx, &source, 1, &field, &fit, "flow.safetensors", &flow);
 *     wf_flow_sample(ctx, flow, wf_zoo_graph(zoo), NULL, 100, &sample, weights, NULL, &stats);
 *
 * weft/weft.h says who owns what and what NULL means where a comment does not. */
#ifndef WEFT_FLOW_H
#define WEFT_FLOW_H

#include "weft/field.h"
#include "weft/zoo.h"

WF_BEGIN_C

typedef struct wf_flow wf_flow;

/* The generator of recipes and of flow files that name none. */
#define WF_GENERATOR_DEFAULT "gmn"

/* How more networks of a collection's kind are trained, while a flow is fitted to them. */
typedef struct wf_fresh {
    const wf_dataset *data; /* borrowed */
    wf_zoo_desc zoo;        /* count and first are ignored */
} wf_fresh;
/* Indices of fresh networks; collections have lower ones. */
#define WF_FRESH_FIRST 0x80000000u

/* A collection to fit. */
typedef struct wf_source {
    const wf_zoo *zoo;
    const wf_zoo *held_out; /* networks of the same kind for the validation loss; NULL: none */
    const float *cond;      /* of its networks: K numbers; NULL without conditions */
    const char *task; /* name to ask for them by; NULL: none. Several collections may share one */
    int draw_weight;  /* relative sampling weight; 0 means 1 */
    /* Fit networks that are trained while the flow is. Those of zoo are then never fitted; they
     * only say what a network looks like. NULL: fit those of zoo. All sources of a flow have it, or
     * none. */
    const wf_fresh *fresh;
} wf_source;

#define NAME(constant, text) constant,
#define ENUM(type, values) typedef enum type { values } type;
#include "weft/fit.def"

typedef struct wf_fit_desc {
#define SETTING(type, member, ...) WF_MEMBER_##type member;
#include "weft/fit.def"
} wf_fit_desc;
WF_API wf_fit_desc wf_fit_desc_default(void); /* our recipe: muon, preconditioned, matched */
/* The table of its settings, for wf_settings_create(): a constant, never NULL. */
WF_API const wf_setting *wf_fit_settings(void);
WF_API wf_fit_desc wf_fit_desc_paper(void); /* AdamW, plain, independent */

/* Train for desc->updates updates. Where max_seconds would not suffice for them, a warning says so
 * and the schedule is shortened to end by then. A checkpoint at `path` of the same settings is
 * continued, bit for bit. On WF_ERR_INTERRUPTED and WF_ERR_DIVERGED the last good checkpoint is
 * kept there. out may be NULL. Everything is borrowed for the call; *out, where it is wanted, is
 * the caller's. Returns WF_OK, WF_ERR_USAGE (settings), WF_ERR_INPUT (a collection, a checkpoint of
 * other settings), WF_ERR_SHAPE, WF_ERR_DIVERGED, WF_ERR_INTERRUPTED, WF_ERR_LOCKED, WF_ERR_DISK,
 * WF_ERR_UNSUPPORTED or WF_ERR_MEMORY. */
WF_API wf_status wf_flow_fit(wf_ctx *ctx, const wf_source *sources, int n_sources,
                             const wf_field_desc *field, const wf_fit_desc *desc, const char *path,
                             wf_flow **out);
/* Open a flow's file, to sample from it. *out is the caller's: wf_flow_free(), which accepts NULL.
 * A flow may be used by one thread at a time. Returns WF_OK, WF_ERR_INPUT (no flow, damaged, of a
 * newer version), WF_ERR_SHAPE or WF_ERR_MEMORY; *out is then NULL. */
WF_API wf_status wf_flow_open(wf_ctx *ctx, const char *path, wf_flow **out);
WF_API void wf_flow_free(wf_flow *flow);
WF_API const char *wf_flow_generator(const wf_flow *flow); /* whose flow it is: "gmn" */
WF_API int wf_flow_cond_size(const wf_flow *flow);         /* numbers in a condition; 0: none */
WF_API size_t wf_flow_params(const wf_flow *flow);         /* trainable parameters of its field */
/* The settings of its generator (a wf_field_desc for gmn; NULL: it has none), and those of its
 * training (never NULL). Both belong to the flow. */
WF_API const void *wf_flow_options(const wf_flow *flow);
WF_API const wf_fit_desc *wf_flow_trained_with(const wf_flow *flow);
WF_API size_t wf_flow_updates(const wf_flow *flow); /* done so far */
/* Its position in the schedule, in updates: equal to wf_flow_updates(), unless max_seconds has
 * shortened the schedule. */
WF_API size_t wf_flow_position(const wf_flow *flow);
/* A value of its file's metadata, which belongs to the flow; NULL when absent. */
WF_API const char *wf_flow_meta(const wf_flow *flow, const char *key);

/* A collection the flow was fitted to. Everything belongs to the flow; texts are "" where
 * nothing is known. */
typedef struct wf_flow_source {
    const char *task;
    const wf_graph *graph;
    const float *cond; /* K numbers; NULL without conditions */
    const char *tests; /* names of its test sets, joined by commas */
    const char *data;  /* fingerprint of the data its networks were trained on */
    const char *path;
    size_t count;        /* networks used */
    const char *scale;   /* of the data its networks read, as recipes write it */
    const char *classes; /* their order, where the collection says one */
} wf_flow_source;
WF_API int wf_flow_sources(const wf_flow *flow); /* how many */
WF_API wf_flow_source wf_flow_source_at(const wf_flow *flow, int index);
/* Its architecture alone, for callers that do not know the struct; it belongs to the flow. Never
 * NULL for index < wf_flow_sources(). */
WF_API const wf_graph *wf_flow_source_graph(const wf_flow *flow, int index);
/* "a, b, c": the names of the tasks, each once, as many as fit into `size` bytes, at most 64. */
WF_API void wf_flow_tasks(const wf_flow *flow, char *out, size_t size);
/* The first source of a task. Returns WF_OK, or WF_ERR_USAGE with the tasks there are. */
WF_API wf_status wf_flow_find_task(wf_ctx *ctx, const wf_flow *flow, const char *task, int *index);
/* The source whose condition is nearest to `cond`. */
WF_API int wf_flow_nearest(const wf_flow *flow, const float *cond);
/* Where a condition lies: at one that was trained on, between several (a convex combination), or
 * beyond all of them. */
typedef enum wf_cond_place { WF_COND_TRAINED, WF_COND_BETWEEN, WF_COND_BEYOND } wf_cond_place;
/* Returns WF_OK, WF_ERR_USAGE (the flow has no conditions) or WF_ERR_MEMORY. */
WF_API wf_status wf_flow_place(wf_ctx *ctx, const wf_flow *flow, const float *cond,
                               wf_cond_place *out);

#define NAME(constant, text) constant,
#define ENUM(type, values) typedef enum type { values } type;
#include "weft/sample.def"

typedef struct wf_sample_desc {
#define SETTING(type, member, ...) WF_MEMBER_##type member;
#include "weft/sample.def"
} wf_sample_desc;
/* The defaults: a struct that owns nothing. */
WF_API wf_sample_desc wf_sample_desc_default(void);
/* The table of its settings, for wf_settings_create(): a constant, never NULL. */
WF_API const wf_setting *wf_sample_settings(void);

/* The sampling settings that wf_flow_keep_sampling put into the flow's file; the defaults where it
 * put none. The seed is the default's. */
WF_API void wf_flow_sampling(const wf_flow *flow, wf_sample_desc *out);
/* Keep sampling settings in the file of a finished flow; a file that has them is not written.
 * Returns WF_OK, WF_ERR_INPUT (no flow), WF_ERR_DISK or WF_ERR_MEMORY. */
WF_API wf_status wf_flow_keep_sampling(wf_ctx *ctx, const char *path, const wf_sample_desc *desc);

typedef struct wf_sample_stats {
    double evaluations;        /* mean field evaluations a network */
    size_t accepted, rejected; /* dopri5 steps over all networks */
    double seconds;
} wf_sample_stats;

/* Sample n networks.
 * graph    may have widths never seen: group normalisation goes by block index.
 * cond     K numbers, the same for all n; NULL: none.
 * desc     NULL means the defaults.
 * weights  (n, n_params of graph), on their own scale again.
 * direct   the networks before refinement; may be NULL.
 * stats    may be NULL.
 * Returns WF_OK, WF_ERR_USAGE (desc, a condition), WF_ERR_UNSUPPORTED (layers that the flow does
 * not know), WF_ERR_DIVERGED (a network or its velocity is not finite), WF_ERR_SOLVER,
 * WF_ERR_INTERRUPTED or WF_ERR_MEMORY. */
WF_API wf_status wf_flow_sample(wf_ctx *ctx, wf_flow *flow, const wf_graph *graph,
                                const float *cond, size_t n, const wf_sample_desc *desc,
                                float *weights, float *direct, wf_sample_stats *stats);

/* dw/dt of networks on their way from noise (t = 0) to networks (t = 1), on the CPU.
 * graph       as of wf_flow_sample.
 * weights, t  (n, n_params) and (n), 0 <= t <= 1.
 * cond        K numbers, the same for all; NULL: none. guidance: 1 is the condition as it is.
 * normalised  weights and velocity are in the space the flow lives in, where source noise has
 *             the flow's source_std; else on the networks' own scale.
 * velocity    (n, n_params); may not overlap weights.
 * Returns WF_OK, WF_ERR_USAGE (a time or a condition), WF_ERR_UNSUPPORTED (layers that the flow
 * does not know), WF_ERR_INTERRUPTED or WF_ERR_MEMORY. */
WF_API wf_status wf_flow_velocity(wf_ctx *ctx, wf_flow *flow, const wf_graph *graph,
                                  const float *weights, const float *t, size_t n, const float *cond,
                                  double guidance, bool normalised, float *velocity);
/* All that a flow says of itself: {"generator", "params", "updates", "cond_size", "model": its
 * settings, "train": how it was trained, "sources": [{"task", "arch", "count", "cond", "tests",
 * "data", "path", "scale", "classes"}]}. wf_free(*out). Returns WF_OK or WF_ERR_MEMORY. */
WF_API wf_status wf_flow_json(wf_ctx *ctx, const wf_flow *flow, char **out);

/* Control generators: what a generated network must beat. Each writes weights (n, n_params).
 * Returns WF_OK or WF_ERR_USAGE (more than 2^32 - 1 networks). */
WF_API wf_status wf_control_random(wf_ctx *ctx, const wf_graph *graph, size_t n, uint64_t seed,
                                   float *weights);
/* Training networks plus sigma * N(0,1) in group-normalised space.
 * Returns WF_OK, WF_ERR_USAGE (sigma below 0), WF_ERR_INPUT (a damaged collection),
 * WF_ERR_INTERRUPTED or WF_ERR_MEMORY. */
WF_API wf_status wf_control_perturb(wf_ctx *ctx, const wf_zoo *zoo, double sigma, size_t n,
                                    uint64_t seed, float *weights);
/* Means of pairs, of unmatched or of Re-Basin-matched networks.
 * Returns WF_OK, WF_ERR_INPUT (fewer than two networks, damaged), WF_ERR_INTERRUPTED or
 * WF_ERR_MEMORY. */
WF_API wf_status wf_control_average(wf_ctx *ctx, const wf_zoo *zoo, bool matched, size_t n,
                                    uint64_t seed, float *weights);

/* Pairs of networks of two collections of one architecture, drawn without repeats until one
 * collection is used up. from, to (n, n_params): each `to` is matched to its `from` in `sweeps`
 * sweeps; 0: it is not matched.
 * Returns WF_OK, WF_ERR_USAGE (sweeps), WF_ERR_SHAPE (two architectures), WF_ERR_INPUT,
 * WF_ERR_INTERRUPTED or WF_ERR_MEMORY. */
WF_API wf_status wf_control_pairs(wf_ctx *ctx, const wf_zoo *a, const wf_zoo *b, int sweeps,
                                  size_t n, uint64_t seed, float *from, float *to);

WF_END_C

#endif
