/* load_table: from a path to a table: where it lies, which format it has. */
#include "data/data_table.h"

wf_status wf__table_load(wf_ctx *ctx, const wf_data_desc *desc, const char *path,
                         const char *labels, wf_table *out) {
    (void)desc, (void)labels, (void)out;
    return wf_fail(ctx, WF_ERR_UNSUPPORTED, "%s: files are read from the next commit on", path);
}
