/* The CIFAR and tar readers, images as inputs, means and deviations of channels. Small batches made
 * here. */

#include "ctx_fixture.h"
#include "base/tar.h"
#include "data/data_table.h"
#include "weft/file.h"

#include <sys/stat.h>
#include <zlib.h>

enum { record = 3073, images = 4 };

/* Image r: label (3 r + from) % 10; channel c has the value 10 c + r everywhere. */
static void make_batch(int from, uint8_t *out) {
    for (int r = 0; r < images; r++, out += record) {
        out[0] = (uint8_t)((3 * r + from) % 10);
        for (int p = 0; p < 3072; p++) out[1 + p] = (uint8_t)(10 * (p / 1024) + r);
    }
}

static void write_file(const char *name, const void *bytes, size_t size) {
    assert_ok(ctx, wf_write_file(ctx, in_folder(name), bytes, size));
}

static const char *const batch_names[] = {"data_batch_1.bin", "data_batch_2.bin",
                                          "data_batch_3.bin", "data_batch_4.bin",
                                          "data_batch_5.bin", "test_batch.bin"};

/* Appends a tar entry; returns the bytes that it takes. */
static size_t add_entry(uint8_t *at, const char *name, char type, const uint8_t *bytes,
                        size_t size) {
    unsigned sum = 0;
    memset(at, 0, 512);
    snprintf((char *)at, 100, "%s", name);
    snprintf((char *)at + 124, 12, "%011zo", size);
    memset(at + 148, ' ', 8);
    at[156] = (uint8_t)type;
    memcpy(at + 257, "ustar\0", 6);
    for (int i = 0; i < 512; i++) sum += at[i];
    snprintf((char *)at + 148, 8, "%06o", sum);
    if (size > 0) memcpy(at + 512, bytes, size);
    size_t filled = (size + 511) / 512 * 512;
    memset(at + 512 + size, 0, filled - size);
    return 512 + filled;
}

/* The official archive in small: a folder, a text, six batches, two blocks of zeros. */
static uint8_t *make_archive(size_t *size) {
    uint8_t *tar = calloc(1, 200000), batch[images * record];
    size_t at = add_entry(tar, "cifar-10-batches-bin/", '5', NULL, 0);
    at += add_entry(tar + at, "cifar-10-batches-bin/batches.meta.txt", '0', (uint8_t *)"cat\n", 4);
    for (int i = 0; i < 6; i++) {
        char name[100];
        snprintf(name, sizeof name, "cifar-10-batches-bin/%s", batch_names[i]);
        make_batch(i, batch);
        at += add_entry(tar + at, name, '0', batch, sizeof batch);
    }
    *size = at + 1024;
    return tar;
}

static void make_files(void) {
    uint8_t batch[images * record];
    char name[64];
    mkdir(in_folder("cifar-10"), 0755);
    for (int i = 0; i < 6; i++) {
        make_batch(i, batch);
        snprintf(name, sizeof name, "cifar-10/%s%s", batch_names[i], i == 2 ? ".gz" : "");
        if (i != 2) {
            write_file(name, batch, sizeof batch);
            continue;
        }
        gzFile packed = gzopen(in_folder(name), "wb");
        assert_int_equal(gzwrite(packed, batch, sizeof batch), sizeof batch);
        gzclose(packed);
    }
    size_t size;
    uint8_t *tar = make_archive(&size);
    gzFile packed = gzopen(in_folder("cifar-10-binary.tar.gz"), "wb");
    assert_int_equal(gzwrite(packed, tar, (unsigned)size), (int)size);
    gzclose(packed);
    free(tar);
}

static wf_data_desc described(const char *path) {
    wf_data_desc desc = wf_data_desc_default();
    desc.root = folder;
    desc.path = path;
    desc.scale = WF_SCALE_NONE;
    return desc;
}

static void check_whole(const char *path, char fingerprint[65]) {
    wf_dataset *data;
    wf_data_desc desc = described(path);
    assert_ok(ctx, wf_dataset_open(ctx, &desc, &data));
    assert_int_equal(data->n_train, 5 * images);
    assert_int_equal(data->n_test, images);
    assert_int_equal(data->inputs, 3072);
    assert_int_equal(data->classes, 10);
    assert_int_equal(data->channels, 3);
    assert_int_equal(data->height, 32);
    assert_int_equal(data->width, 32);
    assert_string_equal(data->input_names[1024 + 33], "pixel 1,1,1");
    for (size_t r = 0; r < data->n_train; r++) {
        assert_int_equal(data->y_train[r], (3 * (r % images) + r / images) % 10);
        assert_close(data->x_train[r * 3072 + 1500], 10.0 + (double)(r % images), 0);
    }
    for (size_t r = 0; r < data->n_test; r++) assert_int_equal(data->y_test[r], (3 * r + 5) % 10);
    memcpy(fingerprint, data->fingerprint, 65);
    wf_dataset_free(data);
}

