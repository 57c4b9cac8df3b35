/* Optimisers, schedules and EMA against formulas written a second time here, in double and without
 * chunks. */
#include "wf_test.h"

#include "base/isa.h"
#include "base/random.h"
#include "nn/optim.h"
#include "nn/optim_kernels.h"

/* A vector, a tall matrix, a wide one, a table without decay, a long vector (several chunks). */
static const wf_optim_tensor layout[] = {{0, 7, 1, false, false},
                                         {7, 40, 17, true, true},
                                         {7 + 680, 5, 23, true, true},
                                         {7 + 680 + 115, 13, 3, false, true},
                                         {7 + 680 + 115 + 39, 20000, 1, false, false}};
enum { n_layout = 5, n_params = 7 + 680 + 115 + 39 + 20000 };

static void fill(float *out, size_t n, uint32_t step, float scale) {
    wf_rng rng = wf_rng_at(5, 0, WF_RNG_TEST, step);
    wf_rng_normals(&rng, out, n);
    for (size_t i = 0; i < n; i++) out[i] *= scale;
}

/* The textbook iteration on a (rows, cols) matrix in double. */
static void plain_newton_schulz(const double *g, double *x, int rows, int cols) {
    double norm = 0;
    for (int i = 0; i < rows * cols; i++) norm += g[i] * g[i];
    for (int i = 0; i < rows * cols; i++) x[i] = g[i] / (sqrt(norm) + 1e-7);
    double *a = calloc((size_t)rows * rows, sizeof *a), *b = calloc((size_t)rows * rows, sizeof *b);
    double *next = calloc((size_t)rows * cols, sizeof *next);
    for (int step = 0; step < 5; step++) {
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < rows; j++) {
                double sum = 0;
                for (int k = 0; k < cols; k++) sum += x[i * cols + k] * x[j * cols + k];
                a[i * rows + j] = sum;
            }
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < rows; j++) {
                double sum = 0;
                for (int k = 0; k < rows; k++) sum += a[i * rows + k] * a[k * rows + j];
                b[i * rows + j] = -4.7750 * a[i * rows + j] + 2.0315 * sum;
            }
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < cols; j++) {
                double sum = 3.4445 * x[i * cols + j];
                for (int k = 0; k < rows; k++) sum += b[i * rows + k] * x[k * cols + j];
                next[i * cols + j] = sum;
            }
        memcpy(x, next, (size_t)rows * cols * sizeof *x);
    }
    free(a);
    free(b);
    free(next);
}

static void newton_schulz_follows_the_textbook(void **state) {
    (void)state;
    static const int shapes[][2] = {{1, 1},   {3, 5},    {40, 17}, {17, 40},
                                    {33, 33}, {64, 128}, {1, 9}};
    wf_optim_kernels kernels = WF_PICK_F32(wf_optim_kernels);
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        int rows = shapes[s][0], cols = shapes[s][1], n = rows * cols;
        float *x = calloc((size_t)n, sizeof *x), *out = calloc((size_t)n, sizeof *out);
        double *xd = calloc((size_t)n, sizeof *xd), *expected = calloc((size_t)n, sizeof *xd);
        double *outd = calloc((size_t)n, sizeof *outd);
        void *scratch = aligned_alloc(64, (wf_muon_scratch(rows, cols) * 8 + 63) / 64 * 64);
        fill(x, (size_t)n, (uint32_t)s, 0.3f);
        for (int i = 0; i < n; i++) xd[i] = x[i];
        plain_newton_schulz(xd, expected, rows, cols);
        kernels.newton_schulz(x, out, rows, cols, scratch);
        wf_optim_kernels_base_f64.newton_schulz(xd, outd, rows, cols, scratch);
        for (int i = 0; i < n; i++) {
            assert_close(out[i], expected[i], 2e-5);
            assert_close(outd[i], expected[i], 1e-12);
        }
        free(x);
        free(out);
        free(xd);
        free(expected);
        free(outd);
        free(scratch);
    }
}

/* A second writing of one update, in double. */
typedef struct plain {
    double p[n_params], m[n_params], v[n_params], ema[n_params];
} plain;

static void plain_adamw(plain *s, const float *g, size_t at, size_t count, double scale,
                        const wf_optim_desc *d, double rate, double decay, int n) {
    for (size_t i = at; i < at + count; i++) {
        double gradient = scale * g[i];
        s->p[i] -= rate * decay * s->p[i];
        s->m[i] = d->beta1 * s->m[i] + (1 - d->beta1) * gradient;
        s->v[i] = d->beta2 * s->v[i] + (1 - d->beta2) * gradient * gradient;
        double m_hat = s->m[i] / (1 - pow(d->beta1, n)), v_hat = s->v[i] / (1 - pow(d->beta2, n));
        s->p[i] -= rate * m_hat / (sqrt(v_hat) + d->eps);
    }
}

