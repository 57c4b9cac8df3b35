/* What tests with files share: a folder of their own, made before the group and gone after it. */
#ifndef FOLDER_FIXTURE_H
#define FOLDER_FIXTURE_H

#include "wf_test.h"

#include <unistd.h>

static char folder[] = "/tmp/weft_test_XXXXXX";

static inline int make_folder(void **state) {
    (void)state;
    return mkdtemp(folder) == NULL;
}

static inline int drop_folder(void **state) {
    (void)state;
    char command[64];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

/* The path of a file in it; four can be in use at a time. */
static inline const char *in_folder(const char *name) {
    static char path[4][256];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

#endif
