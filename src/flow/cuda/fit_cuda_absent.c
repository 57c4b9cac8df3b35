/* A build without CUDA; wf_use_cuda has already said so to the user. */
#include "flow/cuda/fit_cuda.h"

static wf_status absent(wf_ctx *ctx) {
    return wf_fail(ctx, WF_ERR_UNSUPPORTED, "device cuda: this build has no CUDA");
}

wf_status wf__fit_cuda_create(wf_ctx *ctx, const wf_fit_cuda_desc *desc, wf_fit_cuda **out) {
    (void)desc;
    *out = NULL;
    return absent(ctx);
}

void wf__fit_cuda_free(wf_fit_cuda *fit) { (void)fit; }

wf_status wf__fit_cuda_enqueue(wf_ctx *ctx, wf_fit_cuda *fit) {
    (void)fit;
    return absent(ctx);
}

wf_status wf__fit_cuda_renew(wf_ctx *ctx, wf_fit_cuda *fit, int family, size_t first,
                             size_t count) {
    (void)fit, (void)family, (void)first, (void)count;
    return absent(ctx);
}

wf_status wf__fit_cuda_match_until(wf_ctx *ctx, wf_fit_cuda *fit, size_t end) {
    (void)fit, (void)end;
    return absent(ctx);
}

wf_status wf__fit_cuda_record(wf_ctx *ctx, wf_fit_cuda *fit, size_t update, wf_update_record *out) {
    (void)fit, (void)update, (void)out;
    return absent(ctx);
}

wf_status wf__fit_cuda_copy(wf_ctx *ctx, wf_fit_cuda *fit) {
    (void)fit;
    return absent(ctx);
}

wf_status wf__fit_cuda_copied(wf_ctx *ctx, wf_fit_cuda *fit, bool wait, bool *out) {
    (void)fit, (void)wait, (void)out;
    return absent(ctx);
}

wf_status wf__fit_cuda_forward(wf_ctx *ctx, wf_fit_cuda *fit, int which,
                               const wf_flow_batch *batch) {
    (void)fit, (void)which, (void)batch;
    return absent(ctx);
}

wf_status wf__fit_cuda_batch(wf_ctx *ctx, wf_fit_cuda *fit, float *x, float *target, float *t) {
    (void)fit, (void)x, (void)target, (void)t;
    return absent(ctx);
}
