/* Scores, masks and rows against plain recomputation; the cache; what is refused. */
#include "failing_malloc.h"

#include <sys/stat.h>
#include <unistd.h>

#include "base/random.h"
#include "eval/reference.h"
#include "weft/eval.h"

enum { n_networks = 24, n_new = 5 };

/* A small collection on the built-in moons, in a folder of its own. */
typedef struct fixture {
    wf_ctx *ctx;
    char folder[64], path[128], cache[160];
    wf_graph *graph;
    wf_dataset *data;
    wf_zoo *zoo;
    float *weights; /* (n_networks, P) */
    float *fresh;   /* (n_new, P) */
    char warning[512];
} fixture;

static void keep_warning(void *user, const char *sentence) {
    fixture *f = user;
    snprintf(f->warning, sizeof f->warning, "%s", sentence);
}

static int open_fixture(void **state) {
    fixture *f = calloc(1, sizeof *f);
    wf_ctx_desc ctx_desc = {.threads = 2, .warn = keep_warning, .user = f};
    if (wf_ctx_create(&ctx_desc, &f->ctx) != WF_OK) return 1;
    snprintf(f->folder, sizeof f->folder, "/tmp/weft-eval-XXXXXX");
    if (mkdtemp(f->folder) == NULL) return 1;
    snprintf(f->path, sizeof f->path, "%s/zoo.safetensors", f->folder);
    snprintf(f->cache, sizeof f->cache, "%s.cloud.safetensors", f->path);
    assert_ok(f->ctx, wf_graph_parse(f->ctx, "2-6-4-2", "tanh", 0, &f->graph));
    wf_data_desc data = wf_data_desc_default();
    data.name = "moons";
    data.rows = 403;
    assert_ok(f->ctx, wf_dataset_open(f->ctx, &data, &f->data));
    size_t params = f->graph->n_params;
    f->weights = malloc(n_networks * params * sizeof(float));
    f->fresh = malloc(n_new * params * sizeof(float));
    wf_rng rng = wf_rng_at(3, 0, WF_RNG_TEST, 0), other = wf_rng_at(3, 1, WF_RNG_TEST, 0);
    wf_rng_normals(&rng, f->weights, n_networks * params);
    wf_rng_normals(&other, f->fresh, n_new * params);
    assert_ok(f->ctx, wf_zoo_write(f->ctx, f->path, f->graph, f->weights, n_networks, NULL));
    assert_ok(f->ctx, wf_zoo_open(f->ctx, f->path, &f->zoo));
    *state = f;
    return 0;
}

static int close_fixture(void **state) {
    fixture *f = *state;
    wf_zoo_free(f->zoo);
    wf_dataset_free(f->data);
    wf_graph_free(f->graph);
    free(f->weights), free(f->fresh);
    unlink(f->cache), unlink(f->path), rmdir(f->folder);
    wf_ctx_free(f->ctx);
    free(f);
    return 0;
}

/* Error mask and accuracy by the library's other forward pass. */
static double plain_score(const fixture *f, const float *w, uint8_t *mask) {
    size_t n = f->data->n_test, wrong = 0;
    float *logits = malloc(n * 2 * sizeof *logits);
    assert_ok(f->ctx, wf_graph_forward(f->ctx, f->graph, w, f->data->x_test, n, logits));
    memset(mask, 0, (n + 7) / 8);
    for (size_t r = 0; r < n; r++) {
        int label = logits[2 * r + 1] > logits[2 * r];
        if (label == f->data->y_test[r]) continue;
        mask[r / 8] |= (uint8_t)(1u << r % 8);
        wrong++;
    }
    free(logits);
    return 1 - (double)wrong / (double)n;
}

static double cosine(const fixture *f, const float *a, const float *b, uint64_t seed) {
    uint32_t perm[64];
    double dot, aa = 0, bb = 0;
    wf_match_desc desc = {.sweeps = 5, .tolerance = 1e-12, .seed = seed};
    assert_ok(f->ctx, wf_match(f->ctx, f->graph, a, b, &desc, perm, &dot, NULL));
    for (size_t i = 0; i < f->graph->n_params; i++) {
        aa += (double)a[i] * (double)a[i];
        bb += (double)b[i] * (double)b[i];
    }
    return dot / sqrt(aa * bb);
}

