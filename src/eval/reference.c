/* reference: the collection's own scores (paper, appendix B.2 and B.4).
 *
 * Task score and max IoU of all N networks (beyond 50,000: max IoU of the cloud alone, since the
 * pairs grow with N^2), WCS of a cloud of m = min(1000, N) drawn uniformly, each leave-one-out: a
 * network is compared with the whole collection but itself. The scale of coordinate k is
 *     d_k = max(mu_k, 1 - mu_k),   mu_k the mean over the cloud.
 * The cloud is the beginning of the shuffle of stream (seed, 0, WF_RNG_CLOUD, 0). */
#include "eval/reference.h"

#include "base/comm.h"
#include "base/random.h"
#include "eval/iou.h"
#include "zoo/zoo_pieces.h"
#include "zoo/zoo_file.h"
#include "weft/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SETTINGS_OF wf_eval
#define SETTINGS_SECTION "eval"
#define SETTINGS_META "eval."
#define SETTINGS_DEF "weft/eval.def"
#include "base/settings_table.h"

void wf_reference_free(wf_reference *reference) {
    if (reference == NULL) return;
    free(reference->weights);
    free(reference->score);
    free(reference->errors);
    free(reference->iou);
    free(reference->iou_nearest);
    free(reference->cloud);
    free(reference->wcs);
    free(reference->wcs_nearest);
    free(reference);
}

void wf_reference_scales(const wf_reference *reference, double scales[3]) {
    memcpy(scales, reference->scales, sizeof reference->scales);
}

const char *wf_reference_notes(const wf_reference *reference) { return reference->notes; }

static wf_status check_desc(wf_ctx *ctx, const wf_zoo *zoo, const wf_eval_desc *desc) {
    WF_TRY(wf_settings_check(ctx, wf_eval_rows, desc));
    if (wf_zoo_count(zoo) < 2)
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: %zu network; leave-one-out comparison needs two or more",
                       wf_zoo_path(zoo), wf_zoo_count(zoo));
    return WF_OK;
}

static wf_status allocate(wf_ctx *ctx, wf_reference *ref) {
    WF_TRY(wf_alloc(ctx, ref->n, sizeof(uint32_t), "reference cloud", &ref->cloud));
    WF_TRY(wf_alloc(ctx, ref->m, sizeof(float), "reference cloud", &ref->wcs));
    WF_TRY(wf_alloc(ctx, ref->m, sizeof(uint32_t), "reference cloud", &ref->wcs_nearest));
    if (ref->data == NULL) return WF_OK;
    WF_TRY(wf_alloc(ctx, ref->n, sizeof(float), "reference scores", &ref->score));
    WF_TRY(wf_alloc(ctx, ref->n * ref->words, sizeof(uint64_t), "reference errors", &ref->errors));
    WF_TRY(wf_alloc(ctx, ref->n, sizeof(float), "reference scores", &ref->iou));
    return wf_alloc(ctx, ref->n, sizeof(uint32_t), "reference scores", &ref->iou_nearest);
}

static void draw_cloud(wf_reference *ref) {
    wf_rng rng = wf_rng_at(ref->desc.seed, 0, WF_RNG_CLOUD, 0);
    wf_rng_shuffle(&rng, ref->cloud, (uint32_t)ref->n);
}

/* WF_OK or the first failure of `visit` over all networks, in one piece where they are in
 * memory. */
wf_status wf__reference_each(wf_ctx *ctx, const wf_reference *ref, wf_zoo_visit *visit,
                             void *user) {
    if (ref->weights != NULL) return visit(user, ref->weights, 0, ref->n);
    return wf__zoo_each(ctx, ref->zoo, 0, ref->n, NULL, visit, user);
}

/* The masks stored in the collection count only when they were made on these very examples. */
static const uint8_t *stored_errors(const wf_reference *ref) {
    const char *fingerprint = wf_zoo_meta(ref->zoo, "weft.data");
    size_t bytes = 0;
    if (fingerprint == NULL || strcmp(fingerprint, ref->data->fingerprint) != 0) return NULL;
    const uint8_t *errors = wf_zoo_errors(ref->zoo, ref->data->name, &bytes);
    return bytes == (ref->data->n_test + 7) / 8 ? errors : NULL;
}

