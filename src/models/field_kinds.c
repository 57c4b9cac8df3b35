#include "models/field_kinds.h"

#include "base/status.h"

#include <string.h>

const wf_field_kind *const wf__field_kinds[] = {
    &wf__field_gmn, &wf__field_mlp, &wf__field_dwf, &wf__field_dwf_aligned, &wf__field_dit, NULL};

const wf_field_kind *wf_field_find(const char *name) {
    for (const wf_field_kind *const *kind = wf__field_kinds; *kind != NULL; kind++)
        if (strcmp((*kind)->name, name) == 0) return *kind;
    return NULL;
}

wf_status wf__field_result(wf_ctx *ctx, wf_status status) {
    if (!wf_interrupted(ctx)) return status;
    return wf_fail(ctx, WF_ERR_INTERRUPTED, "interrupted");
}
