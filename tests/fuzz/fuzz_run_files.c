/* The files of a run: the first byte says which file of which run the rest replaces; `weft report`
 * and `weft compare` then read all of them. There is a run of one collection, one over tasks and
 * widths, and one along a condition. Whatever stands there, it is read or refused with an exit code
 * of errors.def. stage.json has no digests, as in version 0.1: otherwise what is changed would be
 * refused by them, and the readers behind would not be reached. */
#include "fuzz_program.h"

#include <jansson.h>

static const char *const runs[] = {"run", "tasks", "domains"};
static const char *const names[] = {"stage.json", "eval.json", "points.json",
                                    "flow.safetensors.log.jsonl", "recipe.conf"};
enum { n_runs = 3, n_names = sizeof names / sizeof *names, n_files = n_runs * n_names };

static struct {
    char path[64]; /* "" where the run has no such file */
    char *good;
    size_t size;
} files[n_files];

static const char small_model[] =
    "[model]\nnode = 4\nedge = 4\ntime = 4\nblocks = 1\ncond = linear\n"
    "[train]\nupdates = 2\nbatch = 2\nlog_every = 1\n[eval]\nsubsets = "
    "2\n[sample]\ncount = 2\nsolver = euler\nsteps = 2\n";

static void put_text(const char *name, const char *text) { fuzz_put(name, text, strlen(text)); }

static void make_recipes(void) {
    char text[1024];
    put_text("run.conf", fuzz_recipe);
    put_text("moons.conf", "[data]\nname = moons\nrows = 60\n[zoo]\narch = 2-3-2\ncount = 6\n"
                           "held_out = 2\nepochs = 1\nbatch = 32\n");
    put_text("two.manifest",
             "[a]\nrecipe = moons.conf\ncond = 0\n[b]\nrecipe = moons.conf\ncond = 1\n");
    snprintf(text, sizeof text, "[zoo]\nmanifest = %s\n%swidths = 0.5,1\nrefine_cycles = 1\n",
             fuzz_path("two.manifest"), small_model);
    put_text("tasks.conf", text);
    snprintf(text, sizeof text, "[zoo]\nmanifest = %s\n%sconds = 0,0.5,1\nrefine_cycles = 1\n",
             fuzz_path("two.manifest"), small_model);
    put_text("domains.conf", text);
}

static void drop_digests(const char *name) {
    size_t size;
    const char *stage;
    json_t *entry;
    char *text = fuzz_get(name, &size);
    json_t *record = json_loadb(text, size, 0, NULL);
    if (json_object_del(record, "digest") != 0) abort();
    json_object_foreach(record, stage, entry) json_object_del(entry, "outputs");
    free(text);
    text = json_dumps(record, JSON_INDENT(1));
    if (text == NULL) abort();
    put_text(name, text);
    free(text);
    json_decref(record);
}

static void make_runs(void) {
    static bool made;
    if (made) return;
    made = true;
    make_recipes();
    for (int r = 0; r < n_runs; r++) {
        char recipe[64];
        snprintf(recipe, sizeof recipe, "%s.conf", runs[r]);
        const char *words[] = {"run", fuzz_path(recipe), "-o", fuzz_path(runs[r]), NULL};
        if (fuzz_weft(words) != 0) abort();
        char record[64];
        snprintf(record, sizeof record, "%s/%s", runs[r], names[0]);
        drop_digests(record);
        for (int k = 0; k < n_names; k++) {
            char inner[64];
            snprintf(inner, sizeof inner, "%s/%s", runs[r], names[k]);
            if (access(fuzz_path(inner), R_OK) != 0) continue;
            int f = r * n_names + k;
            memcpy(files[f].path, inner, sizeof inner);
            files[f].good = fuzz_get(inner, &files[f].size);
        }
    }
}

const char *fuzz_seed(size_t index, size_t *size) {
    static char *seed;
    if (index >= n_files) return NULL;
    make_runs();
    free(seed);
    seed = malloc(files[index].size + 1);
    if (seed == NULL) return NULL;
    seed[0] = (char)index;
    if (files[index].size > 0) memcpy(seed + 1, files[index].good, files[index].size);
    *size = files[index].size + 1;
    return seed;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    make_runs();
    int which = data[0] % n_files;
    if (files[which].path[0] == '\0') return 0;
    const char *folder = fuzz_path(runs[which / n_names]);
    fuzz_put(files[which].path, data + 1, size - 1);
    fuzz_weft((const char *[]){"report", folder, NULL});
    fuzz_weft((const char *[]){"compare", folder, NULL});
    fuzz_put(files[which].path, files[which].good, files[which].size);
    return 0;
}
