/* A locale whose decimal point is a comma, made for the test: host programs may have chosen one. */
#ifndef COMMA_LOCALE_H
#define COMMA_LOCALE_H

#include <locale.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* False where it cannot be made (no localedef): the caller then skips. Of a whole language
 * localedef would take a second. */
static inline bool comma_locale_begin(void) {
    char place[] = "/tmp/weft_locale_XXXXXX", command[300];
    if (mkdtemp(place) == NULL) return false;
    setenv("LOCPATH", place, 1);
    snprintf(command, sizeof command,
             "printf 'LC_NUMERIC\\ndecimal_point \",\"\\nthousands_sep \".\"\\ngrouping 3;3\\n"
             "END LC_NUMERIC\\n' >%s/text && "
             "localedef -c -i %s/text -f ANSI_X3.4-1968 %s/comma 2>/dev/null",
             place, place, place);
    bool made = system(command) >= 0; /* 1: it warns of what is left out */
    bool comma = made && setlocale(LC_NUMERIC, "comma") != NULL && strtod("2,5", NULL) == 2.5;
    snprintf(command, sizeof command, "rm -rf %s", place);
    return system(command) == 0 && comma;
}

static inline void comma_locale_end(void) {
    setlocale(LC_NUMERIC, "C");
    unsetenv("LOCPATH");
}

#endif
