/* CIFAR batches and archives of any kind: the last byte says which. */
#include "fuzz_table.h"

#include <stdio.h>

enum { record = 3073, tar_block = 512 };

/* A tar header with its checksum, as the archive of CIFAR-10 has them. */
static void put_header(char *at, const char *name, size_t size) {
    unsigned sum = 0;
    memset(at, 0, tar_block);
    strcpy(at, name);
    snprintf(at + 124, 12, "%011zo", size);
    memset(at + 148, ' ', 8);
    at[156] = '0';
    memcpy(at + 257, "ustar", 6);
    for (int i = 0; i < tar_block; i++) sum += (unsigned char)at[i];
    snprintf(at + 148, 8, "%06o", sum);
}

/* 0: a batch of four images. 1: an archive with the two files of CIFAR-100, a single image each. */
const char *fuzz_seed(size_t index, size_t *size) {
    static char batch[4 * record + 1], archive[2 * (tar_block + 3584) + 1024 + 1];
    for (int r = 0; r < 4; r++) batch[r * record] = (char)(r / 2);
    char *at = archive;
    put_header(at, "c/train.bin", record + 1);
    at += tar_block + 3584;
    put_header(at, "c/test.bin", record + 1);
    archive[sizeof archive - 1] = 3;
    *size = index == 0 ? sizeof batch : sizeof archive;
    return index == 0 ? batch : index == 1 ? archive : NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    wf_ctx *ctx;
    wf_ctx_desc desc = {.threads = 1};
    wf_table table = {0}, test = {0};
    if (size == 0 || wf_ctx_create(&desc, &ctx) != WF_OK) return 0;
    uint8_t kind = data[--size];
    int classes = (kind & 1) != 0 ? 100 : 10;
    char *bytes = fuzz_copy(data, size);
    if ((kind & 2) != 0) {
        if (wf__cifar_from_tar(ctx, "fuzz", bytes, size, classes, NULL, &table, &test) == WF_OK)
            fuzz_use_table(ctx, &table);
        free(bytes);
    } else if (wf__table_from_cifar(ctx, "fuzz", bytes, size, classes, NULL, &table) == WF_OK) {
        fuzz_use_table(ctx, &table);
    }
    wf__table_free(&table);
    wf__table_free(&test);
    wf_ctx_free(ctx);
    return 0;
}
