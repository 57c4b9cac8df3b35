/* The communicator. By itself this program tests one process; `mpirun -n 3 test_comm`
 * (tests/cli/test_mpi.sh) makes the same calls with several ranks. */
#include "wf_test.h"
#include "base/comm.h"
#include "base/io.h"
#include "base/mpi/mpi_ranks.h"
#include "base/random.h"

#include <pthread.h>
#include <time.h>
#include <unistd.h>

static wf_comm *comm;
static wf_ctx *ctx;

static int start(void **state) {
    char why[WF_COMM_SENTENCE];
    (void)state;
    wf_status status = wf_comm_join(&(wf_comm_desc){.arguments = "test"}, &comm, why);
    if (status != WF_OK) fprintf(stderr, "%s\n", why);
    if (status == WF_OK) status = wf_ctx_create(&(wf_ctx_desc){.threads = 1, .comm = comm}, &ctx);
    return (int)status;
}

static int end(void **state) {
    char why[WF_COMM_SENTENCE];
    (void)state;
    wf_ctx_free(ctx);
    wf_status status = wf_comm_end(comm, why);
    wf_comm_leave(comm);
    return (int)status;
}

static void shares_cover_everything(void **state) {
    (void)state;
    for (size_t count = 0; count < 20; count++)
        for (int ranks = 1; ranks < 7; ranks++) {
            assert_int_equal(wf_share_start(count, 0, ranks), 0);
            assert_int_equal(wf_share_start(count, ranks, ranks), count);
            for (int r = 0; r < ranks; r++) {
                size_t own = wf_share_start(count, r + 1, ranks) - wf_share_start(count, r, ranks);
                assert_in_range(own, count / (size_t)ranks, count / (size_t)ranks + 1);
            }
        }
}

static void rows_reach_everybody(void **state) {
    (void)state;
    for (size_t count = 0; count < 9; count++) {
        uint32_t rows[9][3] = {{0}};
        wf_range own = wf_share(ctx, count);
        for (size_t i = own.first; i < own.last; i++)
            for (uint32_t k = 0; k < 3; k++) rows[i][k] = (uint32_t)(100 * i) + k;
        assert_ok(ctx, wf_gather_rows(ctx, rows, sizeof rows[0], count));
        for (size_t i = 0; i < count; i++)
            for (uint32_t k = 0; k < 3; k++) assert_int_equal(rows[i][k], 100 * i + k);
    }
}

static void rank_0_decides(void **state) {
    (void)state;
    bool answer = wf_ctx_rank(ctx) == 0;
    assert_ok(ctx, wf_ctx_decide(ctx, &answer));
    assert_true(answer);
    answer = wf_ctx_rank(ctx) != 0;
    assert_ok(ctx, wf_ctx_decide(ctx, &answer));
    assert_false(answer);
}

/* Parts of all ranks, as a field would have them. */
enum { numbers = 150001, parts = 7 };
typedef struct partial {
    int first, last;
} partial;

static float number_of(int part, size_t i) {
    wf_rng rng = wf_rng_at(5, (uint32_t)part, WF_RNG_TEST, (uint32_t)i);
    return wf_rng_uniform(&rng) - 0.5f;
}

static bool add_parts(void *user, size_t first, size_t n, float *running, bool fresh) {
    const partial *own = user;
    for (int p = own->first; p < own->last; p++)
        for (size_t i = 0; i < n; i++)
            running[i] = fresh && p == own->first ? number_of(p, first + i)
                                                  : running[i] + number_of(p, first + i);
    return true;
}

static void sums_do_not_depend_on_the_ranks(void **state) {
    (void)state;
    int ranks = wf_ctx_ranks(ctx), rank = wf_ctx_rank(ctx);
    float *sum = malloc(numbers * sizeof *sum), *expected = malloc(numbers * sizeof *sum);
    const wf_range bucket[] = {
        {70000, 70000}, {70000, 135536}, {0, 1}, {1, 70000}, {135536, numbers}};
    add_parts(&(partial){0, parts}, 0, numbers, expected, true);
    for (int active = 1; active <= ranks; active++) {
        partial own = {(int)wf_share_start(parts, rank < active ? rank : active, active),
                       (int)wf_share_start(parts, rank < active ? rank + 1 : active, active)};
        memset(sum, 0, numbers * sizeof *sum);
        if (ranks == 1) add_parts(&own, 0, numbers, sum, true);
        else
            assert_ok(ctx, wf_sum_in_order(ctx, &(wf_ordered_sum){.out = sum,
                                                                  .buckets = bucket,
                                                                  .n_buckets = 5,
                                                                  .active = active,
                                                                  .add = add_parts,
                                                                  .user = &own}));
        assert_memory_equal(sum, expected, numbers * sizeof *sum);
    }
    free(sum);
    free(expected);
}

