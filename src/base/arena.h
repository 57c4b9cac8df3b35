/* arena: memory that is freed all at once.
 *
 *   | object | redzone | object | redzone | ...      objects start at multiples of 128 bytes;
 *   under AddressSanitizer the redzones and everything not handed out are poisoned.
 *
 * Three lifetimes, one arena each: model (parameters, moments), step (tape, activations: reset,
 * not freed), call (scratch). After its first step an arena has grown to its size: reset and the
 * next step's requests touch no allocator. */
#pragma once

#include "base/status.h"

/* Where blocks come from: a GPU's memory, for example. take returns NULL when there is none left.
 * owner: passed to both. */
typedef struct wf_arena_source {
    void *(*take)(void *owner, size_t bytes);
    void (*give)(void *owner, void *memory);
    void *owner;
} wf_arena_source;

typedef struct wf_arena {
    struct wf_arena_block *first, *current;
    size_t used;                   /* in the current block */
    size_t taken, most;            /* by what is handed out now, and at most since it was empty */
    const wf_arena_source *source; /* NULL: host memory */
} wf_arena;

/* A zero-initialised wf_arena is empty and valid. Not zeroed memory unless asked; NULL when out of
 * memory. */
void *wf_arena_alloc(wf_arena *arena, size_t bytes);
void *wf_arena_zalloc(wf_arena *arena, size_t bytes); /* host memory only */
void wf_arena_reset(wf_arena *arena);                 /* keeps the blocks */
void wf_arena_free(wf_arena *arena);
size_t wf_arena_capacity(const wf_arena *arena);
/* Empties the arena and replaces its blocks by one, just large enough for the most that was handed
 * out at a time. (Blocks added on demand are up to twice as large.) If memory is short, the arena
 * is left without a block and grows again. */
void wf_arena_tighten(wf_arena *arena);

/* Return to an earlier point: everything allocated since is given back. */
typedef struct wf_arena_mark {
    struct wf_arena_block *block;
    size_t used, taken;
} wf_arena_mark;
wf_arena_mark wf_arena_here(const wf_arena *arena);
void wf_arena_rewind(wf_arena *arena, wf_arena_mark mark);
