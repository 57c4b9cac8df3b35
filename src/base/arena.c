#include "base/arena.h"

#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

enum { alignment = 64, smallest_block = 1 << 20 };

struct wf_arena_block {
    struct wf_arena_block *next;
    size_t capacity;
    _Alignas(64) unsigned char bytes[];
};

static struct wf_arena_block *block_create(size_t capacity) {
    struct wf_arena_block *block = aligned_alloc(alignment, sizeof *block + capacity);
    if (block == NULL) return NULL;
    block->next = NULL;
    block->capacity = capacity;
    ASAN_POISON_MEMORY_REGION(block->bytes, capacity);
    return block;
}

void *wf_arena_alloc(wf_arena *arena, size_t bytes) {
    if (bytes > SIZE_MAX / 2) return NULL;
    /* One line of 64 bytes behind each object is the redzone. */
    size_t need = (bytes + alignment - 1) / alignment * alignment + alignment;
    while (arena->current == NULL || arena->current->capacity - arena->used < need) {
        struct wf_arena_block *next = arena->current == NULL ? arena->first : arena->current->next;
        if (next == NULL) {
            size_t capacity =
                arena->current == NULL ? smallest_block : 2 * arena->current->capacity;
            if (capacity < need) capacity = need;
            next = block_create(capacity);
            if (next == NULL && capacity > need) next = block_create(need); /* memory is short */
            if (next == NULL) return NULL;
            if (arena->current == NULL) arena->first = next;
            else arena->current->next = next;
        }
        arena->current = next;
        arena->used = 0;
    }
    void *object = arena->current->bytes + arena->used;
    arena->used += need;
    ASAN_UNPOISON_MEMORY_REGION(object, bytes);
    return object;
}

void *wf_arena_zalloc(wf_arena *arena, size_t bytes) {
    void *object = wf_arena_alloc(arena, bytes);
    if (object != NULL) memset(object, 0, bytes);
    return object;
}

wf_arena_mark wf_arena_here(const wf_arena *arena) {
    return (wf_arena_mark){arena->current, arena->used};
}

void wf_arena_rewind(wf_arena *arena, wf_arena_mark mark) {
    if (arena->first == NULL) return;
    for (struct wf_arena_block *block = mark.block == NULL ? arena->first : mark.block;
         block != NULL; block = block->next) {
        size_t keep = block == mark.block ? mark.used : 0;
        ASAN_POISON_MEMORY_REGION(block->bytes + keep, block->capacity - keep);
        if (block == arena->current) break;
    }
    arena->current = mark.block;
    arena->used = mark.used;
}

void wf_arena_reset(wf_arena *arena) { wf_arena_rewind(arena, (wf_arena_mark){NULL, 0}); }

void wf_arena_free(wf_arena *arena) {
    for (struct wf_arena_block *block = arena->first, *next; block != NULL; block = next) {
        next = block->next;
        ASAN_UNPOISON_MEMORY_REGION(block->bytes, block->capacity);
        free(block);
    }
    *arena = (wf_arena){NULL, NULL, 0};
}

size_t wf_arena_capacity(const wf_arena *arena) {
    size_t total = 0;
    for (const struct wf_arena_block *block = arena->first; block != NULL; block = block->next)
        total += block->capacity;
    return total;
}
