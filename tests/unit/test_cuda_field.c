/* The GMN velocity field on the GPU against the CPU's: velocities, gradients, equivariance, equal
 * bits, training. */
#include "base/cuda/device.h"
#include "named_cases.h"
#include "field_case.h"
#include "stage_checks.h"

/* How far a backend may be off: float throughout, or products in bf16, whose operations are each
 * within 1e-2 (test_cuda_ops) and add up through the blocks. */
typedef struct precision {
    bool fast;
    double output, gradient, loss;
} precision;
static const precision precisions[] = {{false, 1e-5, 1e-4, 1e-3}, {true, 2e-2, 4e-2, 2e-2}};
enum { n_precisions = 2 };

/* The same case, its calls sent to the GPU. */
static field_case gpu_case(wf_field_desc desc, const char *const *archs, bool fast) {
    field_case c = case_open(desc, WF_F32, archs);
    wf_ctx_free(c.ctx);
    wf_ctx_desc ctx_desc = {.threads = 2, .device = WF_DEVICE_CUDA};
    if (wf_ctx_create(&ctx_desc, &c.ctx) != WF_OK) abort();
    c.fast = fast;
    memset(c.v, 0xff, c.batch.n_params * sizeof(float));
    memset(c.dw, 0xff, c.batch.n_params * sizeof(float));
    memset(c.grad, 0xff, c.field->params * sizeof(float));
    return c;
}

static double difference(const field_case *a, const void *x, const field_case *b, const void *y,
                         size_t n) {
    double sum = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        double p = case_get(a, x, i), q = case_get(b, y, i);
        sum += (p - q) * (p - q);
        norm += q * q;
    }
    return sqrt(sum / norm);
}

/* The norm of the difference of a tensor's gradients. */
static double gradient_difference(const field_case *a, const field_case *b,
                                  const wf_field_tensor *tensor) {
    double sum = 0;
    for (size_t i = 0; i < (size_t)tensor->rows * (size_t)tensor->cols; i++) {
        double p = case_get(a, a->grad, tensor->offset + i);
        double q = case_get(b, b->grad, tensor->offset + i);
        sum += (p - q) * (p - q);
    }
    return sqrt(sum);
}

/* The reference with its parameters rounded to bf16: how far its gradients move tells how far those
 * of products in bf16 may be off where the field magnifies such errors. */
static field_case rounded_case(const field_case *cpu, const char *const *archs) {
    field_case c = case_open(cpu->desc, cpu->dtype, archs);
    for (size_t i = 0; i < c.field->params; i++)
        case_put(&c, c.params, i, round_bf16(case_get(&c, c.params, i)));
    case_forward(&c, true);
    case_backward(&c);
    return c;
}

/* Each tensor's gradient beside the norm of the largest, so that one that is almost zero cannot
 * fail alone. */
static void check_gradients(const field_case *gpu, const field_case *cpu, const char *const *archs,
                            const precision *p) {
    enum { roundings = 3 }; /* of weights, of what they are multiplied by, and of gradients */
    int count = cpu->field->n_tensors;
    const wf_field_tensor *tensors = cpu->field->tensors;
    double all = case_norm(cpu, cpu->grad, cpu->field->params);
    field_case rounded = {.ctx = NULL};
    for (int k = 0; k < count; k++) {
        const float *first = (const float *)cpu->grad;
        size_t size = case_size(cpu) / sizeof *first;
        double norm = case_norm(cpu, first + tensors[k].offset * size,
                                (size_t)tensors[k].rows * (size_t)tensors[k].cols);
        double error = gradient_difference(gpu, cpu, &tensors[k]);
        double limit = p->gradient * (norm + 1e-2 * all), moved = 0;
        if (error <= limit) continue;
        if (p->fast && rounded.ctx == NULL) rounded = rounded_case(cpu, archs);
        if (p->fast) moved = gradient_difference(&rounded, cpu, &tensors[k]);
        if (!(error <= roundings * moved))
            fail_msg("layout %d, messages %d: gradient of %s: off by %.3g of %.3g, all %.3g, "
                     "limit %.3g, rounding moves it by %.3g",
                     cpu->desc.layout, cpu->desc.messages, tensors[k].name, error, norm, all, limit,
                     moved);
    }
    if (rounded.ctx != NULL) case_close(&rounded);
}

