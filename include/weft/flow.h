/* weft/flow.h: train a flow on collections, sample networks from it.
 *
 *     wf_source source = {.zoo = zoo};
 *     wf_fit_desc fit = wf_fit_desc_default();
 *     wf_flow *flow;
 *     wf_flow_fit(ctx, &source, 1, &field, &fit, "flow.safetensors", &flow);
 *     wf_flow_sample(ctx, flow, wf_zoo_graph(zoo), NULL, 100, &sample, weights, NULL, &stats); */
#ifndef WEFT_FLOW_H
#define WEFT_FLOW_H

#include "weft/field.h"
#include "weft/zoo.h"

WF_BEGIN_C

typedef struct wf_flow wf_flow;

/* A collection, the condition of its networks (K numbers; NULL without conditions), and the name to ask for
 * them by (NULL: none; several collections may share one). */
typedef struct wf_source {
    const wf_zoo *zoo;
    const float *cond;
    const char *task;
    int share; /* places it gets where others get one; 0: one */
} wf_source;

typedef enum wf_optimizer {
    WF_OPT_ADAMW,
    WF_OPT_MUON
} wf_optimizer; /* MUON: blocks' matrices; AdamW on the rest */
typedef enum wf_time_law { WF_TIME_UNIFORM, WF_TIME_LOGIT_NORMAL, WF_TIME_LATE } wf_time_law;
typedef enum wf_kept { WF_KEPT_EMA, WF_KEPT_FINAL, WF_KEPT_BEST } wf_kept;
/* Whose mean and standard deviation: those of all collections of an architecture together, or each one's own. */
typedef enum wf_normalise_by {
    WF_NORMALISE_BY_ARCHITECTURE,
    WF_NORMALISE_BY_COLLECTION
} wf_normalise_by;
/* Of the field on a GPU. AUTO: bf16 products with fp32 sums, but fp32 with dopri5. A CPU computes in fp32. */
typedef enum wf_precision { WF_PRECISION_AUTO, WF_PRECISION_BF16, WF_PRECISION_FP32 } wf_precision;
typedef enum wf_coupling { WF_COUPLING_INDEPENDENT, WF_COUPLING_MATCHED } wf_coupling;

typedef enum wf_loss_by { WF_LOSS_BY_PARAMETERS, WF_LOSS_BY_LAYERS } wf_loss_by;

typedef struct wf_fit_desc {
    /* objective */
    bool
        precondition; /* v = (2t-1)/a w + F(w/sqrt a, t)/sqrt a, a = t^2 + (1-t)^2; needs normalise */
    bool principal;   /* with the variances of first layers' principal axes; needs precondition */
    bool normalise;   /* parameter-group normalisation */
    wf_normalise_by normalise_by;
    wf_coupling coupling;
    int match_sweeps;     /* 2 */
    double source_std;    /* 1 */
    double path_noise;    /* 0 */
    size_t noise_table;   /* w0 is one of so many vectors drawn once; 0: fresh every time */
    wf_time_law time_law; /* LOGIT_NORMAL: t = sigmoid of a normal deviate; LATE: of density 2t */
    wf_loss_by loss_by;   /* what counts alike in the loss of a network */
    double cond_drop;     /* probability of the learned null */
    /* optimiser */
    wf_optimizer optimizer;
    double lr, weight_decay, beta1, beta2, eps;
    double muon_lr, muon_momentum; /* 0.02, 0.95 */
    double clip;                   /* global norm; 0: none */
    double ema;                    /* 0.999; 0: none. Early on min(ema, (1+n)/(10+n)) */
    wf_kept kept;  /* what samplers use: EMA where there is one, the last weights, or those with the
                     lowest loss on a single batch */
    size_t warmup; /* updates, linear */
    bool cosine;   /* else constant */
    size_t schedule_updates; /* the schedule's own horizon; 0: updates */
    double min_lr;
    /* run */
    size_t updates, batch;
    size_t limit; /* use only the first `limit` networks of each collection; 0: all */
    uint64_t seed;
    double save_seconds; /* a checkpoint at least this often: 60 */
    size_t log_every;    /* a JSON line in `path`.log.jsonl every so many updates: 20 */
    /* not part of the configuration: a run may go on with others */
    wf_precision precision;
    double max_seconds; /* of training, all pieces of a run together: then it ends; 0: no limit */
} wf_fit_desc;
WF_API wf_fit_desc wf_fit_desc_default(void); /* our recipe: muon, preconditioned, matched */
WF_API wf_fit_desc wf_fit_desc_paper(void);   /* AdamW, plain, independent */

/* Trains until desc->updates, or until max_seconds with a warning; a checkpoint at `path` of the same configuration is continued, bit for bit.
 * On WF_ERR_INTERRUPTED and WF_ERR_DIVERGED the last good checkpoint is kept at `path`. out may be NULL. */