static void plain_muon(plain *s, const float *g, const wf_optim_tensor *t, double scale,
                       const wf_optim_desc *d, double rate) {
    int n = t->rows * t->cols;
    double *u = calloc((size_t)n, sizeof *u), *o = calloc((size_t)n, sizeof *o);
    for (int i = 0; i < n; i++) {
        size_t at = t->offset + (size_t)i;
        s->m[at] = d->muon_momentum * s->m[at] + scale * g[at];
        u[i] = scale * g[at] + d->muon_momentum * s->m[at];
    }
    plain_newton_schulz(u, o, t->rows, t->cols);
    double shape = t->rows > t->cols ? sqrt((double)t->rows / t->cols) : 1;
    for (int i = 0; i < n; i++) {
        size_t at = t->offset + (size_t)i;
        s->p[at] -= rate * (t->decay ? d->weight_decay : 0) * s->p[at];
        s->p[at] -= rate * shape * o[i];
    }
    free(u);
    free(o);
}

static double real_of(const void *array, wf_dtype dtype, size_t i) {
    return dtype == WF_F64 ? ((const double *)array)[i] : ((const float *)array)[i];
}

/* The floats of `from` as reals of the type. */
static void as_reals(const float *from, wf_dtype dtype, void *to) {
    for (size_t i = 0; i < n_params; i++) {
        if (dtype == WF_F64) ((double *)to)[i] = from[i];
        else ((float *)to)[i] = from[i];
    }
}

static void follow_plain_as(bool muon, double clip, wf_dtype dtype, double tolerance) {
    wf_ctx *ctx = test_ctx();
    wf_optim_desc desc = {.lr = 3e-3,
                          .weight_decay = 0.1,
                          .beta1 = 0.9,
                          .beta2 = 0.99,
                          .eps = 1e-8,
                          .muon = muon,
                          .muon_lr = 0.02,
                          .muon_momentum = 0.95,
                          .clip = clip,
                          .ema = 0.7,
                          .dtype = dtype};
    wf_optim *optim;
    assert_ok(ctx, wf_optim_create(ctx, &desc, layout, n_layout, n_params, &optim));
    float *g = calloc(n_params, sizeof *g);
    void *p = calloc(n_params, sizeof(double)), *gradient = calloc(n_params, sizeof(double));
    plain *expected = calloc(1, sizeof *expected);
    fill(g, n_params, 100, 1);
    as_reals(g, dtype, p);
    as_reals(g, dtype, wf_optim_ema(optim));
    for (size_t i = 0; i < n_params; i++) expected->p[i] = expected->ema[i] = g[i];
    for (int update = 0; update < 4; update++) {
        fill(g, n_params, (uint32_t)update, 0.01f);
        double norm = 0, factor = 1 - 0.1 * update;
        for (size_t i = 0; i < n_params; i++) norm += (double)g[i] * g[i];
        norm = sqrt(norm);
        as_reals(g, dtype, gradient);
        double measured = wf_optim_norm(ctx, optim, gradient);
        assert_close(measured, norm, 1e-9 * norm);
        wf_optim_apply(ctx, optim, (size_t)update, factor, measured, gradient, p);
        double scale = clip > 0 && norm > clip ? clip / (norm + 1e-6) : 1;
        for (int t = 0; t < n_layout; t++) {
            if (muon && layout[t].matrix)
                plain_muon(expected, g, &layout[t], scale, &desc, 0.02 * factor);
            else
                plain_adamw(expected, g, layout[t].offset, (size_t)layout[t].rows * layout[t].cols,
                            scale, &desc, 3e-3 * factor, layout[t].decay ? 0.1 : 0, update + 1);
        }
        double early = (1.0 + update) / (10.0 + update), decay = early < 0.7 ? early : 0.7;
        for (size_t i = 0; i < n_params; i++)
            expected->ema[i] = decay * expected->ema[i] + (1 - decay) * expected->p[i];
    }
    for (size_t i = 0; i < n_params; i++) {
        assert_close(real_of(p, dtype, i), expected->p[i], tolerance);
        assert_close(real_of(wf_optim_ema(optim), dtype, i), expected->ema[i], tolerance);
    }
    wf_optim_free(optim);
    free(p);
    free(g);
    free(gradient);
    free(expected);
    wf_ctx_free(ctx);
}

static void follow_plain(bool muon, double clip) {
    follow_plain_as(muon, clip, WF_F32, 4e-6);
    follow_plain_as(muon, clip, WF_F64, 1e-12);
}

static void adamw_follows_its_formula(void **state) { (void)state, follow_plain(false, 0); }
static void adamw_clips_the_global_norm(void **state) { (void)state, follow_plain(false, 0.5); }
static void muon_follows_its_formula(void **state) { (void)state, follow_plain(true, 0); }
static void muon_clips_the_global_norm(void **state) { (void)state, follow_plain(true, 0.5); }

