/* A collection is the same file, byte for byte, for any number of threads, any shard, after an
 * interruption and after kill -9. */
#include "comma_locale.h"
#include "zoo_fixture.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

static char *file_bytes(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) fail_msg("%s is missing", path);
    fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    char *bytes = malloc(*size);
    assert_int_equal(fread(bytes, 1, *size, file), *size);
    fclose(file);
    return bytes;
}

static size_t entries_in(const char *place) {
    DIR *dir = opendir(place);
    if (dir == NULL) return 0;
    size_t n = 0;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;)
        n += strstr(entry->d_name, ".safetensors") != NULL && entry->d_name[0] != '.';
    closedir(dir);
    return n;
}

/* Makes the collection in one piece on one thread: what every other way must equal. */
static void make_expected(shared *s) {
    wf_ctx *ctx = ctx_of(1);
    assert_ok(ctx, train_with(ctx, s, 0));
    assert_int_equal(access(s->parts, F_OK), -1);
    wf_ctx_free(ctx);
    free(s->expected);
    s->expected = file_bytes(s->path, &s->size);
    unlink(s->path);
}

/* The file is there, byte for byte, and nothing beside it. */
static void assert_as_expected(const shared *s) {
    size_t size;
    char *bytes = file_bytes(s->path, &size);
    assert_int_equal(size, s->size);
    assert_memory_equal(bytes, s->expected, size);
    free(bytes);
    assert_int_equal(access(s->parts, F_OK), -1);
}

static void test_threads_and_shards(void **state) {
    (void)state;
    shared s;
    shared_start(&s, "threads");
    make_expected(&s);
    for (int threads = 1; threads <= 3; threads++)
        for (size_t shard = 1; shard <= 7; shard += 3) {
            wf_ctx *ctx = ctx_of(threads);
            assert_ok(ctx, train_with(ctx, &s, shard));
            assert_as_expected(&s);
            unlink(s.path);
            wf_ctx_free(ctx);
        }
    shared_end(&s);
}

/* A host program with a decimal comma makes the same file, weft.recipe included. */
static void test_locale(void **state) {
    (void)state;
    shared s;
    shared_start(&s, "locale");
    make_expected(&s);
    wf_ctx *ctx = ctx_of(1);
    bool comma = comma_locale_begin();
    wf_status status = train_with(ctx, &s, 0);
    comma_locale_end();
    assert_int_equal(status, WF_OK);
    assert_as_expected(&s);
    wf_ctx_free(ctx);
    shared_end(&s);
    if (!comma) skip("no localedef");
}

/* Network 107 is the same network in a collection of its own. */
static void test_index_is_all(void **state) {
    (void)state;
    shared s;
    shared_start(&s, "index");
    wf_ctx *ctx = ctx_of(2);
    assert_ok(ctx, train_with(ctx, &s, 0));
    wf_zoo *zoo, *one;
    assert_ok(ctx, wf_zoo_open(ctx, s.path, &zoo));
    s.desc.first = 107;
    s.desc.count = 1;
    strcat(s.path, ".one");
    assert_ok(ctx, train_with(ctx, &s, 0));
    assert_ok(ctx, wf_zoo_open(ctx, s.path, &one));
    size_t n = s.graph->n_params;
    float *a = malloc(3 * n * sizeof *a), *b = a + n, *c = b + n;
    wf_zoo_get(zoo, 7, a);
    wf_zoo_get(one, 0, b);
    assert_memory_equal(a, b, n * sizeof *a);
    assert_int_equal(wf_zoo_seeds(one)[0], 107);
    /* and the same from its initial weights in memory */
    wf_zoo_init(s.graph, s.desc.seed, 107, c);
    assert_memory_not_equal(a, c, n * sizeof *a);
    assert_ok(ctx, wf_zoo_train_from(ctx, s.graph, s.data, &s.desc, c));
    assert_memory_equal(a, c, n * sizeof *a);
    free(a);
    wf_zoo_free(one);
    wf_zoo_free(zoo);
    wf_ctx_free(ctx);
    shared_end(&s);
}

