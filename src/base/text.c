#include "weft/text.h"

#include "base/utf8.h"

#include <stdarg.h>
#include <stdio.h>
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