static void scores_equal_plain_forward(void **state) {
    fixture *f = *state;
    size_t bytes = (f->data->n_test + 7) / 8;
    uint8_t *masks = malloc(n_networks * bytes), *mask = malloc(bytes);
    float scores[n_networks];
    assert_ok(f->ctx, wf_score_networks(f->ctx, f->graph, f->weights, n_networks, f->data,
                                        WF_SCORE_ACCURACY, scores, masks));
    for (size_t i = 0; i < n_networks; i++) {
        assert_close(scores[i], plain_score(f, f->weights + i * f->graph->n_params, mask), 1e-7);
        assert_memory_equal(mask, masks + i * bytes, bytes);
    }
    free(masks), free(mask);
}

/* Without memory a score is never called undefined. */
static wf_status scores_by_auc(wf_ctx *ctx, void *fixture_) {
    const fixture *f = fixture_;
    float scores[n_networks];
    WF_TRY(wf_score_networks(ctx, f->graph, f->weights, n_networks, f->data, WF_SCORE_AUC, scores,
                             NULL));
    for (size_t i = 0; i < n_networks; i++) assert_false(isnan(scores[i]));
    return WF_OK;
}

static void auc_survives_lack_of_memory(void **state) {
    fixture *f = *state;
    fail_every_allocation(f->ctx, "scores", scores_by_auc, f);
}

/* Odd sizes, all activations: against wf_graph_forward, example by example. */
static void scores_any_network(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    const char *acts[] = {"relu", "tanh", "gelu", "silu", "sigmoid", "identity"};
    for (int k = 0; k < 6; k++) {
        wf_graph *graph;
        assert_ok(ctx, wf_graph_parse(ctx, "5-17-9!-3", acts[k], 0, &graph));
        enum { rows = 131 };
        float x[rows * 5], logits[rows * 3];
        int32_t y[rows];
        float *w = malloc(graph->n_params * sizeof *w);
        wf_rng rng = wf_rng_at(4, (uint32_t)k, WF_RNG_TEST, 0),
               other = wf_rng_at(5, 0, WF_RNG_TEST, 0);
        wf_rng_normals(&rng, w, graph->n_params);
        wf_rng_normals(&other, x, rows * 5);
        for (int r = 0; r < rows; r++) y[r] = r % 3;
        wf_dataset data = {
            .name = "test", .n_test = rows, .inputs = 5, .classes = 3, .x_test = x, .y_test = y};
        uint8_t mask[(rows + 7) / 8];
        float score;
        assert_ok(ctx, wf_score_networks(ctx, graph, w, 1, &data, WF_SCORE_ACCURACY, &score, mask));
        assert_ok(ctx, wf_graph_forward(ctx, graph, w, x, rows, logits));
        for (int r = 0; r < rows; r++) {
            int best = 0;
            for (int i = 1; i < 3; i++)
                if (logits[3 * r + i] > logits[3 * r + best]) best = i;
            assert_int_equal(mask[r / 8] >> r % 8 & 1, best != y[r]);
        }
        free(w);
        wf_graph_free(graph);
    }
    wf_ctx_free(ctx);
}

static void auc_counts_pairs(void **state) {
    (void)state;
    enum { n = 60 };
    for (uint32_t trial = 0; trial < 20; trial++) {
        float score[n];
        int32_t positive[n];
        wf_rng rng = wf_rng_at(8, trial, WF_RNG_TEST, 0);
        for (int i = 0; i < n; i++) {
            score[i] =
                (float)wf_rng_below(&rng, trial % 2 ? 7 : 100000); /* odd trials: many ties */
            positive[i] = wf_rng_below(&rng, 3) == 0;
        }
        double wins = 0, pairs = 0;
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n; j++)
                if (positive[i] && !positive[j]) {
                    pairs++;
                    wins += score[i] > score[j] ? 1 : score[i] == score[j] ? 0.5 : 0;
                }
        assert_close(wf_roc_auc(score, positive, n), wins / pairs, 1e-12);
    }
    const float score[3] = {1, 2, 3};
    const int32_t ones[3] = {1, 1, 1};
    assert_true(isnan(wf_roc_auc(score, ones, 3)));
}

