/* weft/text.h: text that is built in a buffer, of fixed size or growing, and text that is safe to
 * print.
 *
 *     char names[128];
 *     wf_text list = wf_text_start(names, sizeof names);
 *     for (int i = 0; i < n; i++) wf_text_add(&list, "%s%s", i > 0 ? ", " : "", name[i]);
 *     if (list.cut) ...                                 names holds as much as fits
 *
 * weft/weft.h says who owns what and what NULL means where a comment does not. */
#ifndef WEFT_TEXT_H
#define WEFT_TEXT_H

#include "weft/base.h"

WF_BEGIN_C

typedef struct wf_text {
    char *start;   /* always NUL-terminated */
    size_t size;   /* of the buffer, with the NUL; at least 1 */
    size_t length; /* of the text */
    bool cut;      /* something did not fit; from then on nothing is added */
} wf_text;

/* The buffer is borrowed; the text begins empty. */
WF_API wf_text wf_text_start(char *buffer, size_t size);
/* Adds as much as fits, whole characters of UTF-8. Returns false when the text is cut. */
WF_API bool wf_text_add(wf_text *text, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Text of any length, in memory of its own. Zero-initialised: empty.
 *
 *     wf_long_text list = {0};
 *     for (int i = 0; i < n; i++) wf_long_text_add(&list, "%s\n", name[i]);
 *     char *text = wf_long_text_end(&list);             NULL: out of memory
 *
 * open_memstream does not serve here: where memory is short it drops text and reports nothing. */
typedef struct wf_long_text {
    char *bytes;
    size_t length; /* of the text; a caller that has used it may set it to 0 */
    size_t room;
    bool cut; /* memory ran out; from then on nothing is added */
} wf_long_text;

/* Both return false when the text is cut. Any bytes may be put. */
WF_API bool wf_long_text_put(wf_long_text *text, const void *bytes, size_t count);
WF_API bool wf_long_text_add(wf_long_text *text, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* All of it, NUL-terminated, for free(); NULL: it was cut, and is freed. The length stays, and
 * nothing may be added any more. */
WF_API char *wf_long_text_end(wf_long_text *text);

/* One character as a terminal may show it, NUL-terminated in `out`: itself, "\u001b" in place of a
 * control character other than newline and tab, or of one that changes the direction of writing,
 * "\xff" in place of a byte that is not UTF-8. Returns the bytes of `text` that it stands for; 0
 * when size is 0. */
WF_API size_t wf_text_shown(const char *text, size_t size, char out[8]);

WF_END_C

#endif
