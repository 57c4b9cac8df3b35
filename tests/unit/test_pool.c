/* The worker pool: every chunk once, the same bits for any number of threads, many short rounds. */
#include "wf_test.h"
#include "base/backlog.h"
#include "base/pool.h"
#include "base/random.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

static wf_ctx *with_threads(int threads) {
    wf_ctx_desc desc = {.threads = threads};
    wf_ctx *ctx;
    assert_int_equal(wf_ctx_create(&desc, &ctx), WF_OK);
    assert_int_equal(wf_ctx_threads(ctx), threads);
    return ctx;
}

enum { most_chunks = 1000, chunk_size = 257, most_threads = 9 };

typedef struct work {
    int threads;
    size_t chunks;
    int done[most_chunks];        /* times each chunk ran */
    float partial[most_chunks];   /* written by its chunk only */
    long by_worker[most_threads]; /* written by its worker only */
    atomic_int bad;
} work;

static void do_chunk(void *arg, size_t chunk, int worker) {
    work *w = arg;
    if (chunk >= w->chunks || worker < 0 || worker >= w->threads) {
        atomic_fetch_add(&w->bad, 1);
        return;
    }
    w->done[chunk]++;
    w->by_worker[worker]++;
    wf_rng rng = wf_rng_at(3, (uint32_t)chunk, WF_RNG_TEST, 0);
    float sum = 0, value[chunk_size];
    size_t uneven = chunk % 7 == 0 ? chunk_size : chunk_size / 9;
    wf_rng_normals(&rng, value, uneven);
    for (size_t i = 0; i < uneven; i++) sum += value[i];
    w->partial[chunk] = sum;
}

static float sum_of_round(wf_ctx *ctx, size_t chunks) {
    static work w;
    memset(&w, 0, sizeof w);
    w.threads = wf_ctx_threads(ctx);
    w.chunks = chunks;
    wf_parallel(ctx, chunks, do_chunk, &w);
    assert_int_equal(atomic_load(&w.bad), 0);
    float sum = 0;
    long runs = 0;
    for (size_t i = 0; i < most_chunks; i++) assert_int_equal(w.done[i], i < chunks);
    for (size_t i = 0; i < chunks; i++) sum += w.partial[i];
    for (int i = 0; i < w.threads; i++) runs += w.by_worker[i];
    assert_int_equal(runs, chunks);
    return sum;
}

static void same_bits_for_any_thread_count(void **state) {
    (void)state;
    static const size_t counts[] = {0, 1, 2, 3, 7, 64, most_chunks};
    float expected[sizeof counts / sizeof *counts];
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        expected[i] = sum_of_round(NULL, counts[i]);
    for (int threads = 1; threads <= most_threads; threads++) {
        wf_ctx *ctx = with_threads(threads);
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
            float sum = sum_of_round(ctx, counts[i]);
            assert_memory_equal(&sum, &expected[i], sizeof sum);
        }
        wf_ctx_free(ctx);
    }
}

static void add_one(void *arg, size_t chunk, int worker) {
    (void)worker;
    ((uint32_t *)arg)[chunk]++; /* not atomic: rounds must not overlap */
}

static void many_short_rounds(void **state) {
    (void)state;
    enum { rounds = 1000, chunks = 5 };
    for (int threads = 2; threads <= 4; threads++) {
        wf_ctx *ctx = with_threads(threads);
        uint32_t count[chunks] = {0};
        for (uint32_t round = 0; round < rounds; round++) {
            wf_parallel(ctx, chunks, add_one, count);
            for (int i = 0; i < chunks; i++) assert_int_equal(count[i], round + 1);
        }
        wf_ctx_free(ctx);
    }
}

/* Pauses long enough for the workers to fall asleep, and of the length at which they just do. */
static void sleepers_wake(void **state) {
    (void)state;
    wf_ctx *ctx = with_threads(3);
    uint32_t count[4] = {0};
    for (uint32_t round = 0; round < 300; round++) {
        usleep(round % 10 == 0 ? 3000 : round % 300);
        wf_parallel(ctx, 4, add_one, count);
        for (int i = 0; i < 4; i++) assert_int_equal(count[i], round + 1);
    }
    wf_ctx_free(ctx);
}

static void contexts_come_and_go(void **state) {
    (void)state;
    for (int i = 0; i < 400; i++) {
        wf_ctx *ctx = with_threads(1 + i % 5);
        if (i % 3 != 0) {
            uint32_t count[8] = {0};
            wf_parallel(ctx, 8, add_one, count);
            for (int k = 0; k < 8; k++) assert_int_equal(count[k], 1);
        }
        if (i % 7 == 0) usleep(500);
        wf_ctx_free(ctx);
    }
    wf_ctx_free(NULL);
}

/* Two contexts at once, each on a thread of its own. */
static void *use_context(void *arg) {
    uint32_t *count = arg;
    wf_ctx_desc desc = {.threads = 2};
    wf_ctx *ctx;
    if (wf_ctx_create(&desc, &ctx) != WF_OK) return NULL;
    for (int round = 0; round < 500; round++) wf_parallel(ctx, 4, add_one, count);
    wf_ctx_free(ctx);
    return NULL;
}

