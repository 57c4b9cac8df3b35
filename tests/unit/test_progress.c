/* Lines of progress on stderr (src/cli/progress.c): rates, time left, and when a line appears. */
#include "cli/cli.h"
#include "ctx_fixture.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* What a report leaves on stderr. */
static void report(wf_run_app *app, const wf_progress *progress, char *out, size_t size) {
    int ends[2], kept = dup(STDERR_FILENO);
    assert_int_equal(pipe(ends), 0);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    assert_true(dup2(ends[1], STDERR_FILENO) >= 0);
    cli_progress_report(app, progress);
    dup2(kept, STDERR_FILENO);
    ssize_t length = read(ends[0], out, size - 1);
    out[length > 0 ? length : 0] = '\0';
    close(kept);
    close(ends[0]);
    close(ends[1]);
}

static wf_progress at(double done, double seconds, bool last) {
    return (wf_progress){.stage = "testing",
                         .unit = "networks",
                         .detail = "",
                         .done = done,
                         .total = 300,
                         .seconds = seconds,
                         .last = last};
}

/* A first report that comes late does not shorten the time that the work took. */
static void late_first_report(void **state) {
    (void)state;
    char line[256];
    wf_run_app app = {.ctx = NULL};
    wf_progress begun[] = {at(0, 5.9999, false), at(30, 5.9999, false)}, end = at(300, 6, true);
    for (int i = 0; i < 2; i++) {
        report(&app, &begun[i], line, sizeof line);
        assert_memory_equal(line, i == 0 ? "testing: 0 of" : "testing: 30 of", 13);
        report(&app, &end, line, sizeof line);
        assert_string_equal(line, "testing: 300 networks in 6.0 s, 50/s\n");
    }
}

/* What an earlier call had done took none of this one's time. */
static void resumed(void **state) {
    (void)state;
    char line[256];
    wf_run_app app = {.ctx = NULL};
    wf_progress begun = at(200, 0, false), later = at(220, 10, false), end = at(300, 50, true);
    report(&app, &begun, line, sizeof line);
    assert_string_equal(line, ""); /* too early */
    report(&app, &later, line, sizeof line);
    assert_string_equal(line, "testing: 220 of 300 networks (73 %), 2/s, 40 s left\n");
    report(&app, &end, line, sizeof line);
    assert_string_equal(line, "testing: 300 networks in 50 s, 2/s\n");
}

/* Stages that end within a second leave no line, nor does any when the user wants none. */
static void silence(void **state) {
    (void)state;
    char line[256];
    wf_run_app app = {.ctx = NULL}, quiet = {.progress = {.quiet = true}};
    wf_progress end = at(300, 0.9, true), slow = at(300, 20, true);
    report(&app, &end, line, sizeof line);
    assert_string_equal(line, "");
    report(&quiet, &slow, line, sizeof line);
    assert_string_equal(line, "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(late_first_report),
        cmocka_unit_test(resumed),
        cmocka_unit_test(silence),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