static void check_precision(wf_field_desc desc, const char *const *archs, wf_dtype reference,
                            const precision *p) {
    field_case gpu = gpu_case(desc, archs, p->fast), cpu = case_open(desc, reference, archs);
    case_forward(&cpu, true);
    case_backward(&cpu);
    case_forward(&gpu, true);
    case_backward(&gpu);
    size_t n = gpu.batch.n_params;
    double v = difference(&gpu, gpu.v, &cpu, cpu.v, n);
    double dw = difference(&gpu, gpu.dw, &cpu, cpu.dw, n);
    if (!(v <= p->output && dw <= p->gradient))
        fail_msg("%s, layout %d, messages %d, encoder %d: velocity differs by %.3g, dw by %.3g",
                 p->fast ? "bf16" : "float", desc.layout, desc.messages, desc.encoder, v, dw);
    check_gradients(&gpu, &cpu, archs, p);
    /* Without keep, and once more: the same bits. */
    float *first = malloc(n * sizeof *first);
    memcpy(first, gpu.v, n * sizeof *first);
    for (int keep = 0; keep < 2; keep++) {
        memset(gpu.v, 0xff, n * sizeof(float));
        case_forward(&gpu, keep);
        assert_memory_equal(first, gpu.v, n * sizeof *first);
    }
    free(first);
    case_close(&gpu);
    case_close(&cpu);
}

/* How names of cases begin: layout, messages, widths of nodes and edges. */
typedef struct field_name {
    char text[64];
} field_name;
static field_name name_of(wf_field_desc desc) {
    static const char *const sums[] = {"sum", "mean", "attention"};
    field_name name;
    snprintf(name.text, sizeof name.text, "%s-%s-%dx%d",
             desc.layout == WF_LAYOUT_LEAN ? "lean" : "lstar", sums[desc.messages], desc.node,
             desc.edge);
    return name;
}
static const char *precision_name(const precision *p) { return p->fast ? "bf16" : "float"; }

/* `networks` is what names of cases call `archs`. */
static void check_field(wf_field_desc desc, const char *networks, const char *const *archs,
                        wf_dtype reference) {
    for (int k = 0; k < n_precisions; k++)
        if (my_case("%s-%s-%s", name_of(desc).text, networks, precision_name(&precisions[k])))
            check_precision(desc, archs, reference, &precisions[k]);
}

static wf_field_desc small(int layout, int messages) {
    wf_field_desc desc = wf_field_desc_default();
    desc.layout = (wf_layout)layout;
    desc.messages = (wf_messages)messages;
    desc.node = 20, desc.edge = 34, desc.time = 10, desc.blocks = 3;
    return desc;
}

static const char *const mixed[] = {"3-4-2",   "2-33-3-2", "5-2",   "3-4-2", "4-3!-2",
                                    "9-7-3-2", "1-1-1",    "7-9-5", NULL};
static const char *const folded[] = {"*5-4-3", "*5-3-2-2", "*5-6-3", "*5-9-33-2", NULL};

static void test_against_cpu(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    for (int layout = 0; layout < 2; layout++)
        for (int messages = 0; messages < 3; messages++) {
            wf_field_desc desc = small(layout, messages);
            desc.encoder = (wf_encoder)messages;
            check_field(desc, "mixed", mixed, WF_F64);
            desc.cond = messages == 1 ? WF_COND_LINEAR : WF_COND_MLP;
            desc.cond_size = 3;
            desc.fold_rows = 6;
            desc.activation = layout ? WF_FIELD_ACT_GELU : WF_FIELD_ACT_SILU;
            check_field(desc, "folded", folded, WF_F64);
        }
}