static void accuracy_from_errors(wf_reference *ref, const uint8_t *errors, size_t bytes) {
    for (size_t i = 0; i < ref->n; i++) {
        size_t wrong = 0;
        for (size_t k = 0; k < bytes; k++)
            wrong += (size_t)__builtin_popcount(errors[i * bytes + k]);
        ref->score[i] = (float)(1.0 - (double)wrong / (double)ref->data->n_test);
    }
}

typedef struct testing {
    wf_ctx *ctx;
    wf_reference *ref;
    uint8_t *errors;
    size_t bytes;
} testing;

static wf_status test_piece(void *testing_, const float *weights, size_t first, size_t count) {
    const testing *t = testing_;
    const wf_reference *ref = t->ref;
    return wf_score_networks(t->ctx, wf_zoo_graph(ref->zoo), weights, count, ref->data,
                             ref->desc.score, ref->score + first, t->errors + first * t->bytes);
}

static wf_status test_collection(wf_ctx *ctx, wf_reference *ref) {
    size_t bytes = (ref->data->n_test + 7) / 8;
    const uint8_t *stored = stored_errors(ref);
    uint8_t *errors = NULL;
    wf_status status = WF_OK;
    if (stored != NULL && ref->desc.score == WF_SCORE_ACCURACY) {
        accuracy_from_errors(ref, stored, bytes);
    } else {
        WF_TRY(wf_alloc(ctx, ref->n, bytes, "error masks", &errors));
        testing call = {ctx, ref, errors, bytes};
        WF_TRY_GOTO(wf__reference_each(ctx, ref, test_piece, &call), done);
        stored = errors;
    }
    for (size_t i = 0; i < ref->n; i++)
        memcpy(ref->errors + i * ref->words, stored + i * bytes, bytes);
done:
    free(errors);
    return status;
}

/* Max IoU of the cloud's networks; the others have none. */
static wf_status compare_cloud(wf_ctx *ctx, wf_reference *ref) {
    int64_t *self = NULL;
    uint64_t *masks = NULL;
    float *iou = NULL;
    uint32_t *nearest = NULL;
    size_t words = ref->words;
    wf_status status;
    WF_TRY_GOTO(wf_alloc(ctx, ref->m, sizeof *self, "error masks", &self), done);
    WF_TRY_GOTO(wf_alloc(ctx, ref->m * words, sizeof *masks, "error masks", &masks), done);
    WF_TRY_GOTO(wf_alloc(ctx, ref->m, sizeof *iou, "error masks", &iou), done);
    WF_TRY_GOTO(wf_alloc(ctx, ref->m, sizeof *nearest, "error masks", &nearest), done);
    for (size_t i = 0; i < ref->m; i++) {
        self[i] = ref->cloud[i];
        memcpy(masks + i * words, ref->errors + ref->cloud[i] * words, words * sizeof *masks);
    }
    WF_TRY_GOTO(wf__iou_max(ctx, masks, ref->m, ref->errors, ref->n, words, self, iou, nearest),
                done);
    for (size_t i = 0; i < ref->n; i++) ref->iou[i] = NAN;
    for (size_t i = 0; i < ref->m; i++) {
        ref->iou[ref->cloud[i]] = iou[i];
        ref->iou_nearest[ref->cloud[i]] = nearest[i];
    }
done:
    free(self);
    free(masks);
    free(iou);
    free(nearest);
    return status;
}

static wf_status compare_errors(wf_ctx *ctx, wf_reference *ref) {
    if (ref->n > WF_REFERENCE_PAIRED) return compare_cloud(ctx, ref);
    int64_t *self = NULL;
    WF_TRY(wf_alloc(ctx, ref->n, sizeof *self, "error masks", &self));
    for (size_t i = 0; i < ref->n; i++) self[i] = (int64_t)i;
    wf_status status = wf__iou_max(ctx, ref->errors, ref->n, ref->errors, ref->n, ref->words, self,
                                   ref->iou, ref->iou_nearest);
    free(self);
    return status;
}

typedef struct matching {
    wf_ctx *ctx;
    const wf_reference *ref;
    const float *queries;
    size_t nq;
    const int64_t *skip;
    const wf_match_desc *desc;
    int64_t *skip_here; /* [nq] in the piece's numbers */
    float *best, *best_here;
    uint32_t *which, *which_here;
} matching;

