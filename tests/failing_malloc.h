/* Replaces the allocator of one test program, so that the N-th request fails.
 *
 *     fail_every_allocation(ctx, "name", call, arg);
 *
 * runs call(ctx, arg) with request 0, 1, 2 ... failing until none fails any more. Each failing run
 * must return a status other than WF_OK and leave nothing allocated, or succeed in spite of it.
 * The thread sanitizer cannot bear a replaced allocator: there the test is skipped. */
#ifndef WF_FAILING_MALLOC_H
#define WF_FAILING_MALLOC_H

#include "wf_test.h"

#include <errno.h>
#include <stdatomic.h>

#define EXPORTED __attribute__((visibility("default")))

/* A request for more than the machine has fails, instead of ending a sanitizer's program. */
EXPORTED const char *__asan_default_options(void) { return "allocator_may_return_null=1"; }
EXPORTED const char *__tsan_default_options(void) { return "allocator_may_return_null=1"; }

typedef wf_status failing_call(wf_ctx *ctx, void *arg);

#if defined(__SANITIZE_THREAD__)

__attribute__((unused)) static void fail_every_allocation(wf_ctx *ctx, const char *name,
                                                          failing_call *call, void *arg) {
    (void)name;
    assert_ok(ctx, call(ctx, arg));
    skip("the thread sanitizer has its own allocator");
}

#else

static atomic_long malloc_countdown = -1; /* requests until one fails; negative: none fails */
static atomic_long malloc_live;           /* blocks not yet freed */
static atomic_long malloc_failed;

/* The allocator underneath, by the name that is not replaced: a sanitizer's, or the C library's.
 * (dlsym would do, but calls the allocator itself before a sanitizer is ready.) */
#if defined(__SANITIZE_ADDRESS__)
#define UNDERNEATH(name) __interceptor_##name
void *UNDERNEATH(aligned_alloc)(size_t alignment, size_t size);
#else
#define UNDERNEATH(name) __libc_##name
void *__libc_memalign(size_t alignment, size_t size);
#define __libc_aligned_alloc __libc_memalign
#endif
void *UNDERNEATH(malloc)(size_t size);
void *UNDERNEATH(calloc)(size_t count, size_t size);
void *UNDERNEATH(realloc)(void *old, size_t size);
void UNDERNEATH(free)(void *memory);

static bool request_fails(void) {
    if (atomic_load(&malloc_countdown) < 0) return false;
    if (atomic_fetch_sub(&malloc_countdown, 1) != 0) return false;
    atomic_fetch_add(&malloc_failed, 1);
    errno = ENOMEM;
    return true;
}

static void *counted(void *memory) {
    if (memory != NULL) atomic_fetch_add(&malloc_live, 1);
    return memory;
}

EXPORTED void *malloc(size_t size) {
    return request_fails() ? NULL : counted(UNDERNEATH(malloc)(size));
}

EXPORTED void *calloc(size_t count, size_t size) {
    return request_fails() ? NULL : counted(UNDERNEATH(calloc)(count, size));
}

EXPORTED void *realloc(void *old, size_t size) {
    if (request_fails()) return NULL;
    void *memory = UNDERNEATH(realloc)(old, size);
    return old == NULL ? counted(memory) : memory;
}

EXPORTED void *aligned_alloc(size_t alignment, size_t size) {
    return request_fails() ? NULL : counted(UNDERNEATH(aligned_alloc)(alignment, size));
}

/* A sanitizer's would take its memory elsewhere. */
EXPORTED char *strdup(const char *text) {
    size_t size = strlen(text) + 1;
    char *copy = malloc(size);
    return copy == NULL ? NULL : memcpy(copy, text, size);
}

EXPORTED void free(void *memory) {
    if (memory != NULL) atomic_fetch_sub(&malloc_live, 1);
    UNDERNEATH(free)(memory);
}

__attribute__((unused)) static void fail_every_allocation(wf_ctx *ctx, const char *name,
                                                          failing_call *call, void *arg) {
    assert_ok(ctx, call(ctx, arg)); /* fills what libraries keep for ever */
    long failures = 0;
    for (long n = 0; n < 100000; n++) {
        long before = atomic_load(&malloc_live);
        atomic_store(&malloc_failed, 0);
        atomic_store(&malloc_countdown, n);
        wf_status status = call(ctx, arg);
        atomic_store(&malloc_countdown, -1);
        long leaked = atomic_load(&malloc_live) - before;
        if (leaked != 0) fail_msg("%s: request %ld failed and %ld blocks leaked", name, n, leaked);
        if (atomic_load(&malloc_failed) == 0) {
            assert_int_equal(status, WF_OK);
            assert_true(failures > 0);
            return;
        }
        if (status == WF_OK) continue; /* done without, as qsort and stdio can */
        failures++;
        if (status != WF_ERR_MEMORY)
            fail_msg("%s: request %ld failed, status %d: %s", name, n, (int)status,
                     wf_last_error(ctx));
    }
    fail_msg("%s: never stops asking for memory", name);
}

#endif

#endif