/* A width that fused kernels have, two networks of different depth. */
static void test_fused(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    static const char *const two[] = {"2-9-3", "3-17-5-2", NULL};
    for (int layout = 0; layout < 2; layout++)
        for (int messages = 0; messages < 3; messages++) {
            wf_field_desc desc = small(layout, messages);
            desc.edge = 64, desc.blocks = 2;
            check_field(desc, "two", two, WF_F64);
        }
}

/* The width of which nodes have kernels too, which add up what edges send, but for attention's.
 * Folded rows want the last block's nodes. */
static void test_lean_nodes(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    static const char *const two[] = {"2-9-3", "19-40-5-2", NULL};
    for (int messages = 0; messages < 3; messages++) {
        wf_field_desc desc = small(0, messages);
        desc.node = desc.edge = 64, desc.blocks = 2;
        check_field(desc, "two", two, WF_F64);
        desc.fold_rows = 6;
        desc.activation = WF_FIELD_ACT_SILU;
        check_field(desc, "folded", folded, WF_F64);
    }
}

/* Edges that carry kernels of several sizes, in the recipe's widths too; last the network of
 * recipes/cifar10.conf. */
static void test_kernels(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    static const char *const kernels[] = {"2x6x6 conv3k5 conv4k1 pool3 conv3 linear2",
                                          "1x4x4 conv2 conv3k5 pool linear2", NULL};
    static const char *const paper[] = {"3x32x32 conv16 pool conv32 pool conv48 gap linear10",
                                        "3x32x32 conv16 pool conv32 pool conv48 gap linear10",
                                        NULL};
    for (int width = 0; width < 3; width++) {
        wf_field_desc desc = small(0, 0);
        if (width > 0) desc.edge = 64 * width, desc.node = desc.edge;
        desc.blocks = 2;
        desc.encoder = width == 0 ? WF_ENCODER_SINE : WF_ENCODER_SCALAR;
        desc.activation = width == 1 ? WF_FIELD_ACT_SILU : WF_FIELD_ACT_GELU;
        desc.max_coef = 25, desc.kernel_2 = 9, desc.kernel_3 = 4;
        check_field(desc, "kernels", kernels, WF_F64);
        desc.max_coef = 9, desc.kernel_2 = desc.kernel_3 = 0;
        if (width > 0 && getenv("WEFT_CUDA_SMALL") == NULL)
            check_field(desc, "paper", paper, WF_F32);
    }
}

/* Rows of nodes enough for wide products. */
static void test_many_nodes(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    static const char *const wide[] = {"1-2100-1", "2-3-1", NULL};
    wf_field_desc desc = small(0, 0);
    desc.node = 70, desc.edge = 8, desc.blocks = 1;
    check_field(desc, "many", wide, WF_F64);
}

/* Rows enough for the largest tiles, several chunks and spans. */
static void test_large(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    if (getenv("WEFT_CUDA_SMALL") != NULL) skip("small cases only");
    const char *archs[41] = {NULL}, *folds[25] = {NULL};
    for (int k = 0; k < 40; k++) archs[k] = k % 7 == 3 ? "64-24-10" : "64-16-8-10";
    for (int k = 0; k < 24; k++) folds[k] = "*784-32-32-10";
    for (int layout = 0; layout < 2; layout++) {
        wf_field_desc desc = wf_field_desc_default();
        desc.layout = (wf_layout)layout;
        desc.blocks = 2;
        check_field(desc, "forty", archs, WF_F32);
        desc.messages = WF_MESSAGES_MEAN;
        desc.node = 100, desc.edge = 128, desc.fold_rows = 785;
        check_field(desc, "folded", folds, WF_F32);
    }
}

