/* A folder (folder_fixture.h) and a context for all tests of a program. */
#ifndef CTX_FIXTURE_H
#define CTX_FIXTURE_H

#include "folder_fixture.h"

static wf_ctx *ctx;

static inline int set_up(void **state) {
    ctx = test_ctx();
    return make_folder(state);
}

static inline int tear_down(void **state) {
    wf_ctx_free(ctx);
    return drop_folder(state);
}

#endif
