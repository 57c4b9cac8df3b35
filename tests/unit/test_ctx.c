/* The context: sentences, codes, warnings, progress, interruption, memory. */
#include "failing_malloc.h"
#include "base/status.h"
#include "base/utf8.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

static void codes_are_pinned(void **state) {
    (void)state;
    static const struct {
        wf_status status;
        int value, exit_code;
    } codes[] = {
        {WF_OK, 0, 0},
        {WF_ERR_FAILED, 1, 1},
        {WF_ERR_USAGE, 2, 2},
        {WF_ERR_INPUT, 3, 3},
        {WF_ERR_MEMORY, 4, 4},
        {WF_ERR_DISK, 5, 4},
        {WF_ERR_SHAPE, 6, 3},
        {WF_ERR_DIVERGED, 7, 1},
        {WF_ERR_SOLVER, 8, 1},
        {WF_ERR_INTERRUPTED, 9, 130},
        {WF_ERR_UNSUPPORTED, 10, 2},
    };
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        assert_int_equal(codes[i].status, codes[i].value);
        assert_int_equal(wf_status_exit_code(codes[i].status), codes[i].exit_code);
        assert_true(strlen(wf_status_name(codes[i].status)) > 1);
    }
    assert_string_equal(wf_status_name((wf_status)999), "unknown status");
    assert_int_equal(wf_status_exit_code((wf_status)999), 1);
}

static void sentences(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    assert_string_equal(wf_last_error(ctx), "");
    assert_int_equal(wf_fail(ctx, WF_ERR_INPUT, "%s:%d: bad", "a.csv", 7), WF_ERR_INPUT);
    assert_string_equal(wf_last_error(ctx), "a.csv:7: bad");
    wf_fail(ctx, WF_ERR_INPUT, "while reading: %s", wf_last_error(ctx));
    assert_string_equal(wf_last_error(ctx), "while reading: a.csv:7: bad");
    assert_int_equal(wf_fail(NULL, WF_ERR_SHAPE, "nobody listens %d", 1), WF_ERR_SHAPE);
    assert_string_equal(wf_last_error(NULL), "");
    errno = ENOENT;
    assert_int_equal(wf_fail_errno(ctx, WF_ERR_INPUT, "x%c", 'y'), WF_ERR_INPUT);
    assert_string_equal(wf_last_error(ctx), "xy: No such file or directory");
    errno = ENOSPC;
    assert_int_equal(wf_fail_errno(ctx, WF_ERR_FAILED, "x"), WF_ERR_DISK);
    errno = ENOMEM;
    assert_int_equal(wf_fail_errno(ctx, WF_ERR_INPUT, "x"), WF_ERR_MEMORY);
    errno = EDQUOT;
    assert_int_equal(wf_fail_errno(NULL, WF_ERR_INPUT, "x"), WF_ERR_DISK);
    wf_ctx_free(ctx);
}

/* Names from hostile files do not reach a terminal as they are, and every sentence is UTF-8. */
static void sentences_are_printable(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    wf_fail(ctx, WF_ERR_INPUT, "%s", "a\x1b[31mb\x7f\tc\n\xc2\x9b\xff\xc3\xa9\xe2\x82");
    assert_string_equal(wf_last_error(ctx),
                        "a\\u001b[31mb\\u007f\\u0009c\\u000a\\u009b\\xff\xc3\xa9\\xe2\\x82");
    char longer[3000];
    for (size_t shift = 0; shift < 2; shift++) { /* cut inside a character */
        memset(longer, 'x', shift);
        for (size_t i = shift; i + 2 < sizeof longer; i += 2) memcpy(longer + i, "\xc3\xa9", 3);
        longer[sizeof longer - 1] = '\0';
        longer[sizeof longer - 2] = '\0';
        wf_fail(ctx, WF_ERR_INPUT, "%s", longer);
        size_t length = strlen(wf_last_error(ctx));
        assert_true(length > 900);
        assert_int_equal(wf_utf8_check(wf_last_error(ctx), length), length);
    }
    wf_ctx_free(ctx);
}

typedef struct heard {
    int warnings, reports, last;
    char sentence[200];
    wf_progress progress;
    char detail[200];
} heard;

static void hear_warning(void *user, const char *sentence) {
    heard *h = user;
    h->warnings++;
    snprintf(h->sentence, sizeof h->sentence, "%s", sentence);
}

static void hear_progress(void *user, const wf_progress *progress) {
    heard *h = user;
    h->reports++;
    h->last += progress->last;
    h->progress = *progress;
    snprintf(h->detail, sizeof h->detail, "%s", progress->detail);
}

