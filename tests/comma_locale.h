/* A locale whose decimal point is a comma, made for the test: host programs may have chosen one. */
#ifndef COMMA_LOCALE_H
#define COMMA_LOCALE_H

#include <locale.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* False where it cannot be made (no localedef): the caller then skips. */
static inline bool comma_locale_begin(void) {
    char place[] = "/tmp/weft_locale_XXXXXX", command[200];
    if (mkdtemp(place) == NULL) return false;
    setenv("LOCPATH", place, 1);
    snprintf(command, sizeof command, "localedef -i de_DE -f UTF-8 %s/de_DE.UTF-8 2>/dev/null",
             place);
    bool comma = system(command) == 0 && setlocale(LC_NUMERIC, "de_DE.UTF-8") != NULL &&
                 strtod("2,5", NULL) == 2.5;
    snprintf(command, sizeof command, "rm -rf %s", place);
    return system(command) == 0 && comma;
}

static inline void comma_locale_end(void) {
    setlocale(LC_NUMERIC, "C");
    unsetenv("LOCPATH");
}

#endif