static void folder_and_archive(void **state) {
    (void)state;
    char of_folder[65], of_archive[65];
    make_files();
    check_whole("cifar-10", of_folder);
    check_whole("cifar-10-binary.tar.gz", of_archive);
    assert_string_equal(of_folder, of_archive);
    /* One batch to train and one to test. */
    wf_dataset *data;
    wf_data_desc desc = described("cifar-10/data_batch_1.bin");
    desc.test_path = "cifar-10/data_batch_1.bin";
    assert_ok(ctx, wf_dataset_open(ctx, &desc, &data));
    assert_int_equal(data->n_train, images);
    assert_memory_equal(data->x_train, data->x_test, images * 3072 * sizeof(float));
    wf_dataset_free(data);
    desc.test_path = "cifar-10-binary.tar.gz";
    assert_fails(ctx, wf_dataset_open(ctx, &desc, &data), WF_ERR_USAGE, "its own test part");
    unlink(in_folder("cifar-10/data_batch_4.bin"));
    desc = described("cifar-10");
    assert_fails(ctx, wf_dataset_open(ctx, &desc, &data), WF_ERR_INPUT,
                 "data_batch_4.bin is missing");
}

/* CIFAR-100: a coarse and a fine label; target chooses. */
static void hundred_classes(void **state) {
    (void)state;
    enum { rows = 8, each = 3074 };
    uint8_t *batch = calloc(rows, each);
    for (int r = 0; r < rows; r++) {
        batch[r * each] = (uint8_t)(r % 2);
        batch[r * each + 1] = (uint8_t)(90 + r % 4);
    }
    mkdir(in_folder("cifar-100"), 0755);
    write_file("cifar-100/train.bin", batch, rows * each);
    write_file("cifar-100/test.bin", batch, rows * each);
    wf_dataset *data;
    wf_data_desc desc = described("cifar-100");
    assert_ok(ctx, wf_dataset_open(ctx, &desc, &data));
    assert_int_equal(data->classes, 4);
    assert_string_equal(data->class_names[3], "93");
    wf_dataset_free(data);
    desc.target = "coarse";
    assert_ok(ctx, wf_dataset_open(ctx, &desc, &data));
    assert_int_equal(data->classes, 2);
    wf_dataset_free(data);
    desc.target = "colour";
    assert_fails(ctx, wf_dataset_open(ctx, &desc, &data), WF_ERR_USAGE, "coarse and fine");
    batch[5 * each] = 20;
    write_file("cifar-100/test.bin", batch, rows * each);
    desc.target = NULL;
    assert_fails(ctx, wf_dataset_open(ctx, &desc, &data), WF_ERR_INPUT,
                 "test.bin: image 5 has the coarse label 20; expected 0 to 19");
    free(batch);
}

static void bad_batches(void **state) {
    (void)state;
    uint8_t batch[images * record];
    wf_dataset *data;
    wf_data_desc desc = described("one.bin");
    make_batch(0, batch);
    write_file("one.bin", batch, sizeof batch);
    assert_fails(ctx, wf_dataset_open(ctx, &desc, &data), WF_ERR_USAGE, "cifar10");
    desc.format = "cifar10";
    write_file("one.bin", batch, sizeof batch - 100);
    assert_fails(ctx, wf_dataset_open(ctx, &desc, &data), WF_ERR_INPUT, "it is cut off");
    write_file("one.bin", batch, 0);
    assert_fails(ctx, wf_dataset_open(ctx, &desc, &data), WF_ERR_INPUT, "0 bytes");
    batch[2 * record] = 10;
    write_file("one.bin", batch, sizeof batch);
    assert_fails(ctx, wf_dataset_open(ctx, &desc, &data), WF_ERR_INPUT,
                 "image 2 has the label 10; expected 0 to 9");
}

