/* print: what the program prints. Names, notes and labels come from files of others and may hold
 * terminal escapes, so nothing reaches the terminal but through the filter here
 * (tools/layering.py checks). */
#include "cli/cli.h"

#include "weft/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool lost; /* something could not be printed for want of memory */

bool cli_print_lost(void) { return lost; }

/* In pieces, because stderr has no buffer of its own. */
static void print_text(FILE *to, const char *text) {
    char piece[512], shown[8];
    size_t used = 0;
    for (size_t left = strlen(text); left > 0;) {
        size_t step = wf_text_shown(text, left, shown), length = strlen(shown);
        if (used + length > sizeof piece) {
            fwrite(piece, 1, used, to);
            used = 0;
        }
        memcpy(piece + used, shown, length);
        used += length;
        text += step, left -= step;
    }
    fwrite(piece, 1, used, to);
}

/* Short text needs no memory, so "out of memory" can still be printed. */
static __attribute__((format(printf, 2, 0))) void print_to(FILE *to, const char *format,
                                                           va_list args) {
    char brief[2048], *whole = NULL;
    va_list again;
    va_copy(again, args);
    int length = vsnprintf(brief, sizeof brief, format, args);
    if (length >= (int)sizeof brief && vasprintf(&whole, format, again) < 0) whole = NULL;
    if (length < 0 || (length >= (int)sizeof brief && whole == NULL)) lost = true;
    va_end(again);
    if (length >= 0) print_text(to, whole != NULL ? whole : brief);
    free(whole);
}

void cli_print(const char *format, ...) {
    va_list args;
    va_start(args, format);
    print_to(stdout, format, args);
    va_end(args);
}

void cli_print_error(const char *format, ...) {
    va_list args;
    va_start(args, format);
    print_to(stderr, format, args);
    va_end(args);
}
