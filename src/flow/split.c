#include "flow/split.h"

#include "flow/fit_common.h"
#include "tensor/tape.h"

#include <math.h>
#include <pthread.h>
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

/* The sum of a gradient over ranks, beside the backward pass where the field tells its stages. */
typedef struct gradient_sum {
    wf_ctx *ctx;
    const wf_split *split;
    const void *dv;
    float *grad;
    wf_status mine;
    int stages, *stage; /* of each tensor */
    wf_range *bucket;   /* [n_buckets] */
    int *bucket_stage;  /* [n_buckets] */
    size_t n_buckets;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int over;    /* stages that are complete */
    bool broken; /* this rank has no gradient: it takes part, and nobody uses the sum */
} gradient_sum;

static void sum_free(gradient_sum *sum) {
    free(sum->stage);
    free(sum->bucket);
    free(sum->bucket_stage);
    pthread_cond_destroy(&sum->changed);
    pthread_mutex_destroy(&sum->lock);
}

static void add_piece(gradient_sum *sum, wf_range piece, int stage) {
    wf_range *last = sum->n_buckets > 0 ? &sum->bucket[sum->n_buckets - 1] : NULL;
    bool joins = last != NULL && sum->bucket_stage[sum->n_buckets - 1] == stage &&
                 last->last == piece.first && last->last - last->first < WF_BUCKET;
    if (joins) {
        last->last = piece.last;
        return;
    }
    sum->bucket[sum->n_buckets] = piece;
    sum->bucket_stage[sum->n_buckets++] = stage;
}

/* Buckets of whole rows of the field's tensors, by stage. Vectors are whole. */
static void cut_buckets(gradient_sum *sum, const wf_field *field) {
    for (int stage = 0; stage < sum->stages; stage++)
        for (int i = 0; i < field->n_tensors; i++) {
            const wf_field_tensor *tensor = &field->tensors[i];
            size_t cols = (size_t)tensor->cols, rows = (size_t)tensor->rows, each = rows;
            if (sum->stage[i] != stage) continue;
            if (cols > 1 && rows * cols > WF_BUCKET)
                each = WF_BUCKET / cols > 0 ? WF_BUCKET / cols : 1;
            for (size_t r = 0; r < rows; r += each) {
                size_t end = r + each < rows ? r + each : rows;
                wf_range piece = {tensor->offset + r * cols, tensor->offset + end * cols};
                add_piece(sum, piece, stage);
            }
        }
}

static wf_status sum_prepare(gradient_sum *sum) {
    const wf_field *field = sum->split->field;
    /* A bucket begins at a tensor, or behind one that is full. */
    size_t tensors = (size_t)field->n_tensors, most = tensors + field->params / WF_BUCKET + 1;
    sum->stages = 1;
    WF_TRY(wf_alloc(sum->ctx, tensors, sizeof(int), "a gradient", &sum->stage));
    WF_TRY(wf_alloc(sum->ctx, most, sizeof(wf_range), "a gradient", &sum->bucket));
    WF_TRY(wf_alloc(sum->ctx, most, sizeof(int), "a gradient", &sum->bucket_stage));
    if (field->kind->tells_stages)
        sum->stages =
            wf_params_stages(field->tensors, field->n_tensors, WF_TAPE_STAGES, sum->stage);
    cut_buckets(sum, field);
    return WF_OK;
}

static void note(gradient_sum *sum, int over, bool broken) {
    pthread_mutex_lock(&sum->lock);
    sum->over = over;
    sum->broken = broken;
    pthread_cond_broadcast(&sum->changed);
    pthread_mutex_unlock(&sum->lock);
}

static void stage_is_over(void *sum, int stage) { note(sum, stage + 1, false); }

static void run_backward(void *sum_) {
    gradient_sum *sum = sum_;
    wf_field *field = sum->split->field;
    if (field->kind->tells_stages)
        field->stages = (wf_field_stages){sum->stages, sum->stage, stage_is_over, sum};
    sum->mine = wf_field_backward(sum->ctx, field, sum->dv, sum->grad, NULL);
    field->stages = (wf_field_stages){0};
    note(sum, sum->stages, sum->mine != WF_OK);
}

static void wait_for_bucket(void *sum_, size_t bucket) {
    gradient_sum *sum = sum_;
    pthread_mutex_lock(&sum->lock);
    while (sum->over <= sum->bucket_stage[bucket]) pthread_cond_wait(&sum->changed, &sum->lock);
    pthread_mutex_unlock(&sum->lock);
}

static bool add_parts(void *sum_, size_t first, size_t n, float *running, bool fresh) {
    gradient_sum *sum = sum_;
    wf_field *field = sum->split->field;
    pthread_mutex_lock(&sum->lock);
    bool broken = sum->broken;
    pthread_mutex_unlock(&sum->lock);
    if (!broken) return field->kind->add(field, first, n, running, fresh);
    if (fresh) memset(running, 0, n * sizeof *running);
    return true;
}

wf_status wf_split_backward(wf_ctx *ctx, const wf_split *split, wf_status mine, const void *dv,
                            float *grad, wf_status *summed) {
    gradient_sum sum = {.ctx = ctx, .split = split, .dv = dv, .grad = grad, .mine = mine};
    pthread_mutex_init(&sum.lock, NULL);
    pthread_cond_init(&sum.changed, NULL);
    sum.broken = mine != WF_OK;
    *summed = sum_prepare(&sum);
    if (*summed == WF_OK) {
        bool works = mine == WF_OK && split->rank < split->active;
        bool beside = works && split->field->kind->tells_stages;
        if (works && !beside) run_backward(&sum);
        *summed = wf_sum_in_order(ctx, &(wf_ordered_sum){.out = grad,
                                                         .buckets = sum.bucket,
                                                         .n_buckets = sum.n_buckets,
                                                         .active = split->active,
                                                         .add = add_parts,
                                                         .wait_for = wait_for_bucket,
                                                         .beside = beside ? run_backward : NULL,
                                                         .user = &sum});
    }
    sum_free(&sum);
    return sum.mine;
}

wf_status wf_split_find_diverged(wf_ctx *ctx, const wf_split *split, const double *loss,
                                 float *scratch, int *rank) {
    wf_field *field = split->field;
    size_t ranks = (size_t)split->ranks;
    wf_range own = wf_split_networks(split, split->rank);
    uint8_t *well;
    *rank = 0;
    WF_TRY(wf_alloc(ctx, ranks, 1, "ranks", &well));
    bool fine = true;
    for (size_t b = own.first; b < own.last; b++) fine = fine && isfinite(loss[b]);
    if (split->rank < split->active && fine)
        fine = field->kind->add(field, 0, field->params, scratch, true) &&
               wf_all_finite(scratch, field->params);
    well[split->rank] = fine;
    wf_status status = wf_gather_rows(ctx, well, 1, ranks);
    for (int r = split->ranks; r-- > 0 && status == WF_OK;)
        if (!well[r]) *rank = r;
    free(well);
    return status;
}
