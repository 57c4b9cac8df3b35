/* The safetensors reader: any bytes are read or refused; what is read can be used. */
#include "fuzz_header.h"

#include "base/safetensors.h"

#include <stdlib.h>
#include <string.h>

/* Headers; fuzz_seed puts their size before and data after them. */
static const fuzz_header_text seeds[] = {
    {"{}", 0},
    {"{\"__metadata__\":{\"format\":\"weft\",\"graph\":\"64-16-8-10\"}}   ", 0},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
     "\"b\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[24,29]}}",
     29},
    {"{\"h\":{\"dtype\":\"F16\",\"shape\":[4],\"data_offsets\":[8,16]},"
     "\"e\":{\"dtype\":\"I64\",\"shape\":[0,7],\"data_offsets\":[8,8]},"
     "\"d\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]}}",
     16},
    {"{\"r\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1},
};

const char *fuzz_seed(size_t index, size_t *size) {
    return index < sizeof seeds / sizeof *seeds ? fuzz_header(&seeds[index], 0, 17, size) : NULL;
}

static void use_tensor(const wf_st_file *file, const wf_st_tensor *tensor, const uint8_t *data,
                       size_t size) {
    const uint8_t *begin = tensor->data;
    if (begin < data || begin + tensor->bytes > data + size) abort();
    if (wf_st_find(file, tensor->name) != tensor) abort();
    unsigned sum = 0;
    for (size_t i = 0; i < tensor->bytes; i++) sum += begin[i];
    float *values = malloc((tensor->count + 1) * sizeof *values);
    if (values == NULL) return;
    values[tensor->count] = (float)sum;
    if (wf_st_to_float(NULL, tensor, values) == WF_OK && values[tensor->count] != (float)sum)
        abort();
    free(values);
}

static void read_bytes(const uint8_t *data, size_t size) {
    wf_st_file *file;
    if (wf_st_parse(NULL, "fuzz", data, size, &file) != WF_OK) {
        if (file != NULL) abort();
        return;
    }
    for (size_t i = 0; i < wf_st_count(file); i++) use_tensor(file, wf_st_at(file, i), data, size);
    for (size_t i = 0; i < wf_st_meta_count(file); i++) {
        const char *key, *value;
        wf_st_meta_at(file, i, &key, &value);
        if (wf_st_meta(file, key) != value) abort();
    }
    wf_st_close(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_repaired(read_bytes, data, size);
    return 0;
}