/* Work that makes the numbers of a bucket once those of the bucket before have been added. */
enum { made_buckets = 4, made_each = 1000 };
typedef struct made_work {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    float number[made_buckets * made_each];
    size_t made, added;
    bool too_late;
} made_work;

static void make_numbers(void *user) {
    made_work *work = user;
    struct timespec limit = {.tv_sec = time(NULL) + 20};
    pthread_mutex_lock(&work->lock);
    for (size_t b = 0; b < made_buckets; b++) {
        while (work->added < b && !work->too_late)
            work->too_late = pthread_cond_timedwait(&work->changed, &work->lock, &limit) != 0;
        for (size_t i = b * made_each; i < (b + 1) * made_each; i++)
            work->number[i] = number_of(wf_ctx_rank(ctx), i);
        work->made = b + 1;
        pthread_cond_broadcast(&work->changed);
    }
    pthread_mutex_unlock(&work->lock);
}

static void wait_for_numbers(void *user, size_t bucket) {
    made_work *work = user;
    pthread_mutex_lock(&work->lock);
    while (work->made <= bucket) pthread_cond_wait(&work->changed, &work->lock);
    pthread_mutex_unlock(&work->lock);
}

static bool add_made(void *user, size_t first, size_t n, float *running, bool fresh) {
    made_work *work = user;
    pthread_mutex_lock(&work->lock);
    for (size_t i = 0; i < n; i++)
        running[i] = fresh ? work->number[first + i] : running[i] + work->number[first + i];
    work->added++;
    pthread_cond_broadcast(&work->changed);
    pthread_mutex_unlock(&work->lock);
    return true;
}

static void a_sum_runs_beside_what_makes_its_numbers(void **state) {
    (void)state;
    if (wf_ctx_ranks(ctx) == 1) skip("one process; cli/test_mpi.sh has several");
    static made_work work = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, {0}, 0, 0, false};
    float sum[made_buckets * made_each];
    wf_range bucket[made_buckets];
    for (size_t b = 0; b < made_buckets; b++)
        bucket[b] = (wf_range){b * made_each, (b + 1) * made_each};
    assert_ok(ctx, wf_sum_in_order(ctx, &(wf_ordered_sum){.out = sum,
                                                          .buckets = bucket,
                                                          .n_buckets = made_buckets,
                                                          .active = wf_ctx_ranks(ctx),
                                                          .add = add_made,
                                                          .wait_for = wait_for_numbers,
                                                          .beside = make_numbers,
                                                          .user = &work}));
    assert_false(work.too_late);
    for (size_t i = 0; i < made_buckets * made_each; i++) {
        float expected = number_of(0, i);
        for (int r = 1; r < wf_ctx_ranks(ctx); r++) expected += number_of(r, i);
        assert_memory_equal(&sum[i], &expected, sizeof expected);
    }
}

static void failures_are_shared(void **state) {
    (void)state;
    int ranks = wf_ctx_ranks(ctx), rank = wf_ctx_rank(ctx);
    assert_ok(ctx, wf_agree(ctx, WF_OK));
    wf_status mine = rank == ranks - 1 ? wf_fail(ctx, WF_ERR_DISK, "the disk is full") : WF_OK;
    char words[64] = "the disk is full";
    if (rank != ranks - 1) snprintf(words, sizeof words, "rank %d on ", ranks - 1);
    assert_fails(ctx, wf_agree(ctx, mine), WF_ERR_DISK, words);
    /* An interruption is told only when nothing worse happened. */
    mine = rank == 0 ? wf_fail(ctx, WF_ERR_INTERRUPTED, "stopped") : WF_OK;
    assert_fails(ctx, wf_agree(ctx, mine), WF_ERR_INTERRUPTED, "stopped");
    if (ranks == 1) return;
    assert_int_equal(comm->blamed, 0);
    if (rank == 1) mine = wf_fail(ctx, WF_ERR_INPUT, "a damaged file");
    assert_fails(ctx, wf_agree(ctx, mine), WF_ERR_INPUT, "a damaged file");
    assert_int_equal(comm->blamed, 1);
    mine = rank == 0 ? wf_fail(ctx, WF_ERR_DISK, "no room") : WF_OK;
    assert_fails(ctx, wf_from_rank_0(ctx, mine), WF_ERR_DISK, "no room");
    assert_int_equal(comm->blamed, 0);
    assert_ok(ctx, wf_agree(ctx, WF_OK));
    assert_int_equal(comm->blamed, -1);
}

