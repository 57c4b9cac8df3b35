/* ARFF text of any kind: read, prepared, freed. */
#include "fuzz_table.h"

static const char *const seeds[] = {
    "@relation r\n@attribute a real\n@attribute 'b' {x,'y',z}\n@attribute c {u,v}\n@data\n1,x,u\n"
    "{0 2, 1 'y'}\n?,?,v\n4,x,v\n",
    "% c\n@ATTRIBUTE a integer\n@attribute s string\n@attribute c {\"u\\\"\",v}\n@data\n1,'\\'',v\n"
    "2\tx\tv\n{}\n{0 ?}\n",
};

FUZZ_TEXTS(seeds)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    wf_ctx *ctx;
    wf_ctx_desc desc = {.threads = 1};
    wf_table table = {0};
    if (wf_ctx_create(&desc, &ctx) != WF_OK) return 0;
    if (wf__table_from_arff(ctx, "fuzz", fuzz_copy(data, size), size, &table) == WF_OK)
        fuzz_use_table(ctx, &table);
    wf__table_free(&table);
    wf_ctx_free(ctx);
    return 0;
}
