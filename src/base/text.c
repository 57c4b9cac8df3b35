#include "weft/text.h"

#include "base/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

wf_text wf_text_start(char *buffer, size_t size) {
    buffer[0] = '\0';
    return (wf_text){.start = buffer, .size = size};
}

bool wf_text_add(wf_text *text, const char *format, ...) {
    if (text->cut) return false;
    size_t room = text->size - text->length;
    va_list args;
    va_start(args, format);
    int wanted = vsnprintf(text->start + text->length, room, format, args);
    va_end(args);
    text->cut = wanted < 0 || (size_t)wanted >= room;
    if (!text->cut) {
        text->length += (size_t)wanted;
        return true;
    }
    /* Bytes that are not UTF-8 stay as they are; only a character that the end cuts apart goes. */
    char *added = text->start + text->length;
    size_t kept = wanted < 0 ? 0 : room - 1, last = kept;
    while (last > 0 && kept - last < 3 && ((unsigned char)added[last - 1] & 0xc0) == 0x80) last--;
    if (last > 0 && (unsigned char)added[last - 1] >= 0xc0 &&
        wf_utf8_step(added + last - 1, kept - last + 1) == 0)
        kept = last - 1;
    added[kept] = '\0';
    text->length += kept;
    return false;
}

/* Room for `count` bytes and a NUL behind the text. */
static bool make_room(wf_long_text *text, size_t count) {
    if (text->cut || count < text->room - text->length) return !text->cut;
    size_t room = 2 * text->room + count + 256;
    char *grown = room > count ? realloc(text->bytes, room) : NULL;
    text->cut = grown == NULL;
    if (text->cut) return false;
    text->bytes = grown;
    text->room = room;
    return true;
}

bool wf_long_text_put(wf_long_text *text, const void *bytes, size_t count) {
    if (!make_room(text, count)) return false;
    if (count > 0) memcpy(text->bytes + text->length, bytes, count);
    text->length += count;
    return true;
}

bool wf_long_text_add(wf_long_text *text, const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int wanted = vsnprintf(NULL, 0, format, args);
    bool fits = wanted >= 0 && make_room(text, (size_t)wanted);
    if (fits)
        fits = vsnprintf(text->bytes + text->length, (size_t)wanted + 1, format, again) == wanted;
    va_end(again);
    va_end(args);
    if (fits) text->length += (size_t)wanted;
    else text->cut = true;
    return fits;
}

char *wf_long_text_end(wf_long_text *text) {
    char *bytes = text->bytes;
    if (make_room(text, 0)) {
        bytes = text->bytes;
        bytes[text->length] = '\0';
    } else {
        free(bytes);
        bytes = NULL;
    }
    text->bytes = NULL;
    text->room = 0;
    return bytes;
}

static unsigned decode(const char *text, size_t length) {
    const unsigned char *byte = (const unsigned char *)text;
    unsigned code = length == 1 ? byte[0] : byte[0] & (0xffu >> (length + 1));
    for (size_t i = 1; i < length; i++) code = code << 6 | (byte[i] & 0x3f);
    return code;
}

/* Does a terminal act on the character in place of showing it? */
static bool acts(unsigned code) {
    if (code < 0x20) return code != '\n' && code != '\t';
    return (code >= 0x7f && code <= 0x9f) || code == 0x200e || code == 0x200f || code == 0x61c ||
           (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
}

size_t wf_text_shown(const char *text, size_t size, char out[8]) {
    out[0] = '\0';
    if (size == 0) return 0;
    size_t length = wf_utf8_step(text, size);
    if (length == 0) {
        snprintf(out, 8, "\\x%02x", (unsigned char)text[0]);
        return 1;
    }
    unsigned code = decode(text, length);
    if (acts(code)) snprintf(out, 8, "\\u%04x", code & 0xffff);
    else {
        memcpy(out, text, length);
        out[length] = '\0';
    }
    return length;
}
