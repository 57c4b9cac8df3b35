/* weft/eval.h: accuracy, ROC AUC, error-IoU, matched cosine, JWS, novelty (paper, appendix B).
 * weft/weft.h says who owns what and what NULL means where a comment does not. */
#ifndef WEFT_EVAL_H
#define WEFT_EVAL_H

#include "weft/align.h"
#include "weft/zoo.h"

WF_BEGIN_C

#define NAME(constant, text) constant,
#define ENUM(type, values) typedef enum type { values } type;
#include "weft/eval.def"

typedef struct wf_eval_desc {
#define SETTING(type, member, ...) WF_MEMBER_##type member;
#include "weft/eval.def"
} wf_eval_desc;
/* The defaults: a struct that owns nothing. */
WF_API wf_eval_desc wf_eval_desc_default(void);
/* The table of its settings, for wf_settings_create(): a constant, never NULL. */
WF_API const wf_setting *wf_eval_settings(void);

/* The reference side of every comparison: a collection with its scores and errors on `data`, and
 * the cloud of its networks with the scales of JWS. */
typedef struct wf_reference wf_reference;
/* data NULL: no labelled data; then scores and IoU are absent and JWS is not defined.
 * zoo and data are borrowed until wf_reference_free(), which accepts NULL; desc NULL means the
 * defaults. Returns WF_OK, WF_ERR_USAGE (desc), WF_ERR_SHAPE (data for other networks),
 * WF_ERR_INPUT (damaged, values that are not finite), WF_ERR_INTERRUPTED or WF_ERR_MEMORY; *out is
 * then NULL. */
WF_API wf_status wf_reference_open(wf_ctx *ctx, const wf_zoo *zoo, const wf_dataset *data,
                                   const wf_eval_desc *desc, wf_reference **out);
WF_API void wf_reference_free(wf_reference *reference);

/* One line of the table. Values that are not defined are NaN. */
typedef struct wf_eval_row {
    char name[64];
    size_t n;
    double accuracy_mean, accuracy_std, iou_mean, iou_std, wcs_mean, wcs_std;
    double jws, jws_std;          /* std over the B subsets */
    double jws_raw, jws_no_sqrt3; /* ablations: no coordinate scaling; no division by sqrt 3 */
    /* leave-one-out among the networks themselves */
    double diversity_iou_mean, diversity_iou_std, diversity_wcs_mean, diversity_wcs_std;
} wf_eval_row;

/* Scores of single networks, for plots and the audit. Arrays of n; free with wf_points_free. */
typedef struct wf_points {
    size_t n;
    float *accuracy, *iou, *wcs;            /* accuracy and iou NULL without data */
    uint32_t *nearest_wcs, *nearest_iou;    /* index of that training network */
    float *wcs_percentile, *iou_percentile; /* place among the reference's values, 0..100 */
} wf_points;
/* Frees what it holds, not itself; accepts NULL. */
WF_API void wf_points_free(wf_points *points);

/* The collection itself: accuracy and IoU over all of it, WCS over the cloud, all leave-one-out.
 * points: of the cloud; NULL, or freed by wf_points_free().
 * Returns WF_OK or WF_ERR_MEMORY. */
WF_API wf_status wf_eval_reference(wf_ctx *ctx, const wf_reference *reference, wf_eval_row *row,
                                   wf_points *points);
/* Networks (n, n_params). points: NULL, or freed by wf_points_free().
 * Returns WF_OK, WF_ERR_INPUT (no networks, values that are not finite), WF_ERR_INTERRUPTED or
 * WF_ERR_MEMORY. */
WF_API wf_status wf_eval_networks(wf_ctx *ctx, const wf_reference *reference, const char *name,
                                  const float *weights, size_t n, wf_eval_row *row,
                                  wf_points *points);
/* Scales d_k and what was cut ("cloud of 600: the collection has no more"), "" if nothing, never
 * NULL. The text belongs to the reference. */
WF_API void wf_reference_scales(const wf_reference *reference, double scales[3]);
WF_API const char *wf_reference_notes(const wf_reference *reference);

/* A row and the scores of its networks as JSON, for callers that do not know the structs.
 * weights  (n, n_params); NULL: the collection itself, and n is ignored.
 * out      {"name", "n", "accuracy_mean", ... all members of wf_eval_row, NaN as null,
 *          "points": {"accuracy", "iou", "wcs", "nearest_wcs", "nearest_iou",
 *          "wcs_percentile", "iou_percentile": lists of n, absent without data}}; wf_free(*out).
 * Returns what wf_eval_networks() returns. */
WF_API wf_status wf_eval_json(wf_ctx *ctx, const wf_reference *reference, const char *name,
                              const float *weights, size_t n, char **out);

/* --- parts of the evaluation ------------------------------------------------------------------ */

/* Scores (n) and error bits (n, (n_test+7)/8) of networks on the test part; bit r%8 of byte r/8
 * is set where the prediction of example r is wrong. scores and errors may be NULL.
 * Returns WF_OK, WF_ERR_SHAPE (data for other networks), WF_ERR_INPUT (no test part),
 * WF_ERR_USAGE (ROC AUC of more than two classes), WF_ERR_UNSUPPORTED (a forward pass of more than
 * 4 GB), WF_ERR_INTERRUPTED or WF_ERR_MEMORY. */
WF_API wf_status wf_score_networks(wf_ctx *ctx, const wf_graph *graph, const float *weights,
                                   size_t n, const wf_dataset *data, wf_score score, float *scores,
                                   uint8_t *errors);
