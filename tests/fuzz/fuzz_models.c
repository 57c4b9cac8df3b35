/* Files of generators other than gmn, finished and broken off: any file is opened or refused; what
 * is opened can be sampled from, and a fit that finds it goes on or refuses it. */
#include "fuzz_file.h"
#include "fuzz_program.h"

#include "weft/generator.h"

static const char arch[] = "1-2-1";
enum { arch_params = 7 };

/* Settings that make each small. %d: updates. */
static const struct {
    const char *name, *settings;
} kinds[] = {
    {"mlp", "{\"model\":{\"width\":4,\"blocks\":1,\"time\":2},"
            "\"train\":{\"updates\":%d,\"batch\":2,\"coupling\":\"independent\"}}"},
    {"dwf", "{\"model\":{\"width\":4,\"time\":2},"
            "\"train\":{\"updates\":%d,\"batch\":2,\"coupling\":\"independent\"}}"},
    {"dit", "{\"model\":{\"width\":4,\"blocks\":1,\"heads\":2,\"token\":4,\"time\":2},"
            "\"train\":{\"updates\":%d,\"batch\":2,\"coupling\":\"independent\"}}"},
    {"sane-gauss", "{\"model\":{\"width\":4,\"blocks\":1,\"heads\":2,\"latent\":2,\"copies\":1,"
                   "\"relabellings\":2},\"train\":{\"updates\":%d,\"batch\":2}}"},
    {"sane-kde", "{\"model\":{\"width\":4,\"blocks\":1,\"heads\":2,\"latent\":2,\"copies\":1,"
                 "\"relabellings\":2},\"train\":{\"updates\":%d,\"batch\":2}}"},
    {"pdiff", "{\"model\":{\"latent\":2,\"channels\":2,\"time\":2,\"vae_updates\":1,"
              "\"diffusion_steps\":25},\"train\":{\"updates\":%d,\"batch\":2}}"},
};
enum { n_kinds = sizeof kinds / sizeof *kinds, n_seeds = 2 * n_kinds };

/* Two networks, which count as aligned. */
static const wf_zoo *networks(void) {
    static wf_zoo *zoo;
    float weights[2][arch_params] = {{1, 2, 3, 4, 5, 6, 7}, {7, 5, 3, 1, 2, 4, 6}};
    wf_zoo_extra extra = {.n_meta = 1};
    wf_graph *graph;
    if (zoo != NULL) return zoo;
    extra.meta[0][0] = "weft.aligned", extra.meta[0][1] = "yes";
    if (wf_graph_parse(NULL, arch, "relu", 0, &graph) != WF_OK ||
        wf_zoo_write(NULL, fuzz_path("zoo"), graph, weights[0], 2, &extra) != WF_OK ||
        wf_zoo_open(NULL, fuzz_path("zoo"), &zoo) != WF_OK)
        abort();
    wf_graph_free(graph);
    return zoo;
}

static wf_status fit(const char *name, int updates) {
    const wf_zoo *zoo = networks();
    char json[512];
    for (int k = 0; k < n_kinds; k++) {
        if (strcmp(kinds[k].name, name) != 0) continue;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(json, sizeof json, kinds[k].settings, updates);
#pragma GCC diagnostic pop
        return wf_generator_fit_json(NULL, name, &zoo, NULL, 1, json, fuzz_path("model"));
    }
    return WF_OK;
}

const char *fuzz_seed(size_t index, size_t *size) {
    static char *bytes[n_seeds];
    static size_t sizes[n_seeds];
    if (index >= n_seeds) return NULL;
    if (bytes[index] == NULL) {
        remove(fuzz_path("model"));
        if (fit(kinds[index / 2].name, 1 + (int)(index % 2)) != WF_OK) abort();
        bytes[index] = fuzz_get("model", &sizes[index]);
        fuzz_forget_digest(bytes[index], sizes[index]);
    }
    *size = sizes[index];
    return bytes[index];
}

static void use_model(wf_generator *generator) {
    float w[1024];
    const wf_graph *graph = wf_generator_graph(generator);
    wf_sample_desc sample = wf_sample_desc_default();
    sample.solver = WF_SOLVER_EULER;
    sample.steps = 2;
    wf_generator_request request = {.graph = graph, .n = 1, .sample = &sample, .weights = w};
    if (graph != NULL && graph->n_params <= sizeof w / sizeof *w)
        (void)wf_generator_sample(NULL, generator, &request);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_put("model", data, size);
    wf_generator *generator = NULL;
    const char *name = "";
    wf_generator_open_desc desc = {.path = fuzz_path("model")};
    if (wf_generator_open(NULL, &desc, &generator) == WF_OK) {
        name = wf_generator_kind_of(generator)->name;
        use_model(generator);
    }
    wf_generator_free(generator);
    (void)fit(name, 3);
    return 0;
}
