/* The GMN velocity field as a whole: counts, gradients, equivariance, batches, memory, threads. */
#include "field_case.h"
#include "tensor/tape.h"
#include "ctx_fixture.h"
#include "weft/bench.h"

#include "tensor/cuda/backend_cuda.h"

static wf_field_desc small(wf_layout layout) {
    wf_field_desc desc = wf_field_desc_default();
    desc.layout = layout;
    desc.node = 7;
    desc.edge = 9;
    desc.time = 6;
    desc.blocks = 2;
    return desc;
}

static const char *const mixed[] = {"3-4-2", "2-3-3-2", "5-2", "3-4-2", "4-3!-2", NULL};
static const char *const folded[] = {"*5-4-3", "*5-3-2-2", "*5-6-3", NULL};

/* --- counts ----------------------------------------------------------------------------------- */
static size_t count_of(wf_field_desc desc) {
    size_t count = 0;
    assert_ok(ctx, wf_field_count(ctx, &desc, &count));
    if (count < 3000000) { /* the large ones are only counted */
        wf_field *field;
        assert_ok(ctx, wf_field_create(ctx, &wf__field_gmn, &desc, NULL, WF_F32, &field));
        assert_int_equal(count, field->params);
        wf_field_free(field);
    }
    return count;
}

static size_t lin(size_t in, size_t out) { return in * out + out; }

static void test_counts(void **state) {
    (void)state;
    wf_field_desc desc = wf_field_desc_default();
    desc.layout = WF_LAYOUT_LSTAR;
    assert_int_equal(count_of(desc), 1958017);
    desc.node = desc.edge = desc.time = 128;
    assert_int_equal(count_of(desc), 7799041);
    desc.fold_rows = 785;
    assert_int_equal(count_of(desc), 8000914);
    desc.fold_rows = 0;
    /* ACS: 7,849,737 and the learned null of 128 that the count of the facts sheet leaves out */
    desc.messages = WF_MESSAGES_ATTENTION;
    desc.cond = WF_COND_MLP;
    desc.cond_size = 1;
    assert_int_equal(count_of(desc), 7849737 + 128);
    /* Unequal widths, rule R3: CIFAR with 3x3 kernels, and the heterogeneous model */
    wf_field_desc cifar = wf_field_desc_default();
    cifar.layout = WF_LAYOUT_LSTAR;
    cifar.node = 192, cifar.edge = 384, cifar.time = 128, cifar.blocks = 16, cifar.max_coef = 9;
    assert_int_equal(count_of(cifar), 78243466);
    wf_field_desc het = wf_field_desc_default();
    het.layout = WF_LAYOUT_LSTAR;
    het.node = 128, het.edge = 192, het.time = 128, het.blocks = 10;
    het.encoder = WF_ENCODER_FOURIER, het.cond = WF_COND_LINEAR, het.cond_size = 20;
    assert_int_equal(count_of(het), 15227265);
}

/* lean: encoders, time MLP, readout as lstar; per block as in design section 3. */
static void test_lean_count(void **state) {
    (void)state;
    wf_field_desc desc = wf_field_desc_default();
    size_t d = 64;
    size_t outside = 8320 + 13696 + 17856 + 64 + 4225;
    size_t block = lin(d, 9 * d) + lin(4 * d, 4 * d) + lin(2 * d, d) + 2 * (2 * d * d) +
                   lin(4 * d, 2 * d) + lin(2 * d, d) + lin(3 * d, 2 * d) + lin(2 * d, d);
    assert_int_equal(count_of(desc), outside + 8 * block);
    assert_int_equal(count_of(desc), 1660033);
    /* A block more, nodes of n beside edges of d: messages have the edges' width. */
    size_t n = 96;
    desc.node = 96;
    block = lin(d, 3 * n + 6 * d) + lin(2 * d + 2 * n, 4 * d) + lin(2 * d, d) + 2 * (2 * d * n) +
            lin(3 * n + d, 2 * n) + lin(2 * n, n) + lin(n + 2 * d, 2 * d) + lin(2 * d, d);
    size_t eight = count_of(desc);
    desc.blocks++;
    assert_int_equal(count_of(desc), eight + block);
}

