/* weft: the program. Uses the public headers alone. */
#include "weft/base.h"

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "version") == 0) {
        puts("weft " WF_VERSION);
        return 0;
    }
    fputs("usage: weft version\n", stderr);
    return 2;
}