static void iou_of_small_masks(void **state) {
    (void)state;
    const uint8_t a[2] = {0x0f, 0x80}, b[2] = {0x03, 0x81}, none[2] = {0, 0};
    assert_close(wf_error_iou(a, b, 2), 3.0 / 6.0, 1e-12);
    assert_close(wf_error_iou(a, a, 2), 1, 0);
    assert_close(wf_error_iou(a, none, 2), 0, 0);
    assert_close(wf_error_iou(none, none, 2), 0, 0);
}

/* Every value of both rows, recomputed with wf_match, wf_error_iou and the other forward pass. */
/* All values of the table, by plain loops over pairs, and the points of the library to compare. */
typedef struct recomputed {
    uint8_t *masks; /* of the collection, then of the new networks */
    double score[n_networks + n_new], iou[n_networks], scales[3];
    wf_points cloud, points;
} recomputed;

static double plain_iou(const fixture *f, const recomputed *p, size_t i, size_t j) {
    size_t bytes = (f->data->n_test + 7) / 8;
    return wf_error_iou(p->masks + i * bytes, p->masks + j * bytes, bytes);
}

static void recompute(const fixture *f, recomputed *p) {
    size_t params = f->graph->n_params, bytes = (f->data->n_test + 7) / 8;
    p->masks = malloc((n_networks + n_new) * bytes);
    for (size_t i = 0; i < n_networks + n_new; i++) {
        const float *w =
            i < n_networks ? f->weights + i * params : f->fresh + (i - n_networks) * params;
        p->score[i] = plain_score(f, w, p->masks + i * bytes);
    }
    for (size_t i = 0; i < n_networks; i++) {
        p->iou[i] = 0;
        for (size_t j = 0; j < n_networks; j++)
            if (j != i) p->iou[i] = fmax(p->iou[i], plain_iou(f, p, i, j));
    }
}

static void check_collection(const recomputed *p, const wf_eval_row *row) {
    double score_mean = 0, iou_mean = 0, iou_square = 0;
    for (size_t i = 0; i < n_networks; i++) {
        score_mean += p->score[i] / n_networks;
        iou_mean += p->iou[i] / n_networks;
        iou_square += p->iou[i] * p->iou[i] / n_networks;
    }
    assert_int_equal(row->n, n_networks);
    assert_close(row->accuracy_mean, score_mean, 1e-6);
    assert_close(row->iou_mean, iou_mean, 1e-6);
    assert_close(row->iou_std, sqrt(iou_square - iou_mean * iou_mean), 1e-5);
    assert_true(isnan(row->jws));
}

/* The cloud: the first ten of the stated shuffle. */
static void check_cloud(const fixture *f, const recomputed *p, const wf_eval_row *row) {
    size_t params = f->graph->n_params;
    uint32_t order[n_networks];
    wf_rng rng = wf_rng_at(2, 0, WF_RNG_CLOUD, 0);
    wf_rng_shuffle(&rng, order, n_networks);
    assert_int_equal(p->cloud.n, 10);
    double mean[3] = {0};
    for (size_t i = 0; i < 10; i++) {
        double best = -2;
        uint32_t which = 0;
        for (uint32_t j = 0; j < n_networks; j++) {
            if (j == order[i]) continue;
            double value = cosine(f, f->weights + order[i] * params, f->weights + j * params, 2);
            if (value > best) best = value, which = j;
        }
        assert_close(p->cloud.wcs[i], best, 1e-6);
        assert_int_equal(p->cloud.nearest_wcs[i], which);
        assert_close(p->cloud.iou[i], p->iou[order[i]], 1e-6);
        assert_close(p->cloud.accuracy[i], p->score[order[i]], 1e-6);
        mean[0] += p->score[order[i]] / 10;
        mean[1] += p->iou[order[i]] / 10;
        mean[2] += best / 10;
    }
    assert_close(row->wcs_mean, mean[2], 1e-6);
    for (int k = 0; k < 3; k++) assert_close(p->scales[k], fmax(mean[k], 1 - mean[k]), 1e-6);
}