static void bad_archives(void **state) {
    (void)state;
    size_t size;
    uint8_t *tar = make_archive(&size), kept = tar[0];
    wf_table train = {0}, test = {0};
    const struct {
        size_t size, place; /* bytes that are there; one that is changed */
        uint8_t value;
        const char *words;
    } cases[] = {
        {size, 0, 'C', "header at byte 0 has another checksum"},
        {size - 1024, 0, kept, "without its end mark"},
        {1536 + 512 + 100, 0, kept, "12292 bytes, but 100 are left"},
        {300, 0, kept, "cut off"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tar[cases[i].place] = cases[i].value;
        char *exact = malloc(cases[i].size);
        memcpy(exact, tar, cases[i].size);
        assert_fails(ctx,
                     wf__cifar_from_tar(ctx, "t", exact, cases[i].size, 10, NULL, &train, &test),
                     WF_ERR_INPUT, cases[i].words);
        free(exact);
        tar[0] = kept;
    }
    assert_fails(ctx, wf__cifar_from_tar(ctx, "t", (char *)tar, size, 100, NULL, &train, &test),
                 WF_ERR_INPUT, "train.bin is missing; CIFAR-100 has it");
    size_t at = add_entry(tar, "link", '2', NULL, 0);
    memset(tar + at, 0, 1024);
    assert_fails(ctx, wf__cifar_from_tar(ctx, "t", (char *)tar, at + 1024, 10, NULL, &train, &test),
                 WF_ERR_INPUT, "neither a file nor a folder");
    wf__table_free(&train);
    wf__table_free(&test);
    free(tar);
}

/* One mean and one deviation for each channel: bytes against the formula, digits against their
 * inputs. */
static void channel_scale(void **state) {
    (void)state;
    wf_dataset *data;
    uint8_t batch[images * record];
    make_batch(0, batch);
    write_file("cifar-10-part.bin", batch, sizeof batch);
    wf_data_desc desc = described("cifar-10-part.bin");
    desc.test_path = desc.path;
    desc.scale = WF_SCALE_CHANNEL;
    assert_ok(ctx, wf_dataset_open(ctx, &desc, &data));
    for (int r = 0; r < images; r++) /* values r = 0 .. 3: mean 1.5, deviation sqrt(1.25) */
        for (int c = 0; c < 3; c++)
            assert_close(data->x_train[r * 3072 + c * 1024 + 7], (r - 1.5) / sqrt(1.25), 1e-6);
    wf_dataset_free(data);
    desc = wf_data_desc_default();
    desc.name = "digits";
    desc.scale = WF_SCALE_CHANNEL;
    assert_ok(ctx, wf_dataset_open(ctx, &desc, &data));
    double sum = 0, squares = 0;
    size_t n = data->n_train * 64;
    for (size_t i = 0; i < n; i++) {
        sum += data->x_train[i];
        squares += (double)data->x_train[i] * data->x_train[i];
    }
    assert_close(sum / (double)n, 0, 1e-6);
    assert_close(squares / (double)n, 1, 1e-6);
    wf_dataset_free(data);
    desc.name = "moons";
    assert_fails(ctx, wf_dataset_open(ctx, &desc, &data), WF_ERR_USAGE, "needs images");
}

static void shapes(void **state) {
    (void)state;
    wf_dataset *data;
    wf_data_desc desc = wf_data_desc_default();
    desc.name = "digits";
    assert_ok(ctx, wf_dataset_open(ctx, &desc, &data));
    const char *const texts[][2] = {
        {"64-8-10", NULL},
        {"1x8x8 conv4 gap linear10", NULL},
        {"1x4x16 conv4 gap linear10", "expect images of 1x4x16"},
        {"3x32x32 conv4 gap linear10", "data set digits has images of 1x8x8"},
        {"1x8x8 conv4 gap linear9", "have 9 outputs; data set digits has images of 1x8x8 and 10"},
        {"63-8-10", "expect 63 inputs"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        wf_graph *graph;
        assert_ok(ctx, wf_graph_parse(ctx, texts[i][0], "relu", 0, &graph));
        if (texts[i][1] == NULL) assert_ok(ctx, wf_dataset_fits(ctx, data, graph));
        else assert_fails(ctx, wf_dataset_fits(ctx, data, graph), WF_ERR_SHAPE, texts[i][1]);
        wf_graph_free(graph);
    }
    wf_dataset_free(data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(folder_and_archive), cmocka_unit_test(hundred_classes),
        cmocka_unit_test(bad_batches),        cmocka_unit_test(bad_archives),
        cmocka_unit_test(channel_scale),      cmocka_unit_test(shapes),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