WF_API wf_status wf_flow_fit(wf_ctx *ctx, const wf_source *sources, int n_sources,
                             const wf_field_desc *field, const wf_fit_desc *desc, const char *path,
                             wf_flow **out);
WF_API wf_status wf_flow_open(wf_ctx *ctx, const char *path, wf_flow **out);
WF_API void wf_flow_free(wf_flow *flow);
WF_API const wf_field_desc *wf_flow_field(const wf_flow *flow);
WF_API size_t wf_flow_updates(const wf_flow *flow); /* done so far */
WF_API const char *wf_flow_meta(const wf_flow *flow, const char *key);

/* A collection the flow was fitted to. Everything belongs to the flow; texts are "" where nothing is known. */
typedef struct wf_flow_source {
    const char *task;
    const wf_graph *graph;
    const float *cond; /* K numbers; NULL without conditions */
    const char *tests; /* names of its test sets, joined by commas */
    const char *data;  /* fingerprint of the data its networks were trained on */
    const char *path;
    size_t count; /* networks used */
} wf_flow_source;
WF_API int wf_flow_sources(const wf_flow *flow); /* how many */
WF_API wf_flow_source wf_flow_source_at(const wf_flow *flow, int index);
/* The first source of a task; WF_ERR_USAGE lists the tasks there are. */
WF_API wf_status wf_flow_find_task(wf_ctx *ctx, const wf_flow *flow, const char *task, int *index);
/* The source whose condition is nearest to `cond`. */
WF_API int wf_flow_nearest(const wf_flow *flow, const float *cond);
/* Where a condition lies: at one that was trained on, between such (a convex combination), or beyond them. */
typedef enum wf_cond_place { WF_COND_TRAINED, WF_COND_BETWEEN, WF_COND_BEYOND } wf_cond_place;
WF_API wf_status wf_flow_place(wf_ctx *ctx, const wf_flow *flow, const float *cond,
                               wf_cond_place *out);

typedef enum wf_solver {
    WF_SOLVER_EULER,
    WF_SOLVER_HEUN,
    WF_SOLVER_RK4,
    WF_SOLVER_DOPRI5
} wf_solver;

typedef struct wf_sample_desc {
    wf_solver solver;
    int steps;                 /* fixed-step solvers: 100 */
    double rtol, atol;         /* dopri5: 1e-5 */
    double min_step, max_step; /* 1e-7, 1 */
    size_t max_evaluations;    /* per network: 20,000 */
    double refine_t;           /* t*: 0.75 */
    int refine_cycles;         /* 0 */
    int refine_steps;    /* Euler steps from t* to 1; 0: the solver above, with its step size */
    bool refine_matched; /* fresh noise matched to the current network */
    double guidance;     /* v_null + g (v_cond - v_null); 1: plain */
    size_t batch;        /* networks at a time; 0: chosen */
    uint64_t seed;
    size_t first; /* index of the first network: network k is the same whatever the call */
    wf_precision precision;
} wf_sample_desc;
WF_API wf_sample_desc wf_sample_desc_default(void);

typedef struct wf_sample_stats {
    double evaluations;        /* mean field evaluations a network */
    size_t accepted, rejected; /* dopri5 steps over all networks */
    double seconds;
} wf_sample_stats;

/* weights (n, n_params of graph), already back on their own scale. graph may have widths never seen; the group
 * normalisation is taken by block index. cond: K numbers, the same for all n. direct (may be NULL): the networks
 * before refinement. stats may be NULL. */
WF_API wf_status wf_flow_sample(wf_ctx *ctx, wf_flow *flow, const wf_graph *graph,
                                const float *cond, size_t n, const wf_sample_desc *desc,
                                float *weights, float *direct, wf_sample_stats *stats);

/* Control generators: what a generated network must beat. Each writes weights (n, n_params). */
WF_API wf_status wf_control_random(wf_ctx *ctx, const wf_graph *graph, size_t n, uint64_t seed,
                                   float *weights);
/* Training networks plus sigma * N(0,1) in group-normalised space. */
WF_API wf_status wf_control_perturb(wf_ctx *ctx, const wf_zoo *zoo, double sigma, size_t n,
                                    uint64_t seed, float *weights);
/* Means of pairs, of unmatched or of Re-Basin-matched networks. */
WF_API wf_status wf_control_average(wf_ctx *ctx, const wf_zoo *zoo, bool matched, size_t n,
                                    uint64_t seed, float *weights);

/* Pairs of networks of two collections of one architecture, drawn without repeats until one is used up: from, to
 * (n, n_params), each `to` matched to its `from` with so many sweeps (0: left as it is). */
WF_API wf_status wf_control_pairs(wf_ctx *ctx, const wf_zoo *a, const wf_zoo *b, int sweeps,
                                  size_t n, uint64_t seed, float *from, float *to);

WF_END_C

#endif
