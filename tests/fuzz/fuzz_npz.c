/* NumPy archives: any bytes are read or refused; what is read can be used. The bytes are taken as a
 * whole file, and as the inputs of a sound archive, because a checksum would stop most mutations of
 * a whole file. */
#include "fuzz_table.h"

#include "../torch_writer.h"

static const char labels[] = "\x93NUMPY\x01\x00\x3e\x00{'descr': '|u1', 'fortran_order': False, "
                             "'shape': (4,), }    \n\x00\x01\x00\x01";
static const char inputs[] = "\x93NUMPY\x01\x00\x40\x00{'descr': '|u1', 'fortran_order': False, "
                             "'shape': (4, 2), }    \n12345678";

static bytes archive(const void *x, size_t size) {
    zip_writer z = {0};
    zip_add(&z, "X.npy", x, size, false);
    zip_add(&z, "y.npy", labels, sizeof labels - 1, false);
    return zip_end(&z, false);
}

/* 0: a whole file. 1: its inputs. */
const char *fuzz_seed(size_t index, size_t *size) {
    static char whole[1024];
    bytes file = archive(inputs, sizeof inputs - 1);
    if (file.n <= sizeof whole) memcpy(whole, file.data, file.n);
    *size = index == 0 ? file.n : sizeof inputs - 1;
    free(file.data);
    return index == 0 ? whole : index == 1 ? inputs : NULL;
}

static void try_bytes(wf_ctx *ctx, const void *bytes_, size_t size) {
    wf_table table = {0}, test = {0};
    if (wf__table_from_npz(ctx, "fuzz", bytes_, size, NULL, &table, &test) == WF_OK)
        fuzz_use_table(ctx, &table);
    wf__table_free(&table);
    wf__table_free(&test);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    wf_ctx *ctx;
    wf_ctx_desc desc = {.threads = 1};
    if (wf_ctx_create(&desc, &ctx) != WF_OK) return 0;
    char *copy = fuzz_copy(data, size); /* of exactly this size */
    try_bytes(ctx, copy, size);
    bytes file = archive(copy, size);
    try_bytes(ctx, file.data, file.n);
    free(file.data);
    free(copy);
    wf_ctx_free(ctx);
    return 0;
}
