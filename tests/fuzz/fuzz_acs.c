/* The survey's zip: any bytes are read or refused. They are taken as a whole zip, and as the table
 * in a sound one, because a checksum would stop most mutations of a whole file. */
#include "driver.h"

#include "../torch_writer.h"
#include "data/fetch.h"

static const char table[] = "PWGTP,AGEP,COW,SCHL,MAR,OCCP,POBP,RELP,WKHP,SEX,RAC1P,PINCP\n"
                            "2,30,1,20,1,0050,06,00,40,1,1,50001\n\n"
                            "1,\"17\",2,20,1,50,6,1,1,2,9,101\r\n3,40,,,,,,,20,1,1,-5000";

static bytes make_zip(const void *text, size_t size, bool deflated) {
    zip_writer z = {0};
    zip_add(&z, "read.me", "-", 1, false);
    zip_add(&z, "psam_p06.csv", text, size, deflated);
    return zip_end(&z, false);
}

const char *fuzz_seed(size_t index, size_t *size) {
    static bytes seed;
    if (index >= 3) return NULL;
    free(seed.data);
    seed = (bytes){0};
    if (index == 0) put(&seed, table, sizeof table - 1);
    else seed = make_zip(table, sizeof table - 1, index == 2);
    *size = seed.n;
    return (const char *)seed.data;
}

/* A line of the result is short and whole, whatever stood in the table. */
static wf_status take(void *ctx, const char *line, size_t length) {
    (void)ctx;
    if (length == 0 || length > 511 || line[length - 1] != '\n' || memchr(line, 0, length) != NULL)
        abort();
    return WF_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static wf_ctx *ctx;
    const wf_ctx_desc desc = {.threads = 1};
    size_t rows;
    if (ctx == NULL && wf_ctx_create(&desc, &ctx) != WF_OK) abort();
    wf__acs_read(ctx, "fuzz", data, size, take, ctx, &rows);
    bytes zip = make_zip(data, size, size % 2 == 0);
    wf__acs_read(ctx, "fuzz", zip.data, zip.n, take, ctx, &rows);
    free(zip.data);
    return 0;
}