/* Calls wf_interrupt as soon as the first part lies on disk. */
typedef struct stopper {
    wf_ctx *ctx;
    const char *parts;
} stopper;

static void *stop_soon(void *stop_) {
    stopper *stop = stop_;
    while (entries_in(stop->parts) == 0) usleep(100);
    wf_interrupt(stop->ctx);
    return NULL;
}

/* Leaves an unfinished collection of s->desc.count networks behind. */
static void train_interrupted(const shared *s, int threads, size_t shard) {
    stopper stop = {ctx_of(threads), s->parts};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, stop_soon, &stop), 0);
    assert_fails(stop.ctx, train_with(stop.ctx, s, shard), WF_ERR_INTERRUPTED, "networks trained");
    pthread_join(thread, NULL);
    wf_ctx_free(stop.ctx);
    assert_int_equal(access(s->path, F_OK), -1);
    assert_true(entries_in(s->parts) > 0);
}

static void test_interruption(void **state) {
    (void)state;
    shared s;
    shared_start(&s, "interrupted");
    s.desc.count = 400;
    s.desc.epochs = s.desc.epochs_max = 20;
    make_expected(&s);
    train_interrupted(&s, 2, 20);
    wf_ctx *ctx = ctx_of(1);
    assert_ok(ctx, train_with(ctx, &s, 33));
    assert_as_expected(&s);
    wf_ctx_free(ctx);
    shared_end(&s);
}

/* Interrupts a little after the growing file has appeared. */
typedef struct late_stopper {
    wf_ctx *ctx;
    char sibling[192];
    useconds_t delay;
} late_stopper;

static void *stop_later(void *stop_) {
    late_stopper *stop = stop_;
    while (access(stop->sibling, F_OK) != 0) usleep(100);
    usleep(stop->delay);
    wf_interrupt(stop->ctx);
    return NULL;
}

/* Without parts on the way: what was finished is saved when the call is interrupted. */
static void test_interruption_while_growing(void **state) {
    (void)state;
    shared s;
    shared_start(&s, "growing");
    s.desc.count = 400;
    s.desc.epochs = s.desc.epochs_max = 20;
    size_t interrupted = 0;
    make_expected(&s);
    for (useconds_t delay = 2000; delay < 100000 && interrupted < 2; delay *= 2) {
        late_stopper stop = {ctx_of(2), "", delay};
        snprintf(stop.sibling, sizeof stop.sibling, "%s/.growing.safetensors.tmp.%ld", folder,
                 (long)getpid());
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, stop_later, &stop), 0);
        wf_status status = train_with(stop.ctx, &s, 0);
        pthread_join(thread, NULL);
        assert_int_equal(access(stop.sibling, F_OK), -1);
        wf_ctx_free(stop.ctx);
        interrupted += status == WF_ERR_INTERRUPTED && entries_in(s.parts) == 1;
        wf_ctx *ctx = ctx_of(1);
        if (status == WF_ERR_INTERRUPTED) assert_ok(ctx, train_with(ctx, &s, 0));
        wf_ctx_free(ctx);
        assert_as_expected(&s);
        unlink(s.path);
    }
    assert_true(interrupted > 0);
    shared_end(&s);
}

static void test_killed(void **state) {
    (void)state;
    shared s;
    shared_start(&s, "killed");
    s.desc.count = 60;
    make_expected(&s);
    for (size_t parts = 1; parts <= 20; parts += 6) {
        pid_t child = fork();
        if (child == 0) {
            wf_ctx *ctx = ctx_of(2);
            train_with(ctx, &s, 1);
            _exit(0);
        }
        assert_true(child > 0);
        int code = 0;
        while (entries_in(s.parts) < parts && waitpid(child, &code, WNOHANG) == 0) usleep(200);
        kill(child, SIGKILL);
        waitpid(child, &code, 0);
    }
    wf_ctx *ctx = ctx_of(2);
    assert_ok(ctx, train_with(ctx, &s, 0));
    assert_as_expected(&s);
    wf_ctx_free(ctx);
    shared_end(&s);
}

