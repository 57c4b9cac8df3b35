/* Manifests: any text is read or refused; with what is read a flow is fitted in one update. */
#include "fuzz_program.h"

static const char *const seeds[] = {
    "[a]\nzoo = zoo.safetensors\n[b]\nzoo = zoo.safetensors\ntask = c\n",
    ("[a]\nzoo = zoo.safetensors\ncond = 1,0\npaper = 0.5: 79.54 54.38, 1: 87.07 73.26\n[b]\n"
     "zoo = zoo.safetensors\ncond = 0.5,1e3\ndata = spirals\n"),
    "[x]\nrecipe = tiny.conf # why\n",
};

FUZZ_TEXTS(seeds)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static bool made;
    if (!made) {
        fuzz_put("tiny.conf", fuzz_recipe, sizeof fuzz_recipe - 1);
        if (fuzz_weft((const char *[]){"zoo", "train", fuzz_path("tiny.conf"), "-o",
                                       fuzz_path("zoo.safetensors"), NULL}) != 0)
            abort();
        made = true;
    }
    fuzz_put("fuzz.manifest", data, size);
    remove(fuzz_path("flow.safetensors"));
    fuzz_weft((const char *[]){"train", fuzz_path("tiny.conf"), "--manifest",
                               fuzz_path("fuzz.manifest"), "--set", "train.updates=1", "--set",
                               size % 2 == 0 ? "model.cond=none" : "model.cond=mlp", "-o",
                               fuzz_path("flow.safetensors"), NULL});
    return 0;
}