static void test_equivariance(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    for (int layout = 0; layout < 2; layout++)
        for (int run = 0; run < 3 * n_precisions; run++) {
            const precision *p = &precisions[run / 3];
            wf_field_desc desc = small(layout, run % 3);
            if (!my_case("%s-%s", name_of(desc).text, precision_name(p))) continue;
            field_case c = gpu_case(desc, mixed, p->fast);
            double error = equivariance_error(&c, 50, true);
            if (!(error <= p->output))
                fail_msg("layout %d, messages %d: %.3g", layout, run % 3, error);
            case_close(&c);
        }
}

/* A fresh field gives the bits of the first; a network's do not depend on its neighbours; batches
 * may alternate. */
static void test_equal_bits(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    for (int layout = 0; layout < 2; layout++)
        for (int run = 0; run < 3 * n_precisions; run++) {
            const precision *p = &precisions[run / 3];
            bool fast = p->fast;
            wf_field_desc desc = small(layout, run % 3);
            if (!my_case("%s-%s", name_of(desc).text, precision_name(p))) continue;
            field_case all = gpu_case(desc, mixed, fast), again = gpu_case(desc, mixed, fast);
            case_forward(&all, true);
            case_backward(&all);
            for (int round = 0; round < 2; round++) { /* first run, then a replay */
                case_forward(&again, true);
                case_backward(&again);
                assert_memory_equal(all.grad, again.grad, all.field->params * 4);
                assert_memory_equal(all.dw, again.dw, all.batch.n_params * 4);
            }
            for (int k = 0; k < all.n; k++) {
                const char *one[] = {mixed[k], NULL};
                field_case alone = gpu_case(desc, one, fast);
                size_t start = all.batch.param_start[k], n = alone.batch.n_params;
                memcpy(alone.w, (float *)all.w + start, n * 4);
                memcpy(alone.dv, (float *)all.dv + start, n * 4);
                memcpy(alone.t, (float *)all.t + k, 4);
                /* the other case's field, which then has to change its batch */
                wf_field_input input = {.batch = &alone.batch,
                                        .w = alone.w,
                                        .t = alone.t,
                                        .keep = true,
                                        .fast = again.fast};
                assert_ok(alone.ctx,
                          wf_field_forward(alone.ctx, again.field, again.params, &input, alone.v));
                assert_ok(alone.ctx, wf_field_backward(alone.ctx, again.field, alone.dv, alone.grad,
                                                       alone.dw));
                assert_memory_equal(alone.v, (float *)all.v + start, n * 4);
                assert_memory_equal(alone.dw, (float *)all.dw + start, n * 4);
                case_close(&alone);
            }
            case_close(&all);
            case_close(&again);
        }
}

/* Batches with 906 nodes, which go through chains, to 19,026, through wide products in tiles of
 * either width: the first networks have the same bits in all of them. Width 64: wider, few rows
 * have deep sums, which are rounded in parts. */
static void test_row_counts(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    if (getenv("WEFT_CUDA_SMALL") != NULL) skip("small cases only");
    static const int counts[] = {3, 20, 40, case_most - 1};
    for (int layout = 0; layout < 2; layout++) {
        wf_field_desc desc = wf_field_desc_default();
        desc.layout = (wf_layout)layout;
        desc.blocks = 2;
        if (!my_case("%s", name_of(desc).text)) continue;
        field_case few = {.n = 0};
        for (int k = 0; k < 4; k++) {
            const char *archs[case_most] = {NULL};
            for (int i = 0; i < counts[k]; i++) archs[i] = "300-1-1";
            field_case c = gpu_case(desc, archs, true);
            if (k > 0) {
                memcpy(c.w, few.w, few.batch.n_params * 4);
                memcpy(c.dv, few.dv, few.batch.n_params * 4);
                memcpy(c.t, few.t, (size_t)few.n * 4);
            }
            case_forward(&c, true);
            case_backward(&c);
            if (k == 0) {
                few = c;
                continue;
            }
            assert_memory_equal(c.v, few.v, few.batch.n_params * 4);
            assert_memory_equal(c.dw, few.dw, few.batch.n_params * 4);
            case_close(&c);
        }
        case_close(&few);
    }
}