static void check_new_networks(const fixture *f, const recomputed *p) {
    size_t params = f->graph->n_params;
    for (size_t i = 0; i < n_new; i++) {
        double wcs = -2, iou = 0, below = 0;
        for (size_t j = 0; j < n_networks; j++) {
            wcs = fmax(wcs, cosine(f, f->fresh + i * params, f->weights + j * params, 2));
            iou = fmax(iou, plain_iou(f, p, n_networks + i, j));
        }
        assert_close(p->points.wcs[i], wcs, 1e-6);
        assert_close(p->points.iou[i], iou, 1e-6);
        assert_close(p->points.accuracy[i], p->score[n_networks + i], 1e-6);
        for (size_t j = 0; j < 10; j++) {
            float theirs = p->cloud.wcs[j], own = p->points.wcs[i];
            below += theirs < own ? 1 : theirs == own ? 0.5 : 0;
        }
        assert_close(p->points.wcs_percentile[i], 10 * below, 1e-4);
    }
}

/* JWS by hand: with five networks the assignment is small, but W2 itself is tested elsewhere. */
static double plain_jws(const fixture *f, const recomputed *p) {
    double jws = 0;
    for (uint32_t b = 0; b < 5; b++) {
        uint32_t subset[10];
        double s[3 * n_new], r[3 * n_new], distance;
        wf_rng stream = wf_rng_at(2, 0, WF_RNG_JWS, b);
        wf_rng_shuffle(&stream, subset, 10);
        for (size_t i = 0; i < n_new; i++) {
            const wf_points *own = &p->points, *other = &p->cloud;
            uint32_t j = subset[i];
            s[3 * i] = own->accuracy[i] / p->scales[0];
            s[3 * i + 1] = own->iou[i] / p->scales[1];
            s[3 * i + 2] = own->wcs[i] / p->scales[2];
            r[3 * i] = other->accuracy[j] / p->scales[0];
            r[3 * i + 1] = other->iou[j] / p->scales[1];
            r[3 * i + 2] = other->wcs[j] / p->scales[2];
        }
        assert_ok(f->ctx, wf_wasserstein2(f->ctx, s, r, n_new, &distance));
        jws += (1 - distance / sqrt(3)) / 5;
    }
    return jws;
}

static void rows_equal_plain_recomputation(void **state) {
    fixture *f = *state;
    wf_eval_desc desc = wf_eval_desc_default();
    desc.cloud = 10;
    desc.seed = 2;
    desc.subsets = 5;
    wf_reference *reference;
    assert_ok(f->ctx, wf_reference_open(f->ctx, f->zoo, f->data, &desc, &reference));
    assert_string_equal(wf_reference_notes(reference), "");
    recomputed p;
    recompute(f, &p);
    wf_eval_row row;
    assert_ok(f->ctx, wf_eval_reference(f->ctx, reference, &row, &p.cloud));
    wf_reference_scales(reference, p.scales);
    check_collection(&p, &row);
    check_cloud(f, &p, &row);
    assert_ok(f->ctx,
              wf_eval_networks(f->ctx, reference, "fresh", f->fresh, n_new, &row, &p.points));
    assert_string_equal(row.name, "fresh");
    check_new_networks(f, &p);
    assert_close(row.jws, plain_jws(f, &p), 1e-6);
    free(p.masks);
    wf_points_free(&p.cloud);
    wf_points_free(&p.points);
    wf_reference_free(reference);
}

