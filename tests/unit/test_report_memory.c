/* A page without memory: the same page, or a failure that says so; never another curve. */
#include "failing_malloc.h"
#include "weft/file.h"
#include "weft/report.h"

#include <unistd.h>

static char folder[] = "/tmp/weft_test_XXXXXX", log_path[64], path[64];
static char *good;

static void write_log(void) {
    FILE *file = fopen(log_path, "w");
    assert_non_null(file);
    for (int i = 1; i <= 40; i++) /* longer than the first buffer of a reader of JSON */
        fprintf(file, "{\"update\":%d,\"loss\":%.17g,\"grad_norm\":1,\"lr\":0.002}\n", i,
                0.5 + 1.0 / (3 * i));
    fclose(file);
}

static wf_status write_page(wf_ctx *ctx, void *arg) {
    (void)arg;
    wf_report_desc desc = wf_report_desc_default();
    desc.title = "memory";
    desc.logs = &(wf_report_log){.path = log_path};
    desc.n_logs = 1;
    unlink(path);
    wf_status status = wf_report_write(ctx, &desc, path);
    if (status != WF_OK) {
        assert_false(wf_file_exists(path));
        return status;
    }
    long countdown = atomic_exchange(&malloc_countdown, -1);
    char *page;
    size_t size;
    assert_ok(ctx, wf_read_file(ctx, path, 1 << 24, &page, &size));
    if (good == NULL) good = page;
    else {
        assert_string_equal(page, good);
        free(page);
    }
    atomic_store(&malloc_countdown, countdown);
    return WF_OK;
}

static void the_curve_is_whole_or_not_there(void **state) {
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(log_path, sizeof log_path, "%s/log.jsonl", folder);
    snprintf(path, sizeof path, "%s/page.html", folder);
    write_log();
    wf_ctx *ctx = test_ctx();
    fail_every_allocation(ctx, "report", write_page, NULL);
    assert_non_null(strstr(good, "<h2>Training</h2>"));
    wf_ctx_free(ctx);
    free(good);
    unlink(log_path), unlink(path), rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_curve_is_whole_or_not_there)};
    return cmocka_run_group_tests_name("report without memory", tests, NULL, NULL);
}
