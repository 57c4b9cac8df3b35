/* The files of a run: the first byte says which of them the rest replaces; `weft report` then reads all
 * of them. Whatever stands there, it is read or refused with one of the program's exit codes. */
#include "fuzz_program.h"

static const char *const names[] = {"stage.json", "eval.json", "points.json",
                                    "flow.safetensors.log.jsonl", "recipe.conf"};
enum { n_names = sizeof names / sizeof *names };

static char *good[n_names];
static size_t good_size[n_names];

static void make_run(void) {
    if (good[0] != NULL) return;
    fuzz_put("tiny.conf", fuzz_recipe, sizeof fuzz_recipe - 1);
    const char *folder = fuzz_path("run");
    if (fuzz_weft((const char *[]){"run", fuzz_path("tiny.conf"), "-o", folder, NULL}) != 0)
        abort();
    for (int k = 0; k < n_names; k++) {
        char inner[128];
        snprintf(inner, sizeof inner, "run/%s", names[k]);
        good[k] = fuzz_get(inner, &good_size[k]);
    }
}

const char *fuzz_seed(size_t index, size_t *size) {
    static char *seed;
    if (index >= n_names) return NULL;
    make_run();
    free(seed);
    seed = malloc(good_size[index] + 1);
    if (seed == NULL) return NULL;
    seed[0] = (char)index;
    memcpy(seed + 1, good[index], good_size[index]);
    *size = good_size[index] + 1;
    return seed;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    make_run();
    int which = data[0] % n_names;
    char inner[128];
    snprintf(inner, sizeof inner, "run/%s", names[which]);
    fuzz_put(inner, data + 1, size - 1);
    fuzz_weft((const char *[]){"report", fuzz_path("run"), NULL});
    fuzz_weft((const char *[]){"compare", fuzz_path("run"), NULL});
    fuzz_put(inner, good[which], good_size[which]);
    return 0;
}