/* A relabelled training network is a copy: WCS 1, IoU 1, and its source is named. */
static void copies_are_visible(void **state) {
    fixture *f = *state;
    size_t params = f->graph->n_params;
    float *copy = malloc(2 * params * sizeof *copy);
    const uint32_t perm[10] = {3, 1, 0, 5, 4, 2, 2, 0, 3, 1};
    wf_graph_permute(f->graph, perm, f->weights + 7 * params, copy);
    memcpy(copy + params, f->weights + 9 * params, params * sizeof *copy);
    wf_reference *reference;
    assert_ok(f->ctx, wf_reference_open(f->ctx, f->zoo, f->data, NULL, &reference));
    assert_non_null(strstr(wf_reference_notes(reference), "compare with all 24 networks"));
    wf_eval_row row;
    wf_points points;
    assert_ok(f->ctx, wf_eval_networks(f->ctx, reference, "copy", copy, 2, &row, &points));
    assert_close(points.iou[0], 1, 1e-6);
    assert_close(points.wcs[1], 1, 1e-6);
    assert_int_equal(points.nearest_wcs[1], 9);
    assert_int_equal(points.nearest_iou[1], 9);
    assert_close(points.wcs_percentile[1], 100, 0);
    assert_true(points.wcs[0] > 0.9f);
    wf_points_free(&points);
    wf_reference_free(reference);
    free(copy);
}

static void assert_rows_equal(const wf_eval_row *a, const wf_eval_row *b) {
    assert_memory_equal(a, b, sizeof *a);
}

static wf_eval_row judge(fixture *f, const wf_eval_desc *desc, wf_ctx *ctx) {
    wf_reference *reference;
    wf_eval_row row;
    f->warning[0] = 0;
    assert_ok(ctx, wf_reference_open(ctx, f->zoo, f->data, desc, &reference));
    assert_ok(ctx, wf_eval_networks(ctx, reference, "x", f->fresh, n_new, &row, NULL));
    wf_reference_free(reference);
    return row;
}

/* Two opens give the same row; a truncated, altered or stale cache is computed again, with a
 * warning if damaged. */
static void cache_is_checked(void **state) {
    fixture *f = *state;
    wf_eval_desc desc = wf_eval_desc_default();
    unlink(f->cache);
    wf_eval_row first = judge(f, &desc, f->ctx);
    struct stat before, after;
    assert_int_equal(stat(f->cache, &before), 0);
    wf_eval_row again = judge(f, &desc, f->ctx);
    assert_int_equal(stat(f->cache, &after), 0);
    assert_int_equal(before.st_ino, after.st_ino); /* not written again */
    assert_string_equal(f->warning, "");
    assert_rows_equal(&again, &first);

    /* Two processes wrote it, and one was killed. */
    char left[200];
    snprintf(left, sizeof left, "%s/.zoo.safetensors.cloud.safetensors.tmp.1", f->folder);
    fclose(fopen(left, "w"));
    judge(f, &desc, f->ctx);
    assert_int_equal(access(left, F_OK), -1);

    FILE *file = fopen(f->cache, "r+b"); /* one value altered */
    fseek(file, -3, SEEK_END);
    int byte = fgetc(file);
    fseek(file, -3, SEEK_END);
    fputc(byte ^ 0x10, file);
    fclose(file);
    again = judge(f, &desc, f->ctx);
    assert_non_null(strstr(f->warning, "damaged"));
    assert_rows_equal(&again, &first);
    again = judge(f, &desc, f->ctx);
    assert_string_equal(f->warning, "");

    assert_int_equal(truncate(f->cache, before.st_size / 2), 0);
    again = judge(f, &desc, f->ctx);
    assert_non_null(strstr(f->warning, "computed again"));
    assert_rows_equal(&again, &first);

    desc.seed = 77; /* another key: silently replaced */
    judge(f, &desc, f->ctx);
    assert_string_equal(f->warning, "");
    desc.seed = 0;
    desc.cache = false;
    again = judge(f, &desc, f->ctx);
    assert_rows_equal(&again, &first);
}

