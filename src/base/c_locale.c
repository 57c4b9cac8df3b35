/* c_locale: see c_locale.h. The locale object is made once and lives as long as the program. */
#include "base/c_locale.h"

#include <pthread.h>
#include <stdlib.h>

static locale_t c_locale;
static void make_c_locale(void) { c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0); }

static locale_t get_c_locale(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_c_locale);
    return c_locale;
}

double wf_c_strtod(const char *text, char **end) {
    locale_t c = get_c_locale();
    return c == (locale_t)0 ? strtod(text, end) : strtod_l(text, end, c);
}

/* uselocale of no locale changes nothing. */
locale_t wf_c_locale_enter(void) { return uselocale(get_c_locale()); }
void wf_c_locale_leave(locale_t before) { uselocale(before); }