/* Files of networks under way. */
static size_t started_in(const char *place) {
    DIR *dir = opendir(place);
    if (dir == NULL) return 0;
    size_t n = 0;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        const char *dot = strrchr(entry->d_name, '.');
        n += entry->d_name[0] != '.' && strcmp(dot, ".started") == 0;
    }
    closedir(dir);
    return n;
}

/* A pause before every update, each written to a file, changes no bit. */
static void test_pauses(void **state) {
    (void)state;
    shared s;
    shared_start(&s, "pauses");
    s.desc.count = 3;
    for (int sgd = 0; sgd < 2; sgd++) {
        s.desc.optimizer = sgd ? WF_ZOO_SGD : WF_ZOO_ADAM;
        s.desc.momentum = 0.9;
        make_expected(&s);
        wf_ctx *ctx = ctx_of(2);
        wf_zoo_save_seconds = 0;
        wf_status status = train_with(ctx, &s, 0);
        wf_zoo_save_seconds = 5;
        assert_ok(ctx, status);
        assert_as_expected(&s);
        unlink(s.path);
        wf_ctx_free(ctx);
    }
    shared_end(&s);
}

static void drop_parts(const char *parts) {
    char command[192];
    snprintf(command, sizeof command, "rm -r '%s'", parts);
    assert_int_equal(system(command), 0);
}

static void *stop_when_started(void *stop_) {
    stopper *stop = stop_;
    while (started_in(stop->parts) == 0) usleep(100);
    wf_interrupt(stop->ctx);
    return NULL;
}

/* Two networks of a minute each, interrupted or killed in the midst of their training: soon over,
 * and nothing lost. */
static void test_stopped_inside_a_network(void **state) {
    (void)state;
#ifdef __SANITIZE_THREAD__
    skip("the thread sanitizer allows no threads after a fork with threads");
#endif
    shared s;
    shared_start(&s, "inside");
    s.desc.count = 2;
    s.desc.epochs = s.desc.epochs_max = 20;
    s.desc.lr_max = 0;
    wf_ctx *ctx = ctx_of(2);
    wf_graph_free(s.graph);
    s.graph = graph_of(ctx, "6-192-160-5", "tanh");
    make_expected(&s);
    wf_zoo_save_seconds = 0.02;
    stopper stop = {ctx_of(2), s.parts};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, stop_when_started, &stop), 0);
    s.desc.epochs = s.desc.epochs_max = 100000; /* hours, were it not stopped */
    assert_fails(stop.ctx, train_with(stop.ctx, &s, 0), WF_ERR_INTERRUPTED, "0 of 2 networks");
    pthread_join(thread, NULL);
    wf_ctx_free(stop.ctx);
    assert_true(started_in(s.parts) > 0);
    s.desc.epochs = s.desc.epochs_max = 20;
    assert_fails(ctx, train_with(ctx, &s, 0), WF_ERR_INPUT, "epochs = 100000");
    drop_parts(s.parts);
    pid_t child = fork();
    if (child == 0) {
        train_with(ctx_of(2), &s, 0);
        _exit(0);
    }
    assert_true(child > 0);
    int code = 0;
    while (started_in(s.parts) == 0 && waitpid(child, &code, WNOHANG) == 0) usleep(200);
    kill(child, SIGKILL);
    waitpid(child, &code, 0);
    assert_int_equal(started_in(s.parts) > 0, access(s.path, F_OK) != 0);
    wf_status status = train_with(ctx, &s, 0);
    wf_zoo_save_seconds = 5;
    assert_ok(ctx, status);
    assert_as_expected(&s);
    wf_ctx_free(ctx);
    shared_end(&s);
}

static void count_training(void *user, const wf_progress *progress) {
    if (strcmp(progress->stage, "training networks") == 0 && progress->done > 0) ++*(int *)user;
}

/* Killed between the rename and the removal of the parts: nothing is trained again, nothing
 * stays. */
