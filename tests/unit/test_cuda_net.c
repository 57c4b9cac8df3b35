/* Programs on a GPU of fields written with nn/layers.h, against the CPU: velocity, gradients, and
 * the same bits when they run again. */
#include "base/cuda/device.h"
#include "named_cases.h"
#include "net_case.h"
#include "stage_checks.h"
#include "tensor/cuda/backend_cuda.h"

enum { networks = 5 };

/* What a program computes, in host memory. */
typedef struct answers {
    float *v, *grad, *dw;
} answers;

static float *fetch(wf_cuda_device *gpu, const float *from, size_t count) {
    float *out = calloc(count, sizeof *out);
    assert_true(wf_cuda_download(gpu, out, from, count * sizeof *out));
    return out;
}

static answers run_program(wf_ctx *ctx, wf_cuda_device *gpu, wf_field_program *program,
                           const net_case *s) {
    const wf_field_buffers *at = &program->buffers;
    wf_cuda_upload(gpu, at->params, s->theta, s->params * sizeof(float));
    wf_cuda_upload(gpu, at->w, s->w, s->many * sizeof(float));
    wf_cuda_upload(gpu, at->t, s->t, networks * sizeof(float));
    wf_cuda_upload(gpu, at->dv, s->dv, s->many * sizeof(float));
    assert_ok(ctx, wf_field_program_forward(ctx, program));
    assert_ok(ctx, wf_field_program_backward(ctx, program));
    return (answers){fetch(gpu, at->v, s->many), fetch(gpu, at->grad, s->params),
                     fetch(gpu, at->dw, s->many)};
}
static void drop(answers *a) { free(a->v), free(a->grad), free(a->dw); }

static void check(const net_case *s, const char *what, const float *ours, const float *theirs,
                  size_t count, double tolerance) {
    double difference = relative_difference(ours, theirs, count);
    if (!(difference <= tolerance))
        fail_msg("%s: %s differs from the CPU by %.3g > %.3g", s->field->kind->name, what,
                 difference, tolerance);
}

static void check_case(const field_case *c, bool fast) {
    net_case s;
    open_case(&s, c, WF_F32, 2, networks);
    run_forward(&s, true, true);
    assert_ok(s.ctx, wf_field_backward(s.ctx, s.field, s.dv, s.grad, s.dw));
    wf_ctx *ctx = NULL;
    wf_cuda_device *gpu;
    wf_field_program *program;
    wf_ctx_desc device = {.threads = 1, .device = WF_DEVICE_CUDA};
    assert_int_equal(wf_ctx_create(&device, &ctx), WF_OK);
    assert_ok(ctx, wf_ctx_cuda(ctx, &gpu));
    wf_arena memory = {.source = wf_backend_cuda(gpu)->memory};
    uint32_t *update = wf_arena_alloc(&memory, sizeof *update);
    assert_non_null(update);
    wf_cuda_upload(gpu, update, &net_update, sizeof *update);
    wf_field_program_desc desc = {.batch = &s.batch,
                                  .keep = true,
                                  .want_dw = true,
                                  .fast = fast,
                                  .seed = net_seed,
                                  .lent = {.update = update}};
    assert_ok(ctx, wf_field_program_create(ctx, s.field, &desc, &program));
    answers first = run_program(ctx, gpu, program, &s), again = run_program(ctx, gpu, program, &s);
    double tolerance = fast ? 3e-2 : 1e-5;
    check(&s, "velocity", first.v, s.v, s.many, tolerance);
    check(&s, "the gradient", first.grad, s.grad, s.params, tolerance);
    check(&s, "the gradient by weights", first.dw, s.dw, s.many, tolerance);
    assert_memory_equal(first.v, again.v, s.many * sizeof(float));
    assert_memory_equal(first.grad, again.grad, s.params * sizeof(float));
    assert_memory_equal(first.dw, again.dw, s.many * sizeof(float));
    desc.want_dw = false;
    assert_true(check_stages(ctx, s.field, desc, &(stage_inputs){s.theta, s.w, s.t, s.dv}) > 0);
    drop(&first);
    drop(&again);
    wf_field_program_free(program);
    wf_arena_free(&memory);
    wf_ctx_free(ctx);
    close_case(&s);
}

static void test_programs(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    for (size_t i = 0; i < sizeof small_fields / sizeof *small_fields; i++)
        for (int fast = 0; fast < 2; fast++)
            if (my_case("%s-%s-%s", small_fields[i].field, small_fields[i].arch,
                        fast ? "bf16" : "float"))
                check_case(&small_fields[i], fast);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_programs)};
    return run_chosen(tests, NULL, NULL);
}