/* Of equal values the lowest reference counts: a later piece must be better. */
static wf_status match_piece(void *matching_, const float *weights, size_t first, size_t count) {
    const matching *m = matching_;
    for (size_t q = 0; m->skip != NULL && q < m->nq; q++)
        m->skip_here[q] = m->skip[q] - (int64_t)first; /* none of this piece: no such place */
    WF_TRY(wf_wcs_max(m->ctx, wf_zoo_graph(m->ref->zoo), m->queries, m->nq, weights, count,
                      m->skip != NULL ? m->skip_here : NULL, m->desc, m->best_here, m->which_here));
    for (size_t q = 0; q < m->nq; q++) {
        if (isnan(m->best_here[q]) || (first > 0 && m->best_here[q] <= m->best[q])) continue;
        m->best[q] = m->best_here[q];
        m->which[q] = m->which_here[q] + (uint32_t)first;
    }
    return WF_OK;
}

wf_status wf__reference_match(wf_ctx *ctx, const wf_reference *ref, const float *queries, size_t nq,
                              const int64_t *skip, const wf_match_desc *desc, float *best,
                              uint32_t *which) {
    if (ref->weights != NULL)
        return wf_wcs_max(ctx, wf_zoo_graph(ref->zoo), queries, nq, ref->weights, ref->n, skip,
                          desc, best, which);
    matching m = {.ctx = ctx,
                  .ref = ref,
                  .queries = queries,
                  .nq = nq,
                  .skip = skip,
                  .desc = desc,
                  .best = best,
                  .which = which};
    wf_status status;
    for (size_t q = 0; q < nq; q++) best[q] = NAN, which[q] = 0;
    WF_TRY_GOTO(wf_alloc(ctx, nq, sizeof *m.skip_here, "matching", &m.skip_here), done);
    WF_TRY_GOTO(wf_alloc(ctx, nq, sizeof *m.best_here, "matching", &m.best_here), done);
    WF_TRY_GOTO(wf_alloc(ctx, nq, sizeof *m.which_here, "matching", &m.which_here), done);
    status = wf__zoo_each(ctx, ref->zoo, 0, ref->n, "matching the collection", match_piece, &m);
done:
    free(m.skip_here);
    free(m.best_here);
    free(m.which_here);
    return status;
}

static wf_status match_cloud(wf_ctx *ctx, wf_reference *ref) {
    const wf_graph *graph = wf_zoo_graph(ref->zoo);
    size_t params = graph->n_params;
    float *queries = NULL;
    int64_t *self = NULL;
    wf_status status = WF_OK;
    WF_TRY_GOTO(wf_alloc(ctx, ref->m, params * sizeof *queries, "reference cloud", &queries), done);
    WF_TRY_GOTO(wf_alloc(ctx, ref->m, sizeof *self, "reference cloud", &self), done);
    for (size_t i = 0; i < ref->m; i++) {
        self[i] = ref->cloud[i];
        wf_zoo_get(ref->zoo, ref->cloud[i], queries + i * params);
    }
    wf_match_desc match = wf_match_desc_default();
    match.sweeps = ref->desc.sweeps;
    match.seed = ref->desc.seed;
    status =
        wf__reference_match(ctx, ref, queries, ref->m, self, &match, ref->wcs, ref->wcs_nearest);
done:
    free(queries);
    free(self);
    return status;
}

static void set_scales(wf_reference *ref) {
    double sum[3] = {ref->data == NULL ? NAN : 0, ref->data == NULL ? NAN : 0, 0};
    for (size_t i = 0; i < ref->m; i++) {
        if (ref->data != NULL) {
            sum[0] += (double)ref->score[ref->cloud[i]];
            sum[1] += (double)ref->iou[ref->cloud[i]];
        }
        sum[2] += (double)ref->wcs[i];
    }
    for (int k = 0; k < 3; k++) {
        double mean = sum[k] / (double)ref->m;
        ref->scales[k] = mean > 1 - mean ? mean : 1 - mean;
    }
}

/* Networks of the collection that are never wrong. */
static size_t count_faultless(const wf_reference *ref) {
    size_t count = 0;
    for (size_t i = 0; ref->data != NULL && i < ref->n; i++) {
        uint64_t any = 0;
        for (size_t k = 0; k < ref->words; k++) any |= ref->errors[i * ref->words + k];
        count += any == 0;
    }
    return count;
}

