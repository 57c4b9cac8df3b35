#include "base/arena.h"

#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

enum { alignment = 128, smallest_block = 1 << 20 }; /* 128: a line of a GPU's cache */

struct wf_arena_block {
    struct wf_arena_block *next;
    size_t capacity;
    unsigned char *bytes;
};

static void *host_take(void *owner, size_t bytes) {
    (void)owner;
    return aligned_alloc(alignment, bytes);
}
static void host_give(void *owner, void *memory) {
    (void)owner;
    free(memory);
}
static const wf_arena_source host = {host_take, host_give, NULL};

static const wf_arena_source *source_of(const wf_arena *arena) {
    return arena->source != NULL ? arena->source : &host;
}

static void poison(const wf_arena *arena, void *memory, size_t bytes) {
    if (arena->source == NULL) ASAN_POISON_MEMORY_REGION(memory, bytes);
}

static void unpoison(const wf_arena *arena, void *memory, size_t bytes) {
    if (arena->source == NULL) ASAN_UNPOISON_MEMORY_REGION(memory, bytes);
}

/* WEFT_EXACT_BLOCKS: a block per object, for tools that watch what a device's blocks are used for
 * (compute-sanitizer), as AddressSanitizer does on the host. */
static bool exact_blocks(const wf_arena *arena) {
    return arena->source != NULL && getenv("WEFT_EXACT_BLOCKS") != NULL;
}

static bool has_room(const wf_arena *arena, size_t need, bool exact) {
    if (arena->current == NULL) return false;
    if (exact) return arena->used == 0 && arena->current->capacity == need;
    return arena->current->capacity - arena->used >= need;
}

static struct wf_arena_block *block_create(const wf_arena *arena, size_t capacity) {
    struct wf_arena_block *block = malloc(sizeof *block);
    if (block == NULL) return NULL;
    const wf_arena_source *source = source_of(arena);
    *block = (struct wf_arena_block){NULL, capacity, source->take(source->owner, capacity)};
    if (block->bytes == NULL) {
        free(block);
        return NULL;
    }
    poison(arena, block->bytes, capacity);
    return block;
}

void *wf_arena_alloc(wf_arena *arena, size_t bytes) {
    if (bytes > SIZE_MAX / 2) return NULL;
    bool exact = exact_blocks(arena);
    /* One line after each object is the redzone. */
    size_t need = (bytes + alignment - 1) / alignment * alignment + alignment;
    if (exact) need = bytes > 0 ? bytes : 1;
    while (!has_room(arena, need, exact)) {
        struct wf_arena_block *next = arena->current == NULL ? arena->first : arena->current->next;
        if (next == NULL) {
            size_t capacity =
                arena->current == NULL ? smallest_block : 2 * arena->current->capacity;
            if (capacity < need || exact) capacity = need;
            next = block_create(arena, capacity);
            if (next == NULL && capacity > need)
                next = block_create(arena, need); /* memory is short */
            if (next == NULL) return NULL;
            if (arena->current == NULL) arena->first = next;
            else arena->current->next = next;
        }
        arena->current = next;
        arena->used = 0;
    }
    void *object = arena->current->bytes + arena->used;
    arena->used += need;
    arena->taken += need;
    if (arena->taken > arena->most) arena->most = arena->taken;
    unpoison(arena, object, bytes);
    return object;
}

void *wf_arena_zalloc(wf_arena *arena, size_t bytes) {
    void *object = wf_arena_alloc(arena, bytes);
    if (object != NULL) memset(object, 0, bytes);
    return object;
}

wf_arena_mark wf_arena_here(const wf_arena *arena) {
    return (wf_arena_mark){arena->current, arena->used, arena->taken};
}

void wf_arena_rewind(wf_arena *arena, wf_arena_mark mark) {
    if (arena->first == NULL) return;
    for (struct wf_arena_block *block = mark.block == NULL ? arena->first : mark.block;
         block != NULL; block = block->next) {
        size_t keep = block == mark.block ? mark.used : 0;
        poison(arena, block->bytes + keep, block->capacity - keep);
        if (block == arena->current) break;
    }
    arena->current = mark.block;
    arena->used = mark.used;
    arena->taken = mark.taken;
}

void wf_arena_reset(wf_arena *arena) { wf_arena_rewind(arena, (wf_arena_mark){NULL, 0, 0}); }

void wf_arena_free(wf_arena *arena) {
    for (struct wf_arena_block *block = arena->first, *next; block != NULL; block = next) {
        next = block->next;
        unpoison(arena, block->bytes, block->capacity);
        source_of(arena)->give(source_of(arena)->owner, block->bytes);
        free(block);
    }
    *arena = (wf_arena){.source = arena->source};
}

void wf_arena_tighten(wf_arena *arena) {
    size_t most = arena->most;
    wf_arena_free(arena);
    if (most > 0) arena->first = block_create(arena, most);
    arena->most = most;
}

size_t wf_arena_capacity(const wf_arena *arena) {
    size_t total = 0;
    for (const struct wf_arena_block *block = arena->first; block != NULL; block = block->next)
        total += block->capacity;
    return total;
}
