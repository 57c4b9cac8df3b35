/* CSV and TSV text of any kind: read, prepared, freed. */
#include "fuzz_table.h"

static const char *const seeds[] = {
    "a,\"b\",c\n1,x,u\n2,y,u\n?,x,v\n4,,v\n5,z,u\n6,q,v\n",
    "a,b,c\r\n1,2,u\r\n2,,u\r\n?,\"7\",v\r\n4,\"a\"\"\n\",v\r\n 8 ,1e5,u",
    "a\tb\tc\n1\t7\tu\n2\t3\tu\n?\t\"7\"\tv\n4\t\tv\n5\t1e5\tu",
};

FUZZ_TEXTS(seeds)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    wf_ctx *ctx;
    wf_ctx_desc desc = {.threads = 1};
    wf_table table = {0};
    if (wf_ctx_create(&desc, &ctx) != WF_OK) return 0;
    if (wf__table_from_delimited(ctx, "fuzz", fuzz_copy(data, size), size,
                                 size % 2 == 0 ? ',' : '\t', &table) == WF_OK)
        fuzz_use_table(ctx, &table);
    wf__table_free(&table);
    wf_ctx_free(ctx);
    return 0;
}
