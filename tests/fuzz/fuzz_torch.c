/* torch.save files: any bytes are read or refused; what is read can be used. The bytes are taken
 * as a whole file, and as the pickle and the storage of a sound archive, because a checksum would
 * stop most mutations of a whole file. */
#include "driver.h"

#include "../torch_writer.h"
#include "zoo/torch_file.h"
#include "zoo/torch_pickle.h"
#include "zoo/zoo_import_layers.h"

enum { storage_floats = 64, most_tensors = 64 };

static void put_tensor(bytes *p, const char *name, view v) {
    v.elements = storage_floats;
    pickle_text(p, name);
    pickle_tensor(p, &v);
    put_string(p, "s");
}

/* state_dict of a 4-3-2 network whose tensors share one storage; some views are transposed or have
 * an offset. */
static bytes make_pickle(bool nested) {
    bytes p = {0};
    put_string(&p, "\x80\x02");
    if (nested) {
        put_string(&p, "}q");
        put_number(&p, 0, 1);
        pickle_text(&p, "state_dict");
    }
    pickle_dict(&p);
    put_tensor(&p, "module.0.weight", full_view("0", 2, 3, 4));
    put_tensor(&p, "module.0.bias", (view){"FloatStorage", "0", 0, 12, 1, {3}, {1}});
    put_tensor(&p, "module.2.weight", (view){"FloatStorage", "0", 0, 15, 2, {2, 3}, {1, 2}});
    put_string(&p, "}");
    pickle_text(&p, "_metadata");
    pickle_dict(&p);
    put_string(&p, nested ? "sbs." : "sb.");
    return p;
}

static bytes make_archive(const void *pickle, size_t size, bool deflated, bool zip64) {
    float storage[storage_floats];
    for (int i = 0; i < storage_floats; i++) storage[i] = (float)i / 8;
    zip_writer z = {0};
    zip_add(&z, "net/data.pkl", pickle, size, deflated);
    zip_add(&z, "net/data/0", storage, sizeof storage, deflated);
    zip_add(&z, "net/byteorder", "little", 6, false);
    return zip_end(&z, zip64);
}

const char *fuzz_seed(size_t index, size_t *size) {
    static bytes seed;
    if (index >= 6) return NULL;
    free(seed.data);
    seed = make_pickle(index & 1);
    if (index >= 2) {
        bytes pickle = seed;
        seed = make_archive(pickle.data, pickle.n, index >= 4, index & 1);
        free(pickle.data);
    }
    *size = seed.n;
    return (const char *)seed.data;
}

static void use_tensors(const wf_torch_file *file) {
    const wf_st_tensor *tensors[most_tensors];
    size_t n = 0;
    for (size_t i = 0; i < wf_torch_count(file); i++) {
        const wf_st_tensor *tensor = wf_torch_at(file, i);
        unsigned sum = 0;
        for (size_t k = 0; k < tensor->bytes; k++) sum += ((const uint8_t *)tensor->data)[k];
        float *values = malloc((tensor->count + 1) * sizeof *values);
        if (values == NULL) return;
        values[tensor->count] = (float)sum;
        if (wf_st_to_float(NULL, tensor, values) == WF_OK && values[tensor->count] != (float)sum)
            abort();
        free(values);
        if (n < most_tensors) tensors[n++] = tensor;
    }
    wf_import_chain chain;
    wf_import_resolve(NULL, "fuzz", tensors, n, NULL, true, &chain);
    wf_import_resolve(NULL, "fuzz", tensors, n, "0,2", false, &chain);
}

static void read_file(const void *data, size_t size) {
    wf_torch_file *file;
    if (wf_torch_parse(NULL, "fuzz", data, size, &file) == WF_OK) use_tensors(file);
    else if (file != NULL) abort();
    wf_torch_close(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    read_file(data, size);
    bytes archive = make_archive(data, size, false, false);
    read_file(archive.data, archive.n);
    free(archive.data);
    wf_arena arena = {0};
    const wf_pickle_value *value;
    wf_pickle_read(NULL, "fuzz", data, size, 32 << 20, &arena, &value);
    wf_arena_free(&arena);
    return 0;
}
