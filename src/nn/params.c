#include "nn/params.h"

#include "base/random.h"

#include <stdlib.h>

int wf_params_add(wf_params *list, const wf_field_tensor *tensor) {
    if (list->count == list->capacity && !list->failed) {
        int capacity = list->capacity == 0 ? 32 : 2 * list->capacity;
        void *more = realloc(list->tensors, (size_t)capacity * sizeof *list->tensors);
        if (more == NULL) {
            list->failed = true;
        } else {
            list->tensors = more;
            list->capacity = capacity;
        }
    }
    if (list->failed) return 0;
    wf_field_tensor *own = &list->tensors[list->count];
    *own = *tensor;
    own->offset = list->total;
    list->total += (size_t)tensor->rows * (size_t)tensor->cols;
    return list->count++;
}

void wf_params_free(wf_params *list) {
    free(list->tensors);
    *list = (wf_params){.count = 0};
}

static size_t tensor_size(const wf_field_tensor *tensor) {
    return (size_t)tensor->rows * (size_t)tensor->cols;
}

int wf_params_stages(const wf_field_tensor *tensors, int count, int most, int *stage) {
    size_t total = 0, share = 0;
    int now = 0;
    for (int i = 0; i < count; i++) total += tensor_size(&tensors[i]);
    for (int i = count; i-- > 0;) {
        if (tensors[i].early) continue;
        if (share * (size_t)most >= total && now < most - 1) now++, share = 0;
        stage[i] = now;
        share += tensor_size(&tensors[i]);
    }
    for (int i = 0; i < count; i++)
        if (tensors[i].early) stage[i] = now;
    return now + 1;
}

int wf_params_find(const wf_field_tensor *tensors, int count, size_t place) {
    int first = 0, last = count; /* the last tensor that begins at it or before */
    while (last - first > 1) {
        int middle = (first + last) / 2;
        if (tensors[middle].offset <= place) first = middle;
        else last = middle;
    }
    return place < tensors[first].offset + tensor_size(&tensors[first]) ? first : -1;
}

static void put(wf_dtype dtype, void *out, size_t i, double value) {
    if (dtype == WF_F64) ((double *)out)[i] = value;
    else ((float *)out)[i] = (float)value;
}

void wf_fill_normals(wf_dtype dtype, void *out, size_t count, const wf_rng *rng, double std) {
    enum { some = 256 };
    float deviates[some];
    for (size_t first = 0; first < count; first += some) {
        size_t n = count - first < some ? count - first : some;
        wf_rng_normals_from(rng, first, deviates, n);
        for (size_t i = 0; i < n; i++) put(dtype, out, first + i, std * deviates[i]);
    }
}

void wf_params_init(const wf_field_tensor *tensors, int count, wf_dtype dtype, uint64_t seed,
                    void *params) {
    size_t size = dtype == WF_F64 ? sizeof(double) : sizeof(float);
    for (int i = 0; i < count; i++) {
        const wf_field_tensor *tensor = &tensors[i];
        size_t values = (size_t)tensor->rows * (size_t)tensor->cols;
        void *out = (char *)params + tensor->offset * size;
        wf_rng rng = wf_rng_at(seed, (uint32_t)i, WF_RNG_FIELD_INIT, 0);
        if (tensor->start == WF_START_NORMAL) {
            wf_fill_normals(dtype, out, values, &rng, tensor->spread);
            continue;
        }
        for (size_t k = 0; k < values; k++)
            put(dtype, out, k,
                tensor->start == WF_START_ZERO ? 0
                : tensor->start == WF_START_ONE
                    ? 1
                    : tensor->spread * (2 * (double)wf_rng_uniform(&rng) - 1));
    }
}
