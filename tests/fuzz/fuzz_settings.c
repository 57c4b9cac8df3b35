/* Recipes with all their settings: any text is resolved or refused; what is resolved is
 * described. */
#include "fuzz_program.h"

static const char *const seeds[] = {
    fuzz_recipe,
    "[data]\nname = moons\nnoise = 0.1\n[zoo]\narch = 2-8!-2\nactivation = gelu\noptimizer = sgd\n"
    "momentum = 0.9\nlr = 0.01\nlr_max = 0.1\nepochs = 3\nepochs_max = 5\n[model]\nlayout = lstar\n"
    "node = 8\nfold = yes\ncond = mlp\ncond_size = 3\n[train]\ncoupling = matched\nema = 0.999\n",
};

FUZZ_TEXTS(seeds)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_put("fuzz.conf", data, size);
    fuzz_weft((const char *[]){"model", "info", fuzz_path("fuzz.conf"), NULL});
    return 0;
}