/* --- gradients -------------------------------------------------------------------------------- */
/* Central differences of sum dv*v by every tensor (three entries each) and by w. */
static void check_gradient(wf_field_desc desc, const char *const *archs) {
    field_case c = case_open(desc, WF_F64, archs);
    case_forward(&c, true);
    case_backward(&c);
    assert_true(case_norm(&c, c.v, c.batch.n_params) > 1e-3);
    int count = c.field->n_tensors;
    const wf_field_tensor *tensors = c.field->tensors;
    double *params = c.params, *w = c.w, *grad = c.grad, *dw = c.dw, step = 1e-5;
    for (int k = 0; k <= count; k++) {
        size_t total =
            k < count ? (size_t)tensors[k].rows * (size_t)tensors[k].cols : c.batch.n_params;
        double *x = k < count ? params + tensors[k].offset : w;
        const double *g = k < count ? grad + tensors[k].offset : dw;
        for (size_t pick = 0; pick < 3; pick++) {
            size_t i = (pick * 7919 + total / 3) % total;
            double kept = x[i];
            x[i] = kept + step;
            double above = case_loss(&c);
            x[i] = kept - step;
            double below = case_loss(&c);
            x[i] = kept;
            double numeric = (above - below) / (2 * step);
            double scale = fabs(numeric) + 1e-2 * case_norm(&c, g, total) + 1e-3;
            if (!(fabs(numeric - g[i]) <= 2e-6 * scale))
                fail_msg("%s[%zu]: gradient %.12g, difference %.12g",
                         k < count ? tensors[k].name : "w", i, g[i], numeric);
        }
    }
    case_close(&c);
}

static void test_gradient_lean(void **state) {
    (void)state;
    wf_field_desc desc = small(WF_LAYOUT_LEAN);
    check_gradient(desc, mixed);
    desc.messages = WF_MESSAGES_MEAN;
    desc.encoder = WF_ENCODER_SCALAR;
    check_gradient(desc, mixed);
    desc.messages = WF_MESSAGES_ATTENTION;
    desc.cond = WF_COND_LINEAR;
    desc.cond_size = 3;
    check_gradient(desc, mixed);
    desc.fold_rows = 6;
    desc.activation = WF_FIELD_ACT_SILU;
    desc.dropout = 0.3;
    check_gradient(desc, folded);
}

static void test_gradient_lstar(void **state) {
    (void)state;
    wf_field_desc desc = small(WF_LAYOUT_LSTAR);
    check_gradient(desc, mixed);
    desc.messages = WF_MESSAGES_MEAN;
    desc.edge = 10;
    desc.encoder = WF_ENCODER_FOURIER;
    check_gradient(desc, mixed);
    desc.messages = WF_MESSAGES_ATTENTION;
    desc.cond = WF_COND_MLP;
    desc.cond_size = 1;
    check_gradient(desc, mixed);
    desc.fold_rows = 6;
    desc.activation = WF_FIELD_ACT_GELU;
    desc.dropout = 0.3;
    check_gradient(desc, folded);
}

/* Kernels of four sizes: 25, 9 and 4 coefficients beside single weights. */
static const char *const kernels[] = {"2x6x6 conv3k5 conv4k1 pool3 conv3 linear2",
                                      "1x4x4 conv2 conv3k5 pool linear2", NULL};
static wf_field_desc kernel_desc(wf_layout layout, wf_encoder encoder) {
    wf_field_desc desc = small(layout);
    desc.edge = 10;
    desc.encoder = encoder;
    desc.max_coef = 25;
    desc.kernel_2 = 9;
    desc.kernel_3 = 4;
    return desc;
}