static void thread_count_changes_nothing(void **state) {
    fixture *f = *state;
    wf_eval_desc desc = wf_eval_desc_default();
    desc.cache = false;
    wf_eval_row expected = judge(f, &desc, f->ctx);
    for (int threads = 1; threads <= 3; threads += 2) {
        wf_ctx *ctx;
        wf_ctx_desc ctx_desc = {.threads = threads};
        assert_int_equal(wf_ctx_create(&ctx_desc, &ctx), WF_OK);
        wf_eval_row row = judge(f, &desc, ctx);
        assert_rows_equal(&row, &expected);
        wf_ctx_free(ctx);
    }
}

static void works_without_labelled_data(void **state) {
    fixture *f = *state;
    wf_reference *reference;
    wf_eval_row row;
    wf_points points;
    assert_ok(f->ctx, wf_reference_open(f->ctx, f->zoo, NULL, NULL, &reference));
    assert_non_null(strstr(wf_reference_notes(reference), "no labelled data"));
    assert_ok(f->ctx, wf_eval_reference(f->ctx, reference, &row, &points));
    assert_true(row.wcs_mean > 0 && isnan(row.accuracy_mean) && isnan(row.iou_mean));
    assert_null(points.accuracy);
    wf_points_free(&points);
    assert_ok(f->ctx, wf_eval_networks(f->ctx, reference, "x", f->fresh, n_new, &row, &points));
    assert_true(row.wcs_mean > 0 && row.diversity_wcs_mean > 0);
    assert_true(isnan(row.jws) && isnan(row.diversity_iou_mean));
    wf_points_free(&points);
    wf_reference_free(reference);
}

/* Masks stored with the collection are used when they belong to this data, and only then. */
static void stored_masks_are_used(void **state) {
    fixture *f = *state;
    size_t bytes = (f->data->n_test + 7) / 8;
    uint8_t *masks = calloc(n_networks, bytes);
    for (size_t i = 0; i < n_networks; i++)
        masks[i * bytes] = 1; /* one error each: visibly not the truth */
    char path[128];
    snprintf(path, sizeof path, "%s/stored.safetensors", f->folder);
    for (int same = 0; same < 2; same++) {
        wf_zoo_extra extra = {.n_tests = 1,
                              .test_names = {f->data->name},
                              .errors = {masks},
                              .error_bytes = {bytes},
                              .n_meta = 1,
                              .meta = {{"weft.data", same ? f->data->fingerprint : "0123"}}};
        assert_ok(f->ctx, wf_zoo_write(f->ctx, path, f->graph, f->weights, n_networks, &extra));
        wf_zoo *zoo;
        wf_reference *reference;
        wf_eval_row row;
        wf_eval_desc desc = wf_eval_desc_default();
        desc.cache = false;
        assert_ok(f->ctx, wf_zoo_open(f->ctx, path, &zoo));
        assert_ok(f->ctx, wf_reference_open(f->ctx, zoo, f->data, &desc, &reference));
        assert_ok(f->ctx, wf_eval_reference(f->ctx, reference, &row, NULL));
        double stored = 1 - 1.0 / (double)f->data->n_test;
        assert_true((fabs(row.accuracy_mean - stored) < 1e-6) == (same == 1));
        wf_reference_free(reference);
        wf_zoo_free(zoo);
    }
    unlink(path);
    free(masks);
}

/* Networks without errors have an error-IoU of 0, as have exact copies: the notes say that it tells
 * nothing. */