static void warnings_and_progress(void **state) {
    (void)state;
    heard h = {0};
    wf_ctx_desc desc = {.threads = 1, .warn = hear_warning, .progress = hear_progress, .user = &h};
    wf_ctx *ctx;
    assert_int_equal(wf_ctx_create(&desc, &ctx), WF_OK);
    wf_warn(ctx, "only %d of %d", 3, 5);
    wf_warn(NULL, "dropped");
    assert_int_equal(h.warnings, 1);
    assert_string_equal(h.sentence, "only 3 of 5");
    wf_meter meter = wf_meter_start(ctx, "training", "networks", 1000);
    assert_true(wf_ctx_seconds(NULL) > 0); /* the machine's clock, as the context's */
    double until = wf_seconds() + 0.5;
    double done = 0;
    while (wf_seconds() < until) wf_meter_update(&meter, done++, "loss %.1f", 0.5);
    assert_in_range(h.reports, 1, 3); /* a few times a second, however often it is called */
    assert_int_equal(h.last, 0);
    wf_meter_end(&meter, 1000, NULL);
    assert_int_equal(h.last, 1);
    assert_string_equal(h.progress.stage, "training");
    assert_string_equal(h.progress.unit, "networks");
    assert_string_equal(h.detail, "");
    assert_true(h.progress.done == 1000 && h.progress.total == 1000);
    assert_true(h.progress.seconds >= 0.5 && h.progress.seconds < 60);
    wf_meter silent = wf_meter_start(NULL, "x", "y", 0);
    wf_meter_update(&silent, 1, "z");
    wf_meter_end(&silent, 1, "z");
    wf_ctx_free(ctx);
}

static wf_ctx *signalled;
static pthread_t handled_by;
static void on_signal(int number) {
    (void)number;
    handled_by = pthread_self();
    wf_interrupt(signalled);
}

/* A signal interrupts the context, and it is the caller's thread that handles it. */
static void interruption(void **state) {
    (void)state;
    wf_ctx_desc desc = {.threads = 4};
    assert_int_equal(wf_ctx_create(&desc, &signalled), WF_OK);
    assert_false(wf_interrupted(signalled));
    assert_false(wf_interrupted(NULL));
    wf_interrupt(NULL);
    signal(SIGUSR1, on_signal);
    kill(getpid(), SIGUSR1);
    for (int i = 0; i < 1000 && !wf_interrupted(signalled); i++) usleep(1000);
    assert_true(wf_interrupted(signalled));
    assert_true(pthread_equal(handled_by, pthread_self()));
    wf_ctx_free(signalled);
}

static void threads(void **state) {
    (void)state;
    wf_ctx *ctx;
    assert_int_equal(wf_ctx_create(NULL, &ctx), WF_OK);
    assert_true(wf_ctx_threads(ctx) >= 1);
    assert_true(wf_ctx_threads(ctx) <= sysconf(_SC_NPROCESSORS_ONLN));
    wf_ctx_free(ctx);
    wf_ctx_desc desc = {.threads = -3};
    assert_int_equal(wf_ctx_create(&desc, &ctx), WF_OK);
    assert_true(wf_ctx_threads(ctx) >= 1);
    wf_ctx_free(ctx);
    assert_int_equal(wf_ctx_threads(NULL), 1);
}

static void allocation(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    for (size_t count = 0; count < 300; count++) {
        unsigned char *memory = NULL;
        assert_ok(ctx, wf_alloc(ctx, count, 3, "bytes", &memory));
        assert_non_null(memory);
        assert_int_equal((uintptr_t)memory % 64, 0);
        for (size_t i = 0; i < 3 * count; i++) assert_int_equal(memory[i], 0);
        memset(memory, 0xff, 3 * count);
        free(memory);
    }
    void *memory = ctx;
    assert_fails(ctx, wf_alloc(ctx, SIZE_MAX / 2, 3, "the moments", &memory), WF_ERR_MEMORY,
                 "the moments: 9223372036854775807 items of 3 bytes do not fit");
    assert_fails(ctx, wf_alloc(ctx, SIZE_MAX, 1, "it", &memory), WF_ERR_MEMORY, "do not fit");
    assert_ptr_equal(memory, ctx); /* untouched */
    wf_ctx_free(ctx);
}

/* Without memory there is no context, or one with fewer threads. */
static wf_status create_and_free(wf_ctx *unused, void *arg) {
    (void)unused;
    (void)arg;
#if defined(__SANITIZE_ADDRESS__) /* its own part of a new thread cannot do without memory */
    wf_ctx_desc desc = {.threads = 1};
#else
    wf_ctx_desc desc = {.threads = 2};
#endif
    wf_ctx *ctx;
    wf_status status = wf_ctx_create(&desc, &ctx);
    wf_ctx_free(ctx);
    return status;
}

static void creation_survives_lack_of_memory(void **state) {
    (void)state;
    fail_every_allocation(NULL, "context", create_and_free, NULL);
}

static void build_info(void **state) {
    (void)state;
    const char *info = wf_build_info();
    static const char *const names[] = {
        "compiler: ", "instruction set: ", "cuda: ", "zlib: ", "jansson: "};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_non_null(strstr(info, names[i]));
    assert_int_equal(info[strlen(info) - 1], '\n');
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_are_pinned),
        cmocka_unit_test(sentences),
        cmocka_unit_test(sentences_are_printable),
        cmocka_unit_test(warnings_and_progress),
        cmocka_unit_test(interruption),
        cmocka_unit_test(threads),
        cmocka_unit_test(allocation),
        cmocka_unit_test(creation_survives_lack_of_memory),
        cmocka_unit_test(build_info),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
