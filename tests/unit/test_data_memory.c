/* Every allocation of the readers and of the preparation fails once: a status, no leak. */
#include "folder_fixture.h"
#include "failing_malloc.h"
#include "data/prepare.h"

#include <unistd.h>

static void write_file(const char *name, const void *bytes, size_t size) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    fclose(file);
}

static void remove_file(const char *name) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    remove(path);
}

static wf_status open_and_close(wf_ctx *ctx, void *desc) {
    wf_dataset *data;
    WF_TRY(wf_dataset_open(ctx, desc, &data));
    wf_dataset_free(data);
    return WF_OK;
}

static void fail_all(const wf_data_desc *desc) {
    wf_ctx *ctx;
    wf_ctx_desc one = {.threads = 1};
    wf_data_desc copy = *desc;
    copy.root = folder;
    assert_int_equal(wf_ctx_create(&one, &ctx), WF_OK);
    fail_every_allocation(ctx, desc->path, open_and_close, &copy);
    wf_ctx_free(ctx);
}

static void delimited(void **state) {
    (void)state;
    const char text[] = "a,\"b\",c\n1,x,u\n2,y,u\n?,x,v\n4,,v\n5,z,u\n";
    write_file("t.csv", text, sizeof text - 1);
    wf_data_desc desc = wf_data_desc_default();
    desc.path = "t.csv";
    desc.test_path = "t.csv";
    desc.categorical = "b";
    fail_all(&desc);
    remove_file("t.csv");
}

static void joint(void **state) {
    (void)state;
    const char text[] = "a,b,c\n1,x,u\n2,y,u\n?,x,v\n4,z,v\n5,z,u\n";
    const char other[] = "b,c,a\nx,u,1\nw,u,?\nx,v,3\nz,v,4\n";
    write_file("t.csv", text, sizeof text - 1);
    write_file("o.csv", other, sizeof other - 1);
    wf_data_desc desc = wf_data_desc_default();
    desc.path = "t.csv";
    desc.joint = "o.csv";
    desc.categorical = "b";
    desc.merge = "b: w, z -> x";
    desc.rows = 4;
    desc.test_fraction = 0.5;
    fail_all(&desc);
    remove_file("t.csv");
    remove_file("o.csv");
}

static void arff(void **state) {
    (void)state;
    const char text[] = "@attribute a real\n@attribute 'b' {x,'y',z}\n@attribute c {u,v}\n@data\n"
                        "1,x,u\n{0 2, 1 'y'}\n?,?,v\n4,x,v\n";
    write_file("t.arff", text, sizeof text - 1);
    wf_data_desc desc = wf_data_desc_default();
    desc.path = "t.arff";
    desc.test_fraction = 0.5;
    fail_all(&desc);
    remove_file("t.arff");
}

static void idx(void **state) {
    (void)state;
    const uint8_t images[] = {0, 0, 8, 3, 0, 0, 0, 4, 0, 0, 0, 1,
                              0, 0, 0, 2, 1, 2, 3, 4, 5, 6, 7, 8};
    const uint8_t labels[] = {0, 0, 8, 1, 0, 0, 0, 4, 7, 3, 7, 3};
    write_file("x.idx", images, sizeof images);
    write_file("y.idx", labels, sizeof labels);
    wf_data_desc desc = wf_data_desc_default();
    desc.path = "x.idx";
    desc.labels = "y.idx";
    desc.test_fraction = 0.5;
    desc.scale = WF_SCALE_UNIT;
    fail_all(&desc);
    remove_file("x.idx");
    remove_file("y.idx");
}

static void builtin(void **state) {
    (void)state;
    wf_data_desc desc = wf_data_desc_default();
    desc.name = "spirals";
    desc.rows = 30;
    fail_all(&desc);
}

static int remove_folder(void **state) {
    (void)state;
    return rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(delimited), cmocka_unit_test(joint),   cmocka_unit_test(arff),
        cmocka_unit_test(idx),       cmocka_unit_test(builtin),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
