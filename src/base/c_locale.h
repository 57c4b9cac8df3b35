/* c_locale: numbers in files have a decimal point, whatever locale the host program has chosen.
 * Calls touch the calling thread alone. */
#pragma once

#include <locale.h>

/* strtod of the C locale. */
double wf_c_strtod(const char *text, char **end);

/* Between the two, printf and its kin write as in the C locale. */
locale_t wf_c_locale_enter(void);
void wf_c_locale_leave(locale_t before);
