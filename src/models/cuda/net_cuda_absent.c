/* A build without CUDA; wf_use_cuda has already said so to the user. */
#include "models/cuda/net_cuda.h"

static wf_status absent(wf_ctx *ctx) {
    return wf_fail(ctx, WF_ERR_UNSUPPORTED, "device cuda: this build has no CUDA");
}

wf_status wf__net_cuda_create(wf_ctx *ctx, const wf_field *field, const wf_net_model *model,
                              const wf_field_program_desc *desc, wf_field_program **out) {
    (void)field, (void)model, (void)desc;
    *out = NULL;
    return absent(ctx);
}

void wf__net_cuda_free(wf_field_program *program) { (void)program; }

size_t wf__net_cuda_bytes(const wf_field_program *program) {
    (void)program;
    return 0;
}

wf_status wf__net_cuda_forward(wf_ctx *ctx, wf_field_program *program) {
    (void)program;
    return absent(ctx);
}

wf_status wf__net_cuda_backward(wf_ctx *ctx, wf_field_program *program) {
    (void)program;
    return absent(ctx);
}