/* Seven modulations of 40 graphs: a tail of products whose columns blocks share, and backward deep
 * sums of four parts and of three, which other blocks compute before the chain adds them up. */
static void test_split_chains(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    const char *archs[41] = {NULL};
    for (int k = 0; k < 40; k++) archs[k] = k % 2 ? "3-4-2" : "2-3-2";
    wf_field_desc desc = wf_field_desc_default();
    desc.blocks = 7;
    check_field(desc, "forty", archs, WF_F64);
}

/* A replay, another and a fresh field have the bits of the first run. */
static void check_replays(wf_field_desc desc, const char *const *archs) {
    field_case first = gpu_case(desc, archs, true), again = gpu_case(desc, archs, true);
    case_forward(&first, true);
    case_backward(&first);
    for (int round = 0; round < 3; round++) {
        memset(again.grad, 0xff, again.field->params * 4);
        memset(again.dw, 0xff, again.batch.n_params * 4);
        case_forward(&again, true);
        case_backward(&again);
        assert_memory_equal(first.v, again.v, first.batch.n_params * 4);
        assert_memory_equal(first.dw, again.dw, first.batch.n_params * 4);
        assert_memory_equal(first.grad, again.grad, first.field->params * 4);
    }
    case_close(&first);
    case_close(&again);
}

/* The widths that have kernels of their own, whose sums run beside what follows. */
static void test_replays(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    if (getenv("WEFT_CUDA_SMALL") != NULL) skip("small cases only");
    const char *archs[33] = {NULL};
    for (int k = 0; k < 32; k++) archs[k] = k % 7 == 3 ? "64-24-10" : "64-16-8-10";
    for (int run = 0; run < 4; run++) {
        wf_field_desc desc = wf_field_desc_default();
        desc.layout = (wf_layout)(run % 2);
        desc.blocks = 3;
        desc.node = desc.edge = run < 2 ? 64 : 128;
        if (!my_case("%s", name_of(desc).text)) continue;
        check_replays(desc, archs);
    }
}

/* Nodes wider than edges: of few nodes, and of many. */
static const struct {
    int node, edge, time;
} wide_fields[] = {{192, 64, 128}, {256, 64, 256}, {256, 128, 128}, {384, 32, 64}};
enum { n_wide_fields = 4 };

static wf_field_desc wide_field(int index) {
    wf_field_desc desc = wf_field_desc_default();
    desc.node = wide_fields[index].node;
    desc.edge = wide_fields[index].edge;
    desc.time = wide_fields[index].time;
    desc.blocks = 2;
    return desc;
}

static void test_wide_nodes(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    static const char *const two[] = {"*5-4-3", "*5-3-2-2", NULL};
    for (int k = 0; k < n_wide_fields; k++) {
        wf_field_desc desc = wide_field(k);
        desc.blocks = 1, desc.fold_rows = 6;
        check_field(desc, "two", two, WF_F64);
        if (my_case("%s-two-replays", name_of(desc).text)) check_replays(desc, two);
    }
}

/* 3,040 nodes, and 19,593 of first layers with means, which magnify roundings little. */
static void test_many_wide_nodes(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    if (getenv("WEFT_CUDA_SMALL") != NULL) skip("small cases only");
    const char *archs[41] = {NULL}, *more[case_most] = {NULL};
    for (int k = 0; k < 40; k++) archs[k] = "*784-32-32-10";
    for (int k = 0; k < case_most - 1; k++) more[k] = "*784-300-10";
    for (int k = 0; k < n_wide_fields; k++) {
        wf_field_desc desc = wide_field(k);
        desc.fold_rows = 785;
        field_name name = name_of(desc);
        if (my_case("%s-bf16", name.text)) check_precision(desc, archs, WF_F32, &precisions[1]);
        if (my_case("%s-replays", name.text)) check_replays(desc, archs);
        desc.messages = WF_MESSAGES_MEAN;
        name = name_of(desc);
        if (desc.time == 256 && my_case("%s-bf16", name.text))
            check_precision(desc, more, WF_F32, &precisions[1]);
        if (my_case("%s-replays", name.text)) check_replays(desc, more);
    }
}

