/* Preparations as JSON: any text is read or refused; what is read is written and read again. */
#include "driver.h"

#include "data/prepare.h"

#include <stdlib.h>
#include <string.h>

static const char *const seeds[] = {
    "{\"format\": \"weft preparation 1\", \"scale\": \"standard\", \"target\": \"class\", "
    "\"classes\": "
    "[\"a\", \"b\"], \"columns\": [{\"name\": \"age\", \"impute\": 54.0, \"mean\": 53.9, \"std\": "
    "9.1}, "
    "{\"name\": \"sex\", \"levels\": [\"female\", \"male\"], \"impute\": \"male\"}]}",
};

FUZZ_TEXTS(seeds)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = malloc(size + 1);
    if (text == NULL) return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    wf_preparation one, two;
    if (wf__preparation_read(NULL, text, &one) == WF_OK) {
        char *written = wf__preparation_write(&one);
        if (written == NULL || wf__preparation_read(NULL, written, &two) != WF_OK) abort();
        char *again = wf__preparation_write(&two);
        if (again == NULL || strcmp(written, again) != 0) abort();
        free(written);
        free(again);
        wf__preparation_free(&one);
        wf__preparation_free(&two);
    }
    free(text);
    return 0;
}
