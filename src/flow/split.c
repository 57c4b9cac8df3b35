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
    const wf_field_kind *kind = split->field->kind;
    split->parts = 1;
    split->part_start[0] = 0;
    split->part_start[1] = shape->n_graphs;
    if (kind->parts != NULL) split->parts = kind->parts(split->field, shape, split->part_start);
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

static void add_parts(void *split_, size_t first, size_t n, float *running, bool fresh) {
    const wf_split *split = split_;
    split->field->kind->add(split->field, first, n, running, fresh);
}

wf_status wf_split_gradient(wf_ctx *ctx, const wf_split *split, float *grad) {
    /* A field without parts has left the whole gradient on rank 0. */
    if (split->field->kind->add == NULL)
        return wf_broadcast(ctx, grad, split->field->params * sizeof *grad);
    return wf_sum_in_order(ctx, grad, split->field->params, split->active, add_parts,
                           (void *)(uintptr_t)split);
}
