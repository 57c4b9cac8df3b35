/* Two IDX files of any kind: the last byte says how many bytes before it are the labels. */
#include "fuzz_table.h"

/* Four examples of 1x2 bytes, their labels, and 12 for the 12 bytes of these. */
static const char seed[] = {0, 0, 8, 3, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0, 2, 1, 2, 3,
                            4, 5, 6, 7, 8, 0, 0, 8, 1, 0, 0, 0, 4, 7, 3, 7, 3, 12};

const char *fuzz_seed(size_t index, size_t *size) {
    *size = sizeof seed;
    return index == 0 ? seed : NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    wf_ctx *ctx;
    wf_ctx_desc desc = {.threads = 1};
    wf_table table = {0};
    if (size == 0 || wf_ctx_create(&desc, &ctx) != WF_OK) return 0;
    size_t labels = data[--size];
    if (labels > size) labels = size;
    size -= labels;
    char *label_bytes = fuzz_copy(data + size, labels);
    if (wf__table_from_idx(ctx, "fuzz", fuzz_copy(data, size), size, "labels", label_bytes, labels,
                           &table) == WF_OK)
        fuzz_use_table(ctx, &table);
    free(label_bytes);
    wf__table_free(&table);
    wf_ctx_free(ctx);
    return 0;
}