static void set_notes(wf_reference *ref) {
    size_t faultless = count_faultless(ref);
    wf_text notes = wf_text_start(ref->notes, sizeof ref->notes);
    if (ref->m < ref->desc.cloud)
        wf_text_add(&notes,
                    "WCS and JWS compare with all %zu networks of the collection; %zu are better",
                    ref->m, ref->desc.cloud);
    if (ref->data == NULL)
        wf_text_add(&notes, "%sno labelled data: only WCS and diversity are defined",
                    notes.length > 0 ? "; " : "");
    if (ref->data != NULL && ref->n > WF_REFERENCE_PAIRED)
        wf_text_add(&notes, "%serror-IoU of the collection is that of its cloud of %zu",
                    notes.length > 0 ? "; " : "", ref->m);
    /* The IoU of two empty sets of errors is 0 by definition. */
    if (10 * faultless > ref->n)
        wf_text_add(&notes,
                    "%s%zu of %zu networks make no errors on the test set: error-IoU is 0 for them "
                    "and for copies of them, and tells nothing; look at WCS",
                    notes.length > 0 ? "; " : "", faultless, ref->n);
}

/* A GPU compares so fast that reading the networks again for each row would take longer than
 * comparing them, so more of them may stay in memory. */
static wf_status keeps_weights(wf_ctx *ctx, const wf_reference *ref, bool *out) {
    enum { more_with_gpu = 64 };
    bool cuda;
    WF_TRY(wf_use_cuda(ctx, &cuda));
    *out = wf__zoo_keeps(cuda ? ref->n / more_with_gpu : ref->n, wf_zoo_graph(ref->zoo)->n_params);
    return WF_OK;
}

static wf_status compute(wf_ctx *ctx, wf_reference *ref) {
    if (ref->data != NULL) {
        WF_TRY(test_collection(ctx, ref));
        WF_TRY(compare_errors(ctx, ref));
    }
    return match_cloud(ctx, ref);
}

wf_status wf_reference_open(wf_ctx *ctx, const wf_zoo *zoo, const wf_dataset *data,
                            const wf_eval_desc *desc, wf_reference **out) {
    *out = NULL;
    wf_eval_desc defaults = wf_eval_desc_default();
    if (desc == NULL) desc = &defaults;
    WF_TRY(check_desc(ctx, zoo, desc));
    WF_TRY(wf_zoo_same(ctx, zoo));
    wf_reference *ref = NULL;
    WF_TRY(wf_alloc(ctx, 1, sizeof *ref, "reference", &ref));
    ref->zoo = zoo;
    ref->data = data;
    ref->desc = *desc;
    ref->n = wf_zoo_count(zoo);
    ref->m = desc->cloud < ref->n ? desc->cloud : ref->n;
    ref->words = data == NULL ? 0 : wf__mask_words((data->n_test + 7) / 8);
    wf_status status = WF_OK;
    WF_TRY_GOTO(allocate(ctx, ref), failed);
    bool keeps;
    WF_TRY_GOTO(keeps_weights(ctx, ref, &keeps), failed);
    if (keeps) WF_TRY_GOTO(wf_zoo_load(ctx, zoo, 0, ref->n, &ref->weights), failed);
    else WF_TRY_GOTO(wf_zoo_verify(ctx, zoo), failed);
    draw_cloud(ref);
    bool cached = desc->cache && wf_ctx_rank(ctx) == 0 && wf__cloud_read(ctx, ref);
    WF_TRY_GOTO(wf_ctx_decide(ctx, &cached), failed);
    if (cached) WF_TRY_GOTO(wf__cloud_share(ctx, ref), failed);
    else {
        WF_TRY_GOTO(compute(ctx, ref), failed);
        if (desc->cache) wf__cloud_write(ctx, ref);
    }
    set_scales(ref);
    set_notes(ref);
    *out = ref;
    return WF_OK;
failed:
    if (status == WF_ERR_INPUT)
        wf_fail(ctx, status, "%s: %s", wf_zoo_path(zoo), wf_last_error(ctx));
    wf_reference_free(ref);
    return status;
}
