/* The whole program on files in a folder of its own: for files that only the program reads. */
#ifndef WF_FUZZ_PROGRAM_H
#define WF_FUZZ_PROGRAM_H

#include "driver.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int weft_main(int argc, char **argv); /* main of src/cli/main.c */

static char fuzz_folder[64];

static inline void fuzz_leave(void) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", fuzz_folder);
    if (system(command) != 0) return;
}

/* A folder in memory, where there is one, because the program syncs what it writes. The program's
 * own streams are silenced; what fuzzers and sanitizers say goes past them. */
static inline const char *fuzz_home(void) {
    if (fuzz_folder[0] != 0) return fuzz_folder;
    struct stat info;
    snprintf(fuzz_folder, sizeof fuzz_folder, "%s/weft_fuzz_XXXXXX",
             stat("/dev/shm", &info) == 0 ? "/dev/shm" : "/tmp");
    FILE *nowhere = fopen("/dev/null", "w");
    if (mkdtemp(fuzz_folder) == NULL || nowhere == NULL) abort();
    atexit(fuzz_leave);
    stdout = stderr = nowhere;
    return fuzz_folder;
}

static inline const char *fuzz_path(const char *name) {
    static char path[4][256];
    static int next;
    char *out = path[next++ % 4];
    snprintf(out, sizeof path[0], "%s/%s", fuzz_home(), name);
    return out;
}

static inline void fuzz_put(const char *name, const void *bytes, size_t size) {
    FILE *file = fopen(fuzz_path(name), "wb");
    if (file == NULL || fwrite(bytes, 1, size, file) != size || fclose(file) != 0) abort();
}

static inline char *fuzz_get(const char *name, size_t *size) {
    FILE *file = fopen(fuzz_path(name), "rb");
    char *bytes = malloc(1 << 20);
    if (file == NULL || bytes == NULL) abort();
    *size = fread(bytes, 1, 1 << 20, file);
    fclose(file);
    return bytes;
}

/* Runs `weft WORDS...` (NULL after the last); its exit code. */
static inline int fuzz_weft(const char *const *words) {
    char *argv[32] = {"weft"}, copies[32][256];
    int argc = 1;
    fuzz_home();
    for (; words[argc - 1] != NULL && argc < 28; argc++) {
        snprintf(copies[argc], sizeof copies[argc], "%s", words[argc - 1]);
        argv[argc] = copies[argc];
    }
    argv[argc++] = "-q";
    argv[argc++] = "--threads=1";
    int code = weft_main(argc, argv);
    if (code < 0 || code > 5) abort(); /* the codes of errors.def */
    return code;
}

static const char fuzz_recipe[] =
    "[data]\nname = spirals\nrows = 60\n[zoo]\narch = 2-3-3\ncount = 6\nheld_out = 2\nepochs = 1\n"
    "batch = 32\n[model]\nnode = 4\nedge = 4\ntime = 4\nblocks = 1\n[train]\nupdates = 2\nbatch = "
    "2\nlog_every = 1\n[sample]\ncount = 2\nsolver = euler\nsteps = 2\nrefine_cycles = 1\n[eval]\n"
    "subsets = 2\n";

#endif
