/* The safetensors reader and writer: what is legal is read exactly, everything else is refused. */
#include "wf_test.h"
#include "base/safetensors.h"

#include <unistd.h>

static wf_ctx *ctx;
static char folder[] = "/tmp/weft_st_XXXXXX";

static const char *in_folder(const char *name) {
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* --- writing and reading back ------------------------------------------------------------------ */

static void round_trip(void **state) {
    (void)state;
    float weight[6] = {1, -2, 3.5f, -0.0f, INFINITY, 1e-42f};
    double scale[1] = {0.1};
    uint8_t mask[5] = {1, 2, 3, 4, 5};
    wf_st_tensor tensors[] = {
        {.name = "mask", .dtype = WF_ST_U8, .rank = 1, .shape = {5}, .data = mask},
        {.name = "b.weight", .dtype = WF_ST_F32, .rank = 2, .shape = {2, 3}, .data = weight},
        {.name = "nothing", .dtype = WF_ST_F32, .rank = 3, .shape = {4, 0, 2}},
        {.name = "scale \"\xc3\xa9\"", .dtype = WF_ST_F64, .rank = 0, .data = scale},
    };
    const char *meta[][2] = {{"format", "weft"}, {"", "line one\nline \"two\""}};
    const char *path = in_folder("round.safetensors");
    assert_ok(ctx, wf_st_write(ctx, path, tensors, 4, meta, 2));
    wf_st_file *file;
    assert_ok(ctx, wf_st_open(ctx, path, &file));
    assert_int_equal(wf_st_count(file), 4);
    assert_string_equal(wf_st_at(file, 0)->name, "scale \"\xc3\xa9\"");
    assert_string_equal(wf_st_at(file, 3)->name, "mask");
    const wf_st_tensor *found = wf_st_find(file, "b.weight");
    assert_non_null(found);
    assert_int_equal(found->rank, 2);
    assert_int_equal(found->shape[0], 2);
    assert_int_equal(found->shape[1], 3);
    assert_int_equal(found->count, 6);
    assert_int_equal(found->bytes, 24);
    assert_memory_equal(found->data, weight, sizeof weight);
    found = wf_st_find(file, "scale \"\xc3\xa9\"");
    assert_int_equal(found->rank, 0);
    assert_int_equal(found->count, 1);
    assert_int_equal((uintptr_t)found->data % 64, 0);
    assert_memory_equal(found->data, scale, sizeof scale);
    assert_memory_equal(wf_st_find(file, "mask")->data, mask, sizeof mask);
    assert_int_equal(wf_st_find(file, "nothing")->bytes, 0);
    assert_null(wf_st_find(file, "absent"));
    assert_int_equal(wf_st_meta_count(file), 2);
    assert_string_equal(wf_st_meta(file, ""), "line one\nline \"two\"");
    assert_string_equal(wf_st_meta(file, "format"), "weft");
    assert_null(wf_st_meta(file, "absent"));
    wf_st_close(file);
}

static int set_up(void **state) {
    (void)state;
    ctx = test_ctx();
    return mkdtemp(folder) == NULL;
}

static int tear_down(void **state) {
    (void)state;
    wf_ctx_free(ctx);
    char command[300];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(round_trip)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
