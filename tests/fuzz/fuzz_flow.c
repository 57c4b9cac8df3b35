/* The reader of flow files: any file is opened or refused; what is opened can be sampled from. */
#include "fuzz_file.h"

#include "weft/flow.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char arch[] = "1-2-1";
enum { arch_params = 7 };

/* A flow of one update, trained here: the format is what the writer writes. */
static char *train_seed(size_t *size) {
    char folder[] = "/tmp/weft_fuzz_XXXXXX", zoo_path[64], path[64], log[80];
    if (mkdtemp(folder) == NULL) return NULL;
    snprintf(zoo_path, sizeof zoo_path, "%s/zoo", folder);
    snprintf(path, sizeof path, "%s/flow", folder);
    snprintf(log, sizeof log, "%s.log.jsonl", path);
    float weights[2][arch_params] = {{1, 2, 3, 4, 5, 6, 7}, {7, 5, 3, 1, 2, 4, 6}};
    wf_graph *graph = NULL;
    wf_zoo *zoo = NULL;
    wf_field_desc field = wf_field_desc_default();
    field.node = field.edge = field.time = 2;
    field.blocks = 1;
    wf_fit_desc fit = wf_fit_desc_default();
    fit.updates = fit.batch = 1;
    fit.principal = true;
    char *bytes = NULL;
    if (wf_graph_parse(NULL, arch, "relu", 0, &graph) == WF_OK &&
        wf_zoo_write(NULL, zoo_path, graph, weights[0], 2, NULL) == WF_OK &&
        wf_zoo_open(NULL, zoo_path, &zoo) == WF_OK &&
        wf_flow_fit(NULL, &(wf_source){.zoo = zoo}, 1, &field, &fit, path, NULL) == WF_OK) {
        FILE *file = fopen(path, "rb");
        bytes = malloc(1 << 20);
        *size = file != NULL && bytes != NULL ? fread(bytes, 1, 1 << 20, file) : 0;
        if (file != NULL) fclose(file);
        fuzz_forget_digest(bytes, *size);
    }
    wf_zoo_free(zoo);
    wf_graph_free(graph);
    remove(log), remove(path), remove(zoo_path), rmdir(folder);
    return bytes;
}

const char *fuzz_seed(size_t index, size_t *size) {
    static char *bytes;
    static size_t length;
    if (bytes == NULL) bytes = train_seed(&length);
    *size = length;
    return index == 0 ? bytes : NULL;
}

static void use_flow(wf_flow *flow) {
    wf_graph *graph = NULL;
    float w[arch_params], cond[64] = {0};
    wf_sample_desc desc = wf_sample_desc_default();
    desc.solver = WF_SOLVER_EULER;
    desc.steps = 2;
    if (wf_flow_cond_size(flow) <= 64 && wf_graph_parse(NULL, arch, "relu", 0, &graph) == WF_OK)
        (void)wf_flow_sample(NULL, flow, graph, cond, 1, &desc, w, NULL, NULL);
    wf_graph_free(graph);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_file file;
    wf_flow *flow = NULL;
    if (!fuzz_file_open(&file, data, size)) return 0;
    if (wf_flow_open(NULL, file.path, &flow) == WF_OK) use_flow(flow);
    wf_flow_free(flow);
    fuzz_file_close(&file);
    return 0;
}