/* Kernels of a first layer on its units: rows of 27 and a bias. */
static const char *const folded_kernels[] = {"*3x6x6 conv5 pool conv4k1 linear2",
                                             "*1x6x6 conv3k5! pool conv2k1 linear2", NULL};
static wf_field_desc folded_kernel_desc(wf_layout layout, wf_encoder encoder) {
    wf_field_desc desc = kernel_desc(layout, encoder);
    desc.fold_rows = 28;
    return desc;
}

static void test_gradient_kernels(void **state) {
    (void)state;
    check_gradient(folded_kernel_desc(WF_LAYOUT_LEAN, WF_ENCODER_SCALAR), folded_kernels);
    check_gradient(kernel_desc(WF_LAYOUT_LEAN, WF_ENCODER_SINE), kernels);
    check_gradient(kernel_desc(WF_LAYOUT_LEAN, WF_ENCODER_SCALAR), kernels);
    check_gradient(kernel_desc(WF_LAYOUT_LSTAR, WF_ENCODER_FOURIER), kernels);
}

/* --- equivariance ----------------------------------------------------------------------------- */
static void check_equivariance(wf_field_desc desc, const char *const *archs) {
    for (int dtype = 0; dtype < 2; dtype++)
        for (uint32_t round = 0; round < 3; round++) {
            field_case c = case_open(desc, dtype ? WF_F64 : WF_F32, archs);
            double error = equivariance_error(&c, 100 * round, true);
            double limit = dtype ? 1e-12 : 1e-5;
            if (!(error <= limit))
                fail_msg("layout %d, messages %d: %.3g > %.3g", desc.layout, desc.messages, error,
                         limit);
            case_close(&c);
        }
}

static void test_equivariance(void **state) {
    (void)state;
    static const char *const networks[] = {"7-9-5", "3-8-6-4", "2-16-3", "3-5!-7-2", NULL};
    static const char *const folds[] = {"*5-9-3", "*5-7-6-2", NULL};
    for (int layout = 0; layout < 2; layout++)
        for (int messages = 0; messages < 3; messages++) {
            wf_field_desc desc = small((wf_layout)layout);
            desc.node = 20;
            desc.edge = 24;
            desc.blocks = 3;
            desc.messages = (wf_messages)messages;
            desc.encoder = (wf_encoder)messages;
            desc.dropout = messages == 1 ? 0.4 : 0;
            check_equivariance(desc, networks);
            desc.fold_rows = 6;
            check_equivariance(desc, folds);
            if (messages == 1)
                check_equivariance(kernel_desc((wf_layout)layout, WF_ENCODER_SINE), kernels);
            if (messages == 1)
                check_equivariance(folded_kernel_desc((wf_layout)layout, WF_ENCODER_SINE),
                                   folded_kernels);
        }
}

/* --- batches ---------------------------------------------------------------------------------- */
/* A network's velocity and gradient by its weights have the same bits whatever stands beside it,
 * and the gradient of the parameters is the sum of those that the networks have alone. */
static void check_neighbours(wf_field_desc desc, wf_dtype dtype, const char *const *archs) {
    field_case all = case_open(desc, dtype, archs);
    case_forward(&all, true);
    case_backward(&all);
    size_t size = case_size(&all), params = all.field->params;
    double *sum = calloc(params, sizeof *sum), gap = 0;
    for (int k = 0; k < all.n; k++) {
        const char *one[] = {archs[k], NULL};
        field_case alone = case_open(desc, dtype, one);
        size_t first = all.batch.param_start[k], n = alone.batch.n_params;
        memcpy(alone.w, (char *)all.w + first * size, n * size);
        memcpy(alone.dv, (char *)all.dv + first * size, n * size);
        memcpy(alone.t, (char *)all.t + (size_t)k * size, size);
        memcpy(alone.cond, (char *)all.cond + (size_t)(k * desc.cond_size) * size,
               (size_t)desc.cond_size * size);
        alone.drop[0] = all.drop[k];
        case_forward(&alone, true);
        case_backward(&alone);
        assert_memory_equal(alone.v, (char *)all.v + first * size, n * size);
        assert_memory_equal(alone.dw, (char *)all.dw + first * size, n * size);
        for (size_t i = 0; i < params; i++) sum[i] += case_get(&alone, alone.grad, i);
        case_close(&alone);
    }
    for (size_t i = 0; i < params; i++) gap += pow(sum[i] - case_get(&all, all.grad, i), 2);
    assert_close(sqrt(gap) / case_norm(&all, all.grad, params), 0, dtype == WF_F64 ? 1e-13 : 1e-5);
    free(sum);
    case_close(&all);
}