/* Twenty steps down the gradient of |v - target|^2 / 2, on both sides. */
static void test_training(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    for (int run = 0; run < 2 * n_precisions; run++) {
        const precision *p = &precisions[run / 2];
        wf_field_desc desc = small(run % 2, 0);
        if (!my_case("%s-%s", name_of(desc).text, precision_name(p))) continue;
        field_case sides[2] = {gpu_case(desc, mixed, p->fast), case_open(desc, WF_F32, mixed)};
        double loss[2][20];
        for (int side = 0; side < 2; side++) {
            field_case *c = &sides[side];
            float *v = c->v, *target = calloc(c->batch.n_params, 4), *dv = c->dv;
            memcpy(target, dv, c->batch.n_params * 4);
            for (int step = 0; step < 20; step++) {
                case_forward(c, true);
                loss[side][step] = 0;
                for (size_t i = 0; i < c->batch.n_params; i++) {
                    dv[i] = v[i] - target[i];
                    loss[side][step] += 0.5 * dv[i] * dv[i];
                }
                case_backward(c);
                double norm = case_norm(c, c->grad, c->field->params);
                for (size_t i = 0; i < c->field->params; i++)
                    ((float *)c->params)[i] -= (float)(0.01 / norm) * ((float *)c->grad)[i];
            }
            free(target);
        }
        for (int step = 0; step < 20; step++)
            assert_close(loss[0][step], loss[1][step], p->loss * loss[1][step]);
        assert_true(loss[0][19] < 0.9 * loss[0][0]);
        case_close(&sides[0]);
        case_close(&sides[1]);
    }
}

/* The modulations of all blocks are computed first, so their gradients are complete last. */
static void test_stages(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    static const char *const two[] = {"2-9-3", "3-4-2", NULL};
    for (int run = 0; run < 2 * n_precisions; run++) {
        const precision *p = &precisions[run / 2];
        wf_field_desc desc = small(run % 2, 0);
        if (!my_case("%s-%s", name_of(desc).text, precision_name(p))) continue;
        field_case c = gpu_case(desc, two, p->fast);
        wf_field_program_desc program = {.batch = &c.batch, .keep = true, .fast = p->fast};
        stage_inputs in = {c.params, c.w, c.t, c.dv};
        assert_int_equal(check_stages(c.ctx, c.field, program, &in), WF_TAPE_STAGES - 1);
        case_close(&c);
    }
}

/* A device that is asked for and absent is said so. */
static void test_absent(void **state) {
    (void)state;
    if (wf_cuda_available()) skip("there is a GPU");
    field_case c = gpu_case(small(0, 0), mixed, false);
    wf_field_input input = {.batch = &c.batch, .w = c.w, .t = c.t};
    assert_fails(c.ctx, wf_field_forward(c.ctx, c.field, c.params, &input, c.v), WF_ERR_UNSUPPORTED,
                 "device cuda");
    case_close(&c);
}

static int run_group(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_cpu),  cmocka_unit_test(test_fused),
        cmocka_unit_test(test_kernels),      cmocka_unit_test(test_many_nodes),
        cmocka_unit_test(test_large),        cmocka_unit_test(test_equivariance),
        cmocka_unit_test(test_equal_bits),   cmocka_unit_test(test_row_counts),
        cmocka_unit_test(test_split_chains), cmocka_unit_test(test_replays),
        cmocka_unit_test(test_wide_nodes),   cmocka_unit_test(test_many_wide_nodes),
        cmocka_unit_test(test_training),     cmocka_unit_test(test_stages),
        cmocka_unit_test(test_lean_nodes),   cmocka_unit_test(test_absent),
    };
    return run_chosen(tests, NULL, NULL);
}

int main(void) { return run_in_processes(run_group); }