static void an_axis_without_errors_is_told(void **state) {
    fixture *f = *state;
    size_t bytes = (f->data->n_test + 7) / 8;
    uint8_t *masks = calloc(n_networks, bytes);
    char path[128];
    snprintf(path, sizeof path, "%s/faultless.safetensors", f->folder);
    for (int wrong = 0; wrong < 2; wrong++) {
        for (size_t i = 0; wrong == 1 && i < n_networks; i++) masks[i * bytes] = 1;
        wf_zoo_extra extra = {.n_tests = 1,
                              .test_names = {f->data->name},
                              .errors = {masks},
                              .error_bytes = {bytes},
                              .n_meta = 1,
                              .meta = {{"weft.data", f->data->fingerprint}}};
        assert_ok(f->ctx, wf_zoo_write(f->ctx, path, f->graph, f->weights, n_networks, &extra));
        wf_zoo *zoo;
        wf_reference *reference;
        wf_eval_row row;
        wf_eval_desc desc = wf_eval_desc_default();
        desc.cache = false;
        assert_ok(f->ctx, wf_zoo_open(f->ctx, path, &zoo));
        assert_ok(f->ctx, wf_reference_open(f->ctx, zoo, f->data, &desc, &reference));
        assert_ok(f->ctx, wf_eval_reference(f->ctx, reference, &row, NULL));
        assert_close(row.iou_mean, wrong, 0);
        assert_int_equal(strstr(wf_reference_notes(reference), "make no errors") != NULL,
                         wrong == 0);
        wf_reference_free(reference);
        wf_zoo_free(zoo);
    }
    unlink(path);
    free(masks);
}

static void more_networks_than_the_cloud(void **state) {
    fixture *f = *state;
    wf_eval_desc desc = wf_eval_desc_default();
    desc.cloud = 3;
    desc.cache = false;
    wf_eval_row row = judge(f, &desc, f->ctx);
    assert_non_null(strstr(f->warning, "5 networks"));
    assert_true(row.jws >= 0 && row.jws <= 1);
}

static void refuses_bad_input(void **state) {
    fixture *f = *state;
    wf_reference *reference;
    wf_eval_row row;
    wf_eval_desc desc = wf_eval_desc_default();
    desc.score = WF_SCORE_AUC;
    desc.cache = false;
    assert_ok(f->ctx, wf_reference_open(f->ctx, f->zoo, f->data, &desc, &reference));
    assert_fails(f->ctx, wf_eval_networks(f->ctx, reference, "none", f->fresh, 0, &row, NULL),
                 WF_ERR_INPUT, "no networks");
    f->fresh[1] = NAN;
    assert_fails(f->ctx, wf_eval_networks(f->ctx, reference, "bad", f->fresh, 1, &row, NULL),
                 WF_ERR_INPUT, "bad: matching: query network 0");
    f->fresh[1] = 0;
    wf_reference_free(reference);
    desc.subsets = 0;
    assert_fails(f->ctx, wf_reference_open(f->ctx, f->zoo, f->data, &desc, &reference),
                 WF_ERR_USAGE, "subsets");
    assert_null(reference);

    wf_data_desc other = wf_data_desc_default();
    wf_dataset *digits;
    other.name = "digits";
    other.rows = 100;
    assert_ok(f->ctx, wf_dataset_open(f->ctx, &other, &digits));
    desc = wf_eval_desc_default();
    desc.cache = false;
    assert_fails(f->ctx, wf_reference_open(f->ctx, f->zoo, digits, &desc, &reference), WF_ERR_SHAPE,
                 "images of 1x8x8");
    wf_dataset_free(digits);

    char path[128];
    wf_zoo *one;
    snprintf(path, sizeof path, "%s/one.safetensors", f->folder);
    assert_ok(f->ctx, wf_zoo_write(f->ctx, path, f->graph, f->weights, 1, NULL));
    assert_ok(f->ctx, wf_zoo_open(f->ctx, path, &one));
    assert_fails(f->ctx, wf_reference_open(f->ctx, one, f->data, NULL, &reference), WF_ERR_INPUT,
                 "two or more");
    wf_zoo_free(one);
    unlink(path);
}

/* An interrupted call says so and leaves no cache behind. */
static void can_be_interrupted(void **state) {
    fixture *f = *state;
    wf_reference *reference;
    wf_ctx *ctx = test_ctx();
    float best[n_new];
    unlink(f->cache);
    wf_interrupt(ctx);
    assert_fails(ctx, wf_reference_open(ctx, f->zoo, f->data, NULL, &reference), WF_ERR_INTERRUPTED,
                 "interrupted");
    assert_null(reference);
    assert_int_equal(access(f->cache, F_OK), -1);
    assert_fails(
        ctx,
        wf_wcs_max(ctx, f->graph, f->fresh, n_new, f->weights, n_networks, NULL, NULL, best, NULL),
        WF_ERR_INTERRUPTED, "interrupted");
    wf_ctx_free(ctx);
}