static void test_neighbours(void **state) {
    (void)state;
    /* Sizes below, at and above a tile of 96 edges, and more networks than parts. */
    static const char *const archs[] = {
        "2-16-3", "3-2", "9-20-7", "2-16-3", "5-7-3", "3-2",   "4-4-4", "1-1-1", "2-3",    "7-3-2",
        "2-2",    "3-3", "5-5-5",  "6-2",    "2-6",   "4-1-4", "3-1",   "8-9-2", "2-31-3", NULL};
    for (int layout = 0; layout < 2; layout++)
        for (int messages = 0; messages < 3; messages++) {
            wf_field_desc desc = small((wf_layout)layout);
            desc.messages = (wf_messages)messages;
            desc.cond = WF_COND_MLP;
            desc.cond_size = 2;
            desc.edge = 33;
            check_neighbours(desc, WF_F32, archs);
            desc.cond = WF_COND_LINEAR;
            desc.encoder = WF_ENCODER_FOURIER;
            desc.activation = WF_FIELD_ACT_GELU;
            desc.edge = 34;
            check_neighbours(desc, WF_F64, archs + 12);
        }
}

/* Sampling keeps nothing, yet gives the same bits; so does any number of threads. */
static void test_threads_and_keep(void **state) {
    (void)state;
    const char *archs[41] = {NULL};
    for (int k = 0; k < 40; k++) archs[k] = k % 3 ? "5-9-4" : "2-16-3";
    for (int layout = 0; layout < 2; layout++) {
        wf_field_desc desc = small((wf_layout)layout);
        desc.node = desc.edge = 32;
        desc.dropout = 0.2;
        void *v = NULL, *grad = NULL;
        for (int threads = 1; threads <= 5; threads += 2) {
            char text[16];
            snprintf(text, sizeof text, "%d", threads);
            setenv("WEFT_TEST_THREADS", text, 1);
            field_case c = case_open(desc, WF_F32, archs);
            size_t bytes = c.batch.n_params * 4, grad_bytes = c.field->params * 4;
            case_forward(&c, true);
            case_backward(&c);
            if (v == NULL) {
                v = malloc(bytes);
                grad = malloc(grad_bytes);
                memcpy(v, c.v, bytes);
                memcpy(grad, c.grad, grad_bytes);
            }
            assert_memory_equal(v, c.v, bytes);
            assert_memory_equal(grad, c.grad, grad_bytes);
            memset(c.v, 0, bytes);
            case_forward(&c, false);
            assert_memory_equal(v, c.v, bytes);
            case_close(&c);
        }
        unsetenv("WEFT_TEST_THREADS");
        free(v);
        free(grad);
    }
}

/* What a backward of some parts tells: behind a stage the parts' gradients of its tensors are those
 * at the end. */
typedef struct told_stages {
    const field_case *c;
    int stage[512]; /* of each tensor */
    bool alone;     /* one thread: also what is not finished may be read */
    int told;
    float *then[WF_TAPE_STAGES]; /* the sum of the parts behind each stage */
} told_stages;

