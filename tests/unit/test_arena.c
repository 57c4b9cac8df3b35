/* Arenas: alignment, reuse without the allocator, marks, redzones, lack of memory. */
#include "failing_malloc.h"
#include "base/arena.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

static void objects_are_apart(void **state) {
    (void)state;
    enum { n = 500 };
    static const size_t sizes[] = {0, 1, 63, 64, 65, 1000, 4096, 70000, 3 << 20};
    wf_arena arena = {0};
    unsigned char *object[n];
    size_t size[n];
    for (int i = 0; i < n; i++) {
        size[i] = sizes[(size_t)i * 7 % (sizeof sizes / sizeof *sizes - (i % 50 != 0))];
        object[i] = wf_arena_alloc(&arena, size[i]);
        assert_non_null(object[i]);
        assert_int_equal((uintptr_t)object[i] % 128, 0);
        memset(object[i], i, size[i]);
    }
    for (int i = 0; i < n; i++)
        for (size_t k = 0; k < size[i]; k++) assert_int_equal(object[i][k], (unsigned char)i);
    wf_arena_free(&arena);
    assert_int_equal(wf_arena_capacity(&arena), 0);
    wf_arena_free(&arena);
}

/* One step of a training loop: some objects, scratch that is given back, more objects. */
static uintptr_t step(wf_arena *arena) {
    uintptr_t sum = 0;
    for (size_t i = 0; i < 200; i++) {
        unsigned char *kept = wf_arena_zalloc(arena, 37 * i + 1);
        assert_non_null(kept);
        for (size_t k = 0; k < 37 * i + 1; k++) assert_int_equal(kept[k], 0);
        memset(kept, 0xa5, 37 * i + 1);
        wf_arena_mark mark = wf_arena_here(arena);
        for (size_t j = 0; j < 3; j++) {
            void *scratch = wf_arena_alloc(arena, 9000 * j * (i % 40));
            assert_non_null(scratch);
            memset(scratch, 0x5a, 9000 * j * (i % 40));
        }
        wf_arena_rewind(arena, mark);
        sum = sum * 31 + (uintptr_t)kept;
    }
    return sum;
}

static void steps_touch_no_allocator(void **state) {
    (void)state;
    wf_arena arena = {0};
    uintptr_t first = step(&arena);
    size_t capacity = wf_arena_capacity(&arena);
#if !defined(__SANITIZE_THREAD__)
    atomic_store(&malloc_countdown, 0); /* the next request would fail */
#endif
    for (int i = 0; i < 5; i++) {
        wf_arena_reset(&arena);
        assert_true(step(&arena) == first);
    }
#if !defined(__SANITIZE_THREAD__)
    atomic_store(&malloc_countdown, -1);
#endif
    assert_int_equal(wf_arena_capacity(&arena), capacity);
    wf_arena_free(&arena);
}

static void marks_nest_over_blocks(void **state) {
    (void)state;
    wf_arena arena = {0};
    wf_arena_reset(&arena);
    wf_arena_mark empty = wf_arena_here(&arena);
    char *a = wf_arena_alloc(&arena, 100);
    strcpy(a, "kept");
    wf_arena_mark one = wf_arena_here(&arena);
    char *b = wf_arena_alloc(&arena, 5 << 20);
    wf_arena_mark two = wf_arena_here(&arena);
    char *c = wf_arena_alloc(&arena, 9 << 20);
    wf_arena_rewind(&arena, two);
    assert_ptr_equal(wf_arena_alloc(&arena, 9 << 20), c);
    wf_arena_rewind(&arena, one);
    assert_string_equal(a, "kept");
    char *again = wf_arena_alloc(&arena, 10);
    assert_true(again > a && again < a + 1000); /* the first block is used again */
    assert_ptr_equal(wf_arena_alloc(&arena, 5 << 20), b);
    wf_arena_rewind(&arena, empty);
    assert_ptr_equal(wf_arena_alloc(&arena, 100), a);
    wf_arena_free(&arena);
}