static void contexts_are_independent(void **state) {
    (void)state;
    uint32_t one[4] = {0}, two[4] = {0};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, use_context, one), 0);
    use_context(two);
    pthread_join(thread, NULL);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(one[i], 500);
        assert_int_equal(two[i], 500);
    }
}

typedef struct stopping {
    wf_ctx *ctx;
    atomic_int begun;
} stopping;

static void interrupt_at_once(void *arg, size_t chunk, int worker) {
    stopping *s = arg;
    (void)chunk, (void)worker;
    atomic_fetch_add(&s->begun, 1);
    wf_interrupt(s->ctx);
}

/* After an interruption a stoppable round begins no chunk that a thread has not begun already;
 * others do them all. */
static void rounds_can_be_stopped(void **state) {
    (void)state;
    for (int threads = 1; threads <= 3; threads++) {
        stopping s = {with_threads(threads), 0};
        assert_false(wf_parallel_stoppable(s.ctx, 500, interrupt_at_once, &s));
        assert_in_range(atomic_load(&s.begun), 1, threads);
        assert_false(wf_parallel_stoppable(s.ctx, 500, interrupt_at_once, &s));
        assert_in_range(atomic_load(&s.begun), 1, threads);
        atomic_store(&s.begun, 0);
        wf_parallel(s.ctx, 500, interrupt_at_once, &s);
        assert_int_equal(atomic_load(&s.begun), 500);
        wf_ctx_free(s.ctx);
    }
}

/* Rounds of functions that know nothing of interruptions can be stopped by their caller. */
static void other_rounds_can_be_stopped(void **state) {
    (void)state;
    for (int threads = 1; threads <= 3; threads++) {
        stopping s = {with_threads(threads), 0};
        assert_false(wf_stop_rounds(s.ctx, true));
        wf_parallel(s.ctx, 500, interrupt_at_once, &s);
        assert_in_range(atomic_load(&s.begun), 1, threads);
        assert_true(wf_stop_rounds(s.ctx, false));
        wf_parallel(s.ctx, 500, interrupt_at_once, &s);
        assert_true(atomic_load(&s.begun) >= 500);
        wf_ctx_free(s.ctx);
    }
    assert_false(wf_stop_rounds(NULL, true));
}

/* A round that was stopped leaves chunks. Nobody begins them when the threads end, though the
 * interruption has been cleared: what their function works on is gone by then. */
static void a_stopped_round_is_over(void **state) {
    (void)state;
    for (int threads = 2; threads <= 3; threads++) {
        stopping s = {with_threads(threads), 0};
        assert_false(wf_parallel_stoppable(s.ctx, 500, interrupt_at_once, &s));
        int begun = atomic_load(&s.begun);
        wf_interrupt_clear(s.ctx);
        wf_ctx_free(s.ctx);
        assert_int_equal(atomic_load(&s.begun), begun);
    }
}

/* A device's queue never holds more than WF_BACKLOG_SECONDS of work, or one piece; also when pieces
 * become a thousand times slower from one to the next, or the first is unlike the others. */
static void queues_are_short(void **state) {
    (void)state;
    const double speeds[] = {1e-6, 1e-4, 0.01, 0.19, 0.21, 3, 100};
    enum { n_speeds = sizeof speeds / sizeof *speeds };
    for (int from = 0; from < n_speeds; from++)
        for (int to = 0; to < n_speeds; to++) {
            wf_backlog backlog = {0};
            assert_int_equal(wf_backlog_next(&backlog, 1000), 1);
            for (int round = 0; round < 100; round++) {
                double each = speeds[round < 30 ? from : to];
                wf_backlog_took(&backlog, backlog.last, each * (double)backlog.last);
                size_t next = wf_backlog_next(&backlog, 1000);
                assert_in_range(next, 1, 1000);
                if (next > 1) assert_true(each * (double)next <= WF_BACKLOG_SECONDS * 1.0001);
            }
            size_t wanted = (size_t)(WF_BACKLOG_SECONDS / speeds[to]);
            wanted = wanted < 1 ? 1 : wanted > 1000 ? 1000 : wanted;
            assert_in_range(backlog.last, (wanted + 1) / 2, wanted); /* and it is used */
        }
    wf_backlog backlog = {0};
    assert_int_equal(wf_backlog_next(&backlog, 0), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits_for_any_thread_count),
        cmocka_unit_test(many_short_rounds),
        cmocka_unit_test(sleepers_wake),
        cmocka_unit_test(contexts_come_and_go),
        cmocka_unit_test(contexts_are_independent),
        cmocka_unit_test(rounds_can_be_stopped),
        cmocka_unit_test(other_rounds_can_be_stopped),
        cmocka_unit_test(a_stopped_round_is_over),
        cmocka_unit_test(queues_are_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