/* Of the tensors that are finished behind `stage`; of all where nobody else writes. */
static float *sum_of_parts(const told_stages *told, int stage) {
    const wf_field *field = told->c->field;
    float *sum = calloc(field->params, sizeof *sum);
    for (int k = 0; k < field->n_tensors; k++) {
        const wf_field_tensor *tensor = &field->tensors[k];
        size_t count = (size_t)tensor->rows * (size_t)tensor->cols;
        if (told->alone || told->stage[k] <= stage)
            assert_true(field->kind->add(told->c->field, tensor->offset, count,
                                         sum + tensor->offset, true));
    }
    return sum;
}

static void stage_told(void *user, int stage) {
    told_stages *told = user;
    if (stage == told->told && stage < WF_TAPE_STAGES)
        told->then[stage] = sum_of_parts(told, stage);
    told->told++;
}

static void check_told(const told_stages *told) {
    const wf_field *field = told->c->field;
    float *end = sum_of_parts(told, WF_TAPE_STAGES);
    for (int s = 0; s < WF_TAPE_STAGES; s++) {
        bool whole = memcmp(told->then[s], end, field->params * sizeof *end) == 0;
        assert_int_equal(whole, s == WF_TAPE_STAGES - 1);
        for (int k = 0; k < field->n_tensors; k++) {
            const wf_field_tensor *tensor = &field->tensors[k];
            size_t count = (size_t)tensor->rows * (size_t)tensor->cols;
            if (told->stage[k] <= s)
                assert_memory_equal(told->then[s] + tensor->offset, end + tensor->offset,
                                    count * sizeof *end);
        }
        free(told->then[s]);
    }
    free(end);
}

static void test_stages(void **state) {
    (void)state;
    const char *archs[41] = {NULL};
    for (int k = 0; k < 40; k++) archs[k] = k % 3 ? "5-9-4" : "2-16-3";
    for (int run = 0; run < 4; run++) {
        wf_field_desc desc = small(run % 2);
        desc.blocks = 4;
        setenv("WEFT_TEST_THREADS", run < 2 ? "1" : "3", 1);
        field_case c = case_open(desc, WF_F32, archs);
        told_stages told = {.c = &c, .alone = run < 2};
        int start[WF_FIELD_PARTS + 1], parts = c.field->kind->parts(c.field, &c.batch, start);
        wf_field_input input = {.batch = &c.batch,
                                .w = c.w,
                                .t = c.t,
                                .keep = true,
                                .first_part = 1,
                                .last_part = parts};
        assert_true(parts > 2 && c.field->n_tensors <= 512);
        int stages =
            wf_params_stages(c.field->tensors, c.field->n_tensors, WF_TAPE_STAGES, told.stage);
        assert_int_equal(stages, WF_TAPE_STAGES);
        c.field->stages = (wf_field_stages){stages, told.stage, stage_told, &told};
        assert_ok(c.ctx, wf_field_forward(c.ctx, c.field, c.params, &input, c.v));
        assert_ok(c.ctx, wf_field_backward(c.ctx, c.field, c.dv, c.grad, NULL));
        assert_int_equal(told.told, WF_TAPE_STAGES);
        check_told(&told);
        c.field->stages = (wf_field_stages){0};
        case_close(&c);
    }
    unsetenv("WEFT_TEST_THREADS");
}

/* A dropped condition is the learned null: the values given do not matter, and others do. */
static void test_null_condition(void **state) {
    (void)state;
    wf_field_desc desc = small(WF_LAYOUT_LEAN);
    desc.cond = WF_COND_LINEAR;
    desc.cond_size = 3;
    field_case c = case_open(desc, WF_F64, mixed);
    case_forward(&c, false);
    size_t n = c.batch.n_params;
    double *before = calloc(n, sizeof *before);
    memcpy(before, c.v, n * sizeof *before);
    for (int i = 0; i < 3 * c.n; i++) ((double *)c.cond)[i] += 1;
    case_forward(&c, false);
    for (int k = 0; k < c.n; k++) {
        size_t first = c.batch.param_start[k], count = c.batch.param_start[k + 1] - first;
        bool same = memcmp(before + first, (double *)c.v + first, count * sizeof(double)) == 0;
        assert_int_equal(same, c.drop[k] != 0);
    }
    free(before);
    case_close(&c);
}