/* Logits (n, n_test, outputs) of networks on the test part; scores and error bits of any logits.
 * Returns as wf_score_networks. */
WF_API wf_status wf_logits(wf_ctx *ctx, const wf_graph *graph, const float *weights, size_t n,
                           const wf_dataset *data, float *logits);
/* Returns WF_OK, WF_ERR_INPUT (no test part), WF_ERR_USAGE (ROC AUC of more than two classes) or
 * WF_ERR_MEMORY. */
WF_API wf_status wf_score_logits(wf_ctx *ctx, const float *logits, size_t n, const wf_dataset *data,
                                 wf_score score, float *scores, uint8_t *errors);
/* Ties count one half; NaN with one class, and without memory for n ranks. */
WF_API double wf_roc_auc(const float *score, const int32_t *positive, size_t n);
WF_API double wf_error_iou(const uint8_t *a, const uint8_t *b, size_t bytes); /* empty union: 0 */
/* Exact W2 between two equal-sized clouds of points (m, 3).
 * Returns WF_OK, WF_ERR_USAGE (m, a point that is not finite) or WF_ERR_MEMORY. */
WF_API wf_status wf_wasserstein2(wf_ctx *ctx, const double *a, const double *b, int m, double *out);

/* --- networks of other programs --------------------------------------------------------------- */

/* Files of other programs do not say how inputs were scaled, which activation the networks have, or
 * which class each output stands for. */
typedef struct wf_suits {
    /* mean of a few networks on a part of the test set, with the scale and activation as stated */
    double accuracy;
    double best;          /* the same, when `advice` is followed */
    double largest_class; /* share of the largest class of the test part */
    double guessing;      /* an accuracy below this is hardly above largest_class */
    char advice[400];     /* "--scale standard --activation tanh"; "": nothing is far better */
} wf_suits;
/* Try the usual scales, activations and any order of classes on a few networks. desc is as the
 * caller would open it. Returns WF_OK, WF_ERR_SHAPE where the networks do not take such data,
 * WF_ERR_INTERRUPTED, or what wf_dataset_open returns. */
WF_API wf_status wf_zoo_suits(wf_ctx *ctx, const wf_zoo *zoo, const wf_data_desc *desc,
                              wf_suits *out);
/* The same as JSON, for data in memory too: {"accuracy", "best", "largest_class", "guessing" as
 * above, "scale", "activation": what would fit better, null where it is as given, "classes": the
 * label that each output stands for, null likewise}.
 * desc  NULL: `data` is taken, and scales are applied to its numbers as they are; with desc, data
 *       is not read and may be NULL.
 * wf_free(*out). Returns what wf_zoo_suits returns, and WF_ERR_INPUT for data without a test
 * part. */
WF_API wf_status wf_zoo_suits_json(wf_ctx *ctx, const wf_zoo *zoo, const wf_data_desc *desc,
                                   const wf_dataset *data, char **out);
/* Write the collection with the accuracies and errors of its networks on `data`, and how that was
 * prepared, desc's scale and order of classes too: later commands then read data alike. path may be
 * the collection's own.
 * Returns WF_OK, WF_ERR_SHAPE, WF_ERR_INPUT (a damaged collection), WF_ERR_INTERRUPTED,
 * WF_ERR_DISK or WF_ERR_MEMORY. */
WF_API wf_status wf_zoo_score(wf_ctx *ctx, const wf_zoo *zoo, const wf_dataset *data,
                              const wf_data_desc *desc, const char *path);

/* --- between two collections ------------------------------------------------------------------ */

/* What pairs of networks (a, b) of two collections give without a generator, at alpha = 0,
 * 1/steps ... 1:
 *   average   weights (1 - alpha) a + alpha P b, P of so many Re-Basin sweeps of b towards a
 *   ensemble  logits (1 - alpha) logits(a) + alpha logits(b); an oracle: it runs two networks */
typedef struct wf_mix_desc {
    wf_score score;
    size_t pairs;  /* 50 */
    int steps;     /* 10 */
    int n_sweeps;  /* 4 */
    int sweeps[8]; /* 0, 1, 5, 50 */
    bool ensemble; /* true */
    uint64_t seed; /* of the pairs: shuffles of both collections */
} wf_mix_desc;
WF_API wf_mix_desc wf_mix_desc_default(void); /* ROC AUC */

typedef struct wf_mix {
    int curves, points, n_data; /* points = steps + 1 */
    char (*name)[32];           /* [curves]: "average", "average-5", "ensemble" */
    double *alpha;              /* [points] */
    double *mean, *std; /* (curves, points, n_data): over the pairs; std divides by their number */
} wf_mix;
/* a, b: collections of one architecture; data: n_data sets, judged on one by one.
 * Free *out with wf_mix_free, also after a failure.
 * desc NULL means the defaults. Returns WF_OK, WF_ERR_USAGE (desc), WF_ERR_SHAPE (other
 * architectures, data for other networks), WF_ERR_INPUT (a damaged collection, values that are not
 * finite, no test part), WF_ERR_INTERRUPTED or WF_ERR_MEMORY. */
WF_API wf_status wf_eval_mix(wf_ctx *ctx, const wf_zoo *a, const wf_zoo *b,
                             const wf_dataset *const *data, int n_data, const wf_mix_desc *desc,
                             wf_mix *out);
/* Frees what it holds, not itself; accepts NULL. */
WF_API void wf_mix_free(wf_mix *mix);

WF_END_C

#endif