static void test_killed_while_removing(void **state) {
    (void)state;
    shared s;
    shared_start(&s, "removing");
    wf_ctx *ctx;
    int trained = 0;
    wf_ctx_desc desc = {.threads = 2, .progress = count_training, .user = &trained};
    assert_int_equal(wf_ctx_create(&desc, &ctx), WF_OK);
    char left[256];
    make_expected(&s);
    assert_ok(ctx, train_with(ctx, &s, 0));
    assert_true(trained > 0);
    trained = 0;
    assert_int_equal(mkdir(s.parts, 0777), 0);
    snprintf(left, sizeof left, "%s/.0000000100.safetensors.tmp.99999", s.parts);
    fclose(fopen(left, "w"));
    assert_ok(ctx, train_with(ctx, &s, 0));
    assert_int_equal(trained, 0);
    assert_as_expected(&s);
    /* Nor are networks that stand there, unless they are damaged. */
    assert_ok(ctx, train_with(ctx, &s, 0));
    assert_int_equal(trained, 0);
    FILE *file = fopen(s.path, "r+");
    fseek(file, -1, SEEK_END);
    int last = fgetc(file);
    fseek(file, -1, SEEK_END);
    fputc(last ^ 1, file);
    fclose(file);
    assert_ok(ctx, train_with(ctx, &s, 0));
    assert_true(trained > 0);
    assert_as_expected(&s);
    trained = 0;
    /* A collection of other settings is no part of this one. */
    s.desc.lr *= 2;
    assert_int_equal(mkdir(s.parts, 0777), 0);
    assert_ok(ctx, train_with(ctx, &s, 0));
    assert_true(trained > 0);
    assert_int_equal(access(s.parts, F_OK), -1);
    wf_ctx_free(ctx);
    shared_end(&s);
}

static void test_other_settings_refused(void **state) {
    (void)state;
    shared s;
    shared_start(&s, "settings");
    s.desc.count = 400;
    s.desc.epochs = s.desc.epochs_max = 20;
    train_interrupted(&s, 1, 1);
    wf_ctx *ctx = ctx_of(1);
    size_t parts = entries_in(s.parts);
    s.desc.lr = 2e-3;
    assert_fails(ctx, train_with(ctx, &s, 0), WF_ERR_INPUT, "delete the folder");
    assert_non_null(strstr(wf_last_error(ctx), "lr = "));
    s.desc.lr = 1e-3;
    s.data->x_test[0] += 1;
    assert_fails(ctx, train_with(ctx, &s, 0), WF_ERR_INPUT, "data = ");
    s.data->x_test[0] -= 1;
    assert_int_equal(entries_in(s.parts), parts);
    assert_ok(ctx, train_with(ctx, &s, 0));
    /* a damaged part is named, and goes away by deleting it */
    unlink(s.path);
    assert_int_equal(mkdir(s.parts, 0777), 0);
    char damaged[256];
    snprintf(damaged, sizeof damaged, "%s/0000000100.safetensors", s.parts);
    FILE *file = fopen(damaged, "w");
    fputs("nonsense", file);
    fclose(file);
    assert_int_not_equal(train_with(ctx, &s, 0), WF_OK);
    assert_non_null(strstr(wf_last_error(ctx), damaged));
    unlink(damaged);
    s.desc.count = 3;
    assert_ok(ctx, train_with(ctx, &s, 0));
    wf_ctx_free(ctx);
    shared_end(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed), /* forks: before any other test leaves threads behind */
        cmocka_unit_test(test_threads_and_shards),
        cmocka_unit_test(test_pauses),
        cmocka_unit_test(test_killed_while_removing),
        cmocka_unit_test(test_stopped_inside_a_network),
        cmocka_unit_test(test_locale),
        cmocka_unit_test(test_index_is_all),
        cmocka_unit_test(test_interruption),
        cmocka_unit_test(test_interruption_while_growing),
        cmocka_unit_test(test_other_settings_refused),
    };
    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