/* Dropout works in training alone; networks of a batch and updates have masks of their own. */
static void test_dropout(void **state) {
    (void)state;
    static const char *const twins[] = {"3-4-2", "3-4-2", NULL};
    for (int layout = 0; layout < 2; layout++) {
        wf_field_desc desc = small((wf_layout)layout);
        field_case plain = case_open(desc, WF_F32, twins);
        desc.dropout = 0.5;
        field_case c = case_open(desc, WF_F32, twins);
        size_t n = c.batch.n_params, half = n / 2;
        for (field_case *each = &plain; each != NULL; each = each == &plain ? &c : NULL) {
            memcpy((float *)each->w + half, each->w, half * sizeof(float));
            ((float *)each->t)[1] = ((float *)each->t)[0];
        }
        case_forward(&plain, false);
        float *v = c.v, *without = plain.v, *kept = calloc(n, sizeof *kept);
        assert_memory_equal(without, without + half, half * sizeof *v);
        wf_field_input input = {.batch = &c.batch, .w = c.w, .t = c.t, .seed = 1, .update = 5};
        assert_ok(c.ctx, wf_field_forward(c.ctx, c.field, c.params, &input, c.v));
        assert_memory_equal(v, without, n * sizeof *v);
        input.training = true;
        assert_ok(c.ctx, wf_field_forward(c.ctx, c.field, c.params, &input, c.v));
        assert_memory_not_equal(v, without, half * sizeof *v);
        assert_memory_not_equal(v, v + half, half * sizeof *v);
        memcpy(kept, v, n * sizeof *v);
        input.update = 6;
        assert_ok(c.ctx, wf_field_forward(c.ctx, c.field, c.params, &input, c.v));
        assert_memory_not_equal(v, kept, half * sizeof *v);
        free(kept);
        case_close(&plain);
        case_close(&c);
    }
}

/* Only the product of time and top frequency counts. */
static void test_time_frequency(void **state) {
    (void)state;
    wf_field_desc desc = small(WF_LAYOUT_LEAN);
    field_case fast = case_open(desc, WF_F64, mixed);
    desc.time_frequency = 250;
    field_case slow = case_open(desc, WF_F64, mixed);
    size_t n = fast.batch.n_params;
    double *a = fast.v, *b = slow.v, gap = 0;
    case_forward(&fast, false);
    case_forward(&slow, false);
    for (size_t i = 0; i < n; i++) gap = fmax(gap, fabs(a[i] - b[i]));
    assert_true(gap > 1e-3);
    for (int k = 0; k < fast.n; k++) ((double *)fast.t)[k] /= 4;
    case_forward(&fast, false);
    for (size_t i = 0; i < n; i++) assert_close(a[i], b[i], 1e-12);
    case_close(&fast);
    case_close(&slow);
}