static void tightened_to_what_was_needed(void **state) {
    (void)state;
    wf_arena arena = {0};
    wf_arena_tighten(&arena);
    assert_int_equal(wf_arena_capacity(&arena), 0);
    wf_arena_alloc(&arena, 3 << 20);
    wf_arena_mark mark = wf_arena_here(&arena);
    wf_arena_alloc(&arena, 5 << 20);
    wf_arena_rewind(&arena, mark);
    wf_arena_alloc(&arena, 4 << 20);
    wf_arena_alloc(&arena, 3 << 20);
    wf_arena_reset(&arena);
    wf_arena_tighten(&arena);
    size_t capacity = wf_arena_capacity(&arena);
    assert_in_range(capacity, 10 << 20, (10 << 20) + 1000);
    for (int k = 0; k < 2; k++) { /* the same again fits, a little more does not */
        char *a = wf_arena_alloc(&arena, 3 << 20), *b = wf_arena_alloc(&arena, 4 << 20);
        assert_true(b > a && b < a + (4 << 20));
        memset(wf_arena_alloc(&arena, 3 << 20), 1, 3 << 20);
        assert_int_equal(wf_arena_capacity(&arena), capacity);
        if (k == 0) wf_arena_reset(&arena);
    }
    wf_arena_alloc(&arena, 10);
    assert_true(wf_arena_capacity(&arena) > capacity);
    wf_arena_free(&arena);
}

static void lack_of_memory_is_survived(void **state) {
    (void)state;
    wf_arena arena = {0};
    assert_null(wf_arena_alloc(&arena, SIZE_MAX));
    assert_null(wf_arena_alloc(&arena, SIZE_MAX / 2 + 1));
    assert_null(wf_arena_zalloc(&arena, SIZE_MAX / 2 - 1000));
    char *a = wf_arena_alloc(&arena, 10);
    assert_non_null(a);
    strcpy(a, "kept");
    assert_null(wf_arena_alloc(&arena, SIZE_MAX / 4));
#if !defined(__SANITIZE_THREAD__)
    atomic_store(&malloc_countdown, 0); /* the doubled block fails, the smaller one does not */
    void *large = wf_arena_alloc(&arena, 1 << 20);
    atomic_store(&malloc_countdown, -1);
    assert_non_null(large);
#endif
    assert_non_null(wf_arena_alloc(&arena, 10));
    assert_string_equal(a, "kept");
    wf_arena_free(&arena);
}

#if defined(__SANITIZE_ADDRESS__)
static void neighbours_are_poisoned(void **state) {
    (void)state;
    wf_arena arena = {0};
    char *a = wf_arena_alloc(&arena, 100), *b = wf_arena_alloc(&arena, 64);
    assert_false(__asan_address_is_poisoned(a + 99));
    assert_true(__asan_address_is_poisoned(a + 100 + 4)); /* to the granule of 8 */
    assert_true(__asan_address_is_poisoned(b - 1));
    assert_true(__asan_address_is_poisoned(b + 64));
    wf_arena_reset(&arena);
    assert_true(__asan_address_is_poisoned(a));
    assert_true(__asan_address_is_poisoned(b));
    wf_arena_free(&arena);
}
#endif

static size_t taken[8];
static int n_taken;
static void *take_noted(void *owner, size_t bytes) {
    (void)owner;
    taken[n_taken++] = bytes;
    return malloc(bytes);
}

static void give_back(void *owner, void *memory) {
    (void)owner;
    free(memory);
}

/* What a tool sees of a device's objects: blocks of their sizes, the same ones after a rewind. */
static void exact_blocks(void **state) {
    (void)state;
    static const wf_arena_source source = {take_noted, give_back, NULL};
    wf_arena arena = {.source = &source};
    setenv("WEFT_EXACT_BLOCKS", "1", 1);
    char *a = wf_arena_alloc(&arena, 100);
    wf_arena_mark mark = wf_arena_here(&arena);
    char *b = wf_arena_alloc(&arena, 7), *c = wf_arena_alloc(&arena, 100);
    wf_arena_rewind(&arena, mark);
    assert_ptr_equal(wf_arena_alloc(&arena, 7), b);
    assert_ptr_equal(wf_arena_alloc(&arena, 100), c);
    wf_arena_rewind(&arena, mark);
    char *d = wf_arena_alloc(&arena, 50); /* fits b's neighbour, yet gets its own */
    unsetenv("WEFT_EXACT_BLOCKS");
    assert_true(a != b && a != c && d != b && d != c);
    assert_int_equal(n_taken, 4);
    static const size_t expected[] = {100, 7, 100, 50};
    assert_memory_equal(taken, expected, sizeof expected);
    wf_arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(objects_are_apart),
        cmocka_unit_test(steps_touch_no_allocator),
        cmocka_unit_test(marks_nest_over_blocks),
        cmocka_unit_test(tightened_to_what_was_needed),
        cmocka_unit_test(lack_of_memory_is_survived),
#if defined(__SANITIZE_ADDRESS__)
        cmocka_unit_test(neighbours_are_poisoned),
#endif
        cmocka_unit_test(exact_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
