/* Folders that the system cannot read to their end: nothing that depends on all of their files goes
 * on. */
#include "ctx_fixture.h"
#include "base/io.h"
#include "weft/import.h"
#include "weft/zoo.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>

static int readable = -1; /* entries before readdir fails; -1: all */

struct dirent *readdir(DIR *folder_) {
    static struct dirent *(*real)(DIR *);
    if (real == NULL) *(void **)&real = dlsym(RTLD_NEXT, "readdir");
    if (readable == 0) {
        errno = EIO;
        return NULL;
    }
    if (readable > 0) readable--;
    return real(folder_);
}

static wf_status count(void *counted, const char *name) {
    assert_non_null(strchr("abc", name[0]));
    ++*(int *)counted;
    return WF_OK;
}

static wf_status stop(void *counted, const char *name) {
    (void)name;
    return ++*(int *)counted == 2 ? wf_fail(ctx, WF_ERR_FAILED, "enough") : WF_OK;
}

static void put_file(const char *name, const void *bytes, size_t size) {
    assert_ok(ctx, wf_write_file(ctx, in_folder(name), bytes, size));
}

static void a_folder_is_listed_whole_or_not_at_all(void **state) {
    (void)state;
    char place[256];
    snprintf(place, sizeof place, "%s", in_folder("three"));
    assert_ok(ctx, wf_make_folder(ctx, place));
    put_file("three/a", "", 0);
    put_file("three/b", "", 0);
    put_file("three/c", "", 0);
    int counted = 0;
    assert_ok(ctx, wf_list_folder(ctx, place, count, &counted));
    assert_int_equal(counted, 3);
    counted = 0;
    assert_int_equal(wf_list_folder(ctx, place, stop, &counted), WF_ERR_FAILED);
    assert_int_equal(counted, 2);
    for (readable = 0; readable < 5; readable++) {
        int before = readable;
        counted = 0;
        assert_fails(ctx, wf_list_folder(ctx, place, count, &counted), WF_ERR_INPUT,
                     "cannot be read to its end: Input/output error");
        readable = before;
    }
    readable = -1;
    assert_fails(ctx, wf_list_folder(ctx, in_folder("absent"), count, &counted), WF_ERR_INPUT,
                 "No such file");
}

static void an_import_needs_all_files(void **state) {
    (void)state;
    wf_graph *graph;
    wf_zoo *zoo;
    const float weights[] = {1, 2, 3, 4, 5, 6};
    assert_ok(ctx, wf_graph_parse(ctx, "2-2", "relu", 0, &graph));
    assert_ok(ctx, wf_zoo_write(ctx, in_folder("zoo.safetensors"), graph, weights, 1, NULL));
    assert_ok(ctx, wf_zoo_open(ctx, in_folder("zoo.safetensors"), &zoo));
    char place[256], out[256];
    snprintf(place, sizeof place, "%s", in_folder("networks"));
    snprintf(out, sizeof out, "%s", in_folder("out.safetensors"));
    assert_ok(ctx, wf_make_folder(ctx, place));
    for (int i = 0; i < 4; i++) {
        char name[64];
        snprintf(name, sizeof name, "networks/%d.safetensors", i);
        assert_ok(ctx, wf_zoo_export(ctx, zoo, 0, in_folder(name), NULL));
    }
    wf_import_desc desc = wf_import_desc_default();
    desc.activation = "relu";
    wf_import_result result;
    for (int n = 0; n < 6; n++) {
        readable = n;
        assert_fails(ctx, wf_zoo_import(ctx, place, &desc, out, &result), WF_ERR_INPUT,
                     "cannot be read to its end");
        assert_false(wf_file_exists(out));
    }
    readable = -1;
    assert_ok(ctx, wf_zoo_import(ctx, place, &desc, out, &result));
    assert_int_equal(result.collections[0].count, 4);
    wf_import_result_free(&result);
    wf_zoo_free(zoo);
    wf_graph_free(graph);
}

/* A process that was killed holds no lock on its temporary folder. */
static void temporary_folders_of_the_dead_are_swept(void **state) {
    (void)state;
    char root[256];
    wf_scratch *one, *two;
    snprintf(root, sizeof root, "%s", in_folder("temporary"));
    assert_ok(ctx, wf_make_folder(ctx, root));
    assert_int_equal(setenv("TMPDIR", root, 1), 0);
    assert_ok(ctx, wf_scratch_make(ctx, "plan", &one));
    assert_int_equal(strncmp(wf_scratch_path(one), root, strlen(root)), 0);
    static const char *const left[] = {"temporary/plan_dead", "temporary/plan_killed/inside",
                                       "temporary/planned_by_others"};
    for (size_t i = 0; i < 3; i++) assert_ok(ctx, wf_make_folder(ctx, in_folder(left[i])));
    put_file("temporary/plan_dead/.lock", "", 0);
    put_file("temporary/plan_killed/inside/file", "x", 1);
    put_file("temporary/plan_file", "no folder", 9);
    assert_ok(ctx, wf_scratch_make(ctx, "plan", &two));
    assert_string_not_equal(wf_scratch_path(one), wf_scratch_path(two));
    assert_false(wf_file_exists(in_folder("temporary/plan_dead")));
    assert_false(wf_file_exists(in_folder("temporary/plan_killed")));
    assert_true(wf_file_exists(in_folder("temporary/planned_by_others")));
    assert_true(wf_file_exists(in_folder("temporary/plan_file")));
    assert_true(wf_file_exists(wf_scratch_path(one)) && wf_file_exists(wf_scratch_path(two)));
    char path[256];
    snprintf(path, sizeof path, "%s", wf_scratch_path(one));
    wf_scratch_free(one);
    assert_false(wf_file_exists(path));
    wf_scratch_sweep("plan");
    assert_true(wf_file_exists(wf_scratch_path(two)));
    wf_scratch_free(two);
    wf_scratch_free(NULL);
    assert_int_equal(setenv("TMPDIR", in_folder("nowhere"), 1), 0);
    assert_fails(ctx, wf_scratch_make(ctx, "plan", &one), WF_ERR_DISK, "no temporary folder");
    assert_null(one);
    unsetenv("TMPDIR");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_folder_is_listed_whole_or_not_at_all),
        cmocka_unit_test(an_import_needs_all_files),
        cmocka_unit_test(temporary_folders_of_the_dead_are_swept),
    };
    return cmocka_run_group_tests_name("folders", tests, set_up, tear_down);
}