static void different_texts_are_found(void **state) {
    (void)state;
    assert_ok(ctx, wf_same(ctx, "the recipe", "equal"));
    if (wf_ctx_ranks(ctx) == 1) return;
    assert_fails(ctx, wf_same(ctx, "the recipe", wf_ctx_rank(ctx) == 1 ? "b" : "a"), WF_ERR_INPUT,
                 "the recipe is another here than on rank 0");
}

static void rank_0_writes_files(void **state) {
    (void)state;
    char folder[128], path[160], text[32];
    snprintf(folder, sizeof folder, "/tmp/weft-test-comm-%ld", (long)getpid());
    assert_ok(ctx, wf_broadcast(ctx, folder, sizeof folder));
    snprintf(path, sizeof path, "%s/file", folder);
    assert_ok(ctx, wf_make_folder(ctx, folder));
    wf_lock *lock;
    assert_ok(ctx, wf_lock_folder(ctx, folder, &lock));
    snprintf(text, sizeof text, "from rank %d", wf_ctx_rank(ctx));
    assert_ok(ctx, wf_write_file(ctx, path, text, strlen(text)));
    char *content;
    size_t size;
    assert_ok(ctx, wf_read_file(ctx, path, 100, &content, &size));
    assert_string_equal(content, "from rank 0");
    free(content);
    /* What rank 0 cannot write, nobody has written. */
    snprintf(path, sizeof path, "%s/no/such", folder);
    assert_fails(ctx, wf_write_file(ctx, path, "x", 1), WF_ERR_DISK, path);
    /* A rank's own file. */
    snprintf(path, sizeof path, "%s/own-%d", folder, wf_ctx_rank(ctx));
    bool alone = wf_work_alone(ctx, true);
    assert_int_equal(wf_ctx_ranks(ctx), 1);
    assert_ok(ctx, wf_write_file(ctx, path, "x", 1));
    assert_true(wf_file_exists(path));
    wf_work_alone(ctx, alone);
    wf_lock_free(lock);
    assert_ok(ctx, wf_remove(ctx, folder));
    assert_false(wf_file_exists(folder));
    assert_ok(ctx, wf_barrier(ctx));
}

/* The last test: nothing is collective after it. */
static void a_rank_gives_up(void **state) {
    (void)state;
    int ranks = wf_comm_size(comm), rank = wf_comm_rank(comm);
    if (ranks == 1) return;
    if (rank == 1) {
        sleep(2); /* the others are to leave their last call first */
        wf_comm_give_up(ctx, WF_ERR_MEMORY, "no memory left");
        assert_null(wf_comm_failure(comm));
        assert_false(wf_comm_speaks(comm));
    } else {
        wf_status status = wf_barrier(ctx);
        /* Rank 1 may have told us before we came here. */
        for (int i = 0; status == WF_OK && i < 500 && wf_comm_failure(comm) == NULL; i++)
            usleep(10000);
        assert_non_null(wf_comm_failure(comm));
        assert_non_null(strstr(wf_comm_failure(comm), "rank 1 on "));
        assert_non_null(strstr(wf_comm_failure(comm), "no memory left"));
        assert_true(wf_interrupted(ctx));
        assert_int_equal(wf_comm_speaks(comm), rank == 0);
    }
    assert_false(wf_writes_together(ctx));
    assert_int_equal(wf_writes_files(ctx), rank == 0);
    assert_int_equal(wf_barrier(ctx), WF_ERR_MEMORY);
    assert_int_equal(wf_agree(ctx, WF_OK), WF_ERR_MEMORY);
}

static int end_after_failure(void **state) {
    int status = end(state);
    return wf__launched() && status == WF_ERR_MEMORY ? 0 : status;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_cover_everything),
        cmocka_unit_test(rows_reach_everybody),
        cmocka_unit_test(rank_0_decides),
        cmocka_unit_test(sums_do_not_depend_on_the_ranks),
        cmocka_unit_test(a_sum_runs_beside_what_makes_its_numbers),
        cmocka_unit_test(failures_are_shared),
        cmocka_unit_test(different_texts_are_found),
        cmocka_unit_test(rank_0_writes_files),
        cmocka_unit_test(a_rank_gives_up),
    };
    return cmocka_run_group_tests(tests, start, end_after_failure);
}
