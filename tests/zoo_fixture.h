/* What tests of collections in the making share: a small collection and its files. */
#ifndef ZOO_FIXTURE_H
#define ZOO_FIXTURE_H

#include "clusters.h"
#include "folder_fixture.h"

#include "weft/zoo.h"
#include "zoo/zoo_engine.h"

static inline wf_ctx *ctx_of(int threads) {
    wf_ctx *ctx = NULL;
    if (wf_ctx_create(&(wf_ctx_desc){.threads = threads}, &ctx) != WF_OK) abort();
    return ctx;
}

static inline wf_graph *graph_of(wf_ctx *ctx, const char *arch, const char *activation) {
    wf_graph *graph;
    assert_ok(ctx, wf_graph_parse(ctx, arch, activation, 0, &graph));
    return graph;
}

typedef struct shared {
    wf_graph *graph;
    wf_dataset *data;
    wf_zoo_desc desc;
    char path[128], parts[160];
    char *expected; /* the file, made in one piece on one thread; [size] */
    size_t size;
} shared;

static inline void shared_start(shared *s, const char *name) {
    wf_ctx *ctx = ctx_of(1);
    s->expected = NULL;
    s->graph = graph_of(ctx, "6-12-5", "relu");
    wf_ctx_free(ctx);
    s->data = data_of(6, 5, 203, 61);
    s->desc = wf_zoo_desc_default();
    s->desc.count = 23;
    s->desc.first = 100;
    s->desc.batch = 32;
    s->desc.epochs = 2;
    s->desc.epochs_max = 6;
    s->desc.lr = 1e-3;
    s->desc.lr_max = 1e-2;
    snprintf(s->path, sizeof s->path, "%s/%s.safetensors", folder, name);
    snprintf(s->parts, sizeof s->parts, "%s.parts", s->path);
}

static inline void shared_end(shared *s) {
    data_free(s->data);
    wf_graph_free(s->graph);
    free(s->expected);
}

static inline wf_status train_with(wf_ctx *ctx, const shared *s, size_t shard) {
    wf_zoo_desc desc = s->desc;
    desc.shard = shard;
    return wf_zoo_train(ctx, s->graph, s->data, &desc, s->path, NULL);
}

#endif