/* --- initial values --------------------------------------------------------------------------- */
static void test_init(void **state) {
    (void)state;
    wf_field_desc desc = small(WF_LAYOUT_LSTAR);
    field_case c = case_open(desc, WF_F32, mixed);
    wf_field_init(c.field, 5, c.params);
    case_forward(&c, true);
    /* The zero start of the readout: no velocity yet, but its own gradient is there. */
    assert_true(case_norm(&c, c.v, c.batch.n_params) == 0);
    case_backward(&c);
    int count = c.field->n_tensors;
    const wf_field_tensor *tensors = c.field->tensors;
    size_t expected = 0;
    for (int k = 0; k < count; k++) {
        size_t n = (size_t)tensors[k].rows * (size_t)tensors[k].cols;
        const float *x = (const float *)c.params + tensors[k].offset;
        bool zero = strstr(tensors[k].name, "adaln") || strstr(tensors[k].name, "edge.4") ||
                    strstr(tensors[k].name, "node.4") || strstr(tensors[k].name, "global.4") ||
                    strstr(tensors[k].name, "readout.2");
        assert_int_equal(case_norm(&c, x, n) == 0, zero);
        assert_int_equal(tensors[k].offset, expected);
        assert_int_equal(tensors[k].matrix, strstr(tensors[k].name, "weight") != NULL &&
                                                !strncmp(tensors[k].name, "blocks.", 7) &&
                                                !strstr(tensors[k].name, "adaln"));
        if (strcmp(tensors[k].name, "readout.2.weight") == 0)
            assert_true(case_norm(&c, (float *)c.grad + tensors[k].offset, n) > 0);
        expected += n;
    }
    assert_int_equal(expected, c.field->params);
    /* The uniform of a split affine layer has the bound of the whole: 1/sqrt(9 + 7 + 7 + 9). */
    for (int k = 0; k < count; k++)
        if (strcmp(tensors[k].name, "blocks.0.msg.0.weight_i") == 0)
            for (int i = 0; i < tensors[k].rows * tensors[k].cols; i++)
                assert_true(fabsf(((float *)c.params)[tensors[k].offset + (size_t)i]) <=
                            1 / sqrtf(32.0f));
    case_close(&c);
}

/* --- bad input -------------------------------------------------------------------------------- */
static void bad_desc(wf_field_desc desc, const char *words) {
    wf_field *field = NULL;
    size_t count;
    assert_fails(ctx, wf_field_create(ctx, &wf__field_gmn, &desc, NULL, WF_F32, &field),
                 WF_ERR_USAGE, words);
    assert_null(field);
    assert_fails(ctx, wf_field_count(ctx, &desc, &count), WF_ERR_USAGE, words);
}

static void test_bad_input(void **state) {
    (void)state;
    wf_field_desc good = small(WF_LAYOUT_LEAN), desc = good;
    desc.node = 0;
    bad_desc(desc, "model.node is 0; allowed is a whole number from 1 to 8192");
    desc = good, desc.edge = -3;
    bad_desc(desc, "model.edge is -3");
    desc = good, desc.time = 7;
    bad_desc(desc, "even");
    desc = good, desc.blocks = 0;
    bad_desc(desc, "blocks");
    desc = good, desc.encoder = WF_ENCODER_FOURIER;
    bad_desc(desc, "Fourier");
    desc = good, desc.cond = WF_COND_LINEAR;
    bad_desc(desc, "model.cond_size is 0, but model.cond is linear");
    desc = good, desc.cond_size = 2;
    bad_desc(desc, "model.cond_size is 2, but model.cond is none");
    desc = good, desc.fold_rows = -1;
    bad_desc(desc, "field.fold_rows is -1");

    field_case c = case_open(good, WF_F32, mixed);
    assert_fails(c.ctx, wf_field_backward(c.ctx, c.field, c.dv, c.grad, NULL), WF_ERR_USAGE,
                 "without a forward");
    case_forward(&c, false);
    assert_fails(c.ctx, wf_field_backward(c.ctx, c.field, c.dv, c.grad, NULL), WF_ERR_USAGE,
                 "without a forward");
    case_close(&c);

    c = case_open(good, WF_F32, folded);
    assert_fails(c.ctx,
                 wf_field_forward(c.ctx, c.field, c.params,
                                  &(wf_field_input){.batch = &c.batch, .w = c.w, .t = c.t}, c.v),
                 WF_ERR_SHAPE, "folded row has 6");
    case_close(&c);
    desc = good, desc.cond = WF_COND_LINEAR, desc.cond_size = 2;
    c = case_open(desc, WF_F32, mixed);
    assert_fails(c.ctx,
                 wf_field_forward(c.ctx, c.field, c.params,
                                  &(wf_field_input){.batch = &c.batch, .w = c.w, .t = c.t}, c.v),
                 WF_ERR_SHAPE, "condition of 2 values");
    case_close(&c);
}