static void bits_do_not_depend_on_threads(void **state) {
    (void)state;
    float *kept = NULL;
    for (int threads = 1; threads <= 4; threads++) {
        wf_ctx_desc desc_ctx = {.threads = threads};
        wf_ctx *ctx;
        assert_int_equal(wf_ctx_create(&desc_ctx, &ctx), WF_OK);
        wf_optim_desc desc = {.lr = 1e-3,
                              .beta1 = 0.9,
                              .beta2 = 0.999,
                              .eps = 1e-8,
                              .muon = true,
                              .muon_lr = 0.02,
                              .muon_momentum = 0.95,
                              .clip = 1};
        wf_optim *optim;
        assert_ok(ctx, wf_optim_create(ctx, &desc, layout, n_layout, n_params, &optim));
        assert_null(wf_optim_ema(optim));
        float *p = calloc(n_params, sizeof *p), *g = calloc(n_params, sizeof *g);
        fill(p, n_params, 100, 1);
        for (int update = 0; update < 3; update++) {
            fill(g, n_params, (uint32_t)update, 1);
            wf_optim_apply(ctx, optim, (size_t)update, 1, wf_optim_norm(ctx, optim, g), g, p);
        }
        if (kept == NULL) kept = p;
        else {
            assert_memory_equal(p, kept, n_params * sizeof *p);
            free(p);
        }
        free(g);
        wf_optim_free(optim);
        wf_ctx_free(ctx);
    }
    free(kept);
}

static void norm_shows_what_is_not_finite(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    wf_optim_desc desc = {.lr = 1};
    wf_optim *optim;
    assert_ok(ctx, wf_optim_create(ctx, &desc, layout, n_layout, n_params, &optim));
    float *g = calloc(n_params, sizeof *g);
    assert_true(wf_optim_norm(ctx, optim, g) == 0);
    g[n_params - 1] = NAN;
    assert_false(isfinite(wf_optim_norm(ctx, optim, g)));
    g[n_params - 1] = -INFINITY;
    assert_false(isfinite(wf_optim_norm(ctx, optim, g)));
    g[n_params - 1] = 1e30f; /* its square overflows float, not double */
    assert_close(wf_optim_norm(ctx, optim, g) / 1e30, 1, 1e-6);
    free(g);
    wf_optim_free(optim);
    wf_ctx_free(ctx);
}

static void schedules_have_their_shape(void **state) {
    (void)state;
    wf_schedule constant = {.warmup = 4};
    assert_close(wf_schedule_factor(&constant, 0), 0.25, 1e-15);
    assert_close(wf_schedule_factor(&constant, 3), 1, 1e-15);
    assert_close(wf_schedule_factor(&constant, 1000), 1, 1e-15);
    wf_schedule cosine = {.warmup = 10, .cosine = true, .horizon = 110, .min_ratio = 0.1};
    assert_close(wf_schedule_factor(&cosine, 4), 0.5, 1e-15);
    assert_close(wf_schedule_factor(&cosine, 10), 1, 1e-15);
    assert_close(wf_schedule_factor(&cosine, 60), 0.55, 1e-12);
    assert_close(wf_schedule_factor(&cosine, 35), 0.1 + 0.9 * 0.5 * (1 + sqrt(0.5)), 1e-12);
    assert_close(wf_schedule_factor(&cosine, 110), 0.1, 1e-12);
    assert_close(wf_schedule_factor(&cosine, 99999), 0.1, 1e-12);
    /* torch.optim.lr_scheduler.OneCycleLR(max_lr = 1, total_steps = 100) */
    wf_schedule cycle = {.one_cycle = true, .horizon = 100};
    static const struct {
        size_t update;
        double factor;
    } torch[] = {{0, 0.04},      {10, 0.295163948464101},
                 {29, 1},        {30, 0.999496535284524},
                 {64, 0.500002}, {99, 4e-06}};
    for (size_t i = 0; i < sizeof torch / sizeof *torch; i++)
        assert_close(wf_schedule_factor(&cycle, torch[i].update), torch[i].factor, 1e-12);
    assert_close(wf_ema_decay(0.999, 0), 0.1, 1e-15);
    assert_close(wf_ema_decay(0.999, 1000000), 0.999, 1e-15);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(newton_schulz_follows_the_textbook),
        cmocka_unit_test(adamw_follows_its_formula),
        cmocka_unit_test(adamw_clips_the_global_norm),
        cmocka_unit_test(muon_follows_its_formula),
        cmocka_unit_test(muon_clips_the_global_norm),
        cmocka_unit_test(bits_do_not_depend_on_threads),
        cmocka_unit_test(norm_shows_what_is_not_finite),
        cmocka_unit_test(schedules_have_their_shape),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
