/* The collection reader: any file is opened or refused; what is opened can be used. */
#include "fuzz_file.h"
#include "fuzz_header.h"

#include "weft/zoo.h"

#include <stdlib.h>
#include <string.h>

/* Headers of collections of two networks; fuzz_seed puts their size before and data after them. */
static const fuzz_header_text seeds[] = {
    {"{\"__metadata__\":{\"weft.arch\":\"2-3\",\"weft.activation\":\"relu\"},"
     "\"layers.0.weight\":{\"dtype\":\"F32\",\"shape\":[2,3,2],\"data_offsets\":[0,48]},"
     "\"layers.0.bias\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[48,72]}}",
     72},
    {"{\"__metadata__\":{\"weft.arch\":\"1-2!-1!\",\"weft.activation\":\"tanh\",\"weft.format\":"
     "\"collection 1\"},"
     "\"layers.0.weight\":{\"dtype\":\"F32\",\"shape\":[2,2,1],\"data_offsets\":[0,16]},"
     "\"layers.1.weight\":{\"dtype\":\"F32\",\"shape\":[2,1,2],\"data_offsets\":[16,32]},"
     "\"weft.seed\":{\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[32,48]},"
     "\"weft.score.t\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[48,56]},"
     "\"weft.errors.t\":{\"dtype\":\"U8\",\"shape\":[2,3],\"data_offsets\":[56,62]}}",
     62},
};

const char *fuzz_seed(size_t index, size_t *size) {
    return index < sizeof seeds / sizeof *seeds ? fuzz_header(&seeds[index], 63, 0, size) : NULL;
}

static void use_collection(const wf_zoo *zoo) {
    size_t count = wf_zoo_count(zoo), n = wf_zoo_graph(zoo)->n_params, bytes;
    float *w = NULL, sum = 0;
    if (count == 0) abort();
    wf_status status = wf_zoo_load(NULL, zoo, 0, count, &w);
    if (status == WF_ERR_INPUT && wf_zoo_meta(zoo, "weft.digest") != NULL) return; /* a wrong one */
    if (status != WF_OK) abort();
    for (size_t i = 0; i < count * n; i++) sum += w[i];
    free(w);
    const float *scores = wf_zoo_scores(zoo, NULL);
    const uint8_t *errors = wf_zoo_errors(zoo, NULL, &bytes);
    const int64_t *seed = wf_zoo_seeds(zoo);
    for (size_t i = 0; i < count; i++) {
        sum += scores != NULL ? scores[i] : 0;
        sum += seed != NULL ? (float)seed[i] : 0;
        for (size_t b = 0; errors != NULL && b < bytes; b++) sum += errors[i * bytes + b];
    }
    static volatile float sink; /* so that the reads are made */
    sink = sum;
    (void)sink;
}

static void open_bytes(const uint8_t *data, size_t size) {
    fuzz_file file;
    wf_zoo *zoo = NULL;
    if (!fuzz_file_open(&file, data, size)) return;
    if (wf_zoo_open(NULL, file.path, &zoo) == WF_OK) use_collection(zoo);
    wf_zoo_free(zoo);
    fuzz_file_close(&file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_repaired(open_bytes, data, size);
    return 0;
}