/* --- bench ------------------------------------------------------------------------------------ */
static void test_bench(void **state) {
    (void)state;
    wf_field_desc desc = small(WF_LAYOUT_LEAN);
    desc.node = desc.edge = 16, desc.time = 16;
    wf_bench_field_result result;
    assert_ok(ctx, wf_bench_field(ctx, &desc, "2-16-3", 8, 3, &result));
    assert_true(result.step_best > 0 && result.step_best <= result.step_median);
    assert_true(result.sample > 0 && result.gigaflops > 0);
    size_t count;
    assert_ok(ctx, wf_field_count(ctx, &desc, &count));
    assert_int_equal(result.params, count);
    assert_true(wf_bench_fma_peak(ctx) > 0.1);
    assert_fails(ctx, wf_bench_field(ctx, &desc, "2-16-3", 0, 3, &result), WF_ERR_USAGE,
                 "0 networks");
    assert_fails(ctx, wf_bench_field(ctx, &desc, "x", 1, 3, &result), WF_ERR_USAGE, "x");
    wf_bench_gpu_result gpu;
    assert_fails(ctx, wf_bench_field_gpu(ctx, &desc, "2-16-3", 0, 1, true, &gpu), WF_ERR_USAGE,
                 "0 and 1");
    wf_cuda_device *device;
    if (wf_ctx_cuda(ctx, &device) != WF_OK) {
        assert_fails(ctx, wf_bench_field_gpu(ctx, &desc, "2-16-3", 8, 4, true, &gpu),
                     WF_ERR_UNSUPPORTED, "device cuda: ");
    } else {
        assert_ok(ctx, wf_bench_field_gpu(ctx, &desc, "2-16-3", 8, 4, true, &gpu));
        assert_true(gpu.forward > 0 && gpu.step > gpu.forward && gpu.velocity > 0 && gpu.bytes > 0);
    }
}

/* Once the context is interrupted no operation runs any more, and the call says so. */
static void test_interruption(void **state) {
    (void)state;
    static const char *const archs[] = {"2-16-3", "5-7-3", NULL};
    for (int layout = 0; layout < 2; layout++) {
        field_case c = case_open(small((wf_layout)layout), WF_F32, archs);
        wf_field_input input = {.batch = &c.batch, .w = c.w, .t = c.t, .keep = true};
        case_forward(&c, true);
        wf_interrupt(c.ctx);
        assert_fails(c.ctx, wf_field_backward(c.ctx, c.field, c.dv, c.grad, c.dw),
                     WF_ERR_INTERRUPTED, "interrupted");
        memset(c.v, 0, c.batch.n_params * sizeof(float));
        assert_fails(c.ctx, wf_field_forward(c.ctx, c.field, c.params, &input, c.v),
                     WF_ERR_INTERRUPTED, "interrupted");
        assert_true(case_norm(&c, c.v, c.batch.n_params) == 0);
        case_close(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_lean_count),
        cmocka_unit_test(test_gradient_lean),
        cmocka_unit_test(test_gradient_lstar),
        cmocka_unit_test(test_gradient_kernels),
        cmocka_unit_test(test_equivariance),
        cmocka_unit_test(test_neighbours),
        cmocka_unit_test(test_threads_and_keep),
        cmocka_unit_test(test_stages),
        cmocka_unit_test(test_null_condition),
        cmocka_unit_test(test_dropout),
        cmocka_unit_test(test_time_frequency),
        cmocka_unit_test(test_init),
        cmocka_unit_test(test_bad_input),
        cmocka_unit_test(test_interruption),
        cmocka_unit_test(test_bench),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
