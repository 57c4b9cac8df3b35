#include "flow/split.h"

#include <stdlib.h>
#include <string.h>

wf_split wf_split_start(const wf_ctx *ctx, wf_field *field) {
    wf_split split = {.rank = wf_ctx_rank(ctx), .ranks = wf_ctx_ranks(ctx), .active = 1};
    if (split.ranks > 1) split.field = field;
    return split;
}

void wf_split_batch(wf_split *split, const wf_batch *shape) {
    if (split->field == NULL) return;
    split->parts = split->field->kind->parts(split->field, shape, split->part_start);
    split->active = split->parts < split->ranks ? split->parts : split->ranks;
}

wf_range wf_split_parts(const wf_split *split, int rank) {
    int r = rank < split->active ? rank : split->active;
    int next = rank < split->active ? rank + 1 : split->active;
    return (wf_range){wf_share_start((size_t)split->parts, r, split->active),
                      wf_share_start((size_t)split->parts, next, split->active)};
}

wf_range wf_split_networks(const wf_split *split, int rank) {
    wf_range parts = wf_split_parts(split, rank);
    return (wf_range){(size_t)split->part_start[parts.first],
                      (size_t)split->part_start[parts.last]};
}

/* What a rank brings to a meeting, its losses after it. */
typedef struct greeting {
    int32_t status;
    uint32_t flags;
} greeting;

/* Between `loss` and the buffer that is gathered; own: only this rank's. */
static void copy_losses(const wf_split *split, const size_t *start, char *buffer, double *loss,
                        bool own) {
    for (int r = 0; r < split->ranks; r++) {
        wf_range some = wf_split_networks(split, r);
        size_t bytes = (some.last - some.first) * sizeof *loss;
        char *place = buffer + start[r] + sizeof(greeting);
        if (own && r == split->rank) memcpy(place, loss + some.first, bytes);
        else if (!own) memcpy(loss + some.first, place, bytes);
    }
}

wf_status wf_split_meet(wf_ctx *ctx, const wf_split *split, wf_status mine, uint32_t *flags,
                        double *loss) {
    size_t ranks = (size_t)split->ranks, *start = NULL;
    size_t bytes =
        ranks * sizeof(greeting) + (size_t)split->part_start[split->parts] * sizeof *loss;
    char *buffer = NULL;
    wf_status status;
    WF_TRY_GOTO(wf_alloc(ctx, ranks + 1, sizeof *start, "losses", &start), done);
    WF_TRY_GOTO(wf_alloc(ctx, bytes, 1, "losses", &buffer), done);
    for (size_t r = 0; r < ranks; r++)
        start[r] = r * sizeof(greeting) + wf_split_networks(split, (int)r).first * sizeof *loss;
    start[ranks] = bytes;
    greeting own = {(int32_t)mine, *flags};
    memcpy(buffer + start[split->rank], &own, sizeof own);
    copy_losses(split, start, buffer, loss, true);
    WF_TRY_GOTO(wf_gather_bytes(ctx, buffer, start), done);
    copy_losses(split, start, buffer, loss, false);
    bool well = true;
    for (size_t r = 0; r < ranks; r++) {
        greeting one;
        memcpy(&one, buffer + start[r], sizeof one);
        well = well && one.status == WF_OK;
        if (r == 0) *flags = one.flags;
    }
    if (!well) status = wf_agree(ctx, mine); /* whose failure, and what it says */
done:
    free(buffer);
    free(start);
    return status;
}

/* start (room for params / WF_BUCKET + 2), filled: buckets of whole rows of the field's tensors;
 * returns how many. Vectors are whole. */
static size_t cut_buckets(const wf_field *field, size_t *start) {
    size_t n = 0;
    start[0] = 0;
    for (int i = 0; i < field->n_tensors; i++) {
        const wf_field_tensor *tensor = &field->tensors[i];
        size_t cols = (size_t)tensor->cols, rows = (size_t)tensor->rows, each = rows;
        if (cols > 1 && each * cols > WF_BUCKET) each = WF_BUCKET / cols > 0 ? WF_BUCKET / cols : 1;
        for (size_t r = 0; r < rows; r += each) {
            size_t end = tensor->offset + (r + each < rows ? r + each : rows) * cols;
            if (end - start[n] >= WF_BUCKET) start[++n] = end;
        }
    }
    if (start[n] < field->params) start[++n] = field->params;
    return n;
}

static bool add_parts(void *split_, size_t first, size_t n, float *running, bool fresh) {
    const wf_split *split = split_;
    return split->field->kind->add(split->field, first, n, running, fresh);
}

wf_status wf_split_gradient(wf_ctx *ctx, const wf_split *split, float *grad) {
    size_t *start;
    WF_TRY(
        wf_alloc(ctx, split->field->params / WF_BUCKET + 2, sizeof *start, "a gradient", &start));
    size_t buckets = cut_buckets(split->field, start);
    wf_status status = wf_sum_in_order(ctx, grad, start, buckets, split->active, add_parts,
                                       (void *)(uintptr_t)split);
    free(start);
    return status;
}