/* Greatest error-IoU of network i with another one, from the masks. */
static double greatest_iou(const wf_reference *ref, size_t i) {
    double best = 0;
    for (size_t k = 0; k < ref->n; k++) {
        int both = 0, either = 0;
        for (size_t word = 0; k != i && word < ref->words; word++) {
            uint64_t a = ref->errors[i * ref->words + word], b = ref->errors[k * ref->words + word];
            both += __builtin_popcountll(a & b);
            either += __builtin_popcountll(a | b);
        }
        if (either > 0) best = fmax(best, (double)both / either);
    }
    return best;
}

/* Above WF_REFERENCE_PAIRED networks: error-IoU of the cloud against all, of the others none, with
 * a note. */
static void iou_of_a_large_collection(void **state) {
    const fixture *f = *state;
    enum { many = WF_REFERENCE_PAIRED + 1, cloud = 30 };
    char path[160];
    wf_graph *graph;
    wf_zoo *zoo;
    wf_reference *ref;
    wf_eval_desc desc = wf_eval_desc_default();
    desc.cloud = cloud;
    desc.cache = false;
    assert_ok(f->ctx, wf_graph_parse(f->ctx, "2-1-2", "tanh", 0, &graph));
    float *weights = malloc(many * graph->n_params * sizeof *weights);
    wf_rng rng = wf_rng_at(5, 0, WF_RNG_TEST, 0);
    wf_rng_normals(&rng, weights, many * graph->n_params);
    snprintf(path, sizeof path, "%s/many.safetensors", f->folder);
    assert_ok(f->ctx, wf_zoo_write(f->ctx, path, graph, weights, many, NULL));
    assert_ok(f->ctx, wf_zoo_open(f->ctx, path, &zoo));
    assert_ok(f->ctx, wf_reference_open(f->ctx, zoo, f->data, &desc, &ref));
    assert_non_null(
        strstr(wf_reference_notes(ref), "error-IoU of the collection is that of its cloud of 30"));
    size_t without = 0;
    for (size_t i = 0; i < many; i++) without += isnan(ref->iou[i]);
    assert_int_equal(without, many - cloud);
    double mean = 0;
    for (size_t i = 0; i < cloud; i++) {
        double expected = greatest_iou(ref, ref->cloud[i]);
        assert_close(ref->iou[ref->cloud[i]], expected, 1e-6);
        mean += expected / cloud;
    }
    double scales[3];
    wf_reference_scales(ref, scales);
    assert_close(scales[1], fmax(mean, 1 - mean), 1e-6);
    wf_reference_free(ref);
    wf_zoo_free(zoo);
    wf_graph_free(graph);
    free(weights);
    unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scores_equal_plain_forward),
        cmocka_unit_test(auc_survives_lack_of_memory),
        cmocka_unit_test(scores_any_network),
        cmocka_unit_test(auc_counts_pairs),
        cmocka_unit_test(iou_of_small_masks),
        cmocka_unit_test(rows_equal_plain_recomputation),
        cmocka_unit_test(copies_are_visible),
        cmocka_unit_test(cache_is_checked),
        cmocka_unit_test(thread_count_changes_nothing),
        cmocka_unit_test(works_without_labelled_data),
        cmocka_unit_test(stored_masks_are_used),
        cmocka_unit_test(an_axis_without_errors_is_told),
        cmocka_unit_test(more_networks_than_the_cloud),
        cmocka_unit_test(iou_of_a_large_collection),
        cmocka_unit_test(refuses_bad_input),
        cmocka_unit_test(can_be_interrupted),
    };
    return cmocka_run_group_tests(tests, open_fixture, close_fixture);
}
